"""Pictures and films that a notebook shows and a program saves."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

from operant import text
from operant.errors import MachineError

_TYPES = {"png": "image/png", "gif": "image/gif", "mp4": "video/mp4"}


class Picture:
    """Picture or film in memory: the last expression of a notebook's cell is shown. `data` is the content of a file of
    the format `form` ("png", "gif" or "mp4"); `figure` is the matplotlib figure of a plot, None for a film.
    """

    def __init__(self, data: bytes, form: str, title: str, figure: Any = None) -> None:
        self.data, self.form, self.title, self.figure = data, form, title, figure

    def __repr__(self) -> str:
        return f"<{self.title}: {self.form.upper()}, {text.size(len(self.data))}; .save(FILE.{self.form}) writes it>"

    def save(self, path: str | Path) -> Path:
        """Write the file, in place of an existing one; return its path. Another format of a plot than PNG:
        `picture.figure.savefig`. Raises MachineError.
        """
        target = Path(os.path.expanduser(path))
        if target.suffix != f".{self.form}":
            raise MachineError(f"{text.safe(target, 400)} must end in .{self.form}, the format of this picture")
        try:
            target.write_bytes(self.data)
        except OSError as error:
            raise MachineError(f"{text.safe(target, 400)} cannot be written ({error.strerror})") from None
        return target

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Representations for a notebook: text, and the picture as such or within HTML."""
        encoded = base64.b64encode(self.data).decode()
        source = f"data:{_TYPES[self.form]};base64,{encoded}"
        shown = (
            {"image/png": encoded}
            if self.form == "png"
            else {"text/html": f'<video src="{source}" controls autoplay loop muted></video>'}
            if self.form == "mp4"
            else {"text/html": f'<img src="{source}">'}
        )
        return {"text/plain": repr(self), **shown}
