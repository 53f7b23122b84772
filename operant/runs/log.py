"""Log of a run, log.txt: all lines, the last ones, or those added while the run lives. Standard library only."""

from __future__ import annotations

import os
import re
import stat
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from operant.errors import NotFoundError
from operant.runs import folder as runfolder
from operant.runs import states
from operant.runs.folder import Run
from operant.text import safe

SESSION_MARK: Final = "operant: session started "
"""Beginning of the line in log.txt before the output of each worker."""
LEFT_OUT: Final = "… left out here: "
"""Beginning of the line that stands for skipped output in a `Tail`."""
_MOST_BYTES, _MOST_CELLS = 8 << 20, 4000  # limits of a whole log and of its lines
_END_BYTES, _STEP_BYTES, _LINE_BYTES, _END_CELLS = 1 << 16, 1 << 18, 1 << 14, 1000
_KEPT, _LAST_LINES, _ERROR_LINES = 1000, 20, 60
_POLL_S = 0.2
_CLOCK: Final = re.compile(r"([0-9]{2}:[0-9]{2}:[0-9]{2}) (.*)")


class Tail:
    """Reader of the newest lines of a log file, kept in `lines`. `poll` reads what was added, in bounded steps and
    memory.

    Works on a log that is absent, truncated, replaced, or not a regular file. Begins `first_bytes` before the end; if
    more than `step_bytes` were added between two calls, it reads only the end.
    """

    def __init__(
        self, path: Path, *, first_bytes: int = _END_BYTES, step_bytes: int = _STEP_BYTES, cells: int = _END_CELLS
    ) -> None:
        self._path, self._first_bytes, self._step_bytes, self._cells = path, first_bytes, step_bytes, cells
        self._offset, self._inode, self._rest = 0, 0, b""
        self._size = -1
        self.lines: deque[str] = deque(maxlen=_KEPT)

    @property
    def rest(self) -> str:
        """Last line of the log while it is incomplete; printable."""
        return self._text(self._rest)

    def poll(self) -> list[str]:
        """Return the printable lines added to the log since the last call. Costs one `stat` if nothing was added."""
        try:
            stats = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return []
        if (stats.st_ino, stats.st_size) == (self._inode, self._size):
            return []
        first = stats.st_ino != self._inode or stats.st_size < self._offset
        if first:
            self._offset, self._rest = max(0, stats.st_size - self._first_bytes), b""
        skipped = max(0, stats.st_size - self._offset - max(self._step_bytes, self._first_bytes))
        new: list[str] = []
        if skipped:
            self._offset, self._rest = stats.st_size - self._first_bytes, b""
            new.append(f"{LEFT_OUT}{skipped >> 10} KiB; all of it is in log.txt")
        raw = self._read(stats.st_size - self._offset)
        if raw is None:
            return []
        self._inode, self._size = stats.st_ino, self._offset + len(raw)
        cut = (first and self._offset > 0) or skipped
        self._offset += len(raw)
        *whole, rest = (self._rest + raw).split(b"\n")
        if cut and whole:
            del whole[0]  # incomplete: begins before the bytes that were read
        self._rest = rest[-_LINE_BYTES:]
        new += map(self._text, whole)
        self.lines.extend(new)
        return new

    def _text(self, line: bytes) -> str:
        """Return a line as printable text, cut to the limit of cells."""
        return safe(line[:_LINE_BYTES].decode("utf-8", "replace"), self._cells)

    def _read(self, size: int) -> bytes | None:
        """Read `size` bytes of the log from the present offset; None if it cannot be read."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return os.pread(descriptor, size, self._offset)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def last_words(self) -> tuple[str, ...]:
        """Return the last worker's output about its end, at most 60 lines: from its last traceback or `error: ` line
        on, else its last 20 lines.
        """
        texts = [*self.lines, *([self.rest] if self._rest.strip() else [])]
        begins = _last_index(texts, (SESSION_MARK,))
        texts = texts[begins + 1 :] if begins is not None else texts
        error = _last_index(texts, ("error: ", "Traceback (most recent call last)"))
        texts = texts[error:] if error is not None else texts[-_LAST_LINES:]
        return tuple(texts[:20] + texts[-_ERROR_LINES + 20 :] if len(texts) > _ERROR_LINES else texts)


def _last_index(texts: Sequence[str], openings: tuple[str, ...]) -> int | None:
    """Return the index of the last text that begins with one of `openings`; None without one."""
    return next((index for index in range(len(texts) - 1, -1, -1) if texts[index].startswith(openings)), None)


def clock_and_text(line: str) -> tuple[str | None, str]:
    """Split a log line into the local time of day at its beginning (None without one) and its text."""
    match = _CLOCK.fullmatch(line)
    return (match[1], match[2]) if match else (None, line)


def lines(run: Run, *, tail: int = 0, follow: bool = False) -> Iterator[str]:
    """Yield the printable lines of a run's log: the last `tail`, or all (0); with `follow` also those that are added
    until the run has ended.

    Raises NotFoundError if there is no log.
    """
    try:
        descriptor = os.open(run.log_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        os.close(descriptor)
    except OSError as error:
        raise NotFoundError(f"cannot read the log of {safe(run.id)} ({error.strerror})") from None
    if not regular:
        raise NotFoundError(f"cannot read the log of {safe(run.id)} (log.txt is not a regular file)")
    log = Tail(run.log_path, first_bytes=_MOST_BYTES, cells=_MOST_CELLS)
    new = log.poll()
    if not follow and log.rest:
        new.append(log.rest)
    yield from new[-tail:] if tail else new
    while follow:
        over = _has_ended(run)  # checked before the last read, so that no line is missed
        new = log.poll()
        yield from new
        if over:
            if log.rest:
                yield log.rest
            return
        if not new:
            time.sleep(_POLL_S)


def document(line: str) -> dict[str, Any]:
    """Return a log line as `operant logs --json` prints it: local time of day or null, and text."""
    clock, text = clock_and_text(line)
    return {"schema": 1, "clock": clock, "text": text}


def _has_ended(run: Run) -> bool:
    """Whether the run has ended and its lock is free."""
    document = runfolder.read_json(run.path / "run.json") or run.document
    return not runfolder.probe(run.path) and states.state(run._replace(document=document)).ended


def log_end(run: Run) -> str:
    """Return the end of a run's log (`Tail.last_words`) as one printable string; "" without a log."""
    log = Tail(run.log_path)
    log.poll()
    return "\n".join(log.last_words())
