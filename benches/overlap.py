"""What collecting the next iteration while learning from the last could gain on one GPU: two learners, one collects while the other updates. JSON lines.

    python benches/overlap.py [--tiny] [--cases WORD,WORD]

Neither waits for the other, so this is more than an overlap within one learner could reach, which has to hand over a rollout. `apart` and `beside` are
microseconds of [collect, update] one after the other, and on two streams.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable

import torch

from operant.config import load
from operant.training.build import build

CASES: dict[str, list[str]] = {
    "2048 x 16, two towers": ["env.lanes=2048", "algo.horizon=16", "algo.epochs=4", "algo.minibatches=4"],
    "2048 x 16, one trunk": ["env.lanes=2048", "algo.horizon=16", "net.shared=true", "algo.epochs=4", "algo.minibatches=4"],
    "pictures, nature": ["env.name=pong", "env.pixels=64", "net.kind=cnn", "net.cnn=nature", "env.lanes=1024", "algo.horizon=32", "algo.microbatch=4096"],
    "host: breakout 1 epoch": ["env.name=breakout", "env.device=cpu", "env.lanes=65536", "algo.horizon=32", "net.hidden=[128,128]", "algo.epochs=1"],
    "host: breakout 4 epochs": ["env.name=breakout", "env.device=cpu", "env.lanes=65536", "algo.horizon=32", "net.hidden=[128,128]", "algo.epochs=4"],
    "host: gymnasium": ["env.name=gymnasium:CartPole-v1", "env.lanes=64", "algo.horizon=64", "algo.epochs=8", "algo.minibatches=8"],
    "8192 x 64, two towers": ["env.lanes=8192", "algo.horizon=64", "algo.epochs=4", "algo.minibatches=4"],
    "65536 x 64, one trunk": ["env.lanes=65536", "algo.horizon=64", "net.shared=true", "algo.epochs=4", "algo.minibatches=4"],
    "breakout": ["env.name=breakout", "env.lanes=4096", "algo.horizon=32", "net.hidden=[128,128]"],
    "snake": ["env.name=snake", "env.lanes=4096", "algo.horizon=32"],
}  # fmt: skip


def microseconds(work: Callable[[], None], device: torch.device, times: int) -> float:
    """Of one call, the best of three."""
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


def case(name: str, words: list[str], device: torch.device) -> None:
    """One configuration."""
    common = ["run.steps=1000G", "algo.anneal=false", "algo.kernel_config=first", *([] if device.type == "cpu" else ["algo.precision=bf16"])]
    one, two = (build(load.load(None, [*words, *common, f"run.seed={seed}"]), device) for seed in (1, 2))
    for algo in (one, two):
        algo.start()
        for _ in range(4):
            algo.collect()
            algo.update()
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
        one.collect()  # which waits where the host steps
        torch.cuda.current_stream().wait_stream(side)

    def apart() -> None:
        one.collect()
        two.update()

    began = time.perf_counter()
    one.collect()
    two.update()
    if on_gpu:
        torch.cuda.synchronize()
    times = max(2, min(200, int(0.15 / (time.perf_counter() - began)))) if on_gpu else 1
    found = {"collect": microseconds(one.collect, device, times), "update": microseconds(two.update, device, times)}
    found |= {"apart": microseconds(apart, device, times), "beside": microseconds(beside, device, times)}
    gain = round(found["apart"] / found["beside"] - 1.0, 3)
    print(json.dumps({"part": "overlap", "case": name, **{key: round(value, 1) for key, value in found.items()}, "gain": gain, "times": times}), flush=True)


    for algo in (one, two):
        if hasattr(algo.world, "close"):
            algo.world.close()


def main() -> None:
    """All cases, or those of which a word of --cases is a part; none stops another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--cases", default="")
    given = parser.parse_args()
    tiny, chosen = given.tiny, [word for word in given.cases.split(",") if word]
    for name, words in CASES.items():
        if chosen and not any(word in name for word in chosen):
            continue
        try:
            less = ["env.lanes=16", "algo.horizon=8", "algo.minibatches=1", "algo.microbatch=64"] if tiny else []
            case(name, [*words, *less], torch.device("cpu" if tiny else "cuda"))
        except Exception as error:  # no case stops another
            print(json.dumps({"part": "overlap", "case": name, "failed": f"{type(error).__name__}: {error}"}), flush=True)
        gc.collect()
        if not tiny:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
