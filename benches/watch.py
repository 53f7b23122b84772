"""Cost of watching the agent for PPO: `after` without a viewer, a frame, the first request, and steps per second.

    python benches/watch.py [--device cpu] [--env cartpole] [--lanes 1024] [--horizon 16] [--size 64] [--pairs 10]
        [--seconds 3]

The loop is the trainer's: collect, update, meters, records to a metrics file. Watched and unwatched regions alternate,
as does their order within a pair. Before that, two trainers are compared byte for byte while requests to watch one of
them come and go. Prints Markdown for benches/LOG.md.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
import time
from pathlib import Path

from operant.compute.runtime import quiet_threads

quiet_threads()  # before torch is imported

import torch  # noqa: E402

from operant import envs  # noqa: E402
from operant.algos.ppo import PPO  # noqa: E402
from operant.compute.runtime import set_threads  # noqa: E402
from operant.nn import mlp  # noqa: E402
from operant.runs.metrics import Writer  # noqa: E402
from operant.training.live_agent import FRAME_BYTES, Watcher  # noqa: E402
from operant.training.meters import Meters, metrics_for  # noqa: E402
from operant.worlds.device_world import DeviceWorld  # noqa: E402


class Loop:
    """A trainer's loop without checkpoints and evaluations."""

    def __init__(self, arguments, folder):
        env = envs.find(arguments.env)
        self.device = torch.device(arguments.device)
        world = DeviceWorld(env, arguments.lanes, seed=1, device=self.device)
        config = PPO.Config(
            horizon=arguments.horizon,
            normalize_observations=True,
            normalize_rewards=True,
            anneal=False,
            learning_rate=2.5e-4,
        )
        self.algo = PPO(world, config, mlp.Config(), seed=1, steps=10**12)
        self.writer = Writer(
            Path(folder) / "metrics.mm",
            metrics_for(self.algo),
            run_uuid=bytes(16),
            version="bench",
            frame_bytes=FRAME_BYTES,
        )
        self.meters = Meters(self.algo, self.writer, record_hz=50)
        self.watcher = Watcher(self.algo.policy, env, world.params, seed=1, device=self.device, writer=self.writer)
        self.step = 0
        self.algo.start()

    def iterate(self, times):
        """Run whole iterations and synchronize."""
        for _ in range(times):
            self.meters.measure("collect", self.algo.collect)
            self.meters.measure("update", self.algo.update)
            self.step += self.algo.steps_per_iteration
            self.writer.tick()
            self.meters.after(self.step)
            self.watcher.after(self.step)
        self.settle()

    def settle(self):
        """Synchronize the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def sps(self, iterations):
        """Steps per second over some iterations."""
        began = time.perf_counter()
        self.iterate(iterations)
        return iterations * self.algo.steps_per_iteration / (time.perf_counter() - began)

    def bytes(self):
        """Content of a checkpoint."""
        return {name: tensor.cpu().numpy().tobytes() for name, tensor in self.algo.state("all").items()}


def same_bytes(alone, shown, rounds):
    """Whether two trainers stay identical while requests to watch one of them come, change and expire."""
    draw = random.Random(1)
    for _ in range(rounds):
        if draw.random() < 0.7:
            shown.watcher.request(
                draw.choice(["greedy", "sampled"]),
                draw.randrange(16, 97),
                time.monotonic() + draw.choice([0.0, 0.1, 1.0]),
            )
        times = draw.randrange(1, 8)
        shown.iterate(times)
        alone.iterate(times)
        if shown.bytes() != alone.bytes():
            return False
    return True


def unwatched_ns(watcher):
    """Nanoseconds of `after` without a viewer, including the loop: minimum and median over batches."""
    batch, found = range(10_000), []
    for _ in range(41):
        began = time.perf_counter_ns()
        for _ in batch:
            watcher.after(0)
        found.append((time.perf_counter_ns() - began) / len(batch))
    return min(found), statistics.median(found)


def first_wish_s(loop, size):
    """Seconds of training time taken by the first frame of a process."""
    loop.watcher.request("greedy", size, math.inf)
    began = time.perf_counter()
    loop.watcher.after(loop.step)
    loop.settle()
    return time.perf_counter() - began


def frame_ms(loop, mode, size):
    """Milliseconds of an `after` that draws: on the host, and until the device is done."""
    loop.watcher.request(mode, size, math.inf)
    host, whole = [], []
    for _ in range(12):
        time.sleep(0.11)
        loop.settle()
        began = time.perf_counter()
        loop.watcher.after(loop.step)
        host.append((time.perf_counter() - began) * 1e3)
        loop.settle()
        whole.append((time.perf_counter() - began) * 1e3)
        loop.watcher.after(loop.step)
    return statistics.median(host), statistics.median(whole)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--env", default="cartpole")
    parser.add_argument("--lanes", type=int, default=1024)
    parser.add_argument("--horizon", type=int, default=16)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=30, help="iterations of the comparison byte for byte")
    arguments = parser.parse_args()
    set_threads(0)
    name = (
        torch.cuda.get_device_name()
        if arguments.device.startswith("cuda")
        else f"CPU, {torch.get_num_threads()} threads"
    )
    shape = f"{arguments.env}, {arguments.lanes:,} x {arguments.horizon}, {arguments.size} pixels"
    print(f"{name}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}; {shape}\n")
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        alone, shown = Loop(arguments, one), Loop(arguments, other)
        alone.iterate(1)
        shown.iterate(1)  # and now before anything is captured
        print(f"- the first wish, which compiles: {first_wish_s(shown, arguments.size):.2f} s, once in a run")
        same = same_bytes(alone, shown, arguments.rounds)
        print(
            f"- {'ok' if same else 'FAILED'}: watched and unwatched are the same bytes after "
            f"{shown.step // shown.algo.steps_per_iteration} iterations"
        )

    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(arguments, folder)
        loop.iterate(5)
        least, middle = unwatched_ns(loop.watcher)
        print(f"- `after` without a viewer: {least:.0f} ns at least, {middle:.0f} ns in the median")
        for mode in ("greedy", "sampled"):
            host, whole = frame_ms(loop, mode, arguments.size)
            print(f"- a frame, {mode}: {host:.2f} ms of the host, {whole:.2f} ms until it is done")
        if not loop.watcher.available:
            raise SystemExit(f"FAILED: {loop.watcher.unavailable_reason}")

        iterations = max(2, round(arguments.seconds * loop.sps(10) / loop.algo.steps_per_iteration))
        rates = {True: [], False: []}
        print(f"\n| {iterations:,} iterations each | unwatched SPS | watched SPS | difference |\n|---|---|---|---|")
        for pair in range(arguments.pairs):
            for watching in (False, True) if pair % 2 == 0 else (True, False):
                loop.watcher.request("greedy", arguments.size, math.inf if watching else 0.0)
                rates[watching].append(loop.sps(iterations))
            print(
                f"| {pair + 1} | {rates[False][-1]:,.0f} | {rates[True][-1]:,.0f} | "
                f"{rates[True][-1] / rates[False][-1] - 1:+.2%} |"
            )
        ratios = [there / here - 1 for there, here in zip(rates[True], rates[False], strict=True)]
        spread = 1.96 * statistics.stdev(ratios) / math.sqrt(len(ratios))
        print(
            f"| median | {statistics.median(rates[False]):,.0f} | {statistics.median(rates[True]):,.0f} | "
            f"{statistics.median(ratios):+.2%} |"
        )
        print(f"\nMean difference {statistics.mean(ratios):+.2%} ± {spread:.2%} (95 %, n = {len(ratios)}).")


if __name__ == "__main__":
    main()
