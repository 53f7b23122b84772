"""Worker processes that train one run after another: faults of a run, death of a worker, the same bits as alone."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from processes import ITERATION, SMALL, made, operant_process, tensors
from waiting import DEADLINE_S, records, state, wait_until

from operant import runs
from operant.errors import BusyError
from operant.runs.pool import Worker, wait

SHORT = (*SMALL, f"run.steps={3 * ITERATION}", "eval.every=0")
LONG = (*SMALL, "run.steps=2000000000", "eval.every=0", "checkpoint.every=1000000")


@pytest.fixture
def worker(tmp_path):
    worker = Worker(tmp_path / "worker.log")
    yield worker
    worker.close()


def ended(worker):
    def look():
        wait([worker], 0.05)
        return worker.ended()

    return wait_until(look)


@pytest.mark.slow
def test_one_worker_trains_run_after_run_and_survives_what_ends_them(tmp_path, worker):
    first = made(tmp_path, *SHORT, "run.seed=5")
    worker.begin(first)
    with pytest.raises(BusyError, match="is still training"):
        worker.begin(first)
    assert ended(worker)[:2] == (first, 0)
    pid = worker.pid
    assert state(first).word == "finished"
    assert (
        runs.read_json(first.exit_path)["exit"] == 0 and runs.read_json(first.exit_path)["last_step"] == 3 * ITERATION
    )

    # An invalid configuration ends only the run, with a message in its log.
    wrong = made(tmp_path, *SHORT, "algo.gamma=2")
    worker.begin(wrong)
    assert ended(worker).code == 2
    assert "algo.gamma" in wrong.log_path.read_text() and "algo.gamma" not in first.log_path.read_text()

    # `operant stop` ends the run with a checkpoint, not the worker.
    stopped = made(tmp_path, *LONG)
    worker.begin(stopped)
    wait_until(lambda: records(stopped))
    assert operant_process(tmp_path, "stop", str(stopped.path)).returncode == 0
    assert ended(worker).code == 130
    assert state(stopped).word == "stopped" and worker.pid == pid and psutil.pid_exists(pid)

    # The same bits as in a separate process, after all of this.
    again = made(tmp_path, *SHORT, "run.seed=5")
    worker.begin(again)
    assert ended(worker).code == 0 and worker.pid == pid
    alone = tmp_path / "alone"
    alone.mkdir()
    assert operant_process(alone, "train", *SHORT, "run.seed=5", "run.name=alone").returncode == 0
    assert tensors(again.path) == tensors(first.path) == tensors(alone / "runs" / "alone")

    # The death of the worker crashes only its current run; the next run gets another process.
    killed = made(tmp_path, *LONG)
    worker.begin(killed)
    wait_until(lambda: records(killed))
    os.kill(pid, signal.SIGKILL)
    assert ended(worker).code == 137
    assert state(killed) == ("crashed", "killed by SIGKILL")
    assert [state(run).word for run in (first, stopped, again)] == ["finished", "stopped", "finished"]
    worker.begin(last := made(tmp_path, *LONG, "checkpoint.every=2"))
    wait_until(lambda: any(last.checkpoints_path.glob("step-*")))
    assert worker.pid != pid
    os.kill(worker.pid, signal.SIGKILL)
    assert ended(worker).code == 137

    # A stop while a killed run is about to be resumed.
    worker.begin(last, resume="last")
    worker.stop()
    assert ended(worker).code == 130
    assert state(last).word == "stopped"


@pytest.mark.slow
def test_a_worker_whose_supervisor_is_gone_finishes_its_run_and_ends(tmp_path):
    run = made(tmp_path, *SHORT)
    process = subprocess.Popen(
        [sys.executable, "-m", "operant.training.pool_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdin.write(json.dumps({"run": str(run.path), "resume": None, "trusted": False}).encode() + b"\n")
    process.stdin.close()
    process.stdout.close()
    assert process.wait(DEADLINE_S) == 0 and process.stderr.read() == b""
    assert state(run).word == "finished"


@pytest.mark.soak
def test_a_run_stopped_during_its_start_does_not_affect_the_next_one(tmp_path, worker):
    """Stopped during imports, configuration, or compilation."""
    for delay_s in (0.0, 0.2, 0.5, 1.0, 1.5):
        broken = made(tmp_path, *LONG)
        worker.begin(broken)
        wait_until(lambda run=broken: runs.read_json(run.path / "run.json").get("pid"))
        time.sleep(delay_s)
        worker.stop()
        assert ended(worker).code == 130, broken.log_path.read_text()
        worker.begin(after := made(tmp_path, *SHORT))
        assert ended(worker).code == 0, after.log_path.read_text()
        worker.close()


@pytest.mark.soak
@pytest.mark.parametrize(("fault", "word"), [("oom", "oom"), ("illegal", "gpu_fault")])
def test_a_worker_whose_device_failed_is_replaced(tmp_path, worker, fault, word):
    name, text = runpy.run_path(str(Path(__file__).parents[2] / "benches" / "gpu_faults.py"), run_name="bench")[
        "FILES"
    ][fault]
    (tmp_path / name).write_text(text)
    worker.begin(
        run := made(tmp_path, *SHORT[:-2], f"algo.name={tmp_path / name}:Failing", "eval.every=0", "run.steps=1M")
    )
    pid = worker.pid
    assert ended(worker).code == 7 and state(run).word == word
    worker.begin(after := made(tmp_path, *SHORT))
    assert ended(worker).code == 0 and state(after).word == "finished" and worker.pid != pid
    assert state(run).word == word


@pytest.mark.soak
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_hundred_runs_in_one_worker_leave_nothing_behind(tmp_path, worker, device):
    if device == "cuda" and not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("needs a GPU")

    def held():
        process = psutil.Process(worker.pid)
        return process.num_fds(), process.num_threads(), process.memory_info().rss

    sizes, trained = [], []
    for seed in range(100):
        run = made(
            tmp_path,
            *SHORT,
            f"run.device={device}",
            f"run.seed={seed % 3}",
            "eval.every=1",
            "eval.episodes=4",
            f"run.threads={1 + seed % 2}",
        )
        worker.begin(run)
        assert ended(worker).code == 0
        trained.append(run)
        sizes.append(held())
    assert tensors(trained[0].path) == tensors(trained[6].path) == tensors(trained[96].path)
    for before, after in zip(zip(*sizes[5:50], strict=True), zip(*sizes[50:], strict=True), strict=True):
        assert max(after) <= max(before) + (8 << 20 if max(before) > 1 << 20 else 0)
    print([(fds, threads, rss >> 20) for fds, threads, rss in sizes[::10]])
