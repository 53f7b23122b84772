"""Kernel arguments in groups: named tuples of tensors on the host, of pointers and scalars inside a kernel.

Shapes: T steps, N lanes, O features of an observation, H parameters of the distribution, A components of an action, U
rows of noise, E epochs, M blocks, P parameters. Rollout buffers are field-major: neighbouring lanes are contiguous.
Knows no algorithm.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Inputs(NamedTuple):
    """Inputs of a network over a rollout: observations, normalizer, legal actions."""

    observation: Any  # (T + 1, O, N) float32 or uint8
    normalizer: Any  # table, see `operant.kernels.observations`
    legal_mask: Any  # (T + 1, H, N) uint8; unread if every action is legal


class Acting(NamedTuple):
    """Noise and bounds for sampling actions, and the buffers of the results."""

    noise: Any  # (T, U, N) uniform in [0, 1)
    bounds: Any  # (3, A) centre, half range and clipping limit of a Box action
    raw: Any  # (T, A, N) sampled action, written
    action: Any  # (T, A, N) action for the environment, written
    log_probability: Any  # (T, N) written
    value: Any  # (T + 1, N) written


class Bootstrap(NamedTuple):
    """Observations after the last step and at truncations, and the buffers of their values."""

    observation: Any  # (T + 1, O, N)
    final_observation: Any  # (T, O, N) true final observation of truncated lanes
    truncated: Any  # (T, N) uint8
    legal_mask: Any  # (T + 1, H, N), of which step T is read
    value: Any  # (T + 1, N), of which step T is written
    final_value: Any  # (T, N), written for truncated lanes


class Minibatch(NamedTuple):
    """Order of blocks (neighbouring lanes of one step), by shard, and the part that is one minibatch. A shard is
    divided into chunks of `chunk_blocks`; its last chunks may be shorter.
    """

    order: Any  # (E, M) int32 block indices
    first_block: int  # offset of the minibatch in `order`
    shard_blocks: int
    shard_chunks: int
    chunk_blocks: int
    samples: int  # of the whole minibatch, all shards


class Layer(NamedTuple):
    """Buffers of one layer of the per-layer engine in the forward pass."""

    source: Any  # (towers, capacity, inputs) the layer's inputs; layer 0: (capacity, inputs), shared by the towers
    weights: Any  # (towers, outputs, inputs) packed
    hidden: Any  # (towers, capacity, outputs) activations, written
    saved: Any  # (towers, capacity, outputs) tensor saved for the backward pass, written


class Head(NamedTuple):
    """Buffers of the per-layer engine's head in the backward pass."""

    hidden: Any  # (towers, capacity, H) activations of the last hidden layer
    saved: Any  # (towers, capacity, H) its saved tensor
    packed: Any  # packed weights
    grad_out: Any  # (towers, capacity, out_pad) gradient in the outputs, written
    grad_in: Any  # (towers, capacity, H) gradient in the last hidden layer's pre-activations, written
    tile_sums: Any  # (towers, tiles, width) written


class Moments(NamedTuple):
    """Adam's state: running averages of the gradient and its square, and the bias corrections."""

    first: Any  # (P)
    second: Any  # (P)
    corrections: Any  # (2): 1 - b1^t and sqrt(1 - b2^t)
