"""A policy with a memory as launches of fused kernels: the layers of `operant.kernels.dense`, and between encoder and
heads the cells over whole segments.

Acting is one launch where a program can hold the network, otherwise a launch a layer. Knows no algorithm.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from operant.kernels.dense import per_layer
from operant.kernels.recurrent import act, products, unroll
from operant.kernels.recurrent.shape import Finals, Shape, States, Where

ACT_WIDTH, ACT_COLUMNS = 128, 256
"""Of a network that acts in one launch: units, and columns of the first layer, padded."""

ACT_TILES, ACT_PROGRAMS = {"narrow": (64, 8, 16), "wide": (64, 8, 32), "wide, 32 bits": (32, 8, 16)}, 64
"""Of a program that acts, with up to 64 units and with more: lanes, fewer where that makes for so many programs; warps;
and, where it does not hold the weights of a GRU or an LSTM, units that it works out at a time.
"""

FIRST_COLUMNS, FIRST_BLOCK_M = 128, 128
"""Of a first layer that reads a minibatch where the rollout has it: columns, padded, and rows of a tile."""

FEW_LANES, MANY_LANES = 16, 32
"""Lanes of a program, where each of its steps has products: these take 16 at least. On an H200, 32 are faster once
there are enough programs.
"""

MANY_GATED, MANY_MINGRU = 4096, 8192
"""Lanes of a minibatch from which on a program takes many: of GRU and LSTM, and of MinGRU on the way back."""

SCAN_NUMBERS, SCAN_NUMBERS_OF_A_STEP = 512, 4096
"""Units of lanes of a program of MinGRU's scan alone, and where it has one step, which reads a state of many lanes,
unit after unit.
"""

MOST_CHUNKS, MOST_PARTIAL = 64, 64 << 20
"""Parts of a minibatch whose gradients are summed one by one: so many, and of a large network as many as have so many
numbers together.
"""

SMALL = 32
"""Rows of the tiles that any GPU takes (see `operant.kernels.tile_config`)."""

MICROBATCH_BYTES = 4 << 30
"""What the buffers of a microbatch may take."""


def tile_config(
    spec: per_layer.Spec, shape: Shape, cut: Any, chunks: int | None, *, small: bool = False
) -> per_layer.PerLayer | str:
    """How the kernels of a minibatch are cut, or the sentence that says why they cannot be. `cut` is the layout of
    segments, `chunks` what is asked for.

    A chunk has whole segments, and tiles have whole chunks: nothing is masked. `small` tiles are for GPUs that have no
    room for others, or no products of them.
    """
    numbers = (
        sum(deep * wide for deep, wide in zip(spec.inputs, spec.widths, strict=True))
        + shape.layers * shape.matrices * shape.matrix
    )
    most_chunks = min(MOST_CHUNKS, MOST_PARTIAL // numbers) / (cut.shards * cut.ranks)
    per_shard = chunks // cut.shards if chunks else math.gcd(cut.shard_blocks, per_layer.power_of_two(most_chunks))
    rows = cut.shard_blocks // max(per_shard, 1) * cut.length * cut.block
    if cut.shard_blocks % per_shard or rows % 16:
        return (
            f"a minibatch has {cut.shard_blocks * cut.shards * cut.block:,} segments of {cut.length} steps, of "
            "which kernels make no chunks of whole tiles"
        )
    wide = spec.precision != "ieee"
    block_m = math.gcd(rows, 128 if wide else 64)
    block_k = min(block_m, 64 if spec.precision == "bf16" else 32 if wide else 16)
    number = 2 if spec.precision == "bf16" else 4
    row_bytes = (
        number
        * (
            3 * sum(spec.hidden_pad)
            + 2 * spec.out_pad
            + shape.pad * (2 + 3 * shape.layers)
            + shape.columns * shape.layers
        )
        + 8 * spec.inputs[0]
    )
    most = min(MICROBATCH_BYTES // row_bytes, (2**31 - 1) // max(shape.columns, *spec.inputs))
    microbatch = max(rows, min(cut.samples, most))
    count = per_shard * cut.shards
    if small:
        return per_layer.PerLayer(min(block_m, SMALL), 64, 16, 4, 2, count, microbatch)
    return per_layer.PerLayer(block_m, 128 if wide else 64, block_k, 8 if block_m >= 128 else 4, 3, count, microbatch)


class RecurrentLearner(per_layer.PerLayerLearner):
    """One policy's fused kernels, over the states that the algorithm keeps."""

    def __init__(
        self, spec: per_layer.Spec, task: per_layer.Task, config: per_layer.PerLayer, shape: Shape, states: States
    ) -> None:
        """The task's layout and order are those of segments."""
        self._segments, cut = task.buffers.order, task.layout
        steps = torch.zeros(
            self._segments.shape[0],
            self._segments.shape[1] * shape.length,
            dtype=torch.int32,
            device=self._segments.device,
        )
        layout = cut._replace(steps=cut.steps * shape.length, length=1)
        super().__init__(spec, task.replace(layout=layout, buffers=task.buffers._replace(order=steps)), config)
        self.shape, self._states, device = shape, states, self.policy.device
        kind = torch.bfloat16 if spec.precision == "bf16" else torch.float32

        def rows(width: int) -> Tensor:
            return torch.zeros(self._capacity, width, dtype=kind, device=device)

        layers, P = shape.layers, shape.pad
        # What the layers of the memory put out, the last of which the head reads; a GRU's and an LSTM's gates are kept
        # for the way back, as is what a step begins with.
        self._outputs = [rows(P) for _ in range(layers)]
        self._gates = [rows(shape.columns) for _ in range(layers)]
        self._before = [rows(P) for _ in range(layers)]
        self._cells_before = [rows(P) if shape.kind == "lstm" else self._before[k] for k in range(layers)]
        self._by_output = [rows(P), rows(P)]
        self._hidden.append(self._outputs[-1][None])
        self._memory = torch.zeros(layers * shape.matrices * shape.matrix, dtype=kind, device=device)
        # The head passes on what it has: between it and the last hidden layer lies the memory. Normalized layers are
        # those that end so.
        self._head_spec = replace(spec, layer_norm=True)
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        # A tile of observations has a power of two of columns; padded to 192 they go a layer at a time.
        narrow = max(spec.hidden_pad) <= ACT_WIDTH and spec.inputs[0] <= ACT_COLUMNS and spec.inputs[0].bit_count() == 1
        self.at_once = narrow and (shape.kind == "mingru" or shape.held or shape.in_tiles)
        self._reads_at_once = (
            spec.hidden_pad[0] <= ACT_WIDTH
            and spec.inputs[0] <= FIRST_COLUMNS
            and not spec.bytes
            and not spec.layer_norm
        )

    def fits(self) -> bool:
        """Whether the GPU has the shared memory that programs of the network's kernels ask for; a network that cannot
        act at once acts a layer at a time.
        """
        # An episode's end asks for more than the first step does.
        self.at_once = self.at_once and self._fits_shared(self.policy.device, lambda: self.act(0), lambda: self.act(1))
        return super().fits()

    @property
    def act_tile(self) -> str:
        """Which tile acts."""
        if max(self.spec.hidden_pad) <= 64:
            return "narrow"
        return "wide" if self.spec.precision == "bf16" else "wide, 32 bits"

    @property
    def starts(self) -> Tensor:
        """What lanes remember before each segment, (K, R, N)."""
        return self._states.starts

    @property
    def _most_rows(self) -> int:
        """Of a tile that goes through more than one product; on a small GPU of few."""
        return SMALL // 2 if self.config.block_k == 16 and self.config.stages == 2 else FIRST_BLOCK_M

    # WHAT KERNELS TAKE

    @property
    def _cells(self) -> Shape:
        """The shape without the places of parameters: layers, and networks that read other observations, share the
        kernels that know no more.
        """
        return replace(self.shape, input_weights=(), input_biases=(), state_weights=(), state_biases=())

    def _where(self, first: int, step: int, *, acting: bool, sample: int = 0) -> Where:
        rollout = self.buffers.rollout
        return Where(
            self.buffers.order,
            first,
            step,
            sample,
            self._states.now if acting else self._states.starts,
            rollout.terminated,
            rollout.truncated,
        )

    def _weights(self, layer: int, which: int = 0) -> Tensor:
        """A layer's packed weights: 0 its input's, 1 its own."""
        return self._memory[(layer * self.shape.matrices + which) * self.shape.matrix :]

    def _row_tiling(self, wide: int, deep: int) -> dict[str, int]:
        """Of a product of rows."""
        return {
            **self._tiling(wide, deep),
            "BLOCK_M": self.config.block_m,
            "BLOCK_N": math.gcd(self.config.block_n, wide),
        }

    # FORWARD

    def _pack(self) -> None:
        super()._pack()
        shape, block = self.shape, 16
        grid = (shape.gates * shape.pad // block, shape.layers, shape.matrices)
        self.launch(products.pack_weights, grid, self._values, self._memory, SHAPE=shape, BLOCK=block, num_warps=4)

    def _remember(self, where: Where, count: int, *, acting: bool, write: bool, truncated_only: bool = False) -> None:
        """The memory's layers over what the encoder has put out: `count` sequences, of one step each when acting."""
        shape = self.shape
        rows = count if acting else count * shape.length
        x = self._hidden[self._last - 1]
        for k in range(shape.layers):
            biases = self._values[shape.input_biases[k] :]
            if not shape.fused:
                tiles = self._row_tiling(shape.gates * shape.pad, shape.pad)
                self.launch(
                    products.into_gates,
                    (shape.gates * shape.pad // tiles["BLOCK_N"], -(-rows // tiles["BLOCK_M"])),
                    where,
                    x,
                    self._weights(k),
                    biases,
                    self._gates[k],
                    rows,
                    SHAPE=self._cells,
                    FINALS=truncated_only,
                    **tiles,
                )
            options: dict[str, Any] = {
                "SHAPE": self._cells,
                "ACT": acting,
                "WRITE": write,
                **self._cell_options(count, acting=acting),
            }
            options |= {"STEPS": 1 if acting else shape.length, "FINALS": truncated_only}
            grid = (-(-count // options["BLOCK_B"]),)
            gates, output, before = self._gates[k], self._outputs[k], self._before[k]
            if shape.kind == "mingru":
                self.launch(
                    unroll.mingru_forward,
                    grid,
                    where,
                    x,
                    gates,
                    self._weights(k),
                    biases,
                    output,
                    before,
                    count,
                    self._lanes,
                    k,
                    **options,
                )
            elif shape.kind == "gru":
                biases = self._values[shape.state_biases[k] :]
                self.launch(
                    unroll.gru_forward,
                    grid,
                    where,
                    gates,
                    self._weights(k, 1),
                    biases,
                    output,
                    before,
                    count,
                    self._lanes,
                    k,
                    **options,
                )
            else:
                self.launch(
                    unroll.lstm_forward,
                    grid,
                    where,
                    gates,
                    self._weights(k, 1),
                    output,
                    before,
                    self._cells_before[k],
                    count,
                    self._lanes,
                    k,
                    **options,
                )
            x = output

    def _cell_options(self, count: int, *, acting: bool = False, back: bool = False) -> dict[str, int]:
        """How a cell's kernels over so many lanes are launched."""
        shape = self.shape
        if shape.kind == "mingru" and not shape.fused:
            return {
                "BLOCK_B": max(1, (SCAN_NUMBERS_OF_A_STEP if acting else SCAN_NUMBERS) // shape.pad),
                "num_warps": 8 if acting else 4,
            }
        many = shape.pad <= ACT_WIDTH and count >= (
            MANY_GATED if shape.kind != "mingru" else MANY_MINGRU if back else count + 1
        )
        return {
            "BLOCK_B": MANY_LANES if many else FEW_LANES,
            "num_warps": 8 if shape.pad > (64 if many else 128) else 4,
        }

    # COLLECT

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Actions, log-probabilities and values of step t, and with it of episodes that step t - 1 truncated V of what
        they saw last.
        """
        if self.at_once:
            self._act_at_once(t, finals=t > 0 and self._states.finals, last=False)
            return
        tiling = self._head_tiling(0)
        del tiling["BLOCK_N"]
        for first, count in self._microbatches(self._lanes):
            self._gather(self.buffers.rollout.observation, (t * self._lanes + first) // self.layout.block, count)
            self._forward(t * self._lanes + first, count)
            self._remember(self._where(first, t, acting=True), count, acting=True, write=True)
            self.launch(
                per_layer.act_head,
                (-(-count // self._head_block_m), 1),
                self._hidden[-1],
                self._packed,
                self._values,
                self._legal_mask,
                self.work.acting(),
                t,
                first,
                count,
                self._lanes,
                self._capacity,
                SPEC=self.spec,
                SAMPLE=self.work.sample,
                **tiling,
            )

    def _act_at_once(self, t: int, *, finals: bool, last: bool) -> None:
        rollout, (block_m, warps, units) = self.buffers.rollout, ACT_TILES[self.act_tile]
        block_m = max(16, min(block_m, self._most_rows, per_layer.power_of_two(self._lanes / ACT_PROGRAMS)))
        seen = rollout.final_observation if finals else rollout.observation
        window = self._steps // len(seen) if finals else 1
        self.launch(
            act.act,
            (-(-self._lanes // block_m),),
            self._inputs(),
            self.work.acting(),
            Finals(seen, self.buffers.final_value),
            self._values,
            self._first,
            self._memory,
            self._where(0, 0, acting=True),
            t,
            self._lanes,
            SPEC=self.spec,
            SHAPE=self.shape,
            SAMPLE=self.work.sample,
            FINALS=finals,
            WINDOW=window,
            LAST=last,
            BLOCK_M=block_m,
            UNITS=min(units, self.shape.pad),
            num_warps=warps,
        )

    def final_values(self, t: int) -> None:
        """V of the true final observations of episodes that step t truncated, with the state before it is forgotten. A
        network that acts at once knows them.
        """
        if self.at_once:
            return
        for first, count in self._microbatches(self._lanes):
            self._see(
                self.buffers.rollout.final_observation,
                self.buffers.final_value,
                t,
                0,
                first,
                count,
                truncated_only=True,
            )

    def bootstrap(self, finals: bool) -> None:
        """V of the observation after the last step, and of a network that acts at once with `finals` of what episodes
        saw last that this step truncated.
        """
        if self.at_once:
            self._act_at_once(self._steps, finals=finals, last=True)
            return
        for first, count in self._microbatches(self._lanes):
            self._see(
                self.buffers.rollout.observation,
                self.work.values(),
                self._steps,
                self._steps,
                first,
                count,
                truncated_only=False,
            )

    def _see(
        self,
        observation: Tensor,
        value: Tensor,
        t: int,
        forgotten: int,
        first: int,
        count: int,
        *,
        truncated_only: bool,
    ) -> None:
        """V of observations of step t, which the state does not remember; it is forgotten where an episode has ended
        before step `forgotten` (0: nowhere).
        """
        tiling = self._head_tiling(0)
        del tiling["BLOCK_N"]
        sample = t * self._lanes + first
        self._gather(observation, sample // self.layout.block, count, truncated_only=truncated_only)
        self._forward(sample, count, truncated_only=truncated_only)
        self._remember(
            self._where(first, forgotten, acting=True, sample=sample),
            count,
            acting=True,
            write=False,
            truncated_only=truncated_only,
        )
        self.launch(
            per_layer.value_head,
            (-(-count // self._head_block_m),),
            self._hidden[-1],
            self._packed,
            self._values,
            self.buffers.rollout.truncated,
            self._legal_mask,
            value,
            sample,
            count,
            self._lanes,
            self._capacity,
            SPEC=self.spec,
            VALUE=self.work.value_of,
            TRUNCATED_ONLY=truncated_only,
            **tiling,
        )

    # UPDATE

    def begin(self) -> None:
        """What an update needs to know of the whole rollout, its learning rate, and the order of its
        segments' steps.
        """
        super().begin()
        L, groups, block = self.shape.length, self.layout.groups, self._segments[:, :, None]  # (E, M, 1)
        step = torch.arange(L, dtype=torch.int32, device=block.device)
        self.buffers.order.view(*self._segments.shape, L).copy_((block // groups * L + step) * groups + block % groups)

    def forward(self, k: int, first_chunk: int) -> Where:
        """What the heads read of minibatch k's chunks from `first_chunk` on, as many as are taken at a time; and where
        their segments lie.
        """
        tiling, minibatch, shape = self._gather_tiling(), self._minibatch(k), self.shape
        where = self._where(minibatch.first_block + first_chunk * self.layout.chunk_blocks, 0, acting=False)
        if self._reads_at_once:
            block_m = math.gcd(
                self._capacity,
                min(self._most_rows, FIRST_BLOCK_M if self.spec.precision == "bf16" else FIRST_BLOCK_M // 2),
            )
            self.launch(
                act.first_layer,
                (self._capacity // block_m,),
                where,
                self._inputs(),
                self._first,
                self._rounded,
                self._hidden[0],
                self._saved[0],
                self._lanes,
                SPEC=self.spec,
                SHAPE=shape,
                SAVE=self._saved is not self._hidden,
                BLOCK_M=block_m,
                num_warps=8,
            )
        else:
            self.launch(
                per_layer.gather_chunks,
                (self._capacity // tiling["BLOCK_M"], self.spec.inputs[0] // tiling["BLOCK_N"]),
                minibatch,
                self._inputs(),
                self._x,
                self._rounded,
                first_chunk,
                self._slot,
                self._lanes,
                SPEC=self.spec,
                **tiling,
            )
        self._forward(0, self._capacity, save=True, begin=1 if self._reads_at_once else 0)
        self._remember(where, self._capacity // shape.length, acting=False, write=False)
        return where

    def backward(self, k: int) -> None:
        """The gradient of minibatch k's loss as rows of partial sums."""
        self._pack()
        shape = self.shape
        for first_chunk in range(0, self.config.chunks, self._slots):
            where = self.forward(k, first_chunk)
            self._gradient_head(k, first_chunk, self._head_spec, self._by_output[0])
            self._gradient_memory(where, first_chunk)
            self._gradient_layers()
            self._sum(first_chunk)
            if self._last > 1 and not self.spec.layer_norm:  # the bias below the memory
                place, block = self.spec.biases[-1], math.gcd(self._slot, max(16, 4096 // shape.pad))
                self.launch(
                    products.sum_rows,
                    (self._slots,),
                    self._gradients[self._last - 1],
                    self._partial[first_chunk:, place:],
                    self._slot,
                    self._width,
                    SHAPE=self._cells,
                    BLOCK=block,
                    num_warps=4,
                )

    def _gradient_memory(self, where: Where, first_chunk: int) -> None:
        """Through the memory's layers, from the last to the first, to what the last hidden layer computes; each with
        its weights' gradients.
        """
        shape, last = self.shape, self._last - 1
        count = self._capacity // shape.length
        gradient, other = self._by_output
        for k in reversed(range(shape.layers)):
            x = self._outputs[k - 1] if k > 0 else self._hidden[last]
            back = other if k > 0 else self._gradients[last]
            slope = k == 0 and not self.spec.layer_norm
            options: dict[str, Any] = {
                "SHAPE": self._cells,
                "STEPS": shape.length,
                **self._cell_options(count, back=True),
            }
            grid = (-(-count // options["BLOCK_B"]),)
            gates, lanes = self._gates[k], self._lanes
            if shape.kind == "mingru":
                into = back if shape.fused else gradient  # in place: a row's is read before it is written
                self.launch(
                    unroll.mingru_backward,
                    grid,
                    where,
                    x,
                    gates,
                    self._weights(k),
                    self._values[shape.input_biases[k] :],
                    self._before[k],
                    gradient,
                    self._saved[last],
                    into,
                    count,
                    lanes,
                    SPEC=self.spec,
                    SLOPE=slope and shape.fused,
                    **options,
                )
            else:
                self.launch(
                    unroll.gated_backward,
                    grid,
                    where,
                    gates,
                    self._weights(k, 1),
                    self._cells_before[k],
                    gradient,
                    count,
                    lanes,
                    **options,
                )
            if not shape.fused:
                tiles = self._row_tiling(shape.pad, shape.gates * shape.pad)
                self.launch(
                    products.out_of_gates,
                    (shape.pad // tiles["BLOCK_N"], self._capacity // tiles["BLOCK_M"]),
                    gates,
                    self._weights(k),
                    gradient,
                    self._saved[last],
                    back,
                    SPEC=self.spec,
                    SHAPE=self._cells,
                    ADD=shape.kind == "mingru",
                    SLOPE=slope,
                    **tiles,
                )
            with self._beside(k > 0):
                self._sum_memory(k, x, first_chunk)
            gradient, other = other, gradient
        if self._side is not None and shape.layers > 1:  # a graph takes no stream that has not branched off it
            torch.cuda.current_stream().wait_stream(self._side)

    def _beside(self, wanted: bool) -> contextlib.AbstractContextManager[object]:
        """Where `wanted`, a stream of its own: a cell's way back leaves much of a GPU free, on which a layer's sums go
        on beside the next one's.
        """
        if self._side is None or not wanted:
            return contextlib.nullcontext()
        self._side.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._side)

    def _sum_memory(self, k: int, x: Tensor, first_chunk: int) -> None:
        """The gradients of a memory layer's weights and biases, summed over each chunk's rows."""
        shape = self.shape
        tiles = {
            **self._tiling(shape.pad, min(self.config.block_m, self.config.block_k)),
            "BLOCK_M": math.gcd(self.config.block_n, shape.gates * shape.pad),
        }
        grid = (shape.gates * shape.pad // tiles["BLOCK_M"] * (shape.pad // tiles["BLOCK_N"]), self._slots)
        rows, gates = self._partial[first_chunk:], self._gates[k]
        self.launch(
            products.gate_weight_gradient,
            grid,
            gates,
            x,
            rows[:, shape.input_weights[k] :],
            rows[:, shape.input_biases[k] :],
            self._slot,
            self._width,
            SHAPE=self._cells,
            BIASES=True,
            RECURRENT=False,
            **tiles,
        )
        if shape.kind != "mingru":
            biases = rows[:, shape.state_biases[k] :] if shape.kind == "gru" else rows
            self.launch(
                products.gate_weight_gradient,
                grid,
                gates,
                self._before[k],
                rows[:, shape.state_weights[k] :],
                biases,
                self._slot,
                self._width,
                SHAPE=self._cells,
                BIASES=shape.kind == "gru",
                RECURRENT=True,
                **tiles,
            )
