"""Film of a checkpoint's policy: its episodes, their pace and length, and the file. Used by `operant render` and by the
library's `run.render`. Prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from operant.errors import UsageError
from operant.play import video
from operant.play.host_stage import HostStage
from operant.play.load_policy import EVALUATION_NUMBER, LoadedPolicy
from operant.play.stage import Player, Stage
from operant.text import safe

_SECONDS = 10.0  # default length
_HOLD_S = 0.5  # time for which the last frame of an episode is shown


def staged(
    loaded: LoadedPolicy, *, lanes: int, seed: int, greedy: bool, renderer: str = "operant"
) -> tuple[Stage, Player]:
    """Stage of `lanes` environments in the initial states of an evaluation, and the checkpoint's policy as their
    player. `greedy`: most likely actions instead of sampled ones. `renderer` "mujoco": pictures by MuJoCo.

    Raises UsageError for an environment that draws no images, and as `MujocoStage` does.
    """
    environment = loaded.config.environment
    if renderer == "mujoco":
        from operant.play.mujoco_stage import MujocoStage

        kind: type[Stage] = MujocoStage
    else:
        kind = HostStage if loaded.config.hosted else Stage
    if not environment.draws:
        reason = (
            "its `render` returns no rgb_array"
            if loaded.config.hosted
            else "its file has no `pixel_shader` (see the docstring of operant/envs/base.py)"
        )
        raise UsageError(f"{safe(environment.name)} draws no images: {reason}")
    stage = kind(
        environment, loaded.config.params, seed=seed, lanes=lanes, device=loaded.device, number=EVALUATION_NUMBER
    )
    return stage, Player(stage, loaded.policy, greedy=greedy)


def limits_of(pace: video.Pace, seconds: float | None, steps: int | None, episodes: int) -> video.Limits:
    """Length of a film in frames, steps and episodes: as requested, else ten seconds."""
    if seconds is None and steps is None and not episodes:
        seconds = _SECONDS
    frames = video.MOST_FRAMES if seconds is None else min(video.MOST_FRAMES, max(1, round(seconds * pace.fps)))
    return video.Limits(frames, video.MOST_STEPS if steps is None else steps, episodes)


def write(
    path: Path,
    form: str,
    stage: Stage,
    player: Player,
    *,
    pace: video.Pace,
    limits: video.Limits,
    side: int,
    frames: int = 1,
    report: Callable[[int], None] = lambda count: None,
) -> tuple[video.Recording, int]:
    """Play and write the film, with each game `side` pixels wide; return the recording and its number of frames.
    `frames` is that of a PNG. `report` is called with each frame's number, and may raise to abandon the film.
    """
    writer = video.open_video(path, form, fps=pace.fps, frames=frames)
    try:
        hold = round(_HOLD_S * pace.fps)
        recording = video.record(
            stage, player.step, writer, side=side, every=pace.every, limits=limits, hold=hold, report=report
        )
        return recording, writer.finish()
    finally:
        writer.abandon()
