"""Off-policy algorithms and PQN on a GPU: rates, replay in host memory, times to a score. Prints JSON lines.

    python benches/offpolicy.py [--only rates,place,pqn,learn,tune,minatar] [--seeds 1,2,3] [--part I/N] [--once]
        [--tiny]

All parts run in one process; one that fails does not stop the others. `rates`: updates and steps per second with act,
step, store and sample, in CUDA graphs: SAC and TD3 at batch 256 and in FastSAC's shape (8,192 x 768, 4,096 lanes), DQN
at 4,096 lanes with short and long iterations, Snake at 256 lanes. `place`: DQN on Snake's board at batch 4,096 and 1 M
transitions, with the replay on the device and in host memory, with identical bytes of a run, compared with the
bandwidth of the bus. `learn`: seconds of training (without the first three iterations and evaluations) until greedy
games reach a mark. `minatar`: PQN's recipes of the five games over their 10 M steps, with their own rules and with
gymnax's (no sticky actions, games of 1,000 steps, Freeway's 2,500), and the mean return of greedy games. `tune`:
`learn` with other hyperparameters. With --once nothing is timed: kernels are compiled, by N processes in parallel if
each is given a part. With --tiny everything runs on a CPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from learn import settled

from operant.config import load as configuration
from operant.config.recipes import find_source
from operant.training.build import build
from operant.training.evaluate import Evaluator

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FRESH_SEED = 10_007
ONCE = False
MINATAR = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
LEARN = {  # recipe -> what greedy games must reach, and the most seconds
    "sac/pendulum": (-170.0, 3.0),
    "sac/swingup": (3.5, 5.0),
    "td3/mountaincar_continuous": (90.0, 6.0),
    "sac/mountaincar_continuous": (90.0, 8.0),
    "dqn/cartpole": (475.0, 4.0),
    "dqn/snake": (27.0, 12.0),
    "td3/pendulum": (-170.0, 5.0),
    "td3/swingup": (3.5, 12.0),
}
TINY = [
    "env.lanes=8",
    "algo.horizon=4",
    "algo.batch_size=16",
    "algo.learning_starts=32",
    "algo.replay_capacity=512",
    "net.hidden=[16,16]",
]


def say(**found: object) -> None:
    """Print one JSON line."""
    print(json.dumps(found), flush=True)


def wait() -> float:
    """Current time after synchronizing the device."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def made(source: str | None, overrides: list[str], tiny: bool, seed: int = 1) -> tuple[Any, Any]:
    """Configuration and its algorithm, after the first iterations."""
    found = find_source(source) if source else None
    off_policy = "algo.name=pqn" not in overrides and not (source or "").startswith("pqn")
    words = [
        *overrides,
        f"run.seed={seed}",
        *((TINY if off_policy else ["env.lanes=16", "algo.horizon=8", "algo.minibatches=2"]) if tiny else ()),
    ]
    config = configuration.load(found, words)
    algo: Any = build(config, DEVICE)
    algo.start()
    return config, algo


def iterate(algo: Any, times: int) -> None:
    for _ in range(times):
        for phase in algo.phases:
            phase.run()


def rate(name: str, overrides: list[str], tiny: bool, seconds: float = 1.0) -> None:
    """Steps and updates per second of whole iterations: the best of three measurements."""
    config, algo = made(None, overrides, tiny)
    iterate(algo, 4)  # plain, captured, replayed; learning has begun
    if ONCE:
        return
    warm = 4
    while float(getattr(getattr(algo, "cycle", None), "skip", torch.zeros(()))) > 0 and warm < 10_000:
        iterate(algo, 1)
        warm += 1
    began = wait()
    iterate(algo, 1)
    times = max(1, int(seconds / 3 / max(wait() - began, 1e-5))) if not tiny else 1
    best = float("inf")
    for _ in range(3):
        began = wait()
        iterate(algo, times)
        best = min(best, (wait() - began) / times)
    updates = getattr(algo.config, "updates", None)
    row = {"rate": name, "kernels": algo.kernels, "lanes": config.env.lanes, "precision": algo.config.precision}
    row |= {"us": round(best * 1e6, 1), "MSPS": round(algo.steps_per_iteration / best / 1e6, 3)}
    if updates is not None:
        row |= {
            "updates_per_s": round(updates / best),
            "replay_on_host": algo.cycle.replay.on_host,
            "replay_MiB": round(algo.cycle.replay.bytes / 2**20, 1),
        }
    say(**row, finite=bool(torch.isfinite(algo.stats).all()), overrides=overrides)


def rates(tiny: bool, seeds: list[int]) -> Iterator[Callable[[], object]]:
    """All rates, each a function."""
    relu = "net.activation=relu"
    for algo in ("sac", "td3"):
        for precision in ("bf16", "tf32"):
            for hidden in ("[128,128]", "[256,256]"):
                words = [
                    f"algo.name={algo}",
                    "env.name=pendulum",
                    "env.lanes=256",
                    "algo.horizon=128",
                    "algo.batch_size=256",
                    f"net.hidden={hidden}",
                    relu,
                ]
                yield lambda name=f"{algo} {precision} {hidden}", words=[*words, f"algo.precision={precision}"]: rate(
                    name, words, tiny
                )
    shape = [
        "env.name=swingup",
        "env.lanes=4096",
        "algo.horizon=32",
        "algo.batch_size=8192",
        "net.hidden=[768,768]",
        relu,
        "algo.replay_capacity=4M",
    ]
    for algo in ("sac", "td3"):
        for more in (
            ["algo.precision=bf16"],
            ["algo.precision=tf32"],
            ["algo.precision=bf16", "net.layer_norm=true", "algo.critic=c51"],
        ):
            yield lambda name=f"{algo} 8,192 x 768 {more}", words=[f"algo.name={algo}", *shape, *more]: rate(
                name, words, tiny
            )
    for horizon in (64, 128, 256):
        words = [
            f"algo.horizon={horizon}",
            "algo.name=dqn",
            "env.name=cartpole",
            "env.lanes=4096",
            "algo.batch_size=4096",
            "net.hidden=[120,84]",
            relu,
        ]
        words += ["algo.precision=bf16", "algo.replay_capacity=2M"]
        yield lambda name=f"dqn 4,096 lanes, {horizon} ticks", words=words: rate(name, words, tiny)
    snake = [
        "algo.name=dqn",
        "env.name=snake",
        "env.lanes=256",
        "algo.horizon=128",
        "algo.updates_per_step=0.25",
        "algo.batch_size=128",
        relu,
    ]
    for precision in ("bf16", "tf32"):
        yield (
            lambda precision=precision: rate(
                f"dqn snake {precision}", [*snake, "net.hidden=[128,128]", f"algo.precision={precision}"], tiny
            )
        )


def place(tiny: bool, seeds: list[int]) -> Iterator[Callable[[], object]]:
    """Replay on the device and in host memory, and the bus."""
    words = [
        "algo.name=dqn",
        "env.name=snake",
        "env.lanes=256",
        "algo.horizon=64",
        "algo.batch_size=4096",
        "net.activation=relu",
        "net.hidden=[128,128]",
    ]
    for kernels in ("auto", "torch"):
        for where in ("device", "host"):
            more = [f"algo.kernels={kernels}", f"algo.replay_place={where}", "algo.replay_capacity=1M"]
            yield lambda name=f"dqn snake, replay on {where}, {kernels}", words=[*words, *more]: rate(name, words, tiny)
    yield lambda: gather(tiny)
    for algo, env, kernels in (
        ("dqn", "snake", "auto"),
        ("dqn", "snake", "torch"),
        ("sac", "pendulum", "auto"),
        ("td3", "pendulum", "torch"),
    ):
        small = [
            f"algo.name={algo}",
            f"env.name={env}",
            f"algo.kernels={kernels}",
            "env.lanes=64",
            "algo.horizon=16",
            "net.activation=relu",
        ]
        yield lambda words=small: same_bits(words, tiny)


def same_bits(words: list[str], tiny: bool) -> None:
    """Number of bytes of a run that differ with a replay in host memory."""
    found = []
    for where in ("device", "host"):
        _, algo = made(
            None,
            [*words, f"algo.replay_place={where}", "algo.learning_starts=1024", "algo.replay_capacity=16384"],
            tiny,
        )
        iterate(algo, 40)
        wait()
        found.append({name: tensor.detach().cpu() for name, tensor in algo.state("all").items()})
    one, other = found
    say(
        same_bits=words,
        other=[name for name, tensor in one.items() if not torch.equal(tensor, other[name])],
        of=len(one),
        kernels=algo.kernels,
    )


def gather(tiny: bool) -> None:
    """GB/s of sampling from host memory, and of a plain copy of page-locked memory."""
    words = [
        "algo.name=dqn",
        "env.name=snake",
        "algo.kernels=torch",
        "algo.replay_place=host",
        "env.lanes=256",
        "algo.batch_size=4096",
    ]
    _, algo = made(None, words, tiny)
    iterate(algo, 3)
    replay, batch = algo.cycle.replay, algo.cycle.replay.batch
    moved, times = (
        2 * batch.observation.shape[1] * replay.ring.observation.shape[2] * replay.ring.observation.element_size(),
        3 if tiny else 300,
    )
    found = {}
    source = torch.zeros(2**20 if tiny else 2**28, dtype=torch.uint8, pin_memory=DEVICE == "cuda")
    target = source.to(DEVICE)
    copies = {
        "sample": (lambda: replay.sample(0, 0), moved),
        "copy": (lambda: target.copy_(source, non_blocking=True), source.numel()),
    }
    for name, (work, size) in copies.items():
        work()
        graph = torch.cuda.CUDAGraph() if DEVICE == "cuda" else None
        count = times if name == "sample" else 3
        if graph is not None:
            with torch.cuda.graph(graph):
                for _ in range(count):
                    work()
        began = wait()
        if graph is not None:
            graph.replay()
        else:
            for _ in range(count):
                work()
        found[f"{name}_GB_per_s"] = round(size * count / (wait() - began) / 1e9, 2)
    say(bus=found, batch_bytes=moved, on_host=replay.on_host)


def pqn(tiny: bool, seeds: list[int]) -> Iterator[Callable[[], object]]:
    """PQN's rates."""
    common = [
        "algo.name=pqn",
        "env.name=cartpole",
        "env.lanes=8192",
        "algo.horizon=64",
        "algo.epochs=2",
        "algo.minibatches=4",
        "net.layer_norm=true",
    ]
    for hidden in ("[64,64]", "[256,256]"):
        for precision in ("bf16", "tf32"):
            words = [*common, "net.activation=relu", f"net.hidden={hidden}", f"algo.precision={precision}"]
            yield lambda name=f"pqn {hidden} {precision}", words=words: rate(name, words, tiny)


def score(config: Any, algo: Any, evaluator: Evaluator, iteration: int) -> float:
    """Metric of the mark: the mean return of greedy games; for swing-up the reward per step once the pole is up."""
    return settled(algo.actor, config) if config.environment.name == "swingup" else evaluator.run(iteration).mean


def learnt(recipe: str, seed: int, tiny: bool, overrides: list[str]) -> None:
    """Seconds of training until the mark is reached."""
    mark, limit = LEARN[recipe]
    config, algo = made(recipe, overrides, tiny, seed)
    evaluator = Evaluator(
        algo.actor,
        config.environment,
        config.params,
        episodes=8 if tiny else 256,
        seed=FRESH_SEED + seed,
        max_steps=64 if tiny else None,
    )
    iterate(algo, 3)
    iterations, spent, best, value = 3, 0.0, float("-inf"), float("nan")
    if ONCE:
        score(config, algo, evaluator, iterations)
        return
    while (
        not value >= mark
        and spent < limit
        and iterations * algo.steps_per_iteration < config.run.steps
        and not (tiny and iterations > 3)
    ):
        began = wait()
        while wait() - began < max(0.02, spent / 20):
            iterate(algo, 1)
            iterations += 1
        spent += wait() - began
        value = score(config, algo, evaluator, iterations)
        best = max(best, value)
    say(
        learn=recipe,
        seed=seed,
        reached=value >= mark,
        mark=mark,
        seconds=round(spent, 3),
        steps=iterations * algo.steps_per_iteration,
        value=round(value, 2),
        best=round(best, 2),
        kernels=algo.kernels,
        overrides=overrides,
    )


def learn(tiny: bool, seeds: list[int]) -> Iterator[Callable[[], object]]:
    """Each recipe with each seed."""
    for recipe in LEARN:
        for seed in seeds:
            yield lambda recipe=recipe, seed=seed: learnt(recipe, seed, tiny, [])


TUNE = {
    "sac/swingup": [
        "env.lanes=256 learning_starts=20k",
        "env.lanes=256 learning_starts=20k learning_rate=2e-3 critic_learning_rate=2e-3 tau=0.05",
        "env.lanes=256 learning_starts=20k batch_size=512 tau=0.05",
        "env.lanes=256 learning_starts=20k n_step=3",
        "env.lanes=256 learning_starts=20k n_step=10",
        "env.lanes=256 learning_starts=20k gamma=0.98 tau=0.05",
        "env.lanes=128 learning_starts=20k batch_size=512 net.hidden=[128,128] tau=0.05",
        "env.lanes=1024 learning_starts=50k batch_size=1024 horizon=16 tau=0.05",
        "env.lanes=64 tau=0.05 learning_rate=2e-3 critic_learning_rate=2e-3",
        "env.lanes=256 learning_starts=20k initial_temperature=0.1 tau=0.05",
    ],
    "dqn/snake": [
        "run.steps=400M env.lanes=1024 batch_size=1024 learning_rate=4e-4 n_step=5 target_every=500 epsilon_end=0.002 "
        "epsilon_steps=8M replay_capacity=2M "
        "precision=bf16",
        "run.steps=60M epsilon_steps=2M",
        "run.steps=60M epsilon_steps=1M n_step=5",
        "run.steps=60M updates_per_step=2 precision=bf16",
        "run.steps=60M env.lanes=960 epsilon_steps=2M batch_size=1024 precision=bf16",
    ],
    "td3/mountaincar_continuous": [
        "env.lanes=256",
        "env.lanes=256 batch_size=256 tau=0.05",
        "env.lanes=512 batch_size=512 learning_rate=2e-3",
    ],
}
"""Overrides of recipes: keys of `[algo]` unless they name a section."""


def tune(tiny: bool, seeds: list[int]) -> Iterator[Callable[[], object]]:
    """Each recipe with other hyperparameters."""
    for recipe, cases in TUNE.items():
        for case in cases:
            words = [word if "." in word.split("=")[0] else f"algo.{word}" for word in case.split()]
            for seed in seeds:
                yield lambda recipe=recipe, seed=seed, words=words: learnt(recipe, seed, tiny, words)


def game(name: str, seed: int, tiny: bool, *, gymnax: bool) -> None:
    """One MinAtar game over the steps of its recipe; with gymnax's rules without sticky actions, evaluated over games
    of its length.
    """
    config, algo = made(f"pqn/minatar_{name}", ["env.params.sticky=0"] if gymnax else [], tiny, seed)
    iterate(algo, 3)
    count = max(1, config.run.steps // algo.steps_per_iteration - 3) if not tiny and not ONCE else 1
    began = wait()
    iterate(algo, count)
    spent = wait() - began
    limit = {"freeway": 2500}.get(name, 1000) if gymnax else 10_000
    env = dataclasses.replace(config.environment, time_limit=limit)
    found = Evaluator(
        algo.actor,
        env,
        config.params,
        episodes=8 if tiny else 512,
        seed=FRESH_SEED + seed,
        max_steps=64 if tiny else limit + 1,
    ).run(1)
    if ONCE:
        return
    row = {"minatar": name, "rules": "gymnax" if gymnax else "shipped", "seed": seed, "seconds": round(spent, 2)}
    row |= {
        "steps": (count + 3) * algo.steps_per_iteration,
        "kernels": algo.kernels,
        "precision": algo.config.precision,
    }
    say(**row, score=round(found.mean, 2), length=round(found.length, 1))


def minatar(tiny: bool, seeds: list[int]) -> Iterator[Callable[[], object]]:
    """Each game with each seed and both sets of rules."""
    for seed in seeds:
        for gymnax in (True, False):
            for name in MINATAR:
                yield lambda name=name, seed=seed, gymnax=gymnax: game(name, seed, tiny, gymnax=gymnax)


def main() -> None:
    """Run all selected parts."""
    parts = {part.__name__: part for part in (rates, place, pqn, learn, tune, minatar)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(parts))
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    global ONCE
    ONCE = asked.once
    part, of = map(int, asked.part.split("/"))
    say(
        machine=torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU",
        torch=torch.__version__,
        date=time.strftime("%Y-%m-%d"),
    )
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    works = [(name, work) for name in asked.only.split(",") for work in parts[name](asked.tiny, seeds)]
    for name, work in works[part::of]:
        begun = time.perf_counter()
        try:
            work()
        except Exception:
            say(failed=name, error=traceback.format_exc()[-700:])
        if time.perf_counter() - begun > 20:
            say(slow=name, seconds=round(time.perf_counter() - begun, 1))
        gc.collect()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
