"""Check for NaN and infinity in the inputs of training: each iteration's actions, rewards and observations.

On a GPU one kernel reads the rollout, one thread per sample. On a CPU a finite sum proves that every value is finite,
which is nearly always the case. Shapes: T steps, N lanes, A actions, O observation.
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
"""Exponent bits of a float32, all set only in NaN and infinity."""
MANTISSA = 0x007FFFFF
_KINDS = ("action", "reward", "observation")


class FirstNonFinite(NamedTuple):
    """Location of the first NaN or infinite value in an iteration's rollout: kind of value, lane and step, and the
    number of lanes with one.
    """

    kind: str  # "action" comes from the policy, "reward" and "observation" from the environment
    value: float
    lane: int
    tick: int  # step of the iteration, from 0
    lanes: int  # number of lanes with a non-finite value in this iteration

    def sentence(self, began: int, lanes: int) -> str:
        """Describe the non-finite value, its lane and its environment step in a sentence. `began` is the number of
        environment steps before the iteration, `lanes` the number of lanes of all ranks.
        """
        what = "the policy's action was" if self.kind == "action" else f"the environment's {self.kind} was"
        others = f" (and in {self.lanes - 1:,} other lanes of {lanes:,} in this iteration)" if self.lanes > 1 else ""
        return f"{what} {self.value} in lane {self.lane} at step {began + (self.tick + 1) * lanes:,}{others}"


def advice(config: Any, first: FirstNonFinite | None) -> str:
    """Advise the user on the origin of a non-finite value: `first` is the first in the rollout, None if only the update
    has one. `config` is an `operant.config.load.Config`.
    """
    if first is not None and first.kind != "action":
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


class Checked(NamedTuple):
    """Buffers of the rollout to be checked for NaN and infinity, as float32 bit patterns. Integer buffers, which are
    always finite, are passed with 0 rows.
    """

    action: Any  # (T, A, N) int32
    reward: Any  # (T, N) int32
    observation: Any  # (T + 1, O, N) int32; [t + 1] is the observation after step t


class Result(NamedTuple):
    """Output buffers of the check for non-finite values: a flag, and codes that locate them. The check is skipped once
    `first` names an iteration.
    """

    first: Any  # (1) int64, below 0: none yet
    # (T, N) int8, written: 4 kind + 0 for NaN, 1 for +inf, 2 for -inf; kinds are 1 (action), 2, 3
    code: Any
    any: Any  # (1) int32, written: 1 if any value is not finite


@device
def nonfinite_body(i, checked, result, offset):
    """Kernel body: record the first non-finite value of sample i = t N + n (step t, lane n). Reads all values, last
    first, so that loads do not wait for each other.
    """
    exponent, lanes = int32(EXPONENT), uint32(checked.reward.shape[1])
    if result.first[0] < 0:
        t, n = i // lanes, i % lanes
        kind, value = int32(0), int32(0)
        for o in range(checked.observation.shape[1]):
            bits = checked.observation[t + uint32(1), o, n]
            if (bits & exponent) == exponent:
                kind, value = int32(3), bits
        bits = checked.reward[t, n]
        if (bits & exponent) == exponent:
            kind, value = int32(2), bits
        for a in range(checked.action.shape[1]):
            bits = checked.action[t, a, n]
            if (bits & exponent) == exponent:
                kind, value = int32(1), bits
        if kind != 0:
            infinite = int32(0) if (value & int32(MANTISSA)) != 0 else int32(1) if value > 0 else int32(2)
            result.code[t, n] = int32(4) * kind + infinite
            result.any[0] = int32(1)


class NonFiniteCheck:
    """Check of a rollout for NaN and infinity, on its device. After a non-finite value `any` (1) int32 is 1, and
    `located` returns its place.
    """

    def __init__(self, rollout: Slot, first: Tensor) -> None:
        """`first` (1) int64 is the index of the first bad iteration, below 0 while there is none; later iterations are
        not checked.
        """
        device, (steps, lanes) = rollout.reward.device, rollout.reward.shape
        checked = (rollout.action, rollout.reward, rollout.observation)
        self._floats = [tensor for tensor in checked if tensor.dtype == torch.float32]
        nothing = torch.zeros(steps, 0, lanes, dtype=torch.int32, device=device)
        bits = [tensor.view(torch.int32) if tensor.dtype == torch.float32 else nothing for tensor in checked]
        self._code = torch.zeros(steps, lanes, dtype=torch.int8, device=device)
        self.any = torch.zeros(1, dtype=torch.int32, device=device)
        self._on_cpu, self._kernel = device.type == "cpu", kernel(nonfinite_body, device)
        self._seen, self._found = bind(Checked(*bits)), bind(Result(first, self._code, self.any))

    def __call__(self) -> None:
        """Check the rollout, without waiting for the device."""
        # If a sum of finite values overflows, the kernel runs and finds nothing.
        if not self._on_cpu or not math.isfinite(
            sum(float(tensor.sum()) for tensor in self._floats)
        ):  # sync: on a CPU only
            self._kernel(self._code.numel(), self._seen, self._found)

    def located(self) -> FirstNonFinite | None:
        """Locate the first non-finite value of the checked rollout, by step and then lane; None if there is none. Waits
        for the device.
        """
        code = self._code.cpu()  # sync: the run is over
        positions = code.nonzero()
        if not len(positions):
            return None
        tick, lane = map(int, positions[0])
        kind, infinite = divmod(int(code[tick, lane]), 4)
        return FirstNonFinite(
            _KINDS[kind - 1], (math.nan, math.inf, -math.inf)[infinite], lane, tick, len(positions[:, 1].unique())
        )
