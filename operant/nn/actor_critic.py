"""Actors and critics of the off-policy algorithms SAC and TD3: their configuration, policies, and critic losses.

Tensors are feature-major, (rows, B). A *raw* continuous action lies in [-1, 1]; the environment's action is
action_center + action_scale * raw. Noise is uniform in [0, 1).

Shape letters: N lanes, B samples, O observation, K features of a network's input, A actions, C critics, atoms: 1, or
those of a distribution over returns.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from operant.envs import Box, Discrete, Env
from operant.errors import ConfigError
from operant.nn.distributions import Categorical, SquashedDeterministic, SquashedGaussian, masked
from operant.nn.ensemble import Features, network
from operant.nn.optimizer import FlatVector
from operant.settings import Count, Real, Section

if TYPE_CHECKING:
    from operant.nn import mlp

# CONFIGURATION


class ActorCriticConfig(Section):
    """Keys of `[algo]` shared by all algorithms with an actor and critics that learn from a replay."""

    schedulable: ClassVar[tuple[str, ...]] = ("learning_rate", "critic_learning_rate")

    learning_rate: Real = Field(
        3e-4, gt=0, le=1, description="learning rate of Adam, of the actor (and SAC's temperature)"
    )
    critic_learning_rate: Real = Field(1e-3, gt=0, le=1, description="learning rate of Adam, of the critics")
    critics: Annotated[Count, Field(ge=1, le=2)] = Field(
        2, description="2: twin critics, whose smaller value counts; 1: a single one"
    )
    tau: Real = Field(
        0.005,
        gt=0,
        le=1,
        description="Polyak averaging: target <- (1 - tau) target + tau network, in every update, with TD3 in those of "
        "the actor",
    )
    critic: Literal["scalar", "c51"] = Field(
        "scalar", description="scalar: the mean of the return; c51: its distribution, on atoms from v_min to v_max"
    )
    atoms: Count = Field(101, ge=2, le=1024, description="critic = c51 only: values of the support")
    v_min: Real = Field(
        -5.0, description="critic = c51 only: least value of the support, in units of the normalised return"
    )
    v_max: Real = Field(5.0, description="critic = c51 only: greatest value of the support, likewise")
    normalize_returns: bool | None = Field(
        None,
        description="scale rewards so that returns have a standard deviation of 1 at most and fit the support; not "
        "set: with critic = c51",
    )
    max_gradient_norm: Real = Field(
        0.0, ge=0, description="gradients of actor and critics are clipped to this global norm each; 0: not clipped"
    )
    normalize_observations: bool = Field(False, description="by their running mean and standard deviation")
    adam_epsilon: Real = Field(1e-8, gt=0, description="epsilon in the denominator of Adam")
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "tf32",
        description="of matrix products on a GPU, in bf16 those of all but the last layers; a CPU always "
        "computes in fp32",
    )
    kernels: Literal["auto", "torch", "fused"] = Field(
        "auto",
        description="torch: torch operations and autograd, the reference; fused: Triton kernels; auto: fused on a GPU "
        "where possible, else torch",
    )

    @property
    def outputs(self) -> int:
        """Number of outputs of a critic: 1, or with critic = "c51" the atoms of its distribution."""
        return self.atoms if self.critic == "c51" else 1

    @property
    def scales_rewards(self) -> bool:
        """Whether rewards are scaled so that returns fit the support of the critics' distributions."""
        return self.critic == "c51" if self.normalize_returns is None else self.normalize_returns

    @property
    def support_radius(self) -> float:
        """Distance from 0 to the nearer of v_min and v_max, the ends of the critics' support."""
        return min(-self.v_min, self.v_max)

    def support_problems(self) -> list[tuple[str, str]]:
        """Return the problems of v_min and v_max as (key, message); empty if there are none."""
        if self.v_min >= self.v_max:
            return [("v_min", f"it should be less than algo.v_max = {self.v_max:g} (got {self.v_min:g})")]
        inside = self.v_min < 0.0 < self.v_max
        around = f"0 should lie between algo.v_min ({self.v_min:g}) and algo.v_max ({self.v_max:g})"
        return (
            [] if inside or not self.scales_rewards else [("v_min", f"{around}, or set algo.normalize_returns=false")]
        )


# ACTORS

State = tuple[Tensor, ...]


class EnsembleActor:
    """Base class of actors: observation features, and one feed-forward network from them to `outputs` distribution
    parameters. Initialised from `seed` alone.
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
        """Create the network. With `normalize` observations are normalized by their running mean and variance.
        `precision` is that of matrix products on a GPU, see `operant.nn.ensemble.network`.
        """
        self.env, self.device = env, device
        self.features = Features(env, config, device, normalize=normalize)
        self.net = network(
            env, config, 0, outputs, torch.Generator().manual_seed(seed), device, last_gain=0.01, precision=precision
        )
        self.flat = FlatVector((self.net,), device)

    def initial_state(self, lanes: int) -> State:
        """Return the recurrent state at an episode's start: (), as the network is feed-forward."""
        return ()

    def forward(self, features: Tensor) -> Tensor:
        """Map features (K, B) to the parameters of the action distribution (H, B)."""
        parameters: Tensor = self.net(features)[0]
        return parameters

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint, by name; a load copies into them."""
        return {"parameters": self.flat.values.data, **self.features.tensors()}

    def not_finite(self) -> list[str]:
        """Return the names of the parameters with a NaN or infinite value. Waits for the device."""
        return self.flat.not_finite()


class CategoricalActor(EnsembleActor):
    """`Actor` that samples one of n actions: maps raw observations (O, B) to actions (1, B), the action's number."""

    def __init__(
        self, env: Env, config: mlp.Config, *, seed: int, device: torch.device, normalize: bool, precision: str = "fp32"
    ) -> None:
        assert isinstance(env.action, Discrete)
        super().__init__(env, config, env.action.n, seed=seed, device=device, normalize=normalize, precision=precision)
        self.distribution = Categorical((env.action.n,)).to(device)

    @property
    def noise_rows(self) -> int:
        """Number of rows of uniform noise needed to sample an action: 1."""
        return self.distribution.noise_rows

    def logits(self, features: Tensor, legal: Tensor | None) -> Tensor:
        """Return the logits of the actions (A, B) for features (K, B), -1e9 where `legal` (A, B) is 0."""
        return self.forward(features) if legal is None else masked(self.forward(features), legal)

    @torch.no_grad()
    def act(
        self, observation: Tensor, state: State, noise: Tensor | None = None, legal: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return actions (1, N) among `legal` (A, N; None: all) for raw observations (O, N), and the unchanged state.
        Actions are sampled with `noise` (1, N), or the most likely if it is None.
        """
        logits = self.logits(self.features(observation), legal)
        return (self.distribution.mode(logits) if noise is None else self.distribution.sample(logits, noise)), state


class SquashedActor(EnsembleActor):
    """`Actor` for bounded continuous actions: maps raw observations (O, B) to actions (A, B) by a network and tanh."""

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
        """Create the network. Without `std` the policy is a squashed Gaussian; with it, a deterministic one to which
        sampling adds Gaussian noise of that standard deviation. With `normalize` observations are normalized by their
        running mean and variance.
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
        """Number of rows of uniform noise needed to sample an action, 2 A."""
        return self.distribution.noise_rows

    def sample_with_log_probability(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions a = tanh(mean + std e) (A, B), e ~ N(0, 1), for features (K, B) with uniform `noise` (2 A, B).
        Returns them and log pi(a|s) (B), both differentiable. Only for a squashed Gaussian.
        """
        assert isinstance(self.distribution, SquashedGaussian)
        return self.distribution.sample_with_log_probability(self.forward(features), noise)

    def to_env(self, action: Tensor) -> Tensor:
        """Scale actions (A, B) from [-1, 1] to the environment's bounds."""
        return torch.addcmul(self.action_center, self.action_scale, action)

    @torch.no_grad()
    def act(
        self, observation: Tensor, state: State, noise: Tensor | None = None, legal: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return actions (A, N) in the environment's bounds for raw observations (O, N), and the unchanged state.
        Actions are sampled with `noise` (2 A, N), or tanh of the mean if it is None. Ignores `legal`.
        """
        parameters = self.forward(self.features(observation))
        raw = self.distribution.mode(parameters) if noise is None else self.distribution.sample(parameters, noise)
        return self.to_env(raw), state


def bounds_of(env: Env) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the lower and upper bounds of an environment's continuous actions. Raises ConfigError if actions are
    discrete or without bounds.
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
    """Return the number of outputs of a critic: `outputs` if actions are continuous, which it reads as an input; n for
    a choice among n actions, one Q value each. Raises ConfigError for distributions over n actions.
    """
    if not isinstance(env.action, Discrete):
        return outputs
    if outputs > 1:
        raise ConfigError(
            "the environment",
            [f'{env.name or "it"} has Discrete actions, for which SAC has algo.critic = "scalar" only ("dqn" has c51)'],
        )
    return env.action.n


# CRITICS


def project_onto_support(probability: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """Project the distribution of R + discount Z onto the atoms `support` (K): the target of C51. `probability` (K, B)
    is the distribution of Z on the same atoms; `reward` R and `discount` are (B). Returns probabilities (K, B).

    Bellemare, Dabney & Munos 2017, "A distributional perspective on reinforcement learning", algorithm 1: each atom is
    moved, clipped to the support, and its mass shared by its two nearest atoms. Atom j receives max(0, 1 - |Tz_i - z_j|
    / dz) of atom i. A GPU sums over i, in a fixed order; a CPU scatters, also in a fixed order and many times faster
    there.
    """
    low, high, step = support[0], support[-1], (support[-1] - support[0]) / (len(support) - 1)
    moved = (reward + discount * support[:, None]).clamp(low, high)  # (K, B)
    b = (moved - low) / step  # fractional index of the moved atoms, (K, B)
    if not support.is_cuda:
        lower = b.floor().clamp_max(len(support) - 2)
        upper_share = b - lower
        out = torch.zeros_like(probability).scatter_add_(0, lower.long(), probability * (1.0 - upper_share))
        return out.scatter_add_(0, lower.long() + 1, probability * upper_share)
    atom = torch.arange(len(support), dtype=support.dtype, device=support.device)
    share = (1.0 - (b[:, None] - atom[None, :, None]).abs()).clamp_min(0.0)  # (K of i, K of j, B)
    return (share * probability[:, None]).sum(dim=0)


class CriticLoss(NamedTuple):
    """Loss of C critics on a batch of B samples, its metrics, and the samples' priorities."""

    loss: Tensor  # (), sum over critics of the weighted mean over samples
    q_mean: Tensor  # (), mean Q over critics and samples
    td_error: Tensor  # (), mean |Q - y|
    priority: Tensor  # (B), mean over critics of |Q - y|, or of the cross-entropy, for prioritised replay


class CriticHead:
    """Conversion of the critics' outputs (C, K, B) to Q values, TD targets and losses. K = 1: an output is Q itself;
    else logits of a distribution over K atoms of the return.
    """

    def __init__(self, config: ActorCriticConfig, device: torch.device) -> None:
        self.atoms = config.outputs
        self.support = torch.linspace(config.v_min, config.v_max, self.atoms, device=device)  # (K)

    def values(self, outputs: Tensor) -> Tensor:
        """Return Q of each critic (C, B) for outputs (C, K, B): the output itself, or the mean of its distribution."""
        return outputs[:, 0] if self.atoms == 1 else (outputs.softmax(dim=1) * self.support[:, None]).sum(dim=1)

    def td_target(self, outputs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return the TD target (K, B), reward + discount min_c Q_c, from the target critics' outputs (C, K, B) at the
        next state.

        It uses the critic with the smaller Q: reward + discount * Q, or with atoms the distribution of that, projected
        onto the support. `reward` and `discount` are (B).
        """
        values = self.values(outputs)
        if self.atoms == 1:
            return (reward + discount * values.amin(dim=0))[None]
        least = values.argmin(dim=0)[None, None].expand(1, self.atoms, -1)  # (1, K, B)
        return project_onto_support(outputs.gather(0, least)[0].softmax(dim=0), reward, discount, self.support)

    def loss(self, outputs: Tensor, target: Tensor, weight: Tensor | None = None) -> CriticLoss:
        """Return the critics' loss for outputs (C, K, B) and the target (K, B): squared TD error, or cross-entropy with
        K > 1 atoms.

        `weight` (B) are importance-sampling weights; None: 1.
        """
        values = self.values(outputs)
        if self.atoms == 1:
            error = values - target
            return critic_loss(error.square(), values, error.abs(), weight)
        cross_entropy = -(target * outputs.log_softmax(dim=1)).sum(dim=1)  # (C, B)
        target_mean = (target * self.support[:, None]).sum(dim=0)
        return critic_loss(cross_entropy, values, (values - target_mean).abs(), weight, priority=cross_entropy)


def critic_loss(
    losses: Tensor, values: Tensor, td_error: Tensor, weight: Tensor | None, *, priority: Tensor | None = None
) -> CriticLoss:
    """Reduce per-sample losses, Q values and absolute TD errors, (C, B) each, to a `CriticLoss`. `weight` (B) are
    importance-sampling weights, None: 1; `priority` (C, B) defaults to the TD errors.
    """
    loss = (losses if weight is None else losses * weight).mean(dim=1).sum()
    per_sample = td_error if priority is None else priority
    return CriticLoss(loss, values.mean(), td_error.mean(), per_sample.detach().mean(dim=0))
