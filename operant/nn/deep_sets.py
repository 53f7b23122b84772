"""Deep-sets network (`net.kind = "places"`) for observations of N interchangeable items, such as cards on a table, one
of which the action names (Zaheer et al. 2017, "Deep sets").

All items share their weights. An item's features depend on its own features and on the sum over all items, block after
block. Between blocks each item may have a recurrent cell, whose weights all items share.

Shape letters: N items, k categories, M units, T steps, B lanes, R rows of an item's recurrent state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from operant.nn import mlp, recurrent

_SUM_SCALE, _SUM_GAIN = 0.25, 0.2
"""Factor on the sum over items, so that one item's share is visible in it for any N; and initial gain of its weights.
"""


def unsupported_reason(env: Any, config: mlp.Config, head_rows: int) -> str | None:
    """Return why the deep-sets network cannot be used for an environment and configuration, as a sentence, or None if
    it can. `head_rows` is the number of outputs that the algorithm needs.
    """
    box, action = env.observation, env.action
    if not isinstance(box.categories, int) or box.categories == 0 or getattr(action, "n", None) != box.size:
        return (
            'net.kind = "places" needs an observation of N bytes with k categories each, and Discrete actions, one '
            'for each byte (use "mlp")'
        )
    if head_rows != box.size:
        return (
            f'net.kind = "places" has one output for each item, {box.size}, and the algorithm needs '
            f'{head_rows} (critic = "c51" does; use "mlp")'
        )
    if len(config.hidden) != 1:
        return (
            'net.hidden: must be one width with net.kind = "places", whose blocks are all as wide '
            f"(got {list(config.hidden)})"
        )
    if config.memory_size not in (None, config.hidden[0]):
        return (
            f"net.memory_size: must be the width of net.hidden, {config.hidden[0]}, or not set, with "
            f'net.kind = "places" (got {config.memory_size})'
        )
    if config.layer_norm:
        return 'net.layer_norm is not supported for net.kind = "places": leave it off, or use "mlp"'

    return None


class DeepSets(nn.Module):
    """Deep-sets network over N items that share all weights: `memory_layers` + 1 blocks. After each block but the last,
    each item may have a recurrent cell, whose output is concatenated to its input.
    """

    categories: Tensor  # (k, 1)

    def __init__(self, env: Any, config: mlp.Config, generator: torch.Generator) -> None:
        super().__init__()
        k, M, last = env.observation.category_counts()[0], config.hidden[0], config.memory_layers
        self.items, self._activation = env.observation.size, mlp.ACTIVATIONS[config.activation]
        self.register_buffer("categories", torch.arange(k, dtype=torch.uint8)[:, None], persistent=False)

        def weights(gain: float) -> nn.ParameterList:
            widths = (k, *(2 * M if config.is_recurrent else M for _ in range(last)))  # inputs of each block
            return nn.ParameterList([nn.Parameter(mlp.orthogonal(M, columns, gain, generator)) for columns in widths])

        # Weights of an item's own features, and of the sum over items, (M, k) or (M, 2 M).
        self.own, self.all = weights(1.0), weights(_SUM_GAIN)
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(M, 1)) for _ in range(last + 1)])
        single = config.model_copy(update={"memory_layers": 1, "memory_size": M})
        memories = [recurrent.Memory(single, 1, M, generator) for _ in range(last)] if config.is_recurrent else []
        self.memory, self._rows = nn.ModuleList(memories), [memory.rows for memory in memories]
        self.head_weight = nn.Parameter(mlp.orthogonal(1, M, 0.01, generator))
        self.value_weight = nn.Parameter(mlp.orthogonal(1, M, 1.0, generator))
        self.value_bias = nn.Parameter(torch.zeros(1))

    def initial_state(self, lanes: int) -> recurrent.State:
        """Return the recurrent state of `lanes` lanes at an episode's start: zeros (R N, B) for each
        recurrent layer.
        """
        return tuple(self.head_weight.new_zeros(rows * self.items, lanes) for rows in self._rows)

    def forward(self, observation: Tensor, normalizer: Any = None) -> tuple[Tensor, Tensor]:
        """Map categorical observations (N, B) to one logit per item (N, B) and values (B), for a network without
        recurrent cells. Ignores `normalizer`.
        """
        return self._through(observation[None], (), None)[:2]

    def unroll(
        self, observation: Tensor, state: recurrent.State, reset: Tensor, normalizer: Any = None
    ) -> tuple[Tensor, Tensor, recurrent.State]:
        """Unroll a network with recurrent cells over T steps of B lanes; arguments and results as for
        `recurrent.Sequential.unroll`.
        """
        codes = observation.unflatten(1, reset.shape).transpose(0, 1)  # (T, N, B)
        return self._through(codes, state, (reset == 0).float()[:, None].expand(codes.shape).flatten(1))

    def _through(
        self, codes: Tensor, state: recurrent.State, keep: Tensor | None
    ) -> tuple[Tensor, Tensor, recurrent.State]:
        """Map categories (T, N, B), initial states and `keep` (T, N B; 0 where an episode begins) to logits (N, T B),
        values (T B) and final states.
        """
        (T, N, B), final = codes.shape, []
        # One-hot features, (k, T, N, B).
        features = (codes.reshape(1, -1) == self.categories).float().view(-1, T, N, B)
        for block, (own_weight, sum_weight, bias) in enumerate(zip(self.own, self.all, self.biases, strict=True)):
            total = features.sum(dim=2).flatten(1) * _SUM_SCALE  # (K, T B)
            features = self._activation(
                (own_weight @ features.flatten(1)).view(-1, T, N, B)
                + torch.addmm(bias, sum_weight, total).view(-1, T, 1, B)
            )
            if keep is not None and block < len(self.memory):
                output, last = self.memory[block](
                    features.flatten(1)[None], state[block].contiguous().view(self._rows[block], N * B), keep
                )
                features = torch.cat([features, output.view(-1, T, N, B)])  # (2 M, T, N, B)
                final.append(last.view(state[block].shape))
        head, mean = (self.head_weight @ features.flatten(1)).view(T, N, B), features.mean(dim=2).flatten(1)
        return (
            head.transpose(0, 1).reshape(N, T * B),
            (self.value_weight @ mean + self.value_bias).flatten(),
            tuple(final),
        )
