"""Groups (runs of several seeds) on the command line: start, watch, stop and show them.

Commands that accept a run, a group or a sweep resolve the name here; operations on sweeps are in `sweeping`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from operant.cli import follow, listing
from operant.cli.common import out, print_json, say, table
from operant.runs import groups
from operant.runs.groups import Group, Run
from operant.text import count, number

_DRAW_S = 1.0
_HEADS = ("seed", "state", "id", "eval", "return", "sps", "progress")
_RIGHT = (0, *range(3, 7))


def find(text: str, scope: tuple[Path, bool]) -> Group | None:
    """Find the group named `text`; None if the name is not that of a group. `scope`: the runs searched, from
    `runs.scope`.
    """
    return groups.find(text, *scope)


def create(*args: Any, **fields: Any) -> Group:
    """Create a group (runs of one configuration that differ in the seed). Prints a line for each seed whose run id
    exists already: that run gets another id. All arguments are passed to `groups.create`.
    """
    group = groups.create(*args, **fields)
    say(*(f"seed {seed}: {id_} exists already; this run gets another name" for seed, id_ in group.taken.items()))
    return group


def stop_all(scope: tuple[Path, bool], *, now: bool) -> None:
    """Ask all groups in `scope` to start no further run, and stop all sweeps. `now`: kill the sweeps' runs after a few
    seconds.
    """
    from operant.cli import sweeping

    for group in groups.list_groups(*scope):
        groups.ask_stop(group)
    sweeping.stop_all(scope, now=now)


def stop_members(text: str, scope: tuple[Path, bool], *, now: bool) -> list[Run] | None:
    """Ask the group or sweep named `text` to start no further run. Returns its runs, which the caller still has to
    stop, or None if the name is that of neither. `scope`: the runs searched; `now`: a sweep's runs are killed after a
    few seconds.
    """
    from operant.cli import sweeping

    if (folder := sweeping.find(text, scope)) is not None:
        return sweeping.stop(folder, now=now)
    if (group := find(text, scope)) is None:
        return None
    groups.ask_stop(group)
    made = group.runs
    say(*(f"{id_} has not begun" for seed, id_ in group.members.items() if seed not in made))
    return list(made.values())


def run(group: Group, *, detach: bool, is_new: bool = False) -> int:
    """Start or continue a group and watch it to its end, or with `detach` to its first record. Returns the exit code.
    `is_new`: delete the group if it made no run.
    """
    presses = follow.Presses()
    with presses.counted():
        groups.start(group)
        code = _watch(group, presses, detach=detach)
    if is_new and not (groups.load(group.path) or group).runs:  # read again: a run may have got another id
        groups.remove(group)
    return code


def _watch(group: Group, presses: follow.Presses, *, detach: bool) -> int:
    """Draw a group's table until the group has ended or, with `detach`, until the first record of a run. Returns the
    exit code.
    """
    drawn: list[str] = []
    reported: set[str] = set()
    drawn_s, sent, terminal = float("-inf"), 0, sys.stderr.isatty()
    while True:
        group = groups.load(group.path) or group
        live = group.live  # read before the states of its runs
        now_s = time.monotonic()
        if not live or now_s - drawn_s >= _DRAW_S:
            drawn_s, described = now_s, groups.describe(group)
            if terminal:
                drawn = listing.redraw(sys.stderr, drawn, lines(described))
            else:
                ended = [
                    row
                    for row in described["runs"]
                    if row["state"] not in ("waiting", *_LIVE) and row["id"] not in reported
                ]
                reported.update(row["id"] for row in ended)
                say(
                    *(
                        f"seed {row['seed']}: {row['state']}  {row['id']}  eval {number(row.get('eval_return'))}"
                        for row in ended
                    )
                )
            if live and detach and any(row.get("step") for row in described["runs"]):
                say(f"Detached. Still training: operant show {group.id} · stop: operant stop {group.id}")
                return 0
        if not live:
            return _print_outcome(group, terminal=terminal)
        if presses.wanted > sent:
            sent = presses.wanted
            _request_stop(group, sent)
        presses.sleep(0.125)


_LIVE = ("starting", "running", "paused", "stopping", "stalled", "suspended")


def _request_stop(group: Group, wanted: int) -> None:
    """Ask a group to stop with checkpoints (`wanted` = 1), or kill its runs (2)."""
    if wanted == 1:
        groups.ask_stop(group)
        say("Stopping: each training run saves a checkpoint (Ctrl-C again: stop now without saving)")
    else:
        groups.kill(group)


def _print_outcome(group: Group, *, terminal: bool) -> int:
    """Print the outcome of a group. Returns the exit code of its first unfinished run, 0 if all have finished.
    `terminal`: its table is on the screen already.
    """
    if problem := group.document.get("problem"):
        say(*str(problem).splitlines())
        code = group.document.get("code")
        return code if isinstance(code, int) else 1
    described = groups.describe(group)
    if not terminal:
        say(*lines(described)[-1:])
    unfinished = [row for row in described["runs"] if row["state"] != "finished"]
    if training := [row["id"] for row in unfinished if row["state"] in _LIVE]:
        say(f"the process that starts the group's runs has ended; still training: {', '.join(training)}")
    say(f"next: operant {'resume' if unfinished else 'show'} {group.id}")
    codes = [row.get("exit") for row in unfinished]
    return 0 if not unfinished else next((code for code in codes if code), 130)


def lines(described: Mapping[str, Any]) -> list[str]:
    """Format a group as lines: a table of its runs, then the mean over them. `described`: result of
    `groups.describe`.
    """
    rows = [
        (
            str(row["seed"]),
            row["state"],
            row["id"],
            number(row.get("eval_return")),
            number(row.get("return")),
            count(row["sps"]) if row.get("sps") is not None else "-",
            f"{100 * row['progress']:.0f} %" if row.get("progress") is not None else "-",
        )
        for row in described["runs"]
    ]
    changed = [row["id"] for row in described["runs"] if not row["counts"]]
    return [
        *table(_HEADS, rows, _RIGHT),
        *(f"{id_} was resumed with other values: not in the mean" for id_ in changed),
        f"{described['id']}: {described['finished']} of {described['seeds']} finished, eval {mean(described)}",
    ]


def mean(described: Mapping[str, Any]) -> str:
    """Format a group's mean evaluation over seeds with its 95 % confidence interval; "-" without one. `described`:
    result of `groups.describe`.
    """
    band = described["bands"]["eval_return"]
    if band is None:
        return "-"
    half = "" if band["half"] is None else f" ± {number(band['half'])} (95 %, n = {band['seeds']})"
    return f"{number(band['mean'])}{half}"


def show(text: str, scope: tuple[Path, bool], *, as_json: bool) -> bool:
    """Print the group or sweep named `text`, with `as_json` as JSON. Returns False, printing nothing, if the name is
    that of neither. `scope`: the runs searched.
    """
    from operant.cli import sweeping

    if (folder := sweeping.find(text, scope)) is not None:
        sweeping.show(folder, as_json=as_json)
        return True
    if (group := find(text, scope)) is None:
        return False
    described = groups.describe(group)
    if as_json:
        print_json(described)
        return True
    out(*lines(described))
    for key in ("eval_return", "best_return", "return"):
        band = described["bands"][key]
        if band is not None:
            half = "" if band["half"] is None else f" ± {band['half']:.4g}  (95 % of the mean, n = {band['seeds']})"
            out(f"{key:22} {band['mean']:.6g}{half}")
    return True


def overview(scope: tuple[Path, bool], limit: int) -> list[str]:
    """Format the `limit` newest groups (0: all) in `scope` as the lines of a table; [] without groups."""
    described = [groups.describe(group) for group in groups.list_groups(*scope)[: limit or None]]
    rows = [
        (f"{row['finished']} of {row['seeds']} finished" + (", training" if row["live"] else ""), row["id"], mean(row))
        for row in described
    ]
    return ["", *table(("group", "id", "eval"), rows)] if rows else []
