"""The command line: training from the first word to the last, every exit code, and no traceback for anything a user can get wrong.

What needs a process of its own (waiter, worker, viewer, signals, kills) has one. All else runs `cli.main` in this process, which has torch already.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from toys import MY_ENV, MY_NET

import operant
from operant import runs
from operant.algos.ppo.algorithm import PPO
from operant.config import load as config
from operant.config import recipes, request
from operant.errors import BusyError, MachineError, NotFoundError, StoppedError, UsageError
from operant.runs import control
from operant.runs.checkpoints import Store
from operant.runs.metrics import FLAG_CHECKPOINT, Reader, Writer
from operant.runs.metrics import mapped as fixedfile
from operant.tools import check, doctor
from operant.training import loop, memory, requests
from operant.training import worker as train

PACKAGE_PARENT = Path(operant.__file__).resolve().parent.parent
ITERATION = 64 * 16
SMALL = ("env.lanes=64", "algo.horizon=16", "run.threads=1", "run.device=cpu")
# Enough iterations that a kill after the first checkpoint comes long before the end; they learn little, so that greedy and sampled episodes differ.
STEPS = 120 * ITERATION
HALFWAY = (*SMALL, f"run.steps={STEPS}", "algo.learning_rate=1e-4", "checkpoint.every=10", "checkpoint.keep=4", "eval.every=30", "eval.episodes=4")


# HOW COMMANDS ARE RUN


def environment(place: Path) -> dict[str, str]:
    """A process's environment whose runs and index lie in `place`."""
    kept = {name: value for name, value in os.environ.items() if name not in ("OPERANT_RUNS", "PYTHONPATH", "SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST")}
    return kept | {"XDG_STATE_HOME": str(place / "state"), "PYTHONPATH": str(PACKAGE_PARENT), "OMP_NUM_THREADS": "1"}


def operant_process(place: Path, *words: str, **options) -> subprocess.CompletedProcess:
    """`operant WORDS` in a process of its own, in the folder `place`."""
    command = [sys.executable, "-m", "operant.cli", *words]
    done = subprocess.run(command, cwd=place, env=environment(place), capture_output=True, text=True, timeout=120, **options)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done


def the_run(place: Path) -> runs.Run:
    """The one run in `place`."""
    (run,) = runs.list_runs(place / "runs", everywhere=False)
    return run


def wait_for(condition, process: subprocess.Popen | None = None):
    """What `condition` returns once that is true. The deadline is only there so that a broken test ends."""
    deadline_s = time.monotonic() + 90
    while not (found := condition()):
        assert time.monotonic() < deadline_s, "waited in vain"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.01)
    return found


def tensors(run_path: Path, step: int | None = None) -> bytes:
    """The bytes of a checkpoint's tensors, the last one's by default."""
    folders = sorted((run_path / "checkpoints").glob("step-*" if step is None else f"step-{step:012d}"))
    return (folders[-1] / "tensors.safetensors").read_bytes()


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


def test_its_folder_holds_what_the_design_names(trained):
    names = {path.name for path in trained.path.iterdir()}
    assert names >= {"run.json", "config.toml", "log.txt", "run.lock", "metrics.mm", "exit.json", "checkpoints", "eval"}
    document = json.loads((trained.path / "run.json").read_text())
    assert {"env": "cartpole", "algo": "ppo", "lanes": 64, "steps": STEPS, "device": "cpu", "seed": 1, "session": 1}.items() <= document.items()
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
    values = dict(zip(names, last.values, strict=True))
    assert first_steps == sorted(first_steps)
    assert (last.step, status.state, status.exit_code, status.main_count) == (STEPS, "finished", 0, 120)
    assert status.last_checkpoint_step == STEPS
    assert values["eval/best_return"] >= values["eval/return"] > 0
    assert values["sps"] > 0 and values["entropy"] > 0


def test_show_and_runs_describe_it(trained, here):
    shown = here("show", str(trained.path), "--json")
    assert shown.code == 0
    described = json.loads(shown.out)
    assert {"schema": 1, "id": "alone", "state": "finished", "step": STEPS, "env": "cartpole", "exit": 0}.items() <= described.items()
    (listed,) = json.loads(here("runs", "--json", "--runs", trained.place / "runs").out)
    assert {key: listed[key] for key in ("id", "state", "step")} == {key: described[key] for key in ("id", "state", "step")}
    table = here("runs", "--runs", trained.place / "runs").out
    assert table.splitlines()[0].split() == ["state", "id", "env", "algo", "return", "sps", "progress", "eta", "age"]
    assert "alone" in table and "100 %" in table
    assert json.loads(here("runs", "--live", "--json", "--runs", trained.place / "runs").out) == []
    assert json.loads(here("runs", "--failed", "--json", "--runs", trained.place / "runs").out) == []
    assert "alone" in here("show", str(trained.path)).out


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
    follower = subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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
        assert found["ci95"] == pytest.approx(1.96 * found["deviation"] / 4)
    assert document["greedy"] != document["sampled"]
    again = json.loads(here("eval", document["checkpoint"], "--episodes", "16", "--json").out)
    assert again == document
    other = json.loads(here("eval", str(trained.path), "--episodes", "16", "--json", "--seed", "9", "--greedy").out)
    assert other["sampled"] is None and other["greedy"] != document["greedy"]


def test_eval_takes_the_checkpoint_that_is_named(trained, here):
    steps = {which: json.loads(here("eval", str(trained.path), "--episodes", "4", "--sampled", "--json", "--checkpoint", which).out)["step"]
             for which in ("last", str(STEPS - 10 * ITERATION))}  # fmt: skip
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
        "net.hidden=[32]": ("weights of that network", "[64, 64]"), "net.activation=relu": ("weights of that network", "'tanh'"),
        "env.lanes=128": ("state of so many lanes", "64"), "env.lanes=auto": ("state of so many lanes", "64"),
        "env.name=pendulum": ("policy for that environment", "'cartpole'"), "env.pixels=32": ("policy for that environment", "no value"),
        "algo.normalize_observations=false": ("running mean and variance", "true"), "net.hidden=[]": ("weights of that network", "[64, 64]"),
    }  # fmt: skip
    for word, (reason, own) in wrong.items():
        done = here("resume", "copy", word, "run.steps=1M")
        assert done.code == 2 and f"  {word.partition('=')[0]} cannot change on a resume: " in done.err and reason in done.err, done.err
        assert f"The run has {own} (got {word})" in done.err and "finished" not in done.err, done.err
    together = here("train", "--resume", "copy", "net.shared=true", "env.lanes=128", "--steps", "1M")
    assert together.code == 2 and "has 2 problems" in together.err and "got net.shared=true" in together.err and "got env.lanes=128" in together.err
    misspelt = here("resume", "copy", "net.hiden=[32]", "run.steps=many")
    assert misspelt.code == 2 and "did you mean 'net.hidden'" in misspelt.err and "run.steps: input should be" in misspelt.err
    own = here("resume", "copy", "net.hidden=[64,64]", "env.name=CartPole-v1", "env.lanes=64")
    assert own.code == 2 and "has done its 122,880 steps" in own.err, "what the run has already is no change"
    assert content(copy) == before
    assert json.loads(here("show", "copy", "--json").out)["state"] == "finished"
    assert here("eval", "copy", "--episodes", "4").code == 0


def test_a_resume_that_the_worker_refuses_changes_nothing_but_the_log(trained, tmp_path):
    copy = tmp_path / "runs" / "copy"
    shutil.copytree(trained.path, copy)
    written = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text("# edited by hand\n" + written.replace("hidden = [64, 64]", "hidden = [32]"))
    before = content(copy) | {"log.txt": b""}
    refused = operant_process(tmp_path, "resume", "copy", f"run.steps={STEPS + ITERATION}")
    assert refused.returncode == 2 and "does not fit checkpoint" in refused.stderr and "finished" not in refused.stderr, refused.stderr
    assert content(copy) | {"log.txt": b""} == before

    (copy / "config.toml").write_text(written)
    resumed = operant_process(tmp_path, "resume", "copy", f"run.steps={STEPS + ITERATION}")
    assert resumed.returncode == 0 and "finished" in resumed.stderr, resumed.stderr
    assert config.load(copy / "config.toml").run.steps == STEPS + ITERATION


def test_a_damaged_checkpoint_is_passed_over_and_said(trained, here, tmp_path):
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
    assert named.code == 4 and "no sound checkpoint" in named.err


# KILLED, STOPPED, BUSY


def test_a_run_killed_halfway_and_resumed_ends_in_the_same_bytes(trained, tmp_path):
    started = operant_process(tmp_path, "train", *HALFWAY, "--detach", "--name", "killed")
    assert started.returncode == 0 and "Detached. Still training" in started.stderr, started.stderr
    path = tmp_path / "runs" / "killed"
    wait_for(lambda: list((path / "checkpoints").glob("step-*")))
    os.kill(json.loads((path / "run.json").read_text())["pid"], signal.SIGKILL)
    ending = json.loads(wait_for(lambda: (path / "exit.json").is_file() and (path / "exit.json").read_text()))
    assert ending["signal"] == signal.SIGKILL and ending["last_step"] < STEPS
    crashed = json.loads(operant_process(tmp_path, "show", "latest", "--json").stdout)
    assert (crashed["id"], crashed["state"], crashed["exit"]) == ("killed", "crashed", 137)
    assert [run["id"] for run in json.loads(operant_process(tmp_path, "runs", "--failed", "--json").stdout)] == ["killed"]

    resumed = operant_process(tmp_path, "resume", "killed")
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed from step-" in (path / "log.txt").read_text()
    document = json.loads((path / "run.json").read_text())
    assert document["session"] == 2
    assert tensors(path) == tensors(trained.path)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> SimpleNamespace:
    """A run that trains while others try to, and is then stopped by Ctrl-C in its viewer."""
    place = tmp_path_factory.mktemp("stopped")
    command = [sys.executable, "-m", "operant.cli", "train", "env.name=CartPole-v1", *SMALL, "run.steps=1G", "eval.every=0", "--name", "long"]
    viewer = subprocess.Popen(command, cwd=place, env=environment(place), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    path = place / "runs" / "long"
    said = []
    try:
        while "SPS" not in (line := viewer.stderr.readline()):
            assert line, said
            said.append(line)
        shown = json.loads(operant_process(place, "show", "live", "--json").stdout)
        second = operant_process(place, "resume", "long")
        worker = subprocess.run(
            [sys.executable, "-m", "operant.training.worker", str(path)], env=environment(place), capture_output=True, text=True, timeout=60, check=False
        )
        viewer.send_signal(signal.SIGINT)
        said.append(viewer.communicate(timeout=60)[1])
    finally:
        viewer.kill()
        with contextlib.suppress(OSError, KeyError):  # only where the test went wrong: the trainer is still there
            if runs.probe(path):
                os.kill(json.loads((path / "run.json").read_text())["pid"], signal.SIGKILL)
    return SimpleNamespace(place=place, path=path, said="".join(said), code=viewer.returncode, shown=shown, second=second, worker=worker)


def test_ctrl_c_stops_with_a_checkpoint(stopped):
    assert stopped.code == 130
    assert "Stopping after update" in stopped.said and "saving a checkpoint" in stopped.said
    described = json.loads(operant_process(stopped.place, "show", "long", "--json").stdout)
    assert (described["state"], described["exit"], described["cause"]) == ("stopped", 130, "by SIGTERM")
    assert described["last_checkpoint_step"] == described["step"] > 0
    assert (stopped.path / "checkpoints" / f"step-{described['step']:012d}" / "manifest.json").is_file()


def test_while_it_trains_it_is_live_and_busy(stopped):
    assert stopped.shown["state"] in ("starting", "running") and stopped.shown["env"] == "cartpole"
    for done in (stopped.second, stopped.worker):
        assert done.returncode == 6
        assert "long is still training (pid" in done.stderr and "Traceback" not in done.stderr


def test_stop_ends_a_detached_run_with_a_checkpoint(tmp_path):
    started = operant_process(tmp_path, "train", *SMALL, "run.steps=1G", "eval.every=0", "--detach", "--name", "away")
    assert started.returncode == 0, started.stderr
    stopped = operant_process(tmp_path, "stop", "away")
    assert stopped.returncode == 0 and "away: stopped, checkpoint at step" in stopped.stderr, stopped.stderr
    described = json.loads(operant_process(tmp_path, "show", "away", "--json").stdout)
    assert described["state"] == "stopped" and described["last_checkpoint_step"] == described["step"]
    again = operant_process(tmp_path, "stop", "away")
    assert again.returncode == 0 and "away is not training: stopped" in again.stderr


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
    assert viewer.returncode == 130 and "Stopping before the first update" in said and "Traceback" not in said
    ending = json.loads((path / "exit.json").read_text())
    assert (ending["exit"], ending["signal"]) == (130, None)
    log = (path / "log.txt").read_text()
    assert "stopped by SIGTERM before the first update" in log and "Traceback" not in log
    assert runs.state(runs.load(path)) == ("stopped", "before its first record")


# PAUSED, WATCHED, ASKED


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> SimpleNamespace:
    """The run of `trained` again, in its worker's own process: paused from its beginning, asked for checkpoints, watched, and let go on to its end."""
    place = tmp_path_factory.mktemp("interrupted")
    asked = request.make((*HALFWAY,), config=None, environment_file=None, settings={})
    run = runs.create(place / "runs", "interrupted", "x", asked.document())
    with open(run.log_path, "wb") as log:
        worker = subprocess.Popen([sys.executable, "-m", "operant.training.worker", str(run.path)], env=environment(place), stdout=log, stderr=log)
    said, looks = {}, {}
    try:
        wait_for(lambda: runs.read_json(run.path / "run.json").get("pid"), worker)

        def ask(key: str, verb: str) -> None:
            """Ask, and wait until it is done. What is asked while torch is still imported is taken as soon as training begins."""
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
    return SimpleNamespace(place=place, run=run, path=run.path, said=said, looks=looks, before=before, after=after, frame=frame, shown=shown, code=code)


def test_a_pause_changes_no_trained_bit(interrupted, trained):
    assert interrupted.code == 0
    assert tensors(interrupted.path) == tensors(trained.path)
    assert (interrupted.path / "eval" / "evaluations.jsonl").read_bytes() == (trained.path / "eval" / "evaluations.jsonl").read_bytes()


def test_a_paused_run_stands_still_and_says_who_paused_it(interrupted):
    accepted, paused = interrupted.said["pause"]
    assert accepted in ("accepted", "done") and paused.result == "done" and paused.text.startswith("paused at step ")
    assert (interrupted.before.state, interrupted.after.state) == ("paused", "paused")
    assert interrupted.before.main_count == interrupted.after.main_count < 120 and interrupted.before.head == interrupted.after.head
    assert interrupted.after.heartbeat_count > interrupted.before.heartbeat_count
    who = control.own_name()
    assert interrupted.shown["state"] == "paused" and interrupted.shown["paused_by"] == who and interrupted.shown["cause"].startswith(f"by {who}, ")
    assert interrupted.shown["paused_s"] > 0.4 and interrupted.shown["exit"] is None
    # On a busy machine the pause lasted so long that the last iteration seems long ago, until the next one is done.
    assert interrupted.looks["unpause"][0].word in ("running", "finished", "stalled")


def test_a_paused_run_saves_a_checkpoint_and_shows_its_agent(interrupted):
    saved = interrupted.said["checkpoint"][1]
    step = interrupted.before.main_count * ITERATION
    assert saved == ("done", f"checkpoints/step-{step:012d}")
    assert interrupted.after.last_checkpoint_step == step and interrupted.after.checkpoint_failures == 0
    assert interrupted.frame.step == step and interrupted.frame.width == 16


def test_what_happened_is_in_the_events_and_in_the_log(interrupted, trained):
    who = control.own_name()
    with Reader(interrupted.path / "metrics.mm") as reader:
        events, flags = reader.events(), [record.flags for record in reader.since(0)]
        status = reader.status()
    told = [(event.code, event.text) for event in events]
    assert told[0] == ("note", "started: cartpole, ppo, 64 lanes on CPU")
    for code, begin in (
        ("control", f"pause asked for by {who}"), ("pause", f"paused by {who} at step "), ("control", f"checkpoint asked for by {who}"),
        ("checkpoint", "checkpoint of step "), ("unpause", "goes on after a pause of 0:00:0"), ("eval", "eval "), ("note", "finished: all steps done"),
    ):  # fmt: skip
        assert any(one == code and text.startswith(begin) for one, text in told), (code, begin, told)
    assert sum(code == "eval" for code, _ in told) == 4 and (status.control_sequence, status.control_result) == (3, control.RESULTS.index("done"))
    assert any(flag & FLAG_CHECKPOINT for flag in flags)
    log = (interrupted.path / "log.txt").read_text()
    assert f"paused by {who}" in log and "checkpoint of step" not in log, "a checkpoint now and then is no news for a log"
    history = read_history(interrupted.path / "history")
    with Reader(trained.path / "metrics.mm") as reader:
        alone = reader.latest().step
    assert history[-1] == alone == STEPS


def read_history(folder: Path) -> list[int]:
    """The steps in a run's history."""
    from operant.runs import history

    return [step for chunk in history.read(folder) for step in chunk.step]


@pytest.mark.parametrize("end", ["SIGTERM", "stop"])
def test_a_paused_run_can_be_stopped(here, tmp_path, end):
    started = operant_process(tmp_path, "train", *SMALL, "run.steps=1G", "eval.every=0", "--detach", "--name", "held")
    assert started.returncode == 0, started.stderr
    path = tmp_path / "runs" / "held"
    assert here("pause", "held").code == 0 and runs.state(runs.load(path)).word == "paused"
    second = here("train", "--resume", "held")
    assert second.code == 6 and "held is still training (pid" in second.err and "watch: operant monitor held" in second.err
    if end == "stop":
        assert here("stop", "held").code == 0
    else:
        os.kill(json.loads((path / "run.json").read_text())["pid"], signal.SIGTERM)
        wait_for(lambda: (path / "exit.json").is_file())
    described = json.loads(here("show", "held", "--json").out)
    by = "by SIGTERM" if end == "SIGTERM" else f"by {control.own_name()}"
    assert (described["state"], described["exit"], described["cause"]) == ("stopped", 130, by)
    assert described["last_checkpoint_step"] == described["step"] > 0
    resumed = here("resume", "held", f"run.steps={described['step'] + 2 * ITERATION}")
    assert resumed.code == 0 and runs.state(runs.load(path)) == ("finished", None)
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


# THE WORKER


@pytest.mark.parametrize("starting", [True, False])
def test_a_second_sigterm_means_the_same_as_one(starting):
    asked = requests.Requests()
    before = signal.getsignal(signal.SIGTERM)
    if starting:
        with pytest.raises(StoppedError, match="stopped by SIGTERM before the first update"), asked:
            os.kill(os.getpid(), signal.SIGTERM)
    else:
        with asked:
            asked.begin()
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
        assert asked.stop == (signal.SIGTERM, "SIGTERM")
    asked.restore()
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_import_that_breaks_because_of_a_stop_is_a_stop():
    asked = requests.Requests()
    with pytest.raises(StoppedError), asked:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except SystemExit:  # as numpy does while its C extension is imported
            raise ImportError("you should not try to import numpy from its source directory") from None
    asked.restore()


def test_a_stop_whose_interruption_was_lost_counts_when_training_begins():
    asked = requests.Requests()
    with pytest.raises(StoppedError), asked:
        with contextlib.suppress(SystemExit):  # as a callback from C does
            os.kill(os.getpid(), signal.SIGINT)
        asked.begin()
    asked.restore()


def test_the_worker_keeps_its_lock_to_the_end_of_its_process(tmp_path):
    """What Python does at its end is left out: it takes a second with torch, and the lock must not be free before the process is gone."""
    program = "import atexit, sys; from operant.training import worker; atexit.register(print, 'torn down'); sys.argv = ['worker', sys.argv[1]]; worker.main()"
    command = [sys.executable, "-c", program, tmp_path / "nosuch"]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "") and done.stderr.startswith("error: ")


def test_an_unexpected_error_is_told_after_the_last_checkpoint_is_complete(here, tmp_path, monkeypatch, capsys):
    save, update, calls = Store.save_files, PPO._update, []

    def slow(*words, **options):
        time.sleep(0.5)
        return save(*words, **options)

    def failing(self):
        calls.append(update(self))
        if len(calls) == 3:
            raise RuntimeError("the sky fell")

    monkeypatch.setattr(Store, "save_files", slow)
    monkeypatch.setattr(PPO, "_update", failing)
    asked = request.make((*SMALL, "eval.every=0", "checkpoint.every=2"), config=None, environment_file=None, settings={})
    run = runs.create(tmp_path / "runs", "falls", "x", asked.document())
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)}
    try:
        assert train._worked(run.path, None) == 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    told = capsys.readouterr().err
    assert "Traceback" in told and "RuntimeError: the sky fell" in told
    assert [path.name for path in run.checkpoints_path.glob("step-*")] == [f"step-{2 * ITERATION:012d}"]
    assert runs.probe(run.path), "the lock was given back before the end of the process"
    with Reader(run.metrics_path) as reader:
        assert (reader.status().state, reader.status().exit_code) == ("failed", 1)


def test_records_that_cannot_be_written_are_told_once(here, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Writer, "write_errors", 3)
    with caplog.at_level(logging.WARNING):
        assert inline(here, f"run.steps={2 * ITERATION}").code == 0
    assert caplog.text.count("metrics.mm could not be written") == 1


@pytest.mark.parametrize("taken", [False, True])
def test_a_lock_deleted_under_a_trainer_is_put_back_or_ends_it(tmp_path, monkeypatch, caplog, taken):
    """A second trainer that got in all the same (one that cannot see the first's process) keeps the folder; the first ends."""
    monkeypatch.setattr(loop, "_FILE_LOOK_S", 0.0)
    update, calls, others = PPO._update, [], []
    hold = "import pathlib, sys; from operant import runs; lock = runs.acquire(pathlib.Path(sys.argv[1])); print(flush=True); sys.stdin.read()"

    def meddled(self):
        update(self)
        calls.append(run.lock_path.exists())
        if len(calls) == 2:
            run.lock_path.unlink()
        if len(calls) == 2 and taken:
            runs.update_document(run.path, boot_id="another")
            command = [sys.executable, "-c", hold, str(run.path)]
            others.append(subprocess.Popen(command, env=environment(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert others[0].stdout.readline() == b"\n"

    monkeypatch.setattr(PPO, "_update", meddled)
    asked = request.make((*SMALL, "eval.every=0", f"run.steps={4 * ITERATION}"), config=None, environment_file=None, settings={})
    run = runs.create(tmp_path / "runs", "bare", "x", asked.document())
    with caplog.at_level(logging.WARNING), pytest.raises(BusyError, match="two trainers") if taken else contextlib.nullcontext():
        train.work(run.path, resume=None)
    for other in others:
        other.communicate()
    assert len(calls) == (2 if taken else 4) and all(calls)
    assert caplog.text.count("run.lock had been deleted or replaced, and was put back") == (0 if taken else 1)
    assert runs.state(runs.load(run.path)).word == ("failed" if taken else "finished") and not runs.taken(run.path)


# TRAINING IN THIS PROCESS


def inline(here, *words: str) -> SimpleNamespace:
    """`operant train --inline`, small."""
    return here("train", "--inline", *SMALL, "eval.every=0", *words)


def test_inline_trains_here(here, tmp_path):
    done = inline(here, f"run.steps={2 * ITERATION}", "--seed", "7", "--name", "mine")
    assert done.code == 0 and "operant eval mine" in done.err
    described = runs.describe(the_run(tmp_path))
    assert (described["id"], described["state"], described["step"], described["seed"]) == ("mine", "finished", 2 * ITERATION, 7)


def test_a_target_ends_the_run(here, tmp_path):
    assert inline(here, "run.steps=1M", "eval.every=2", "eval.episodes=4", "run.target=1", "run.record_hz=1000").code == 0
    described = runs.describe(the_run(tmp_path))
    assert (described["state"], described["step"]) == ("finished", 2 * ITERATION)
    assert described["eval_return"] >= 1


def test_numbers_that_are_not_finite_end_the_run_and_name_iteration_and_tensor(here, tmp_path):
    # 16 steps an iteration: step 35 is in the third.
    (tmp_path / "my_env.py").write_text(MY_ENV.replace("1_000_000", "34"))
    done = inline(here, "--env", "my_env.py", "run.steps=1M", "checkpoint.every=1", "run.record_hz=1000")
    assert done.code == 5
    assert "iteration 3" in done.err and "head_weight" in done.err and f"checkpoint is that of step {2 * ITERATION:,}" in done.err
    run = the_run(tmp_path)
    assert runs.describe(run)["state"] == "diverged"
    names = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    assert any(name.startswith("quarantine-step-") for name in names)
    assert [name for name in names if name.startswith("step-")][-1] == f"step-{2 * ITERATION:012d}"
    assert here("eval", run.path, "--episodes", "2").code == 0


def test_a_users_own_files_are_kept_and_used_after_the_originals_are_gone(here, tmp_path, caplog):
    (tmp_path / "mine").mkdir()
    env_file, net_file = tmp_path / "mine" / "my_env.py", tmp_path / "mine" / "my_net.py"
    env_file.write_text(MY_ENV)
    net_file.write_text(MY_NET)
    words = (f"run.steps={2 * ITERATION}", "env.params.bonus=0.5")
    assert inline(here, "--env", "mine/my_env.py", "net.kind=mine/my_net.py:MyNet", *words).code == 0
    run = the_run(tmp_path)
    assert run.id.startswith("my_env-ppo-")
    assert {path.name: path.read_text() for path in run.source_path.glob("*.py")} == {"my_env.py": MY_ENV, "my_net.py": MY_NET}

    env_file.write_text(MY_ENV.replace("p.bonus", "p.bonus * float32(100.0)"))
    net_file.unlink()
    played = json.loads(here("eval", run.path, "--episodes", "4", "--json").out)
    assert played["mean"] == 50.0 and played["greedy"]["length"] == 100
    runs.update_document(run.path, request={**run.document["request"], "resume_overrides": [f"run.steps={4 * ITERATION}"]})
    with caplog.at_level(logging.INFO):
        train.work(run.path, resume="last")
    assert f"resumed from step-{2 * ITERATION:012d}" in caplog.text
    assert runs.describe(runs.load(run.path))["step"] == 4 * ITERATION


def test_a_gymnasium_id_is_an_environment(here, tmp_path):
    assert inline(here, "Pendulum-v1", f"run.steps={ITERATION}").code == 0
    run = the_run(tmp_path)
    assert run.id.startswith("pendulum-ppo-") and runs.describe(run)["env"] == "pendulum"


def test_a_full_disk_at_the_start_ends_with_4_and_leaves_nothing(here, tmp_path, monkeypatch):
    def full(descriptor, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fixedfile, "_allocate", full)
    done = inline(here, f"run.steps={ITERATION}")
    assert done.code == 4 and "no room" in done.err
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_no_gpu_where_one_is_asked_for_ends_with_4_and_leaves_nothing(here, tmp_path, device):
    done = here("train", "--inline", *SMALL[:3], "--device", device)
    assert done.code == 4 and "no CUDA device" in done.err and "operant doctor" in done.err
    assert list((tmp_path / "runs").iterdir()) == []


# WHAT IS WRONG


def test_a_worker_that_refuses_its_configuration_is_quoted_and_its_folder_deleted(tmp_path):
    done = operant_process(tmp_path, "train", "cartpol", "algo.learning_rte=1", "env.lanes=0", "net.hidden=[]")
    assert done.returncode == 2
    assert "unknown environment 'cartpol' - did you mean 'cartpole'?" in done.stderr
    assert "'algo.learning_rte' - did you mean 'algo.learning_rate'?" in done.stderr
    assert "env.lanes" in done.stderr and "net.hidden" in done.stderr and "4 problems" in done.stderr
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("train", "--config", "nosuch.toml"), 3, "no configuration file 'nosuch.toml'"),
        (("train", "--config", "pp"), 3, "did you mean 'ppo'?"),
        (("train", "--env", "nosuch.py"), 3, "no environment file 'nosuch.py'"),
        (("train", "nosuch.py"), 3, "no environment file 'nosuch.py'"),
        (("train", "one", "two"), 2, "one environment at a time"),
        (("train", "ppo.toml"), 2, "--config ppo.toml"),
        (("train", "one", "--env", "two.py"), 2, "two environments"),
        (("train", "--inline", "--detach"), 2, "give one"),
        (("train", "--resume", "x", "--config", "ppo"), 2, "--config cannot be used with --resume"),
        (("train", "--resume", "nosuch"), 3, "no run is called 'nosuch'"),
        (("train", "--name", "latest"), 2, "cannot be the name of a run"),
        (("train", "--nonsense"), 2, "No such option"),
        (("nonsense",), 2, "No such command"),
        (("train", "--inline", "run.name=../../x"), 2, "run.name"),
        (("train", "--inline", "algo.gamma=1.5", "algo.clip=x", "run.steps=0"), 2, "3 problems"),
        (("train", "--inline", "env.lanes=100", "algo.horizon=3"), 2, "do not divide"),
        (("train", "--dry-run", "algo.gamma=1.5"), 2, "algo.gamma"),
        (("resume", "nosuch"), 3, "no run is called 'nosuch'"),
        (("resume", "nosuch", "--from", "first"), 2, "--from is 'first'"),
        (("resume", "nosuch", "stray"), 2, "'stray' is not an override"),
        (("eval", "nosuch"), 3, "no run is called 'nosuch'"),
        (("eval", "nosuch/checkpoints/step-1"), 3, "there is no run in"),
        (("eval", "nosuch", "--episodes", "0"), 2, "--episodes is 0"),
        (("show", "nosuch"), 3, "no run is called 'nosuch'"),
        (("show", "latest"), 3, "no runs yet"),
        (("logs", "live"), 3, "no runs yet"),
        (("config", "check", "nosuch"), 3, "no configuration file 'nosuch'"),
        (("config", "check", "ppo", "algo.gama=0.9"), 2, "did you mean 'algo.gamma'?"),
        (("config", "show", "nosuch"), 2, "unknown environment 'nosuch'"),
    ],
)
def test_what_a_user_gets_wrong_has_a_sentence_and_a_code(here, tmp_path, words, code, said):
    done = here(*words)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert not (tmp_path / "runs").exists() or list((tmp_path / "runs").iterdir()) == []


def test_a_file_with_many_problems_names_every_line(here, tmp_path):
    (tmp_path / "bad.toml").write_text('[run]\nsteps = "ten"\n[algo]\nlearning_rte = 1\ngamma = 1.5\n[polcy]\nx = 1\n')
    done = here("config", "check", "bad.toml")
    assert done.code == 2
    lines = done.err.splitlines()
    assert lines[0] == "error: bad.toml has 4 problems"
    assert [line.split()[0] for line in lines[1:-1]] == ["bad.toml:2:", "bad.toml:4:", "bad.toml:5:", "bad.toml:6:"]
    assert lines[-1] == "  see all keys with their defaults: operant config show"


@pytest.mark.parametrize("root", ["a_file/runs", "/proc/self/runs", "locked/runs"])
def test_a_place_that_cannot_be_written_ends_with_4(here, tmp_path, root):
    if root.startswith("locked") and os.geteuid() == 0:
        pytest.skip("the superuser may write anywhere")
    (tmp_path / "a_file").write_text("")
    (tmp_path / "locked").mkdir(mode=0o500)
    done = here("train", "--runs", root)
    assert done.code == 4 and "no run folder can be made" in done.err and "--runs" in done.err


def test_a_run_without_checkpoints_cannot_be_resumed_or_played(here, tmp_path):
    run = runs.create(tmp_path / "runs", "young", "x", {})
    resumed, played = here("resume", "young"), here("eval", "young")
    assert resumed.code == 3 and "no checkpoint to go on from" in resumed.err
    assert played.code == 3 and "never began to train" in played.err
    assert here("logs", run.path).code == 3


def test_hostile_text_in_a_run_reaches_no_terminal(here, tmp_path):
    run = runs.create(tmp_path / "runs", "hostile", "x", {})
    runs.update_document(run.path, env="\x1b]0;owned\x07\u202ecart", algo="[red]x", host="\x9b2J")
    run.log_path.write_bytes(b"one\x1b[2Jtwo\nthree\xff\r\x07")
    told = "".join(here(*words).out for words in (("show", "hostile"), ("runs",), ("logs", "hostile")))
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\r"} & set(told)
    assert "onetwo" in told.replace("[2J", "")


# CONFIGURATIONS, ENVIRONMENTS, THE MACHINE


def test_dry_run_shows_origins_and_memory_and_starts_nothing(here, tmp_path):
    done = here("train", "--dry-run", "algo.horizon=8", "env.lanes=64", "--seed", "3")
    assert done.code == 0
    lines = {line.split(" = ")[0]: line for line in done.out.splitlines() if " = " in line}
    assert lines["horizon"].split("#")[1].strip() == "command line"
    assert lines["seed"].startswith("seed = 3 ") and lines["gamma"].split("#")[1].strip().partition(":")[0].endswith("ppo/cartpole.toml")
    assert lines["adam_epsilon"].endswith("# default")
    assert "device memory: about" in done.out
    assert not (tmp_path / "runs").exists()


def test_what_is_shown_is_a_configuration_that_loads_to_the_same(here, tmp_path):
    (tmp_path / "shown.toml").write_text(here("config", "show", "pendulum", "run.name=x", "net.hidden=[8, 4]").out)
    loaded = config.load(tmp_path / "shown.toml")
    assert (loaded.env.name, loaded.run.name, loaded.net.hidden) == ("pendulum", "x", (8, 4))
    values = json.loads(here("config", "show", "--json").out)["values"]
    assert values["run.seed"] == {"value": 1, "origin": "default"}


def test_the_memory_of_many_lanes_follows_from_few():
    whole = config.load(None, ["env.lanes=256", "algo.horizon=8", "algo.epochs=1", "env.name=pendulum"])
    estimated, measured = memory.estimate(whole), memory._measure(whole, 256)
    assert estimated.fixed_bytes == pytest.approx(measured.fixed_bytes, rel=0.02)
    assert estimated.update_bytes == pytest.approx(measured.update_bytes, rel=0.02)
    rollout_bytes = 8 * 256 * 4 * (3 + 3 + 1 + 1)  # observations, final observations, actions, rewards
    assert measured.fixed_bytes > rollout_bytes


def test_every_shipped_configuration_passes_its_own_check(here):
    for name in recipes.shipped():
        assert here("config", "check", name).out == "ok\n"


def test_the_schema_is_json(here):
    schema = json.loads(here("config", "schema").out)
    assert set(schema["properties"]) == {"run", "env", "algo", "net", "checkpoint", "eval"}
    assert schema["properties"]["algo"]["properties"]["gamma"]["maximum"] == 1


def test_envs_lists_what_the_finder_finds(here):
    from operant import envs

    listed = json.loads(here("envs", "--json").out)
    assert [row["name"] for row in listed] == envs.names()
    cartpole, go = (next(row for row in listed if row["name"] == name) for name in ("cartpole", "go"))
    assert (cartpole["gymnasium"], cartpole["actions"], cartpole["turns"], cartpole["step_s"]) == ("CartPole-v1", ["left", "right"], False, pytest.approx(0.02))
    assert go["turns"] and len(go["actions"]) == 82
    table = here("envs").out
    assert "  left stay right left+jump jump right+jump\n" in table and "  a9 b9 ... pass\n" in table
    assert all(name in table for name in envs.names())


def test_check_tells_a_sound_environment_from_a_broken_one(here, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text(MY_ENV.replace("time_limit=100", "time_limit=0"))
    (tmp_path / "none.py").write_text("x = 1\n")
    broken = here("check", "broken.py")
    assert broken.code == 2 and broken.out.startswith("problem  declaration") and "time_limit is 0" in broken.out
    empty = here("check", "none.py")
    assert empty.code == 2 and "exports no environment" in empty.err
    assert (here("check", "nosuch.py").code, here("check", "nosuch").code) == (3, 2)
    # What a sound one is put through is tests/tools/test_check.py's; it takes long.
    monkeypatch.setattr(check, "check", lambda env, looking=None: iter([check.Finding("declaration", True, f"{env.name}, {env.fields} field")]))
    (tmp_path / "sound.py").write_text(MY_ENV)
    sound = here("check", "sound.py")
    assert sound.code == 0 and sound.out.split() == ["ok", "declaration", "sound,", "1", "field"]


def test_check_tells_each_finding_as_soon_as_it_is_known(capsys):
    from operant.cli.machine import _told

    known = []

    def examine(env, looking):
        for number, passed in enumerate((True, False, True)):
            looking(f"look {number}")
            known.append(capsys.readouterr().out)
            yield check.Finding(f"look {number}", passed, "what was seen")

    assert not _told(examine, None)
    known.append(capsys.readouterr().out)
    assert [line.split()[:3] for line in known] == [[], ["ok", "look", "0"], ["problem", "look", "1"], ["ok", "look", "2"]]
    assert not any("\r" in line or "..." in line for line in known), "into a file or a pipe go findings alone"


def test_on_a_terminal_check_tells_what_it_looks_at(monkeypatch):
    from operant.cli.machine import _told

    class Stream(io.StringIO):
        def isatty(self):
            return True

    def examine(env, looking):
        yield check.Finding("one", True, "seen")
        looking("another")
        if env == "broken":
            raise KeyboardInterrupt
        yield check.Finding("another", True, "seen as well")

    monkeypatch.setenv("TERM", "xterm-256color")
    shown = "\r...      another\x1b[K\r\x1b[K"
    monkeypatch.setattr(sys, "stdout", stream := Stream())
    assert _told(examine, None)
    assert stream.getvalue() == f"ok       one                        seen\n{shown}ok       another                    seen as well\n"
    monkeypatch.setattr(sys, "stdout", stream := Stream())
    with pytest.raises(KeyboardInterrupt):
        _told(examine, "broken")
    assert stream.getvalue().endswith(shown), "nothing half-told stays behind"


def test_doctor_finds_this_machine_fit(here, tmp_path):
    done = here("doctor", "--json")
    found = {finding["name"]: finding for finding in json.loads(done.out)["findings"]}
    assert done.code == 0, done.out
    assert {"python", "operant", "torch", "numba", "numba-cuda", "driver", "gpu", "triton", "terminal", "sessions", "runs", "disk", "cache"} == set(found)
    assert torch.__version__ in found["torch"]["found"]


def test_doctor_tells_what_breaks_training(here, tmp_path, monkeypatch):
    (tmp_path / "a_file").write_text("")
    monkeypatch.setattr(doctor, "_terminal", lambda: 1 / 0)
    done = here("doctor", "--runs", "a_file/runs")
    assert done.code == 4
    line = next(line for line in done.out.splitlines() if line.split()[1] == "runs")
    assert line.startswith("problem") and "--runs" in line
    assert "could not be examined: ZeroDivisionError" in done.out


def test_lingering_is_asked_for_where_logind_ends_processes(tmp_path, monkeypatch):
    (tmp_path / "logind.conf").write_text("[Login]\nKillUserProcesses=no\n")
    (tmp_path / "logind.conf.d").mkdir()
    monkeypatch.setattr(doctor, "_LOGIND", (str(tmp_path),))
    assert doctor.sessions().status == doctor.OK
    (tmp_path / "logind.conf.d" / "kill.conf").write_text("[Login]\nKillUserProcesses=yes\n")
    assert doctor.sessions().advice.startswith("loginctl enable-linger ")


# REQUESTS


@pytest.mark.parametrize(
    ("words", "source", "overrides", "prefix"),
    [
        ((), "cartpole", (), "cartpole-ppo"),
        (("cartpole",), "cartpole", ("env.name=cartpole",), "cartpole-ppo"),
        (("CartPole-v1", "run.seed=2"), "cartpole", ("env.name=CartPole-v1", "run.seed=2"), "cartpole-ppo"),
        (("env.name=pendulum",), "pendulum", ("env.name=pendulum",), "pendulum-ppo"),
        (("nosuch",), None, ("env.name=nosuch",), "nosuch-ppo"),
    ],
)
def test_words_become_a_request(tmp_path, monkeypatch, words, source, overrides, prefix):
    monkeypatch.chdir(tmp_path)
    made = request.make(words, config=None, environment_file=None, settings={})
    assert (made.source and made.source.stem, made.overrides, made.prefix) == (source, overrides, prefix)
    assert made.directory == tmp_path and made.name is None


def test_an_environment_is_found_by_its_gymnasium_id():
    for name in ("MountainCarContinuous-v0", "mountaincar_continuous"):
        assert request.make((name,), config=None, environment_file=None, settings={}).source.stem == "mountaincar_continuous"


def test_options_win_over_overrides_and_files_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_env.py").write_text("")
    made = request.make(("run.seed=1", "run.name=first"), config=None, environment_file="my_env.py", settings={"run.seed": 2, "run.name": None})
    assert made.overrides == ("run.seed=1", "run.name=first", "run.seed=2")
    assert (made.source, made.environment_file, made.name, made.prefix) == (None, tmp_path / "my_env.py", "first", "my_env-ppo")
    assert made.document() == {
        "config": None, "overrides": list(made.overrides), "environment_file": str(tmp_path / "my_env.py"), "directory": str(tmp_path),
    }  # fmt: skip
    assert request.make(("my_env.py",), config=None, environment_file=None, settings={}).environment_file == tmp_path / "my_env.py"
    with pytest.raises(UsageError):
        request.make(("my_env.py",), config=None, environment_file="my_env.py", settings={})
    with pytest.raises(NotFoundError):
        request.make((), config=None, environment_file="x" * 5000, settings={})


def test_a_working_directory_that_is_gone_is_a_machine_that_does_not_fit(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(MachineError, match="working directory"):
        request.make((), config=None, environment_file=None, settings={})


# LIGHT AND QUIET


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("train", "--help"), ("runs",), ("runs", "--json"), ("show", "x"), ("logs", "x")])
def test_commands_that_only_read_import_nothing_heavy(tmp_path, words):
    program = (
        "import sys; from operant import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numba', 'numpy', 'pydantic', 'rich', 'safetensors'} & set(sys.modules)\n"
        "sys.exit(f'imports {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colour_is_for_terminals_that_want_it(tmp_path, no_color, coloured):
    leader, follower = os.openpty()
    words = [sys.executable, "-m", "operant.cli", "show", "x"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(tmp_path) | {"NO_COLOR": no_color, "TERM": "xterm"}, stderr=follower, check=False)
    os.close(follower)
    told = os.read(leader, 4096)
    os.close(leader)
    assert done.returncode == 3 and b"no run is called" in told
    assert (b"\x1b[31merror:" in told) == coloured


def test_nobody_reading_stdout_is_no_error(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "operant.cli", "--version"], env=environment(tmp_path), stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert b"Traceback" not in done.stderr
