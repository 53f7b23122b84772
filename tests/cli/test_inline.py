"""The worker and training in this process: errors, stops, targets, user's files; what is wrong has a sentence and an
exit code.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from processes import ITERATION, SMALL, environment, inline, operant_process, the_run
from toys import MY_ENV, MY_NET

from operant import runs
from operant.algos.ppo import PPO
from operant.config import request
from operant.errors import BusyError, ConfigError, MachineError, StoppedError
from operant.runs.checkpoints import Store
from operant.runs.metrics import Reader, Writer
from operant.runs.metrics import mapped as fixedfile
from operant.training import evaluate, loop, requests
from operant.training import worker as train
from operant.training.evaluate import Evaluator

# THE WORKER


@pytest.mark.parametrize("starting", [True, False])
def test_a_second_sigterm_means_the_same_as_one(starting):
    asked = requests.Requests()
    before = signal.getsignal(signal.SIGTERM)
    if starting:
        with pytest.raises(StoppedError, match="stopped by SIGTERM before the first iteration"), asked:
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
    """Skip Python's own shutdown: it takes a second with torch, and the lock must not be free before the
    process is gone.
    """
    program = (
        "import atexit, sys; from operant.training import worker; atexit.register(print, 'torn down'); sys.argv "
        "= ['worker', sys.argv[1]]; worker.main()"
    )
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
    asked = request.make(
        (*SMALL, "eval.every=0", "checkpoint.every=2"), config=None, environment_file=None, settings={}
    )
    run = runs.create(tmp_path / "runs", "falls", "x", asked.document())
    before = {
        number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
    }
    try:
        assert train.train_with_exit_code(run.path, None) == 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    told = capsys.readouterr().err
    assert "Traceback" in told and "RuntimeError: the sky fell" in told
    assert [path.name for path in run.checkpoints_path.glob("step-*")] == [f"step-{2 * ITERATION:012d}"]
    assert runs.probe(run.path), "the lock was given back before the end of the process"
    with Reader(run.metrics_path) as reader:
        assert (reader.status().state, reader.status().exit_code) == ("failed", 1)


def test_a_stop_that_also_ends_a_compiler_is_a_stop(here, tmp_path, monkeypatch):
    """A signal to the whole process group, as Ctrl-C sends it."""

    def compiling(self):
        os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("`ptxas` failed with error code -15")

    monkeypatch.setattr(PPO, "_update", compiling)
    done = inline(here)
    assert done.code == 130 and "stopped by SIGTERM in the first iteration, with nothing to save" in done.err
    assert "ptxas" not in done.err and runs.state(the_run(tmp_path)) == ("stopped", "by SIGTERM")


def test_records_that_cannot_be_written_are_told_once(here, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Writer, "write_errors", 3)
    with caplog.at_level(logging.WARNING):
        assert inline(here, f"run.steps={2 * ITERATION}").code == 0
    assert caplog.text.count("metrics.mm could not be written") == 1


@pytest.mark.parametrize("taken", [False, True])
def test_a_lock_deleted_under_a_trainer_is_put_back_or_ends_it(tmp_path, monkeypatch, caplog, taken):
    """A second trainer that got in all the same (one that cannot see the first's process) keeps the folder; the first
    ends.
    """
    monkeypatch.setattr(loop, "_FILE_LOOK_S", 0.0)
    update, calls, others = PPO._update, [], []
    hold = (
        "import pathlib, sys; from operant import runs; lock = runs.acquire(pathlib.Path(sys.argv[1])); "
        "print(flush=True); sys.stdin.read()"
    )

    def meddled(self):
        update(self)
        calls.append(run.lock_path.exists())
        if len(calls) == 2:
            run.lock_path.unlink()
        if len(calls) == 2 and taken:
            runs.update_document(run.path, boot_id="another")
            command = [sys.executable, "-c", hold, str(run.path)]
            others.append(
                subprocess.Popen(command, env=environment(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            assert others[0].stdout.readline() == b"\n"

    monkeypatch.setattr(PPO, "_update", meddled)
    asked = request.make(
        (*SMALL, "eval.every=0", f"run.steps={4 * ITERATION}"), config=None, environment_file=None, settings={}
    )
    run = runs.create(tmp_path / "runs", "bare", "x", asked.document())
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(BusyError, match="two trainers") if taken else contextlib.nullcontext(),
    ):
        train.train(run.path, resume=None)
    for other in others:
        other.communicate()
    assert len(calls) == (2 if taken else 4) and all(calls)
    assert caplog.text.count("run.lock had been deleted or replaced and was restored") == (0 if taken else 1)
    assert runs.state(runs.load(run.path)).word == ("failed" if taken else "finished") and not runs.has_trainer(
        run.path
    )


def test_a_trainer_whose_folder_is_deleted_ends_with_a_sentence_and_makes_no_new_one(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_FILE_LOOK_S", 0.0)
    update, calls = PPO._update, []

    def meddled(self):
        update(self)
        calls.append(run.path.exists())
        while len(calls) == 2 and run.path.exists():  # again: the checkpoint's writer may move a folder meanwhile
            shutil.rmtree(run.path, ignore_errors=True)

    monkeypatch.setattr(PPO, "_update", meddled)
    words = (*SMALL, "eval.every=1", "eval.episodes=2", "checkpoint.every=1", f"run.steps={6 * ITERATION}")
    run = runs.create(
        tmp_path / "runs", "bare", "x", request.make(words, config=None, environment_file=None, settings={}).document()
    )
    with pytest.raises(MachineError, match="the run folder was deleted or moved"):
        train.train(run.path, resume=None)
    assert calls == [True, True] and not run.path.exists()


def test_a_resumed_run_lists_no_evaluation_twice(here, tmp_path):
    words = (
        f"run.steps={4 * ITERATION}",
        "eval.every=1",
        "eval.episodes=2",
        "checkpoint.every=2",
        "checkpoint.keep=4",
        "--name",
        "again",
    )
    assert inline(here, *words).code == 0
    run = the_run(tmp_path)
    path = run.path / "eval" / "evaluations.jsonl"
    before = path.read_text().splitlines()
    with open(path, "a") as file:
        file.write('{"schema": 1, "step": 99')  # a disk was full
    train.train(run.path, resume=str(2 * ITERATION))
    after = path.read_text().splitlines()
    assert [json.loads(line)["step"] for line in after] == [k * ITERATION for k in (1, 2, 3, 4)]
    assert [json.loads(line)["session"] for line in after] == [1, 1, 2, 2] and after[:2] == before[:2]


def test_evaluations_are_not_written_through_a_symbolic_link(here, tmp_path, caplog):
    words = ("eval.every=1", "eval.episodes=2", "checkpoint.every=1", "checkpoint.keep=4", "--name", "linked")
    assert inline(here, f"run.steps={2 * ITERATION}", *words).code == 0
    run = the_run(tmp_path)
    path, other = run.path / "eval" / "evaluations.jsonl", tmp_path / "precious.txt"
    other.write_text("precious\n")
    path.unlink()
    path.symlink_to(other)
    with caplog.at_level(logging.WARNING):
        train.train(run.path, resume=str(ITERATION))
    assert other.read_text() == "precious\n" and "cannot write eval/evaluations.jsonl" in caplog.text


def test_a_stop_breaks_an_evaluation_off_and_a_resume_does_it_again(here, tmp_path, monkeypatch, caplog):
    play = Evaluator.run

    def stopped(self, number, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return play(self, number, **options)

    asked = request.make(
        (*SMALL, f"run.steps={4 * ITERATION}", "eval.every=2", "eval.episodes=2"),
        config=None,
        environment_file=None,
        settings={},
    )
    run = runs.create(tmp_path / "runs", "broken-off", "x", asked.document())
    for resume in (None, "last"):  # a resumed run begins with it, and is stopped in it, too
        with (
            monkeypatch.context() as patched,
            caplog.at_level(logging.INFO),
            pytest.raises(StoppedError, match=f"step {2 * ITERATION:,}, with a checkpoint"),
        ):
            patched.setattr(Evaluator, "run", stopped)
            train.train(run.path, resume=resume)
    assert (
        f"the evaluation of step {2 * ITERATION:,} was interrupted" in caplog.text and not (run.path / "eval").exists()
    )
    train.train(run.path, resume="last")
    lines = [json.loads(line) for line in (run.path / "eval" / "evaluations.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2 * ITERATION, 4 * ITERATION]


@pytest.mark.slow
def test_episodes_that_never_end_are_told_once(here, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(evaluate, "_LONGEST_UNLIMITED", 64)
    (tmp_path / "endless.py").write_text(MY_ENV.replace("time_limit=100", "time_limit=None"))
    with caplog.at_level(logging.WARNING):
        assert inline(here, "endless.py", f"run.steps={4 * ITERATION}", "eval.every=1", "eval.episodes=3").code == 0
    assert caplog.text.count("3 of 3 episodes of the evaluation did not end within 64 steps") == 1


# TRAINING IN THIS PROCESS


def test_inline_trains_here(here, tmp_path):
    done = inline(here, f"run.steps={2 * ITERATION}", "--seed", "7", "--name", "mine")
    assert done.code == 0 and "operant eval mine" in done.err
    described = runs.describe(the_run(tmp_path))
    assert (described["id"], described["state"], described["step"], described["seed"]) == (
        "mine",
        "finished",
        2 * ITERATION,
        7,
    )
    assert "no evaluations: eval.every = 0" in (the_run(tmp_path).path / "metrics.json").read_text()


def test_logs_prints_the_log_of_a_run_in_this_process(here, tmp_path, monkeypatch):
    assert inline(here, f"run.steps={ITERATION}").code == 0
    log = here("logs", "latest")
    assert log.code == 0 and "started: cartpole, ppo, 64 lanes on CPU" in log.out and "finished: all steps" in log.out

    def failing(self):
        raise RuntimeError("the sky fell")

    monkeypatch.setattr(PPO, "_update", failing)
    with pytest.raises(RuntimeError):
        inline(here)
    log = runs.resolve("latest", *runs.scope()).log_path.read_text()
    assert log.startswith("operant: session started ") and "RuntimeError: the sky fell" in log


def test_a_chart_without_evaluations_says_when_the_first_comes(here, tmp_path):
    assert inline(here, f"run.steps={4 * ITERATION}", "eval.every=3", "eval.episodes=2").code == 0
    metrics = json.loads((the_run(tmp_path).path / "metrics.json").read_text())
    assert f"the first evaluation comes after {3 * ITERATION:,} steps" in json.dumps(metrics)


@pytest.mark.parametrize("longest_s", [0.0, 600.0])
def test_a_long_run_on_a_cpu_says_early_how_long_it_takes(here, tmp_path, monkeypatch, caplog, longest_s):
    monkeypatch.setattr(loop, "_LONG_S", longest_s)
    with caplog.at_level(logging.INFO):
        assert inline(here, f"run.steps={6 * ITERATION}").code == 0
    told = [line for line in caplog.messages if f"{6 * ITERATION:,} steps take about 0:00:0" in line]
    assert len(told) == (longest_s == 0.0) and all("a GPU is many times faster" in line for line in told)


@pytest.mark.slow
def test_a_target_ends_the_run(here, tmp_path):
    assert (
        inline(here, "run.steps=1M", "eval.every=2", "eval.episodes=4", "run.target=1", "run.record_hz=1000").code == 0
    )
    described = runs.describe(the_run(tmp_path))
    assert (described["state"], described["step"]) == ("finished", 2 * ITERATION)
    assert described["eval_return"] >= 1


def test_numbers_that_are_not_finite_end_the_run_and_name_iteration_and_tensor(here, tmp_path):
    # 16 steps an iteration: step 35 is in the third.
    (tmp_path / "my_env.py").write_text(MY_ENV.replace("1_000_000", "34"))
    done = inline(here, "--env", "my_env.py", "run.steps=1M", "checkpoint.every=1", "run.record_hz=1000")
    assert done.code == 5
    assert (
        "in iteration 3: the environment's reward was nan in lane 0 at step 2,240 (and in 63 other lanes of 64 in this "
        "iteration)" in done.err
    )
    assert "the cause, not the learning rate" in done.err and "operant check my_env.py" in done.err
    assert "head_weight" in done.err and f"checkpoint is that of step {2 * ITERATION:,}" in done.err
    run = the_run(tmp_path)
    assert runs.describe(run)["state"] == "diverged"
    names = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    assert any(name.startswith("quarantine-step-") for name in names)
    assert [name for name in names if name.startswith("step-")][-1] == f"step-{2 * ITERATION:012d}"
    assert here("eval", run.path, "--episodes", "2").code == 0


@pytest.mark.slow
def test_a_users_own_files_are_kept_and_used_after_the_originals_are_gone(here, tmp_path, caplog):
    (tmp_path / "mine").mkdir()
    env_file, net_file = tmp_path / "mine" / "my_env.py", tmp_path / "mine" / "my_net.py"
    env_file.write_text(MY_ENV)
    net_file.write_text(MY_NET)
    words = (f"run.steps={2 * ITERATION}", "env.params.bonus=0.5")
    assert inline(here, "--env", "mine/my_env.py", "net.kind=mine/my_net.py:MyNet", *words).code == 0
    run = the_run(tmp_path)
    assert run.id.startswith("my_env-ppo-")
    assert {path.name: path.read_text() for path in run.source_path.glob("*.py")} == {
        "my_env.py": MY_ENV,
        "my_net.py": MY_NET,
    }

    env_file.write_text(MY_ENV.replace("p.bonus", "p.bonus * float32(100.0)"))
    net_file.unlink()
    played = json.loads(here("eval", run.path, "--episodes", "4", "--json").out)
    assert played["mean"] == 50.0 and played["greedy"]["length"] == 100
    runs.update_document(
        run.path, request={**run.document["request"], "resume_overrides": [f"run.steps={4 * ITERATION}"]}
    )
    with caplog.at_level(logging.INFO):
        train.train(run.path, resume="last")
    assert f"resumed from step-{2 * ITERATION:012d}" in caplog.text
    assert runs.describe(runs.load(run.path))["step"] == 4 * ITERATION


def test_more_lanes_than_there_is_memory_for_are_refused_before_anything_is_made(here, tmp_path):
    done = inline(here, "cartpole", "env.lanes=1e9", "algo.horizon=8")
    assert done.code == 4
    told = done.err.splitlines()[-1]
    assert (
        told.startswith("error: env.lanes = 1,000,000,000 needs ")
        and ": use at most " in told
        and "env.lanes=auto" in told
    )
    assert not list((tmp_path / "runs").iterdir())


BROKEN = {  # a line in place of the step's first, and what is said of it
    "s[1000000] += float32(1.0)": "index 1000000 is out of bounds for axis 0 with size 1",
    "s[0] += nothing": "name 'nothing' is not defined",
    "assert s[0] < float32(1.0)": "a kernel cannot raise an error",
}


@pytest.mark.parametrize("line", BROKEN)
def test_a_users_broken_environment_is_a_sentence_with_its_line(line, here, tmp_path):
    (tmp_path / "mine.py").write_text(MY_ENV.replace("s[0] += float32(1.0)", line))
    done = inline(here, "mine.py", f"run.steps={ITERATION}")
    assert done.code == 2 and "Traceback" not in done.err
    first, problem, advice = done.err.splitlines()[-3:]
    assert first == "error: mine.py has 1 problem" and advice.startswith("  for the full check: operant check ")
    assert f"mine.py:18 (`{line}`): " in problem and BROKEN[line] in problem
    assert not list((tmp_path / "runs").iterdir()), "the run that could not begin is gone"


@pytest.mark.slow
def test_a_parameter_that_leads_out_of_bounds_is_found_before_training(here, tmp_path):
    (tmp_path / "mine.py").write_text(MY_ENV.replace("s[0] += float32(1.0)", "s[int(p.bonus) - 1] += float32(1.0)"))
    done = inline(here, "mine.py", f"run.steps={ITERATION}", "env.params.bonus=7")
    assert done.code == 2 and "index 6 is out of bounds" in done.err
    assert inline(here, "mine.py", f"run.steps={ITERATION}").code == 0


def test_a_picture_that_reads_beside_its_state_is_found_before_a_monitor_asks_for_one(here, tmp_path):
    shader = (
        "\n@device\ndef pixel_shader(s, p, x, y):\n    return s[5000], x, y\n\nENV = Env(pixel_shader=pixel_shader, "
    )
    (tmp_path / "mine.py").write_text(MY_ENV.replace("ENV = Env(Params, 1, ", shader + "Params=Params, fields=1, "))
    done = inline(here, "mine.py", f"run.steps={ITERATION}")
    assert done.code == 2 and "(`return s[5000], x, y`): index 5000 is out of bounds" in done.err


def test_warnings_about_a_users_environment_are_told_and_it_trains(here, tmp_path, capsys, caplog):
    (tmp_path / "mine.py").write_text(
        MY_ENV.replace("reward = p.bonus", "reward = p.bonus\n    print(s[0])").replace(
            "time_limit=100", "time_limit=None"
        )
    )
    with caplog.at_level(logging.WARNING):
        assert inline(here, "mine.py", f"run.steps={ITERATION}", "eval.every=0").code == 0
    assert "mine.py: it prints, once for every lane and step" in caplog.text
    assert "mine.py: none ended in 1,000 steps of 64 lanes, and there is no time limit" in caplog.text
    with Reader(the_run(tmp_path).metrics_path) as reader:
        assert sum(event.level == "warn" and event.text.startswith("mine.py: ") for event in reader.events(0, 100)) == 2


def test_two_files_of_one_name_are_both_kept_and_used(here, tmp_path):
    for folder, text in (("envs", MY_ENV), ("nets", MY_NET)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(text)
    assert inline(here, "--env", "envs/mine.py", "net.kind=nets/mine.py:MyNet", f"run.steps={2 * ITERATION}").code == 0
    run = the_run(tmp_path)
    assert {path.name: path.read_text() for path in run.source_path.glob("*.py")} == {
        "mine.py": MY_ENV,
        "mine-network.py": MY_NET,
    }
    shutil.rmtree(tmp_path / "envs")
    shutil.rmtree(tmp_path / "nets")
    assert here("eval", run.path, "--episodes", "4").code == 0
    runs.update_document(
        run.path, request={"resume_overrides": [f"run.steps={4 * ITERATION}"], "resume_directory": str(tmp_path)}
    )  # all else is lost
    train.train(run.path, resume="last")
    assert runs.describe(runs.load(run.path))["step"] == 4 * ITERATION


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        "junk",
        {},
        {"directory": 3, "overrides": []},
        {"directory": ".", "overrides": [1]},
        {"directory": ".", "overrides": [], "config": 5},
    ],
)
def test_a_damaged_request_is_a_sentence(tmp_path, damaged):
    run = runs.create(tmp_path / "runs", "damaged", "x", {})
    runs.update_document(run.path, request=damaged)
    with pytest.raises(ConfigError, match=r"run\.json has 1 problem\n  request: the recorded request is damaged"):
        train.train(run.path, resume=None)


def test_a_run_in_this_process_keeps_its_files_to_its_owner_and_the_metrics_file_its_meaning(
    here, tmp_path, monkeypatch
):
    monkeypatch.setattr(loop, "_FILE_LOOK_S", 0.0)
    update, calls = PPO._update, []

    def meddled(self):
        update(self)
        calls.append(update)
        if len(calls) == 2:
            (the_run(tmp_path).path / "metrics.json").unlink()

    monkeypatch.setattr(PPO, "_update", meddled)
    before = os.umask(0o022)
    try:
        assert inline(here, f"run.steps={4 * ITERATION}", "eval.every=2", "eval.episodes=2").code == 0
        assert os.umask(0o022) == 0o022, "it was not given back"
    finally:
        os.umask(before)
    run = the_run(tmp_path)
    assert [str(path) for path in run.path.rglob("*") if path.stat().st_mode & 0o077] == []
    assert "entropy" in (run.path / "metrics.json").read_text()


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


@pytest.mark.slow
def test_a_worker_that_refuses_its_configuration_is_quoted_and_its_folder_deleted(tmp_path):
    done = operant_process(tmp_path, "train", "cartpole", "env.params.gravty=1", "net.kind=mpl", "net.hidden=[0]")
    assert done.returncode == 2
    assert "unknown key 'env.params.gravty' - did you mean 'env.params.gravity'?" in done.stderr
    assert "net.kind" in done.stderr and "net.hidden" in done.stderr and "3 problems" in done.stderr
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("config", "check", ""), 2, "the name of a configuration is empty"),
        (("config", "show", " "), 2, "the name of the environment is empty"),
        (("train", ""), 2, "All names: operant envs"),
        (("train", "--env", ""), 2, "the name of the environment is empty"),
        (("train", "--config", ""), 2, "Shipped recipes: operant config list"),
        (("train", "--dry-run", "env.name="), 2, "unknown environment ''. All names: operant envs"),
        (("sweep", ""), 2, "the name of a configuration is empty"),
        (("profile", ""), 2, "the name of the environment is empty"),
        (("check", ""), 2, "unknown environment ''"),
        *(
            ((*words, ""), 2, "the name of a run is empty (an unset variable of the shell?): give an id")
            for words in (
                ("show",),
                ("logs",),
                ("wait",),
                ("stop",),
                ("pause",),
                ("resume",),
                ("rm", "--yes"),
                ("eval",),
                ("plot", "--out", "a.png"),
                ("compare", ""),
                ("report", "--out", "a.html"),
                ("monitor",),
                ("monitor", "--once"),
                ("export", "policy"),
                ("export", "metrics"),
            )
        ),
        (("runs", "--runs", ""), 2, "--runs is empty"),
        (("train", "--config", "nosuch.toml"), 3, "no configuration file 'nosuch.toml'"),
        (("train", "--config", "pp"), 3, "did you mean 'ppo'?"),
        (("train", "--env", "nosuch.py"), 3, "no environment file 'nosuch.py'"),
        (("train", "nosuch.py"), 3, "no environment file 'nosuch.py'"),
        (("train", "one", "two"), 2, "one environment at a time"),
        (("train", "ppo.toml"), 2, "--config ppo.toml"),
        (("train", "one", "--env", "two.py"), 2, "two environments"),
        (("train", "--inline", "--detach"), 2, "give one"),
        (("train", "gym:CartPole-v1"), 2, "did you mean 'gymnasium:CartPole-v1'?"),
        (("train", "--env", "gym:CartPole-v1"), 3, "did you mean 'gymnasium:CartPole-v1'?"),
        (("train", "--resume", "x", "--config", "ppo"), 2, "--config cannot be used with --resume"),
        (("train", "--resume", "nosuch"), 3, "no run named 'nosuch'"),
        (("train", "--name", "latest"), 2, "run.name: input should be 1 to 64 letters"),
        (("train", "--nonsense"), 2, "No such option"),
        (("nonsense",), 2, "No such command"),
        (("train", "--inline", "run.name=../../x"), 2, "run.name: input should be 1 to 64 letters"),
        (("train", "--inline", "algo.gamma=1.5", "algo.clip=x", "net.activation=tan"), 2, "3 problems"),
        (("train", "--inline", "env.lanes=100", "algo.horizon=3"), 2, "do not divide"),
        (("train", "--dry-run", "algo.gamma=1.5"), 2, "algo.gamma"),
        (("resume", "nosuch"), 3, "no run named 'nosuch'"),
        (("resume", "nosuch", "--from", "first"), 2, "--from is 'first'"),
        (("resume", "nosuch", "stray"), 2, "'stray' is not an override"),
        (("eval", "nosuch"), 3, "no run named 'nosuch'"),
        (("eval", "nosuch/checkpoints/step-1"), 3, "no run in "),
        (("eval", "nosuch", "--episodes", "0"), 2, "--episodes is 0"),
        (("show", "nosuch"), 3, "no run named 'nosuch'"),
        (("show", "latest"), 3, "no runs yet"),
        (("logs", "live"), 3, "no runs yet"),
        (("config", "check", "nosuch"), 3, "no configuration file 'nosuch'"),
        (("config", "check", "ppo", "algo.gama=0.9"), 2, "did you mean 'algo.gamma'?"),
        (("config", "show", "nosuch"), 2, "unknown environment 'nosuch'"),
        (("check", "nosuch"), 2, "unknown environment 'nosuch'. All names: operant envs"),
        (("check", "dmc_walker"), 2, "'dmc_walker_run', 'dmc_walker_walk' or 'dmc_walker_stand'?"),
        (("check", "invaders"), 2, "did you mean 'minatar_space_invaders'?"),
        (("check", "configs/mine.toml"), 2, "configuration, not an environment. Train it: operant train --config conf"),
        (("check", "sac/half_cheetah"), 2, "Check it: operant config check sac/half_cheetah"),
        (("eval", "mine.toml"), 3, "'mine.toml' is a configuration, not a run. Train it: operant train --config mine."),
        (("show", "configs/mine.toml"), 3, "'configs/mine.toml' is a configuration, not a run"),
        (
            ("train", "--config", "configs/sac/half_cheeta.toml"),
            3,
            "did you mean 'sac/half_cheetah'? Shipped recipes: ",
        ),
        (
            ("config", "check", "ppo", "algo=sac"),
            2,
            "algo is a section of keys, such as algo.name, not a value (got 'sac')",
        ),
        (("eval", "nosuch", "--episodes", "many"), 2, "'many' is not a whole number."),
        (("wait", "nosuch", "--timeout", "x"), 2, "'x' is not a number."),
        (("eval", __file__), 3, f"'{__file__}' is not in a run folder"),
        (("plot", "--metric", "return"), 2, "name the runs to"),
        (("profile", "cartpole", "--trace", "no/folder/a.json"), 3, "--trace: the folder "),
    ],
)
def test_what_a_user_gets_wrong_has_a_sentence_and_a_code(here, tmp_path, words, code, said):
    done = here(*words)
    assert (done.code, done.out) == (code, "")
    assert said in done.err and len(done.err) < 1000  # no list of all names
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
    assert done.code == 4 and "cannot make a run folder" in done.err and "--runs" in done.err


def test_a_run_without_checkpoints_cannot_be_resumed_or_played(here, tmp_path):
    run = runs.create(tmp_path / "runs", "young", "x", {})
    resumed, played = here("resume", "young"), here("eval", "young")
    assert resumed.code == 3 and resumed.err.endswith("no checkpoint to resume from. To start again: operant train\n")
    run.config_path.write_text("")
    assert here("resume", "young").err.endswith("operant train --config runs/young/config.toml\n")
    run.config_path.unlink()
    assert played.code == 3 and "never started training" in played.err
    run.config_path.mkdir()
    played = here("eval", "young")
    assert played.code == 3 and "config.toml is not a regular file" in played.err and "never began" not in played.err
    assert here("logs", run.path).code == 3


def test_hostile_text_in_a_run_reaches_no_terminal(here, tmp_path):
    run = runs.create(tmp_path / "runs", "hostile", "x", {})
    runs.update_document(run.path, env="\x1b]0;owned\x07\u202ecart", algo="[red]x", host="\x9b2J")
    run.log_path.write_bytes(b"one\x1b[2Jtwo\nthree\xff\r\x07")
    told = "".join(here(*words).out for words in (("show", "hostile"), ("runs",), ("logs", "hostile")))
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\r"} & set(told)
    assert "onetwo" in told.replace("[2J", "")


def test_a_run_too_short_to_learn_says_so(here, tmp_path):
    done = here(
        *("train", "--inline", "pendulum", "algo.name=sac", "env.lanes=8", "algo.horizon=4", "algo.batch_size=16"),
        *("net.hidden=[8]", "eval.every=0", "run.steps=64", "run.target=none", "algo.learning_starts=100"),
    )
    assert done.code == 0
    (log,) = tmp_path.glob("runs/*/log.txt")
    assert "algo.learning_starts is 100 and run.steps is 64: nothing is learned" in log.read_text()
