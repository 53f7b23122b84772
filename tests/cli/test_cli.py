"""The command line: training from the first word to the last, and no traceback for anything a user can get wrong.

What needs a process of its own (waiter, worker, viewer, signals, kills) has one. All else runs `cli.main` in this
process, which has torch already.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import (
    HALFWAY,
    ITERATION,
    SMALL,
    STEPS,
    environment,
    go_on,
    inline,
    operant_process,
    tensors,
    the_run,
    trained_here,
    wait_for,
)

from operant import runs
from operant.config import load as config
from operant.config import request
from operant.runs import control
from operant.runs.checkpoints import Store
from operant.runs.metrics import FLAG_CHECKPOINT, FLAG_EVAL, Reader
from operant.text import count, number
from operant.training import loop


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> SimpleNamespace:
    """A run that was left alone from its start to its end, as `operant train` does it, without a terminal."""
    place = tmp_path_factory.mktemp("trained")
    done = operant_process(place, "train", *HALFWAY, "--name", "alone")
    return SimpleNamespace(place=place, path=place / "runs" / "alone", done=done)


# A WHOLE RUN


def test_a_run_goes_from_start_to_end_and_says_what_to_type_next(trained):
    assert trained.done.returncode == 0, trained.done.stderr
    assert trained.done.stdout == ""
    text = trained.done.stderr
    assert "SPS" in text and "finished" in text and "runs/alone" in text and "operant eval alone" in text
    assert "\x1b" not in text and "\r" not in text
    assert text.count("\n") < 40
    assert len(set(text.splitlines())) == len(text.splitlines()), "a line of progress was printed twice"


def test_its_folder_holds_what_the_design_names(trained):
    names = {path.name for path in trained.path.iterdir()}
    assert names >= {"run.json", "config.toml", "log.txt", "run.lock", "metrics.mm", "exit.json", "checkpoints", "eval"}
    document = json.loads((trained.path / "run.json").read_text())
    assert {
        "env": "cartpole",
        "algo": "ppo",
        "lanes": 64,
        "steps": STEPS,
        "device": "cpu",
        "seed": 1,
        "session": 1,
    }.items() <= document.items()
    ending = json.loads((trained.path / "exit.json").read_text())
    assert (ending["exit"], ending["signal"], ending["last_step"]) == (0, None, STEPS)
    assert oct(trained.path.stat().st_mode & 0o777) == "0o700"
    assert len((trained.path / "eval" / "evaluations.jsonl").read_text().splitlines()) == 4
    resolved = config.load(trained.path / "config.toml")
    assert (resolved.env.lanes, resolved.run.threads, resolved.run.device) == (64, 1, "cpu")


def test_its_records_are_in_the_metrics_file(trained):
    with Reader(trained.path / "metrics.mm") as reader:
        names, last, status = [metric.name for metric in reader.metrics], reader.latest(), reader.status()
        first_steps = [record.step for record in reader.since(0)]
        evaluated = [record.step for record in reader.since(0) if record.flags & FLAG_EVAL]
    values = dict(zip(names, last.values, strict=True))
    assert first_steps == sorted(set(first_steps)), "a row for each step"
    assert values["iterations"] > 0, "the last record is not empty"
    assert (last.step, status.state, status.exit_code, status.main_count) == (STEPS, "finished", 0, 120)
    assert status.last_checkpoint_step == STEPS
    assert values["eval/best_return"] >= values["eval/return"] > 0
    assert values["sps"] > 0 and values["entropy"] > 0
    told = [json.loads(line)["step"] for line in (trained.path / "eval" / "evaluations.jsonl").read_text().splitlines()]
    assert evaluated == told, "an evaluation's record is one of another step"
    log = (trained.path / "log.txt").read_text()
    assert all(f"at step {step:,}" in log for step in told) and f"at {count(told[-1])} steps" in trained.done.stderr


def test_show_and_runs_describe_it(trained, here):
    shown = here("show", str(trained.path), "--json")
    assert shown.code == 0
    described = json.loads(shown.out)
    assert {
        "schema": 1,
        "id": "alone",
        "state": "finished",
        "step": STEPS,
        "env": "cartpole",
        "exit": 0,
    }.items() <= described.items()
    (listed,) = json.loads(here("runs", "--json", "--runs", trained.place / "runs").out)
    assert {key: listed[key] for key in ("id", "state", "step")} == {
        key: described[key] for key in ("id", "state", "step")
    }
    table = here("runs", "--runs", trained.place / "runs").out
    assert table.splitlines()[0].split() == [
        "state",
        "id",
        "env",
        "algo",
        "eval",
        "return",
        "sps",
        "progress",
        "eta",
        "age",
    ]
    assert "alone" in table and "100 %" in table
    assert json.loads(here("runs", "--live", "--json", "--runs", trained.place / "runs").out) == []
    assert json.loads(here("runs", "--failed", "--json", "--runs", trained.place / "runs").out) == []
    summary = here("show", str(trained.path)).out
    assert summary.startswith("✔ finished  alone\n  task        cartpole by ppo, 64 lanes on cpu, seed 1\n")
    assert f"with {' '.join(HALFWAY)}\n" in summary and f"{STEPS:,} in 0:00:" in summary
    assert (
        f"mean return {number(described['eval_return'])} ± " in summary
        and f"(95 %, n = 4) at step {STEPS:,}" in summary
    )
    assert "next        operant eval alone   operant monitor alone" in summary


def test_logs_prints_the_log_and_its_end(trained, here):
    whole = here("logs", str(trained.path)).out.splitlines()
    assert any("finished" in line for line in whole)
    assert here("logs", str(trained.path), "--tail", "1").out.splitlines() == whole[-1:]


def test_logs_follows_a_run_to_its_end(here, tmp_path):
    run = runs.create(tmp_path / "runs", "young", "x", {})
    lock = runs.acquire(run.path)
    runs.update_document(run.path, **runs.identity())
    run.log_path.write_bytes(b"one\ntwo\nthr")
    command = [sys.executable, "-m", "operant.cli", "logs", "young", "-f", "--tail", "1"]
    follower = subprocess.Popen(
        command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert follower.stdout.readline() == "two\n"
        with open(run.log_path, "ab") as log:
            log.write(b"ee\nfour\n")
            log.flush()
            assert [follower.stdout.readline() for _ in range(2)] == ["three\n", "four\n"]
            log.write(b"the \x1b[31mend")
        lock.release()
        runs.write_json(run.exit_path, {"exit": 1})
        assert follower.communicate(timeout=60) == ("the [31mend\n", "")
    finally:
        follower.kill()
    assert follower.returncode == 0
    done = here("logs", "young", "-f")
    assert (done.code, done.out) == (0, "one\ntwo\nthree\nfour\nthe [31mend\n")


def test_eval_plays_the_best_checkpoint_greedily_and_sampled(trained, here):
    done = here("eval", str(trained.path), "--episodes", "16", "--json")
    assert done.code == 0
    document = json.loads(done.out)
    assert (document["schema"], document["id"], document["episodes"]) == (1, "alone", 16)
    assert document["mean"] == document["greedy"]["mean"] and document["ci95"] == document["greedy"]["ci95"]
    for kind in ("greedy", "sampled"):
        found = document[kind]
        assert found["episodes"] == 16 and found["unfinished"] == 0
        assert 1 <= found["minimum"] <= found["mean"] <= found["maximum"] <= 500
        assert found["mean"] == found["length"]  # a reward of 1 a step
        assert found["ci95"] == pytest.approx(1.96 * found["std"] / 4)
    assert document["greedy"] != document["sampled"]
    again = json.loads(here("eval", document["checkpoint"], "--episodes", "16", "--json").out)
    assert again == document
    other = json.loads(here("eval", str(trained.path), "--episodes", "16", "--json", "--seed", "9", "--greedy").out)
    assert other["sampled"] is None and other["greedy"] != document["greedy"]


def test_eval_of_one_episode_states_no_interval(trained, here):
    done = here("eval", str(trained.path), "--episodes", "1", "--greedy")
    assert done.code == 0 and "±" not in done.out and "one episode has no interval" in done.out
    document = json.loads(here("eval", str(trained.path), "--episodes", "1", "--greedy", "--json").out)
    assert document["ci95"] is None and document["greedy"]["std"] is None


def test_eval_takes_the_checkpoint_that_is_named(trained, here):
    steps = {
        which: json.loads(
            here("eval", str(trained.path), "--episodes", "4", "--sampled", "--json", "--checkpoint", which).out
        )["step"]
        for which in ("last", str(STEPS - 10 * ITERATION))
    }
    assert steps == {"last": STEPS, str(STEPS - 10 * ITERATION): STEPS - 10 * ITERATION}
    assert "sampled" in here("eval", str(trained.path), "--episodes", "4").out


def test_a_finished_run_says_how_to_train_on(trained, here):
    done = here("resume", str(trained.path))
    assert done.code == 2
    assert "122,880 steps" in done.err and "run.steps=246k" in done.err


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a run folder and its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_resume_that_its_checkpoints_do_not_allow_changes_nothing(trained, here, tmp_path):
    copy = tmp_path / "runs" / "copy"
    shutil.copytree(trained.path, copy)
    before = content(copy)
    wrong = {
        "net.hidden=[32]": ("weights of that network", "[64, 64]"),
        "net.activation=relu": ("weights of that network", "'tanh'"),
        "env.lanes=128": ("state of that number of lanes", "64"),
        "env.lanes=auto": ("state of that number of lanes", "64"),
        "env.name=pendulum": ("policy for that environment", "'cartpole'"),
        "env.pixels=32": ("policy for that environment", "no value"),
        "algo.normalize_observations=false": ("running mean and variance", "true"),
        "net.hidden=[]": ("weights of that network", "[64, 64]"),
        "algo.optimizer=muon": ("moments of that optimizer", "'adam'"),
    }
    for word, (reason, own) in wrong.items():
        done = here("resume", "copy", word, "run.steps=1M")
        assert (
            done.code == 2
            and f"  {word.partition('=')[0]} cannot change on a resume: " in done.err
            and reason in done.err
        ), done.err
        assert f"The run has {own} (got {word})" in done.err and "finished" not in done.err, done.err
    together = here("train", "--resume", "copy", "net.shared=true", "env.lanes=128", "--steps", "1M")
    assert (
        together.code == 2
        and "has 2 problems" in together.err
        and "got net.shared=true" in together.err
        and "got env.lanes=128" in together.err
    )
    misspelt = here("resume", "copy", "net.hiden=[32]", "run.steps=many")
    assert (
        misspelt.code == 2
        and "did you mean 'net.hidden'" in misspelt.err
        and "run.steps: input should be" in misspelt.err
    )
    own = here("resume", "copy", "net.hidden=[64,64]", "env.name=CartPole-v1", "env.lanes=64")
    assert own.code == 2 and "has done its 122,880 steps" in own.err, "what the run has already is no change"
    assert content(copy) == before
    assert json.loads(here("show", "copy", "--json").out)["state"] == "finished"
    assert here("eval", "copy", "--episodes", "4").code == 0


@pytest.mark.soak
def test_a_resume_on_a_machine_that_does_not_fit_changes_nothing_but_the_log(trained, tmp_path):
    copy = tmp_path / "runs" / "copy"
    shutil.copytree(trained.path, copy)
    before = content(copy) | {"log.txt": b""}
    refused = operant_process(tmp_path, "resume", "copy", f"run.steps={2 * STEPS}", "run.device=cuda:999")
    assert refused.returncode == 4 and "cuda:999" in refused.stderr
    assert content(copy) | {"log.txt": b""} == before


@pytest.mark.slow
def test_a_resume_that_the_worker_refuses_changes_nothing_but_the_log(trained, here, tmp_path):
    copy = tmp_path / "runs" / "copy"
    shutil.copytree(trained.path, copy)
    written = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text("# edited by hand\n" + written.replace("hidden = [64, 64]", "hidden = [32]"))
    before = content(copy) | {"log.txt": b""}
    refused = here("resume", "copy", "--from", str(STEPS - 10 * ITERATION))
    assert (
        refused.code == 2 and "net.hidden cannot change on a resume" in refused.err and "(got [32])" in refused.err
    ), refused.err
    assert "finished" not in refused.err
    assert content(copy) | {"log.txt": b""} == before

    (copy / "config.toml").write_text(written)
    go_on(runs.load(copy), f"run.steps={STEPS + ITERATION}")
    assert config.load(copy / "config.toml").run.steps == STEPS + ITERATION


def test_damaged_checkpoint_is_skipped_with_a_message(trained, here, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained.path, copy)
    victim = sorted((copy / "checkpoints").glob("step-*"))[-1] / "tensors.safetensors"
    raw = bytearray(victim.read_bytes())
    raw[len(raw) // 2] ^= 1
    victim.write_bytes(raw)
    done = here("eval", str(copy), "--episodes", "4", "--greedy", "--json", "--checkpoint", "last")
    assert done.code == 0
    assert f"step-{STEPS:012d}" in done.err and "skipped" in done.err
    assert json.loads(done.out)["step"] == STEPS - 10 * ITERATION
    named = here("eval", str(victim.parent))
    assert named.code == 3 and "not a valid checkpoint" in named.err


# KILLED, STOPPED, BUSY


@pytest.mark.slow
def test_a_run_killed_halfway_and_resumed_ends_in_the_same_bytes(trained, here, tmp_path):
    started = operant_process(tmp_path, "train", *HALFWAY, "--detach", "--name", "killed")
    assert started.returncode == 0 and "Detached. Still training" in started.stderr, started.stderr
    path = tmp_path / "runs" / "killed"
    wait_for(lambda: runs.describe(runs.load(path))["last_checkpoint_step"])
    os.kill(json.loads((path / "run.json").read_text())["pid"], signal.SIGKILL)
    ending = json.loads(wait_for(lambda: (path / "exit.json").is_file() and (path / "exit.json").read_text()))
    assert ending["signal"] == signal.SIGKILL and ending["last_step"] < STEPS
    crashed = json.loads(operant_process(tmp_path, "show", "latest", "--json").stdout)
    assert (crashed["id"], crashed["state"], crashed["exit"]) == ("killed", "crashed", 137)
    assert [run["id"] for run in json.loads(operant_process(tmp_path, "runs", "--failed", "--json").stdout)] == [
        "killed"
    ]
    lost = crashed["step"] - crashed["last_checkpoint_step"]
    assert 0 <= lost <= 11 * ITERATION and 0 <= crashed["unsaved_s"] < ending["wall_s"] == crashed["took_s"]

    resumed = here("resume", "killed")
    assert resumed.code == 0, resumed.err
    assert "resumed from step-" in (path / "log.txt").read_text()
    document = json.loads((path / "run.json").read_text())
    assert document["session"] == 2
    assert tensors(path) == tensors(trained.path)
    took_s = json.loads((path / "exit.json").read_text())["wall_s"] + ending["wall_s"]
    assert json.loads(here("show", "killed", "--json").out)["took_s"] == pytest.approx(took_s)
    with Reader(path / "metrics.mm") as reader:
        assert reader.status().main_count == 120, "iterations of both sessions"


@pytest.mark.slow
def test_checkpoints_by_time_change_no_trained_bit(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SAVE_SHARE", 1e9)
    words = (*HALFWAY, f"run.steps={8 * ITERATION}", "checkpoint.every=1000", "checkpoint.keep=100", "eval.every=0")
    saved = {
        seconds: trained_here(tmp_path, *words, f"checkpoint.seconds={seconds}", name=f"every-{k}")
        for k, seconds in enumerate((0, 60, 1e-9))
    }
    off, default, always = (len(list((path / "checkpoints").glob("step-*"))) for path in saved.values())
    assert off == default == 1 and always > 3
    assert len({tensors(path) for path in saved.values()}) == 1


@pytest.mark.slow
def test_checkpoints_by_time_take_a_fiftieth_of_the_time_at_most(here, tmp_path, monkeypatch):
    save = Store.save_files

    def slow(*words, **options):
        time.sleep(0.2)  # so that ten seconds pass until the next one
        return save(*words, **options)

    monkeypatch.setattr(Store, "save_files", slow)
    words = ("checkpoint.every=100000", "checkpoint.seconds=1e-9", "checkpoint.keep=100")
    assert inline(here, f"run.steps={30 * ITERATION}", *words).code == 0
    assert len(list(the_run(tmp_path).checkpoints_path.glob("step-*"))) == 2, "after the first and the last iteration"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> SimpleNamespace:
    """A run that trains while others try to, and is then stopped by Ctrl-C in its viewer."""
    place = tmp_path_factory.mktemp("stopped")
    command = [
        sys.executable,
        "-m",
        "operant.cli",
        "train",
        "env.name=CartPole-v1",
        *SMALL,
        "run.steps=1G",
        "eval.every=0",
        "--name",
        "long",
    ]
    viewer = subprocess.Popen(
        command, cwd=place, env=environment(place), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    path = place / "runs" / "long"
    said = []
    try:
        while "SPS" not in (line := viewer.stderr.readline()):
            assert line, said
            said.append(line)
        shown = json.loads(operant_process(place, "show", "live", "--json").stdout)
        second = operant_process(place, "resume", "long")
        worker = subprocess.run(
            [sys.executable, "-m", "operant.training.worker", str(path)],
            env=environment(place),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        viewer.send_signal(signal.SIGINT)
        said.append(viewer.communicate(timeout=60)[1])
    finally:
        viewer.kill()
        with contextlib.suppress(OSError, KeyError):  # only where the test went wrong: the trainer is still there
            if runs.probe(path):
                os.kill(json.loads((path / "run.json").read_text())["pid"], signal.SIGKILL)
    return SimpleNamespace(
        place=place, path=path, said="".join(said), code=viewer.returncode, shown=shown, second=second, worker=worker
    )


@pytest.mark.slow
def test_ctrl_c_stops_with_a_checkpoint(stopped):
    assert stopped.code == 130
    assert "Stopping after iteration" in stopped.said and "saving a checkpoint" in stopped.said
    described = json.loads(operant_process(stopped.place, "show", "long", "--json").stdout)
    assert (described["state"], described["exit"], described["cause"]) == ("stopped", 130, "by SIGTERM")
    assert described["last_checkpoint_step"] == described["step"] > 0
    assert (stopped.path / "checkpoints" / f"step-{described['step']:012d}" / "manifest.json").is_file()


@pytest.mark.slow
def test_training_run_is_live_and_busy(stopped):
    assert stopped.shown["state"] in ("starting", "running") and stopped.shown["env"] == "cartpole"
    for done in (stopped.second, stopped.worker):
        assert done.returncode == 6
        assert "long is still training (pid" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_stop_ends_a_detached_run_with_a_checkpoint(tmp_path):
    started = operant_process(tmp_path, "train", *SMALL, "run.steps=1G", "eval.every=0", "--detach", "--name", "away")
    assert started.returncode == 0, started.stderr
    stopped = operant_process(tmp_path, "stop", "away")
    assert stopped.returncode == 0 and "away: stopped, checkpoint at step" in stopped.stderr, stopped.stderr
    described = json.loads(operant_process(tmp_path, "show", "away", "--json").stdout)
    assert described["state"] == "stopped" and described["last_checkpoint_step"] == described["step"]
    again = operant_process(tmp_path, "stop", "away")
    assert again.returncode == 0 and "away is not training: stopped" in again.stderr


@pytest.mark.slow
def test_ctrl_c_while_it_starts_stops_it_with_nothing_to_save(tmp_path):
    command = [sys.executable, "-m", "operant.cli", "train", *SMALL, "--name", "early"]
    viewer = subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, text=True)
    path = tmp_path / "runs" / "early"
    try:
        wait_for(lambda: runs.read_json(path / "run.json").get("pid"), viewer)
        viewer.send_signal(signal.SIGINT)
        said = viewer.communicate(timeout=60)[1]
    finally:
        viewer.kill()
    assert viewer.returncode == 130 and "Stopping before the first iteration" in said and "Traceback" not in said
    ending = json.loads((path / "exit.json").read_text())
    assert (ending["exit"], ending["signal"]) == (130, None)
    log = (path / "log.txt").read_text()
    assert "stopped by SIGTERM before the first iteration" in log and "Traceback" not in log
    assert runs.state(runs.load(path)) == ("stopped", "before its first record")


# PAUSED, WATCHED, ASKED


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> SimpleNamespace:
    """The run of `trained` again, in its worker's own process: paused from its beginning, asked for checkpoints,
    watched, and let go on to its end.
    """
    place = tmp_path_factory.mktemp("interrupted")
    asked = request.make((*HALFWAY,), config=None, environment_file=None, settings={})
    run = runs.create(place / "runs", "interrupted", "x", asked.document())
    with open(run.log_path, "wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "operant.training.worker", str(run.path)],
            env=environment(place),
            stdout=log,
            stderr=log,
        )
    said, looks = {}, {}
    try:
        wait_for(lambda: runs.read_json(run.path / "run.json").get("pid"), worker)

        def ask(key: str, verb: str) -> None:
            """Ask, and wait until it is done. What is asked while torch is still imported is taken as soon as training
            begins.
            """
            began_s = time.monotonic()
            ticket = control.send(run, verb)
            accepted = wait_for(lambda: control.answer(run, ticket, 0.0), worker)
            said[key] = (accepted.result, wait_for(lambda: control.answer(run, ticket, 0.0, final=True), worker))
            looks[key] = (runs.state(runs.load(run.path)), time.monotonic() - began_s)

        ask("pause", "pause")
        with Reader(run.metrics_path) as reader:
            before = reader.status()
            time.sleep(0.5)
            control.send(run, "watch", {"mode": "sampled", "size": 16}, expires_s=30)
            ask("checkpoint", "checkpoint")
            after = reader.status()
            frame = wait_for(reader.frame, worker)
        shown = json.loads(operant_process(place, "show", "interrupted", "--json").stdout)
        ask("unpause", "unpause")
        code = worker.wait(120)
    finally:
        worker.kill()
    return SimpleNamespace(
        place=place,
        run=run,
        path=run.path,
        said=said,
        looks=looks,
        before=before,
        after=after,
        frame=frame,
        shown=shown,
        code=code,
    )


@pytest.mark.slow
def test_a_pause_changes_no_trained_bit(interrupted, trained):
    assert interrupted.code == 0
    assert tensors(interrupted.path) == tensors(trained.path)
    assert (interrupted.path / "eval" / "evaluations.jsonl").read_bytes() == (
        trained.path / "eval" / "evaluations.jsonl"
    ).read_bytes()


@pytest.mark.slow
def test_a_paused_run_stands_still_and_says_who_paused_it(interrupted):
    accepted, paused = interrupted.said["pause"]
    assert accepted in ("accepted", "done") and paused.result == "done" and paused.text.startswith("paused at step ")
    assert (interrupted.before.state, interrupted.after.state) == ("paused", "paused")
    assert (
        interrupted.before.main_count == interrupted.after.main_count < 120
        and interrupted.before.head == interrupted.after.head
    )
    assert interrupted.after.heartbeat_count > interrupted.before.heartbeat_count
    who = control.own_name()
    assert (
        interrupted.shown["state"] == "paused"
        and interrupted.shown["paused_by"] == who
        and interrupted.shown["cause"].startswith(f"by {who}, ")
    )
    assert interrupted.shown["paused_s"] > 0.4 and interrupted.shown["exit"] is None
    # On a busy machine the pause lasted so long that the last iteration seems long ago, until the next one is done.
    assert interrupted.looks["unpause"][0].word in ("running", "finished", "stalled")


@pytest.mark.slow
def test_a_paused_run_saves_a_checkpoint_and_shows_its_agent(interrupted):
    saved = interrupted.said["checkpoint"][1]
    step = interrupted.before.main_count * ITERATION
    assert saved == ("done", f"checkpoints/step-{step:012d}")
    assert interrupted.after.last_checkpoint_step == step and interrupted.after.checkpoint_failures == 0
    assert interrupted.frame.step == step and interrupted.frame.width == 16


@pytest.mark.slow
def test_events_and_log_record_pause_and_checkpoints(interrupted, trained):
    who = control.own_name()
    with Reader(interrupted.path / "metrics.mm") as reader:
        events, flags = reader.events(), [record.flags for record in reader.since(0)]
        status = reader.status()
    told = [(event.code, event.text) for event in events]
    assert told[0] == ("note", "started: cartpole, ppo, 64 lanes on CPU")
    for code, begin in (
        ("control", f"pause asked for by {who}"),
        ("pause", f"paused by {who} at step "),
        ("control", f"checkpoint asked for by {who}"),
        ("checkpoint", "checkpoint of step "),
        ("unpause", "resumed after 0:00:0"),
        ("eval", "eval "),
        ("note", "finished: all steps done"),
    ):
        assert any(one == code and text.startswith(begin) for one, text in told), (code, begin, told)
    assert sum(code == "eval" for code, _ in told) == 4 and (status.control_sequence, status.control_result) == (
        3,
        control.RESULTS.index("done"),
    )
    assert any(flag & FLAG_CHECKPOINT for flag in flags)
    log = (interrupted.path / "log.txt").read_text()
    assert f"paused by {who}" in log and "checkpoint of step" not in log, (
        "a checkpoint now and then is no news for a log"
    )
    history = read_history(interrupted.path / "history")
    with Reader(trained.path / "metrics.mm") as reader:
        alone = reader.latest().step
    assert history[-1] == alone == STEPS


def read_history(folder: Path) -> list[int]:
    """The steps in a run's history."""
    from operant.runs import history

    return [step for chunk in history.read(folder) for step in chunk.step]


@pytest.mark.slow
@pytest.mark.parametrize("end", ["SIGTERM", "stop"])
def test_a_paused_run_can_be_stopped(here, tmp_path, end):
    started = operant_process(tmp_path, "train", *SMALL, "run.steps=1G", "eval.every=0", "--detach", "--name", "held")
    assert started.returncode == 0, started.stderr
    path = tmp_path / "runs" / "held"
    assert here("pause", "held").code == 0 and runs.state(runs.load(path)).word == "paused"
    second = here("train", "--resume", "held")
    assert (
        second.code == 6 and "held is still training (pid" in second.err and "watch: operant monitor held" in second.err
    )
    if end == "stop":
        assert here("stop", "held").code == 0
    else:
        os.kill(json.loads((path / "run.json").read_text())["pid"], signal.SIGTERM)
        wait_for(lambda: (path / "exit.json").is_file())
    described = json.loads(here("show", "held", "--json").out)
    by = "by SIGTERM" if end == "SIGTERM" else f"by {control.own_name()}"
    assert (described["state"], described["exit"], described["cause"]) == ("stopped", 130, by)
    assert described["last_checkpoint_step"] == described["step"] > 0
    go_on(runs.load(path), f"run.steps={described['step'] + 2 * ITERATION}")
    assert runs.state(runs.load(path)) == ("finished", None)
    assert read_history(path / "history")[-1] == described["step"] + 2 * ITERATION


def test_a_checkpoint_that_cannot_be_saved_is_told_and_training_goes_on(here, tmp_path, monkeypatch):
    def full(*words, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Store, "save_files", full)
    assert inline(here, f"run.steps={4 * ITERATION}", "checkpoint.every=2").code == 0
    (run,) = runs.list_runs(tmp_path / "runs", everywhere=False)
    with Reader(run.metrics_path) as reader:
        status, events = reader.status(), reader.events()
    assert (status.state, status.checkpoint_failures, status.last_checkpoint_step) == ("finished", 3, None)
    failures = [event for event in events if event.code == "checkpoint"]
    assert [event.level for event in failures] == ["warn"] * 3 and "No space left on device" in failures[0].text


def test_a_stop_that_cannot_save_says_why(here, tmp_path, monkeypatch):
    def full(*words, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Store, "save_files", full)
    done = inline(here, f"run.steps={40 * ITERATION}", "checkpoint.every=2")
    (said,) = [line for line in done.err.splitlines() if "stopped by SIGTERM" in line]
    assert (
        done.code == 130
        and "without a checkpoint: no checkpoint at step" in said
        and "No space left on device" in said
        and "training continues" not in said
    )
