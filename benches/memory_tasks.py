"""Results of policies with a memory, and of controls without one: trains recipes until greedy games reach a mark. JSON
lines.

    python benches/memory_tasks.py [--only chain100,tmaze] [--seeds 1,2,3] [--limit 60] [--list] [--once] [--profile]
        [--tiny] [--fresh 65536] [--curve 10] [--set algo.learning_rate=3e-3 run.steps=200M]

Seconds are those of collecting and updating, host and device together, without evaluations and without the first three
iterations, which compile and capture kernels. An experiment ends at its mark, after its limit in seconds or at the end
of its recipe's steps; then 1,024 or `--fresh` games with another seed measure the policy. A failed experiment does not
stop the others. With --curve N each experiment runs to the end of its steps, with evaluations after N equal parts. With
--once nothing is learnt: kernels are compiled. With --profile the kernels of ten iterations are timed. With --tiny
every experiment takes a few steps on a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import time
import traceback
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from offpolicy import DEVICE, say, wait

from operant.config import load as configuration
from operant.config.recipes import find_source
from operant.errors import ConfigError
from operant.training.build import build, set_scheduled
from operant.training.evaluate import Evaluation, Evaluator

GAMES, FRESH, FRESH_SEED = 256, 1024, 10_007
TINY = ["env.lanes=8", "algo.minibatches=2", "algo.kernels=torch"]


class Task(NamedTuple):
    """Recipe, overrides, mark of greedy games, and time limit in seconds."""

    recipe: str
    words: str  # overrides
    least: float
    limit_s: float
    what: str = "return"  # or a tally's name
    judged: str = ""  # overrides of the environment that plays the games
    longest: int | None = None  # steps of a game
    look_s: tuple[float, float] = (0.0, 0.02)  # seconds before the first evaluation, and minimum between two
    fresh: int = FRESH  # games of another seed at the end


LONG = "env.params.high=1000 env.params.log_uniform=true algo.horizon=64 run.steps=300M"
AT_1000 = "env.params.low=1000 env.params.high=1000 env.params.log_uniform=false"
POPGYM = "env.lanes=1024 algo.minibatches=8 run.steps=300M"
MEDIUM = "env.params.decks=2 env.params.kinds=4"  # of Count Recall
TASKS = {
    "chain100": Task("memory_chain", "", 0.99, 10),
    "chain1000": Task(
        "memory_chain",
        "env.lanes=1024 env.params.length=1000 algo.horizon=1001 net.memory_init=2000 run.steps=300M",
        0.99,
        20,
    ),
    "tmaze10": Task("tmaze", "", 3.99, 10),
    "tmaze1000": Task("tmaze", f"{LONG} env.lanes=1024 net.memory_init=5000", 1.0, 70, "right", AT_1000, 1024),
    "cartpole": Task("cartpole_positions", "net.shared=true", 475, 10),
    "repeat_first": Task("repeat_first", "", 0.9, 10),
    "repeat_first_medium": Task(
        "repeat_first", f"{POPGYM} env.params.decks=8 algo.horizon=64 net.memory_init=1000", 0.9, 40
    ),
    "repeat_first_hard": Task(
        "repeat_first", f"{POPGYM} env.params.decks=16 algo.horizon=64 net.memory_init=2000", 0.9, 40
    ),
    "repeat_previous": Task("repeat_previous", "", 0.95, 10),
    "repeat_previous_medium": Task("repeat_previous_medium", "", 0.99, 60),
    "repeat_previous_hard": Task(
        "repeat_previous_medium",
        "env.params.decks=3 env.params.k=64 net.memory_layers=2 algo.horizon=155 run.steps=60M",
        0.99,
        100,
    ),
    "autoencode": Task("autoencode", "", 0.99, 60),
    "autoencode_medium": Task("autoencode", "env.params.decks=2 algo.horizon=207", 0.99, 60),
    "count_recall": Task("count_recall", "", 0.99, 40),
    "count_recall_medium": Task(
        "count_recall",
        f"{MEDIUM} algo.precision=bf16 env.lanes=2048 algo.minibatches=16 algo.horizon=103 run.steps=40M",
        0.99,
        60,
    ),
    "count_recall_ranks": Task(
        "count_recall", "env.params.decks=4 env.params.kinds=13 algo.horizon=207 run.steps=40M", 0.99, 60
    ),
    "higher_lower": Task("higher_lower", "", 1.0, 100, fresh=16_384),
    "higher_lower_medium": Task("higher_lower", "env.params.decks=2 algo.horizon=103", 1.0, 60, fresh=16_384),
    "higher_lower_hard": Task("higher_lower", "env.params.decks=3 algo.horizon=155", 1.0, 60, fresh=16_384),
    "concentration": Task("concentration", "", 0.8, 300),
    "concentration_mlp": Task(
        "concentration", "net.kind=mlp net.shared=true net.memory=lstm net.memory_layers=1 net.hidden=[128]", 0.8, 80
    ),
    "concentration_hard": Task("concentration", "env.params.ranks=true", 0.8, 80),
    "breakout": Task("breakout", "", 860, 25, longest=12_000, look_s=(0.7, 0.1)),
    "snake": Task("snake", "", 30, 8, "length"),
    "pacman": Task("pacman", "", 200, 14, "pickups", longest=12_000, look_s=(2.0, 0.5)),
    "pacman_memory": Task("pacman_memory", "", 200, 40, "pickups", longest=12_000, look_s=(4.0, 2.0)),
    "g2048": Task("g2048", "", 0.5, 8, "reached_2048", longest=12_000, look_s=(0.8, 0.1)),
    "g2048_memory": Task("g2048_memory", "", 0.75, 40, "reached_2048", longest=12_000, look_s=(4.0, 2.0)),
    "go_memory": Task("go_memory", "", 0.95, 5, "won", longest=12_000, look_s=(0.3, 0.1)),
    "breakout_memory": Task(
        "breakout", "net.memory=mingru net.memory_layers=2 algo.horizon=64", 860, 60, longest=12_000
    ),
}


def value_of(task: Task, found: Evaluation) -> float:
    """Value of the mark's metric."""
    return found.mean if task.what == "return" else found.tally[task.what]


def trained(
    name: str, seed: int, more: list[str], limit_s: float | None, games: int | None, tiny: bool, parts: int
) -> None:
    """Run one experiment with one seed: whether and when it reached its mark, and its best evaluation; with `parts`,
    all of its steps in equal parts.
    """
    task = TASKS[name]
    source, words = find_source(task.recipe), [*task.words.split(), *more, *(TINY if tiny else ()), f"run.seed={seed}"]
    config = configuration.load(source, words)
    judged = configuration.load(source, [*words, *task.judged.split()])
    algo: Any = built(config, tiny)
    algo.start()

    def evaluator(episodes: int, own: int, *, greedy: bool = True) -> Evaluator:
        longest = 64 if tiny else task.longest
        return Evaluator(
            algo.actor,
            judged.environment,
            judged.params,
            episodes=8 if tiny else episodes,
            seed=own,
            max_steps=longest,
            greedy=greedy,
        )

    looks, began = evaluator(GAMES, seed), wait()
    iterate(algo, 3)
    first_s, iterations, spent, looked = wait() - began, 3, 0.0, 0.0
    last = 6 if tiny else -(-config.run.steps // algo.steps_per_iteration)  # iterations in all
    limit = limit_s or float("inf") if parts else min(limit_s or task.limit_s, task.limit_s)
    value, best = float("nan"), float("-inf")
    while (parts or not value >= task.least) and spent < limit and iterations < last:
        began, until = wait(), max(task.look_s[1], spent / 12) if spent else max(task.look_s)
        stop = -(-last * (iterations * parts // last + 1) // parts) if parts else last
        while iterations < stop and (parts or wait() - began < until):
            iterate(algo, 1, iterations)
            iterations += 1
        spent += wait() - began
        value = value_of(task, looks.run(iterations))
        best = max(best, value)
        if parts or spent - looked >= max(0.3, looked / 3):
            looked = spent
            steps, reward = iterations * algo.steps_per_iteration, float(algo.rollout.reward.mean())
            say(
                at=name, seed=seed, seconds=round(spent, 2), steps=steps, value=round(value, 3), reward=round(reward, 5)
            )
    fresh, sampled = (
        evaluator(games or task.fresh, FRESH_SEED + seed).run(0),
        evaluator(FRESH, FRESH_SEED + seed, greedy=False).run(0),
    )
    steps = iterations * algo.steps_per_iteration
    say(
        task=name,
        seed=seed,
        reached=value >= task.least,
        mark=task.least,
        seconds=round(spent, 3),
        steps=steps,
        msps=round(steps / max(spent, 1e-9) / 1e6, 2),
        value=round(value, 3),
        best=round(best, 3),
        fresh=round(fresh.mean, 4),
        ci95=round(fresh.ci95 or 0.0, 5),
        sampled=round(sampled.mean, 4),
        unfinished=fresh.unfinished,
        tally=fresh.tally,
        first_s=round(first_s, 1),
        kernels=algo.kernels,
        words=words,
    )


def built(config: Any, tiny: bool) -> Any:
    """Algorithm; on a GPU with fused kernels if supported."""
    if DEVICE == "cuda" and config.algo.kernels == "auto" and not tiny:
        fused = replace(config, algo=config.algo.model_copy(update={"kernels": "fused"}))
        with contextlib.suppress(ConfigError):
            return build(fused, DEVICE)
    return build(config, DEVICE)


def compiled(name: str, seed: int, more: list[str], profile: bool) -> None:
    """Launch everything of an experiment once, or time each kernel over ten iterations."""
    task = TASKS[name]
    config = configuration.load(find_source(task.recipe), [*task.words.split(), *more, f"run.seed={seed}"])
    began = wait()
    algo: Any = built(config, False)
    algo.start()
    iterate(algo, 3)
    Evaluator(algo.actor, config.environment, config.params, episodes=GAMES, seed=seed, max_steps=64).run(0)
    say(compiled=name, kernels=algo.kernels, seconds=round(wait() - began, 1), words=more)
    if not profile:
        return
    iterate(algo, 10)
    began = wait()
    iterate(algo, 20)
    whole = (wait() - began) / 20
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        iterate(algo, 10)
        wait()
    rows = sorted(profiler.key_averages(), key=lambda row: -row.device_time_total)
    say(
        profile=name,
        words=more,
        iteration_us=round(1e6 * whole, 1),
        steps=algo.steps_per_iteration,
        msps=round(algo.steps_per_iteration / whole / 1e6, 2),
    )
    for row in rows[:16]:
        us = row.device_time_total
        say(
            kernel=row.key[:60],
            launches=row.count / 10,
            each_us=round(us / row.count, 2),
            iteration_us=round(us / 10, 1),
        )


def iterate(algo: Any, times: int, done: int = 0) -> None:
    """Whole iterations with the values of the schedules."""
    for number in range(done, done + times):
        if algo.scheduled:
            set_scheduled(algo, number * algo.steps_per_iteration)
        for phase in algo.phases:
            phase.run()


def main() -> None:
    """Run all selected experiments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TASKS))
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--limit", type=float, help="maximum seconds of training")
    parser.add_argument("--fresh", type=int, help="final evaluation games, with another seed")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides")
    parser.add_argument(
        "--curve", type=int, default=0, metavar="PARTS", help="train to the end, with this number of evaluations"
    )
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    if asked.list:
        for name, task in TASKS.items():
            say(name=name, **task._asdict())
        return
    say(
        machine=torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU",
        torch=torch.__version__,
        date=time.strftime("%Y-%m-%d"),
    )
    for name in asked.only.split(","):
        for seed in asked.seeds.split(","):
            try:
                if asked.once or asked.profile:
                    compiled(name, int(seed), asked.set, asked.profile)
                    continue
                trained(name, int(seed), asked.set, asked.limit, asked.fresh, asked.tiny, asked.curve)
            except Exception:
                say(failed=name, seed=seed, error=traceback.format_exc()[-700:])
            gc.collect()
            if DEVICE == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
