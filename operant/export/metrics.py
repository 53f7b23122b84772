"""Writes a run's metrics as CSV or Parquet, or hands them to TensorBoard, Weights & Biases or MLflow: afterwards, or
while it trains. Knows no trainer.

It reads the run's files as any viewer does: whatever becomes of a network or of a disk here, the trainer does not
notice. Every row is one record: `session` and `n` (which count a run's trainers and their records), `step`, `time`
(seconds since 1970), and one column for each metric; a metric without a value is empty.
"""

from __future__ import annotations

import csv
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from operant import runs
from operant.errors import MachineError, NotFoundError
from operant.runs import Chunk, Run, Stream
from operant.text import safe

FILES: Final = {"csv": ".csv", "parquet": ".parquet"}
"""The formats that are one file, and how it ends."""

TRACKERS: Final = ("tensorboard", "wandb", "mlflow")

KEYS: Final = ("session", "n", "step", "time")
_PERIOD_S = 1.0


class Sink(Protocol):
    """Where rows go."""

    where: str  # what to tell a person

    def add(self, chunk: Chunk) -> None:
        """The next rows, of one session."""

    def close(self, complete: bool) -> None:
        """There are no more rows; not `complete`: something went wrong. (A user who stops following has what there was
        until then.)
        """


class Written(NamedTuple):
    """What was handed over."""

    where: str
    rows: int
    metrics: int


def export(run: Run, sink: Sink, *, follow: bool, report: Callable[[int], None] = lambda rows: None) -> Written:
    """Hand all records of a run to a sink; with `follow` also those that come, until the run has ended. `report` takes
    the number of rows so far.

    Raises MachineError where they cannot be written.
    """
    stream, rows, names, complete = Stream(run), 0, set[str](), False
    try:
        while True:
            for chunk in stream.poll():
                sink.add(chunk)
                rows += len(chunk.n)
                names.update(chunk.names)
            report(rows)
            if not follow or stream.over:
                break
            time.sleep(_PERIOD_S)
        complete = True
    except KeyboardInterrupt:
        complete = follow
        raise
    except OSError as error:
        raise _not_written(sink, error) from None
    finally:
        stream.close()
        try:
            sink.close(complete)
        except OSError as error:  # what is not written yet has no room either
            raise _not_written(sink, error) from None
    return Written(sink.where, rows, len(names))


def _not_written(sink: Sink, error: OSError) -> MachineError:
    return MachineError(
        f"{sink.where} cannot be written ({error.strerror or error}): choose another place with --out. The run is not "
        "concerned"
    )


def require(what: str, *packages: str) -> None:
    """Raise MachineError where a format's packages are not installed."""
    if missing := [package for package in packages if find_spec(package) is None]:
        raise MachineError(
            f"--to {what} needs {' and '.join(missing)}: pip install 'operant[track]'. Without: --to csv"
        )


def file_sink(run: Run, path: Path, what: str, *, follow: bool) -> Sink:
    """A file of a format of FILES. Raises MachineError, and NotFoundError for a run without records."""
    if what == "parquet":
        require(what, "pyarrow")
    names = names_of(run, wait=follow)
    return ParquetFile(path, names) if what == "parquet" else CsvFile(path, names, follow=follow)


def names_of(run: Run, *, wait: bool) -> list[str]:
    """The metrics of all of a run's sessions so far, in their order; with `wait` of one that has just begun, once there
    is a record.

    Raises NotFoundError for a run without records.
    """
    stream = Stream(run)
    try:
        while True:
            found: dict[str, None] = {}
            for chunk in stream.poll():
                found.update(dict.fromkeys(chunk.names))
            if found:
                return list(found)
            if not wait or stream.over:
                raise NotFoundError(f"{safe(run.id)} has no records: there is nothing to export")
            time.sleep(_PERIOD_S)
    finally:
        stream.close()


def _rows(chunk: Chunk, names: Sequence[str]) -> Iterator[list[Any]]:
    columns = [chunk.columns.get(name) for name in names]
    for k, (n, step, time_ns) in enumerate(zip(chunk.n, chunk.step, chunk.realtime_ns, strict=True)):
        values = (None if column is None or math.isnan(column[k]) else column[k] for column in columns)
        yield [chunk.session, n, step, time_ns / 1e9, *values]


def _new(chunk: Chunk, names: Sequence[str]) -> list[str]:
    """The metrics of a chunk that have no column yet: a later session of a run that is followed may bring some."""
    return [name for name in chunk.names if name not in names]


class CsvFile:
    """A line for each record. Followed, the file grows line by line, and is replaced by a wider one where a metric is
    new; otherwise it is there once it is whole.
    """

    def __init__(self, path: Path, names: Sequence[str], *, follow: bool) -> None:
        self.where, self._path, self._names = str(path), path, list(names)
        self._place = path if follow else path.with_name(f".{path.name}-{os.getpid()}")
        with _opening(self._place, path):
            self._file = self._place.open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)
        self._writer.writerow([*KEYS, *names])

    def add(self, chunk: Chunk) -> None:
        """Write the rows; a float is written so that it is read back as the same."""
        if new := _new(chunk, self._names):
            self._widen(new)
        self._writer.writerows(
            [("" if value is None else repr(value)) for value in row] for row in _rows(chunk, self._names)
        )
        self._file.flush()

    def _widen(self, names: Sequence[str]) -> None:
        """Give what was written columns for more metrics, which are empty there. Raises MachineError for a pipe or a
        device, which keeps what it got.
        """
        if not self._place.is_file():
            raise MachineError(
                f"a later session has more metrics ({safe(', '.join(names), 200)}), and {self.where}, not a file, "
                "cannot get more columns"
            )
        self._file.close()
        if self._place == self._path:
            self._path = self._place = self._place.resolve()  # a link stays one
        wider = self._place.with_name(f".{self._place.name}-{os.getpid()}-wider")
        with (
            self._place.open(newline="", encoding="utf-8") as before,
            wider.open("w", newline="", encoding="utf-8") as after,
        ):
            writer = csv.writer(after)
            writer.writerows(
                [*row, *(names if k == 0 else [""] * len(names))] for k, row in enumerate(csv.reader(before))
            )
        os.replace(wider, self._place)
        self._names += names
        self._file = self._place.open("a", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)

    def close(self, complete: bool) -> None:
        """Put the file in its place, or where it is not whole, away."""
        with _placing(self._place, self._path, complete):
            self._file.close()


class ParquetFile:
    """A row for each record. The file is there once it is whole: a Parquet file can be read only then. One that is
    followed is whole at the run's end.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        import pyarrow
        from pyarrow import parquet

        self.where, self._path, self._names, self._arrow, self._parquet = str(path), path, list(names), pyarrow, parquet
        self._place = path.with_name(f".{path.name}-{os.getpid()}")
        with _opening(self._place, path):
            self._open()

    def _open(self) -> None:
        arrow = self._arrow
        fixed = [
            ("session", arrow.uint64()),
            ("n", arrow.uint64()),
            ("step", arrow.uint64()),
            ("time", arrow.float64()),
        ]
        self._schema = arrow.schema([*fixed, *((name, arrow.float64()) for name in self._names)])
        self._writer = self._parquet.ParquetWriter(str(self._place), self._schema)

    def add(self, chunk: Chunk) -> None:
        """Write the rows as a group."""
        if new := _new(chunk, self._names):
            self._writer.close()
            before = self._parquet.read_table(str(self._place))
            self._names += new
            self._open()
            for name in new:
                before = before.append_column(name, self._arrow.nulls(len(before), self._arrow.float64()))
            self._writer.write_table(before)
        columns = zip(*_rows(chunk, self._names), strict=True)
        self._writer.write_table(self._arrow.table([list(column) for column in columns], schema=self._schema))

    def close(self, complete: bool) -> None:
        """Put the file in its place, or where it is not whole, away."""
        with _placing(self._place, self._path, complete):
            self._writer.close()


@contextmanager
def _placing(place: Path, path: Path, complete: bool) -> Iterator[None]:
    """Closes a file that was written in a place of its own: puts it at its path, or where it is not whole, away."""
    try:
        yield
        if place != path and complete:
            os.replace(place, path)
    finally:
        if place != path:
            place.unlink(missing_ok=True)


@contextmanager
def _opening(place: Path, path: Path) -> Iterator[None]:
    """Turns an OSError of opening a file in a place of its own into a sentence."""
    try:
        yield
    except OSError as error:
        if place != path:
            with suppress(OSError):
                place.unlink()
        raise MachineError(
            f"{runs.display_path(path)} cannot be written ({error.strerror or error}): choose another place with --out"
        ) from None
