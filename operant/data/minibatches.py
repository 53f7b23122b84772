"""Minibatches of a rollout: the samples of each optimizer step, and the partition of its sums.

A *block* is up to 32 neighbouring lanes of one step, so that field-major buffers are read in whole memory sectors.
Lanes form *shards*, aligned ranges of equal size; a device owns whole shards. Blocks are permuted within their shard,
and every minibatch takes equally many of each shard: its samples are a function of (seed, iteration, shard), on any
number of devices. Recurrent policies learn from *segments* of L steps of a lane instead of single steps.

A minibatch is stored shard after shard, and divided into *chunks*, each inside one shard. Every sum over a minibatch
has one row of partial sums per chunk. Rows are added in a fixed binary tree, so the sum does not depend on the device
that computed a row.

Shape letters: T steps, N lanes, R rows of a buffer, E epochs, M blocks of a rollout, m selected blocks, B samples of a
minibatch, L steps of a segment, K = T / L segments of a lane.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from numpy import int32, int64, uint32, uint64
from torch import Tensor

from operant.compute import rng
from operant.compute.device import device
from operant.compute.kernel import bind, kernel
from operant.worlds import Clock, seed_words

BLOCK_LANES = 32
"""Maximum lanes of a block."""

MOST_SHARDS = 8
"""Maximum shards of the lanes, and so of devices."""

SHARD_SAMPLES = 512
"""Minimum samples of a shard in a minibatch. Smaller products cost a CPU a quarter of its speed, and several devices
would not pay off.
"""

CPU_CHUNK = 1024
"""Maximum samples of a chunk on a CPU. With fewer, calls cost more than arithmetic; with more, activations leave the
cache before the backward pass reads them.
"""


class Layout(NamedTuple):
    """Partition of a rollout of T steps and N lanes into minibatches of blocks (up to 32 neighbouring lanes of one
    step), and of a minibatch's sums into chunks. Made by `layout` or `segments_layout`.
    """

    steps: int  # or segments of a lane
    lanes: int
    minibatches: int  # of an epoch
    block: int  # neighbouring lanes of one step, or segment
    shards: int  # a power of two
    chunks: int  # of a minibatch: a power of two, a multiple of the shards
    ranks: int = 1  # processes that share the lanes; the other fields are those of one rank
    length: int = 1  # steps of a segment, L; 1: single steps

    @property
    def groups(self) -> int:
        """Number of blocks (up to 32 neighbouring lanes) in one step of all lanes."""
        return self.lanes // self.block

    @property
    def blocks(self) -> int:
        """Number of blocks in a rollout, M."""
        return self.steps * self.groups

    @property
    def samples(self) -> int:
        """Number of this rank's samples in a minibatch, B."""
        return self.steps * self.lanes // self.minibatches * self.length

    @property
    def all_samples(self) -> int:
        """Number of samples in a minibatch, over all ranks."""
        return self.samples * self.ranks

    @property
    def shard_blocks(self) -> int:
        """Number of blocks that a shard (an aligned range of lanes) contributes to a minibatch."""
        return self.blocks // (self.minibatches * self.shards)

    @property
    def chunk_blocks(self) -> int:
        """Number of blocks in a chunk, the part of a minibatch that has its own partial sum. The last chunks of a shard
        may have fewer, or be empty.
        """
        return -(-self.shard_blocks // (self.chunks // self.shards))

    def share(self, ranks: int) -> Layout:
        """Return the layout of one of `ranks` ranks, with an equal share of the lanes and shards. Raises ValueError
        unless `ranks` divides the number of shards.
        """
        if self.shards % ranks:
            raise ValueError(f"{self.lanes:,} lanes form {self.shards} shards, which {ranks} ranks cannot share")
        return self._replace(
            lanes=self.lanes // ranks, shards=self.shards // ranks, chunks=self.chunks // ranks, ranks=ranks
        )

    def chunk_sizes(self) -> list[int]:
        """Return the number of samples (or segments) of each chunk of a minibatch, in order; some may be 0."""
        ends = [min((k + 1) * self.chunk_blocks, self.shard_blocks) for k in range(self.chunks // self.shards)]
        sizes = [(end - begin) * self.block for begin, end in zip([0, *ends], ends, strict=False)]
        return sizes * self.shards

    def lane_sizes(self) -> list[int]:
        """Return the sizes of the slices of lanes for which a CPU computes one matrix product each. A slice lies within
        a shard.
        """
        lanes = self.lanes // self.shards
        slices = -(-lanes // CPU_CHUNK)
        return [(k + 1) * lanes // slices - k * lanes // slices for k in range(slices)] * self.shards


def block_lanes(lanes: int) -> int:
    """Return the number of lanes in a block: the largest power of two up to 32 that divides the number of lanes."""
    return min(BLOCK_LANES, lanes & -lanes)


def layout(steps: int, lanes: int, minibatches: int, chunks: int | None = None) -> Layout:
    """Return the partition of a rollout with the most shards, a power of two up to 8, that divide lanes and minibatches
    evenly. `chunks` is the number of partial sums of a minibatch; None: the number that suits a CPU.
    """
    block, samples = block_lanes(lanes), steps * lanes // minibatches
    groups, shards = lanes // block, MOST_SHARDS
    while shards > 1 and (
        groups % shards or steps * groups // shards % minibatches or samples < shards * SHARD_SAMPLES
    ):
        shards //= 2
    return Layout(steps, lanes, minibatches, block, shards, chunks or cpu_chunks(samples, shards))


def cpu_chunks(samples: int, shards: int) -> int:
    """Return the number of chunks of a minibatch on a CPU: the fewest, a multiple of `shards`, with at most 1,024
    samples each. It does not depend on the number of threads.
    """
    chunks = shards
    while samples > chunks * CPU_CHUNK:
        chunks *= 2
    return chunks


def segments_layout(steps: int, lanes: int, minibatches: int, length: int, chunks: int | None = None) -> Layout:
    """Return the partition of a rollout into minibatches of segments of `length` steps, a divisor of `steps`. Blocks
    have as many lanes (up to 32) as the number of minibatches allows.
    """
    segments, block, shards = steps // length, block_lanes(lanes), MOST_SHARDS
    while block > 1 and segments * lanes // block % minibatches:
        block //= 2
    groups, samples = lanes // block, steps * lanes // minibatches
    while shards > 1 and (
        groups % shards or segments * groups // shards % minibatches or samples < shards * SHARD_SAMPLES
    ):
        shards //= 2
    return Layout(segments, lanes, minibatches, block, shards, chunks or shards, length=length)


def segment_problems(
    steps: int, lanes: int, minibatches: int, length: int | None, chunks: int | None
) -> list[tuple[str, str]]:
    """Return what prevents dividing `steps` steps of `lanes` lanes into minibatches of segments of `length` steps
    (None: `steps`), as (configuration key, message).
    """
    length = length or steps
    if steps % length:
        near = max(part for part in range(1, min(length, steps) + 1) if steps % part == 0)
        return [
            (
                "bptt",
                f"segments of {length} steps do not divide algo.horizon, {steps} (use {near}, or change algo.horizon)",
            )
        ]
    segments = steps // length * lanes
    if segments % minibatches:
        cut = (
            f"{lanes:,} lanes x {steps // length} segments of {length} steps are {segments:,} segments, which "
            f"{minibatches} minibatches do not divide"
        )
        return [("minibatches", f"{cut} (use a power of two, or change env.lanes or algo.bptt)")]
    return _chunk_problems(segments_layout(steps, lanes, minibatches, length), chunks)


def problems(steps: int, lanes: int, minibatches: int, chunks: int | None) -> list[tuple[str, str]]:
    """Return what prevents dividing `steps` steps of `lanes` lanes into this number of minibatches and chunks, as
    (configuration key, message).
    """
    block = block_lanes(lanes)
    blocks = steps * lanes // block
    if blocks % minibatches:
        cut = (
            f"{lanes:,} lanes x {steps} steps are {blocks:,} blocks of {block} lanes, which {minibatches} "
            "minibatches do not divide"
        )
        return [("minibatches", f"{cut} (use a power of two, or change env.lanes or algo.horizon)")]
    return _chunk_problems(layout(steps, lanes, minibatches), chunks)


def _chunk_problems(layout: Layout, chunks: int | None) -> list[tuple[str, str]]:
    """Return what is wrong with `chunks` partial sums of a minibatch, as (configuration key, message)."""
    most = layout.shards * layout.shard_blocks
    if chunks is not None and (chunks & (chunks - 1) or not layout.shards <= chunks <= most):
        most = 1 << (most.bit_length() - 1)
        allowed = f"a power of two from {layout.shards} (the shards of the lanes) to {most} (the blocks of a minibatch)"
        return [("chunks", f"{chunks} chunks of a minibatch: must be {allowed}")]
    return []


class Minibatches:
    """Random order of a rollout's blocks in the minibatches of all epochs, drawn for every iteration, and the gathering
    of their samples.
    """

    def __init__(self, cut: Layout, epochs: int, seed: int, iteration: Tensor, rank: int = 0) -> None:
        """Allocate the order of `epochs` epochs on the device of `iteration` (1) int64, the count of iterations, which
        keys the random numbers together with `seed`. `cut` is the layout of rank `rank`.
        """
        self.layout, device = cut, iteration.device
        # (E, M): block t N / block + n / block, minibatch after minibatch
        self.order = torch.zeros(epochs, cut.blocks, dtype=torch.int32, device=device)
        self._clock = bind(Clock(iteration, seed_words(seed, 0, device), 0))
        self._fill = kernel(order_body, device)
        self._order = bind(Order(self.order, cut.groups, cut.shards, cut.minibatches, rank * cut.shards))

    def shuffle(self) -> None:
        """Draw a random order of the blocks for every epoch of this iteration, in place."""
        self._fill(self.order.numel(), self._clock, self._order)

    def gather(self, buffer: Tensor, blocks: Tensor) -> Tensor:
        """Gather the samples of blocks (up to 32 neighbouring lanes of one step) from a buffer of the rollout: (T, N)
        to (m block), (T, R, N) to (R, m block). `blocks` (m) are the blocks' numbers, in the order of the result.
        """
        T, groups, block = self.layout.steps, self.layout.groups, self.layout.block
        if buffer.ndim == 2:
            return buffer.view(T * groups, block).index_select(0, blocks).flatten()
        row = torch.arange(buffer.shape[1], device=buffer.device)[:, None]
        return buffer.view(T, buffer.shape[1], groups, block)[
            (blocks // groups)[None], row, (blocks % groups)[None]
        ].flatten(1)

    def gather_segments(self, buffer: Tensor, blocks: Tensor) -> Tensor:
        """Gather segments (L steps of up to 32 neighbouring lanes) from a buffer of the rollout: (T, N) to (L, m
        block), (T, R, N) to (R, L, m block). `blocks` (m) are the segments' numbers, in the order of the result.
        """
        cut = self.layout
        if buffer.ndim == 2:
            return self.gather_segments(buffer[:, None], blocks)[0]
        # (K, L, R, N / block, block)
        parts = buffer.unflatten(-1, (cut.groups, cut.block)).unflatten(0, (cut.steps, cut.length))
        segments: Tensor = parts[blocks // cut.groups, :, :, blocks % cut.groups]
        return segments.permute(2, 1, 0, 3).flatten(2)

    def gather_pictures(self, buffer: Tensor, blocks: Tensor) -> Tensor:
        """Gather the pictures of blocks (up to 32 neighbouring lanes of one step) from a buffer (T, R, N) in which each
        picture is contiguous, to (R, m block). `blocks` (m) are the blocks' numbers, in the order of the result.
        """
        pictures = buffer.transpose(1, 2).reshape(self.layout.blocks, self.layout.block, -1)
        return pictures.index_select(0, blocks).flatten(0, 1).t()


# THE ORDER OF BLOCKS: a pure function of (seed, iteration, epoch, shard, position), the same on every device.

FEW_BLOCKS = 64
"""Maximum blocks of a shard that are permuted by ranking random keys, then cheaper than the Feistel network."""

# Rounds of the Feistel network. With 8, positions of a permutation of 5 blocks are up to 12 % off uniform; with 12 no
# deviation shows in 27,000 permutations.
_ROUNDS = 12
_SHARD_BIT = 24  # bits of the counter's first word below the index of the shard
_LOW_32 = 0xFFFFFFFF


class Order(NamedTuple):
    """Output of the shuffle: for each epoch a permutation of the blocks, minibatch after minibatch, within a minibatch
    shard after shard.
    """

    order: Any  # (E, M) int32, written: each row a permutation of the blocks 0 ... M - 1
    groups: int  # blocks of a step, a multiple of the shards
    shards: int  # aligned ranges of lanes; blocks are permuted within theirs
    minibatches: int
    shard0: int = 0  # global index of the first shard


@device
def order_body(i, clock, out, offset):
    """Write the block number at position i of all epochs' orders, a permutation within each shard, keyed by (seed,
    iteration, epoch, shard).
    """
    size, shards = out.order.shape[1], out.shards
    index = int64(i)
    epoch, position = index // size, index % size

    # Position i is element `within` of a shard's part of a minibatch, and element `value` of the shard's permutation.
    shard_size, shard_groups = size // shards, out.groups // shards
    part = shard_size // out.minibatches  # blocks of one shard in a minibatch
    minibatch, rest = position // (part * shards), position % (part * shards)
    shard, within = rest // part, rest % part
    value = minibatch * part + within

    tick = clock.tick[0] + offset
    shard_word = uint32((out.shard0 + shard) << _SHARD_BIT)
    key = (
        uint32(clock.seed[0]),
        uint32(clock.seed[1]),
        shard_word,
        uint32(tick & _LOW_32),
        uint32(tick >> 32),
        uint32(rng.SHUFFLE),
    )
    block = (
        _permuted_by_rank(key, epoch, value, shard_size)
        if shard_size <= FEW_BLOCKS
        else _permuted_by_network(key, epoch, value, shard_size)
    )

    # Block of the shard -> step and group of lanes -> block of the rollout.
    out.order[epoch, position] = int32(block // shard_groups * out.groups + shard * shard_groups + block % shard_groups)


@device
def _with_lane(key, word):
    """Return the Philox key with `word`, less than 2^_SHARD_BIT, in the low bits of the shard's word."""
    return key[0], key[1], uint32(key[2] | uint32(word)), key[3], key[4], key[5]


@device
def _permuted_by_rank(key, epoch, value, size):
    """Return element `value` of a random permutation of `size`: the rank of random 64-bit key `value` among `size`
    keys, ties by index. All permutations are equally likely, except for a tie once in 2^53.
    """
    own = rng.block(_with_lane(key, value // 2), epoch * _ROUNDS)
    key_of_value = _word64(own, value % 2)
    rank = int64(0)
    for pair in range((size + 1) // 2):
        words = rng.block(_with_lane(key, pair), epoch * _ROUNDS)
        for half in range(2):
            other, number = _word64(words, half), 2 * pair + half
            if number < size and (other < key_of_value or (other == key_of_value and number < value)):
                rank += 1
    return rank


@device
def _word64(words, half):
    """Return the first (`half` 0) or last two of four 32-bit words as one of 64 bits."""
    high, low = (words[0], words[1]) if half == 0 else (words[2], words[3])
    return (uint64(high) << uint64(32)) | uint64(low)


@device
def _permuted_by_network(key, epoch, value, size):
    """Return element `value` of a random permutation of `size`: a Feistel network over the next power of two, iterated
    until the result is below `size` (cycle walking, Black & Rogaway 2002).

    It needs no sort, and threads are independent. A network of 4 bits and more yields only even permutations, so a few
    blocks are ranked instead.
    """
    bits = 2
    while (1 << bits) < size:
        bits += 1
    low_bits = bits // 2
    low_mask, high_mask = uint32((1 << low_bits) - 1), uint32((1 << (bits - low_bits)) - 1)
    in_range = False
    while not in_range:
        low, high = uint32(value) & low_mask, uint32(value >> low_bits)
        for turn in range(_ROUNDS):
            half = low if turn % 2 == 0 else high
            word = rng.block(_with_lane(key, half), epoch * _ROUNDS + turn)[0]
            if turn % 2 == 0:
                high = uint32((high ^ word) & high_mask)
            else:
                low = uint32((low ^ word) & low_mask)
        value = int64((high << uint32(low_bits)) | low)
        in_range = value < size
    return value
