"""Commands `train` and `resume`: create a run, start its worker process, and watch it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from operant.cli.common import (
    TYPER,
    ConfigOption,
    EnvOption,
    Overrides,
    RootOption,
    RunName,
    TrustOption,
    Words,
    consented,
    out,
    say,
)
from operant.errors import OperantError, UsageError

if TYPE_CHECKING:
    from operant.cli import grouped
    from operant.config.request import Request
    from operant.runs import Run
from operant.text import safe, size

app = typer.Typer(**TYPER)


class After(enum.Enum):
    """Behaviour of a command after it has created a run: follow it, detach, open the monitor, train in this process
    (inline), or start nothing (prepare).
    """

    FOLLOW = "follow"
    DETACH = "detach"
    MONITOR = "monitor"
    INLINE = "inline"
    PREPARE = "prepare"


DetachOption = Annotated[bool, typer.Option("--detach", "-d", help="return once training has begun")]
MonitorOption = Annotated[bool, typer.Option("--monitor", help="open the monitor; quitting it does not stop the run")]


@app.command()
def train(
    words: Words = None,
    config: ConfigOption = None,
    env: EnvOption = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="id of the run")] = None,
    seed: Annotated[
        str | None, typer.Option(metavar="N", help="random seed; the same seed gives the same bits")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="N", help="train N runs, with seed, seed + 1, ...: a group")
    ] = None,
    side_by_side: Annotated[
        int,
        typer.Option(
            "--side-by-side", metavar="N", min=1, help="with --seeds: number of runs that train at the same time"
        ),
    ] = 1,
    device: Annotated[
        str | None, typer.Option(metavar="auto|cpu|cuda[:N]", help="processor: a GPU if there is one, or by name")
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            metavar="N|all|I,J,...",
            help="GPUs that share the lanes: 1, 2, 4 or 8. PPO and PQN give the same result on any number, DQN, SAC "
            "and TD3 do not",
        ),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="N", help="environment steps over all lanes, such as 20M")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the configuration and the memory estimate only")
    ] = False,
    inline: Annotated[bool, typer.Option("--inline", help="train in this process, for a debugger")] = False,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="create the run folder and print it, for torchrun or srun; start nothing")
    ] = False,
    detach: DetachOption = False,
    monitor: MonitorOption = False,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="like `operant resume RUN`")] = None,
    trust: TrustOption = False,
    root: RootOption = None,
) -> None:
    """Train an agent. Without arguments: PPO solves CartPole."""
    from operant.config import request

    settings = {
        "run.name": name,
        "run.seed": seed,
        "run.seeds": seeds,
        "run.device": device,
        "run.gpus": _gpus(gpus),
        "run.steps": steps,
    }
    after = _after(inline=inline, detach=detach, monitor=monitor, prepare=prepare)
    if resume is not None:
        others = {
            "--config": config,
            "--env": env,
            "--name": name,
            "--dry-run": dry_run or None,
            "--inline": inline or None,
            "--prepare": prepare or None,
        }
        if given := [option for option, value in others.items() if value is not None]:
            raise UsageError(
                f"{', '.join(given)} cannot be used with --resume: a run continues with its own configuration; "
                "key=value changes single keys"
            )
        _resume(
            resume,
            [*(words or ()), *(f"{key}={value}" for key, value in settings.items() if value is not None)],
            "last",
            after,
            root,
            trust,
        )
    asked = request.make(words or (), config=config, environment_file=env, settings=settings)
    asked.check_early()
    say(*asked.notes)
    if dry_run:
        consented(trust, lambda trusted: _dry_run(asked, trusted))
    elif len(asked.seeds()) > 1:
        if after in (After.INLINE, After.MONITOR, After.PREPARE):
            raise UsageError(f"--{after.value} is for one run, not for a group of {len(asked.seeds())} seeds")
        from operant import runs
        from operant.cli import grouped

        trusted = consented(trust, asked.check_trust)
        group = grouped.create(
            runs.root(root),
            asked.name,
            asked.prefix,
            asked.document(),
            asked.seeds(),
            files=[*([asked.source] if asked.source is not None else []), *asked.code_files()],
            side_by_side=side_by_side,
            trusted=trusted,
        )
        raise typer.Exit(grouped.run(group, detach=after is After.DETACH, is_new=True))
    else:
        _train(asked, after, root, consented(trust, asked.check_trust))


def _gpus(given: str | None) -> str | None:
    """Return the value of `run.gpus` for the option --gpus: the list [0, 1] for `0,1`, anything else unchanged."""
    return f"[{given.strip(',')}]" if given is not None and "," in given and not given.startswith("[") else given


def _after(**given: bool) -> After:
    """Return the behaviour named by the one option of `given` that is set, FOLLOW without one. Raises UsageError if
    several are set.
    """
    options = [option for option, selected in given.items() if selected]
    if len(options) > 1:
        raise UsageError(f"{' and '.join(f'--{option}' for option in options)} exclude each other: give one")
    return After(options[0] if options else "follow")


def _train(asked: Request, after: After, root: str | None, trusted: bool) -> None:
    """Create a run and start its training as `after` says. Exits with the run's exit code; a run that never started is
    deleted. `root`: value of --runs; `trusted` allows code that is not known to be this user's.
    """
    from operant import runs
    from operant.runs import launch

    notice = launch.detach_problem() if after is After.DETACH else None
    if after is After.PREPARE:
        asked.load(trusted)  # report problems here rather than in the logs of a cluster
    run = runs.create(runs.root(root), asked.name, asked.prefix, asked.document())
    if asked.name not in (None, run.id):
        say(f"a run {asked.name} already exists: this one is {run.id}")
    if after is After.INLINE:
        _train_here(run, trusted)
        return
    if after is After.PREPARE:
        runs.update_document(run.path, prepared=True)
        out(run.path)
        say(
            "start it on 1, 2, 4 or 8 ranks (several hosts: see operant doctor --links), such as",
            f"  {launch.torchrun_line(run.path, 2, trusted)}",
        )
        return
    try:
        code = _start(run, ["--trust"] * trusted, after, notice)
    except OperantError as error:
        runs.discard_unstarted(run, error.exit_code)
        raise
    runs.discard_unstarted(run, code)
    raise typer.Exit(code)


def _start(
    run: Run, more: Sequence[str], after: After, notice: str | None, started: Callable[[], None] = lambda: None
) -> int:
    """Start a run's worker process with the arguments `more`, call `started` once it holds the run's lock, and watch
    the run to its first record or, with FOLLOW, its end. Returns the exit code. `notice` is printed first.
    """
    from operant import runs
    from operant.cli import follow
    from operant.runs import launch

    presses = follow.Presses()
    with presses.counted():
        launch.start(run, _worker(run, *more))
        started()
        if after is After.FOLLOW:
            return follow.follow(run, presses=presses)
        # Problems of the configuration are reported in the terminal, before the monitor opens.
        code = follow.follow_to_first_record(run, notice=notice, presses=presses, detach=after is After.DETACH)
    if code or after is After.DETACH:
        return code
    from monitor.command import open_monitor

    return open_monitor(runs.load(run.path) or run)


def _train_here(run: Run, trusted: bool) -> None:
    """Train a run in this process, with the log on stderr, so that a debugger works. `trusted` allows code that is not
    known to be this user's.
    """
    from operant import runs
    from operant.training import worker

    worker.write_log()
    try:
        with worker.keeping_log(run.path):
            worker.train(run.path, resume=None, trusted=trusted)
    except OperantError as error:
        runs.discard_unstarted(run, error.exit_code)
        raise
    say(f"{run.id}  next: operant eval {run.short}   operant show {run.short}")


def _worker(run: Run, *more: str) -> list[str]:
    """Return the command line of a run's worker process, with the arguments `more`."""
    from operant.runs import launch

    return [*launch.module_command("operant.training.worker"), str(run.path), "--spawn", *more]


def _dry_run(asked: Request, trusted: bool) -> None:
    """Print the configuration and an estimate of the device memory, and start nothing. `trusted` allows code that is
    not known to be this user's.
    """
    import torch

    from operant.cli.machine import show_origins
    from operant.compute.runtime import find_device
    from operant.training.memory import CONTEXT_BYTES, estimate

    show_origins(asked.origins(trusted))
    resolved = asked.load(trusted)
    if resolved.env.lanes == "auto":
        out("", "# device memory: env.lanes = auto is resolved when the run begins; nothing was started")
        return
    # A run on a GPU may be estimated on a machine without one.
    device = find_device(resolved.run.device) if torch.cuda.is_available() else torch.device("cpu")
    if (file := resolved.environment_file) is not None and not resolved.hosted:
        from operant.worlds.quick_check import require_sound

        say(*(f"warning: {line}" for line in require_sound(resolved.environment, file, resolved.params, device)))
    footprint = estimate(resolved, device)
    out(
        "",
        f"# device memory: about {size(footprint.total_bytes)} ({size(footprint.fixed_bytes)} "
        f"permanent, {size(footprint.update_bytes)} during an update)",
    )
    if footprint.replay_bytes:
        where = "in host memory instead" if getattr(resolved.algo, "replay_place", "") == "host" else "of it"
        out(f"# replay: {size(footprint.replay_bytes)} {where}")
    out(f"# on a GPU, in addition, about {size(CONTEXT_BYTES)} for CUDA; nothing was started")


@app.command()
def resume(
    run: RunName,
    overrides: Overrides = None,
    start: Annotated[str, typer.Option("--from", metavar="last|best|STEP", help="checkpoint to resume from")] = "last",
    detach: DetachOption = False,
    monitor: MonitorOption = False,
    trust: TrustOption = False,
    root: RootOption = None,
) -> None:
    """Resume a run from a checkpoint, in the same folder.

    Training continues until run.steps environment steps, with the run's configuration; key=value changes single keys.
    Keys on which the checkpoint depends cannot change: env.name, env.lanes, keys of observations (env.pixels,
    env.flicker, env.frame_stack, env.grayscale, env.resize), algo.name, net.*, algo.normalize_observations,
    algo.normalize_rewards, PPO's algo.optimizer, and DQN's algo.v_min and algo.v_max. All other keys can: run.steps,
    run.target, algo.horizon, algo.epochs, algo.learning_rate and so on. Changed env.params make a different task: the
    best evaluation so far is discarded.

    The decay of the learning rate ends where it was planned when the run began (algo.anneal_steps), also if run.steps
    grows; algo.anneal_steps=N changes that.
    """
    _resume(run, overrides or [], start, _after(detach=detach, monitor=monitor), root, trust)


def _resume(name: str, overrides: Sequence[str], start: str, after: After, root: str | None, trust: bool) -> None:
    """Resume the run or group `name` from checkpoint `start` ("last", "best" or a step) and exit with its exit code.
    `root` and `trust`: values of --runs and --trust. Raises UsageError, NotFoundError, BusyError.
    """
    from operant import runs
    from operant.cli import grouped
    from operant.config import restart
    from operant.runs import launch

    if stray := [word for word in overrides if "=" not in word]:
        raise UsageError(f"{stray[0]!r} is not an override: write section.key=value, such as run.steps=4M")
    restart.check_start(start)
    if (group := grouped.find(name, runs.scope(root))) is not None:
        if overrides or start != "last" or after in (After.INLINE, After.MONITOR):
            raise UsageError(
                f"{safe(group.id)} is a group, which is resumed unchanged; for other values or another checkpoint name "
                "one of its runs"
            )
        raise typer.Exit(_resume_group(group, after, trust))
    run = runs.resolve(name, *runs.scope(root))
    with launch.claimed(run) as release:
        raise typer.Exit(_resume_claimed(run, overrides, start, after, trust, release))


def _resume_group(group: grouped.Group, after: After, trust: bool) -> int:
    """Resume the unfinished runs of a group after printing what happens to each. Returns the exit code. `trust` allows
    code that is not known to be this user's.
    """
    from operant import runs
    from operant.cli import grouped
    from operant.config import request
    from operant.config import trust as guard

    made, taken = group.unchanged, group.taken
    for seed, name in group.members.items():
        if seed in taken:
            reason = "was resumed with other values" if seed in group.runs else "is not a run of this group"
            say(f"{safe(name)} {reason}: it stays as it is, and seed {seed} is trained under another name")
            continue
        word = runs.state(made[seed]).word if seed in made else "not begun"
        kept = seed in made and any(made[seed].checkpoints_path.glob("step-*"))
        doing = "nothing to do" if word == "finished" else "is resumed" if kept else "is trained from its beginning"
        say(f"{safe(name)}: {word}, {doing}")
    if all(seed in made and runs.state(made[seed]).word == "finished" for seed in group.members):
        return 0
    asked = request.of_run(group.path, group.document.get("request"), resume=False)
    trusting = group.document.get("trusted") is True
    consented(
        trust,
        lambda trusted: guard.check_group(
            asked.raw, asked.directory, group.path, group.content, trusting=trusting, trusted=trusted
        ),
    )
    return grouped.run(group, detach=after is After.DETACH)


def _resume_claimed(
    run: Run, overrides: Sequence[str], start: str, after: After, trust: bool, release: Callable[[], None]
) -> int:
    """Resume a run that this command has claimed, from checkpoint `start` ("last", "best" or a step), and watch it.
    `release` ends the claim once the worker holds the run; `trust` allows code that is not known to be this user's.
    Returns the exit code.
    """
    from operant.config import restart
    from operant.runs import launch

    asked, trusted = restart.ask(
        run, overrides, start, consent=lambda asked: consented(trust, asked.check_trust), report=say
    )
    notice = launch.detach_problem() if after is After.DETACH else None
    recorded = restart.record(run, asked)
    code = _start(run, ["--resume", start, *["--trust"] * trusted], after, notice, release)
    recorded.restore_if_refused(code)
    return code
