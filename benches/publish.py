"""What one record costs the trainer: min and median ns of `Writer.publish`, hot and at 1 kHz. `python benches/publish.py [FOLDER]`.

Standard library only. Hot: back to back, min and median over batches. Cold: a millisecond's sleep between calls, each timed alone.
"""

from __future__ import annotations

import math
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

from operant.metricsfile import Metric, Writer

BATCHES, BATCH, COLD = 41, 500, 1000


def hot(writer, values):
    batches = []
    for _ in range(BATCHES):
        begin = time.perf_counter_ns()
        for step in range(BATCH):
            writer.publish(step, values)
        batches.append((time.perf_counter_ns() - begin) / BATCH)
    return min(batches), statistics.median(batches)


def cold(writer, values):
    calls = []
    for step in range(COLD):
        time.sleep(0.001)
        begin = time.perf_counter_ns()
        writer.publish(step, values)
        calls.append(time.perf_counter_ns() - begin)
    return statistics.median(calls), statistics.quantiles(calls, n=100)[98]


def main():
    where = sys.argv[1] if len(sys.argv) > 1 else None
    print(f"{platform.machine()}, CPython {platform.python_version()}; ns a record")
    print(f"{'backend':8} {'metrics':>7} {'hot min':>8} {'median':>8} {'one NaN':>8} {'1 kHz p50':>10} {'p99':>8}")
    with tempfile.TemporaryDirectory(dir=where) as folder:
        for backend in ("map", "pwrite"):
            for count in (8, 64, 512):
                metrics = [Metric(f"metric/{index}") for index in range(count)]
                values = [index + 0.5 for index in range(count)]
                writer = Writer(Path(folder) / "metrics.mm", metrics, run_uuid=bytes(16), version="bench", backend=backend)
                minimum, median = hot(writer, values)
                gap, _ = hot(writer, [math.nan, *values[1:]])
                middle, late = cold(writer, values)
                print(f"{backend:8} {count:7} {minimum:8.0f} {median:8.0f} {gap:8.0f} {middle:10.0f} {late:8.0f}")
                writer.close()


if __name__ == "__main__":
    main()
