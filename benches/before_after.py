"""Speed and bits of two checkouts on this machine's GPU, in one run: iterations timed in turns, JSON lines.

    python benches/before_after.py BEFORE AFTER [--only NAME,...] [--regions 9] [--seconds 500] [--out FILE]
    python benches/before_after.py . . --only td3_wide --before-words algo.kernels=torch

A worker process per checkout builds each configuration and trains it for the same number of iterations; the SHA-256 of
all parameters is compared. Then the two workers time regions of iterations in turns. `ratio` is the median time of
AFTER over BEFORE; `spread` is the relative distance of the quartiles of BEFORE's regions. No configuration is begun
after `--seconds`. `--before-words` and `--after-words` are overrides of one side: two configurations of one checkout
are compared with them. On a machine without a GPU the configurations are trained on the CPU with a few lanes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

FUSED = ("algo.kernels=fused",)
SAC_SHAPE = ("algo.name=sac", "env.lanes=256", "algo.batch_size=256", "algo.horizon=128", "algo.learning_starts=2000")
CASES: dict[str, tuple[str, ...]] = {
    "ppo_small": ("env.name=cartpole", "env.lanes=2048", "algo.horizon=16", *FUSED),
    "ppo_large": ("env.name=cartpole", "env.lanes=65536", "algo.horizon=64", *FUSED),
    "ppo_wide": ("env.name=pendulum", "env.lanes=8192", "algo.horizon=32", "net.hidden=[256,256]", *FUSED),
    "ppo_per_layer": ("env.name=g2048", "env.lanes=8192", "algo.horizon=32", "net.hidden=[512,512]", *FUSED),
    "ppo_overlap": ("env.name=cartpole", "env.lanes=8192", "algo.horizon=32", "algo.overlap=true", *FUSED),
    "ppo_muon": ("env.name=cartpole", "env.lanes=8192", "algo.horizon=32", "algo.optimizer=muon", *FUSED),
    "ppo_normalized": (
        *("env.name=pendulum", "env.lanes=8192", "algo.horizon=32", "algo.normalize_observations=true"),
        *("algo.normalize_rewards=true", *FUSED),
    ),
    "lstm": (
        *("env.name=pendulum_positions", "env.lanes=2048", "algo.horizon=32", "net.memory=lstm"),
        *("net.hidden=[128]", "net.shared=true", *FUSED),
    ),
    "gru": (
        *("env.name=pendulum_positions", "env.lanes=2048", "algo.horizon=32", "net.memory=gru"),
        *("net.hidden=[128]", "net.shared=true", *FUSED),
    ),
    "mingru": (
        *("env.name=pendulum_positions", "env.lanes=2048", "algo.horizon=32", "net.memory=mingru"),
        *("net.hidden=[128]", "net.shared=true", *FUSED),
    ),
    "pqn": ("env.name=cartpole", "algo.name=pqn", "env.lanes=2048", "algo.horizon=16", "net.layer_norm=true", *FUSED),
    "pqn_convolution": (
        *("env.name=minatar_breakout", "algo.name=pqn", "env.lanes=512", "algo.horizon=16", "net.kind=cnn"),
        *("net.cnn=minatar", "net.hidden=[128]", "net.layer_norm=true", *FUSED),
    ),
    "dqn": ("env.name=cartpole", "algo.name=dqn", "env.lanes=256", "net.activation=relu", *FUSED),
    "dqn_rainbow": (
        *("env.name=cartpole", "algo.name=dqn", "env.lanes=256", "net.activation=relu", "algo.double=true"),
        *("algo.duelling=true", "algo.n_step=3", *FUSED),
    ),
    "sac": ("env.name=pendulum", *SAC_SHAPE, "net.hidden=[128,128]", "net.activation=relu", *FUSED),
    "sac_c51": (
        *("env.name=pendulum", *SAC_SHAPE, "net.hidden=[128,128]", "net.activation=relu", "algo.critic=c51"),
        *("algo.v_min=-1000", "algo.v_max=10", *FUSED),
    ),
    "sac_wide": ("env.name=pendulum", *SAC_SHAPE, "net.hidden=[512,256]", "net.activation=relu", *FUSED),
    "td3": (
        "env.name=pendulum",
        *SAC_SHAPE[1:],
        "algo.name=td3",
        "net.hidden=[128,128]",
        "net.activation=relu",
        *FUSED,
    ),
    "td3_wide": (
        *("env.name=pendulum", *SAC_SHAPE[1:], "algo.name=td3", "net.hidden=[512,256]", "net.activation=relu"),
        *("algo.precision=bf16", *FUSED),
    ),
    "td3_wide_norm": (
        *("env.name=pendulum", *SAC_SHAPE[1:], "algo.name=td3", "net.hidden=[512,256]", "net.activation=relu"),
        *("net.layer_norm=true", "algo.precision=bf16", *FUSED),
    ),
    "sac_prioritised": ("env.name=pendulum", *SAC_SHAPE, "algo.replay_sampling=prioritised"),
    "dqn_prioritised": ("env.name=cartpole", "algo.name=dqn", "env.lanes=256", "algo.replay_sampling=prioritised"),
    "ppo_torch": ("env.name=cartpole", "env.lanes=2048", "algo.horizon=16", "algo.kernels=torch"),
}
WARM_UP, REGION_S = 6, 0.25


def work() -> None:
    """Serve as a worker: read one request per line from stdin, write one JSON document per line to stdout."""
    import torch

    from operant.config import load
    from operant.training.build import build

    cuda = torch.cuda.is_available()
    algo: Any = None

    def iterate(times: int) -> float:
        begin = time.perf_counter()
        for _ in range(times):
            for phase in algo.phases:
                phase.run()
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            if "build" in request:
                algo = None
                if cuda:
                    torch.cuda.empty_cache()
                words = ["run.steps=1000G", "run.seed=3", *request["build"]]
                algo = build(load.load(None, words), "cuda" if cuda else "cpu")
                algo.start()
                seconds = iterate(WARM_UP)
                digest = hashlib.sha256()
                for name, tensor in sorted(algo.state("train").items()):
                    if isinstance(tensor, torch.Tensor):
                        digest.update(
                            name.encode()
                            + tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
                        )
                answer = {
                    "sha256": digest.hexdigest()[:16],
                    "build_s": seconds,
                    "kernels": getattr(algo, "kernels", None) or algo.backend.name,
                }
                iterate(2)
                answer["iteration_s"] = iterate(2) / 2
            else:
                answer = {"seconds": iterate(request["times"]) / request["times"]}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:600]}
        print(json.dumps(answer), flush=True)


class Worker:
    """A checkout's worker process."""

    def __init__(self, checkout: Path) -> None:
        paths = [str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--work"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=checkout,
        )

    def send(self, **request: object) -> None:
        """Send a request."""
        stream: IO[str] | None = self._process.stdin
        assert stream is not None
        stream.write(json.dumps(request) + "\n")
        stream.flush()

    def receive(self) -> dict[str, Any]:
        """Answer to the oldest request without one."""
        stream = self._process.stdout
        assert stream is not None
        answer: dict[str, Any] = json.loads(stream.readline() or '{"error": "the worker has died"}')
        return answer

    def end(self) -> None:
        """End the process."""
        self._process.kill()


def compare(workers: tuple[Worker, Worker], words: tuple[tuple[str, ...], ...], regions: int) -> dict[str, Any]:
    """Build and time a configuration in each checkout; `words`: their overrides."""
    for worker, overrides in zip(workers, words, strict=True):
        worker.send(build=overrides)
    before, after = (worker.receive() for worker in workers)
    if "error" in before or "error" in after:
        return {"error": before.get("error"), "error_after": after.get("error")}
    times = max(1, round(REGION_S / max(1e-5, before["iteration_s"])))
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(regions):
        for worker, found in zip(workers, seconds, strict=True):
            worker.send(times=times)
            answer = worker.receive()
            if "error" in answer:
                return {"error": answer["error"]}
            found.append(answer["seconds"])
    first, second = map(statistics.median, seconds)
    low, _, high = statistics.quantiles(seconds[0], n=4)
    return {
        "kernels": [before["kernels"], after["kernels"]],
        "same_bits": before["sha256"] == after["sha256"],
        "before_ms": round(first * 1e3, 4),
        "after_ms": round(second * 1e3, 4),
        "ratio": round(second / first, 4),
        "spread": round((high - low) / first, 4),
    }


def main() -> None:
    """Compare two checkouts case by case."""
    if "--work" in sys.argv:
        work()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--regions", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--before-words", nargs="*", default=[], help="further overrides of every case in BEFORE")
    parser.add_argument("--after-words", nargs="*", default=[], help="further overrides of every case in AFTER")
    options = parser.parse_args()
    begin_s = time.monotonic()
    workers = Worker(options.before.resolve()), Worker(options.after.resolve())
    try:
        for name in options.only.split(","):
            if time.monotonic() - begin_s > options.seconds:
                break
            words = tuple((*CASES[name], *more) for more in (options.before_words, options.after_words))
            row = {"case": name, **compare(workers, words, options.regions)}
            line = json.dumps({**row, "at_s": round(time.monotonic() - begin_s, 1)})
            print(line, flush=True)
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
    finally:
        for worker in workers:
            worker.end()


if __name__ == "__main__":
    main()
