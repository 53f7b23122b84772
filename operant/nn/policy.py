"""Policy: observation normalizer, network and action distribution."""

from __future__ import annotations

import copy
import logging
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from operant.envs import Env
from operant.errors import ConfigError
from operant.nn import cnn, deep_sets, mlp, recurrent, user_network
from operant.nn.distributions import distribution_for, masked
from operant.nn.normalization import FixedScale, RunningNormalizer
from operant.nn.optimizer import FlatVector

log = logging.getLogger("operant.nn.policy")

NetConfig = mlp.Config
"""`[net]`: the network."""

State = tuple[Tensor, ...]
"""Recurrent state of each lane, tensors (..., N). Empty for a feed-forward network."""


class Actor(Protocol):
    """Policy as evaluation, the live view, play and export use it: it chooses actions."""

    @property
    def env(self) -> Env:
        """Environment whose observations the actor reads."""

    @property
    def device(self) -> torch.device:
        """Device of the actor's parameters."""

    @property
    def noise_rows(self) -> int:
        """Number of rows of uniform noise needed to sample an action, U."""

    def initial_state(self, lanes: int) -> State:
        """Return the recurrent state of `lanes` lanes at an episode's start; () for a feed-forward network."""

    def act(
        self, observation: Tensor, state: State, noise: Tensor | None = None, legal: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Choose actions (A, N) among `legal` (H, N; None: all) for raw observations (O, N): sampled with uniform
        `noise` (U, N), or the most likely if it is None. Returns them and the next recurrent state.
        """

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint, by name; a load copies into them."""

    def not_finite(self) -> list[str]:
        """Return the names of the parameters with a NaN or infinite value. Waits for the device."""


class Policy:
    """`Actor` with a value function: maps raw observations (O, B) to actions and values. Its initial parameters depend
    on `seed` alone, not on the device.

    `normalize`: normalize numeric features by their running mean and standard deviation. Categorical features are
    encoded one-hot (a user's own network reads them as numbers), and a convolutional network reads byte / 255. Numeric
    bytes that are not normalized are divided by their upper bound. `precision`: of a convolutional network on a GPU
    ("fp32", "tf32" or "bf16"), see `operant.nn.cnn`.
    """

    def __init__(
        self,
        env: Env,
        config: NetConfig,
        *,
        seed: int,
        device: torch.device,
        normalize: bool,
        precision: str = "fp32",
        distribution: Any = None,
    ) -> None:
        """Create network and normalizer. With `normalize` numeric features are normalized by their running mean and
        variance. `distribution` replaces the action distribution that the environment's actions imply.
        """
        self.env, self.device = env, device
        generator = torch.Generator().manual_seed(seed)
        self.distribution = distribution or distribution_for(
            env, squash=config.squash, initial_log_std=config.initial_log_std
        )
        self.net = _network(env, config, self.distribution.parameter_rows, generator, device, precision).to(device)
        self.distribution.to(device)
        self.recurrent = config.is_recurrent or isinstance(self.net, recurrent.SampleMajor)
        self.flat = FlatVector((self.net, self.distribution), device)
        encoder = self.net.encoder if isinstance(self.net, recurrent.Recurrent) else self.net
        unscaled = all(env.observation.category_counts()) or isinstance(encoder, cnn.Convolutional)
        if normalize and unscaled:
            reason = (
                "they are categorical" if env.observation.categories else "a convolutional network reads byte / 255"
            )
            log.info("observations are not normalized: %s", reason)
        self.normalizer = _normalizer(env, self.net, device, normalize=normalize) if not unscaled else None
        counts = env.observation.category_counts()
        self._categorical = torch.tensor(counts, device=device)[:, None] > 0 if any(counts) else None  # (O, 1)
        self._reset_every: int | None = None  # steps after which the state is reset; None: at an episode's end only
        self._reset_state: State = ()  # (R, 1) each

    @property
    def noise_rows(self) -> int:
        """Number of rows of uniform noise needed to sample an action, U."""
        return self.distribution.noise_rows

    def forgetting(self, steps: int) -> Policy:
        """Return a copy of the policy whose recurrent state is reset after every `steps` steps of an episode. Its state
        has one more tensor, a step counter (1, N).
        """
        policy = copy.copy(self)
        policy._reset_every, policy._reset_state = steps, self.initial_state(1)
        return policy

    def initial_state(self, lanes: int) -> State:
        """Return the recurrent state of `lanes` lanes at an episode's start; () for a feed-forward network."""
        state = self._sequential.initial_state(lanes) if self.recurrent else ()
        return state if self._reset_every is None else (*state, torch.zeros(1, lanes, device=self.device))

    @property
    def _sequential(self) -> recurrent.Sequential:
        return cast("recurrent.Sequential", self.net)

    def features(self, observation: Tensor) -> Tensor:
        """Return what a user's own network reads, (O, B) float32: numeric features normalized if configured, categories
        as numbers.
        """
        observation = observation.float()
        if self.normalizer is None:
            return observation
        normalized = self.normalizer.normalize(observation)
        return normalized if self._categorical is None else torch.where(self._categorical, observation, normalized)

    def forward(self, observation: Tensor, legal: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map raw observations (O, B) to the parameters of the action distribution (H, B), -1e9 where `legal` (H, B) is
        0, and values (B).
        """
        user_net = isinstance(self.net, mlp.SampleMajor)
        parameters, value = self.net(self.features(observation)) if user_net else self.net(observation, self.normalizer)
        return (parameters if legal is None else masked(parameters, legal)), value

    def unroll(
        self, observation: Tensor, state: State, reset: Tensor, legal: Tensor | None = None
    ) -> tuple[Tensor, Tensor, State]:
        """Unroll a recurrent network over T steps of B lanes: raw observations (O, T B), the initial state, and `reset`
        (T, B), 1 where an episode begins.

        Returns head parameters (H, T B), values (T B) and the final state. Gradients stop at the initial state.
        """
        if isinstance(self.net, recurrent.SampleMajor):
            observation = self.features(observation)
        parameters, value, final = self._sequential.unroll(observation, state, reset, self.normalizer)
        return (parameters if legal is None else masked(parameters, legal)), value, final

    @torch.no_grad()
    def act(
        self, observation: Tensor, state: State, noise: Tensor | None = None, legal: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Choose actions (A, N) among `legal` (H, N; None: all) for raw observations (O, N): sampled with uniform
        `noise` (U, N), or the most likely if it is None. Returns them and the next recurrent state.
        """
        steps: State = ()
        if self._reset_every is not None:
            *memory, count = state
            reset = count >= self._reset_every
            state = tuple(
                torch.where(reset, begin, part) for begin, part in zip(self._reset_state, memory, strict=True)
            )
            steps = (torch.where(reset, 0.0, count) + 1.0,)
        if self.recurrent:
            parameters, _, state = self.unroll(
                observation, state, torch.zeros(1, observation.shape[1], device=self.device), legal
            )
        else:
            parameters, _ = self.forward(observation, legal)
        raw = self.distribution.mode(parameters) if noise is None else self.distribution.sample(parameters, noise)
        return self.distribution.to_env(raw), (*state, *steps)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint, by name; a load copies into them."""
        statistics = (
            {f"observation/{name}": value for name, value in self.normalizer.tensors().items()}
            if self.normalizer is not None
            else {}
        )
        return {"parameters": self.flat.values.data, **statistics}

    def not_finite(self) -> list[str]:
        """Return the names of the parameters with a NaN or infinite value. Waits for the device."""
        return self.flat.not_finite()


def _normalizer(env: Env, net: nn.Module, device: torch.device, *, normalize: bool) -> RunningNormalizer | None:
    """Create the normalizer of numeric features: running statistics with `normalize`, else a fixed scale for bytes.
    Returns None if features are read unchanged.
    """
    if normalize:
        return RunningNormalizer(env.observation.size, device)
    user_net = isinstance(net, mlp.SampleMajor | recurrent.SampleMajor)
    scaled = env.observation.dtype == "uint8" and not user_net
    return FixedScale(env.observation.bounds()[1], device) if scaled else None


def _network(
    env: Env, config: mlp.Config, head_rows: int, generator: torch.Generator, device: torch.device, precision: str
) -> nn.Module:
    """Create the network that maps observations of `env` to `head_rows` distribution parameters and a value. Raises
    ConfigError for observations that it cannot read.
    """
    categories = env.observation.categories
    if isinstance(categories, tuple) and len(categories) != env.observation.size:
        problem = (
            f"its observation has {env.observation.size} values, but categories for {len(categories)}: one for "
            "each, 0 for a numeric feature"
        )
        raise ConfigError("the environment", [problem])
    if (reason := _unsupported_reason(env, config, head_rows)) is not None:
        raise ConfigError("the network", [reason])
    if config.kind == "places":
        return deep_sets.DeepSets(env, config, generator)
    if config.kind not in mlp.KINDS:
        return user_network.load(config.kind, env.observation.size, head_rows, generator.initial_seed())

    last = (config.memory_size or config.hidden[-1]) if config.is_recurrent else None
    net: mlp.MLP | cnn.Convolutional
    if config.kind == "mlp":
        net = mlp.MLP(env.observation.size, head_rows, config, generator, categories=categories, last=last)
    else:
        if device.type == "cuda":
            cnn.settle(precision)
        dtype = torch.bfloat16 if precision == "bf16" and device.type == "cuda" else None
        net = cnn.Convolutional(env.observation, head_rows, config, generator, dtype=dtype, last=last)
    if last is None:
        return net
    return recurrent.Recurrent(net, recurrent.Memory(config, net.towers, config.hidden[-1], generator))


def _unsupported_reason(env: Env, config: mlp.Config, head_rows: int) -> str | None:
    """Return why a policy cannot have this network, as a sentence, or None if it can."""
    if config.critic_hidden is not None:
        return (
            "net.critic_hidden is for sac and td3, whose critics are separate networks (remove it, or use net.hidden)"
        )
    if config.kind == "cnn":
        return cnn.unsupported_reason(env.observation, config)
    return deep_sets.unsupported_reason(env, config, head_rows) if config.kind == "places" else None
