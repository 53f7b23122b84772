"""Games on this machine's GPU: equality with the CPU, and stepping speed. Prints Markdown for benches/LOG.md.

    python benches/games.py [NAME ...] [--only same,stepping,limits] [--lanes 8192,262144] [--threads 0,1]
                            [--repeats 5] [--steps 1000]

`same`: the same actions from the same seed, step after step without correction. Games with integer arithmetic must
agree in every bit of every buffer; those with fractions are compared over one step from a shared state, since a ball
that just touches a brick on one device can miss it on the other. `stepping`: a captured graph of random actions (legal
ones if there is a mask). The fraction of bandwidth is the number of bytes that a step must move by the contract, each
buffer once per direction, relative to a measured copy. `--threads` is the number of threads that write a lane's
observation (0: one per shard; 1: the thread that steps the lane). `limits`: registers and local memory per thread of
each kernel of a step, as reported by the compiler.
"""

from __future__ import annotations

import argparse
import itertools
import time

import numpy as np
import torch
from gpu import copy_bandwidth, seconds

from operant import envs
from operant.compute.graphs import Graphed
from operant.nn.flops import step_bytes
from operant.tools.rollouts import Harness, compare_devices
from operant.worlds.bounds import rollout_actions
from operant.worlds.device_world import DeviceWorld

CUDA = torch.device("cuda", 0)
WHOLE = ("snake", "g2048", "go", "pacman")
"""Games with integer arithmetic."""

GAMES = ("breakout", "snake", "platformer", "pong", "swingup", "pacman", "g2048", "go")
ONE_STEP = 1e-4
"""Tolerance of one step from a shared state, relative to max(1, |x|)."""

DRAWS = 8
"""Number of action sets that a graph cycles through."""

WARM_UP = 300
"""Steps before a measurement, so that lanes are in mid-game."""


def same(name: str, lanes: int, steps: int) -> str:
    """Compare CPU and CUDA; one line of the table."""
    env = envs.find(name)
    generator, host, other = np.random.default_rng(1), Harness(env, lanes, 1), Harness(env, lanes, 1, str(CUDA))
    equal, first = np.ones(lanes, bool), ""
    for t in range(steps + 1):
        action = rollout_actions(env, generator, t, lanes)
        if host.slot.legal is not None and t:
            # Most lanes play legal actions, or games would end at once; every eighth lane plays any action.
            drawn = (generator.random(host.slot.legal.shape, np.float32) * host.slot.legal.numpy()).argmax(axis=0)[None]
            action = torch.from_numpy(np.where(np.arange(lanes) % 8 == 0, action.numpy(), drawn).astype(np.int32))
        for trial in (host, other):
            trial.step(action) if t else trial.reset()
        ours, theirs = host.outcome(), other.outcome()
        for part in ours:
            one, two = (
                outcome[part].numpy().reshape(-1, lanes).view(np.uint8).reshape(-1, lanes, outcome[part].element_size())
                for outcome in (ours, theirs)
            )
            if not np.array_equal(one, two):
                equal &= (one == two).all(axis=(0, 2))
                first = first or f"{part}, step {t}"
    exact = f"{int(equal.sum()):,} of {lanes:,}"
    if name in WHOLE:
        return f"| {name} | {exact} | {first or '-'} | - | {'ok' if bool(equal.all()) else 'FAILED'} |"
    _, one_step = compare_devices(env, lanes // 4, 100, device=str(CUDA), resynchronise=True)
    return f"| {name} | {exact} | {first or '-'} | {one_step:.1e} | {'ok' if one_step <= ONE_STEP else 'FAILED'} |"


def draw_actions(world: DeviceWorld, slot: torch.Tensor, legal: torch.Tensor | None) -> None:
    """Write random actions into `slot` (A, N), legal ones if there is a mask (H, N)."""
    env = world.spec
    if legal is not None:
        slot.copy_((torch.rand(legal.shape, device=CUDA) * legal).argmax(dim=0, keepdim=True))
    elif slot.dtype == torch.int32:
        slot.copy_(torch.randint(0, env.action.n, slot.shape, device=CUDA))
    else:
        low, high = (torch.tensor(bound, device=CUDA)[:, None] for bound in env.action.bounds())
        slot.copy_(low + (high - low) * torch.rand(slot.shape, device=CUDA))


def stepping(name: str, lanes: int, threads: int, repeats: int) -> tuple[float, int]:
    """Steps per second of a world in a graph, and bytes per step. The cost of drawing legal actions is subtracted."""
    world = DeviceWorld(envs.find(name), lanes, seed=1, device=CUDA, threads=threads)
    slot = world.slot()
    bound = world.bind(slot)
    world.reset(bound)
    for _ in range(WARM_UP):
        draw_actions(world, slot.action, slot.legal)
        world.step(bound)
        world.advance(1)
    steps = 256 if lanes <= 2**17 else 32
    slots = []
    for _ in range(DRAWS):
        action = slot.action.clone()
        draw_actions(world, action, None)
        slots.append(world.bind(slot._replace(action=action)))

    def plain() -> None:
        for t in range(steps):
            world.step(slots[t % DRAWS], t)
        world.advance(steps)

    def legal() -> None:
        for t in range(steps):
            draw_actions(world, slot.action, slot.legal)
            world.step(bound, t)
        world.advance(steps)

    def drawing() -> None:
        for _ in range(steps):
            draw_actions(world, slot.action, slot.legal)

    inner = max(2, min(100, int(1e8 // (lanes * steps))))
    spent = seconds(Graphed(legal if slot.legal is not None else plain, CUDA), repeats, inner)
    if slot.legal is not None:
        spent -= seconds(Graphed(drawing, CUDA), repeats, inner)
    return lanes * steps / spent, step_bytes(world.spec)


def limits(name: str) -> list[str]:
    """Resources per thread of each kernel of a step, as table lines."""
    world = DeviceWorld(envs.find(name), 64, seed=1, device=CUDA)
    bound = world.bind(world.slot())
    world.reset(bound)
    world.step(bound)
    lines = []
    for what in ("step", "show"):
        kernel = getattr(world._kernels, what)
        if kernel is not None:
            registers, local = (
                dict(getattr(kernel._shell, read)()) for read in ("get_regs_per_thread", "get_local_mem_per_thread")
            )
            lines.append(f"| {name} | {what} | {max(registers.values())} | {max(local.values())} |")
    return lines


def main() -> None:
    """Run the selected sections and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(GAMES))
    parser.add_argument("--only", default="same,stepping,limits")
    parser.add_argument("--lanes", default="8192,262144")
    parser.add_argument("--threads", default="0,1")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    names, wanted = arguments.names or list(GAMES), arguments.only.split(",")

    def say(line: str) -> None:
        print(line, flush=True)

    say(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}, medians of "
        f"{arguments.repeats}\n"
    )
    if "stepping" in wanted:
        bandwidth = copy_bandwidth(arguments.repeats)
        say(f"Copy bandwidth {bandwidth / 1e12:.2f} TB/s.\n")
        say(
            "| game | lanes | threads | M SPS | us a step | bytes a step | share of copy bandwidth "
            "|\n|---|---|---|---|---|---|---|"
        )
        for name in names:
            shards = max(envs.find(name).observation_shards, 1)
            wanted_threads = dict.fromkeys(
                min(int(threads), shards) or shards for threads in arguments.threads.split(",")
            )
            for lanes, threads in itertools.product(
                (int(lanes) for lanes in arguments.lanes.split(",")), wanted_threads
            ):
                rate, size = stepping(name, lanes, threads, arguments.repeats)
                say(
                    f"| {name} | {lanes:,} | {threads} | {rate / 1e6:,.0f} | {lanes / rate * 1e6:.1f} | {size} | "
                    f"{rate * size / bandwidth:.1%} |"
                )
    if "limits" in wanted:
        say("\n| game | kernel | registers of a thread | bytes of local memory |\n|---|---|---|---|")
        for line in (line for name in names for line in limits(name)):
            say(line)
    if "same" in wanted:
        torch.set_num_threads(1)  # little work, dominated by thread synchronization
        say(f"\nCPU and CUDA, {arguments.steps:,} steps of 1,024 lanes, the same actions.\n")
        say(
            "| game | lanes with every bit equal | first difference | one step from a shared state: largest difference "
            "| |\n|---|---|---|---|---|"
        )
        for name in names:
            say(same(name, 1024, arguments.steps))


if __name__ == "__main__":
    main()
