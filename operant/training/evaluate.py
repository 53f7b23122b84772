"""Plays whole episodes with a policy as it is and reports their returns. Knows nothing of how the policy came about; changes no bit of it.

An evaluation has a world and a random stream of its own. Each lane plays exactly one episode, its first: counting whatever ends first would favour short ones.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from operant.compute.graphs import Graphed
from operant.compute.kernel import bind, kernel
from operant.data import noise
from operant.envs import Env
from operant.nn.policy import Policy
from operant.worlds.device_world import World

STREAM = 1
"""The random stream of evaluations: see `rng.stream_seed`."""

_CHUNK = 32  # steps between two looks at whether anybody still plays
_TICKS = 1 << 32  # ticks an evaluation may use: each begins at a multiple of it


class Evaluation(NamedTuple):
    """What an evaluation found."""

    mean: float
    ci95: float  # half the width of the 95 % confidence interval of the mean (normal approximation)
    deviation: float  # standard deviation of a single episode's return
    minimum: float
    maximum: float
    length: float  # mean steps of an episode
    episodes: int
    unfinished: int  # episodes cut off by `max_steps`, counted with what they had
    tally: dict[str, float]  # means of the environment's own sums over an episode, by name


class Evaluator:
    """A world of `episodes` lanes and a policy that plays it, greedily or by its own distribution.

    `max_steps` cuts an episode off; it is rounded up to whole chunks of 32 steps.
    """

    def __init__(self, policy: Policy, env: Env, params: Any, *, episodes: int, seed: int, greedy: bool = True, max_steps: int = 100_000) -> None:
        device = policy.device
        self._policy, self._greedy, self._max_steps = policy, greedy, max_steps
        self._world = World(env, episodes, seed=seed, device=device, params=params, stream=STREAM)
        self._slot = self._world.slot()
        self._bound = self._world.bind(self._slot)
        self._playing = torch.ones(episodes, dtype=torch.bool, device=device)
        self._total = torch.zeros(episodes, dtype=torch.float64, device=device)
        self._length = torch.zeros(episodes, dtype=torch.int64, device=device)
        self._tally = torch.zeros(len(env.tally), episodes, device=device)
        self._noise = torch.zeros(_CHUNK, policy.distribution.noise_rows, episodes, device=device)
        self._fill = kernel(noise.noise_body, device)
        self._clock = bind(noise.Clock(self._world.lanes.tick, self._world.lanes.seed, 0))
        self._noise_buffers = bind(noise.Noise(self._noise))
        self._play = Graphed(self._play_chunk, device)

    def run(self, number: int) -> Evaluation:
        """Evaluation `number`: its own episodes, the same whenever this number is run."""
        self._world.lanes.tick.fill_(number * _TICKS)
        self._world.reset(self._bound)
        self._playing.fill_(True)
        self._total.zero_()
        self._length.zero_()
        if self._world.lanes.finished is not None:
            self._world.lanes.finished.zero_()
        for _ in range(-(-self._max_steps // _CHUNK)):
            self._play()
            if not bool(self._playing.any()):  # sync: an evaluation ends when its last episode does
                break
        totals = self._total.cpu()  # sync: the result
        deviation = float(totals.std()) if len(totals) > 1 else 0.0
        return Evaluation(
            mean=float(totals.mean()),
            ci95=1.96 * deviation / math.sqrt(len(totals)),
            deviation=deviation,
            minimum=float(totals.min()),
            maximum=float(totals.max()),
            length=float(self._length.double().mean()),  # sync: the result
            episodes=len(totals),
            unfinished=int(self._playing.sum()),  # sync: the result
            tally=self._tallies(),
        )

    def _tallies(self) -> dict[str, float]:
        """The environment's own sums, means over the episodes; of those that were cut off, what they had."""
        sums = torch.where(self._playing, self._world.lanes.running[1:], self._tally)
        return dict(zip(self._world.env.tally, sums.double().mean(dim=1).tolist(), strict=True))  # sync: the result

    @torch.no_grad()
    def _play_chunk(self) -> None:
        if not self._greedy:
            self._fill(self._world.count, self._clock, self._noise_buffers)
        for t in range(_CHUNK):
            self._slot.action.copy_(self._policy.act(self._slot.observation, None if self._greedy else self._noise[t], self._slot.legal))
            self._world.step(self._bound, t)
            # Not a product: a reward of a later episode that is not a number must not count.
            self._total.add_(torch.where(self._playing, self._slot.reward, 0.0))
            self._length.add_(self._playing)
            ended = (self._slot.terminated | self._slot.truncated).bool()
            if self._world.lanes.finished is not None:
                # A lane's finished sums are those of its first episode until its second ends.
                torch.where(self._playing & ended, self._world.lanes.finished, self._tally, out=self._tally)
            self._playing.logical_and_(~ended)
        self._world.advance(_CHUNK)
