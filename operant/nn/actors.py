"""Actors without a critic, for off-policy algorithms: categorical, or continuous with actions squashed by tanh.

Tensors are feature-major, (rows, B). A *raw* continuous action lies in [-1, 1]; the environment's action is
action_center + action_scale * raw. Noise is uniform in [0, 1).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from operant.envs import Box, Discrete, Env
from operant.errors import ConfigError
from operant.nn.distributions import Categorical, SquashedDeterministic, SquashedGaussian, masked
from operant.nn.distributions import normal as normal  # re-exported
from operant.nn.ensemble import Features, network
from operant.nn.flat_vector import FlatVector

if TYPE_CHECKING:
    from operant.nn import mlp

State = tuple[Tensor, ...]


class EnsembleActor:
    """Base of the actors: a feed-forward network with `outputs` rows on one device, initialised from `seed` alone;
    `normalize`: observations are normalized by running statistics.
    """

    def __init__(
        self,
        env: Env,
        config: mlp.Config,
        outputs: int,
        *,
        seed: int,
        device: torch.device,
        normalize: bool,
        precision: str = "fp32",
    ) -> None:
        """`normalize`: observations are normalized by running statistics. `precision` is that of a torch network on a
        GPU, see `operant.nn.ensemble.network`.
        """
        self.env, self.device = env, device
        self.features = Features(env, config, device, normalize=normalize)
        self.net = network(
            env, config, 0, outputs, torch.Generator().manual_seed(seed), device, last_gain=0.01, precision=precision
        )
        self.flat = FlatVector((self.net,), device)

    def initial_state(self, lanes: int) -> State:
        """Recurrent state at an episode's start: (), as the network is feed-forward."""
        return ()

    def forward(self, features: Tensor) -> Tensor:
        """Distribution parameters (H, B) for features (K, B)."""
        parameters: Tensor = self.net(features)[0]
        return parameters

    def tensors(self) -> dict[str, Tensor]:
        """Tensors of a checkpoint by name."""
        return {"parameters": self.flat.values.data, **self.features.tensors()}

    def not_finite(self) -> list[str]:
        """Names of the parameters with a NaN or infinite value. Synchronizes with the device."""
        return self.flat.not_finite()


class CategoricalActor(EnsembleActor):
    """`Actor` for one choice among n actions: maps raw observations (O, B) to actions (1, B)."""

    def __init__(
        self, env: Env, config: mlp.Config, *, seed: int, device: torch.device, normalize: bool, precision: str = "fp32"
    ) -> None:
        assert isinstance(env.action, Discrete)
        super().__init__(env, config, env.action.n, seed=seed, device=device, normalize=normalize, precision=precision)
        self.distribution = Categorical((env.action.n,)).to(device)

    @property
    def noise_rows(self) -> int:
        """Number of rows of uniform noise that a sampled action takes: 1."""
        return self.distribution.noise_rows

    def logits(self, features: Tensor, legal: Tensor | None) -> Tensor:
        """Logits (A, B) for features (K, B), -1e9 where `legal` (A, B) is 0."""
        return self.forward(features) if legal is None else masked(self.forward(features), legal)

    @torch.no_grad()
    def act(
        self, observation: Tensor, state: State, noise: Tensor | None = None, legal: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Actions (1, N) among `legal` (A, N; None: all) for raw observations (O, N), and the unchanged state: sampled
        with `noise` (1, N), or the most likely without.
        """
        logits = self.logits(self.features(observation), legal)
        return (self.distribution.mode(logits) if noise is None else self.distribution.sample(logits, noise)), state


class SquashedActor(EnsembleActor):
    """`Actor` for bounded continuous actions: maps raw observations (O, B) to actions (A, B)."""

    def __init__(
        self,
        env: Env,
        config: mlp.Config,
        *,
        seed: int,
        device: torch.device,
        normalize: bool,
        precision: str = "fp32",
        std: float | None = None,
    ) -> None:
        """With `std` the policy is deterministic, plus Gaussian noise of that standard deviation when sampled; without,
        a squashed Gaussian. `normalize`: observations are normalized by running statistics.
        """
        low, high = (torch.tensor(bound, device=device)[:, None] for bound in bounds_of(env))
        self.distribution = (
            SquashedGaussian(env.action_size) if std is None else SquashedDeterministic(env.action_size, std)
        )
        super().__init__(
            env,
            config,
            self.distribution.parameter_rows,
            seed=seed,
            device=device,
            normalize=normalize,
            precision=precision,
        )
        self.action_center, self.action_scale = (low / 2 + high / 2), (high / 2 - low / 2)  # (A, 1) each

    @property
    def noise_rows(self) -> int:
        """Number of rows of uniform noise that a sampled action takes, U = 2 A."""
        return self.distribution.noise_rows

    def sample_with_log_probability(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample raw actions (A, B) for features (K, B) with `noise` (2 A, B); returns them and log pi (B), both
        differentiable. For a squashed Gaussian only.
        """
        assert isinstance(self.distribution, SquashedGaussian)
        return self.distribution.sample_with_log_probability(self.forward(features), noise)

    def to_env(self, action: Tensor) -> Tensor:
        """Scale a raw action (A, B) to the environment's bounds."""
        return torch.addcmul(self.action_center, self.action_scale, action)

    @torch.no_grad()
    def act(
        self, observation: Tensor, state: State, noise: Tensor | None = None, legal: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Actions (A, N) in the environment's bounds for raw observations (O, N), and the unchanged state: sampled with
        `noise` (U, N), or the mode without. Ignores `legal`.
        """
        parameters = self.forward(self.features(observation))
        raw = self.distribution.mode(parameters) if noise is None else self.distribution.sample(parameters, noise)
        return self.to_env(raw), state


def bounds_of(env: Env) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Lower and upper bounds of an environment's continuous actions. Raises ConfigError for other or
    unbounded actions.
    """
    if not isinstance(env.action, Box):
        instead = '"sac", "dqn", "pqn" or "ppo"' if isinstance(env.action, Discrete) else '"ppo"'
        kind = f"{type(env.action).__name__} actions: this algorithm needs continuous ones, a Box"
        raise ConfigError("the environment", [f"{env.name or 'it'} has {kind} (use algo.name = {instead})"])
    low, high = env.action.bounds()
    if not all(map(math.isfinite, (*low, *high))):
        raise ConfigError(
            "the environment",
            [f'{env.name or "it"} has actions without bounds, which a tanh policy needs (use algo.name = "ppo")'],
        )
    return low, high


def critic_outputs(env: Env, outputs: int) -> int:
    """Number of rows of a critic's output: `outputs` if the critic reads the action, n if it rates each of n
    actions.
    """
    if not isinstance(env.action, Discrete):
        return outputs
    if outputs > 1:
        raise ConfigError(
            "the environment",
            [f'{env.name or "it"} has Discrete actions, for which SAC has algo.critic = "scalar" only ("dqn" has c51)'],
        )
    return env.action.n
