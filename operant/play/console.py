"""A terminal that a program has for itself for a while: keys one at a time, a screen of its own, and all as it was found afterwards. Standard library only.

Knows nothing of what is shown. It is put back whatever happens: an error, Ctrl-C, SIGTERM, a closed window.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any, Final

from operant.errors import UsageError

SMALLEST = (24, 8)
"""Columns and lines that a picture and its words need."""

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[0m\x1b[?25h\x1b[?1049l"
_ESCAPE_S = 0.05  # how long the rest of a key's bytes may take; then it was the escape key
_NAMES: Final[Mapping[bytes, str]] = {
    b"A": "up", b"B": "down", b"C": "right", b"D": "left",
    b" ": "space", b"\r": "enter", b"\n": "enter", b"\t": "tab", b"\x7f": "backspace", b"\x08": "backspace",
}  # fmt: skip
_KEY = re.compile(rb"\x1b(?:\[|O)([0-9;?<>=]*)([@-~])|\x1b([^\x1b\[O])|([\x00-\x1a\x1c-\x7f])|[\x80-\xff]+", re.DOTALL)


class TerminalGoneError(Exception):
    """The terminal is closed: there is nobody to show anything to."""


def keys_in(data: bytes, complete: bool = True) -> tuple[list[str], bytes]:
    """The keys in what a terminal sent, and the bytes that may be the beginning of one more (none if `complete`: nothing follows).

    Arrows, space, enter, tab, backspace and esc have names; what is printable in ASCII is itself. Anything else is no key: other function keys, Alt with a
    key, characters beyond ASCII.
    """
    keys: list[str] = []
    while data:
        found = _KEY.match(data)
        if found is None:  # begins with an escape, and ends too soon
            if not complete:
                return keys, data
            keys.append("esc")
            data = data[1:] if data[1:2] in (b"", b"\x1b") else b""
            continue
        data = data[found.end() :]
        if found[2] is not None:
            keys += [_NAMES[found[2]]] if found[2] in b"ABCD" and not found[1] else []
        elif found[4] is not None:
            if found[4] in _NAMES and found[4] not in b"ABCD":
                keys.append(_NAMES[found[4]])
            elif found[4] > b" ":
                keys.append(found[4].decode())
    return keys, b""


def require(what: str) -> None:
    """Raise UsageError where `what` (such as "--render term") could not be shown."""
    streams = (sys.__stdin__, sys.__stdout__)
    present = False
    with contextlib.suppress(AttributeError, ValueError, OSError):
        present = all(stream is not None and stream.isatty() for stream in streams)
    if not present or os.environ.get("TERM", "") in ("", "dumb"):
        raise UsageError(f"{what} needs a terminal, as input and output")
    columns, lines = size()
    if columns < SMALLEST[0] or lines < SMALLEST[1]:
        raise UsageError(f"terminal is {columns}×{lines}; {what} needs {SMALLEST[0]}×{SMALLEST[1]}")


def size() -> tuple[int, int]:
    """Columns and lines of the terminal as it is now."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        columns, lines = os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
        if columns and lines:
            return columns, lines
    return 80, 24


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """While inside, SIGTERM and SIGHUP end the process as an exception does, so that everything is put back: SystemExit with 128 and the signal's number."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


class Console:
    """The terminal of stdin and stdout, while it is entered. Every method raises TerminalGoneError once it is closed."""

    def __init__(self) -> None:
        assert sys.__stdin__ is not None and sys.__stdout__ is not None
        self._input, self._output = sys.__stdin__.fileno(), sys.__stdout__.fileno()
        self._encoding = sys.__stdout__.encoding or "ascii"
        self._data, self._keys = b"", list[str]()
        self._found: list[Any] = []
        self._order = ended_in_order()

    @property
    def encoding(self) -> str:
        """Of what is written."""
        return self._encoding

    def __enter__(self) -> Console:
        self._order.__enter__()
        try:
            self._found = termios.tcgetattr(self._input)
            tty.setcbreak(self._input)
            mode = termios.tcgetattr(self._input)
            mode[6][termios.VSUSP] = b"\0"  # Ctrl-Z would leave a shell on this screen
            termios.tcsetattr(self._input, termios.TCSANOW, mode)
            self.write(_ENTER)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(TerminalGoneError):
            self.write(_LEAVE)
        with contextlib.suppress(termios.error):
            if self._found:
                termios.tcsetattr(self._input, termios.TCSAFLUSH, self._found)  # what was typed since is not for the shell
        self._order.__exit__(kind, error, trace)

    def write(self, text: str) -> None:
        """Send text, all of it."""
        data = text.encode(self._encoding, "replace")
        try:
            while data:
                data = data[os.write(self._output, data) :]
        except OSError:
            raise TerminalGoneError from None

    def key(self, timeout_s: float | None) -> str | None:
        """The next key (see `keys_in`), waited for so long (None: for ever); None where there was none."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._keys:
            left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
            wait_s = _ESCAPE_S if self._data else left_s
            if select.select([self._input], [], [], wait_s)[0]:
                self._keys, self._data = keys_in(self._data + self._read(), complete=False)
            elif self._data:
                self._keys, self._data = keys_in(self._data)
            if not self._keys and not self._data and end_s is not None and time.monotonic() >= end_s:
                return None
        return self._keys.pop(0)

    def forget(self) -> None:
        """Drop what was typed so far: it was meant for nothing that could be seen. Ctrl-C is a signal, and not dropped."""
        self._data, self._keys = b"", []
        with contextlib.suppress(termios.error):  # closed: whoever reads next is told
            termios.tcflush(self._input, termios.TCIFLUSH)

    def _read(self) -> bytes:
        try:
            data = os.read(self._input, 1024)
        except OSError:
            data = b""
        if not data:
            raise TerminalGoneError
        return data
