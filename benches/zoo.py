"""Zoo: each recipe trained with several seeds, and the table of its results for the documentation.

    python benches/zoo.py [RECIPE[:KEY=VALUE,...] ...] [--seeds 5] [--seed N ...] [--device cpu] [--set KEY=VALUE ...]
        [--keep]
    python benches/zoo.py all --results DIR --device cpu --cores 2 --jobs 14 --limit 500 [--short] [--commit C]
    python benches/zoo.py all --results DIR --device cuda --jobs 1 --limit 500
    python benches/zoo.py --merge DIR [DIR ...] [--keep]

Trains with the command that a user types, one process a seed, and evaluates the checkpoint that `operant eval` takes
(the best of training's evaluations) greedily in fresh episodes.

With `--results` each seed leaves two things in DIR: RECIPE-DEVICE-SEED.json, and the policy of its checkpoint in the
folder of the same name. `--merge` makes the rows of benches/zoo.toml of them, here or on another machine. Without
`--results` both are done in turn. Seeds that DIR has already are not trained again. `all` is every shipped recipe;
those whose environment cannot be built here are skipped, with the reason.

`--jobs` runs at the same time have `--cores` cores each, of those that this process may use, and on `cuda` a GPU each
or a share of one. The shortest recipes come first. The first seed of a recipe, which compiles its kernels, runs before
its others. After `--limit` seconds whatever still runs is ended and recorded as not finished; none starts whose recipe
is known to take longer than what is left. `--set` overrides keys of all recipes, RECIPE:KEY=VALUE those of one, and
`--short` those of recipes that take two cores more than some minutes, as `SHORT` says. The row's command has them.

The file has tables RECIPE.cpu and RECIPE.gpu: `mean_return` over seeds and `ci95`, half its 95 % interval (Student's t
over seeds); `solved`, the number of seeds that reach `target`; the mean of the checkpoint's environment `steps`; and
medians over seeds of `training_s` (the algorithm's phases by the device's clock, without the first iteration, which
compiles), `wall_s` (the whole command) and `cpu_s` (user and system time of all threads). `load` is the machine's mean
number of runnable threads at the end of the runs, these included, and `machine_cores` its cores. A row whose results
lack some of these seconds, or the load, has none. `beside` is the number of other runs that shared the GPU.
`unfinished` counts seeds that were ended after at most `unfinished_s` seconds. docs/hooks.py makes the page's table
from the file.

`--runs` keeps the run folders. `--keep` writes the policy of the seed with the highest return into the package, as
`zoo:ENVIRONMENT`, and its export.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import tomli
import tomli_w
from recipes import trained_s

import operant
from operant import __version__, envs, runs
from operant.compute.runtime import processor_name
from operant.config import recipes
from operant.config.load import load
from operant.errors import OperantError
from operant.export import policy
from operant.host import names
from operant.play import load_policy
from operant.runs import zoo
from operant.runs.checkpoints import Store, load_file

_FAST = (
    "ppo/cartpole",
    "pqn/cartpole",
    "dqn/cartpole",
    "ppo/cartpole_continuous",
    "ppo/cartpole_positions",
    "ppo/memory_chain",
    "ppo/tmaze",
    "ppo/repeat_first",
    "ppo/repeat_previous",
    "ppo/mountaincar_continuous",
    "ppo/mountaincar",
    "ppo/pendulum",
    "ppo/acrobot",
)
"""Recipes that two CPU cores finish in a minute, the fastest first."""
_FEWER_LANES = "env.lanes=256 algo.minibatches=8"
SHORT = {
    "ppo/breakout": "env.lanes=480 run.steps=5M",
    "ppo/dmc_acrobot_swingup": f"{_FEWER_LANES} run.steps=2M",
    "ppo/dmc_cheetah_run": f"{_FEWER_LANES} run.steps=1M",
    "ppo/dmc_fish_upright": "run.steps=500k",
    "ppo/dmc_hopper_stand": f"{_FEWER_LANES} run.steps=2M",
    "ppo/dmc_reacher_easy": "run.steps=1M",
    "ppo/dmc_swimmer_swimmer6": f"{_FEWER_LANES} run.steps=500k",
    "ppo/dmc_walker_walk": f"{_FEWER_LANES} run.steps=500k",
    "ppo/half_cheetah": "run.steps=4M",
    "ppo/hopper": "run.steps=2M env.lanes=64 algo.horizon=128 algo.epochs=8 algo.minibatches=8 algo.optimizer=adam"
    " algo.learning_rate=3e-4 algo.gamma=0.99 net.hidden=[128,128] net.initial_log_std=0",
    "ppo/snake": "env.lanes=480 run.steps=5M",
    "ppo/walker2d": f"{_FEWER_LANES} net.hidden=[128,128] algo.optimizer=adam algo.learning_rate=1e-3 run.steps=2M",
}
"""Overrides with which two CPU cores train a recipe for some minutes, as the recipes' comments have them."""
_EVALUATION_SEED = 1_000_003


class Pair(NamedTuple):
    """Recipe with its overrides, and a seed to train it with, on a kind of device, "cpu" or "gpu"."""

    recipe: str
    overrides: tuple[str, ...]
    kind: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the run's folder and of the result's files."""
        return f"{self.recipe.replace('/', '-')}-{self.kind}-{self.seed}"


class Slot(NamedTuple):
    """Share of the machine for one run at a time: its cores, environment variables that choose its GPU, and the number
    of other slots on that GPU.
    """

    cores: tuple[int, ...]
    variables: dict[str, str]
    beside: int = 0


class OutOfTimeError(Exception):
    """A command was ended at the limit."""


# RUNS


class Bench:
    """Trains pairs of recipe and seed in parallel, each in its slot, and writes their results into a folder."""

    def __init__(self, arguments: argparse.Namespace, results: Path, runs_at: Path) -> None:
        self.device, self.episodes = arguments.device, arguments.episodes
        self.results, self.runs_at, self.out = results, runs_at, arguments.out
        self.commit = arguments.commit or commit()
        self.end_s = math.inf if arguments.limit is None else time.monotonic() + arguments.limit
        self.slots = slots(arguments.device, arguments.jobs, arguments.cores)
        self.took_s: dict[str, float] = {}  # recipe -> seconds that one of its seeds took, or was ended after
        self._changed = threading.Condition()
        self._first: set[str] = set()  # recipes whose first run has not ended
        self._begun: set[str] = set()
        self._processes: set[int] = set()

    def train(self, pairs: Iterable[Pair]) -> bool:
        """Train the pairs that have no result yet, as far as the limit goes. Returns whether all have one now."""
        guesses: dict[str, float] = {}
        table: dict[str, Any] = tomli.loads(self.out.read_text(encoding="utf-8")) if self.out.is_file() else {}
        waiting: list[Pair] = []
        for pair in pairs:
            found = self._result(pair)
            if found is None:
                waiting.append(pair)
            else:
                self.took_s[pair.recipe] = max(found["took_s"], self.took_s.get(pair.recipe, 0.0))
                if "mean" not in found:
                    waiting.append(pair)
            if pair.recipe not in guesses:
                guesses[pair.recipe] = measured_s(pair, table) or guess_s(pair)
        waiting.sort(key=lambda pair: (self.took_s.get(pair.recipe, guesses[pair.recipe]), pair.recipe, pair.seed))
        threads = [threading.Thread(target=self._work, args=(slot, waiting), daemon=True) for slot in self.slots]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            if any(thread.is_alive() for thread in threads):
                self.end_s = -math.inf  # interrupted: start nothing more
            for process in list(self._processes):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)
        for pair in waiting:
            print(f"{pair.name}: no time left", file=sys.stderr)
        return all("mean" in (self._result(pair) or {}) for pair in pairs)

    def _result(self, pair: Pair) -> dict[str, Any] | None:
        """Result of a pair with the same overrides; None without one."""
        with contextlib.suppress(OSError):
            found: dict[str, Any] = json.loads((self.results / f"{pair.name}.json").read_text(encoding="utf-8"))
            return found if tuple(found["overrides"]) == pair.overrides else None
        return None

    def _work(self, slot: Slot, waiting: list[Pair]) -> None:
        """Train pairs in a slot until none is left for it: a thread."""
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, slot.cores)  # of this thread; its processes inherit it
        while (pair := self._next(waiting)) is not None:
            began_s = time.monotonic()
            found: dict[str, Any] = {}
            try:
                found = self._trained(pair, slot)
            except OutOfTimeError:
                found = {"unfinished_s": round(time.monotonic() - began_s, 1)}
            except Exception as error:  # continue with the others
                found = {"error": f"{type(error).__name__}: {error}"[:500]}
            took_s = time.monotonic() - began_s
            about = {
                **{"recipe": pair.recipe, "overrides": list(pair.overrides), "seed": pair.seed, "kind": pair.kind},
                **{"version": __version__, **({} if self.commit is None else {"commit": self.commit})},
                **{"date": datetime.date.today().isoformat(), "took_s": round(took_s, 1)},
            }
            text = json.dumps({**about, **found}, indent=1)
            (self.results / f"{pair.name}.json").write_text(f"{text}\n", encoding="utf-8")
            shown = {key: found[key] for key in ("mean", "steps", "training_s", "wall_s") if key in found} or found
            print(pair.name, json.dumps(shown), flush=True)
            with self._changed:
                self.took_s[pair.recipe] = max(took_s, self.took_s.get(pair.recipe, 0.0))
                self._first.discard(pair.recipe)
                self._changed.notify_all()

    def _next(self, waiting: list[Pair]) -> Pair | None:
        """Take the first pair that can end before the limit; None when there is none. Waits for the first run of its
        recipe.
        """
        with self._changed:
            while True:
                left_s = self.end_s - time.monotonic()
                possible = [pair for pair in waiting if max(self.took_s.get(pair.recipe, 0.0), 1.0) <= left_s]
                if not possible:
                    return None
                for pair in possible:
                    if pair.recipe not in self._first:
                        waiting.remove(pair)
                        if pair.recipe not in self._begun:
                            self._first.add(pair.recipe)
                            self._begun.add(pair.recipe)
                        return pair
                self._changed.wait(1.0)

    def _trained(self, pair: Pair, slot: Slot) -> dict[str, Any]:
        """Train a pair and evaluate it: mean return, steps and seconds. Writes the policy into the results."""
        settings = ["--config", pair.recipe, "--seed", str(pair.seed), "--device", self.device, *pair.overrides]
        # A folder of its own: another run anywhere may have any name.
        folder = self.runs_at / pair.name
        shutil.rmtree(folder, ignore_errors=True)
        wall_s, cpu_s, _ = self._finish(["train", *settings, "--runs", str(folder), "--inline"], slot)
        (run,) = runs.list_runs(folder, everywhere=False)
        settings = ["--episodes", str(self.episodes), "--seed", str(_EVALUATION_SEED), "--device", self.device]
        load_now = os.getloadavg()[0]
        _, _, answer = self._finish(["eval", str(run.path), "--greedy", "--json", *settings], slot)
        evaluated = json.loads(answer)
        checkpoint = Path(evaluated["checkpoint"])
        reduced(checkpoint, run.uuid.hex(), self.results / pair.name)
        return {
            "mean": evaluated["greedy"]["mean"],
            "ci95": evaluated["greedy"]["ci95"],
            "episodes": self.episodes,
            "target": run.document["target"],
            "steps": evaluated["step"],
            "training_s": round(trained_s(run.path), 3),
            "wall_s": round(wall_s, 2),
            "cpu_s": round(cpu_s, 2),
            "load": round(load_now, 1),
            "machine_cores": os.cpu_count() or 1,
            **({"beside": slot.beside} if slot.beside else {}),
            "device": device_name(run.document["device_name"], slot),
            "uuid": run.uuid.hex(),
        }

    def _finish(self, words: list[str], slot: Slot) -> tuple[float, float, str]:
        """Run an `operant` command to its end: wall seconds, CPU seconds and output. Raises OutOfTimeError at the
        limit, RuntimeError with the last lines of its messages after a failure.
        """
        command = [sys.executable, "-m", "operant.cli", *words]
        expired = threading.Event()
        if time.monotonic() > self.end_s:
            raise OutOfTimeError
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as messages:
            began_s = time.monotonic()
            process = subprocess.Popen(
                command, stdout=output, stderr=messages, env=os.environ | slot.variables, start_new_session=True
            )
            self._processes.add(process.pid)

            def end() -> None:
                expired.set()
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

            timer = None if self.end_s == math.inf else threading.Timer(max(0.0, self.end_s - began_s), end)
            if timer is not None:
                timer.start()
            _, status, usage = os.wait4(process.pid, 0)
            wall_s = time.monotonic() - began_s
            if timer is not None:
                timer.cancel()
            self._processes.discard(process.pid)
            process.returncode = os.waitstatus_to_exitcode(status)
            if expired.is_set() and process.returncode:
                raise OutOfTimeError
            output.seek(0)
            messages.seek(0)
            if process.returncode:
                said = " / ".join(messages.read().strip().splitlines()[-4:])
                raise RuntimeError(f"operant {words[0]}: exit code {process.returncode}: {said}")
            return wall_s, usage.ru_utime + usage.ru_stime, output.read()


def slots(device: str, jobs: int, cores: int | None) -> list[Slot]:
    """Divide the cores that this process may use, and the GPUs that it sees, between `jobs` runs."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    each = cores or max(1, len(allowed) // jobs)
    if each * jobs > len(allowed):
        raise SystemExit(
            f"--jobs {jobs} with {each} cores each need {each * jobs}; this process may use {len(allowed)}"
        )
    shares = [tuple(allowed[k * each : (k + 1) * each]) for k in range(jobs)]
    if device != "cuda":
        if device != "cpu" and jobs > 1:
            raise SystemExit(f"--device {device} runs one job at a time; --device cuda gives each of them a GPU")
        return [Slot(share, {}) for share in shares]
    import torch

    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = listed.split(",") if listed else [str(k) for k in range(torch.cuda.device_count())]
    if not gpus:
        raise SystemExit("--device cuda needs a GPU; this process sees none")
    beside = -(-jobs // len(gpus)) - 1
    return [Slot(share, {"CUDA_VISIBLE_DEVICES": gpus[k % len(gpus)]}, beside) for k, share in enumerate(shares)]


def device_name(gpu: str, slot: Slot) -> str:
    """Hardware of a run: the GPU's name, or the processor's with the number of cores that the run could use."""
    count = len(slot.cores)
    return f"{processor_name()}, {count} core{'s' * (count > 1)}" if gpu == "CPU" else gpu


def measured_s(pair: Pair, table: dict[str, Any]) -> float | None:
    """Seconds of a recipe's command in the table, with the same overrides; None if it is not there."""
    entry = table.get(pair.recipe, {}).get(pair.kind, {})
    same = entry.get("command", "").startswith(f"{command_of(pair.recipe, pair.overrides)} --seeds")
    return entry.get("wall_s") if same else None


def guess_s(pair: Pair) -> float:
    """Rough seconds of a run on two CPU cores or a GPU, to order recipes by: nothing else depends on it."""
    config = load(recipes.find_source(pair.recipe), pair.overrides)
    found = config.algo.model_dump()
    hidden = getattr(config.net, "hidden", None) or [64, 64]
    weights = 64 * hidden[0] + sum(a * b for a, b in itertools.pairwise(hidden))
    lanes = config.env.lanes if isinstance(config.env.lanes, int) else 128
    updates = found.get("updates_per_step", 0)
    passes = 3 * updates * found["batch_size"] / lanes if updates else found.get("epochs", 1)
    outside = names.kind_of(config.env.name) is not None
    heavy = outside or getattr(envs.find(config.env.name), "source", None) is not None
    if pair.kind == "gpu":
        tick_s = (1e-2 if outside else 3e-4 if heavy else 3e-5) + 1e-4 * updates
        step_s = tick_s / lanes + 6 * weights * passes / 2e13
    else:
        step_s = (3e-5 if heavy else 1e-6) + 6 * weights * passes / 2e10
    return 10 + config.run.steps * step_s / (3 if config.run.target is not None else 1)


def command_of(recipe: str, overrides: Iterable[str]) -> str:
    """Command that a user types to train a recipe, without its seeds."""
    return " ".join(["operant train --config", recipe, *overrides])


def commit() -> str | None:
    """Commit of the code that trains, abbreviated; None outside a git checkout."""
    asked = ["git", "-C", str(Path(operant.__file__).parent), "rev-parse", "--short=8", "HEAD"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    return None


def missing(recipe: str) -> str | None:
    """Reason why this machine cannot build a recipe's environment, such as a package that is absent or too old, or a
    robot's model; None if it can.
    """
    try:
        config = load(recipes.find_source(recipe))  # makes an outside environment
        config.environment.ready(config.params)  # makes a robot's
    except OperantError as error:
        return str(error)
    return None


# RESULTS


def reduced(checkpoint: Path, run_uuid: str, folder: Path) -> None:
    """Write a checkpoint without all that only training needs into FOLDER/checkpoints."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    found = load_file(checkpoint)
    tensors = {name: tensor for name, tensor in found.tensors.items() if name.startswith("policy/")}
    config = (checkpoint / "config.toml").read_text(encoding="utf-8")
    store = Store(folder / "checkpoints", run_uuid=run_uuid, report=print)
    if store.save(found.step, tensors, found.document, session=1, config=config) is None:
        raise OSError(f"{folder} could not be written")


def collected(folders: list[Path]) -> dict[tuple[str, str], dict[int, tuple[dict[str, Any], Path]]]:
    """Results in folders by (recipe, kind of device), then seed, with the path of each one's policy. Of a seed in
    several folders the last finished one counts.
    """
    found: dict[tuple[str, str], dict[int, tuple[dict[str, Any], Path]]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            result = json.loads(path.read_text(encoding="utf-8"))
            if "error" in result:
                print(f"{path.stem} failed: {result['error']}", file=sys.stderr)
                continue
            seeds = found.setdefault((result["recipe"], result["kind"]), {})
            if "mean" in result or "mean" not in seeds.get(result["seed"], ({},))[0]:
                seeds[result["seed"]] = (result, path.with_suffix(""))
    return found


def row(recipe: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Entry of the table: all seeds of a recipe on a kind of device, unfinished ones too. Seconds, load and cores that
    a finished seed does not have are left out.
    """
    if len({tuple(result["overrides"]) for result in results}) > 1:
        raise SystemExit(f"the seeds of {recipe} were trained with different overrides: merge folders of equal ones")
    finished = [result for result in results if "mean" in result]
    cut_s = [result["unfinished_s"] for result in results if "unfinished_s" in result]
    count, overrides = len(finished) or len(results), results[0]["overrides"]
    about = {
        **({"unfinished": len(cut_s), "unfinished_s": round(max(cut_s))} if cut_s else {}),
        **{key: joined(results, key) for key in ("device", "version", "commit") if joined(results, key)},
        "date": max(result["date"] for result in results),
        "command": f"{command_of(recipe, overrides)} --seeds {count}",
    }
    if not finished:
        return about
    from scipy.stats import t as student  # not needed where recipes are trained

    returns, target = [result["mean"] for result in finished], finished[0]["target"]
    known = {key for key in finished[0] if all(key in result for result in finished)}
    seconds = [key for key in ("training_s", "wall_s", "cpu_s") if key in known]
    medians = {key: statistics.median(result[key] for result in finished) for key in seconds}
    spread = statistics.stdev(returns) / count**0.5 * float(student.ppf(0.975, count - 1)) if count > 1 else None
    return {
        "mean_return": round(statistics.mean(returns), 3),
        **({} if spread is None else {"ci95": round(spread, 3)}),
        "seeds": count,
        "episodes": finished[0]["episodes"],
        **({} if target is None else {"target": target, "solved": sum(value >= target for value in returns)}),
        "steps": round(statistics.mean(result["steps"] for result in finished)),
        **{key: round(value, 2 if value < 10 else 1) for key, value in medians.items()},
        **({"load": round(statistics.mean(result["load"] for result in finished), 1)} if "load" in known else {}),
        **({"machine_cores": max(result["machine_cores"] for result in finished)} if "machine_cores" in known else {}),
        **({"beside": beside} if (beside := max(result.get("beside", 0) for result in finished)) else {}),
        **about,
    }


def joined(results: list[dict[str, Any]], key: str) -> str:
    """Different values of a key, in their order."""
    return ", ".join(dict.fromkeys(result[key] for result in results if key in result))


def merge(folders: list[Path], out: Path, keeping: bool, only: str | None = None) -> None:
    """Make the rows of `out` of the results in folders, or the rows of one recipe. A measured row is not replaced by
    one without a finished seed, and recipes without results keep theirs. `keeping` writes each recipe's best policy
    into the package.
    """
    table: dict[str, Any] = tomli.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
    for (recipe, kind), seeds in sorted(collected(folders).items()):
        if only not in (None, recipe):
            continue
        ordered = [seeds[seed] for seed in sorted(seeds)]
        made = row(recipe, [result for result, _ in ordered])
        entry = table.setdefault(recipe, {})
        if "mean_return" in made or "mean_return" not in entry.get(kind, {}):
            entry[kind] = made
        print(recipe, kind, made, flush=True)
        finished = [(result, path) for result, path in ordered if "mean" in result]
        if keeping and finished:
            keep(*max(finished, key=lambda pair: pair[0]["mean"]))
    out.write_text(tomli_w.dumps(dict(sorted(table.items()))), encoding="utf-8")


def keep(result: dict[str, Any], source: Path) -> None:
    """Write the policy of a result into the package."""
    if "commit" not in result:
        raise SystemExit(f"{source.name} names no commit, which a shipped policy has: train it with --commit")
    (checkpoint,) = (source / "checkpoints").glob("step-*")
    config = (checkpoint / "config.toml").read_text(encoding="utf-8")
    found, seed = tomli.loads(config), result["seed"]
    folder = zoo.FOLDER / found["env"]["name"]
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source / "checkpoints", folder / "checkpoints")
    (folder / "config.toml").write_text(config, encoding="utf-8")
    about = {
        "env": found["env"]["name"],
        "algo": found["algo"]["name"],
        "recipe": result["recipe"],
        "command": f"{command_of(result['recipe'], result['overrides'])} run.seed={seed}",
        "seed": seed,
        "step": result["steps"],
        "return": round(result["mean"], 3),
        "ci95": round(result["ci95"], 3),
        "episodes": result["episodes"],
        "version": result["version"],
        "commit": result["commit"],
    }
    if (model := getattr(envs.find(about["env"]), "source", None)) is not None:
        about["extra"] = model.extra  # installs MuJoCo, which compiles a robot's model
    kept = {"schema": 1, "id": folder.name, "uuid": result["uuid"], "env": about["env"], "algo": about["algo"]}
    (folder / "run.json").write_text(json.dumps({**kept, "zoo": about}, indent=1) + "\n", encoding="utf-8")
    export(folder.name)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def export(name: str) -> None:
    """Write a policy of the zoo as the file that `operant eval --render term` plays without torch, if its environment
    needs no compiler either: not for a robot, nor for observations by pictures.
    """
    shipped = zoo.find(f"{zoo.PREFIX}{name}")
    assert shipped is not None
    loaded = load_policy.load(
        f"{zoo.PREFIX}{name}", runs.scope(None), which=None, device="cpu", report=print, trusted=True
    )
    environment = loaded.config.environment.ready(loaded.config.params)
    if not environment.pixels and not environment.picture:
        policy.write(loaded.policy, loaded.config.params, zoo.exported(shipped), "safetensors")


# COMMAND


def wanted(arguments: argparse.Namespace) -> dict[str, list[Pair]]:
    """Pairs to train by recipe, from the command line; `all` without those that this machine cannot train."""
    kind = "cpu" if arguments.device == "cpu" else "gpu"
    seeds = arguments.seed or list(range(1, arguments.seeds + 1))
    found: dict[str, list[Pair]] = {}
    for text in recipes.shipped() if arguments.recipes == ["all"] else arguments.recipes:
        recipe, _, more = text.partition(":")
        if arguments.recipes == ["all"] and (reason := missing(recipe)) is not None:
            print(f"{recipe} is skipped: {reason}", file=sys.stderr)
            continue
        own = re.split(r",(?=[\w.]+=)", more) if more else SHORT.get(recipe, "").split() if arguments.short else []
        found[recipe] = [Pair(recipe, (*own, *arguments.set), kind, seed) for seed in seeds]
    return found


def train(arguments: argparse.Namespace) -> bool:
    """Train the wanted recipes; without `--results` one after the other, and write the table after each. Returns
    whether all have finished.
    """
    with contextlib.ExitStack() as stack:
        results = arguments.results or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs_at = arguments.runs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        results.mkdir(parents=True, exist_ok=True)
        runs_at.mkdir(parents=True, exist_ok=True)
        bench, pairs = Bench(arguments, results, runs_at), wanted(arguments)
        if arguments.results is not None:
            return bench.train([pair for own in pairs.values() for pair in own])
        done = True
        for recipe, own in pairs.items():
            done &= bench.train(own)
            merge([results], arguments.out, arguments.keep, only=recipe)
        return done


def main() -> None:
    """Train, or merge results; exit code 1 if a seed has not finished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=_FAST)
    parser.add_argument("--seeds", type=int, default=5, help="seeds 1 to N")
    parser.add_argument("--seed", type=int, action="append", metavar="N", help="this seed alone; may be repeated")
    parser.add_argument("--episodes", type=int, default=1024)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("zoo.toml"))
    parser.add_argument("--results", type=Path, metavar="DIR", help="write results here instead of the table")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="DIR", help="make rows of the results in folders")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--cores", type=int, help="cores of each run; default: an equal share")
    parser.add_argument("--limit", type=float, metavar="S", help="seconds after which to end")
    parser.add_argument("--runs", type=Path, help="keep the run folders here")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")
    parser.add_argument("--short", action="store_true", help="override keys of long recipes")
    parser.add_argument("--commit", help="commit of the code, where there is no git")
    parser.add_argument("--keep", action="store_true", help="write the best seed's policy into the package")
    arguments = parser.parse_args()
    if not re.fullmatch(r"cpu|cuda(:\d+)?", arguments.device):
        raise SystemExit(f"--device {arguments.device}: must be cpu, cuda or cuda:N")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if arguments.merge:
            merge(arguments.merge, arguments.out, arguments.keep)
            return
        if not train(arguments):
            raise SystemExit(1)
    except OperantError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
