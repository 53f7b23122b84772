"""Flat parameter vector: all parameters of some modules in one vector, their gradients in another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

PAD_FLOATS = 32
"""Alignment of each parameter in the flat vector, in floats: 128 bytes."""


class FlatVector:
    """Parameters of some modules as views of one vector (`values`), and their gradients as views of another.

    Optimizer step, gradient norm, checkpoint and copy are then one call each. Load by `values.copy_`. The modules must
    not be moved to another device afterwards.
    """

    def __init__(self, modules: Sequence[nn.Module], device: torch.device) -> None:
        named = [(name, parameter) for module in modules for name, parameter in module.named_parameters()]
        sizes = [-(-parameter.numel() // PAD_FLOATS) * PAD_FLOATS for _, parameter in named]
        self.values = nn.Parameter(torch.zeros(sum(sizes), device=device))
        self.gradient = torch.zeros_like(self.values)
        self.values.grad = self.gradient
        self.parameters = [parameter for _, parameter in named]
        self.names = [name for name, _ in named]
        self._trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        self._gradient_views = []  # of the trained parameters
        self.offsets: list[int] = []  # of each parameter in the vector
        offset = 0
        for (_, parameter), size in zip(named, sizes, strict=True):
            window = slice(offset, offset + parameter.numel())
            self.offsets.append(offset)
            self.values.data[window].view(parameter.shape).copy_(parameter.data)
            parameter.data = self.values.data[window].view(parameter.shape)
            if parameter.requires_grad:
                self._gradient_views.append(self.gradient[window].view(parameter.shape))
            offset += size

    def backward(self, loss: Tensor, *, add: bool = False) -> None:
        """Write the gradient of a loss into the gradient vector; with `add`, add to it. The gradient of frozen and of
        unused parameters is 0.
        """
        gradients = torch.autograd.grad(loss, self._trained, materialize_grads=True)
        if add:
            torch._foreach_add_(self._gradient_views, list(gradients))
        else:
            torch._foreach_copy_(self._gradient_views, list(gradients))

    def matrices(self, towers: int, units: int) -> list[tuple[int, tuple[int, int, int]]]:
        """Weight matrices of hidden layers for Muon, as (offset, (G, m, n)): G matrices of m x n from `offset` of the
        vector on. Weights of heads are left out.

        Each gate of a recurrent cell with `units` units is a matrix. Neighbours of one shape are joined, to be stepped
        in one batch.
        """
        matrices: list[tuple[int, tuple[int, int, int]]] = []
        for name, parameter, offset in zip(self.names, self.parameters, self.offsets, strict=True):
            if parameter.ndim > 1 and parameter.shape[-1] > 1 and not name.endswith(("head_weight", "value_weight")):
                n = parameter.shape[2] if parameter.ndim == 3 else parameter[0].numel()  # a filter is a row
                rows = parameter.numel() // n
                G = parameter.shape[0] if parameter.ndim == 3 else towers if name.endswith("first_weight") else 1
                m = units if "memory." in name and rows % units == 0 else rows // G
                G = rows // m
                start, (count, *shape) = matrices[-1] if matrices else (0, (0, 0, 0))
                if shape == [m, n] and start + count * m * n == offset:
                    matrices[-1] = (start, (count + G, m, n))
                else:
                    matrices.append((offset, (G, m, n)))
        return matrices

    def not_finite(self) -> list[str]:
        """Names of the parameters with a NaN or infinite value. Synchronizes with the device."""
        return [
            name
            for name, parameter in zip(self.names, self.parameters, strict=True)
            if not bool(torch.isfinite(parameter).all())
        ]  # sync: the run is over
