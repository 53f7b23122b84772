"""History of a run: every record beyond the ring of the metrics file, in append-only segments. Standard library only.

`History` is a thread of the trainer that copies records from the ring to the disk; it can neither slow nor fail the
training. `read` returns them to any process, while they are being written or years later.

A folder holds `seg-000001.opl`, `seg-000002.opl`, ...; operant/runs/history/segment.py describes the bytes. A record
read back equals the published one, bit for bit, unless its segment was thinned to stay within the quota
(operant/runs/history/thinning.py).
"""

from __future__ import annotations

from operant.runs.history.reader import Chunk, Reading, read
from operant.runs.history.writer import History, salvage

__all__ = ["Chunk", "History", "Reading", "read", "salvage"]
