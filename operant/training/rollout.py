"""Rollout of an actor in a world over fixed buffers, shared by evaluation, live view, films and play."""

from __future__ import annotations

import torch

from operant.nn import Actor
from operant.worlds import Slot, World


class Rollout:
    """Stepper of a world's lanes by an actor, over fixed buffers, so that a CUDA graph can capture a step.

    `steps` is the largest number of steps between two calls of `draw`. `slot` holds the buffers of one step
    (observation, action, reward, ...); by default new ones.
    """

    def __init__(self, actor: Actor, world: World, *, steps: int = 1, slot: Slot | None = None) -> None:
        self.world, self.slot = world, slot or world.slot()
        self._actor, self._bound = actor, world.bind(self.slot)
        self._noise = torch.zeros(steps, actor.noise_rows, world.count, device=world.device)
        self._state, self._first = actor.initial_state(world.count), actor.initial_state(world.count)

    def reset(self) -> None:
        """Reset every lane of the world, and the actor's recurrent state."""
        self.world.reset(self._bound)
        for state, first in zip(self._state, self._first, strict=True):
            state.copy_(first)

    def draw(self) -> None:
        """Fill the noise buffer with random numbers for as many sampled actions as the rollout was made for (its
        `steps`).
        """
        self.world.noise(self._noise)

    @torch.no_grad()
    def choose(self, t: int = 0, *, greedy: bool) -> torch.Tensor:
        """Choose the actions of every lane, (A, N), write them to the slot and return them. With `greedy` they are the
        policy's mode, else sampled with the noise of step t since `draw`.
        """
        slot = self.slot
        if self._state:  # recurrent state does not cross episodes
            ended = (slot.terminated | slot.truncated).bool()
            for state, first in zip(self._state, self._first, strict=True):
                torch.where(ended, first, state, out=state)
        action, after = self._actor.act(slot.observation, self._state, None if greedy else self._noise[t], slot.legal)
        for state, new in zip(self._state, after, strict=True):
            state.copy_(new)
        slot.action.copy_(action)
        return slot.action

    def step(self, t: int = 0, *, greedy: bool) -> None:
        """Choose actions and step every lane. `t` is the number of steps since the last `World.advance`, which the
        caller calls. With `greedy` the actions are the policy's mode, else sampled.
        """
        self.choose(t, greedy=greedy)
        self.world.step(self._bound, t)
