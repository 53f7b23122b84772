"""Gain of overlapped collection (algo.overlap) on one GPU, and its upper bound. Prints JSON lines.

    python benches/overlap.py [--tiny] [--cases WORD,WORD] [--only rates,bits]

`rates`, in microseconds: `collect` and `update` alone; `apart`, [collect, update] of two learners in sequence, and
`beside`, the same in two streams without data dependencies, the upper bound; `turns` and `ahead`, an iteration of one
learner without and with algo.overlap. `bits`: identical results after 30 iterations twice, and without CUDA graphs.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import time
from collections.abc import Callable
from typing import Any

import torch

from operant.config import load
from operant.training.build import build

CASES: dict[str, list[str]] = {
    "2048 x 16, two towers": ["env.lanes=2048", "algo.horizon=16", "algo.epochs=4", "algo.minibatches=4"],
    "2048 x 16, one trunk": [
        "env.lanes=2048",
        "algo.horizon=16",
        "net.shared=true",
        "algo.epochs=4",
        "algo.minibatches=4",
    ],
    "pictures, nature": [
        "env.name=pong",
        "env.pixels=64",
        "net.kind=cnn",
        "net.cnn=nature",
        "env.lanes=1024",
        "algo.horizon=32",
        "algo.microbatch=4096",
    ],
    "host: breakout 1 epoch": [
        "env.name=breakout",
        "env.device=cpu",
        "env.lanes=65536",
        "algo.horizon=32",
        "net.hidden=[128,128]",
        "algo.epochs=1",
    ],
    "host: breakout 4 epochs": [
        "env.name=breakout",
        "env.device=cpu",
        "env.lanes=65536",
        "algo.horizon=32",
        "net.hidden=[128,128]",
        "algo.epochs=4",
    ],
    "host: gymnasium": [
        "env.name=gymnasium:CartPole-v1",
        "env.lanes=64",
        "algo.horizon=64",
        "algo.epochs=8",
        "algo.minibatches=8",
    ],
    "8192 x 64, two towers": ["env.lanes=8192", "algo.horizon=64", "algo.epochs=4", "algo.minibatches=4"],
    "65536 x 64, one trunk": [
        "env.lanes=65536",
        "algo.horizon=64",
        "net.shared=true",
        "algo.epochs=4",
        "algo.minibatches=4",
    ],
    "breakout, 4096 x 32": ["env.name=breakout", "env.lanes=4096", "algo.horizon=32", "net.hidden=[128,128]"],
    "one epoch: breakout": [
        "env.name=breakout",
        "env.lanes=4096",
        "algo.horizon=32",
        "net.hidden=[128,128]",
        "net.shared=true",
        "net.activation=relu",
        "algo.epochs=1",
        "algo.minibatches=8",
        "algo.normalize_observations=true",
        "algo.normalize_rewards=true",
    ],
    "snake, 4096 x 32": ["env.name=snake", "env.lanes=4096", "algo.horizon=32"],
}


def microseconds(work: Callable[[], None], device: torch.device, times: int) -> float:
    """Microseconds per call, the best of three."""
    found = []
    for _ in range(3):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(times):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append((time.perf_counter() - began) / times * 1e6)
    return min(found)


def made(words: list[str], device: torch.device, *more: str, eager: bool = False) -> Any:
    """Learner after its first iterations, which compile and capture kernels."""
    common = [
        "run.steps=1000G",
        "algo.anneal=false",
        "algo.kernel_config=first",
        *([] if device.type == "cpu" else ["algo.precision=bf16"]),
    ]
    algo = build(load.load(None, [*words, *common, *more]), device, eager=eager)
    algo.start()
    iterate(algo, 4)
    return algo


def iterate(algo: Any, times: int = 1) -> None:
    """Whole iterations."""
    for _ in range(times):
        for phase in algo.phases:
            phase.run()


def closed(*algos: Any) -> None:
    """Close worlds that have processes."""
    for algo in algos:
        if hasattr(algo.world, "close"):
            algo.world.close()


def rates(name: str, words: list[str], device: torch.device) -> None:
    """Rates of one configuration."""
    one, two = (made(words, device, f"run.seed={seed}") for seed in (1, 2))
    on_gpu = device.type == "cuda"
    side = torch.cuda.Stream(device) if on_gpu else None

    def beside() -> None:
        if side is None:
            one.collect()
            two.update()
            return
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            two.update()
        one.collect()  # waits if the host steps the lanes
        torch.cuda.current_stream().wait_stream(side)

    def apart() -> None:
        one.collect()
        two.update()

    began = time.perf_counter()
    apart()
    if on_gpu:
        torch.cuda.synchronize()
    times = max(2, min(200, int(0.1 / (time.perf_counter() - began)))) if on_gpu else 1
    found = {"collect": microseconds(one.collect, device, times), "update": microseconds(two.update, device, times)}
    found |= {"apart": microseconds(apart, device, times), "beside": microseconds(beside, device, times)}
    found["turns"] = microseconds(functools.partial(iterate, one), device, times)
    closed(one, two)
    ahead = made(words, device, "algo.overlap=true")
    found["ahead"] = microseconds(functools.partial(iterate, ahead), device, times)
    closed(ahead)
    gains = {
        "most": round(found["apart"] / found["beside"] - 1.0, 3),
        "gain": round(found["turns"] / found["ahead"] - 1.0, 3),
    }
    kernels = {"kernels": one.kernels, "times": times}
    print(
        json.dumps(
            {
                "part": "overlap",
                "case": name,
                **{key: round(value, 1) for key, value in found.items()},
                **gains,
                **kernels,
            }
        ),
        flush=True,
    )


def bits(name: str, words: list[str], device: torch.device) -> None:
    """Results of one seed: twice, and without graphs."""
    first: dict[str, torch.Tensor] = {}
    for label, eager in (("first", False), ("again", False), ("eager", True)):
        algo = made(words, device, "algo.overlap=true", eager=eager)
        iterate(algo, 2 if device.type == "cpu" else 26)
        found = {key: tensor.detach().to("cpu", copy=True) for key, tensor in algo.state("train").items()}
        closed(algo)
        if label != "first":
            different = [key for key in found if not torch.equal(found[key], first[key])]
            print(
                json.dumps(
                    {"part": "overlap bits", "case": name, "than": label, "same": not different, "different": different}
                ),
                flush=True,
            )
        first = first or found


def main() -> None:
    """Run all cases, or those that contain a word of --cases; a failed case does not stop the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--cases", default="")
    parser.add_argument("--only", default="rates,bits")
    given = parser.parse_args()
    tiny, chosen = given.tiny, [word for word in given.cases.split(",") if word]
    for name, words in CASES.items():
        if chosen and not any(word in name for word in chosen):
            continue
        less = ["env.lanes=16", "algo.horizon=8", "algo.minibatches=1", "algo.microbatch=64"] if tiny else []
        for part in given.only.split(","):
            if part == "bits" and name.startswith("host"):  # episodes restart
                continue
            try:
                PARTS[part](name, [*words, *less], torch.device("cpu" if tiny else "cuda"))
            except Exception as error:  # a failed case does not stop the others
                print(
                    json.dumps({"part": part, "case": name, "failed": f"{type(error).__name__}: {error}"}), flush=True
                )
            gc.collect()
            if not tiny:
                torch.cuda.empty_cache()


PARTS = {"rates": rates, "bits": bits}


if __name__ == "__main__":
    main()
