"""Cost of a start, phase by phase, with cold and warm caches; time to solve CartPole; and the fastest recipe for it.

    python benches/start.py [--device auto] [--only phases,command,imports,solve] [--repeats 3] [--seeds 1,2,3]
        [--quick] [--out DIR]

Each part prints a Markdown table for benches/LOG.md and appends its figures to `start.jsonl` in DIR (or $OUT). "cold"
begins with empty, separate caches (Operant's kernels and tile configs, Triton's), "warm" with their content afterwards;
the disk cache is warm in both. Seconds count from the start of the process.

`solve` trains until 128 greedy episodes have a mean return of 475, evaluated after every iteration. Its training
seconds are those of the iterations, synchronized with the device; the first two, which load and capture, count with the
mean of the others. A recipe slower than the median of its seed is not tried with the next seed. The result is confirmed
by 1,024 fresh episodes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

CHECKOUT = Path(__file__).resolve().parent.parent
TARGET = 475.0


class Recipe(NamedTuple):
    """PPO settings that can shorten CartPole's training; the rest is the shipped recipe."""

    lanes: int
    horizon: int
    learning_rate: float
    epochs: int
    minibatches: int
    precision: str

    def overrides(self) -> list[str]:
        """Settings as `key=value`."""
        values = {"env.lanes": self.lanes} | {f"algo.{name}": getattr(self, name) for name in self._fields[1:]}
        return [f"{key}={value}" for key, value in values.items()]


SHIPPED = Recipe(1024, 16, 2.5e-3, 4, 4, "tf32")
RECIPES = [
    SHIPPED,
    *(
        Recipe(lanes, horizon, rate, epochs, minibatches, "bf16")
        for (lanes, horizon), rate, (epochs, minibatches) in product(
            [(1024, 16), (2048, 16), (4096, 16), (2048, 8), (4096, 8), (8192, 8)],
            [2.5e-3, 5e-3],
            [(4, 4), (4, 8), (8, 4), (2, 8)],
        )
    ),
]
QUICK = [SHIPPED._replace(precision="fp32"), Recipe(512, 16, 5e-3, 4, 4, "fp32")]


# A START, IN A PROCESS OF ITS OWN


def process_age_s() -> float:
    """Seconds since this process began, to a hundredth."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


class Marks:
    """Phases of a start; each ends at its mark."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, float, float]] = []

    def __call__(self, phase: str) -> None:
        """Record the end of a phase: seconds since the start of the process, and its CPU time."""
        self.ends.append((phase, process_age_s(), time.process_time()))


def start(wanted: dict[str, Any]) -> dict[str, Any]:
    """Steps of a worker until CartPole is solved. `wanted`: device, overrides, early (context and imports as in a
    worker).
    """
    marks = Marks()
    marks("python")
    from operant.compute.runtime import find_device, importing, quiet_threads, set_threads, wake_gpu

    quiet_threads()
    if wanted["early"]:
        wake_gpu(wanted["device"])
    with importing() if wanted["early"] else contextlib.nullcontext():
        import torch

        marks("torch")
        import numba  # noqa: F401

        marks("numba")
        from operant import algos
        from operant.config import load as config
        from operant.config import recipes
        from operant.training import loop  # noqa: F401
        from operant.training.evaluate import Evaluator
        from operant.worlds.device_world import DeviceWorld

        marks("operant")
        device = find_device(wanted["device"])
        found = config.load(recipes.find_source("ppo/cartpole"), [*wanted["overrides"], f"run.device={device}"])
        set_threads(0)
    marks("configuration")
    if device.type == "cuda":
        from numba import cuda  # noqa: F401

        marks("numba.cuda")
    torch.zeros(1, device=device)
    marks("context")
    kernels = compilations()
    world = DeviceWorld(found.environment, found.env.lanes, seed=1, device=device, params=found.params)
    algo = algos.load(found.algo_name)(world, found.algo, found.net, seed=1, steps=found.run.steps)
    evaluator = Evaluator(algo.policy, found.environment, found.params, episodes=found.eval.episodes, seed=1)
    marks("trainer made")
    algo.start()
    wait(device)
    marks("lanes begun")
    iteration, mean, spent_s = 0, -math.inf, []
    while mean < TARGET and iteration * algo.steps_per_iteration < found.run.steps:
        spent_s.append(one_iteration(algo, device))
        iteration += 1
        if iteration <= 2:
            marks(f"iteration {iteration}")
        if iteration % found.eval.every == 0:
            mean = evaluator.run(iteration).mean
            if iteration == found.eval.every:
                marks("first evaluation")
    marks("solved" if mean >= TARGET else "not solved")
    return {
        "phases": marks.ends,
        "kernels": kernels.lines,
        "iterations": iteration,
        "mean": mean,
        "device": device_name(device),
        "training_s": priced(spent_s),
        "modules": len(sys.modules),
    }


def wait(device: Any) -> None:
    """Synchronize the device."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def one_iteration(algo: Any, device: Any) -> float:
    """Seconds of an iteration, synchronized."""
    wait(device)
    began = time.perf_counter()
    algo.collect()
    algo.update()
    wait(device)
    return time.perf_counter() - began


def priced(spent_s: list[float]) -> float:
    """Seconds of all iterations; the first two count with the mean of the others."""
    later = spent_s[2:]
    return sum(later) + 2 * statistics.fmean(later) if later else math.nan


def device_name(device: Any) -> str:
    """Display name of the device."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"


def compilations() -> Any:
    """Log text about compiled and loaded kernels."""
    import logging

    class Lines(logging.Handler):
        def __init__(self) -> None:
            super().__init__(logging.DEBUG)
            self.lines: list[str] = []

        def emit(self, record: logging.LogRecord) -> None:
            self.lines.append(record.getMessage())

    found, log = Lines(), logging.getLogger("operant.compute.jit_cache")
    log.setLevel(logging.DEBUG)
    log.addHandler(found)
    return found


IMPORTS = {
    "torch, then numba.cuda": "import torch, numba.cuda",
    "without the garbage collector": "import gc; gc.disable(); import torch, numba.cuda",
    "both at once": (
        "import gc, threading, numpy\n"
        "gc.disable()\n"
        "def other():\n    import numba.cuda\n"
        "thread = threading.Thread(target=other)\nthread.start()\nimport torch\nthread.join()"
    ),
}


# PROCESSES


@contextlib.contextmanager
def caches() -> Iterator[dict[str, str]]:
    """Environment variables with empty caches and a separate list of runs."""
    with tempfile.TemporaryDirectory(prefix="operant-start-") as folder:
        places = {
            "XDG_CACHE_HOME": "cache",
            "TRITON_CACHE_DIR": "triton",
            "OPERANT_RUNS": "runs",
            "XDG_STATE_HOME": "state",
        }
        own = {name: f"{folder}/{place}" for name, place in places.items()}
        path = os.pathsep.join(filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH"))))
        yield {**os.environ, **own, "PYTHONPATH": path}


def child(wanted: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    """Run `start` in a new process; also returns the seconds of the whole process."""
    began = time.perf_counter()
    command = [sys.executable, __file__, "--child", json.dumps(wanted)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return {**json.loads(done.stdout.splitlines()[-1]), "whole_s": time.perf_counter() - began}


def command(words: list[str], environment: dict[str, str]) -> float:
    """Seconds of an `operant` command as a user starts it."""
    began = time.perf_counter()
    program = [sys.executable, "-c", "from operant.cli import main; main()", *words]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return time.perf_counter() - began


def seconds_of(program: str) -> float:
    """Seconds of a Python program in a separate process."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"{program}\nimport os\nos._exit(0)"], check=True)
    return time.perf_counter() - began


# PARTS


class Report:
    """Prints figures and stores them."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / "start.jsonl" if folder is not None else None

    def __call__(self, line: str) -> None:
        """Print a line."""
        print(line, flush=True)

    def figures(self, part: str, **fields: Any) -> None:
        """Store a line for programs."""
        if self._path is not None:
            with open(self._path, "a", encoding="utf-8") as lines:
                lines.write(json.dumps({"part": part, **fields}) + "\n")


def phases(device: str, repeats: int, environment: dict[str, str], report: Report) -> None:
    """End of each phase: cold; warm; warm with a lazy context and the garbage collector on."""
    rows: dict[str, list[dict[str, Any]]] = {}
    wanted = {"device": device, "early": True, "overrides": []}
    for name, asked in [
        ("cold", wanted),
        *[("warm", wanted), ("warm, plain imports", {**wanted, "early": False})] * repeats,
    ]:
        found = child(asked, environment)
        report.figures("phases", name=name, **found)
        rows.setdefault(name, []).append(found)
    report(f"\n{found['device']}: seconds from the process's start to the end of each phase (its own), best of each\n")
    names = [name for name, _, _ in rows["cold"][0]["phases"]]
    report(f"| start | {' | '.join(names)} | process | kernels compiled | training s |\n|{'---|' * (len(names) + 4)}")
    for name, found_all in rows.items():
        best = min(found_all, key=lambda one: one["whole_s"])
        ends = [end for _, end, _ in best["phases"]]
        cells = [f"{end:.2f} ({end - before:.2f})" for end, before in zip(ends, [0.0, *ends], strict=False)]
        count = sum("compiled in" in line for line in best["kernels"])
        report(f"| {name} | {' | '.join(cells)} | {best['whole_s']:.2f} | {count} | {best['training_s']:.4f} |")


def commands(device: str, repeats: int, environment: dict[str, str], report: Report) -> None:
    """`operant train` to its end. After `phases` the caches are warm; otherwise the first run is cold."""
    report("\n| `operant train` | seconds |\n|---|---|")
    for number in range(1, repeats + 1):
        took_s = command(["train", f"run.device={device}"], environment)
        report.figures("command", number=number, seconds=took_s)
        report(f"| {number} | {took_s:.2f} |")


def imports(repeats: int, report: Report) -> None:
    """Cost of imports, one after another and at once."""
    report("\n| imports | seconds of the process, best |\n|---|---|")
    for name, program in IMPORTS.items():
        took_s = min(seconds_of(program) for _ in range(repeats))
        report.figures("imports", name=name, seconds=took_s)
        report(f"| {name} | {took_s:.2f} |")


class Solved(NamedTuple):
    """Result of one training."""

    recipe: Recipe
    seed: int
    training_s: float  # the first two iterations at the price of the others; infinite where it took too long
    iterations: int
    iteration_s: float  # median
    mean: float  # where it stopped
    confirmed: float  # of 1,024 fresh greedy episodes


def solve(recipe: Recipe, seed: int, device: Any, *, most_s: float) -> Solved:
    """Train until the target, or for `most_s` seconds of training."""
    from operant import algos
    from operant.config import load as config
    from operant.config import recipes
    from operant.training.evaluate import Evaluator
    from operant.worlds.device_world import DeviceWorld

    # not necessarily the fastest: tile configs are not measured per recipe
    more = ["algo.kernel_config=first"] if device.type == "cuda" else []
    found = config.load(recipes.find_source("ppo/cartpole"), [*recipe.overrides(), *more, f"run.device={device}"])
    world = DeviceWorld(found.environment, recipe.lanes, seed=seed, device=device, params=found.params)
    algo = algos.load(found.algo_name)(world, found.algo, found.net, seed=seed, steps=found.run.steps)
    evaluator = Evaluator(algo.policy, found.environment, found.params, episodes=128, seed=seed)
    algo.start()
    spent_s: list[float] = []
    mean = -math.inf
    while mean < TARGET and sum(spent_s[2:]) < most_s:
        spent_s.append(one_iteration(algo, device))
        mean = evaluator.run(len(spent_s)).mean
    confirmed = (
        Evaluator(algo.policy, found.environment, found.params, episodes=1024, seed=seed + 1000).run(1).mean
        if mean >= TARGET
        else math.nan
    )
    taken_s = priced(spent_s) if mean >= TARGET else math.inf
    return Solved(recipe, seed, taken_s, len(spent_s), statistics.median(spent_s[2:] or spent_s), mean, confirmed)


def fastest(recipes: list[Recipe], seeds: list[int], device: Any, budget_s: float, report: Report) -> None:
    """All recipes with the first seed, the better half with the next, and so on, until the time is up."""
    began, tried, left = time.perf_counter(), {}, list(recipes)
    for seed in seeds:
        for recipe in left:
            if time.perf_counter() - began > budget_s and recipe != recipes[0]:
                continue
            found = solve(recipe, seed, device, most_s=0.03 if device.type == "cuda" else 20.0)
            report.figures("solve", **found._asdict() | {"recipe": recipe._asdict()})
            tried.setdefault(recipe, []).append(found)
        ranked = sorted(
            (recipe for recipe in left if recipe in tried),
            key=lambda recipe: max(one.training_s for one in tried[recipe]),
        )
        left = [recipe for rank, recipe in enumerate(ranked) if rank < max(3, len(ranked) // 2) or recipe == recipes[0]]
    report(
        f"\n{len(tried)} recipes in {time.perf_counter() - began:.0f} s on {device_name(device)}; those tried with "
        "most seeds, and the shipped one:\n"
    )
    columns = (
        "lanes x horizon",
        "learning rate",
        "epochs x minibatches",
        "precision",
        "seeds",
        "training s to 475, worst (each)",
        "iterations",
    )
    report(f"| {' | '.join(columns)} | ms an iteration | confirmed |\n|{'---|' * (len(columns) + 2)}")
    most = max(map(len, tried.values()))
    finished = [recipe for recipe in tried if len(tried[recipe]) == most or recipe == recipes[0]]
    for recipe in sorted(finished, key=lambda recipe: max(one.training_s for one in tried[recipe])):
        runs = tried[recipe]
        each = ", ".join(f"{one.training_s:.4f}" for one in runs)
        report(
            f"| {recipe.lanes:,} x {recipe.horizon} | {recipe.learning_rate:g} | {recipe.epochs} x "
            f"{recipe.minibatches} | {recipe.precision} | {len(runs)} "
            f"| {max(one.training_s for one in runs):.4f} ({each}) | {', '.join(str(one.iterations) for one in runs)} "
            f"| {statistics.median(one.iteration_s for one in runs) * 1e3:.3f} | "
            f"{', '.join(f'{one.confirmed:.0f}' for one in runs)} |"
        )


def main() -> None:
    """Run the selected measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", default="phases,command,imports,solve")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--budget", type=float, default=50.0, help="time limit of `solve`, in seconds")
    parser.add_argument("--quick", action="store_true", help="only two recipes, as a smoke test")
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT"))
    arguments = parser.parse_args()
    if arguments.child is not None:
        print(json.dumps(start(arguments.child)))
        sys.stdout.flush()
        os._exit(0)  # as a worker ends
    report = Report(Path(arguments.out) if arguments.out else None)
    parts = arguments.only.split(",")
    report(f"{time.strftime('%Y-%m-%d')}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if "imports" in parts:
        imports(arguments.repeats, report)
    with caches() as environment:
        if "phases" in parts:
            phases(arguments.device, arguments.repeats, environment, report)
        if "command" in parts:
            commands(arguments.device, arguments.repeats, environment, report)
    if "solve" in parts:
        sys.path.insert(0, str(CHECKOUT))
        from operant.compute.runtime import find_device, quiet_threads, set_threads

        quiet_threads()
        device = find_device(arguments.device)
        set_threads(0)
        fastest(
            QUICK if arguments.quick else RECIPES,
            [int(seed) for seed in arguments.seeds.split(",")],
            device,
            arguments.budget,
            report,
        )


if __name__ == "__main__":
    main()
