"""Operant's environments on host threads with learning on the device: checks, then rates. Prints JSON lines.

    python benches/host_worlds.py                          on a GPU: everything (about 10 minutes on 16 cores)
    python benches/host_worlds.py --tiny --device cpu      small sizes, to test the script
    python benches/host_worlds.py --only check,breakout

Parts (one that fails does not stop the others)

    once        compile and measure everything that the others cache: run it first if those are timed
    overlap     acting on one buffer while others are stepped gives the bits of no overlap, for any number of buffers
    cpu         Breakout's rules on CPU threads: no device, no copy
    check       lanes on the CPU give the device the same data as a world on the device, for both kinds of world
    breakout    Breakout's rules on CPU threads, PPO with 128-128 on the device: steps per second with learning, and
                the fraction of time spent in steps
    buffers     a linear policy without learning, with 1, 2, 4, 8 buffers x threads, with and without pinned memory

Outside environments: benches/outside_worlds.py.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable

import numba
import torch

from operant import envs
from operant.config import load as configuration
from operant.data import Collector
from operant.training.build import build
from operant.worlds import BridgedWorld, DeviceWorld
from operant.worlds.host_world import HostWorld

CASES = (65536, 32, 2), (131072, 16, 4), (65536, 32, 4), (32768, 64, 2), (65536, 32, 8), (16384, 128, 2), (65536, 32, 1)
"""Lanes, horizon and buffers of Breakout's rules on the CPU."""
MORE = {(65536, 32, 2): ((1, True), (4, False), (4, True)), (131072, 16, 4): ((1, True),)}
"""Variants of some of them: epochs, and algo.overlap."""
THREADS = (16, 8, 4, 2, 1)
PARTS = ("check", "overlap", "cpu", "breakout", "buffers")


def say(part: str, **figures) -> None:
    """Print one JSON line."""
    print(json.dumps({"part": part, **figures}), flush=True)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rollout(world, steps: int):
    """Rollout of actions that are identical on every device."""
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
        compare(
            f"bridged {name}",
            rollout(DeviceWorld(env, 96, seed=3), steps),
            rollout(BridgedWorld(env, 96, seed=3, device=device, buffers=3), steps),
        )
    for name in ("CartPole-v1", "Pendulum-v1"):
        env = configuration.load(None, [f"env.name=gymnasium:{name}", "env.time_limit=30"]).environment
        worlds = [HostWorld(env, 16, seed=3, device=where) for where in ("cpu", device)]
        compare(f"hosted {name}", *(rollout(world, 40 if tiny else 120) for world in worlds))
        for world in worlds:
            world.close()


def overlap(device: torch.device, tiny: bool) -> None:
    cases = [
        ("breakout", 128 if tiny else 16384),
        ("pendulum", 64 if tiny else 2048),
        ("g2048", 64 if tiny else 2048),
        ("gymnasium:CartPole-v1", 32),
    ]
    for kernels in ("torch",) if device.type == "cpu" else ("fused", "torch"):
        for name, lanes in cases if kernels == "fused" or tiny else (cases[0], cases[3]):
            found = {}
            for label, buffers in (
                ("none", 2),
                ("one", 1),
                ("two", 2),
                ("five", 5),
                *((("asynchronous", 1),) if ":" in name else ()),
            ):
                words = [
                    f"env.name={name}",
                    f"env.lanes={lanes}",
                    f"env.buffers={buffers}",
                    f"algo.kernels={kernels}",
                    "algo.horizon=8",
                    "algo.minibatches=2",
                ]
                words += (
                    ["algo.normalize_observations=false", "env.device=cpu"] if ":" not in name else ["env.threads=2"]
                )
                words += ["env.asynchronous=true"] if label == "asynchronous" else []
                algo = build(configuration.load(None, words), device)
                if label == "none":
                    algo.collector._buffered = None
                algo.start()
                for _ in range(6):
                    for phase in algo.phases:
                        phase.run()
                wait(device)
                found[label] = torch.cat([value.double().flatten().cpu() for value in algo.state("policy").values()])
                if hasattr(algo.world, "close"):
                    algo.world.close()
            far = {
                label: float((value - found["none"]).abs().max()) for label, value in found.items() if label != "none"
            }
            say(
                "overlap",
                world=name,
                kernels=kernels,
                lanes=lanes,
                difference=far,
                moved=float(found["none"].abs().sum()),
            )


def trained(config, device: torch.device, seconds: float, before: int = 3) -> dict:
    """Train for `seconds`: steps per second, and the phases of an iteration and of its steps."""
    algo = build(config, device)
    algo.start()
    for _ in range(before):
        for phase in algo.phases:
            phase.run()
    wait(device)
    inside: dict[str, float] = {}
    clocked(algo.world, "advance", inside)
    clocked(algo.world, "noise", inside)
    for owner, names in (
        (getattr(algo, "acting", getattr(algo, "backend", None)), ("prepare", "bootstrap")),
        (algo, ("_hand_over", "update", "_collect")),
    ):
        for name in names:
            if callable(getattr(owner, name, None)):
                clocked(owner, name, inside)
    for collector in {id(one): one for one in vars(algo).values() if isinstance(one, Collector)}.values():
        if collector._buffered is not None:
            clocked(collector._buffered, "collect", inside)
    spent_before = dict(algo.world.seconds)
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
        **{f"world_{name}_s": (total - spent_before[name]) / iterations for name, total in algo.world.seconds.items()},
        **{f"{name}_s": total / iterations for name, total in phases.items()},
        **{f"in_{name}_s": total / iterations for name, total in inside.items()},
    }
    if hasattr(algo.world, "close"):
        algo.world.close()
    return found


def clocked(owner, name: str, into: dict[str, float]) -> None:
    """Accumulate the seconds spent in a method of an object."""
    function = getattr(owner, name)

    def timed(*words):
        at = time.perf_counter()
        try:
            return function(*words)
        finally:
            into[name] = into.get(name, 0.0) + time.perf_counter() - at

    setattr(owner, name, timed)


def breakout_config(lanes: int, horizon: int, buffers: int, extra: tuple[str, ...] = ()):
    words = [
        f"env.lanes={lanes}",
        "env.device=cpu",
        f"env.buffers={buffers}",
        f"algo.horizon={horizon}",
        "net.hidden=[128, 128]",
        *extra,
    ]
    return configuration.load(None, ["env.name=breakout", *words])


def once(device: torch.device, tiny: bool) -> None:
    """Compile and measure everything that the other parts cache."""
    lanes, horizon, buffers = (64, 8, 2) if tiny else CASES[0]
    for epochs, beside in ((1, "false"), (4, "false"), (1, "true")):
        words = (
            ("algo.minibatches=2",)
            if tiny
            else (f"algo.epochs={epochs}", "algo.precision=bf16", f"algo.overlap={beside}")
        )
        say("once", **trained(breakout_config(lanes, horizon, buffers, words), device, 0.2))
    stepped_alone(2048, 1, 2, 0.05)
    stepped_together(2048, 1, 0.05)
    stepped_together(65536, 2, 0.05)


def breakout(device: torch.device, tiny: bool) -> None:
    most = stepped_alone(64 if tiny else 65536, numba.get_num_threads(), 2, 0.05 if tiny else 0.5)
    say("breakout", stepping_alone=most)
    for lanes, horizon, buffers in ((64, 8, 2),) if tiny else CASES:
        for epochs, beside in ((1, False), *MORE.get((lanes, horizon, buffers), ())):
            words = (
                ("algo.minibatches=2",)
                if tiny
                else (f"algo.epochs={epochs}", "algo.precision=bf16", f"algo.overlap={str(beside).lower()}")
            )
            figures = trained(breakout_config(lanes, horizon, buffers, words), device, 0.5 if tiny else 1.5)
            told = {
                "lanes": lanes,
                "horizon": horizon,
                "buffers": buffers,
                "threads": numba.get_num_threads(),
                "epochs": epochs,
                "beside": beside,
            }
            say("breakout", **told, share_of_alone=figures["sps"] / most, **figures)


def taken(world, slot, steps: int) -> None:
    """Step all buffers with their current actions."""
    count, late = len(world.buffers), world.late
    with world.stepping(steps):
        for place in range(steps * count + late):
            if place < steps * count:
                world.begin(place % count, place // count)
            if place >= late:
                world.finish((place - late) % count, slot)


def stepped_alone(lanes: int, threads: int, buffers: int, seconds: float) -> float:
    """Steps per second of Breakout's rules on the given number of threads: no device, no copy."""
    numba.set_num_threads(threads)
    world, steps = BridgedWorld(envs.find("breakout"), lanes, seed=1, device="cpu", buffers=buffers), 0
    slot = world.slot()
    world.reset(slot)
    for action in world._actions:
        action.random_(0, 3)
    taken(world, slot, 2)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        taken(world, slot, 16)
        steps += 16
    return steps * lanes / (time.perf_counter() - began)


def stepped_together(lanes: int, threads: int, seconds: float) -> float:
    """Steps per second with numba's own threads, which synchronize in each step."""
    numba.set_num_threads(threads)
    world, steps = DeviceWorld(envs.find("breakout"), lanes, seed=1, threads=1), 0
    slot = world.slot()
    slot = slot._replace(observation=slot.observation.t().contiguous().t())  # lane after lane
    bound = world.bind(slot)
    world.reset(bound)
    slot.action.random_(0, 3)
    world.step(bound, 0)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        world.step(bound, steps)
        steps += 1
    return steps * lanes / (time.perf_counter() - began)


def cpu(device: torch.device, tiny: bool) -> None:
    seconds, most = 0.05 if tiny else 0.3, numba.get_num_threads()
    for threads in THREADS:
        if threads <= most:
            for lanes in (2048,) if tiny else (65536, 8192):
                found = {f"{buffers}_buffers": stepped_alone(lanes, threads, buffers, seconds) for buffers in (1, 2)}
                say(
                    "cpu",
                    threads=threads,
                    lanes=lanes,
                    **found,
                    together=stepped_together(lanes, threads, seconds),
                    layer=numba.threading_layer(),
                )
    numba.set_num_threads(most)


def buffers(device: torch.device, tiny: bool) -> None:
    most = numba.get_num_threads()
    for lanes, horizon in ((64, 8),) if tiny else ((32768, 16),):
        for threads in THREADS:
            for count in (1, 2, 4, 8):
                for pinned in (True, False):
                    if threads <= most:
                        numba.set_num_threads(threads)
                        world = BridgedWorld(
                            envs.find("breakout"), lanes, seed=1, device=device, buffers=count, pinned=pinned
                        )
                        rate = overlapped(world, horizon, 2 if tiny or not pinned or threads < 4 else 8)
                        say(
                            "buffers",
                            lanes=lanes,
                            threads=threads,
                            buffers=count,
                            pinned=pinned,
                            sps=rate,
                            horizon_s=horizon * lanes / rate,
                        )
    numba.set_num_threads(most)


def overlapped(world, horizon: int, times: int) -> float:
    """Steps per second with a linear policy acting on one buffer while others are stepped; copies, graphs and streams
    as in training.

    With pixel observations there is no policy.
    """
    collector = Collector(world, horizon, 1)
    rollout = collector.rollout
    weight = torch.zeros(
        world.spec.action.n,
        world.spec.observation.size if rollout.observation.is_floating_point() else 0,
        device=world.device,
    )

    def act(t: int, lanes: slice = slice(None)) -> None:
        if weight.numel():
            rollout.action[t][0, lanes] = torch.argmax(weight @ rollout.observation[t][:, lanes], 0).int()
        else:
            rollout.action[t][0, lanes] = 0

    collector.start()
    for _ in range(3):
        collector.collect(act, apart=True)
        collector.carry_on()
    wait(world.device)
    began = time.perf_counter()
    for _ in range(times):
        collector.collect(act, apart=True)
        collector.carry_on()
    wait(world.device)
    return times * horizon * world.count / (time.perf_counter() - began)


def run_parts(parts: dict[str, Callable[[torch.device, bool], None]], device: torch.device, tiny: bool) -> None:
    """Run the parts one after another, reporting failures."""
    for name, part in parts.items():
        began = time.perf_counter()
        try:
            part(device, tiny)
        except Exception as error:
            say(name, failed=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
        say(name, took_s=round(time.perf_counter() - began, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--threads", type=int, default=numba.get_num_threads())
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    numba.set_num_threads(arguments.threads)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    say("machine", device=name, threads=numba.get_num_threads(), torch=torch.__version__)
    run_parts({part: globals()[part] for part in arguments.only.split(",")}, device, arguments.tiny)


if __name__ == "__main__":
    main()
