"""A network for observations of places that are alike, such as cards on a table, of which an action names one: every
place has the same weights.

A place's features are made of its own and of the sum over all places, block after block; between blocks each place may
have a memory of its own, a cell whose weights all places share. What is learnt at one place holds at all. Knows no
algorithm and no environment's rules.

Shape letters: N places, k categories, M units, T steps, B lanes, R numbers of a place's state, in a memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from operant.nn import mlp, recurrent

_PART, _GAIN = 0.25, 0.2
"""Of a sum over places what is read, so that what one of them adds is seen however many there are, and the scale of its
weights at first, so that all are not too much.
"""


def unsupported_reason(env: Any, config: mlp.Config, head_rows: int) -> str | None:
    """The sentence that says why such a network cannot read this environment, or None where it can. `head_rows`:
    numbers that the head is asked for.
    """
    seen, action = env.observation, env.action
    if not isinstance(seen.categories, int) or seen.categories == 0 or getattr(action, "n", None) != seen.size:
        return (
            'net.kind = "places" reads places that are alike, bytes with k categories each, and an action must '
            'name one of them (use "mlp")'
        )
    if head_rows != seen.size:
        return (
            f'net.kind = "places" has one number for each place, {seen.size}, and the algorithm asks for '
            f'{head_rows} (critic = "c51" does; use "mlp")'
        )
    if len(config.hidden) != 1:
        return f'net.hidden: all blocks of net.kind = "places" are as wide, one number: got {list(config.hidden)}'
    if config.memory_size not in (None, config.hidden[0]):
        return (
            f'net.memory_size: memories of net.kind = "places" are as wide as net.hidden, {config.hidden[0]}, or '
            f"not set: got {config.memory_size}"
        )
    if config.layer_norm:
        return 'net.layer_norm: net.kind = "places" has none (leave it off, or use "mlp")'
    return None


class Places(nn.Module):
    """`memory_layers` + 1 blocks, and behind each but the last a memory for each place, beside what it reads.
    Feature-major.
    """

    categories: Tensor  # (k, 1)

    def __init__(self, env: Any, config: mlp.Config, generator: torch.Generator) -> None:
        super().__init__()
        k, M, last = env.observation.category_counts()[0], config.hidden[0], config.memory_layers
        self.places, self._activation = env.observation.size, mlp.ACTIVATIONS[config.activation]
        self.register_buffer("categories", torch.arange(k, dtype=torch.uint8)[:, None], persistent=False)

        def weights(gain: float) -> nn.ParameterList:
            seen = (k, *(2 * M if config.remembers else M for _ in range(last)))  # what a block reads
            return nn.ParameterList([nn.Parameter(mlp.orthogonal(M, columns, gain, generator)) for columns in seen])

        # (M, k) or (M, 2 M): of a place's own features, and of the sum over places
        self.own, self.all = weights(1.0), weights(_GAIN)
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(M, 1)) for _ in range(last + 1)])
        each = config.model_copy(update={"memory_layers": 1, "memory_size": M})
        memories = [recurrent.Memory(each, 1, M, generator) for _ in range(last)] if config.remembers else []
        self.memory, self._rows = nn.ModuleList(memories), [memory.rows for memory in memories]
        self.head_weight, self.value_weight = (
            nn.Parameter(mlp.orthogonal(1, M, 0.01, generator)),
            nn.Parameter(mlp.orthogonal(1, M, 1.0, generator)),
        )
        self.value_bias = nn.Parameter(torch.zeros(1))

    def initial_state(self, lanes: int) -> recurrent.State:
        """The state at an episode's beginning: of each memory zeros, (R N, B)."""
        return tuple(self.head_weight.new_zeros(rows * self.places, lanes) for rows in self._rows)

    def forward(self, observation: Tensor, normalizer: Any = None) -> tuple[Tensor, Tensor]:
        """Codes (N, B) -> head parameters (N, B), values (B), of a network without memories."""
        return self._through(observation[None], (), None)[:2]

    def unroll(
        self, observation: Tensor, state: recurrent.State, reset: Tensor, normalizer: Any = None
    ) -> tuple[Tensor, Tensor, recurrent.State]:
        """As `recurrent.Sequential`, of a network with memories."""
        codes = observation.unflatten(1, reset.shape).transpose(0, 1)  # (T, N, B)
        return self._through(codes, state, (reset == 0).float()[:, None].expand(codes.shape).flatten(1))

    def _through(
        self, codes: Tensor, state: recurrent.State, keep: Tensor | None
    ) -> tuple[Tensor, Tensor, recurrent.State]:
        """Codes (T, N, B), the states before, 0 where episodes begin (T, N B) -> head parameters (N, T B), values (T
        B), and the states after.
        """
        (T, N, B), after = codes.shape, []
        # (k, T, N, B), lanes of a place side by side
        features = (codes.reshape(1, -1) == self.categories).float().view(-1, T, N, B)
        for block, (own, every, bias) in enumerate(zip(self.own, self.all, self.biases, strict=True)):
            total = features.sum(dim=2).flatten(1) * _PART  # (K, T B)
            features = self._activation(
                (own @ features.flatten(1)).view(-1, T, N, B) + torch.addmm(bias, every, total).view(-1, T, 1, B)
            )
            if keep is not None and block < len(self.memory):
                found, last = self.memory[block](
                    features.flatten(1)[None], state[block].contiguous().view(self._rows[block], N * B), keep
                )
                features = torch.cat([features, found.view(-1, T, N, B)])  # (2 M, T, N, B)
                after.append(last.view(state[block].shape))
        head, mean = (self.head_weight @ features.flatten(1)).view(T, N, B), features.mean(dim=2).flatten(1)
        return (
            head.transpose(0, 1).reshape(N, T * B),
            (self.value_weight @ mean + self.value_bias).flatten(),
            tuple(after),
        )
