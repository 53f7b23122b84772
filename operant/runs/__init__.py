"""Run folders: making one, listing them, finding the one a person means, their lock and their states. Standard library
only.

Other packages import these names from here; control, launch and checkpoints are modules of their own. Knows nothing of
training or of screens. Called, the package is the library's list of runs: `operant.runs("cartpole-*")`.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

from operant.runs.evaluations import Evaluations, evaluated
from operant.runs.folder import (
    ID,
    Lock,
    Run,
    acquire,
    boot_id,
    busy,
    holder,
    host,
    identity,
    integer_of,
    is_local,
    number_of,
    probe,
    read_json,
    signal_worker,
    start_ticks,
    text_of,
    update_document,
    worker,
    write_json,
)
from operant.runs.follow import Follower, read_specs, write_specs
from operant.runs.history import Chunk, History, salvage
from operant.runs.index import (
    SWEEP_FILE,
    Reach,
    create,
    discard_unstarted,
    list_ids,
    list_runs,
    lives,
    load,
    misnamed,
    parents,
    reach,
    recorded,
    remove,
    resolve,
    root,
    shown,
    taken,
)
from operant.runs.log import LEFT_OUT, SESSION_MARK, Tail, clock_and_text, log_end
from operant.runs.metrics import (
    BOOKKEEPING,
    EVALUATION,
    FLAG_CHECKPOINT,
    FLAG_EVAL,
    FLAG_NONFINITE,
    ITERATIONS,
    RETURN,
    SECONDS,
    TERMINAL,
    UNORDERED,
    Event,
    Header,
    Metric,
    MetricSpec,
    RawFrame,
    Reader,
    Record,
    Threshold,
    Writer,
)
from operant.runs.states import (
    ENDED,
    LIVE,
    Judgement,
    Observation,
    State,
    describe,
    exit_code,
    judge,
    observe,
    state,
    target_reached,
    target_remark,
)
from operant.runs.stream import Columns, Stream, columns

__all__ = [
    "BOOKKEEPING",
    "ENDED",
    "EVALUATION",
    "FLAG_CHECKPOINT",
    "FLAG_EVAL",
    "FLAG_NONFINITE",
    "ID",
    "ITERATIONS",
    "LEFT_OUT",
    "LIVE",
    "RETURN",
    "SECONDS",
    "SESSION_MARK",
    "SWEEP_FILE",
    "TERMINAL",
    "UNORDERED",
    "Chunk",
    "Columns",
    "Evaluations",
    "Event",
    "Follower",
    "Header",
    "History",
    "Judgement",
    "Lock",
    "Metric",
    "MetricSpec",
    "Observation",
    "RawFrame",
    "Reach",
    "Reader",
    "Record",
    "Run",
    "State",
    "Stream",
    "Tail",
    "Threshold",
    "Writer",
    "acquire",
    "boot_id",
    "busy",
    "clock_and_text",
    "columns",
    "create",
    "describe",
    "discard_unstarted",
    "evaluated",
    "exit_code",
    "holder",
    "host",
    "identity",
    "integer_of",
    "is_local",
    "judge",
    "list_ids",
    "list_runs",
    "lives",
    "load",
    "log_end",
    "misnamed",
    "number_of",
    "observe",
    "parents",
    "probe",
    "reach",
    "read_json",
    "read_specs",
    "recorded",
    "remove",
    "resolve",
    "root",
    "salvage",
    "shown",
    "signal_worker",
    "start_ticks",
    "state",
    "taken",
    "target_reached",
    "target_remark",
    "text_of",
    "update_document",
    "worker",
    "write_json",
    "write_specs",
]


class _Package(ModuleType):
    """The package as `operant.runs(...)`: see operant/library.py, which is imported only then."""

    def __call__(self, *words: Any, **options: Any) -> Any:
        return importlib.import_module("operant.library").runs(*words, **options)


sys.modules[__name__].__class__ = _Package
