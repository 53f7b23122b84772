"""`sweep`: searches hyper-parameters over ordinary runs. Draws what the conductor does; knows nothing of how trials are chosen."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from operant.cli.common import TYPER, JsonOption, Overrides, RootOption, TrustOption, consented, out, print_json, say
from operant.errors import UsageError

if TYPE_CHECKING:
    from operant.sweep.conductor import Conductor
    from operant.sweep.plan import Plan

app = typer.Typer(**TYPER)
_DRAW_S = 1.0


@app.command()
def sweep(
    config: Annotated[str | None, typer.Argument(metavar="[FILE]", help="a TOML file with a [sweep] section")] = None,
    overrides: Overrides = None,
    join: Annotated[str | None, typer.Option("--join", metavar="FOLDER", help="help with the sweep of a folder, from this machine too")] = None,
    name: Annotated[str | None, typer.Option(help="name of the sweep and its folder  [default: the file's, with -sweep]")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", min=1, help="runs side by side")] = None,
    pareto: Annotated[bool, typer.Option("--pareto", help="search for trade-offs between the objective and the seconds of a trial")] = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
    runs: RootOption = None,
) -> None:
    """Search hyper-parameters over many runs.

    [sweep] names what is searched, such as algo.learning_rate = {log = [1e-4, 1e-2]}, and how long: trials, steps or minutes. The same command goes on with a
    sweep that was broken off. Ctrl-C stops it, with a checkpoint of each trial that trains.
    """
    from operant.config import request
    from operant.sweep import plan as planning

    if (config is None) == (join is None):
        raise UsageError("give the file of a sweep, or --join FOLDER")
    if join is not None:
        if overrides or name or pareto:
            raise UsageError("--join takes a sweep as it is: its values and --name, --pareto belong to the command that began it")
        plan = consented(trust, lambda trusted: planning.join(Path(join).expanduser().absolute(), trusted))
    else:
        words = [*(overrides or ()), *(["sweep.pareto=true"] if pareto else [])]
        asked = request.make(words, config=config, environment_file=None, settings={})
        plan = consented(trust, lambda trusted: planning.make(asked, runs, name, trusted))
    raise typer.Exit(_conduct(plan, workers, trust, as_json))


def _conduct(plan: Plan, workers: int | None, trusted: bool, as_json: bool) -> int:
    """Work on a sweep until it ends; the exit code."""
    from operant.cli import follow
    from operant.sweep import conductor, report

    count, devices = conductor.places(plan, workers)
    presses = follow.Presses()
    table = _Table(plan)
    work = conductor.Conductor(plan, workers=count, devices=devices, wanted=lambda: presses.wanted, say=table.say, trusted=trusted)
    if plan.settings.pareto and plan.settings.pruner != "none":
        say("--pareto: trials run to their end, as pruning knows one objective only")
    say(f"{plan.place}: {count} at a time. Stop: Ctrl-C; the same command goes on")
    with presses.counted():
        finished = work.run(lambda: table.draw(work))
        table.draw(work, last=True)
        best = report.write_best(plan, work.study, trusted)
        drawn = report.plots(plan, work.study) if best is not None else []
    if as_json:
        print_json(report.document(plan, work.study))
    if best is None:
        say(f"no trial has finished: {plan.place}")
    else:
        out(best)
        say(drawn) if isinstance(drawn, str) else out(*drawn)
        say(f"next: operant train --config {best}")
    if not finished:
        say("stopped; the same command goes on")
        return 130
    return 0 if best is not None else 1


class _Table:
    """The sweep's lines: redrawn on a terminal, or a line a trial."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._drawn, self._drawn_s = plan, list[str](), float("-inf")
        self._terminal = sys.stderr.isatty()

    def say(self, line: str) -> None:
        """A sentence about a trial: the table shows it on a terminal."""
        if not self._terminal or "failed" in line:
            from operant.cli import listing

            self._drawn = listing.redraw(sys.stderr, self._drawn, []) if self._drawn else []
            say(line)
            self._drawn_s = float("-inf")

    def draw(self, conductor: Conductor, *, last: bool = False) -> None:
        """Draw the table, at most once a second."""
        from operant.cli import listing
        from operant.sweep import report

        now_s = time.monotonic()
        if self._terminal and (last or now_s - self._drawn_s >= _DRAW_S):
            self._drawn_s = now_s
            self._drawn = listing.redraw(sys.stderr, self._drawn, report.lines(self._plan, conductor.study, conductor.trials, 400))
