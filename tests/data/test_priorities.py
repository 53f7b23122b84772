"""Prioritised sampling: drawn transitions, weights and new priorities by hand and against plain float64; a transition
whose n-step return is not known yet is never drawn.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toys import COUNT

from operant.data import Prioritised, Replay
from operant.data.priorities import block_shape
from operant.worlds import DeviceWorld

T = 4
NEVER, ALWAYS = torch.ones(()), torch.zeros(())  # `skip`


def replay_of(lanes, *, capacity, batch, n_step=1, ticks=0):
    """A replay into which nothing was stored, but says it holds so many ticks."""
    world = DeviceWorld(COUNT, lanes, seed=1)
    replay = Replay(world, world.slot(T), capacity=capacity, batch=batch, n_step=n_step, gamma=0.5, seed=1)
    replay.ring.ticks.fill_(ticks)
    return replay


def test_weights_and_shares_by_hand():
    """Replay of a single lane, 4 of 8 ticks stored, of which 3 can be sampled, with the priorities 1, 2, 1.

    Probabilities 1/4, 1/2, 1/4; four ranges of one each, so they take the ticks 0, 1, 1, 2. Weights
    (3 P)^-beta = (3/4)^-1/2, (3/2)^-1/2 ...: over the largest 1 and (1/2)^1/2.
    """
    replay = replay_of(1, capacity=8, batch=4, ticks=4)
    chosen = Prioritised(replay, 1.0)
    chosen.value[:3, 0] = torch.tensor([1.0, 2.0, 1.0])
    chosen.importance.fill_(0.5)
    _, weight = chosen.sample(0, 0)
    assert replay.index.tolist() == [0, 1, 1, 2]
    torch.testing.assert_close(chosen.probability, torch.tensor([0.75, 1.5, 1.5, 0.75]))
    torch.testing.assert_close(weight, torch.tensor([1.0, 0.5**0.5, 0.5**0.5, 1.0]))


def test_of_duplicates_the_last_writes_its_priority():
    """(error + 1e-6)^alpha; the largest so far is what a new transition gets."""
    replay = replay_of(1, capacity=8, batch=4, ticks=4)
    chosen = Prioritised(replay, 0.5)
    chosen.value[:3, 0] = torch.tensor([1.0, 2.0, 1.0])
    replay.index.copy_(torch.tensor([0, 1, 1, 2]))
    error = torch.tensor([4.0, 9.0, 16.0, 0.25])
    chosen.set_priorities(error, NEVER)
    assert chosen.value[:3, 0].tolist() == [1.0, 2.0, 1.0] and chosen.largest.item() == 1.0
    chosen.set_priorities(error, ALWAYS)
    torch.testing.assert_close(chosen.value[:3, 0], torch.tensor([2.0, 4.0, 0.5]), rtol=1e-5, atol=1e-5)
    assert chosen.largest.item() == pytest.approx(4.0)
    chosen.store(0)  # tick 4: tick 3 can be sampled now
    torch.testing.assert_close(chosen.value[:5, 0], torch.tensor([2.0, 4.0, 0.5, 4.0, 0.0]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("lanes", "capacity", "batch", "n_step"),
    [(8, 4096, 64, 1), (16, 2000, 128, 3), (2, 3000, 32, 5), (6, 100, 16, 1), (1, 50, 8, 2)],
)
def test_samples_are_those_of_a_plain_prefix_sum(lanes, capacity, batch, n_step):
    """Of each shard, in float64: sample k takes the transition at whose sum (k + u) / samples of the whole stands, for
    some u in [0, 1).
    """
    replay = replay_of(lanes, capacity=capacity, batch=batch, n_step=n_step, ticks=capacity // lanes + 7)
    C, S = replay.ticks_stored, replay.shards
    chosen = Prioritised(replay, 1.0)
    random = torch.Generator().manual_seed(1)
    chosen.value[:C] = torch.rand(C, lanes, generator=random) ** 4 * (torch.rand(C, lanes, generator=random) > 0.2)
    chosen.importance.fill_(1.0)
    block, count = block_shape(C, lanes // S)
    assert block * count >= C and len(chosen.value) == block * count
    seen = []
    for update in range(20):
        _, weight = chosen.sample(0, update)
        index, value = replay.index.long(), chosen.value.double()
        priority = value.flatten()[index]
        assert (priority > 0).all()
        inverse = []
        for shard in range(S):
            part = slice(shard * batch // S, (shard + 1) * batch // S)
            rows, lane = index[part] // lanes, index[part] % lanes
            assert ((lane >= shard * lanes // S) & (lane < (shard + 1) * lanes // S)).all(), "a lane of another shard"
            own = value[:, shard * lanes // S : (shard + 1) * lanes // S]
            total, ends = own.sum(), own.flatten().cumsum(0)
            place = rows * own.shape[1] + lane - shard * lanes // S
            # The range of sample k meets the transition's own, to rounding.
            numbers = torch.arange(len(place))
            assert (ends[place] >= numbers / len(place) * total - 1e-4 * total).all()
            assert (ends[place] - own.flatten()[place] <= (numbers + 1) / len(place) * total + 1e-4 * total).all()
            probability = priority[part] / total / S
            inverse.append(1.0 / (probability * (C - n_step) * lanes))
        wanted = torch.cat(inverse)
        torch.testing.assert_close(weight.double(), wanted / wanted.max(), rtol=1e-4, atol=1e-5)
        seen.append(replay.index.clone())
    assert not torch.equal(seen[0], seen[1])


def test_sampling_frequency_is_proportional_to_priority():
    replay = replay_of(1, capacity=16, batch=8, ticks=16)
    chosen = Prioritised(replay, 1.0)
    chosen.value[:15, 0] = torch.arange(1.0, 16.0)
    counts = torch.zeros(16)
    for update in range(2000):
        chosen.sample(0, update)
        counts += torch.bincount(replay.index, minlength=16)
    np.testing.assert_allclose(counts[:15] / counts.sum(), np.arange(1.0, 16.0) / 120, atol=0.004)
    assert counts[15] == 0


@pytest.mark.parametrize("n_step", [1, 3])
def test_unfinished_and_overwritten_transitions_have_priority_zero(n_step):
    """A ring of 8 ticks: after tick s the ticks s - 7 ... s - n can be sampled, new ones with the largest priority."""
    replay = replay_of(2, capacity=16, batch=4, n_step=n_step)
    chosen = Prioritised(replay, 1.0)
    for iteration in range(6):
        for t in range(T):
            replay.store(t)
            chosen.store(t)
            s = iteration * T + t
            alive = {tick % 8 for tick in range(max(0, s - 7), s - n_step + 1)}
            assert {row for row in range(8) if chosen.value[row, 0] > 0} == alive
        replay.advance(T, 1)
