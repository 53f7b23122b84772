"""Trust in user code: decide from files alone, before any import, whether a configuration may import a Python file.

Code named on the command line or in a configuration file outside the folders of runs and sweeps is trusted, since the
user wrote it. Such a folder may come from anywhere. Code named in it is trusted only if this user's index (see
operant/runs/index.py) holds the folder, and if folder and files belong to this user and cannot be written by others. In
addition:

- a run: the file lies inside the run folder, and run.json holds its hash
- a sweep: the index holds the hash of the configuration, sweep.toml or best.toml
- a group: the index holds the hash of its request
"""

from __future__ import annotations

import functools
import grp
import hashlib
import os
import pwd
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from operant import runs
from operant.config.raw import RawConfig, quoted
from operant.errors import UntrustedError
from operant.host import names


def check(raw: RawConfig, trusted: bool = False) -> bool:
    """Return `trusted`, which allows code that is not known to be this user's. Raises UntrustedError if it is false and
    the configuration would import such code.
    """
    if raw.source is None or trusted:
        return trusted
    of_sweep = _marked(raw.source, _is_sweep) is not None and _marked(raw.source, _is_run) is None
    doubts = [
        (name, _sweep_doubt(raw.source) if of_sweep else _run_doubt(raw.source, path)) for name, path in _code(raw)
    ]
    _raise_untrusted(doubts, raw.source)
    return trusted


def check_sweep(
    raw: RawConfig, searched: Sequence[RawConfig] = (), pickled: Sequence[Path] = (), trusted: bool = False
) -> bool:
    """Return `trusted`. Raises UntrustedError if it is false, the folder of a sweep (`raw` is its sweep.toml) is not
    known to be this user's, and work on the sweep would import code that the file or a `searched` value names, or read
    a `pickled` file.
    """
    if raw.source is None or trusted:
        return trusted
    loads = "from which the search engine loads pickled objects"
    code = [name for name, _ in _code(raw)]
    code += [name for one in searched for name, _ in _code(one, typed_in=raw.source.parent)]
    code += [f"{runs.display_path(path)}, {loads}" for path in pickled if os.path.lexists(path)]
    doubt = _sweep_doubt(raw.source) if code else None
    _raise_untrusted([(name, doubt) for name in dict.fromkeys(code)], raw.source)
    return trusted


def check_group(
    raw: RawConfig, directory: Path, folder: Path, content: bytes, *, trusting: bool, trusted: bool = False
) -> bool:
    """Return `trusted`. Raises UntrustedError if it is false, the folder of a group is not known to be this user's, and
    the group would import code: code that its request names, or (`trusting`) code of its runs, which group.json
    declares as trusted.

    Overrides are relative to `directory`; `content` is the request as the index stores it.
    """
    code = [] if trusted else [name for name, _ in _code(raw, typed_in=directory)]
    code += ["the code of its runs, which group.json declares as trusted"] * (trusting and not trusted)
    doubt = _content_doubt(folder, folder / "group.json", content) if code else None
    _raise_untrusted([(name, doubt) for name in code], folder / "group.json")
    return trusted


def code_files(raw: RawConfig, directory: Path) -> list[Path]:
    """Return the existing code files that a configuration names. Overrides are relative to `directory`."""
    return [path for _, path in _code(raw, typed_in=directory) if path is not None]


def _raise_untrusted(doubts: Iterable[tuple[str, str | None]], source: Path) -> None:
    """Raise UntrustedError if one of `doubts`, pairs of a name of code and a reason not to trust it or None, has a
    reason. `source`: file that names the code.
    """
    if lines := [f"{name}: {doubt}" for name, doubt in doubts if doubt is not None]:
        first = f"{runs.display_path(source)} names code that is not known to be yours, and was not run"
        raise UntrustedError("\n  ".join([first, *lines, "to run it anyway, after reading it: add --trust"]))


def hashes(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of code files in a run folder, by `names` relative to it such as `source/my_env.py`, for
    run.json.
    """
    return {name: _sha256(folder / name) for name in names}


def _code(raw: RawConfig, *, typed_in: Path | None = None) -> Iterator[tuple[str, Path | None]]:
    """Yield the code that a configuration imports: its name in messages, and the absolute path of an existing file
    (None: a module, as in gymnasium:MODULE:ID). Code named by overrides is included only with `typed_in`, the folder to
    which it is relative.
    """
    for key in (("env", "name"), ("algo", "name"), ("net", "kind")):
        table = raw.data.get(key[0])
        value = table.get(key[1]) if isinstance(table, dict) else None
        if not isinstance(value, str) or (raw.typed(key) and typed_in is None):
            continue
        name = (names.file_of(value) or value) if key[0] == "env" else value.rpartition(":")[0]
        if name.endswith(".py") and os.path.isfile(path := raw.path(key, name, typed_in)):
            yield runs.display_path(path), path
        elif key[0] == "env" and names.kind_of(value) not in (None, "file") and value.count(":") > 1:
            yield f"the module that {quoted(value)} imports", None


def _run_doubt(source: Path, path: Path | None) -> str | None:
    """Return the reason not to trust the code in `path` (None: an installed module) that the configuration `source` of
    a run names; None if it is this user's. An installed module is trusted if the run is this user's.
    """
    folder = _marked(source, _is_run)
    if folder is None:
        return None if _is_own(source) else "the configuration belongs to another user"
    run, real = runs.load(folder), folder / "config.toml" if path is None else Path(os.path.realpath(path))
    if folder not in real.parents:
        return "the file lies outside the run folder"
    name = real.relative_to(folder)
    files = [folder / "run.json", real, *(folder / part for part in name.parents)]
    if not all(map(_is_own, files)):
        return "the run belongs to another user"
    if (open_to_others := _writable([*files, *folder.parents])) is not None:
        return open_to_others
    if run is None or not runs.is_indexed(run):
        return "the run is not in your own index of runs: it was made elsewhere, copied or moved"
    if path is None:
        return None
    hashes = run.document.get("sources")
    if not isinstance(hashes, dict) or str(name) not in hashes:
        return "run.json holds no hash of this file"
    return None if hashes[str(name)] == _sha256(real) else "the file was changed after its hash was recorded"


def _sweep_doubt(source: Path) -> str | None:
    """Return the reason not to trust the code that the configuration `source` in the folder of a sweep names; None if
    it is this user's.

    The code itself may lie anywhere: the recorded configuration names it by an absolute path.
    """
    real = Path(os.path.realpath(source))
    try:
        content = real.read_bytes()
    except OSError:
        return "the configuration cannot be read"
    return _content_doubt(_marked(source, _is_sweep) or real.parent, real, content)


def _content_doubt(folder: Path, file: Path, content: bytes) -> str | None:
    """Return the reason not to trust the sweep or group in `folder`; None if it is this user's. `content`: text of its
    configuration `file`, whose hash this user's index must hold.
    """
    folder = Path(os.path.realpath(folder))
    kind = "group" if file.name == "group.json" else "sweep"
    if not (_is_own(folder) and _is_own(file)):
        return f"the {kind} belongs to another user"
    if (open_to_others := _writable([file, folder, *folder.parents])) is not None:
        return open_to_others
    if not runs.is_in_index(folder, content):
        return f"the {kind} is not in your own index: it was made elsewhere, copied, moved or changed"
    return None


def _marked(source: Path, is_marked: Callable[[Path], bool]) -> Path | None:
    """Return the folder of a run or sweep (`is_marked`) above a configuration file, by its given path, then by its real
    one. None without one.
    """
    parents = (*Path(os.path.abspath(source)).parents, *Path(os.path.realpath(source)).parents)
    folder = next(filter(is_marked, parents), None)
    return folder and Path(os.path.realpath(folder))


def _is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return os.path.lexists(folder / "run.json")


def _is_sweep(folder: Path) -> bool:
    """Whether a folder is that of a sweep that has begun: it holds sweep.toml, which alone may be a user's own file,
    and the sweep's journal.
    """
    return all(os.path.lexists(folder / name) for name in (runs.SWEEP_FILE, "journal.log"))


def _is_own(path: Path) -> bool:
    """Whether a file or folder belongs to this user; False if that is unknown."""
    try:
        return os.stat(path).st_uid == os.geteuid()
    except OSError:
        return False


def _writable(paths: Iterable[Path]) -> str | None:
    """Return the reason not to trust paths, if another user could write or replace one of them; None without one. A
    sticky folder, such as /tmp, protects its content.
    """
    for path in paths:
        try:
            stats = os.stat(path)
        except OSError:
            return f"{runs.display_path(path)} cannot be read"
        if stats.st_uid not in (os.geteuid(), 0):
            return f"{runs.display_path(path)} belongs to another user"
        shared = stats.st_mode & (stat.S_IWOTH | (0 if _is_private(stats.st_gid) else stat.S_IWGRP))
        if shared and not (stat.S_ISDIR(stats.st_mode) and stats.st_mode & stat.S_ISVTX):
            return f"others can write to {runs.display_path(path)} (chmod go-w)"
    return None


@functools.cache
def _is_private(group: int) -> bool:
    """Whether a Unix group has no other member than this user, as user private groups, with which umask 002 is
    common.
    """
    try:
        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return entry.gr_name == user.pw_name and entry.gr_gid == user.pw_gid and set(entry.gr_mem) <= {user.pw_name}


def _sha256(path: Path) -> str:
    """Return the SHA-256 of a file; "" if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
