"""Commands with two ranks: started by operant, and by the variables of torchrun and srun; killed, stopped, resumed, and
never a silent wait.
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
from waiting import state, wait_until

import operant
from operant import runs
from operant.runs.follow import read_specs
from operant.runs.metrics import Reader

SMALL = (
    "env.lanes=128",
    "algo.horizon=16",
    "algo.minibatches=1",
    "algo.epochs=1",
    "net.hidden=[8]",
    "run.device=cpu",
    "run.threads=1",
    "eval.every=0",
)
ITERATION = 128 * 16
ENDLESS = ("run.steps=400M", "algo.anneal=false", "checkpoint.every=20")


class Place:
    """Folder in which commands are run."""

    def __init__(self, path: Path) -> None:
        self.path, self.runs = path, path / "runs"
        launchers = ("OPERANT_RUNS", "SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST", "RANK", "WORLD_SIZE", "SLURM_PROCID")
        self.variables = {name: value for name, value in os.environ.items() if name not in launchers}
        self.variables |= {
            "XDG_STATE_HOME": str(path / "state"),
            "PYTHONPATH": str(Path(operant.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
        }

    def __call__(self, *words: object, **more: str) -> subprocess.CompletedProcess:
        """Run `operant WORDS`."""
        command = [sys.executable, "-m", "operant.cli", *map(str, words)]
        done = subprocess.run(
            command, cwd=self.path, env=self.variables | more, capture_output=True, text=True, timeout=240, check=False
        )
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        return done

    def worker(self, run: str, *words: str, **variables: str) -> subprocess.Popen:
        """Start one rank as a launcher does."""
        command = [sys.executable, "-m", "operant.training.worker", str(self.runs / run), *words]
        return subprocess.Popen(
            command,
            cwd=self.path,
            env=self.variables | variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, name: str) -> runs.Run:
        found = runs.load(self.runs / name)
        assert found is not None
        return found

    def pid(self, name: str, rank: int) -> int:
        """Process id of a rank, once it trains."""
        run = self.run(name)
        wait_until(lambda: state(run).word == "running")
        if rank == 0:
            return runs.read_json(run.path / "run.json")["pid"]
        (found,) = [
            int(path.name)
            for path in Path("/proc").glob("[0-9]*")
            if f"{name}\0--rank\0{rank}".encode() in commands(path)
        ]
        return found

    def bytes_of(self, name: str) -> bytes:
        """Tensors of the last checkpoint."""
        return (sorted((self.runs / name / "checkpoints").glob("step-*"))[-1] / "tensors.safetensors").read_bytes()


def newest(run: runs.Run) -> dict[str, float]:
    """Newest record."""
    reader = Reader(run.metrics_path)
    return dict(zip((metric.name for metric in reader.metrics), reader.since(0)[-1].values, strict=True))


def commands(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path)
    yield made
    for folder in made.runs.glob("*"):
        if pid := runs.holder(folder):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def two(place):
    """Running run of two ranks."""
    done = place("train", *SMALL, *ENDLESS, "run.ranks=2", "run.peer_timeout=3", "--name", "two", "-d")
    assert done.returncode == 0, done.stderr
    return place


@pytest.mark.slow
def test_a_rank_that_is_killed_crashes_the_run_with_the_cause(two):
    """Until then both ranks report their share of time in the exchange."""
    pid, run = two.pid("two", 1), two.run("two")
    wait_until(lambda: list(run.checkpoints_path.glob("step-*")))
    wait_until(lambda: all(0.0 < newest(run)[f"gpu/{rank}/exchange_share"] < 1.0 for rank in (0, 1)))
    assert read_specs(run)["gpu/1/exchange_share"].label == "rank 1: exchange's share", (
        "as its chart in the monitor is called"
    )
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: state(run).word == "crashed")
    assert state(run).cause.startswith(f"rank 1 (pid {pid} on ") and state(run).cause.endswith(
        "has exited: its connection closed (killed by signal 9)"
    )
    assert "To continue from the last checkpoint: operant resume two" in run.log_path.read_text()


@pytest.mark.soak
@pytest.mark.parametrize("env", ["cartpole", "half_cheetah"])
def test_a_run_of_two_ranks_is_that_of_one_and_resumes_on_any_number(place, env):
    if env == "half_cheetah":
        pytest.importorskip("mujoco")
        pytest.importorskip("gymnasium")
    small, steps = (*SMALL, f"env.name={env}", "algo.normalize_observations=true"), 40 * ITERATION
    for name, words in (("one", ()), ("two", ("run.ranks=2",)), ("again", ("run.ranks=2",))):
        assert place("train", *small, f"run.steps={steps}", *words, "--name", name).returncode == 0
    assert place.bytes_of("one") == place.bytes_of("two") == place.bytes_of("again")
    for first, then in ((1, 2), (2, 1)):
        name = f"from-{first}"
        words = (f"run.steps={steps // 2}", f"algo.anneal_steps={steps}", f"run.ranks={first}")
        assert place("train", *small, *words, "--name", name).returncode == 0
        assert place("resume", name, f"run.steps={steps}", f"run.ranks={then}").returncode == 0
        assert place.bytes_of(name) == place.bytes_of("one")


@pytest.mark.soak
def test_the_other_ranks_end_when_rank_0_is_killed_and_the_run_resumes(two):
    pid, other = two.pid("two", 0), two.pid("two", 1)
    wait_until(lambda: list(two.run("two").checkpoints_path.glob("step-*")))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not commands(Path(f"/proc/{other}")))
    wait_until(lambda: state(two.run("two")).word == "crashed")
    assert two("resume", "two", "-d").returncode == 0
    assert two("stop", "two").returncode == 0


@pytest.mark.soak
@pytest.mark.parametrize("rank", [0, 1])
def test_a_suspended_rank_is_named(two, rank):
    pid, other = two.pid("two", rank), two.pid("two", 1 - rank)
    os.kill(pid, signal.SIGSTOP)
    try:
        log = two.runs / "two" / ("log.txt" if rank == 1 else "log.1.txt")
        wait_until(lambda: "has not answered for 3 s (run.peer_timeout)" in log.read_text())
        wait_until(lambda: not commands(Path(f"/proc/{other}")))
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.soak
def test_rank_0_may_sleep_and_requests_reach_all(two):
    pid = two.pid("two", 0)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2)  # shorter than run.peer_timeout
    os.kill(pid, signal.SIGCONT)
    run = two.run("two")
    before = runs.describe(run)["step"]
    wait_until(lambda: runs.describe(run)["step"] > before)
    assert two("pause", "two").returncode == 0
    wait_until(lambda: state(run).word == "paused")
    assert two("unpause", "two").returncode == 0
    pid = two.pid("two", 1)
    os.kill(pid, signal.SIGTERM)  # of another rank than 0: all stop with a checkpoint
    wait_until(lambda: state(run).word == "stopped")
    assert "SIGTERM to rank 1" in run.log_path.read_text()


VARIABLES = {
    "torchrun": lambda rank: {"RANK": f"{rank}", "WORLD_SIZE": "2", "LOCAL_RANK": f"{rank}", "LOCAL_WORLD_SIZE": "2"},
    "srun": lambda rank: {
        "SLURM_PROCID": f"{rank}",
        "SLURM_NTASKS": "2",
        "SLURM_LOCALID": f"{rank}",
        "SLURM_STEP_TASKS_PER_NODE": "2",
    },
}


@pytest.mark.soak
@pytest.mark.parametrize("launcher", VARIABLES)
def test_a_prepared_run_is_started_by_a_launcher(place, launcher):
    made = place("train", *SMALL, f"run.steps={20 * ITERATION}", "--prepare", "--name", "made")
    assert (
        made.stdout.strip() == str(place.runs / "made")
        and "torchrun --nproc-per-node=2 -m operant.training.worker" in made.stderr
    )
    assert state(place.run("made")) == runs.State("starting", "prepared, waits for its launcher")
    ranks = [place.worker("made", **VARIABLES[launcher](rank)) for rank in range(2)]
    said = [rank.communicate(timeout=240)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert (
        state(place.run("made")).word == "finished"
        and json.loads((place.runs / "made" / "exit.json").read_text())["exit"] == 0
    )
    again = place.worker("made", **VARIABLES[launcher](0))
    assert "operant resume made" in again.communicate(timeout=240)[1] and again.returncode == 2


@pytest.mark.soak
def test_ranks_with_differing_configurations_are_refused(place):
    file = place.path / "own.toml"
    file.write_text("[algo]\ngamma = 0.9\n")
    made = place("train", "--config", "own.toml", *SMALL, "--prepare", "--name", "made")
    assert made.returncode == 0, made.stderr
    first = place.worker("made", **VARIABLES["torchrun"](0))
    wait_until(lambda: (place.runs / "made" / "ranks.json").exists())
    file.write_text("[algo]\ngamma = 0.8\n")
    second = place.worker("made", **VARIABLES["torchrun"](1))
    assert (first.wait(240), second.wait(240)) == (2, 2)
    for name in ("log.txt", "log.1.txt"):
        assert "algo.gamma: rank 1 on " in (place.runs / "made" / name).read_text()


@pytest.mark.soak
def test_gpus_requested_without_any_are_an_error(place):
    done = place("train", "--gpus", "2", "--name", "none")
    assert done.returncode == 4 and "no GPU for run.gpus = 2" in done.stderr
    done = place("train", "--gpus", "3")
    assert done.returncode == 2 and "input should be 0, 1, 2, 4 or 8 GPUs" in done.stderr


@pytest.mark.soak
def test_a_run_with_a_replay_trains_on_two_ranks_and_resumes_on_two_or_one(place):
    words = (
        "algo.name=dqn",
        "env.lanes=32",
        "algo.batch_size=64",
        "algo.learning_starts=256",
        "net.hidden=[8]",
        "run.device=cpu",
        "run.threads=1",
    )
    words += ("algo.epsilon_steps=2048",)
    done = place(
        "train", *words, "run.ranks=2", "eval.every=0", "run.steps=4096", "checkpoint.replay=true", "--name", "two"
    )
    assert done.returncode == 0, done.stderr
    log = (place.runs / "two" / "log.txt").read_text()
    assert "each rank adds up its own part of a batch" in log
    whole = place("train", *words, "run.ranks=2", "eval.every=0", "run.steps=8192", "--name", "whole")
    assert whole.returncode == 0, whole.stderr
    for ranks in (2, 1):
        done = place("resume", "two", f"run.ranks={ranks}", f"run.steps={4096 * (4 - ranks)}")
        assert done.returncode == 0 and "warm resume" not in (place.runs / "two" / "log.txt").read_text(), done.stderr
        if ranks == 2:  # as if it had never stopped
            ends = [
                place.runs / name / "checkpoints" / "step-000000008192" / "tensors.safetensors"
                for name in ("two", "whole")
            ]
            assert ends[0].read_bytes() == ends[1].read_bytes()
    assert state(place.run("two")).word == "finished"
