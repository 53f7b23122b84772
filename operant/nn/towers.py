"""Fully connected networks side by side, without an actor's and a critic's heads: what off-policy actors and critics are made of. Knows no algorithm.

Everything is feature-major. G towers of the same shape are batched products, W (G, M, K) h (G, K, B).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from operant.envs import Env
from operant.nn import inputs, mlp
from operant.nn.normalization import FixedScale, RunningNormalizer

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu, "gelu": nn.functional.gelu, "silu": nn.functional.silu}


def problem(env: Env, config: mlp.Config) -> str | None:
    """Why such a network cannot read an environment's observations, in a sentence; None where it can."""
    seen = env.observation
    if isinstance(seen.categories, tuple) and len(seen.categories) != seen.size:
        return f"the observation has {seen.size} numbers, but categories for {len(seen.categories)}: one for each, 0 for a numeric one"
    return None if config.kind == "mlp" else f'net.kind should be "mlp" for SAC and TD3; "ppo", "dqn" and "pqn" take others, too (got {config.kind!r})'


class Towers(nn.Module):
    """G fully connected networks of the same shape, each with its own numbers: (K, B) or (G, K, B) -> (G, H, B). Orthogonal weights, zero biases."""

    def __init__(self, columns: int, outputs: int, config: mlp.Config, generator: torch.Generator, *, towers: int = 1, last_gain: float = 1.0) -> None:
        super().__init__()
        self.config, self.towers = config, towers
        self._activation, G = _ACTIVATIONS[config.activation], towers
        widths = (columns, *config.hidden, outputs)
        gains = (math.sqrt(2.0),) * len(config.hidden) + (last_gain,)

        def stacked(rows: int, columns: int, gain: float) -> nn.Parameter:
            return nn.Parameter(torch.stack([mlp.orthogonal(rows, columns, gain, generator) for _ in range(G)]))

        layers = zip(itertools.pairwise(widths), gains, strict=True)
        self.weights = nn.ParameterList([stacked(after, before, gain) for (before, after), gain in layers])  # (G, M, K), the last (G, H, K)
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(G, after, 1)) for after in widths[1:]])
        normed = config.hidden if config.layer_norm else ()
        self.norm_gains = nn.ParameterList([nn.Parameter(torch.ones(G, width, 1)) for width in normed])
        self.norm_biases = nn.ParameterList([nn.Parameter(torch.zeros(G, width, 1)) for width in normed])

    def forward(self, features: Tensor) -> Tensor:
        """(K, B), which all towers read, or (G, K, B) -> (G, H, B)."""
        hidden = features.expand(self.towers, -1, -1) if features.ndim == 2 else features
        last = len(self.config.hidden)
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.baddbmm(bias, weight, hidden)
            if k < last:
                if self.config.layer_norm:
                    hidden = mlp.layer_norm(hidden, self.norm_gains[k], self.norm_biases[k])
                hidden = self._activation(hidden)
        return hidden


class Features:
    """What networks read of raw observations (O, B): numbers (K, B), categorical features one-hot, numeric ones normalised where there is a normalizer."""

    def __init__(self, env: Env, device: torch.device, *, normalize: bool) -> None:
        seen = env.observation
        self._categories, counts = seen.categories, seen.category_counts()
        self.columns = seen.columns
        self.normalizer: RunningNormalizer | None = None
        if not all(counts):
            fixed = FixedScale(seen.bounds()[1], device) if seen.dtype == "uint8" else None
            self.normalizer = RunningNormalizer(seen.size, device) if normalize else fixed
        self._partial = inputs.PartialOneHot(counts).to(device) if isinstance(seen.categories, tuple) else None

    def __call__(self, observation: Tensor) -> Tensor:
        """(O, B) -> (K, B) float32."""
        if self._partial is not None:
            read: Tensor = self._partial(observation, self.normalizer)
            return read
        if self._categories:
            assert isinstance(self._categories, int)
            return inputs.one_hot(observation, self._categories)
        return observation.float() if self.normalizer is None else self.normalizer.normalize(observation.float())

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold, by name."""
        return {f"observation/{name}": value for name, value in self.normalizer.tensors().items()} if self.normalizer is not None else {}
