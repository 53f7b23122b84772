"""What fused kernels are generated from: a network's and a distribution's shape as plain numbers, or the sentence that
says why there are none.

Knows networks, distributions and where their parameters lie in the flat vector; knows no Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from operant.nn import Gaussian, Policy, cnn, mlp

MAX_COLUMNS = 1024
"""Numbers that the first layer reads: a numeric feature is one, a categorical feature with k categories is k."""
MAX_WIDTH = 512
MAX_LAYERS = 3
MAX_OUTPUTS = 128
"""Logits or means, and the value: one product's columns."""

TERMS_PAD = 16
"""Sums that a loss may have beside its gradient."""

RESIDENT_COLUMNS, RESIDENT_WIDTH, RESIDENT_OUTPUTS = 128, 128, 64
"""The same of a network whose weights one program holds, padded."""


class TileSums(NamedTuple):
    """Where a tile's sums over its rows begin, for networks that run a layer at a time."""

    biases: tuple[int, ...]  # gradients of the biases, from the second layer on
    norm_gains: tuple[int, ...]  # gradients of layer normalization's, of each hidden layer; none without it
    norm_biases: tuple[int, ...]
    out_bias: int  # gradient of the last bias
    log_std: int
    terms: int  # of the loss
    width: int  # of all


@dataclass(frozen=True)
class Spec:
    """One network and distribution. Widths with `_pad` are what tiles have: powers of two from 16 up, or multiples of
    64; the rest of a tile is zero.
    """

    observation: int
    bytes: bool  # of uint8; otherwise float32
    categories: int  # each byte is a categorical feature with so many, read one-hot; 0: a numeric feature
    # some features are categorical, with different numbers of categories, and some numeric: a table says which
    partial_one_hot: bool
    columns: int  # what the first layer reads of an observation
    columns_pad: int  # at least one column is spare, and holds ones: the first layer's bias is a column of its weight
    hidden: tuple[int, ...]
    hidden_pad: tuple[int, ...]
    shared: bool
    activation: str
    head_rows: int  # parameters of the distribution
    out_pad: int  # columns of the last product: those parameters, then the value
    sizes: tuple[int, ...]  # of the choices; empty for a Gaussian
    starts: tuple[int, ...]  # the column at which each choice begins, and the last one's end
    legal: bool  # whether there is a mask of legal actions
    squash: bool
    normalize: bool
    precision: str  # "ieee", "tf32" or "bf16"
    approximate: (
        bool  # on a GPU in tf32 or bf16: tanh is its own instruction, and what a tf32 product cuts off is compensated
    )
    first_weight: int  # where each parameter begins in the flat vector; weights and biases from the second layer on
    first_bias: int
    weights: tuple[int, ...]
    biases: tuple[int, ...]
    layer_norm: bool  # between each hidden layer's product and its activation
    norm_epsilon: float
    norm_gains: tuple[int, ...]  # where they begin in the flat vector
    norm_biases: tuple[int, ...]
    head_weight: int
    head_bias: int
    value_weight: int
    value_bias: int
    log_std: int  # -1 for a Categorical
    inputs: tuple[
        int, ...
    ]  # padded width of what each layer reads; the last layer is the distribution's and the value's
    widths: tuple[int, ...]  # padded width of what it puts out
    packed: tuple[
        int, ...
    ]  # per layer, where weights begin: from the second layer on each, then its transpose; and their end
    tile_sums: TileSums

    @property
    def towers(self) -> int:
        """1 where actor and critic share a trunk."""
        return 1 if self.shared else 2


def padded(width: int) -> int:
    """The smallest power of two that holds `width` and is at least 16, the least that a matrix unit takes."""
    return max(16, 1 << (width - 1).bit_length())


def deep_padded(width: int) -> int:
    """The same of what is summed over, step after step: from 64 on the smallest multiple of 64. A power of two would
    waste up to half of the steps.
    """
    return padded(width) if width <= 64 else -(-width // 64) * 64


def is_convolutional(policy: Policy) -> bool:
    """Whether its network is a built-in convolutional one without a memory."""
    return isinstance(policy.net, cnn.Convolutional)


def unsupported_reason(policy: Policy, samples: int, net: Any = None) -> str | None:
    """The sentence that says why this policy cannot run fused, or None where it can. `samples`: (T + 1) N; `net`: its
    dense layers, where it has more.
    """
    net = policy.net if net is None else net
    if isinstance(net, cnn.Convolutional):
        return "the network is a convolutional one"
    if not isinstance(net, mlp.MLP):
        return "fused kernels take dense layers, not this network"
    seen = policy.env.observation
    if policy.env.pixels:
        return "the observation is a picture, which lies in memory in another order than fused kernels read"
    config, columns, outputs = net.config, seen.columns, policy.distribution.parameter_rows + 1
    if columns > MAX_COLUMNS:
        categories = f" of {net.categories} categories" if isinstance(net.categories, int) else ", some categorical"
        width = f"{columns} wide ({seen.size} numbers{categories})" if net.categories else f"{columns} wide"
        return f"the observation is {width}, and fused kernels take up to {MAX_COLUMNS}"
    if len(config.hidden) > MAX_LAYERS or max(config.hidden) > MAX_WIDTH:
        return (
            f"fused kernels take up to {MAX_LAYERS} hidden layers of up to {MAX_WIDTH}, and net.hidden is "
            f"{list(config.hidden)}"
        )
    if outputs > MAX_OUTPUTS:
        return f"the action has {outputs - 1} parameters, and fused kernels take up to {MAX_OUTPUTS - 1}"
    if samples * max(seen.size, policy.distribution.noise_rows, policy.env.mask_size) >= 2**31:
        return "an iteration holds more than 2^31 numbers"
    return None


def describe(policy: Policy, precision: str, net: Any = None, prefix: str = "") -> Spec:
    """The spec of a policy that has no `unsupported_reason`; `precision` is "fp32", "tf32" or "bf16", the last two on a
    GPU.

    `net`: its dense layers, where it has more, whose parameters' names begin with `prefix`.
    """
    net, distribution = policy.net if net is None else net, policy.distribution
    assert isinstance(net, mlp.MLP)
    begin = {
        name.removeprefix(prefix): place for name, place in zip(policy.flat.names, policy.flat.offsets, strict=True)
    }
    gaussian = isinstance(distribution, Gaussian)
    sizes = () if isinstance(distribution, Gaussian) else distribution.sizes
    hidden = net.config.hidden
    later, normed = range(len(hidden) - 1), range(len(hidden) if net.config.layer_norm else 0)
    towers, out_pad, hidden_pad = (
        1 if net.config.shared else 2,
        padded(distribution.parameter_rows + 1),
        tuple(padded(width) for width in hidden),
    )
    seen, columns = policy.env.observation, policy.env.observation.columns
    inputs, widths = (deep_padded(columns + 1), *hidden_pad), (*hidden_pad, out_pad)
    packed = [towers * inputs[k] * widths[k] for k in range(1, len(widths)) for _ in range(2)]
    return Spec(
        observation=seen.size,
        bytes=seen.dtype == "uint8",
        categories=net.categories if isinstance(net.categories, int) else 0,
        partial_one_hot=net.partial_one_hot is not None,
        columns=columns,
        columns_pad=inputs[0],
        hidden=hidden,
        hidden_pad=hidden_pad,
        shared=net.config.shared,
        activation=net.config.activation,
        head_rows=distribution.parameter_rows,
        out_pad=out_pad,
        sizes=sizes,
        starts=tuple(sum(sizes[:k]) for k in range(len(sizes) + 1)),
        legal=policy.env.mask_size > 0,
        squash=isinstance(distribution, Gaussian) and distribution.squash,
        normalize=policy.normalizer is not None,
        precision="ieee" if precision == "fp32" else precision,
        approximate=precision != "fp32",
        first_weight=begin["first_weight"],
        first_bias=begin["first_bias"],
        weights=tuple(begin[f"weights.{k}"] for k in later),
        biases=tuple(begin[f"biases.{k}"] for k in later),
        layer_norm=net.config.layer_norm,
        norm_epsilon=mlp.LAYER_NORM_EPSILON,
        norm_gains=tuple(begin[f"norm_gains.{k}"] for k in normed),
        norm_biases=tuple(begin[f"norm_biases.{k}"] for k in normed),
        head_weight=begin["head_weight"],
        head_bias=begin["head_bias"],
        value_weight=begin["value_weight"],
        value_bias=begin["value_bias"],
        log_std=begin["log_std"] if gaussian else -1,
        inputs=inputs,
        widths=widths,
        packed=tuple(accumulate(packed, initial=0)),
        tile_sums=_tile_sums(hidden_pad, out_pad, net.config.layer_norm),
    )


def _tile_sums(hidden_pad: tuple[int, ...], out_pad: int, layer_norm: bool) -> TileSums:
    normed, later = hidden_pad if layer_norm else (), len(hidden_pad) - 1
    *begins, out_bias, log_std, terms, width = accumulate(
        (*hidden_pad[1:], *normed, *normed, out_pad, out_pad, TERMS_PAD), initial=0
    )
    gains = later + len(normed)
    return TileSums(
        tuple(begins[:later]), tuple(begins[later:gains]), tuple(begins[gains:]), out_bias, log_std, terms, width
    )
