"""Minibatches: blocks of lanes, shards and chunks; which samples each holds, where they lie, and the tree of sums."""

from __future__ import annotations

import pytest
import torch

from operant.data import minibatches
from operant.nn.chunked import tree_sum


def made(steps, lanes, parts, *, epochs=2, seed=1, iteration=0, chunks=None):
    found = minibatches.Minibatches(
        minibatches.layout(steps, lanes, parts, chunks), epochs, seed, torch.tensor([iteration])
    )
    found.shuffle()
    return found


@pytest.mark.parametrize(
    ("lanes", "block"), [(1, 1), (2, 2), (3, 1), (24, 8), (31, 1), (32, 32), (48, 16), (96, 32), (1024, 32), (1000, 8)]
)
def test_block_is_the_largest_power_of_two_that_divides_the_lanes(lanes, block):
    assert minibatches.block_lanes(lanes) == block


@pytest.mark.parametrize(
    ("steps", "lanes", "parts", "shards"),
    [
        (16, 1024, 4, 8),
        (16, 256, 4, 2),  # minibatches of 1,024 samples
        (16, 32, 4, 1),
        (128, 64, 1, 2),  # two blocks a step
        (128, 96, 3, 1),  # three blocks a step
        (128, 384, 3, 4),  # 12 blocks a step: three for each of four shards
        (30, 1000, 5, 1),  # 125 blocks of 8
        (33, 256, 2, 4),  # a shard of an eighth would have 33 blocks for two minibatches
    ],
)
def test_shards_share_lanes_and_minibatches_evenly(steps, lanes, parts, shards):
    assert minibatches.layout(steps, lanes, parts).shards == shards


@pytest.mark.parametrize(
    ("steps", "lanes", "parts"), [(16, 256, 4), (16, 1024, 4), (4, 64, 2), (3, 96, 3), (128, 384, 3), (1, 8, 1)]
)
def test_every_minibatch_has_as_many_blocks_of_each_shard(steps, lanes, parts):
    found = made(steps, lanes, parts)
    cut, order = found.layout, found.order
    everything = torch.arange(cut.blocks, dtype=torch.int32)
    assert torch.equal(order.sort(dim=1).values, everything.expand(2, -1)), "each epoch has each block once"
    # Minibatch after minibatch, and within one shard after shard: a block's shard follows from its lanes.
    shard = order % cut.groups // (cut.groups // cut.shards)
    expected = torch.arange(cut.shards).repeat_interleave(cut.shard_blocks).repeat(parts)
    assert torch.equal(shard, expected.to(torch.int32).expand(2, -1))
    assert cut.shards * cut.shard_blocks * cut.block == cut.samples


def test_shards_are_permuted_independently():
    found = made(16, 1024, 4)
    cut = found.layout
    parts = found.order.view(2, 4, cut.shards, cut.shard_blocks)
    local = parts % (cut.groups // cut.shards) + parts // cut.groups * (cut.groups // cut.shards)
    permutations = {
        tuple(local[epoch, :, shard].flatten().tolist()) for epoch in range(2) for shard in range(cut.shards)
    }
    assert len(permutations) == 2 * cut.shards
    assert not torch.equal(found.order, made(16, 1024, 4, iteration=1).order)
    assert not torch.equal(found.order, made(16, 1024, 4, seed=2).order)


def test_samples_come_in_the_order_of_their_blocks():
    steps, lanes = 4, 64
    found = made(steps, lanes, 2)
    blocks = found.order[0].long()[:3]
    single = torch.arange(steps * lanes).view(steps, lanes)
    rows = torch.stack([single, -single], dim=1)  # (T, 2, N)
    expected = torch.cat([block * 32 + torch.arange(32) for block in blocks])
    assert torch.equal(found.gather(single, blocks), expected)
    assert torch.equal(found.gather(rows, blocks), torch.stack([expected, -expected]))
    pictures = rows.transpose(1, 2).contiguous().transpose(1, 2)  # a sample's numbers side by side in memory
    gathered = found.gather_pictures(pictures, blocks)
    assert torch.equal(gathered, torch.stack([expected, -expected])) and gathered.t().is_contiguous()


# CHUNKS


@pytest.mark.parametrize(
    ("samples", "shards", "chunks"),
    [(4096, 8, 8), (8192, 8, 8), (8193, 8, 16), (512, 2, 2), (131072, 8, 128), (3000, 1, 4)],
)
def test_chunks_of_a_cpu_have_up_to_1024_samples(samples, shards, chunks):
    assert minibatches.cpu_chunks(samples, shards) == chunks


@pytest.mark.parametrize(
    ("steps", "lanes", "parts", "chunks", "sizes"),
    [
        (16, 256, 4, 8, [128] * 8),
        (16, 256, 4, 32, [32] * 32),
        (10, 256, 2, 16, [96, 96, 96, 96, 96, 96, 64, 0] * 2),  # twenty blocks of a shard in eight chunks
        (20, 256, 1, 16, [320, 320] * 8),
        (6, 32, 1, 4, [64, 64, 64, 0]),
    ],
)
def test_a_chunk_lies_inside_one_shard(steps, lanes, parts, chunks, sizes):
    cut = minibatches.layout(steps, lanes, parts, chunks)
    assert cut.chunk_sizes() == sizes and sum(sizes) == cut.samples


@pytest.mark.parametrize("chunks", [1, 12, 3, 64])
def test_invalid_numbers_of_chunks_are_refused(chunks):
    ((key, sentence),) = minibatches.problems(16, 256, 4, chunks)
    assert (
        key == "chunks"
        and f"{chunks} chunks" in sentence
        and "a power of two from 2 (the shards of the lanes) to 32 (the blocks" in sentence
    )
    assert all(minibatches.problems(16, 256, 4, allowed) == [] for allowed in (None, 2, 8, 16, 32))


def test_tree_sum_is_the_same_over_shards():
    rows = torch.randn(32, 7, generator=torch.Generator().manual_seed(0)) * 1e3
    whole = tree_sum(rows)
    torch.testing.assert_close(whole, rows.sum(dim=0))
    for shards in (1, 2, 4, 8):
        by_shard = torch.stack([tree_sum(part) for part in rows.chunk(shards)])
        assert torch.equal(tree_sum(by_shard), whole)
