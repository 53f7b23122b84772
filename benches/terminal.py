"""A program in a pseudo-terminal: its output, timing and cost. For benches and tests.

Linux; needs psutil and, for `screen`, pyte. Independent of Operant.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

_ESCAPES = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[PX^_].*?\x1b\\|\x1b[@-Z\\-_]", re.DOTALL
)
# What full-screen programs ask a terminal, and what one answers: where the cursor is, its colours, what it is.
_ANSWERS = (
    (b"\x1b[6n", b"\x1b[1;1R"),
    (b"\x1b]11;?", b"\x1b]11;rgb:0000/0000/0000\x1b\\"),
    (b"\x1b]10;?", b"\x1b]10;rgb:ffff/ffff/ffff\x1b\\"),
    (b"\x1b[c", b"\x1b[?62;c"),
)


class Terminal:
    """Program in a pseudo-terminal of `columns` x `rows`. `output` holds everything it wrote; `ended` is set once it
    has closed its side.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        columns: int = 160,
        rows: int = 48,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.columns, self.rows = columns, rows
        variables = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **(environment or {})}
        for name in {"NO_COLOR", "COLUMNS", "LINES"} - set(environment or ()):
            variables.pop(name, None)
        self.began = time.perf_counter()
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            # The size is set before the program starts: it would else see the terminal change under it.
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.chdir(folder)
            os.execvpe(command[0], list(command), variables)
        self.output, self.ended = bytearray(), False
        self._screen: Any = None  # pyte's, once somebody looks
        self._drawn = 0

    def read(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Read for `seconds`, or until a condition holds (checked after output and ten times per second); returns
        whether it held.
        """
        end = time.perf_counter() + seconds
        while not (held := until()) and not self.ended and (left := end - time.perf_counter()) > 0:
            if not select.select([self.descriptor], [], [], min(left, 0.1))[0]:
                continue
            try:
                data = os.read(self.descriptor, 65536)
            except OSError:
                data = b""
            self.ended = not data
            for question, answer in _ANSWERS:
                if question in data:
                    with contextlib.suppress(OSError):
                        os.write(self.descriptor, answer)
            self.output += data
        return held or until()

    def text(self, first: int = 0) -> bytes:
        """Output from byte `first` on, without escape sequences."""
        return _ESCAPES.sub(b" ", bytes(self.output[first:]))

    def screen(self) -> list[str]:
        """Current lines of the screen."""
        import pyte

        if self._screen is None:
            self._screen, self._drawn = pyte.Screen(self.columns, self.rows), 0
            self._stream = pyte.ByteStream(self._screen)
        # What is new, up to the last whole escape sequence. pyte prints what it does not know: a private CSI with '<'
        # or '>' is nothing to be seen.
        new = bytes(self.output[self._drawn :])
        if (escape := new.rfind(b"\x1b")) >= 0 and not _ESCAPES.match(new, escape):
            new = new[:escape]
        self._stream.feed(re.sub(rb"\x1b\[[<>=][0-9;]*[A-Za-z]", b"", new))
        self._drawn += len(new)
        # Not pyte's `display`, which fails where half of a wide character has been written over.
        return ["".join(self._screen.buffer[y][x].data for x in range(self.columns)) for y in range(self.rows)]

    def shows(self, words: str) -> bool:
        """Whether some line of the screen contains the words."""
        return any(words in line for line in self.screen())

    def press(self, keys: str) -> None:
        """Send keys."""
        os.write(self.descriptor, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Resize the window. Discards earlier output, which was laid out for another size."""
        self.columns, self.rows = columns, rows
        self.output.clear()
        self._screen = None
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def processes(self) -> list[psutil.Process]:
        """The program and all its descendants."""
        try:
            own = psutil.Process(self.pid)
            return [own, *own.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        return sum(times.user + times.system for times in (process.cpu_times() for process in self.processes()))

    def memory_mb(self) -> float:
        """Resident memory of all processes, 10^6 bytes."""
        return sum(process.memory_info().rss for process in self.processes()) / 1e6

    def vanish(self) -> None:
        """Close the terminal under the program, like a dropped connection."""
        os.close(self.descriptor)
        self.descriptor = -1

    def wait(self, seconds: float) -> int | None:
        """Exit code within the time limit (negative for a signal), or None."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            if self.descriptor >= 0:
                self.read(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = -1
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        return None

    def close(self) -> None:
        """End the program unconditionally."""
        if self.pid > 0:
            for process in self.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = -1
        if self.descriptor >= 0:
            self.vanish()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
