"""Looks for NaN and infinite values where they enter training: in the actions, rewards and observations of each iteration. Knows no algorithm and no loop.

On a GPU one kernel reads what the iteration's steps wrote, a thread a lane; on a CPU two sums tell that nothing is wrong, which is nearly always so.
Shape letters: T steps, N lanes, A actions, O observation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from numpy import int32
from torch import Tensor

from operant.compute.device import device
from operant.compute.kernel import bind, kernel

if TYPE_CHECKING:
    from operant.worlds import Slot

EXPONENT = 0x7F800000
"""The bits of a float32's exponent: all are set in NaN and infinities alone."""
_KINDS = ("action", "reward", "observation")
_BITS = 2  # of a code that hold the kind


class Entered(NamedTuple):
    """The first value of an iteration that is not finite."""

    kind: str  # "action": the policy's own; "reward" or "observation": the environment's
    value: float
    lane: int
    tick: int  # of the iteration's steps, the first is 0
    lanes: int  # how many lanes had one in this iteration

    def words(self, began: int, lanes: int) -> str:
        """What entered, where and when, in an iteration that began after `began` environment steps, of so many lanes."""
        what = "the policy's action was" if self.kind == "action" else f"the environment's {self.kind} was"
        many = f" (and in {self.lanes - 1:,} other lanes of {lanes:,} in this iteration)" if self.lanes > 1 else ""
        return f"{what} {self.value} in lane {self.lane} at step {began + (self.tick + 1) * lanes:,}{many}"


def advice(config: Any, entered: Entered | None) -> str:
    """What to do about numbers that are not finite, by where they come from. `config` is an `operant.config.load.Config`."""
    if entered is not None and entered.kind != "action":
        file = config.environment_file
        look = f"look at its rules and env.params: operant check {file.name}" if file is not None else "look at env.params"
        return f"The environment is the cause, not the learning rate: {look}"
    tries = ["a lower algo.learning_rate", *(["algo.max_gradient_norm"] if hasattr(config.algo, "max_gradient_norm") else [])]
    rewards = ", or algo.normalize_rewards=true" if getattr(config.algo, "normalize_rewards", True) is False else ""
    return f"Try {' or '.join(tries)}{rewards}"


class Seen(NamedTuple):
    """What is looked at, as the bits of float32: whole numbers have none, and are left out as arrays of no rows."""

    action: Any  # (T, A, N) int32
    reward: Any  # (T, N) int32
    observation: Any  # (T + 1, O, N) int32; [t + 1] is what step t showed


class Found(NamedTuple):
    """What is found. Nothing is looked at where `hint` is finite, or `first` names an iteration already."""

    hint: Any  # (1) int32: the bits of a sum of all that is looked at
    first: Any  # (1) int64, below 0: none yet
    code: Any  # (N) int32, written: 0 nothing, else (tick << 2 | kind) + 1
    bits: Any  # (N) int32, written: the value
    any: Any  # (1) int32, written: 1 where a lane has one


@device
def look_body(i, seen, found, offset):
    """The first value of lane i that is not finite, step after step, into `found`."""
    exponent = int32(EXPONENT)
    code, bits = int32(0), int32(0)
    if found.first[0] < 0 and (found.hint[0] & exponent) == exponent:
        for t in range(seen.reward.shape[0]):
            if code == 0:
                for a in range(seen.action.shape[1]):
                    if code == 0 and (seen.action[t, a, i] & exponent) == exponent:
                        code, bits = int32((t << 2) + 1), seen.action[t, a, i]
                if code == 0 and (seen.reward[t, i] & exponent) == exponent:
                    code, bits = int32((t << 2) + 2), seen.reward[t, i]
                for o in range(seen.observation.shape[1]):
                    if code == 0 and (seen.observation[t + 1, o, i] & exponent) == exponent:
                        code, bits = int32((t << 2) + 3), seen.observation[t + 1, o, i]
        if code != 0:
            found.code[i] = code
            found.bits[i] = bits
            found.any[0] = int32(1)


class Entry:
    """Looks at an iteration's rollout each time it is called, and keeps the first that it finds. `any` (1) int32 is then 1."""

    def __init__(self, rollout: Slot, first: Tensor) -> None:
        """`first` (1) int64 is at least 0 once a bad iteration is known: later ones are not looked at."""
        where, lanes = rollout.reward.device, rollout.reward.shape[-1]
        self._floats = [tensor for tensor in (rollout.action, rollout.reward, rollout.observation) if tensor.dtype == torch.float32]
        nothing = torch.zeros(len(rollout.reward), 0, lanes, dtype=torch.int32, device=where)
        bits = [tensor.view(torch.int32) if tensor.dtype == torch.float32 else nothing for tensor in (rollout.action, rollout.reward, rollout.observation)]
        self._hint = torch.full((1,), torch.nan, device=where)
        self._code, self._bits = (torch.zeros(lanes, dtype=torch.int32, device=where) for _ in range(2))
        self.any = torch.zeros(1, dtype=torch.int32, device=where)
        self._lanes, self._on_cpu, self._kernel = lanes, where.type == "cpu", kernel(look_body, where)
        self._seen, self._found = bind(Seen(*bits)), bind(Found(self._hint.view(torch.int32), first, self._code, self._bits, self.any))

    def __call__(self) -> None:
        """Look at the rollout."""
        if self._on_cpu:
            self._hint.copy_(sum(tensor.sum() for tensor in self._floats))  # where finite numbers overflow, the kernel looks in vain
        self._kernel(self._lanes, self._seen, self._found)

    def found(self) -> Entered | None:
        """What was found, by step and then by lane; None where nothing was."""
        code = self._code.cpu()  # sync: the run is over
        if not bool(code.any()):
            return None
        last = torch.iinfo(torch.int32).max
        lane = int(torch.where(code > 0, code, last).argmin())
        tick, kind = divmod(int(code[lane]) - 1, 1 << _BITS)
        return Entered(_KINDS[kind], float(self._bits.cpu().view(torch.float32)[lane]), lane, tick, int((code > 0).sum()))  # sync: the run is over
