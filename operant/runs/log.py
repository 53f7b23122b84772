"""Reads a run's log.txt, to its end or for as long as the run lives. Standard library only. Knows nothing of what the lines say."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import Any, Final

from operant.errors import NotFoundError
from operant.runs import folder as runfolder
from operant.runs import states
from operant.runs.folder import Run
from operant.text import safe

_MOST_BYTES = 8 << 20  # of a log that is shown
_POLL_S = 0.2
_CLOCK: Final = re.compile(r"([0-9]{2}:[0-9]{2}:[0-9]{2}) (.*)")


def lines(run: Run, *, tail: int = 0, follow: bool = False) -> Iterator[str]:
    """The log's lines, printable, the last `tail` or all (0); with `follow` also those that come, until the run has ended.

    Raises NotFoundError where there is no log.
    """
    try:
        descriptor = os.open(run.log_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NotFoundError(f"{safe(run.id)} has no log that can be read ({error.strerror})") from None
    with open(descriptor, "rb") as file:
        file.seek(max(0, os.fstat(descriptor).st_size - _MOST_BYTES))
        *whole, rest = file.read(_MOST_BYTES).split(b"\n")
        if not follow and rest:
            whole.append(rest)
        yield from map(_text, whole[-tail:] if tail else whole)
        while follow:
            over = _has_ended(run)  # asked before the last look, or the last lines would be missed
            *whole, rest = (rest + file.read(_MOST_BYTES)).split(b"\n")
            yield from map(_text, whole)
            if over:
                if rest:
                    yield _text(rest)
                return
            if not whole:
                time.sleep(_POLL_S)


def document(line: str) -> dict[str, Any]:
    """A line as `operant logs --json` prints it: the trainer's local time of day, null where the line has none, and the text."""
    found = _CLOCK.fullmatch(line)
    return {"schema": 1, "clock": found[1], "text": found[2]} if found else {"schema": 1, "clock": None, "text": line}


def _has_ended(run: Run) -> bool:
    document = runfolder.read_json(run.path / "run.json") or run.document
    return not runfolder.probe(run.path) and states.state(run._replace(document=document)).ended


def _text(line: bytes) -> str:
    return safe(line.decode("utf-8", "replace"), 4000)
