"""Replay: the ring, its seam, true final observations, n-step returns cut and bootstrapped, and which transitions a
batch takes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toys import COUNT, GATE, PICK, PUSH, SEEN

from operant.data.off_policy import OffPolicyConfig
from operant.data.replay import Replay
from operant.envs.outside import HostEnv, declare
from operant.errors import MachineError
from operant.host.source import Source
from operant.worlds import DeviceWorld
from operant.worlds.host_world import HostWorld

T = 4
TOYS = Path(__file__).parents[1] / "outside_toys.py"
ENDLESS = replace(PUSH, time_limit=None)


class History:
    """A world under random actions, its replay, and all that was ever stored, as plain lists."""

    def __init__(
        self, env, lanes, *, capacity=10_000, batch=16, n_step=1, gamma=0.5, seed=1, noise_rows=0, place="auto"
    ):
        self.world = (HostWorld if isinstance(env, HostEnv) else DeviceWorld)(env, lanes, seed=seed)
        self.rollout = self.world.slot(T)
        keys = {
            "capacity": capacity,
            "batch": batch,
            "n_step": n_step,
            "gamma": gamma,
            "seed": seed,
            "noise_rows": noise_rows,
            "place": place,
        }
        self.replay = Replay(self.world, self.rollout, **keys)
        self.ticks = []
        self.generator = torch.Generator().manual_seed(seed)
        self.world.reset(self.world.bind(self.rollout, -1))

    def step(self, t):
        """Tick t of an iteration."""
        rollout = self.rollout
        drawn = torch.rand(rollout.action[t].shape, generator=self.generator)
        rollout.action[t] = drawn if rollout.action.dtype == torch.float32 else (drawn * 2).int()
        self.world.step(self.world.bind(rollout, t), t)
        final = rollout.final_observation[t // self.world.final_window].clone()
        legal = rollout.legal[t].clone() if rollout.legal is not None else None
        flags = [rows[t].clone() for rows in (rollout.reward, rollout.terminated, rollout.truncated)]
        self.ticks.append((rollout.observation[t].clone(), rollout.action[t].clone(), *flags, final, legal))
        self.replay.store(t)

    def advance(self):
        self.world.advance(T)
        self.replay.advance(T, 1)
        for seen in (self.rollout.observation, self.rollout.legal):
            if seen is not None:
                seen[0].copy_(seen[-1])

    def run(self, iterations):
        for _ in range(iterations):
            for t in range(T):
                self.step(t)
            self.advance()
        return self

    def begin_anew(self):
        """All lanes begin new episodes, as after a warm resume."""
        last, lanes = self.ticks[-1], self.rollout.observation[0]
        running = (last[2 + 1] | last[2 + 2]) == 0
        last[5][:, running] = lanes[:, running]
        last[4].logical_or_(running)
        self.replay.cut(lanes)
        self.world.reset(self.world.bind(self.rollout, -1))

    def expected(self, tick, lane, n, gamma):
        """Return, discount, next observation and whether it is a final one, of the plain definition."""
        total, discount = 0.0, 1.0
        for j in range(n):
            _, _, reward, terminated, truncated, final, _ = self.ticks[tick + j]
            total += discount * reward[lane].item()
            discount *= gamma
            if terminated[lane]:
                return total, 0.0, None, False
            if truncated[lane]:
                return total, discount, final[:, lane], True
        return total, discount, self.ticks[tick + n][0][:, lane], False

    def gather(self, ticks, lanes):
        """The transitions of these absolute ticks and lanes, as many as a batch."""
        replay = self.replay
        C = replay.ticks_stored
        replay.index.copy_(
            torch.tensor([tick % C * self.world.count + lane for tick, lane in zip(ticks, lanes, strict=True)])
        )
        return replay.gather(0)


def check(history, batch, index, n, gamma):
    """Each transition of a batch against the plain definition."""
    replay = history.replay
    newest, C, N = len(history.ticks) - 1, replay.ticks_stored, history.world.count
    for k, place in enumerate(index.tolist()):
        row, lane = place // N, place % N
        tick = newest - (newest - row) % C
        observation, action, *_, legal = history.ticks[tick]
        total, discount, following, final = history.expected(tick, lane, n, gamma)
        assert torch.equal(batch.observation[:, k], observation[:, lane])
        assert torch.equal(batch.action[:, k], action[:, lane])
        assert batch.reward[k].item() == pytest.approx(total, rel=1e-5, abs=1e-6)
        assert batch.discount[k].item() == pytest.approx(discount, rel=1e-6)
        if following is not None:
            assert torch.equal(batch.next_observation[:, k], following)
        if legal is not None:
            assert torch.equal(batch.legal[:, k], legal[:, lane])
            if final:
                assert batch.next_legal[:, k].all()
            elif following is not None:
                assert torch.equal(batch.next_legal[:, k], history.ticks[tick + n][-1][:, lane])


def test_n_step_returns_by_hand():
    # Rewards count 1, 2, 3. Lane 0 is truncated after 3, lane 1 terminates after every step, lane 2 after 2, lane 3 at
    # once with the limit of 3.
    history = History(COUNT, 4, batch=8, n_step=3).run(3)
    batch = history.gather([0, 1, 2, 3, 0, 2, 0, 1], [0, 0, 0, 0, 1, 2, 3, 3])
    # Lane 0: 1 + 2/2 + 3/4; 2 + 3/2; 3; and the next episode again.
    assert batch.reward.tolist() == [2.75, 3.5, 3.0, 2.75, 1.0, 2.0, 2.75, 3.5]
    # gamma^m where a limit ended the episode after m steps, 0 where it terminated.
    assert batch.discount.tolist() == [0.125, 0.25, 0.5, 0.125, 0.0, 0.0, 0.0, 0.0]
    # The true final observation is the count 3; after the reset it would be 0.
    assert batch.next_observation[0, :4].tolist() == [3.0, 3.0, 3.0, 3.0]
    assert batch.observation[0].tolist() == [0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def test_one_step_by_hand():
    history = History(COUNT, 4, batch=4).run(3)
    batch = history.gather([0, 2, 1, 0], [0, 0, 2, 2])
    assert batch.reward.tolist() == [1.0, 3.0, 2.0, 1.0]
    assert batch.discount.tolist() == [0.5, 0.5, 0.0, 0.5]
    assert batch.next_observation[0].tolist()[:2] == [1.0, 3.0]


@pytest.mark.parametrize(
    ("env", "lanes"),
    [(COUNT, 4), (PUSH, 8), (PICK, 6), (GATE, 8), (SEEN, 4), (ENDLESS, 8)],
    ids=["count", "push", "pick", "gate", "pictures", "endless"],
)
@pytest.mark.parametrize(("n_step", "capacity"), [(1, 10_000), (3, 10_000), (1, 60), (3, 60), (5, 60)])
def test_batches_are_what_was_stored(env, lanes, n_step, capacity):
    history = History(env, lanes, capacity=capacity, n_step=n_step, batch=32, gamma=0.9).run(2)
    for iteration in range(8):
        for t in range(T):
            history.step(t)
            batch = history.replay.sample(t + 1, 0)
            if iteration > 0:
                check(history, batch, history.replay.index, n_step, 0.9)
        history.advance()


@pytest.mark.parametrize(("n_step", "capacity"), [(1, 10_000), (3, 36)])
def test_lanes_of_an_outside_environment_that_begin_anew_end_their_episodes(n_step, capacity):
    """Episodes of 10 steps, cut after 4, 12 and 16."""
    history = History(declare(Source("file", f"{TOYS}:counting")), 3, capacity=capacity, n_step=n_step, batch=64)
    for iterations in (1, 2, 1, 3):
        history.run(iterations)
        check(history, history.replay.sample(0, 0), history.replay.index, n_step, 0.5)
        history.begin_anew()
    cuts = sum(int(tick[4].sum()) for tick in history.ticks)
    assert cuts == 3 * 4


def test_a_replay_whose_ticks_share_final_observations_is_not_cut():
    """A final observation in use would be overwritten: eight ticks of PICK share one."""
    history = History(PICK, 4).run(1)
    with pytest.raises(AssertionError, match="starts empty instead"):
        history.begin_anew()


def test_seam_and_newest_ticks_are_left_out():
    history = History(COUNT, 2, capacity=20, n_step=3, batch=1024).run(4)
    replay = history.replay
    assert replay.ticks_stored == 10
    for t in range(1, T + 1):
        history.step(t - 1)
        replay.sample(t, 0)
        newest = len(history.ticks) - 1
        ages = {(newest - place // 2) % 10 for place in replay.index.tolist()}
        # Age 0 is the newest tick. Three steps from a tick, and the observation after them, are stored from age 3 on.
        assert ages == set(range(3, 10))


def test_batches_take_equally_many_of_each_shard():
    history = History(PICK, 16, batch=64).run(3)
    history.replay.sample(0, 0)
    shard = history.replay.index % 16 // 2
    assert shard.tolist() == torch.arange(8).repeat_interleave(8).tolist()
    assert History(PICK, 6, batch=64).replay.shards == 2
    assert History(PICK, 5, batch=64).replay.shards == 1


def test_indices_are_uniform():
    history = History(PICK, 4, batch=4096, capacity=80).run(10)
    counts = torch.zeros(80)
    for update in range(20):
        history.replay.sample(0, update)
        counts += torch.bincount(history.replay.index.long(), minlength=80)
    # The newest tick is left out; each other transition is drawn 20 x 4,096 / 76 times on average.
    taken = counts[counts > 0]
    assert len(taken) == 76
    mean = 20 * 4096 / 76
    assert (taken - mean).abs().max() < 5 * mean**0.5


def test_batches_are_a_function_of_seed_and_update():
    def drawn(seed, update, iterations=3):
        history = History(PICK, 8, batch=64, seed=seed, noise_rows=6).run(iterations)
        noise = history.replay.sample(0, update).noise.clone()
        return history.replay.index.clone(), noise

    index, noise = drawn(1, 0)
    assert torch.equal(index, drawn(1, 0)[0])
    assert torch.equal(noise, drawn(1, 0)[1])
    assert not torch.equal(index, drawn(1, 1)[0])
    assert not torch.equal(noise, drawn(1, 1)[1])
    assert not torch.equal(index, drawn(2, 0)[0])
    assert noise.min() >= 0
    assert noise.max() < 1
    assert noise.unique().numel() > 0.99 * noise.numel()
    # The next iteration's first update is this iteration's second: their random numbers are the same, so `advance`
    # counts updates.
    assert torch.equal(drawn(1, 1)[1], drawn(1, 0, iterations=4)[1])


def test_bytes_are_stored_once():
    replay = History(PICK, 8, capacity=800).replay
    assert replay.ring.observation.shape == (100, 8, 16)
    assert replay.ring.observation.dtype == torch.uint8
    # Final observations: a lane is truncated once in 8 ticks.
    assert replay.ring.final.shape == (14, 8, 16)
    assert replay.bytes == 114 * 8 * 16 + 100 * 8 * (2 * 4 + 4 + 1 + 1) + 8 + 8 + 8


@pytest.mark.parametrize("env", [COUNT, PUSH, PICK, GATE, SEEN], ids=["count", "push", "pick", "gate", "pictures"])
def test_host_memory_holds_and_gives_the_same(env):
    """Four lanes past the seam of a short ring, with episodes cut by time limits."""
    device, host = (History(env, 4, capacity=60, n_step=2, batch=32, place=place) for place in ("device", "host"))
    for _ in range(8):
        for t in range(T):
            device.step(t)
            host.step(t)
            for one, other in zip(device.replay.sample(t + 1, 0), host.replay.sample(t + 1, 0), strict=True):
                assert one is other is None or torch.equal(one, other)
        device.advance()
        host.advance()
    held = host.replay.tensors()
    assert all(torch.equal(tensor, held[name]) for name, tensor in device.replay.tensors().items())


@pytest.mark.parametrize("env", [COUNT, PUSH, GATE], ids=["count", "push", "gate"])
@pytest.mark.parametrize("due", [(1, 2, 3, 4), (2, 2, 2, 4, 4), (3,)], ids=["each tick", "several", "one"])
def test_batches_gathered_early_are_the_same(env, due, monkeypatch):
    """A ring so short that every batch takes what was stored last, past its seam, with episodes cut by time limits; by
    so few threads that each takes more than a word.
    """
    for name, number in (("EARLY_BLOCKS", 1), ("EARLY_THREADS", 7), ("LATE_THREADS", 5)):
        monkeypatch.setattr(f"operant.data.replay.{name}", number)
    device, host = (
        History(env, 4, capacity=36, n_step=2, batch=32, place=place, noise_rows=2) for place in ("device", "host")
    )
    assert device.replay.prefetch(due) is None
    assert host.replay.prefetch(due) is not None
    for _ in range(8):
        for t in range(T):
            device.step(t)
            host.step(t)
            for update in (k for k, ticks in enumerate(due) if ticks == t + 1):
                for one, other in zip(
                    device.replay.sample(t + 1, update), host.replay.sample(t + 1, update), strict=True
                ):
                    assert one is other is None or torch.equal(one, other)
        device.advance()
        host.advance()


def test_replay_larger_than_host_memory_is_refused():
    with pytest.raises(
        MachineError,
        match=r"the replay would take \S+ GiB of the host's memory, and .* is free: lower algo.replay_capacity",
    ):
        History(SEEN, 4, capacity=2**31 - 1, place="host")


def test_state_is_all_that_the_next_batch_needs():
    history = History(PUSH, 8, capacity=100, n_step=3, batch=32, noise_rows=2).run(5)
    expected = [part.clone() for part in history.replay.sample(0, 3) if part is not None]
    other = History(PUSH, 8, capacity=100, n_step=3, batch=32, noise_rows=2)
    for name, tensor in other.replay.tensors().items():
        tensor.copy_(history.replay.tensors()[name])
    other.replay.ring.updates.copy_(history.replay.ring.updates)
    found = [part for part in other.replay.sample(0, 3) if part is not None]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("keys", "lanes", "key"),
    [
        ({"horizon": 10, "updates_per_step": 0.25}, 1, "updates_per_step"),
        ({"horizon": 1, "updates_per_step": 0.25}, 1, "updates_per_step"),
        ({"replay_capacity": 1000}, 1024, "replay_capacity"),
        ({"replay_capacity": 3000, "n_step": 3}, 1024, "replay_capacity"),
        ({"replay_capacity": 5000, "learning_starts": 5000}, 1024, "learning_starts"),
    ],
)
def test_inconsistent_values_are_reported(keys, lanes, key):
    assert [name for name, _ in OffPolicyConfig(**keys).problems(lanes)] == [key]
    assert OffPolicyConfig().problems(1024) == []


@pytest.mark.parametrize(
    ("horizon", "rate", "after"),
    [(8, 0.25, [0, 0, 0, 1, 0, 0, 0, 1]), (2, 4.0, [4, 4]), (4, 1.5, [1, 2, 1, 2]), (3, 1.0, [1, 1, 1])],
)
def test_updates_are_spread_over_the_ticks(horizon, rate, after):
    config = OffPolicyConfig(horizon=horizon, updates_per_step=rate)
    assert [len(config.due(t)) for t in range(horizon)] == after
    assert [number for t in range(horizon) for number in config.due(t)] == list(range(config.updates))
