"""The state of a run in training, to a checkpoint and back: what each kind of checkpoint holds, what of it must be finite, and which compare. Knows no loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from operant.algos.base import Algorithm, Tier
from operant.errors import BadFileError, ConfigError
from operant.runs.checkpoints import Checkpoint, Store, find_nonfinite

_ITERATION = "algo/iteration"  # where an algorithm's schedules are: see `Algorithm.state`
_ENVIRONMENTS_OWN = "world/state"  # what an environment means by an infinity is its own affair, as long as observations and rewards are finite


class Snapshots:
    """The checkpoints of one session of a run: each carries its configuration, and the task since which its returns compare."""

    def __init__(self, algo: Algorithm, store: Store, session: int, *, config: str, environment_code: str | None) -> None:
        """`config` is the configuration file as it is to lie in a checkpoint's folder, `environment_code` the hash of the user's own environment file."""
        self._algo, self._store, self._session, self._config = algo, store, session, config
        self._task: dict[str, Any] = {"task": session, "environment_code": environment_code}
        self._complete_step = -1  # of the last one that holds all

    def save(self, step: int, document: Mapping[str, Any], *, best: bool) -> None:
        """Begin to save the state as it is; the store's `wait` tells what came of it."""
        # A run may be resumed from its best, so that holds more than the policy; but what can be collected anew (a replay) stays out of it, unless it takes the
        # place of a checkpoint of this step that holds all.
        tier: Tier = "train" if best and self._complete_step != step else "all"
        self._complete_step = step if tier == "all" else self._complete_step
        tensors = copied(self._algo, tier)
        held = {"tier": tier, "tensor_bytes": sum(tensor.nbytes for tensor in tensors.values())}
        self._store.save_async(
            step, tensors, {**document, **self._task, **held}, session=self._session, best=best, must_be_finite=must_be_finite(self._algo), config=self._config
        )

    def restore(self, checkpoint: Checkpoint, task_changes: Sequence[str]) -> tuple[dict[str, Any], str | None]:
        """Go on from a checkpoint: its document, and a sentence where the best until then does not compare with what comes. Raises as the other `restore`.

        `task_changes` are the reasons why it would not, as far as the configurations tell.
        """
        restore(self._algo, checkpoint)
        document, newest = checkpoint.document, self._store.newest("best")
        self._complete_step = checkpoint.step if document.get("tier", "all") == "all" else -1
        if not task_changes and (newest is None or newest.manifest.task <= document.get("task", 0)):
            self._task["task"] = document.get("task", 0)
            return document, None
        why = "; ".join(task_changes) or "a later session had another environment"
        return document, f"the best starts anew, since returns no longer compare: {why}"


def copied(algo: Algorithm, tier: Tier) -> dict[str, Tensor]:
    """The tensors of a tier on the CPU, as they are now."""
    return {name: value.detach().to("cpu", copy=True) for name, value in algo.state(tier).items()}  # sync: a checkpoint


def must_be_finite(algo: Algorithm) -> list[str]:
    """The names of the tensors that make a checkpoint worthless where they hold NaN or infinity: of all that training depends on."""
    return [name for name in algo.state("train") if name != _ENVIRONMENTS_OWN]


def restore(algo: Algorithm, checkpoint: Checkpoint) -> None:
    """Copy a checkpoint's tensors into an algorithm. Raises ConfigError where they do not fit, BadFileError where they are not finite; copies none then."""
    tier = checkpoint.document.get("tier", "all")
    if tier not in ("train", "all"):
        raise ConfigError(str(checkpoint.path), ["it holds the policy alone, which is enough to play it, but not to train on: resume from another one"])
    own, there = algo.state(tier), dict(checkpoint.tensors)
    done, of_each = there.get(_ITERATION), algo.steps_per_iteration
    if done is not None and int(done) * of_each != checkpoint.step:  # another horizon, in this session or in one before
        there[_ITERATION] = torch.full_like(done, checkpoint.step // of_each)
    odd = [
        f"{name}: the checkpoint has {tuple(there[name].shape) if name in there else 'nothing'}, this configuration {tuple(here.shape)}"
        for name, here in own.items()
        if name not in there or there[name].shape != here.shape
    ]
    if odd:
        raise ConfigError(str(checkpoint.path.parents[1] / "config.toml"), [f"does not fit checkpoint {checkpoint.path.name}: {line}" for line in odd])
    problem = find_nonfinite({name: there[name] for name in must_be_finite(algo)})
    if problem is not None:
        raise BadFileError(f"{checkpoint.path.name} cannot be trained on: {problem}. To resume from an earlier checkpoint: --from best, or --from STEP")
    with torch.no_grad():
        for name, here in own.items():
            here.copy_(there[name])
