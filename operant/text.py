"""Text output: the filter for untrusted text, and the formats of numbers. Standard library only."""

from __future__ import annotations

import functools
import math
import pwd
import unicodedata

_LIMIT_CELLS = 200
_HIDDEN = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0"
    + "".join(map(chr, (*range(0xFE00, 0xFE10), *range(0x1F3FB, 0x1F400), *range(0xE0100, 0xE01F0))))
)
"""Characters that Python considers printable but that draw nothing alone: fillers, variation selectors, skin tones."""
_MOST_MARKS = 3  # combining marks per character, as Vietnamese and Hebrew need; more would overdraw adjacent lines


def safe(text: object, limit_cells: int = _LIMIT_CELLS, *, lines: bool = False) -> str:
    """Return text that is safe for a terminal, cut to `limit_cells` cells; an ellipsis marks a cut. `lines` keeps line
    breaks and cuts each line.

    Control characters (C0, DEL, C1), line and paragraph separators, bidirectional controls, zero-width characters and
    lone surrogates are removed, as are combining marks without a base character and the fourth and further marks on
    one. Any white space becomes a space. Bytes are decoded as UTF-8.
    """
    if isinstance(text, (bytes, bytearray)):
        text = bytes(text).decode("utf-8", "replace")
    text = str(text)
    if lines:
        return "\n".join(safe(line, limit_cells) for line in text.split("\n"))
    # Untrusted text may have any length: only a few characters per cell are inspected.
    head = text[: 4 * limit_cells + 4]
    if len(head) > limit_cells or not (head.isascii() and head.isprintable()):
        kept = "".join(" " if c.isspace() and c not in "\x1c\x1d\x1e\x1f\x85\u2028\u2029" else c for c in head)
        kept = "".join(c for c in kept if c.isprintable() and c not in _HIDDEN)
        return _cut(kept if kept.isascii() else _without_piles(kept), limit_cells, len(head) < len(text))
    return head


def _without_piles(text: str) -> str:
    """Remove the fourth and further combining marks on one character."""
    kept, marks = [], _MOST_MARKS
    for character in text:
        marks = 0 if cells(character) else marks + 1
        if marks <= _MOST_MARKS:
            kept.append(character)
    return "".join(kept)


@functools.lru_cache(maxsize=4096)
def cells(character: str) -> int:
    """Return the width of a printable character in terminal cells: 0, 1 or 2.

    Combining marks and the later letters of a Hangul syllable have width 0, consistent with Textual.
    """
    if character.isascii():
        return 1
    if (
        unicodedata.category(character) in ("Mn", "Me", "Mc")
        or "\u1160" <= character <= "\u11ff"
        or "\ud7b0" <= character <= "\ud7ff"
    ):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _cut(text: str, limit_cells: int, longer: bool) -> str:
    """Cut text to `limit_cells` terminal cells, with an ellipsis if it was cut or is only the beginning of a `longer`
    text.
    """
    used, end = 0, len(text)
    fits = 0  # cut position that leaves space for the ellipsis
    for index, character in enumerate(text):
        used += cells(character)
        if used <= limit_cells - 1:
            fits = index + 1
        if used > limit_cells:
            end = index
            break
    return text if end == len(text) and not longer else text[:fits] + "…"


def count(value: float) -> str:
    """Format a count with three digits and a decimal unit: 950, 16.8 k, 4.71 M, 20 M; a dash for NaN and infinities."""
    if not math.isfinite(value):
        return "-"
    sign, value = ("-" if value < 0 else ""), abs(value)
    if value < 999.5:
        return f"{sign}{value:.0f}"
    power = 0
    while value >= 999.5 and power < 4:
        value, power = value / 1000.0, power + 1
    text = f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"
    return f"{sign}{text.rstrip('0').rstrip('.') if '.' in text else text} {' kMGT'[power]}"


def size(count: float) -> str:
    """Format a number of bytes with a binary unit: 1.21 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def number(value: float | None) -> str:
    """Format a measured number: 487.3, -170.2, 0.0083, 1.2 M; a dash for None and NaN."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    if abs(value) >= 99999.95:
        return count(value)
    return f"{value:.1f}" if abs(value) >= 9.9995 else f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Format a duration as h:mm:ss; a dash for None, NaN and more than a century."""
    if seconds is None or not 0 <= seconds < 3.2e9:
        return "-"
    minutes, second = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{second:02d}"


def age(seconds: float) -> str:
    """Format an age roughly: 14 s, 3 min, 2 h, 5 d."""
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)} {unit}"
    return f"{max(0, int(seconds))} s"


def user_name(uid: int) -> str:
    """Return the name of a user of this machine; `user 1000` if the id has no name."""
    try:
        return safe(pwd.getpwuid(uid).pw_name, 40)
    except KeyError:
        return f"user {uid}"
