"""Signals to a trainer whose iterations take seconds within one call of compiled code: what is said at once, and how it
ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import environment, operant_process, wait_for
from toys import MY_ENV

from operant import runs
from operant.runs.metrics import Reader

QUICK_STEPS = 240
# Once the look at a user's file before training is over (operant/worlds/quick_check.py, 200 steps), a tick is one call
# of compiled code that ends when a process has ended: `kill` with 0 asks whether there is one.
SLOW_ENV = (
    MY_ENV.replace("from numpy import", "from numba import types\nfrom numpy import")
    .replace("time_limit=100", "time_limit=1000")
    .replace(
        "BREAKS = 1_000_000\n",
        """BREAKS = 1_000_000
lives = types.ExternalFunction("kill", types.int32(types.int32, types.int32))
rest = types.ExternalFunction("usleep", types.int32(types.uint32))
""",
    )
    .replace(
        "    reward = p.bonus\n",
        f"""    reward = p.bonus
    while s[0] > float32({QUICK_STEPS}) and lives(GATE, 0) == 0:
        rest(10_000)
""",
    )
)
HORIZON = 4
WORDS = (
    "train",
    "slow.py",
    "env.lanes=64",
    f"algo.horizon={HORIZON}",
    "run.threads=1",
    "run.device=cpu",
    "eval.every=0",
    "run.steps=1M",
    "run.record_hz=1000",
    "--name",
    "slow",
)
QUICK = QUICK_STEPS // HORIZON
"""Iterations before the first that waits."""


@pytest.fixture
def slow(tmp_path):
    """Writes slow.py. What it returns lets the iterations go on."""
    gate = subprocess.Popen(["sleep", "600"])
    (tmp_path / "slow.py").write_text(SLOW_ENV.replace("GATE", str(gate.pid)))

    def go_on() -> None:
        gate.kill()
        gate.wait()

    yield go_on
    go_on()


def waiting_iteration(path: Path, trainer: subprocess.Popen | None = None) -> None:
    """Wait until the run in a folder is within the first iteration that does not end by itself."""
    wait_for((path / "metrics.mm").exists, trainer)
    with Reader(path / "metrics.mm") as reader:
        wait_for(lambda: (reader.status().main_count, reader.status().phase) == (QUICK, "rollout"), trainer)


@pytest.fixture
def kill():
    """Ends what a broken test leaves behind."""
    left: list[int] = []
    yield left.append
    for pid in left:
        if runs.start_ticks(pid) is not None:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_sigterm_within_a_long_iteration_is_shown_at_once_and_saves_at_its_end(tmp_path, slow, kill):
    started = operant_process(tmp_path, *WORDS, "--detach")
    assert started.returncode == 0, started.stderr
    path = tmp_path / "runs" / "slow"
    pid = json.loads((path / "run.json").read_text())["pid"]
    kill(pid)
    waiting_iteration(path)
    with Reader(path / "metrics.mm") as reader:
        beats = reader.status().heartbeat_count
        wait_for(lambda: reader.status().heartbeat_count > beats)  # in an iteration the heart beats
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: reader.status().state != "running")
        status = reader.status()
        assert (status.state, status.main_count) == ("stopping", QUICK)  # before the iteration is over
        described = runs.describe(runs.load(path))
        assert (described["state"], described["exit"]) == ("stopping", None) and described["cause"].startswith(
            "by SIGTERM"
        )
        slow()
        wait_for(lambda: (path / "exit.json").exists())
        assert reader.status().main_count == QUICK + 1
    described = runs.describe(runs.load(path))
    assert (described["state"], described["exit"], described["last_checkpoint_step"]) == (
        "stopped",
        130,
        described["step"],
    )
    log = (path / "log.txt").read_text()
    assert "SIGTERM: stops after this iteration with a checkpoint, however long both take" in log
    assert f"stopped by SIGTERM at step {described['step']:,}, with a checkpoint" in log


@pytest.mark.slow
def test_a_second_ctrl_c_ends_a_run_in_this_terminal_at_once(tmp_path, slow):
    command = [sys.executable, "-m", "operant.cli", *WORDS, "--inline"]
    trainer = subprocess.Popen(
        command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    path = tmp_path / "runs" / "slow"
    try:
        waiting_iteration(path, trainer)
        trainer.send_signal(signal.SIGINT)
        said = ""
        while "stops after this iteration" not in said:
            line = trainer.stderr.readline()
            assert line, said
            said += line
        time.sleep(0.4)  # closer together two are one
        trainer.send_signal(signal.SIGINT)
        said += trainer.communicate(timeout=60)[1]
    finally:
        trainer.kill()
    assert (
        trainer.returncode == 137
        and "a second Ctrl-C: exited at once without a checkpoint" in said
        and "Traceback" not in said
    )
    with Reader(path / "metrics.mm") as reader:
        assert reader.status().main_count == QUICK
    assert not list((path / "checkpoints").glob("step-*"))
    assert runs.state(runs.load(path)) == ("stopped", "by SIGINT")
