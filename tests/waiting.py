"""Waiting for other processes and threads, without a figure of how fast this machine is. Standard library and Operant's
standard-library parts only.
"""

import time

from operant import runs
from operant.runs.metrics import Reader

DEADLINE_S = 90.0
"""Generous, for a loaded machine: a wait ends as soon as its condition holds."""


def wait_until(condition, seconds=DEADLINE_S):
    """Wait until the condition returns a true value, and return it."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.01)
    return found


def state(run):
    """Name of a run's present state."""
    return runs.state(runs.load(run.path))


def records(run):
    """Records published so far."""
    if not run.metrics_path.exists():
        return 0
    with Reader(run.metrics_path) as reader:
        return reader.status().head
