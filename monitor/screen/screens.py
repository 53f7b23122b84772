"""Dialogs: list of runs, text, confirmation of a request, and the filter bar. Know neither runs nor files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input

from monitor.charts import Line, Piece, fit, padded, width_of
from monitor.data.snapshot import RunRow
from monitor.screen.labels import STATES
from monitor.screen.panel import Draw, Panel

_PAGE_LINES = 10
_LIST_HINTS = ("type to search · enter opens · esc closes", "enter opens · esc closes", "esc closes")
_TEXT_HINTS = ("↑ ↓ pgup pgdn · esc closes", "esc closes")


class Listed(NamedTuple):
    """Contents of the list dialog: rows, cursor, typed search, and a sentence (`empty`) for a list without rows."""

    rows: Sequence[RunRow]
    cursor: int
    search: str
    empty: str


Result = TypeVar("Result")


class Dialog(ModalScreen[Result]):
    """Base class of the modal dialogs: a panel of lines in the middle of the screen. It closes once, even if more keys
    are typed ahead.
    """

    def __init__(self, lines: Draw, title: str) -> None:
        super().__init__()
        self._panel = Panel(lines, title=title, id="dialog")

    def compose(self) -> ComposeResult:
        """Create the dialog's panel, which draws its lines."""
        yield self._panel

    def natural_size(self) -> tuple[int, int]:
        """Size (cells, lines) in which the dialog shows all of its content; the terminal may be smaller. Subclasses
        implement it.
        """
        raise NotImplementedError

    def show(self) -> None:
        """Draw the dialog's current content into its panel. Subclasses implement it; called when the dialog opens, is
        resized or changes.
        """
        raise NotImplementedError

    def on_mount(self) -> None:
        """Fit the dialog to its content and draw it."""
        self._fit()
        self.show()

    def on_resize(self) -> None:
        """Fit the dialog to the terminal's new size and draw it again."""
        self._fit()
        self.call_after_refresh(self.show)

    def _fit(self) -> None:
        """Size the dialog's panel to its content, within the terminal."""
        width, height = self.natural_size()
        self._panel.styles.width = max(1, min(self.app.size.width - 2, width))
        self._panel.styles.height = max(1, min(self.app.size.height - 2, height))

    def on_click(self, event: events.Click) -> None:
        """Close the dialog without a result if the click is outside its panel."""
        if event.widget is not self._panel:
            self.leave(None)

    def leave(self, result: Result | None = None) -> None:
        """Close the dialog with `result` as its answer, unless it is closed already."""
        if self.is_current:
            self.dismiss(result)


def _first_fitting(texts: Sequence[str], width: int) -> str:
    """Return the first of the texts that fits in `width` cells, else the last."""
    return next((text for text in texts if width_of(text) <= width), texts[-1])


class ListScreen(Dialog["RunRow | None"]):
    """Dialog that lists runs, with search by typing. Its result is the chosen row, or None."""

    def __init__(
        self, title: str, rows: Sequence[RunRow], empty: str = "No runs yet. Start one: operant train"
    ) -> None:
        super().__init__(_list_lines, title)
        self._all, self._empty = list(rows), empty
        self._search, self._cursor = "", 0

    def natural_size(self) -> tuple[int, int]:
        """Return the size (cells, lines) in which the list dialog shows a line for each run."""
        _, widths = _columns(self._all, 200) if self._all else ([], [])
        return max(60, sum(widths) + 2 * len(widths) + 6), len(self._all) + 6

    @property
    def _rows(self) -> list[RunRow]:
        """Rows of the runs that match the typed search."""
        words = self._search.lower().split()
        return [
            row
            for row in self._all
            if all(word in f"{row.id} {row.state} {row.env} {row.algo}".lower() for word in words)
        ]

    def show(self) -> None:
        """Draw the runs that match the typed search, with the cursor, into the list dialog."""
        rows = self._rows
        self._cursor = min(max(self._cursor, 0), max(0, len(rows) - 1))
        self._panel.show(Listed(rows, self._cursor, self._search, self._empty))

    def on_key(self, event: events.Key) -> None:
        """Handle a key in the list of runs: up, down, page keys, home and end move the cursor; enter opens the run;
        text searches; escape clears the search, then closes.
        """
        event.stop()
        event.prevent_default()
        moves = {"up": -1, "down": 1, "pageup": -_PAGE_LINES, "pagedown": _PAGE_LINES, "home": -(10**9), "end": 10**9}
        if event.key == "escape" and self._search:
            self._search = ""
        elif event.key == "escape":
            self.leave(None)
        elif event.key == "enter":
            rows = self._rows
            if rows:
                self.leave(rows[self._cursor])
        elif event.key in moves:
            self._cursor += moves[event.key]
        elif event.key == "backspace":
            self._search = self._search[:-1]
        elif event.character is not None and event.is_printable and len(self._search) < 64:
            self._search += event.character
        self.show()

    def on_click(self, event: events.Click) -> None:
        """Open the run whose row is clicked."""
        rows = self._rows if event.widget is self._panel else []  # Textual calls `Dialog.on_click` as well
        index = event.y - 3 + _first(self._cursor, len(rows), self._panel.size.height - 5)
        if 0 <= event.y - 3 < self._panel.size.height - 5 and index < len(rows):
            self.leave(rows[index])


def _first(cursor: int, count: int, height: int) -> int:
    """Return the index of the first visible row of a list of `count` rows in `height` lines, with the cursor centered
    where possible.
    """
    return max(0, min(cursor - height // 2, count - height))


def _list_lines(model: Listed, width: int, height: int) -> list[Line]:
    """Draw the list dialog: search, titles, rows around the cursor, and a hint about keys."""
    hint = fit([Piece(_first_fitting(_LIST_HINTS, width), "dim")], width)
    search = fit([Piece("/ ", "dim"), Piece(model.search, "bright"), Piece("▏" if width else "", "focus")], width)
    if not model.rows:
        return [
            search,
            (),
            (
                Piece(
                    model.empty if not model.search else f"no run matches '{model.search}' (esc clears the search)",
                    "text",
                ),
            ),
            (),
            hint,
        ]
    heads, widths = _columns(model.rows, width)
    rows_height = height - 4
    first = _first(model.cursor, len(model.rows), rows_height)
    lines = [search, fit([Piece("  " + _joined(heads, widths), "dim")], width)]
    for index, row in enumerate(model.rows[first : first + rows_height], first):
        current = index == model.cursor
        glyph, style = STATES.get(row.state, ("?", "bad"))
        back = "cursor" if current else ""
        text = _joined(_values(row, len(heads)), widths)
        lines.append(
            fit(
                [
                    Piece(f"{glyph} ", style, back=back),
                    Piece(padded(text, width - 2), "bright" if current else "text", bold=current, back=back),
                ],
                width,
            )
        )
    return [*lines, (), hint]


_HEADS = ("state", "run", "eval", "done", "age", "env", "algo", "SPS")


def _values(row: RunRow, count: int) -> list[str]:
    """Return a row's cells in the order of the titles, the first `count`."""
    return [row.state, row.id, row.score, row.progress, row.age, row.env, row.algo, row.sps][:count]


def _columns(rows: Sequence[RunRow], width: int) -> tuple[list[str], list[int]]:
    """Return the titles of as many columns of the list of runs as fit in `width` cells, and their widths."""
    for count in range(len(_HEADS), 1, -1):
        widths = [max(len(_HEADS[k]), *(width_of(_values(row, count)[k]) for row in rows)) for k in range(count)]
        if sum(widths) + 2 * count <= width - 2:
            return list(_HEADS[:count]), widths
    return list(_HEADS[:2]), [9, max(4, width - 15)]


def _joined(values: Sequence[str], widths: Sequence[int]) -> str:
    """Join the cells of a row, each padded to the width of its column."""
    return "  ".join(padded(text, cells) for text, cells in zip(values, widths, strict=True))


# TEXT


class Scrolled(NamedTuple):
    """Lines of a text dialog, and the index of the first visible one."""

    lines: Sequence[Line]
    first: int


class TextScreen(Dialog[None]):
    """Dialog that shows lines of text: help, description of a run, traceback. `at_end`: it opens scrolled to the
    end.
    """

    def __init__(self, title: str, lines: Sequence[Line], *, width: int = 90, at_end: bool = False) -> None:
        super().__init__(_text_lines, title)
        self._lines, self._width, self._at = list(lines), width, 10**9 if at_end else 0

    def natural_size(self) -> tuple[int, int]:
        """Return the size (cells, lines) in which the dialog shows its whole text."""
        return self._width, len(self._lines) + 4

    def show(self) -> None:
        """Draw the visible part of the dialog's text, from the line to which the user has scrolled."""
        height = max(1, min(self.app.size.height - 2, len(self._lines) + 4)) - 4
        self._at = min(max(self._at, 0), max(0, len(self._lines) - height))
        self._panel.show(Scrolled(self._lines, self._at))

    def _scroll(self, lines: int) -> None:
        """Scroll the text by a number of lines, negative upwards."""
        self._at += lines
        self.show()

    def on_key(self, event: events.Key) -> None:
        """Handle a key in a text dialog: up, down, j, k, page keys, space, home and end scroll; escape, q, enter, ? and
        d close it. No other key reaches the screen below.
        """
        event.stop()
        event.prevent_default()
        moves = {
            "up": -1,
            "k": -1,
            "down": 1,
            "j": 1,
            "pageup": -_PAGE_LINES,
            "pagedown": _PAGE_LINES,
            "space": _PAGE_LINES,
            "home": -(10**9),
            "end": 10**9,
        }
        if event.key in moves:
            self._scroll(moves[event.key])
        elif event.key in ("escape", "q", "enter", "question_mark", "d"):
            self.leave(None)

    def on_mouse_scroll_down(self) -> None:
        """Scroll the text down by 3 lines."""
        self._scroll(3)

    def on_mouse_scroll_up(self) -> None:
        """Scroll the text up by 3 lines."""
        self._scroll(-3)


def _text_lines(model: Scrolled, width: int, height: int) -> list[Line]:
    """Draw a text dialog: the visible lines, and a hint about keys."""
    rows_height = height - 2
    total, last = len(model.lines), min(len(model.lines), model.first + rows_height)
    position = f"{model.first + 1} to {last} of {total} · " if total > rows_height else ""
    shown = [fit(line, width) for line in model.lines[model.first : model.first + rows_height]]
    return [
        *shown,
        *([()] * (rows_height - len(shown))),
        (),
        fit([Piece(_first_fitting([position + hint for hint in _TEXT_HINTS], width), "dim")], width),
    ]


# CONFIRMATION


class Question(NamedTuple):
    """Question of a confirmation dialog, and what happens after a yes."""

    sentence: str
    consequence: str
    strict: bool  # only y confirms


class ConfirmScreen(Dialog[bool]):
    """Dialog in which the user confirms a request to the trainer. Its result is True after y, or Enter unless the
    question is `strict`; False after n, Escape and q.
    """

    def __init__(self, question: Question) -> None:
        super().__init__(_question_lines, "Confirm")
        self._question = question

    def natural_size(self) -> tuple[int, int]:
        """Return the size (cells, lines) in which the dialog shows the whole question."""
        return max(width_of(self._question.sentence), width_of(self._question.consequence), 38) + 4, 7

    def show(self) -> None:
        """Draw the confirmation dialog's question and its consequence."""
        self._panel.show(self._question)

    def on_key(self, event: events.Key) -> None:
        """Handle a key in the confirmation dialog: y (or Enter unless the question is strict) confirms; n, Escape, q
        and a strict Enter decline.
        """
        event.stop()
        event.prevent_default()
        if event.key == "y" or (event.key == "enter" and not self._question.strict):
            self.leave(True)
        elif event.key in ("n", "escape", "q", "enter"):
            self.leave(False)


def _question_lines(model: Question, width: int, height: int) -> list[Line]:
    """Draw the confirmation dialog: question, consequence and keys."""
    yes = "y" if model.strict else "y or enter"
    keys = (
        Piece(yes, "focus", bold=True),
        Piece("  yes      ", "dim"),
        Piece("n or esc", "focus", bold=True),
        Piece("  no", "dim"),
    )
    return [(Piece(model.sentence, "bright", bold=True),), (Piece(model.consequence, "dim"),), (), (), keys]


# FILTER


class FilterBar(Input):
    """Input line for the filter at the bottom of the screen. Each change posts `Narrowed`. Enter keeps the filter,
    Escape clears it.
    """

    class Narrowed(Message):
        """Posted with the filter's text each time it changes: words separated by spaces; "" clears the filter."""

        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    def __init__(self, before: str) -> None:
        super().__init__(
            before,
            placeholder="words separated by spaces, any may match; * ? [..] are wildcards",
            id="filter",
            compact=True,
            select_on_focus=False,
        )
        self._over = False  # Escape was pressed; an earlier change may still arrive

    def on_mount(self) -> None:
        """Give the filter bar the keyboard focus."""
        self.focus()

    def on_input_changed(self) -> None:
        """Post the filter's text after each key that is typed in the filter bar."""
        if not self._over:
            self.post_message(self.Narrowed(self.value))

    async def on_input_submitted(self) -> None:
        """Close the filter bar on Enter; the filter stays."""
        await self.remove()

    async def on_key(self, event: events.Key) -> None:
        """Close the filter bar and clear the filter on Escape."""
        if event.key == "escape":
            event.stop()
            event.prevent_default()
            self._over = True
            self.post_message(self.Narrowed(""))
            await self.remove()
