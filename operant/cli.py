"""The `operant` command: words to calls, results to text. Thin: everything heavy is imported inside the command that needs it.

Data goes to stdout, words to a person to stderr. `main` holds the one `except` for what a user can cause.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from operant import __version__
from operant.errors import BusyError, MachineError, NotFoundError, OperantError, UsageError

if TYPE_CHECKING:
    from operant.config import Origin
    from operant.request import Request
    from operant.runs import Run

# Plain help: the rich one costs 100 ms at every `--help` and is hard on screen readers.
_TYPER: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": None, "pretty_exceptions_enable": False}
app = typer.Typer(**_TYPER, add_completion=True, help="Train reinforcement-learning agents on one GPU, or on a CPU, and watch them from outside.")
config_app = typer.Typer(**_TYPER, help="Show, check and describe configurations.")
app.add_typer(config_app, name="config")

_BAD = frozenset(("failed", "diverged", "crashed", "gpu_fault", "oom", "unreadable"))
_RESTART = ("best", "last")
_STOP_S = 25.0  # what a trainer allows itself, and a little more

Words = Annotated[list[str] | None, typer.Argument(metavar="[ENV] [key=value]...", help="an environment, its Gymnasium id or FILE.py; and values")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[key=value]...", help="values to change, such as run.steps=4M")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="an id, a unique part of one, a path, latest or live")]
ConfigOption = Annotated[str | None, typer.Option("--config", metavar="FILE", help="a TOML file, or the name of one that ships")]
EnvOption = Annotated[str | None, typer.Option("--env", metavar="FILE.py", help="a file of your own that exports ENV")]
RootOption = Annotated[str | None, typer.Option("--runs", metavar="FOLDER", help="where runs lie  [default: $OPERANT_RUNS or ./runs]")]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]
DetachOption = Annotated[bool, typer.Option("--detach", "-d", help="return once training has begun; it goes on")]


def main() -> None:
    """The program: runs the command line and ends the process with its exit code."""
    try:
        app(prog_name="operant")
    except OperantError as error:
        from operant.text import safe

        _say(f"{_red('error:')} {safe(error, 4000, lines=True)}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


# TRAIN


@app.command()
def train(
    words: Words = None,
    config: ConfigOption = None,
    env: EnvOption = None,
    name: Annotated[str | None, typer.Option(help="the run's id")] = None,
    seed: Annotated[str | None, typer.Option(metavar="N", help="the same seed gives the same bits")] = None,
    device: Annotated[str | None, typer.Option(metavar="auto|cpu|cuda[:N]")] = None,
    steps: Annotated[str | None, typer.Option(metavar="N", help="environment steps over all lanes, such as 20M")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show the configuration and the memory it takes; start nothing")] = False,
    inline: Annotated[bool, typer.Option("--inline", help="train in this process, for a debugger")] = False,
    detach: DetachOption = False,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="the same as `operant resume RUN`")] = None,
    runs: RootOption = None,
) -> None:
    """Train an agent. Without arguments: PPO solves CartPole."""
    from operant import request

    settings = {"run.name": name, "run.seed": seed, "run.device": device, "run.steps": steps}
    if inline and detach:
        raise UsageError("--inline trains in this process and --detach in another: give one")
    if resume is not None:
        others = {"--config": config, "--env": env, "--name": name, "--dry-run": dry_run or None, "--inline": inline or None}
        if given := [option for option, value in others.items() if value is not None]:
            raise UsageError(f"{', '.join(given)} cannot be used with --resume: a run goes on with its own configuration; key=value changes single keys")
        _resume(resume, [*(words or ()), *(f"{key}={value}" for key, value in settings.items() if value is not None)], "last", detach, runs)
    asked = request.make(words or (), config=config, environment_file=env, settings=settings)
    if dry_run:
        _dry_run(asked)
    else:
        _train(asked, inline=inline, detach=detach, root=runs)


def _train(asked: Request, *, inline: bool, detach: bool, root: str | None) -> None:
    from operant import follow, launch
    from operant import runs as folders

    notice = launch.detach_obstacle() if detach else None
    run = folders.create(folders.root(root), asked.name, asked.prefix, asked.document())
    if inline:
        _train_here(run)
        return
    try:
        code = _start(run, (), detach, notice)
    except OperantError as error:
        follow.discard_unstarted(run, error.exit_code)
        raise
    follow.discard_unstarted(run, code)
    raise typer.Exit(code)


def _start(run: Run, more: Sequence[str], detach: bool, notice: str | None) -> int:
    """Start the worker and watch it, to its first record or its end: the exit code."""
    from operant import follow, launch

    presses = follow.Presses()
    with presses.counted():
        launch.start(run, _worker(run, *more))
        return follow.follow_to_first_record(run, notice=notice, presses=presses) if detach else follow.follow(run, presses=presses)


def _train_here(run: Run) -> None:
    """Worker and viewer in this process: the log comes to stderr, a breakpoint works."""
    from operant import follow
    from operant import train as worker

    worker.write_log()
    try:
        worker.work(run.path, resume=None)
    except OperantError as error:
        follow.discard_unstarted(run, error.exit_code)
        raise
    _say(f"{run.id}  next: operant eval {run.short}   operant show {run.short}")


def _worker(run: Run, *more: str) -> list[str]:
    return [sys.executable, "-m", "operant.train", str(run.path), *more]


def _dry_run(asked: Request) -> None:
    from operant import config as configuration
    from operant.footprint import CONTEXT_BYTES, estimate

    overrides = asked.all_overrides()
    _show_origins(configuration.origins(asked.source, overrides, folder=asked.directory))
    footprint = estimate(configuration.load(asked.source, overrides, folder=asked.directory))
    print(f"\n# device memory: about {_bytes(footprint.total_bytes)} ({_bytes(footprint.fixed_bytes)} kept, {_bytes(footprint.update_bytes)} in an update)")
    print(f"# and on a GPU about {_bytes(CONTEXT_BYTES)} for CUDA itself; nothing was started")


@app.command()
def resume(
    run: RunName,
    overrides: Overrides = None,
    start: Annotated[str, typer.Option("--from", metavar="last|best|STEP", help="the checkpoint to go on from")] = "last",
    detach: DetachOption = False,
    runs: RootOption = None,
) -> None:
    """Go on with a run, in its folder, from a checkpoint."""
    _resume(run, overrides or [], start, detach, runs)


def _resume(name: str, overrides: Sequence[str], start: str, detach: bool, root: str | None) -> None:
    from operant import launch
    from operant import runs as folders
    from operant.checkpoint import Store

    if stray := [word for word in overrides if "=" not in word]:
        raise UsageError(f"{stray[0]!r} is no override: write section.key=value, such as run.steps=4M")
    if start not in _RESTART and not start.isdecimal():
        raise UsageError(f"--from is {start!r}; it must be last, best or a step")
    run = folders.resolve(name, folders.root(root))
    if folders.probe(run.path):
        raise BusyError(folders.busy(run.path))
    steps = Store(run.checkpoints_path, run_uuid=run.uuid.hex(), report=_say).steps()
    if not steps:
        raise NotFoundError(f"{folders.safe(run.id)} has no checkpoint to go on from. To begin anew: operant train")
    planned = folders.integer_of(run.document, "steps")
    changed = any(word.partition("=")[0].strip() == "run.steps" for word in overrides)
    if start == "last" and not changed and planned is not None and steps[-1] >= planned:
        more = folders.count(2 * planned).replace(" ", "")
        raise UsageError(f"{folders.safe(run.id)} has done its {planned:,} steps. To train on: operant resume {folders.safe(run.short)} run.steps={more}")
    notice = launch.detach_obstacle() if detach else None
    request = run.document.get("request")
    folders.update_document(run.path, request={**(request if isinstance(request, dict) else {}), "resume_overrides": list(overrides)})
    raise typer.Exit(_start(run, ("--resume", start), detach, notice))


# LOOK


@app.command("eval")
def evaluate(
    what: Annotated[str, typer.Argument(metavar="RUN|FILE", help="a run, or the path of a checkpoint")],
    episodes: Annotated[int, typer.Option(metavar="N", help="whole episodes of each kind")] = 100,
    greedy: Annotated[bool, typer.Option("--greedy", help="only the likeliest actions")] = False,
    sampled: Annotated[bool, typer.Option("--sampled", help="only actions drawn from the policy")] = False,
    checkpoint: Annotated[str | None, typer.Option(metavar="best|last|STEP", help="[default: the best, else the last]")] = None,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda[:N]")] = "auto",
    seed: Annotated[int | None, typer.Option(metavar="N", min=0, help="[default: the run's]")] = None,
    as_json: JsonOption = False,
    runs: RootOption = None,
) -> None:
    """Play whole episodes with a trained policy: mean return and its 95 % interval, greedy and sampled."""
    from operant import playback
    from operant import runs as folders

    both = greedy == sampled
    played = playback.play(
        what, folders.root(runs), which=checkpoint, episodes=episodes, device=device, seed=seed, greedy=both or greedy, sampled=both or sampled, report=_say
    )
    if as_json:
        _print_json(played.document())
        return
    print(f"{folders.safe(played.id)}  {played.environment}  step {played.step:,}  ({played.checkpoint.name}, {played.device}, seed {played.seed})")
    for word, result in (("greedy", played.greedy), ("sampled", played.sampled)):
        if result is not None:
            cut = f"  {result.unfinished} cut off" if result.unfinished else ""
            print(
                f"{word:8} {result.mean:10.2f} ± {result.ci95:.2f}  (95 %, n = {result.episodes})  deviation {result.deviation:.2f}  "
                f"range {result.minimum:.2f} to {result.maximum:.2f}  length {result.length:.1f}{cut}"
            )


@app.command("runs")
def list_runs(
    live: Annotated[bool, typer.Option("--live", help="only those that train now")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="only those that went wrong")] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="the newest N; 0: all")] = 0,
    as_json: JsonOption = False,
    runs: RootOption = None,
) -> None:
    """List runs, the newest first."""
    from operant import runs as folders
    from operant.states import LIVE

    wanted = (LIVE if live else frozenset()) | (_BAD if failed else frozenset())
    described = (folders.describe(run) for run in folders.list_runs(folders.root(runs)))
    rows = [row for row in described if not wanted or row["state"] in wanted]
    shown = rows[:limit] if limit else rows
    if as_json:
        _print_json(shown)
        return
    if not shown:
        _say("no such runs" if wanted else f"no runs yet in {folders.shown(folders.root(runs))}. Start one: operant train")
        return
    heads = ("state", "id", "env", "algo", "return", "sps", "progress", "eta", "age")
    _print_table(heads, [_run_row(row) for row in shown], right=range(4, 9))
    if len(rows) > len(shown):
        _say(f"... and {len(rows) - len(shown)} more")


def _run_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    from operant import runs as folders

    score = row["eval_return"] if row["eval_return"] is not None else row["return"]
    return (
        row["state"],
        row["id"],
        row["env"] or "-",
        row["algo"] or "-",
        folders.number(score),
        folders.count(row["sps"]) if row["sps"] is not None else "-",
        f"{100 * row['progress']:.0f} %" if row["progress"] is not None else "-",
        folders.duration(row["eta_s"]),
        folders.age(row["age_s"]) if row["age_s"] is not None else "-",
    )


@app.command()
def show(run: RunName, as_json: JsonOption = False, runs: RootOption = None) -> None:
    """Describe one run."""
    from operant import runs as folders

    described = folders.describe(folders.resolve(run, folders.root(runs)))
    if as_json:
        _print_json(described)
        return
    for key, value in described.items():
        if value is not None and key != "schema":
            text = f"{value:,}" if isinstance(value, int) and key not in ("pid", "seed") else f"{value:.6g}" if isinstance(value, float) else str(value)
            print(f"{key:22} {folders.safe(text, 400)}")


@app.command()
def stop(run: RunName, runs: RootOption = None) -> None:
    """Stop a run: it finishes its update, saves a checkpoint and ends. Ends with 0 once it has."""
    import signal
    import time

    from operant import runfolder
    from operant import runs as folders

    found = folders.resolve(run, folders.root(runs))
    if not folders.state(found).live:
        _say(f"{found.id} is not training: {folders.state(found).word}")
        return
    if not runfolder.signal_worker(found, signal.SIGTERM):
        raise MachineError(f"{found.id} cannot be stopped from here: its trainer runs on another machine, in another container, or as another user")
    deadline_s = time.monotonic() + _STOP_S
    while folders.state(found).live:
        if time.monotonic() > deadline_s:
            raise OperantError(f"{found.id} has been told to stop and still trains after {_STOP_S:.0f} s; see: operant logs {found.short}")
        time.sleep(0.05)
    step = folders.describe(found)["last_checkpoint_step"]
    saved = f"checkpoint at step {step:,}" if step is not None else "no checkpoint"
    _say(f"{found.id}: {folders.state(found).word}, {saved}.  next: operant resume {found.short}")


@app.command()
def logs(
    run: RunName,
    tail: Annotated[int, typer.Option(metavar="N", min=0, help="the last N lines; 0: all")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on until the run has ended")] = False,
    runs: RootOption = None,
) -> None:
    """Print what a run's trainer wrote to its log."""
    from operant import logfile
    from operant import runs as folders

    for line in logfile.lines(folders.resolve(run, folders.root(runs)), tail=tail, follow=follow):
        print(line, flush=follow)


# THE MACHINE, ENVIRONMENTS, CONFIGURATIONS


@app.command("envs")
def list_envs(as_json: JsonOption = False) -> None:
    """List the environments that ship."""
    from operant import envs, request

    rows = []
    for name in envs.names():
        env, recipe = envs.find(name), request.recipe_for(name)
        rows.append(
            {
                "name": name,
                "gymnasium": env.gymnasium,
                "observation": _space(env.observation),
                "action": _space(env.action),
                "time_limit": env.time_limit,
                "tally": list(env.tally),
                "params": env.Params()._asdict(),
                "config": recipe.stem if recipe is not None else None,
            }
        )
    if as_json:
        _print_json(rows)
        return
    heads = ("name", "gymnasium", "observation", "action", "time_limit", "config")
    _print_table(heads, [tuple(str(row[head]) if row[head] is not None else "-" for head in heads) for row in rows])
    _say("their constants, for env.params.NAME=value: operant envs --json")


def _space(space: Any) -> str:
    """A space in a few words: Box(4), Discrete(2), MultiDiscrete(3, 5)."""
    if hasattr(space, "size"):
        return f"Box({space.size}{'' if space.dtype == 'float32' else f', {space.dtype}'})"
    return f"{type(space).__name__}({', '.join(map(str, space.n)) if isinstance(space.n, tuple) else space.n})"


@app.command()
def check(file: Annotated[str, typer.Argument(metavar="FILE.py", help="a file that exports ENV, or the name of a shipped environment")]) -> None:
    """Tell whether an environment is sound."""
    from operant import envs
    from operant.check import check as examine
    from operant.text import safe

    try:
        env = envs.find(file)
    except KeyError:
        raise UsageError(f"unknown environment {file!r}: name a file ending in .py, or one of {', '.join(envs.names())}") from None
    except OperantError as error:
        raise error if error.exit_code != 1 else UsageError(str(error)) from None  # a file that is no environment is no failure of training
    findings = examine(env)
    for finding in findings:
        print(safe(f"{'ok' if finding.passed else 'problem':8} {finding.name:26} {finding.detail}", 4000))
    if not all(finding.passed for finding in findings):
        raise typer.Exit(UsageError.exit_code)


@app.command()
def doctor(as_json: JsonOption = False, runs: RootOption = None) -> None:
    """Tell whether this machine can train, and what to do where it cannot."""
    from operant import doctor as examination
    from operant import runs as folders

    findings = examination.examine(folders.root(runs))
    if as_json:
        _print_json({"schema": 1, "findings": [finding._asdict() for finding in findings]})
    else:
        for finding in findings:
            advice = f"  ->  {finding.advice}" if finding.advice else ""
            print(folders.safe(f"{finding.status:8} {finding.name:11} {finding.found}{advice}", 400))
    if any(finding.status == examination.PROBLEM for finding in findings):
        raise typer.Exit(4)


@config_app.command("show")
def config_show(words: Words = None, config: ConfigOption = None, env: EnvOption = None, as_json: JsonOption = False) -> None:
    """Print every key of a configuration, its value, and where it was set."""
    from operant import config as configuration
    from operant import request

    asked = request.make(words or (), config=config, environment_file=env, settings={})
    found = configuration.origins(asked.source, asked.all_overrides(), folder=asked.directory)
    if as_json:
        _print_json({"schema": 1, "values": {origin.key: {"value": origin.value, "origin": origin.origin} for origin in found}})
    else:
        _show_origins(found)


@config_app.command("check")
def config_check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="a TOML file, or the name of one that ships")], overrides: Overrides = None
) -> None:
    """Tell everything that is wrong with a configuration, or `ok`."""
    from operant import config as configuration
    from operant import request

    asked = request.make(overrides or (), config=file, environment_file=None, settings={})
    configuration.load(asked.source, asked.all_overrides(), folder=asked.directory)
    print("ok")


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON Schema of configurations, for editors."""
    from operant import config as configuration

    _print_json(configuration.schema())


def _version(wanted: bool) -> None:
    if wanted:
        print(f"operant {__version__}")
        raise typer.Exit


@app.callback()
def _options(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")] = False) -> None:
    pass


# WORDS


def _show_origins(origins: Iterable[Origin]) -> None:
    """A configuration as TOML, with the origin of each value in a comment."""
    from operant.text import safe

    section = ""
    for key, value, origin in origins:
        head, _, rest = key.partition(".")
        if head != section:
            print(f"{chr(10) if section else ''}[{head}]")
            section = head
        line = f"# {rest} is not set" if value is None else f"{rest} = {_toml(value)}"
        print(f"{line:40} # {safe(origin, 400)}")


def _toml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (str, bool)) else repr(value)


def _print_json(value: Any) -> None:
    """JSON without the NaN and Infinity that it does not have: they become null."""
    print(json.dumps(_finite(value), indent=2))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def _print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> None:
    from operant.text import safe

    rights = set(right)
    lines = [tuple(heads), *(tuple(safe(cell, 80) for cell in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        cells = (cell.rjust(width) if column in rights else cell.ljust(width) for column, (cell, width) in enumerate(zip(line, widths, strict=True)))
        print("  ".join(cells).rstrip())


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _red(text: str) -> str:
    return f"\x1b[31m{text}\x1b[0m" if sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" else text


if __name__ == "__main__":
    main()
