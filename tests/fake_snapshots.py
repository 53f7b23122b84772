"""Fake snapshots for tests of the screen: one per state, from deterministic values, and a source that returns them."""

from __future__ import annotations

import math
from typing import Any

from monitor.data.curve_table import Column, CurveTable
from monitor.data.snapshot import (
    Ending,
    Figure,
    Finding,
    Frame,
    Gpu,
    LogLine,
    Mark,
    PhaseShare,
    Progress,
    RunFacts,
    RunRow,
    Snapshot,
    System,
)

COLUMNS = (
    Column("return", "return", "reward", higher_better=True),
    Column("sps", "SPS", "1/s", kind="rate"),
    Column("eval/return", "eval return", "reward", higher_better=True),
    Column("entropy", "entropy"),
    Column("approx_kl", "approx KL"),
    Column("explained_variance", "explained variance", higher_better=True),
    Column("loss/value", "value loss", log_axis=True),
    Column("loss/policy", "policy loss"),
    Column("clip_fraction", "clip fraction"),
    Column("length", "length"),
    Column("gradient_norm", "gradient norm", log_axis=True),
    Column("learning_rate", "learning rate"),
    Column("iterations", "iterations", kind="counter"),
    Column("episodes", "episodes", kind="counter"),
    Column("seconds/collect", "collect", "s"),
    Column("seconds/update", "update", "s"),
)
RECORDS, STEPS = 600, 500_000_000
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "operant/training/worker.py", line 212, in work',
    "    trainer.iterate()",
    '  File "operant/algos/ppo/algorithm.py", line 301, in iterate',
    "    self._update()",
    "ValueError: the environment's observation has 5 numbers, its policy wants 4",
)


def table(records: int = RECORDS, scale: float = 1.0) -> CurveTable:
    """History of a run: a return that rises with noise, a falling entropy, a value loss over decades."""
    made = CurveTable(COLUMNS)
    xs = [k / RECORDS for k in range(records)]
    wobble = [math.sin(37 * x) * math.sin(11 * x + 1) for x in xs]
    values = {
        "return": [scale * (490 * (1 - math.exp(-5 * x)) + 18 * w) for x, w in zip(xs, wobble, strict=True)],
        "length": [490 * (1 - math.exp(-5 * x)) + 10 * w for x, w in zip(xs, wobble, strict=True)],
        "sps": [4.7e6 + 9e4 * w for w in wobble],
        "eval/return": [500 * (1 - math.exp(-6 * x)) for x in xs],
        "loss/policy": [-0.01 + 0.006 * w for w in wobble],
        "loss/value": [200 * math.exp(-7 * x) + 0.3 + 0.1 * w for x, w in zip(xs, wobble, strict=True)],
        "entropy": [0.69 * math.exp(-1.2 * x) for x in xs],
        "approx_kl": [0.008 + 0.003 * w for w in wobble],
        "clip_fraction": [0.11 + 0.03 * w for w in wobble],
        "explained_variance": [0.9 * (1 - math.exp(-4 * x)) + 0.02 * w for x, w in zip(xs, wobble, strict=True)],
        "gradient_norm": [0.5 + 0.2 * w for w in wobble],
        "learning_rate": [3e-4 * (1 - x) for x in xs],
        "iterations": [2.0 for _ in xs],
        "episodes": [40.0 for _ in xs],
        "seconds/collect": [0.003 for _ in xs],
        "seconds/update": [0.0061 for _ in xs],
    }
    steps = [(k + 1) * 0.68 * STEPS / RECORDS for k in range(records)]
    made.extend(
        steps,
        [k * 0.25 for k in range(records)],
        [2.0 * (k + 1) for k in range(records)],
        [values[column.name] for column in COLUMNS],
    )
    return made


def picture(n: int = 1) -> Frame:
    """Frame of four lanes with a cart and a pole, 32 pixels square."""
    lanes, side = 4, 32
    pixels = bytearray()
    for lane in range(lanes):
        for y in range(side):
            for x in range(side):
                at = 8 + 4 * lane
                cart = 22 <= y < 26 and at - 4 <= x < at + 4
                pole = 8 <= y < 22 and abs(x - at - (22 - y) * (lane - 1.5) / 8) < 1
                pixels += b"\xe6\x9f\x00" if pole else b"\x56\xb4\xe9" if cart else b"\x10\x12\x16"
    return Frame(n, 341_000_000, lanes, side, side, bytes(pixels), "greedy")


FINDINGS = (
    Finding("ok", "KL 0.008", "0.003 to 0.03", explanation="How far an update moves the policy."),
    Finding("ok", "clip fraction 0.11", "0.05 to 0.3", explanation="The share of samples that the clip holds back."),
    Finding(
        "warn",
        "expl. var. 0.21",
        "> 0.5",
        "the value net lags: try a larger vf_coef or more epochs",
        "How much of the returns the value net foresees.",
    ),
    Finding("ok", "entropy 0.31", "> 0.03", explanation="How undecided the policy is."),
)
LOG = (
    LogLine("14:02:20", "ok", "session 1 started on CPU", True),
    LogLine("14:03:11", "ok", "eval 500.0 (the best so far)", True),
    LogLine("14:03:40", "ok", "checkpoint at 290 M steps", True),
    LogLine("", "ok", "a line that a library printed"),
    LogLine("14:05:02", "warn", "explained variance 0.21 for 60 updates", True),
)
SYSTEM = System(
    Gpu("NVIDIA H100 80GB HBM3", 0.97, 2_100_000_000, 85_000_000_000, 312.0, 61.0),
    "",
    0.99,
    1_900_000_000,
    0.12,
    0.31,
    812_000_000_000,
)
CONFIG = (
    '[run]\nseed = 1\nsteps = 500000000\ntarget = 475.0\n\n[env]\nname = "cartpole"\nlanes = '
    '8192\n\n[algo]\nname = "ppo"\nlearning_rate = 0.0003\n'
)


def running(version: int = 1, history: CurveTable | None = None, **changes: Any) -> Snapshot:
    """Snapshot of a healthy run with one warning."""
    history = history or HISTORY
    facts = RunFacts(
        "cartpole-ppo-4f2a",
        "4f2a",
        "runs/cartpole-ppo-4f2a",
        "cartpole",
        "ppo",
        8192,
        1,
        "NVIDIA H100 80GB HBM3",
        "box",
        "0.1.0",
        4121,
        STEPS,
        475.0,
        "14:02:19",
    )
    made = Snapshot(
        version,
        facts,
        "running",
        progress=Progress(341_000_000, STEPS, 1301, 8.1, 161.0, 72.0, "14:07", 290_000_000, 14.0, 0.2),
        figures=(
            Figure("return", "return", 487.3, "", 5.1, 495.0, True),
            Figure("eval/return", "eval", 500.0, "", 0.0, 500.0, True),
            Figure("length", "length", 488.0),
            Figure("sps", "SPS", 4_710_000.0, "", -1e4, kind="rate"),
            Figure("entropy", "entropy", 0.31, "", -0.01),
            Figure("approx_kl", "KL", 0.0083),
            Figure("explained_variance", "expl. var.", 0.21, "", None, None, True),
        ),
        series={name: curve for name, curve in history.curves.items()},
        marks=(
            Mark("checkpoint", 290e6, 128.0, 1106.0),
            Mark("eval", 200e6, 88.0, 760.0),
            Mark("resume", 100e6, 44.0, 380.0),
        ),
        phases=(
            PhaseShare("collect", 0.31, 38.0),
            PhaseShare("update", 0.61, 75.0),
            PhaseShare("evaluate", 0.02, 2.5),
            PhaseShare("checkpoint", 0.01, 1.2),
            PhaseShare("other", 0.05, 6.1),
        ),
        health=FINDINGS,
        system=SYSTEM,
        log=LOG,
        frame=picture(),
        config=CONFIG,
    )
    return made._replace(**changes)


HISTORY = table()


def ended(
    state: str,
    sentence: str,
    traceback: tuple[str, ...] = (),
    commands: tuple[str, ...] = ("operant resume 4f2a", "operant show 4f2a"),
) -> Snapshot:
    """Snapshot of a run that no longer trains."""
    base = running()
    unsaved_s = None if state in ("finished", "stopped") else base.progress.unsaved_s
    return base._replace(
        state=state,
        progress=base.progress._replace(eta_s=None, done_at=None, iterations_per_s=None, unsaved_s=unsaved_s),
        frame=None,
        system=None,
        agent_absent="the run has ended",
        ending=Ending(
            sentence,
            traceback,
            ("eval 500.0 (target 475 reached)", "341 M of 500 M steps in 0:02:41", "checkpoint at 290 M steps"),
            commands,
        ),
    )


def states() -> dict[str, Snapshot]:
    """Snapshot of every state, and of two empty runs."""
    base = running()
    empty = base._replace(
        progress=Progress(steps=STEPS), figures=(), series={}, marks=(), phases=(), health=(), log=LOG[:1], frame=None
    )
    live = base._replace(frame=None, agent_absent="training is paused")
    return {
        "starting": empty._replace(
            state="starting", cause="importing torch 2 s", agent_absent="training has not started"
        ),
        "running": base,
        "paused": live._replace(state="paused", cause="training waits; nothing is lost (12 s)"),
        "stopping": live._replace(state="stopping", cause="finishing the iteration and saving a checkpoint"),
        "stalled": live._replace(
            state="stalled",
            cause="no iteration for 12 s (usual 0.12 s) · process in the kernel, waiting for a disk or a driver (D)",
        ),
        "suspended": live._replace(
            state="suspended",
            cause="no heartbeat for 7 s · process stopped by a signal (T): kill -CONT 4121 lets it go on",
        ),
        "finished": ended(
            "finished", "all steps done in 0:02:41", commands=("operant eval 4f2a", "operant show 4f2a")
        )._replace(progress=base.progress._replace(step=STEPS, eta_s=None, done_at=None, unsaved_s=None)),
        "stopped": ended("stopped", "stopped by SIGTERM, with a checkpoint"),
        "failed": ended(
            "failed", "ended by an error: ValueError: the environment's observation has 5 numbers", TRACEBACK
        ),
        "crashed": ended("crashed", "killed by SIGKILL (kill -9, a job manager, or a memory limit)", TRACEBACK[:2]),
        "diverged": ended(
            "diverged", "training produced values that are not finite: loss/value at update 1301", TRACEBACK[-1:]
        ),
        "gpu_fault": ended("gpu_fault", "the GPU failed: CUDA error 700, illegal memory access", TRACEBACK),
        "oom": ended("oom", "out of memory: 81 GiB asked for, 78 GiB there", TRACEBACK),
        "remote": live._replace(
            state="remote", cause="gpu03 · last record 2 s ago", system=None, agent_absent="only on its own machine"
        ),
        "unreadable": empty._replace(
            state="unreadable", cause="written by operant 0.9, this is 0.1: upgrade", progress=Progress()
        ),
    }


class FakeSource:
    """Source that returns given snapshots and records requests."""

    def __init__(self, first: Snapshot, *, readonly: bool = False) -> None:
        self.readonly, self.now = readonly, first
        self.requests: list[str] = []
        self.watches: list[tuple[bool, str]] = []
        self.sizes: list[int] = []
        self.moments: list[float | None] = []
        self.interval_s, self.closed = 0.0, False

    def snapshot(self) -> Snapshot:
        return self.now

    def seek(self, step: float | None) -> None:
        self.moments.append(step)
        self.now = self.now._replace(version=self.now.version + 1)

    def request(self, verb: str) -> None:
        self.requests.append(verb)

    def watch(self, wanted: bool, *, mode: str = "greedy", size: int = 64) -> None:
        self.watches.append((wanted, mode))
        self.sizes.append(size)

    def set_poll_interval(self, interval_s: float) -> None:
        self.interval_s = interval_s

    def close(self) -> None:
        self.closed = True


class FakeCatalog:
    """Catalog of a few runs."""

    def __init__(self, count: int = 3) -> None:
        words = list(states())
        self._rows = [
            RunRow(
                f"cartpole-ppo-{k:04x}",
                f"/nowhere/{k}",
                words[k % len(words)],
                "cartpole",
                "ppo",
                f"{400 + k}.0",
                "4.7 M",
                f"{k % 100} %",
                f"{k} min",
            )
            for k in range(1, count + 1)
        ]
        self.opened: list[FakeSource] = []

    def rows(self) -> list[RunRow]:
        return self._rows

    def overlays(self) -> list[RunRow]:
        return self._rows

    def open(self, path: str) -> FakeSource:
        row = next(row for row in self._rows if row.path == path)
        base = running(history=table(scale=0.9))
        self.opened.append(FakeSource(base._replace(run=base.run._replace(id=row.id, short=row.id[-4:]))))
        return self.opened[-1]
