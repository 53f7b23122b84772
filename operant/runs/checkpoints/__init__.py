"""Checkpoints of a run: saved so that some valid one always exists, loaded only when every byte of it is as it was
written.

Knows named tensors on the CPU and a JSON document; nothing of algorithms, worlds or run folders. Torch is imported only
where tensors are packed or unpacked, so that the commands that merely list checkpoints stay quick. No pickle: tensors
are safetensors, everything else JSON.

    RUN/checkpoints/step-000000300000/
        tensors.safetensors    the tensors state.json             the document config.toml            the configuration
        that gives the tensors their meaning: absent in the first runs manifest.json          {format, run_uuid,
        session, step, parent_step, best, best_value, task, created_realtime_ns, files, checksum}
    RUN/checkpoints/replay-step-000000300000/        what belongs to it, but can be collected anew: replays.py
    RUN/checkpoints/quarantine-step-000000300000/    the same, of a state with numbers that are not finite: never
    resumed from

Newer means a later session, within a session a later step: a run rewound to an earlier step must not be resumed from
the future it gave up. Which one is best stands in the manifests alone (the highest `best_value` of those saved as best
in the latest task, that is with the same environment and reward); no hint beside them has to be kept in step with them.
operant/runs/atomic.py is the lower half of the protocol.
"""

from __future__ import annotations

from operant.runs.checkpoints.store import Store, load_file
from operant.runs.checkpoints.tensors import Checkpoint, find_nonfinite

__all__ = ["Checkpoint", "Store", "find_nonfinite", "load_file"]
