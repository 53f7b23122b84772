"""Terminal connection: the monitor exits with its terminal and writes few bytes to it.

Textual 8.2.8 loops forever on an input at end of file, and a process whose parent ignores SIGHUP gets no signal when
its terminal is closed. Therefore a SIGHUP handler is installed, and a thread sleeps in `poll` until the terminal hangs
up.
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
"""Exit code that a shell reports for a program killed by SIGHUP."""
_GRACE_S = 2.0


class QuietDriver(LinuxDriver):
    """Textual driver that writes only changed cells to the terminal, through the app's `renderer`.

    Requests clicks and the wheel from the terminal but no mouse movement, which would be sent for every cell.
    """

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        self._renderer: DiffRenderer = getattr(app, "renderer", None) or DiffRenderer()
        self._suspended = False

    def write(self, data: str) -> None:
        """Write Textual's output `data` to the terminal in fewer bytes with the same effect."""
        if shorter := self._renderer.shorten(data):
            super().write(shorter)

    def _sigtstp_application(self, *_: object) -> None:
        """Handle Ctrl+Z: stop the whole process group, as a terminal does, since a shell waits for its direct child,
        such as `uv run`.
        """
        if self._auto_restart:
            self.suspend_application_mode()
            self._suspended = True
        os.kill(0, signal.SIGSTOP)

    def _sigcont_application(self, *_: object) -> None:
        """Handle SIGCONT: take over the terminal again and redraw it, also after an unannounced SIGSTOP and output of
        the shell.
        """
        if not self._auto_restart:
            return
        if self._in_background():
            os.kill(0, signal.SIGSTOP)  # until it is in the foreground
            return
        if not self._suspended:
            self.suspend_application_mode()
        self._must_signal_resume = True
        self.resume_application_mode()
        self._suspended = False

    def _in_background(self) -> bool:
        """Whether another process group is in the foreground of the terminal."""
        try:
            return os.tcgetpgrp(self.fileno) != os.getpgrp()
        except OSError:
            return False  # no terminal, or that of another session

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
    """Context manager that exits the app as soon as the terminal closes. SIGHUP and SIGTERM restore the terminal if
    that takes less than two seconds.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second signal ends the process at once
        last = threading.Timer(_GRACE_S, os._exit, (128 + number,))
        last.daemon = True
        last.start()
        app.exit(return_code=128 + number)

    previous = {number: signal.signal(number, leave) for number in (signal.SIGHUP, signal.SIGTERM)}
    threading.Thread(
        target=_exit_at_hangup,
        args=(sys.__stdin__.fileno(),) if sys.__stdin__ is not None else (0,),
        name="terminal",
        daemon=True,
    ).start()
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _exit_at_hangup(descriptor: int) -> None:
    """Wait until the terminal at `descriptor` hangs up, then exit the process at once: the monitor has nothing
    to save.
    """
    waiting = select.poll()
    waiting.register(descriptor, 0)  # hang-up and error are always reported
    while not any(events & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, events in waiting.poll()):
        pass
    os._exit(GONE_CODE)
