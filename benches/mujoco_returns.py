"""Train recipes of Gymnasium's MuJoCo tasks, and play their policies in Gymnasium's own environments. JSON lines.

    python benches/mujoco_returns.py models FOLDER
    OPERANT_MODELS=FOLDER python benches/mujoco_returns.py train RECIPE ... --out RUNS [--seeds 1,2,3,4,5]
        [--seconds 30] [--override KEY=VALUE ...]
    OPERANT_MODELS=FOLDER python benches/mujoco_returns.py session --out RUNS [--seeds 1,2,3,4,5] [--budget 560]
        [--share 1] [--only RECIPE ...] [--override KEY=VALUE ...]
    python benches/mujoco_returns.py play RUNS [--episodes 1000] [--lanes 50] [--processes 2] [--parts 1]

`session` trains the recipes of `JOBS`, or those named, on all GPUs that it sees, `--share` runs on each at a time: all
of them with one seed before the next. It compiles their kernels before, in parallel. After `--budget` seconds it stops
what still runs, whose best policy so far is kept. Each run is in one file, RECIPE-SEED.tar, or RECIPE-SEED-stopped.tar;
runs that RUNS has to their end are not trained again. Seconds of training are comparable with `--share 1` only;
`limit_s` is the time that the recipe aims at.

`models` compiles every task's model where `mujoco` is installed, `train` needs only its files, and `play` needs
Gymnasium and `mujoco`, but no GPU. With `--seconds` the number of steps is what the algorithm's phases take in this
time, measured by a short run before; otherwise it is the recipe's. `training_s` is the time of these phases without the
first iteration, by the device's clock; `fresh` the mean return of `--episodes` greedy episodes in our own environment
by the last policy. What is kept of a run is the policy with the highest evaluation during training, or the last without
evaluations. `play` loads it for every run in a folder, or in a .tar file there. With `--parts` the episodes of a run
are divided among processes, each with its own seed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import gc
import itertools
import json
import logging
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from recipes import FRESH_SEED, evaluations, trained_s

from operant import envs, runs
from operant.config import request
from operant.envs.physics import PhysicsEnv
from operant.errors import StoppedError
from operant.runs.checkpoints import Store
from operant.training import worker
from operant.training.evaluate import Evaluator
from operant.training.requests import Requests

CALIBRATION_SHARE = 0.02  # of the recipe's steps


class Job(NamedTuple):
    """Recipe to train on a GPU, and the time that its training may take."""

    recipe: str
    limit_s: float
    overrides: tuple[str, ...] = ()


_HALF_CHEETAH = (
    *(
        "env.lanes=4096",
        "net.hidden=[256,256]",
        "algo.precision=bf16",
        "algo.optimizer=muon",
        "algo.learning_rate=3e-3",
    ),
    *("algo.gamma=0.98", "algo.gae_lambda=0.9", "run.steps=100M", "eval.every=120", "eval.episodes=256"),
)
_SWIMMER = ("env.lanes=128", "algo.minibatches=64", "run.steps=16M")
_REACHER = ("env.lanes=4096", "run.steps=100M", "eval.every=100")
_PUSHER = (
    *("env.lanes=128", "algo.horizon=8", "algo.updates_per_step=16", "algo.batch_size=512", "net.hidden=[256,256]"),
    *("algo.n_step=1", "algo.precision=bf16", "algo.replay_capacity=2M", "eval.every=100", "run.steps=1800k"),
)
_DOUBLE_PENDULUM = ("algo.learning_rate=3e-4", "run.steps=8M")
JOBS = (
    Job("sac/half_cheetah", 300.0),
    Job("ppo/humanoid", 600.0),
    Job("ppo/ant", 120.0),
    Job("ppo/hopper", 45.0),
    Job("ppo/walker2d", 45.0),
    Job("ppo/half_cheetah", 30.0, _HALF_CHEETAH),
    Job("ppo/reacher", 30.0, _REACHER),
    Job("sac/pusher", 30.0, _PUSHER),
    Job("ppo/swimmer", 30.0, _SWIMMER),
    Job("ppo/inverted_double_pendulum", 30.0, _DOUBLE_PENDULUM),
    Job("ppo/inverted_pendulum", 30.0),
    Job("ppo/humanoid_standup", 600.0),
)
"""Recipes by the time that they take, with what a GPU needs other than the recipe."""


def models(folder: Path) -> None:
    """Compile the model of each shipped task that is covered into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in envs.names():
        env = envs.find(name)
        if isinstance(env, PhysicsEnv) and env.source is not None:
            content = env.ready().model.save()
            (folder / env.source.name).write_bytes(content)
            print(json.dumps({"model": name, "bytes": len(content)}), flush=True)


def train(recipe: str, seed: int, overrides: list[str], root: Path) -> tuple[Any, runs.Run, float]:
    """Train one recipe with one seed, to its end or a signal to stop. Returns the trainer, the run, and the seconds of
    the whole call.
    """
    asked = request.make(
        [*overrides, "checkpoint.keep=1"], config=recipe, environment_file=None, settings={"run.seed": seed}
    )
    run, requests, began_s = runs.create(root, None, asked.prefix, asked.document()), Requests(), time.perf_counter()
    with requests:
        lock = runs.acquire(run.path)
        try:
            trainer, team = worker.prepare(run.path, resume=None, requests=requests)
            with contextlib.suppress(StoppedError):
                trainer.run(lock)
            team.end()
        finally:
            requests.restore()
            lock.release()
    return trainer, run, time.perf_counter() - began_s


def steps_in(recipe: str, seconds: float, overrides: list[str]) -> int:
    """Number of steps that the algorithm takes in a time, by a run of a small share of the recipe's steps."""
    steps = request.make(overrides, config=recipe, environment_file=None, settings={}).load().run.steps
    short = [*overrides, f"run.steps={max(1, int(CALIBRATION_SHARE * steps))}", "eval.every=0", "run.target=none"]
    with tempfile.TemporaryDirectory() as folder:
        trainer, run, _ = train(recipe, 1, short, Path(folder))
        return int(seconds * trainer.step / max(trained_s(run.path), 1e-3))


def trained(recipe: str, seed: int, overrides: list[str], episodes: int, root: Path) -> dict[str, Any]:
    """Train one recipe with one seed and play greedy episodes in our own environment with its last policy."""
    trainer, run, wall_s = train(recipe, seed, overrides, root)
    config = trainer.config
    fresh: dict[str, Any] = {}
    if episodes:
        actor = trainer.algo.actor
        found = Evaluator(actor, config.environment, config.params, episodes=episodes, seed=FRESH_SEED + seed).run(0)
        fresh = {
            "fresh": round(found.mean, 2),
            "fresh_ci95": round(found.ci95 or 0.0, 2),
            "length": round(found.length, 1),
            "tally": {name: round(value, 4) for name, value in found.tally.items()},
        }
    said = evaluations(run.path) if config.eval.every else []
    strip(run, "best" if config.eval.every else "last")
    return {
        "run": run.path.name,
        "steps": trainer.step,
        **({"stopped": True} if trainer.step < config.run.steps and config.run.target is None else {}),
        "training_s": round(trained_s(run.path), 3),
        "wall_s": round(wall_s, 2),
        "target": config.run.target,
        **fresh,
        "curve": [[line["step"], round(line["mean"], 1)] for line in said],
    }


def strip(run: runs.Run, which: str) -> None:
    """Leave of a finished run what `play` needs, the policy of its checkpoint `which` ("best" or "last"): runs come
    back from another machine.
    """
    for useless in ("metrics.mm", "run.lock"):
        (run.path / useless).unlink(missing_ok=True)
    place = run.path / "checkpoints"
    kept = Store(place, run_uuid=run.uuid.hex(), report=print).load(which)
    config = (run.path / "config.toml").read_text(encoding="utf-8")
    policy = {name: tensor for name, tensor in kept.tensors.items() if name.startswith("policy/")}
    shutil.rmtree(place)
    Store(place, run_uuid=run.uuid.hex(), report=print).save(kept.step, policy, kept.document, session=1, config=config)


def play(path: Path, episodes: int, lanes: int, seed: int) -> list[float]:
    """Play greedy episodes in Gymnasium's own environment with the last policy of a run. Returns their returns."""
    import gymnasium

    import operant

    policy = operant.load(path, "last", device="cpu")
    vector = gymnasium.make_vec(policy.env.gymnasium, num_envs=lanes, vectorization_mode="sync")
    low, high = vector.single_action_space.low, vector.single_action_space.high
    returns: list[float] = []
    running, begun, ended = np.zeros(lanes), np.zeros(lanes, int), np.zeros(lanes, bool)
    observation, _ = vector.reset(seed=seed)
    share = math.ceil(episodes / lanes)  # the first episodes of each lane: short ones do not crowd out long ones
    while begun.min() < share:
        action = np.clip(policy(observation.astype(np.float32)), low, high)
        observation, reward, terminated, truncated, _ = vector.step(action)
        running += np.where(ended, 0.0, reward)  # the step after an end is a reset
        ended = terminated | truncated
        returns += [float(running[k]) for k in np.flatnonzero(ended) if begun[k] < share]
        begun, running = begun + ended, np.where(ended, 0.0, running)
    vector.close()
    return returns


def line_of(recipe: str, seed: int, overrides: list[str], episodes: int, root: Path) -> dict[str, Any]:
    """Train one recipe with one seed, then free the device's memory.

    Returns the result to print: returns, steps and seconds, or the error of a training that failed.
    """
    line: dict[str, Any] = {"recipe": recipe, "seed": seed}
    try:
        line |= trained(recipe, seed, overrides, episodes, root)
    except Exception as error:  # continue with the others
        line |= {"error": f"{type(error).__name__}: {error}"[:300]}
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return line


class Session:
    """Trains jobs in processes of their own on several GPUs, and packs each run into a file."""

    def __init__(self, out: Path, budget_s: float, share: int, more: list[str], episodes: int) -> None:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
        self.places: list[str | None] = [*seen.split(",")] * share if seen else [None]  # GPU of each run at a time
        self.out, self.more, self.episodes = out, more, episodes
        self.end_s = time.perf_counter() + budget_s
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()

    def run(self, jobs: list[Job], seeds: list[int]) -> None:
        """Compile the kernels of all recipes, then train each recipe with each seed until the time budget is spent."""
        waiting = [(job, seed) for seed in seeds for job in jobs if not self._file_of(job, seed).exists()]
        jobs = [job for job in jobs if any(job is other for other, _ in waiting)]
        if not jobs:
            return
        stopper = threading.Timer(max(0.0, self.end_s - time.perf_counter()), self._stop)
        stopper.daemon = True
        stopper.start()
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
            list(pool.map(self._warm, jobs, itertools.cycle(dict.fromkeys(self.places))))
        with concurrent.futures.ThreadPoolExecutor(len(self.places)) as pool:
            list(pool.map(self._work, self.places, itertools.repeat(waiting)))
        stopper.cancel()
        for job, seed in waiting:
            print(json.dumps({"recipe": job.recipe, "seed": seed, "skipped": "no time left"}), flush=True)

    def _warm(self, job: Job, place: str | None) -> None:
        """Fill the cache of compiled kernels for a recipe: train for two iterations and evaluate once."""
        overrides = [*job.overrides, *self.more]
        config = request.make(overrides, config=job.recipe, environment_file=None, settings={}).load()
        steps = getattr(config.algo, "learning_starts", 0) + 2 * config.algo.horizon * int(config.env.lanes)
        more = [f"run.steps={steps}", "eval.every=2", "eval.episodes=8", "run.target=none"]
        with tempfile.TemporaryDirectory() as folder:
            began_s = time.perf_counter()
            self._train(job, 1, Path(folder), place, more, episodes=0)
            took_s = round(time.perf_counter() - began_s, 1)
        print(json.dumps({"recipe": job.recipe, "compiled_s": took_s}), flush=True)

    def _work(self, place: str | None, waiting: list[tuple[Job, int]]) -> None:
        """Train waiting jobs on a GPU until none is left or the budget is spent."""
        while time.perf_counter() < self.end_s:
            with self._lock:
                if not waiting:
                    return
                job, seed = waiting.pop(0)
            with tempfile.TemporaryDirectory() as folder:
                line = self._train(job, seed, Path(folder), place)
                if "error" not in line:
                    with tarfile.open(self._file_of(job, seed, "-stopped" if "stopped" in line else ""), "w") as file:
                        for path in sorted(Path(folder).iterdir()):
                            file.add(path, path.name)
            print(json.dumps(line | {"gpu": place, "limit_s": job.limit_s}), flush=True)

    def _file_of(self, job: Job, seed: int, how: str = "") -> Path:
        """Path of the .tar file of a run; `how` ends its name."""
        return self.out / f"{job.recipe.replace('/', '_')}-{seed}{how}.tar"

    def _train(
        self,
        job: Job,
        seed: int,
        folder: Path,
        place: str | None,
        more: Sequence[str] = (),
        episodes: int | None = None,
    ) -> dict[str, Any]:
        """Train a recipe with a seed in a separate process on GPU `place`, and play `episodes` (default: all) with its
        policy. Returns the result that it printed.
        """
        command = [sys.executable, __file__, "train", job.recipe, "--seeds", str(seed), "--out", str(folder)]
        episodes = self.episodes if episodes is None else episodes
        command += ["--episodes", str(episodes), "--override", *job.overrides, *self.more, *more]
        variables = {} if place is None else {"CUDA_VISIBLE_DEVICES": place}
        with self._lock:
            if time.perf_counter() >= self.end_s:
                return {"recipe": job.recipe, "seed": seed, "error": "no time left"}
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | variables
            )
            self._running.add(process)
        said, errors = process.communicate()
        with self._lock:
            self._running.discard(process)
        lines = [json.loads(line) for line in said.splitlines()]
        if process.returncode or "recipe" not in lines[-1]:
            return {"recipe": job.recipe, "seed": seed, "error": f"exit code {process.returncode}: {errors[-500:]}"}
        return dict(lines[-1])

    def _stop(self) -> None:
        """Ask all trainings to stop, which then keep their best policy."""
        with self._lock:
            for process in self._running:
                process.terminate()


def play_all(runs_at: Path, episodes: int, lanes: int, processes: int, parts: int) -> None:
    """Play trained policies in Gymnasium's own environments and print the returns of each: those of all runs in a
    folder, also of runs in .tar files there. `processes` play at the same time; a run's episodes are in `parts` with a
    seed each.
    """
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(runs_at.rglob("*.tar")):
            with tarfile.open(path) as file:
                file.extractall(Path(folder, path.stem), filter="data")
        found = [path.parent for place in (runs_at, Path(folder)) for path in sorted(place.rglob("run.json"))]
        # A process that trains has threads, which a fork would not copy.
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool:
            share = math.ceil(episodes / parts)
            played = {
                path: [pool.submit(play, path, share, min(lanes, share), 1 + 10_000 * k) for k in range(parts)]
                for path in found
            }
            for path, futures in played.items():
                returns = [value for future in futures for value in future.result()]
                mean, deviation = float(np.mean(returns)), float(np.std(returns))
                line = {
                    "run": path.name,
                    "from": path.parent.name,
                    "episodes": len(returns),
                    "mean": round(mean, 2),
                    "ci95": round(1.96 * deviation / math.sqrt(len(returns)), 2),
                    "least": round(min(returns), 1),
                    "most": round(max(returns), 1),
                }
                print(json.dumps(line), flush=True)


def main() -> None:
    """Run the part named on the command line: models, train, session or play."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("models").add_argument("folder", type=Path)
    training = parts.add_parser("train")
    training.add_argument("recipes", nargs="+")
    training.add_argument("--out", type=Path, required=True)
    training.add_argument("--seeds", default="1,2,3,4,5")
    training.add_argument("--seconds", type=float)
    training.add_argument("--episodes", type=int, default=1024)
    training.add_argument("--override", nargs="*", default=[])
    timed = parts.add_parser("session")
    timed.add_argument("--out", type=Path, required=True)
    timed.add_argument("--seeds", default="1,2,3,4,5")
    timed.add_argument("--budget", type=float, default=560.0)
    timed.add_argument("--share", type=int, default=1, help="runs on each GPU at a time")
    timed.add_argument("--only", nargs="*", default=[], metavar="RECIPE")
    timed.add_argument("--episodes", type=int, default=1024)
    timed.add_argument("--override", nargs="*", default=[])
    playing = parts.add_parser("play")
    playing.add_argument("runs", type=Path)
    playing.add_argument("--episodes", type=int, default=1000)
    playing.add_argument("--lanes", type=int, default=50)
    playing.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    playing.add_argument("--parts", type=int, default=1)
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    if arguments.part == "models":
        models(arguments.folder)
        return
    if arguments.part == "play":
        play_all(arguments.runs, arguments.episodes, arguments.lanes, arguments.processes, arguments.parts)
        return
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(json.dumps({"device": where, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}), flush=True)
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp()  # these runs stay out of the user's list
    arguments.out.mkdir(parents=True, exist_ok=True)
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    if arguments.part == "session":
        known = {job.recipe: job for job in JOBS}
        jobs = [known.get(recipe, Job(recipe, 300.0)) for recipe in arguments.only or known]
        session = Session(arguments.out, arguments.budget, arguments.share, arguments.override, arguments.episodes)
        session.run(jobs, seeds)
        return
    for recipe in arguments.recipes:
        overrides = list(arguments.override)
        if arguments.seconds is not None:
            overrides.append(f"run.steps={steps_in(recipe, arguments.seconds, overrides)}")
        for seed in seeds:
            print(json.dumps(line_of(recipe, seed, overrides, arguments.episodes, arguments.out)), flush=True)


if __name__ == "__main__":
    main()
