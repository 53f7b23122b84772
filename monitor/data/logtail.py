"""Follows the end of a run's log.txt, in bounded steps and bounded memory. Standard library only. Knows nothing of what the lines say but how errors begin."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from monitor.data.snapshot import Level, LogLine
from operant.text import safe

SESSION_MARK: Final = "operant: session started "
"""How the line begins that stands before all that one worker prints."""
_FIRST_BYTES, _STEP_BYTES, _LINE_BYTES, _CELLS = 1 << 16, 1 << 18, 1 << 14, 400
_KEPT, _LAST_LINES, _ERROR_LINES = 1000, 20, 60
_CLOCK = re.compile(r"(\d\d:\d\d:\d\d) (.*)")


class LogTail:
    """The newest lines of a log; `poll` reads what was added. Survives a log that is absent, truncated, replaced, or no regular file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place, self._inode, self._rest = 0, 0, b""
        self._size = -1
        self.lines: deque[LogLine] = deque(maxlen=_KEPT)

    def poll(self) -> list[LogLine]:
        """The lines that are new since the last call, printable; of a flood only the end. Costs one `stat` while nothing is added."""
        try:
            found = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return []
        if (found.st_ino, found.st_size) == (self._inode, self._size):
            return []
        first = found.st_ino != self._inode or found.st_size < self._place
        if first:
            self._place, self._rest = max(0, found.st_size - _FIRST_BYTES), b""
        skipped = max(0, found.st_size - self._place - _STEP_BYTES)
        new: list[LogLine] = []
        if skipped:
            self._place, self._rest = found.st_size - _FIRST_BYTES, b""
            new.append(LogLine("", "warn", f"… {skipped >> 10} KiB of the log are left out here: operant logs shows all of it"))
        raw = self._read(found.st_size - self._place)
        if raw is None:
            return []
        self._inode, self._size = found.st_ino, self._place + len(raw)
        cut = (first and self._place > 0) or skipped
        self._place += len(raw)
        *whole, rest = (self._rest + raw).split(b"\n")
        if cut and whole:
            del whole[0]  # it begins before what was read
        self._rest = rest[-_LINE_BYTES:]
        new += [_line(line[:_LINE_BYTES]) for line in whole]
        self.lines.extend(new)
        return new

    def _read(self, size: int) -> bytes | None:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return os.pread(descriptor, size, self._place)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def last_words(self) -> tuple[str, ...]:
        """What the last worker said of its end: from its last traceback or line that begins with `error: ` on, or else its last 20 lines."""
        texts = [_joined(line) for line in self.lines]
        if self._rest.strip():
            texts.append(_text(self._rest))
        begins = _last(texts, (SESSION_MARK,))
        texts = texts[begins + 1 :] if begins is not None else texts
        error = _last(texts, ("error: ", "Traceback (most recent call last)"))
        texts = texts[error:] if error is not None else texts[-_LAST_LINES:]
        return tuple(texts[:20] + texts[-_ERROR_LINES + 20 :] if len(texts) > _ERROR_LINES else texts)


def _last(texts: Sequence[str], openings: tuple[str, ...]) -> int | None:
    return next((index for index in range(len(texts) - 1, -1, -1) if texts[index].startswith(openings)), None)


def _text(line: bytes) -> str:
    return safe(line.decode("utf-8", "replace"), _CELLS)


def _line(raw: bytes) -> LogLine:
    text = _text(raw)
    found = _CLOCK.match(text)
    clock, said = (found[1], found[2]) if found else ("", text)
    level: Level = "bad" if said.startswith(("error: ", "Traceback (")) else "ok"
    return LogLine(clock, level, said)


def _joined(line: LogLine) -> str:
    return f"{line.clock} {line.text}" if line.clock else line.text
