"""Metrics file: metrics and status of a run in one small file of fixed size, without locks. Standard library only.

One writer (the trainer) stores through a memory map, or by `pwrite` on filesystems whose maps are unreliable. Any
number of readers use `pread`, hold no lock and cannot disturb it. Readers judge by the heartbeats whether the trainer
is alive.

A reader never accepts half a record: `seq` is 2n+1 while record n is being stored and 2n+2 after, which filters nearly
all of them; the CRC-32, which covers n itself, decides. x86-64 keeps stores in order. Other processors (ARM) may not,
and no fence is issued there: they rely on the CRC alone.
"""

from __future__ import annotations

from operant.runs.metrics.layout import (
    ABI,
    AXES,
    DTYPES,
    EVENTS,
    FLAG_CHECKPOINT,
    FLAG_EVAL,
    FLAG_NONE,
    FLAG_NONFINITE,
    KINDS,
    LEVELS,
    MAGIC,
    MODES,
    PHASES,
    STATES,
    TERMINAL,
    Event,
    Header,
    Metric,
    RawFrame,
    Record,
    Status,
)
from operant.runs.metrics.reader import Reader
from operant.runs.metrics.spec import (
    BOOKKEEPING,
    EVALUATION,
    ITERATIONS,
    RETURN,
    SECONDS,
    UNORDERED,
    MetricSpec,
    Threshold,
)
from operant.runs.metrics.writer import Writer

__all__ = [
    "ABI",
    "AXES",
    "BOOKKEEPING",
    "DTYPES",
    "EVALUATION",
    "EVENTS",
    "FLAG_CHECKPOINT",
    "FLAG_EVAL",
    "FLAG_NONE",
    "FLAG_NONFINITE",
    "ITERATIONS",
    "KINDS",
    "LEVELS",
    "MAGIC",
    "MODES",
    "PHASES",
    "RETURN",
    "SECONDS",
    "STATES",
    "TERMINAL",
    "UNORDERED",
    "Event",
    "Header",
    "Metric",
    "MetricSpec",
    "RawFrame",
    "Reader",
    "Record",
    "Status",
    "Threshold",
    "Writer",
]
