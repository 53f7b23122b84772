"""Actors of continuous actions that tanh carries into their bounds. Knows no algorithm.

Everything is feature-major, (rows, B). A *raw* action lies in [-1, 1]; what the environment takes is centre + reach x that. Noise is uniform in [0, 1).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from operant.envs import Box, Env
from operant.errors import ConfigError
from operant.nn.flat import FlatVector
from operant.nn.squashed import SquashedGaussian, SquashedMean
from operant.nn.towers import Features, Towers, problem

if TYPE_CHECKING:
    from operant.nn import mlp

State = tuple[Tensor, ...]


class SquashedActor:
    """Maps raw observations (O, B) to actions within their bounds: an `Actor` without a state. Its numbers begin the same on every device."""

    def __init__(self, env: Env, config: mlp.Config, *, seed: int, device: torch.device, normalize: bool, std: float | None = None) -> None:
        """With `std` the actor is deterministic but for so much noise in acting; without, a squashed normal."""
        if (found := problem(env, config)) is not None:
            raise ConfigError("the network", [found])
        low, high = (torch.tensor(bound, device=device)[:, None] for bound in bounds_of(env))
        self.env, self.device = env, device
        self.centre, self.reach = (low / 2 + high / 2), (high / 2 - low / 2)  # (A, 1) each
        self.distribution = SquashedGaussian(env.action_size) if std is None else SquashedMean(env.action_size, std)
        self.features = Features(env, device, normalize=normalize)
        generator = torch.Generator().manual_seed(seed)
        self.net = Towers(self.features.columns, self.distribution.parameter_rows, config, generator, last_gain=0.01).to(device)
        self.flat = FlatVector((self.net,), device)

    @property
    def noise_rows(self) -> int:
        """Uniform numbers that an action drawn at random takes."""
        return self.distribution.noise_rows

    def initial_state(self, lanes: int) -> State:
        """What it remembers at an episode's start: nothing."""
        return ()

    def forward(self, features: Tensor) -> Tensor:
        """The distribution's parameters (2 A, B), or (A, B) of a deterministic actor, for features (K, B)."""
        parameters: Tensor = self.net(features)[0]
        return parameters

    def sample_with_log_probability(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Raw actions (A, B) for features (K, B), and their log-probability (B), with gradients: of an actor whose actions are random."""
        assert isinstance(self.distribution, SquashedGaussian)
        return self.distribution.sample_with_log_probability(self.forward(features), noise)

    def to_env(self, action: Tensor) -> Tensor:
        """A raw action as the environment takes it, scaled to its bounds."""
        return torch.addcmul(self.centre, self.reach, action)

    @torch.no_grad()
    def act(self, observation: Tensor, state: State, noise: Tensor | None = None, legal: Tensor | None = None) -> tuple[Tensor, State]:
        """Actions (A, N), drawn with `noise` (U, N) or the likeliest where that is None, and the state as it is."""
        parameters = self.forward(self.features(observation))
        raw = self.distribution.mode(parameters) if noise is None else self.distribution.sample(parameters, noise)
        return self.to_env(raw), state

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold, by name."""
        return {"parameters": self.flat.values.data, **self.features.tensors()}

    def not_finite(self) -> list[str]:
        """Names of the parameters that hold a NaN or an infinity. Reads back from the device."""
        return self.flat.not_finite()


def bounds_of(env: Env) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The bounds of an environment's continuous actions. Raises ConfigError for actions of another kind, or without bounds."""
    if not isinstance(env.action, Box):
        kind = f"{type(env.action).__name__} actions: it needs continuous ones, a Box"
        raise ConfigError("the environment", [f'{env.name or "it"} has {kind} (use algo.name = "dqn", "pqn" or "ppo" for discrete actions)'])
    low, high = env.action.bounds()
    if not all(map(math.isfinite, (*low, *high))):
        raise ConfigError("the environment", [f'{env.name or "it"} has actions without bounds, into which tanh cannot carry them (use algo.name = "ppo")'])
    return low, high
