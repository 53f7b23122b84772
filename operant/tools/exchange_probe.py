"""Benchmark of the exchange between ranks, by processes on this machine.

Executed as a module, it is one of the ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

SIZES = (2, 9_600, 80_000, 700_000)
"""Numbers of float32 values per exchange: one statistic, and the parameters of small to large networks."""

LIMIT_S = 90.0
_REPEATS = 50
_IN_GRAPH = 10


class ExchangeTimes(NamedTuple):
    """Measured times of the exchange between ranks: its name and the microseconds by size, or the problem that
    prevented the measurement.
    """

    name: str
    us: dict[int, float]
    problem: str = ""


def measure(ranks: int, *, gpu: bool, limit_s: float = LIMIT_S) -> ExchangeTimes:
    """Measure the exchange of tensors between `ranks` processes of this machine, each on a GPU with `gpu`, else on the
    CPU. After `limit_s` seconds, or if a process fails, the result has a `problem`.
    """
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, f"{rank}.txt") for rank in range(ranks)]
        processes = []
        for rank, log in enumerate(logs):
            with log.open("wb") as file:
                command = [
                    sys.executable,
                    "-m",
                    "operant.tools.exchange_probe",
                    str(rank),
                    str(ranks),
                    f"{folder}/store",
                    "cuda" if gpu else "cpu",
                ]
                processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file))
        deadline_s = time.monotonic() + limit_s
        try:
            while any(process.poll() is None for process in processes) and time.monotonic() < deadline_s:
                if any(process.poll() for process in processes):
                    break
                time.sleep(0.05)
        finally:
            codes = [process.poll() for process in processes]
            for process in processes:
                process.kill()
                process.wait()
        if any(code != 0 for code in codes):
            failed = next((rank for rank, code in enumerate(codes) if code), None)
            last = (
                ""
                if failed is None
                else (logs[failed].read_text(errors="replace").strip().splitlines() or [f"exit code {codes[failed]}"])[
                    -1
                ]
            )
            return ExchangeTimes(
                "", {}, f"rank {failed}: {last}" if failed is not None else f"not finished within {limit_s:g} s"
            )
        result = json.loads(logs[0].read_text().strip().splitlines()[-1])
        return ExchangeTimes(result["name"], {int(size): us for size, us in result["us"].items()})


def _measure_rank(rank: int, ranks: int, store: str, kind: str) -> dict[str, Any]:
    """Measure as one rank: join the exchange through the file `store` and time gathers of each size; `kind` is "cuda"
    or "cpu". Returns the exchange's name and the microseconds by size.
    """
    import torch
    import torch.distributed as dist

    from operant.compute.graphs import Graphed
    from operant.training import distributed

    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    torch.set_num_threads(1)
    exchange, us = distributed.join(dist.FileStore(store, ranks), rank, ranks, device), {}
    for size in SIZES:
        rows = torch.ones(1, size, device=device)

        def gather(rows: torch.Tensor = rows) -> None:
            for _ in range(_IN_GRAPH):
                exchange.gather(rows)

        work = Graphed(gather, device)
        for _ in range(3):
            work()
        exchange.agree("ready")
        began_s = time.perf_counter()
        for _ in range(_REPEATS):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        us[size] = round((time.perf_counter() - began_s) / _REPEATS / _IN_GRAPH * 1e6, 2)
    return {"name": exchange.name, "us": us}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_measure_rank(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5])) + "\n")
    sys.stdout.flush()
    os._exit(0)  # destroying a captured process group hangs
