"""Learning curves of the torch path and of the fused kernels in three precisions: raw data, a table, a picture.

    OUT=FOLDER python benches/fused.py --curves [--seconds 90]

CartPole-v1, 2,048 lanes x 16, two towers of 64-64, five seeds each, learning rate annealed to zero. Each run becomes a
line of JSON in $OUT/curves.jsonl when it is done: the number of episodes that ended in each iteration, and the sum of
their returns. If matplotlib is installed, $OUT/curves.png is drawn, also later by `python benches/fused_curves.py
curves.jsonl curves.png`. `--tiny` runs the same code on a CPU in Triton's interpreter, as a smoke test.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import traceback
from pathlib import Path
from typing import Any

KINDS = (("torch", "fp32"), ("fused", "fp32"), ("fused", "tf32"), ("fused", "bf16"))
SEEDS, ITERATIONS, LANES, HORIZON = 5, 150, 2048, 16
MARKS = (5, 10, 15, 20, 30, 40, 60, 80, 100, 125, 150)
WINDOW = 5
"""Iterations per point of a curve: few episodes end per iteration once they are long."""

COLOURS = {"torch fp32": "#222222", "fused fp32": "#1f77b4", "fused tf32": "#2ca02c", "fused bf16": "#d62728"}


def curve(task: tuple[str, str, int, bool]) -> dict[str, Any]:
    """One run in a separate process: episodes and sum of returns of each iteration, or an error."""
    from fused_probe import CARTPOLE, trainer

    from operant.algos.ppo.ppo import Stats
    from operant.nn import mlp

    kernels, precision, seed, tiny = task
    if tiny:
        from interpreter import teach

        teach()
    lanes, horizon, iterations = (8, 4, 3) if tiny else (LANES, HORIZON, ITERATIONS)
    # "first": timings need a machine without other processes.
    algo = {
        "horizon": horizon,
        "precision": precision,
        "kernels": kernels,
        "anneal_steps": lanes * horizon * iterations,
        "kernel_config": "first",
    }
    episodes, returns = [], []
    try:
        net = mlp.Config(hidden=(16,) if tiny else (64, 64))
        ppo = trainer(CARTPOLE, net, lanes=lanes, where="cpu" if tiny else "cuda", seed=seed, **algo)
        for _ in range(iterations):
            ppo.collect()
            ppo.update()
            ended, _, total = ppo.world.episode_sums(ppo.rollout).tolist()[:3]
            episodes.append(int(ended))
            returns.append(total)
    except Exception as error:
        traceback.print_exc(limit=-5)
        return {"verdict": f"FAILED: {type(error).__name__}: {str(error)[:200]}"}
    verdict = (
        "ok"
        if Stats(*ppo.stats).not_finite == 0 and (ppo.kernels == "fused") == (kernels == "fused")
        else "FAILED: not finite, or the wrong path"
    )
    return {
        "lanes": lanes,
        "horizon": horizon,
        "shape": ppo.chosen.get("kernel_config"),
        "episodes": episodes,
        "returns": returns,
        "verdict": verdict,
    }


# FIGURES


def smooth(episodes: list[int], returns: list[float]) -> list[float]:
    """Mean return over the episodes of the last few iterations; the previous value if none has ended, 0 before the
    first.
    """
    means: list[float] = []
    for k in range(len(episodes)):
        span = slice(max(0, k + 1 - WINDOW), k + 1)
        ended = sum(episodes[span])
        means.append(sum(returns[span]) / ended if ended else means[-1] if means else 0.0)
    return means


def by_kind(lines: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """Smoothed curves of all successful runs, by kind."""
    found: dict[str, list[list[float]]] = {f"{kernels} {precision}": [] for kernels, precision in KINDS}
    for line in lines:
        if line["what"] == "run" and line["verdict"] == "ok":
            found[f"{line['kernels']} {line['precision']}"].append(smooth(line["episodes"], line["returns"]))
    return {kind: runs for kind, runs in found.items() if len(runs) > 1}


def table(curves: dict[str, list[list[float]]]) -> str:
    """Mean and standard deviation over seeds after given iterations, and the distance of each kind from torch in
    standard errors of the difference.
    """
    marks = [mark for mark in MARKS if mark <= min(len(run) for runs in curves.values() for run in runs)]
    lines = [
        f"| kernels | seeds | {' | '.join(f'iteration {mark}' for mark in marks)} |",
        f"|---|---|{'---|' * len(marks)}",
    ]
    reference = curves.get("torch fp32")
    for kind, runs in curves.items():
        cells = []
        for mark in marks:
            points = [run[mark - 1] for run in runs]
            mean, spread = statistics.mean(points), statistics.stdev(points)
            cell = f"{mean:.0f} ±{spread:.0f}"
            if reference is not None and runs is not reference:
                theirs = [run[mark - 1] for run in reference]
                error = (spread**2 / len(points) + statistics.variance(theirs) / len(theirs)) ** 0.5
                cell += f" ({(mean - statistics.mean(theirs)) / max(error, 1e-9):+.1f})"
            cells.append(cell)
        lines.append(f"| {kind} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def picture(curves: dict[str, list[list[float]]], step: int, path: Path) -> None:
    """Draw means as lines and ranges over seeds as bands; needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for kind, runs in curves.items():
        columns = list(zip(*runs, strict=True))
        steps = [step * (k + 1) / 1e6 for k in range(len(columns))]
        axes.fill_between(
            steps,
            [min(column) for column in columns],
            [max(column) for column in columns],
            color=COLOURS[kind],
            alpha=0.12,
            linewidth=0,
        )
        axes.plot(
            steps,
            [statistics.mean(column) for column in columns],
            color=COLOURS[kind],
            label=f"{kind} ({len(runs)} seeds)",
            linewidth=1.4,
        )
    axes.set(
        xlabel="million steps",
        ylabel="mean return of the episodes",
        title="PPO on CartPole-v1: mean and range over seeds",
        xlim=(0, None),
        ylim=(0, 510),
    )
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)


def draw(data: Path, path: Path) -> str:
    """Draw the picture from raw data and return its table."""
    lines = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    curves = by_kind(lines)
    if not curves:
        return "no kind has two runs that went well"
    if importlib.util.find_spec("matplotlib") is not None:
        run = next(line for line in lines if line["what"] == "run" and line["verdict"] == "ok")
        picture(curves, run["lanes"] * run["horizon"], path)
    return table(curves)


def main(*, tiny: bool, limit_s: float) -> None:
    """Run all kinds and seeds, then draw."""
    from records import Records, side_by_side

    from operant.compute.runtime import usable_cores

    records = Records("curves")
    seeds = 2 if tiny else SEEDS
    # Seed by seed, so that complete seeds remain if the time runs out.
    tasks = [
        (kernels, precision, seed, tiny)
        for seed in range(1, seeds + 1)
        for kernels, precision in (KINDS[:2] if tiny else KINDS)
    ]
    workers = 2 if tiny else min(12, max(2, usable_cores() - 2))
    for (kernels, precision, seed, _), result in side_by_side(curve, tasks, workers=workers, limit_s=limit_s):
        found = result if isinstance(result, dict) else {"verdict": f"not finished: {type(result).__name__}"}
        records.add("run", kernels=kernels, precision=precision, seed=seed, **found)
    if records.folder is not None:
        print(draw(records.folder / "curves.jsonl", records.folder / "curves.png"), flush=True)
    records.add("done")


if __name__ == "__main__":
    print(draw(Path(sys.argv[1]), Path(sys.argv[2])))
