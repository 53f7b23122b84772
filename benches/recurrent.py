"""PPO with a memory on a GPU: fused kernels against float64, torch and themselves, then training rates. JSON lines.

    python benches/recurrent.py [--parts checks,rates,torch,act,tiles] [--only mingru,lstm,gru]
        [--precisions bf16,tf32] [--lanes 4096,8192] [--profile] [--tiny]
        [--checks gradient,acting,acting8192,bytes,kinds,game,bits,carried,torch]
        [--time mingru:fused:bf16:4096,gru:torch:tf32]

The cases `g2048`, `pacman` and `go` are those games with MinGRUs of PufferLib's sizes, at its replay ratios. `--time`
lists the timed cases in order. `--profile` adds the most expensive kernels of an iteration; `act` and `tiles` time
acting and a minibatch with other tile configs (acting selects the fastest). A failed part reports its error, and the
others continue. `--tiny` runs on a CPU in Triton's interpreter (TRITON_INTERPRET=1 PYTHONPATH=tests) with few lanes, as
a smoke test.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from fused_sac import microseconds, replay_microseconds

from operant import envs
from operant.algos.ppo import PPO
from operant.algos.ppo.config import PPOConfig
from operant.algos.ppo.ppo import Stats
from operant.nn import NetConfig
from operant.worlds import DeviceWorld

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "kernels"))


class Case(NamedTuple):
    """A timed case."""

    hidden: int
    memory: str
    layers: int
    algo: dict[str, object]
    minibatches: tuple[int, ...]
    env: str = "breakout"
    horizon: int = 64
    normalize: bool = True

    def net(self, *, tiny: bool) -> NetConfig:
        """Network of this case, or a narrow one of its kind."""
        return NetConfig(
            hidden=(16 if tiny else self.hidden,),
            memory=self.memory,
            memory_layers=self.layers,
            activation="relu",
            shared=True,
        )


CASES = {
    "mingru": Case(64, "mingru", 2, {"epochs": 1, "replay_ratio": 1.42}, (2, 4)),
    "lstm": Case(128, "lstm", 1, {"epochs": 1}, (4,)),
    "gru": Case(128, "gru", 1, {"epochs": 4}, (4,)),
    "gru_once": Case(128, "gru", 1, {"epochs": 1}, (4,)),
    "gru64": Case(64, "gru", 1, {"epochs": 4}, (4,)),
    "lstm64": Case(64, "lstm", 1, {"epochs": 1}, (4,)),
    "gru256": Case(256, "gru", 1, {"epochs": 4}, (4,)),
    "lstm256": Case(256, "lstm", 1, {"epochs": 1}, (4,)),
    "snake": Case(64, "mingru", 2, {"replay_ratio": 1.42}, (4,), "snake", normalize=False),
    "g2048": Case(512, "mingru", 4, {"replay_ratio": 2.24}, (4,), "g2048", normalize=False),
    "pacman": Case(256, "mingru", 6, {"replay_ratio": 1.78}, (4,), "pacman", normalize=False),
    "go": Case(512, "mingru", 1, {"replay_ratio": 3.75}, (4,), "go", horizon=128, normalize=False),
}
"""Cases by name, with their minibatches. A replay ratio is rounded to whole minibatches."""

LIMITS = {"fp32": 1e-5, "tf32": 6e-3, "bf16": 3e-2}
"""Tolerance of the relative error of a gradient with relu: see `fused_games.BENT`."""


def say(**row: object) -> None:
    """Print one JSON line."""
    print(json.dumps(row), flush=True)


def attempt(row: dict[str, object], work: Callable[[], dict[str, object]]) -> None:
    """Print a result line, or its error."""
    try:
        say(**row, **work())
    except Exception as error:  # the others continue
        traceback.print_exc(limit=-6)
        say(**row, failed=f"{type(error).__name__}: {error}"[:300])


# CHECKS


def checks(
    tiny: bool, only: list[str], precisions: list[str], asked: list[str]
) -> Iterator[tuple[dict[str, object], Callable[[], dict[str, object]]]]:
    """Checks of every cell and precision, with the timed networks."""
    from fused_probe import wide

    many, numbers, kinds = (
        functools.partial(acting, lanes=8192),
        wide(118, 3, seen="uint8"),
        wide(30, 3, seen="uint8", categories=4),
    )
    every = {
        "gradient": gradient,
        "acting": acting,
        "acting8192": many,
        "bytes": functools.partial(acting, env=numbers),
        "kinds": functools.partial(acting, env=kinds),
        "bits": bits,
        "carried": carried,
        "torch": beside_torch,
    }
    for precision, case, name in itertools.product(precisions, only, asked):
        every["game"] = functools.partial(acting, env=envs.find(CASES[case].env), normalize=CASES[case].normalize)
        net = CASES[case].net(tiny=tiny)
        given = {key: getattr(net, key) for key in ("memory", "memory_layers", "hidden", "activation")}
        yield (
            {"check": name, "precision": precision, "case": case},
            functools.partial(every[name], given, precision, tiny),
        )


def sizes_of(tiny: bool, net: dict) -> dict[str, int]:
    """Sizes for checks; float64 autograd of a wide memory needs much memory."""
    return {"lanes": 16, "horizon": 4} if tiny else {"lanes": 1024 if max(net["hidden"]) <= 128 else 128, "horizon": 64}


def gradient(net: dict, precision: str, tiny: bool) -> dict[str, object]:
    """Relative errors against float64, and the statistics of the first update, before the policy has changed."""
    from fused_probe import trainer, wide
    from memory_interpreted import gradient_case

    where, sizes, algo = (
        "cpu" if tiny else "cuda",
        sizes_of(tiny, net),
        {"precision": precision, "normalize_observations": True},
    )
    found = gradient_case([118, 3], net, algo, where=where, **sizes)
    found["parts"] = {name: float(f"{error:.2g}") for name, error in found["parts"].items()}
    once = trainer(
        wide(118, 3),
        NetConfig(shared=True, **net),
        where=where,
        eager=True,
        epochs=1,
        minibatches=1,
        kernels="fused",
        **algo,
        **sizes,
    )
    once.collect()
    once.update()
    kl = float(Stats(*once.stats).approx_kl)
    good = found["gradient"] <= LIMITS[precision] and found["again"] and abs(kl) < 1e-5
    return {**found, "kl_of_acting_and_learning": kl, "verdict": "ok" if good else "FAILED"}


def acting(
    net: dict, precision: str, tiny: bool, lanes: int | None = None, env: envs.Env | None = None, normalize: bool = True
) -> dict[str, object]:
    """Difference between acting's outputs in the rollout and the learner's forward pass with the same weights."""
    from fused_probe import trainer, wide
    from memory_interpreted import third_iteration

    sizes = sizes_of(tiny, net) | ({"lanes": lanes} if lanes and not tiny else {})
    algo = {
        "bptt": sizes["horizon"] // 2,
        "minibatches": 1,
        "epochs": 1,
        "normalize_observations": normalize,
        "precision": precision,
    }
    ppo = trainer(
        env or wide(118, 3),
        NetConfig(shared=True, **net),
        where="cpu" if tiny else "cuda",
        eager=True,
        kernels="fused",
        **algo,
        **sizes,
    )
    ppo.policy.flat.values.data.add_(
        0.1
        * torch.randn(ppo.policy.flat.values.shape, generator=torch.Generator().manual_seed(1)).to(ppo.policy.device)
    )
    third_iteration(ppo)
    ppo.minibatches.shuffle()
    found, states = learned(ppo)
    rollout, kept = ppo.rollout, ppo.experience
    ended = (rollout.terminated[-1] | rollout.truncated[-1]).bool()
    states[-1][:, ended] = 0.0
    wanted = torch.cat([ppo.backend.learner.starts[1:], ppo.backend.tensors()["state/0"][None]])  # after each segment
    sides = {
        "values": (found["value"], kept.value[:-1]),
        "log-probabilities": (found["log_probability"], kept.log_probability),
        "actions": (found["raw"], kept.raw[:, 0].float()),
        "states": (states, wanted),
    }
    told = {name: apart(ours, theirs) for name, (ours, theirs) in sides.items()}
    ppo.update()
    # Log-probabilities by the update: 0 where all ratios are 1.
    verdict = "equal" if not any(one["differ"] for one in told.values()) else "seen"
    return {
        "lanes": sizes["lanes"],
        "at_once": ppo.backend.learner.acts_in_one_launch,
        **told,
        "kl": float(Stats(*ppo.stats).approx_kl),
        "verdict": verdict,
    }


def apart(ours: torch.Tensor, theirs: torch.Tensor) -> dict[str, float]:
    """Fractions of values that differ, and that differ by more than 64 ulp of the largest; the maximum difference in
    such ulp and in their own.
    """
    ours, theirs = ours.contiguous(), theirs.contiguous()
    most = (ours - theirs).abs().max()
    unit = torch.finfo(torch.float32).eps * 2.0 ** torch.floor(torch.log2(theirs.abs().max()))
    # The distance of floats of one sign in ulp is the difference of their bits.
    places = (ours.view(torch.int32).long() - theirs.view(torch.int32).long()).abs()[
        (ours * theirs > 0) & (theirs.abs() > 1e-3)
    ]
    return {
        "differ": float((ours != theirs).double().mean()),
        "much": float(((ours - theirs).abs() > 64 * unit).double().mean()),
        "most": float(f"{float(most):.3g}"),
        "ulps_of_largest": round(float(most / unit), 2),
        "ulps_of_own": int(places.max()) if len(places) else 0,
    }


def learned(ppo: PPO) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Forward pass of the learner over the rollout with the same noise, (T, N) each, and the recurrent state after each
    segment, (K, R, N).
    """
    from operant.kernels.dense import per_layer

    learner, (T, N) = ppo.backend.learner, ppo.rollout.reward.shape
    learner.begin()
    learner._pack()
    block, rows, device = learner.layout.block, learner._capacity, ppo.policy.device
    own, order, row = learner.hooks.acting(), learner.buffers.order.flatten(), torch.arange(rows, device=device)
    found, states = (
        {name: torch.zeros(T * N, device=device) for name in ("value", "log_probability", "raw")},
        learner.starts.clone(),
    )
    for first_chunk in range(0, learner.config.chunks, learner._slots):
        where = learner.forward(0, first_chunk)
        blocks = order[where.first + row // block]
        t, lane = blocks // (N // block), blocks % (N // block) * block + row % block
        scratch = {
            name: torch.zeros(rows, dtype=getattr(own, name).dtype, device=device)
            for name in ("raw", "action", "log_probability", "value")
        }
        given = own._replace(noise=own.noise.view(T, -1, N)[t, :, lane].t().contiguous(), **scratch)
        tiling = learner._head_tiling(0)
        del tiling["BLOCK_N"]
        legal = learner._legal_mask if ppo.rollout.legal is None else ppo.rollout.legal[t, :, lane].t().contiguous()
        learner.launch(
            per_layer.act_head,
            (-(-rows // learner._head_block_m), 1),
            learner._hidden[-1],
            learner._packed,
            learner._values,
            legal,
            given,
            0,
            0,
            rows,
            rows,
            rows,
            SPEC=learner.spec,
            SAMPLE=learner.hooks.sample,
            **tiling,
        )
        for name in found:
            found[name][(t * N + lane).long()] = scratch[name].float()
        learner._forward_memory(where._replace(state=states), rows // learner.shape.length, acting=False, write=True)
    return {name: numbers.view(T, N) for name, numbers in found.items()}, states


def bits(net: dict, precision: str, tiny: bool) -> dict[str, object]:
    """Whether runs with one seed end with identical bytes: again, eager, and resumed half way."""
    from fused_probe import trainer, wide

    def run(seed: int = 1, eager: bool = tiny, break_at: int = -1) -> bytes:
        def fresh() -> PPO:
            algo = {
                "minibatches": 2,
                "epochs": 2,
                "target_kl": 0.05,
                "kernels": "fused",
                "normalize_observations": True,
                "precision": precision,
            }
            return trainer(
                wide(118, 3),
                NetConfig(shared=True, **net),
                where="cpu" if tiny else "cuda",
                seed=seed,
                eager=eager,
                **algo,
                **sizes_of(tiny, net),
            )

        ppo = fresh()
        for iteration in range(6):
            if iteration == break_at:
                saved = {name: value.clone() for name, value in ppo.state("all").items()}
                ppo = fresh()
                for name, value in ppo.state("all").items():
                    value.copy_(saved[name])
            ppo.collect()
            ppo.update()
        return ppo.policy.flat.values.detach().cpu().numpy().tobytes() if Stats(*ppo.stats).not_finite == 0 else b""

    reference = run()
    verdicts = {
        "again": run() == reference,
        "eager": run(eager=True) == reference,
        "resumed": run(break_at=3) == reference,
        "other seed differs": run(seed=2) != reference,
        "finite": reference != b"",
    }
    return {**verdicts, "verdict": "ok" if all(verdicts.values()) else "FAILED"}


def carried(net: dict, precision: str, tiny: bool) -> dict[str, object]:
    """Whether two iterations act bit-identically to one of twice the length, and differently without carried state."""
    from fused_probe import ENVS, trainer

    def acting(horizon: int, **more: object) -> PPO:
        algo = {"kernels": "fused", "precision": precision, "minibatches": 2, "epochs": 1, **more}
        where = "cpu" if tiny else "cuda"
        return trainer(
            ENVS["gaussian"],
            NetConfig(shared=True, **net),
            where=where,
            eager=True,
            **(sizes_of(tiny, net) | {"horizon": horizon}),
            **algo,
        )

    half = sizes_of(tiny, net)["horizon"] // 2
    whole, found = acting(2 * half), {}
    whole.collect()
    for name, more in (("carried", {}), ("forgotten", {"carry_state": False})):
        halves = acting(half, **more)
        halves.collect()
        halves.collector.carry_on()
        halves.collect()
        found[name] = float((halves.experience.value - whole.experience.value[half:]).abs().max())
    return {**found, "verdict": "ok" if found["carried"] == 0.0 < found["forgotten"] else "FAILED"}


def beside_torch(net: dict, precision: str, tiny: bool) -> dict[str, object]:
    """Differences after two short iterations from one seed between fused kernels and torch; checked in fp32 only:
    otherwise actions soon diverge.
    """
    from memory_interpreted import rollout_case

    sizes = sizes_of(tiny, net) | {"horizon": 4 if tiny else 16}
    found = rollout_case(
        "gaussian",
        net,
        {"precision": precision, "normalize_observations": True},
        where="cpu" if tiny else "cuda",
        **sizes,
    )
    good = all(found[name] < 1e-3 for name in ("actions", "values", "finals", "states", "parameters"))
    return {**found, "verdict": "seen" if precision != "fp32" else "ok" if good else "FAILED"}


# SPEED


def begun(case: str, kernels: str, precision: str, lanes: int, minibatches: int, *, tiny: bool) -> PPO:
    """Trainer after three iterations: compiled and captured."""
    asked = CASES[case]
    config = PPOConfig(
        horizon=8 if tiny else asked.horizon,
        minibatches=minibatches,
        precision=precision,
        kernels=kernels,
        anneal=False,
        learning_rate=1e-3,
        gamma=0.975,
        gae_lambda=0.9,
        normalize_observations=asked.normalize,
        normalize_rewards=True,
        **asked.algo,
    )
    world = DeviceWorld(envs.find(asked.env), lanes, seed=1, device=torch.device("cpu" if tiny else "cuda"))
    ppo = PPO(world, config, asked.net(tiny=tiny), seed=1, steps=10**9, eager=tiny)
    ppo.start()
    for _ in range(1 if tiny else 3):
        ppo.collect()
        ppo.update()
    return ppo


def rates(ppo: PPO) -> dict[str, object]:
    """Steps per second, and microseconds of an iteration's halves."""

    def both() -> None:
        ppo.collect()
        ppo.update()

    whole, collect, update = (replay_microseconds(work, 5) for work in (both, ppo.collect, ppo.update))
    return {
        "backend": ppo.kernels,
        "updates": ppo.config.updates,
        "M_SPS": round(ppo.steps_per_iteration / whole, 1),
        "collect_us": round(collect),
        "update_us": round(update),
        "not_finite": float(Stats(*ppo.stats).not_finite),
    }


def profile(ppo: PPO) -> list[list[object]]:
    """The 25 most expensive kernels of an iteration: name, microseconds, launches."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    torch.cuda.synchronize()
    with profiler(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        ppo.collect()
        ppo.update()
        torch.cuda.synchronize()
    rows = sorted(found.key_averages(), key=lambda row: -row.device_time_total)[:25]
    return [[row.key[:60], round(row.device_time_total), row.count] for row in rows]


def act_tiles(case: str, precision: str, lanes: int) -> dict[str, object]:
    """Microseconds of acting with several tile configs."""
    from operant.kernels.recurrent import learner

    ppo = begun(case, "fused", precision, lanes, 4, tiny=False)
    kind = ppo.backend.learner.act_tile
    own = learner.ACT_TILES[kind]

    def took(tile: tuple[int, int, int]) -> object:
        learner.ACT_TILES[kind] = tile
        try:
            return round(microseconds(lambda: ppo.backend.learner.act(1), times=8, replays=5), 1)
        except Exception as error:
            return type(error).__name__

    every = (
        [(64, 8, 16), (64, 8, 32), (32, 4, 16), (32, 4, 32)]
        if CASES[case].memory != "mingru"
        else [(64, 8, 16), (64, 4, 16), (32, 4, 16)]
    )
    took_us = {tile: took(tile) for tile in every if lanes // tile[0] >= learner.ACT_PROGRAMS}
    learner.ACT_TILES[kind] = min(
        (tile for tile in took_us if isinstance(took_us[tile], float)), key=took_us.__getitem__, default=own
    )
    return {"us": {str(tile): us for tile, us in took_us.items()}, "from now on": learner.ACT_TILES[kind]}


def tiles(case: str, precision: str, lanes: int) -> dict[str, object]:
    """Microseconds of a minibatch's gradient with other tile configs of the products."""
    from memory_interpreted import reconfigured

    ppo, deep = (
        begun(case, "fused", precision, lanes, CASES[case].minibatches[0], tiny=False),
        {"bf16": 32, "tf32": 16, "fp32": 16}[precision],
    )
    names = {"bf16": "bf16", "tf32": "tf32", "fp32": "ieee"}

    def took(changes: dict) -> object:
        try:
            given = {key: value for key, value in changes.items() if key != "cells"}
            learner = reconfigured(ppo, names[precision], **given)
            if "cells" in changes:  # lanes and warps of a program
                block, warps = changes["cells"]
                learner._cell_options = lambda count, **_: {"BLOCK_B": block, "num_warps": warps}
            learner.begin()
            return round(microseconds(lambda: learner.backward(0), times=2, replays=5), 1)
        except Exception as error:
            return type(error).__name__

    fused, wide = (
        ppo.backend.learner.shape.kind != "mingru" or ppo.backend.learner.shape.fused,
        CASES[case].hidden > 128,
    )
    cells = [
        {"cells": (block, warps)}
        for block, warps in (
            ((16, 1), (16, 2), (16, 4), (16, 8), (32, 4), (32, 8)) if fused else ((1, 2), (1, 4), (2, 4), (2, 8))
        )
    ]
    dense = [
        {"block_m": 64, "warps": 4},
        {"block_n": 64, "warps": 4},
        {"stages": 2},
        {"stages": 4},
        {"block_m": 64, "warps": 4, "block_k": deep},
        {"chunks": ppo.backend.learner.config.chunks // 2},
        {"chunks": ppo.backend.learner.config.chunks * 2},
    ]
    every = [{}, *cells, *(dense if wide else ())]
    return {"us": {str(changes): took(changes) for changes in every}}


def main() -> None:
    """One line per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--parts", default="checks,rates,act,torch")
    parser.add_argument("--checks", default="gradient,acting,bits,carried,torch")
    parser.add_argument("--only", default="mingru,lstm,gru")
    parser.add_argument("--precisions", default="bf16,tf32")
    parser.add_argument("--lanes", default="8192,4096")
    parser.add_argument("--time", help="instead of cases, precisions and lanes: CASE:KERNELS:PRECISION:LANES, ...")
    words = parser.parse_args()
    parts, sizes, tiny = words.parts.split(","), [int(lanes) for lanes in words.lanes.split(",")], words.tiny
    if tiny:
        from interpreter import teach

        teach()
        sizes = [16]
    if "checks" in parts:
        for row, work in checks(tiny, words.only.split(","), words.precisions.split(","), words.checks.split(",")):
            attempt(row, work)
    asked = list(itertools.product(words.only.split(","), words.precisions.split(","), sizes))
    for part, work in (("act", act_tiles), ("tiles", tiles)):
        for words_of in [one for one in asked if one[2] == sizes[0]] if part in parts and not tiny else ():
            attempt(
                {part: words_of[0], "precision": words_of[1], "lanes": words_of[2]},
                lambda work=work, words_of=words_of: work(*words_of),
            )
    wanted = [
        (case, kernels, precision, lanes)
        for (case, precision, lanes), kernels in itertools.product(asked, ("fused", "torch"))
    ]
    wanted = [
        one
        for one in wanted
        if not words.time and ("rates" if one[1] == "fused" else "torch") in parts and one[1:3] != ("torch", "bf16")
    ]
    for case, kernels, precision, lanes in (one.split(":") for one in words.time.split(",")) if words.time else ():
        wanted.append((case, kernels, precision, 16 if tiny else int(lanes)))
    for case, kernels, precision, lanes in wanted:
        for minibatches in CASES[case].minibatches[: 1 if words.time else None]:

            def timed(
                what: tuple = (case, kernels, precision, lanes, minibatches), shown: bool = words.profile
            ) -> dict[str, object]:
                ppo = begun(*what, tiny=tiny)
                return (
                    {"stats": ppo.stats.tolist()} if tiny else rates(ppo) | ({"profile": profile(ppo)} if shown else {})
                )

            attempt(
                {"case": case, "kernels": kernels, "precision": precision, "lanes": lanes, "minibatches": minibatches},
                timed,
            )


if __name__ == "__main__":
    main()
