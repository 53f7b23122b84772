import math
import time

import pytest
import torch
from toys import COUNT, PICK, PUSH, iterate, ppo_on

from operant.algos.sac import SAC
from operant.nn import mlp
from operant.runs.history import read, salvage
from operant.runs.history.thinning import thin
from operant.runs.metrics import FLAG_CHECKPOINT, FLAG_EVAL, Reader, Writer
from operant.training import meters
from operant.training.meters import Meters, metrics_for
from operant.worlds.device_world import DeviceWorld

SELDOM, ALWAYS = 1e-3, 1e6  # records a second: only what `flush` publishes, and every iteration


class Watched:
    """Small PPO, or another learner, its meters and the file they write."""

    def __init__(self, folder, record_hz, env=COUNT, learner=None):
        self.ppo = learner or ppo_on(env, 8, horizon=4, minibatches=1)
        self.writer = Writer(folder / "metrics.mm", metrics_for(self.ppo), run_uuid=bytes(16), version="0")
        self.meters = Meters(self.ppo, self.writer, record_hz=record_hz)
        self.reader = Reader(folder / "metrics.mm")
        self.step = 0

    def iterate(self, *, evaluation_follows=False):
        iterate(self.ppo, 1)
        self.step += self.ppo.steps_per_iteration
        return self.meters.after(self.step, evaluation_follows=evaluation_follows)

    def records(self):
        names = [metric.name for metric in self.reader.metrics]
        return [(record, dict(zip(names, record.values, strict=True))) for record in self.reader.since(0)]


def test_a_record_covers_all_iterations_since_the_last(tmp_path):
    watched = Watched(tmp_path, SELDOM)
    losses, episodes, total = [], 0, 0.0
    for _ in range(7):
        watched.iterate()
        losses.append(watched.ppo.stats[[spec.name for spec in watched.ppo.metrics].index("loss/value")].item())
        rollout = watched.ppo.rollout
        episodes += int((rollout.terminated | rollout.truncated).sum())
        total += rollout.reward.sum().item()
    assert watched.records() == []
    watched.meters.flush(watched.step)
    ((record, values),) = watched.records()
    assert record.step == 7 * watched.ppo.steps_per_iteration
    assert values["iterations"] == 7 and values["episodes"] == episodes > 0
    assert values["loss/value"] == pytest.approx(sum(losses) / 7, rel=1e-6)
    under_way = watched.ppo.world.lanes.running[0].sum().item()
    assert values["return"] == pytest.approx((total - under_way) / episodes, rel=1e-6)
    assert values["length"] == pytest.approx((record.step - watched.ppo.world.lanes.age.sum().item()) / episodes)
    watched.meters.flush(watched.step)
    assert len(watched.records()) == 1, "nothing new was published again"


def test_the_first_record_claims_no_rate_and_later_ones_do(tmp_path):
    watched, ended = Watched(tmp_path, ALWAYS), []
    for _ in range(3):
        watched.iterate()
        ended.append(int((watched.ppo.rollout.terminated | watched.ppo.rollout.truncated).sum()))
    assert [values["episodes"] for _, values in watched.records()] == ended, (
        "a record counts again what an earlier one has told"
    )
    rates = [values["sps"] for _, values in watched.records()]
    assert len(rates) == 3 and math.isnan(rates[0]) and all(rate > 0 for rate in rates[1:])


def test_there_is_no_rate_before_learning_starts_on_a_cpu(tmp_path):
    config = SAC.Config(horizon=8, batch_size=32, learning_starts=2 * 8 * 8, replay_capacity=1024)
    sac = SAC(DeviceWorld(PUSH, 8, seed=1), config, mlp.Config(hidden=(16,)), seed=1, steps=1000)
    sac.start()
    watched = Watched(tmp_path, ALWAYS, learner=sac)
    for _ in range(4):
        watched.iterate()
    rates = [(values["updates_per_second"] > 0, math.isnan(values["sps"])) for _, values in watched.records()]
    assert rates == [(False, True), (False, True), (True, True), (True, False)]


def test_a_pause_does_not_lower_the_rate(tmp_path, monkeypatch):
    watched = Watched(tmp_path, ALWAYS)
    watched.iterate()
    now = meters.time.perf_counter
    monkeypatch.setattr(meters.time, "perf_counter", lambda: now() + 1000.0)
    watched.meters.paused(1000.0)
    watched.iterate()
    (_, (_, values)) = watched.records()
    assert values["sps"] > watched.ppo.steps_per_iteration / 100.0


def test_the_first_record_after_a_checkpoint_is_marked(tmp_path):
    watched = Watched(tmp_path, ALWAYS)
    watched.iterate()
    watched.meters.checkpointed()
    watched.iterate()
    watched.iterate()
    assert [bool(record.flags & FLAG_CHECKPOINT) for record, _ in watched.records()] == [False, True, False]


def test_without_an_ended_episode_there_is_no_return(tmp_path):
    watched = Watched(tmp_path, ALWAYS)
    # Nobody ends in a rollout in which no flag is set.
    watched.ppo.update()
    watched.meters.after(32)
    ((_, values),) = watched.records()
    assert values["episodes"] == 0 and math.isnan(values["return"]) and math.isnan(values["length"])


@pytest.mark.parametrize("record_hz", [SELDOM, ALWAYS])
def test_an_evaluation_is_recorded_at_its_step(tmp_path, record_hz):
    watched = Watched(tmp_path, record_hz)
    watched.meters.set_evaluation(1.0, 15.0)  # of the session before
    watched.meters.measure("collect", lambda: time.sleep(0.01))
    watched.iterate(evaluation_follows=True)
    evaluated_at = watched.step
    assert watched.meters.evaluated(watched.step, 12.5, 15.0) is None
    watched.iterate()
    watched.meters.flush(watched.step)
    records = watched.records()
    assert [record.step for record, _ in records if record.flags & FLAG_EVAL] == [evaluated_at]
    assert [(record.step, values["eval/return"]) for record, values in records] == [
        (evaluated_at, 12.5),
        (watched.step, 12.5),
    ], "a record has both an iteration and its evaluation"
    assert sum(values["iterations"] for _, values in records) == 2, "an iteration is counted twice, or not at all"
    assert [values["seconds/collect"] >= 0.01 for _, values in records].count(True) == 1, (
        "its time is counted twice, or not at all"
    )


@pytest.mark.parametrize(("record_hz", "evaluates"), [(SELDOM, False), (ALWAYS, False), (ALWAYS, True)])
def test_the_first_iteration_that_is_not_finite_is_named(tmp_path, record_hz, evaluates):
    watched = Watched(tmp_path, record_hz)
    assert [watched.iterate() for _ in range(2)] == [None, None]
    with torch.no_grad():
        watched.ppo.policy.flat.values[0] = math.nan
    found = watched.iterate(evaluation_follows=evaluates)
    if record_hz == SELDOM:
        assert found is None
        watched.iterate()
        found = watched.meters.flush(watched.step)
    assert found.iteration == 3 and "loss/policy" in found.columns
    assert watched.reader.status().nonfinite_total == 1


@pytest.mark.parametrize("kind", ["action", "reward", "observation"])
def test_the_first_value_that_is_not_finite_is_named_where_it_enters(tmp_path, kind):
    """Independent of the algorithm's use of it: here there is none, as it has updated already."""
    watched = Watched(tmp_path, ALWAYS, PUSH)
    assert watched.iterate() is None
    iterate(watched.ppo, 1)
    rollout = watched.ppo.rollout
    {"action": rollout.action[2], "reward": rollout.reward[2:3], "observation": rollout.observation[3]}[kind][
        -1, 5
    ] = -math.inf
    rollout.reward[3, 1] = math.nan
    watched.step += 32
    found = watched.meters.after(watched.step)
    assert found.iteration == 2 and found.first == (kind, -math.inf, 5, 2, 2)
    assert found.first.sentence(32, 8).startswith(
        f"the {'policy' if kind == 'action' else 'environment'}'s {kind} was -inf in lane 5 at step 56"
    )


def test_observations_of_bytes_are_never_reported_as_non_finite(tmp_path):
    watched = Watched(tmp_path, ALWAYS, PICK)
    assert watched.iterate() is None
    watched.ppo.rollout.reward[0, 7] = math.inf
    watched.step += 32
    assert watched.meters.after(watched.step).first == ("reward", math.inf, 7, 0, 1)


def test_merged_records_keep_the_sums_of_counters(tmp_path):
    watched = Watched(tmp_path, ALWAYS)
    for _ in range(8):
        watched.meters.measure("collect", lambda: None)
        watched.iterate()
    records = watched.records()
    assert len(records) == salvage(tmp_path / "history", tmp_path / "metrics.mm") == 8
    (path,) = (tmp_path / "history").iterdir()
    for _ in thin(path):
        pass
    (chunk,) = read(tmp_path / "history")
    assert len(chunk.n) == 2
    for name in ("iterations", "episodes", "seconds/collect"):
        total = sum(values[name] for _, values in records)
        assert total > 0 and sum(chunk.columns[name]) == pytest.approx(total), name
