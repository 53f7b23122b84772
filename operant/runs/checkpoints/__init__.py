"""Checkpoints of a run: a valid one exists at any time, and only a valid one is loaded.

A checkpoint holds named tensors and a JSON document. Imports torch only to pack or unpack tensors, so that commands
which list checkpoints start quickly. No pickle: tensors are safetensors, all else is JSON.

    RUN/checkpoints/step-000000300000/
        tensors.safetensors    tensors
        state.json             document
        config.toml            configuration of the tensors; absent in the first runs
        manifest.json          {format, run_uuid, session, step, parent_step, best, best_value, task,
                               created_realtime_ns, files, checksum}
    RUN/checkpoints/replay-step-000000300000/        its replay buffer, which can be collected again: replays.py
    RUN/checkpoints/quarantine-step-000000300000/    a state with non-finite values: never resumed from

Newer means a later session, within a session a later step: a run rewound to an earlier step must not be resumed from
the future it gave up. The best one is known by the manifests alone: the highest `best_value` of those saved as best in
the latest task, that is with the same environment and reward. operant/runs/atomic.py is the lower half of the protocol.
"""

from __future__ import annotations

from operant.runs.checkpoints.store import Store, load_file
from operant.runs.checkpoints.tensors import Checkpoint, find_nonfinite

__all__ = ["Checkpoint", "Store", "find_nonfinite", "load_file"]
