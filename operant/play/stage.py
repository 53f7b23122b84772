"""Stage: a few lanes stepped one at a time, with pictures, for videos, the viewer and games.

An ended lane keeps its last state until the next step, so that the end can be shown. Its next episode starts with
exactly the random numbers that a world's reset would use: the episodes are those of `evaluate`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from operant.envs import Env, step_seconds
from operant.nn import Actor
from operant.play.plain import without_reset
from operant.training import evaluate
from operant.training.rollout import Rollout
from operant.worlds import DeviceWorld, Painter

_TICKS = 1 << 32  # evaluation N starts at tick N * 2^32


_without_reset = functools.cache(without_reset)
"""Copy of an environment whose reset does nothing. Cached, so that it compiles once per process."""


class Stage:
    """Stage for a few lanes of an environment, stepped one step at a time and drawn as pictures. They begin in the
    initial states of evaluation `number` with the same seed.

    After `step`, `reward`, `ended` and `terminated` hold its outcome, each (N); `returns` and `ages` belong to the
    current episodes, and to ended ones until the next step.
    """

    def __init__(
        self, env: Env, params: Any, *, seed: int, lanes: int = 1, device: torch.device | None = None, number: int = 0
    ) -> None:
        self.env, self.lanes, self.device = env, lanes, device or torch.device("cpu")
        self._resets = DeviceWorld(env, lanes, seed=seed, device=self.device, params=params, stream=evaluate.STREAM)
        self._world = DeviceWorld(
            _without_reset(env), lanes, seed=seed, device=self.device, params=params, stream=evaluate.STREAM
        )
        self.step_s = step_seconds(env, self._world.params)
        self._slot, self._reset_slot = self._world.slot(), self._resets.slot()
        self._bound, self._reset_bound = self._world.bind(self._slot), self._resets.bind(self._reset_slot)
        self._painter = Painter(self._world) if env.pixel_shader is not None else None
        self.reward, self.returns = np.zeros(lanes, np.float32), np.zeros(lanes, np.float64)
        self.ages = np.zeros(lanes, np.int64)
        self.ended, self.terminated = np.zeros(lanes, bool), np.zeros(lanes, bool)
        self._compile()
        self._world.seek(number * _TICKS + 1)
        self._begin(np.ones(lanes, bool))

    def _compile(self) -> None:
        """Compile every kernel of the stage by taking a step and drawing a picture, then restore the lanes."""
        self._begin(np.ones(self.lanes, bool))
        self.step(self._slot.action)
        if self._painter is not None:
            self.picture(self.canvas(1))
        for tensor in (*self._world.state().values(), *self._slot):
            if tensor is not None:
                tensor.zero_()
        self.ended[:] = False

    @property
    def observation(self) -> torch.Tensor:
        """Current observations of the lanes (O, N); of an ended lane its last one."""
        return self._slot.observation

    @property
    def legal(self) -> torch.Tensor | None:
        """Mask of the legal actions of each lane (H, N), 0 or 1; None if all actions are legal."""
        return self._slot.legal

    @property
    def action(self) -> NDArray[Any]:
        """Last action of each lane, (A, N)."""
        return self._slot.action.cpu().numpy()

    @property
    def tallies(self) -> dict[str, float]:
        """Tallies (the environment's own statistics) of the first lane's episode, by name; of an ended episode until
        the next step.
        """
        lanes = self._world.lanes
        tallies = lanes.finished[:, 0] if self.ended[0] and lanes.finished is not None else lanes.running[1:, 0]
        return dict(zip(self.env.tally, tallies.tolist(), strict=True))

    def rollout(self, actor: Actor) -> Rollout:
        """Make the rollout through which an actor chooses actions for these lanes."""
        return Rollout(actor, self._world, slot=self._slot)

    def renew(self) -> None:
        """Start the next episode in every ended lane. `step` does so too."""
        if self.ended.any():
            self._begin(self.ended.copy())

    def restart(self) -> None:
        """Start a new episode in every lane."""
        self._begin(np.ones(self.lanes, bool))

    def step(self, action: torch.Tensor) -> None:
        """Take an action (A, N) in every lane. In an ended lane it is the first action of the next episode, so call
        `renew` before choosing it.
        """
        self.renew()
        self._slot.action.copy_(action)
        self._world.step(self._bound)
        self._world.advance(1)
        self.reward = self._slot.reward.cpu().numpy().copy()
        self.terminated = self._slot.terminated.cpu().numpy() != 0
        self.ended = self.terminated | (self._slot.truncated.cpu().numpy() != 0)
        self.returns += self.reward
        self.ages += 1

    def picture(self, canvas: torch.Tensor) -> NDArray[np.uint8]:
        """Draw the lanes on `canvas` and return it as (N, H, W, 3) bytes, valid until the next call."""
        assert self._painter is not None, "this environment draws no picture"
        self._painter(self._painter.bind(canvas))
        return canvas.cpu().numpy()

    def canvas(self, side: int) -> torch.Tensor:
        """Allocate a zeroed buffer for `picture`, `side` x `side` pixels for each lane."""
        return torch.zeros(self.lanes, side, side, 3, dtype=torch.uint8, device=self.device)

    def _begin(self, which: NDArray[np.bool_]) -> None:
        """Reset the lanes marked in `which` (N), with the random numbers of the last step, as a world does at an
        episode's end.
        """
        old, new = self._world.lanes, self._resets.lanes
        new.state.copy_(old.state)
        if new.int_state is not None:
            new.int_state.copy_(old.int_state)
        new.tick.copy_(old.tick).sub_(1)
        self._resets.reset(self._reset_bound)
        chosen = torch.from_numpy(which).to(self.device)
        pairs = [
            (old.state, new.state),
            (old.int_state, new.int_state),
            (self._slot.observation, self._reset_slot.observation),
        ]
        for target, source in (*pairs, (self._slot.legal, self._reset_slot.legal)):
            if target is not None:
                target.copy_(torch.where(chosen, source, target))
        old.age.copy_(torch.where(chosen, new.age, old.age))
        old.running.copy_(torch.where(chosen, 0.0, old.running))
        if old.finished is not None:
            old.finished.copy_(torch.where(chosen, 0.0, old.finished))
        self.returns[which], self.ages[which], self.ended[which], self.terminated[which] = 0.0, 0, False, False


class Player:
    """Player of a stage's lanes by a policy, with the random numbers of an evaluation. With `greedy` it takes the
    policy's mode instead of sampled actions.
    """

    def __init__(self, stage: Stage, actor: Actor, *, greedy: bool) -> None:
        self._stage, self._greedy = stage, greedy
        self._rollout = stage.rollout(actor)

    def step(self) -> None:
        """Let the policy choose and take one action in every lane."""
        self._stage.renew()
        if not self._greedy:
            self._rollout.draw()
        self._stage.step(self._rollout.choose(greedy=self._greedy))
