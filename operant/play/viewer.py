"""A policy at play on the terminal: what `operant eval --render term` shows. Knows no run and no checkpoint.

It goes at the environment's own pace, and no faster than it can be followed.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from operant import text
from operant.play import film as render
from operant.play.console import Console
from operant.play.keys import Buttons
from operant.play.stage import Performer, Show
from operant.play.view import View

_HOLD_S = 0.8  # how long an episode's end stays
_LOOK_S = 0.2  # between two looks at the terminal's size while nothing moves
_LEAVE = ("q", "esc")
_FPS = 12.0  # of an environment that has no pace of its own


class Watched(NamedTuple):
    """What was seen."""

    returns: list[float]  # of the episodes that ended
    steps: int


def spectate(show: Show, performer: Performer, terminal: Console, *, title: str, episodes: int, fps: float | None, largest: int | None = None) -> Watched:
    """Play `episodes` episodes on the terminal, or until somebody has seen enough: q, esc or Ctrl-C. Space waits and goes on.

    `fps` None is the environment's own pace, with no more than 30 pictures a second.
    """
    pace = render.pace(show.step_s, fps, 1 if fps is not None else None, usual_fps=_FPS)
    view, buttons = View(show, terminal, largest=largest), Buttons(show.env)
    returns: list[float] = []
    steps = 0
    action = "-"
    paused = False
    next_s = time.monotonic()
    try:
        while True:
            number = len(returns) + (0 if show.ended[0] else 1)
            score = f"episode {number} of {episodes}   step {int(show.ages[0]):,}   return {text.number(float(show.returns[0]))}   action {action}"
            mean = f"   mean of {len(returns)}: {text.number(sum(returns) / len(returns))}" if returns else ""
            view.draw([score + mean, f"{title}   {'waiting: space goes on' if paused else 'space waits'}, q leaves"])
            if show.ended[0] and len(returns) >= episodes:
                next_s = time.monotonic() + _HOLD_S
            key = terminal.key(_LOOK_S if paused else max(0.0, next_s - time.monotonic()))
            if key in _LEAVE:
                return Watched(returns, steps)
            paused ^= key == "space"
            if key is not None or paused:
                continue
            if len(returns) >= episodes:
                return Watched(returns, steps)
            for _ in range(pace.every):
                performer.step()
                steps += 1
                action = buttons.named(tuple(show.action[:, 0].tolist()))
                if show.ended[0]:
                    returns.append(float(show.returns[0]))
                    break
            # A slow machine, or a slow line, plays more slowly: it does not catch up.
            next_s = max(next_s + 1.0 / pace.fps, time.monotonic()) + (_HOLD_S if show.ended[0] else 0.0)
    except KeyboardInterrupt:
        return Watched(returns, steps)
