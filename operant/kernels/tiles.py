"""How fused kernels are cut: tiles, warps, programs and chunks. Which cuts are worth a try for a spec, best guess first, and a cut as a line of text.

The same bits come only from the same cut: it decides in which order sums are added up. Knows no Triton and measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar

from operant.kernels.spec import WHOLE_COLUMNS, WHOLE_OUTPUTS, WHOLE_WIDTH, Spec

MANY_TILES = 24
"""Of a program; from here on a second wave of programs pays."""

WHOLE_BYTES = 100 << 10
"""Of weights in shared memory. On an H200 96 KB went, and 128 KB did not."""

WIDE_FIRST = 128
"""Columns of a first layer, padded, above which it is worth a shape of its own."""

CHUNK_BYTES = 2**30
"""What the buffers of a chunk may take at most."""

SAMPLES_OF_A_PROGRAM, MOST_PROGRAMS = 512, 64
"""At least so many samples of a chunk go to a program that sums them up into weight gradients, and no more programs share them: their sums cost time, too."""


class _Cut:
    """As a line, "whole rows=64 warps=4 ...": what a run's configuration keeps."""

    name: ClassVar[str]

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in vars(self).items())])


@dataclass(frozen=True)
class WholeShape(_Cut):
    """One program holds a tower's weights: rows of a tile, warps of a program, programs of a tower."""

    name: ClassVar = "whole"
    rows: int
    warps: int
    programs: int
    act_rows: int
    act_warps: int
    most_registers: int = 0  # of a thread of the gradient's kernel; 0: as the compiler likes

    def __post_init__(self) -> None:
        _check_tiles(self.rows, self.act_rows, warps=(self.warps, self.act_warps), positive=self.programs)


@dataclass(frozen=True)
class LayeredShape(_Cut):
    """A launch a layer: tiles of rows x columns, summed over steps of `depth`; programs that share a chunk's samples when these are summed up."""

    name: ClassVar = "layered"
    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    programs: int
    chunk: int  # samples, a multiple of `rows` and of 32

    def __post_init__(self) -> None:
        _check_tiles(self.rows, self.columns, self.depth, warps=(self.warps,), positive=min(self.programs, self.stages, self.chunk))
        if self.chunk % max(self.rows, 32) or self.rows % self.depth:
            raise ValueError("a chunk is a multiple of its tiles' rows and of 32, and these of the depth")


def _check_tiles(*sides: int, warps: tuple[int, ...], positive: int) -> None:
    """Raise ValueError for what no kernel could be cut to."""
    if any(side not in (16, 32, 64, 128, 256) for side in sides) or any(number not in (1, 2, 4, 8, 16) for number in warps) or positive < 1:
        raise ValueError("a tile has 16, 32, 64, 128 or 256 rows or columns, a program 1 to 16 warps, both powers of two, and nothing else is below 1")


Shape = WholeShape | LayeredShape


def from_text(line: str) -> Shape:
    """The shape of a line. Raises ValueError with a sentence for one that is none."""
    name, *words = line.split() or [""]
    kind: type[Shape] | None = {"whole": WholeShape, "layered": LayeredShape}.get(name)
    if kind is None:
        raise ValueError(f'a shape begins with "whole" or "layered" (got {line!r})')
    try:
        return kind(**{key: int(value) if value.isdecimal() else -1 for key, _, value in (word.partition("=") for word in words)})
    except TypeError:
        raise ValueError(f"a shape is {name} and {', '.join(field.name for field in fields(kind))}, each with a number (got {line!r})") from None


def suits(shape: Shape, spec: Spec) -> bool:
    """Whether a network can be cut so at all; what a GPU has room for is another question."""
    return isinstance(shape, LayeredShape) or suits_whole(spec)


def suits_whole(spec: Spec) -> bool:
    """Whether a program may hold a tower: of tensor cores' products it has the weights in shared memory, and to compile in vain takes as long as to compile."""
    number = 2 if spec.precision == "bf16" else 4
    weights = [wide * deep for wide, deep in zip(spec.widths, spec.inputs, strict=True)]
    held = 4 * weights[0] + number * sum(weights[1:-1])
    narrow = max(spec.hidden_pad) <= WHOLE_WIDTH and spec.columns_pad <= WHOLE_COLUMNS and spec.out_pad <= WHOLE_OUTPUTS
    return narrow and (spec.precision == "ieee" or held <= WHOLE_BYTES)


def multiple(number: int, of: int) -> int:
    """The smallest multiple that is not below a number."""
    return -(-number // of) * of


def candidates(spec: Spec, minibatch: int, multiprocessors: int) -> Iterator[list[Shape]]:
    """Shapes in groups, best guess first: the first group of which any fits a GPU is the one to choose from. Later ones ask for less shared memory."""
    layered = list(_layered(spec, minibatch, multiprocessors))
    if suits_whole(spec):
        first, *smaller = _whole(spec, minibatch, multiprocessors)
        # From here on either form may be the faster one.
        yield [*first, layered[0]] if _widest(spec) > 64 and spec.precision != "ieee" else first
        yield from smaller
    yield list(dict.fromkeys(layered[:-1]))
    yield layered[-1:]


def _widest(spec: Spec) -> int:
    return max(*spec.inputs, *spec.widths)


def _whole(spec: Spec, minibatch: int, multiprocessors: int) -> Iterator[list[Shape]]:
    """As they were on an H200 (benches/LOG.md)."""
    narrow = _widest(spec) <= 64

    def shape(rows: int, warps: int, waves: int) -> WholeShape:
        tiles = -(-minibatch // rows)
        resident = max(1, multiprocessors * (2 if narrow else 1) // spec.towers)  # as many programs of a tower as the GPU holds at once
        return WholeShape(rows=rows, warps=warps, programs=min(tiles, waves * resident), act_rows=rows, act_warps=warps)

    def distinct(*shapes: Shape) -> list[Shape]:
        return list(dict.fromkeys(shapes))

    if spec.precision == "ieee":
        warps = 4 if narrow else 8
        yield distinct(shape(32, warps, 1), shape(16, warps, 1))
    elif narrow:
        # Twice as many programs where each still gets some tiles: for what is left at the end is less then.
        likely = shape(64, 4, 1)
        waves = (2, 1, 3) if -(-minibatch // 64) >= MANY_TILES * likely.programs else (1, 2, 3)
        yield distinct(*(shape(64, 4, wave) for wave in waves))
        yield [shape(32, 4, waves[0])]
        yield [shape(16, 4, waves[0])]
    else:
        yield distinct(shape(64, 8, 1), shape(128, 8, 1), shape(32, 8, 1))
        yield [shape(16, 8, 1)]


def _layered(spec: Spec, minibatch: int, multiprocessors: int) -> Iterator[Shape]:
    """Best guess first; the last is the one that fits anywhere."""
    number = 2 if spec.precision == "bf16" else 4
    # Activations and slopes of each layer, what slopes are worked out from, and what the first layer reads, twice.
    row_bytes = spec.towers * number * (3 * sum(spec.hidden_pad) + spec.out_pad) + (1 if spec.bytes else 8) * spec.inputs[0]

    def shape(rows: int, columns: int, depth: int, warps: int, stages: int, chunk: int) -> LayeredShape:
        chunk = min(multiple(minibatch, 128), chunk, max(128, CHUNK_BYTES // row_bytes // 128 * 128))
        tiles = [-(-wide // columns) * -(-deep // columns) for wide, deep in zip(spec.widths, spec.inputs, strict=True)]
        programs = min(2 * multiprocessors // (spec.towers * max(tiles)), chunk // SAMPLES_OF_A_PROGRAM, MOST_PROGRAMS)
        return LayeredShape(rows, columns, depth, warps, stages, max(1, programs), chunk)

    if spec.precision == "ieee":
        yield shape(64, 64, 16, 4, 3, 65536)
        yield shape(128, 64, 16, 8, 3, 65536)
        yield shape(32, 32, 16, 4, 2, 65536)
        return
    depth = 128 // number  # the same bytes in either precision
    yield shape(128, 128, depth, 8, 3, 65536)
    if spec.inputs[0] > WIDE_FIRST:
        # A wide first layer is most of the work, and its sums are long: smaller tiles, of which three or four are on a multiprocessor at once, hide its waits.
        # A game's minibatch also has few tiles of 128 rows for as many multiprocessors.
        yield shape(64, 128, depth, 4, 3, 65536)
    yield shape(128, 128, depth, 8, 3, 16384)
    yield shape(128, 64, depth, 4, 3, 65536)
    # Of fewer than 64 rows neither wgmma nor tcgen05 is made: Triton 3.6 cannot compile the latter for a shared trunk's head.
    yield shape(32, 64, 16, 4, 2, 65536)
