"""One rank of a multi-GPU bench, and the launcher of a set of them; see `python benches/ranks.py`."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LINES = 25
"""Characters printed of a failed rank's error stream."""


def say(**found: object) -> None:
    """Print one JSON line."""
    print(json.dumps(found), flush=True)


def wait(device: Any) -> float:
    """Current time after synchronizing the GPU."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def iterate(algo: Any, iterations: int) -> float:
    """Seconds of some iterations."""
    began = wait(algo.device)
    for _ in range(iterations):
        for phase in algo.phases:
            phase.run()
    return wait(algo.device) - began


def latency(exchange: Any, device: Any, numbers: int, times: int) -> float:
    """Microseconds of one gather, on a GPU inside a graph."""
    import torch

    from operant.compute.graphs import Graphed

    rows = torch.ones(1, numbers, device=device)
    work = Graphed(lambda: [exchange.gather(rows) for _ in range(10)] and None, device)
    exchange.counts = False  # its captures belong to no iteration
    for _ in range(3):
        work()
    exchange.counts = True
    began = wait(device)
    for _ in range(times):
        work()
    return (wait(device) - began) / times / 10 * 1e6


def by_kernel(algo: Any, iterations: int = 5) -> dict[str, float]:
    """Microseconds per iteration of the most expensive kernels, by name."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        iterate(algo, iterations)
    spent = {event.key: event.self_device_time_total / iterations for event in profiler.key_averages()}
    most = sorted(spent, key=lambda name: -spent[name])[:10]
    return {name[:48]: round(spent[name], 1) for name in most} | {"all": round(sum(spent.values()), 1)}


def trained(job: dict[str, Any], device: Any, exchange: Any) -> dict[str, Any]:
    """Train one configuration: its rate after the first four iterations, and the bits of its parameters."""
    from operant.compute.exchange import SOLO
    from operant.config import load, recipes
    from operant.training import distributed
    from operant.training.build import build

    began, exchange = time.perf_counter(), SOLO if job["alone"] else exchange
    config = load.load(recipes.find_source(job["recipe"]) if "recipe" in job else None, job["overrides"])
    algo = build(config, device, exchange=exchange, eager=job.get("eager", False))
    algo.start()
    iterate(algo, 4)
    ready = time.perf_counter() - began
    if not job["alone"]:
        exchange.agree("all have begun")
    spent = exchange.spent_s()
    seconds = iterate(algo, job["iterations"]) / job["iterations"]
    found = {
        "seconds": seconds,
        "ready_s": round(ready, 1),
        "kernels": algo.kernels,
        "bits_by_ranks": algo.bits_by_ranks,
    }
    found |= {
        "steps": algo.steps_per_iteration,
        "chosen": algo.chosen,
        "linked": getattr(getattr(algo.backend, "learner", None), "_link", None) is not None,
    }
    if spent is not None:
        found["exchange_us"] = round((exchange.spent_s() - spent) / job["iterations"] * 1e6, 2)
    if job.get("profile") and device.type == "cuda":
        found["us_by_kernel"] = by_kernel(algo)
    if job.get("bits"):
        whole = distributed.whole_state(algo, "train", exchange)
        found["sha256"] = {
            name: hashlib.sha256(whole[name].numpy().tobytes()).hexdigest()[:16] for name in sorted(whole)
        }
    return found


def spin(job: dict[str, Any], rank: int, ranks: int, device: Any, exchange: Any) -> None:
    """Kill the last rank during an iteration; the others report when they notice, and end in another thread, as in
    training.
    """
    from operant.config import load
    from operant.training.build import build

    algo = build(load.load(None, job["overrides"]), device, exchange=exchange)
    algo.start()
    iterate(algo, 5)
    if rank == ranks - 1:
        say(killed=time.time())
        os.kill(os.getpid(), signal.SIGKILL)

    def end() -> None:
        time.sleep(1.0)
        say(ending=time.time())
        os._exit(0)

    threading.Thread(target=end, daemon=True).start()
    iterate(algo, 1_000_000)


def rank_main(rank: int, ranks: int, store: str, part: str, given: dict[str, Any]) -> None:
    """Run one rank's jobs and print the results. Ends without destroying the process group, which hangs after a
    capture.
    """
    faulthandler.dump_traceback_later(given["limit_s"] - 3.0)
    import torch
    import torch.distributed as dist

    from operant.training import distributed

    device = torch.device("cuda", rank) if given["gpu"] else torch.device("cpu")
    if given["gpu"]:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    began = time.perf_counter()
    exchange = distributed.join(dist.FileStore(store, ranks), rank, ranks, device)
    say(exchange=getattr(exchange, "name", "none"), joined_s=round(time.perf_counter() - began, 2))
    for job in given["jobs"]:
        if part == "spin":
            spin(job, rank, ranks, device, exchange)
        elif "numbers" in job:
            say(numbers=job["numbers"], us=round(latency(exchange, device, job["numbers"], job["times"]), 1))
        else:
            say(**{key: job[key] for key in ("case", "alone", "eager") if key in job}, **trained(job, device, exchange))
            gc.collect()
            torch.cuda.empty_cache()
    sys.stdout.flush()
    os._exit(0)


def on_ranks(
    ranks: int,
    part: str,
    kind: str,
    jobs: list[dict[str, Any]],
    *,
    gpu: bool,
    limit_s: float,
    look: Callable[[list[list[dict[str, Any]]]], None] = len,
) -> list[list[dict[str, Any]]]:
    """Output of each rank of a set of processes, passed to `look` meanwhile. If one fails, the ends of all error
    streams are printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = {"jobs": jobs, "gpu": gpu, "limit_s": limit_s}
        command = [sys.executable, __file__, json.dumps([ranks, f"{folder}/store", part, given])]
        environment = os.environ | {
            "OPERANT_EXCHANGE": kind,
            "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
            "NCCL_NVLS_ENABLE": "0",
        }
        if kind == "sockets":  # as between hosts
            environment |= {"OPERANT_EXCHANGE": "nccl", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}

        def said() -> list[list[dict[str, Any]]]:
            outputs = [Path(f"{folder}/{rank}.out").read_text().splitlines(keepends=True) for rank in range(ranks)]
            return [
                [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")]
                for lines in outputs
            ]

        with contextlib.ExitStack() as files:
            streams = [
                [files.enter_context(open(f"{folder}/{rank}.{name}", "w+")) for name in ("out", "err")]
                for rank in range(ranks)
            ]
            processes = [
                subprocess.Popen([*command, str(rank)], env=environment, stdout=out, stderr=err)
                for rank, (out, err) in enumerate(streams)
            ]
            deadline = time.monotonic() + limit_s
            while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
                if any(process.poll() for process in processes):
                    deadline = min(deadline, time.monotonic() + (20.0 if part == "spin" else 3.0))
                time.sleep(0.02)
                look(said())
            ended = [process.poll() for process in processes]
            began = time.monotonic()
            for process in processes:
                process.kill()
                process.wait()
            if any(code not in (0, -signal.SIGKILL if part == "spin" else 0) for code in ended):
                say(part=part, kind=kind, failed=ended, killed_in_s=round(time.monotonic() - began, 2))
                for rank in range(ranks):
                    print(
                        f"--- rank {rank}:",
                        "".join(Path(f"{folder}/{rank}.err").read_text().splitlines(keepends=True)[-LINES:]),
                        flush=True,
                    )
        look(said())
        return said()


if __name__ == "__main__":
    count, store, part, given = json.loads(sys.argv[1])
    rank_main(int(sys.argv[2]), count, store, part, given)
