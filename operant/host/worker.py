"""Worker process that steps lanes; `main` is its program. Ends with its parent, however that ends, and leaves nothing
behind.

Protocol over a socket: first a length-prefixed JSON setup, then two bytes per call, its letter and its buffer. Each
call is answered by one byte, or by an error document. The blocks lie in anonymous shared memory, freed with the last
process that maps it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import signal
import socket
import struct
from typing import Any

from operant.host.lanes import BlockLayout, Blocks, LaneError, LaneGroup
from operant.host.vectors import Source, SourceError, VectorGroup, vector_class

CALLS = {b"m": "make", b"r": "reset", b"s": "step", b"d": "draw"}
LETTERS = {name: letter for letter, name in CALLS.items()}
DONE, FAILED = b".", b"!"
LENGTH = struct.Struct("<I")
_PR_SET_PDEATHSIG = 1


def receive(link: socket.socket, count: int) -> bytes:
    """Receive `count` bytes from a socket. Returns fewer if the other side has closed."""
    got = b""
    while len(got) < count and (more := link.recv(count - len(got))):
        got += more
    return got


def group_of(source: Source, blocks: Blocks, buffers: Any, *, draws: bool, threads: int) -> LaneGroup:
    """Make the group that steps a source's lanes in this process: by a vectorised environment if the source has one,
    else lane by lane. `draws`: the lanes can be rendered.
    """
    try:
        batched = vector_class(source) is not None
    except SourceError:  # reported when the first environment is made
        batched = False
    return (
        VectorGroup(source, blocks, buffers, draws=draws, threads=threads)
        if batched
        else LaneGroup(source, blocks, buffers, draws=draws)
    )


def _end_with(parent: int) -> None:
    """Make the operating system kill this process when its parent exits, even if the parent is killed."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent exited before prctl
        os._exit(1)


def main(socket_fd: int, memory_fd: int, parent: int) -> None:
    """Read the setup from the socket and answer calls until the socket closes, then exit: never returns. `parent` is
    the parent's process id.
    """
    _end_with(parent)
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # signals to the process group are the trainer's, which may still need steps; the socket ends this process
        signal.signal(number, signal.SIG_IGN)
    link = socket.socket(fileno=socket_fd)
    setup: dict[str, Any] = json.loads(receive(link, LENGTH.unpack(receive(link, LENGTH.size))[0]))
    shape = BlockLayout(*setup["shape"])
    memory = mmap.mmap(memory_fd, shape.bytes())
    os.close(memory_fd)
    group = group_of(
        Source.from_json(setup["source"]),
        Blocks(memory, shape),
        setup["buffers"],
        draws=setup["draws"],
        threads=setup["threads"],
    )
    with contextlib.suppress(OSError):  # the trainer has exited
        while len(command := receive(link, 2)) == 2:
            link.sendall(_execute(group, CALLS[command[:1]], command[1]))
    os._exit(0)


def _execute(group: LaneGroup, call: str, buffer: int) -> bytes:
    """Execute a call ("make", "reset", "step" or "draw") for a buffer (group of lanes) and encode the answer: DONE, or
    FAILED and the error's document.
    """
    try:
        group.calls[call](buffer)
    except LaneError as error:
        text = json.dumps(error.document(), default=repr).encode()
        return FAILED + LENGTH.pack(len(text)) + text
    return DONE
