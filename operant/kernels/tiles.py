"""Tile configs of fused kernels: block sizes, warps, and the chunks of a minibatch. Which are worth a try for a spec,
best guess first; and one as a line.

The same bits come only from the same tile config: it decides in which order sums are added up. Knows no Triton and
measures nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar

from operant.kernels.spec import RESIDENT_COLUMNS, RESIDENT_OUTPUTS, RESIDENT_WIDTH, Spec

RESIDENT_BYTES = 100 << 10
"""Of weights in shared memory. On an H200 96 KB went, and 128 KB did not."""

WIDE_FIRST = 128
"""Columns of a first layer, padded, above which it is worth a tile config of its own."""

MICROBATCH_BYTES = 2**30
"""What the buffers of a microbatch may take at most."""

CHUNKS, CHUNKS_OF_MANY, MANY_SAMPLES = 128, 256, 2**19
"""Chunks of a minibatch for a resident network of two narrow towers, and from MANY_SAMPLES on or with one trunk, as
measured on an H200 with 8,000 to 1,000,000 samples. Of wide towers it takes half as many: a multiprocessor holds two
programs of a narrow tower, and one of a wide.
"""

CHUNK_SAMPLES, MAX_MICROBATCH_CHUNKS = 384, 64
"""A layer at a time, a chunk has at least so many samples, and a microbatch at most so many chunks: adding up their
rows costs time, too.
"""


class _TileConfig:
    """As a line, "resident block_m=64 warps=4 ...": what a run's document keeps."""

    name: ClassVar[str]

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in vars(self).items())])


@dataclass(frozen=True)
class Resident(_TileConfig):
    """One program holds a tower's weights: samples of a tile, warps of a program; a program a chunk and tower."""

    name: ClassVar = "resident"
    block_m: int
    warps: int
    chunks: int
    act_block_m: int
    act_warps: int
    max_registers: int = 0  # of a thread of the backward kernel; 0: as the compiler likes

    def __post_init__(self) -> None:
        _check(self.block_m, self.act_block_m, warps=(self.warps, self.act_warps), chunks=self.chunks)


@dataclass(frozen=True)
class PerLayer(_TileConfig):
    """A launch a layer: tiles of block_m samples x block_n outputs, summed over steps of block_k; a microbatch of
    samples at a time.
    """

    name: ClassVar = "per-layer"
    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    chunks: int
    microbatch: int  # samples that buffers hold: as many whole chunks as fit, and at least one

    def __post_init__(self) -> None:
        _check(self.block_m, self.block_n, self.block_k, warps=(self.warps,), chunks=self.chunks)
        if min(self.stages, self.microbatch) < 1 or self.block_m % self.block_k:
            raise ValueError(
                "a tile config has at least one stage and a microbatch of at least one sample, and block_k "
                "divides block_m"
            )


def _check(*blocks: int, warps: tuple[int, ...], chunks: int) -> None:
    """Raise ValueError for what no kernel could be compiled to."""
    if any(size not in (16, 32, 64, 128, 256) for size in blocks) or any(
        number not in (1, 2, 4, 8, 16) for number in warps
    ):
        raise ValueError("a tile config has blocks of 16, 32, 64, 128 or 256, and 1 to 16 warps, a power of two")
    if chunks not in CHUNK_COUNTS:
        raise ValueError(f"chunks should be a power of two up to {CHUNK_COUNTS[-1]} (got {chunks})")


CHUNK_COUNTS = tuple(2**k for k in range(11))
"""Chunks that a minibatch may have."""

TileConfig = Resident | PerLayer


def from_text(line: str) -> TileConfig:
    """The tile config of a line. Raises ValueError with a sentence for one that is not one."""
    name, *words = line.split() or [""]
    kind: type[TileConfig] | None = {"resident": Resident, "per-layer": PerLayer}.get(name)
    if kind is None:
        raise ValueError(f'a tile config begins with "resident" or "per-layer" (got {line!r})')
    try:
        return kind(
            **{
                key: int(value) if value.isdecimal() else -1
                for key, _, value in (word.partition("=") for word in words)
            }
        )
    except TypeError:
        raise ValueError(
            f"a tile config is {name} and {', '.join(field.name for field in fields(kind))}, each with a number (got "
            f"{line!r})"
        ) from None


def suits(config: TileConfig, spec: Spec) -> bool:
    """Whether a network can run in this tile config at all; whether a GPU has enough shared memory is another
    question.
    """
    return isinstance(config, PerLayer) or suits_resident(spec)


def suits_resident(spec: Spec) -> bool:
    """Whether a program may hold a tower: of tensor cores' products it has the weights in shared memory, and to compile
    in vain takes as long as to compile.
    """
    number = 2 if spec.precision == "bf16" else 4
    weights = [wide * deep for wide, deep in zip(spec.widths, spec.inputs, strict=True)]
    held = 4 * weights[0] + number * sum(weights[1:-1])
    if spec.layer_norm and _widest(spec) > 64:  # whose rows would take as many registers again
        return False
    narrow = (
        max(spec.hidden_pad) <= RESIDENT_WIDTH
        and spec.columns_pad <= RESIDENT_COLUMNS
        and spec.out_pad <= RESIDENT_OUTPUTS
    )
    return narrow and (spec.precision == "ieee" or held <= RESIDENT_BYTES)


def multiple(number: int, of: int) -> int:
    """The smallest multiple that is not below a number."""
    return -(-number // of) * of


def power_of_two(number: float) -> int:
    """The largest power of two that is not above a number, and at least 1."""
    return 1 << max(0, math.floor(math.log2(max(number, 1))))


@dataclass(frozen=True)
class Work:
    """What tile configs are chosen for: a minibatch's samples, a GPU's multiprocessors, the shards that a minibatch is
    made of, and its chunks if given.
    """

    minibatch: int
    multiprocessors: int
    shards: int = 1
    chunks: int | None = None

    def chunk_count(self, guess: float) -> int:
        """The chunks that are given, or the power of two below a guess that every shard has some of."""
        return self.chunks or min(max(power_of_two(guess), self.shards), CHUNK_COUNTS[-1])


def candidates(spec: Spec, work: Work) -> Iterator[list[TileConfig]]:
    """Tile configs in groups, best guess first: the first group of which any fits a GPU is the one to choose from.
    Later ones ask for less shared memory.
    """
    per_layer = list(_per_layer(spec, work))
    if suits_resident(spec):
        first, *smaller = _resident(spec, work)
        # From here on either kind may be the faster one.
        yield [*first, per_layer[0]] if _widest(spec) > 64 and spec.precision != "ieee" else first
        yield from smaller
    yield list(dict.fromkeys(per_layer[:-1]))
    yield per_layer[-1:]


def _widest(spec: Spec) -> int:
    return max(*spec.inputs, *spec.widths)


def resident_chunks(spec: Spec, samples: int, block_m: int) -> int:
    """Chunks of a minibatch: as measured, but none with less than a tile."""
    count = CHUNKS_OF_MANY if spec.shared or (samples >= MANY_SAMPLES and spec.precision != "ieee") else CHUNKS
    return min(count if _widest(spec) <= 64 else count // 2, power_of_two(samples / block_m))


def _resident(spec: Spec, work: Work) -> Iterator[list[TileConfig]]:
    """As they were on an H200 (benches/LOG.md)."""
    narrow = _widest(spec) <= 64

    def config(block_m: int, warps: int, times: float = 1) -> Resident:
        chunks = work.chunk_count(times * resident_chunks(spec, work.minibatch, block_m))
        return Resident(block_m, warps, chunks, act_block_m=block_m, act_warps=warps)

    def distinct(*configs: TileConfig) -> list[TileConfig]:
        return list(dict.fromkeys(configs))

    if spec.precision == "ieee":
        warps = 4 if narrow else 8
        yield distinct(config(32, warps), config(16, warps))
    elif narrow and spec.layer_norm:
        yield distinct(config(64, 8), config(64, 4), config(32, 4))
        yield [config(16, 4)]
    elif narrow:
        yield [config(64, 4)]
        yield [config(32, 4)]
        yield [config(16, 4)]
    else:
        yield distinct(config(64, 8), config(128, 8), config(32, 8))
        yield [config(16, 8)]


def _per_layer(spec: Spec, work: Work) -> Iterator[TileConfig]:
    """Best guess first; the last is the one that fits anywhere."""
    number = 2 if spec.precision == "bf16" else 4
    # Activations and gradients of each layer, what the latter are worked out from, and what the first layer reads,
    # twice.
    row_bytes = (
        spec.towers * number * (3 * sum(spec.hidden_pad) + spec.out_pad) + (1 if spec.bytes else 8) * spec.inputs[0]
    )

    def config(block_m: int, block_n: int, block_k: int, warps: int, stages: int, microbatch: int) -> PerLayer:
        microbatch = min(
            multiple(work.minibatch, 128), microbatch, max(128, MICROBATCH_BYTES // row_bytes // 128 * 128)
        )
        # Programs of the widest weight's gradient: a power of two of chunks that gives each multiprocessor two, or up
        # to three.
        tiles = max(
            -(-wide // block_n) * -(-deep // block_n) for wide, deep in zip(spec.widths, spec.inputs, strict=True)
        )
        at_once = min(
            3 * work.multiprocessors / (spec.towers * tiles), microbatch / CHUNK_SAMPLES, MAX_MICROBATCH_CHUNKS
        )
        chunks = work.chunk_count(power_of_two(at_once) * work.minibatch / microbatch)
        return PerLayer(block_m, block_n, block_k, warps, stages, chunks, microbatch)

    if spec.precision == "ieee":
        yield config(64, 64, 16, 4, 3, 65536)
        yield config(128, 64, 16, 8, 3, 65536)
        yield config(32, 32, 16, 4, 2, 65536)
        return
    block_k = 128 // number  # the same bytes in either precision
    yield config(128, 128, block_k, 8, 3, 65536)
    if spec.inputs[0] > WIDE_FIRST:
        # A wide first layer is most of the work, and its sums are long: smaller tiles, of which three or four are on a
        # multiprocessor at once, hide its waits. A game's minibatch also has few tiles of 128 rows for as many
        # multiprocessors.
        yield config(64, 128, block_k, 4, 3, 65536)
    yield config(128, 128, block_k, 8, 3, 16384)
    yield config(128, 64, block_k, 4, 3, 65536)
    # Of fewer than 64 rows neither wgmma nor tcgen05 is made: Triton 3.6 cannot compile the latter for a shared trunk's
    # head.
    yield config(32, 64, 16, 4, 2, 65536)
