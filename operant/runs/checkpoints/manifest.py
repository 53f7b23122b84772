"""Manifests of checkpoints: fields, candidates in a folder, and the order to try them. Standard library only.

The module writes no file.
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
    """Fields of a checkpoint's manifest, with checked types. `best_value` is a number only if `best`."""

    run_uuid: str
    session: int
    step: int
    parent_step: int | None
    best: bool
    best_value: float | None
    # first session with this environment and reward: returns of earlier ones are not comparable
    task: int
    created_realtime_ns: int


class Candidate(NamedTuple):
    """Entry of the checkpoint folder that may be a checkpoint: its `manifest`, or None and the reason in `problem`."""

    name: str
    step: int
    manifest: Manifest | None
    problem: str
    foreign: bool  # of another run

    def newer_than(self, other: Candidate) -> bool:
        """Whether this checkpoint is later in the run than `other`: by session, then step; by step alone if a session
        is unknown.
        """
        if self.manifest is None or other.manifest is None:
            return self.step > other.step
        return (self.manifest.session, self.step) > (other.manifest.session, other.step)


class ForeignError(BadFileError):
    """Raised if a checkpoint belongs to another run."""


def read_manifest(fields: Mapping[str, Any]) -> Manifest:
    """Check the types of a manifest's `fields` and return them as a Manifest. Raises BadFileError for another format or
    a wrong type.
    """
    if fields.get("format") != FORMAT:
        raise BadFileError(f"format {ascii(fields.get('format'))[:40]}; this version reads format {FORMAT}")
    try:
        manifest = Manifest(
            **{name: fields[name] for name in Manifest._fields if name != "task"}, task=fields.get("task", 0)
        )  # absent in the first runs
    except KeyError as error:
        raise BadFileError(f"the manifest lacks {error.args[0]}") from None
    counts = [manifest.session, manifest.step, manifest.task, manifest.created_realtime_ns, manifest.parent_step or 0]
    is_valid = all(type(count) is int and count >= 0 for count in counts) and type(manifest.run_uuid) is str
    if not is_valid or type(manifest.best) is not bool or type(manifest.best_value) not in (float, type(None)):
        raise BadFileError("the manifest has a value of a wrong type")
    return manifest


def names_in(root: int) -> list[tuple[str, int]]:
    """Return name and step of each possible checkpoint in the open folder `root`: committed folders, then folders that
    were replaced but whose successor is missing.
    """
    aside = [(hidden.name, hidden.target) for hidden in atomic.list_hidden(root) if hidden.kind == "replaced"]
    names = []
    for name, target in [(name, name) for name in atomic.list_names(root)] + aside:
        match = STEP_NAME.fullmatch(target)
        if match and target == f"step-{int(match.group(1)):012d}":
            names.append((name, int(match.group(1))))
    return names


def in_load_order(candidates: list[Candidate], which: str | int) -> list[Candidate]:
    """Sort checkpoint candidates in the order in which to try them for `which` ("last", "best" or a step). Those
    without a manifest come where a valid one of their step would, so that skipping them is reported.
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
