"""Actors of towers, without a critic: one choice among n actions, or continuous actions that tanh carries into their
bounds. Know no algorithm.

Everything is feature-major, (rows, B). A *raw* continuous action lies in [-1, 1]; what the environment takes is centre
+ reach x that. Noise is uniform in [0, 1).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from operant.envs import Box, Discrete, Env
from operant.errors import ConfigError
from operant.nn.distributions import Categorical, masked
from operant.nn.flat import FlatVector
from operant.nn.squashed import SquashedGaussian, SquashedMean
from operant.nn.squashed import normal as normal  # of this module, too
from operant.nn.towers import Features, network

if TYPE_CHECKING:
    from operant.nn import mlp

State = tuple[Tensor, ...]


class TowerActor:
    """What the actors here share: a network of `outputs` rows on one device, without a state. Its numbers begin the
    same on every device, from `seed`.
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
        """`precision` is that of a torch network on a GPU: see `operant.nn.towers.network`."""
        self.env, self.device = env, device
        self.features = Features(env, config, device, normalize=normalize)
        self.net = network(
            env, config, 0, outputs, torch.Generator().manual_seed(seed), device, last_gain=0.01, precision=precision
        )
        self.flat = FlatVector((self.net,), device)

    def initial_state(self, lanes: int) -> State:
        """What it remembers at an episode's start: nothing."""
        return ()

    def forward(self, features: Tensor) -> Tensor:
        """The distribution's parameters (H, B) for features (K, B)."""
        parameters: Tensor = self.net(features)[0]
        return parameters

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold, by name."""
        return {"parameters": self.flat.values.data, **self.features.tensors()}

    def not_finite(self) -> list[str]:
        """Names of the parameters that hold a NaN or an infinity. Reads back from the device."""
        return self.flat.not_finite()


class CategoricalActor(TowerActor):
    """Maps raw observations (O, B) to one of n actions (1, B): an `Actor`."""

    def __init__(
        self, env: Env, config: mlp.Config, *, seed: int, device: torch.device, normalize: bool, precision: str = "fp32"
    ) -> None:
        assert isinstance(env.action, Discrete)
        super().__init__(env, config, env.action.n, seed=seed, device=device, normalize=normalize, precision=precision)
        self.distribution = Categorical((env.action.n,)).to(device)

    @property
    def noise_rows(self) -> int:
        """Uniform numbers that an action drawn at random takes."""
        return self.distribution.noise_rows

    def logits(self, features: Tensor, legal: Tensor | None) -> Tensor:
        """(A, B) for features (K, B); -1e9 for actions that `legal` (A, B) calls 0."""
        return self.forward(features) if legal is None else masked(self.forward(features), legal)

    @torch.no_grad()
    def act(
        self, observation: Tensor, state: State, noise: Tensor | None = None, legal: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Actions (1, N), drawn with `noise` (1, N) or the likeliest where that is None, and the state as it is; only
        what `legal` (A, N) allows.
        """
        logits = self.logits(self.features(observation), legal)
        return (self.distribution.mode(logits) if noise is None else self.distribution.sample(logits, noise)), state


class SquashedActor(TowerActor):
    """Maps raw observations (O, B) to continuous actions (A, B) within their bounds: an `Actor`."""

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
        """With `std` the actor is deterministic but for so much noise in acting; without, a squashed normal."""
        low, high = (torch.tensor(bound, device=device)[:, None] for bound in bounds_of(env))
        self.distribution = SquashedGaussian(env.action_size) if std is None else SquashedMean(env.action_size, std)
        super().__init__(
            env,
            config,
            self.distribution.parameter_rows,
            seed=seed,
            device=device,
            normalize=normalize,
            precision=precision,
        )
        self.centre, self.reach = (low / 2 + high / 2), (high / 2 - low / 2)  # (A, 1) each

    @property
    def noise_rows(self) -> int:
        """Uniform numbers that an action drawn at random takes."""
        return self.distribution.noise_rows

    def sample_with_log_probability(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Raw actions (A, B) for features (K, B), and their log-probability (B), with gradients: of an actor whose
        actions are random.
        """
        assert isinstance(self.distribution, SquashedGaussian)
        return self.distribution.sample_with_log_probability(self.forward(features), noise)

    def to_env(self, action: Tensor) -> Tensor:
        """A raw action as the environment takes it, scaled to its bounds."""
        return torch.addcmul(self.centre, self.reach, action)

    @torch.no_grad()
    def act(
        self, observation: Tensor, state: State, noise: Tensor | None = None, legal: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Actions (A, N), drawn with `noise` (U, N) or the likeliest where that is None, and the state as it is."""
        parameters = self.forward(self.features(observation))
        raw = self.distribution.mode(parameters) if noise is None else self.distribution.sample(parameters, noise)
        return self.to_env(raw), state


def bounds_of(env: Env) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The bounds of an environment's continuous actions. Raises ConfigError for actions of another kind, or without
    bounds.
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
    """What a critic puts out: `outputs` numbers about an action that it reads, or the value of every one of n
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
