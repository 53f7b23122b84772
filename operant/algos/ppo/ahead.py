"""What collects beside an update: a copy of the policy, which acts one iteration behind, and what learning takes over
of its rollout. Knows no stream, no loss.

A checkpoint does not hold the rollout that is still to be learned from, but what it was collected from: the lanes as
they were before it, and the copy. A resumed run collects it again.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from operant.algos.ppo.loss import Experience
from operant.data import Collector
from operant.nn import Policy


class Ahead:
    """The copy, and buffers for what is learned from, which the next collection leaves alone."""

    def __init__(self, collector: Collector, collected: Experience, copy: Policy, policy: Policy) -> None:
        """`copy` begins as `policy` does and acts into `collector` and `collected`; learning has `learned` and
        `experience`.
        """
        self.policy, self.learned = copy, collector.behind()
        self.experience = Experience(policy, self.learned)
        self.collected = False
        """Whether there is a rollout that is not learned from yet. A resumed run has to collect it again."""
        self._collector = collector
        here, there = collector.rollout, self.learned.rollout
        self._handed = [(old, new) for old, new in zip(there, here, strict=True) if old is not new]
        self._handed += [
            (getattr(self.experience, name), getattr(collected, name))
            for name in ("raw", "log_probability", "value", "final_value")
        ]
        self._acting = {"parameters": (copy.flat.values.data, policy.flat.values.data)}
        if copy.normalizer is not None and policy.normalizer is not None:
            self._acting |= {
                name: (getattr(copy.normalizer, name), getattr(policy.normalizer, name)) for name in ("mean", "inv_std")
            }
        self._changing = dict(getattr(collector.world, "changing", {}))
        self._begun = {name: tensor.clone() for name, tensor in collector.world.state().items()}
        self._begun_with = {name: scalar.clone() for name, scalar in self._changing.items()}
        with torch.no_grad():
            _copy_all(self._acting.values())

    @torch.no_grad()
    def hand_over(self) -> None:
        """What was collected is now learned from, and the copy becomes the policy as it is."""
        _copy_all([*self._handed, *self._acting.values()])

    @torch.no_grad()
    def go_on(self) -> None:
        """Set aside what the lanes are in, and go on from there: before each collection but the first."""
        world = self._collector.world.state()
        _copy_all((old, world[name]) for name, old in self._begun.items())
        self.note()
        self._collector.carry_on()

    def note(self) -> None:
        """Set aside the environment's parameters that change, as they are."""
        _copy_all((old, self._changing[name]) for name, old in self._begun_with.items())

    def exchange_changing(self) -> None:
        """Give the environment's parameters that change the values that were set aside, and set aside those
        they had.
        """
        for name, scalar in self._changing.items():
            now = scalar.clone()
            scalar.copy_(self._begun_with[name])
            self._begun_with[name].copy_(now)

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it, by name; `load` before the first iteration."""
        found = {f"acting/{name}": copied for name, (copied, _) in self._acting.items()}
        found |= {f"acting/changing/{name}": scalar for name, scalar in self._begun_with.items()}
        return found

    @property
    def world(self) -> dict[str, Tensor]:
        """The lanes as they were before what is not learned from yet: where that is to be collected still, as
        they are.
        """
        return self._begun if self.collected else self._collector.world.state()


def _copy_all(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy the second of each pair into the first, those of one type together."""
    kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for there, here in pairs:
        to, of = kinds.setdefault(here.dtype, ([], []))
        to.append(there)
        of.append(here)
    for to, of in kinds.values():
        torch._foreach_copy_(to, of)
