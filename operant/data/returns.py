"""Advantages and returns of a rollout: one thread per lane, backward in time.

Generalised advantage estimation (Schulman, Moritz, Levine, Jordan & Abbeel 2016, equations 11, 12 and 16) with time
limits distinguished from termination (Pardo, Tavakoli, Levdik & Kormushev 2018): a truncated episode is bootstrapped
with the value of its true final observation, a terminated one is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from numpy import float32

from operant.compute.device import device
from operant.compute.kernel import bind, kernel
from operant.worlds import Slot

if TYPE_CHECKING:
    from operant.data.on_policy import Experience


class Trace(NamedTuple):
    """Buffers of the advantage kernel: it reads rewards, values and ends of episodes, and writes advantages and
    returns.
    """

    reward: Any  # (T, N) float32
    value: Any  # (T + 1, N) float32, V of the observation before each step, and of the last one
    final_value: Any  # (T, N) float32, V of the true final observation; read only where an episode was truncated
    terminated: Any  # (T, N) uint8
    truncated: Any  # (T, N) uint8
    advantage: Any  # (T, N) float32, written
    returns: Any  # (T, N) float32, written: advantage + value, the critic's target


class Discount(NamedTuple):
    """Constants of the estimates: gamma, and gamma lambda."""

    gamma: float  # discount
    decay: float  # gamma * lambda


@device
def _step_of(trace, t, i):
    """Load reward, values and flags of step max(t, 0) of lane i. Callers load four steps ahead, so that a GPU's thread
    does not wait for each load.
    """
    t = max(t, 0)
    return (
        trace.reward[t, i],
        trace.value[t, i],
        trace.final_value[t, i],
        trace.terminated[t, i] != 0,
        trace.truncated[t, i] != 0,
    )


@device
def advantage_body(i, discount, trace, offset):
    """Write advantages and returns of lane i, backward in time: delta_t = r_t + gamma V(s_{t+1}) - V(s_t), A_t =
    delta_t + gamma lambda A_{t+1}, R_t = A_t + V(s_t), cut where an episode ends.
    """
    last = trace.reward.shape[0] - 1
    following, next_value = float32(0.0), trace.value[last + 1, i]
    gamma, decay = float32(discount.gamma), float32(discount.decay)
    first, second, third, fourth = (
        _step_of(trace, last, i),
        _step_of(trace, last - 1, i),
        _step_of(trace, last - 2, i),
        _step_of(trace, last - 3, i),
    )
    for back in range(last + 1):
        reward, value, final_value, terminated, truncated = first
        first, second, third, fourth = second, third, fourth, _step_of(trace, last - 4 - back, i)
        # V(s_{t+1}): 0 after a true end, that of the true final observation after a time limit; A_{t+1} is 0 after
        # either.
        if terminated:
            next_value = float32(0.0)
        elif truncated:
            next_value = final_value
        if terminated or truncated:
            following = float32(0.0)
        following = reward + gamma * next_value - value + decay * following
        trace.advantage[last - back, i] = following
        trace.returns[last - back, i] = following + value
        next_value = value


class Advantages:
    """Generalized advantage estimation over a rollout, backward in time: delta_t = r_t + gamma V(s_{t+1}) - V(s_t),
    A_t = delta_t + gamma lambda A_{t+1}, R_t = A_t + V(s_t).

    V(s_{t+1}) is 0 after termination, and V of the true final observation after truncation; A_{t+1} is 0 after either.
    """

    def __init__(self, rollout: Slot, experience: Experience, gamma: float, decay: float) -> None:
        """Bind the kernel to the ends of episodes in `rollout`, and to `experience`: it reads reward, value and
        final_value, and writes advantage and returns. `decay` is gamma lambda.
        """
        self._lanes, self._kernel = rollout.reward.shape[1], kernel(advantage_body, rollout.reward.device)
        # The kernel computes in float64 unless its numbers are float32.
        self.discount = Discount(float32(gamma), float32(decay))  # type: ignore[arg-type]
        self._bound = bind(
            Trace(
                experience.reward,
                experience.value,
                experience.final_value,
                rollout.terminated,
                rollout.truncated,
                experience.advantage,
                experience.returns,
            )
        )

    def __call__(self) -> None:
        """Write advantages and returns of the current rollout, (T, N) each, to the experience."""
        self._kernel(self._lanes, self.discount, self._bound)


class Accrual(NamedTuple):
    """Buffers of the accrual kernel: it reads rewards and ends of episodes, and writes discounted returns accrued
    forward in time.
    """

    reward: Any  # (T, N) float32
    terminated: Any  # (T, N) uint8
    truncated: Any  # (T, N) uint8
    carried: Any  # (N) float32, read and written: the return accrued when the rollout began
    accrued: Any  # (T, N) float32, written


@device
def _reward_of(accrual, t, i):
    """Load lane i's reward of step min(t, T - 1), and whether an episode ended with that step."""
    t = min(t, accrual.reward.shape[0] - 1)
    return accrual.reward[t, i], (accrual.terminated[t, i] | accrual.truncated[t, i]) != 0


@device
def accrual_body(i, discount, accrual, offset):
    """Accrue the discounted return of lane i forward in time: g <- gamma g + r_t, 0 after the end of an episode (as
    VecNormalize of OpenAI Baselines).
    """
    accrued = accrual.carried[i]
    first, second, third, fourth = (
        _reward_of(accrual, 0, i),
        _reward_of(accrual, 1, i),
        _reward_of(accrual, 2, i),
        _reward_of(accrual, 3, i),
    )
    for t in range(accrual.reward.shape[0]):
        reward, ended = first
        first, second, third, fourth = second, third, fourth, _reward_of(accrual, t + 4, i)
        accrued = float32(discount.gamma) * accrued + reward
        accrual.accrued[t, i] = accrued
        if ended:
            accrued = float32(0.0)
    accrual.carried[i] = accrued


class AccruedReturns:
    """Discounted returns (T, N) accrued forward in time, across rollouts: g <- gamma g + r_t, 0 after an episode's end.
    Their standard deviation scales rewards.
    """

    def __init__(self, reward: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor, gamma: float) -> None:
        self.carried, self._accrued = torch.zeros_like(reward[0]), torch.zeros_like(reward)
        self._kernel, self.discount = kernel(accrual_body, reward.device), Discount(float32(gamma), float32(0.0))  # type: ignore[arg-type]
        self._bound = bind(Accrual(reward, terminated, truncated, self.carried, self._accrued))

    def __call__(self) -> torch.Tensor:
        """Return the returns of the current rollout, (T, N); the next call overwrites them. Call exactly once per
        rollout.
        """
        self._kernel(self._accrued.shape[1], self.discount, self._bound)
        return self._accrued
