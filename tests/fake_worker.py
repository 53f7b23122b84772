"""A worker that learns nothing and needs only the standard library: python fake_worker.py RUN_DIR BEHAVIOUR.

finish    50 records with some evaluations, then finished (0)
forever   records until SIGTERM or a request, then a checkpoint and stopped (130); pauses, continues and saves
          checkpoints on request
slow      like forever, but a stop takes 3 s
mute      like forever, but takes no requests
deaf      takes neither requests nor SIGTERM
fork      like forever, with a forked child that outlives it and holds all of its descriptors
quiet     holds the lock and reports a phase, without a metrics file
early     an error before the first record (2)
raise     a traceback after three records (1)
hang      the main loop stops after three records, heartbeats continue
die       SIGKILL after three records
segfault  a warning, then SIGSEGV after three records, in an environment of the user
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from operant import runs
from operant.runs.control import Inbox
from operant.runs.metrics import FLAG_EVAL, Metric, Writer
from operant.training.requests import Heartbeat, Requests, RequestThread, Stop

STEPS = 1_000_000
METRICS = [
    Metric("return"),
    Metric("length"),
    Metric("episodes"),
    Metric("sps"),
    Metric("eval/return"),
    Metric("eval/best_return"),
]


class Reporter:
    def __init__(self, writer: Writer) -> None:
        self.writer, self.turn, self.over = writer, threading.Lock(), False
        self.acknowledge = writer.acknowledge

    def say(self, text: str, *, level: str = "info", code: str = "note") -> None:
        print(text, flush=True)
        self.writer.event(text, level=level, code=code)

    def announce_stop(self) -> None:
        with self.turn:
            if not self.over:
                self.writer.set_state("stopping")

    def announce_exit(self, exit_code: int) -> None:
        self.last_word("stopped", reason=signal.SIGINT, exit_code=exit_code)

    def last_word(self, state: str, *, reason: int, exit_code: int) -> None:
        with self.turn:
            self.over = True
            self.writer.set_state(state, reason=reason, exit_code=exit_code)

    def watch(self, mode: str, size: int, until_s: float) -> None:
        self.say(f"watched: {mode} {size}")


def main(folder: Path, behaviour: str) -> int:
    requests, asked = Requests(), threading.Event()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "deaf" else lambda number, frame: asked.set())
    lock = runs.acquire(folder)
    document = runs.update_document(
        folder,
        **runs.identity(),
        phase="importing the fake",
        env="cartpole",
        algo="ppo",
        steps=STEPS,
        target=475.0,
        device="cpu",
        seed=1,
        lanes=8,
    )
    print("hello from the fake worker")
    if behaviour == "early":
        print(
            "noise before\nerror: ppo.toml has 1 problem\n  ppo.toml:3: unknown key 'algo.learning_rte'",
            file=sys.stderr,
        )
        return 2
    while behaviour == "quiet" and not asked.is_set():
        time.sleep(0.01)
    if behaviour == "quiet":
        return 130
    uuid = bytes.fromhex(document["uuid"])
    writer = Writer(folder / "metrics.mm", METRICS, run_uuid=uuid, version="0.1.0")
    if behaviour == "fork" and not os.fork():
        time.sleep(600)
        os._exit(0)
    state, code, reporter = "finished", 0, Reporter(writer)
    if behaviour == "segfault":
        (folder / "source").mkdir()
        (folder / "source" / "cartpole.py").write_text("ENV = None")
        reporter.say("cartpole.py: it prints", level="warn")
    with contextlib.ExitStack() as threads:
        threads.enter_context(Heartbeat(writer.heartbeat))
        if behaviour not in ("mute", "deaf"):
            threads.enter_context(RequestThread(Inbox(folder, uuid, report=print), requests, reporter))
        try:
            code = train(folder, behaviour, writer, asked, requests)
            state = "stopped" if code == 130 else "finished"
        except RuntimeError:
            traceback.print_exc()
            state, code = "failed", 1
        reporter.last_word(state, exit_code=code, reason=signal.SIGTERM if asked.is_set() else 0)
    writer.close()
    lock.release()
    return code


def train(folder: Path, behaviour: str, writer: Writer, asked: threading.Event, requests: Requests) -> int:
    writer.set_state("running")
    nan, iteration = float("nan"), 0
    while True:
        iteration += 1
        evaluated = iteration % 20 == 0
        score = 400.0 + 2 * iteration if evaluated else nan
        step = min(STEPS, iteration * STEPS // 50)
        writer.publish(
            step,
            [nan if iteration % 2 else 20.5, 10.0, 2.0, 4_710_000.0, score, score],
            flags=FLAG_EVAL if evaluated else 0,
        )
        writer.tick()
        if asked.is_set():
            requests.ask_stop(Stop(signal.SIGTERM, "SIGTERM"))
        if requests.checkpoint or requests.stop is not None:
            requests.checkpoint = False
            (folder / "checkpoints" / f"step-{step:012d}").mkdir(parents=True, exist_ok=True)
            writer.set_checkpoint(step)
            requests.answer("checkpoint", "done", f"checkpoints/step-{step:012d}")
        if requests.stop is not None:
            writer.set_state("stopping", reason=requests.stop.number)
            time.sleep(3.0 if behaviour == "slow" else 0.0)
            requests.answer("stop", "done", "stopped")
            return 130
        pause(writer, asked, requests)
        if iteration == 3 and behaviour == "raise":
            raise RuntimeError("the sky fell")
        if iteration == 3 and behaviour == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if iteration == 3 and behaviour == "segfault":
            signal.raise_signal(signal.SIGSEGV)
        if iteration == 3 and behaviour == "hang":
            asked.wait()
        if iteration == 50 and behaviour == "finish":
            writer.set_checkpoint(step)
            return 0
        time.sleep(0.01)


def pause(writer: Writer, asked: threading.Event, requests: Requests) -> None:
    if requests.paused_by is None:
        return
    requests.waiting = True
    writer.set_state("paused")
    while requests.paused_by is not None and requests.stop is None and not requests.checkpoint and not asked.is_set():
        requests.answer("pause", "done", "paused")
        time.sleep(0.01)
    requests.waiting = False
    writer.set_state("running")
    requests.answer("unpause", "done", "training resumed")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
