"""Zoo: each recipe trained with several seeds, and the table of its results for the documentation.

    python benches/zoo.py [RECIPE ...] [--seeds 5] [--episodes 1024] [--device cpu] [--out benches/zoo.toml]
        [--runs DIR] [--set KEY=VALUE ...] [--keep]

Trains with the command that a user types, in one process, and evaluates the checkpoint that `operant eval` takes (the
best of training's evaluations) greedily in fresh episodes.
A recipe's entry has: `mean_return` over seeds and `ci95`, half its 95 % interval (Student's t over seeds); `solved`,
the number of seeds that reach `target`; and means over seeds of the checkpoint's environment `steps`, `wall_s` (the
whole command) and `cpu_s` (user and system time of all threads). `cpu_s` depends less than `wall_s` on other programs
of the machine; `load` is the machine's mean number of runnable threads during the runs, these included, and `commit`
the code's. Recipes that are not named keep their entries. docs/hooks.py makes the page's table from the file.

`--set` overrides keys of the recipe, as the entry's command says. `--runs` keeps the run folders, RECIPE-SEED each.
`--keep` writes the policy of the seed with the highest return into the package, as `zoo:ENVIRONMENT`, and its export.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tomli
import tomli_w
from scipy.stats import t as student

import operant
from operant import __version__, envs, runs
from operant.config import recipes
from operant.config.load import load
from operant.export import policy
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
_EVALUATION_SEED = 1_000_003


def trained(recipe: str, seed: int, device: str, episodes: int, place: Path, overrides: list[str]) -> dict[str, Any]:
    """Train one seed and evaluate it: mean return, steps, wall and CPU seconds."""
    name = f"{recipe.replace('/', '-')}-{seed}"
    program = [sys.executable, "-m", "operant.cli"]
    words = [
        "train",
        "--config",
        recipe,
        "--seed",
        str(seed),
        "--device",
        device,
        "--name",
        name,
        "--inline",
        *overrides,
    ]
    began = time.monotonic()
    with (place / f"{name}.txt").open("w") as log:
        process = subprocess.Popen([*program, *words, "--runs", str(place)], stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - began
    if process.returncode:
        raise SystemExit(f"{recipe}, seed {seed}: exit code {process.returncode}; see {log.name}")
    asked = ["eval", name, "--episodes", str(episodes), "--seed", str(_EVALUATION_SEED), "--json", "--runs", str(place)]
    done = subprocess.run([*program, *asked, "--device", device], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    return {
        "seed": seed,
        "checkpoint": Path(found["checkpoint"]),
        "mean": found["greedy"]["mean"],
        "ci95": found["greedy"]["ci95"],
        "steps": found["step"],
        "wall_s": wall,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "load": os.getloadavg()[0],
    }


def commit() -> str:
    """Commit of the code that trains, abbreviated."""
    asked = ["git", "-C", str(Path(operant.__file__).parent), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def keep(recipe: str, result: dict[str, Any], episodes: int, overrides: list[str]) -> None:
    """Write the policy of a trained seed into the package: its checkpoint without all that only training needs."""
    source: Path = result["checkpoint"]
    run = runs.load(source.parent.parent)
    assert run is not None
    checkpoint = load_file(source)
    config = (source / "config.toml").read_text(encoding="utf-8")
    found = tomli.loads(config)
    folder = zoo.FOLDER / found["env"]["name"]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(config, encoding="utf-8")
    about = {
        "env": found["env"]["name"],
        "algo": found["algo"]["name"],
        "recipe": recipe,
        "command": " ".join(["operant train --config", recipe, *overrides, f"run.seed={result['seed']}"]),
        "seed": result["seed"],
        "step": checkpoint.step,
        "return": round(result["mean"], 3),
        "ci95": round(result["ci95"], 3),
        "episodes": episodes,
        "version": __version__,
        "commit": commit(),
    }
    if (model := getattr(envs.find(about["env"]), "source", None)) is not None:
        about["extra"] = model.extra  # installs MuJoCo, which compiles a robot's model
    kept = {"schema": 1, "id": folder.name, "uuid": run.document["uuid"], "env": about["env"], "algo": about["algo"]}
    (folder / "run.json").write_text(json.dumps({**kept, "zoo": about}, indent=1) + "\n", encoding="utf-8")
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith("policy/")}
    store = Store(folder / "checkpoints", run_uuid=run.uuid.hex(), report=print)
    if store.save(checkpoint.step, tensors, checkpoint.document, session=1, config=config) is None:
        raise SystemExit(f"{folder} could not be written")
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


def entry(arguments: argparse.Namespace, recipe: str, place: Path) -> dict[str, Any]:
    """Row of the table: all seeds of a recipe."""
    seeds, device, episodes, overrides = arguments.seeds, arguments.device, arguments.episodes, arguments.set
    results = [trained(recipe, seed, device, episodes, place, overrides) for seed in range(1, seeds + 1)]
    if arguments.keep:
        keep(recipe, max(results, key=lambda result: result["mean"]), episodes, overrides)
    returns = [result["mean"] for result in results]
    spread = statistics.stdev(returns) / seeds**0.5 * float(student.ppf(0.975, seeds - 1)) if seeds > 1 else None
    target = load(recipes.find_source(recipe)).run.target
    means = {key: statistics.mean(result[key] for result in results) for key in ("steps", "wall_s", "cpu_s", "load")}
    return {
        "mean_return": round(statistics.mean(returns), 3),
        **({} if spread is None else {"ci95": round(spread, 3)}),
        "seeds": seeds,
        "episodes": episodes,
        **({} if target is None else {"target": target, "solved": sum(value >= target for value in returns)}),
        "steps": round(means["steps"]),
        **{key: round(means[key], 1) for key in ("wall_s", "cpu_s", "load")},
        "device": f"{os.cpu_count()} CPU cores" if device == "cpu" else device,
        "version": __version__,
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["operant train --config", recipe, *overrides, f"--seeds {seeds}"]),
    }


def main() -> None:
    """Train, and write the table after each recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=_FAST)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=1024)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("zoo.toml"))
    parser.add_argument("--runs", type=Path, help="keep the run folders here")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")
    parser.add_argument("--keep", action="store_true", help="write the best seed's policy into the package")
    arguments = parser.parse_args()
    with contextlib.nullcontext(arguments.runs) if arguments.runs else tempfile.TemporaryDirectory() as place:
        for recipe in arguments.recipes:
            row = entry(arguments, recipe, Path(place))
            table = tomli.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.is_file() else {}
            arguments.out.write_text(tomli_w.dumps({**table, recipe: row}), encoding="utf-8")
            print(recipe, row, flush=True)


if __name__ == "__main__":
    main()
