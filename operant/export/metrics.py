"""Export of a run's metrics as CSV or Parquet, or to TensorBoard, Weights & Biases or MLflow, after training or during
it.

Reads the run's files as any viewer does: a network or disk failure here does not affect the trainer. Every row is one
record: `session` and `n` (counters of a run's trainers and their records), `step`, `time` (seconds since 1970),
`seconds` of training, without pauses, and one column for each metric, empty where it has no value.
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
from operant.runs import Chunk, Clock, Run, Stream
from operant.text import safe

FILES: Final = {"csv": ".csv", "parquet": ".parquet"}
"""File formats and their extensions."""

TRACKERS: Final = ("tensorboard", "wandb", "mlflow")

KEYS: Final = ("session", "n", "step", "time", "seconds")
_PERIOD_S = 1.0


class Sink(Protocol):
    """Destination of exported records: a file, or an experiment tracker."""

    where: str  # path or URL, for messages

    def add(self, chunk: Chunk) -> None:
        """Write the next records of a run (rows of its metrics file), all of one session (one start or resume), to the
        destination.
        """

    def close(self, complete: bool) -> None:
        """End the export to the destination. `complete` is False after an error. (A user who stops following keeps the
        rows so far.)
        """


class Written(NamedTuple):
    """Result of an export: its destination, number of rows and number of metrics."""

    where: str
    rows: int
    metrics: int


def export(run: Run, sink: Sink, *, follow: bool, report: Callable[[int], None] = lambda rows: None) -> Written:
    """Write all records of a run to `sink`; with `follow` also later records, until the run has ended. `report`
    receives the number of rows so far. Raises MachineError if the sink cannot be written.
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
        except OSError as error:  # buffered rows do not fit either
            raise _not_written(sink, error) from None
    return Written(sink.where, rows, len(names))


def _not_written(sink: Sink, error: OSError) -> MachineError:
    """Make the error for a sink that cannot be written."""
    return MachineError(
        f"{sink.where} cannot be written ({error.strerror or error}): choose another path with --out. The run is not "
        "affected"
    )


def require(what: str, *packages: str) -> None:
    """Check that the Python packages that the format `what` (of the option `--to`) needs are installed. Raises
    MachineError.
    """
    if missing := [package for package in packages if find_spec(package) is None]:
        raise MachineError(f"--to {what} needs {' and '.join(missing)}: pip install 'operant[track]', or use --to csv")


def file_sink(run: Run, path: Path, what: str, *, follow: bool) -> Sink:
    """Create the sink of a file format (`what`, a key of `FILES`) at `path`. With `follow` records are written while
    the run continues. Raises MachineError, and NotFoundError for a run without records.
    """
    if what == "parquet":
        require(what, "pyarrow")
    names = names_of(run, wait=follow)
    return ParquetFile(path, names) if what == "parquet" else CsvFile(path, names, follow=follow)


def names_of(run: Run, *, wait: bool) -> list[str]:
    """Names of the metrics of all sessions of a run so far, in order. With `wait`, wait for the first record of a run
    that has just started. Raises NotFoundError for a run without records.
    """
    stream = Stream(run)
    try:
        while True:
            names: dict[str, None] = {}
            for chunk in stream.poll():
                names.update(dict.fromkeys(chunk.names))
            if names:
                return list(names)
            if not wait or stream.over:
                raise NotFoundError(f"{safe(run.id)} has no records: there is nothing to export")
            time.sleep(_PERIOD_S)
    finally:
        stream.close()


def _record_rows(chunk: Chunk, names: Sequence[str], clock: Clock) -> Iterator[list[Any]]:
    """Yield the records of a chunk as rows: the key columns, then the values of the metrics `names`, None where there
    is none.
    """
    columns = [chunk.columns.get(name) for name in names]
    keys = zip(chunk.n, chunk.step, chunk.realtime_ns, clock.seconds(chunk), strict=True)
    for k, (n, step, time_ns, seconds) in enumerate(keys):
        values = (None if column is None or math.isnan(column[k]) else column[k] for column in columns)
        yield [chunk.session, n, step, time_ns / 1e9, seconds, *values]


def _new_metrics(chunk: Chunk, names: Sequence[str]) -> list[str]:
    """Names of metrics in a chunk of records that are not among `names`. A later session of a run may have more
    metrics.
    """
    return [name for name in chunk.names if name not in names]


class CsvFile:
    """Sink that writes a CSV file with one line for each record. With `follow` it grows line by line and is rewritten
    with more columns for a new metric; otherwise the file appears when it is complete.
    """

    def __init__(self, path: Path, names: Sequence[str], *, follow: bool) -> None:
        self.where, self._path, self._names, self._clock = str(path), path, list(names), Clock()
        self._temporary = path if follow else path.with_name(f".{path.name}-{os.getpid()}")
        with _opening_file(self._temporary, path):
            self._file = self._temporary.open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)
        self._writer.writerow([*KEYS, *names])

    def add(self, chunk: Chunk) -> None:
        """Write the records of a chunk to the CSV file, a line each. Floats are written so that they read back
        exactly.
        """
        if new := _new_metrics(chunk, self._names):
            self._add_columns(new)
        self._writer.writerows(
            [("" if value is None else repr(value)) for value in row]
            for row in _record_rows(chunk, self._names, self._clock)
        )
        self._file.flush()

    def _add_columns(self, names: Sequence[str]) -> None:
        """Rewrite the CSV file with additional columns for the metrics `names`, empty so far. Raises MachineError for a
        pipe or a device, which cannot be rewritten.
        """
        if not self._temporary.is_file():
            raise MachineError(
                f"a later session has more metrics ({safe(', '.join(names), 200)}), and {self.where} is not a file, "
                "to which columns can be added"
            )
        self._file.close()
        if self._temporary == self._path:
            self._path = self._temporary = self._temporary.resolve()  # replaces the target of a link, not the link
        wider = self._temporary.with_name(f".{self._temporary.name}-{os.getpid()}-wider")
        with (
            self._temporary.open(newline="", encoding="utf-8") as before,
            wider.open("w", newline="", encoding="utf-8") as after,
        ):
            writer = csv.writer(after)
            writer.writerows(
                [*row, *(names if k == 0 else [""] * len(names))] for k, row in enumerate(csv.reader(before))
            )
        os.replace(wider, self._temporary)
        self._names += names
        self._file = self._temporary.open("a", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)

    def close(self, complete: bool) -> None:
        """Move the CSV file to its path if it is complete, else delete it."""
        with _finishing_file(self._temporary, self._path, complete):
            self._file.close()


class ParquetFile:
    """Sink that writes a Parquet file with one row for each record. The file appears when it is complete, because
    Parquet can be read only then: for a followed run at its end.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        import pyarrow
        from pyarrow import parquet

        self.where, self._path, self._names, self._arrow, self._parquet = str(path), path, list(names), pyarrow, parquet
        self._clock = Clock()
        self._temporary = path.with_name(f".{path.name}-{os.getpid()}")
        with _opening_file(self._temporary, path):
            self._open()

    def _open(self) -> None:
        """Open the temporary Parquet file with a column for each metric."""
        arrow = self._arrow
        fixed = [
            ("session", arrow.uint64()),
            ("n", arrow.uint64()),
            ("step", arrow.uint64()),
            ("time", arrow.float64()),
            ("seconds", arrow.float64()),
        ]
        self._schema = arrow.schema([*fixed, *((name, arrow.float64()) for name in self._names)])
        self._writer = self._parquet.ParquetWriter(str(self._temporary), self._schema)

    def add(self, chunk: Chunk) -> None:
        """Write the records of a chunk to the Parquet file as one row group. A new metric rewrites the file with one
        more column.
        """
        if new := _new_metrics(chunk, self._names):
            self._writer.close()
            before = self._parquet.read_table(str(self._temporary))
            self._names += new
            self._open()
            for name in new:
                before = before.append_column(name, self._arrow.nulls(len(before), self._arrow.float64()))
            self._writer.write_table(before)
        columns = zip(*_record_rows(chunk, self._names, self._clock), strict=True)
        self._writer.write_table(self._arrow.table([list(column) for column in columns], schema=self._schema))

    def close(self, complete: bool) -> None:
        """Move the Parquet file to its path if it is complete, else delete it."""
        with _finishing_file(self._temporary, self._path, complete):
            self._writer.close()


@contextmanager
def _finishing_file(temporary: Path, path: Path, complete: bool) -> Iterator[None]:
    """Context that closes a temporary file, then moves it to its path if `complete`, else deletes it."""
    try:
        yield
        if temporary != path and complete:
            os.replace(temporary, path)
    finally:
        if temporary != path:
            temporary.unlink(missing_ok=True)


@contextmanager
def _opening_file(temporary: Path, path: Path) -> Iterator[None]:
    """Context that converts an OSError of opening a temporary file to a MachineError."""
    try:
        yield
    except OSError as error:
        if temporary != path:
            with suppress(OSError):
                temporary.unlink()
        raise MachineError(
            f"{runs.display_path(path)} cannot be written ({error.strerror or error}): choose another path with --out"
        ) from None
