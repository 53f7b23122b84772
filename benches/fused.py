"""Fused kernels on this machine's GPU: gradients, actions and bits, then speed. Prints Markdown.

    python benches/fused.py [--out FILE] [--only gradients,actions,bits,speed,parts,sweep] [--repeats 5]
    OUT=FOLDER python benches/fused.py --wide [--seconds 90]       wide networks: benches/fused_wide.py
    OUT=FOLDER python benches/fused.py --wide --games [--seconds 120] [--only snake,go]    benches/fused_games.py
    OUT=FOLDER python benches/fused.py --curves [--seconds 90]     learning curves: benches/fused_curves.py

Gradients are compared with float64 autograd, actions with the torch path. A part that fails reports it and the next one
runs. Every time is the median of `repeats` regions timed with CUDA events; a region is replays of a captured graph.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from gpu import CUDA, seconds

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import fused_curves
import fused_games
import fused_wide
from fused_probe import CARTPOLE, ENVS, gradients, prepared, relative_error, trainer, wide

from operant.algos.ppo import PPO
from operant.algos.ppo.ppo import Stats
from operant.compute.graphs import Graphed
from operant.kernels.dense.select import with_config
from operant.nn import mlp

LIMITS = {"fp32": 1e-5, "tf32": 2e-3, "bf16": 2e-2}
"""Tolerance of the relative error of a gradient."""

SIZES = ((2048, 16), (8192, 64), (65536, 64))
GOALS = (90e6, 250e6, 415e6)


def combinations(quick: bool) -> Iterator[tuple[str, str, mlp.Config, dict]]:
    """Environment, its name, network, and other settings of each case."""
    plain = {"entropy_coefficient": 0.03}
    clipped = plain | {"value_clip": 0.1, "normalize_observations": True}
    for env, shared in itertools.product(ENVS, (False, True)):
        yield env, "", mlp.Config(shared=shared), clipped if shared else plain
    yield "gaussian", "squash", mlp.Config(squash=True), plain
    for activation in ("relu", "gelu", "silu"):
        yield "categorical", "", mlp.Config(activation=activation), plain
    for hidden in ((16,), (128,), (48, 24), (32, 64, 16), (64, 64, 64), (128, 128)):
        yield "categorical", "", mlp.Config(hidden=hidden), plain
    for hidden in ((64, 64), (128, 128)):  # without fused kernels in tf32: that column says so
        yield "categorical", "layer norm", mlp.Config(hidden=hidden, layer_norm=True), plain
    if not quick:
        for hidden, shared, activation in itertools.product(((32,), (128, 64)), (False, True), ("gelu", "silu")):
            yield "multi", "", mlp.Config(hidden=hidden, shared=shared, activation=activation), clipped
    yield "wide", "118 wide, 3 actions", mlp.Config(hidden=(64, 64)), plain
    yield "wide", "118 wide, 3 actions", mlp.Config(hidden=(128, 128)), plain


def gradient_error(env: str, net: mlp.Config, algo: dict, precision: str) -> tuple[float | str, float]:
    """Relative error of a minibatch's gradient and of the loss statistics, or an error message."""
    try:
        rules = wide(118, 3) if env == "wide" else ENVS[env]
        ppo = trainer(
            rules, net, lanes=1024, where="cuda", horizon=8, precision=precision, kernels="fused", eager=True, **algo
        )
        prepared(ppo)
        found, wanted, numbers, exact = gradients(ppo)
    except Exception as error:
        traceback.print_exc(limit=-3)
        return f"FAILED: {type(error).__name__}: {str(error)[:60]}", float("nan")
    return relative_error(found, wanted), max(
        abs(a - b) / (abs(b) + 1e-3) for a, b in zip(numbers.tolist(), exact, strict=True)
    )


def gradient_errors(combination: tuple[str, str, mlp.Config, dict]) -> tuple[dict[str, float | str], float]:
    """Errors in each precision, and of the statistics in fp32; runs in a separate process."""
    env, _, net, algo = combination
    found = {precision: gradient_error(env, net, algo, precision) for precision in LIMITS}
    return {precision: error for precision, (error, _) in found.items()}, found["fp32"][1]


def together(function: Callable, items: Iterable) -> list:
    """Apply `function` to each item in parallel processes: most of the time is compilation."""
    with ProcessPoolExecutor(max_workers=12, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(function, items))


def check_gradients(quick: bool) -> Iterator[str]:
    """One line per combination with the errors in each precision."""
    yield "| action | network | fp32 | tf32 | bf16 | numbers, fp32 |"
    yield "|---|---|---|---|---|---|"
    worst = dict.fromkeys(LIMITS, 0.0)
    every = list(combinations(quick))
    for (env, more, net, _), (errors, off) in zip(every, together(gradient_errors, every), strict=True):
        cells = []
        for name, error in errors.items():
            good = isinstance(error, float) and error <= LIMITS[name]
            cells.append(error if isinstance(error, str) else f"{error:.1e}{'' if good else ' TOO LARGE'}")
            worst[name] = max(worst[name], error) if isinstance(error, float) else float("nan")
        trunk = "one trunk" if net.shared else "two towers"
        yield f"| {env} {more} | {list(net.hidden)} {net.activation}, {trunk} | {' | '.join(cells)} | {off:.1e} |"
    yield f"\nWorst: {', '.join(f'{name} {value:.1e} (allowed {LIMITS[name]:g})' for name, value in worst.items())}"


def first_actions(precision: str) -> str:
    """Number of actions of the first iteration that differ between the paths."""
    algo = {"horizon": 1, "precision": precision, "minibatches": 1}
    ours, theirs = (
        trainer(CARTPOLE, mlp.Config(), lanes=65536, where="cuda", kernels=kernels, **algo)
        for kernels in ("fused", "torch")
    )
    for ppo in (ours, theirs):
        ppo.collect()
    different = int((ours.experience.raw != theirs.experience.raw).sum())
    values = (ours.experience.value[0] - theirs.experience.value[0]).abs().max()
    return (
        f"- {precision}: {different} of {ours.experience.raw.numel():,} actions differ, values by up to "
        f"{float(values):.1e}"
    )


def repeatable(precision: str, iterations: int = 200) -> str:
    """Whether runs with one seed end with identical bytes: twice, eager and with graphs, resumed and uninterrupted."""
    algo = {
        "horizon": 16,
        "normalize_observations": True,
        "normalize_rewards": True,
        "target_kl": 0.05,
        "precision": precision,
        "kernels": "fused",
    }

    def run(seed: int = 1, eager: bool = False, break_at: int | None = None) -> bytes:
        ppo = trainer(CARTPOLE, mlp.Config(), lanes=2048, where="cuda", seed=seed, eager=eager, **algo)
        for iteration in range(iterations):
            if iteration == break_at:
                saved = {name: value.clone() for name, value in ppo.state("all").items()}
                ppo = trainer(CARTPOLE, mlp.Config(), lanes=2048, where="cuda", seed=seed, eager=eager, **algo)
                for name, value in ppo.state("all").items():
                    value.copy_(saved[name])
            ppo.collect()
            ppo.update()
        if Stats(*ppo.stats).not_finite != 0:
            return b"not finite"
        return ppo.policy.flat.values.detach().cpu().numpy().tobytes()

    reference = run()
    verdicts = {
        "same seed, same bytes": run() == reference,
        "other seed, other bytes": run(seed=2) != reference,
        "eager = graphs": run(eager=True) == reference,
        "resumed at 77 = uninterrupted": run(break_at=77) == reference,
        "finite": reference != b"not finite",
    }
    return f"- {precision}, {iterations} iterations: " + ", ".join(
        f"{text}: {'ok' if good else 'FAILED'}" for text, good in verdicts.items()
    )


def cartpole(lanes: int, horizon: int, precision: str, kernels: str = "fused", shared: bool = False) -> PPO:
    """Trainer for the timings."""
    algo = {"horizon": horizon, "precision": precision, "kernels": kernels, "anneal": False, "learning_rate": 2.5e-4}
    ppo = trainer(CARTPOLE, mlp.Config(shared=shared), lanes=lanes, where="cuda", **algo)
    for _ in range(4):
        ppo.collect()
        ppo.update()
    return ppo


def speed(repeats: int) -> Iterator[str]:
    """Steps per second, and milliseconds of each half."""
    yield "| lanes x horizon | network | precision | M SPS | of the goal | ms an iteration | collect | update |"
    yield "|---|---|---|---|---|---|---|---|"
    for (lanes, horizon), goal in zip(SIZES, GOALS, strict=True):
        for precision, shared in (("bf16", False), ("tf32", False), ("fp32", False), ("bf16", True)):
            ppo = cartpole(lanes, horizon, precision, shared=shared)
            inner = max(3, int(2e7 // (lanes * horizon)))

            def both(ppo: PPO = ppo) -> None:
                ppo.collect()
                ppo.update()

            whole, collect, update = (seconds(work, repeats, inner) for work in (both, ppo.collect, ppo.update))
            rate = lanes * horizon / whole
            yield (
                f"| {lanes:,} x {horizon} | {'one trunk' if shared else 'two towers'} | {precision} | {rate / 1e6:.1f} "
                f"| {rate / goal:.0%} "
                f"| {whole * 1e3:.3f} | {collect * 1e3:.3f} | {update * 1e3:.3f} |"
            )


def parts(repeats: int) -> Iterator[str]:
    """Microseconds of each launch of an iteration, each in a separate graph."""
    yield (
        "| lanes x horizon | precision | act | step | bootstrap | uniforms | advantages | begin | order | gradient "
        "| reduce | adam |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for lanes, horizon in SIZES:
        for precision in ("bf16", "tf32"):
            ppo = cartpole(lanes, horizon, precision)
            learner, slot = ppo.backend.learner, ppo.world.bind(ppo.rollout, 1)
            works = {
                "act": lambda f=learner: f.act(1),
                "step": lambda p=ppo, s=slot: p.world.step(s, 1),
                "bootstrap": lambda f=learner: f.bootstrap(True),
                "uniforms": lambda p=ppo: p.world.noise(p.collector.noise),
                "advantages": lambda p=ppo: p.backend.estimate_advantages(),
                "begin": lambda f=learner: f.begin(),
                "order": lambda p=ppo: p.minibatches.shuffle(),
                "gradient": lambda f=learner: f.backward(1),
                "reduce": lambda f=learner: f.reduce(),
                "adam": lambda f=learner: f.step(),
            }
            cells = [f"{timed(work, repeats) * 1e6:.1f}" for work in works.values()]
            yield f"| {lanes:,} x {horizon} | {precision} | {' | '.join(cells)} |"


def timed(work, repeats: int, inner: int = 20) -> float:
    """Seconds of one launch, averaged over `inner` in a graph."""

    def many() -> None:
        for _ in range(inner):
            work()

    graph = Graphed(many, CUDA)
    graph()
    graph()
    return seconds(graph, repeats, 3) / inner


CONFIGS = (
    (64, 4, None),
    (64, 4, 168),
    (64, 8, None),
    (64, 8, 128),
    (128, 8, None),
    (128, 8, 128),
    (128, 4, None),
    (32, 4, None),
    (32, 2, None),
)
"""Rows, warps and maximum registers of the gradient kernel."""


def warm(kind: tuple[str, tuple[int, int, int | None]]) -> None:
    """Compile one tile config into Triton's cache."""
    precision, (rows, warps, registers) = kind
    ppo = cartpole(2048, 16, precision)
    with contextlib.suppress(Exception):  # the timing fails again and reports it
        with_config(
            ppo.backend.learner,
            replace(ppo.backend.learner.config, block_m=rows, warps=warps, max_registers=registers or 0),
        ).backward(0)


def gradient_us(ppo: PPO, repeats: int, change: dict[str, int]) -> str:
    """Microseconds of a minibatch's gradient with another tile config, or the error it raises."""
    try:
        learner = with_config(ppo.backend.learner, replace(ppo.backend.learner.config, **change))
        return f"{timed(lambda: learner.backward(1), repeats, 4) * 1e6:.1f}"
    except Exception as error:
        return type(error).__name__


def sweep(repeats: int, precisions: tuple[str, ...] = ("bf16",)) -> Iterator[str]:
    """Microseconds of the gradient kernel for a minibatch, over tile configs."""
    together(warm, list(itertools.product(precisions, CONFIGS)))
    yield "| precision | rows | warps | registers | chunks | 8,192 samples | 131,072 | 1,048,576 |"
    yield "|---|---|---|---|---|---|---|---|"
    for precision in precisions:
        algos = [cartpole(lanes, horizon, precision) for lanes, horizon in SIZES]
        for (rows, warps, registers), chunks in itertools.product(CONFIGS, (64, 128, 256, 512)):
            change = {"block_m": rows, "warps": warps, "chunks": chunks, "max_registers": registers or 0}
            cells = [gradient_us(ppo, repeats, change) for ppo in algos]
            yield f"| {precision} | {rows} | {warps} | {registers or ''} | {chunks} | {' | '.join(cells)} |"


def main() -> None:
    """Run the selected parts and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--only", default="", help="by default gradients,actions,bits,speed,parts; with --games, all games"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="fewer combinations")
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--games", action="store_true", help="with --wide: only the games")
    parser.add_argument("--curves", action="store_true")
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="with --wide and --curves: run on a CPU in Triton's interpreter (TRITON_INTERPRET=1)",
    )
    parser.add_argument(
        "--seconds", type=float, default=90.0, help="with --wide and --curves: seconds after which no new work starts"
    )
    arguments = parser.parse_args()
    if arguments.wide and arguments.games:
        fused_games.main(
            tiny=arguments.tiny,
            limit_s=arguments.seconds,
            games=arguments.only.split(",") if arguments.only else fused_games.GAMES,
        )
    for asked, mode in ((arguments.wide and not arguments.games, fused_wide), (arguments.curves, fused_curves)):
        if asked:
            mode.main(tiny=arguments.tiny, limit_s=arguments.seconds)
    if arguments.wide or arguments.curves:
        return
    wanted, repeats = (arguments.only or "gradients,actions,bits,speed,parts").split(","), arguments.repeats
    text: list[str] = []

    def say(line: str) -> None:
        text.append(line)
        print(line, flush=True)
        if arguments.out:
            arguments.out.write_text("\n".join(text) + "\n")

    say(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}, medians of "
        f"{repeats}\n"
    )
    works = {
        "gradients": lambda: check_gradients(arguments.quick),
        "actions": lambda: map(first_actions, LIMITS),
        "bits": lambda: map(repeatable, LIMITS),
        "speed": lambda: speed(repeats),
        "parts": lambda: parts(repeats),
        "sweep": lambda: sweep(repeats),
    }
    for name in wanted:
        began = time.perf_counter()
        try:
            for line in works[name]():
                say(line)
        except Exception:
            traceback.print_exc(limit=6)
            say(f"FAILED: {name}")
        say(f"\n({name}: {time.perf_counter() - began:.0f} s)\n")


if __name__ == "__main__":
    main()
