"""Per-layer engine, for networks too wide for one program: one launch per layer and microbatch of samples."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from operant.kernels.dense.learner import Learner, Spec, Task
from operant.kernels.dense.task import B, C
from operant.kernels.layers import (
    Head,
    Layer,
    act_head,
    add_tile_sums,
    backward_head,
    backward_layer,
    forward_layer,
    normalize_layer,
    normalize_layer_backward,
    value_head,
    weight_gradient,
)
from operant.kernels.packing import gather, gather_chunks, pack
from operant.kernels.tile_config import PerLayer, multiple, power_of_two

GATHER_BLOCK_M, GATHER_BYTES_BLOCK_M, GATHER_BLOCK_N = 32, 128, 128
"""Tile of the gather kernels: samples (float32 or bytes), and columns."""

NORM_ELEMENTS = 8192
"""Largest tile of layer normalization, samples x units."""

HEAD_ELEMENTS = 4096
"""Largest tile of the head, samples x outputs; each element takes about six registers."""


class PerLayerLearner(Learner[B, C]):
    """Engine with one launch per layer and microbatch (as many samples as its buffers hold). Activations lie in buffers
    (towers, capacity, padded width).
    """

    config: PerLayer
    acts_on_slices = True

    def __init__(self, spec: Spec, task: Task[B, C], config: PerLayer) -> None:
        super().__init__(spec, task, config)
        device = self.policy.device
        # A slot is a chunk's rows, rounded up to whole tiles; a microbatch has a power of two of slots. The config
        # counts samples instead of rows of slots, so that a minibatch of that size is one microbatch.
        chunk = self.layout.chunk_blocks * self.layout.block
        self._slot = multiple(chunk, max(config.block_m, self.layout.block))
        self._slots = min(config.chunks, power_of_two(config.microbatch * config.chunks / self.layout.samples))
        capacity = self._slots * self._slot
        dtype = self._allocate(capacity)
        # Gradients in each layer's pre-activations; the last in the outputs.
        self._gradients = [
            torch.empty(spec.towers, capacity, width, dtype=dtype, device=device) for width in spec.widths
        ]
        # Learners with separate buffers for slices of the lanes, by first lane.
        self._slices: dict[int, PerLayerLearner[B, C]] = {}
        self._head_block_m = min(config.block_m, HEAD_ELEMENTS // spec.out_pad)
        self._norm_block_m = min(self._head_block_m, NORM_ELEMENTS // max(spec.hidden_pad))
        self._tiles = capacity // (self._norm_block_m if spec.layer_norm else self._head_block_m)
        self._tile_sums = torch.empty(spec.towers, self._tiles, spec.tile_sums.width, device=device)
        self._first = torch.empty(
            spec.towers, spec.widths[0], spec.inputs[0], dtype=dtype if spec.bytes else torch.float32, device=device
        )
        self._packed = torch.empty(spec.packed[-1], dtype=dtype, device=device)
        self._last = len(spec.hidden)

    def _allocate(self, capacity: int) -> torch.dtype:
        """Allocate the buffers of inputs and activations for `capacity` samples, the largest microbatch; return the
        activations' dtype.
        """
        spec, device, self._capacity = self.spec, self.policy.device, capacity
        dtype = torch.bfloat16 if spec.precision == "bf16" else torch.float32

        def rows(width: int) -> Tensor:
            return torch.empty(spec.towers, capacity, width, dtype=dtype, device=device)

        self._x = torch.empty(
            capacity, spec.inputs[0], dtype=torch.uint8 if spec.bytes else torch.float32, device=device
        )
        self._rounded = self._x if spec.bytes else self._x.to(dtype)  # a copy in bf16 alone
        self._hidden = [rows(width) for width in spec.hidden_pad]
        self._saved = (
            self._hidden
            if spec.activation in ("tanh", "relu") and not spec.layer_norm
            else [rows(width) for width in spec.hidden_pad]
        )
        return dtype

    # TILING

    def _tiling(self, columns: int, depth: int) -> dict[str, int]:
        """Return launch options (tile, warps, stages) of a matrix product with `columns` columns and inner dimension
        `depth`.
        """
        config = self.config
        return {
            "BLOCK_N": min(config.block_n, columns),
            "BLOCK_K": math.gcd(config.block_k, depth),
            "num_warps": config.warps,
            "num_stages": config.stages,
        }

    def _first_tiling(self, tiling: dict[str, int]) -> dict[str, int]:
        """Return launch options of the first layer's product, from those of any: at most two stages if it converts
        bytes.

        With three stages, tiles of 128 x 128 x 64 in bf16, and one-hot encoding inside the product (now done before),
        some rows were garbage on an H200 (Triton 3.6), as if registers were overwritten before their product. With two
        stages every minibatch agrees with torch (tests/algos/test_fused_scale.py).
        """
        return {**tiling, "num_stages": min(2, tiling["num_stages"])} if self.spec.bytes else tiling

    def _head_tiling(self, columns: int) -> dict[str, int]:
        """Return launch options of the output layer's kernels; `columns`: number of columns of the backward product.

        With many outputs tiles are smaller, so that several programs share a multiprocessor.
        """
        config, block_m = self.config, self._head_block_m
        tiling = self._tiling(min(columns, 2 * HEAD_ELEMENTS // self.spec.out_pad), self.spec.inputs[-1])
        small = (
            {}
            if block_m == config.block_m
            else {"num_warps": min(4, config.warps), "num_stages": min(2, config.stages)}
        )
        return {**tiling, **small, "BLOCK_M": block_m}

    def _gather_tiling(self) -> dict[str, int]:
        """Return launch options of the kernels that gather samples."""
        block_m = min(GATHER_BYTES_BLOCK_M if self.spec.bytes else GATHER_BLOCK_M, self.config.block_m)
        return {
            "BLOCK_M": block_m,
            "BLOCK_N": math.gcd(GATHER_BLOCK_N, self.spec.inputs[0]),
            "BLOCK": self.layout.block,
            "num_warps": 4,
        }

    # FORWARD

    def prepare(self) -> None:
        """Copy the normalizer's statistics into the kernels' table and pack the weights, for a rollout."""
        super().prepare()
        self._pack()

    def _pack(self) -> None:
        """Copy the weights, padded, in the type of the matrix products."""
        spec = self.spec
        self.launch(
            pack,
            (max(spec.widths) // 16, self._last + 1, spec.towers),
            self._values,
            self._first,
            self._packed,
            SPEC=spec,
            num_warps=4,
        )

    def _microbatches(self, samples: int) -> Iterator[tuple[int, int]]:
        """Yield first sample and number of samples of each microbatch of `samples` consecutive samples."""
        for first in range(0, samples, self._capacity):
            yield first, min(self._capacity, samples - first)

    def _gather(self, observation: Tensor, first: int, count: int, *, truncated_only: bool = False) -> None:
        """Gather `count` samples of an observation buffer from block `first` on into the first layer's input; with
        `truncated_only` only tiles with a truncated sample.
        """
        tiling, spec, config = self._gather_tiling(), self.spec, self.config
        self.launch(
            gather,
            (multiple(count, config.block_m) // tiling["BLOCK_M"], spec.inputs[0] // tiling["BLOCK_N"]),
            self._inputs()._replace(observation=observation),
            self.buffers.rollout.truncated,
            self._x,
            self._rounded,
            first,
            count,
            self._lanes,
            SPEC=spec,
            TRUNCATED_ONLY=truncated_only,
            **tiling,
        )

    def _forward(
        self,
        first: int,
        count: int,
        *,
        truncated_only: bool = False,
        save: bool = False,
        critic: bool = False,
        begin: int = 0,
    ) -> None:
        """Run the hidden layers from layer `begin` on over the gathered rows, `count` samples of the rollout from
        sample `first` on.

        `save`: also store the tensors that the backward pass reads. `critic`: the critic's tower alone.
        `truncated_only`: only tiles with a truncated sample.
        """
        spec, config = self.spec, self.config
        tiles, first_tower = -(-count // config.block_m), 1 if critic and not spec.shared else 0
        for k in range(begin, self._last):
            source, weights = (
                (self._hidden[k - 1], self._packed[spec.packed[2 * k - 2] :]) if k > 0 else (self._x, self._first)
            )
            tiling = self._tiling(spec.widths[k], spec.inputs[k])
            tiling = self._first_tiling(tiling) if k == 0 else tiling
            if k == 0 and spec.precision == "bf16" and not spec.bytes:  # operands are float32
                tiling["BLOCK_K"] = max(16, tiling["BLOCK_K"] // 2)
            self.launch(
                forward_layer,
                (tiles * (spec.widths[k] // tiling["BLOCK_N"]), spec.towers - first_tower),
                Layer(source, weights, self._hidden[k], self._saved[k]),
                self._values,
                self._normalizer,
                self.buffers.rollout.truncated,
                first_tower,
                first,
                count,
                self._capacity,
                SPEC=spec,
                LAYER=k,
                SAVE=save and self._saved is not self._hidden,
                TRUNCATED_ONLY=truncated_only,
                BLOCK_M=config.block_m,
                **tiling,
            )
            if spec.layer_norm:
                self.launch(
                    normalize_layer,
                    (tiles * config.block_m // self._norm_block_m, spec.towers - first_tower),
                    self._saved[k],
                    self._hidden[k],
                    self._values,
                    self.buffers.rollout.truncated,
                    first_tower,
                    first,
                    count,
                    self._capacity,
                    SPEC=spec,
                    LAYER=k,
                    TRUNCATED_ONLY=truncated_only,
                    BLOCK_M=self._norm_block_m,
                    num_warps=4,
                )

    # COLLECT

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Act at step t on all lanes or a slice of `lanes`: write actions, log-probabilities and values."""
        if lanes is None:
            for first, count in self._microbatches(self._lanes):
                self._act(t, first, count)
            return
        # Another slice may run concurrently, so each has separate buffers.
        if lanes.start not in self._slices:
            part = copy.copy(self)
            part._allocate(
                multiple(lanes.stop - lanes.start + 2 * self.layout.block + self.config.block_m, self.config.block_m)
            )
            self._slices[lanes.start] = part
        self._slices[lanes.start]._act(t, lanes.start, lanes.stop - lanes.start)

    def _act(self, t: int, first: int, count: int) -> None:
        """Act at step t on `count` lanes from lane `first` on."""
        block = self.layout.block
        # The layers process whole blocks of lanes.
        before = first % block
        rows = multiple(before + count, block)
        self._gather(self.buffers.rollout.observation, (t * self._lanes + first) // block, rows)
        self._forward(t * self._lanes + first - before, rows)
        self._act_head(self._hidden[-1].flatten()[before * self.spec.inputs[-1] :], t, first, count)

    def _act_head(self, hidden: Tensor, t: int, first: int, count: int) -> None:
        """Compute the outputs of step t from the last activations `hidden` of `count` lanes from lane `first` on, and
        sample actions from them.
        """
        tiling = self._head_tiling(0)
        del tiling["BLOCK_N"]
        self.launch(
            act_head,
            (-(-count // self._head_block_m), self.spec.towers),
            hidden,
            self._packed,
            self._values,
            self._legal_mask,
            self.hooks.acting(),
            t,
            first,
            count,
            self._lanes,
            self._capacity,
            SPEC=self.spec,
            SAMPLE=self.hooks.sample,
            **tiling,
        )

    def bootstrap(self, finals: bool) -> None:
        """Write values of the observations after the last step, and with `finals` of the true final observations of
        truncated lanes.
        """
        rollout = self.buffers.rollout
        for first, count in self._microbatches(self._lanes):
            self._value(rollout.observation, self.hooks.values(), self._stride + first, count, truncated_only=False)
        for first, count in self._microbatches(self._stride if finals else 0):
            self._value(rollout.final_observation, self.buffers.final_value, first, count, truncated_only=True)

    def _value(self, observation: Tensor, value: Tensor, first: int, count: int, *, truncated_only: bool) -> None:
        """Write values of `count` samples of `observation` from sample `first` on to `value`; with `truncated_only`
        only of tiles with a truncated sample.
        """
        self._gather(observation, first // self.layout.block, count, truncated_only=truncated_only)
        self._forward(first, count, truncated_only=truncated_only, critic=True)
        self._value_head(value, first, count, truncated_only=truncated_only)

    def _value_head(self, value: Tensor, first: int, count: int, *, truncated_only: bool) -> None:
        """Write values of `count` samples from sample `first` on to `value`, from their last activations; with
        `truncated_only` only of tiles with a truncated sample.
        """
        tiling = self._head_tiling(0)
        del tiling["BLOCK_N"]
        self.launch(
            value_head,
            (-(-count // self._head_block_m),),
            self._hidden[-1],
            self._packed,
            self._values,
            self.buffers.rollout.truncated,
            self._legal_mask,
            value,
            first,
            count,
            self._lanes,
            self._capacity,
            SPEC=self.spec,
            VALUE=self.hooks.value_of,
            TRUNCATED_ONLY=truncated_only,
            **tiling,
        )

    # UPDATE

    def backward(self, k: int) -> None:
        """Write the partial sums (chunks, P + 32) of minibatch k, counted over all epochs, one microbatch of chunks at
        a time.
        """
        self._pack()
        for first_chunk in range(0, self.config.chunks, self._slots):
            self._gather_chunks(k, first_chunk)
            self._forward(0, self._capacity, save=True)
            self._gradient_head(k, first_chunk, self.spec, self._gradients[self._last - 1])
            self._gradient_layers()
            self._sum(first_chunk)

    def _gather_chunks(self, k: int, first_chunk: int) -> None:
        """Gather the samples of minibatch k's chunks from `first_chunk` on, as many as a microbatch holds."""
        tiling = self._gather_tiling()
        self.launch(
            gather_chunks,
            (self._capacity // tiling["BLOCK_M"], self.spec.inputs[0] // tiling["BLOCK_N"]),
            self._minibatch(k),
            self._inputs(),
            self._x,
            self._rounded,
            first_chunk,
            self._slot,
            self._lanes,
            SPEC=self.spec,
            **tiling,
        )

    def _gradient_head(self, k: int, first_chunk: int, spec: Spec, grad_in: Tensor) -> None:
        """Compute the gradient of minibatch k's loss in the outputs of a microbatch, whose first chunk is
        `first_chunk`, and in the last hidden layer's pre-activations, `grad_in`.
        """
        last = self._last
        # All rows of a slot: those after the chunk's last sample get zero gradients, which the sums rely on.
        head = Head(self._hidden[-1], self._saved[-1], self._packed, self._gradients[last], grad_in, self._tile_sums)
        self.launch(
            backward_head,
            (self._capacity // self._head_block_m, spec.towers),
            self._minibatch(k),
            self._inputs(),
            self.hooks.samples(),
            self._values,
            head,
            first_chunk,
            self._slot,
            self._lanes,
            self._capacity,
            self._tiles,
            SPEC=spec,
            LOSS=self.hooks.loss,
            BLOCK=self.layout.block,
            **self._head_tiling(spec.inputs[last]),
        )

    def _gradient_layers(self) -> None:
        """Run the backward pass from the last hidden layer to the first: the gradient in each layer's
        pre-activations.
        """
        spec, config, last = self.spec, self.config, self._last
        self._normalize_backward(last - 1)
        for layer in range(last - 1, 0, -1):
            tiling = self._tiling(spec.inputs[layer], spec.widths[layer])
            self.launch(
                backward_layer,
                (self._capacity // config.block_m * (spec.inputs[layer] // tiling["BLOCK_N"]), spec.towers),
                self._gradients[layer],
                self._packed,
                self._saved[layer - 1],
                self._gradients[layer - 1],
                self._tile_sums,
                self._capacity,
                self._tiles,
                SPEC=spec,
                LAYER=layer,
                BLOCK_M=config.block_m,
                **tiling,
            )
            self._normalize_backward(layer - 1)

    def _normalize_backward(self, k: int) -> None:
        """Replace the gradient in hidden layer k's activations by that in its pre-activations, if the layer is
        normalized.
        """
        if self.spec.layer_norm:
            self.launch(
                normalize_layer_backward,
                (self._capacity // self._norm_block_m, self.spec.towers),
                self._saved[k],
                self._gradients[k],
                self._values,
                self._tile_sums,
                self._capacity,
                self._tiles,
                SPEC=self.spec,
                LAYER=k,
                BLOCK_M=self._norm_block_m,
                num_warps=4,
            )

    def _sum(self, first_chunk: int) -> None:
        """Sum the gradients and loss terms of a microbatch, whose first chunk is `first_chunk`, over each chunk's
        samples into the chunk's row of partial sums.
        """
        spec, config = self.spec, self.config
        for k in range(self._last + 1):
            outputs = min(config.block_n, spec.widths[k])
            tiling = self._tiling(spec.inputs[k], min(config.block_m, config.block_k))
            tiling = self._first_tiling(tiling) if k == 0 else tiling
            inputs = self._rounded if k == 0 else self._hidden[-1 if k == self._last else k - 1]
            self.launch(
                weight_gradient,
                (spec.widths[k] // outputs * -(-spec.inputs[k] // tiling["BLOCK_N"]), self._slots, spec.towers),
                self._gradients[k],
                inputs,
                self._normalizer,
                self._partial,
                first_chunk,
                self._slot,
                self._capacity,
                self._width,
                SPEC=spec,
                LAYER=k,
                BLOCK_M=outputs,
                **tiling,
            )
        self.launch(
            add_tile_sums,
            (self._slots, spec.towers, 2 * self._last if spec.layer_norm else self._last),
            self._tile_sums,
            self._partial,
            first_chunk,
            self._tiles,
            self._slot // config.block_m,
            self._slot // self._head_block_m,
            self._slot // self._norm_block_m,
            self._width,
            SPEC=spec,
            LOSS=self.hooks.loss,
            num_warps=4,
        )
