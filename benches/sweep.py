"""What a trial costs beside its training, and what a sweep finds. Prints JSON lines; a part that fails says so, and the next one begins.

python benches/sweep.py [--parts warm,cartpole,breakout] [--device auto] [--trials 256] [--runs 100] [--minutes 10] [--workers N] [--small]

warm      runs of CartPole's recipe, one after another in one worker: seconds a run beside its training, descriptors, memory, and the same bits as alone
cartpole  a sweep of CartPole's recipe: seconds of wall time after the first trial, and beside training, a trial
breakout  a sweep of Breakout's recipe for some minutes: the best so far after each trial
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import psutil

from operant import runs
from operant.config import request
from operant.runs.pool import Worker, wait
from operant.sweep import results

SMALL = ("env.lanes=64", "run.steps=12288", "eval.episodes=8", "run.threads=1", "run.target=1000")


def say(**row: object) -> None:
    """One JSON line."""
    print(json.dumps(row), flush=True)


def bits(run: runs.Run) -> str:
    """The hash of a run's last checkpoint."""
    last = sorted(run.checkpoints_path.glob("step-*"))[-1]
    return hashlib.sha256((last / "tensors.safetensors").read_bytes()).hexdigest()[:16]


def made(place: Path, words: list[str]) -> runs.Run:
    """A run of CartPole's recipe that has not begun."""
    asked = request.make(words, config="ppo/cartpole", environment_file=None, settings={})
    return runs.create(place / "runs", None, asked.prefix, asked.document())


def gpu_bytes(pid: int) -> int | None:
    """What a process has of a GPU's memory, where the driver says so."""
    try:
        import pynvml

        pynvml.nvmlInit()
        rows = [row for k in range(pynvml.nvmlDeviceGetCount()) for row in pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(k))]
        return sum(row.usedGpuMemory or 0 for row in rows if row.pid == pid)
    except (ImportError, pynvml.NVMLError):
        return None


def warm(place: Path, arguments: argparse.Namespace, words: list[str]) -> None:
    """Runs in one worker."""
    worker, beside, hashes = Worker(place / "worker.log"), [], []
    for k in range(arguments.runs):
        run = made(place, [*words, f"run.seed={1 + k % 2}"])
        began = time.perf_counter()
        worker.begin(run)
        while (ended := worker.ended()) is None:
            wait([worker], 0.25)
        seconds, training = time.perf_counter() - began, results.of_run(run).seconds
        hashes.append(bits(run))
        beside.append(seconds - training)
        if k < 3 or k % 10 == 9:
            process = psutil.Process(worker.pid)
            figures = {"descriptors": process.num_fds(), "threads": process.num_threads(), "rss_mb": process.memory_info().rss >> 20}
            say(part="warm", run=k, code=ended.code, seconds=seconds, beside_training=beside[-1], **figures, gpu_bytes=gpu_bytes(process.pid))
    worker.close()
    alone = made(place, [*words, "run.seed=1"])
    subprocess.run([sys.executable, "-m", "operant.training.worker", str(alone.path)], stderr=subprocess.DEVNULL, check=True)
    same = len({*hashes[::2], bits(alone)}) == 1
    later = sorted(beside[2:])
    say(part="warm", runs=len(beside), median_beside_training=later[len(later) // 2], same_bits_as_alone=same, bits=sorted({*hashes, bits(alone)}))


def sweep(place: Path, part: str, text: str, words: list[str], workers: int | None) -> None:
    """A sweep by the command."""
    (place / f"{part}.toml").write_text(text)
    command = [sys.executable, "-m", "operant.cli", "sweep", f"{part}.toml", *words, "--json", *(["--workers", str(workers)] if workers else [])]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - began
    told = json.loads(done.stdout[: done.stdout.rindex("}") + 1])
    trials = [trial for trial in told["trials"] if trial["seconds"] is not None]
    ended = sorted(runs.read_json(place / "runs" / trial["runs"][0] / "exit.json")["ended_realtime_ns"] / 1e9 for trial in trials)
    best, curve = float("-inf"), []
    for trial in trials:
        if trial["state"] == "complete":
            best = max(best, trial["values"][0])
            curve.append([trial["number"], best])
    say(
        part=part, code=done.returncode, wall_s=wall, after_the_first_s=ended[-1] - ended[0], training_s=sum(trial["seconds"] for trial in trials[1:]),
        **{key: told[key] for key in ("complete", "pruned", "fail", "best", "importance")}, best_so_far=curve,
    )  # fmt: skip


def survive(part: str, work: Callable[[], None]) -> None:
    """Do a part; say what it failed of."""
    try:
        work()
    except Exception as error:
        say(part=part, error=f"{type(error).__name__}: {error}", trace=traceback.format_exc()[-600:])


def main() -> None:
    """All parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="warm,cartpole,breakout")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--trials", type=int, default=256)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--small", action="store_true", help="in a tiny form, for a CPU")
    arguments = parser.parse_args()
    from operant.config.recipes import find_source

    place = Path(tempfile.mkdtemp(prefix="sweep-"))
    os.environ["XDG_STATE_HOME"] = str(place / "state")
    words = [f"run.device={arguments.device}", *(SMALL if arguments.small else ())]
    space = 'algo.learning_rate = {log = [3e-4, 1e-2]}\nalgo.epochs = {uniform = [1, 6]}\nalgo.entropy_coefficient = {log = [1e-4, 3e-2]}\n'
    parts = {
        "warm": lambda: warm(place, arguments, words),
        "cartpole": lambda: sweep(
            place, "cartpole", f"{find_source('ppo/cartpole').read_text()}\n[sweep]\ntrials = {arguments.trials}\n{space}", words, arguments.workers
        ),
        "breakout": lambda: sweep(
            place, "breakout", f"{find_source('ppo/breakout').read_text()}\n[sweep]\nminutes = {arguments.minutes}\n{space}", words, arguments.workers
        ),
    }
    for part in arguments.parts.split(","):
        survive(part, parts[part])


if __name__ == "__main__":
    main()
