"""Forward passes of wide networks and their ways back, as launches: products with what lies around them, the library's,
and what runs beside what.

Of a whole batch a network at a time. Knows no algorithm's order of work, no heads, and no step: see `wide`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from operant.kernels.actor_critic import wide_first, wide_layers, wide_shape
from operant.kernels.actor_critic.buffers import Passes, Trained, Work
from operant.kernels.actor_critic.learner import Learner
from operant.kernels.actor_critic.wide_shape import ROWS, STAGES, Wide, WideNet, first_tile, layer_tile

BESIDE = True
"""Whether what does not depend on each other is launched side by side."""

OWN, PRODUCT = True, (128, 256, 64)
"""Whether the gradient in what a wide layer reads is our own product: the library's begins with a memset, which costs a
graph 10 us. Its tiles.
"""


class WidePasses(Learner):
    """What a learner of wide networks does with each of them."""

    shape: Wide  # type: ignore[assignment]
    _side: torch.cuda.Stream | None
    _far: torch.cuda.Stream | None
    _device: torch.device
    _room: int
    _ready: bool
    _work: Work
    _shares: Tensor

    def _rowwise(
        self,
        kernel: object,
        net: WideNet,
        at: int,
        samples: int,
        second: int,
        *arguments: object,
        product: bool = False,
        programs: int = 0,
        warps: int = 1,
        each: int = 8,
        **options: object,
    ) -> None:
        """A kernel over whole rows of a layer, a program a tile, or so many programs in all; `second` is the grid's
        other size.

        `product`: it has one; else a thread has `each` numbers of a part.
        """
        rows, warps = (
            (ROWS, max(4, warps))
            if product
            else (min(ROWS, max(1, each * 32 * warps // max(net.layers[at].parts))), warps)
        )
        grid = (min(programs or samples, samples // rows), second)
        self.launch(kernel, grid, *arguments, SPEC=self.shape, AT=at, ROWS=rows, num_warps=warps, **options)

    def _forward(
        self,
        net: WideNet,
        x: Tensor,
        flat: Tensor,
        weights: list[Tensor],
        passes: Passes,
        *,
        keep: bool = False,
        values: Tensor | None = None,
    ) -> None:
        """All hidden layers of rows (n, columns); an actor's last activations, too; into `values` (towers, n) critics'.
        `keep`: what a way back needs.
        """
        rows, top = passes.hidden[0].shape[1], len(net.layers) - 1
        both = self._first_layers(net, x, flat, weights, passes, keep=keep)
        size = next(size for size in (wide_shape.FIRST_ROWS, 32, ROWS) if rows % size == 0)
        if not both:
            self.launch(
                wide_first.first_layer,
                (rows // size, net.towers),
                x,
                weights[0],
                passes.sums[0],
                passes.hidden[0],
                passes.moments[0],
                flat,
                rows,
                SPEC=self.shape,
                NET=net,
                KEEP=keep,
                KEEP_SUMS=keep and self.shape.needs_sums and first_tile(self.shape, net) is None,
                CHUNK=wide_shape.FIRST_CHUNK,
                ROWS=size,
                num_warps=4,
            )
        for k in range(2 if both else 1, top + 1):
            tile, z, h, m = (
                layer_tile(self.shape, net, k, rows, self._room),
                passes.sums[k],
                passes.hidden[k],
                passes.moments[k],
            )
            if tile is None:
                if self._asked is None:
                    torch.bmm(passes.hidden[k - 1], weights[k].transpose(1, 2), out=z)
                self._rowwise(
                    wide_layers.forward_layer,
                    net,
                    k,
                    rows,
                    net.towers,
                    z,
                    h,
                    m,
                    flat,
                    rows,
                    programs=wide_shape.PROGRAMS // net.towers,
                    NET=net,
                )
                continue
            end = "hidden", flat
            if k == top and net is self.shape.actor:
                end = "policy" if self._ready else "hidden", passes.end
            elif k == top:
                end = ("hidden" if self.shape.atoms else "", flat) if values is None else ("value", values)
            size, deep = tile
            part = net.layers[k].parts[0]
            self.launch(
                wide_layers.hidden_layer,
                (rows // size, net.towers),
                *described((passes.hidden[k - 1], size, deep), (weights[k], part, deep)),
                *described((z, size, part), (h, size, part)),
                m,
                flat,
                end[1],
                rows,
                SPEC=self.shape,
                NET=net,
                AT=k,
                KEEP=keep,
                END=end[0],
                ROWS=size,
                DEEP=deep,
                STAGES=STAGES,
                num_warps=8 if size > 64 else 4,
            )
        if values is not None and tile is None:
            self._rowwise(wide_layers.value, net, top, rows, net.towers, passes.hidden[top], flat, values)

    def _first_layers(
        self, net: WideNet, x: Tensor, flat: Tensor, weights: list[Tensor], passes: Passes, *, keep: bool
    ) -> bool:
        """The first two hidden layers in one launch, where the second is none of the last and fits; whether
        they were.
        """
        rows = passes.hidden[0].shape[1]
        tile = layer_tile(self.shape, net, 1, rows, self._room)
        if (
            tile is None
            or len(net.layers) < 3
            or (keep and self.shape.needs_sums and first_tile(self.shape, net) is None)
        ):
            return False
        (size, deep), part = tile, net.layers[1].parts[0]
        self.launch(
            wide_first.first_layers,
            (rows // size, net.towers),
            x,
            *described((weights[0], deep, self.shape.columns), (weights[1], part, deep)),
            *described((passes.sums[1], size, part), (passes.hidden[0], size, deep), (passes.hidden[1], size, part)),
            passes.moments[1],
            flat,
            rows,
            SPEC=self.shape,
            NET=net,
            KEEP=keep,
            ROWS=size,
            DEEP=deep,
            STAGES=STAGES,
            num_warps=8 if size > 64 else 4,
        )
        return True

    def _backward(self, trained: Trained, x: Tensor, passes: Passes, *, train: bool, begin: int = 0) -> None:
        """From the gradient in the last hidden layer's sums: of the weights with `train`, else in what the first layer
        reads. Rows from `begin` on.
        """
        net, B, idle = trained.net, self.shape.batch, self._asked is not None
        tiled = first_tile(self.shape, net)
        for k in range(len(net.layers) - 1, 0, -1):
            if train and not idle:
                with self._aside():
                    self._product(
                        passes.gradient[k].transpose(1, 2),
                        passes.hidden[k - 1][:, begin : begin + B],
                        trained.by_weights[k],
                    )
            if k == 1 and tiled:
                self._first_backward(trained, x, passes, tiled, train=train)
                break
            self._input_gradient(trained, passes, k)
            self._layer_backward(trained, passes, k - 1, train=train, begin=begin)
        if not train and not idle and not tiled:
            self._product(passes.gradient[0], trained.weights[0], self._work.value_slope)
        if train:
            with self._aside():
                grid = (net.vectors, net.towers, -(-net.pad // wide_shape.SUM_UNITS))
                sizes = {
                    "FIRST": 0 if tiled else net.programs,
                    "CHUNK": min(wide_shape.SUM_ROWS, net.programs),
                    "WIDE": wide_shape.SUM_UNITS,
                }
                self.launch(
                    wide_layers.reduce,
                    grid,
                    trained.partial,
                    trained.gradient,
                    SPEC=self.shape,
                    NET=net,
                    **sizes,
                    num_warps=4,
                )
            self._first_gradient(trained, x, passes)
            self._join()

    def _layer_backward(self, trained: Trained, passes: Passes, at: int, *, train: bool, begin: int = 0) -> None:
        """In place from the gradient in a layer's activations to that in what it sums up."""
        net, z, saved, hidden = trained.net, passes.sums[at], passes.moments[at], passes.hidden[at]
        self._rowwise(
            wide_layers.backward_layer,
            net,
            at,
            self.shape.batch,
            net.towers,
            passes.gradient[at],
            z,
            saved,
            hidden,
            trained.flat.parameters,
            trained.partial,
            hidden.shape[1],
            begin,
            programs=net.programs if train else wide_shape.PROGRAMS // net.towers,
            NET=net,
            TRAIN=train,
        )

    def _first_backward(
        self, trained: Trained, x: Tensor, passes: Passes, tile: tuple[int, int, int], *, train: bool
    ) -> None:
        """What the first layer learns from, or the gradient in actions, of the gradient in what the second layer sums
        up.
        """
        net, B, (size, columns, deep) = trained.net, self.shape.batch, tile
        tiles, parts = wide_shape.slope_tiles(net, columns)
        read, weight, out = described(
            (passes.gradient[1], size, deep), (trained.weights[1], deep, columns), (passes.gradient[0], size, columns)
        )
        self.launch(
            wide_first.first_slopes,
            (tiles, B // size, net.towers),
            read,
            weight,
            x,
            trained.weights[0],
            trained.flat.parameters,
            out,
            self._shares,
            SPEC=self.shape,
            NET=net,
            TRAIN=train,
            ROWS=size,
            COLUMNS=columns,
            PARTS=parts,
            DEEP=deep,
            STAGES=STAGES,
            num_warps=8,
        )
        if not train:
            self.launch(
                wide_first.action_slopes,
                (B // size, net.towers),
                self._shares,
                self._work.value_slope,
                SPEC=self.shape,
                TILES=tiles,
                ROWS=size,
                num_warps=4,
            )

    def _first_gradient(self, trained: Trained, x: Tensor, passes: Passes) -> None:
        """The gradient of the first layer's weight: of few columns, so parts of the batch side by side, for more
        programs.
        """
        net, by_first, tile = trained.net, trained.by_first, wide_shape.gradient_tile(self.shape, trained.net)
        if tile is not None:
            (size, columns), units = tile, {"SPEC": self.shape, "NET": net, "WIDE": by_first.shape[-1]}
            self.launch(
                wide_first.first_gradient,
                (net.layers[0].width // columns, self.shape.parts, net.towers),
                *described((passes.gradient[0], size, columns)),
                x,
                by_first,
                **units,
                ROWS=size,
                COLUMNS=columns,
                STAGES=STAGES,
                num_warps=4,
            )
            self.launch(
                wide_first.first_reduce,
                (net.layers[0].width // 16, net.towers),
                by_first,
                trained.gradient,
                **units,
                UNITS=16,
                num_warps=4,
            )
        elif self._asked is None:
            for tower in range(net.towers):
                g = passes.gradient[0][tower].unflatten(0, (self.shape.parts, -1))
                self._product(g.transpose(1, 2), x.unflatten(0, (self.shape.parts, -1)), by_first[tower])
            torch.sum(by_first[..., : net.layers[0].inputs], 1, out=self._first_of(net, trained.gradient))

    @contextlib.contextmanager
    def _aside(self, *, far: bool = False) -> Iterator[None]:
        """Launches beside what follows, until `_join`: passes over memory and products take turns well. `far`: beside
        others of these, too.
        """
        stream = self._far if far else self._side
        if stream is None or self._asked is not None or not BESIDE:
            yield
            return
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            yield

    def _join(self, *, far: bool = False) -> None:
        """Go on once all that was launched aside is done."""
        stream = self._far if far else self._side
        if stream is not None and self._asked is None and BESIDE:
            torch.cuda.current_stream(self._device).wait_stream(stream)

    def _input_gradient(self, trained: Trained, passes: Passes, k: int) -> None:
        """The gradient in what layer k reads, before an activation."""
        layer, (rows, columns, deep) = trained.net.layers[k], PRODUCT
        if (
            OWN
            and self.shape.precision == "bf16"
            and layer.inputs % columns + layer.width % deep + self.shape.batch % rows == 0
        ):
            self.launch(
                wide_layers.input_gradient,
                (self.shape.batch // rows * (layer.inputs // columns), trained.net.towers),
                passes.gradient[k],
                trained.weights[k],
                passes.gradient[k - 1],
                SPEC=self.shape,
                NET=trained.net,
                AT=k,
                ROWS=rows,
                COLUMNS=columns,
                DEEP=deep,
                num_warps=8,
            )
        elif self._asked is None:
            torch.bmm(passes.gradient[k], trained.weights[k], out=passes.gradient[k - 1])

    def _product(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """A b in float32."""
        torch.bmm(a, b, out=out, **({} if a.dtype == out.dtype else {"out_dtype": out.dtype}))

    @staticmethod
    def _first_of(net: WideNet, vector: Tensor) -> Tensor:
        """The first layer's weight in a vector of parameters, (towers, width, inputs)."""
        first = net.layers[0]
        return vector[first.weight :][: net.towers * first.width * first.inputs].view(
            net.towers, first.width, first.inputs
        )


def described(*matrices: tuple[Tensor, int, int]) -> tuple[TensorDescriptor, ...]:
    """Descriptors of matrices (towers, rows, columns), a tower's rows behind another's, with the rows and columns of a
    block of each.
    """
    return tuple(
        TensorDescriptor.from_tensor(matrix.flatten(0, 1), [rows, columns]) for matrix, rows, columns in matrices
    )
