"""Resuming: what a checkpoint means is what it meant when it was made, steps are counted, and what cannot go on is
refused before anything changes.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from processes import (
    ITERATION,
    environment,
    go_on,
    inline,
    operant_process,
    the_run,
    wait_for,
)
from toys import MY_ENV

from operant import runs
from operant.algos.ppo import PPO
from operant.config import load, resuming
from operant.errors import BadFileError, ConfigError
from operant.runs import launch
from operant.runs.checkpoints import Store
from operant.runs.checkpoints.tensors import pack
from operant.runs.metrics import Reader
from operant.training import worker

pytestmark = pytest.mark.usefixtures("one_thread", "serial_worlds")
KEEP = ("checkpoint.every=2", "checkpoint.keep=20", "eval.episodes=8")


def store(run: runs.Run) -> Store:
    return Store(run.checkpoints_path, run_uuid=run.uuid.hex(), report=lambda line: None)


def records(run: runs.Run) -> list[SimpleNamespace]:
    """Records of the last session: step and values by name."""
    with Reader(run.metrics_path) as reader:
        names = [metric.name.replace("/", "_") for metric in reader.metrics]
        return [
            SimpleNamespace(step=record.step, **dict(zip(names, record.values, strict=True)))
            for record in reader.since(0)
        ]


# WHAT A CHECKPOINT MEANS


@pytest.mark.slow
def test_a_checkpoint_is_played_as_it_was_trained_whatever_a_resume_changes(here, tmp_path, caplog):
    assert inline(here, f"run.steps={6 * ITERATION}", *KEEP, "eval.every=3").code == 0
    run = the_run(tmp_path)
    best = store(run).newest("best")
    play = ("eval", run.id, "--episodes", "16", "--json", "--checkpoint")
    before = json.loads(here(*play, "best").out)
    with caplog.at_level(logging.WARNING):
        go_on(run, f"run.steps={10 * ITERATION}", "env.params.force=1000", "net.hidden=[64,64]", "eval.every=2")
    assert "the best return is reset" in caplog.text and "env.params.force: 10.0 -> 1000.0" in caplog.text
    # The old checkpoint plays under the old rules; the best is one of the new ones, although it is worse.
    assert json.loads(here(*play, str(best.manifest.step)).out) == before
    anew = json.loads(here(*play, "best").out)
    assert anew["step"] > best.manifest.step and anew["greedy"]["mean"] < before["greedy"]["mean"]
    assert store(run).newest("best").manifest.best_value < best.manifest.best_value
    film = here("render", run.id, "--checkpoint", best.manifest.step, "--out", "film.png", "--steps", "4")
    assert film.code == 0, film.err
    # It belongs to the run's end as well: nothing that was marked before the change comes back.
    go_on(run, f"run.steps={12 * ITERATION}", "eval.every=2")
    assert store(run).newest("best").manifest.task == 2


def test_a_checkpoint_without_a_configuration_is_played_with_the_run_s(here, tmp_path):
    """Turn a run into one of an early version, described by its config.toml alone."""
    assert inline(here, f"run.steps={2 * ITERATION}").code == 0
    run = the_run(tmp_path)
    found = store(run).newest()
    manifest, files = store(run).load_files()
    assert files.pop("config.toml").decode() == run.config_path.read_text() and found.config is not None
    played = here("eval", run.id, "--episodes", "8", "--json").out
    store(run).save_files(
        found.manifest.step, files["tensors.safetensors"], files["state.json"], session=manifest.session
    )
    assert store(run).newest().config is None and here("eval", run.id, "--episodes", "8", "--json").out == played
    go_on(run, f"run.steps={4 * ITERATION}")
    assert store(run).newest().manifest.step == 4 * ITERATION and store(run).newest().config is not None


@pytest.mark.parametrize("name", ["ppo", pytest.param("dqn", marks=pytest.mark.soak)])
def test_lanes_of_an_environment_with_another_state_begin_anew(here, tmp_path, caplog, name):
    """Turn checkpoints into those of Count Recall and Higher Lower before their state grew."""
    assert (
        inline(
            here,
            f"run.steps={2 * ITERATION}",
            f"algo.name={name}",
            *(["algo.replay_capacity=100k"] if name == "dqn" else []),
        ).code
        == 0
    )
    run = the_run(tmp_path)
    found = store(run).load()
    manifest, files = store(run).load_files()
    tensors = {**found.tensors, "world/state": found.tensors["world/state"][:-1]}
    store(run).save_files(
        found.step, pack(tensors), files["state.json"], files["config.toml"], session=manifest.session
    )
    with caplog.at_level(logging.INFO):
        go_on(run, f"run.steps={4 * ITERATION}")
    assert "warm resume: every lane begins a new episode: the environment's state has changed" in caplog.text
    assert "the best return is reset, since returns are no longer comparable: the environment's state" in caplog.text
    after = store(run).load()
    assert (
        after.step == 4 * ITERATION
        and int(after.tensors["world/tick"]) == int(found.tensors["world/tick"]) + 2 * ITERATION // 64 + 1
    )
    del tensors["world/tick"]
    store(run).save_files(after.step, pack(tensors), files["state.json"], files["config.toml"], session=9)
    with pytest.raises(
        ConfigError, match=r"does not fit checkpoint step-0+4096: world/tick: the checkpoint has nothing"
    ):
        go_on(run, f"run.steps={6 * ITERATION}")


def test_a_memory_of_places_in_another_order_is_refused(here, tmp_path, monkeypatch):
    assert inline(here, f"run.steps={ITERATION}").code == 0
    created, check, places = [], resuming.check_order, load.load(None, ["env.name=concentration", "net.kind=places"])
    monkeypatch.setattr(resuming, "check_order", lambda config, created_ns: created.append(created_ns))
    go_on(the_run(tmp_path), f"run.steps={2 * ITERATION}")
    assert time.time_ns() - 600 * 10**9 < created[0] < time.time_ns(), "the time of the checkpoint"
    remembers = load.load(None, ["env.name=concentration", "net.kind=places", "net.memory=gru"])
    for config, created_ns in ((places, 0), (remembers, created[0])):
        check(config, created_ns)
    with pytest.raises(ConfigError, match=r"from before 2026-11-23 03:18 UTC .* can be evaluated, but not trained on"):
        check(remembers, 1_795_000_000 * 10**9)  # 2026-11-18


def test_a_checkpoint_that_is_damaged_or_gone_ends_every_command_with_3(here, tmp_path):
    assert inline(here, f"run.steps={ITERATION}").code == 0
    run = the_run(tmp_path)
    (folder,) = run.checkpoints_path.glob("step-*")
    for name in ("tensors.safetensors", "manifest.json"):
        (folder / name).write_bytes(b"{}")
        for words in (
            ("eval", run.id),
            ("eval", run.id, "--checkpoint", "7"),
            ("eval", folder),
            ("export", "policy", run.id),
        ):
            done = here(*words)
            assert done.code == 3 and done.err.count(" skipped: ") <= 1, (words, done.err)
        with pytest.raises(BadFileError, match="no valid checkpoint") as refused:
            go_on(run, "run.steps=1M")
        assert refused.value.exit_code == 3


def test_a_resume_with_nothing_to_do_or_to_begin_from_changes_nothing(here, tmp_path):
    assert inline(here, f"run.steps={2 * ITERATION}").code == 0
    run = the_run(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    for words, code, said in (
        (("run.steps=1k",), 2, "has done 2,048 steps, and run.steps is 1,000. To continue: operant resume"),
        (("algo.clip=0.1",), 2, "has done its 2,048 steps"),
        ((), 2, "has done its 2,048 steps"),
        (("run.steps=1M", "--from", "77"), 3, "no checkpoint of step 77"),
        (("run.steps=1M", "--from", "best"), 3, "no checkpoint marked as best"),
    ):
        done = here("resume", run.id, *words)
        assert done.code == code and said in done.err, (words, done.err)
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_a_resume_on_a_machine_that_does_not_fit_leaves_the_run_as_it_was(here, tmp_path, monkeypatch):
    """The worker in this process, in place of one that `launch.start` starts."""

    def begin(run, argv):
        runs.write_json(
            run.exit_path, {"exit": worker.train_with_exit_code(run.path, "last", reused=True), "signal": None}
        )

    monkeypatch.setattr(launch, "start", begin)
    assert inline(here, f"run.steps={ITERATION}").code == 0
    run = the_run(tmp_path)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    refused = here("resume", run.id, "run.steps=1M", "run.device=cuda:999")
    assert refused.code == 4 and "cuda:999" in refused.err
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_what_a_checkpoint_depends_on_is_compared_with_the_checkpoint(here, tmp_path):
    """A configuration of the run that was edited by hand, and an override that puts things right."""
    assert inline(here, f"run.steps={2 * ITERATION}").code == 0
    run = the_run(tmp_path)
    written = run.config_path.read_text()
    run.config_path.write_text(written.replace('activation = "tanh"', 'activation = "relu"'))
    with pytest.raises(
        ConfigError, match=r"net.activation cannot change on a resume: .* The checkpoint has 'tanh' \(got 'relu'\)"
    ):
        go_on(run, f"run.steps={4 * ITERATION}")
    assert here("eval", run.id, "--episodes", "2").code == 0
    refused = here("resume", run.id, "net.activation=gelu", "run.steps=1M")
    assert (
        refused.code == 2
        and "net.activation cannot change" in refused.err
        and "The run has 'tanh' (got net.activation=gelu)" in refused.err
    )
    go_on(run, f"run.steps={4 * ITERATION}", "net.activation=tanh")
    assert load.load(run.config_path).net.activation == "tanh"


# STEPS


@pytest.mark.slow
@pytest.mark.parametrize("horizon", [4, 64])
def test_another_horizon_trains_until_the_steps_are_done(here, tmp_path, horizon):
    assert inline(here, f"run.steps={8 * ITERATION}", *KEEP).code == 0
    run = the_run(tmp_path)
    go_on(run, f"run.steps={16 * ITERATION}", f"algo.horizon={horizon}", "run.record_hz=1000", "algo.anneal_steps=24k")
    after = records(run)
    assert after[-1].step == 16 * ITERATION and store(run).newest().manifest.step == 16 * ITERATION
    # Of the decay over 24,000 steps as many are done as there are steps, to one iteration.
    begin, iteration = after[0].step - 64 * horizon, 64 * horizon
    assert begin == 8 * ITERATION
    rate = load.load(run.config_path).algo.learning_rate
    assert after[0].learning_rate == pytest.approx(rate * (1 - begin / 24_000), abs=rate * iteration / 24_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pqn", "dqn"])
def test_the_schedules_of_every_algorithm_follow_steps(here, tmp_path, name):
    """Epsilon goes from 1 to 0 over 16 iterations of the first horizon."""
    words = (
        f"algo.name={name}",
        "algo.epsilon_end=0",
        f"algo.epsilon_steps={16 * ITERATION}",
        *(["algo.learning_starts=0"] if name == "dqn" else []),
    )
    assert inline(here, f"run.steps={8 * ITERATION}", *KEEP, *words).code == 0
    run = the_run(tmp_path)
    go_on(run, f"run.steps={12 * ITERATION}", "algo.horizon=64", "run.record_hz=1000")
    after = records(run)
    assert (
        after[-1].step == 12 * ITERATION
        and after[0].epsilon == pytest.approx(0.5)
        and load.load(run.config_path).algo.horizon == 64
    )


def test_a_best_one_takes_no_replay_away(here, tmp_path):
    """The best holds what training needs but the replay, unless it takes the place of a checkpoint that has it."""
    words = ("algo.name=dqn", "algo.learning_starts=0", "algo.replay_capacity=100k", "checkpoint.replay=true")
    assert inline(here, f"run.steps={4 * ITERATION}", *KEEP, *words).code == 0
    run = the_run(tmp_path)
    # which begins with the evaluation that its first step lacks
    go_on(run, f"run.steps={8 * ITERATION}", "eval.every=1", "checkpoint.every=4")
    held = {
        step: json.loads((run.checkpoints_path / f"step-{step:012d}" / "state.json").read_text())
        for step in store(run).steps()
    }
    best = {step: store(run).newest(step).manifest.best for step in held}
    assert best[4 * ITERATION] and held[4 * ITERATION]["tier"] == "all"
    assert all(
        document["tier"] == ("train" if best[step] and step % (4 * ITERATION) else "all")
        for step, document in held.items()
    )
    assert len({document["tensor_bytes"] for document in held.values()}) == 1


@pytest.mark.slow
def test_more_steps_do_not_raise_the_learning_rate_again(here, tmp_path, caplog):
    assert inline(here, f"run.steps={8 * ITERATION}", *KEEP, "run.record_hz=1000").code == 0
    run = the_run(tmp_path)
    assert load.load(run.config_path).algo.anneal_steps == 8 * ITERATION
    first = records(run)
    assert first[-1].learning_rate < 0.2 * first[0].learning_rate
    with caplog.at_level(logging.WARNING):
        go_on(run, f"run.steps={16 * ITERATION}")
    assert {record.learning_rate for record in records(run)} == {0.0}
    assert f"the learning rate decays to 0 at step {8 * ITERATION:,} of {16 * ITERATION:,}" in caplog.text
    refused = here("resume", run.id)
    assert refused.code == 2 and "algo.anneal_steps=" in refused.err
    go_on(run, f"run.steps={20 * ITERATION}", f"algo.anneal_steps={32 * ITERATION}", "run.record_hz=1000")
    rates = [record.learning_rate for record in records(run)]
    assert rates[0] == pytest.approx(first[0].learning_rate / 2, rel=0.05) and rates == sorted(rates, reverse=True)
    assert "env.lanes" in here("resume", "--help").out and "algo.anneal_steps" in here("resume", "--help").out


# WHICH CHECKPOINT


@pytest.mark.slow
def test_a_run_that_was_rewound_goes_on_from_what_came_after_the_rewind(here, tmp_path):
    assert inline(here, f"run.steps={8 * ITERATION}", *KEEP).code == 0
    run = the_run(tmp_path)
    # and is then killed, as far as its checkpoints tell
    go_on(run, f"run.steps={4 * ITERATION}", start=str(2 * ITERATION))
    runs.update_document(run.path, steps=8 * ITERATION)
    run.config_path.write_text(
        run.config_path.read_text().replace(f"steps = {4 * ITERATION}\n", f"steps = {8 * ITERATION}\n")
    )
    assert store(run).steps()[-1] == 8 * ITERATION and store(run).newest().manifest.step == 4 * ITERATION
    resumed = here("resume", run.id)
    assert resumed.code == 0, resumed.err
    assert f"resumed from step-{4 * ITERATION:012d} (session 3)" in run.log_path.read_text()
    assert store(run).newest().manifest[1:3] == (3, 8 * ITERATION)


@pytest.mark.slow
def test_of_three_resumes_at_once_one_trains_and_two_are_refused(here, tmp_path):
    assert inline(here, f"run.steps={2 * ITERATION}", *KEEP).code == 0
    run = the_run(tmp_path)
    command = [sys.executable, "-m", "operant.cli", "resume", run.id, "run.steps=1G", "--detach"]
    started = [
        subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    ended = [(process.communicate(timeout=120)[1], process.returncode) for process in started]
    try:
        assert sorted(code for _, code in ended) == [0, 6, 6], ended
        assert sum("is about to resume" in said or "is still training" in said for said, _ in ended) == 2
        assert runs.read_json(run.path / "run.json")["session"] == 2
    finally:
        operant_process(tmp_path, "stop", run.id)
    wait_for(lambda: not runs.has_trainer(run.path))
    assert os.path.exists(run.exit_path)


# NUMBERS THAT ARE NOT FINITE


def test_a_checkpoint_whose_normalizer_is_not_finite_is_none(here, tmp_path, monkeypatch, caplog):
    """No loss and no weight is broken yet: what the next iteration would read is."""

    def spoilt(self):
        update(self)
        self.return_normalizer.running_variance[0] = torch.nan

    update = PPO._update
    monkeypatch.setattr(PPO, "_update", spoilt)
    with caplog.at_level(logging.WARNING):
        inline(here, f"run.steps={ITERATION}", "algo.normalize_rewards=true")
    run = the_run(tmp_path)
    assert "1 of 1 numbers of return/variance are not finite" in caplog.text
    assert store(run).newest() is None and list(run.checkpoints_path.glob("quarantine-step-*"))


def test_an_old_checkpoint_that_is_not_finite_is_not_trained_on(here, tmp_path):
    assert inline(here, f"run.steps={4 * ITERATION}", *KEEP).code == 0
    run = the_run(tmp_path)
    last = store(run).load()
    last.tensors["return/weight"][:] = torch.inf
    store(run).save(last.step, last.tensors, last.document, session=1, config=last.config.read_text())
    with pytest.raises(
        BadFileError, match=r"cannot be trained on: 1 of 1 numbers of return/weight are not finite.*--from STEP"
    ):
        go_on(run, f"run.steps={8 * ITERATION}")
    go_on(run, f"run.steps={8 * ITERATION}", start=str(2 * ITERATION))


@pytest.mark.slow
@pytest.mark.parametrize(("field", "value"), [("reward", "inf"), ("observation", "nan")])
def test_values_that_enter_hidden_by_a_normalizer_end_the_run_with_their_cause(here, tmp_path, field, value):
    """Both are clipped before they are learned from; the normalizers are not finite from then on."""
    breaking = f"reward = float32({value})" if field == "reward" else f"s[0] = float32({value})"
    (tmp_path / "odd.py").write_text(
        MY_ENV.replace("1_000_000", "40").replace("reward = float32(nan)", breaking).replace("32, nan", "32, nan, inf")
    )
    words = (
        "--env",
        "odd.py",
        "run.steps=1M",
        "checkpoint.every=1",
        "run.record_hz=1000",
        "algo.normalize_rewards=true",
        "algo.normalize_observations=true",
    )
    done = inline(here, *words)
    assert done.code == 5 and f"in iteration 3: the environment's {field} was {value} in lane 0 at step " in done.err, (
        done.err
    )
    assert "not the learning rate" in done.err and f"checkpoint is that of step {2 * ITERATION:,}" in done.err
    assert store(the_run(tmp_path)).newest().manifest.step == 2 * ITERATION


def test_a_decay_that_ends_before_the_run_is_told_at_its_start(here, tmp_path, caplog):
    """Configuration of a new run copied from an old one, which names the step."""
    with caplog.at_level(logging.WARNING):
        inline(here, f"run.steps={2 * ITERATION}", "algo.anneal_steps=1500")
    assert (
        f"the learning rate decays to 0 at step 1,500 of {2 * ITERATION:,}: algo.anneal_steps={2 * ITERATION} "
        "changes that" in caplog.text
    )
