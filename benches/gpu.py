"""Speed and correctness on this machine's GPU, in one run and one table. Prints Markdown for benches/LOG.md.

    python benches/gpu.py [--out FILE] [--only checks,stepping,ppo,solve] [--repeats 5]

Every time is the median of `repeats` regions timed with CUDA events after a warm-up; a region is many replays of a
captured graph.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from operant import envs
from operant.algos.ppo import PPO
from operant.algos.ppo.config import PPOConfig as Config
from operant.compute.graphs import Graphed
from operant.nn import mlp
from operant.nn.flops import step_bytes
from operant.tools.bench import ordinary_names
from operant.tools.rollouts import compare_devices
from operant.training.evaluate import Evaluator
from operant.worlds.device_world import DeviceWorld

CUDA = torch.device("cuda", 0)
ONE_STEP, TYPICAL = 1e-4, 1e-3
"""Tolerances: of one step from the same state for every lane, relative to max(1, |x|); of 200 free steps for the median
lane. Free steps diverge: near the top of a pendulum's swing the last bit decides the direction of the fall.
"""


def seconds(work: Callable[[], object], repeats: int, inner: int) -> float:
    """Median seconds per call, over `repeats` regions of `inner` calls each."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(inner):
            work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / inner)
    return statistics.median(times)


def copy_bandwidth(repeats: int) -> float:
    """Bytes per second of a large device-to-device copy, read plus written."""
    source = torch.randn(2**30, device=CUDA)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / seconds(lambda: target.copy_(source), repeats, 10)


def stepping(name: str, lanes: int, repeats: int) -> tuple[float, int]:
    """Steps per second of a world in a graph with random actions (eight draws, in rotation), and bytes per step."""
    world = DeviceWorld(envs.find(name), lanes, seed=1, device=CUDA)
    slot = world.slot()
    bound = world.bind(slot)
    world.reset(bound)
    draws = 8 if lanes <= 2**20 else 2
    slots = []
    for _ in range(draws):
        action = torch.randint(0, 2, slot.action.shape, device=CUDA).to(slot.action.dtype)
        slots.append((action, world.bind(slot._replace(action=action))))
    steps = 256 if lanes <= 2**17 else 64 if lanes <= 2**20 else 4

    def work() -> None:
        for t in range(steps):
            world.step(slots[t % draws][1], t)
        world.advance(steps)

    graph = Graphed(work, CUDA)
    for _ in range(3):
        graph()
    inner = max(2, min(400, int(2e9 // (lanes * steps))))
    return lanes * steps / seconds(graph, repeats, inner), step_bytes(world.spec)


def ppo(lanes: int, horizon: int, repeats: int, precision: str) -> dict[str, float]:
    """PPO on CartPole with two 4-64-64 tanh towers, 4 epochs x 4 minibatches: steps per second, and milliseconds of
    each half.
    """
    world = DeviceWorld(envs.find("cartpole"), lanes, seed=1, device=CUDA)
    algo = PPO(
        world,
        Config(horizon=horizon, precision=precision, anneal=False, learning_rate=2.5e-4),
        mlp.Config(),
        seed=1,
        steps=10**9,
    )
    algo.start()
    inner = max(2, int(1e7 // (lanes * horizon)))

    def both() -> None:
        algo.collect()
        algo.update()

    whole = seconds(both, repeats, inner)
    return {
        "sps": lanes * horizon / whole,
        "iteration_ms": whole * 1e3,
        "collect_ms": seconds(algo.collect, repeats, inner) * 1e3,
        "update_ms": seconds(algo.update, repeats, inner) * 1e3,
    }


def solve(seed: int, lanes: int, horizon: int, config: Config, target: float = 475.0) -> tuple[float, int]:
    """Seconds of training, without the first two iterations (compilation, capture), until a greedy evaluation reaches
    the target, and steps.
    """
    world = DeviceWorld(envs.find("cartpole"), lanes, seed=seed, device=CUDA)
    algo = PPO(world, config, mlp.Config(), seed=seed, steps=20_000_000)
    evaluator = Evaluator(algo.policy, world.spec, world.params, episodes=128, seed=seed)
    algo.start()
    spent, iteration = 0.0, 0
    while iteration * algo.steps_per_iteration < 20_000_000:
        torch.cuda.synchronize()
        began = time.perf_counter()
        algo.collect()
        algo.update()
        torch.cuda.synchronize()
        iteration += 1
        spent += time.perf_counter() - began if iteration > 2 else 0.0
        if evaluator.run(iteration).mean >= target:
            break
    return spent, iteration * algo.steps_per_iteration


def check_free_steps(name: str, lanes: int = 4096, steps: int = 200) -> str:
    """Compare CPU and CUDA over free steps with the same actions: integers equal, states within a tolerance unless an
    episode diverged.
    """
    env = envs.find(name)
    worlds = [DeviceWorld(env, lanes, seed=3, device=device) for device in (torch.device("cpu"), CUDA)]
    slots = [world.slot() for world in worlds]
    bounds = [world.bind(slot) for world, slot in zip(worlds, slots, strict=True)]
    for world, bound in zip(worlds, bounds, strict=True):
        world.reset(bound)
    generator = torch.Generator().manual_seed(5)
    same = torch.ones(lanes, dtype=torch.bool)
    difference = torch.zeros(lanes)
    for _ in range(steps):
        if slots[0].action.dtype == torch.int32:
            action = torch.randint(0, env.action.n, slots[0].action.shape, generator=generator, dtype=torch.int32)
        else:
            low, high = (torch.tensor(bound)[:, None] for bound in env.action.bounds())
            action = low + (high - low) * torch.rand(slots[0].action.shape, generator=generator)
        for world, slot, bound in zip(worlds, slots, bounds, strict=True):
            slot.action.copy_(action)
            world.step(bound)
            world.advance(1)
        flags = [(slot.terminated | slot.truncated).cpu() for slot in slots]
        same &= flags[0] == flags[1]
        difference = torch.maximum(difference, (worlds[0].lanes.state - worlds[1].lanes.state.cpu()).abs().amax(dim=0))
    difference = difference[same]
    ages = torch.equal(worlds[0].lanes.age[same], worlds[1].lanes.age.cpu()[same])
    typical, most, worst = (float(difference.quantile(share)) for share in (0.5, 0.99, 1.0))
    share, one_step = compare_devices(env, lanes, steps, device="cuda", resynchronise=True)
    good = share == 1.0 and one_step <= ONE_STEP and typical <= TYPICAL and ages and same.float().mean() >= 0.99
    forked = int((~same).sum())
    verdict = "ok" if good else "FAILED"
    return (
        f"| {name} | {one_step:.1e} | {typical:.1e} | {most:.1e} | {worst:.1e} | {forked} of {lanes} | "
        f"{'yes' if ages else 'NO'} | {verdict} |"
    )


def train_bytes(seed: int, iterations: int, *, eager: bool = False, break_at: int | None = None) -> bytes:
    """Parameters after some iterations with all normalization; with `break_at` the state moves into a fresh trainer
    half way.
    """
    config = Config(horizon=16, normalize_observations=True, normalize_rewards=True, target_kl=0.05)

    def fresh() -> PPO:
        world = DeviceWorld(envs.find("cartpole"), 2048, seed=seed, device=CUDA)
        return PPO(world, config, mlp.Config(), seed=seed, steps=2048 * 16 * iterations, eager=eager)

    algo = fresh()
    algo.start()
    for iteration in range(iterations):
        if iteration == break_at:
            saved = {name: value.cpu() for name, value in algo.state("all").items()}
            algo = fresh()
            for name, value in algo.state("all").items():
                value.copy_(saved[name])
        algo.collect()
        algo.update()
    return algo.policy.flat.values.detach().cpu().numpy().tobytes()


def checks() -> list[str]:
    """Correctness checks on the GPU, one line each."""
    lines = [
        "Largest difference of a lane's state, CPU - CUDA, under the same actions: in one step from the same state, "
        "and over 200 free steps.",
        "",
        f"| environment | one step, worst lane (allowed {ONE_STEP:g}) | median lane (allowed {TYPICAL:g}) | 99 % of "
        "lanes | worst lane "
        "| lanes whose flags differed | ages equal | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [check_free_steps(name) for name in ordinary_names()]
    reference = train_bytes(1, 50)
    verdicts = {
        "same seed, same bytes after 50 iterations (graphs)": train_bytes(1, 50) == reference,
        "other seed, other bytes": train_bytes(2, 50) != reference,
        "graphs = eager, byte for byte": train_bytes(1, 50, eager=True) == reference,
        "resumed at 23 = uninterrupted, byte for byte": train_bytes(1, 50, break_at=23) == reference,
    }
    torch.use_deterministic_algorithms(True)
    verdicts["the same bytes under use_deterministic_algorithms"] = train_bytes(1, 50) == reference
    torch.use_deterministic_algorithms(False)
    return [*lines, "", *(f"- {'ok' if good else 'FAILED'}: {text}" for text, good in verdicts.items())]


def main() -> None:
    """Run the selected sections and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="checks,stepping,ppo,solve")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    wanted, repeats = arguments.only.split(","), arguments.repeats
    text: list[str] = []

    def say(*lines: str) -> None:
        text.extend(lines)
        print("\n".join(lines), flush=True)
        if arguments.out:
            arguments.out.write_text("\n".join(text) + "\n")

    say(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}, medians of {repeats}",
        "",
    )
    if "checks" in wanted:
        say(*checks(), "")
    if "stepping" in wanted:
        bandwidth = copy_bandwidth(repeats)
        say(f"Copy bandwidth {bandwidth / 1e12:.2f} TB/s.", "")
        say("| environment | lanes | G SPS | bytes a step | share of copy bandwidth |", "|---|---|---|---|---|")
        for lanes in (8192, 65536, 2**20, 2**24):
            rate, size = stepping("cartpole", lanes, repeats)
            say(f"| cartpole | {lanes:,} | {rate / 1e9:.2f} | {size} | {rate * size / bandwidth:.0%} |")
        for name in ordinary_names():
            if name != "cartpole":
                rate, size = stepping(name, 2**20, repeats)
                say(f"| {name} | {2**20:,} | {rate / 1e9:.2f} | {size} | {rate * size / bandwidth:.0%} |")
        say("")
    if "ppo" in wanted:
        say("| lanes x horizon | precision | M SPS | ms an iteration | collect | update |", "|---|---|---|---|---|---|")
        for lanes, horizon in ((2048, 16), (8192, 64), (65536, 64)):
            for precision in ("tf32", "fp32"):
                found = ppo(lanes, horizon, repeats, precision)
                say(
                    f"| {lanes:,} x {horizon} | {precision} | {found['sps'] / 1e6:.1f} | {found['iteration_ms']:.2f} "
                    f"| {found['collect_ms']:.2f} | {found['update_ms']:.2f} |"
                )
        say("")
    if "solve" in wanted:
        say("| lanes x horizon | seed | training s to 475 (greedy, 128 episodes) | steps |", "|---|---|---|---|")
        for seed in (1, 2, 3):
            spent, steps = solve(seed, 1024, 16, Config(normalize_observations=True, normalize_rewards=True))
            say(f"| 1,024 x 16 | {seed} | {spent:.3f} | {steps:,} |")
        say("")


if __name__ == "__main__":
    main()
