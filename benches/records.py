"""Shared helpers of GPU benches: JSON lines that are written at once, and parallel processes with a time limit."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any


class Records:
    """JSON lines in $OUT/NAME.jsonl, each on disk before the next task starts; only printed without $OUT."""

    def __init__(self, name: str) -> None:
        folder = os.environ.get("OUT")
        self.folder = Path(folder) if folder else None
        self._began_s = time.monotonic()
        self._file = open(self.folder / f"{name}.jsonl", "a", encoding="utf-8") if self.folder else None  # noqa: SIM115 - open until the process ends

    def elapsed_s(self) -> float:
        """Seconds since the records began."""
        return time.monotonic() - self._began_s

    def add(self, what: str, **fields: Any) -> None:
        """Write one record."""
        line = json.dumps({"what": what, "at_s": round(self.elapsed_s(), 1), **fields})
        print(line, flush=True)
        if self._file is not None:
            self._file.write(line + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())


def side_by_side(
    function: Callable[[Any], Any], tasks: Iterable[Any], *, workers: int, limit_s: float
) -> Iterator[tuple[Any, Any]]:
    """(task, result) of tasks in separate processes, in order of completion. The result is the exception of a failed
    task, or TimeoutError.
    """
    with ProcessPoolExecutor(max_workers=workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(function, task): task for task in tasks}
        try:
            for future in as_completed(list(futures), timeout=limit_s):
                task = futures.pop(future)
                yield task, future.exception() or future.result()
        except TimeoutError as error:
            for task in futures.values():
                yield task, error
            processes = list(pool._processes.values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
