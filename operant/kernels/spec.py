"""Spec of a dense network and its action distribution, from which Triton kernels are compiled.

`Spec` also holds the layout of the flat parameter vector. The module works without Triton.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from operant.nn import Gaussian, Policy, cnn, mlp

MAX_COLUMNS = 1024
"""Largest number of columns of the first layer: 1 for a numeric feature, k for a feature with k categories."""
MAX_WIDTH = 512
MAX_LAYERS = 3
MAX_OUTPUTS = 128
"""Largest number of outputs: logits or means, and the value."""

TERMS_PAD = 16
"""Largest number of loss terms."""

RESIDENT_COLUMNS, RESIDENT_WIDTH, RESIDENT_OUTPUTS = 128, 128, 64
"""Limits of a resident network, whose weights one program holds; padded sizes."""


class TileSums(NamedTuple):
    """Offsets of the sections of a row of tile sums (per-layer engine): each section is a sum over the samples of one
    tile of rows.
    """

    biases: tuple[int, ...]  # gradients of the biases, from the second layer on
    norm_gains: tuple[int, ...]  # gradients of layer normalization's gains, per hidden layer; empty without it
    norm_biases: tuple[int, ...]  # gradients of its biases
    out_bias: int  # gradient of the head's bias
    log_std: int  # gradient of log_std
    terms: int  # loss terms
    width: int  # of a row


@dataclass(frozen=True)
class Spec:
    """Compile-time sizes of one network and its distribution, and the offsets of their parameters in the flat vector.

    Fields with `_pad` are sizes of zero-padded tiles: powers of two from 16 on, or multiples of 64.
    """

    observation: int  # features of an observation
    bytes: bool  # observations are uint8; otherwise float32
    categories: int  # k if every feature is categorical with k categories, one-hot encoded; 0 otherwise
    partial_one_hot: bool  # numeric and categorical features mixed; a table lists the categories of each column
    columns: int  # inputs of the first layer, after one-hot encoding
    columns_pad: int  # at least columns + 1: column number `columns` is constant 1 and multiplies the first bias
    hidden: tuple[int, ...]
    hidden_pad: tuple[int, ...]
    shared: bool  # one trunk for actor and critic
    activation: str
    head_rows: int  # parameters of the distribution
    out_pad: int  # columns of the head: parameters of the distribution, then the value
    sizes: tuple[int, ...]  # number of actions of each choice; empty for a Gaussian
    starts: tuple[int, ...]  # first column of each choice, and the end of the last
    legal: bool  # the environment has a legal-action mask
    squash: bool  # tanh-squashed Gaussian
    normalize: bool  # observations are normalized
    precision: str  # "ieee", "tf32" or "bf16"
    approximate: bool  # hardware tanh, and compensation of tf32 truncation; true in tf32 and bf16
    # Offsets in the flat vector; `weights` and `biases` are those from the second layer on.
    first_weight: int
    first_bias: int
    weights: tuple[int, ...]
    biases: tuple[int, ...]
    layer_norm: bool  # normalize pre-activations of every hidden layer
    norm_epsilon: float
    norm_gains: tuple[int, ...]
    norm_biases: tuple[int, ...]
    head_weight: int
    head_bias: int
    value_weight: int
    value_bias: int
    log_std: int  # -1 for a Categorical
    # Per-layer engine.
    inputs: tuple[int, ...]  # padded inputs of each layer; the last layer is the head
    widths: tuple[int, ...]  # padded outputs of each layer
    packed: tuple[int, ...]  # offsets of packed weights: from the second layer on each and its transpose; then the end
    tile_sums: TileSums

    @property
    def towers(self) -> int:
        """Number of separate networks: 1 if actor and critic share a trunk, otherwise 2."""
        return 1 if self.shared else 2


def padded(width: int) -> int:
    """Return the smallest power of two >= max(width, 16); 16 is the smallest side of a tensor core's operand."""
    return max(16, 1 << (width - 1).bit_length())


def deep_padded(width: int) -> int:
    """Return the padded size of a product's inner dimension: `padded(width)` up to 64, above it the next multiple of
    64.
    """
    return padded(width) if width <= 64 else -(-width // 64) * 64


def statistics_index(terms: tuple[str, ...]) -> Any:
    """Return a named tuple of the indices 0, 1, ... of an algorithm's statistics, for use in kernels as in
    `SPEC.stat.entropy`.
    """
    return namedtuple("Statistics", terms)(*range(len(terms)))


def is_convolutional(policy: Policy) -> bool:
    """Whether the policy's network is a built-in convolutional one without a recurrent cell."""
    return isinstance(policy.net, cnn.Convolutional)


def unsupported_reason(policy: Policy, samples: int, net: Any = None) -> str | None:
    """Return why the fused kernels cannot run this policy, as a clause for a message, or None if they can. `samples`:
    (T + 1) N of an iteration; `net`: the policy's dense layers, if it has other layers as well.

    `samples`: (T + 1) N. `net`: its dense layers, if it has other layers as well.
    """
    net = policy.net if net is None else net
    if isinstance(net, cnn.Convolutional):
        return "the network is a convolutional one"
    if not isinstance(net, mlp.MLP):
        return "fused kernels support dense layers only"
    observation = policy.env.observation
    if policy.env.pixels:
        return "the observation is a picture, and fused kernels read field-major observations alone"
    config, columns, outputs = net.config, observation.columns, policy.distribution.parameter_rows + 1
    if columns > MAX_COLUMNS:
        categories = f" of {net.categories} categories" if isinstance(net.categories, int) else ", some categorical"
        width = f"{columns} wide ({observation.size} values{categories})" if net.categories else f"{columns} wide"
        return f"the observation is {width}, and fused kernels take up to {MAX_COLUMNS}"
    if len(config.hidden) > MAX_LAYERS or max(config.hidden) > MAX_WIDTH:
        return (
            f"fused kernels take up to {MAX_LAYERS} hidden layers of up to {MAX_WIDTH}, and net.hidden is "
            f"{list(config.hidden)}"
        )
    if outputs > MAX_OUTPUTS:
        return f"the action has {outputs - 1} parameters, and fused kernels take up to {MAX_OUTPUTS - 1}"
    if samples * max(observation.size, policy.distribution.noise_rows, policy.env.mask_size) >= 2**31:
        return "an iteration holds more than 2^31 values"
    return None


def describe(policy: Policy, precision: str, net: Any = None, prefix: str = "") -> Spec:
    """Return the spec of a policy for which `unsupported_reason` is None.

    `precision`: "fp32", or on a GPU "tf32" or "bf16". `net`: its dense layers, if it has other layers as well; the
    names of their parameters begin with `prefix`.
    """
    net, distribution = policy.net if net is None else net, policy.distribution
    assert isinstance(net, mlp.MLP)
    offsets = {
        name.removeprefix(prefix): offset for name, offset in zip(policy.flat.names, policy.flat.offsets, strict=True)
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
    observation, columns = policy.env.observation, policy.env.observation.columns
    inputs, widths = (deep_padded(columns + 1), *hidden_pad), (*hidden_pad, out_pad)
    packed = [towers * inputs[k] * widths[k] for k in range(1, len(widths)) for _ in range(2)]
    return Spec(
        observation=observation.size,
        bytes=observation.dtype == "uint8",
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
        first_weight=offsets["first_weight"],
        first_bias=offsets["first_bias"],
        weights=tuple(offsets[f"weights.{k}"] for k in later),
        biases=tuple(offsets[f"biases.{k}"] for k in later),
        layer_norm=net.config.layer_norm,
        norm_epsilon=mlp.LAYER_NORM_EPSILON,
        norm_gains=tuple(offsets[f"norm_gains.{k}"] for k in normed),
        norm_biases=tuple(offsets[f"norm_biases.{k}"] for k in normed),
        head_weight=offsets["head_weight"],
        head_bias=offsets["head_bias"],
        value_weight=offsets["value_weight"],
        value_bias=offsets["value_bias"],
        log_std=offsets["log_std"] if gaussian else -1,
        inputs=inputs,
        widths=widths,
        packed=tuple(accumulate(packed, initial=0)),
        tile_sums=_tile_sums(hidden_pad, out_pad, net.config.layer_norm),
    )


def _tile_sums(hidden_pad: tuple[int, ...], out_pad: int, layer_norm: bool) -> TileSums:
    """Return the offsets of the sections of a row of tile sums, laid out one after the other. `hidden_pad`: padded
    widths of the hidden layers; `out_pad`: padded outputs; `layer_norm`: with sections for its gains and biases.
    """
    normed, later = hidden_pad if layer_norm else (), len(hidden_pad) - 1
    *starts, out_bias, log_std, terms, width = accumulate(
        (*hidden_pad[1:], *normed, *normed, out_pad, out_pad, TERMS_PAD), initial=0
    )
    gains = later + len(normed)
    return TileSums(
        tuple(starts[:later]), tuple(starts[later:gains]), tuple(starts[gains:]), out_bias, log_std, terms, width
    )
