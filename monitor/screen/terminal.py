"""The connection to the terminal: the monitor ends with its terminal, and writes few bytes to it.

Textual 8.2.8 loops without end on an input that has reached its end, and a process whose parent ignores SIGHUP gets no
signal when its terminal is gone. So a handler of SIGHUP is installed, and a thread that sleeps in `poll` waits for the
terminal to hang up. Knows nothing of runs.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

from textual.drivers.linux_driver import LinuxDriver

from monitor.screen.diff_renderer import DiffRenderer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.app import App

GONE_CODE = 128 + signal.SIGHUP
"""The exit code that a shell reports for a program killed by SIGHUP."""
_GRACE_S = 2.0


class QuietDriver(LinuxDriver):
    """Writes only the cells that change, by the app's `renderer`.

    Asks the terminal for clicks and the wheel, not for every movement of the mouse: each would be input to read, and a
    line of bytes over SSH.
    """

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        self._renderer: DiffRenderer = getattr(app, "renderer", None) or DiffRenderer()
        self._suspended = False

    def write(self, data: str) -> None:
        """Write what is drawn, in fewer bytes."""
        if shorter := self._renderer.shorten(data):
            super().write(shorter)

    def _sigtstp_application(self, *_: object) -> None:
        """Stop the whole job, as a terminal does at ctrl+z: a shell waits for what it started, such as `uv run`, not
        for what that started.
        """
        if self._auto_restart:
            self.suspend_application_mode()
            self._suspended = True
        os.kill(0, signal.SIGSTOP)

    def _sigcont_application(self, *_: object) -> None:
        """Take the terminal again and draw everything, also where SIGSTOP came without a word before and the shell has
        written since.
        """
        if not self._auto_restart:
            return
        if self._in_background():
            os.kill(0, signal.SIGSTOP)  # until it is brought to the foreground
            return
        if not self._suspended:
            self.suspend_application_mode()
        self._must_signal_resume = True
        self.resume_application_mode()
        self._suspended = False

    def _in_background(self) -> bool:
        try:
            return os.tcgetpgrp(self.fileno) != os.getpgrp()
        except OSError:
            return False  # no terminal, or not this session's

    def _enable_mouse_support(self) -> None:
        if self._mouse:
            self.write("\x1b[?1000h\x1b[?1015h\x1b[?1006h")
            self.flush()

    def _disable_mouse_support(self) -> None:
        if self._mouse:
            self.write("\x1b[?1000l\x1b[?1015l\x1b[?1006l")
            self.flush()


@contextlib.contextmanager
def tied_to_terminal(app: App[None]) -> Iterator[None]:
    """While inside, the process ends with its terminal; SIGHUP and SIGTERM leave the screen as it was found, where that
    takes no longer than two seconds.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one ends at once
        last = threading.Timer(_GRACE_S, os._exit, (128 + number,))
        last.daemon = True
        last.start()
        app.exit(return_code=128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGHUP, signal.SIGTERM)}
    threading.Thread(
        target=_end_with,
        args=(sys.__stdin__.fileno(),) if sys.__stdin__ is not None else (0,),
        name="terminal",
        daemon=True,
    ).start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _end_with(descriptor: int) -> None:
    """Wait until the terminal hangs up, and end the process: the monitor holds nothing that would have to be saved."""
    waiting = select.poll()
    waiting.register(descriptor, 0)  # hang-up and error are always reported
    while not any(events & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, events in waiting.poll()):
        pass
    os._exit(GONE_CODE)
