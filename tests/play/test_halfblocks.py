"""Pictures as terminal cells: half blocks in colour, shapes without."""

import pytest

from operant.play.halfblocks import Style, background_of, cells_of

COLOURED, PLAIN, ASCII = Style(True, True), Style(False, True), Style(False, False)
RED, BLUE, BLACK = b"\xff\0\0", b"\0\0\xff", b"\0\0\0"


def test_two_pixels_are_a_cell():
    pixels = RED + BLUE + BLUE + BLUE  # 2 x 2
    assert cells_of(pixels, 2, 2, COLOURED) == [[("▀", RED, BLUE), (" ", None, BLUE)]]


def test_without_half_blocks_a_cell_is_the_pixel_that_differs_from_the_background():
    pixels = (BLACK + BLACK + BLACK) + (BLACK + RED + BLACK)
    assert cells_of(pixels, 3, 2, Style(True, False)) == [[(" ", None, BLACK), (" ", None, RED), (" ", None, BLACK)]]


def test_without_colours_shapes_stay():
    ground = [[BLACK] * 6 for _ in range(4)]
    ground[1][2], ground[2][3], ground[1][4], ground[2][4] = RED, RED, b"\xff\xff\xff", b"\xff\xff\xff"
    pixels = b"".join(b"".join(row) for row in ground)
    assert ["".join(character for character, *_ in row) for row in cells_of(pixels, 6, 4, PLAIN)] == [
        "  ▄ ▄ ",
        "   ▀▀ ",
    ]
    assert ["".join(character for character, *_ in row) for row in cells_of(pixels, 6, 4, ASCII)] == [
        "  . . ",
        "   '' ",
    ]
    full = (
        BLACK * 4
        + BLACK
        + b"\x30\x30\x30"
        + b"\xff\xff\xff"
        + BLACK
        + BLACK
        + b"\x30\x30\x30"
        + b"\xff\xff\xff"
        + BLACK
        + BLACK * 4
    )
    assert [row[2][0] for row in cells_of(full, 4, 4, PLAIN)] == ["▄", "▀"]
    pairs = [(BLACK, BLACK), (b"\x30\x30\x30", b"\x30\x30\x30"), (b"\xff\xff\xff", b"\xff\xff\xff"), (BLACK, BLACK)]
    tall = BLACK * 8 + b"".join(upper for upper, _ in pairs) + b"".join(lower for _, lower in pairs) + BLACK * 4
    assert [character for character, *_ in cells_of(tall, 4, 5, ASCII)[1]] == [" ", ":", "#", " "]
    assert [character for character, *_ in cells_of(tall, 4, 5, PLAIN)[1]] == [" ", "░", "█", " "]


def test_the_background_is_the_most_frequent_colour_of_the_border():
    assert background_of(RED * 3 + RED + BLUE + RED + BLUE * 3, 3, 3) == RED
    assert background_of(BLUE, 1, 1) == BLUE


@pytest.mark.parametrize(("pixels", "width", "height"), [(b"", 0, 0), (b"abc", 2, 1), (b"abcabc", 1, 1)])
def test_a_wrong_number_of_bytes_is_refused(pixels, width, height):
    with pytest.raises(ValueError, match=r"has .* bytes"):
        cells_of(pixels, width, height, COLOURED)
