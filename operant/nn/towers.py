"""Networks side by side, without an actor's and a critic's heads: what off-policy actors and critics are made of. Knows
no algorithm.

Dense layers, dense layers over convolutions that all towers share, or a user's own network, once for each tower. All
read features and, if they are critics of continuous actions, those beside them. Everything is feature-major. G towers
of the same shape are batched products, W (G, M, K) h (G, K, B).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from operant.envs import Env
from operant.errors import ConfigError
from operant.nn import cnn, inputs, mlp, recurrent, user_network
from operant.nn.normalization import FixedScale, RunningNormalizer

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
}


def network(
    env: Env,
    config: mlp.Config,
    actions: int,
    outputs: int,
    generator: torch.Generator,
    device: torch.device,
    *,
    towers: int = 1,
    last_gain: float = 1.0,
    precision: str = "fp32",
) -> nn.Module:
    """G networks that read `Features` of an environment, and beside them `actions` numbers of an action: see
    `Towers.forward`.

    On a GPU all but the last layer computes in bf16 where `precision` says so. Raises ConfigError for what cannot read
    these observations.
    """
    seen, dtype = env.observation, torch.bfloat16 if precision == "bf16" and device.type == "cuda" else None
    if isinstance(seen.categories, tuple) and len(seen.categories) != seen.size:
        found = (
            f"the observation has {seen.size} values, but categories for {len(seen.categories)}: one for each, 0 "
            "for a numeric feature"
        )
        raise ConfigError("the network", [found])
    if config.remembers:
        raise ConfigError(
            "the network",
            [
                'net.memory: SAC and TD3 learn from single steps, without a memory (use algo.name = "ppo"; got '
                f"{config.memory!r})"
            ],
        )
    if config.kind == "mlp":
        return Towers(
            seen.columns + actions, outputs, config, generator, towers=towers, last_gain=last_gain, dtype=dtype
        ).to(device)
    if config.kind == "places":
        raise ConfigError(
            "the network",
            [
                'net.kind = "places": SAC and TD3 have no such network (use algo.name = "ppo", "dqn" or "pqn", or '
                'net.kind = "mlp")'
            ],
        )
    if config.kind != "cnn":
        if config.critic_hidden is not None:
            raise ConfigError(
                "the network",
                [
                    "net.critic_hidden: a network of your own has the widths that its file says (got "
                    f"{list(config.critic_hidden)})"
                ],
            )
        return OwnTowers(config.kind, seen.size + actions, outputs, generator.initial_seed(), towers=towers).to(device)
    if (reason := cnn.unsupported_reason(seen, config)) is not None:
        raise ConfigError("the network", [reason])
    if device.type == "cuda":
        cnn.settle(precision)
    convolutions, relu = (
        cnn.Convolutions(seen, config, generator, dtype=dtype),
        config.model_copy(update={"activation": "relu"}),
    )
    return Convolved(
        convolutions,
        Towers(
            convolutions.columns + actions, outputs, relu, generator, towers=towers, last_gain=last_gain, dtype=dtype
        ),
    ).to(device)


def products(env: Env, config: mlp.Config, actions: int, outputs: int, *, towers: int = 1) -> int:
    """Multiplications of one sample in the forward pass of such a network."""
    if config.kind == "mlp":
        widths = (env.observation.columns + actions, *config.hidden, outputs)
        return towers * sum(a * b for a, b in itertools.pairwise(widths))
    device = torch.device("cpu")
    net, features = (
        network(env, config, actions, outputs, torch.Generator(), device, towers=towers),
        Features(env, config, device, normalize=False),
    )
    seen = torch.zeros(env.observation.size, 2, dtype=getattr(torch, env.observation.dtype))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(features(seen), torch.zeros(actions, 2) if actions else None)
    return counter.get_total_flops() // 4  # of two samples, a multiplication and an addition each


class Towers(nn.Module):
    """G fully connected networks of the same shape, each with its own numbers: (K, B) or (G, K, B) -> (G, H, B).
    Orthogonal weights, zero biases.
    """

    def __init__(
        self,
        columns: int,
        outputs: int,
        config: mlp.Config,
        generator: torch.Generator,
        *,
        towers: int = 1,
        last_gain: float = 1.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`dtype` is what all but the last layer and normalizations computes in; None: the parameters' type."""
        super().__init__()
        self.config, self.towers, self._dtype = config, towers, dtype
        self._activation, G = _ACTIVATIONS[config.activation], towers
        widths = (columns, *config.hidden, outputs)
        gains = (math.sqrt(2.0),) * len(config.hidden) + (last_gain,)

        def stacked(rows: int, columns: int, gain: float) -> nn.Parameter:
            return nn.Parameter(torch.stack([mlp.orthogonal(rows, columns, gain, generator) for _ in range(G)]))

        layers = zip(itertools.pairwise(widths), gains, strict=True)
        # (G, M, K), the last (G, H, K)
        self.weights = nn.ParameterList([stacked(after, before, gain) for (before, after), gain in layers])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(G, after, 1)) for after in widths[1:]])
        normed = config.hidden if config.layer_norm else ()
        self.norm_gains = nn.ParameterList([nn.Parameter(torch.ones(G, width, 1)) for width in normed])
        self.norm_biases = nn.ParameterList([nn.Parameter(torch.zeros(G, width, 1)) for width in normed])

    def forward(self, features: Tensor, action: Tensor | None = None, *, constant: bool = False) -> Tensor:
        """Features (K, B), which all towers read, and an action (A, B) beside them where there is one -> (G, H, B).

        `constant`: no gradient by the parameters will be asked for.
        """
        hidden, own = features if action is None else torch.cat([features, action]), self.weights[0].dtype
        layers = [
            (w.detach(), b.detach()) if constant else (w, b) for w, b in zip(self.weights, self.biases, strict=True)
        ]
        if self._dtype is not None and self.config.activation == "relu" and not self.config.layer_norm:
            return torch.stack(
                [self._tower(hidden, [(w[g], b[g]) for w, b in layers], self._dtype) for g in range(self.towers)]
            )
        hidden = hidden.expand(self.towers, -1, -1)
        last = len(self.config.hidden)
        for k, (weight, bias) in enumerate(layers):
            dtype = own if k == last else self._dtype or own
            hidden = torch.baddbmm(bias.to(dtype), weight.to(dtype), hidden.to(dtype))
            if k < last:
                if self.config.layer_norm:
                    hidden = mlp.layer_norm(hidden.to(own), self.norm_gains[k], self.norm_biases[k]).to(dtype)
                hidden = self._activation(hidden)
        return hidden

    @staticmethod
    def _tower(features: Tensor, layers: list[tuple[Tensor, Tensor]], dtype: torch.dtype) -> Tensor:
        """One tower, (K, B) -> (H, B), sample-major within: there a product ends with bias and relu, which would be two
        more passes over its result.
        """
        rows = features.to(dtype).t()  # (B, K)
        for weight, bias in layers[:-1]:
            rows = _LinearRelu.apply(rows, weight.to(dtype), bias[:, 0].to(dtype))
        weight, bias = layers[-1]
        return torch.addmm(bias, weight, rows.t().to(weight.dtype))


class _LinearRelu(torch.autograd.Function):
    """relu(x W^T + b) of rows (B, K), weights (M, K) and a bias (M): one product on a GPU."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = torch._addmm_activation(bias, rows, weight.t())
        ctx.save_for_backward(rows, weight, out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        rows, weight, out = ctx.saved_tensors
        by_rows, by_weight, by_bias = ctx.needs_input_grad
        g = torch.ops.aten.threshold_backward(gradient, out, 0)
        return g @ weight if by_rows else None, g.t() @ rows if by_weight else None, g.sum(dim=0) if by_bias else None


class Convolved(nn.Module):
    """Towers over convolutions that they share: an action enters behind those."""

    def __init__(self, convolutions: cnn.Convolutions, towers: Towers) -> None:
        super().__init__()
        self.convolutions, self.towers = convolutions, towers

    def forward(self, features: Tensor, action: Tensor | None = None, *, constant: bool = False) -> Tensor:
        """Bytes (O, B), and an action (A, B) -> (G, H, B)."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not constant):
            convolved = self.convolutions(features)
        found: Tensor = self.towers(convolved, action, constant=constant)
        return found


class OwnTowers(nn.Module):
    """A user's own network, once for each tower: of what it returns the head's parameters count, the values do not."""

    def __init__(self, kind: str, columns: int, outputs: int, seed: int, *, towers: int) -> None:
        super().__init__()
        self.nets = nn.ModuleList([user_network.load(kind, columns, outputs, seed + k) for k in range(towers)])
        if any(isinstance(net, recurrent.SampleMajor) for net in self.nets):
            raise ConfigError(
                "the network",
                [
                    'SAC and TD3 learn from single steps, and this network has a memory: use "ppo", or a network '
                    "without one"
                ],
            )

    def forward(self, features: Tensor, action: Tensor | None = None, *, constant: bool = False) -> Tensor:
        """Features (K, B), and an action (A, B) -> (G, H, B)."""
        both = features if action is None else torch.cat([features, action])
        return torch.stack([net(both)[0] for net in self.nets])


class Features:
    """What networks read of raw observations (O, B): numbers (K, B), categorical features one-hot, numeric ones
    normalised where there is a normalizer.

    Convolutions read bytes as they are, a user's own network all numbers as floats, with categories as they are.
    """

    def __init__(self, env: Env, config: mlp.Config, device: torch.device, *, normalize: bool) -> None:
        seen, own = env.observation, config.kind not in mlp.KINDS
        counts = seen.category_counts()
        self._raw, self._categories = config.kind == "cnn", 0 if own else seen.categories
        self.columns = seen.size if own else seen.columns
        self.normalizer: RunningNormalizer | None = None
        if not all(counts) and not self._raw:
            fixed = FixedScale(seen.bounds()[1], device) if seen.dtype == "uint8" and not own else None
            self.normalizer = RunningNormalizer(seen.size, device) if normalize else fixed
        self._partial = inputs.PartialOneHot(counts).to(device) if isinstance(self._categories, tuple) else None
        # (O, 1), what is not normalised
        self._kept = torch.tensor(counts, device=device)[:, None] > 0 if own and any(counts) else None

    def __call__(self, observation: Tensor) -> Tensor:
        """(O, B) -> (K, B) float32; bytes (O, B) for convolutions."""
        if self._raw:
            return observation
        if self._partial is not None:
            read: Tensor = self._partial(observation, self.normalizer)
            return read
        if self._categories:
            assert isinstance(self._categories, int)
            return inputs.one_hot(observation, self._categories)
        numbers = observation.float()
        if self.normalizer is None:
            return numbers
        normalized = self.normalizer.normalize(numbers)
        return normalized if self._kept is None else torch.where(self._kept, numbers, normalized)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold, by name."""
        return (
            {f"observation/{name}": value for name, value in self.normalizer.tensors().items()}
            if self.normalizer is not None
            else {}
        )
