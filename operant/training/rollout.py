"""An actor that acts in a world, step by step: what evaluation, the live agent, films and play share. Knows no
algorithm, no picture and no episode's sum.
"""

from __future__ import annotations

import torch

from operant.nn import Actor
from operant.worlds import Slot, World


class Rollout:
    """The lanes of a world, stepped by an actor over fixed buffers, so that a CUDA graph can hold it.

    `steps` is how many steps at most lie between two calls of `draw`. `slot` holds what the last step showed; by
    default one of its own.
    """

    def __init__(self, actor: Actor, world: World, *, steps: int = 1, slot: Slot | None = None) -> None:
        self.world, self.slot = world, slot or world.slot()
        self._actor, self._bound = actor, world.bind(self.slot)
        self._noise = torch.zeros(steps, actor.noise_rows, world.count, device=world.device)
        self._state, self._first = actor.initial_state(world.count), actor.initial_state(world.count)

    def reset(self) -> None:
        """Begin every lane anew."""
        self.world.reset(self._bound)
        for state, first in zip(self._state, self._first, strict=True):
            state.copy_(first)

    def draw(self) -> None:
        """The random numbers of the next steps, which sampled actions take."""
        self.world.noise(self._noise)

    @torch.no_grad()
    def choose(self, t: int = 0, *, greedy: bool) -> torch.Tensor:
        """The action (A, N) of every lane, in the slot: the likeliest, or by the random numbers of step t
        since `draw`.
        """
        slot = self.slot
        if self._state:  # an episode that has ended leaves nothing to the next
            ended = (slot.terminated | slot.truncated).bool()
            for state, first in zip(self._state, self._first, strict=True):
                torch.where(ended, first, state, out=state)
        action, after = self._actor.act(slot.observation, self._state, None if greedy else self._noise[t], slot.legal)
        for state, new in zip(self._state, after, strict=True):
            state.copy_(new)
        slot.action.copy_(action)
        return slot.action

    def step(self, t: int = 0, *, greedy: bool) -> None:
        """One step of every lane, t steps after the world's clock was moved last. The caller moves it: see
        `World.advance`.
        """
        self.choose(t, greedy=greedy)
        self.world.step(self._bound, t)
