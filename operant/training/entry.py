"""Looks for NaN and infinite values where they enter training: in the actions, rewards and observations of each
iteration. Knows no algorithm and no loop.

On a GPU one kernel reads what the iteration's steps wrote, a thread a sample; on a CPU sums tell that nothing is wrong,
which is nearly always so. Shape letters: T steps, N lanes, A actions, O observation.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from numpy import int32, uint32
from torch import Tensor

from operant.compute.device import device
from operant.compute.kernel import bind, kernel

if TYPE_CHECKING:
    from operant.worlds import Slot

EXPONENT = 0x7F800000
"""The bits of a float32's exponent: all are set in NaN and infinities alone."""
MANTISSA = 0x007FFFFF
_KINDS = ("action", "reward", "observation")


class Entered(NamedTuple):
    """The first value of an iteration that is not finite."""

    kind: str  # "action": the policy's own; "reward" or "observation": the environment's
    value: float
    lane: int
    tick: int  # of the iteration's steps, the first is 0
    lanes: int  # how many lanes had one in this iteration

    def words(self, began: int, lanes: int) -> str:
        """What entered, where and when, in an iteration that began after `began` environment steps, of so
        many lanes.
        """
        what = "the policy's action was" if self.kind == "action" else f"the environment's {self.kind} was"
        many = f" (and in {self.lanes - 1:,} other lanes of {lanes:,} in this iteration)" if self.lanes > 1 else ""
        return f"{what} {self.value} in lane {self.lane} at step {began + (self.tick + 1) * lanes:,}{many}"


def advice(config: Any, entered: Entered | None) -> str:
    """What to do about numbers that are not finite, by where they come from. `config` is an
    `operant.config.load.Config`.
    """
    if entered is not None and entered.kind != "action":
        file = config.environment_file
        look = (
            f"look at its rules and env.params: operant check {file.name}" if file is not None else "look at env.params"
        )
        return f"The environment is the cause, not the learning rate: {look}"
    tries = [
        "a lower algo.learning_rate",
        *(["algo.max_gradient_norm"] if hasattr(config.algo, "max_gradient_norm") else []),
    ]
    rewards = ", or algo.normalize_rewards=true" if getattr(config.algo, "normalize_rewards", True) is False else ""
    return f"Try {' or '.join(tries)}{rewards}"


class Seen(NamedTuple):
    """What is looked at, as the bits of float32: whole numbers have none, and are left out as arrays of no rows."""

    action: Any  # (T, A, N) int32
    reward: Any  # (T, N) int32
    observation: Any  # (T + 1, O, N) int32; [t + 1] is what step t showed


class Found(NamedTuple):
    """What is found. Nothing is looked at where `first` names an iteration already."""

    first: Any  # (1) int64, below 0: none yet
    # (T, N) int8, written where something is found: 4 kind + 0 for NaN, 1 for infinity, 2 for minus infinity; kinds are
    # 1, 2 and 3
    code: Any
    any: Any  # (1) int32, written: 1 where something is found


@device
def look_body(i, seen, found, offset):
    """The first value of sample i = t N + n that is not finite. All are read, last first: loads that do not wait for
    each other.
    """
    exponent, lanes = int32(EXPONENT), uint32(seen.reward.shape[1])
    if found.first[0] < 0:
        t, n = i // lanes, i % lanes
        kind, value = int32(0), int32(0)
        for o in range(seen.observation.shape[1]):
            bits = seen.observation[t + uint32(1), o, n]
            if (bits & exponent) == exponent:
                kind, value = int32(3), bits
        bits = seen.reward[t, n]
        if (bits & exponent) == exponent:
            kind, value = int32(2), bits
        for a in range(seen.action.shape[1]):
            bits = seen.action[t, a, n]
            if (bits & exponent) == exponent:
                kind, value = int32(1), bits
        if kind != 0:
            infinite = int32(0) if (value & int32(MANTISSA)) != 0 else int32(1) if value > 0 else int32(2)
            found.code[t, n] = int32(4) * kind + infinite
            found.any[0] = int32(1)


class Entry:
    """Looks at an iteration's rollout each time it is called, and keeps what it finds the first time. `any` (1) int32
    is then 1.
    """

    def __init__(self, rollout: Slot, first: Tensor) -> None:
        """`first` (1) int64 is at least 0 once a bad iteration is known: later ones are not looked at."""
        where, (steps, lanes) = rollout.reward.device, rollout.reward.shape
        seen = (rollout.action, rollout.reward, rollout.observation)
        self._floats = [tensor for tensor in seen if tensor.dtype == torch.float32]
        nothing = torch.zeros(steps, 0, lanes, dtype=torch.int32, device=where)
        bits = [tensor.view(torch.int32) if tensor.dtype == torch.float32 else nothing for tensor in seen]
        self._code = torch.zeros(steps, lanes, dtype=torch.int8, device=where)
        self.any = torch.zeros(1, dtype=torch.int32, device=where)
        self._on_cpu, self._kernel = where.type == "cpu", kernel(look_body, where)
        self._seen, self._found = bind(Seen(*bits)), bind(Found(first, self._code, self.any))

    def __call__(self) -> None:
        """Look at the rollout."""
        # Where a sum of finite numbers overflows, the kernel looks in vain.
        if not self._on_cpu or not math.isfinite(
            sum(float(tensor.sum()) for tensor in self._floats)
        ):  # sync: on a CPU there is nothing to wait for
            self._kernel(self._code.numel(), self._seen, self._found)

    def found(self) -> Entered | None:
        """What was found, by step and then by lane; None where nothing was."""
        code = self._code.cpu()  # sync: the run is over
        places = code.nonzero()
        if not len(places):
            return None
        tick, lane = map(int, places[0])
        kind, infinite = divmod(int(code[tick, lane]), 4)
        return Entered(
            _KINDS[kind - 1], (math.nan, math.inf, -math.inf)[infinite], lane, tick, len(places[:, 1].unique())
        )
