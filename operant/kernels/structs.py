"""The groups of buffers and numbers that Triton kernels take: named tuples of tensors here, of pointers and scalars
inside a kernel. Know no algorithm.

Shape letters: T steps, N lanes, O numbers of an observation, H parameters of the distribution, A rows of an action, U
rows of noise, E epochs, M blocks. Buffers of a rollout are field-major: neighbouring lanes lie next to each other.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Inputs(NamedTuple):
    """What a network reads of a rollout."""

    observation: Any  # (T + 1, O, N) float32 or uint8
    # mean (O), inv_std (O); where features differ (4, K): feature, category or -1, mean, inv_std of each column
    normalizer: Any
    legal_mask: Any  # (T + 1, H, N) uint8; any bytes where every action is legal


class Acting(NamedTuple):
    """What acting draws with, and what it writes."""

    noise: Any  # (T, U, N), uniform in [0, 1)
    bounds: Any  # (3, A) centre, reach and limit of a Box action
    raw: Any  # (T, A, N) the sample
    action: Any  # (T, A, N) what the environment is given
    log_probability: Any  # (T, N)
    value: Any  # (T + 1, N)


class Bootstrap(NamedTuple):
    """Observations whose values stand in for the rewards that a rollout does not see any more."""

    observation: Any  # (T + 1, O, N)
    final_observation: Any  # (T, O, N), where a lane was truncated
    truncated: Any  # (T, N) uint8
    legal_mask: Any  # (T + 1, H, N), whose last step is read
    value: Any  # (T + 1, N), whose last step is written
    final_value: Any  # (T, N), written where a lane was truncated


class Minibatch(NamedTuple):
    """Blocks of neighbouring lanes of one tick, shard after shard; each shard's are cut into chunks of `chunk_blocks`,
    the last ones maybe shorter.
    """

    order: Any  # (E, M) int32, the blocks
    first_block: int  # where the minibatch begins in `order`
    shard_blocks: int
    shard_chunks: int
    chunk_blocks: int
    samples: int  # of the whole minibatch, all shards


class Layer(NamedTuple):
    """One layer of a network that runs a layer at a time; a tower's part of each buffer lies behind the other's."""

    source: Any  # (towers, capacity, inputs) what it reads; layer 0: (capacity, inputs), one for all towers
    weights: Any  # (towers, widths, inputs), packed
    hidden: Any  # (towers, capacity, widths), written
    saved: Any  # the same of what the activation's gradient needs


class Head(NamedTuple):
    """What the last layer's backward kernel reads and writes beside the loss's samples."""

    hidden: Any  # (towers, capacity, H) of the last hidden layer
    saved: Any  # the same of what its activation's gradient needs
    packed: Any  # weights as products take them
    gradient_out: Any  # (towers, capacity, out_pad), written
    gradient_in: Any  # (towers, capacity, H), written: of what the last hidden layer computes before its activation
    tile_sums: Any  # (towers, tiles, width), written


class Moments(NamedTuple):
    """Adam's running averages, one for each parameter, and the corrections of its step."""

    first: Any  # (P)
    second: Any  # (P)
    corrections: Any  # (2): 1 - b1^t and sqrt(1 - b2^t)
