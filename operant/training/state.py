"""Checkpoints of a run in training: tensors of each tier, finiteness checks, and restoring them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from operant.errors import BadFileError, ConfigError
from operant.runs.checkpoints import Checkpoint, Store, find_nonfinite
from operant.training.distributed import SINGLE, SOLO, Algorithm, Exchange, RankGroup, Tier, own_state, whole_like

AUTO_BYTES, AUTO_SHARE, AUTO_TIME_SHARE = 4 << 30, 0.1, 0.05
"""Limits of `checkpoint.replay = "auto"`: bytes, share of the free disk, share of training time."""
SAVE_SHARE = 0.02
"""Limit of `checkpoint.seconds`: share of the time for saving, without the replay."""

_LIKELY_BYTES_PER_S = 5e8  # saving speed, until measured
_ITERATION = "algo/iteration"  # iteration count, the input of schedules: see `Algorithm.state`
_WORLD, _CLOCK = "world/", "world/tick"
_OTHER_STATE = "the environment's state has changed"
# numbers on which the layout of a replay depends, and their names
_CONSTANTS = {"replay/window": "the time limit of episodes", "replay/n_step": "algo.n_step"}
# infinite values in an environment's own state are allowed; observations and rewards must be finite
_ENVIRONMENTS_OWN = "world/state"


class Snapshots:
    """Saver and loader of the checkpoints of one session. Each checkpoint records its configuration, and the session
    since which returns are comparable.
    """

    def __init__(
        self,
        algo: Algorithm,
        store: Store,
        session: int,
        group: RankGroup = SINGLE,
        *,
        config: str,
        environment_code: str | None,
        saves: Literal["auto"] | bool = "auto",
    ) -> None:
        """`config` is the text of the configuration file stored with each checkpoint, `environment_code` the hash of
        the user's environment file, `saves` the value of `checkpoint.replay`.
        """
        self._algo, self._store, self._session, self._group = algo, store, session, group
        self.config = config
        """Text of the configuration file in the next checkpoint's folder."""
        self._task: dict[str, Any] = {"task": session, "environment_code": environment_code}
        self._complete_step = -1  # step of the last checkpoint with all tensors
        self._copied_s = 0.0  # seconds of the last copy to the CPU
        replay, ranks = replay_tensors(algo).values(), group.exchange.ranks
        self.replay_bytes = sum(tensor.nbytes for tensor in replay) * ranks
        """Bytes of the replay; 0 if the algorithm has none."""
        # part in host memory
        self._host_bytes = sum(tensor.nbytes for tensor in replay if tensor.device.type != algo.device.type) * ranks
        self.notes: list[str] = []
        """Notes for the log at the start: state that this session or a later resume lacks."""
        self._saves_replay = self._decide_replay(saves)
        self._every_time, self._paused_s, self._saved_s = (
            saves is True,
            self.replay_bytes / _LIKELY_BYTES_PER_S,
            time.monotonic(),
        )

    @property
    def replay_size(self) -> str | None:
        """Describe the size and location of the replay buffer; None if the algorithm has none."""
        from operant.text import size

        if not self.replay_bytes:
            return None
        return size(self.replay_bytes) + (
            f", {size(self._host_bytes)} of it in page-locked host memory" if self._host_bytes else ""
        )

    def _decide_replay(self, replay: Literal["auto"] | bool) -> bool:
        """Whether the replay is saved with checkpoints, by the value of `checkpoint.replay` and its size. Adds a note
        for the log if it is not.
        """
        from operant.text import size

        if replay is True or not self.replay_bytes:
            return bool(self.replay_bytes)
        free = self._store.replays.free_bytes()
        reason = "checkpoint.replay = false"
        if replay == "auto":
            most, limit = AUTO_BYTES, size(AUTO_BYTES)
            if free is not None and free * AUTO_SHARE < most:
                most, limit = int(free * AUTO_SHARE), f"10 % of the {size(free)} free on the disk"
            if self.replay_bytes <= most:
                return True
            reason = f"it is larger than {limit}"
        self.notes.append(
            f"warm resume: the replay ({size(self.replay_bytes)}) is not saved: {reason}. "
            f"checkpoint.replay=true saves it"
        )
        return False

    @property
    def cost_s(self) -> float:
        """Seconds that saving the last checkpoint took, without its replay."""
        return self._copied_s + self._store.write_s

    def save(
        self,
        step: int,
        document: Mapping[str, Any],
        *,
        best: bool,
        last: bool = False,
        done: Callable[[Path | None, float | None], None],
    ) -> None:
        """Start saving the current state as the checkpoint of `step`. `document` are its scalars; `best` also keeps it
        as the best checkpoint; `last` marks one that may be the session's last, or was requested. A thread calls `done`
        at the end with the checkpoint's folder (None: the save failed) and the seconds spent on the replay (None: not
        saved).
        """
        # A run may be resumed from its best checkpoint, so that is not policy-only. The replay is left out of it,
        # unless it replaces a checkpoint of this step that holds all.
        self._store.wait()
        saved = False
        if self._saves_replay and (self._complete_step == step or (not best and (last or self._may_save_replay()))):
            began_s = time.monotonic()
            saved = self._store.replays.save(step, self._whole_replay(), session=self._session)
            self._saved_s = time.monotonic()
            self._paused_s = self._saved_s - began_s
        replay_s = self._paused_s if saved else None
        tier: Tier = "all" if saved or not self.replay_bytes else "train"
        self._complete_step = step if tier == "all" else self._complete_step
        if self._algo.device.type == "cuda":
            torch.cuda.synchronize(self._algo.device)  # sync: a checkpoint; its cost excludes queued iterations
        began_s = time.monotonic()
        tensors = self._group.state(self._algo, "train")
        self._copied_s = time.monotonic() - began_s
        held = {"tier": tier, "tensor_bytes": sum(tensor.nbytes for tensor in tensors.values())}
        self._store.save_async(
            step,
            tensors,
            {**document, **self._task, **held},
            session=self._session,
            best=best,
            must_be_finite=must_be_finite(self._algo),
            config=self.config,
            done=lambda path: done(path, replay_s),
        )

    def _may_save_replay(self) -> bool:
        """Whether the replay may be saved now. Training waits for that, which may cost at most a twentieth of the time
        since the last save.
        """
        return self._every_time or self._paused_s <= AUTO_TIME_SHARE * (time.monotonic() - self._saved_s)

    def _whole_replay(self) -> Mapping[str, Tensor]:
        """Return the replay's tensors by name: with one rank the algorithm's own, with several CPU copies that contain
        all ranks' lanes.
        """
        own = replay_tensors(self._algo)
        return (
            own
            if self._group.exchange.ranks == 1
            else {name: tensor for name, tensor in self._group.state(self._algo, "all").items() if name in own}
        )

    def restore(self, checkpoint: Checkpoint, task_changes: Sequence[str]) -> tuple[dict[str, Any], str | None]:
        """Load a checkpoint. Returns its document, and None or the reason why its best return is not comparable with
        later ones. Raises ConfigError if tensors do not fit, BadFileError if they are not finite.

        `task_changes` are reasons for that found by comparing configurations.
        """
        reset_reason = restore(self._algo, checkpoint, self._group.exchange)
        document, newest = checkpoint.document, self._store.newest("best")
        missing = (
            restore_replay(self._algo, checkpoint, self._store, self._group.exchange, reset_reason)
            if self.replay_bytes
            else None
        )
        if reset_reason is not None:
            self._algo.start()
            self.notes.append(f"warm resume: every lane begins a new episode: {reset_reason}")
            task_changes = [*task_changes, _OTHER_STATE] if reset_reason == _OTHER_STATE else task_changes
        self._complete_step = checkpoint.step if missing is None else -1
        if missing is not None:
            self.notes.append(f"warm resume: the replay starts empty: {missing}")
        if not task_changes and (newest is None or newest.manifest.task <= document.get("task", 0)):
            self._task["task"] = document.get("task", 0)
            return document, None
        reason = "; ".join(task_changes) or "a later session had another environment"
        return document, f"the best return is reset, since returns are no longer comparable: {reason}"


def replay_tensors(algo: Algorithm) -> dict[str, Tensor]:
    """Tensors of the replay by name: those of tier "all" that are not in tier "train", because they can be collected
    again.
    """
    needed = algo.state("train")
    return {name: tensor for name, tensor in algo.state("all").items() if name not in needed}


def restore_replay(
    algo: Algorithm, checkpoint: Checkpoint, store: Store, exchange: Exchange, reset_reason: str | None
) -> str | None:
    """Load the replay saved with a checkpoint, on all ranks or on none. Returns None, or the reason why it stays empty.
    `reset_reason` is what `restore` returned.

    Transitions of an environment whose state has changed are not loaded.
    """
    if reset_reason == _OTHER_STATE:
        return reset_reason
    own = replay_tensors(algo)
    whole = own if exchange.ranks == 1 else whole_like(algo, own, exchange)
    for name in (name for name in _CONSTANTS if name in own):
        whole[name].copy_(own[name])
    missing = store.replays.restore(checkpoint.step, whole, session=checkpoint.session, constants=_CONSTANTS)
    if exchange.ranks == 1:
        return missing
    all_have = exchange.gather(torch.tensor([[float(missing is None)]], device=algo.device)).min() > 0
    if not bool(all_have):  # sync: before a run begins
        return missing or "another rank lacks it"
    for name, tensor in own_state(algo, whole, exchange).items():
        own[name].copy_(tensor)
    return None


def must_be_finite(algo: Algorithm) -> list[str]:
    """Names of the tensors whose NaN or infinity makes a checkpoint unusable."""
    return [name for name in algo.state("train") if name != _ENVIRONMENTS_OWN]


def restore(algo: Algorithm, checkpoint: Checkpoint, exchange: Exchange = SOLO) -> str | None:
    """Load a checkpoint's tensors, except its replay, into an algorithm; with several ranks each loads its own lanes.
    Returns None if episodes continue, else the reason why `algo.start` must reset the lanes: their state is not saved,
    or does not match.

    Raises ConfigError if other tensors do not fit and BadFileError if they are not finite; nothing is loaded then.
    """
    tier = checkpoint.document.get("tier", "all")
    if tier not in ("train", "all"):
        raise ConfigError(
            str(checkpoint.path),
            [
                "the checkpoint holds only the policy, which can be played but not trained: resume from "
                "another checkpoint"
            ],
        )
    own, saved = algo.state("train"), own_state(algo, checkpoint.tensors, exchange)
    done, of_each = saved.get(_ITERATION), algo.steps_per_iteration
    if done is not None and int(done) * of_each != checkpoint.step:  # the horizon has changed
        saved[_ITERATION] = torch.full_like(done, checkpoint.step // of_each)
    mismatches = {
        name: f"{name}: the checkpoint has {tuple(saved[name].shape) if name in saved else 'nothing'}, this "
        f"configuration {tuple(here.shape)}"
        for name, here in own.items()
        if name not in saved or saved[name].shape != here.shape
    }
    if lines := [
        f"does not fit checkpoint {checkpoint.path.name}: {line}"
        for name, line in mismatches.items()
        if not name.startswith(_WORLD) or name == _CLOCK
    ]:
        raise ConfigError(str(checkpoint.path.parents[1] / "config.toml"), lines)
    # State of another version of the environment or of an edited file does not match: only the clock continues.
    lanes = {name: tensor for name, tensor in saved.items() if name.startswith(_WORLD)}
    reset_reason = bool(mismatches) or any(
        name not in own or own[name].dtype != tensor.dtype for name, tensor in lanes.items()
    )
    if reset_reason:
        own = {name: here for name, here in own.items() if not name.startswith(_WORLD) or name == _CLOCK}
    problem = find_nonfinite({name: saved[name] for name in must_be_finite(algo) if name in own})
    if problem is not None:
        raise BadFileError(
            f"{checkpoint.path.name} cannot be trained on: {problem}. To resume from an earlier checkpoint: --from "
            "best, or --from STEP"
        )
    with torch.no_grad():
        for name, here in own.items():
            here.copy_(saved[name])
    algo.world.restored()
    return _OTHER_STATE if reset_reason else None if algo.world.resumes else "an outside environment cannot be saved"


def resume(algo: Algorithm, checkpoints: Path, run_uuid: str, step: int, exchange: Exchange) -> None:
    """Load the checkpoint of `step` on a rank other than 0, which loads its own lanes. Rank 0 has chosen the step.
    Raises ConfigError if tensors do not fit, BadFileError if they are not finite.
    """
    store = Store(checkpoints, run_uuid=run_uuid, report=lambda line: None)
    checkpoint = store.load(step)
    reset_reason = restore(algo, checkpoint, exchange)
    if replay_tensors(algo):
        restore_replay(algo, checkpoint, store, exchange, reset_reason)
    if reset_reason is not None:
        algo.start()
