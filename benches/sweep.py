"""Overhead of a trial, and results of sweeps. Prints JSON lines; a failed part does not stop the others.

python benches/sweep.py [--parts train,warm,profile,schedule,cartpole,breakout] [--device auto] [--trials 256]
    [--runs 100] [--minutes 10] [--workers N] [--folder FOLDER] [--small]

train     `operant train cartpole` from start to end, twice: seconds
warm      runs of CartPole's recipe one after another in one worker: seconds per run without its training,
          descriptors, memory, and bits identical to a single run
profile   the most expensive functions of a warm run
schedule  a curriculum of CartPole's gravity with schedules of three scalars: a resumed run has the bits of an
          uninterrupted one
compile   Breakout's recipe for two iterations in each shape that its sweep tries, to fill the kernel cache
cartpole  a sweep of CartPole's recipe: wall seconds after the first trial, and overhead per trial
breakout  a sweep of Breakout's recipe for some minutes, by seconds to its target: the best after each trial. With
          `--folder` it continues that folder's sweep, with `--minutes` for all of it together
"""

from __future__ import annotations

import argparse
import cProfile
import hashlib
import itertools
import json
import os
import pstats
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from operant import runs
from operant.config import request
from operant.runs import results
from operant.runs.pool import Worker, wait

SMALL = ("env.lanes=64", "run.steps=12288", "eval.episodes=8", "run.threads=1", "run.target=1000")
CARTPOLE = (
    "algo.learning_rate = {log = [3e-4, 1e-2]}\nalgo.epochs = {uniform = [1, 6]}\nalgo.entropy_coefficient = "
    "{log = [1e-4, 3e-2]}\n"
)
BREAKOUT = (
    'algo.optimizer = {choice = ["adam", "muon"]}\nalgo.learning_rate = {log = [2e-3, 1.2e-2]}\nalgo.replay_ratio = '
    "{uniform = [1.0, 2.0], step = 0.5}\n"
    "algo.anneal_steps = {log = [80_000_000, 450_000_000]}\nalgo.gamma = {uniform = [0.965, 0.985]}\nalgo.gae_lambda = "
    "{uniform = [0.85, 0.97]}\n"
    "algo.entropy_coefficient = {log = [2e-3, 1e-2]}\nnet.hidden = {choice = [[128, 128], [128], [64, 64]]}\nenv.lanes "
    "= {choice = [4096, 8192]}\n"
)
# the recipe, in a trial of a few seconds
BRIEF = "run.steps=250M", "algo.anneal_steps=450M", "algo.replay_ratio=1.0", "eval.every=125"


def say(**row: object) -> None:
    """Print one JSON line."""
    print(json.dumps(row), flush=True)


def bits(run: runs.Run) -> str:
    """Hash of a run's last checkpoint."""
    last = sorted(run.checkpoints_path.glob("step-*"))[-1]
    return hashlib.sha256((last / "tensors.safetensors").read_bytes()).hexdigest()[:16]


def made(place: Path, words: list[str], recipe: str = "ppo/cartpole") -> runs.Run:
    """A prepared run of a recipe."""
    asked = request.make(words, config=recipe, environment_file=None, settings={})
    return runs.create(place / "runs", None, asked.prefix, asked.document())


def gpu_mb() -> int | None:
    """GPU memory in use by all programs, MB; None if the driver does not report it."""
    index = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    command = ["nvidia-smi", "-i", index, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def process_figures(pid: int) -> dict[str, int | None]:
    """Resources held by a process."""
    place = Path(f"/proc/{pid}")
    pages = int((place / "statm").read_text().split()[1])
    return {
        "descriptors": len(list((place / "fd").iterdir())),
        "threads": len(list((place / "task").iterdir())),
        "maps": len((place / "maps").read_text().splitlines()),
        "rss_mb": pages * os.sysconf("SC_PAGE_SIZE") >> 20,
        "gpu_mb_in_use": gpu_mb(),
    }


def trained(worker: Worker, run: runs.Run, resume: str | None = None) -> int:
    """Train a run in a worker; returns its exit code."""
    worker.begin(run, resume=resume)
    while (ended := worker.ended()) is None:
        wait([worker], 0.25)
    return ended.code


def warm(place: Path, arguments: argparse.Namespace, words: list[str]) -> None:
    """Runs in one worker."""
    alone = made(place, [*words, "run.seed=1"])
    subprocess.run(
        [sys.executable, "-m", "operant.training.worker", str(alone.path)], stderr=subprocess.DEVNULL, check=True
    )
    worker, beside, hashes = Worker(place / "worker.log"), [], []
    for k in range(arguments.runs):
        run = made(place, [*words, f"run.seed={1 + k % 2}"])
        began = time.perf_counter()
        code = trained(worker, run)
        seconds, training = time.perf_counter() - began, results.of_run(run).seconds
        hashes.append(bits(run))
        beside.append(seconds - training)
        if (k < 3 or k % 10 == 9) and worker.pid is not None:
            same = len({*hashes[::2], bits(alone)}) == 1 and len({*hashes[1::2]}) <= 1
            say(
                part="warm",
                run=k,
                code=code,
                seconds=seconds,
                beside_training=beside[-1],
                **process_figures(worker.pid),
                same_bits_as_alone=same,
            )
    worker.close()
    later = sorted(beside[2:])
    say(
        part="warm",
        runs=len(beside),
        median_beside_training=later[len(later) // 2],
        bits=sorted({*hashes, bits(alone)}),
    )


def schedule(place: Path, arguments: argparse.Namespace, words: list[str]) -> None:
    """A curriculum with schedules by steps and by evaluations, uninterrupted and in two parts."""
    worker, iteration = Worker(place / "worker.log"), (64 if arguments.small else 1024) * 16
    for kernels in ("auto", "torch"):
        steps = 40 * iteration
        scheduled = [
            f"env.params.gravity={{linear=[2,9.8],over={steps}}}",
            f"algo.learning_rate={{linear=[2.5e-3,1e-4],over={steps}}}",
            f"algo.entropy_coefficient={{points=[[0,0.02],[{steps // 4},0.005],[{steps},0.001]]}}",
            "algo.clip={piecewise=[[-1000,0.3],[30,0.2],[200,0.1]],by='eval/return'}",
            "algo.anneal=false",
            "run.target=1000",
            f"algo.kernels={kernels}",
        ]
        whole = made(place, [*words, *scheduled, f"run.steps={steps}"])
        parts = made(place, [*words, *scheduled, f"run.steps={17 * iteration}"])
        codes = [trained(worker, whole), trained(worker, parts)]
        halfway, asked = bits(parts), runs.read_json(parts.path / "run.json")["request"]
        runs.update_document(
            parts.path, request=asked | {"resume_overrides": [f"run.steps={steps}"], "resume_directory": str(place)}
        )
        codes.append(trained(worker, parts, "last"))
        with runs.Reader(whole.metrics_path) as reader:
            names, last = [metric.name for metric in reader.metrics], reader.latest()
            shown = (
                {name: last.values[k] for k, name in enumerate(names) if name.startswith("schedule/")}
                if last is not None
                else {}
            )
        evaluated = [[one["step"], one["mean"]] for one in runs.evaluated(whole.path)]
        same = bits(parts) == bits(whole)
        say(
            part="schedule",
            kernels=kernels,
            codes=codes,
            same_bits=same,
            bits=bits(whole),
            halfway=halfway,
            last=shown,
            evaluations=evaluated,
        )
        if any(codes):
            say(part="schedule", said=runs.log_end(parts)[-600:] + runs.log_end(whole)[-600:])
    worker.close()


def compiled(place: Path, arguments: argparse.Namespace, words: list[str]) -> None:
    """Breakout in each shape that its sweep tries."""
    worker = Worker(place / "worker.log")
    lanes_tried = (64, 128) if arguments.small else (4096, 8192)
    for optimizer, hidden, lanes in itertools.product(("adam", "muon"), ("[128,128]", "[128]", "[64,64]"), lanes_tried):
        shape = [
            f"algo.optimizer={optimizer}",
            f"net.hidden={hidden}",
            f"env.lanes={lanes}",
            f"run.steps={64 * lanes}",
            "eval.every=2",
        ]
        began = time.perf_counter()
        run = made(place, [*words, *shape], "ppo/breakout")
        code = trained(worker, run)
        said = runs.log_end(run)[-300:] if code else ""
        say(
            part="compile",
            lanes=lanes,
            hidden=hidden,
            optimizer=optimizer,
            code=code,
            seconds=time.perf_counter() - began,
            said=said,
        )
    worker.close()


def train(place: Path, words: list[str]) -> None:
    """The first command of a newcomer."""
    for k in range(2):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "operant.cli", "train", "cartpole", *words],
            cwd=place,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        say(
            part="train",
            run=k,
            code=done.returncode,
            wall_s=time.perf_counter() - began,
            said=(done.stdout + done.stderr)[-500:],
        )


def profile(place: Path, words: list[str]) -> None:
    """Runs in this process, the last one under Python's profiler."""
    from operant.training import pool_worker as here
    from operant.training import worker

    profiler = cProfile.Profile()
    for k in range(9):
        run = made(place, [*words, "run.seed=1"])
        began = time.perf_counter()
        if k > 3:
            profiler.enable()
        code = worker.train_with_exit_code(run.path, None, False, reused=True)
        here._release_memory()
        profiler.disable()
        say(part="profile", run=k, code=code, seconds=time.perf_counter() - began, training=results.of_run(run).seconds)
    rows = pstats.Stats(profiler).stats.items()  # type: ignore[attr-defined]
    for order in (2, 3):
        most = {
            f"{Path(file).name}:{line}:{name}": [round(times[order] * 200, 2), times[0] // 5]
            for (file, line, name), times in sorted(rows, key=lambda row: -row[1][order])[:45]
        }
        say(part="profile", by=("own", "with what it calls")[order - 2], ms_and_calls_a_run=most)


def sweep(place: Path, part: str, text: str, words: list[str], arguments: argparse.Namespace) -> None:
    """Run a sweep by the command."""
    (place / f"{part}.toml").write_text(text)
    workers = ["--workers", str(arguments.workers)] if arguments.workers else []
    command = [sys.executable, "-m", "operant.cli", "sweep", f"{part}.toml", *words, "--json", *workers]
    began = time.perf_counter()
    done = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        stdout, stderr = done.communicate(timeout=arguments.limit)
    except subprocess.TimeoutExpired:
        done.send_signal(signal.SIGINT)
        stdout, stderr = done.communicate(timeout=60)
    wall = time.perf_counter() - began
    if "}" not in stdout:
        say(part=part, code=done.returncode, wall_s=wall, said=stderr[-1500:])
        return
    told = json.loads(stdout[: stdout.rindex("}") + 1])
    if arguments.keep is not None:
        (arguments.keep / f"{part}-{arguments.workers or 1}.json").write_text(stdout)
    trials = [trial for trial in told["trials"] if trial["seconds"] is not None]
    endings = (runs.read_json(place / "runs" / trial["runs"][0] / "exit.json") for trial in trials)
    ended = sorted(ending["ended_realtime_ns"] / 1e9 for ending in endings if ending) or [
        0.0
    ]  # trials of this command, if the folder had no earlier runs
    better, best, curve = min if told["objective"] == "time_to_target" else max, None, []
    for trial in trials:
        if trial["state"] == "complete":
            best = trial["values"][0] if best is None else better(best, trial["values"][0])
            curve.append([trial["number"], trial["values"][0], best])
    say(
        part=part,
        workers=arguments.workers,
        code=done.returncode,
        wall_s=wall,
        after_the_first_s=ended[-1] - ended[0],
        told=len(trials),
        training_s=sum(trial["seconds"] for trial in trials[1:]),
        **{key: told[key] for key in ("complete", "pruned", "fail", "best", "importance")},
        best_so_far=curve,
    )


def survive(part: str, work: Callable[[], None]) -> None:
    """Run a part and report its failure."""
    try:
        work()
    except Exception as error:
        say(part=part, error=f"{type(error).__name__}: {error}", trace=traceback.format_exc()[-600:])


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="train,warm,profile,schedule,cartpole,breakout")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--trials", type=int, default=256)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--folder", type=Path, help="folder of Breakout's sweep, kept afterwards")
    parser.add_argument("--limit", type=float, help="seconds after which a sweep is stopped, as by Ctrl-C")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="folder for the sweeps' documents")
    parser.add_argument("--small", action="store_true", help="tiny sizes, for a CPU")
    arguments = parser.parse_args()
    from operant.config.recipes import find_source

    place = Path(tempfile.mkdtemp(prefix="sweep-"))
    os.environ["XDG_STATE_HOME"] = str(place / "state")
    words = [f"run.device={arguments.device}", *(SMALL if arguments.small else ())]
    cartpole = f"{find_source('ppo/cartpole').read_text()}\n[sweep]\ntrials = {arguments.trials}\n{CARTPOLE}"
    ends = f"trials = {arguments.trials}" if arguments.small else f"minutes = {arguments.minutes}"
    breakout = f'{find_source("ppo/breakout").read_text()}\n[sweep]\n{ends}\nobjective = "time_to_target"\n{BREAKOUT}'
    lasting = arguments.folder.absolute() if arguments.folder else place
    lasting.mkdir(parents=True, exist_ok=True)
    parts = {
        "train": lambda: train(place, words),
        "warm": lambda: warm(place, arguments, words),
        "profile": lambda: profile(place, words),
        "cartpole": lambda: sweep(place, "cartpole", cartpole, words, arguments),
        "schedule": lambda: schedule(place, arguments, words),
        "compile": lambda: compiled(place, arguments, words),
        "breakout": lambda: sweep(lasting, "breakout", breakout, [*BRIEF, *words], arguments),
    }
    for part in arguments.parts.split(","):
        survive(part, parts[part])


if __name__ == "__main__":
    main()
