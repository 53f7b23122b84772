"""Command `sweep` (hyperparameter search over ordinary runs), and `stop` and `show` of a sweep."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from operant.cli.common import TYPER, JsonOption, Overrides, RootOption, TrustOption, consented, out, print_json, say
from operant.errors import OperantError, UsageError

if TYPE_CHECKING:
    from operant.runs import Run
    from operant.sweep.journal import SweepJournal, SweepTrial
    from operant.sweep.plan import Plan

app = typer.Typer(**TYPER)
_DRAW_S, _LOOK_S, _PATIENCE_S, _STOP_S = 1.0, 0.05, 3.0, 25.0


@app.command()
def sweep(
    config: Annotated[str | None, typer.Argument(metavar="[FILE]", help="a TOML file with a [sweep] section")] = None,
    overrides: Overrides = None,
    join: Annotated[
        str | None,
        typer.Option("--join", metavar="FOLDER", help="work on the existing sweep in a folder, from this machine too"),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="name of the sweep and its folder  [default: the file's, with -sweep]"),
    ] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", min=1, help="runs side by side")] = None,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="search for trade-offs between the objective and the seconds of a trial")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="return once it has begun")] = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Search hyperparameters over many runs.

    [sweep] declares the searched keys, such as algo.learning_rate = {log = [1e-4, 1e-2]}, and the budget: trials, steps
    or minutes. The same command continues an interrupted sweep. Ctrl-C or `operant stop` stops it, with a checkpoint of
    each training trial.
    """
    from operant.config import request
    from operant.sweep import plan as planning

    if (config is None) == (join is None):
        raise UsageError("give the file of a sweep, or --join FOLDER")
    if detach and as_json:
        raise UsageError(
            "--json prints the result of a sweep, which --detach does not wait for; later: operant show SWEEP --json"
        )
    if join is not None:
        if overrides or name or pareto:
            raise UsageError(
                "--join uses a sweep unchanged: overrides, --name and --pareto belong to the command that started it"
            )
        plan = consented(trust, lambda trusted: planning.join(Path(join).expanduser().absolute(), trusted))
    else:
        words = [*(overrides or ()), *(["sweep.pareto=true"] if pareto else [])]
        asked = request.make(words, config=config, environment_file=None, settings={})
        plan = consented(trust, lambda trusted: planning.make(asked, root, name, trusted))
    raise typer.Exit(_detach(plan, workers, trust) if detach else _work_on(plan, workers, trust, as_json))


def _work_on(plan: Plan, workers: int | None, trusted: bool, as_json: bool) -> int:
    """Work on a sweep in this process until the sweep ends, with `workers` runs at a time, and return the exit code.
    `trusted` allows code that is not known to be this user's; `as_json` prints the result as JSON.
    """
    from operant import runs
    from operant.cli import follow
    from operant.runs import sweeps
    from operant.runs.pool import Worker
    from operant.runs.scheduler import Scheduler
    from operant.sweep import report
    from operant.sweep.journal import SweepJournal, worker_count

    count, devices = worker_count(plan, workers)
    presses = follow.Presses()
    table = _Table(plan)
    if plan.settings.pareto and plan.settings.pruner != "none":
        say("--pareto: trials are not pruned, because pruning supports only one objective")
    say(f"{plan.place}: {count} at a time. Stop: Ctrl-C; the same command resumes")
    with presses.counted(), sweeps.entered(plan.folder) as asked:
        journal = SweepJournal(plan, devices=devices, say=table.say, trusted=trusted)
        scheduler = Scheduler(
            journal,
            [Worker(plan.folder / f"worker-{number}.log") for number in range(count)],
            wanted=lambda: max(presses.wanted, asked()),
        )
        sweeps.set_finished(plan.folder, False)
        finished = scheduler.run(lambda: table.draw(journal, scheduler.trials))
        sweeps.set_finished(plan.folder, finished)
        table.draw(journal, scheduler.trials, last=True)
        best = report.write_best(plan, journal.study, trusted)
        drawn = report.plots(plan, journal.study) if best is not None else []
    if as_json:
        print_json(report.document(plan, journal.study))
    if best is None:
        say(f"no trial has finished: {plan.place}")
    else:
        out(best)
        say(drawn) if isinstance(drawn, str) else out(*drawn)
        say(f"next: operant train --config {runs.display_path(best)} --seeds 5")
    if not finished:
        say("stopped; the same command resumes the sweep")
        return 130
    return 0 if best is not None else 1


def _detach(plan: Plan, workers: int | None, trusted: bool) -> int:
    """Start a process without a terminal that works on a sweep. Returns 0 once it has begun, or its exit code if it
    ends before. `trusted` allows code that is not known to be this user's.
    """
    from operant.runs import launch, sweeps

    notice = launch.detach_problem()
    say(*([notice] if notice else []))
    words = [
        "sweep",
        "--join",
        str(plan.folder),
        *(["--workers", str(workers)] if workers else []),
        *(["--trust"] if trusted else []),
    ]
    log = plan.folder / "sweep.log"
    process = launch.spawn([*launch.module_command("operant.cli"), *words], log, mode="wb")
    while not any(one.get("pid") == process.pid for one in sweeps.working(plan.folder)):
        if (code := process.poll()) is not None:
            say(*log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:])
            return code
        time.sleep(_LOOK_S)
    say(
        f"Detached. Still searching: operant show {plan.name} · log: {plan.place}/sweep.log · stop: operant stop "
        f"{plan.name}"
    )
    return 0


def find(text: str, scope: tuple[Path, bool]) -> Path | None:
    """Find the folder of the sweep named `text`; None if the name is not that of a sweep. `scope`: the runs searched,
    from `runs.scope`.
    """
    from operant.runs import sweeps

    return sweeps.find(text, *scope)


def show(folder: Path, *, as_json: bool) -> None:
    """Print the sweep in `folder` with its trials, best first, with `as_json` as JSON."""
    from operant.sweep import report

    plan, search = report.load_sweep(folder)
    if as_json:
        print_json(report.document(plan, search))
    else:
        out(*report.lines(plan, search, (), 400))


def stop_all(scope: tuple[Path, bool], *, now: bool) -> None:
    """Stop all sweeps in `scope` that a process works on. `now`: kill their runs instead of saving checkpoints."""
    from operant.runs import sweeps

    for folder in sweeps.list_sweeps(*scope):
        if sweeps.working(folder):
            stop(folder, now=now)


def stop(folder: Path, *, now: bool) -> list[Run]:
    """Ask all processes that work on the sweep in `folder` to end, and wait for them. Returns the trials' runs that
    still train. `now`: kill runs instead of saving checkpoints.

    Raises OperantError if a process on another machine does not answer.
    """
    from operant import runs
    from operant.runs import sweeps

    begin_s, reported = time.monotonic(), False
    word = "stopped" if sweeps.working(folder) else "it is not running"
    if word == "stopped":
        sweeps.ask_stop(folder, now=now)
    while others := sweeps.working(folder):
        waited_s = time.monotonic() - begin_s
        away = [str(one.get("host")) for one in others if one.get("host") != runs.host()]
        if waited_s > _STOP_S and len(away) == len(others):
            raise OperantError(
                f"{folder.name} was asked to stop, but {', '.join(away)} did not answer for {_STOP_S:.0f} s: check "
                "that machine"
            )
        if waited_s > _PATIENCE_S and not reported:
            reported = True
            say(
                f"{folder.name}: its trials end after this iteration, each with a checkpoint.  Stop now without "
                f"checkpoints: operant stop {folder.name} --now"
            )
        time.sleep(_LOOK_S)
    live = [run for run in sweeps.trials(folder) if runs.state(run).live]
    say(f"{folder.name}: {word}.  next: operant sweep --join {runs.display_path(folder)}")
    return live


class _Table:
    """Table of a sweep's trials on stderr: redrawn in place on a terminal, elsewhere one message per trial."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._drawn, self._drawn_s = plan, list[str](), float("-inf")
        self._terminal = sys.stderr.isatty()

    def say(self, line: str) -> None:
        """Print a message about a trial above the table; on a terminal the outcomes that the table shows are
        left out.
        """
        if not (self._terminal and re.match(r"trial [0-9]+ (finished|pruned):", line)):
            from operant.cli import listing

            self._drawn = listing.redraw(sys.stderr, self._drawn, []) if self._drawn else []
            say(line)
            self._drawn_s = float("-inf")

    def draw(self, journal: SweepJournal, trials: Sequence[SweepTrial], *, last: bool = False) -> None:
        """Draw the table of trials on a terminal, at most once a second; with `last` in any case. Nothing elsewhere."""
        from operant.cli import listing
        from operant.sweep import report

        now_s = time.monotonic()
        if self._terminal and (last or now_s - self._drawn_s >= _DRAW_S):
            self._drawn_s = now_s
            self._drawn = listing.redraw(sys.stderr, self._drawn, report.lines(self._plan, journal.study, trials, 400))
