"""Cost of publishing for the trainer: ns per `Writer.publish`, `event` and `frame`, hot and at 1 kHz, and with a
history.

    python benches/publish.py [FOLDER]

Standard library only. Hot: back-to-back calls, min and median over batches. Cold: a sleep of 1 ms between calls, each
timed alone. With a history: records at 50 Hz for ten seconds, with and without its thread, CPU time of both.
"""

from __future__ import annotations

import functools
import math
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

from operant.runs.history import History, read
from operant.runs.metrics import Metric, Writer

BATCHES, BATCH, COLD = 41, 500, 1000
PIXELS = bytes(4 * 64 * 64 * 3)
UUID = bytes(16)


def hot(call):
    batches = []
    for _ in range(BATCHES):
        begin = time.perf_counter_ns()
        for step in range(BATCH):
            call(step)
        batches.append((time.perf_counter_ns() - begin) / BATCH)
    return min(batches), statistics.median(batches)


def cold(call):
    calls = []
    for step in range(COLD):
        time.sleep(0.001)
        begin = time.perf_counter_ns()
        call(step)
        calls.append(time.perf_counter_ns() - begin)
    return statistics.median(calls), statistics.quantiles(calls, n=100)[98]


def row(backend, what, call):
    minimum, median = hot(call)
    middle, late = cold(call)
    print(f"{backend:8} {what:22} {minimum:8.0f} {median:8.0f} {middle:10.0f} {late:8.0f}")


def make(folder, backend, count):
    metrics = [Metric(f"metric/{index}") for index in range(count)]
    return Writer(
        folder / "metrics.mm", metrics, run_uuid=UUID, version="bench", backend=backend, frame_bytes=len(PIXELS)
    )


def calls(folder):
    print(f"{'backend':8} {'what':22} {'hot min':>8} {'median':>8} {'1 kHz p50':>10} {'p99':>8}")
    for backend in ("map", "pwrite"):
        for count in (8, 64, 512):
            writer = make(folder, backend, count)
            values = [index + 0.5 for index in range(count)]
            row(backend, f"publish {count}", lambda step, writer=writer, values=values: writer.publish(step, values))
            if count == 64:
                gap = [math.nan, *values[1:]]
                row(backend, "publish 64, one NaN", lambda step, writer=writer, gap=gap: writer.publish(step, gap))
                row(
                    backend,
                    "event",
                    lambda step, writer=writer: writer.event("checkpoint saved", code="checkpoint", step=step),
                )
                show = functools.partial(writer.frame, pixels=PIXELS, lanes=4, height=64, width=64)
                row(backend, "frame 4 x 64 x 64", show)
            writer.close()


def beside(folder, with_history, seconds=10, hertz=50):
    """CPU milliseconds per second of training, for 64 metrics."""
    writer = make(folder, "auto", 64)
    history = History(folder / "history", writer.path, writer=writer, run_uuid=UUID, session=1)
    if with_history:
        history.start()
    used = time.process_time()
    for step in range(seconds * hertz):
        writer.publish(step, [math.sin(step * column) for column in range(64)])
        time.sleep(1 / hertz)
    history.close()
    used = time.process_time() - used
    writer.close()
    return 1e3 * used / seconds


def load(folder):
    began, rows = time.perf_counter(), 0
    for chunk in read(folder / "history"):
        rows += len(chunk.n)
    size = sum(path.stat().st_size for path in (folder / "history").iterdir())
    print(
        f"history: {rows} records of 64 metrics, {size / rows:.0f} bytes each, read in "
        f"{1e6 * (time.perf_counter() - began) / rows:.1f} us each"
    )


def main():
    where = sys.argv[1] if len(sys.argv) > 1 else None
    print(f"{platform.machine()}, CPython {platform.python_version()}; ns a call")
    with tempfile.TemporaryDirectory(dir=where) as folder:
        path = Path(folder)
        calls(path)
        without, with_history = beside(path, False), beside(path, True)
        print(
            f"50 records/s of 64 metrics: {without:.2f} ms of processor time a second, {with_history:.2f} with "
            "a history"
        )
        load(path)


if __name__ == "__main__":
    main()
