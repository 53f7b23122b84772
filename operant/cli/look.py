"""Commands that read runs: `runs`, `show`, `wait`, `monitor`, `logs`, `eval`, `zoo`. Only `eval` imports torch."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from operant.cli.common import (
    TYPER,
    JsonLinesOption,
    JsonOption,
    MaybeRunName,
    RootOption,
    RunName,
    TrustOption,
    consented,
    out,
    print_json,
    print_json_line,
    say,
    table,
)
from operant.errors import UsageError
from operant.limits import EVALUATED, within
from operant.text import safe

app = typer.Typer(**TYPER)

_BAD = frozenset(("failed", "diverged", "crashed", "gpu_fault", "oom", "unreadable"))


@app.command("eval")
def evaluate(
    what: Annotated[str, typer.Argument(metavar="RUN|FILE", help="a run, zoo:NAME, or the path of a checkpoint")],
    episodes: Annotated[int, typer.Option(metavar="N", help="episodes per policy, greedy and sampled")] = 100,
    greedy: Annotated[bool, typer.Option("--greedy", help="only the most likely actions")] = False,
    sampled: Annotated[bool, typer.Option("--sampled", help="only actions sampled from the policy")] = False,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="best|last|STEP", help="checkpoint to load  [default: best, else last]")
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda[:N]", help="processor: a GPU if there is one, or by name")
    ] = "auto",
    seed: Annotated[int | None, typer.Option(metavar="N", min=0, help="random seed  [default: the run's]")] = None,
    render: Annotated[
        str, typer.Option("--render", metavar="none|term", help="term: show the episodes in this terminal")
    ] = "none",
    fps: Annotated[
        float | None, typer.Option(metavar="N", help="with --render term: steps per second  [default: real time]")
    ] = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Evaluate a trained policy over whole episodes.

    Prints the mean return with its 95 % confidence interval, greedy and sampled.
    """
    from operant import runs
    from operant.play import load_policy

    if render not in ("none", "term"):
        film = f"operant render {safe(what, 80)} --out agent.gif"
        raise UsageError(f"--render is {safe(render, 40)!r}; it must be none or term. For a file: {film}")
    if render == "term":
        if as_json:
            raise UsageError("--render term draws on a terminal: remove --json")
        if greedy and sampled:
            raise UsageError("--render term shows one policy: give --greedy (the default) or --sampled")
        from operant.cli import playing

        playing.spectate(
            what,
            runs.scope(root),
            which=checkpoint,
            device=device,
            seed=seed,
            greedy=not sampled,
            episodes=episodes,
            fps=fps,
            trust=trust,
        )
        return
    if fps is not None:
        raise UsageError("--fps needs --render term")
    within("--episodes", episodes, *EVALUATED)
    both = greedy == sampled
    played = consented(
        trust,
        lambda trusted: load_policy.evaluate_policy(
            what,
            runs.scope(root),
            which=checkpoint,
            episodes=episodes,
            device=device,
            seed=seed,
            greedy=both or greedy,
            sampled=both or sampled,
            report=say,
            trusted=trusted,
        ),
    )
    if as_json:
        print_json(played.document())
        return
    out(
        f"{safe(played.id)}  {played.environment}  step {played.step:,}  ({played.checkpoint.name}, {played.device}, "
        f"seed {played.seed})"
    )
    for word, result in (("greedy", played.greedy), ("sampled", played.sampled)):
        if result is not None:
            cut = f"  {result.unfinished} cut off" if result.unfinished else ""
            spread = (
                f"± {result.ci95:.2f}  (95 %, n = {result.episodes})  std {result.std:.2f}"
                if result.ci95 is not None
                else ""
            )
            out(
                f"{word:8} {result.mean:10.2f} {spread or '(n = 1: one episode has no interval)'}  "
                f"range {result.minimum:.2f} to {result.maximum:.2f}  length {result.length:.1f}{cut}"
            )
            if result.tally:
                out(
                    f"{'':8} per episode: "
                    f"{'  '.join(f'{safe(name)} {value:,.4g}' for name, value in result.tally.items())}"
                )


@app.command("zoo")
def list_zoo(as_json: JsonOption = False) -> None:
    """List the pretrained policies that ship with Operant.

    Evaluate, film or export one by its name: operant eval zoo:NAME --render term.
    """
    from operant.runs import zoo

    policies = [(f"{zoo.PREFIX}{name}", zoo.about(name)) for name in zoo.names()]
    if as_json:
        print_json({"schema": 1, "policies": [{"name": name, **about} for name, about in policies]})
        return
    width = max((len(name) for name, _ in policies), default=0)
    for name, about in policies:
        spread = f"{about['return']:,.6g} ± {about['ci95']:.2g}"
        extra = f"  needs the extra {about['extra']}" if "extra" in about else ""
        out(
            f"{name:{width}}  return {spread:16}  {about['step']:>12,} steps of {about['algo']}  ({about['command']})"
            f"{extra}"
        )


@app.command("runs")
def list_runs(
    live: Annotated[bool, typer.Option("--live", help="only runs that are training")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="only failed, diverged and crashed runs")] = False,
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="only runs with this tag: see `operant note`")] = None,
    env: Annotated[str | None, typer.Option(metavar="NAME", help="only runs on this environment")] = None,
    algo: Annotated[str | None, typer.Option(metavar="NAME", help="only runs of this algorithm")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN>VALUE",
            help="only runs with this value (= != < <= > >=; text may hold * and ?); may be repeated",
        ),
    ] = None,
    names: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="NAME,NAME...",
            help="columns: properties such as id, state, score, seed, date, and keys such as algo.learning_rate",
        ),
    ] = None,
    sort: Annotated[str, typer.Option(metavar="COLUMN", help="order; -COLUMN: largest first")] = "age",
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="only the first N; 0: all")] = 0,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="update every second until Ctrl-C")] = False,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """List runs, newest first.

    Columns for --columns, --where and --sort are state, id, env, algo, score, eval, best, return, target, sps, seed,
    step, steps, progress, took, eta, age, date, tags, note, device, host, version, cause, and all keys of the
    configuration. Quote a filter with < or >: --where 'algo.learning_rate>1e-4' --where 'date>=2026-11-24'.
    """
    from operant import runs
    from operant.cli import columns, grouped
    from operant.runs import LIVE

    wanted = (LIVE if live else frozenset()) | (_BAD if failed else frozenset())
    named = {"env": env, "algo": algo}
    filters = columns.parse_filters(where or ())
    filters += [columns.Filter(key, "=", text) for key, text in named.items() if text is not None]
    chosen = columns.parse_columns(names)
    used = (*(chosen or ()), sort.removeprefix("-"), *(one.name for one in filters))
    scope = runs.scope(root)
    narrowed = bool(wanted or filters or tag is not None)
    empty = "no such runs" if narrowed else f"no runs yet in {runs.display_path(scope.root)}. Start one: operant train"

    def select(described: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        rows = columns.with_config((row for row in described if tag is None or tag in row["tags"]), used)
        return columns.ordered((row for row in rows if all(one.matches(row) for one in filters)), sort)

    if watch:
        if as_json or sys.stdout is None or not sys.stdout.isatty():
            raise UsageError("--watch draws on a terminal. For a program: operant runs --json, repeatedly")
        from operant.cli.listing import Listing, draw

        listing = Listing(scope, wanted)
        draw(lambda: _table_lines(select(listing.rows()), limit, empty, chosen), sys.stdout)
        return
    described = (row for row in map(runs.describe, runs.list_runs(*scope)) if not wanted or row["state"] in wanted)
    rows = select(described)
    shown = rows[:limit] if limit else rows
    if as_json:
        print_json([row if chosen is None else columns.values(row, chosen) for row in shown])
        return
    for name in runs.misnamed(scope.root):
        say(
            f"not listed: {safe(f'{runs.display_path(scope.root)}/{name}', 400)} has a name that cannot be a run's id: "
            "rename it, or give its path"
        )
    if not shown:
        say(empty)
        return
    out(*_table_lines(shown, 0, empty, chosen))
    if not narrowed and chosen is None:
        out(*grouped.overview(scope, limit))
    if len(rows) > len(shown):
        say(f"... and {len(rows) - len(shown)} more")


def _table_lines(rows: list[dict[str, Any]], limit: int, empty: str, chosen: Sequence[str] | None) -> list[str]:
    """Format descriptions of runs as a table with the columns `chosen` (None: the usual ones), at most `limit` rows (0:
    all); the text `empty` without rows.
    """
    from operant.cli import columns

    shown = rows[:limit] if limit else rows
    names = chosen or (*columns.DEFAULT, *(("tags",) if any(row["tags"] for row in shown) else ()))
    lines = [columns.cells(row, names) for row in shown]
    return table(names, lines, columns.right(names)) if shown else [empty]


@app.command()
def show(run: RunName, as_json: JsonOption = False, root: RootOption = None) -> None:
    """Describe a run, a group with its mean over seeds, or a sweep."""
    from operant import runs
    from operant.cli import grouped

    if grouped.show(run, runs.scope(root), as_json=as_json):
        return
    found = runs.resolve(run, *runs.scope(root))
    if as_json:
        print_json(runs.describe(found))
        return
    from operant.cli import summary

    out(*summary.lines(found))


@app.command()
def wait(
    run: RunName,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="exit with code 124 after this time")
    ] = None,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Wait for a run to end and return its exit code.

    Ctrl-C ends the waiting, not the run. --json prints the same as `show --json`.
    """
    from operant import runs
    from operant.cli import follow

    found = runs.resolve(run, *runs.scope(root))
    code = follow.wait(found, timeout)
    if as_json:
        print_json(runs.describe(runs.load(found.path) or found))
    raise typer.Exit(code)


@app.command()
def monitor(
    run: MaybeRunName = None,
    latest: Annotated[bool, typer.Option("--latest", help="the newest run")] = False,
    once: Annotated[bool, typer.Option("--once", help="print the screen once as text and exit")] = False,
    readonly: Annotated[
        bool, typer.Option("--readonly", help="disable the keys that stop, pause or checkpoint a run")
    ] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="draw with ASCII characters only")] = False,
    fps: Annotated[
        str | None, typer.Option(metavar="N", help="frames per second at most  [default: $OPERANT_FPS or 4]")
    ] = None,
    theme: Annotated[
        str | None,
        typer.Option(
            metavar="dark|light", help="colour theme  [default: the one last chosen with the key t, else dark]"
        ),
    ] = None,
    root: RootOption = None,
) -> None:
    """Show a run, a group or a sweep, live or ended. Leaving the monitor does not affect it."""
    # For --help and completion only: `operant.cli.main` calls the monitor before typer is imported.
    from monitor import command

    switches = {"--latest": latest, "--once": once, "--readonly": readonly, "--ascii": ascii_only}
    options = {"--fps": fps, "--theme": theme, "--runs": root}
    words = [word for word, given in switches.items() if given] + [
        f"{word}={value}" for word, value in options.items() if value is not None
    ]
    raise typer.Exit(command.main([*words, *(["--", run] if run is not None else [])]))


@app.command()
def logs(
    run: RunName,
    tail: Annotated[int, typer.Option(metavar="N", min=0, help="the last N lines; 0: all")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="follow the log until the run has ended")] = False,
    as_json: JsonLinesOption = False,
    root: RootOption = None,
) -> None:
    """Print a run's log."""
    from operant import runs
    from operant.runs import log

    for line in log.lines(runs.resolve(run, *runs.scope(root)), tail=tail, follow=follow):
        if as_json:
            print_json_line(log.document(line), flush=follow)
        else:
            out(line, flush=follow)
