"""A policy: observation normalizer, network and action distribution, as one thing that acts. Knows no algorithm;
training and evaluation both stand on it.
"""

from __future__ import annotations

import copy
import logging
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from operant.envs import Env
from operant.errors import ConfigError
from operant.nn import cnn, flat, mlp, places, recurrent, user_network
from operant.nn.distributions import distribution_for, masked
from operant.nn.normalization import FixedScale, RunningNormalizer

log = logging.getLogger("operant.nn.policy")

NetConfig = mlp.Config
"""`[net]`: the network."""

State = tuple[Tensor, ...]
"""What an actor remembers of each lane from step to step, tensors (..., N); empty for a feed-forward network."""


class Actor(Protocol):
    """What chooses actions: all that evaluation, the live agent, play and export know of a policy."""

    @property
    def env(self) -> Env:
        """Whose observations it reads."""

    @property
    def device(self) -> torch.device:
        """Where it acts."""

    @property
    def noise_rows(self) -> int:
        """U, the uniform numbers that an action drawn at random takes."""

    def initial_state(self, lanes: int) -> State:
        """What it remembers at an episode's start."""

    def act(
        self, observation: Tensor, state: State, noise: Tensor | None = None, legal: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Actions (A, N) for observations (O, N), and the state after them: drawn with `noise` (U, N), or greedy; only
        what `legal` (H, N) allows.
        """

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it, by name: copy into these to load."""

    def not_finite(self) -> list[str]:
        """Names of the parameters that hold a NaN or an infinity. Reads back from the device."""


class Policy:
    """Maps raw observations (O, B) to actions and values on one device. Its numbers begin the same on every device,
    from `seed` alone.

    `normalize` asks for observations of mean 0 and standard deviation 1. Categorical features are read one-hot instead
    (by a user's own network as they are), and a convolutional network reads byte / 255: where there is nothing else to
    read, there is no normalizer. Numeric bytes that are not normalised are divided by their upper bound. `precision` is
    that of a convolutional network on a GPU ("fp32", "tf32" or "bf16"); see `operant.nn.cnn`.

    An `Actor`, whose state is that of its network: nothing but where that is `recurrent`.
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
        """`distribution` is another one than the environment's actions ask for."""
        self.env, self.device = env, device
        generator = torch.Generator().manual_seed(seed)
        self.distribution = distribution or distribution_for(
            env, squash=config.squash, initial_log_std=config.initial_log_std
        )
        self.net = _network(env, config, self.distribution.parameter_rows, generator, device, precision).to(device)
        self.distribution.to(device)
        self.recurrent = config.remembers or isinstance(self.net, recurrent.SampleMajor)
        self.flat = flat.FlatVector((self.net, self.distribution), device)
        encoder = self.net.encoder if isinstance(self.net, recurrent.Recurrent) else self.net
        unscaled = all(env.observation.category_counts()) or isinstance(encoder, cnn.Convolutional)
        if normalize and unscaled:
            reason = (
                "they are categorical" if env.observation.categories else "a convolutional network reads byte / 255"
            )
            log.info("observations are not normalised: %s", reason)
        self.normalizer = _normalizer(env, self.net, device, normalize=normalize) if not unscaled else None
        counts = env.observation.category_counts()
        self._categorical = torch.tensor(counts, device=device)[:, None] > 0 if any(counts) else None  # (O, 1)
        self._forget_every: int | None = None
        self._begin: State = ()  # (R, 1) each, what it remembers once it has forgotten

    @property
    def noise_rows(self) -> int:
        """Uniform numbers that an action drawn at random takes."""
        return self.distribution.noise_rows

    def forgetting(self, steps: int) -> Policy:
        """The same policy, whose memory is empty again after every so many steps of an episode. One more tensor of its
        state, (1, N), counts them.
        """
        policy = copy.copy(self)
        policy._forget_every, policy._begin = steps, self.initial_state(1)
        return policy

    def initial_state(self, lanes: int) -> State:
        """What the policy remembers at an episode's start."""
        state = self._sequential.initial_state(lanes) if self.recurrent else ()
        return state if self._forget_every is None else (*state, torch.zeros(1, lanes, device=self.device))

    @property
    def _sequential(self) -> recurrent.Sequential:
        return cast("recurrent.Sequential", self.net)

    def features(self, observation: Tensor) -> Tensor:
        """What a user's own network reads, (O, B) as float32: numeric features normalised where asked for, categories
        as they are.
        """
        observation = observation.float()
        if self.normalizer is None:
            return observation
        normalized = self.normalizer.normalize(observation)
        return normalized if self._categorical is None else torch.where(self._categorical, observation, normalized)

    def forward(self, observation: Tensor, legal: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Head parameters (H, B) and values (B) of raw observations (O, B); -1e9 for actions that `legal` (H, B) calls
        0, which are then never taken.
        """
        own = isinstance(self.net, mlp.SampleMajor)
        parameters, value = self.net(self.features(observation)) if own else self.net(observation, self.normalizer)
        return (parameters if legal is None else masked(parameters, legal)), value

    def unroll(
        self, observation: Tensor, state: State, reset: Tensor, legal: Tensor | None = None
    ) -> tuple[Tensor, Tensor, State]:
        """The same of T steps of B lanes by a recurrent network: raw observations (O, T B), the state before them, and
        where episodes begin (T, B), 1 or 0.

        Head parameters (H, T B), values (T B), and the state after. Gradients end at the state that was given.
        """
        own = isinstance(self.net, recurrent.SampleMajor)
        seen = self.features(observation) if own else observation
        parameters, value, after = self._sequential.unroll(seen, state, reset, self.normalizer)
        return (parameters if legal is None else masked(parameters, legal)), value, after

    @torch.no_grad()
    def act(
        self, observation: Tensor, state: State, noise: Tensor | None = None, legal: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Actions (A, N), drawn with `noise` (U, N) or the likeliest where that is None, and the state after; only what
        `legal` (H, N) allows.
        """
        steps: State = ()
        if self._forget_every is not None:
            *memory, count = state
            forget = count >= self._forget_every
            state = tuple(torch.where(forget, begin, part) for begin, part in zip(self._begin, memory, strict=True))
            steps = (torch.where(forget, 0.0, count) + 1.0,)
        if self.recurrent:
            parameters, _, state = self.unroll(
                observation, state, torch.zeros(1, observation.shape[1], device=self.device), legal
            )
        else:
            parameters, _ = self.forward(observation, legal)
        raw = self.distribution.mode(parameters) if noise is None else self.distribution.sample(parameters, noise)
        return self.distribution.to_env(raw), (*state, *steps)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold, by name."""
        statistics = (
            {f"observation/{name}": value for name, value in self.normalizer.tensors().items()}
            if self.normalizer is not None
            else {}
        )
        return {"parameters": self.flat.values.data, **statistics}

    def not_finite(self) -> list[str]:
        """Names of the parameters that hold a NaN or an infinity. Reads back from the device."""
        return self.flat.not_finite()


def _normalizer(env: Env, net: nn.Module, device: torch.device, *, normalize: bool) -> RunningNormalizer | None:
    """What observations are shifted and scaled by; None for numbers that are read as they are."""
    if normalize:
        return RunningNormalizer(env.observation.size, device)
    own = isinstance(net, mlp.SampleMajor | recurrent.SampleMajor)  # reads numbers as they are, as its author was told
    return FixedScale(env.observation.bounds()[1], device) if env.observation.dtype == "uint8" and not own else None


def _network(
    env: Env, config: mlp.Config, head_rows: int, generator: torch.Generator, device: torch.device, precision: str
) -> nn.Module:
    categories = env.observation.categories
    if isinstance(categories, tuple) and len(categories) != env.observation.size:
        problem = (
            f"its observation has {env.observation.size} values, but categories for {len(categories)}: one for "
            "each, 0 for a numeric feature"
        )
        raise ConfigError("the environment", [problem])
    if config.critic_hidden is not None:
        raise ConfigError(
            "the network",
            [
                "net.critic_hidden: only sac and td3 have critics that stand apart from their actor (remove it, or use "
                "net.hidden)"
            ],
        )
    last = (config.memory_size or config.hidden[-1]) if config.remembers else None
    net: nn.Module
    if config.kind == "mlp":
        net = mlp.MLP(
            env.observation.size, head_rows, config, generator, categories=env.observation.categories, last=last
        )
        return (
            recurrent.Recurrent(net, recurrent.Memory(config, net.towers, config.hidden[-1], generator))
            if last
            else net
        )
    if config.kind == "cnn":
        reason = cnn.unsupported_reason(env.observation, config)
        if reason is not None:
            raise ConfigError("the network", [reason])
        if device.type == "cuda":
            cnn.settle(precision)
        dtype = torch.bfloat16 if precision == "bf16" and device.type == "cuda" else None
        net = cnn.Convolutional(env.observation, head_rows, config, generator, dtype=dtype, last=last)
        return (
            recurrent.Recurrent(net, recurrent.Memory(config, net.towers, config.hidden[-1], generator))
            if last
            else net
        )
    if config.kind == "places":
        reason = places.unsupported_reason(env, config, head_rows)
        if reason is not None:
            raise ConfigError("the network", [reason])
        return places.Places(env, config, generator)
    return user_network.load(config.kind, env.observation.size, head_rows, generator.initial_seed())
