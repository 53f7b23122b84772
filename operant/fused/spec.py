"""What fused kernels are generated from: a network's and a distribution's shape as plain numbers, or the sentence that says why there are none.

Knows nets, heads and where their parameters lie in the flat vector; knows no Triton.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from operant import nets
from operant.heads import Gaussian
from operant.policy import Policy
from operant.world import Slot

MOST_OBSERVATIONS = 128
MOST_WIDTH = 128
MOST_LAYERS = 3
MOST_OUTPUTS = 64
"""Logits or means, and the value: one product's columns."""

MANY_TILES = 24
"""Of a program; from here on a second wave of programs pays."""


@dataclass(frozen=True)
class Spec:
    """One network and distribution. Widths with `_pad` are powers of two from 16 up: what a tile has; the rest of a tile is zero."""

    observation: int
    observation_pad: int  # at least one column is spare, and holds ones: the first layer's bias is a row of its weight
    hidden: tuple[int, ...]
    hidden_pad: tuple[int, ...]
    shared: bool
    activation: str
    head_rows: int
    out_pad: int  # columns of the last product: the head's rows, then the value
    sizes: tuple[int, ...]  # of the choices; empty for a Gaussian
    starts: tuple[int, ...]  # the column at which each choice begins, and the last one's end
    squash: bool
    normalize: bool
    precision: str  # "ieee", "tf32" or "bf16"
    approximate: bool  # a GPU's tf32 or bf16: tanh is its own instruction, and what a tf32 product cuts off is made up for
    first_weight: int  # where each parameter begins in the flat vector; weights and biases from the second layer on
    first_bias: int
    weights: tuple[int, ...]
    biases: tuple[int, ...]
    head_weight: int
    head_bias: int
    value_weight: int
    value_bias: int
    log_std: int  # -1 for a Categorical

    @property
    def towers(self) -> int:
        """1 where actor and critic share a trunk."""
        return 1 if self.shared else 2


def padded(width: int) -> int:
    """The smallest power of two that holds `width` and is at least 16, the least that a matrix unit takes."""
    return max(16, 1 << (width - 1).bit_length())


def why_not(policy: Policy, samples: int) -> str | None:
    """The sentence that says why this policy cannot run fused, or None where it can. `samples`: T N."""
    net = policy.net
    if not isinstance(net, nets.MLP):
        return "the network is not one of Operant's own"
    config, observation, outputs = net.config, policy.env.observation.size, policy.head.parameter_rows + 1
    if observation > MOST_OBSERVATIONS:
        return f"the observation is {observation} wide, and fused kernels take up to {MOST_OBSERVATIONS}"
    if len(config.hidden) > MOST_LAYERS or max(config.hidden) > MOST_WIDTH:
        return f"fused kernels take up to {MOST_LAYERS} hidden layers of up to {MOST_WIDTH}, and net.hidden is {list(config.hidden)}"
    if outputs > MOST_OUTPUTS:
        return f"the action has {outputs - 1} parameters, and fused kernels take up to {MOST_OUTPUTS - 1}"
    if samples * max(observation, policy.head.uniform_rows) >= 2**31:
        return "an iteration holds more than 2^31 numbers"
    return None


def describe(policy: Policy, precision: str) -> Spec:
    """The spec of a policy that `why_not` lets pass; `precision` is "fp32", "tf32" or "bf16", the last two on a GPU."""
    net, head = policy.net, policy.head
    assert isinstance(net, nets.MLP)
    begin = dict(zip(policy.flat.names, policy.flat.offsets, strict=True))
    gaussian = isinstance(head, Gaussian)
    sizes = () if isinstance(head, Gaussian) else head.sizes
    hidden = net.config.hidden
    later = range(len(hidden) - 1)
    return Spec(
        observation=policy.env.observation.size,
        observation_pad=padded(policy.env.observation.size + 1),
        hidden=hidden,
        hidden_pad=tuple(padded(width) for width in hidden),
        shared=net.config.shared,
        activation=net.config.activation,
        head_rows=head.parameter_rows,
        out_pad=padded(head.parameter_rows + 1),
        sizes=sizes,
        starts=tuple(sum(sizes[:k]) for k in range(len(sizes) + 1)),
        squash=isinstance(head, Gaussian) and head.squash,
        normalize=policy.moments is not None,
        precision="ieee" if precision == "fp32" else precision,
        approximate=precision != "fp32",
        first_weight=begin["first_weight"],
        first_bias=begin["first_bias"],
        weights=tuple(begin[f"weights.{k}"] for k in later),
        biases=tuple(begin[f"biases.{k}"] for k in later),
        head_weight=begin["head_weight"],
        head_bias=begin["head_bias"],
        value_weight=begin["value_weight"],
        value_bias=begin["value_bias"],
        log_std=begin["log_std"] if gaussian else -1,
    )


# WHAT KERNELS WORK ON


class Buffers(NamedTuple):
    """What a rollout and an update read and write, as the algorithm has it."""

    rollout: Slot
    raw: Tensor  # (T, A, N)
    uniform: Tensor  # (T, U, N)
    samples: Tensor  # flat: advantages, log-probabilities and returns (T, N) each, then values (T + 1, N)
    final_value: Tensor  # (T, N)
    order: Tensor  # (E, M) int32
    iteration: Tensor  # (1) int64
    skip: Tensor  # one float: whether this iteration's later steps are left out
    learning_rate: Tensor  # one float
    stats: Tensor  # (9)


class Loss(NamedTuple):
    """The numbers of the loss and of the step."""

    clip: float
    value_clip: float | None
    entropy_coefficient: float
    value_coefficient: float
    max_gradient_norm: float
    normalize_advantages: bool
    target_kl: float | None
    adam_epsilon: float
    start_rate: float
    anneal_iterations: int | None  # None: the rate stays


@dataclass(frozen=True)
class Shape:
    """How kernels are cut: rows of a tile, warps of a program, programs of a tower. The same bits come only from the same shape."""

    rows: int
    warps: int
    programs: int
    act_rows: int
    act_warps: int
    most_registers: int | None = None  # of a thread of the gradient's kernel


def shapes(spec: Spec, minibatch: int, multiprocessors: int) -> Iterator[Shape]:
    """Shapes to try, best first, as they were on an H200 (benches/LOG.md): smaller tiles ask for less shared memory."""
    widest = max(*spec.hidden_pad, spec.observation_pad)
    warps = 4 if widest <= 64 else 8
    for rows in (64, 32, 16) if spec.precision != "ieee" else (32, 16):
        tiles = -(-minibatch // rows)
        # As many programs as the GPU holds at once; twice as many where each still gets some tiles, for what is left at the end is less then.
        resident = max(1, multiprocessors * (2 if widest <= 64 else 1) // spec.towers)
        programs = 2 * resident if widest <= 64 and tiles >= MANY_TILES * resident else resident
        yield Shape(rows=rows, warps=warps, programs=min(tiles, programs), act_rows=rows, act_warps=warps)
