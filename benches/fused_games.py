"""Dense policies of the games in fused kernels on this machine's GPU: correctness first, then speed compared with
torch.

    OUT=FOLDER python benches/fused.py --wide --games [--seconds 120] [--only snake,go] [--tiny]

Each game uses the network and the hyperparameters of its shipped configuration; games that ship with convolutions use
[256, 256] with a shared trunk. Checks in tf32 and bf16: the gradient of a minibatch against float64 autograd (fp32 as
well), the actions of the first step against the torch path, and whether 200 iterations end with identical bytes again,
eager, and resumed. Then steps per second, fused and torch, at 8,192 lanes x 32, and the cost of each tile config.

Every result is a line of JSON, printed and written to $OUT/games.jsonl at once. Each game and precision is checked in a
separate process, so that one that breaks the GPU's context affects no other; timings run alone, afterwards. No new work
starts after the time limit. `--tiny` runs the same code on a CPU in Triton's interpreter with few lanes, as a smoke
test.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from fused_probe import trainer
from fused_wide import LIMITS, Sizes, Task, actions, bits, gradient, peaks, rates, shape_costs
from records import Records

from operant.algos.ppo import PPO
from operant.compute.runtime import usable_cores
from operant.config import load as config
from operant.config import recipes
from operant.envs import find
from operant.nn import mlp

GAMES = ("snake", "pacman", "g2048", "go", "breakout")

DENSE = {"hidden": [256, 256], "activation": "relu", "shared": True}
"""Network of a game that ships with convolutions."""

LEFT_OUT = ("precision", "kernels", "kernel_config", "horizon", "anneal_steps", "microbatch")
"""Keys of [algo] set by the bench instead of the configuration."""

SIZES = Sizes(horizon=32, iterations=200)
TINY = Sizes("cpu", 8, 4, gradient_lanes=8, run_lanes=8, iterations=2, microbatch=128, workers=2)

BENT = {"fp32": 1e-5, "tf32": 6e-3, "bf16": 3e-2}
"""Tolerance of the relative error of a gradient with relu. Where rounding carries a unit across the kink, its whole
contribution to a sample's gradient appears or vanishes. (In the interpreter, tf32, Pacman's network: 3.3e-3; with tanh
or silu instead of relu 0.9e-3 and 0.7e-3.) Therefore silu is measured as well.
"""

CHECKED_SHARE = 0.6
"""Fraction of the time limit after which unfinished checks are stopped."""


@dataclass(frozen=True)
class Game(Task):
    """Network of a game in one precision and tile config, and its checks."""

    __hash__ = Task.__hash__

    def trainer(self, sizes: Sizes, lanes: int, horizon: int, kernels: str = "fused", **more: Any) -> PPO:
        """Trainer of this game."""
        given = {"precision": self.precision, "kernel_config": self.shape or "first", **self.algo, **more}
        return trainer(
            find(self.env),
            mlp.Config(**self.net),
            lanes=lanes,
            horizon=horizon,
            where=sizes.where,
            kernels=kernels,
            **given,
        )


def game(name: str, precision: str, *, tiny: bool = False) -> Game:
    """A game with its shipped configuration, adapted where necessary."""
    shipped = config.load(recipes.find_source(f"ppo/{name}"))
    algo = {key: value for key, value in shipped.algo.model_dump().items() if key not in LEFT_OUT}
    net = shipped.net.model_dump() if shipped.net.kind == "mlp" else DENSE
    if tiny:
        net = {**net, "hidden": [min(width, 32) for width in net["hidden"]]}
        algo = {**algo, "epochs": 1, "minibatches": 2}
    return Game("", name, net, algo, precision)


# CHECKS, of one game and precision a process


def checks(task: Game, sizes: Sizes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and results of the checks."""
    asked: dict[str, Callable[[Game, Sizes], dict[str, Any]]] = {"gradient": _gradient}
    if task.precision != "fp32" or sizes.where == "cpu":
        asked |= {"actions": actions, "bits": bits, "smooth": _smooth}
    for name, function in asked.items():
        began_s = time.monotonic()
        try:
            found = function(task, sizes)
        except Exception as error:
            traceback.print_exc(limit=-5)
            found = {"verdict": f"FAILED: {type(error).__name__}: {str(error)[:300]}"}
        yield name, {**found, "took_s": round(time.monotonic() - began_s, 1)}


def _gradient(task: Game, sizes: Sizes) -> dict[str, Any]:
    """Gradient error with the game's network. A minibatch of its small rollout has several microbatches."""
    found = gradient(replace(task, algo={**task.algo, "minibatches": 4}), sizes)
    if task.net["activation"] == "relu" and found.get("error", math.inf) <= BENT[task.precision]:
        found["verdict"] = "ok"
    return found


def _smooth(task: Game, sizes: Sizes) -> dict[str, Any]:
    """Gradient error with a smooth activation."""
    return gradient(replace(task, algo={**task.algo, "minibatches": 4}, net={**task.net, "activation": "silu"}), sizes)


# SPEED, of all games in a process


def speeds(name: str, sizes: Sizes, peak: dict[str, float]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Steps per second of a game, fused in both precisions and with torch, and the cost of each tile config."""
    for kernels, precision in (("fused", "tf32"), ("fused", "bf16"), ("torch", "tf32")):
        said = {"kernels": kernels, "precision": precision}
        try:
            task = game(name, precision, tiny=sizes.where == "cpu")
            task = replace(task, algo={**task.algo, "anneal": False, "learning_rate": 2.5e-4})
            ppo = task.trainer(sizes, sizes.lanes, sizes.horizon, kernels=kernels, kernel_config="")
            yield (
                "speed",
                {
                    **said,
                    "net": task.net["hidden"],
                    **rates(ppo, sizes, tuple(task.net["hidden"]), peak.get(precision, float("nan"))),
                },
            )
            if ppo.kernels == "fused" and sizes.where == "cuda":
                costs = Collected()
                shape_costs(costs, ppo, tuple(task.net["hidden"]), precision)
                for fields in costs.found:
                    yield "shape", fields
        except Exception as error:
            traceback.print_exc(limit=-5)
            yield "speed", {**said, "verdict": f"FAILED: {type(error).__name__}: {str(error)[:300]}"}


class Collected:
    """Records that are collected instead of written."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def add(self, what: str, **fields: Any) -> None:
        """Store a record."""
        self.found.append(fields)


# PROCESSES


def child(words: Sequence[str]) -> None:
    """Entry point `check GAME PRECISION` or `speed GAME ...`, optionally after `tiny`: prints results as JSON lines."""
    tiny = words[0] == "tiny"
    sizes = TINY if tiny else SIZES
    if tiny:
        from interpreter import teach

        teach()
        torch.set_num_threads(1)
        words = words[1:]

    def tell(what: str, fields: dict[str, Any]) -> None:
        print(json.dumps({"what": what, **fields}), flush=True)

    if words[0] == "check":
        for what, fields in checks(game(*words[1:], tiny=tiny), sizes):
            tell(what, fields)
        return
    peak = peaks() if not tiny else {}
    tell("peaks", peak)
    for name in words[1:]:
        for what, fields in speeds(name, sizes, peak):
            tell(what, {"game": name, **fields})
            if "CUDA error" in str(fields.get("verdict", "")):
                sys.exit(1)  # nothing else can run in this process


class Children:
    """Processes of this script whose lines become records; `stop` ends all of them."""

    def __init__(self, records: Records, *, tiny: bool) -> None:
        self._records, self._tiny, self._lock = records, tiny, threading.Lock()
        self._running: list[subprocess.Popen] = []
        self._stopped = False
        self.found: list[dict[str, Any]] = []

    def run(self, *words: str, **fields: Any) -> int:
        """Run a child to its end and return its exit status. `fields` are added to each of its lines."""
        command = [
            sys.executable,
            "-W",
            "ignore",
            str(Path(__file__).resolve()),
            *(["tiny"] if self._tiny else []),
            *words,
        ]
        with self._lock:
            if self._stopped:
                return 0
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            )
            self._running.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            try:
                found = {**fields, **json.loads(line)}
            except ValueError:
                print(line, end="", flush=True)  # output of a library
                continue
            self._add(found)
        status = process.wait()
        if status and not self._stopped:
            self._add(
                {"what": "process", **fields, "words": list(words), "verdict": f"FAILED: it ended with status {status}"}
            )
        return status

    def _add(self, found: dict[str, Any]) -> None:
        with self._lock:
            self.found.append(found)
            self._records.add(**found)

    def stop(self) -> None:
        """End all running children and start no more."""
        with self._lock:
            self._stopped = True
        for process in self._running:
            if process.poll() is None:
                process.terminate()


def check_all(records: Records, games: Sequence[str], *, tiny: bool, limit_s: float) -> None:
    """Check all games in all precisions in parallel; reports what was not reached."""
    children = Children(records, tiny=tiny)
    precisions = ("fp32",) if tiny else ("bf16", "tf32", "fp32")
    wanted = [(name, precision) for precision in precisions for name in games]
    asked = [
        (*pair, what)
        for pair in wanted
        for what in (("gradient",) if pair[1] == "fp32" and not tiny else ("gradient", "actions", "bits", "smooth"))
    ]
    timer = threading.Timer(max(0.0, limit_s - records.elapsed_s()), children.stop)
    timer.start()
    with ThreadPoolExecutor(max_workers=2 if tiny else min(15, max(2, usable_cores() - 1))) as pool:
        list(pool.map(lambda pair: children.run("check", *pair, game=pair[0], precision=pair[1]), wanted))
    timer.cancel()
    answered = {(found.get("game"), found.get("precision"), found["what"]) for found in children.found}
    worst: dict[str, float] = {}
    for found in children.found:
        if "error" in found:
            worst[found["precision"]] = max(worst.get(found["precision"], 0.0), found["error"])
    bad = [
        f"{found.get('game')} {found.get('precision')} {found['what']}"
        for found in children.found
        if found.get("verdict") not in ("ok", None)
    ]
    records.add(
        "checked",
        worst=worst,
        allowed=LIMITS,
        allowed_behind_relu=BENT,
        bad=bad,
        not_reached=[" ".join(question) for question in asked if question not in answered],
    )


def time_all(records: Records, games: Sequence[str], *, tiny: bool, limit_s: float) -> None:
    """Time all games one after another, continuing with the next one after a crash."""
    children = Children(records, tiny=tiny)
    timer = threading.Timer(max(0.0, limit_s - records.elapsed_s()), children.stop)
    timer.start()
    left = list(games)
    while left and records.elapsed_s() < limit_s:
        if children.run("speed", *left) == 0:
            break
        begun = [found["game"] for found in children.found if "game" in found]
        left = left[left.index(begun[-1]) + 1 :] if begun and begun[-1] in left else left[1:]
    timer.cancel()
    timed = {found["game"] for found in children.found if found["what"] == "speed" and found.get("verdict") == "ok"}
    records.add("timed", not_reached=[name for name in games if name not in timed])


def main(*, tiny: bool, limit_s: float, games: Sequence[str] = GAMES) -> None:
    """Check, then time."""
    sizes = TINY if tiny else SIZES
    records = Records("games")
    gpu = "none" if tiny else torch.cuda.get_device_name()
    records.add("began", gpu=gpu, torch=torch.__version__, sizes=asdict(sizes), games=list(games))
    check_all(records, games, tiny=tiny, limit_s=CHECKED_SHARE * limit_s)
    time_all(records, games, tiny=tiny, limit_s=limit_s)
    records.add("done")


if __name__ == "__main__":
    child(sys.argv[1:])
