"""Run folders: making one, listing them, finding the one a person means, their lock and their states. Standard library only.

Other packages import these names from here; metrics, history, control, launch, log and checkpoints are modules of their own. Knows nothing of training or
of screens.
"""

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
    start_ticks,
    text_of,
    update_document,
    worker,
    write_json,
)
from operant.runs.index import Reach, create, discard_unstarted, list_ids, list_runs, load, reach, recorded, remove, resolve, root, shown, taken
from operant.runs.states import ENDED, LIVE, Judgement, Observation, State, describe, exit_code, judge, observe, state

__all__ = [
    "ENDED", "ID", "LIVE", "Judgement", "Lock", "Observation", "Reach", "Run", "State", "acquire", "boot_id", "busy", "create", "describe",
    "discard_unstarted", "exit_code", "holder", "host", "identity", "integer_of", "is_local", "judge", "list_ids", "list_runs", "load", "number_of",
    "observe", "probe", "reach", "read_json", "recorded", "remove", "resolve", "root", "shown", "start_ticks", "state", "taken", "text_of", "update_document",
    "worker", "write_json",
]  # fmt: skip
