"""Note and tags of a run, written by people: notes.json, separate from run.json, which belongs to the trainer. Standard
library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from operant.errors import UsageError
from operant.runs import folder as runfolder

_FILE = "notes.json"
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_MOST_TAGS, _MOST_TEXT = 32, 10_000


def exist(folder: Path) -> bool:
    """Whether a run folder has a note or a tag."""
    noted = read(folder)
    return bool(noted["note"] or noted["tags"])


def read(folder: Path) -> dict[str, Any]:
    """Return the note (a text or None) and the sorted tags of a run folder as {"note", "tags"}, made printable. Never
    raises.
    """
    document = runfolder.read_json(folder / _FILE)
    listed: Any = document.get("tags")
    tags = {tag for tag in listed if isinstance(tag, str) and _TAG.fullmatch(tag)} if isinstance(listed, list) else ()
    return {"note": runfolder.text_of(document, "note"), "tags": sorted(tags)[:_MOST_TAGS]}


def write(folder: Path, text: str | None, add: Iterable[str] = (), remove: Iterable[str] = ()) -> dict[str, Any]:
    """Set the note of a run folder (None: unchanged; "": delete it), add and remove tags, and return the new {"note",
    "tags"}. Raises UsageError and MachineError.
    """
    add = list(add)
    if wrong := [tag for tag in add if not _TAG.fullmatch(tag)]:
        raise UsageError(
            f"{ascii(wrong[0])[:60]} cannot be a tag: 1 to 40 letters, digits, '.', '_' or '-', a letter or digit first"
        )
    if text is not None and len(text) > _MOST_TEXT:
        raise UsageError(f"the note has {len(text):,} characters; the limit is {_MOST_TEXT:,}")
    before = read(folder)
    tags = sorted({*before["tags"], *add} - set(remove))
    if len(tags) > _MOST_TAGS:
        raise UsageError(f"the run would have {len(tags)} tags; the limit is {_MOST_TAGS}")
    runfolder.write_json(
        folder / _FILE, {"schema": 1, "note": before["note"] if text is None else text.strip() or None, "tags": tags}
    )
    return read(folder)
