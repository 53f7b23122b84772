"""Signals to a trainer whose iterations take seconds within one call of compiled code: what is said at once, and how it ends."""

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
# Once the look at a user's file before training is over (operant/worlds/quick_check.py, 200 steps), a tick of 64 lanes takes about half a second of compiled
# code, in one call.
SLOW_ENV = MY_ENV.replace("import float32, nan", "import float32, nan, uint32").replace("time_limit=100", "time_limit=1000").replace(
    "    reward = p.bonus\n",
    f"""    reward = p.bonus
    word = uint32(key[0])
    if s[0] > float32({QUICK_STEPS}):
        for _ in range(4_000_000):
            word ^= word << uint32(13)
            word ^= word >> uint32(17)
            word ^= word << uint32(5)
        reward += float32(word & uint32(1))
""",
)
WORDS = ("train", "slow.py", "env.lanes=64", "algo.horizon=4", "run.threads=1", "run.device=cpu", "eval.every=0", "run.steps=1M", "run.record_hz=1000")
SLOW_FROM = QUICK_STEPS // 4 + 1


def iterations(path: Path) -> int:
    """Completed by the run in a folder."""
    if not (path / "metrics.mm").exists():
        return 0
    with Reader(path / "metrics.mm") as reader:
        return reader.status().main_count


@pytest.fixture
def kill():
    """Ends what a broken test leaves behind."""
    left: list[int] = []
    yield left.append
    for pid in left:
        if runs.start_ticks(pid) is not None:
            os.kill(pid, signal.SIGKILL)


def test_sigterm_within_a_long_iteration_is_shown_at_once_and_saves_at_its_end(tmp_path, kill):
    (tmp_path / "slow.py").write_text(SLOW_ENV)
    started = operant_process(tmp_path, *WORDS, "--detach", "--name", "slow")
    assert started.returncode == 0, started.stderr
    path = tmp_path / "runs" / "slow"
    pid = json.loads((path / "run.json").read_text())["pid"]
    kill(pid)
    wait_for(lambda: iterations(path) >= SLOW_FROM)
    with Reader(path / "metrics.mm") as reader:
        before, beats = reader.status().main_count, reader.status().heartbeat_count
        wait_for(lambda: reader.status().heartbeat_count > beats)  # well inside an iteration, in which the heart beats
        assert reader.status().main_count == before
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: reader.status().state != "running")
        status = reader.status()
        assert (status.state, status.main_count) == ("stopping", before)  # long before the iteration is over
        described = runs.describe(runs.load(path))
        assert (described["state"], described["exit"]) == ("stopping", None) and described["cause"].startswith("by SIGTERM")
        wait_for(lambda: (path / "exit.json").exists())
        assert reader.status().main_count == before + 1
    described = runs.describe(runs.load(path))
    assert (described["state"], described["exit"], described["last_checkpoint_step"]) == ("stopped", 130, described["step"])
    log = (path / "log.txt").read_text()
    assert "SIGTERM: it stops after this iteration, with a checkpoint, however long they take" in log
    assert f"stopped by SIGTERM at step {described['step']:,}, with a checkpoint" in log


def test_a_second_ctrl_c_ends_a_run_in_this_terminal_at_once(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW_ENV)
    # Iterations of twice as many steps, as the second follows some time after the first.
    words = ["algo.horizon=8" if word == "algo.horizon=4" else word for word in WORDS]
    command = [sys.executable, "-m", "operant.cli", *words, "--inline", "--name", "slow"]
    trainer = subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    path = tmp_path / "runs" / "slow"
    try:
        wait_for(lambda: iterations(path) >= QUICK_STEPS // 8 + 1, trainer)
        before = iterations(path)
        trainer.send_signal(signal.SIGINT)
        said = ""
        while "it stops after this iteration" not in said:
            line = trainer.stderr.readline()
            assert line, said
            said += line
        time.sleep(0.4)  # closer together two are one
        trainer.send_signal(signal.SIGINT)
        said += trainer.communicate(timeout=60)[1]
    finally:
        trainer.kill()
    assert trainer.returncode == 137 and "a second Ctrl-C: ended at once, without a checkpoint" in said and "Traceback" not in said
    assert iterations(path) == before and not list((path / "checkpoints").glob("step-*"))
    assert runs.state(runs.load(path)) == ("stopped", "by SIGINT")
