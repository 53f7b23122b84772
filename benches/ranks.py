"""Two (four, eight) GPUs beside one: rates and efficiency, the same bytes, the exchange's latency by size and by kind, a rank that is killed. JSON lines.

    python benches/ranks.py [--ranks 2] [--only latency,rates,bits,spin,faults,users,hosts,fallbacks] [--kinds kernel,nccl] [--limit S] [--tiny]

Each part is a set of processes of its own, with a time limit, so that no part stops another; where one fails, the ends of all ranks' error streams are printed.
`rates`: each GPU alone, then W ranks with as many lanes a GPU, by each kind of exchange ($OPERANT_EXCHANGE: kernel, symmetric, nccl; sockets: NCCL as between
hosts). `bits`: the same global lanes on 1 and W ranks, CartPole with all normalisation and the KL stop, Breakout, Snake, a recurrent policy. `spin`: how long a
rank takes to end whose kernel waits for another that was killed. `faults`: `kill -9` of a rank of a run that a command has started, which half of the ranks
then resume to the bit. `users`: rates of whole commands, and Breakout to its target. `hosts`: two hosts of one rank each, which this machine plays. With --tiny
all of it is on the CPU, over gloo.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS = ("kernel", "symmetric", "nccl")
SIZES = (2, 9_600, 80_000, 700_000, 4_000_000)
SHAPES = ((2048, 16, False), (8192, 64, False), (65536, 64, False), (65536, 64, True), (131072, 64, True))  # lanes a GPU, horizon, one trunk
EVERYTHING = ["algo.normalize_observations=true", "algo.normalize_rewards=true", "algo.target_kl=0.01"]
BITS = {
    "cartpole": [], "everything": EVERYTHING, "breakout": ["env.name=breakout"], "snake": ["env.name=snake"],
    "recurrent": ["env.name=cartpole", "net.memory=gru"],
}  # fmt: skip
LINES = 25
"""Of a rank's error stream, where a part fails."""


def say(**found: object) -> None:
    """One JSON line."""
    print(json.dumps(found), flush=True)


# A RANK


def wait(device: Any) -> float:
    """The clock, once the GPU is done."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def iterate(algo: Any, iterations: int) -> float:
    """Seconds that they take."""
    began = wait(algo.device)
    for _ in range(iterations):
        for phase in algo.phases:
            phase.run()
    return wait(algo.device) - began


def latency(exchange: Any, device: Any, numbers: int, times: int) -> float:
    """Microseconds of one gather, inside a graph on a GPU."""
    import torch

    from operant.compute.graphs import Graphed

    rows = torch.ones(1, numbers, device=device)
    work = Graphed(lambda: [exchange.gather(rows) for _ in range(10)] and None, device)
    for _ in range(3):
        work()
    began = wait(device)
    for _ in range(times):
        work()
    return (wait(device) - began) / times / 10 * 1e6


def by_kernel(algo: Any, iterations: int = 5) -> dict[str, float]:
    """Microseconds an iteration of the kernels that take most, by name."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        iterate(algo, iterations)
    spent = {event.key: event.self_device_time_total / iterations for event in profiler.key_averages()}
    most = sorted(spent, key=lambda name: -spent[name])[:10]
    return {name[:48]: round(spent[name], 1) for name in most} | {"all": round(sum(spent.values()), 1)}


def trained(job: dict[str, Any], device: Any, exchange: Any) -> dict[str, Any]:
    """One configuration for some iterations: the rate behind the first four, and the bits of what was learned."""
    from operant.compute.exchange import SOLO
    from operant.config import load
    from operant.training import distributed
    from operant.training.build import build

    began, exchange = time.perf_counter(), SOLO if job["alone"] else exchange
    algo = build(load.load(None, job["overrides"]), device, exchange=exchange)
    algo.start()
    iterate(algo, 4)
    ready = time.perf_counter() - began
    if not job["alone"]:
        exchange.agree("all have begun")
    seconds = iterate(algo, job["iterations"]) / job["iterations"]
    found = {"seconds": seconds, "ready_s": round(ready, 1), "kernels": algo.backend.name, "bits_by_ranks": algo.bits_by_ranks}
    found |= {"steps": algo.steps_per_iteration, "chosen": algo.chosen, "linked": getattr(getattr(algo.backend, "learner", None), "_link", None) is not None}
    if job.get("profile") and device.type == "cuda":
        found["us_by_kernel"] = by_kernel(algo)
    if job.get("bits"):
        whole = distributed.whole_state(algo, "train", exchange)
        found["sha256"] = {name: hashlib.sha256(whole[name].numpy().tobytes()).hexdigest()[:16] for name in sorted(whole)}
    return found


def spin(job: dict[str, Any], rank: int, ranks: int, device: Any, exchange: Any) -> None:
    """The last rank is killed in the middle of it; the others say when they see that it is gone, and end in another thread, as training does."""
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
    """One rank's part of the jobs; it prints what was found. Ends without taking the process group apart, which hangs after a capture."""
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
            say(**{key: job[key] for key in ("case", "alone")}, **trained(job, device, exchange))
            gc.collect()
            torch.cuda.empty_cache()
    sys.stdout.flush()
    os._exit(0)


def on_ranks(
    ranks: int, part: str, kind: str, jobs: list[dict[str, Any]], *, gpu: bool, limit_s: float, look: Callable[[list[list[dict[str, Any]]]], None] = len,
) -> list[list[dict[str, Any]]]:  # fmt: skip
    """What each rank of a set of processes has printed, which `look` is shown meanwhile; where one does not end well, the ends of all their error streams are
    printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = {"jobs": jobs, "gpu": gpu, "limit_s": limit_s}
        command = [sys.executable, __file__, "--rank", json.dumps([ranks, f"{folder}/store", part, given])]
        environment = os.environ | {"OPERANT_EXCHANGE": kind, "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0"}
        if kind == "sockets":  # as between hosts
            environment |= {"OPERANT_EXCHANGE": "nccl", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
        def said() -> list[list[dict[str, Any]]]:
            outputs = [Path(f"{folder}/{rank}.out").read_text().splitlines(keepends=True) for rank in range(ranks)]
            return [[json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")] for lines in outputs]

        with contextlib.ExitStack() as files:
            streams = [[files.enter_context(open(f"{folder}/{rank}.{name}", "w+")) for name in ("out", "err")] for rank in range(ranks)]
            processes = [
                subprocess.Popen([*command, str(rank)], env=environment, stdout=out, stderr=err) for rank, (out, err) in enumerate(streams)
            ]  # fmt: skip
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
                    print(f"--- rank {rank}:", "".join(Path(f"{folder}/{rank}.err").read_text().splitlines(keepends=True)[-LINES:]), flush=True)
        look(said())
        return said()


# PARTS


def latencies(ranks: int, kinds: list[str], tiny: bool, limit_s: float) -> None:
    """By kind and size, beside ANCHORS.md's."""
    jobs = [{"numbers": numbers, "times": 3 if tiny else 50} for numbers in SIZES[: 2 if tiny else 5]]
    for kind in kinds:
        found = on_ranks(ranks, "latency", kind, jobs, gpu=not tiny, limit_s=limit_s)[0]
        say(part="latency", asked=kind, ranks=ranks, exchange=found and found[0]["exchange"], us={line["numbers"]: line["us"] for line in found[1:]})


def rates(ranks: int, kinds: list[str], tiny: bool, limit_s: float) -> None:
    """Each GPU alone beside W ranks of as many lanes a GPU, by each kind of exchange."""
    one: dict[tuple[Any, ...], float] = {}
    for kind in kinds:
        jobs = []
        for lanes, horizon, shared in SHAPES if not tiny else ((256, 16, False),):
            iterations = 2 if tiny else max(20, int(3e9 / (lanes * horizon * 100)))
            words = [f"algo.horizon={horizon}", f"net.shared={str(shared).lower()}", "algo.anneal=false", "run.steps=1G", "algo.minibatches=4", "algo.epochs=4"]
            words += [] if tiny else ["algo.precision=bf16", "algo.kernel_config=first"]
            for alone in (True, False) if kind == kinds[0] else (False,):
                overrides = [f"env.lanes={lanes * (1 if alone else ranks)}", *words]
                jobs.append({"case": [lanes, horizon, shared], "alone": alone, "overrides": overrides, "iterations": iterations})
                jobs[-1]["profile"] = kind == kinds[0] and not shared and lanes != 8192
        shown = 0

        def show(outputs: list[list[dict[str, Any]]], kind: str = kind) -> None:
            nonlocal shown
            for found in outputs[0][1 + shown :]:
                shown += 1
                case, sps = tuple(found["case"]), found["steps"] / found["seconds"]
                one.update({case: sps} if found["alone"] else {})
                efficiency = round(sps / (ranks * one[case]), 3) if case in one and not found["alone"] else None
                more = dict(zip(("lanes_a_gpu", "horizon", "one_trunk"), case, strict=True)) | {"ranks": 1 if found["alone"] else ranks}
                say(part="rates", **more, asked=kind, m_sps=round(sps / 1e6, 2), efficiency=efficiency, **{key: found[key] for key in found if key != "case"})

        on_ranks(ranks, "rates", kind, jobs, gpu=not tiny, limit_s=limit_s, look=show)


def fallbacks(ranks: int, kinds: list[str], tiny: bool, limit_s: float) -> None:
    """By kind of exchange: latencies, and the rates of two shapes; by the first one each GPU alone, too, and with everything normalised."""
    plain = [f"algo.{word}" for word in ("anneal=false", "minibatches=4", "epochs=4", *(() if tiny else ("precision=bf16", "kernel_config=first")))]
    one: dict[str, float] = {}
    for kind in kinds:
        jobs: list[dict[str, Any]] = [{"numbers": numbers, "times": 3 if tiny else 50} for numbers in SIZES[: 2 if tiny else 5]]
        for lanes, horizon, more in ((2048, 16, []), (65536, 64, []), (65536, 64, EVERYTHING[:2])):
            lanes = 256 if tiny else lanes
            words = [f"algo.horizon={horizon}", "run.steps=1000G", *plain, *more]
            for alone in (True, False) if kind == kinds[0] else (False,):
                if kind == kinds[0] or not more:
                    case = f"{lanes} x {horizon}{', normalised' * bool(more)}"
                    overrides = [f"env.lanes={lanes * (1 if alone else ranks)}", *words]
                    jobs.append({"case": case, "alone": alone, "overrides": overrides, "iterations": 2 if tiny else max(20, 10**8 // (lanes * horizon))})
        shown = 0

        def show(outputs: list[list[dict[str, Any]]], kind: str = kind) -> None:
            nonlocal shown
            for found in outputs[0][1 + shown :]:
                shown += 1
                if "numbers" in found:
                    say(part="latency", kind=kind, ranks=ranks, exchange=outputs[0][0]["exchange"], **found)
                    continue
                sps, case = found["steps"] / found["seconds"], found["case"]
                one.update({case: sps} if found["alone"] else {})
                efficiency = round(sps / (ranks * one[case]), 3) if case in one and not found["alone"] else None
                more = {key: found[key] for key in ("alone", "linked", "bits_by_ranks", "ready_s")}
                say(part="fallbacks", kind=kind, ranks=ranks, case=case, m_sps=round(sps / 1e6, 2), efficiency=efficiency, **more)

        on_ranks(ranks, "fallbacks", kind, jobs, gpu=not tiny, limit_s=limit_s, look=show)


def bits(ranks: int, kinds: list[str], tiny: bool, limit_s: float) -> None:
    """The same global lanes on one rank and on several, after 200 iterations."""
    jobs = []
    for name, more in BITS.items() if not tiny else list(BITS.items())[:2]:
        lanes, chunks = (512, 8) if tiny else (8192, 128)
        words = [f"env.lanes={lanes}", "algo.horizon=16", "run.steps=1G", "algo.minibatches=2", f"algo.chunks={chunks}", "algo.kernel_config=first", *more]
        jobs += [{"case": name, "alone": alone, "overrides": words, "iterations": 2 if tiny else 196, "bits": True} for alone in (True, False)]
    for kind in kinds:
        shown = 0

        def show(outputs: list[list[dict[str, Any]]], kind: str = kind) -> None:
            nonlocal shown
            for found, *others in list(zip(*outputs, strict=False))[1 + shown :]:
                shown += 1
                if found["alone"]:
                    continue
                alone = outputs[0][shown - 1]
                different = [name for name in found["sha256"] if found["sha256"][name] != alone["sha256"][name]]
                apart = sorted(name for name in found["sha256"] if any(found["sha256"][name] != other["sha256"][name] for other in others))
                more = {key: found[key] for key in ("case", "linked", "chosen", "kernels")} | {"promised": found["bits_by_ranks"], "ranks_differ": apart}
                say(part="bits", kind=kind, ranks=ranks, same=not different, different=different, **more, seconds=[alone["seconds"], found["seconds"]])

        on_ranks(ranks, "bits", kind, jobs, gpu=not tiny, limit_s=limit_s, look=show)


def spins(ranks: int, kinds: list[str], tiny: bool, limit_s: float) -> None:
    """Seconds until a rank has ended whose kernel waits for one that was killed."""
    for kind in kinds:
        job = {"overrides": [f"env.lanes={512 if tiny else 8192 * ranks}", "algo.horizon=16", "run.steps=1000G", "algo.anneal=false", "algo.minibatches=2"]}
        began = time.time()
        found = on_ranks(ranks, "spin", kind, [job], gpu=not tiny, limit_s=limit_s)
        times = {key: round(value - began, 2) for lines in found for line in lines for key, value in line.items() if key in ("killed", "ending")}
        say(part="spin", kind=kind, **times, ended=round(time.time() - began, 2))


class Commands:
    """Runs by `operant` in a folder of their own, on so many GPUs or, tiny, as processes of the CPU."""

    def __init__(self, folder: str, *, tiny: bool) -> None:
        self.folder, self._tiny = Path(folder), tiny
        self.environment = os.environ | {"OPERANT_RUNS": folder, "XDG_STATE_HOME": f"{folder}/state", "NCCL_NVLS_ENABLE": "0"}

    def __call__(self, *words: str, limit_s: float, **more: str) -> subprocess.CompletedProcess[str]:
        """`operant WORDS`."""
        command = [sys.executable, "-m", "operant.cli", *words]
        return subprocess.run(command, env=self.environment | more, capture_output=True, text=True, check=False, timeout=limit_s)

    def on(self, ranks: int) -> list[str]:
        """The words that share a run between so many."""
        return ["run.device=cpu", f"run.ranks={ranks}", "run.threads=1"] if self._tiny else [f"run.gpus={ranks}"]

    def said(self, name: str) -> dict[str, Any]:
        """The ends of a run's logs."""
        return {log.name: log.read_text(errors="replace").splitlines()[-LINES:] for log in sorted((self.folder / name).glob("log*.txt"))}


def last_checkpoint(run: Path) -> tuple[str, str] | None:
    """Its name, and a digest of its tensors."""
    found = sorted((run / "checkpoints").glob("step-*/tensors.safetensors"))
    return (found[-1].parent.name, hashlib.sha256(found[-1].read_bytes()).hexdigest()[:16]) if found else None


def faults(ranks: int, kinds: list[str], tiny: bool, limit_s: float) -> None:
    """Seconds until a run has crashed after kill -9 of its last rank; that half of the ranks resume it, and end in the bits of a run that nothing stopped."""
    from operant import runs

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        operant = Commands(folder, tiny=tiny)
        words = [*operant.on(ranks), *(["env.lanes=256", "run.steps=1M"] if tiny else ["env.lanes=16384", "run.steps=1600M", "algo.horizon=32"])]
        words += [f"checkpoint.every={50 if tiny else 300}", "eval.every=0", "algo.kernel_config=first", "algo.minibatches=2", "algo.chunks=64"]
        operant("train", *words, "--name", "killed", "-d", limit_s=limit_s)
        run, pid = runs.load(Path(folder, "killed")), 0
        deadline = time.monotonic() + limit_s
        while run is not None and not last_checkpoint(run.path) and not runs.state(runs.load(run.path) or run).ended and time.monotonic() < deadline:
            time.sleep(0.1)
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                pid = int(process.name) if f"killed\0--rank\0{ranks - 1}\0".encode() in (process / "cmdline").read_bytes() else pid
        if run is None or not pid or not last_checkpoint(run.path):
            say(part="faults", failed="no rank to kill, or no checkpoint", logs=operant.said("killed"))
            operant("stop", "killed", "--now", limit_s=30.0)
            return
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        while runs.probe(run.path) and time.monotonic() < began + 30.0:
            time.sleep(0.005)
        took, state = time.monotonic() - began, runs.state(runs.load(run.path) or run)
        say(part="faults", ranks=ranks, seconds=round(took, 3), state=state.word, cause=state.cause, checkpoint=last_checkpoint(run.path))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(ranks)))).split(",")[: ranks // 2]
        fewer = {} if tiny else {"CUDA_VISIBLE_DEVICES": ",".join(visible)}
        more = [f"run.ranks={max(1, ranks // 2)}"] if tiny else []
        resumed = operant("resume", "killed", *more, limit_s=limit_s, **fewer)
        document = json.loads((run.path / "run.json").read_text())
        whole = operant("train", *words, "--name", "whole", limit_s=limit_s)
        ends = last_checkpoint(run.path), last_checkpoint(Path(folder, "whole"))
        say(part="faults", resumed=resumed.returncode, on=document.get("ranks"), uninterrupted=whole.returncode, same=ends[0] == ends[1], ends=ends)
        if resumed.returncode or whole.returncode:
            say(part="faults", killed=operant.said("killed"), whole=operant.said("whole"))


def users(ranks: int, kinds: list[str], tiny: bool, limit_s: float) -> None:
    """As users run it, by the command, evaluations and checkpoints on: everything normalised; Breakout's recipe to its target with the same global lanes."""
    from recipes import evaluations, trained_s

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        operant = Commands(folder, tiny=tiny)
        for case in ("normalised", "breakout"):
            for count in (1, ranks):
                name, shape = f"{case}{count}", [*operant.on(count), "algo.kernel_config=first"]
                if case == "normalised":
                    lanes, steps = (256, "300k") if tiny else (65536, f"{4 * count}G")
                    shape += [f"env.lanes={lanes * count}", f"run.steps={steps}", "algo.horizon=64", "algo.epochs=4", "algo.minibatches=4"]
                    shape += ["run.target=1000", "eval.every=100"]
                    shape += ["algo.normalize_observations=true", "algo.normalize_rewards=true", *([] if tiny else ["algo.precision=bf16"])]
                else:
                    shape += ["--config", "breakout", *(["run.steps=200k", "env.lanes=256", "algo.precision=fp32"] if tiny else [])]
                began = time.monotonic()
                done = operant("train", *shape, "--name", name, limit_s=limit_s)
                if done.returncode or not (Path(folder) / name / "run.json").exists():
                    say(part="users", case=name, failed=done.returncode, error=done.stderr.splitlines()[-5:], logs=operant.said(name))
                    continue
                document, seconds = json.loads((Path(folder) / name / "run.json").read_text()), trained_s(Path(folder) / name)
                judged = evaluations(Path(folder) / name)
                step = judged[-1]["step"] if judged else 0
                found = {"wall_s": round(time.monotonic() - began, 1), "training_s": round(seconds, 2), "step": step, "m_sps": round(step / seconds / 1e6, 1)}
                found |= {"mean": judged and judged[-1]["mean"], "evaluations": len(judged), "log": operant.said(name)["log.txt"][-4:]}
                say(part="users", case=case, ranks=document.get("ranks"), bits_by_ranks=document.get("bits_by_ranks"), **found)


def hosts(ranks: int, kinds: list[str], tiny: bool, limit_s: float) -> None:
    """Two hosts, as this machine can play them: torchrun twice, each with a rank and a GPU, and NCCL over sockets."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, socket.create_server(("127.0.0.1", 0)) as free:
        operant, port = Commands(folder, tiny=tiny), free.getsockname()[1]
        free.close()
        shape = ["env.lanes=256", "run.steps=100k", "run.device=cpu", "run.threads=1"] if tiny else ["env.lanes=16384", "run.steps=500M"]
        run = operant("train", *shape, "eval.every=0", "--prepare", "--name", "apart", limit_s=limit_s).stdout.strip()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
        began, launched = time.monotonic(), []
        for host in range(2):
            more = {"CUDA_VISIBLE_DEVICES": visible[host % len(visible)], "NCCL_HOSTID": f"host{host}", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
            command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={host}", "--nproc-per-node=1", "--max-restarts=0"]
            command += ["--master-addr=127.0.0.1", f"--master-port={port}", "-m", "operant.training.worker", run]
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            launched.append(subprocess.Popen(command, env=operant.environment | more, start_new_session=True, **quiet))  # type: ignore[call-overload]
        while any(process.poll() is None for process in launched) and time.monotonic() < began + limit_s:
            time.sleep(0.1)
        codes = [process.poll() for process in launched]
        for process in launched:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        said, ended = operant.said("apart"), Path(run, "exit.json")
        shown = said if any(code != 0 for code in codes) else said["log.txt"][-4:]
        say(part="hosts", codes=codes, seconds=round(time.monotonic() - began, 1), ended=ended.exists() and json.loads(ended.read_text()), logs=shown)


PARTS = {"latency": latencies, "rates": rates, "bits": bits, "spin": spins, "faults": faults, "users": users, "hosts": hosts, "fallbacks": fallbacks}


def main() -> None:
    """All parts, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--kinds", default=None, help="by default kernel,symmetric,nccl")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that a part's set of processes may take")
    parser.add_argument("--cases", default=",".join(BITS), help="of bits; by default all")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        count, store, part, given = json.loads(arguments.rank[0])
        rank_main(int(arguments.rank[1]), count, store, part, given)
    for name in set(BITS) - set(arguments.cases.split(",")):
        del BITS[name]
    for name in arguments.only.split(","):
        try:
            PARTS[name](arguments.ranks, (arguments.kinds or ",".join(KINDS if not arguments.tiny else ("gloo",))).split(","), arguments.tiny, arguments.limit)
        except Exception:  # noqa: PERF203  (no part stops another)
            say(part=name, failed=traceback.format_exc().splitlines()[-LINES:])


if __name__ == "__main__":
    main()
