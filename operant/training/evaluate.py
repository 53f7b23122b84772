"""Evaluation: whole episodes with a fixed policy, in a world with its own random stream. Changes no trained bit.

Each lane plays exactly one episode, its first: counting whichever episodes end first would favour short ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from operant import worlds
from operant.compute import rng
from operant.compute.graphs import Graphed
from operant.envs import Env
from operant.nn import Actor
from operant.training.rollout import Rollout

STREAM = rng.EVALUATIONS

_CHUNK = 32  # steps between checks for lanes still playing
# most steps of an episode: with and without a time limit
_LONGEST, _LONGEST_UNLIMITED = 100_000, 20_000
_TICKS = 1 << 32  # ticks reserved for an evaluation, which begins at a multiple of it
_PARTS = 16  # parts of an evaluation's ticks, with different episodes


class Evaluation(NamedTuple):
    """Result of an evaluation: mean, spread, length and tallies (the environment's own statistics) over all of its
    episodes.
    """

    mean: float
    # half-width of the 95 % confidence interval of the mean (normal approximation); None for one episode
    ci95: float | None
    std: float | None  # standard deviation of an episode's return; None for one episode
    minimum: float
    maximum: float
    length: float  # mean steps per episode
    episodes: int
    unfinished: int  # episodes cut off by `max_steps`, counted with their return so far
    tally: dict[str, float]  # means of the environment's tallies by name

    def __repr__(self) -> str:
        """Format all fields, numbers with six significant digits; the fields themselves are exact."""
        fields = [f"{name}={_rounded(value)}" for name, value in self._asdict().items()]
        return f"{type(self).__name__}({', '.join(fields)})"


def _rounded(value: object) -> str:
    """Format a number with six significant digits, a dict of numbers likewise, and anything else as by `repr`."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_rounded(one)}' for key, one in value.items())}}}"
    return repr(float(f"{value:.6g}")) if isinstance(value, float) else repr(value)


def ci95(std: float, episodes: int) -> float:
    """Half-width of the 95 % confidence interval of a mean return (normal approximation), from the standard deviation
    of an episode's return and the number of episodes.
    """
    return 1.96 * std / math.sqrt(episodes)


class EvaluationInterruptedError(Exception):
    """Error for an evaluation that its caller interrupted, so that it has no result."""


class Evaluator:
    """Evaluator of an actor: plays `episodes` episodes, one in each lane of its own world, greedily or by sampling.

    `max_steps` cuts an episode off, rounded up to whole chunks of 32 steps. The default is 100,000, or 20,000 if the
    environment has no time limit.
    """

    def __init__(
        self,
        actor: Actor,
        env: Env,
        params: Any,
        *,
        episodes: int,
        seed: int,
        greedy: bool = True,
        max_steps: int | None = None,
        stream: int = STREAM,
    ) -> None:
        device = actor.device
        self._greedy = greedy
        self.max_steps = max_steps or (_LONGEST if env.time_limit is not None else _LONGEST_UNLIMITED)
        self.actor = actor
        self.rollout = Rollout(
            actor, worlds.make(env, episodes, seed=seed, device=device, params=params, stream=stream), steps=_CHUNK
        )
        self._playing = torch.ones(episodes, dtype=torch.bool, device=device)
        self._total = torch.zeros(episodes, dtype=torch.float64, device=device)
        self._length = torch.zeros(episodes, dtype=torch.int64, device=device)
        self._tally = torch.zeros(len(env.tally), episodes, device=device)
        self._play = Graphed(self._play_chunk, device, eager=not self.rollout.world.capturable)

    def run(self, number: int, *, part: int = 0, interrupted: Callable[[], bool] = lambda: False) -> Evaluation:
        """Play evaluation number `number` and return its result. Number and `part` (0 to 15) determine the episodes.
        Raises EvaluationInterruptedError once `interrupted`, polled every 32 steps, returns True.
        """
        world = self.rollout.world
        world.seek(number * _TICKS + part * (_TICKS // _PARTS))
        self.rollout.reset()
        self._playing.fill_(True)
        self._total.zero_()
        self._length.zero_()
        if world.ended_tallies is not None:
            world.ended_tallies.zero_()
        for _ in range(-(-self.max_steps // _CHUNK)):
            if interrupted():
                raise EvaluationInterruptedError
            self._play()
            if not bool(self._playing.any()):  # sync: an evaluation ends when its last episode does
                break
        totals = self._total.cpu()  # sync: the result
        std = float(totals.std()) if len(totals) > 1 else None
        return Evaluation(
            mean=float(totals.mean()),
            ci95=None if std is None else ci95(std, len(totals)),
            std=std,
            minimum=float(totals.min()),
            maximum=float(totals.max()),
            length=float(self._length.double().mean()),  # sync: the result
            episodes=len(totals),
            unfinished=int(self._playing.sum()),  # sync: the result
            tally=self._tallies(),
        )

    def _tallies(self) -> dict[str, float]:
        """Mean over episodes of each of the environment's tallies (its own statistics), by name. A cut-off episode
        counts with its tallies so far.
        """
        world = self.rollout.world
        sums = torch.where(self._playing, world.running_tallies, self._tally)
        return dict(zip(world.spec.tally, sums.double().mean(dim=1).tolist(), strict=True))  # sync: the result

    @torch.no_grad()
    def _play_chunk(self) -> None:
        """Play 32 steps in every lane, and add them to the results of lanes whose first episode is not over."""
        world, slot = self.rollout.world, self.rollout.slot
        if not self._greedy:
            self.rollout.draw()
        for t in range(_CHUNK):
            self.rollout.step(t, greedy=self._greedy)
            # torch.where, not a product: NaN from a later episode must not count.
            self._total.add_(torch.where(self._playing, slot.reward, 0.0))
            self._length.add_(self._playing)
            ended = (slot.terminated | slot.truncated).bool()
            if world.ended_tallies is not None:
                # Until its second episode ends, a lane's finished tallies are those of its first.
                torch.where(self._playing & ended, world.ended_tallies, self._tally, out=self._tally)
            self._playing.logical_and_(~ended)
        world.advance(_CHUNK)
