"""Action distributions: parameters computed by a network to actions, log-probabilities and entropies.

Tensors are feature-major, (rows, B). Randomness is an argument: noise, uniform in [0, 1), so that all devices and all
implementations draw the same actions. The raw action is the one that an algorithm stores and scores. `to_env` maps it
to the environment's bounds.

Shape letters: A actions, H parameters (rows), B samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from operant.envs import Box, Discrete, Env

ILLEGAL = -1e9
"""Logit of an illegal action. Its probability, its p log p and every gradient are exactly 0 in float32."""

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
"""Range of log std of a squashed Gaussian."""

_HALF_RANGE = 0.5 * (LOG_STD_MAX - LOG_STD_MIN)
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


def masked(logits: Tensor, legal: Tensor) -> Tensor:
    """Return logits (H, B) with -1e9 where `legal` (H, B) is 0. No gradient flows through those entries."""
    return torch.where(legal != 0, logits, ILLEGAL)


def normal(noise: Tensor) -> Tensor:
    """Return standard normal samples (A, B) from uniform noise (2 A, B), by Box & Muller 1958: sqrt(-2 ln(1 - u)) cos(2
    pi v).

    The first A rows are u, the others v.
    """
    u, v = noise.chunk(2)
    return torch.sqrt(-2.0 * torch.log1p(-u)) * torch.cos((2.0 * math.pi) * v)


class Categorical(nn.Module):
    """Independent categorical distributions, one for a `Discrete` action, several for `MultiDiscrete`. The parameters
    are logits (H, B), a block of rows for each choice; `sizes` are the numbers of actions per choice.

    Mask illegal actions by ILLEGAL (see `masked`), not by -inf: the entropy would be 0 * -inf, which is NaN.
    """

    row_values: Tensor

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.parameter_rows = sum(sizes)
        self.action_rows = len(sizes)
        self.noise_rows = len(sizes)
        # Action index of each row of the logits, (H, 1).
        self.register_buffer(
            "row_values",
            torch.cat([torch.arange(size, dtype=torch.int32) for size in sizes])[:, None],
            persistent=False,
        )

    def _log_probabilities(self, logits: Tensor) -> list[Tensor]:
        return [block.log_softmax(dim=0) for block in logits.split(self.sizes)]

    def sample(self, logits: Tensor, noise: Tensor) -> Tensor:
        """Sample actions (A, B) int32 by the inverse CDF of `noise` (A, B)."""
        actions = []
        for k, log_probability in enumerate(self._log_probabilities(logits)):
            cdf = log_probability.exp().cumsum(dim=0)
            # The last entry may round to less than 1: scaling by it keeps samples off actions of probability 0.
            actions.append((noise[k] * cdf[-1] >= cdf[:-1]).sum(dim=0, dtype=torch.int32))
        return torch.stack(actions)

    def mode(self, logits: Tensor) -> Tensor:
        """Return the most likely actions, (A, B) int32."""
        return torch.stack([block.argmax(dim=0).int() for block in logits.split(self.sizes)])

    def log_probability_and_entropy(self, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log pi(a|s) and the entropy -sum p log p, (B) each, of actions (A, B) int32."""
        log_probability = torch.cat(self._log_probabilities(logits))
        one_hot = (
            torch.cat([row.expand(size, -1) for row, size in zip(action.split(1), self.sizes, strict=True)])
            == self.row_values
        )
        entropy = -(log_probability.exp() * log_probability).sum(dim=0)
        return (log_probability * one_hot).sum(dim=0), entropy

    def to_env(self, action: Tensor) -> Tensor:
        """Return the action unchanged: raw actions are the environment's."""
        return action


class Gaussian(nn.Module):
    """Diagonal Gaussian with a learned standard deviation that does not depend on the state. The parameters are the
    means, (A, B). The environment's actions are samples clipped to its bounds, or with `squash` tanh of samples, scaled
    to them.
    """

    action_center: Tensor
    action_scale: Tensor
    limit: Tensor

    def __init__(
        self, bounds: tuple[Sequence[float], Sequence[float]], *, squash: bool = False, initial_log_std: float = 0.0
    ) -> None:
        super().__init__()
        low, high = (torch.tensor(bound, dtype=torch.float32)[:, None] for bound in bounds)
        bounded = torch.isfinite(low) & torch.isfinite(high)
        rows = low.shape[0]
        self.squash = squash
        self.parameter_rows = self.action_rows = rows
        self.noise_rows = 2 * rows
        self.log_std = nn.Parameter(torch.full((rows, 1), initial_log_std))
        # action = center + scale x, x in [-1, 1] where bounded; action = x elsewhere. (A, 1) each.
        self.register_buffer("action_center", torch.where(bounded, low / 2 + high / 2, 0.0), persistent=False)
        self.register_buffer("action_scale", torch.where(bounded, high / 2 - low / 2, 1.0), persistent=False)
        self.register_buffer("limit", torch.where(bounded, 1.0, math.inf), persistent=False)

    def sample(self, mean: Tensor, noise: Tensor) -> Tensor:
        """Sample raw actions mean + std e, e ~ N(0, 1), (A, B), from `noise` (2 A, B)."""
        return torch.addcmul(mean, self.log_std.exp(), normal(noise))

    def mode(self, mean: Tensor) -> Tensor:
        """Return the most likely action before clipping or squashing: the mean, (A, B)."""
        return mean

    def log_probability_and_entropy(self, mean: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log pi(a|s) and the entropy, (B) each, of actions (A, B) as sampled, before clipping or squashing.

        With `squash` the density is that of tanh x, without the scaling to the bounds, a constant that cancels in every
        ratio. The entropy is that of the Gaussian before tanh.
        """
        standard = (action - mean) * torch.exp(-self.log_std)
        log_probability = (-0.5 * standard.square() - self.log_std - _HALF_LOG_2_PI).sum(dim=0)
        if self.squash:
            log_probability = log_probability - _log_tanh_derivative(action).sum(dim=0)
        entropy = (self.log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum(dim=0)
        return log_probability, entropy.expand_as(log_probability)

    def to_env(self, action: Tensor) -> Tensor:
        """Map sampled actions (A, B) to the environment's bounds: tanh or clip to [-1, 1] where bounded, then scale."""
        inside = action.tanh() if self.squash else torch.maximum(torch.minimum(action, self.limit), -self.limit)
        return torch.addcmul(self.action_center, self.action_scale, inside)


class SquashedGaussian:
    """Tanh of a diagonal Gaussian whose standard deviation depends on the state (Haarnoja et al. 2018, appendix C). The
    parameters (2 A, B) are means, then pre-activations of log std; `rows` is A.
    """

    def __init__(self, rows: int) -> None:
        self.action_rows, self.parameter_rows, self.noise_rows = rows, 2 * rows, 2 * rows

    def mode(self, parameters: Tensor) -> Tensor:
        """Return tanh of the mean, (A, B), the action without noise."""
        return parameters[: self.action_rows].tanh()

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Sample actions tanh(mean + std e) (A, B) in [-1, 1], e ~ N(0, 1), from uniform noise (2 A, B)."""
        mean, pre_log_std = parameters.split(self.action_rows)
        return torch.addcmul(mean, self._log_std(pre_log_std).exp(), normal(noise)).tanh()

    def sample_with_log_probability(self, parameters: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions (A, B) in [-1, 1] from uniform noise (2 A, B). Returns them and log pi(a|s) (B), both
        differentiable.

        u = mean + std e, a = tanh(u), log pi = sum of -e^2 / 2 - log std - log(2 pi) / 2 - log(1 - tanh^2 u).
        """
        mean, pre_log_std = parameters.split(self.action_rows)
        e, log_std = normal(noise), self._log_std(pre_log_std)
        u = torch.addcmul(mean, log_std.exp(), e)
        log_probability = (-0.5 * e.square() - log_std - _HALF_LOG_2_PI - _log_tanh_derivative(u)).sum(dim=0)
        return u.tanh(), log_probability

    @staticmethod
    def _log_std(pre_log_std: Tensor) -> Tensor:
        """Return log std in [LOG_STD_MIN, LOG_STD_MAX], by tanh of its pre-activations."""
        return LOG_STD_MIN + _HALF_RANGE * (pre_log_std.tanh() + 1.0)


class SquashedDeterministic:
    """Deterministic policy tanh(mean); sampling adds Gaussian noise of standard deviation `std` and clips to [-1, 1].
    The parameters are the means, (A, B); `rows` is A.
    """

    def __init__(self, rows: int, std: float) -> None:
        self.action_rows, self.parameter_rows, self.noise_rows, self.std = rows, rows, 2 * rows, std

    def mode(self, parameters: Tensor) -> Tensor:
        """Return tanh of the mean, (A, B), the action without noise."""
        return parameters.tanh()

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Sample actions clip(tanh(mean) + std e, -1, 1) (A, B), e ~ N(0, 1), from uniform noise (2 A, B)."""
        return (parameters.tanh() + self.std * normal(noise)).clamp(-1.0, 1.0)


def _log_tanh_derivative(x: Tensor) -> Tensor:
    """Return log |d tanh(x) / dx| = log(1 - tanh^2 x) = 2 (log 2 - x - softplus(-2 x)), which never rounds to log 0."""
    return 2.0 * (math.log(2.0) - x - nn.functional.softplus(-2.0 * x))


Distribution = Categorical | Gaussian


def distribution_for(env: Env, *, squash: bool, initial_log_std: float) -> Distribution:
    """Create the action distribution of an environment: Gaussian for a Box, else Categorical. `squash` and
    `initial_log_std` are those of `Gaussian`.
    """
    if isinstance(env.action, Box):
        return Gaussian(env.action.bounds(), squash=squash, initial_log_std=initial_log_std)
    return Categorical((env.action.n,) if isinstance(env.action, Discrete) else env.action.n)
