"""Control connections between the ranks of a run: rendezvous, liveness and rank 0's commands. Standard library only.

Rank 0 listens on a TCP port and writes its address and a token into the run folder, which all ranks share. The other
ranks connect and identify themselves. Both sides then send a heartbeat four times a second: a closed connection is
noticed at once, a silent one after `timeout_s`. Rank 0 forwards the cause, and all ranks exit. Between two iterations
the other ranks wait for rank 0's next command.

torch.distributed.TCPStore serves the process group's rendezvous (`distributed.host_store`) but not this: it has no
token, its server does not report a client that died, and torchrun's agent ends the surviving ranks by SIGTERM without
the cause.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from operant import runs
from operant.errors import MachineError
from operant.training.ranks import ADDRESS_FILE

TIMEOUT_S = 30.0
"""Default of `run.peer_timeout`."""

BEAT_S = 0.25
_TICK_S = 0.25
_TRY_S = 0.1
_LONGEST_LINE = 1 << 22
# Limits for connections that are not admitted yet: bytes, seconds and number.
_LONGEST_HELLO, _HELLO_S, _MOST_STRANGERS = 1 << 14, 10.0, 64
GOODBYE_S = 5.0

log = logging.getLogger("operant")


class Lost(NamedTuple):
    """Loss of a rank (process) that has exited or failed: its index, a message, and its exit code (None: unknown)."""

    rank: int
    message: str
    code: int | None = None  # exit code reported by the rank; None: it crashed or stopped responding


class _Wire:
    """Connection between two ranks over TCP that carries one JSON object per line."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket, self.name, self.rank, self.left = connection, "", -1, False
        self.longest_line = _LONGEST_LINE
        self._rest, self._lock = b"", threading.Lock()
        self._silent_s = 0.0
        self.opened_s = self._looked_s = time.monotonic()

    def send(self, **message: Any) -> None:
        """Send a message with these fields to the other end. A closed connection is not an error here; `read` notices
        it.
        """
        with self._lock, contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> list[dict[str, Any]] | None:
        """Wait for data and return the messages received; a message may still be incomplete, so the list may be empty.
        None if the other end has closed or sent something invalid.
        """
        self._silent_s = 0.0
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            data = b""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data or max(map(len, (*lines, self._rest))) > self.longest_line:
            return None
        try:
            messages = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            return None
        return messages if all(isinstance(message, dict) for message in messages) else None

    def silent_s(self) -> float:
        """Seconds since the other end last sent something, without time in which this process was suspended.

        Call it every tick: each call adds at most two ticks.
        """
        now_s = time.monotonic()
        self._silent_s += min(now_s - self._looked_s, 2 * _TICK_S)
        self._looked_s = now_s
        return self._silent_s

    def close(self) -> None:
        """Shut down and close the connection to the other rank."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def _describe_rank(rank: int, hello: Mapping[str, Any]) -> str:
    """Name a rank in messages by its index, process and host, which its first message `hello` contains."""
    return f"rank {rank} (pid {hello.get('pid')} on {hello.get('host')})"


# RANK 0


class Leader:
    """Rank 0's end of the control connections to the other ranks, with a thread that watches them. The thread calls
    `on_lost` at most once, and `on_stop` for each signal that another rank received.
    """

    def __init__(
        self, folder: Path, ranks: int, *, versions: Mapping[str, str], timeout_s: float, multi_node: bool = False
    ) -> None:
        """Listen for the other ranks: on all interfaces with `multi_node`, else on this machine only. `versions` must
        be equal on all ranks; a connection is lost after `timeout_s` of silence. Raises MachineError if no port can be
        opened.
        """
        self.ranks, self._versions, self.timeout_s = ranks, dict(versions), timeout_s
        self.on_lost: Callable[[Lost], None] = lambda lost: None
        self.on_stop: Callable[[str], None] = lambda name: None
        self.rank_metrics: dict[int, dict[str, float]] = {}
        """Newest metrics reported by each rank."""
        self._wires: dict[int, _Wire] = {}
        self._strangers: list[_Wire] = []  # not admitted yet, oldest first
        self._joined, self._over, self._closing = threading.Event(), False, False
        self._token = secrets.token_hex(16)
        try:
            self._listener = socket.create_server(("" if multi_node else "127.0.0.1", 0), backlog=ranks)
        except OSError as error:
            raise MachineError(f"rank 0 could not open a port for the other ranks ({error.strerror})") from None
        self.addresses = _addresses() if multi_node else ["127.0.0.1"]
        self._file = folder / ADDRESS_FILE
        runs.write_json(
            self._file,
            {
                "addresses": self.addresses,
                "port": self._listener.getsockname()[1],
                "token": self._token,
                "ranks": ranks,
            },
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._watch, name="peers", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float, look: Callable[[], None]) -> None:
        """Wait until all ranks have joined, calling `look` several times a second. Raises MachineError after
        `timeout_s`, and whatever `look` raises.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self._joined.wait(_TICK_S) and time.monotonic() < deadline_s:
            look()
        if not self._joined.is_set():
            missing = [str(rank) for rank in range(1, self.ranks) if rank not in self._wires]
            who = (
                f"rank{'s' * (len(missing) > 1)} {', '.join(missing)} of {self.ranks} did not join within "
                f"{timeout_s:g} s"
            )
            raise MachineError(
                f"{who}: see their logs, and whether their hosts reach {' or '.join(self.addresses)} and share this "
                "run's folder"
            )

    def command(self, do: str, **fields: Any) -> None:
        """Send the command named `do`, with its fields, to all other ranks."""
        for wire in tuple(self._wires.values()):
            wire.send(do=do, **fields)

    def end(self, cause: str | None = None, code: int = 1, goodbye_s: float = GOODBYE_S) -> None:
        """Tell the other ranks to exit: because the work is done, or with a `cause` and exit code `code`. Returns once
        they have closed their connections, or after `goodbye_s` seconds.
        """
        self._closing = True
        for wire in tuple(self._wires.values()):
            wire.send(**({"do": "end"} if cause is None else {"over": cause, "code": code}))
        deadline_s = time.monotonic() + goodbye_s
        while time.monotonic() < deadline_s and not all(wire.left for wire in tuple(self._wires.values())):
            time.sleep(0.01)
        self._over = True
        self._thread.join()
        for wire in self._wires.values():
            wire.close()
        self._listener.close()
        self._file.unlink(missing_ok=True)

    def _watch(self) -> None:
        """Watch the other ranks until the end; body of the watching thread. An error in it ends the run, because a lost
        rank would no longer be noticed.
        """
        try:
            self._watch_ranks()
        except Exception as error:
            log.exception("the thread that watches the other ranks failed")
            self._report_lost(None, f"rank 0 can no longer watch the other ranks ({type(error).__name__}: {error})", 1)

    def _watch_ranks(self) -> None:
        """Accept connections, handle messages, send heartbeats, and report ranks that are silent for too long."""
        said_s = 0.0
        while not self._over:
            for key, _ in self._selector.select(_TICK_S):
                if key.fileobj is self._listener:
                    self._accept()
                elif not key.data.left:  # may have been refused by an accept of this round
                    self._handle(key.data)
            now_s = time.monotonic()
            if now_s - said_s >= BEAT_S:
                said_s = now_s
                for wire in self._wires.values():
                    wire.send(beat=1)
            for wire in self._wires.values():
                if wire.silent_s() > self.timeout_s and not wire.left:
                    self._report_lost(wire, f"{wire.name} has not answered for {self.timeout_s:g} s (run.peer_timeout)")
            for wire in [wire for wire in self._strangers if now_s - wire.opened_s > _HELLO_S]:
                self._refuse(wire)

    def _accept(self) -> None:
        """Accept the connection of another process, which has not identified itself as a rank yet."""
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.settimeout(None)
            wire = _Wire(connection)
            wire.longest_line = _LONGEST_HELLO
            self._selector.register(connection, selectors.EVENT_READ, wire)
            self._strangers.append(wire)
        if len(self._strangers) > _MOST_STRANGERS:
            self._refuse(self._strangers[0])

    def _refuse(self, wire: _Wire) -> None:
        """Close the connection of a process that has not been admitted as a rank."""
        self._strangers.remove(wire)
        self._selector.unregister(wire.socket)
        wire.left = True
        wire.close()

    def _handle(self, wire: _Wire) -> None:
        """Read the connection of another rank: admit a new rank, store the metrics of a heartbeat, pass on a stop
        signal, or report the rank lost.
        """
        messages = wire.read()
        if messages is None and wire.rank < 0:
            self._refuse(wire)
        elif messages is None:
            self._selector.unregister(wire.socket)
            if not (wire.left or self._closing):
                self._report_lost(wire, f"{wire.name} has exited: its connection closed")
            wire.left = True
        for message in messages or ():
            if wire.left:
                return
            if wire.rank < 0:
                self._admit(wire, message)
            elif isinstance(message.get("beat"), dict):
                self.rank_metrics[wire.rank] = message["beat"]
            elif "stop" in message:
                self.on_stop(f"{message['stop']} to rank {wire.rank}")
            elif "failed" in message:
                wire.left = True
                self._report_lost(wire, f"{wire.name}: {message['failed']}", runs.integer_of(message, "code"))

    def _admit(self, wire: _Wire, hello: Mapping[str, Any]) -> None:
        """Authenticate a connection by the token in its first message `hello`, and admit it as a rank. Otherwise refuse
        it, with the reason if the token is right.
        """
        rank, token = hello.get("rank"), str(hello.get("token")).encode(errors="replace")
        if (
            not isinstance(rank, int)
            or not 0 < rank < self.ranks
            or not secrets.compare_digest(token, self._token.encode())
        ):
            self._refuse(wire)
            return
        self._strangers.remove(wire)
        wire.name, wire.rank, wire.longest_line = _describe_rank(rank, hello), rank, _LONGEST_LINE
        other = hello.get("versions")
        other = other if isinstance(other, dict) else {}
        differing = [
            f"{name} {other.get(name)} instead of {own}"
            for name, own in self._versions.items()
            if other.get(name) != own
        ]
        problem = f"{wire.name} has {', '.join(differing)}: all ranks need the same versions" if differing else None
        if rank in self._wires:
            problem = f"two processes claim to be rank {rank}: {self._wires[rank].name} and {wire.name}"
        elif hello.get("ranks") != self.ranks:
            problem = f"{wire.name} was started as one of {hello.get('ranks')} ranks, rank 0 as one of {self.ranks}"
        if problem is not None:
            wire.send(over=problem, code=MachineError.exit_code)
            self._report_lost(wire, problem, MachineError.exit_code)
            return
        wire.send(joined=True)
        self._wires[rank] = wire
        if len(self._wires) == self.ranks - 1:
            self._joined.set()

    def _report_lost(self, wire: _Wire | None, message: str, code: int | None = None) -> None:
        """End all other ranks with `message` and exit code `code`, and call `on_lost`, at most once. `wire` is the lost
        rank's connection, None if rank 0 itself fails.
        """
        if self._closing:
            return
        self._closing = True
        for other in self._wires.values():
            if other is not wire:
                other.send(over=message, code=code or 1)
        self.on_lost(Lost(0 if wire is None else wire.rank, message, code))


def _addresses() -> list[str]:
    """Addresses at which other hosts may reach this one, the most likely first."""
    addresses = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: yields the source address of the outward route
        addresses.append(probe.getsockname()[0])
    return [*addresses, socket.gethostname(), "127.0.0.1"]


# OTHER RANKS


class Follower:
    """Another rank's end of the control connection to rank 0, whose commands it receives. Its thread calls `on_lost` at
    most once, when rank 0 is gone.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        ranks: int,
        *,
        versions: Mapping[str, str],
        join_s: float,
        on_lost: Callable[[Lost], None],
        parent: int | None = None,
    ) -> None:
        """Connect to rank 0 and wait to be admitted, as long as the parent process `parent` lives. Raises MachineError
        if rank 0 refuses, or is not found within `join_s` seconds.
        """
        self.timeout_s, self._commands = TIMEOUT_S, queue.SimpleQueue[dict[str, Any]]()
        self.on_lost = on_lost
        self.rank_metrics: Callable[[], dict[str, float]] = dict
        self._over = False
        hello = {"rank": rank, "ranks": ranks, "pid": os.getpid(), "host": runs.host(), "versions": dict(versions)}
        self._wire, first = _connect(folder, hello, join_s, os.getppid() if parent is None else parent)
        for message in first:
            self._handle(message)
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), name="peers", daemon=True)
            for work in (self._listen, self._beat)
        ]
        for thread in self._threads:
            thread.start()

    def receive(self) -> dict[str, Any]:
        """Wait for rank 0's next command and return its fields; `do` is its name."""
        return self._commands.get()

    def ask_stop(self, name: str) -> None:
        """Report the signal `name`, which this rank received, to rank 0, which then stops the run."""
        self._wire.send(stop=name)

    def fail(self, message: str, code: int) -> None:
        """Report this rank's error to rank 0, as a message and an exit code, and close the connection."""
        self._over = True
        self._wire.send(failed=message, code=code)
        self._wire.close()

    def leave(self) -> None:
        """Close this rank's connection to rank 0: the work is done."""
        self._over = True
        self._wire.close()

    def _guard(self, work: Callable[[], None]) -> None:
        """Run `work`, the body of a thread. An error in it ends this rank, because it could no longer answer rank 0."""
        try:
            work()
        except Exception as error:
            log.exception("the thread that watches rank 0 failed")
            self._report_lost(f"this rank can no longer watch rank 0 ({type(error).__name__}: {error})")

    def _listen(self) -> None:
        """Handle messages of rank 0 until the connection closes."""
        while not self._over:
            messages = self._wire.read()
            if messages is None:
                self._report_lost("rank 0 has exited: its connection closed")
                return
            for message in messages:
                self._handle(message)

    def _handle(self, message: Mapping[str, Any]) -> None:
        """Handle a message of rank 0: queue a command, or report rank 0 lost if the message ends the run with a
        cause.
        """
        if "do" in message:
            self._commands.put(dict(message))
        elif "over" in message:
            self._report_lost(str(message["over"]), message.get("code"))

    def _beat(self) -> None:
        """Send heartbeats with this rank's metrics, and report rank 0 lost if it is silent for too long."""
        said_s = 0.0
        while not self._over:
            time.sleep(_TICK_S)
            if time.monotonic() - said_s >= BEAT_S:
                said_s = time.monotonic()
                self._wire.send(beat=self.rank_metrics())
            if self._wire.silent_s() > self.timeout_s:
                self._report_lost(f"rank 0 has not answered for {self.timeout_s:g} s (run.peer_timeout)")

    def _report_lost(self, message: str, code: int | None = None) -> None:
        """Call `on_lost` with the cause and exit code of the loss of rank 0, at most once."""
        if not self._over:
            self._over = True
            self.on_lost(Lost(0, message, code))


def _connect(folder: Path, hello: Mapping[str, Any], join_s: float, parent: int) -> tuple[_Wire, list[dict[str, Any]]]:
    """Connect to rank 0 at the address in the run folder and wait for admission. Returns the connection and the
    messages received after admission. Raises MachineError after `join_s` seconds, or with rank 0's reason if it
    refuses.
    """
    deadline_s, has_address = time.monotonic() + join_s, False
    while time.monotonic() < deadline_s and os.getppid() == parent:
        address_file = runs.read_json(folder / ADDRESS_FILE)
        addresses, port = address_file.get("addresses"), runs.integer_of(address_file, "port")
        for address in addresses if isinstance(addresses, list) and port else ():
            has_address = True
            with contextlib.suppress(OSError):
                wire = _Wire(socket.create_connection((str(address), port or 0), timeout=5.0))
                wire.send(token=address_file.get("token"), **hello)
                answer = wire.read()
                if answer and answer[0].get("joined"):
                    wire.socket.settimeout(None)
                    return wire, answer[1:]
                wire.close()
                if answer and "over" in answer[0]:
                    raise MachineError(str(answer[0]["over"]))
        time.sleep(_TRY_S)
    where, rank = runs.display_path(folder), f"rank {hello['rank']} on {hello['host']}"
    if has_address:
        raise MachineError(
            f"{rank} could not join rank 0 within {join_s:g} s; its address is in {where}/{ADDRESS_FILE}: check that "
            "this host can reach it"
        )
    raise MachineError(
        f"{rank} found no address of rank 0 in {where} within {join_s:g} s: check that rank 0 runs and that all hosts "
        "share the folder"
    )
