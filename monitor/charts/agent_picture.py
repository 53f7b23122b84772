"""Frames of the agent drawn as terminal cells.

Three pure renderers: braille (2 x 4 dots per cell in the most frequent colour), half blocks (two pixels per cell) and
ASCII. The most frequent colour of all lanes is the background and is not drawn; it is kept from frame to frame, so that
a lane in which it is rare for a moment is not inverted. Colours are quantized and readable on the theme, so that few
bytes are sent. `AgentPicture` is the widget. The pixels of a frame are RGB bytes.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from textual.message import Message

from monitor.charts.canvas import Canvas
from monitor.charts.cells import EMPTY, Piece, blank, framed, sentence
from monitor.charts.line import clean
from monitor.charts.palette import Cell, Palette, Row, Rows, Style, hexadecimal, readable
from monitor.data.snapshot import Frame

Mode = Literal["braille", "blocks", "ascii"]

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # braille's bits by row and column
_DENSITY = " ..::**##"  # ASCII by how many of a cell's eight dots are lit
_CONTRAST = 2.0  # less than for text: shapes stay visible and colours close to the original
_STEP = 17  # quantization step of a channel: 16 levels
_ALMOST = 0.15
_GAP = 1  # cells between lanes
_SAMPLED_PIXELS = 256  # pixels sampled per lane
_LEAST_SHARE = 0.15  # share of the pixels a colour needs to remain the background

Dot = bytes | None  # RGB; None: background
DotRow = tuple[Dot, ...]


class LaneGrid(NamedTuple):
    """Arrangement of the lanes' pictures (one per environment copy) on the screen: columns and rows of pictures, and
    each picture's size in cells.
    """

    across: int
    down: int
    width: int
    height: int

    @classmethod
    def of(cls, lanes: int, pixel_width: int, pixel_height: int, width: int, height: int) -> LaneGrid | None:
        """Return the arrangement with the largest pictures of `lanes` lanes, each of `pixel_width` x `pixel_height`, in
        an area of `width` x `height` cells; None if nothing fits. A cell is twice as high as wide.
        """
        best: LaneGrid | None = None
        for across in range(1, lanes + 1):
            down = -(-lanes // across)
            cell_width, cell_height = (width - _GAP * (across - 1)) // across, height // down
            if cell_width < 1 or cell_height < 1:
                continue
            scale = min(2 * cell_width / pixel_width, 4 * cell_height / pixel_height)
            if scale > 1 and scale - int(scale) < _ALMOST:
                scale = int(scale)  # an integer scale looks better than a slightly larger one
            lane = cls(
                across, down, max(1, int(pixel_width * scale / 2 + 1e-6)), max(1, int(pixel_height * scale / 4 + 1e-6))
            )
            if best is None or lane.width * lane.height > best.width * best.height:
                best = lane
        return best


def ground_of(frame: Frame, before: bytes | None = None) -> bytes | None:
    """Return the background colour (3 RGB bytes) of a frame: its most frequent colour, or the previous frame's
    (`before`) while that is still frequent. None if the bytes do not match the frame's shape.

    The border is not used, since a field may have a wall.
    """
    size = _lane_bytes(frame)
    if not size:
        return None
    # Sample some hundred pixels of each lane; an odd stride that does not divide the width reaches every column.
    step = frame.height * frame.width // _SAMPLED_PIXELS | 1
    step += 2 if step > 1 and frame.width % step == 0 else 0
    offsets = range(0, size, 3 * step)
    counts = Counter(
        bytes(frame.pixels[lane + offset : lane + offset + 3])
        for lane in range(0, frame.lanes * size, size)
        for offset in offsets
    )
    if before is not None and counts[before] >= _LEAST_SHARE * counts.total():
        return before
    return counts.most_common(1)[0][0]


def _lane_bytes(frame: Frame) -> int:
    """Return the number of bytes of one lane's picture; 0 if the frame has fewer bytes than its shape requires."""
    size = frame.height * frame.width * 3
    return size if min(frame.lanes, frame.height, frame.width) >= 1 and len(frame.pixels) >= frame.lanes * size else 0


def sampled(pixels: bytes, width: int, height: int, columns: int, rows: int, ground: bytes) -> list[DotRow]:
    """Resample one lane's RGB picture of `width` x `height` pixels to `columns` x `rows` dots; None for a dot of the
    background colour `ground`. When scaled down, a dot is lit if any pixel under it is, so that thin lines remain
    visible.
    """
    row_bytes = 3 * width
    spans = [
        (column * width // columns, max((column + 1) * width // columns, column * width // columns + 1))
        for column in range(columns)
    ]
    single = all(end - start == 1 for start, end in spans)
    offsets = [3 * start for start, _ in spans]
    empty: DotRow = (None,) * columns
    known: dict[bytes, DotRow] = {ground * width: empty}  # many rows of a picture are equal

    def dots_of(data: bytes) -> DotRow:
        """Resample one row of pixels to dots."""
        if single:
            return tuple([None if (dot := data[offset : offset + 3]) == ground else dot for offset in offsets])
        return tuple(
            [
                next(
                    (dot for offset in range(3 * start, 3 * end, 3) if (dot := data[offset : offset + 3]) != ground),
                    None,
                )
                for start, end in spans
            ]
        )

    result: list[DotRow] = []
    for row in range(rows):
        first = row * height // rows
        merged = empty
        for source in range(first, max((row + 1) * height // rows, first + 1)):
            data = pixels[source * row_bytes : (source + 1) * row_bytes]
            dots = known.get(data)
            if dots is None:
                dots = known[data] = dots_of(data)
            if dots is not empty:
                merged = dots if merged is empty else tuple([a or b for a, b in zip(merged, dots, strict=True)])
        result.append(merged)
    return result


@functools.lru_cache(4096)
def shown_colour(pixel: bytes, ground: str) -> str:
    """Return the colour (#rrggbb) in which a pixel is drawn: quantized, and moved away from the theme's background
    `ground` if the contrast is too low.
    """
    return readable(hexadecimal(*(_STEP * round(channel / _STEP) for channel in pixel)), ground, _CONTRAST)


@functools.lru_cache(8192)
def _braille_cell(dots: tuple[DotRow, ...], ground: str) -> Cell:
    """Return the terminal cell for 2 x 4 dots, given as four pairs. If all eight are lit in two colours, one becomes
    the cell's background. `ground`: the theme's background.
    """
    lit = [dot for pair in dots for dot in pair if dot is not None]
    if not lit:
        return EMPTY
    counts = Counter(lit)
    colour, back = counts.most_common(1)[0][0], ""
    if len(lit) == 8 and len(counts) > 1:
        back, colour = shown_colour(colour, ground), counts.most_common(2)[1][0]
        mask = sum(
            bit
            for pair, bits in zip(dots, _DOTS, strict=True)
            for dot, bit in zip(pair, bits, strict=True)
            if dot == colour
        )
    else:
        mask = sum(
            bit
            for pair, bits in zip(dots, _DOTS, strict=True)
            for dot, bit in zip(pair, bits, strict=True)
            if dot is not None
        )
    return Cell(chr(0x2800 + mask), Style(shown_colour(colour, ground), back))


@functools.lru_cache(8192)
def _ascii_cell(dots: tuple[DotRow, ...], ground: str) -> Cell:
    """Return the terminal cell for 2 x 4 dots, given as four pairs: a character as dense as the number of lit dots, in
    their most frequent colour. `ground`: the theme's background.
    """
    lit = [dot for pair in dots for dot in pair if dot is not None]
    return Cell(_DENSITY[len(lit)], Style(shown_colour(Counter(lit).most_common(1)[0][0], ground))) if lit else EMPTY


@functools.lru_cache(8192)
def _block_cell(upper: Dot, lower: Dot, ground: str, glyph: str) -> Cell:
    """Return the terminal cell for two pixels, one above the other. `ground`: the theme's background; `glyph`: the
    upper half block.
    """
    if upper is None and lower is None:
        return EMPTY
    above, below = (shown_colour(dot, ground) if dot is not None else "" for dot in (upper, lower))
    # Equal halves are a space on a background, independent of the font.
    return Cell(" ", Style("text", above)) if above == below else Cell(glyph, Style(above or "ground", below))


def _lane(pixels: bytes, frame: Frame, ground: bytes, width: int, height: int, palette: Palette, mode: Mode) -> Rows:
    """Draw one lane's picture as `height` rows of `width` cells, in braille, half blocks or ASCII (`mode`). Pixels of
    colour `ground` stay empty.
    """
    if mode == "blocks":
        dots = sampled(pixels, frame.width, frame.height, width, 2 * height, ground)
        glyph = palette.glyphs.upper_half
        return [
            tuple([_block_cell(a, b, palette.ground, glyph) for a, b in zip(dots[2 * y], dots[2 * y + 1], strict=True)])
            for y in range(height)
        ]
    dots = sampled(pixels, frame.width, frame.height, 2 * width, 4 * height, ground)
    draw = _braille_cell if mode == "braille" else _ascii_cell
    rows: Rows = []
    for y in range(height):
        four = dots[4 * y : 4 * y + 4]
        if not any(map(any, four)):
            rows.append((EMPTY,) * width)
        else:
            rows.append(
                tuple([draw(tuple([row[x : x + 2] for row in four]), palette.ground) for x in range(0, 2 * width, 2)])
            )
    return rows


def draw_picture(
    frame: Frame, width: int, height: int, palette: Palette, mode: Mode = "braille", ground: bytes | None = None
) -> Rows:
    """Draw all lanes of a frame, centered in `height` rows of `width` cells (both >= 1). Blank if the frame's bytes do
    not match its shape.

    `ground` is the colour that is not drawn; None: `ground_of` this frame.
    """
    size, ground = _lane_bytes(frame), ground or ground_of(frame)
    if not size or ground is None:
        return blank(width, height)
    grid = LaneGrid.of(frame.lanes, frame.width, frame.height, width, height)
    if grid is None:
        return blank(width, height)
    mode = "ascii" if not palette.glyphs.braille else mode
    lanes = [
        _lane(bytes(frame.pixels[k * size : (k + 1) * size]), frame, ground, grid.width, grid.height, palette, mode)
        for k in range(frame.lanes)
    ]
    rows: Rows = []
    for first in range(0, frame.lanes, grid.across):
        rows += [_joined(some, width) for some in zip(*lanes[first : first + grid.across], strict=True)]
    above = (height - len(rows)) // 2
    empty = (EMPTY,) * width
    return [*[empty] * above, *rows, *[empty] * (height - len(rows) - above)]


def _joined(parts: Sequence[Row], width: int) -> Row:
    """Join one row of each of several lanes' pictures to a centered row of `width` cells."""
    cells: list[Cell] = []
    for part in parts:
        cells += [EMPTY] * (_GAP if cells else 0)
        cells += part
    left = (width - len(cells)) // 2
    return (EMPTY,) * left + tuple(cells) + (EMPTY,) * (width - left - len(cells))


def wanted_size(lanes: int, width: int, height: int, smallest: int = 32, largest: int = 96) -> int:
    """Return the side in pixels, between `smallest` and `largest`, of a lane's square picture that needs no scaling in
    braille, for `lanes` pictures on `width` x `height` cells.

    At least `smallest`: with fewer pixels the renderer of the environment loses thin lines.
    """
    grid = LaneGrid.of(max(1, lanes), 64, 64, max(1, width), max(1, height))
    return smallest if grid is None else min(max(min(2 * grid.width, 4 * grid.height) // 4 * 4, smallest), largest)


class AgentPicture(Canvas):
    """Widget that shows a frame of the agent, or a sentence why there is none. With a title it is drawn in a box."""

    DEFAULT_CSS = "AgentPicture { width: 1fr; height: 1fr; }"

    class Resized(Message):
        """Posted when the area for the agent's picture changes."""

    def on_resize(self) -> None:
        """Post `Resized`, so that the app requests frames of the new size."""
        self.post_message(self.Resized())

    def __init__(self, *, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self._frame: Frame | None = None
        self._ground: bytes | None = None  # background colour of the previous frame
        self._absent = ""
        self._mode: Mode = "braille"
        self._title: tuple[Piece, ...] = ()

    def show(
        self, frame: Frame | None, *, absent: str = "", title: Sequence[Piece] = (), mode: Mode = "braille"
    ) -> None:
        """Draw a frame of the agent, repainting only cells that changed. None: draw the sentence `absent` instead."""
        wanted = (frame, absent, tuple(title), mode)
        if wanted != (self._frame, self._absent, self._title, self._mode):
            if frame is None or frame != self._frame:
                self._ground = ground_of(frame, self._ground) if frame is not None else None
            self._frame, self._absent, self._title, self._mode = wanted
            self.redraw()

    @property
    def inside(self) -> tuple[int, int]:
        """Width and height in cells of the area for the agent's picture, without its box."""
        width, height = self.size
        return (width - 2, height - 2) if self._has_edge(width, height) else (width, height)

    def _has_edge(self, width: int, height: int) -> bool:
        """Whether the widget is drawn in a box: it has a title and enough cells."""
        return bool(self._title) and width >= 10 and height >= 4

    def wanted_size(self, lanes: int) -> int:
        """Return the side in pixels at which square pictures of `lanes` lanes fit this widget best."""
        return wanted_size(lanes, *self.inside)

    def draw(self, width: int, height: int, palette: Palette) -> Rows:
        """Draw the agent's picture, or the sentence why there is none, as `height` rows of `width` cells."""
        edge = self._has_edge(width, height)
        inner = (width - 2, height - 2) if edge else (width, height)
        ascii_only = not palette.glyphs.braille
        rows = (
            sentence(clean(self._absent, ascii_only=ascii_only), *inner)
            if self._frame is None
            else draw_picture(self._frame, *inner, palette, self._mode, self._ground)
        )
        title = [(clean(text, ascii_only=ascii_only), style) for text, style in self._title]
        return framed(rows, title, width, palette) if edge else rows
