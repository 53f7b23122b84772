"""Suggestions for mistyped names, and the messages about unknown environments. Standard library only."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from operant.text import safe

_LIKE = 0.6  # least similarity of a suggestion, from 0 to 1
_CLOSE = 0.1  # most that a further suggestion is less similar than the first
_PART = 4  # least number of letters of a part of a name that suggests the name


def plain_name(name: str) -> str:
    """Return a name in lower case without separators and version, for comparison: `MountainCarContinuous-v0` and
    `mountain_car_continuous` are equal.
    """
    return re.sub(r"[-_:/]", "", re.sub(r"-v\d+$", "", name).lower())


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that is closest to a mistyped name, compared without case and separators; None if none
    is close.
    """
    plain = {plain_name(other): other for other in names}
    matches = difflib.get_close_matches(plain_name(name[:100]), plain, n=1, cutoff=_LIKE)
    return plain[matches[0]] if matches else None


def suggestions(name: str, names: Iterable[str], *, most: int = 3) -> list[str]:
    """Return the names to suggest for a mistyped one, the closest first: those about as similar as the closest, or
    without similar ones those that contain the name. Compared like `nearest`.
    """
    wanted, plain = plain_name(name[:100]), {plain_name(other): other for other in names}
    matches = difflib.get_close_matches(wanted, plain, n=most, cutoff=_LIKE)
    if not matches:
        return sorted(plain[other] for other in plain if len(wanted) >= _PART and wanted in other)[:most]
    likeness = [difflib.SequenceMatcher(None, other, wanted).ratio() for other in matches]
    return [plain[other] for other, ratio in zip(matches, likeness, strict=True) if ratio > likeness[0] - _CLOSE]


def did_you_mean(*names: str | None) -> str:
    """Return the end of a message that suggests names, such as " - did you mean 'ppo'?"; "" for None or no name."""
    given = [repr(name) for name in names if name]
    if not given:
        return ""
    return f" - did you mean {' or '.join([', '.join(given[:-1]), given[-1]] if len(given) > 1 else given)}?"


def unknown_environment(name: str, names: Iterable[str], *, others: str, suggested: str | None = None) -> str:
    """Return the message about an unknown environment. `names`: those that ship; `others`: the other texts that are
    accepted; `suggested`: the name that is meant, if it is none of `names`.
    """
    if name.startswith("gym:"):
        suggested = f"gymnasium:{name.removeprefix('gym:')}"
    near = did_you_mean(suggested) or did_you_mean(*suggestions(name, names)) or "."
    return f"unknown environment {safe(name, 80)!r}{near} All names: operant envs. Also accepted: {others}"


def configuration_given(file: str, expected: str = "an environment") -> str:
    """Return the message about a configuration that was given in place of something else."""
    file = safe(file, 400)
    return (
        f"{file!r} is a configuration, not {expected}. Train it: operant train --config {file}. Check it: operant "
        f"config check {file}"
    )
