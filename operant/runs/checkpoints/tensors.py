"""The tensors and the document of a checkpoint, to bytes and back. Torch is imported only where tensors are packed or
unpacked. No pickle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from operant.errors import BadFileError
from operant.runs.checkpoints.manifest import Manifest

if TYPE_CHECKING:
    import torch

TENSORS, STATE, CONFIG = "tensors.safetensors", "state.json", "config.toml"


class Checkpoint(NamedTuple):
    """Loaded checkpoint: tensors by name (on the CPU), its JSON document, step and session, its folder, and the path of
    its configuration file (None without one).
    """

    path: Path
    step: int
    session: int
    tensors: dict[str, torch.Tensor]
    document: dict[str, Any]
    config: Path | None


def find_nonfinite(tensors: Mapping[str, torch.Tensor]) -> str | None:
    """Return a message about the first tensor with NaN or infinities: their number and the first position. None if all
    are finite.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() or tensor.is_complex():
            bad = ~tensor.isfinite().flatten()
            count = int(bad.sum())
            if count:
                return (
                    f"{count} of {bad.numel()} numbers of {name} are not finite, the first at {int(bad.nonzero()[0])}"
                )
    return None


def pack(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Encode tensors as the bytes of a safetensors file. Views of shared memory are copied."""
    from safetensors.torch import save

    independent, storages = {}, set()
    for name, tensor in tensors.items():
        plain = tensor.detach().contiguous()
        if plain.untyped_storage().data_ptr() in storages:
            plain = plain.clone()
        storages.add(plain.untyped_storage().data_ptr())
        independent[name] = plain
    return save(independent)


def unpack(path: Path, manifest: Manifest, files: Mapping[str, bytes]) -> Checkpoint:
    """Build a checkpoint from the bytes of its files by name. `path`: its folder. Raises BadFileError for invalid
    content.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    if TENSORS not in files or STATE not in files:
        raise BadFileError(f"the manifest does not name {TENSORS} and {STATE}")
    try:
        tensors = load(files[TENSORS])
        document = json.loads(files[STATE])
    except (
        SafetensorError,
        ValueError,
        KeyError,
        TypeError,
        RuntimeError,
    ) as error:  # RecursionError is a RuntimeError
        raise BadFileError(f"cannot read the content: {error}") from None
    if not isinstance(document, dict):
        raise BadFileError(f"{STATE} does not hold an object")
    return Checkpoint(
        path, manifest.step, manifest.session, tensors, document, path / CONFIG if CONFIG in files else None
    )
