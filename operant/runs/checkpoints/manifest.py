"""The manifests of checkpoints: what one says, which entries of a folder may be checkpoints, and in which order to try
them. Standard library only.

Knows no tensor and writes nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from operant.errors import BadFileError
from operant.runs import atomic

FORMAT = 1
STEP_NAME = re.compile(r"step-([0-9]{12,18})")
QUARANTINE_NAME = re.compile(r"quarantine-step-([0-9]{12,18})")


class Manifest(NamedTuple):
    """What a manifest says of its checkpoint, type-checked. `best_value` is a number only where `best`."""

    run_uuid: str
    session: int
    step: int
    parent_step: int | None
    best: bool
    best_value: float | None
    # the session since which the environment and its reward are what they are: returns from before compare with nothing
    task: int
    created_realtime_ns: int


class Candidate(NamedTuple):
    """An entry of the folder that may be a checkpoint: `manifest` is None where it cannot be used, `problem` then says
    why.
    """

    name: str
    step: int
    manifest: Manifest | None
    problem: str
    foreign: bool  # another run's

    def newer_than(self, other: Candidate) -> bool:
        """Whether this one is further on in the run; where a session is unknown the steps alone decide."""
        if self.manifest is None or other.manifest is None:
            return self.step > other.step
        return (self.manifest.session, self.step) > (other.manifest.session, other.step)


class ForeignError(BadFileError):
    """A checkpoint of another run."""


def read_manifest(fields: Mapping[str, Any]) -> Manifest:
    """The fields of a manifest, type-checked. BadFileError for another format or a wrong type."""
    if fields.get("format") != FORMAT:
        raise BadFileError(f"its format is {ascii(fields.get('format'))[:40]}; this version reads {FORMAT}")
    try:
        manifest = Manifest(
            **{name: fields[name] for name in Manifest._fields if name != "task"}, task=fields.get("task", 0)
        )  # the first ones had none
    except KeyError as error:
        raise BadFileError(f"its manifest lacks {error.args[0]}") from None
    counts = [manifest.session, manifest.step, manifest.task, manifest.created_realtime_ns, manifest.parent_step or 0]
    sound = all(type(count) is int and count >= 0 for count in counts) and type(manifest.run_uuid) is str
    if not sound or type(manifest.best) is not bool or type(manifest.best_value) not in (float, type(None)):
        raise BadFileError("its manifest has a value of a wrong type")
    return manifest


def names_in(root: int) -> list[tuple[str, int]]:
    """Name and step of what may be a checkpoint: the committed ones, then any that was moved aside for one that never
    came.
    """
    aside = [(hidden.name, hidden.target) for hidden in atomic.list_hidden(root) if hidden.kind == "replaced"]
    found = []
    for name, target in [(name, name) for name in atomic.list_names(root)] + aside:
        match = STEP_NAME.fullmatch(target)
        if match and target == f"step-{int(match.group(1)):012d}":
            found.append((name, int(match.group(1))))
    return found


def in_order(candidates: list[Candidate], which: str | int) -> list[Candidate]:
    """Candidates in the order in which to try them; those without a manifest stand where they will be reported if they
    were passed over.
    """
    last_session = max((candidate.manifest.session for candidate in candidates if candidate.manifest), default=0)

    def age(candidate: Candidate) -> tuple[int, int]:
        return (candidate.manifest.session if candidate.manifest else last_session, candidate.step)

    def value(candidate: Candidate) -> tuple[float, float]:
        if candidate.manifest is None:
            return math.inf, math.inf
        known = candidate.manifest.best_value
        return candidate.manifest.task, -math.inf if known is None else known

    if which == "best":
        marked = [candidate for candidate in candidates if candidate.manifest is None or candidate.manifest.best]
        return sorted(marked, key=lambda candidate: (*value(candidate), age(candidate)), reverse=True)
    return sorted(candidates, key=age, reverse=True)
