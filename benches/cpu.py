"""What Operant does on this machine's CPU: stepping alone, and PPO at 1,024 lanes x 16, two 4-64-64 tanh towers, 4 epochs x 4 minibatches.

    python benches/cpu.py [--repeats 5]

Prints Markdown for benches/LOG.md; medians. Run it on a quiet machine: on two cores one busy neighbour halves every number.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

from operant.runtime import quiet_threads

quiet_threads()  # before torch is imported

import torch  # noqa: E402

from operant import envs, nets  # noqa: E402
from operant.algos.ppo import PPO, PPOConfig  # noqa: E402
from operant.runtime import set_threads  # noqa: E402
from operant.world import World  # noqa: E402


def seconds(work: Callable[[], object], repeats: int, inner: int) -> float:
    """Median seconds of one call, over `repeats` regions of `inner` calls."""
    work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(inner):
            work()
        times.append((time.perf_counter() - began) / inner)
    return statistics.median(times)


def stepping(name: str, lanes: int, repeats: int) -> float:
    """Steps a second under random actions (eight draws, in turn)."""
    world = World(envs.find(name), lanes, seed=1)
    slot = world.slot()
    world.reset(world.bind(slot))
    low, high = (-1.0, 1.0) if slot.action.is_floating_point() else (0, 2)
    slots = []
    for _ in range(8):
        action = (torch.rand(slot.action.shape) * (high - low) + low).to(slot.action.dtype)
        slots.append((action, world.bind(slot._replace(action=action))))
    turn = iter(range(1 << 62))

    def work() -> None:
        world.step(slots[next(turn) % 8][1])
        world.advance(1)

    return lanes / seconds(work, repeats, max(20, 2**24 // lanes))


def ppo(repeats: int) -> tuple[float, float, float]:
    """Steps a second with learning, and milliseconds of collect and update."""
    algo = PPO(World(envs.find("cartpole"), 1024, seed=1), PPOConfig(anneal=False, learning_rate=2.5e-4), nets.Config(), seed=1, steps=10**9)
    algo.start()

    def both() -> None:
        algo.collect()
        algo.update()

    both()
    return 1024 * 16 / seconds(both, repeats, 20), seconds(algo.collect, repeats, 20) * 1e3, seconds(algo.update, repeats, 20) * 1e3


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    threads = set_threads(0)
    print(f"{threads} threads, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}, load before {os.getloadavg()[0]:.2f}, medians of {repeats}\n")
    print("| environment | lanes | M SPS, stepping |\n|---|---|---|")
    for name in envs.names():
        for lanes in (1024, 65536) if name == "cartpole" else (65536,):
            print(f"| {name} | {lanes:,} | {stepping(name, lanes, repeats) / 1e6:.0f} |", flush=True)
    rate, collect_ms, update_ms = ppo(repeats)
    print(f"\nPPO at 1,024 x 16: {rate / 1e6:.3f} M SPS (collect {collect_ms:.1f} ms, update {update_ms:.1f} ms)")


if __name__ == "__main__":
    main()
