"""Tile configs of fused kernels: block sizes, warps and chunks; candidates for a spec, best guess first; text form.

The tile config determines the order of sums, so that bits are equal only under the same config. The module works
without Triton. `operant.kernels.dense.tuning` measures the candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar

from operant.kernels.spec import RESIDENT_COLUMNS, RESIDENT_OUTPUTS, RESIDENT_WIDTH, Spec

RESIDENT_BYTES = 100 << 10
"""Largest size of weights in shared memory; on an H200, 96 KB fitted and 128 KB did not."""

WIDE_FIRST = 128
"""Padded columns of the first layer above which one candidate has smaller tiles."""

MICROBATCH_BYTES = 2**30
"""Largest size of a microbatch's buffers."""

CHUNKS, CHUNKS_OF_MANY, MANY_SAMPLES = 128, 256, 2**19
"""Chunks of a minibatch for a resident network: CHUNKS with two narrow towers, CHUNKS_OF_MANY with a shared trunk or
from MANY_SAMPLES on, as measured on an H200 with 8,000 to 1,000,000 samples. Wide towers have half: a multiprocessor
holds two programs of a narrow tower, but one of a wide tower.
"""

CHUNK_SAMPLES, MAX_MICROBATCH_CHUNKS = 384, 64
"""Per-layer engine: smallest number of samples of a chunk, and largest number of chunks of a microbatch. The reduction
of the chunks' rows costs time as well.
"""


class _TileConfig:
    """Base of tile configs. str() is the text form, "resident block_m=64 warps=4 ...", saved with a run."""

    name: ClassVar[str]

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in vars(self).items())])


@dataclass(frozen=True)
class Resident(_TileConfig):
    """Tile config of the resident engine: a program per chunk and tower holds the tower's weights."""

    name: ClassVar[str] = "resident"
    block_m: int  # samples of a tile of the backward kernel
    warps: int
    chunks: int  # of a minibatch
    act_block_m: int  # lanes of a tile of the act kernel
    act_warps: int
    max_registers: int = 0  # per thread of the backward kernel; 0: the compiler's choice

    def __post_init__(self) -> None:
        _check(self.block_m, self.act_block_m, warps=(self.warps, self.act_warps), chunks=self.chunks)


@dataclass(frozen=True)
class PerLayer(_TileConfig):
    """Tile config of the per-layer engine: a launch per layer and microbatch, with tiles of block_m samples x block_n
    outputs.
    """

    name: ClassVar[str] = "per-layer"
    block_m: int
    block_n: int
    block_k: int  # step of the inner dimension
    warps: int
    stages: int  # of the software pipeline
    chunks: int  # of a minibatch
    microbatch: int  # samples of the buffers; holds whole chunks, at least one

    def __post_init__(self) -> None:
        _check(self.block_m, self.block_n, self.block_k, warps=(self.warps,), chunks=self.chunks)
        if min(self.stages, self.microbatch) < 1 or self.block_m % self.block_k:
            raise ValueError(
                "a tile config has at least one stage and a microbatch of at least one sample, and block_k "
                "divides block_m"
            )


def _check(*blocks: int, warps: tuple[int, ...], chunks: int) -> None:
    """Raise ValueError for block sizes, numbers of warps or of chunks that no kernel supports."""
    if any(size not in (16, 32, 64, 128, 256) for size in blocks) or any(
        number not in (1, 2, 4, 8, 16) for number in warps
    ):
        raise ValueError("a tile config has blocks of 16, 32, 64, 128 or 256, and 1 to 16 warps, a power of two")
    if chunks not in CHUNK_COUNTS:
        raise ValueError(f"chunks should be a power of two up to {CHUNK_COUNTS[-1]} (got {chunks})")


CHUNK_COUNTS = tuple(2**k for k in range(11))
"""Valid numbers of chunks."""

TileConfig = Resident | PerLayer


def from_text(line: str) -> TileConfig:
    """Parse the text form of a tile config, as str() writes it. Raises ValueError with a sentence for anything else."""
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
    """Whether the engine of a tile config can run the network of a spec, apart from the GPU's shared memory."""
    return isinstance(config, PerLayer) or suits_resident(spec)


def suits_resident(spec: Spec) -> bool:
    """Whether one program can hold a whole tower (network of the actor or of the critic), on tensor cores in shared
    memory. Checked beforehand, because a failed compilation takes as long as a successful one.
    """
    item_bytes = 2 if spec.precision == "bf16" else 4
    weights = [outputs * inputs for outputs, inputs in zip(spec.widths, spec.inputs, strict=True)]
    resident_bytes = 4 * weights[0] + item_bytes * sum(weights[1:-1])
    if spec.layer_norm and _widest(spec) > 64:  # normalized rows would double the registers
        return False
    narrow = (
        max(spec.hidden_pad) <= RESIDENT_WIDTH
        and spec.columns_pad <= RESIDENT_COLUMNS
        and spec.out_pad <= RESIDENT_OUTPUTS
    )
    return narrow and (spec.precision == "ieee" or resident_bytes <= RESIDENT_BYTES)


def multiple(number: int, of: int) -> int:
    """Return the smallest multiple of `of` that is >= number."""
    return -(-number // of) * of


def power_of_two(number: float) -> int:
    """Return the largest power of two <= number, at least 1."""
    return 1 << max(0, math.floor(math.log2(max(number, 1))))


@dataclass(frozen=True)
class Workload:
    """Sizes of a minibatch and of the GPU, for which tile configs are chosen."""

    minibatch: int  # samples
    multiprocessors: int  # of the GPU
    shards: int = 1  # of a minibatch
    chunks: int | None = None  # of a minibatch, if fixed

    def chunk_count(self, guess: float) -> int:
        """Return the number of chunks of a minibatch: the fixed one, or the largest power of two <= guess, at least one
        per shard.
        """
        return self.chunks or min(max(power_of_two(guess), self.shards), CHUNK_COUNTS[-1])


def candidates(spec: Spec, work: Workload) -> Iterator[list[TileConfig]]:
    """Yield groups of tile configs for a spec and a workload, best guess first. The choice is among the first group of
    which any config fits the GPU; later groups need less shared memory.
    """
    per_layer = list(_per_layer(spec, work))
    if suits_resident(spec):
        first, *smaller = _resident(spec, work)
        # Above 64 units either engine may be faster.
        yield [*first, per_layer[0]] if _widest(spec) > 64 and spec.precision != "ieee" else first
        yield from smaller
    yield list(dict.fromkeys(per_layer[:-1]))
    yield per_layer[-1:]


def _widest(spec: Spec) -> int:
    """Return the largest padded side of any weight of a spec's network."""
    return max(*spec.inputs, *spec.widths)


def resident_chunks(spec: Spec, samples: int, block_m: int) -> int:
    """Return the number of chunks of a minibatch of `samples` for the resident engine, as measured; each has at least
    one tile of `block_m` samples.
    """
    count = CHUNKS_OF_MANY if spec.shared or (samples >= MANY_SAMPLES and spec.precision != "ieee") else CHUNKS
    return min(count if _widest(spec) <= 64 else count // 2, power_of_two(samples / block_m))


def _resident(spec: Spec, work: Workload) -> Iterator[list[TileConfig]]:
    """Yield groups of candidate tile configs of the resident engine, best guess first, as measured on an H200
    (benches/LOG.md).
    """
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


def _per_layer(spec: Spec, work: Workload) -> Iterator[TileConfig]:
    """Yield candidate tile configs of the per-layer engine, best guess first; the last fits every GPU."""
    item_bytes = 2 if spec.precision == "bf16" else 4
    # Per sample: activations, saved tensors and gradients of each layer, and the first layer's input twice.
    row_bytes = (
        spec.towers * item_bytes * (3 * sum(spec.hidden_pad) + spec.out_pad) + (1 if spec.bytes else 8) * spec.inputs[0]
    )

    def config(block_m: int, block_n: int, block_k: int, warps: int, stages: int, microbatch: int) -> PerLayer:
        microbatch = min(
            multiple(work.minibatch, 128), microbatch, max(128, MICROBATCH_BYTES // row_bytes // 128 * 128)
        )
        # A power of two of chunks such that the widest weight's gradient has two to three programs per multiprocessor.
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
    block_k = 128 // item_bytes
    yield config(128, 128, block_k, 8, 3, 65536)
    if spec.inputs[0] > WIDE_FIRST:
        # A wide first layer dominates, and its sums are long. Smaller tiles, of which a multiprocessor holds three or
        # four, hide the latency. Besides, a game's minibatch has few tiles of 128 rows for all multiprocessors.
        yield config(64, 128, block_k, 4, 3, 65536)
    yield config(128, 128, block_k, 8, 3, 16384)
    yield config(128, 64, block_k, 4, 3, 65536)
    # Below 64 rows Triton uses neither wgmma nor tcgen05, and Triton 3.6 cannot compile the latter for a shared
    # trunk's head.
    yield config(32, 64, 16, 4, 2, 65536)
