"""Parent side of the worker processes that step lanes (operant/host/worker.py): calls, answers, and errors as
sentences.

With 0 processes the lanes are stepped in this process, one after the other, for a debugger.
"""

from __future__ import annotations

import collections
import contextlib
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from operant.errors import EnvironmentFailedError
from operant.host.worker import (
    DONE,
    LENGTH,
    LETTERS,
    BlockLayout,
    Blocks,
    LaneError,
    LaneGroup,
    Source,
    group_of,
    receive,
)

_PROGRAM = "import sys; sys.path[0] = sys.argv[1]; from operant.host.worker import main; main(*map(int, sys.argv[2:]))"
_HOME = str(Path(__file__).resolve().parents[2])
_MAKING_S = 300.0  # least timeout for making all environments of a process
THREADED = ("envpool",)
"""Sources with their own step threads: one process suffices."""
_SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class _Worker(NamedTuple):
    """Worker process, the socket to it, and its lanes."""

    process: subprocess.Popen[bytes]
    link: socket.socket
    lanes: tuple[int, ...]


class LaneProcesses:
    """Worker processes (0: this process) that step a source's lanes in buffers, groups of lanes. `begin` a call for a
    buffer, then `finish` it, in the same order. All methods raise EnvironmentFailedError.

    With `independent` each buffer belongs to one process, and `ready` returns the buffers whose step is complete.
    `draws`: the environments can be rendered.
    """

    def __init__(
        self,
        source: Source,
        shape: BlockLayout,
        buffers: Sequence[range],
        *,
        processes: int,
        timeout_s: float,
        draws: bool = False,
        independent: bool = False,
    ) -> None:
        self._source, self._timeout_s, self._independent = source, timeout_s, independent
        self._begun: dict[int, collections.deque[int]] = {}  # by process socket: buffers with a pending call, in order
        self._stepped: set[int] = set()  # stepped buffers reported by `ready`, not yet finished
        self._workers: list[_Worker] = []
        self._local: LaneGroup | None = None
        size = shape.bytes()
        threads = 1
        if processes and not independent and source.kind in THREADED:
            processes, threads = 1, processes
        if not processes:
            self.blocks = Blocks(mmap.mmap(-1, size), shape)
            self._local = group_of(source, self.blocks, buffers, draws=draws, threads=1)
        else:
            memory_fd = os.memfd_create("operant")
            os.ftruncate(memory_fd, size)
            self.blocks = Blocks(mmap.mmap(memory_fd, size), shape)
            if independent:
                shares = [
                    [buffer if number % processes == k else buffer[:0] for number, buffer in enumerate(buffers)]
                    for k in range(processes)
                ]
            else:
                shares = distribute(buffers, processes)
            weakref.finalize(self, _end, self._workers)
            try:
                self._workers += [_start(memory_fd, share) for share in shares]
            finally:
                os.close(memory_fd)
            for worker, share in zip(self._workers, shares, strict=True):
                setup = {
                    "source": source.to_json(),
                    "shape": shape,
                    "buffers": [list(own) for own in share],
                    "draws": draws,
                    "threads": threads,
                }
                text = json.dumps(setup).encode()
                worker.link.sendall(LENGTH.pack(len(text)) + text)
        self._set_timeout(max(timeout_s, _MAKING_S))
        self.begin("make", 0)
        self.finish("make", 0)
        self._set_timeout(timeout_s)

    def _set_timeout(self, seconds: float) -> None:
        """Set the number of seconds that a worker may take for a call."""
        for worker in self._workers:
            worker.link.settimeout(seconds)

    def begin(self, call: str, buffer: int) -> None:
        """Start a call ("make", "reset", "step" or "draw") for the lanes of a buffer (group of lanes), given by its
        index. Without worker processes it is complete on return.
        """
        if self._local is not None:
            try:
                self._local.calls[call](buffer)
            except LaneError as error:
                raise self._lane_error(error.document()) from error
            return
        for worker in self._workers_of(call, buffer):
            self._begun.setdefault(worker.link.fileno(), collections.deque()).append(buffer)
            with contextlib.suppress(OSError):  # the process has exited: `finish` reports it
                worker.link.sendall(LETTERS[call] + bytes([buffer]))

    def _workers_of(self, call: str, buffer: int) -> list[_Worker]:
        """Worker processes that take part in a call for a buffer (group of lanes), given by its index: all of them.
        With `independent` only the owner of the buffer, except for the call "make".
        """
        return [self._workers[buffer % len(self._workers)]] if self._independent and call != "make" else self._workers

    def finish(self, call: str, buffer: int) -> None:
        """Wait until the call begun for a buffer (group of lanes), given by its index, is complete. Raises
        EnvironmentFailedError.
        """
        if buffer in self._stepped:
            self._stepped.remove(buffer)
            return
        workers = self._workers_of(call, buffer)
        for k, worker in enumerate(workers):  # in turn: most have answered when the first has
            self._receive(worker, call, workers[k:])

    def ready(self, *, wait: bool) -> list[int]:
        """Indices of the buffers (groups of lanes) whose step is complete; call `finish` for each. With `wait` block
        until there is at least one. Only with `independent`.
        """
        working = {worker.link.fileno(): worker for worker in self._workers if self._begun.get(worker.link.fileno())}
        descriptors, _, _ = select.select(list(working), [], [], self._timeout_s if wait else 0.0)
        if wait and not descriptors:
            raise self._timeout_error("step", self._timeout_s, list(working.values()))
        buffers = [self._receive(working[number], "step", [working[number]]) for number in descriptors]
        self._stepped.update(buffers)
        return buffers

    def close(self) -> None:
        """End the worker processes; without any, close the environments in this process."""
        if self._local is not None:
            self._local.close()
        _end(self._workers)

    def _receive(self, worker: _Worker, call: str, waiting: Sequence[_Worker]) -> int:
        """Receive a worker's answer to a call and return the index of the buffer (group of lanes) that it completed.
        `waiting` are the workers that have not answered yet, for a message. Raises EnvironmentFailedError.
        """
        done = self._begun[worker.link.fileno()].popleft()
        try:
            answer = worker.link.recv(1)
            if answer == DONE:
                return done
            document = (
                json.loads(receive(worker.link, LENGTH.unpack(receive(worker.link, LENGTH.size))[0]))
                if answer
                else None
            )
        except TimeoutError:
            raise self._timeout_error(call, worker.link.gettimeout() or 0.0, waiting) from None
        except OSError:
            document = None
        raise self._lane_error(document) if document is not None else self._exit_error(worker, call)

    def _lane_error(self, document: dict[str, Any]) -> EnvironmentFailedError:
        """Convert the document of a LaneError to the error that the user sees."""
        lane, doing = document["lane"], document["doing"]
        if doing == "make":
            return EnvironmentFailedError(f"{self._name}: {document['raised']}", detail=document["traceback"])
        if document["invalid"] is not None:
            what, problem = document["invalid"]
            when = f"action {document['action']} in step {document['step']:,} of its episode"
            return EnvironmentFailedError(
                f"{self._name}: {what} of lane {lane} {problem}, after {when if doing == 'step' else 'reset'}"
            )
        after = f", after action {document['action']}" if document["action"] is not None else ""
        return EnvironmentFailedError(
            f"{self._name}: `{doing}` of lane {lane}{after} raised {document['raised']}", detail=document["traceback"]
        )

    def _timeout_error(self, call: str, limit_s: float, workers: Sequence[_Worker]) -> EnvironmentFailedError:
        """Kill the workers that did not answer within `limit_s` seconds, and return the error that names the first
        one's lane.
        """
        lane = self._current_lane(workers[0])
        for worker in workers:
            worker.process.kill()
        advice = "env.timeout_s allows more, env.threads=0 steps the lanes in one process, for a debugger"
        return EnvironmentFailedError(f"{self._name}: `{call}` of {lane} did not return within {limit_s:g} s: {advice}")

    def _exit_error(self, worker: _Worker, call: str) -> EnvironmentFailedError:
        """Make the error for a worker that ended during a call, with its signal or exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(5)
        code = worker.process.returncode
        how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
        lane = self._current_lane(worker)
        return EnvironmentFailedError(
            f"{self._name}: the process of {lane} ended {how} in `{call}`: env.threads=0 steps the lanes in one process"
        )

    def _current_lane(self, worker: _Worker) -> str:
        """Describe the lane that a worker is busy with and its last action, or all of its lanes if none is busy."""
        busy = [lane for lane in worker.lanes if self.blocks.busy[lane]]
        if busy:
            return f"lane {busy[0]} (last action {self.blocks.action[busy[0]].tolist()})"
        return f"lanes {worker.lanes[0]} to {worker.lanes[-1]}" if worker.lanes else "no lane"

    @property
    def _name(self) -> str:
        """Name of the environment as the user wrote it, such as "gymnasium:CartPole-v1"."""
        return self._source.name if self._source.kind == "file" else f"{self._source.kind}:{self._source.name}"


def distribute(buffers: Sequence[range], processes: int) -> list[list[range]]:
    """Distribute each buffer's lanes over processes as contiguous ranges, so that all processes have about the same
    number of lanes. Returns, for each process, its range of every buffer.
    """
    shares: list[list[range]] = [[] for _ in range(processes)]
    first = 0  # process that receives an extra lane of an uneven buffer
    for buffer in buffers:
        base, extra, start = *divmod(len(buffer), processes), 0
        for k in range(processes):
            count = base + (k < extra)
            shares[(first + k) % processes].append(buffer[start : start + count])
            start += count
        first += extra
    return shares


def _start(memory_fd: int, own: Sequence[range]) -> _Worker:
    """Start a worker process for the ranges of lanes `own`. It inherits the shared memory, its socket and this
    process's stderr.
    """
    parent_end, child_end = socket.socketpair()
    command = [sys.executable, "-c", _PROGRAM, _HOME, str(child_end.fileno()), str(memory_fd), str(os.getpid())]
    with child_end:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=(child_end.fileno(), memory_fd),
            env={**_SINGLE_THREADED, **os.environ},
        )
    return _Worker(process, parent_end, tuple(lane for lanes in own for lane in lanes))


def _end(workers: list[_Worker]) -> None:
    """End worker processes by closing their sockets, kill those still running after a second, and clear the list."""
    for worker in workers:
        worker.link.close()
    until_s = time.monotonic() + 1.0
    for worker in workers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(max(0.0, until_s - time.monotonic()))
        worker.process.kill()
        worker.process.wait()
    workers.clear()
