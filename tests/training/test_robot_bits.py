"""Same bits of a robot trained on the CPU: its kernels compiled or loaded, one thread or two, kill -9 and a resume."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from test_ranks import Place
from waiting import wait_until

LANES = 8192  # the fewest that two threads step
HORIZON = 2
WORDS = (
    "ppo/half_cheetah",
    f"env.lanes={LANES}",
    f"algo.horizon={HORIZON}",
    "algo.minibatches=4",
    "algo.epochs=1",
    f"run.steps={6 * LANES * HORIZON}",
    "run.device=cpu",
    "eval.every=0",
    "checkpoint.every=1",
)


@pytest.mark.slow
def test_a_robot_has_the_same_bits_compiled_loaded_on_any_threads_and_resumed(tmp_path):
    place = Place(tmp_path)
    place.variables |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "NUMBA_NUM_THREADS": "2"}
    place.variables.pop("OPERANT_CACHE", None)
    for name, threads in (("compiled", 2), ("loaded", 2), ("one-thread", 1)):
        done = place("train", *WORDS, f"run.threads={threads}", "--name", name)
        assert done.returncode == 0, done.stderr
        assert place.bytes_of(name) == place.bytes_of("compiled"), name
    command = [sys.executable, "-m", "operant.cli", "train", *WORDS, "--inline", "--name", "killed"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=place.variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_until(lambda: list((place.runs / "killed" / "checkpoints").glob("step-*")))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (place.runs / "killed" / "checkpoints" / f"step-{6 * LANES * HORIZON:012d}").exists()
    assert place("resume", "killed").returncode == 0
    assert place.bytes_of("killed") == place.bytes_of("compiled")
