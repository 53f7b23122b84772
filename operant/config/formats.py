"""The format of a recorded configuration, and what one of an earlier format meant: the one place that knows. Standard
library only; knows no file.

What Operant writes down (a run's config.toml, a checkpoint's, a sweep's) carries `format = N`. Where a key's meaning or
default changes, N grows by one, and `_TO_NEXT` gets the function that turns tables of before into tables that mean the
same now. What was recorded without a number is of format 1. A configuration that a person writes needs none and is read
as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

log = logging.getLogger("operant.config")

KEY: Final = "format"
NUMBER: Final = 3


def take(tables: dict[str, Any], *, recorded: bool) -> str | None:
    """Turn tables into what they mean today, in place and without their number; a sentence where that cannot be done.

    `recorded`: Operant wrote them down.
    """
    number = tables.pop(KEY, 1 if recorded else NUMBER)
    if type(number) is not int or number < 1:
        return f"the format of a recorded configuration is a whole number of 1 to {NUMBER}"
    if number > NUMBER:
        return (
            f"a later version of Operant wrote this: its format is {number}, and this version reads those up to "
            f"{NUMBER}. Update Operant"
        )
    for before in range(number, NUMBER):
        _TO_NEXT[before](tables)
    return None


def _to_2(tables: dict[str, Any]) -> None:
    """A 1 was the default of both keys, stood in every file, and meant what is usual: 4 in an Atari game. Now it means
    1, and no value the usual.
    """
    env = tables.get("env")
    if isinstance(env, dict) and {"frame_skip", "frame_stack"} <= env.keys():
        for key in ("frame_skip", "frame_stack"):
            if env[key] == 1:
                del env[key]


def _to_3(tables: dict[str, Any]) -> None:
    """Drop keys that were removed: sampling by age, and an epsilon of its own for each lane."""
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
