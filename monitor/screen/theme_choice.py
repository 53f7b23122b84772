"""Theme that the user last chose with the monitor's key, kept in `$XDG_STATE_HOME/operant/theme` (default
`~/.local/state`): one word, `dark` or `light`. Knows no widget.

A missing, damaged or unreadable file counts as no choice, and a folder that cannot be written keeps none.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

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
    """Keep the theme `name` for the next start. The file is replaced as a whole, so that no reader finds half of it."""
    file_path = _path()
    if file_path is None:
        return
    temporary = file_path.with_name(f".theme-{os.getpid()}")
    with contextlib.suppress(OSError):
        file_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(f"{name}\n", encoding="ascii")
            os.replace(temporary, file_path)
        except OSError:
            temporary.unlink(missing_ok=True)


def _path() -> Path | None:
    """Return the path of the file; None without a home directory."""
    base = os.environ.get("XDG_STATE_HOME") or ""
    if not os.path.isabs(base):  # the XDG specification: relative paths are to be ignored
        base = os.path.expanduser("~/.local/state")
    return Path(base, "operant", "theme") if os.path.isabs(base) else None
