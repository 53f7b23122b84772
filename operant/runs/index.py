"""All run folders: creation, listing, lookup by name. Standard library only.

Folders are in a root (`./runs`, `$OPERANT_RUNS`, `--runs`). To make ids work from any directory, each new run also
leaves a symbolic link `<created ns>-<id>` in `$XDG_STATE_HOME/operant/runs` (default `~/.local/state`), the index.
Links to deleted runs are skipped, and removed when the next run is made. The index also distinguishes this user's own
runs from others (`is_indexed`): without it the user is asked before code in a run folder is executed. For the same
purpose a sweep or group leaves a link `<SHA-256 of its path and configuration>-<id>` (`is_in_index`). A root that is
named limits the search to its runs; the index counts only if none was named, and for names that no run in the root has.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from operant import __version__, similar
from operant.errors import BusyError, MachineError, NotFoundError, UsageError
from operant.runs.folder import (
    ID,
    Run,
    boot_id,
    busy_message,
    has_trainer,
    host,
    integer_of,
    probe,
    process_fields,
    read_json,
    write_json,
)
from operant.runs.states import exit_code, observe, state
from operant.text import age, safe, user_name

SWEEP_FILE = "sweep.toml"
"""File that marks the folder of a sweep."""
_RESERVED = ("latest", "live")
_LINK = re.compile(rf"([0-9]{{20}})-({ID.pattern})")
_RECORD = re.compile(rf"([0-9a-f]{{64}})-({ID.pattern})")
_ENDING = re.compile(r"[0-9a-f]{4}|[0-9a-f]{8}")  # random end of an id
_SHOWN = 5  # runs named in a message about an ambiguous name


def root(override: str | os.PathLike[str] | None = None) -> Path:
    """Return the absolute path of the folder for new runs: `override` (--runs), else $OPERANT_RUNS, else ./runs. It
    need not exist. Raises UsageError for an empty `override`.
    """
    if override is not None and not os.fspath(override).strip():
        raise UsageError("--runs is empty (an unset variable of the shell?): give a folder, or leave the option out")
    return Path(os.path.abspath(os.path.expanduser(override or os.environ.get("OPERANT_RUNS") or "runs")))


class Scope(NamedTuple):
    """Set of runs that a command searches: those in the folder `root`, and with `everywhere` those in the
    user's index.
    """

    root: Path
    everywhere: bool = True  # include the runs of the index


def scope(override: str | os.PathLike[str] | None = None) -> Scope:
    """Return the set of runs to search: those in the folder `override` (--runs) or $OPERANT_RUNS alone; without either
    ./runs and the user's index.
    """
    return Scope(root(override), not (override or os.environ.get("OPERANT_RUNS")))


def display_path(path: Path) -> str:
    """Format a path for messages: relative if it lies below the working directory; printable."""
    with contextlib.suppress(ValueError, OSError):
        return safe(path.relative_to(Path.cwd()), 400)
    return safe(path, 400)


# ----------------------------------------------------------------------------------------------------------------------
# making


def create(root: Path, name: str | None, prefix: str, request: Mapping[str, Any], **fields: Any) -> Run:
    """Make a run folder (0700) in `root` with its run.json, to which `fields` are added, and enter it in the user's
    index.

    Its id is `name`, with a suffix of four hexadecimal digits only if another run has that name; or else `prefix`
    (`<env>-<algo>`) with such a suffix. Raises UsageError for an invalid name, MachineError if the folder cannot be
    made.
    """
    if name is not None and (not ID.fullmatch(name) or name in _RESERVED):
        raise UsageError(
            f"'{safe(name, 80)}' cannot be the name of a run: 1 to 64 letters, digits, '.', '_' or '-', a letter or "
            "digit first, and not 'latest' or 'live'"
        )
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name or prefix).lstrip("._-")[:55] or "run"
    try:
        root.mkdir(parents=True, exist_ok=True)
        path = _make_folder(root, name, stem)
    except OSError as error:
        raise MachineError(
            f"cannot make a run folder in {display_path(root)} ({error.strerror}): choose another folder with --runs "
            "or $OPERANT_RUNS"
        ) from None
    created_ns = time.time_ns()
    document = {
        "schema": 1,
        "id": path.name,
        "uuid": os.urandom(16).hex(),
        "created_realtime_ns": created_ns,
        "version": __version__,
        "host": host(),
        "request": dict(request),
        **fields,
    }
    try:
        write_json(path / "run.json", document)
    except MachineError:
        with contextlib.suppress(OSError):
            path.rmdir()
        raise
    _add_run(path, created_ns)
    return Run(path.name, path, document)


def _make_folder(root: Path, name: str | None, stem: str) -> Path:
    """Make a folder in `root` named `name` or, if that is taken or None, `stem` with a random suffix; return its path.
    mkdir decides between processes that choose the same name.
    """
    names = [entry.name for entry in os.scandir(root)] + [id_ for _, id_, target in _index() if os.path.lexists(target)]
    endings = {used[-4:] for used in names}
    if name is not None and name not in names:
        with contextlib.suppress(FileExistsError):
            os.mkdir(root / name, 0o700)
            return root / name
    for attempt in range(256):
        ending = os.urandom(2 if attempt < 128 else 4).hex()
        # A unique ending lets a person type four characters; after many attempts (thousands of runs) any free name will
        # do.
        if ending not in endings or attempt >= 64:
            with contextlib.suppress(FileExistsError):
                os.mkdir(root / f"{stem}-{ending}", 0o700)
                return root / f"{stem}-{ending}"
    raise MachineError(f"no free name like {stem}-xxxx in {display_path(root)}")


def remove(run: Run) -> None:
    """Delete a run folder. It is renamed first, so that half a run is never listed. Symbolic links are not followed.
    Raises BusyError while a trainer holds the run, MachineError if the folder cannot be renamed.
    """
    if has_trainer(run.path):
        raise BusyError(busy_message(run.path))
    trash = run.path.with_name(f".trash-{run.id}-{os.urandom(4).hex()}")
    try:
        os.rename(run.path, trash)
    except OSError as error:
        raise MachineError(f"cannot remove {display_path(run.path)} ({error.strerror})") from None
    with contextlib.suppress(OSError):
        forget(run.path)
    shutil.rmtree(trash, ignore_errors=True)


# ----------------------------------------------------------------------------------------------------------------------
# index


def state_folder() -> Path | None:
    """Return the folder in which Operant keeps what it remembers for a user, `$XDG_STATE_HOME/operant` or
    `~/.local/state/operant`; None without a home directory. It need not exist.
    """
    base = os.environ.get("XDG_STATE_HOME") or ""
    if not os.path.isabs(base):  # the XDG specification: relative paths are to be ignored
        base = os.path.expanduser("~/.local/state")
    return Path(base, "operant") if os.path.isabs(base) else None


def _index_folder() -> Path | None:
    """Return the folder of the user's index; None without a home directory."""
    folder = state_folder()
    return folder / "runs" if folder is not None else None


def _index(pattern: re.Pattern[str] = _LINK) -> Iterator[tuple[str, str, str]]:
    """Yield the entries of the user's index whose link matches `pattern` (default: runs), unordered: (name of the link,
    id, path).
    """
    folder = _index_folder()
    names: list[str] = []
    if folder is not None:
        with contextlib.suppress(OSError):
            names = os.listdir(folder)
    for name in names:
        if match := pattern.fullmatch(name):
            with contextlib.suppress(OSError):
                target = os.readlink(os.path.join(str(folder), name))
                if os.path.isabs(target):
                    yield name, match[2], target


def index_roots() -> list[Path]:
    """Return the folders that hold the runs of the user's index, each once."""
    return [Path(folder) for folder in sorted({os.path.dirname(target) for _, _, target in _index()})]


def is_indexed(run: Run) -> bool:
    """Whether the user's index holds the run, with its path and creation time: it is then known to be this user's."""
    folder, created_ns = _index_folder(), integer_of(run.document, "created_realtime_ns")
    if folder is None or created_ns is None:
        return False
    with contextlib.suppress(OSError):
        return os.path.samefile(os.readlink(folder / f"{created_ns:020d}-{run.path.name}"), run.path)
    return False


def forget(folder: Path) -> None:
    """Remove a folder's entries from the user's index: what is put in its place later is not known to be the user's.
    Raises OSError.
    """
    index, real = _index_folder(), os.path.realpath(folder)
    for name, _, target in [*_index(), *_index(_RECORD)]:
        if index is not None and os.path.realpath(target) == real:
            (index / name).unlink(missing_ok=True)


def add_to_index(folder: Path, content: bytes) -> None:
    """Enter the folder of a sweep or group in the user's index, with the hash of `content`, such as its sweep.toml.
    Both are then known to be this user's.
    """
    _link(_content_link(folder, content), folder)


def is_in_index(folder: Path, content: bytes) -> bool:
    """Whether the user's index holds the folder of a sweep or group at this path with this `content`."""
    index = _index_folder()
    if index is not None:
        with contextlib.suppress(OSError):
            return os.path.samefile(os.readlink(index / _content_link(folder, content)), folder)
    return False


def _content_link(folder: Path, content: bytes) -> str:
    """Return the name of the index entry for a folder and its `content`: their hash, then the folder's name."""
    real = os.path.realpath(folder)
    return f"{hashlib.sha256(os.fsencode(real) + bytes(1) + content).hexdigest()}-{os.path.basename(real)}"


def _add_run(path: Path, created_ns: int) -> None:
    """Add a run to the user's index, and drop entries of deleted folders, but not if the folder around them is missing
    too, as on a disk that is not mounted.
    """
    _link(f"{created_ns:020d}-{path.name}", path)
    folder = _index_folder()
    if folder is None:
        return
    for name, _, target in [*_index(), *_index(_RECORD)]:
        if not os.path.lexists(target) and os.path.isdir(os.path.dirname(target)):
            with contextlib.suppress(OSError):
                os.unlink(folder / name)


def _link(name: str, target: Path) -> None:
    """Add a link named `name` to the user's index. A failure is ignored."""
    folder = _index_folder()
    if folder is not None:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.symlink(os.path.abspath(target), folder / name)


# ----------------------------------------------------------------------------------------------------------------------
# finding


def load(path: Path, id_: str | None = None) -> Run | None:
    """Load the run in the folder `path`. None if the folder is missing, is a symbolic link, or has no run.json. `id_`:
    id of the run (default: the folder's name).
    """
    try:
        if not (
            stat.S_ISDIR(os.lstat(path).st_mode) and stat.S_ISREG(os.lstat(os.path.join(path, "run.json")).st_mode)
        ):
            return None
    except (OSError, ValueError):
        return None
    return Run(id_ or path.name, path, read_json(os.path.join(path, "run.json")))


def list_runs(root: Path, everywhere: bool = True) -> list[Run]:
    """Return the runs in the folder `root`, newest first; with `everywhere` also those of the user's index. Skips all
    other folders; never raises.
    """
    runs: dict[tuple[int, int], tuple[int, Run]] = {}
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        _collect(runs, ((root / entry.name, entry.name) for entry in entries if ID.fullmatch(entry.name)))
    if everywhere:
        _collect(runs, ((Path(target), id_) for _, id_, target in _index() if os.path.basename(target) == id_))
    return [run for _, run in sorted(runs.values(), key=lambda one: (-one[0], one[1].id))]


def misnamed(root: Path) -> list[str]:
    """Return the names of folders in `root` that hold a run but cannot be an id, so that only the path selects the run.
    Never raises.
    """
    return sorted(
        name
        for name in names_in(root)
        if not ID.fullmatch(name) and not name.startswith(".") and load(root / name) is not None
    )


def list_ids(root: Path, everywhere: bool = True) -> list[str]:
    """Return the ids of the runs in the folder `root`, newest first; with `everywhere` also of the user's index. Reads
    no document; never raises.
    """
    ages: dict[str, int] = {}
    paths = [(os.path.join(root, name), name) for name in names_in(root)]
    if everywhere:
        paths += [(target, id_) for _, id_, target in _index() if os.path.basename(target) == id_]
    for path, id_ in paths:
        with contextlib.suppress(OSError):
            if id_ not in ages and ID.fullmatch(id_) and stat.S_ISREG(os.lstat(os.path.join(path, "run.json")).st_mode):
                ages[id_] = os.lstat(path).st_mtime_ns
    return sorted(ages, key=lambda id_: -ages[id_])


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, unordered; [] if it is unreadable."""
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []


def _collect(runs: dict[tuple[int, int], tuple[int, Run]], paths: Iterable[tuple[Path, str]]) -> None:
    """Add the runs among `paths` (folder, id) to `runs`: (creation time, run) by (device, inode) of the folder."""
    for path, id_ in paths:
        with contextlib.suppress(OSError):
            folder = os.lstat(path)
            key = (folder.st_dev, folder.st_ino)
            if key not in runs and (run := load(path, id_)) is not None:
                runs[key] = (integer_of(run.document, "created_realtime_ns") or folder.st_mtime_ns, run)


def resolve(text: str, root: Path, everywhere: bool = True) -> Run:
    """Find the run that `text` names in the folder `root`: by its id, a unique beginning or end of one (`4f2a`), a
    path, `latest`, or `live` (the only one that trains). With `everywhere`, a name that no run in `root` has is looked
    up in the user's index, but only as a whole id or its random end: the beginning of an id, such as an environment's
    name, never means a run of another folder.

    Names are compared with existing folders, never joined to a path. Raises NotFoundError with the closest ids or the
    matching runs, UsageError for an empty name, MachineError for a run that is not readable.
    """
    if not text.strip():
        raise UsageError(
            "the name of a run is empty (an unset variable of the shell?): give an id, a unique part of one, a path, "
            "latest or live. All runs: operant runs"
        )
    if os.sep in text or text.startswith("~") or text in (".", ".."):
        return _at_path(text)
    runs = list_runs(root, everywhere=everywhere)
    if not runs and text in _RESERVED:
        raise NotFoundError(f"no runs yet in {display_path(root)}. Start one: operant train")
    own = [run for run in runs if run.path.parent == root]
    if text == "latest":
        return (own or runs)[0]
    if text == "live":
        fits = [run for run in own if probe(run.path)] or [run for run in runs if probe(run.path)]
        if not fits:
            raise NotFoundError("no run is training now. See the newest one: operant monitor latest")
    else:
        # The first kind with a match decides, so that a full id is never ambiguous with a longer one.
        kinds = (
            [r for r in own if r.id == text],
            [r for r in own if r.id.startswith(text)],
            [r for r in own if r.id.endswith(text)],
            [r for r in runs if r.id == text],
            [r for r in runs if has_ending(r.id, text)],
        )
        fits = next((kind for kind in kinds if kind), [])
    exact = [run for run in fits if run.id == text and run.path.parent == root]
    if not (fits and fits[0].id == text):
        roots = [run.path.parent for run in fits] or (index_roots() if everywhere else [])
        _check_no_collection(text, root, roots)
    if len(fits) == 1 or exact:
        return (exact or fits)[0]
    if fits:
        raise NotFoundError(_ambiguous(text, fits))
    if ID.fullmatch(text) and (run := load(Path.cwd() / text)) is not None:
        return run
    _check_readable(root)
    folders = [(root / name, name) for name in names_in(root)] + [
        (Path(target), id_) for _, id_, target in _index() if everywhere
    ]
    for path, name in folders:
        if ID.fullmatch(name) and (name.startswith(text) or name.endswith(text)):
            _check_readable(path)
    if text in misnamed(root):
        named = safe(f"{display_path(root)}/{text}", 400)
        allowed = "letters, digits, '.', '_' and '-'"
        raise NotFoundError(
            f"'{safe(text, 80)}' cannot be a run's id (allowed: {allowed}): rename the folder, or give its "
            f"path, {named}"
        )
    raise NotFoundError(_unknown(text, runs, root))


def has_ending(id_: str, text: str) -> bool:
    """Whether `text` is the random end of an id, such as `4f2a`."""
    return _ENDING.fullmatch(text) is not None and id_.endswith(f"-{text}")


def is_own(text: str, root: Path) -> bool:
    """Whether `text` is the id of a run in the folder `root`, or the beginning or end of one."""
    return any(id_.startswith(text) or id_.endswith(text) for id_ in list_ids(root, everywhere=False))


def _check_readable(folder: Path) -> None:
    """Raise MachineError if a folder exists and is not readable."""
    try:
        with os.scandir(folder):
            os.stat(folder / "run.json", follow_symlinks=False)
    except PermissionError:
        with contextlib.suppress(OSError):
            raise MachineError(
                f"{display_path(folder)} belongs to {user_name(os.stat(folder).st_uid)} and is not readable by you "
                "(Permission denied)"
            ) from None
        raise MachineError(f"{display_path(folder)} is not readable by you (Permission denied)") from None
    except OSError:
        pass


def _at_path(text: str) -> Run:
    """Load the run at a path. Raises NotFoundError and MachineError."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        path = Path(os.path.realpath(os.path.expanduser(text)))
        if (run := load(path)) is not None:
            return run
        _check_readable(path)
    if text.endswith(".toml"):
        raise NotFoundError(similar.configuration_given(text, "a run"))
    raise NotFoundError(
        f"no run in '{safe(text, 400)}': a run is a folder with a run.json. List all runs: operant runs"
    )


def _check_no_collection(text: str, root: Path, others: Iterable[Path]) -> None:
    """Raise NotFoundError if `text` is the name of a sweep or group in the folder `root` or in one of `others`: a
    single run is wanted, or the name is that of several.
    """
    folders = [folder / text for folder in dict.fromkeys([root, *others])] if ID.fullmatch(text) else []
    for kind, file in (("sweep", SWEEP_FILE), ("group", "group.json")):
        named = [folder for folder in folders if os.path.isfile(folder / file)]
        if len(named) > 1 and named[0].parent != root:
            paths = ", ".join(sorted(map(display_path, named)))
            raise NotFoundError(f"'{text}' is the name of {len(named)} {kind}s: {paths}. Give the path")
        if named:
            raise NotFoundError(f"{text} is a {kind}: name one of its runs. All of them: operant show {text}")


def _ambiguous(text: str, fits: list[Run]) -> str:
    """Return the message that the name `text` matches the runs `fits`, with their states."""
    same_id = len({run.id for run in fits}) < len(fits)
    named = [f"{display_path(run.path) if same_id else safe(run.id)} ({_state_and_age(run)})" for run in fits[:_SHOWN]]
    more = f" and {len(fits) - _SHOWN} more" if len(fits) > _SHOWN else ""
    way_out = "Name one." if text == "live" else "Give the path." if same_id else "Add a character."
    return f"'{safe(text, 80)}' matches {len(fits)} runs: {', '.join(named)}{more}. {way_out}"


def _state_and_age(run: Run) -> str:
    """Format a run's state and age for a message: `live`, or such as `finished 2 h ago`."""
    if probe(run.path):
        return "live"
    word = state(run).word
    ended_ns = integer_of(read_json(run.exit_path), "ended_realtime_ns") or integer_of(
        run.document, "created_realtime_ns"
    )
    return word if ended_ns is None else f"{word} {age(max(0.0, time.time() - ended_ns / 1e9))} ago"


def _unknown(text: str, runs: list[Run], root: Path) -> str:
    """Return the message that no run is named `text`, with the closest ids of `runs`, those found in the folder
    `root`.
    """
    if text.endswith(".toml"):
        return similar.configuration_given(text, "a run")
    if not runs:
        return f"no run named '{safe(text, 80)}'; no runs yet in {display_path(root)}. Start one: operant train"
    ids: dict[str, list[str]] = {}  # by lower case
    for run in runs[:1000]:
        ids.setdefault(run.id.lower(), []).append(run.id)
    near = [
        id_
        for one in difflib.get_close_matches(text[:64].lower(), list(ids), n=3, cutoff=0.0)
        for id_ in dict.fromkeys(ids[one])
    ][:3]
    return f"no run named '{safe(text, 80)}'. Closest: {', '.join(map(safe, near))}"


def discard_unstarted(run: Run, code: int) -> bool:
    """Delete the folder of a new run that ended before its first record with exit code 2, 3 or 4: a mistake of the
    user. `code`: the exit code. Returns whether it was deleted.
    """
    look = observe(run)
    if (
        code not in (2, 3, 4)
        or look.held is not False
        or look.record is not None
        or (look.broken is not None and exit_code(look) == 0)
    ):
        return False  # a damaged run that ended with 0
    if not os.path.lexists(run.path) or any(run.checkpoints_path.glob("step-*")):
        return False
    remove(run)
    return True


def is_alive(identity: Mapping[str, Any]) -> bool | None:
    """Whether the process with an identity (`folder.identity`) is alive; None if it is of another machine."""
    if identity.get("boot_id") != boot_id():
        return False if identity.get("host") in (None, host()) else None  # an earlier boot of this machine
    pid, ticks = integer_of(identity, "pid"), integer_of(identity, "pid_start_ticks")
    try:
        fields = process_fields(pid) if pid else []
    except OSError:
        return False
    return bool(fields) and int(fields[19]) == ticks and fields[0] not in (b"Z", b"X")
