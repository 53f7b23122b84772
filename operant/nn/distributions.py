"""Action distributions: from a network's outputs to actions, log-probabilities and entropies. Knows nothing of networks
or algorithms.

Everything is feature-major, (rows, B). Randomness comes in as noise, uniform in [0, 1), so that every device and every
path draws the same actions. The raw action is what the algorithm stores and scores; `to_env` turns it into what the
environment takes: scaled to its bounds, and clipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from operant.envs import Box, Discrete, Env

ILLEGAL = -1e9
"""The logit of an action that may not be taken: its probability is then exactly 0 in float32, as are its p log p and
every gradient.
"""


def masked(logits: Tensor, legal: Tensor) -> Tensor:
    """The logits (H, B) with ILLEGAL wherever `legal` (H, B) is 0. Those entries hand no gradient on."""
    return torch.where(legal != 0, logits, ILLEGAL)


class Categorical(nn.Module):
    """One or several independent choices (`Discrete`, `MultiDiscrete`); parameters are the logits, one block of rows a
    choice.

    To rule a choice out give it a logit of ILLEGAL (see `masked`), not -inf, for which the entropy is 0 * -inf: not a
    number.
    """

    row_values: Tensor

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.parameter_rows = sum(sizes)
        self.action_rows = len(sizes)
        self.noise_rows = len(sizes)
        # Which value each row of logits stands for: compared with an action it marks the row that was taken.
        self.register_buffer(
            "row_values",
            torch.cat([torch.arange(size, dtype=torch.int32) for size in sizes])[:, None],
            persistent=False,
        )

    def _log_probabilities(self, logits: Tensor) -> list[Tensor]:
        return [block.log_softmax(dim=0) for block in logits.split(self.sizes)]

    def sample(self, logits: Tensor, noise: Tensor) -> Tensor:
        """The actions, (A, B) int32, by the inverse distribution function of `noise` (A, B)."""
        actions = []
        for k, log_probability in enumerate(self._log_probabilities(logits)):
            cumulative = log_probability.exp().cumsum(dim=0)
            # The sum may round to just below 1: scaled to it, no number lands beyond it, on a value whose probability
            # is 0.
            actions.append((noise[k] * cumulative[-1] >= cumulative[:-1]).sum(dim=0, dtype=torch.int32))
        return torch.stack(actions)

    def mode(self, logits: Tensor) -> Tensor:
        """The likeliest actions, (A, B) int32."""
        return torch.stack([block.argmax(dim=0).int() for block in logits.split(self.sizes)])

    def log_probability_and_entropy(self, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log pi(a|s) and H = -sum p log p, each (B), of actions (A, B) int32."""
        log_probability = torch.cat(self._log_probabilities(logits))
        taken = (
            torch.cat([row.expand(size, -1) for row, size in zip(action.split(1), self.sizes, strict=True)])
            == self.row_values
        )
        entropy = -(log_probability.exp() * log_probability).sum(dim=0)
        return (log_probability * taken).sum(dim=0), entropy

    def to_env(self, action: Tensor) -> Tensor:
        """As the environment takes it: unchanged."""
        return action


class Gaussian(nn.Module):
    """A diagonal normal whose standard deviation does not depend on the state; parameters are the means, (A, B).

    With `squash`, tanh carries it into the bounds.
    """

    centre: Tensor
    reach: Tensor
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
        # A bounded action is centre + reach * x for x in [-1, 1]; an unbounded one is x.
        self.register_buffer("centre", torch.where(bounded, low / 2 + high / 2, 0.0), persistent=False)
        self.register_buffer("reach", torch.where(bounded, high / 2 - low / 2, 1.0), persistent=False)
        self.register_buffer("limit", torch.where(bounded, 1.0, math.inf), persistent=False)

    def sample(self, mean: Tensor, noise: Tensor) -> Tensor:
        """Mean + std * e with e ~ N(0, 1) by Box & Muller 1958, from `noise` (2 A, B): sqrt(-2 ln(1 - u))
        cos(2 pi v).
        """
        radius_uniform, angle_uniform = noise.split(self.action_rows)
        normal = torch.sqrt(-2.0 * torch.log1p(-radius_uniform)) * torch.cos((2.0 * math.pi) * angle_uniform)
        return torch.addcmul(mean, self.log_std.exp(), normal)

    def mode(self, mean: Tensor) -> Tensor:
        """The likeliest raw action, (A, B)."""
        return mean

    def log_probability_and_entropy(self, mean: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log pi(a|s) and H, each (B), of raw actions (A, B). The entropy is that of the normal, also where tanh
        follows.

        With `squash` the density is that of tanh x: the scaling to the bounds, a constant that cancels in every ratio,
        is left out.
        """
        standard = (action - mean) * torch.exp(-self.log_std)
        log_probability = (-0.5 * standard.square() - self.log_std - 0.5 * math.log(2.0 * math.pi)).sum(dim=0)
        if self.squash:
            # log |d tanh(x)/dx| = log(1 - tanh^2 x) = 2 (log 2 - x - softplus(-2x)), which does not round to log 0.
            log_probability = log_probability - (
                2.0 * (math.log(2.0) - action - nn.functional.softplus(-2.0 * action))
            ).sum(dim=0)
        entropy = (self.log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum(dim=0)
        return log_probability, entropy.expand_as(log_probability)

    def to_env(self, action: Tensor) -> Tensor:
        """As the environment takes it: squashed or clipped to [-1, 1] where it is bounded, and scaled to the bounds."""
        inside = action.tanh() if self.squash else torch.maximum(torch.minimum(action, self.limit), -self.limit)
        return torch.addcmul(self.centre, self.reach, inside)


Distribution = Categorical | Gaussian


def distribution_for(env: Env, *, squash: bool, initial_log_std: float) -> Distribution:
    """The distribution that an environment's actions ask for."""
    if isinstance(env.action, Box):
        return Gaussian(env.action.bounds(), squash=squash, initial_log_std=initial_log_std)
    return Categorical((env.action.n,) if isinstance(env.action, Discrete) else env.action.n)
