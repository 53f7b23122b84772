"""Two (four, eight) GPUs beside one: rates and efficiency, the same bytes, the exchange's latency by size and by kind, a rank that is killed. JSON lines.

    python benches/ranks.py [--ranks 2] [--only latency,rates,bits,faults] [--tiny]

Each measurement is a set of processes of its own, with a time limit, so that no part stops another. `rates`: W = 1 and W ranks with as many lanes a GPU, by
each kind of exchange ($OPERANT_EXCHANGE: kernel, symmetric, nccl). `bits`: the same global lanes on 1 and W ranks, CartPole with all normalisation and the KL
stop, Breakout, Snake, a recurrent policy. `faults`: `kill -9` of a rank of a run that a command has started. With --tiny all of it is on the CPU, over gloo.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

KINDS = ("kernel", "symmetric", "nccl")
SIZES = (2, 9_600, 80_000, 700_000, 4_000_000)
SHAPES = ((2048, 16, False), (8192, 64, False), (65536, 64, False), (65536, 64, True), (131072, 64, True))  # lanes a GPU, horizon, one trunk
EVERYTHING = ["algo.normalize_observations=true", "algo.normalize_rewards=true", "algo.target_kl=0.01"]
BITS = {
    "cartpole": [], "cartpole, everything": EVERYTHING, "breakout": ["env.name=breakout"], "snake": ["env.name=snake"],
    "recurrent": ["env.name=cartpole", "net.memory=gru"],
}  # fmt: skip
LIMIT_S = 240.0


def say(**found: object) -> None:
    """One JSON line."""
    print(json.dumps(found), flush=True)


# A RANK


def rate(algo: Any, iterations: int) -> float:
    """Seconds that an iteration takes."""
    import torch

    def wait() -> float:
        if algo.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    algo.start()
    for _ in range(4):
        for phase in algo.phases:
            phase.run()
    began = wait()
    for _ in range(iterations):
        for phase in algo.phases:
            phase.run()
    return (wait() - began) / iterations


def latency(exchange: Any, device: Any, numbers: int, times: int) -> float:
    """Microseconds of one gather, inside a graph on a GPU."""
    import torch

    from operant.compute.graphs import Graphed

    rows = torch.ones(1, numbers, device=device)
    work = Graphed(lambda: [exchange.gather(rows) for _ in range(10)] and None, device)
    for _ in range(3):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / times / 10 * 1e6


def rank_main(rank: int, ranks: int, store: str, part: str, given: dict[str, Any]) -> None:
    """One rank's part of a measurement; rank 0 prints what was found. Ends without taking the process group apart, which hangs after a capture."""
    import torch
    import torch.distributed as dist

    from operant.compute.exchange import SOLO
    from operant.config import load
    from operant.training import distributed
    from operant.training.build import build

    device = torch.device("cuda", rank) if given["gpu"] else torch.device("cpu")
    if given["gpu"]:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    exchange = SOLO if ranks == 1 else distributed.join(dist.FileStore(store, ranks), rank, ranks, device)
    found: dict[str, Any] = {"exchange": getattr(exchange, "name", "none")}
    if part == "latency":
        found |= {"us": {str(numbers): round(latency(exchange, device, numbers, given["times"]), 1) for numbers in given["sizes"]}}
    else:
        algo = build(load.load(None, given["overrides"]), device, exchange=exchange)
        found |= {"seconds": rate(algo, given["iterations"]), "kernels": algo.backend.name, "bits_by_ranks": algo.bits_by_ranks}
        found |= {"steps": algo.steps_per_iteration, "chosen": algo.chosen}
        whole = distributed.whole_state(algo, "train", exchange)
        found["sha256"] = hashlib.sha256(b"".join(whole[name].numpy().tobytes() for name in sorted(whole) if name.startswith(("policy", "adam")))).hexdigest()
    if rank == 0:
        say(**found)
    sys.stdout.flush()
    os._exit(0)


def on_ranks(ranks: int, part: str, kind: str = "kernel", **given: Any) -> dict[str, Any]:
    """What rank 0 of so many processes prints; `failed` with the last lines of the first that did not end well."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--rank", json.dumps([ranks, f"{folder}/store", part, given])]
        environment = os.environ | {"OPERANT_EXCHANGE": kind, "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes = [subprocess.Popen([*command, str(rank)], env=environment, **pipes) for rank in range(ranks)]  # type: ignore[call-overload]
        deadline = time.monotonic() + LIMIT_S
        try:
            said = [process.communicate(timeout=max(1.0, deadline - time.monotonic())) for process in processes]
        except subprocess.TimeoutExpired:
            return {"failed": f"not done after {LIMIT_S:g} s"}
        finally:
            for process in processes:
                process.kill()
        for process, (_, error) in zip(processes, said, strict=True):
            if process.returncode:
                return {"failed": error.strip().splitlines()[-3:]}
        return dict(json.loads(said[0][0].strip().splitlines()[-1]))


# PARTS


def latencies(ranks: int, tiny: bool) -> None:
    """By kind and size, beside ANCHORS.md's."""
    for kind in KINDS[1:] if not tiny else ("gloo",):
        say(part="latency", asked=kind, ranks=ranks, **on_ranks(ranks, "latency", kind, gpu=not tiny, sizes=SIZES[: 2 if tiny else 5], times=3 if tiny else 50))


def rates(ranks: int, tiny: bool) -> None:
    """W = 1 beside W ranks of as many lanes a GPU each, by each kind of exchange."""
    for lanes, horizon, shared in SHAPES if not tiny else ((256, 16, False),):
        iterations = 2 if tiny else max(20, int(3e9 / (lanes * horizon * 100)))
        words = [f"algo.horizon={horizon}", f"net.shared={str(shared).lower()}", "algo.anneal=false", "run.steps=1G", "algo.minibatches=4", "algo.epochs=4"]
        words += [] if tiny else ["algo.precision=bf16", "algo.kernel_config=first"]
        one = None
        for count, kind in ((1, "none"), *((ranks, kind) for kind in (KINDS if not tiny else ("gloo",)))):
            found = on_ranks(count, "rates", kind, gpu=not tiny, overrides=[f"env.lanes={lanes * count}", *words], iterations=iterations)
            sps = found["steps"] / found["seconds"] if "seconds" in found else None
            one = sps if count == 1 else one
            efficiency = round(sps / (count * one), 3) if sps and one else None
            figures = {"m_sps": sps and round(sps / 1e6, 2), "efficiency": efficiency}
            say(part="rates", lanes_a_gpu=lanes, horizon=horizon, one_trunk=shared, ranks=count, asked=kind, **figures, **found)


def bits(ranks: int, tiny: bool) -> None:
    """The same global lanes on one rank and on several, after 200 iterations."""
    for name, more in BITS.items() if not tiny else list(BITS.items())[:2]:
        lanes, chunks = (512, 8) if tiny else (8192, 128)
        words = [f"env.lanes={lanes}", "algo.horizon=16", "run.steps=1G", "algo.minibatches=2", f"algo.chunks={chunks}", "algo.kernel_config=first", *more]
        given = {"gpu": not tiny, "overrides": words, "iterations": 2 if tiny else 196}
        found = [on_ranks(count, "bits", **given) for count in (1, ranks)]
        same = found[0].get("sha256") == found[1].get("sha256") is not None
        say(part="bits", case=name, same=same, promised=found[1].get("bits_by_ranks"), found=found)


def faults(ranks: int, tiny: bool) -> None:
    """Seconds until a run has crashed after kill -9 of its last rank, and that it resumes."""
    from operant import runs

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        words = ["run.device=cpu", f"run.ranks={ranks}", "run.threads=1", "env.lanes=256"] if tiny else [f"run.gpus={ranks}", "env.lanes=8192"]
        environment = os.environ | {"OPERANT_RUNS": folder, "XDG_STATE_HOME": f"{folder}/state"}
        command = [sys.executable, "-m", "operant.cli"]
        more = ["run.steps=1000G", "algo.anneal=false", "checkpoint.every=20", "eval.every=0", "--name", "killed", "-d"]
        started = subprocess.run([*command, "train", *words, *more], env=environment, capture_output=True, text=True, check=False)
        run, pid = runs.load(Path(folder, "killed")), 0
        if run is None:
            say(part="faults", failed=started.stderr.strip().splitlines()[-3:])
            return
        while not list(run.checkpoints_path.glob("step-*")) and not runs.state(run).ended:
            time.sleep(0.1)
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                pid = int(process.name) if f"killed\0--rank\0{ranks - 1}\0".encode() in (process / "cmdline").read_bytes() else pid
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        while runs.probe(run.path):
            time.sleep(0.005)
        took, state = time.monotonic() - began, runs.state(runs.load(run.path) or run)
        resumed = subprocess.run([*command, "resume", "killed", "-d"], env=environment, capture_output=True, text=True, check=False)
        subprocess.run([*command, "stop", "killed"], env=environment, capture_output=True, check=False)
        say(part="faults", seconds=round(took, 3), state=state.word, cause=state.cause, resumed=resumed.returncode)


PARTS = {"latency": latencies, "rates": rates, "bits": bits, "faults": faults}


def main() -> None:
    """All parts, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        count, store, part, given = json.loads(arguments.rank[0])
        rank_main(int(arguments.rank[1]), count, store, part, given)
    for name in arguments.only.split(","):
        try:
            PARTS[name](arguments.ranks, arguments.tiny)
        except Exception as error:  # noqa: PERF203  (no part stops another)
            say(part=name, failed=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
