"""Per-layer kernels in torch: operands are rounded where the kernels round them, all else is float32. ReLU only.

Remaining differences are due to the order of sums, and to values that it moves across a rounding boundary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from operant.algos.ppo import PPO
from operant.algos.ppo.ppo import ppo_loss
from operant.kernels.tile_config import PerLayer
from operant.nn import mlp
from operant.nn.distributions import masked
from operant.nn.policy import Policy

Round = Callable[[Tensor], Tensor]


def _to_tf32(x: Tensor) -> Tensor:
    """Round to ten bits of fraction, ties away from zero."""
    return ((x.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)


def _to_bf16(x: Tensor) -> Tensor:
    """Round to seven bits of fraction, ties to even."""
    bits = x.view(torch.int32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & -0x10000).view(torch.float32)


ROUND: dict[str, Round] = {"ieee": lambda x: x, "tf32": _to_tf32, "bf16": _to_bf16}


class _Product(torch.autograd.Function):
    """W x with operands rounded by `there`; in the backward pass gradients and W's operands are rounded by `back`."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, features: Tensor, there: Round, back: Round) -> Tensor:
        weight, features = there(weight), there(features)
        ctx.save_for_backward(weight, back(features))
        ctx.back = back
        return weight @ features

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        weight, features = ctx.saved_tensors
        gradient = ctx.back(gradient)
        return gradient @ features.mT, weight.mT @ gradient if ctx.needs_input_grad[1] else None, None, None


class Rounded:
    """Policy for `ppo_loss` with its parameters, in the arithmetic of fused kernels of one precision."""

    def __init__(self, policy: Policy, precision: str) -> None:
        assert isinstance(policy.net, mlp.MLP) and policy.net.config.activation == "relu"
        self.net, self.distribution, self.normalizer, self.precision = (
            policy.net,
            policy.distribution,
            policy.normalizer,
            precision,
        )

    def forward(self, observation: Tensor, legal: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Forward pass as `Policy.forward`."""
        net, there = self.net, ROUND[self.precision]

        def product(weight: Tensor, features: Tensor) -> Tensor:
            return _Product.apply(weight, features, there, there)

        if observation.dtype == torch.uint8:
            seen, first = net.reader(self.normalizer)(observation), there
        else:  # whose first product never has fewer bits than tf32
            seen = observation if self.normalizer is None else self.normalizer.normalize(observation)
            first = ROUND["ieee" if self.precision == "ieee" else "tf32"]
        # The first bias is a column of its weight. Others are added in float32, and their gradients are not rounded.
        weight = torch.cat([net.first_weight, net.first_bias], dim=1)
        hidden = torch.relu(_Product.apply(weight, torch.cat([seen, torch.ones_like(seen[:1])]), first, there))
        hidden = hidden.view(1 if net.config.shared else 2, -1, hidden.shape[1])
        for weight, bias in zip(net.weights, net.biases, strict=True):
            hidden = torch.relu(product(weight, hidden) + bias)
        parameters = product(net.head_weight, hidden[0]) + net.head_bias
        value = product(net.value_weight, hidden[-1]) + net.value_bias
        return (parameters if legal is None else masked(parameters, legal)), value[0]


def both_gradients(ppo: PPO, minibatch: int, precision: str | None = None) -> tuple[Tensor, Tensor]:
    """Compute for each minibatch the gradient by fused kernels, which the flat vector then holds, and `expected`."""
    learner = ppo.backend.learner
    assert learner is not None and isinstance(learner.config, PerLayer)
    wanted = expected(ppo, minibatch, learner.spec.precision)
    ppo.policy.flat.gradient.fill_(float("nan"))
    learner.backward(minibatch)
    learner.reduce()
    return ppo.policy.flat.gradient.clone(), wanted


def expected(ppo: PPO, minibatch: int, precision: str, clip: float | None = None) -> Tensor:
    """Gradient of a minibatch by `Rounded`, optionally with another clip range. The flat vector then holds it."""
    flat, blocks = ppo.policy.flat, len(ppo.minibatches.order[0]) // ppo.config.minibatches
    batch = ppo.backend.gather(ppo.minibatches.order.flatten()[minibatch * blocks : (minibatch + 1) * blocks].long())
    if ppo.config.normalize_advantages:
        batch = batch._replace(
            advantage=(batch.advantage - ppo.experience.advantage.mean()) / (ppo.experience.advantage.std() + 1e-8)
        )
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False  # a product of float32 is to be one
    try:
        config = ppo.config if clip is None else ppo.config.model_copy(update={"clip": clip})
        loss, _ = ppo_loss(Rounded(ppo.policy, precision), batch, config)  # type: ignore[arg-type]
        flat.backward(loss)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return flat.gradient.clone()
