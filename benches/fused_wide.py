"""Wide networks in fused kernels on this machine's GPU: gradients, actions and bits, then speed compared with torch.

    OUT=FOLDER python benches/fused.py --wide [--seconds 90]

Gradients of every tile config are compared with float64 autograd. Every result is a line of JSON in $OUT/wide.jsonl at
once. Gradients are computed in parallel processes, which also fill Triton's cache; timings run alone afterwards, the
widest network first, and no new work starts after the time limit. `--tiny` runs the same code on a CPU in Triton's
interpreter with few lanes, as a smoke test.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from fused_probe import ENVS, gradients, prepared, relative_error, trainer, wide
from gpu import seconds
from records import Records, side_by_side

from operant.algos.ppo import PPO
from operant.algos.ppo.ppo import Stats
from operant.compute.runtime import usable_cores
from operant.kernels.dense import tuning
from operant.kernels.dense.select import with_config
from operant.kernels.spec import describe
from operant.kernels.tile_config import PerLayer, TileConfig, Workload, candidates, from_text
from operant.nn import mlp

LIMITS = {"fp32": 1e-5, "tf32": 2e-3, "bf16": 2e-2}
"""Tolerance of the relative error of a gradient."""

PLAIN = {"entropy_coefficient": 0.03}
CLIPPED = PLAIN | {"value_clip": 0.1, "normalize_observations": True}


@dataclass(frozen=True)
class Sizes:
    """Sizes of a bench: lanes and horizon of timings, lanes of gradients (x 8 steps, 4 minibatches) and of compared
    runs.
    """

    where: str = "cuda"
    lanes: int = 8192
    horizon: int = 64
    gradient_lanes: int = 1024
    run_lanes: int = 1024
    iterations: int = 20
    microbatch: int = 768
    workers: int = 14
    networks: tuple[tuple[int, ...], ...] = ((256, 256), (128, 128), (64, 64))
    observation: str = "118"


TINY = Sizes(
    "cpu",
    8,
    4,
    gradient_lanes=8,
    run_lanes=8,
    iterations=2,
    microbatch=128,
    workers=2,
    networks=((24,),),
    observation="20",
)


@dataclass(frozen=True)
class Task:
    """Network in one precision and tile config ("": the first that fits), and its checks."""

    asked: str
    env: str
    net: dict
    algo: dict
    precision: str
    shape: str = ""

    def __hash__(self) -> int:
        return hash(repr(self))

    def trainer(self, sizes: Sizes, lanes: int, horizon: int, kernels: str = "fused", **more: Any) -> PPO:
        """Trainer of this task. `env`: one of the tests' environments, or an integer: CartPole projected to that number
        of observations, with three actions.
        """
        rules = wide(int(self.env), 3) if self.env.isdecimal() else ENVS[self.env]
        config = {"precision": self.precision, "kernel_config": self.shape or "first", **self.algo, **more}
        return trainer(
            rules, mlp.Config(**self.net), lanes=lanes, horizon=horizon, where=sizes.where, kernels=kernels, **config
        )


# CHECKS


def gradient(task: Task, sizes: Sizes) -> dict[str, Any]:
    """Relative error of a minibatch's gradient and of the loss statistics; per layer, with several microbatches."""
    line, task = task.shape, replace(task, shape="")
    ppo = task.trainer(sizes, sizes.gradient_lanes, 8, eager=True)
    shape = from_text(line) if line else ppo.backend.learner.config
    if isinstance(shape, PerLayer):
        shape = replace(shape, microbatch=sizes.microbatch)
    ppo.backend.learner = with_config(ppo.backend.learner, shape)
    if sizes.where == "cuda" and not ppo.backend.learner.fits():
        return {"ran": str(shape), "verdict": "does not fit"}
    prepared(ppo)
    found, wanted, numbers, exact = gradients(ppo)
    error = relative_error(found, wanted)
    off = max(abs(a - b) / (abs(b) + 1e-3) for a, b in zip(numbers.tolist(), exact, strict=True))
    return {
        "ran": str(shape),
        "error": error,
        "numbers": off,
        "verdict": "ok" if error <= LIMITS[task.precision] else "TOO LARGE",
    }


def actions(task: Task, sizes: Sizes) -> dict[str, Any]:
    """Number of actions of the first step that differ between fused and torch, and the difference of the values."""
    ours, theirs = (
        task.trainer(sizes, 8 * sizes.run_lanes, 1, kernels=kernels, minibatches=1) for kernels in ("fused", "torch")
    )
    for ppo in (ours, theirs):
        ppo.collect()
    different = int((ours.experience.raw != theirs.experience.raw).sum())
    values = float((ours.experience.value[0] - theirs.experience.value[0]).abs().max())
    good = different <= ours.experience.raw.numel() / 1000 and values < 0.05
    return {
        "different": different,
        "of": ours.experience.raw.numel(),
        "values_by": values,
        "verdict": "ok" if good else "FAILED",
    }


def bits(task: Task, sizes: Sizes) -> dict[str, Any]:
    """Whether runs with one seed end with identical bytes: again, eager, and resumed half way."""

    def run(seed: int = 1, eager: bool = False, break_at: int = -1) -> bytes:
        ppo = task.trainer(sizes, sizes.run_lanes, 16, seed=seed, eager=eager, target_kl=0.05)
        for iteration in range(sizes.iterations):
            if iteration == break_at:
                saved = {name: value.clone() for name, value in ppo.state("all").items()}
                ppo = task.trainer(sizes, sizes.run_lanes, 16, seed=seed, eager=eager, target_kl=0.05)
                for name, value in ppo.state("all").items():
                    value.copy_(saved[name])
            ppo.collect()
            ppo.update()
        return ppo.policy.flat.values.detach().cpu().numpy().tobytes() if Stats(*ppo.stats).not_finite == 0 else b""

    reference = run()
    verdicts = {
        "again": run() == reference,
        "eager": run(eager=True) == reference,
        "resumed": run(break_at=sizes.iterations // 2) == reference,
        "other seed differs": run(seed=2) != reference,
        "finite": reference != b"",
    }
    return {**verdicts, "verdict": "ok" if all(verdicts.values()) else "FAILED"}


ASKED: dict[str, Callable[[Task, Sizes], dict[str, Any]]] = {"gradient": gradient, "actions": actions, "bits": bits}


def answer(question: tuple[Task, Sizes]) -> dict[str, Any]:
    """Result of a task, or its error. Runs in a separate process."""
    task, sizes = question
    if sizes.where != "cuda":
        from interpreter import teach

        teach()
    try:
        return ASKED[task.asked](task, sizes)
    except Exception as error:
        traceback.print_exc(limit=-5)
        return {"verdict": f"FAILED: {type(error).__name__}: {str(error)[:200]}"}


def tasks(sizes: Sizes) -> list[Task]:
    """Tasks by priority: every network in its likely tile config, actions and bits, other action spaces and
    activations, then all other tile configs.
    """
    precisions = tuple(LIMITS) if sizes.where == "cuda" else ("fp32",)
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count if sizes.where == "cuda" else 2
    likely, others = [], []
    for hidden in sizes.networks:
        net = {"hidden": hidden}
        plain = Task("gradient", sizes.observation, net, PLAIN, "fp32").trainer(sizes, 64, 8, kernels="torch")
        for precision in reversed(precisions):
            groups = list(candidates(describe(plain.policy, precision), Workload(131_072, multiprocessors)))
            every: list[TileConfig] = (
                [*groups[0], *groups[-1]] if hidden == sizes.networks[0] or precision != "fp32" else groups[0][:1]
            )
            # Microbatches are alike, and the number of chunks does not change what is compiled.
            distinct = {
                str(
                    replace(shape, microbatch=sizes.microbatch, chunks=8) if isinstance(shape, PerLayer) else shape
                ): None
                for shape in every
            }
            first, *more = (Task("gradient", sizes.observation, net, PLAIN, precision, line) for line in distinct)
            likely.append(first)
            others += more
    compared = [
        Task(asked, sizes.observation, {"hidden": sizes.networks[0]}, {"normalize_rewards": True}, precision)
        for precision, asked in itertools.product(precisions, ("bits", "actions"))
    ]
    kinds = [
        ("multi", {"hidden": (200, 129, 16), "shared": True, "activation": "gelu"}, CLIPPED),
        ("gaussian", {"hidden": (256, 256), "shared": True, "activation": "silu", "squash": True}, CLIPPED),
        ("categorical", {"hidden": (256,), "activation": "relu"}, CLIPPED),
        ("128", {"hidden": (160, 256, 256)}, PLAIN),
    ]
    various = [
        Task("gradient", *kind, precision)
        for kind, precision in itertools.product(kinds if sizes.where == "cuda" else (), precisions)
    ]
    return likely + compared + various + others


def check(records: Records, sizes: Sizes, limit_s: float) -> None:
    """Run all checks; reports what was not reached."""
    results = side_by_side(answer, [(task, sizes) for task in tasks(sizes)], workers=sizes.workers, limit_s=limit_s)
    worst: dict[str, float] = {}
    bad = 0
    for (task, _), result in results:
        found = result if isinstance(result, dict) else {"verdict": f"not finished: {type(result).__name__}"}
        bad += found["verdict"] not in ("ok", "does not fit")
        if "error" in found:
            worst[task.precision] = max(worst.get(task.precision, 0.0), found["error"])
        records.add(task.asked, env=task.env, net=task.net, precision=task.precision, shape=task.shape, **found)
    records.add("checked", worst=worst, allowed=LIMITS, bad=bad)


# SPEED


def peaks() -> dict[str, float]:
    """FLOP/s of this GPU's matrix products, as torch reaches them with large random matrices."""
    found = {}
    for name, kind in (("bf16", torch.bfloat16), ("tf32", torch.float32)):
        torch.backends.cuda.matmul.allow_tf32 = True
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=kind) for _ in range(2))
        out = torch.empty_like(a)
        found[name] = 2 * 8192**3 / seconds(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), 3, 5)
    return found


def speed(records: Records, sizes: Sizes, stop_s: float, peak: dict[str, float]) -> None:
    """Steps per second, TFLOP/s of the update (without padding) as a fraction of the measured peak, and the cost of
    each tile config.
    """
    timed = (
        (hidden, kernels, precision)
        for hidden in sizes.networks
        for kernels, precision in (("fused", "bf16"), ("fused", "tf32"), ("torch", "tf32"))
    )
    for hidden, kernels, precision in timed:
        if records.elapsed_s() > stop_s:
            records.add("speed", hidden=hidden, kernels=kernels, precision=precision, verdict="not begun: out of time")
            continue
        try:
            ppo = Task(
                "speed", sizes.observation, {"hidden": hidden}, {"anneal": False, "learning_rate": 2.5e-4}, precision
            ).trainer(sizes, sizes.lanes, sizes.horizon, kernels=kernels, kernel_config="")
            records.add(
                "speed",
                hidden=hidden,
                kernels=kernels,
                precision=precision,
                **rates(ppo, sizes, hidden, peak.get(precision, float("nan"))),
            )
            if ppo.kernels == "fused" and sizes.where == "cuda":
                shape_costs(records, ppo, hidden, precision)
        except Exception as error:
            traceback.print_exc(limit=-5)
            records.add(
                "speed",
                hidden=hidden,
                kernels=kernels,
                precision=precision,
                verdict=f"FAILED: {type(error).__name__}: {str(error)[:200]}",
            )


def rates(ppo: PPO, sizes: Sizes, hidden: tuple[int, ...], peak: float) -> dict[str, Any]:
    """Rates of a trainer."""

    def both() -> None:
        ppo.collect()
        ppo.update()

    def one_s(work: Callable[[], object]) -> float:
        return seconds(work, 3, 2) if sizes.where == "cuda" else float("nan")

    for _ in range(3):
        both()
    whole_s, collect_s, update_s = one_s(both), one_s(ppo.collect), one_s(ppo.update)
    samples, towers, seen = (
        sizes.lanes * sizes.horizon,
        1 if ppo.policy.net.config.shared else 2,
        ppo.policy.env.observation,
    )
    widths = (seen.columns, *hidden)
    weights = (
        towers * sum(a * b for a, b in itertools.pairwise(widths))
        + (ppo.policy.distribution.parameter_rows + 1) * hidden[-1]
    )
    # 2 FLOP per weight forward and 4 backward, without the gradient of the observation.
    done = (6 * weights - 2 * towers * widths[0] * widths[1]) * samples * ppo.config.updates / ppo.config.minibatches
    return {
        "shape": ppo.chosen.get("kernel_config"),
        "sps": samples / whole_s,
        "iteration_ms": whole_s * 1e3,
        "collect_ms": collect_s * 1e3,
        "update_ms": update_s * 1e3,
        "tflops": done / update_s / 1e12,
        "peak_tflops": peak / 1e12,
        "share": done / update_s / peak,
        "not_finite": float(Stats(*ppo.stats).not_finite),
        "verdict": "ok",
    }


def shape_costs(records: Records, ppo: PPO, hidden: tuple[int, ...], precision: str) -> None:
    """Milliseconds per iteration of each candidate tile config."""
    spec, spare = ppo.backend.learner.spec, tuning.copies(ppo.backend.learner.task)
    layout = ppo.backend.learner.layout
    group = next(
        candidates(
            spec, Workload(layout.samples, torch.cuda.get_device_properties(0).multi_processor_count, layout.shards)
        )
    )
    for shape in group:
        learner = with_config(ppo.backend.learner, shape, buffers=spare).spare()
        cost = tuning.seconds(learner) * 1e3 if learner.fits() else None
        records.add("shape", hidden=hidden, precision=precision, shape=str(shape), iteration_ms=cost)


def main(*, tiny: bool, limit_s: float) -> None:
    """Check, then time."""
    if tiny:
        from interpreter import teach

        teach()
    sizes = TINY if tiny else Sizes(workers=min(14, max(2, usable_cores() - 2)))
    records = Records("wide")
    records.add(
        "began",
        gpu="none" if tiny else torch.cuda.get_device_name(),
        torch=torch.__version__,
        lanes=sizes.lanes,
        horizon=sizes.horizon,
    )
    check(records, sizes, 0.6 * limit_s)
    peak = peaks() if not tiny else {}
    records.add("peaks", **peak)
    speed(records, sizes, limit_s, peak)
    records.add("done")
