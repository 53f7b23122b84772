"""A worker that learns nothing and needs only the standard library: python fake_worker.py RUN_DIR BEHAVIOUR.

finish      50 records, an evaluation now and then, then finished (0)
forever     records until SIGTERM, then a checkpoint and stopped (130)
deaf        the same, but does not listen to SIGTERM
quiet       holds the lock and tells a phase, no metrics file
early       an error before the first record (2)
raise       a traceback after three records (1)
hang        the main loop stands still after three records, the heart goes on
die         SIGKILL after three records
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from operant import runs
from operant.metricsfile import FLAG_EVAL, Metric, Writer

STEPS = 1_000_000
METRICS = [Metric("return"), Metric("length"), Metric("episodes"), Metric("sps"), Metric("eval/return"), Metric("eval/best_return")]


def main(folder: Path, behaviour: str) -> int:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    asked = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "deaf" else lambda number, frame: asked.set())
    lock = runs.acquire(folder)
    document = runs.update_document(
        folder, **runs.identity(), phase="importing the fake", env="cartpole", algo="ppo", steps=STEPS, target=475.0, device="cpu", seed=1, lanes=8
    )
    print("hello from the fake worker")
    if behaviour == "early":
        print("noise before\nerror: ppo.toml has 1 problem\n  ppo.toml:3: unknown key 'algo.learning_rte'", file=sys.stderr)
        return 2
    while behaviour == "quiet" and not asked.is_set():
        time.sleep(0.01)
    if behaviour == "quiet":
        return 130
    writer = Writer(folder / "metrics.mm", METRICS, run_uuid=bytes.fromhex(document["uuid"]), version="0.1.0")
    ended = threading.Event()

    def beat() -> None:
        while not ended.is_set():
            writer.heartbeat()
            ended.wait(0.1)

    heart = threading.Thread(target=beat, daemon=True)
    heart.start()
    state, code = "finished", 0
    try:
        code = train(folder, behaviour, writer, asked)
        state = "stopped" if code == 130 else "finished"
    except RuntimeError:
        traceback.print_exc()
        state, code = "failed", 1
    writer.set_state(state, exit_code=code, reason=signal.SIGTERM if state == "stopped" else 0)
    ended.set()
    heart.join()
    writer.close()
    lock.release()
    return code


def train(folder: Path, behaviour: str, writer: Writer, asked: threading.Event) -> int:
    writer.set_state("running")
    nan, iteration = float("nan"), 0
    while True:
        iteration += 1
        evaluated = iteration % 20 == 0
        score = 400.0 + 2 * iteration if evaluated else nan
        step = min(STEPS, iteration * STEPS // 50)
        writer.publish(step, [nan if iteration % 2 else 20.5, 10.0, 2.0, 4_710_000.0, score, score], flags=FLAG_EVAL if evaluated else 0)
        writer.tick()
        if asked.is_set():
            writer.set_state("stopping", reason=signal.SIGTERM)
            (folder / "checkpoints" / f"step-{step:012d}").mkdir(parents=True)
            writer.set_checkpoint(step)
            return 130
        if iteration == 3 and behaviour == "raise":
            raise RuntimeError("the sky fell")
        if iteration == 3 and behaviour == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if iteration == 3 and behaviour == "hang":
            asked.wait()
        if iteration == 50 and behaviour == "finish":
            writer.set_checkpoint(step)
            return 0
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
