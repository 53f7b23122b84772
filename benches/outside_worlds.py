"""Outside environments with learning on the device: their rate alone, then rates and curves with learning. JSON lines.

    python benches/outside_worlds.py                          on a GPU with 16 cores: everything (some minutes)
    python benches/outside_worlds.py --tiny --device cpu      small sizes, to test the script

Parts

    ale_alone     Pong by ale-py with random actions only: its vector environment with one thread per core, and in
                  independent processes, one per core; then Operant's processes without a learner
    ale           Pong by PPO with the Nature CNN: training rate compared with those
    ale_learn     learning curve of Pong
    mujoco_alone  HalfCheetah-v5 by Gymnasium with random actions, in independent processes, one per core
    mujoco        HalfCheetah-v5 by PPO and SAC: training rates compared with that
    mujoco_learn  learning curves of HalfCheetah-v5
    resize        a user's colour images of 210 x 160, converted to grayscale, resized and stacked by the processes and
                  on the device: identical bytes, rates

"Alone" is measured over whole episodes and their starts: starting a game of Pong takes as long as several steps.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from host_worlds import compare, overlapped, rollout, run_parts, say, trained, wait

from operant.config import load as configuration
from operant.config import recipes
from operant.envs import outside
from operant.training.build import build
from operant.training.evaluate import Evaluator
from operant.worlds.host_world import HostWorld

PARTS = ("ale_alone", "ale", "mujoco_alone", "mujoco", "resize", "ale_learn", "mujoco_learn")
CORES = len(os.sched_getaffinity(0))
ALONE: dict[str, float] = {}
"""Rates without learning, in steps per second."""
CHOSEN = argparse.Namespace()
"""Parsed command line."""

# ALONE

ALE_ALONE = """
import sys, time
import numpy
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode
lanes, threads, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
env = AtariVectorEnv("pong", lanes, num_threads=threads, reward_clipping=False, autoreset_mode=AutoresetMode.SAME_STEP)
env.reset(seed=1)
actions = numpy.random.default_rng(1).integers(0, 6, (64, lanes))
print("ready", flush=True)
sys.stdin.readline()
began, steps, ended = time.perf_counter(), 0, 0
while time.perf_counter() - began < seconds:
    _, _, terminated, truncated, _ = env.step(actions[steps % 64])
    steps, ended = steps + 1, ended + int((terminated | truncated).sum())
print(steps * lanes / (time.perf_counter() - began), ended, flush=True)
"""

MUJOCO_ALONE = """
import sys, time
import gymnasium, numpy
env = gymnasium.make("HalfCheetah-v5")
actions = numpy.random.default_rng(1).uniform(-1, 1, (100, 6)).astype("float32")
env.reset(seed=1)
print("ready", flush=True)
sys.stdin.readline()
began, steps, ended = time.perf_counter(), 0, 0
while time.perf_counter() - began < float(sys.argv[3]):
    steps += 1
    if env.step(actions[steps % 100])[3]:
        env.reset()
        ended += 1
print(steps / (time.perf_counter() - began), ended, flush=True)
"""


def alone(program: str, lanes: int, threads: int, processes: int, seconds: float) -> tuple[float, int]:
    """Steps per second and ended episodes of independent processes that start together."""
    words = [sys.executable, "-W", "ignore", "-c", program, str(lanes), str(threads), str(seconds)]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(words, stdin=-1, stdout=-1, stderr=-3, text=True, env=settings) for _ in range(processes)
    ]
    for one in started:
        one.stdout.readline()
    for one in started:
        one.stdin.write("\n")
        one.stdin.flush()
    told = [one.communicate()[0].split() for one in started]
    return sum(float(rate) for rate, _ in told), sum(int(ended) for _, ended in told)


def ale_alone(device: torch.device, tiny: bool) -> None:
    seconds = 0.5 if tiny else 5.0
    kinds = (("a process a core", 8, 1, CORES), ("its vector environment", 8 * CORES, CORES, 1))
    for label, lanes, threads, count in kinds[: 2 if CHOSEN.all else 1]:
        rate, ended = alone(ALE_ALONE, lanes, threads, count, seconds)
        ALONE["ale"] = max(rate, ALONE.get("ale", 0.0))
        say("ale_alone", label=f"ale-py, {label}", lanes=lanes * count, sps=rate, ended=ended)
    if CHOSEN.all:
        ours_alone(device, tiny)


def ours_alone(device: torch.device, tiny: bool) -> None:
    say("ours_alone", buffers=4, lanes=8 * CORES, **stepped("ale:pong", 8 * CORES, 4, 0.5 if tiny else 5.0))


def stepped(name: str, lanes: int, buffers: int, seconds: float) -> dict[str, float]:
    """Steps per second of Operant's processes as used with a GPU, without GPU and learner."""
    env = configuration.load(None, [f"env.name={name}"]).environment
    world = HostWorld(replace(env, hosting=outside.Hosting(CORES, buffers)), lanes, seed=1, device="cpu", raw=True)
    world.reset(world.slot())
    steppers, parts, late = world._steppers, world.buffers, max(1, buffers - 1)
    draw, place, ended = np.random.default_rng(1), 0, 0
    began = time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds or place % buffers:
        part = parts[place % buffers]
        steppers.blocks.action[part, 0] = draw.integers(0, env.action.n, part.stop - part.start)
        steppers.begin("step", place % buffers)
        if place >= late:
            steppers.finish("step", (place - late) % buffers)
            ended += int(steppers.blocks.terminated[parts[(place - late) % buffers]].sum())
        place += 1
    world.close()
    return {"sps": place // buffers * lanes / spent, "ended": ended}


def mujoco_alone(device: torch.device, tiny: bool) -> None:
    rate, ended = alone(MUJOCO_ALONE, 1, 1, CORES, 0.3 if tiny else 3.0)
    ALONE["mujoco"] = rate
    say("mujoco_alone", label="Gymnasium, a process a core", processes=CORES, sps=rate, ended=ended)


# TRAINING

LARGE = ("algo.epochs=4", "algo.minibatches=8")
ALE = {
    "the recipe": (),
    "128 lanes, 4 buffers": ("algo.horizon=128", *LARGE),
    "256 lanes, 8 buffers": ("env.lanes=256", "env.buffers=8", "algo.horizon=64", *LARGE),
    "asynchronous, 256 lanes": ("env.lanes=256", "env.buffers=1", "env.asynchronous=true", "algo.horizon=64", *LARGE),
    "learning after": ("algo.horizon=128", "algo.overlap=false", *LARGE),
}
"""Variants of the recipe for Pong, which uses algo.overlap."""
TINY_ALE = ("env.lanes=8", "algo.horizon=4", "algo.epochs=1", "algo.minibatches=1", "env.time_limit=30")


def ale_config(*words: str):
    return configuration.load(recipes.find_source("ppo/ale"), ["env.name=ale:pong", *words])


def share(kind: str, sps: float) -> dict[str, float]:
    return {"share_of_alone": sps / ALONE[kind]} if kind in ALONE else {}


def ale(device: torch.device, tiny: bool) -> None:
    for label, words in ALE.items():
        if CHOSEN.cases and not any(one in label for one in CHOSEN.cases.split("|")):
            continue
        config, began = ale_config(*words, *(TINY_ALE if tiny else ())), time.perf_counter()
        try:
            figures = trained(config, device, 0.2 if tiny else 2.5)
        except Exception as error:
            say("ale", label=label, failed=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
            continue
        say(
            "ale",
            label=label,
            lanes=config.lanes,
            took_s=time.perf_counter() - began,
            **share("ale", figures["sps"]),
            **figures,
        )


def mujoco_configs(tiny: bool) -> Iterator:
    off_policy = ("algo.learning_starts=64", "algo.horizon=4", "algo.replay_capacity=64k")
    for name, lanes, buffers, words in (
        ("ppo", 64, 2, ("algo.horizon=64",)),
        ("ppo", 256, 4, ("algo.horizon=64", "algo.overlap=true")),
        ("sac", 64, 2, off_policy),
        ("sac", 256, 4, off_policy),
    ):
        small = (
            ("env.lanes=8", "algo.horizon=4", "algo.minibatches=2" if name == "ppo" else "algo.batch_size=64")
            if tiny
            else ()
        )
        every = f"algo.name={name}", "env.name=gymnasium:HalfCheetah-v5", f"env.lanes={lanes}", f"env.buffers={buffers}"
        yield configuration.load(None, [*every, *words, *small])


def once(device: torch.device, tiny: bool) -> None:
    """Compile everything that the other parts cache."""
    for config in mujoco_configs(tiny):
        say("once", **trained(config, device, 0.2))


def mujoco(device: torch.device, tiny: bool) -> None:
    for config in mujoco_configs(tiny):
        figures = trained(config, device, 0.5 if tiny else 2)
        told = {
            "lanes": config.lanes,
            "buffers": config.environment.hosting.buffers,
            "beside": getattr(config.algo, "overlap", False),
        }
        say("mujoco", algo=config.algo_name, **told, **share("mujoco", figures["sps"]), **figures)


SCREEN = """
import gymnasium, numpy
NOISE = numpy.random.default_rng(1).integers(0, 256, (16, 210, 160, 3), dtype=numpy.uint8)
class Screen(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (210, 160, 3), numpy.uint8)
    action_space, at = gymnasium.spaces.Discrete(2), 0
    def reset(self, *, seed=None, options=None):
        self.at = 0
        return NOISE[0], {}
    def step(self, action):
        self.at += 1
        return NOISE[self.at % 16], 0.0, self.at == 37, False, {}
"""


def resize(device: torch.device, tiny: bool) -> None:
    pong = configuration.load(None, ["env.name=ale:pong", "env.time_limit=12"]).environment
    worlds = [
        HostWorld(pong, 4 if tiny else 16, seed=3, device=where, raw=raw)
        for where, raw in (("cpu", False), (device, True))
    ]
    compare("ale:pong", *(rollout(world, 30) for world in worlds))
    for world in worlds:
        world.close()
    lanes, horizon = (8, 4) if tiny else (64, 32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "screen.py"
        path.write_text(SCREEN)
        words = ["env.grayscale=true", "env.resize=84", "env.frame_stack=4", f"env.lanes={lanes}", "env.buffers=4"]
        env = configuration.load(None, [f"env.name={path}:Screen", *words]).environment
        for raw in (False, True):
            world = HostWorld(env, lanes, seed=1, device=device, raw=raw)
            rate = overlapped(world, horizon, 2 if tiny else 8)
            say(
                "resize",
                on="device" if raw else "processes",
                frame=env.frame_shape,
                lanes=lanes,
                buffers=len(world.buffers),
                sps=rate,
            )
            world.close()


# CURVES


def ale_learn(device: torch.device, tiny: bool) -> None:
    config = ale_config(*CHOSEN.words, *(TINY_ALE if tiny else ()))
    learned("ale_learn", config, device, tiny, seconds=1 if tiny else CHOSEN.seconds, mark=20, most=27_000)


def mujoco_learn(device: torch.device, tiny: bool) -> None:
    for name in ("ppo", "sac"):
        words = [
            "env.lanes=4",
            "algo.horizon=4",
            *(["algo.minibatches=1"] if name == "ppo" else ["algo.learning_starts=64", "algo.updates_per_step=1"]),
        ]
        config = configuration.load(recipes.find_source(f"{name}/gymnasium_halfcheetah"), words if tiny else [])
        learned(
            f"mujoco_learn {name}", config, device, tiny, seconds=1 if tiny else CHOSEN.seconds, mark=1e9, most=1000
        )


def learned(part: str, config, device: torch.device, tiny: bool, *, seconds: float, mark: float, most: int) -> None:
    """Learning curve of a recipe: mean returns of training episodes, then greedy evaluations near the mark and at the
    end.
    """
    algo = build(config, device)
    evaluator = Evaluator(
        algo.actor,
        config.environment,
        config.params,
        episodes=2 if tiny else 16,
        seed=1,
        max_steps=32 if tiny else most,
    )
    algo.start()
    sums = torch.zeros(algo.world.episode_sums(algo.rollout).shape, dtype=torch.float64, device=device)
    began, iteration, paused, told, tried, near = time.perf_counter(), 0, 0.0, 0.0, 0.0, False
    while (spent := time.perf_counter() - began - paused) < seconds:
        for phase in algo.phases:
            phase.run()
        iteration += 1
        sums += algo.world.episode_sums(algo.rollout)
        if spent - told > seconds / 28:
            wait(device)
            told, (episodes, _, returns) = spent, sums[:3].tolist()
            sums.zero_()
            near = episodes > 0 and returns / episodes > mark - 1.5 and spent - tried > seconds / 10
            say(
                part,
                seconds=round(spent, 1),
                steps=iteration * algo.steps_per_iteration,
                episodes=episodes,
                mean=returns / max(episodes, 1),
            )
        if near or spent > seconds - 1:
            at, mean = time.perf_counter(), evaluator.run(iteration).mean
            paused += time.perf_counter() - at
            say(
                part,
                seconds=round(spent, 1),
                steps=iteration * algo.steps_per_iteration,
                greedy=mean,
                took_s=time.perf_counter() - at,
            )
            if mean >= mark or spent > seconds - 1:
                break
            near, tried = False, spent
    algo.world.close()
    evaluator.rollout.world.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--all", action="store_true", help="measure every rate without learning")
    parser.add_argument("--cases", help="cases of `ale` whose names contain one of these words, separated by |")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, default=86.0, help="seconds of a curve")
    parser.add_argument("words", nargs="*", help="KEY=VALUE overrides of the curve of Pong")
    arguments = parser.parse_intermixed_args(namespace=CHOSEN)
    device = torch.device(arguments.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    say("machine", device=name, cores=CORES, torch=torch.__version__)
    run_parts({part: globals()[part] for part in arguments.only.split(",")}, device, arguments.tiny)


if __name__ == "__main__":
    main()
