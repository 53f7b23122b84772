"""Fused kernels of a recurrent policy: the layers of `operant.kernels.dense`, with recurrent cells over whole segments
between encoder and heads.

Acting is one launch where a program can hold the network, otherwise one launch for each layer.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from operant.kernels.dense import per_layer
from operant.kernels.recurrent import act, projections, unroll
from operant.kernels.recurrent.shape import Finals, Sequences, Shape, States

ACT_WIDTH, ACT_COLUMNS = 128, 256
"""Limits of acting in one launch: units and columns of the first layer, padded."""

ACT_TILES, ACT_PROGRAMS = {"narrow": (64, 8, 16), "wide": (64, 8, 32), "wide, 32 bits": (32, 8, 16)}, 64
"""Tiles of acting in one launch, for up to 64 units and for more: lanes (fewer, if that gives ACT_PROGRAMS programs),
warps, and units computed at a time where the weights of a GRU or an LSTM are not in registers.
"""

FIRST_COLUMNS, FIRST_BLOCK_M = 128, 128
"""Limit of a first layer that reads the rollout directly: columns, padded; and rows of its tile."""

FEW_LANES, MANY_LANES = 16, 32
"""Lanes of a program with products in every step, which need 16 at least. On an H200 32 are faster with enough
programs.
"""

MANY_GATED, MANY_MINGRU = 4096, 8192
"""Lanes of a minibatch from which a program takes MANY_LANES: GRU and LSTM; backward pass of MinGRU."""

SCAN_VALUES, SCAN_VALUES_OF_A_STEP = 512, 4096
"""State values (lanes x units) of a program of MinGRU's scan over segments, and over a single step."""

MAX_CHUNKS, MAX_PARTIAL_VALUES = 64, 64 << 20
"""Largest number of chunks of a minibatch, and of values of all their partial gradients."""

SMALL = 32
"""Rows of tiles that fit any GPU (see `operant.kernels.tile_config`)."""

MICROBATCH_BYTES = 4 << 30
"""Largest size of a microbatch's buffers."""


def tile_config(
    spec: per_layer.Spec, shape: Shape, layout: Any, chunks: int | None, *, small: bool = False
) -> per_layer.PerLayer | str:
    """Return the tile config of a minibatch's kernels, or the reason why there is none. `layout`: that of the segments;
    `chunks`: the configured number of chunks, or None; `small`: smaller tiles, for GPUs with less shared memory.

    A chunk holds whole segments and a multiple of whole tiles: nothing is masked. `small`: tiles for GPUs with little
    shared memory, or without the larger matrix instructions.
    """
    weight_values = (
        sum(deep * wide for deep, wide in zip(spec.inputs, spec.widths, strict=True))
        + shape.layers * shape.matrices * shape.matrix
    )
    most_chunks = min(MAX_CHUNKS, MAX_PARTIAL_VALUES // weight_values) / (layout.shards * layout.ranks)
    per_shard = (
        chunks // layout.shards if chunks else math.gcd(layout.shard_blocks, per_layer.power_of_two(most_chunks))
    )
    rows = layout.shard_blocks // max(per_shard, 1) * layout.length * layout.block
    if layout.shard_blocks % per_shard or rows % 16:
        return (
            f"a minibatch has {layout.shard_blocks * layout.shards * layout.block:,} segments of {layout.length} "
            "steps, which do not form chunks of whole tiles"
        )
    wide = spec.precision != "ieee"
    block_m = math.gcd(rows, 128 if wide else 64)
    block_k = min(block_m, 64 if spec.precision == "bf16" else 32 if wide else 16)
    item_bytes = 2 if spec.precision == "bf16" else 4
    row_bytes = (
        item_bytes
        * (
            3 * sum(spec.hidden_pad)
            + 2 * spec.out_pad
            + shape.pad * (2 + 3 * shape.layers)
            + shape.columns * shape.layers
        )
        + 8 * spec.inputs[0]
    )
    most = min(MICROBATCH_BYTES // row_bytes, (2**31 - 1) // max(shape.columns, *spec.inputs))
    microbatch = max(rows, min(layout.samples, most))
    count = per_shard * layout.shards
    if small:
        return per_layer.PerLayer(min(block_m, SMALL), 64, 16, 4, 2, count, microbatch)
    return per_layer.PerLayer(block_m, 128 if wide else 64, block_k, 8 if block_m >= 128 else 4, 3, count, microbatch)


class RecurrentLearner(per_layer.PerLayerLearner[Any, Any]):
    """Engine of a recurrent policy, over states that the algorithm owns: dense kernels for encoder and output layer,
    kernels of recurrent cells between them.
    """

    def __init__(
        self,
        spec: per_layer.Spec,
        task: per_layer.Task[Any, Any],
        config: per_layer.PerLayer,
        shape: Shape,
        states: States,
    ) -> None:
        """`task` has the layout and order of segments; `states` are the lanes' recurrent states, read and written."""
        layout: Any = task.layout  # operant.data.minibatches.Layout
        self._segments = task.buffers.order
        steps = torch.zeros(
            self._segments.shape[0],
            self._segments.shape[1] * shape.length,
            dtype=torch.int32,
            device=self._segments.device,
        )
        layout = layout._replace(steps=layout.steps * shape.length, length=1)
        super().__init__(spec, task.replace(layout=layout, buffers=task.buffers._replace(order=steps)), config)
        self.shape, self._states, device = shape, states, self.policy.device
        kind = torch.bfloat16 if spec.precision == "bf16" else torch.float32

        def rows(width: int) -> Tensor:
            return torch.zeros(self._capacity, width, dtype=kind, device=device)

        layers, P = shape.layers, shape.pad
        # For each recurrent layer: outputs (the last layer's are the head's input), saved gates, h_{t-1} and c_{t-1}.
        self._outputs = [rows(P) for _ in range(layers)]
        self._gates = [rows(shape.columns) for _ in range(layers)]
        self._previous = [rows(P) for _ in range(layers)]
        self._previous_cell = [rows(P) if shape.kind == "lstm" else self._previous[k] for k in range(layers)]
        self._grad_output = [rows(P), rows(P)]
        self._hidden.append(self._outputs[-1][None])
        self._memory = torch.zeros(layers * shape.matrices * shape.matrix, dtype=kind, device=device)
        # The head's backward pass ends at its input, without an activation below, as for normalized layers.
        self._head_spec = replace(spec, layer_norm=True)
        self._side_stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        # The columns of a tile must be a power of two; 192 columns run layer by layer.
        narrow = max(spec.hidden_pad) <= ACT_WIDTH and spec.inputs[0] <= ACT_COLUMNS and spec.inputs[0].bit_count() == 1
        self.acts_in_one_launch = narrow and (shape.kind == "mingru" or shape.act_resident or shape.act_tiled)
        self._reads_in_place = (
            spec.hidden_pad[0] <= ACT_WIDTH
            and spec.inputs[0] <= FIRST_COLUMNS
            and not spec.bytes
            and not spec.layer_norm
        )

    def fits(self) -> bool:
        """Whether the GPU has enough shared memory. A network that does not fit in one launch acts layer by layer."""
        # Steps after the first need more shared memory, for final observations.
        self.acts_in_one_launch = self.acts_in_one_launch and self._fits_shared(
            self.policy.device, lambda: self.act(0), lambda: self.act(1)
        )
        return super().fits()

    @property
    def act_tile(self) -> str:
        """Key of this network in ACT_TILES, measured tiles of acting."""
        if max(self.spec.hidden_pad) <= 64:
            return "narrow"
        return "wide" if self.spec.precision == "bf16" else "wide, 32 bits"

    @property
    def starts(self) -> Tensor:
        """Recurrent states before each segment, (K, R, N)."""
        return self._states.starts

    @property
    def _most_rows(self) -> int:
        """Return the largest number of rows of a tile with more than one product; fewer on a small GPU."""
        return SMALL // 2 if self.config.block_k == 16 and self.config.stages == 2 else FIRST_BLOCK_M

    # ARGUMENTS

    @property
    def _cell_shape(self) -> Shape:
        """Return the shape without parameter offsets, so that layers, and networks with other inputs, share the kernels
        that do not need them.
        """
        return replace(self.shape, input_weights=(), input_biases=(), state_weights=(), state_biases=())

    def _sequences(self, first: int, step: int, *, acting: bool, sample: int = 0) -> Sequences:
        """Return the location of sequences in the rollout: segments of a minibatch from number `first` of the order on,
        or with `acting` single steps `step` of all lanes.
        """
        rollout = self.buffers.rollout
        return Sequences(
            self.buffers.order,
            first,
            step,
            sample,
            self._states.now if acting else self._states.starts,
            rollout.terminated,
            rollout.truncated,
        )

    def _weights(self, layer: int, which: int = 0) -> Tensor:
        """Return the packed weights of recurrent layer `layer`. `which`: 0 the input's, 1 the recurrent."""
        return self._memory[(layer * self.shape.matrices + which) * self.shape.matrix :]

    def _row_tiling(self, wide: int, deep: int) -> dict[str, int]:
        """Return launch options of a product over rows with `wide` result columns and inner dimension `deep`."""
        return {
            **self._tiling(wide, deep),
            "BLOCK_M": self.config.block_m,
            "BLOCK_N": math.gcd(self.config.block_n, wide),
        }

    # FORWARD

    def _pack(self) -> None:
        """Pack the weights of the dense and of the recurrent layers for the products."""
        super()._pack()
        shape, block = self.shape, 16
        grid = (shape.gates * shape.pad // block, shape.layers, shape.matrices)
        self.launch(projections.pack_weights, grid, self._values, self._memory, SHAPE=shape, BLOCK=block, num_warps=4)

    def _forward_memory(
        self, seq: Sequences, count: int, *, acting: bool, write: bool, truncated_only: bool = False
    ) -> None:
        """Run the recurrent layers over the encoder's output for `count` sequences, of one step each with `acting`.
        `write`: store the final states; `truncated_only`: only lanes that were truncated.
        """
        shape = self.shape
        rows = count if acting else count * shape.length
        x = self._hidden[self._last - 1]
        for k in range(shape.layers):
            biases = self._values[shape.input_biases[k] :]
            if not shape.fused:
                tiles = self._row_tiling(shape.gates * shape.pad, shape.pad)
                self.launch(
                    projections.project_inputs,
                    (shape.gates * shape.pad // tiles["BLOCK_N"], -(-rows // tiles["BLOCK_M"])),
                    seq,
                    x,
                    self._weights(k),
                    biases,
                    self._gates[k],
                    rows,
                    SHAPE=self._cell_shape,
                    FINALS=truncated_only,
                    **tiles,
                )
            options: dict[str, Any] = {
                "SHAPE": self._cell_shape,
                "ACT": acting,
                "WRITE": write,
                **self._cell_options(count, acting=acting),
            }
            options |= {"STEPS": 1 if acting else shape.length, "FINALS": truncated_only}
            grid = (-(-count // options["BLOCK_B"]),)
            gates, output, before = self._gates[k], self._outputs[k], self._previous[k]
            if shape.kind == "mingru":
                self.launch(
                    unroll.mingru_forward,
                    grid,
                    seq,
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
                    seq,
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
                    seq,
                    gates,
                    self._weights(k, 1),
                    output,
                    before,
                    self._previous_cell[k],
                    count,
                    self._lanes,
                    k,
                    **options,
                )
            x = output

    def _cell_options(self, count: int, *, acting: bool = False, backward: bool = False) -> dict[str, int]:
        """Launch options of a cell's kernel over `count` sequences: for acting, the backward pass, or by default the
        forward pass of an update.
        """
        shape = self.shape
        if shape.kind == "mingru" and not shape.fused:
            return {
                "BLOCK_B": max(1, (SCAN_VALUES_OF_A_STEP if acting else SCAN_VALUES) // shape.pad),
                "num_warps": 8 if acting else 4,
            }
        many = shape.pad <= ACT_WIDTH and count >= (
            MANY_GATED if shape.kind != "mingru" else MANY_MINGRU if backward else count + 1
        )
        return {
            "BLOCK_B": MANY_LANES if many else FEW_LANES,
            "num_warps": 8 if shape.pad > (64 if many else 128) else 4,
        }

    # COLLECT

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Write actions, log-probabilities and values of step t, and the values of the true final observations of
        episodes that step t - 1 truncated. `lanes` is None.
        """
        if self.acts_in_one_launch:
            self._act_in_one_launch(t, finals=t > 0 and self._states.finals, last=False)
            return
        for first, count in self._microbatches(self._lanes):
            self._gather(self.buffers.rollout.observation, (t * self._lanes + first) // self.layout.block, count)
            self._forward(t * self._lanes + first, count)
            self._forward_memory(self._sequences(first, t, acting=True), count, acting=True, write=True)
            self._act_head(self._hidden[-1], t, first, count)

    def _act_in_one_launch(self, t: int, *, finals: bool, last: bool) -> None:
        """Act at step t by one launch of all layers; with `finals` also value the true final observations of step t -
        1, with `last` only value.
        """
        rollout, (block_m, warps, units) = self.buffers.rollout, ACT_TILES[self.act_tile]
        block_m = max(16, min(block_m, self._most_rows, per_layer.power_of_two(self._lanes / ACT_PROGRAMS)))
        observation = rollout.final_observation if finals else rollout.observation
        window = self._steps // len(observation) if finals else 1
        self.launch(
            act.act,
            (-(-self._lanes // block_m),),
            self._inputs(),
            self.hooks.acting(),
            Finals(observation, self.buffers.final_value),
            self._values,
            self._first,
            self._memory,
            self._sequences(0, 0, acting=True),
            t,
            self._lanes,
            SPEC=self.spec,
            SHAPE=self.shape,
            SAMPLE=self.hooks.sample,
            FINALS=finals,
            WINDOW=window,
            LAST=last,
            BLOCK_M=block_m,
            UNITS=min(units, self.shape.pad),
            num_warps=warps,
        )

    def final_values(self, t: int) -> None:
        """Write the values of true final observations of episodes that step t truncated, with the state before it is
        reset. Acting in one launch computes them with the next step.
        """
        if self.acts_in_one_launch:
            return
        for first, count in self._microbatches(self._lanes):
            self._estimate_values(
                self.buffers.rollout.final_observation,
                self.buffers.final_value,
                t,
                0,
                first,
                count,
                truncated_only=True,
            )

    def bootstrap(self, finals: bool) -> None:
        """Write the values of the observations after the last step; when acting in one launch, with `finals` also those
        of the true final observations.
        """
        if self.acts_in_one_launch:
            self._act_in_one_launch(self._steps, finals=finals, last=True)
            return
        for first, count in self._microbatches(self._lanes):
            self._estimate_values(
                self.buffers.rollout.observation,
                self.hooks.values(),
                self._steps,
                self._steps,
                first,
                count,
                truncated_only=False,
            )

    def _estimate_values(
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
        """Write values of observations of step t without updating the state, which is reset where an episode ended
        before step `forgotten` (0: nowhere). `truncated_only`: only lanes that were truncated.
        """
        sample = t * self._lanes + first
        self._gather(observation, sample // self.layout.block, count, truncated_only=truncated_only)
        self._forward(sample, count, truncated_only=truncated_only)
        self._forward_memory(
            self._sequences(first, forgotten, acting=True, sample=sample),
            count,
            acting=True,
            write=False,
            truncated_only=truncated_only,
        )
        self._value_head(value, sample, count, truncated_only=truncated_only)

    # UPDATE

    def begin(self) -> None:
        """Prepare an update: statistics of the rollout, learning rate, order of the segments' steps."""
        super().begin()
        L, groups, block = self.shape.length, self.layout.groups, self._segments[:, :, None]  # (E, M, 1)
        step = torch.arange(L, dtype=torch.int32, device=block.device)
        self.buffers.order.view(*self._segments.shape, L).copy_((block // groups * L + step) * groups + block % groups)

    def forward(self, k: int, first_chunk: int) -> Sequences:
        """Forward pass of minibatch k's chunks from `first_chunk` on, as many as fit the buffers. Returns the location
        of their sequences.
        """
        minibatch, shape = self._minibatch(k), self.shape
        seq = self._sequences(minibatch.first_block + first_chunk * self.layout.chunk_blocks, 0, acting=False)
        if self._reads_in_place:
            block_m = math.gcd(
                self._capacity,
                min(self._most_rows, FIRST_BLOCK_M if self.spec.precision == "bf16" else FIRST_BLOCK_M // 2),
            )
            self.launch(
                act.first_layer,
                (self._capacity // block_m,),
                seq,
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
            self._gather_chunks(k, first_chunk)
        self._forward(0, self._capacity, save=True, begin=1 if self._reads_in_place else 0)
        self._forward_memory(seq, self._capacity // shape.length, acting=False, write=False)
        return seq

    def backward(self, k: int) -> None:
        """Compute the gradient of minibatch k's loss, as rows of partial sums."""
        self._pack()
        shape = self.shape
        for first_chunk in range(0, self.config.chunks, self._slots):
            seq = self.forward(k, first_chunk)
            self._gradient_head(k, first_chunk, self._head_spec, self._grad_output[0])
            self._backward_memory(seq, first_chunk)
            self._gradient_layers()
            self._sum(first_chunk)
            if self._last > 1 and not self.spec.layer_norm:  # the bias below the memory
                offset, block = self.spec.biases[-1], math.gcd(self._slot, max(16, 4096 // shape.pad))
                self.launch(
                    projections.bias_gradient,
                    (self._slots,),
                    self._gradients[self._last - 1],
                    self._partial[first_chunk:, offset:],
                    self._slot,
                    self._width,
                    SHAPE=self._cell_shape,
                    BLOCK=block,
                    num_warps=4,
                )

    def _backward_memory(self, seq: Sequences, first_chunk: int) -> None:
        """Backward pass through the recurrent layers to the last hidden layer, with the gradients of their weights."""
        shape, last = self.shape, self._last - 1
        count = self._capacity // shape.length
        gradient, next_gradient = self._grad_output
        for k in reversed(range(shape.layers)):
            x = self._outputs[k - 1] if k > 0 else self._hidden[last]
            grad_x = next_gradient if k > 0 else self._gradients[last]
            through_activation = k == 0 and not self.spec.layer_norm
            options: dict[str, Any] = {
                "SHAPE": self._cell_shape,
                "STEPS": shape.length,
                **self._cell_options(count, backward=True),
            }
            grid = (-(-count // options["BLOCK_B"]),)
            gates, lanes = self._gates[k], self._lanes
            if shape.kind == "mingru":
                into = grad_x if shape.fused else gradient  # in place: a row is read before it is written
                self.launch(
                    unroll.mingru_backward,
                    grid,
                    seq,
                    x,
                    gates,
                    self._weights(k),
                    self._values[shape.input_biases[k] :],
                    self._previous[k],
                    gradient,
                    self._saved[last],
                    into,
                    count,
                    lanes,
                    SPEC=self.spec,
                    ACTIVATION=through_activation and shape.fused,
                    **options,
                )
            else:
                self.launch(
                    unroll.gated_backward,
                    grid,
                    seq,
                    gates,
                    self._weights(k, 1),
                    self._previous_cell[k],
                    gradient,
                    count,
                    lanes,
                    **options,
                )
            if not shape.fused:
                tiles = self._row_tiling(shape.pad, shape.gates * shape.pad)
                self.launch(
                    projections.input_gradient,
                    (shape.pad // tiles["BLOCK_N"], self._capacity // tiles["BLOCK_M"]),
                    gates,
                    self._weights(k),
                    gradient,
                    self._saved[last],
                    grad_x,
                    SPEC=self.spec,
                    SHAPE=self._cell_shape,
                    ADD=shape.kind == "mingru",
                    ACTIVATION=through_activation,
                    **tiles,
                )
            with self._on_side_stream(k > 0):
                self._sum_weight_gradients(k, x, first_chunk)
            gradient, next_gradient = next_gradient, gradient
        if self._side_stream is not None and shape.layers > 1:  # a CUDA graph must join every stream it forked
            torch.cuda.current_stream().wait_stream(self._side_stream)

    def _on_side_stream(self, enabled: bool) -> contextlib.AbstractContextManager[object]:
        """Context of a second stream if `enabled`, else of the current one: a cell's backward pass occupies few
        multiprocessors, so the weight gradients of a layer overlap it.
        """
        if self._side_stream is None or not enabled:
            return contextlib.nullcontext()
        self._side_stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._side_stream)

    def _sum_weight_gradients(self, k: int, x: Tensor, first_chunk: int) -> None:
        """Sum gradients of a recurrent layer's weights and biases over each chunk's rows."""
        shape = self.shape
        tiles = {
            **self._tiling(shape.pad, min(self.config.block_m, self.config.block_k)),
            "BLOCK_M": math.gcd(self.config.block_n, shape.gates * shape.pad),
        }
        grid = (shape.gates * shape.pad // tiles["BLOCK_M"] * (shape.pad // tiles["BLOCK_N"]), self._slots)
        rows, gates = self._partial[first_chunk:], self._gates[k]
        self.launch(
            projections.weight_gradient,
            grid,
            gates,
            x,
            rows[:, shape.input_weights[k] :],
            rows[:, shape.input_biases[k] :],
            self._slot,
            self._width,
            SHAPE=self._cell_shape,
            BIASES=True,
            RECURRENT=False,
            **tiles,
        )
        if shape.kind != "mingru":
            biases = rows[:, shape.state_biases[k] :] if shape.kind == "gru" else rows
            self.launch(
                projections.weight_gradient,
                grid,
                gates,
                self._previous[k],
                rows[:, shape.state_weights[k] :],
                biases,
                self._slot,
                self._width,
                SHAPE=self._cell_shape,
                BIASES=shape.kind == "gru",
                RECURRENT=True,
                **tiles,
            )
