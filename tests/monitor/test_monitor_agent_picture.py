"""Frames of the agent: handmade frames are drawn dot for dot, thin lines remain, any frame at any size is a full grid,
only changes are repainted.
"""

from __future__ import annotations

import asyncio
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.app import App

from monitor.charts.agent_picture import (
    AgentPicture,
    LaneGrid,
    draw_picture,
    ground_of,
    sampled,
    shown_colour,
    wanted_size,
)
from monitor.charts.cells import text_of
from monitor.charts.palette import Palette, Style, channels, contrast
from monitor.data.snapshot import Frame
from monitor.screen import capture
from operant.text import cells

DARK, LIGHT, PLAIN = Palette(), Palette(dark=False), Palette(ascii_only=True)
GROUND, RED, BLUE = bytes((9, 9, 9)), bytes((255, 0, 0)), bytes((0, 0, 255))
COLOURS = {".": GROUND, "r": RED, "b": BLUE}


def frame_of(*lanes, number=1):
    """Frame from drawings: lines of `.`, `r` and `b`."""
    drawings = [lane.split() for lane in lanes]
    pixels = b"".join(COLOURS[letter] for drawing in drawings for row in drawing for letter in row)
    return Frame(number, 0, len(lanes), len(drawings[0]), len(drawings[0][0]), pixels)


def lit(rows):
    """Lit braille dots as (column, row)."""
    bits = ((0, 0, 1), (0, 1, 2), (0, 2, 4), (1, 0, 8), (1, 1, 16), (1, 2, 32), (0, 3, 64), (1, 3, 128))
    return {
        (2 * x + column, 4 * y + row)
        for y, row_ in enumerate(rows)
        for x, cell in enumerate(row_)
        if ord(cell.character) >= 0x2800
        for column, row, bit in bits
        if ord(cell.character) - 0x2800 & bit
    }


PICTURE = """
    ........
    .r....b.
    .r...b..
    .r..b...
    ........
    ...bb...
    ...bb...
    ........
"""


def test_a_picture_comes_out_dot_for_dot():
    rows = draw_picture(frame_of(PICTURE), 4, 2, DARK)
    assert lit(rows) == {
        (x, y) for y, line in enumerate(PICTURE.split()) for x, letter in enumerate(line) if letter != "."
    }
    red, blue = shown_colour(RED, DARK.ground), shown_colour(BLUE, DARK.ground)
    assert [[cell.style.fore for cell in row] for row in rows] == [
        [red, "text", blue, blue],
        ["text", blue, blue, "text"],
    ]
    assert all(cell.style.back == "" for row in rows for cell in row)


def test_two_colours_without_background_become_foreground_and_background():
    rows = draw_picture(frame_of("..........\n" + "....rr....\n" * 3 + "....bb....\n" + "..........\n" * 3), 5, 2, DARK)
    cell = rows[0][2]
    # Three rows of red over a row of ground is one colour; shifted by one, red and blue fill a cell.
    assert cell.style == Style(shown_colour(RED, DARK.ground), "")
    rows = draw_picture(frame_of("....rr....\n" * 3 + "....bb....\n" + "..........\n" * 4), 5, 2, DARK)
    assert rows[0][2].style == Style(shown_colour(BLUE, DARK.ground), shown_colour(RED, DARK.ground))
    assert lit(rows) == {(4, 3), (5, 3)}


def test_half_blocks_hold_two_pixels():
    rows = draw_picture(frame_of("....\n.rb.\n.rr.\n....\n...."), 4, 3, DARK, "blocks")
    red, blue = shown_colour(RED, DARK.ground), shown_colour(BLUE, DARK.ground)
    # The picture is 4 x 5: as wide as the room it would be 2.5 cells high, so 4 x 2 cells are 4 x 4 of its pixels, in
    # the middle of three lines.
    shown = [[(cell.character, *cell.style[:2]) for cell in row] for row in rows]
    assert any(("▀", "ground", red) in row for row in shown)
    assert any(("▀", blue, red) in row or ("▀", "ground", blue) in row for row in shown)
    equal = draw_picture(frame_of("....\n.rr.\n.rr.\n...."), 4, 2, DARK, "blocks")
    assert {cell.character for row in equal for cell in row} == {" ", "▀"}


def test_equal_halves_are_plain_cells():
    rows = draw_picture(frame_of("....\n....\n.rr.\n.rr."), 4, 2, DARK, "blocks")
    assert [cell.character for cell in rows[1]] == [" "] * 4
    assert [cell.style.back for cell in rows[1]] == ["", *[shown_colour(RED, DARK.ground)] * 2, ""]


def test_ascii_is_as_dense_as_the_picture():
    rows = text_of(
        draw_picture(frame_of("........\n" * 2 + "..rr.r..\n" * 2 + "..rr....\n" * 2 + "........\n" * 2), 4, 2, PLAIN)
    )
    assert rows == [" :. ", " :  "]


def test_background_is_the_most_frequent_colour():
    swapped = PICTURE.replace(".", "x").replace("b", ".").replace("x", "b")
    one, other = draw_picture(frame_of(PICTURE), 4, 2, DARK), draw_picture(frame_of(swapped), 4, 2, DARK)
    assert lit(one) == lit(other)
    assert (ground_of(frame_of(PICTURE)), ground_of(frame_of(swapped))) == (GROUND, BLUE)
    assert ground_of(frame_of("brb\nrrr\nrrr\nbrb")) == RED, "of twelve pixels eight are red"
    assert (
        ground_of(frame_of(PICTURE)._replace(pixels=b"")) is None
        and ground_of(frame_of(PICTURE)._replace(width=0)) is None
    )


# A platformer's lanes: sky above, earth below. On a hill most of the border is earth.
VALLEY = "........\n" * 6 + "bbbbbbbb\n" * 2
HILL = "........\n" + "..r.....\n" + "bbbbbbbb\n" * 6


def test_border_colour_is_not_the_background():
    walled = "bbbbbbbb\n" + "b......b\n" * 6 + "bbbbbbbb\n"
    assert ground_of(frame_of(walled)) == GROUND
    large = "b" * 64 + "\n" + ("b" * 3 + "." * 58 + "b" * 3 + "\n") * 62 + "b" * 64 + "\n"
    assert ground_of(frame_of(large)) == GROUND, "of which some pixels are looked at"


def test_all_lanes_share_one_background():
    assert ground_of(frame_of(HILL)) == BLUE, "alone, it would be drawn inverted"
    rows = draw_picture(frame_of(VALLEY, HILL, VALLEY), 14, 2, DARK)
    alone = draw_picture(frame_of(HILL), 4, 2, DARK, ground=GROUND)
    assert [row[5:9] for row in rows] == alone
    assert lit(alone) == {
        (x, y) for y, line in enumerate(HILL.split()) for x, letter in enumerate(line) if letter != "."
    }


def test_background_is_kept_while_it_is_frequent():
    assert ground_of(frame_of(HILL), GROUND) == GROUND, "fifteen of 64 pixels"
    assert ground_of(frame_of("........\n" + ".bbbbbbb\n" + "bbbbbbbb\n" * 6), GROUND) == BLUE, "nine are too few"
    assert ground_of(frame_of("........\n" + "..bbbbbb\n" + "bbbbbbbb\n" * 6), GROUND) == GROUND, "ten are enough"
    assert ground_of(frame_of(PICTURE), RED) == GROUND, "of another run, hardly there"


some_picture = st.tuples(st.integers(1, 24), st.integers(1, 24)).flatmap(
    lambda size: st.lists(
        st.lists(st.sampled_from(".rb"), min_size=size[0], max_size=size[0]), min_size=size[1], max_size=size[1]
    )
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(some_picture, st.integers(1, 30), st.integers(1, 30))
def test_scaling_down_keeps_thin_lines_and_scaling_up_adds_nothing(picture, columns, rows):
    height, width = len(picture), len(picture[0])
    data = b"".join(COLOURS[letter] for line in picture for letter in line)
    dots = sampled(data, width, height, columns, rows, GROUND)
    assert len(dots) == rows and {len(row) for row in dots} == {columns}
    for y in range(rows):
        for x in range(columns):
            # The pixels that a dot overlaps, by exact arithmetic; at least the one in which it begins.
            across = range(x * width // columns, max((x + 1) * width // columns, x * width // columns + 1))
            down = range(y * height // rows, max((y + 1) * height // rows, y * height // rows + 1))
            under = {COLOURS[picture[j][i]] for j in down for i in across} - {GROUND}
            assert dots[y][x] in under if under else dots[y][x] is None
    if columns <= width and rows <= height:
        assert any(dot for row in dots for dot in row) == any(letter != "." for line in picture for letter in line)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.builds(
        Frame,
        st.just(1),
        st.just(0),
        st.integers(-1, 9),
        st.integers(-1, 20),
        st.integers(-1, 20),
        st.binary(max_size=6000),
    ),
    st.integers(1, 50),
    st.integers(1, 20),
    st.sampled_from([DARK, LIGHT, PLAIN]),
    st.sampled_from(["braille", "blocks", "ascii"]),
)
def test_any_frame_at_any_size_is_a_full_grid(frame, width, height, palette, mode):
    rows = draw_picture(frame, width, height, palette, mode)
    assert [len(row) for row in rows] == [width] * height
    for cell in {cell for row in rows for cell in row}:
        assert len(cell.character) == 1 and cell.character.isprintable() and cells(cell.character) == 1
        assert palette is not PLAIN or cell.character.isascii()
        palette.hex(cell.style.fore)
        palette.hex(cell.style.back)


@pytest.mark.parametrize(
    ("lanes", "pixel_width", "pixel_height", "width", "height"),
    [
        (1, 80, 80, 40, 10),
        (4, 64, 64, 77, 13),
        (4, 64, 64, 30, 40),
        (3, 96, 32, 60, 12),
        (2, 16, 64, 20, 20),
        (9, 40, 40, 50, 20),
    ],
)
def test_lanes_are_as_large_as_they_can_be(lanes, pixel_width, pixel_height, width, height):
    grid = LaneGrid.of(lanes, pixel_width, pixel_height, width, height)
    assert grid.across * grid.down >= lanes
    assert grid.across * grid.width + grid.across - 1 <= width and grid.down * grid.height <= height
    # By trying every width and number beside each other.
    largest = 0.0
    for across in range(1, lanes + 1):
        down = math.ceil(lanes / across)
        for wide in range(1, (width - across + 1) // across + 1):
            high = wide / 2 * pixel_height / pixel_width
            if high * down <= height:
                largest = max(largest, wide * high)
    # A little less for whole dots a pixel, and for whole cells.
    assert grid.width * grid.height >= largest / 1.15**2 - grid.width - grid.height - 1


def test_a_frame_without_space_is_blank():
    assert LaneGrid.of(9, 8, 8, 2, 2) is None and LaneGrid.of(4, 64, 64, 4, 1) is None
    assert {cell.character for row in draw_picture(frame_of(*[PICTURE] * 9), 2, 2, DARK) for cell in row} == {" "}


def test_a_picture_of_the_wanted_size_is_not_scaled():
    for width in range(73, 120):
        size = wanted_size(4, width, 13)
        grid = LaneGrid.of(4, size, size, width, 13)
        assert (2 * grid.width, 4 * grid.height) == (size, size)
    assert wanted_size(4, 1, 1) == 32 and wanted_size(1, 500, 500) == 96


@pytest.mark.parametrize("palette", [DARK, LIGHT])
def test_colours_are_quantized_and_have_contrast(palette):
    draw = random.Random(1)
    some = [bytes(draw.randrange(256) for _ in range(3)) for _ in range(3000)]
    shown = {shown_colour(pixel, palette.ground) for pixel in some}
    assert all(contrast(colour, palette.ground) >= 1.95 for colour in shown)
    assert len(shown) < 2600
    # A colour that is seen anyway stays what it is, to half a step of a channel.
    assert all(
        abs(a - b) <= 8
        for a, b in zip(channels(shown_colour(bytes((86, 180, 233)), DARK.ground)), (86, 180, 233), strict=True)
    )


class OnePicture(App[None]):
    AUTO_FOCUS = None

    def compose(self):
        yield AgentPicture()


def test_a_widget_keeps_its_ground_from_frame_to_frame():
    async def main():
        app = OnePicture()
        async with app.run_test(size=(4, 2)) as pilot:
            picture = app.query_one(AgentPicture)

            async def shown(*lanes, number):
                picture.show(frame_of(*lanes, number=number) if lanes else None)
                await pilot.pause()
                assert capture.text_of(app) == "\n".join(
                    line.rstrip() for line in text_of(picture.draw(4, 2, picture.palette))
                )
                return lit(picture.draw(4, 2, picture.palette))

            earth = {(x, y) for y, line in enumerate(HILL.split()) for x, letter in enumerate(line) if letter != "."}
            inverted = {(x, y) for y, line in enumerate(HILL.split()) for x, letter in enumerate(line) if letter != "b"}
            assert await shown(VALLEY, number=1) == {(x, y) for x in range(8) for y in (6, 7)}
            assert await shown(HILL, number=2) == earth
            assert await shown(HILL, number=3) == earth
            await shown(number=4)
            assert await shown(HILL, number=5) == inverted, "another run's picture begins anew"

    asyncio.run(main())


def test_a_widget_repaints_only_what_changed():
    async def main():
        app = OnePicture()
        async with app.run_test(size=(30, 8)) as pilot:
            picture = app.query_one(AgentPicture)
            picture.show(None, absent="asking the trainer", title=[("agent", Style())])
            await pilot.pause()
            assert "asking the trainer" in capture.text_of(app)
            picture.show(frame_of(PICTURE), title=[("agent", Style())])
            await pilot.pause()
            regions = []
            refresh = picture.refresh

            def recorded(*some, **options):
                regions.extend(some or [None])
                return refresh(*some, **options)

            picture.refresh = recorded
            picture.show(frame_of(PICTURE, number=2), title=[("agent", Style())])
            assert regions == []
            picture.show(frame_of(PICTURE.replace(".r....b.", "........"), number=3), title=[("agent", Style())])
            await pilot.pause()
            assert regions and None not in regions and sum(region.area for region in regions) < 28 * 6 / 2
            assert capture.text_of(app) == "\n".join(
                line.rstrip() for line in text_of(picture.draw(30, 8, picture.palette))
            )
            assert picture.wanted_size(1) == 32

    asyncio.run(main())
