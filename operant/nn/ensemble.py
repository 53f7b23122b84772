"""Ensembles: G networks of one shape ("towers") side by side, the actors and critics of off-policy algorithms.

MLPs, MLPs over convolutions that all towers share, or a user's own network once for each tower. They read features and,
as critics of continuous actions, the action. Tensors are feature-major. G towers of one shape are batched products W h,
(G, M, K) @ (G, K, B).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from operant.envs import Box, Env
from operant.errors import ConfigError
from operant.nn import cnn, first_layer, mlp, recurrent, user_network
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
    """Create G = `towers` networks of one shape side by side, from observation features (see `Features`) and `actions`
    rows of an action to `outputs` rows: see `MLPEnsemble.forward`. Raises ConfigError for observations that the network
    cannot read.

    On a GPU with `precision` "bf16" all but the last layer computes in bf16. `last_gain` scales the initial weights of
    the last layer.
    """
    box, dtype = env.observation, torch.bfloat16 if precision == "bf16" and device.type == "cuda" else None
    if (reason := _unsupported_reason(box, config)) is not None:
        raise ConfigError("the network", [reason])
    if config.kind not in mlp.KINDS:
        seed = generator.initial_seed()
        return UserEnsemble(config.kind, box.size + actions, outputs, seed, towers=towers).to(device)

    shape: dict[str, Any] = {"towers": towers, "last_gain": last_gain, "dtype": dtype}
    if config.kind == "mlp":
        return MLPEnsemble(box.columns + actions, outputs, config, generator, **shape).to(device)
    if device.type == "cuda":
        cnn.settle(precision)
    convolutions = cnn.Convolutions(box, config, generator, dtype=dtype)
    relu = config.model_copy(update={"activation": "relu"})
    mlps = MLPEnsemble(convolutions.columns + actions, outputs, relu, generator, **shape)
    return ConvEnsemble(convolutions, mlps).to(device)


def _unsupported_reason(box: Box, config: mlp.Config) -> str | None:
    """Return why actors and critics cannot have this network, as a sentence, or None if they can."""
    if isinstance(box.categories, tuple) and len(box.categories) != box.size:
        return (
            f"the observation has {box.size} values, but categories for {len(box.categories)}: one for each, 0 "
            "for a numeric feature"
        )
    if config.is_recurrent:
        return (
            f'net.memory: SAC and TD3 support feed-forward networks only (use algo.name = "ppo"; got {config.memory!r})'
        )
    if config.kind == "places":
        return (
            'net.kind = "places" is not supported by SAC and TD3 (use algo.name = "ppo", "dqn" or "pqn", or '
            'net.kind = "mlp")'
        )
    if config.kind not in mlp.KINDS and config.critic_hidden is not None:
        return (
            "net.critic_hidden is not supported for a network of your own, whose file sets its widths (got "
            f"{list(config.critic_hidden)})"
        )
    return cnn.unsupported_reason(box, config) if config.kind == "cnn" else None


def products(env: Env, config: mlp.Config, actions: int, outputs: int, *, towers: int = 1) -> int:
    """Return the number of multiplications in the forward pass of one sample, for the network that
    `network` creates.
    """
    if config.kind == "mlp":
        widths = (env.observation.columns + actions, *config.hidden, outputs)
        return towers * sum(a * b for a, b in itertools.pairwise(widths))
    device = torch.device("cpu")
    net = network(env, config, actions, outputs, torch.Generator(), device, towers=towers)
    features = Features(env, config, device, normalize=False)
    observation = torch.zeros(env.observation.size, 2, dtype=getattr(torch, env.observation.dtype))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(features(observation), torch.zeros(actions, 2) if actions else None)
    return counter.get_total_flops() // 4  # two samples, two FLOPs for each multiplication


class MLPEnsemble(nn.Module):
    """G MLPs of one shape with separate parameters ("towers"): maps (K, B) or (G, K, B) to (G, H, B). Orthogonal
    weights, zero biases.
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
        """Create the MLPs, with K = `columns` inputs and H = `outputs`. `dtype` is that of products in all but the last
        layer, by default that of the parameters. `last_gain` scales the last layer's initial weights.
        """
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
        """Map features (K, B), shared by all towers, and an optional action (A, B) to outputs (G, H, B). With
        `constant` weights and biases get no gradient.
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
        """Apply one tower, (K, B) to (H, B), in rows of samples: cuBLAS then fuses bias and relu into the product."""
        rows = features.to(dtype).t()  # (B, K)
        for weight, bias in layers[:-1]:
            rows = _LinearRelu.apply(rows, weight.to(dtype), bias[:, 0].to(dtype))
        weight, bias = layers[-1]
        return torch.addmm(bias, weight, rows.t().to(weight.dtype))


class _LinearRelu(torch.autograd.Function):
    """Autograd function relu(x W^T + b) of rows x (B, K), weight (M, K) and bias (M), in one kernel on a GPU."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = torch._addmm_activation(bias, rows, weight.t())
        ctx.save_for_backward(rows, weight, out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, out = ctx.saved_tensors
        needs_rows, needs_weight, needs_bias = ctx.needs_input_grad
        g = torch.ops.aten.threshold_backward(gradient, out, 0)
        return (
            g @ weight if needs_rows else None,
            g.t() @ rows if needs_weight else None,
            g.sum(dim=0) if needs_bias else None,
        )


class ConvEnsemble(nn.Module):
    """G MLPs on top of convolutions that they share. The action enters after the convolutions."""

    def __init__(self, convolutions: cnn.Convolutions, towers: MLPEnsemble) -> None:
        super().__init__()
        self.convolutions, self.towers = convolutions, towers

    def forward(self, features: Tensor, action: Tensor | None = None, *, constant: bool = False) -> Tensor:
        """Map bytes (O, B) and an optional action (A, B) to outputs (G, H, B). With `constant` the parameters get no
        gradient.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not constant):
            convolved = self.convolutions(features)
        outputs: Tensor = self.towers(convolved, action, constant=constant)
        return outputs


class UserEnsemble(nn.Module):
    """G networks of a user's own class with separate parameters. The distribution parameters that such a network
    returns are its outputs; its values are discarded.
    """

    def __init__(self, kind: str, columns: int, outputs: int, seed: int, *, towers: int) -> None:
        super().__init__()
        self.nets = nn.ModuleList([user_network.load(kind, columns, outputs, seed + k) for k in range(towers)])
        if any(isinstance(net, recurrent.SampleMajor) for net in self.nets):
            raise ConfigError(
                "the network",
                [
                    'SAC and TD3 support feed-forward networks only, and this one is recurrent: use "ppo", or a '
                    "feed-forward network"
                ],
            )

    def forward(self, features: Tensor, action: Tensor | None = None, *, constant: bool = False) -> Tensor:
        """Map features (K, B) and an optional action (A, B) to outputs (G, H, B). Ignores `constant`: the parameters
        get a gradient.
        """
        inputs = features if action is None else torch.cat([features, action])
        return torch.stack([net(inputs)[0] for net in self.nets])


class Features:
    """Conversion of raw observations (O, B) to features (K, B): categorical ones one-hot, numeric ones with `normalize`
    as (x - mean) / std by running statistics.

    Convolutions read the bytes themselves. A user's own network reads all values as floats, categories included.
    """

    def __init__(self, env: Env, config: mlp.Config, device: torch.device, *, normalize: bool) -> None:
        box, user_net = env.observation, config.kind not in mlp.KINDS
        counts = box.category_counts()
        self._raw, self._categories = config.kind == "cnn", 0 if user_net else box.categories
        self.columns = box.size if user_net else box.columns
        self.normalizer: RunningNormalizer | None = None
        if not all(counts) and not self._raw:
            fixed = FixedScale(box.bounds()[1], device) if box.dtype == "uint8" and not user_net else None
            self.normalizer = RunningNormalizer(box.size, device) if normalize else fixed
        self._partial = first_layer.PartialOneHot(counts).to(device) if isinstance(self._categories, tuple) else None
        # Mask of categorical values, which a user's network reads unnormalized, (O, 1).
        self._categorical = torch.tensor(counts, device=device)[:, None] > 0 if user_net and any(counts) else None

    def __call__(self, observation: Tensor) -> Tensor:
        """Convert observations (O, B) to features (K, B) float32; for convolutions return the bytes (O, B)."""
        if self._raw:
            return observation
        if self._partial is not None:
            encoded: Tensor = self._partial(observation, self.normalizer)
            return encoded
        if self._categories:
            assert isinstance(self._categories, int)
            return first_layer.one_hot(observation, self._categories)
        values = observation.float()
        if self.normalizer is None:
            return values
        normalized = self.normalizer.normalize(values)
        return normalized if self._categorical is None else torch.where(self._categorical, values, normalized)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint, by name; a load copies into them."""
        return (
            {f"observation/{name}": value for name, value in self.normalizer.tensors().items()}
            if self.normalizer is not None
            else {}
        )
