"""Commands that show episodes: `render` writes a video of a trained policy, `play` lets a person play."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from operant.cli import completion
from operant.cli.common import TYPER, JsonOption, RootOption, TrustOption, consented, out, print_json, say
from operant.errors import NotFoundError, UsageError
from operant.limits import EPISODES, RENDERERS, SECONDS, SIDES, one_of, within
from operant.text import safe

if TYPE_CHECKING:
    from operant.config.raw import RawConfig
    from operant.play import load_policy, screen, video, view, viewer

app = typer.Typer(**TYPER)

_REPORT_S = 0.1  # interval of progress updates


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[Callable[[], None]]:
    """Context manager that defers Ctrl-C, SIGTERM and SIGHUP to calls of the function it yields, which then raises
    SystemExit, so that no partial file remains.

    A handler that raises could do so where Python drops the exception, such as between a fork and its return. A second
    signal ends the process immediately.
    """
    received: list[int] = []

    def check() -> None:
        if received:
            raise SystemExit(128 + received[0])

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


@app.command()
def render(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE", help="a run, zoo:NAME, or the path of a checkpoint", autocompletion=completion.run_ids
        ),
    ],
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="a .gif, .mp4 or .png")],
    size: Annotated[int, typer.Option(metavar="PIXELS", help="width of the picture")] = 256,
    lanes: Annotated[int, typer.Option(metavar="N", help="episodes side by side, in a square")] = 1,
    seconds: Annotated[float | None, typer.Option(metavar="S", help="length of the video  [default: 10]")] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="length in environment steps, instead of --seconds")
    ] = None,
    episodes: Annotated[int, typer.Option(metavar="N", help="end after N episodes of the first lane; 0: no limit")] = 0,
    fps: Annotated[
        float | None, typer.Option(metavar="N", help="frames per second  [default: real time, or 15]")
    ] = None,
    every: Annotated[
        int | None, typer.Option(metavar="N", help="steps per frame  [default: at most 30 frames per second]")
    ] = None,
    frames: Annotated[int, typer.Option(metavar="N", help="pictures in a .png, evenly spaced; 1: only the last")] = 1,
    renderer: Annotated[
        str, typer.Option(metavar="operant|mujoco", help="mujoco: MuJoCo's own pictures of a robot")
    ] = "operant",
    greedy: Annotated[bool, typer.Option("--greedy", help="the most likely actions (the default)")] = False,
    sampled: Annotated[bool, typer.Option("--sampled", help="actions sampled from the policy")] = False,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="best|last|STEP", help="checkpoint to load  [default: best, else last]")
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda[:N]", help="processor: a GPU if there is one, or by name")
    ] = "auto",
    seed: Annotated[int | None, typer.Option(metavar="N", min=0, help="random seed  [default: the run's]")] = None,
    force: Annotated[bool, typer.Option("--force", help="replace FILE if it exists")] = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Film a trained policy: a GIF, an MP4 or a PNG.

    Shows exactly the episodes of `operant eval` with the same seed.
    """
    from operant import runs
    from operant.play import video

    if greedy and sampled:
        raise UsageError("--greedy and --sampled exclude each other: give one")
    if seconds is not None and steps is not None:
        raise UsageError("--seconds and --steps exclude each other: give one")
    one_of("--renderer", renderer, RENDERERS)
    side = video.side_of(size, lanes, option="--")
    within("--seconds", seconds, *SECONDS)
    within("--steps", steps, 1, video.MOST_STEPS)
    within("--episodes", episodes, *EPISODES)
    within("--fps", fps, 0.1, 240)
    within("--every", every, 1, 1_000_000)
    within("--frames", frames, 1, 400)
    path = Path(os.path.expanduser(out))  # keeps an unknown home as it is; Path.expanduser raises
    form = video.check(path, force=force)
    if frames != 1 and form != "png":
        raise UsageError(f"--frames needs a .png; the length of a .{form} is given by --seconds or --steps")

    loaded = _loaded(what, runs.scope(root), which=checkpoint, device=device, trust=trust)
    from operant.play import film  # torch

    seed = loaded.config.run.seed if seed is None else seed
    stage, player = film.staged(loaded, lanes=lanes, seed=seed, greedy=not sampled, renderer=renderer)
    pace = video.pace(stage.step_s, fps, every)
    limits = film.limits_of(pace, seconds, steps, episodes)
    with _ended_by_signals() as check, video.replacing(path) as part, _progress(limits, check) as report:
        recording, written = film.write(
            part, form, stage, player, pace=pace, limits=limits, side=side, frames=frames, report=report
        )
        check()
    document = {
        "schema": 1,
        "id": loaded.id,
        "checkpoint": loaded.checkpoint,
        "step": loaded.step,
        "env": loaded.config.environment.name,
        "device": str(loaded.device),
        "seed": seed,
        "mode": "sampled" if sampled else "greedy",
        "out": path,
        "format": form,
        "bytes": path.stat().st_size,
        "frames": written,
        "fps": pace.fps,
        "every": pace.every,
        "lanes": lanes,
        "steps": recording.steps,
        "episodes": recording.episodes,
    }
    if as_json:
        print_json(document)
    else:
        _print_video(document)
    if recording.cut:
        say(f"the video ended before episode {episodes}: increase --seconds or --steps")


@app.command()
def play(
    environment: Annotated[
        str,
        typer.Argument(
            metavar="ENV", help="an environment's name, Gymnasium id or FILE.py", autocompletion=completion.environments
        ),
    ],
    param: Annotated[
        list[str] | None, typer.Option("--param", metavar="KEY=VALUE", help="set one of its constants; may be repeated")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="random seed  [default: another each time]")
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(metavar="PIXELS", help="largest side of the picture, two pixels per line  [default: what fits]"),
    ] = None,
    fps: Annotated[float | None, typer.Option(metavar="N", help="steps per second  [default: real time, or 6]")] = None,
    turns: Annotated[
        bool | None,
        typer.Option("--turns/--clock", help="wait for a key each step, or run in real time  [default: by game]"),
    ] = None,
    keys: Annotated[str, typer.Option(metavar="KEY=ACTION,...", help="change keys, such as left=1,right=2")] = "",
) -> None:
    """Play an environment yourself in the terminal. Keys: arrows or wasd, ? for help."""
    from operant.play import screen

    within("--size", size, *SIDES)
    within("--fps", fps, 0.1, 120)
    screen.require("operant play")
    raw = _requested(environment, param or ())
    with _preparing("loading", environment):
        from operant.play import game as games
        from operant.play.host_stage import HostStage

        config = _configured(raw)
    env = config.environment
    buttons = games.KeyBindings(env)
    buttons.bind(keys)
    waits = games.takes_turns(env) if turns is None else turns
    if not waits and not buttons.keys:
        raise UsageError(
            f"{safe(env.name)} has more actions than keys: remove --clock to play in turns, or give --keys"
        )
    with _preparing("compiling", env.name):
        stage = (HostStage if config.hosted else games.Stage)(
            env, config.params, seed=secrets.randbelow(1 << 31) if seed is None else seed
        )
    game = games.Game(
        stage, buttons, turns=waits, rate=games.rate_of(stage.step_s) if fps is None else fps, title=env.name
    )
    _on_screen(game, stage, largest=size)
    out(f"{safe(env.name)}  {_returns_text(game.score.returns)}  {game.score.steps:,} steps")


def _on_screen(game: screen.Playable, stage: view.Stage, *, largest: int | None = None) -> None:
    """Show a game on the terminal until it ends, its picture at most `largest` pixels wide and high (None: what fits).
    Raises typer.Exit if a signal or an error ended it.
    """
    from monitor.screen.terminal import tied_to_terminal
    from operant.play.screen import GameScreen, View

    app = GameScreen(game, View(stage, largest=largest))
    with tied_to_terminal(app):
        app.run(mouse=False)
    if app.return_code:
        raise typer.Exit(app.return_code)


@contextlib.contextmanager
def _preparing(work: str, name: str) -> Iterator[None]:
    """Show a progress line, such as "compiling cartpole ...", while the body of the `with` statement runs."""
    from operant.display.progress import Screen

    screen = Screen(sys.stderr)
    if screen.is_terminal:
        screen.show(f"{work} {safe(name)} ...")
    try:
        yield
    finally:
        screen.end()


def _loaded(
    what: str, scope: load_policy.runs.Scope, *, which: str | None, device: str, trust: bool
) -> load_policy.LoadedPolicy:
    """Load the policy of a run, a checkpoint or the zoo, with a progress line meanwhile. Raises like
    `load_policy.load`.
    """
    notes: list[str] = []

    def load(trusted: bool) -> load_policy.LoadedPolicy:
        with _preparing("loading", what):
            from operant.play import load_policy  # torch

            return load_policy.load(what, scope, which=which, device=device, report=notes.append, trusted=trusted)

    loaded = consented(trust, load)
    say(*notes)
    return loaded


def _requested(environment: str, params: Sequence[str]) -> RawConfig:
    """Read and check the words of `operant play`: an environment's name or file, and its parameters, KEY=VALUE each.
    Imports neither torch nor the environment. Raises UsageError, ConfigError, NotFoundError.
    """
    for pair in params:
        if not re.fullmatch(r"[A-Za-z_]\w*=.+", pair):
            raise UsageError(f"--param is {safe(pair, 80)!r}; it must be KEY=VALUE, such as gravity=3.7")
    if "=" in environment:
        raise UsageError(
            f"{safe(environment, 80)!r} is not an environment; give parameters as --param {safe(environment, 80)}"
        )
    if environment.endswith(".py") and not os.path.isfile(os.path.expanduser(environment)):
        raise NotFoundError(f"there is no environment file {safe(environment, 200)!r}")
    from operant.config import early
    from operant.config.raw import read

    raw = read(None, [f"env.name={environment}", *(f"env.params.{pair}" for pair in params)])
    early.check(raw)
    raw.raise_problems()
    return raw


def _configured(raw: RawConfig) -> Any:
    """Make the configuration of `operant play`: load the environment's code, and check values as training does. Raises
    ConfigError.
    """
    from operant.compute.runtime import quiet_threads, set_threads

    quiet_threads()
    from operant.config import load as configuration

    set_threads(1)
    return configuration.check(raw)


def spectate(
    what: str,
    scope: load_policy.runs.Scope,
    *,
    which: str | None,
    device: str,
    seed: int | None,
    greedy: bool,
    episodes: int,
    fps: float | None,
    trust: bool,
) -> None:
    """Show episodes of a checkpoint's policy on the terminal, then print their returns. `what` is a run in `scope` or a
    path, `which` the checkpoint; `greedy`: most likely actions instead of sampled ones; `fps`: steps per second (None:
    real time). `trust` allows code that is not known to be this user's. Raises like `load_policy.load`.

    A policy of the zoo that ships as an export too is played without torch and without a compiler, so that it shows at
    once.
    """
    from operant.play import load_policy, screen, video, viewer
    from operant.runs import zoo

    within("--episodes", episodes, 1, 1_000_000)
    within("--fps", fps, 0.1, 120)
    screen.require("--render term")
    shipped = zoo.find(what)
    stage: view.Stage
    player: viewer.Player
    if greedy and which is None and device in ("auto", "cpu") and shipped and zoo.exported(shipped).is_file():
        from operant.play import plain

        stage, player = plain.staged(shipped, seed=seed, number=load_policy.EVALUATION_NUMBER)
        name, environment, step = shipped.id, stage.env.name, zoo.about(shipped.id)["step"]
    else:
        loaded = _loaded(what, scope, which=which, device=device, trust=trust)
        from operant.play import film

        name, environment, step = loaded.id, loaded.config.environment.name, loaded.step
        with _preparing("compiling", environment):
            seed = loaded.config.run.seed if seed is None else seed
            stage, player = film.staged(loaded, lanes=1, seed=seed, greedy=greedy)
    title = f"{name}  {environment}  checkpoint {step:,}  {'greedy' if greedy else 'sampled'}"
    pace = video.pace(stage.step_s, fps, 1 if fps is not None else None, usual_fps=viewer.USUAL_FPS)
    game = viewer.Viewer(stage, player, title=title, episodes=episodes, pace=pace)
    _on_screen(game, stage)
    out(f"{safe(title, 400)}  {_returns_text(game.result.returns)}  {game.result.steps:,} steps")


def _returns_text(returns: Sequence[float]) -> str:
    """Format the number of ended episodes and the returns of the last five."""
    if not returns:
        return "no episode ended"
    mean = f"  mean {sum(returns) / len(returns):.6g}" if len(returns) > 1 else ""
    return (
        f"{len(returns)} episode{'s' * (len(returns) > 1)}  return "
        f"{', '.join(f'{value:.6g}' for value in returns[-5:])}{mean}"
    )


@contextlib.contextmanager
def _progress(limits: video.Limits, check: Callable[[], None]) -> Iterator[Callable[[int], None]]:
    """Yield a callback for each frame's number. It calls `check`, and updates a progress line on a terminal."""
    from operant.display.progress import Screen
    from operant.play import video

    screen = Screen(sys.stderr)
    reported_s = time.monotonic()

    def report(count: int) -> None:
        nonlocal reported_s
        check()
        if screen.is_terminal and time.monotonic() - reported_s > _REPORT_S:
            reported_s = time.monotonic()
            screen.show(f"frame {count:,}" + (f" of {limits.frames:,}" if limits.frames < video.MOST_FRAMES else ""))

    try:
        yield report
    finally:
        screen.end()


def _print_video(made: Mapping[str, Any]) -> None:
    """Print two lines about a written video: file, frames, length and size; then the episodes' returns. `made`: what
    --json prints.
    """
    kilobytes = f"{made['bytes'] / 1000:,.0f} kB"
    video_text = f"{made['frames']} frame{'s' * (made['frames'] != 1)}"
    if made["format"] != "png":
        video_text += f", {made['frames'] / made['fps']:.1f} s at {made['fps']:.3g} a second"
    out(f"{safe(str(made['out']), 400)}  {video_text}, {kilobytes}")
    returns = [f"{episode['return']:.6g}" for episode in made["episodes"]]
    ended = f"returns {', '.join(returns[:8])}{' ...' if len(returns) > 8 else ''}" if returns else "no episode ended"
    mode = f"({made['mode']}, {made['device']}, seed {made['seed']})"
    out(f"{safe(made['id'])}  {safe(made['env'])}  step {made['step']:,}  {mode}  {made['steps']:,} steps, {ended}")
