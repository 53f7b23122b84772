"""Critic outputs as Q values or as categorical distributions over returns (C51), and their losses.

Shape letters: C critics, K atoms (1: the Q value itself), B samples.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from operant.settings import Count, Real, Section


class ActorCriticConfig(Section):
    """Keys of `[algo]` shared by all algorithms with an actor and critics that learn from a replay."""

    schedulable: ClassVar = ("learning_rate", "critic_learning_rate")

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
        """Number of outputs of a critic: the atoms of its distribution, or 1."""
        return self.atoms if self.critic == "c51" else 1

    @property
    def scales_rewards(self) -> bool:
        """Whether rewards are scaled so that returns fit the support of the critics' distributions."""
        return self.critic == "c51" if self.normalize_returns is None else self.normalize_returns

    @property
    def support_radius(self) -> float:
        """Distance from 0 to the nearer end of the critics' support."""
        return min(-self.v_min, self.v_max)

    def support_problems(self) -> list[tuple[str, str]]:
        """Problems of the keys of the support, as (key, message)."""
        if self.v_min >= self.v_max:
            return [("v_min", f"it should be less than algo.v_max = {self.v_max:g} (got {self.v_min:g})")]
        inside = self.v_min < 0.0 < self.v_max
        around = f"0 should lie between algo.v_min ({self.v_min:g}) and algo.v_max ({self.v_max:g})"
        return (
            [] if inside or not self.scales_rewards else [("v_min", f"{around}, or set algo.normalize_returns=false")]
        )


def project_onto_support(probability: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """Project the distribution of R + discount Z onto the support (K), given probabilities of Z (K, B), `reward` and
    `discount` (B). Returns probabilities (K, B).

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
    """Conversion of the critics' outputs (C, K, B) to Q values, TD targets and losses."""

    def __init__(self, config: ActorCriticConfig, device: torch.device) -> None:
        self.atoms = config.outputs
        self.support = torch.linspace(config.v_min, config.v_max, self.atoms, device=device)  # (K)

    def values(self, outputs: Tensor) -> Tensor:
        """Return Q of each critic, (C, K, B) -> (C, B): the output itself, or the mean of its distribution."""
        return outputs[:, 0] if self.atoms == 1 else (outputs.softmax(dim=1) * self.support[:, None]).sum(dim=1)

    def td_target(self, outputs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return the TD target (K, B) from the target critics' outputs (C, K, B) at the next state.

        It uses the critic with the smaller Q: reward + discount * Q, or with atoms the distribution of that, projected
        onto the support. `reward` and `discount` are (B).
        """
        values = self.values(outputs)
        if self.atoms == 1:
            return (reward + discount * values.amin(dim=0))[None]
        least = values.argmin(dim=0)[None, None].expand(1, self.atoms, -1)  # (1, K, B)
        return project_onto_support(outputs.gather(0, least)[0].softmax(dim=0), reward, discount, self.support)

    def loss(self, outputs: Tensor, target: Tensor, weight: Tensor | None = None) -> CriticLoss:
        """Return the loss of outputs (C, K, B) at a target (K, B): squared TD error, or cross-entropy with atoms.

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
