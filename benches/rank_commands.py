"""Multi-GPU runs through the command line: rates, a killed rank, two hosts. Run by `python benches/ranks.py`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from rank import LINES, say


class Asked(NamedTuple):
    """Parsed command-line arguments."""

    ranks: int
    kinds: list[str]
    cases: list[str]
    limit_s: float
    short: bool
    tiny: bool
    counts: list[int]  # of ranks that users' runs have

    def wants(self, case: str) -> bool:
        """Whether a case is selected; all are if none is named."""
        return not self.cases or any(word in case for word in self.cases)


class Commands:
    """Runs of `operant` in a separate folder on a given number of GPUs or, with tiny, of CPU processes."""

    def __init__(self, folder: str, *, tiny: bool) -> None:
        self.folder, self._tiny = Path(folder), tiny
        self.environment = os.environ | {
            "OPERANT_RUNS": folder,
            "XDG_STATE_HOME": f"{folder}/state",
            "NCCL_NVLS_ENABLE": "0",
        }

    def __call__(self, *words: str, limit_s: float, **more: str) -> subprocess.CompletedProcess[str]:
        """`operant WORDS`."""
        command = [sys.executable, "-m", "operant.cli", *words]
        with (
            open(self.folder / "out", "w+") as out,
            open(self.folder / "err", "w+") as err,
        ):  # no pipes: a run that continues would hold them open
            done = subprocess.run(
                command, env=self.environment | more, stdout=out, stderr=err, check=False, timeout=limit_s
            )
        return subprocess.CompletedProcess(
            command, done.returncode, (self.folder / "out").read_text(), (self.folder / "err").read_text()
        )

    def begun(self, *words: str, **more: str) -> subprocess.Popen[str]:
        """Start `operant WORDS` without waiting."""
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "text": True}
        return subprocess.Popen([sys.executable, "-m", "operant.cli", *words], env=self.environment | more, **quiet)  # type: ignore[call-overload]

    def sees(self, gpus: list[str]) -> dict[str, str]:
        """Environment that makes only these GPUs visible."""
        return {} if self._tiny else {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}

    def on(self, ranks: int) -> list[str]:
        """Arguments that distribute a run over the given number of ranks."""
        return ["run.device=cpu", f"run.ranks={ranks}", "run.threads=1"] if self._tiny else [f"run.gpus={ranks}"]

    def said(self, name: str) -> dict[str, Any]:
        """Ends of a run's logs."""
        return {
            log.name: log.read_text(errors="replace").splitlines()[-LINES:]
            for log in sorted((self.folder / name).glob("log*.txt"))
        }


def last_checkpoint(run: Path) -> tuple[str, str] | None:
    """Name and tensor digest of the last checkpoint."""
    found = sorted((run / "checkpoints").glob("step-*/tensors.safetensors"))
    return (found[-1].parent.name, hashlib.sha256(found[-1].read_bytes()).hexdigest()[:16]) if found else None


FAULTS = {
    "cartpole": "env.lanes=16384 algo.horizon=32 algo.minibatches=2 algo.chunks=64 run.steps=800M",
    "recipe": "--config breakout run.target=1000 algo.chunks=128 run.steps=400M",
}
"""Cases of `faults`."""


def faults(asked: Asked) -> None:
    """Run each of `FAULTS`."""
    for case, words in FAULTS.items():
        if asked.wants(case):
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                fault(asked, folder, case, words.split())


def fault(asked: Asked, folder: str, case: str, words: list[str]) -> None:
    """Seconds until a run has crashed after kill -9 of its last rank; half of the ranks then resume it and reach the
    bits of an uninterrupted run on the other half.
    """
    from operant import runs

    ranks, tiny, limit_s = asked.ranks, asked.tiny, asked.limit_s
    operant = Commands(folder, tiny=tiny)
    words = [*words, *(["env.lanes=256", "run.steps=1M", "algo.precision=fp32", "algo.chunks=8"] if tiny else [])]
    words += [f"checkpoint.every={50 if tiny else 300}", "eval.every=0", "algo.kernel_config=first"]
    operant("train", *words, *operant.on(ranks), "--name", "killed", "-d", limit_s=limit_s)
    run, pid = runs.load(Path(folder, "killed")), 0
    deadline = time.monotonic() + limit_s
    while (
        run is not None
        and not last_checkpoint(run.path)
        and not runs.state(runs.load(run.path) or run).ended
        and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = (
                int(process.name)
                if f"killed\0--rank\0{ranks - 1}\0".encode() in (process / "cmdline").read_bytes()
                else pid
            )
    if run is None or not pid or not last_checkpoint(run.path):
        say(part="faults", case=case, failed="no rank to kill, or no checkpoint", logs=operant.said("killed"))
        operant("stop", "killed", "--now", limit_s=30.0)
        return
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    while runs.probe(run.path) and time.monotonic() < began + 30.0:
        time.sleep(0.005)
    took, state = time.monotonic() - began, runs.state(runs.load(run.path) or run)
    say(
        part="faults",
        case=case,
        ranks=ranks,
        seconds=round(took, 3),
        state=state.word,
        cause=state.cause,
        checkpoint=last_checkpoint(run.path),
    )
    visible, half = (
        os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(ranks)))).split(","),
        max(1, ranks // 2),
    )
    uninterrupted = operant.begun(
        "train", *words, *operant.on(half), "--name", "whole", **operant.sees(visible[half : 2 * half])
    )
    more = [f"run.ranks={half}"] if tiny else []
    resumed = operant("resume", "killed", *more, limit_s=limit_s, **operant.sees(visible[:half]))
    document = json.loads((run.path / "run.json").read_text())
    uninterrupted.wait(limit_s)
    ends = last_checkpoint(run.path), last_checkpoint(Path(folder, "whole"))
    same = ends[0] is not None and ends[0] == ends[1]
    say(
        part="faults",
        case=case,
        resumed=resumed.returncode,
        on=document.get("ranks"),
        uninterrupted=uninterrupted.returncode,
        same=same,
        ends=ends,
    )
    if resumed.returncode or uninterrupted.returncode:
        say(part="faults", killed=operant.said("killed"), whole=operant.said("whole"))


USERS = {
    "normalised": "algo.kernel_config=first run.target=1000 algo.horizon=64 algo.epochs=4 algo.minibatches=4 "
    "algo.precision=bf16 eval.every=100 "
    "algo.normalize_observations=true algo.normalize_rewards=true",
    "small": "algo.kernel_config=first run.target=1000 algo.horizon=16 algo.epochs=4 algo.minibatches=4 "
    "algo.precision=bf16 eval.every=5000",
    "breakout": "--config breakout algo.kernel_config=first algo.chunks=128",
    "sac": "--config sac/pendulum",
    "dqn": "--config dqn/cartpole",
}
LARGE = {"normalised": (65536, 4_000_000_000), "small": (2048, 300_000_000)}
"""Lanes and steps per GPU; recipes use their own lanes over all GPUs, until their targets."""
SHORT = {"normalised": 1_000_000_000, "small": 20_000_000, "breakout": 5_000_000, "sac": 20_000, "dqn": 60_000}


def users(asked: Asked) -> None:
    """Runs by the command with evaluations, checkpoints and all normalization, with equal lanes per GPU; recipes to
    their targets with equal global lanes.
    """
    from recipes import evaluations, trained_s

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        operant, deadline = Commands(folder, tiny=asked.tiny), time.monotonic() + asked.limit_s
        for case, words in USERS.items():
            for count in asked.counts if asked.wants(case) else ():
                name, shape = f"{case}{count}", [*words.split(), *operant.on(count)]
                lanes, steps = LARGE.get(case, (0, 0))
                if asked.tiny or asked.short or steps:
                    shape.append(
                        f"run.steps={100_000 if asked.tiny else (SHORT[case] if asked.short else steps) * count}"
                    )
                if asked.tiny or lanes:
                    shape.append(f"env.lanes={1024 if asked.tiny else lanes * count}")
                shape += ["algo.precision=fp32", "algo.chunks=8"] if asked.tiny and case not in ("sac", "dqn") else []
                began = time.monotonic()
                try:
                    done = operant("train", *shape, "--name", name, limit_s=deadline - began)
                except subprocess.TimeoutExpired:
                    operant("stop", name, "--now", limit_s=20.0)
                    took = f"not done after {time.monotonic() - began:.0f} s"
                    say(
                        part="users", case=name, failed=took, logs=operant.said(name), **rates_said(Path(folder) / name)
                    )
                    return
                if done.returncode or not (Path(folder) / name / "run.json").exists():
                    say(
                        part="users",
                        case=name,
                        failed=done.returncode,
                        error=done.stderr.splitlines()[-5:],
                        logs=operant.said(name),
                    )
                    continue
                document, seconds = (
                    json.loads((Path(folder) / name / "run.json").read_text()),
                    trained_s(Path(folder) / name),
                )
                judged = evaluations(Path(folder) / name)
                step = judged[-1]["step"] if judged else 0
                found = {
                    "wall_s": round(time.monotonic() - began, 1),
                    "training_s": round(seconds, 2),
                    "step": step,
                    "m_sps": round(step / seconds / 1e6, 3),
                }
                found |= {
                    "mean": judged and judged[-1]["mean"],
                    "evaluations": len(judged),
                    "log": operant.said(name)["log.txt"][-4:],
                }
                found |= rates_said(Path(folder) / name)
                say(
                    part="users",
                    case=case,
                    ranks=document.get("ranks"),
                    bits_by_ranks=document.get("bits_by_ranks"),
                    **found,
                )


def rates_said(run: Path) -> dict[str, Any]:
    """Rates of a run's records after the first ones, as the monitor shows them, and the time of each phase."""
    from operant.runs.history import read

    if not (run / "history").exists():
        return {}
    columns = [chunk.columns for chunk in read(run / "history")]
    of = {name: [float(value) for chunk in columns for value in chunk[name]] for name in columns[0]} if columns else {}
    behind = len(of.get("sps", ())) // 4
    rates = sorted(of.get("sps", ())[behind:])
    spent = {name: round(sum(values[behind:]), 3) for name, values in of.items() if name.startswith("seconds/")}
    shares = {name: sorted(values[behind:]) for name, values in of.items() if name.endswith("/exchange_share")}
    spent |= {name: round(values[len(values) // 2], 4) for name, values in shares.items() if values}
    return {"median_m_sps": rates and round(rates[len(rates) // 2] / 1e6, 1), "spent_s": spent, "records": len(rates)}


def hosts(asked: Asked) -> None:
    """Two simulated hosts: torchrun twice, each with one rank and one GPU, and NCCL over sockets."""
    from recipes import trained_s

    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        socket.create_server(("127.0.0.1", 0)) as free,
    ):
        operant, port = Commands(folder, tiny=asked.tiny), free.getsockname()[1]
        free.close()
        on_cpu = ["env.lanes=256", "run.steps=100k", "run.device=cpu", "run.threads=1"]
        large = [
            "env.lanes=131072",
            "algo.horizon=64",
            "algo.precision=bf16",
            "algo.kernel_config=first",
            f"run.steps={1 if asked.short else 4}G",
        ]
        shape = ["algo.epochs=4", "algo.minibatches=4", *(on_cpu if asked.tiny else large)]
        run = operant(
            "train", *shape, "run.target=1000", "eval.every=0", "--prepare", "--name", "apart", limit_s=asked.limit_s
        ).stdout.strip()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
        began, launched = time.monotonic(), []
        for host in range(2):
            more = {
                "CUDA_VISIBLE_DEVICES": visible[host % len(visible)],
                "NCCL_HOSTID": f"host{host}",
                "NCCL_P2P_DISABLE": "1",
                "NCCL_SHM_DISABLE": "1",
            }
            command = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nnodes=2",
                f"--node-rank={host}",
                "--nproc-per-node=1",
                "--max-restarts=0",
            ]
            command += ["--master-addr=127.0.0.1", f"--master-port={port}", "-m", "operant.training.worker", run]
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            launched.append(subprocess.Popen(command, env=operant.environment | more, start_new_session=True, **quiet))  # type: ignore[call-overload]
        while any(process.poll() is None for process in launched) and time.monotonic() < began + asked.limit_s:
            time.sleep(0.1)
        codes = [process.poll() for process in launched]
        for process in launched:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        said, ended = operant.said("apart"), Path(run, "exit.json")
        shown = said if any(code != 0 for code in codes) else said["log.txt"][-4:]
        found = {"ended": ended.exists() and json.loads(ended.read_text()), "logs": shown}
        if not any(codes):
            found |= {"training_s": round(trained_s(Path(run)), 2), **rates_said(Path(run))}
        say(part="hosts", codes=codes, seconds=round(time.monotonic() - began, 1), **found)
