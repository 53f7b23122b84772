"""What recurrent kernels are generated from: a memory's shape as plain numbers, or the sentence that says why there are
none. Knows no Triton.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from operant.kernels import spec as kernel_spec
from operant.nn import Policy

MAX_GATED, MAX_FP32 = 256, 64
"""Units of a GRU or an LSTM whose every step one program computes, padded; and of any memory in fp32 that are known to
be no slower than torch's.
"""

FUSED_BYTES = 64 << 10
"""Of MinGRU's weights that a program holds twice, as they are and transposed: up to so many gates and scan are one
kernel.
"""

HELD_BYTES = 64 << 10
"""Of all weights of a memory that a program holds while it acts."""

RESIDENT_BYTES = 136 << 10
"""Of a GRU's or an LSTM's weights that a program holds for all steps. Larger ones are read again at each."""


@dataclass(frozen=True)
class Shape:
    """A memory: layers of one cell, all as wide as what the first of them reads."""

    kind: str  # "mingru", "gru" or "lstm"
    layers: int
    units: int  # M
    pad: int  # P: M up to a power of two; all beyond M has no effect
    gates: int  # K
    columns: int  # of a row of gates, P each; of a GRU one more than gates
    rows: int  # R, numbers of a lane's state
    length: int  # L, steps of a segment
    block: int  # neighbouring lanes whose segments lie side by side
    precision: str  # of products: "ieee", "tf32" or "bf16"
    approximate: bool  # tanh is the GPU's own instruction
    fused: bool  # MinGRU: gates are worked out where they are used
    resident: bool  # a program holds the recurrent weights
    # units of the state that a product with them takes at a time where it does not: few, as in fp32 operands lie in
    # registers
    part: int
    held: bool  # a program that acts holds all weights
    input_weights: tuple[int, ...]  # where each layer's begin in the flat vector
    input_biases: tuple[int, ...]
    state_weights: tuple[int, ...]  # none of MinGRU
    state_biases: tuple[int, ...]  # of GRU alone

    def lean(self) -> Shape:
        """The same where a program holds no weights."""
        return replace(self, fused=False, resident=False, held=False)

    @property
    def in_tiles(self) -> bool:
        """A program that acts goes through a GRU's or an LSTM's only layer some units after the other: it does not hold
        all weights.
        """
        return self.kind != "mingru" and not self.held and self.layers == 1

    @property
    def in_parts(self) -> bool:
        """Products of a GRU's or an LSTM's own weights go through the state's units in parts."""
        return self.kind != "mingru" and not self.resident

    @property
    def own_places(self) -> tuple[int, ...]:
        """Where in a row of gates the gradients lie that the recurrent weights' products take: of a GRU's n there are
        two, of its input and of W h + b.
        """
        return (0, 1, 3) if self.kind == "gru" else tuple(range(self.gates))

    @property
    def matrix(self) -> int:
        """Numbers of a packed weight, (K P, P)."""
        return self.gates * self.pad * self.pad

    @property
    def matrices(self) -> int:
        """Packed weights of a layer."""
        return 1 if self.kind == "mingru" else 2


class Where(NamedTuple):
    """Where sequences lie: those of a minibatch by its order, or when acting lane after lane."""

    order: Any  # (E, M) int32, the blocks of a minibatch's steps
    first: Any  # where the sequences begin in `order`, or which lane is the first
    step: Any  # which is acted, of which a state is forgotten where an episode has ended before it; 0: none is
    sample: Any  # t N + n of the first lane that is acted on, whose final observations are seen
    state: Any  # (R, N), or (K, R, N) before each segment
    terminated: Any  # (T, N) uint8
    truncated: Any


class Finals(NamedTuple):
    """True final observations, and their values."""

    observation: Any  # (T, O, N)
    value: Any  # (T, N)


class States(NamedTuple):
    """What lanes remember, as the algorithm keeps it."""

    now: Tensor  # (R, N)
    starts: Tensor  # (K, R, N), before each segment
    finals: bool  # whether episodes may be truncated


def unsupported_reason(policy: Policy, samples: int) -> str | None:
    """The sentence that says why this policy cannot run fused, or None where it can. `samples`: (T + 1) N."""
    net: Any = policy.net
    if not hasattr(net, "encoder"):
        return "fused kernels take dense layers, not this network"
    reason = kernel_spec.unsupported_reason(policy, samples, net.encoder)
    if reason is not None:
        return reason
    memory = net.memory
    if memory.towers != 1:
        return "actor and critic have a memory each (net.shared = true works)"
    if memory.units != net.encoder.config.hidden[-1]:
        return (
            f"net.memory_size is {memory.units}, and fused kernels take the width of the last hidden layer, "
            f"{net.encoder.config.hidden[-1]}"
        )
    if memory.kind != "mingru" and memory.units > MAX_GATED:
        return f"fused kernels take up to {MAX_GATED} units of a {memory.kind}, and the memory has {memory.units}"
    return None


def reason_for_torch(policy: Policy, precision: str) -> str | None:
    """The sentence that says why torch's kernels are to be preferred for a policy that could run fused, or None."""
    memory: Any = policy.net.memory
    if precision == "fp32" and memory.units > MAX_FP32:
        anyway = 'algo.kernels = "fused" takes kernels of our own all the same'
        return f"in fp32 a {memory.kind} of {memory.units} units is not known to be faster than by torch's ({anyway})"
    return None


def describe(policy: Policy, precision: str, length: int, block: int) -> tuple[kernel_spec.Spec, Shape]:
    """What the layers around the memory are, and the memory's shape, of a policy that has no `unsupported_reason`."""
    net: Any = policy.net
    memory, spec = net.memory, kernel_spec.describe(policy, precision, net.encoder, "encoder.")
    begin = dict(zip(policy.flat.names, policy.flat.offsets, strict=True))
    pad, gates = kernel_spec.padded(memory.units), memory.input_biases[0].shape[1] // memory.units
    number = 2 if spec.precision == "bf16" else 4

    def places(name: str) -> tuple[int, ...]:
        return tuple(begin[f"memory.{name}.{k}"] for k in range(len(getattr(memory, name))))

    shape = Shape(
        memory.kind,
        memory.layers,
        memory.units,
        pad,
        gates,
        (3 if memory.kind == "mingru" else 4) * pad,
        memory.rows,
        length,
        block,
        spec.precision,
        spec.approximate,
        False,
        False,
        0 if memory.kind == "mingru" else min(16 if spec.precision == "ieee" else 32, pad),
        False,
        places("input_weights"),
        places("input_biases"),
        places("state_weights"),
        places("state_biases"),
    )
    held = number * shape.matrix
    mingru = memory.kind == "mingru"
    fused, resident, few = (
        mingru and held <= FUSED_BYTES,
        not mingru and held <= RESIDENT_BYTES,
        held * shape.matrices * shape.layers <= HELD_BYTES,
    )
    return spec, replace(shape, fused=fused, resident=resident, held=few)
