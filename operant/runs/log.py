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
_LOG_TAIL_BYTES, _LOG_LINES, _ERROR_LINES = 65536, 20, 60
SESSION_MARK = "operant: session started "
"""How the line of log.txt begins that stands before all that one worker prints."""
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


def log_end(run: Run) -> str:
    """What log.txt says of the last worker's end: from its last line that begins with `error: ` on, or else its last 20 lines; printable."""
    try:
        descriptor = os.open(run.log_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        raw = os.pread(descriptor, _LOG_TAIL_BYTES, max(0, os.fstat(descriptor).st_size - _LOG_TAIL_BYTES))
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    lines = raw.decode("utf-8", "replace").rstrip().split("\n")
    begins = [index for index, line in enumerate(lines) if line.startswith(SESSION_MARK)]
    lines = lines[begins[-1] + 1 :] if begins else lines
    errors = [index for index, line in enumerate(lines) if line.startswith("error: ")]
    lines = lines[errors[-1] :][:_ERROR_LINES] if errors else lines[-_LOG_LINES:]
    return safe("\n".join(lines), 400, lines=True)
