"""Speed on this machine's CPU: stepping alone, and PPO at 1,024 lanes x 16.

    python benches/cpu.py [--repeats 9] [--only stepping,ppo,chunks] [--jax PYTHON]

PPO has two 4-64-64 tanh towers and 4 epochs x 4 minibatches. It is measured with the manual backward pass, with
autograd, and with JAX if PYTHON has it, in rotation: on a shared machine only ratios within one run are meaningful
(with two cores, one busy neighbour halves every figure). Prints Markdown for benches/LOG.md; medians.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable, Mapping

from operant.compute.runtime import quiet_threads

quiet_threads()  # before torch is imported

import torch  # noqa: E402
from compare_jax import jax_training  # noqa: E402

from operant import envs  # noqa: E402
from operant.algos.ppo import PPO, PPOConfig, cpu  # noqa: E402
from operant.compute.runtime import set_threads  # noqa: E402
from operant.compute.threads import ThreadPool  # noqa: E402
from operant.nn import mlp  # noqa: E402
from operant.tools import bench  # noqa: E402
from operant.worlds.device_world import DeviceWorld  # noqa: E402

CPU = torch.device("cpu")
LANES, HORIZON = 1024, 16


def in_turns(works: Mapping[str, Callable[[], object]], repeats: int, inner: int) -> dict[str, list[float]]:
    """Seconds per call of each function, `repeats` times, in rotation."""
    for work in works.values():
        work()
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            began = time.perf_counter()
            for _ in range(inner):
                work()
            times[name].append((time.perf_counter() - began) / inner)
    return times


def trainer(kernels: str) -> PPO:
    """PPO after its first iterations."""
    config = PPOConfig(anneal=False, learning_rate=2.5e-4, kernels=kernels)
    algo = PPO(DeviceWorld(envs.find("cartpole"), LANES, seed=1), config, mlp.Config(), seed=1, steps=10**9)
    algo.start()
    return algo


def ppo(repeats: int, jax_python: str | None) -> None:
    """Table of PPO."""
    trainers = {"manual backward": trainer("auto"), "autograd": trainer("torch")}
    works: dict[str, Callable[[], object]] = {}
    for name, algo in trainers.items():
        works |= {f"{name}|collect": algo.collect, f"{name}|update": algo.update}
    times = in_turns(works, repeats, 10)
    print(
        "\n| PPO at 1,024 x 16 | M SPS | ms an iteration | collect | update | ratio, in turns "
        "|\n|---|---|---|---|---|---|"
    )
    sums = {
        name: [a + b for a, b in zip(times[f"{name}|collect"], times[f"{name}|update"], strict=True)]
        for name in trainers
    }
    for name, spent in sums.items():
        ratio = statistics.median(slow / own for slow, own in zip(sums["autograd"], spent, strict=True))
        halves = " | ".join(f"{statistics.median(times[f'{name}|{half}']) * 1e3:.1f}" for half in ("collect", "update"))
        whole = statistics.median(spent)
        print(
            f"| {name} | {LANES * HORIZON / whole / 1e6:.3f} | {whole * 1e3:.1f} | {halves} | {ratio:.2f} |", flush=True
        )
    if jax_python is not None:
        found, problem = jax_training(LANES, HORIZON, "cpu", python=jax_python, repeats=repeats)
        line = (
            f"| JAX {found['jax']} | {found['sps'] / 1e6:.3f} | {found['iteration_s'] * 1e3:.1f} | | | |"
            if found
            else f"JAX: {problem}"
        )
        print(line)


def chunks(repeats: int) -> None:
    """Manual backward pass of one minibatch by chunk size, compared with autograd."""
    algo = trainer("torch")
    algo.collect()
    algo.update()
    batch = next(algo.backend.batches(algo.minibatches.order[0].long()))
    size = len(batch.returns)
    pool = ThreadPool(torch.get_num_threads())
    works: dict[str, Callable[[], object]] = {}
    for chunk in (256, 512, 1024, 2048, 4096):
        sizes = [chunk] * (size // chunk)
        works[f"chunks of {chunk:,}"] = functools.partial(cpu.Gradient(algo.policy, algo.config, sizes, pool), batch)
    manual_times = in_turns(works, repeats, 10)
    print(f"\n| gradient of {size:,} samples | ms |\n|---|---|")
    for name, spent in manual_times.items():
        print(f"| {name} | {statistics.median(spent) * 1e3:.2f} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", default="stepping,ppo,chunks")
    parser.add_argument("--jax", metavar="PYTHON", help="a Python interpreter with JAX")
    arguments = parser.parse_args()
    repeats, wanted = arguments.repeats, arguments.only.split(",")
    threads = set_threads(0)
    print(
        f"{threads} threads, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}, load before "
        f"{os.getloadavg()[0]:.2f}, medians of {repeats}\n"
    )
    if "stepping" in wanted:
        print("| environment | lanes | M SPS, stepping |\n|---|---|---|")
        for name in bench.ordinary_names():
            for lanes in (1024, 65536) if name == "cartpole" else (65536,):
                print(
                    f"| {name} | {lanes:,} | "
                    f"{bench.stepping(envs.find(name), lanes, CPU, repeats=repeats).sps / 1e6:.0f} |",
                    flush=True,
                )
    if "ppo" in wanted:
        ppo(repeats, arguments.jax)
    if "chunks" in wanted:
        chunks(repeats)


if __name__ == "__main__":
    main()
