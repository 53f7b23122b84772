"""Progress of a run while Python code waits for it: one line on a terminal, a bar in a notebook, nothing elsewhere.

Reads the run's files like any viewer. In a notebook it needs IPython, which is there.
"""

from __future__ import annotations

import contextlib
import html
import sys
import time
from typing import Any

from operant import text
from operant.display import progress
from operant.display.progress import Progress, Rate, Screen, ViewerGoneError
from operant.runs import EVALUATION, RETURN, Follower, Run, integer_of, states

_TERMINAL_S, _NOTEBOOK_S = 0.1, 0.25  # shortest time between two drawings


def in_notebook() -> bool:
    """Whether this code runs in a notebook, whose front end shows HTML."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


class LiveProgress:
    """Progress of a run, drawn by each `update` that finds something new, at most a few times a second."""

    def __init__(self, run: Run) -> None:
        self._follower, self._rate, self._values = Follower(run), Rate(), dict[str, float]()
        self._step: int | None = None
        self._screen: Screen | None = None
        self._handle: Any = None
        self._drawn_s, self._begin_s = float("-inf"), time.monotonic()
        self._notebook = in_notebook()
        if not self._notebook and sys.stderr is not None:
            screen = Screen(sys.stderr)
            self._screen = screen if screen.is_terminal else None

    def update(self) -> None:
        """Read the run's files and draw, if the last drawing is long enough ago."""
        now_s = time.monotonic()
        if now_s - self._drawn_s < (_NOTEBOOK_S if self._notebook else _TERMINAL_S):
            return
        if self._notebook or self._screen is not None:
            self._drawn_s = now_s
            self._read(now_s)
            self._draw()

    def close(self, outcome: str) -> None:
        """Draw the end: a terminal keeps the line `outcome`, a notebook the bar with it."""
        if self._notebook:
            self._read(time.monotonic())
            share = 1.0 if self._follower.state.word == "finished" else self._share()
            self._show_html(share, outcome)
        elif self._screen is not None:
            with contextlib.suppress(ViewerGoneError):
                self._screen.end()
                self._screen.above(outcome)
        self._follower.close()

    def _read(self, now_s: float) -> None:
        follower = self._follower
        follower.poll(now_s)
        if follower.look.earlier or follower.reader is None:
            return
        for record in follower.new_records():
            self._values |= states.values_of(follower.reader, record)
            self._step = record.step
            self._rate.add(record.boottime_ns, record.step)

    def _progress(self) -> Progress | None:
        """Values of the line; None before the first record."""
        if self._step is None:
            return None
        word, steps = self._follower.state.word, integer_of(self._follower.run.document, "steps")
        note = "" if word in ("running", "starting", *states.ENDED) else word
        sps = self._values.get("sps")
        left_s = self._rate.left_s(steps, self._step, sps) if word != "paused" else None
        evaluation = self._values.get(EVALUATION)
        return_ = self._values.get(RETURN) if evaluation is None else None  # one of them, to leave room for the bar
        return Progress(self._step, steps, sps, return_, left_s, note, evaluation)

    def _share(self) -> float | None:
        shown = self._progress()
        return None if shown is None else progress.share_of(shown)

    def _draw(self) -> None:
        shown = self._progress()
        phase = self._follower.state.cause or "imports and compilation"
        waiting = f"starting: {phase}   {text.duration(time.monotonic() - self._begin_s)}"
        if self._notebook:
            line = waiting if shown is None else progress.plain(shown)
            self._show_html(None if shown is None else progress.share_of(shown), line)
        elif self._screen is not None:
            columns = self._screen.columns
            with contextlib.suppress(ViewerGoneError):
                self._screen.show(waiting[:columns] if shown is None else progress.line(shown, columns))

    def _show_html(self, share: float | None, line: str) -> None:
        """Show or replace the bar of a notebook: `share` of the steps (None: unknown), and a line of text."""
        from IPython import display

        value = "" if share is None else f' value="{share:.4f}"'
        shown = display.HTML(
            f'<div style="font-family:monospace;white-space:pre-wrap"><progress{value} max="1" '
            f'style="width:16em;vertical-align:middle"></progress>  {html.escape(text.safe(line, 400))}</div>'
        )
        if self._handle is None:
            self._handle = display.display(shown, display_id=True)
        else:
            self._handle.update(shown)
