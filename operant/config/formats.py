"""Format number of recorded configurations, and migrations from earlier formats. Standard library only.

Configurations that Operant writes (of a run, a checkpoint, a sweep) carry `format = N`. When the meaning or default of
a key changes, N grows by one and `_TO_NEXT` gets a function that converts tables of the previous format. A recorded
configuration without a number has format 1. A configuration written by a person needs no number and is not converted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

log = logging.getLogger("operant.config")

KEY: Final = "format"
NUMBER: Final = 3


def to_current_format(tables: dict[str, Any], *, recorded: bool) -> str | None:
    """Remove the `format` number from the tables of a configuration and convert them in place to the current format.
    Returns None, or an error message for an invalid or later number. `recorded`: Operant wrote the tables, so that a
    missing number means format 1; otherwise the current one.
    """
    number = tables.pop(KEY, 1 if recorded else NUMBER)
    if type(number) is not int or number < 1:
        return f"the format of a recorded configuration is a whole number of 1 to {NUMBER}"
    if number > NUMBER:
        return (
            f"a later version of Operant wrote this: its format is {number}, and this version reads formats up to "
            f"{NUMBER}. Update Operant"
        )
    for before in range(number, NUMBER):
        _TO_NEXT[before](tables)
    return None


def _to_2(tables: dict[str, Any]) -> None:
    """Convert tables of format 1 in place: remove frame_skip = frame_stack = 1, its default, which meant 4 for Atari
    games.

    In format 2 a 1 means 1, and an unset key selects the usual value.
    """
    env = tables.get("env")
    if isinstance(env, dict) and {"frame_skip", "frame_stack"} <= env.keys():
        for key in ("frame_skip", "frame_stack"):
            if env[key] == 1:
                del env[key]


def _to_3(tables: dict[str, Any]) -> None:
    """Convert tables of format 2 in place: remove `exploration = "ladder"` and `replay_sampling = "age"`, two deleted
    features.
    """
    algo = tables.get("algo")
    if not isinstance(algo, dict):
        return
    for key, removed in (("exploration", "ladder"), ("replay_sampling", "age")):
        if algo.get(key) == removed:
            log.warning(
                'recorded with algo.%s = "%s", which this version does not have: a resume uses the default',
                key,
                removed,
            )
            del algo[key]
    for key in ("exploration", "ladder_base", "ladder_exponent", "age_power"):
        algo.pop(key, None)


_TO_NEXT: Final[dict[int, Callable[[dict[str, Any]], None]]] = {1: _to_2, 2: _to_3}
