"""Forward and backward passes of wide networks over a whole batch, as launches: own kernels, the library's products,
and which of them overlap. `engine` launches the losses and the optimizer steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from operant.kernels.actor_critic.buffers import LayerBuffers, Scratch, TrainedNetwork
from operant.kernels.actor_critic.engine import ActorCriticEngine
from operant.kernels.actor_critic.wide import first_layer, layers, spec
from operant.kernels.actor_critic.wide.spec import BLOCK_M, STAGES, WideNet, WideSpec, backward_tile, layer_tile

OVERLAP = True
"""Whether independent launches run on several streams."""

OWN_PRODUCT, PRODUCT_TILE = True, (128, 256, 64)
"""Whether the gradient of a wide layer's inputs is computed by an own kernel, and its tile: the library's product
begins with a memset, which costs a CUDA graph 10 us.
"""


class WidePasses(ActorCriticEngine):
    """Base of the wide engines: forward and backward passes of a wide network over a batch."""

    shape: WideSpec
    _stream_a: torch.cuda.Stream | None
    _stream_b: torch.cuda.Stream | None
    _max_shared_bytes: int
    _top_has_outputs: bool  # the actor's last hidden layer computes the head's outputs, too
    _scratch_buffers: Scratch
    _action_shares: Tensor

    def _launch_rows(
        self,
        kernel: object,
        net: WideNet,
        layer: int,
        samples: int,
        grid_1: int,
        *arguments: object,
        product: bool = False,
        programs: int = 0,
        warps: int = 1,
        values: int = 8,
        **options: object,
    ) -> None:
        """Launch a kernel over whole rows of a layer, in `programs` x `grid_1` programs, by default one a tile of rows.

        With `product` the kernel contains a matrix product; otherwise a thread holds `values` values of a part.
        """
        rows, warps = (
            (BLOCK_M, max(4, warps))
            if product
            else (min(BLOCK_M, max(1, values * 32 * warps // max(net.layers[layer].parts))), warps)
        )
        grid = (min(programs or samples, samples // rows), grid_1)
        self.launch(kernel, grid, *arguments, SPEC=self.shape, LAYER=layer, BLOCK_M=rows, num_warps=warps, **options)

    # FORWARD

    def _forward(
        self,
        net: WideNet,
        x: Tensor,
        parameters: Tensor,
        weights: list[Tensor],
        buffers: LayerBuffers,
        *,
        save: bool = False,
        q: Tensor | None = None,
        towers: int = 0,
    ) -> None:
        """Compute all hidden layers of inputs x (rows, columns) into `buffers`, and an actor's outputs. `save`: also
        the tensors that the backward pass reads. `q` (towers, rows) receives the critics' values. `towers`: only the
        first of them (0: all).

        `save`: also what the backward pass reads. `q` (towers, rows): the critics' values. `towers`: only the first of
        them.
        """
        towers = towers or net.towers
        rows, top = buffers.hidden[0].shape[1], len(net.layers) - 1
        own = spec.own_first_layer(self.shape)
        two_layers = own and self._first_two_layers(net, x, parameters, weights, buffers, save=save, towers=towers)
        block_m = next(size for size in (spec.FIRST_BLOCK_M, 32, BLOCK_M) if rows % size == 0)
        if own and not two_layers:
            self.launch(
                first_layer.first_layer,
                (rows // block_m, towers),
                x,
                weights[0],
                buffers.pre_activations[0],
                buffers.hidden[0],
                buffers.moments[0],
                parameters,
                rows,
                SPEC=self.shape,
                NET=net,
                SAVE=save,
                SAVE_Z=save and self.shape.saves_z and backward_tile(self.shape, net) is None,
                BLOCK_N=spec.FIRST_BLOCK_N,
                BLOCK_M=block_m,
                num_warps=4,
            )
        for k in range(2 if two_layers else 1 if own else 0, top + 1):
            tile = layer_tile(self.shape, net, k, rows, self._max_shared_bytes)
            z, h, moments = buffers.pre_activations[k], buffers.hidden[k], buffers.moments[k]
            if tile is None:
                if self._asked is None:
                    inputs = buffers.hidden[k - 1][:towers] if k else x.expand(towers, -1, -1)
                    torch.bmm(inputs, weights[k][:towers].transpose(1, 2), out=z[:towers])
                self._launch_rows(
                    layers.activate_layer,
                    net,
                    k,
                    rows,
                    towers,
                    z,
                    h,
                    moments,
                    parameters,
                    rows,
                    programs=spec.PROGRAMS // net.towers,
                    NET=net,
                )
                continue
            output, output_tensor = "hidden", parameters
            if k == top and net is self.shape.actor:
                output, output_tensor = "policy" if self._top_has_outputs else "hidden", buffers.outputs
            elif k == top and q is None:
                output = "hidden" if self.shape.atoms else ""
            elif k == top and q is not None:
                output, output_tensor = "value", q
            block_m, block_k = tile
            part = net.layers[k].parts[0]
            self.launch(
                layers.hidden_layer,
                (rows // block_m, towers),
                *descriptors((buffers.hidden[k - 1], block_m, block_k), (weights[k], part, block_k)),
                *descriptors((z, block_m, part), (h, block_m, part)),
                moments,
                parameters,
                output_tensor,
                rows,
                SPEC=self.shape,
                NET=net,
                LAYER=k,
                SAVE=save,
                OUTPUT=output,
                BLOCK_M=block_m,
                BLOCK_K=block_k,
                STAGES=STAGES,
                num_warps=8 if block_m > 64 else 4,
            )
        if q is not None and tile is None:
            self._launch_rows(layers.q_values, net, top, rows, towers, buffers.hidden[top], parameters, q)

    def _first_two_layers(
        self,
        net: WideNet,
        x: Tensor,
        parameters: Tensor,
        weights: list[Tensor],
        buffers: LayerBuffers,
        *,
        save: bool,
        towers: int,
    ) -> bool:
        """Compute the first two hidden layers in one launch, if the second is not the last and its tile fits; returns
        whether they were launched. `save` and `towers` as for `_forward`.
        """
        rows = buffers.hidden[0].shape[1]
        tile = layer_tile(self.shape, net, 1, rows, self._max_shared_bytes)
        if (
            tile is None
            or len(net.layers) < 3
            or (save and self.shape.saves_z and backward_tile(self.shape, net) is None)
        ):
            return False
        (block_m, block_k), part = tile, net.layers[1].parts[0]
        z, hidden = buffers.pre_activations[1], buffers.hidden
        self.launch(
            first_layer.first_layers,
            (rows // block_m, towers),
            x,
            *descriptors((weights[0], block_k, self.shape.columns), (weights[1], part, block_k)),
            *descriptors((z, block_m, part), (hidden[0], block_m, block_k), (hidden[1], block_m, part)),
            buffers.moments[1],
            parameters,
            rows,
            SPEC=self.shape,
            NET=net,
            SAVE=save,
            BLOCK_M=block_m,
            BLOCK_K=block_k,
            STAGES=STAGES,
            num_warps=8 if block_m > 64 else 4,
        )
        return True

    # BACKWARD

    def _backward(
        self,
        network: TrainedNetwork,
        x: Tensor,
        buffers: LayerBuffers,
        *,
        train: bool,
        first_row: int = 0,
        towers: int = 0,
    ) -> None:
        """Backward pass from the gradient in the last hidden layer's pre-activations: with `train` to the parameters,
        otherwise to the inputs (dQ / da). Reads B rows of `buffers` from `first_row` on, of the first `towers` (0:
        all).
        """
        net, B, compiling = network.net, self.shape.batch, self._asked is not None
        towers = towers or net.towers
        tile = backward_tile(self.shape, net)
        for k in range(len(net.layers) - 1, 0, -1):
            if train and not compiling:
                with self._overlapped(self._stream_a):
                    self._product(
                        buffers.grad_z[k].transpose(1, 2),
                        buffers.hidden[k - 1][:, first_row : first_row + B],
                        network.grad_weights[k],
                    )
            if k == 1 and tile:
                self._first_backward(network, x, buffers, tile, train=train, towers=towers)
                break
            self._input_gradient(network, buffers, k, towers=towers)
            self._backward_layer(network, buffers, k - 1, train=train, first_row=first_row, towers=towers)
        if not train and not compiling and not tile:
            q_gradient = self._scratch_buffers.q_gradient[:towers]
            self._product(buffers.grad_z[0][:towers], network.weights[0][:towers], q_gradient)
        if train:
            with self._overlapped(self._stream_a):
                self.launch(
                    layers.reduce,
                    (net.vectors, net.towers, -(-net.pad // spec.REDUCE_BLOCK_N)),
                    network.partials,
                    network.gradient,
                    SPEC=self.shape,
                    NET=net,
                    FIRST_PROGRAMS=0 if tile else net.programs,
                    BLOCK_M=min(spec.REDUCE_BLOCK_M, net.programs),
                    BLOCK_N=spec.REDUCE_BLOCK_N,
                    num_warps=4,
                )
            self._first_gradient(network, x, buffers)
            self._join(self._stream_a)

    def _backward_layer(
        self,
        network: TrainedNetwork,
        buffers: LayerBuffers,
        layer: int,
        *,
        train: bool,
        first_row: int = 0,
        towers: int = 0,
    ) -> None:
        """Replace the gradient in a layer's activations by that in its pre-activations; with `train` also sum the
        gradients of its bias, gain and shift.
        """
        net, hidden = network.net, buffers.hidden[layer]
        self._launch_rows(
            layers.backward_layer,
            net,
            layer,
            self.shape.batch,
            towers or net.towers,
            buffers.grad_z[layer],
            buffers.pre_activations[layer],
            buffers.moments[layer],
            hidden,
            network.parameters.vector,
            network.partials,
            hidden.shape[1],
            first_row,
            programs=net.programs if train else spec.PROGRAMS // net.towers,
            NET=net,
            TRAIN=train,
        )

    def _first_backward(
        self,
        network: TrainedNetwork,
        x: Tensor,
        buffers: LayerBuffers,
        tile: tuple[int, int, int],
        *,
        train: bool,
        towers: int,
    ) -> None:
        """Backward pass from the second layer's pre-activations: with `train` to the first layer's, otherwise to the
        actions.
        """
        net, B, (block_m, block_n, block_k) = network.net, self.shape.batch, tile
        programs, tiles_n = spec.backward_grid(net, block_n)
        self.launch(
            first_layer.first_backward,
            (programs, B // block_m, towers),
            *descriptors((buffers.grad_z[1], block_m, block_k), (network.weights[1], block_k, block_n)),
            x,
            network.weights[0],
            network.parameters.vector,
            *descriptors((buffers.grad_z[0], block_m, block_n)),
            self._action_shares,
            SPEC=self.shape,
            NET=net,
            TRAIN=train,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            TILES_N=tiles_n,
            BLOCK_K=block_k,
            STAGES=STAGES,
            num_warps=8,
        )
        if not train:
            self.launch(
                first_layer.reduce_action_gradient,
                (B // block_m, towers),
                self._action_shares,
                self._scratch_buffers.q_gradient,
                SPEC=self.shape,
                TILES=programs,
                BLOCK_M=block_m,
                num_warps=4,
            )

    def _first_gradient(self, network: TrainedNetwork, x: Tensor, buffers: LayerBuffers) -> None:
        """Compute the gradient of the first weight. It has few columns, so parts of the batch run in parallel for more
        programs.
        """
        net, partials, tile = network.net, network.first_partials, spec.gradient_tile(self.shape, network.net)
        if tile is not None:
            block_m, block_n = tile
            self.launch(
                first_layer.first_gradient,
                (net.layers[0].width // block_n, self.shape.parts, net.towers),
                *descriptors((buffers.grad_z[0], block_m, block_n)),
                x,
                partials,
                SPEC=self.shape,
                NET=net,
                WIDTH_PAD=partials.shape[-1],
                BLOCK_M=block_m,
                BLOCK_N=block_n,
                STAGES=STAGES,
                num_warps=4,
            )
            self.launch(
                first_layer.first_reduce,
                (net.layers[0].width // 16, net.towers),
                partials,
                network.gradient,
                SPEC=self.shape,
                NET=net,
                WIDTH_PAD=partials.shape[-1],
                BLOCK_N=16,
                num_warps=4,
            )
        elif self._asked is None:
            for tower in range(net.towers):
                grad_z = buffers.grad_z[0][tower].unflatten(0, (self.shape.parts, -1))
                self._product(grad_z.transpose(1, 2), x.unflatten(0, (self.shape.parts, -1)), partials[tower])
            torch.sum(partials[..., : net.layers[0].inputs], 1, out=self._first_weight(net, network.gradient))

    def _input_gradient(self, network: TrainedNetwork, buffers: LayerBuffers, k: int, *, towers: int) -> None:
        """Compute dL / dh of the inputs h of layer k."""
        layer, (block_m, block_n, block_k) = network.net.layers[k], PRODUCT_TILE
        if (
            OWN_PRODUCT
            and self.shape.precision == "bf16"
            and layer.inputs % block_n + layer.width % block_k + self.shape.batch % block_m == 0
        ):
            self.launch(
                layers.input_gradient,
                (self.shape.batch // block_m * (layer.inputs // block_n), towers),
                buffers.grad_z[k],
                network.weights[k],
                buffers.grad_z[k - 1],
                SPEC=self.shape,
                NET=network.net,
                LAYER=k,
                BLOCK_M=block_m,
                BLOCK_N=block_n,
                BLOCK_K=block_k,
                num_warps=8,
            )
        elif self._asked is None:
            torch.bmm(buffers.grad_z[k][:towers], network.weights[k][:towers], out=buffers.grad_z[k - 1][:towers])

    # PRODUCTS AND STREAMS

    def _product(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Write the matrix product a b in float32 to `out`."""
        torch.bmm(a, b, out=out, **({} if a.dtype == out.dtype else {"out_dtype": out.dtype}))

    @contextlib.contextmanager
    def _overlapped(self, stream: torch.cuda.Stream | None) -> Iterator[None]:
        """Return a context that launches on another stream (None: the current one), concurrently with later launches
        until `_join`.
        """
        if stream is None or self._asked is not None or not OVERLAP:
            yield
            return
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            yield

    def _join(self, stream: torch.cuda.Stream | None) -> None:
        """Make the current stream wait for all launches of another stream."""
        if stream is not None and self._asked is None and OVERLAP:
            torch.cuda.current_stream(self._device).wait_stream(stream)

    @staticmethod
    def _first_weight(net: WideNet, vector: Tensor) -> Tensor:
        """Return a view of the first weight in a vector of parameters, (towers, width, inputs)."""
        first = net.layers[0]
        return vector[first.weight :][: net.towers * first.width * first.inputs].view(
            net.towers, first.width, first.inputs
        )


def descriptors(*matrices: tuple[Tensor, int, int]) -> tuple[TensorDescriptor, ...]:
    """Return tensor descriptors of tensors (towers, rows, columns), as matrices (towers x rows, columns), each given
    with its block's rows and columns.
    """
    return tuple(
        TensorDescriptor.from_tensor(matrix.flatten(0, 1), [rows, columns]) for matrix, rows, columns in matrices
    )
