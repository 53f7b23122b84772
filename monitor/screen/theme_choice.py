"""Theme that the user last chose with the monitor's key, kept in `$XDG_STATE_HOME/operant/theme` (default
`~/.local/state`): one word, `dark` or `light`.

A missing, damaged or unreadable file counts as no choice, and a folder that cannot be written keeps none.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from operant import runs
from operant.errors import MachineError

NAMES: Final = ("dark", "light")
_LIMIT_BYTES: Final = 16


def load() -> str | None:
    """Read the chosen theme; None if there is no choice."""
    file_path = _path()
    if file_path is None:
        return None
    try:
        descriptor = os.open(file_path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not block
    except OSError:
        return None
    try:
        raw = os.read(descriptor, _LIMIT_BYTES)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return next((name for name in NAMES if raw.strip() == name.encode()), None)


def save(name: str) -> None:
    """Keep the theme `name` for the monitor's next start."""
    file_path = _path()
    if file_path is None:
        return
    with contextlib.suppress(OSError, MachineError):
        file_path.parent.mkdir(parents=True, exist_ok=True)
        runs.write_file(file_path, f"{name}\n".encode())


def _path() -> Path | None:
    """Return the path of the file that keeps the chosen theme; None without a home directory."""
    folder = runs.state_folder()
    return folder / "theme" if folder is not None else None
