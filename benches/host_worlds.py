"""Environments on the host and a learner on the device: checks, then rates, all in one process that survives a part that fails. JSON lines.

    python benches/host_worlds.py                          on a GPU: everything (about 10 minutes on 16 cores)
    python benches/host_worlds.py --tiny --device cpu      the same in small, to try the script
    python benches/host_worlds.py --only check,breakout

Parts
    once        compiles and measures what the others keep: run it before, if those are timed
    overlap     acting on one buffer while others are stepped trains to the bits of no overlap, by any buffers
    cpu         Breakout's rules on CPU threads, each with lanes of its own: no device, no copy
    check       lanes on the CPU show on the device what one world there shows, by both kinds of world
    breakout    Breakout's rules on CPU threads, PPO with 128-128 on the device: steps a second, learning included, and the share that steps take
    buffers     the same by buffers 1, 2, 4, 8 x threads, with and without pinned memory: seconds of a horizon
    ale         Pong by ale-py, Nature CNN: stepping alone, and training
    ale_learn   the curve of Pong for some minutes
    mujoco_learn  the curves of HalfCheetah-v5
    mujoco      HalfCheetah-v5 by PPO and SAC: stepping alone, and training
"""

from __future__ import annotations

import argparse
import functools
import json
import time
import traceback

import numba
import torch

from operant import envs
from operant.compute.threads import ThreadPool
from operant.config import load as configuration
from operant.training.build import build
from operant.training.evaluate import Evaluator
from operant.worlds import BridgedWorld, DeviceWorld, HostWorld

CASES = ((65536, 32, 2), (32768, 64, 2), (65536, 32, 1), (8192, 64, 2), (65536, 32, 4))
"""Lanes, horizon and buffers of Breakout's rules on the CPU."""
PARTS = ("check", "overlap", "cpu", "breakout", "buffers", "ale", "mujoco", "ale_learn", "mujoco_learn")


def say(part: str, **figures) -> None:
    """One line of JSON."""
    print(json.dumps({"part": part, **figures}), flush=True)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rollout(world, steps: int):
    """A rollout of actions that are the same on every device."""
    slot = world.slot(steps)
    world.reset(world.bind(slot, -1))
    generator = torch.Generator().manual_seed(1)
    for t in range(steps):
        action = slot.action[t]
        if action.dtype == torch.int32:
            action.copy_(torch.randint(0, world.spec.action.n, action.shape, generator=generator, dtype=torch.int32))
        else:
            action.copy_(torch.rand(action.shape, generator=generator) * 2 - 1)
        world.step(world.bind(slot, t), t)
    world.advance(steps)
    wait(world.device)
    return slot


def compare(name: str, one, other) -> None:
    equal = {}
    for field, mine, theirs in zip(one._fields, one, other, strict=True):
        if mine is not None and field != "final_observation":
            equal[field] = bool(torch.equal(mine.cpu(), theirs.cpu()))
    ended = one.truncated.bool().cpu()
    if one.final_observation is not None:
        mine, theirs = (slot.final_observation.cpu().transpose(1, 2)[ended] for slot in (one, other))
        equal["final_observation"] = bool(torch.equal(mine, theirs))
    say("check", world=name, ended=int((one.terminated | one.truncated).sum()), equal=all(equal.values()), fields=equal)


def check(device: torch.device, tiny: bool) -> None:
    for name in ("breakout", "pendulum", "g2048"):
        env = envs.find(name)
        steps = 40 if tiny else 250
        compare(f"bridged {name}", rollout(DeviceWorld(env, 96, seed=3), steps), rollout(BridgedWorld(env, 96, seed=3, device=device, buffers=3), steps))
    for name in ("CartPole-v1", "Pendulum-v1"):
        env = configuration.load(None, [f"env.name=gymnasium:{name}", "env.time_limit=30"]).environment
        worlds = [HostWorld(env, 16, seed=3, device=where) for where in ("cpu", device)]
        compare(f"hosted {name}", *(rollout(world, 40 if tiny else 120) for world in worlds))
        for world in worlds:
            world.close()


def overlap(device: torch.device, tiny: bool) -> None:
    cases = [("breakout", 128 if tiny else 16384), ("pendulum", 64 if tiny else 2048), ("g2048", 64 if tiny else 2048), ("gymnasium:CartPole-v1", 32)]
    for kernels in ("torch",) if device.type == "cpu" else ("fused", "torch"):
        for name, lanes in cases if kernels == "fused" or tiny else (cases[0], cases[3]):
            found = {}
            for label, buffers in (("none", 2), ("one", 1), ("two", 2), ("five", 5)):
                words = [f"env.name={name}", f"env.lanes={lanes}", f"env.buffers={buffers}", f"algo.kernels={kernels}", "algo.horizon=8", "algo.minibatches=2"]
                words += ["algo.normalize_observations=false", "env.device=cpu"] if ":" not in name else ["env.threads=0" if tiny else "env.threads=2"]
                algo = build(configuration.load(None, words), device)
                if label == "none":
                    algo.collector._overlap = None
                algo.start()
                for _ in range(6):
                    for phase in algo.phases:
                        phase.run()
                wait(device)
                found[label] = torch.cat([value.double().flatten().cpu() for value in algo.state("policy").values()])
                if hasattr(algo.world, "close"):
                    algo.world.close()
            far = {label: float((value - found["none"]).abs().max()) for label, value in found.items() if label != "none"}
            say("overlap", world=name, kernels=kernels, lanes=lanes, difference=far, moved=float(found["none"].abs().sum()))


def trained(config, device: torch.device, seconds: float) -> dict:
    """Iterations for so many seconds: steps a second, and of an iteration what its phases take, and the parts of its steps."""
    algo = build(config, device)
    algo.start()
    for _ in range(3):
        for phase in algo.phases:
            phase.run()
    wait(device)
    before = dict(algo.world.seconds)
    began, iterations, phases = time.perf_counter(), 0, {}
    while time.perf_counter() - began < seconds:
        for phase in algo.phases:
            at = time.perf_counter()
            phase.run()
            wait(device)
            phases[phase.name] = phases.get(phase.name, 0.0) + time.perf_counter() - at
        iterations += 1
    spent = time.perf_counter() - began
    found = {
        "sps": iterations * algo.steps_per_iteration / spent,
        "iterations": iterations,
        "iteration_s": spent / iterations,
        **{f"world_{name}_s": (total - before[name]) / iterations for name, total in algo.world.seconds.items()},
        **{f"{name}_s": total / iterations for name, total in phases.items()},
    }
    if hasattr(algo.world, "close"):
        algo.world.close()
    return found


def alone(world, steps: int) -> float:
    """Steps a second of a world with the same actions again and again."""
    slot = world.slot()
    world.reset(slot)
    if slot.action.dtype == torch.int32:
        slot.action.random_(0, world.spec.action.n)
    for _ in range(3):
        world.step(slot)
    wait(world.device)
    began = time.perf_counter()
    for _ in range(steps):
        world.step(slot)
    wait(world.device)
    rate = steps * world.count / (time.perf_counter() - began)
    if hasattr(world, "close"):
        world.close()
    return rate


def breakout_config(lanes: int, horizon: int, buffers: int, extra: tuple[str, ...] = ()):
    words = [f"env.lanes={lanes}", "env.device=cpu", f"env.buffers={buffers}", f"algo.horizon={horizon}", "net.hidden=[128, 128]", *extra]
    return configuration.load(None, ["env.name=breakout", *words])


def once(device: torch.device, tiny: bool) -> None:
    """What the other parts compile and choose, so that it is kept."""
    lanes, horizon, buffers = (64, 8, 2) if tiny else CASES[0]
    for epochs in (1, 4):
        words = ("algo.minibatches=2",) if tiny else (f"algo.epochs={epochs}", "algo.precision=bf16")
        say("once", **trained(breakout_config(lanes, horizon, buffers, words), device, 0.2))
    stepped_alone(64 if tiny else 2048, 0.05)
    for config in mujoco_configs(tiny):
        say("once", **trained(config, device, 0.2))


def breakout(device: torch.device, tiny: bool) -> None:
    cpu(device, tiny)
    for lanes, horizon, buffers in ((64, 8, 2),) if tiny else CASES:
        for epochs in (1, 4) if lanes == 65536 and buffers == 2 else (1,):
            words = ("algo.minibatches=2",) if tiny else (f"algo.epochs={epochs}", "algo.precision=bf16")
            figures = trained(breakout_config(lanes, horizon, buffers, words), device, 0.5 if tiny else 2)
            say("breakout", lanes=lanes, horizon=horizon, buffers=buffers, threads=numba.get_num_threads(), words=words, **figures)


def stepped_alone(lanes: int, seconds: float, k: int = 0) -> int:
    """Steps of lanes of Breakout by this thread in so many seconds."""
    numba.set_num_threads(1)
    world, steps = DeviceWorld(envs.find("breakout"), lanes, seed=1, lane0=k * lanes, threads=1), 0
    slot = world.slot()
    slot = slot._replace(observation=slot.observation.t().contiguous().t())  # lane after lane
    bound = world.bind(slot)
    world.reset(bound)
    slot.action.random_(0, 3)
    world.step(bound, 0)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        world.step(bound, steps)
        steps += 1
    return steps


def cpu(device: torch.device, tiny: bool) -> None:
    lanes, seconds, most = 64 if tiny else 2048, 0.05 if tiny else 0.5, numba.get_num_threads()
    stepped_alone(lanes, 0.0)

    def work(k: int, counts: list[int]) -> None:
        counts[k] = stepped_alone(lanes, seconds, k)

    for threads in (1, 16):
        if threads <= most:
            counts = [0] * threads
            ThreadPool(threads).run([functools.partial(work, k, counts) for k in range(threads)])
            say("cpu", threads=threads, lanes=threads * lanes, sps=sum(counts) * lanes / seconds, slowest=min(counts) / max(counts))
    numba.set_num_threads(most)


def buffers(device: torch.device, tiny: bool) -> None:
    env, lanes, steps = envs.find("breakout"), 64 if tiny else 8192, 8 if tiny else 64
    most = numba.get_num_threads()
    for threads in (1, 2, 4, 8, 16):
        if threads > most:
            break
        numba.set_num_threads(threads)
        for count in (1, 2, 4, 8):
            for pinned in (True, False) if count == 2 or tiny else (True,):
                rate = alone(BridgedWorld(env, lanes, seed=1, device=device, buffers=count, pinned=pinned), steps)
                say("buffers", threads=threads, buffers=count, pinned=pinned, horizon_s=128 * lanes / rate, sps=rate)
    numba.set_num_threads(most)


def ale_config(lanes: int, tiny: bool):
    words = ["algo.horizon=4", "algo.minibatches=1", "env.time_limit=30"] if tiny else []
    return configuration.load(configuration_source("ppo/ale"), ["env.name=ale:pong", f"env.lanes={lanes}", *words])


def configuration_source(name: str):
    from operant.config import recipes

    return recipes.find_source(name)


def ale(device: torch.device, tiny: bool) -> None:
    for lanes in (4,) if tiny else (128,):
        config = ale_config(lanes, tiny)
        stepping = alone(HostWorld(config.environment, lanes, seed=1, device=device), 10 if tiny else 100)
        figures = trained(config, device, 0.5 if tiny else 4)
        say("ale", lanes=lanes, stepping_alone=stepping, share_of_alone=figures["sps"] / stepping, **figures)


def ale_learn(device: torch.device, tiny: bool) -> None:
    learned("ale_learn", ale_config(4 if tiny else 128, tiny), device, tiny, seconds=1 if tiny else 120, mark=20, most=27_000)


def mujoco_learn(device: torch.device, tiny: bool) -> None:
    for name in ("ppo", "sac"):
        words = ["env.lanes=4", "algo.horizon=4", *(["algo.minibatches=1"] if name == "ppo" else ["algo.learning_starts=64", "algo.updates_per_step=1"])]
        config = configuration.load(configuration_source(f"{name}/gymnasium_halfcheetah"), words if tiny else [])
        learned(f"mujoco_learn {name}", config, device, tiny, seconds=1 if tiny else 40, mark=1e9, most=1000)


def learned(part: str, config, device: torch.device, tiny: bool, *, seconds: float, mark: float, most: int) -> None:
    """The curve of a recipe: greedy evaluations after so much training."""
    algo = build(config, device)
    evaluator = Evaluator(algo.actor, config.environment, config.params, episodes=2 if tiny else 16, seed=1, max_steps=32 if tiny else most)
    algo.start()
    began, iteration, paused, told = time.perf_counter(), 0, 0.0, 0.0
    while (spent := time.perf_counter() - began - paused) < seconds:
        for phase in algo.phases:
            phase.run()
        iteration += 1
        if spent - told > seconds / 6:
            told, at = spent, time.perf_counter()
            mean = evaluator.run(iteration).mean
            paused += time.perf_counter() - at
            say(part, seconds=round(spent, 1), steps=iteration * algo.steps_per_iteration, mean=mean)
            if mean >= mark:
                break
    algo.world.close()
    evaluator.rollout.world.close()


def mujoco_configs(tiny: bool):
    of_sac = ["algo.learning_starts=64", f"algo.batch_size={64 if tiny else 256}"]
    for name, words in (("ppo", [f"algo.horizon={8 if tiny else 64}"]), ("sac", of_sac)):
        words = [f"algo.name={name}", *words, f"env.lanes={8 if tiny else 64}", "env.name=gymnasium:HalfCheetah-v5"]
        yield configuration.load(None, [*words, *(["algo.minibatches=2"] if name == "ppo" else ["algo.horizon=4", "algo.replay_capacity=64k"])])


def mujoco(device: torch.device, tiny: bool) -> None:
    for config in mujoco_configs(tiny):
        name, lanes = config.algo_name, config.lanes
        stepping = alone(HostWorld(config.environment, lanes, seed=1, device=device), 20 if tiny else 100)
        figures = trained(config, device, 0.5 if tiny else 2)
        say("mujoco", algo=name, lanes=lanes, stepping_alone=stepping, share_of_alone=figures["sps"] / stepping, **figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    say("machine", device=name, threads=numba.get_num_threads(), torch=torch.__version__)
    for part in arguments.only.split(","):
        began = time.perf_counter()
        try:
            globals()[part](device, arguments.tiny)
        except Exception as error:
            say(part, failed=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
        say(part, took_s=round(time.perf_counter() - began, 1))


if __name__ == "__main__":
    main()
