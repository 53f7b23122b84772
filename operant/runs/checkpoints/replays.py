"""Replay buffer of a checkpoint: data that a run can collect again, in a separate folder, written and read in pieces. A
checkpoint is valid without it.

The data are named tensors. Imports torch only to write or read tensors.

    RUN/checkpoints/replay-step-000000300000/
        replay.safetensors     tensors
        manifest.json          {run_uuid, session, step, files, checksum}, with those of its checkpoint

At most two exist at any time: before one is written, and after its checkpoint is committed, all but the newest with a
checkpoint are deleted.
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
    """Saved replay buffers of a run: tensors by name in a folder per checkpoint, of which only the newest is kept. A
    checkpoint is valid without one; a resume then collects its data again. Only the run's trainer may call `save` and
    `prune`.
    """

    def __init__(self, folder: Path, run_uuid: str, report: Callable[[str], None]) -> None:
        self.folder, self._run_uuid, self._report = folder, run_uuid, report

    def free_bytes(self) -> int | None:
        """Return the free bytes of the disk that holds the checkpoints; None if unknown."""
        return atomic.free_bytes(self.folder.parent)

    def save(self, step: int, tensors: Mapping[str, torch.Tensor], *, session: int) -> bool:
        """Save the replay buffer `tensors`, on any device, for the checkpoint of `step` in training session `session`,
        which is committed afterwards. The tensors must not change during the call. Returns whether the buffer was
        saved; a failure is reported, and a resume is then a warm one.
        """
        name, identity = f"replay-step-{step:012d}", (session, step)
        try:
            atomic.make_root(self.folder)
            with atomic.opened(self.folder) as root:
                atomic.sweep(root)
                self.prune(root)
                if self._identity(root, name) != identity:
                    atomic.check_room(root, sum(tensor.nbytes for tensor in tensors.values()) + OVERHEAD_BYTES)
                    fields = {"run_uuid": self._run_uuid, "session": session, "step": step}
                    # Not read back: that would double the pause, and a resume verifies every byte.
                    atomic.commit(root, name, {FILE: _pieces(tensors)}, fields, read_back=False)
        except (OSError, BadFileError, MemoryError) as error:
            reason = (
                error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
            )
            self._report(f"the replay of step {step} is not saved: {reason}. A resume from it would be a warm one")
            return False
        return True

    def restore(
        self, step: int, tensors: Mapping[str, torch.Tensor], *, session: int, constants: Mapping[str, str]
    ) -> str | None:
        """Copy the replay buffer saved with the checkpoint of `step` into `tensors`, which have the same names and
        shapes. Returns None, or the reason why it is not possible; no tensor has changed then.

        `constants`: tensors of one number that must equal the saved one, by name, each with its name in a sentence.
        """
        from safetensors import SafetensorError

        name = f"replay-step-{step:012d}"
        try:
            with atomic.opened(self.folder) as root:
                if name not in atomic.list_names(root):
                    return "not saved with this checkpoint, or deleted"
                fields = atomic.verify(root, name)
                if (fields.get("run_uuid"), fields.get("session"), fields.get("step")) != (
                    self._run_uuid,
                    session,
                    step,
                ):
                    return f"{name} belongs to another checkpoint"
                return _load(self.folder / name / FILE, tensors, constants)
        except (OSError, BadFileError, SafetensorError) as error:
            return f"{name}: {error}"

    def prune(self, root: int) -> None:
        """Delete all saved replay buffers in the open folder `root` but the newest that has a checkpoint. Those of
        another run stay. Raises OSError.
        """
        identities = {name: self._identity(root, name) for name in atomic.list_names(root) if NAME.fullmatch(name)}
        own = [
            (identity, name)
            for name, identity in identities.items()
            if identity is not None and identity == self._identity(root, name.removeprefix("replay-"))
        ]
        newest = max(own)[1] if own else None
        for name, identity in identities.items():
            if name != newest and identity != (-1, -1):
                atomic.discard(root, name)

    def _identity(self, root: int, name: str) -> tuple[int, int] | None:
        """Return (session, step) of the folder `name`, a saved replay buffer or a checkpoint, in the open folder
        `root`; None if it is unreadable, (-1, -1) if it belongs to another run.
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
    """Yield the bytes of a safetensors file with the tensors, one piece at a time in host memory."""
    import torch

    header, end = {}, 0
    for name, tensor in tensors.items():
        kind, begin, end = _dtype_name(tensor), end, end + tensor.nbytes
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text

    # Copies from the device to pinned memory may still be running.
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


def _load(path: Path, tensors: Mapping[str, torch.Tensor], constants: Mapping[str, str]) -> str | None:
    """Copy the tensors of a safetensors file into `tensors` of the same names. Returns None, or the first difference
    between the two, also in one of `constants` (names of tensors of one number); no tensor has changed then.
    """
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
        for name in sorted({*slices, *tensors}):
            saved = (slices[name].get_dtype(), slices[name].get_shape()) if name in slices else "nothing"
            expected = (_dtype_name(tensors[name]), list(tensors[name].shape)) if name in tensors else "nothing"
            if saved != expected:
                return f"for {name} it has {_dtype_and_shape(saved)}, this configuration {_dtype_and_shape(expected)}"
        for name in (name for name in constants if name in tensors):
            was, value = int(file.get_tensor(name)), int(tensors[name])  # sync: a resume
            if was != value:
                return f"{constants[name]} was {was:,} when it was saved and is {value:,}"
        for name, target in tensors.items():
            if not target.shape:
                target.copy_(file.get_tensor(name))
                continue
            rows = max(1, PIECE_BYTES * len(target) // max(target.nbytes, 1))
            for begin in range(0, len(target), rows):
                target[begin : begin + rows].copy_(slices[name][begin : begin + rows])
    return None


def _dtype_name(tensor: torch.Tensor) -> str:
    """Return the name of a tensor's dtype in safetensors."""
    return _KINDS[str(tensor.dtype).removeprefix("torch.")]


def _dtype_and_shape(value: object) -> str:
    """Format dtype and shape of a tensor for a message."""
    return str(value) if isinstance(value, str) else " ".join(map(str, value)) if isinstance(value, tuple) else ""
