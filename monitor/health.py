"""Is training well? Sentences from a run's recent numbers. Standard library only. Pure."""

from __future__ import annotations

from typing import NamedTuple

from monitor.model import Known
from monitor.series import Window
from monitor.snapshot import Finding, System


class Circumstances(NamedTuple):
    """What the rules need beside the recent numbers."""

    share: float | None = None


def circumstances(known: Known, system: System | None, step: float | None = None) -> Circumstances:
    """Of a run, now or at a step."""
    return Circumstances()


def findings(recent: Window, now: Circumstances) -> tuple[Finding, ...]:
    """What there is to say, the gravest first."""
    return ()
