"""The replay of a checkpoint: what a run can collect anew, in a folder of its own, written and read in pieces. Without
it no checkpoint is worth less.

Knows named tensors and to which checkpoint they belong; nothing of algorithms. Torch is imported only where tensors are
written or read.

    RUN/checkpoints/replay-step-000000300000/
        replay.safetensors     the tensors
        manifest.json          {run_uuid, session, step, files, checksum}: those of the checkpoint that it belongs to

At most two lie there at any time: before one is written, and after its checkpoint is committed, all but the newest that
has a checkpoint are deleted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from operant.errors import BadFileError
from operant.runs import atomic

if TYPE_CHECKING:
    import torch

FILE = "replay.safetensors"
NAME = re.compile(r"replay-(step-[0-9]{12,18})")
PIECE_BYTES = 64 << 20
OVERHEAD_BYTES = 65536
_KINDS = {
    "float32": "F32",
    "uint8": "U8",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float64": "F64",
    "bool": "BOOL",
}


class Replays:
    """The replays in the folder of a run's checkpoints. As with those, only the run's trainer saves and prunes."""

    def __init__(self, folder: Path, run_uuid: str, report: Callable[[str], None]) -> None:
        self.folder, self._run_uuid, self._report = folder, run_uuid, report

    def free_bytes(self) -> int | None:
        """Free room of the disk; None where the filesystem does not know."""
        return atomic.free_bytes(self.folder.parent)

    def save(self, step: int, tensors: Mapping[str, torch.Tensor], *, session: int) -> bool:
        """Write the tensors, on whatever device, for the checkpoint of this step that comes next; they must not change
        meanwhile.

        False where that failed, which is reported: a resume is a warm one then.
        """
        name, place = f"replay-step-{step:012d}", (session, step)
        try:
            atomic.make_root(self.folder)
            with atomic.opened(self.folder) as root:
                atomic.sweep(root)
                self.prune(root)
                if self._place(root, name) != place:
                    atomic.check_room(root, sum(tensor.nbytes for tensor in tensors.values()) + OVERHEAD_BYTES)
                    fields = {"run_uuid": self._run_uuid, "session": session, "step": step}
                    # Not read back: that would double the pause, and a resume looks at every byte.
                    atomic.commit(root, name, {FILE: _pieces(tensors)}, fields, read_back=False)
        except (OSError, BadFileError, MemoryError) as error:
            reason = (
                error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
            )
            self._report(f"the replay of step {step} is not saved: {reason}. A resume from there would be a warm one")
            return False
        return True

    def restore(self, step: int, tensors: Mapping[str, torch.Tensor], *, session: int) -> str | None:
        """Copy what was saved with a checkpoint into tensors of the same names and shapes; or the reason why not, and
        then none of them is touched.
        """
        from safetensors import SafetensorError

        name = f"replay-step-{step:012d}"
        try:
            with atomic.opened(self.folder) as root:
                if name not in atomic.list_names(root):
                    return "it was not saved with this checkpoint, or is deleted"
                fields = atomic.verify(root, name)
                if (fields.get("run_uuid"), fields.get("session"), fields.get("step")) != (
                    self._run_uuid,
                    session,
                    step,
                ):
                    return f"{name} belongs to another checkpoint"
                return _load(self.folder / name / FILE, tensors)
        except (OSError, BadFileError, SafetensorError) as error:
            return f"{name}: {error}"

    def prune(self, root: int) -> None:
        """Delete all but the newest of which there is a checkpoint. Another run's are left alone. OSError where the
        disk does not let it.
        """
        places = {name: self._place(root, name) for name in atomic.list_names(root) if NAME.fullmatch(name)}
        own = [
            (place, name)
            for name, place in places.items()
            if place is not None and place == self._place(root, name.removeprefix("replay-"))
        ]
        newest = max(own)[1] if own else None
        for name, place in places.items():
            if name != newest and place != (-1, -1):
                atomic.discard(root, name)

    def _place(self, root: int, name: str) -> tuple[int, int] | None:
        """Session and step of a replay, or of a checkpoint; None where there is none that can be read, (-1, -1) of
        another run's.
        """
        try:
            fields = atomic.read_manifest(root, name)
        except BadFileError:
            return None
        session, step = fields.get("session"), fields.get("step")
        if not isinstance(session, int) or not isinstance(step, int):
            return None
        return (session, step) if fields.get("run_uuid") == self._run_uuid else (-1, -1)


def _pieces(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, of which no more than a piece lies in the host's memory at a time."""
    import torch

    header, end = {}, 0
    for name, tensor in tensors.items():
        kind, begin, end = _kind(tensor), end, end + tensor.nbytes
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text

    # What lies in pinned memory may still be on its way from the device.
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    pinned = None
    for tensor in tensors.values():
        for piece in tensor.detach().reshape(-1).view(torch.uint8).split(PIECE_BYTES):
            if piece.device.type == "cpu":
                yield piece.numpy().data
                continue
            if pinned is None:
                pinned = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
            yield pinned[: len(piece)].copy_(piece).numpy().data


def _load(path: Path, tensors: Mapping[str, torch.Tensor]) -> str | None:
    """Copy a file's tensors into those of the same names, a piece at a time; the reason where it has others, and then
    none.
    """
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        there = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
        for name in sorted({*there, *tensors}):
            found = (there[name].get_dtype(), there[name].get_shape()) if name in there else "nothing"
            wanted = (_kind(tensors[name]), list(tensors[name].shape)) if name in tensors else "nothing"
            if found != wanted:
                return f"for {name} it has {_words(found)}, this configuration {_words(wanted)}"
        for name, here in tensors.items():
            if not here.shape:
                here.copy_(file.get_tensor(name))
                continue
            rows = max(1, PIECE_BYTES * len(here) // max(here.nbytes, 1))
            for begin in range(0, len(here), rows):
                here[begin : begin + rows].copy_(there[name][begin : begin + rows])
    return None


def _kind(tensor: torch.Tensor) -> str:
    return _KINDS[str(tensor.dtype).removeprefix("torch.")]


def _words(found: object) -> str:
    return str(found) if isinstance(found, str) else " ".join(map(str, found)) if isinstance(found, tuple) else ""
