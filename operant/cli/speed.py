"""Commands `profile` and `bench`: speed, and where the time goes. They train in this process and write no run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from operant.cli.common import (
    TYPER,
    ConfigOption,
    EnvOption,
    JsonOption,
    TrustOption,
    Words,
    consented,
    out,
    print_json,
    print_table,
    say,
)
from operant.errors import MachineError, NotFoundError, UsageError
from operant.text import safe

if TYPE_CHECKING:
    from operant.tools.bench import Bench, Solved, Stepping, Training
    from operant.tools.profile import Profile

app = typer.Typer(**TYPER)

DeviceOption = Annotated[
    str | None,
    typer.Option("--device", metavar="auto|cpu|cuda[:N]", help="processor: a GPU if there is one, or by name"),
]


# PROFILE


@app.command()
def profile(
    words: Words = None,
    config: ConfigOption = None,
    env: EnvOption = None,
    device: DeviceOption = None,
    updates: Annotated[int, typer.Option("--updates", metavar="N", min=1, max=100_000, help="iterations to time")] = 20,
    trace: Annotated[
        str, typer.Option("--trace", metavar="FILE", help="file of the trace, for ui.perfetto.dev")
    ] = "operant-trace.json",
    part: Annotated[
        str | None,
        typer.Option("--part", metavar="env|rollout|update", help="time only this part, and write no trace"),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="list the buffers by name and bytes, and write no trace")
    ] = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure the time and memory of each part of an iteration.

    Writes a trace of two iterations.
    """
    if part is not None and part not in ("env", "rollout", "update"):
        raise UsageError(f"--part is {part!r}; it must be env, rollout or update")
    from operant.compute.runtime import quiet_threads

    quiet_threads()  # before torch is imported

    from operant.config import request
    from operant.tools import profile as profiling

    asked = request.make(words or (), config=config, environment_file=env, settings={"run.device": device})
    resolved = consented(trust, asked.load)
    if part is not None or memory:
        _print_part_and_buffers(resolved, part, memory, updates, as_json=as_json)
        return
    path = _trace_path(trace)
    try:
        found = profiling.profile(resolved, updates, trace=path, report=say)
    except OSError as error:
        if error.filename is None:  # for example without a folder for temporary files
            raise MachineError(
                f"{error.strerror or error}: free some disk space, or set TMPDIR to a folder with free space"
            ) from None
        if str(error.filename) != str(path):  # for example a file of an outside environment
            raise
        raise MachineError(
            f"{error.strerror or error} ({safe(path, 400)}): choose a file on another disk with --trace"
        ) from None
    if as_json:
        print_json(found.document())
        return
    print_profile(found)
    say("", f"trace of {profiling.TRACED} iterations: {path}  (open it at https://ui.perfetto.dev)")


def _print_part_and_buffers(config: Any, part: str | None, memory: bool, iterations: int, *, as_json: bool) -> None:
    """Time the `part` of an iteration (None: no part) and, with `memory`, list the trainer's buffers; print both, with
    `as_json` as JSON. `iterations`: number to time.
    """
    from operant.text import size
    from operant.tools import profile_parts

    found = profile_parts.time_part(config, part, iterations, say) if part is not None else None
    kept = profile_parts.buffers(profile_parts.build_trainer(config, say)) if memory else []
    if as_json:
        listed = (
            {"buffers": [buffer._asdict() for buffer in kept], "bytes": sum(buffer.bytes for buffer in kept)}
            if memory
            else {}
        )
        print_json({"schema": 1, **({} if found is None else found._asdict()), **listed})
        return
    if found is not None:
        out(f"{found.environment}  {found.algorithm}  {found.lanes:,} lanes  {found.device}")
        out(
            f"{found.part:8} {duration(found.seconds)} for {found.steps:,} steps, median of {found.iterations}: "
            f"{_count(found.sps)} steps/s"
        )
    if memory:
        rows = [
            (buffer.name, size(buffer.bytes), "x".join(map(str, buffer.shape)), buffer.dtype, buffer.device)
            for buffer in kept[:40]
        ]
        print_table(("buffer", "size", "shape", "dtype", "device"), rows, right=(1,))
        out("", f"{len(kept):,} buffers, {size(sum(buffer.bytes for buffer in kept))} in total")


def _trace_path(trace: str) -> Path:
    """Return the path of the trace file after opening it once for writing, since torch's profiler only logs a failure.
    Raises UsageError, NotFoundError, MachineError.
    """
    path = Path(trace)
    if not path.absolute().parent.is_dir():
        raise NotFoundError(
            f"--trace: the folder {safe(path.absolute().parent, 400)!r} of {safe(path.name, 100)} does not exist"
        )
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"--trace: {safe(trace, 400)!r} is a folder, a device or a pipe: name a file")
        path.open("ab").close()
    except (OSError, ValueError) as error:
        kind = MachineError if isinstance(error, PermissionError) else UsageError
        raise kind(
            f"--trace: {safe(trace, 400)!r} cannot be written ({getattr(error, 'strerror', None) or error}): choose "
            "another file"
        ) from None
    return path


def print_profile(found: Profile) -> None:
    """Print a profile: the iteration, then tables of its phases and kernels."""
    out(
        f"{found.environment}  {found.algorithm}  {found.lanes:,} lanes x {found.horizon}  {found.precision}, "
        f"{found.kernels} kernels  {found.device}"
    )
    halves = ", ".join(f"{name} {duration(seconds)}" for name, seconds in found.phase_s.items())
    out(
        f"{duration(found.iteration_s)} per iteration ({halves}), medians of {found.iterations}: "
        f"{_count(found.sps)} steps/s",
        "",
    )
    if found.host_s:
        split = ", ".join(
            f"{part} {duration(seconds)} ({seconds / found.iteration_s:.0%})" for part, seconds in found.host_s.items()
        )
        out(f"lanes on the host: {split} of a thread's iteration; waiting means waiting for actions", "")
    heads = ("phase", "time", "share", "launches")
    rows = [
        (
            phase.name,
            duration(phase.seconds),
            f"{phase.share:.0%}",
            "-" if phase.launches is None else f"{phase.launches:,}",
        )
        for phase in found.phases
    ]
    print_table(heads, rows, right=range(1, 4))
    if found.kernel_launches is not None and found.busy_share is not None:
        out("phase times are those of kernels launched one by one, since kernels in a graph have no names")
        launches = (
            f"{found.kernel_launches:,} kernels and {found.copies:,} copies per iteration, by "
            f"{found.host_launches:,} host calls"
        )
        out("", f"{launches}; the device is busy {found.busy_share:.0%}")
        print_table(
            ("kernel", "time", "launches"),
            [(kernel.name[:80], duration(kernel.busy_s), f"{kernel.launches:,}") for kernel in found.top_kernels],
            right=(1, 2),
        )
    share = found.flops / found.peak.flops
    out(
        "",
        f"compute    {_count(found.flops)}FLOP/s, {share:.1%} of {_count(found.peak.flops)}FLOP/s, measured by a "
        f"{found.peak.product} matrix product",
    )
    share = found.bandwidth / found.peak.bytes
    out(
        f"memory     at least {_count(found.bandwidth)}B/s, {share:.1%} of {_count(found.peak.bytes)}B/s, measured by "
        "a large copy",
        "",
    )
    if found.kernel_launches is None:  # on a CPU only the memory of the process is known
        print_table(
            ("memory", "resident"), [(moment.when, _bytes(moment.allocated)) for moment in found.memory], right=(1,)
        )
    else:
        heads = ("memory", "allocated", "reserved", "peak since")
        rows = [
            (moment.when, _bytes(moment.allocated), _bytes(moment.reserved), _bytes(moment.peak))
            for moment in found.memory
        ]
        print_table(heads, rows, right=range(1, 4))


# BENCH


@app.command()
def bench(
    only: Annotated[str, typer.Option(metavar="PART,...", help="parts to run")] = "stepping,ppo,solve",
    device: DeviceOption = None,
    lanes: Annotated[str, typer.Option(metavar="N,...", help="numbers of lanes to step  [default: by device]")] = "",
    sizes: Annotated[
        str, typer.Option(metavar="NxT,...", help="lanes x horizon to train, such as 2048x16  [default: by device]")
    ] = "",
    precision: Annotated[str, typer.Option(metavar="bf16,tf32,fp32", help="on a GPU  [default: all three]")] = "",
    repeats: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="timed repeats, of which the median is printed")
    ] = 5,
    threads: Annotated[int, typer.Option(metavar="N", min=0, max=4096, help="CPU threads; 0: one per core")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure steps per second on this machine."""
    from operant.compute.runtime import quiet_threads

    quiet_threads()  # before torch is imported

    from operant.tools import bench as benchmark

    precisions = _split(precision)
    if unknown := [word for word in precisions if word not in ("bf16", "tf32", "fp32")]:
        raise UsageError(f"--precision is {unknown[0]!r}; it must be bf16, tf32 or fp32")
    found = benchmark.bench(
        device=device or "auto",
        threads=threads,
        sections=_split(only),
        lanes=[_lane_count(word) for word in _split(lanes)],
        sizes=[_lanes_and_horizon(word) for word in _split(sizes)],
        precisions=precisions,
        repeats=repeats,
        report=say,
    )
    if as_json:
        print_json(found.document())
    else:
        _print_bench(found)


def _split(text: str) -> list[str]:
    """Split an option's value at commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def _lane_count(word: str) -> int:
    """Parse a number of lanes. Raises UsageError."""
    if not word.isdecimal() or not 1 <= int(word) <= 1 << 30:
        raise UsageError(f"{word!r} is not a number of lanes")
    return int(word)


def _lanes_and_horizon(word: str) -> tuple[int, int]:
    """Parse `LANESxHORIZON`, such as 2048x16. Raises UsageError."""
    lanes, _, horizon = word.partition("x")
    if not horizon:
        raise UsageError(f"{word!r} is not a size: lanes x horizon, such as 2048x16")
    return _lane_count(lanes), _lane_count(horizon)


def _print_bench(found: Bench) -> None:
    """Print the results of `operant bench`: a table for each part."""
    load = "" if found.load is None else f", load before {found.load:.2f}"
    out(f"{found.device}, torch {found.versions['torch']}, medians of {found.repeats}{load}")
    _print_part(("stepping", "lanes", "steps/s", "memory traffic"), [_stepping_row(row) for row in found.stepping])
    _print_part(
        ("PPO, CartPole", "precision", "kernels", "steps/s", "iteration", "collect", "update"),
        [_training_row(row) for row in found.ppo],
    )
    _print_part(
        ("solve CartPole", "training", "with compilation", "steps", "return"),
        [_solved_row(row) for row in found.solve],
    )


def _print_part(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table after an empty line; nothing without rows."""
    if rows:
        out("")
        print_table(heads, rows, right=range(1, len(heads)))


def _stepping_row(row: Stepping) -> Sequence[str]:
    """Format a measurement of environment stepping as the cells of a row."""
    return row.environment, f"{row.lanes:,}", _count(row.sps), f"{_count(row.bytes_per_s)}B/s"


def _training_row(row: Training) -> Sequence[str]:
    """Format a measurement of PPO training as the cells of a row."""
    times = (duration(row.iteration_s), duration(row.collect_s), duration(row.update_s))
    return f"{row.lanes:,} x {row.horizon}", row.precision, row.kernels, _count(row.sps), *times


def _solved_row(row: Solved) -> Sequence[str]:
    """Format a measurement of the time to solve CartPole as the cells of a row."""
    reached = "" if row.reached else ", not reached"
    return (
        f"seed {row.seed}",
        duration(row.training_s),
        duration(row.whole_s),
        f"{row.steps:,}",
        f"{row.mean_return:.1f}{reached}",
    )


# NUMBERS


def duration(seconds: float) -> str:
    """Format a duration in seconds with three digits: `12.3 ms`."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 0.9995:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _count(number: float) -> str:
    """Format a number with three digits and a decimal prefix: `1.23 M`."""
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {prefix}"
    return f"{number:.3g} "


def _bytes(number: int) -> str:
    """Format a number of bytes in MiB."""
    return f"{number / (1 << 20):,.1f} MiB"
