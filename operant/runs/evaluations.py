"""Evaluations of a run as JSON Lines, eval/evaluations.jsonl: one line for each evaluated step. Standard library only.

A line is appended by one write. Evaluations after the last checkpoint of a killed session are repeated: a resume
removes their lines.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from operant.runs.folder import integer_of, number_of

_PATH = Path("eval", "evaluations.jsonl")
_MOST_BYTES = 64 << 20


def evaluated(folder: Path) -> list[dict[str, Any]]:
    """Return the evaluations in the file of a run folder, by step; a confirmed evaluation replaces the first one of its
    step. Skips half a line at the end, and lines without a finite step and mean.
    """
    by_step: dict[int, dict[str, Any]] = {}
    with contextlib.suppress(OSError), open(_opened(folder / _PATH, os.O_RDONLY), "rb") as file:
        for line in file.read(_MOST_BYTES).split(b"\n"):
            with contextlib.suppress(ValueError, AttributeError, RecursionError):
                one = json.loads(line)
                step, mean = integer_of(one, "step"), number_of(one, "mean")
                if step is not None and mean is not None:
                    by_step[step] = one | {"step": step, "mean": mean}
    return [by_step[step] for step in sorted(by_step)]


class Evaluations:
    """Writer of a run folder's evaluations. If the file cannot be written, is a symbolic link or not a regular file,
    that is reported and the line is lost.
    """

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        self._path, self._report = folder / _PATH, report

    def append(self, evaluation: Mapping[str, Any]) -> None:
        """Append an evaluation to the file as a line of JSON."""
        with self._reported():
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor = _opened(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                size = os.fstat(descriptor).st_size
                # half a line left by a full disk becomes a separate line
                whole = not size or os.pread(descriptor, 1, size - 1) == b"\n"
                os.write(descriptor, (b"" if whole else b"\n") + json.dumps(dict(evaluation)).encode() + b"\n")
            finally:
                os.close(descriptor)

    def rewind(self, step: int) -> None:
        """Remove evaluations after `step` and half a line at the end, by replacing the file. Nothing if none has to be
        removed.
        """
        with self._reported(), contextlib.suppress(FileNotFoundError):
            with open(_opened(self._path, os.O_RDONLY), "rb") as file:
                lines = file.readlines()
            remaining = [line for line in lines if line.endswith(b"\n") and not _is_after(line, step)]
            if remaining != lines:
                self._replace(remaining)

    def _replace(self, lines: list[bytes]) -> None:
        """Replace the file by one with these lines. Raises OSError."""
        new = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            with open(_opened(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._path)
        finally:
            new.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Context manager for writing the file: an OSError is reported as a line for the log instead of being
        raised.
        """
        try:
            yield
        except OSError as error:
            self._report(f"cannot write {_PATH}: {error.strerror}")


def _is_after(line: bytes, step: int) -> bool:
    """Whether a line of the file is an evaluation after `step`; False for a line that cannot be read."""
    with contextlib.suppress(ValueError, RecursionError):
        evaluation = json.loads(line)
        return isinstance(evaluation, dict) and isinstance(evaluation.get("step"), int) and evaluation["step"] > step
    return False


def _opened(path: Path, flags: int) -> int:
    """Open a regular file without following links or blocking; return the descriptor. Raises OSError."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor
