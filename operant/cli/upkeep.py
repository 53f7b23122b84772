"""Commands that maintain run folders: `note`, `rm`, `du`, `archive`, `restore`. They do not import torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from operant.cli.common import (
    TYPER,
    JsonOption,
    RootOption,
    RunName,
    RunNames,
    check_free,
    confirmed,
    out,
    print_json,
    print_table,
    say,
)
from operant.errors import BusyError, UsageError
from operant.text import safe, size

if TYPE_CHECKING:
    from operant.runs import Run
    from operant.runs.groups import Group
    from operant.runs.sweeps import Sweep

app = typer.Typer(**TYPER)


@app.command()
def note(
    run: RunName,
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help='the note; "" deletes it  [default: show it]')
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="add a tag; may be repeated")] = None,
    untag: Annotated[
        list[str] | None, typer.Option("--untag", metavar="TAG", help="remove a tag; may be repeated")
    ] = None,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Write a note or tags for a run, or show them."""
    from operant import runs
    from operant.runs import notes

    found = runs.resolve(run, *runs.scope(root))
    changes = text is not None or tag or untag
    noted = notes.write(found.path, text, tag or (), untag or ()) if changes else notes.read(found.path)
    if as_json:
        print_json({"schema": 1, "id": found.id, **noted})
        return
    out(f"{safe(found.id)}  {' '.join(noted['tags']) or 'no tags'}  {noted['note'] or 'no note'}")


@app.command()
def rm(
    names: RunNames = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    root: RootOption = None,
) -> None:
    """Delete runs, groups or sweeps, after a question.

    A training run is never deleted.
    """
    from operant import runs
    from operant.runs import groups, sweeps, upkeep

    if not names:
        raise UsageError("name the runs to delete, such as: operant rm cartpole-ppo-4f2a")
    scope = runs.scope(root)
    found: list[Run | Group | Sweep] = [
        sweeps.load(name, *scope) or groups.find(name, *scope) or runs.resolve(name, *scope)
        for name in dict.fromkeys(names)
    ]
    if yes and (
        begun := [one for name, one in zip(dict.fromkeys(names), found, strict=True) if _is_begin(name, one.id)]
    ):
        raise UsageError(f"--yes deletes without a question: give the whole name, {safe(begun[0].id)}")
    members = {one.path: [one] if isinstance(one, runs.Run) else list(one.runs.values()) for one in found}
    if busy := [one for one in found if isinstance(one, sweeps.Sweep) and sweeps.working(one.path)]:
        raise BusyError(f"{safe(busy[0].id)} is still running.  Stop it: operant stop {safe(busy[0].id)}")
    if live := [run for every in members.values() for run in every if runs.has_trainer(run.path)]:
        raise BusyError(runs.busy_message(live[0].path))
    if not yes:
        rows = [
            (
                safe(one.id),
                str(len(members[one.path])),
                size(sum(upkeep.sizes(run)["total"] for run in members[one.path])),
            )
            for one in found
        ]
        say(*(f"{id_}  {count} run{'s' * (count != '1')}, {total}" for id_, count, total in rows))
        _confirm(f"delete {'it' if len(found) == 1 else 'them'} for good?", "deleted")
    for one in found:
        runs.remove(one) if isinstance(one, runs.Run) else groups.remove(one) if isinstance(
            one, groups.Group
        ) else sweeps.remove(one)
        say(f"{safe(one.id)}: deleted")
        if not isinstance(one, runs.Run):
            others = [id_ for id_ in runs.list_ids(one.path.parent, everywhere=False) if id_.startswith(f"{one.id}.")]
            say(*(f"{safe(id_)}: not a run of {safe(one.id)}, not deleted" for id_ in others))


def _is_begin(name: str, id_: str) -> bool:
    """Whether `name` is only the beginning of the run id `id_`, so that it may mean another run too."""
    return len(name) < len(id_) and id_.startswith(name) and not id_.endswith(f"-{name}")


def _confirm(question: str, done: str) -> None:
    """Ask the user a yes-no question. Raises UsageError without a terminal, and typer.Exit after a no, with the message
    that nothing was `done` (such as "deleted").
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question}  There is no terminal to ask on: give --yes to answer yes")
    if not confirmed(question):
        say(f"nothing was {done}")
        raise typer.Exit(1)


@app.command()
def du(names: RunNames = None, as_json: JsonOption = False, root: RootOption = None) -> None:
    """Show the disk use of runs, largest first."""
    from operant import runs
    from operant.runs import upkeep

    scope = runs.scope(root)
    found = [runs.resolve(name, *scope) for name in names] if names else runs.list_runs(*scope)
    rows: list[dict[str, Any]] = sorted(
        ({"id": run.id, **upkeep.sizes(run)} for run in found), key=lambda row: -row["total"]
    )
    if as_json:
        print_json({"schema": 1, "runs": rows, "total": sum(row["total"] for row in rows)})
        return
    total = {
        "id": f"{len(rows)} runs",
        **{key: sum(row[key] for row in rows) for key in ("total", "checkpoints", "history")},
    }
    keys = ("total", "checkpoints", "history")
    print_table(
        (*keys, "id"),
        [(*(size(row[key]) for key in keys), row["id"]) for row in [*rows, *([total] if len(rows) > 1 else [])]],
        right=range(3),
    )


@app.command()
def archive(
    run: RunName,
    path: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE.tar.gz", help="the file to write  [default: ID.tar.gz]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Pack a run into one file; `operant restore` unpacks it."""
    from operant import runs
    from operant.runs import upkeep

    found = runs.resolve(run, *runs.scope(root))
    target = Path(path or f"{found.id}{upkeep.ENDING}").expanduser()
    if not target.name.endswith(upkeep.ENDING):
        raise UsageError(f"--out is {safe(target, 200)!r}; its name must end in {upkeep.ENDING}")
    check_free(target, force)
    upkeep.archive(found, target)
    if as_json:
        print_json({"schema": 1, "id": found.id, "path": str(target), "bytes": target.stat().st_size})
        return
    out(f"{safe(target, 400)}  {size(target.stat().st_size)}")


@app.command()
def restore(
    file: Annotated[str, typer.Argument(metavar="FILE.tar.gz", help="archive written by `operant archive`")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask before unpacking a large archive")] = False,
    root: RootOption = None,
) -> None:
    """Unpack an archive of a run into the folder of runs."""
    from operant import runs
    from operant.errors import NotFoundError
    from operant.runs import upkeep

    path = Path(file).expanduser()
    if not path.is_file():
        raise NotFoundError(f"there is no file {safe(file, 200)!r}")

    def confirm(question: str) -> None:
        if not yes:
            _confirm(question, "unpacked")

    run = upkeep.restore(path, runs.root(root), confirm)
    out(runs.display_path(run.path))
