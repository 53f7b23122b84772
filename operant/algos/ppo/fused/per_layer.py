"""The fused kernels of wide networks: a launch a layer, over chunks of samples whose activations lie in buffers. Knows no other form."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from operant.algos.ppo.fused.learner import Learner
from operant.kernels.layers import act_head, add_sums, back_layer, head, layer, value_head, weight_gradient
from operant.kernels.operands import gather, pack
from operant.kernels.tiles import LayeredShape

GATHER_ROWS, GATHER_BYTE_ROWS, GATHER_FIELDS = 32, 128, 128
"""Samples, or where they are bytes more of them, and numbers of each that a program gathers."""

HEAD_NUMBERS = 4096
"""Outputs of a tile of the head, at most: half a dozen numbers for each of them are in registers at once."""


class Layered(Learner):
    """Chunks of samples through all layers and back."""

    shape: LayeredShape

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        spec, chunk, device = self.spec, self.shape.chunk, self.policy.device
        kind = torch.bfloat16 if spec.precision == "bf16" else torch.float32

        def rows(width: int) -> Tensor:
            return torch.empty(spec.towers, chunk, width, dtype=kind, device=device)

        self._x = torch.empty(chunk, spec.inputs[0], dtype=torch.uint8 if spec.bytes else torch.float32, device=device)
        self._copy = self._x if spec.bytes else self._x.to(kind)  # bf16's; otherwise the same tensor
        self._hidden = [rows(width) for width in spec.hidden_pad]
        self._memory = self._hidden if spec.activation in ("tanh", "relu") else [rows(width) for width in spec.hidden_pad]
        self._back = [rows(width) for width in spec.widths]  # slopes of each layer before its activation; the last are the outputs'
        self._head_rows = min(self.shape.rows, HEAD_NUMBERS // spec.out_pad)
        self._tiles = chunk // self._head_rows
        self._sums = torch.empty(spec.towers, self._tiles, spec.sums[-1], device=device)
        self._first = torch.empty(spec.towers, spec.widths[0], spec.inputs[0], dtype=kind if spec.bytes else torch.float32, device=device)
        self._packed = torch.empty(spec.packed[-1], dtype=kind, device=device)
        self._last = len(spec.hidden)

    def prepare(self) -> None:
        """Take moments and weights as they are for a rollout."""
        super().prepare()
        self._pack()

    def _pack(self) -> None:
        spec = self.spec
        self._launch(pack, (max(spec.widths) // 16, self._last + 1, spec.towers), self._values, self._first, self._packed, SPEC=spec, num_warps=4)

    def _chunks(self, samples: int) -> Iterator[tuple[int, int]]:
        """(first, count) of each chunk."""
        for first in range(0, samples, self.shape.chunk):
            yield first, min(self.shape.chunk, samples - first)

    def _cut(self, wide: int, deep: int) -> dict[str, int]:
        """How a product is cut whose result has so many columns and whose sums so many terms."""
        shape = self.shape
        return {"COLUMNS": min(shape.columns, wide), "DEPTH": math.gcd(shape.depth, deep), "num_warps": shape.warps, "num_stages": shape.stages}

    def _first_cut(self, cut: dict[str, int]) -> dict[str, int]:
        """A cut of a product that turns bytes into numbers on its way: with fewer stages.

        With three, tiles of 128 x 128 x 64 in bf16, and bytes made one-hot in the product itself (as they no longer are), some rows were garbage on an H200
        (Triton 3.6), as if registers were overwritten before they had been multiplied. With two, every minibatch agrees with torch
        (tests/algos/test_fused_scale.py).
        """
        return {**cut, "num_stages": min(2, cut["num_stages"])} if self.spec.bytes else cut

    def _head_cut(self, wide: int) -> dict[str, int]:
        """The same of the head's kernels; `wide`: columns of the product behind it. With many outputs all is smaller: several share a multiprocessor."""
        cut, rows = self._cut(min(wide, 2 * HEAD_NUMBERS // self.spec.out_pad), self.spec.inputs[-1]), self._head_rows
        small = {} if rows == self.shape.rows else {"num_warps": min(4, self.shape.warps), "num_stages": min(2, self.shape.stages)}
        return {**cut, **small, "ROWS": rows}

    def _forward(
        self, observation: Tensor, first: int, count: int, *, ordered: bool = False, some: bool = False, keep: bool = False, critic: bool = False
    ) -> None:  # fmt: skip
        """Hidden layers of a chunk: of `count` samples from block `first` of the order or of the rollout on."""
        spec, shape, buffers = self.spec, self.shape, self.buffers
        truncated, tiles = buffers.rollout.truncated, -(-count // shape.rows)
        gathered, fields = min(GATHER_BYTE_ROWS if spec.bytes else GATHER_ROWS, shape.rows), math.gcd(GATHER_FIELDS, spec.inputs[0])
        self._launch(
            gather, (tiles * shape.rows // gathered, spec.inputs[0] // fields),
            buffers.order, observation, self._moments, truncated, self._x, self._copy, first, count, self._lanes,
            SPEC=spec, ROWS=gathered, FIELDS=fields, BLOCK=self.block, ORDERED=ordered, SOME=some, num_warps=4,
        )  # fmt: skip
        first_tower = 1 if critic and not spec.shared else 0
        for k in range(self._last):
            source, weights = (self._hidden[k - 1], self._packed[spec.packed[2 * k - 2] :]) if k > 0 else (self._x, self._first)
            cut = self._cut(spec.widths[k], spec.inputs[k])
            cut = self._first_cut(cut) if k == 0 else cut
            if k == 0 and spec.precision == "bf16" and not spec.bytes:  # whose operands are float32
                cut["DEPTH"] = max(16, cut["DEPTH"] // 2)
            self._launch(
                layer, (tiles * (spec.widths[k] // cut["COLUMNS"]), spec.towers - first_tower),
                source, weights, self._values, self._moments, truncated, self._hidden[k], self._memory[k], first_tower, first * self.block, count, shape.chunk,
                SPEC=spec, LAYER=k, KEEP=keep and self._memory is not self._hidden, SOME=some, ROWS=shape.rows, **cut,
            )  # fmt: skip

    # COLLECT

    def act(self, t: int) -> None:
        """Actions, log-probabilities and values of step t."""
        spec, shape, buffers = self.spec, self.shape, self.buffers
        cut = self._head_cut(0)
        del cut["COLUMNS"]
        for first, count in self._chunks(self._lanes):
            self._forward(buffers.rollout.observation, (t * self._lanes + first) // self.block, count)
            self._launch(
                act_head, (-(-count // self._head_rows), spec.towers),
                self._hidden[-1], self._packed, self._values, self._bounds, self._legal, buffers.noise, buffers.raw, buffers.rollout.action,
                self._place("log_probability"), self._place("value"), t, first, count, self._lanes, shape.chunk,
                SPEC=spec, **cut,
            )  # fmt: skip

    def leftovers(self, finals: bool) -> None:
        """V of the observation after the last step, and with `finals` of the true final observations of truncated episodes."""
        rollout = self.buffers.rollout
        for first, count in self._chunks(self._lanes):
            self._value(rollout.observation, self._place("value"), self._stride + first, count, some=False)
        for first, count in self._chunks(self._stride if finals else 0):
            self._value(rollout.final_observation, self.buffers.final_value, first, count, some=True)

    def _value(self, observation: Tensor, value: Tensor, first: int, count: int, *, some: bool) -> None:
        """V of samples first, ..., first + count - 1, with `some` only where tiles hold a truncated lane."""
        cut = self._head_cut(0)
        del cut["COLUMNS"]
        self._forward(observation, first // self.block, count, some=some, critic=True)
        self._launch(
            value_head, (-(-count // self._head_rows),),
            self._hidden[-1], self._packed, self._values, self.buffers.rollout.truncated, value, first, count, self.shape.chunk,
            SPEC=self.spec, SOME=some, **cut,
        )  # fmt: skip

    # UPDATE

    def gradient(self, first: int, blocks: int) -> None:
        """The gradient of the loss over blocks order[first : first + blocks], in parts."""
        self._pack()
        whole = blocks * self.block
        for begin, count in self._chunks(whole):
            self._forward(self.buffers.rollout.observation, first + begin // self.block, count, ordered=True, keep=True)
            self._backward(first + begin // self.block, count, whole)
            self._add_up(count, again=int(begin > 0))

    def _backward(self, first: int, count: int, whole: int) -> None:
        """Slopes of every layer of a chunk."""
        spec, shape, buffers, loss, last = self.spec, self.shape, self.buffers, self.loss, self._last
        tiles = -(-count // shape.rows)
        # Of all rows of the other layers' tiles, those behind the last sample too: what is behind them reads their slopes, which are 0.
        self._launch(
            head, (tiles * shape.rows // self._head_rows, spec.towers),
            buffers.order, self._legal, buffers.raw, buffers.samples, self._values, self._packed, self._scalars, self._hidden[-1], self._memory[-1],
            self._back[last], self._back[last - 1], self._sums,
            first, count, whole, self._lanes, self._stride, shape.chunk, self._tiles,
            loss.clip, loss.value_clip or 0.0, loss.entropy_coefficient, loss.value_coefficient,
            SPEC=spec, VALUE_CLIPPED=loss.value_clip is not None, BLOCK=self.block, **self._head_cut(spec.inputs[last]),
        )  # fmt: skip
        for k in range(last - 1, 0, -1):
            cut = self._cut(spec.inputs[k], spec.widths[k])
            self._launch(
                back_layer, (tiles * (spec.inputs[k] // cut["COLUMNS"]), spec.towers),
                self._back[k], self._packed, self._memory[k - 1], self._back[k - 1], self._sums, shape.chunk, self._tiles,
                SPEC=spec, LAYER=k, ROWS=shape.rows, **cut,
            )  # fmt: skip

    def _add_up(self, count: int, *, again: int) -> None:
        """A chunk's share of the gradient and of the loss's numbers into the programs' rows, `again`: on top of the chunks before."""
        spec, shape = self.spec, self.shape
        for k in range(self._last + 1):
            tall = min(shape.columns, spec.widths[k])
            cut = self._cut(spec.inputs[k], min(shape.rows, shape.depth))
            cut = self._first_cut(cut) if k == 0 else cut
            self._launch(
                weight_gradient, (spec.widths[k] // tall * -(-spec.inputs[k] // cut["COLUMNS"]), shape.programs, spec.towers),
                self._back[k], self._hidden[k - 1] if k > 0 else self._copy, self._moments, self._partial, count, shape.chunk, self._width, again,
                SPEC=spec, LAYER=k, TALL=tall, **cut,
            )  # fmt: skip
        self._launch(
            add_sums, (shape.programs, spec.towers, self._last),
            self._sums, self._partial, self._tiles, -(-count // shape.rows), -(-count // self._head_rows), self._width, again, SPEC=spec, num_warps=4,
        )  # fmt: skip
