"""Recurrent networks: layers of a recurrent cell between an encoder and its heads.

They map a sequence of observations, the state before it and the beginnings of episodes within it to outputs. Tensors
are feature-major: T steps of B lanes are (rows, T B), step after step.

- mingru: [c~, z~, p~] = W x + b, z = sigmoid(z~), c = c~ + 1/2 where c~ >= 0 else sigmoid(c~), h' = h + z (c - h),
  p = sigmoid(p~), output p h' + (1 - p) x (Feng et al. 2024, "Were RNNs all we needed?", with a highway connection:
  Srivastava et al. 2015).
- gru, lstm: see `operant.nn.cells`.

Shape letters: O observation, G towers, M units, K rows of gates, T steps, B lanes, R rows of a lane's state, H head
parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from operant.nn import cells, linear, mlp

if TYPE_CHECKING:
    from operant.nn.normalization import RunningNormalizer

State = tuple[Tensor, ...]

GATES = {"mingru": 3, "gru": 3, "lstm": 4}
"""Gates of each cell."""

_FORGET_BIAS = 1.0
"""Initial forget bias of an LSTM without `memory_init` (Jozefowicz, Zaremba & Sutskever 2015)."""

_OPEN, _SMALL = 5.0, 0.3
"""Initial gate bias of a delay line, open (+) or closed (-); initial scale of all its weights but the candidate's
recurrent ones.
"""


class Memory(nn.Module):
    """Recurrent layers of one kind of cell for G networks side by side ("towers"). Orthogonal weights for each gate,
    zero biases unless `memory_init` is set.

    The state of a lane is one column (R): layer, tower, unit; for an LSTM all h, then all c. It starts as zeros.
    """

    def __init__(self, config: mlp.Config, towers: int, columns: int, generator: torch.Generator) -> None:
        super().__init__()
        self.kind, self.towers, self.layers = config.memory, towers, config.memory_layers
        self.units = config.memory_size or columns
        M, count = self.units, GATES[config.memory]
        self.lstm_function: Any = None  # autograd.Function for `cells.lstm`
        self.rows = (2 if self.kind == "lstm" else 1) * self.layers * towers * M  # R

        def stacked(columns: int) -> nn.Parameter:
            gates = [
                torch.cat([mlp.orthogonal(M, columns, 1.0, generator) for _ in range(count)]) for _ in range(towers)
            ]
            return nn.Parameter(torch.stack(gates))

        # (G, K, M)
        self.input_weights = nn.ParameterList([stacked(columns if k == 0 else M) for k in range(self.layers)])
        self.input_biases = nn.ParameterList(
            [nn.Parameter(torch.zeros(towers, count * M, 1)) for _ in range(self.layers)]
        )
        loops = 0 if self.kind == "mingru" else self.layers
        self.state_weights = nn.ParameterList([stacked(M) for _ in range(loops)])  # (G, K, M)
        self.state_biases = nn.ParameterList(
            [nn.Parameter(torch.zeros(towers, M, 1)) for _ in range(loops if self.kind == "gru" else 0)]
        )
        self._initialise_gates(config.memory_init, generator)

    @torch.no_grad()
    def _initialise_gates(self, longest: int | None, generator: torch.Generator) -> None:
        """Set the gates' biases by chrono initialisation: a gate sigmoid(b) with b = ln(t - 1) keeps the state for
        about t steps, t uniform in [2, `longest`]. With `longest` None only an LSTM's forget bias is set.

        Tallec & Ollivier 2018, "Can recurrent neural networks warp time?", equation 12. With `longest` 1 a GRU or an
        LSTM is h' = tanh(x + W h) with an orthogonal W: a delay line that holds as many past inputs as there are units
        (White, Lee & Sompolinsky 2004).
        """
        M = self.units
        if longest == 1:
            self._initialise_delay_line()
            return
        for bias in self.input_biases:
            gates = bias.view(self.towers, -1, M, 1)
            if longest is None:
                if self.kind == "lstm":
                    gates[:, 1].fill_(_FORGET_BIAS)
                continue
            span = torch.rand(self.towers, M, 1, generator=generator).mul_(longest - 2).add_(1.0).log_()
            if self.kind == "mingru":  # 1 - z keeps
                gates[:, 1] = -span
            elif self.kind == "gru":  # z keeps
                gates[:, 1] = span
            else:
                gates[:, 0], gates[:, 1] = -span, span

    def _initialise_delay_line(self) -> None:
        """Set the gates' biases so that the candidate replaces the state at every step."""
        biases = {"gru": (_OPEN, -_OPEN), "lstm": (_OPEN, -_OPEN, _OPEN)}[self.kind]  # r, z or i, f, o
        rows = len(biases) * self.units
        for weight, loop in zip(self.input_weights, self.state_weights, strict=True):
            weight *= _SMALL  # sums of several inputs stay in the linear range of tanh
            loop[:, :rows] *= _SMALL
        for bias in self.input_biases:
            for gate, value in zip(bias.split(self.units, dim=1), biases, strict=False):
                gate.fill_(value)

    def forward(self, features: Tensor, state: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Unroll all layers over features (G, K, T B) from the initial state (R, B). Returns the last layer's outputs
        (G, M, T B) and the final state (R, B). For `keep` see `operant.nn.cells`.
        """
        T, B = keep.shape
        before = state.view(-1, self.layers, self.towers, self.units, B)
        after: list[tuple[Tensor, ...]] = []  # of each layer: h, or h and c
        for k, (weight, bias) in enumerate(zip(self.input_weights, self.input_biases, strict=True)):
            inputs = linear.linear(weight, bias, features).unflatten(2, (T, B))  # (G, K, T, B)
            if self.kind == "mingru":
                features, last = self._mingru(inputs, features.unflatten(2, (T, B)), before[0, k], keep)
                after.append((last,))
            elif self.kind == "gru":
                states = cells.gru(inputs, self.state_weights[k], self.state_biases[k], before[0, k], keep)
                features = states.flatten(2)
                after.append((states[:, :, -1],))
            else:
                states, cell = cells.lstm(
                    inputs, self.state_weights[k], before[0, k], before[1, k], keep, self.lstm_function
                )
                features = states.flatten(2)
                after.append((states[:, :, -1], cell))
        return features, torch.stack([torch.stack(layers) for layers in zip(*after, strict=True)]).detach().view(-1, B)

    def _mingru(self, gates: Tensor, features: Tensor, first: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Unroll one MinGRU layer over `gates` (G, 3 M, T, B) and inputs `features` (G, M, T, B) from the initial state
        `first` (G, M, B). Returns outputs (G, M, T B) and the final state (G, M, B).
        """
        hidden, gate, highway = gates.split(self.units, dim=1)
        write = gate.sigmoid()
        candidate = torch.where(hidden >= 0, hidden + 0.5, hidden.sigmoid())
        states = cells.scan((1.0 - write) * keep, write * candidate, first)
        return torch.lerp(features, states, highway.sigmoid()).flatten(2), states[:, :, -1]


class Sequential(Protocol):
    """Interface of recurrent networks: an initial state, and unrolling over T steps."""

    def initial_state(self, lanes: int) -> State:
        """Return the recurrent state of `lanes` lanes at an episode's start, tensors (R, N)."""

    def unroll(
        self, observation: Tensor, state: State, reset: Tensor, normalizer: Any = None
    ) -> tuple[Tensor, Tensor, State]:
        """Unroll T steps of B lanes: observations (O, T B), initial state, and `reset` (T, B), 1 where an episode
        begins. Returns parameters of the action distribution (H, T B), values (T B) and the final state.
        """


class Recurrent(nn.Module):
    """Recurrent policy and value network: a built-in encoder (MLP or convolutions), recurrent layers, output layers."""

    def __init__(self, encoder: Any, memory: Memory) -> None:
        """Join `encoder` and `memory`. The encoder is an MLP or a convolutional network, with `features` (O, B) to (G,
        K, B) and `heads` (G, M, B) to distribution parameters and values.
        """
        super().__init__()
        self.encoder, self.memory = encoder, memory

    def initial_state(self, lanes: int) -> State:
        """Return the recurrent state of `lanes` lanes at an episode's start: zeros (R, N)."""
        return (self.memory.input_biases[0].new_zeros(self.memory.rows, lanes),)

    def unroll(
        self, observation: Tensor, state: State, reset: Tensor, normalizer: RunningNormalizer | None = None
    ) -> tuple[Tensor, Tensor, State]:
        """Unroll T steps of B lanes; arguments and results as for `Sequential.unroll`."""
        (before,) = state
        features = self.encoder.features(observation, normalizer)
        features, after = self.memory(features, before, (reset == 0).to(before.dtype))
        parameters, value = self.encoder.heads(features)
        return parameters, value, (after,)


class SampleMajor(nn.Module):
    """Adapter from feature-major tensors to a user's own recurrent network, whose tensors are (T, B, ...).

    The network has `initial_state(B)`, a tuple of tensors (B, ...), and maps observations (T, B, O), a state and
    `reset` (T, B) to head parameters (T, B, H), values (T, B) or (T, B, 1) and the final state. It starts from its
    initial state where `reset` is 1.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._shapes = [part.shape[1:] for part in module.initial_state(1)]  # type: ignore[operator]

    @torch.no_grad()
    def initial_state(self, lanes: int) -> State:
        """Return the recurrent state of `lanes` lanes at an episode's start, as the user's network defines it."""
        return tuple(part.detach().reshape(lanes, -1).t().contiguous() for part in self.module.initial_state(lanes))  # type: ignore[operator]

    def unroll(
        self, observation: Tensor, state: State, reset: Tensor, normalizer: Any = None
    ) -> tuple[Tensor, Tensor, State]:
        """Unroll T steps of B lanes; arguments and results as for `Sequential.unroll`. Ignores `normalizer`: the caller
        has normalized the observations.
        """
        T, B = reset.shape
        before = tuple(part.t().reshape(B, *shape) for part, shape in zip(state, self._shapes, strict=True))
        head, value, after = self.module(observation.t().reshape(T, B, -1), before, reset.to(torch.float32))
        return head.flatten(0, 1).t(), value.reshape(-1), tuple(part.detach().reshape(B, -1).t() for part in after)
