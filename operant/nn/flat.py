"""One flat vector of all parameters, and one of their gradients. Knows modules; knows nothing of what they compute."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

PAD_FLOATS = 32
"""Each parameter begins at a multiple of this in the flat vector: 128 bytes."""


class FlatVector:
    """All parameters of some modules as views of one vector, and their gradients as views of another.

    One vector makes the optimiser, the norm, a checkpoint and a copy one call each. Load by `values.copy_`; never move
    the modules afterwards.
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
        self._gradient_views = []  # of those
        self.offsets: list[int] = []  # where each parameter begins
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
        """Write the gradient of a loss into the gradient vector, in place of what was there or added to it. Frozen and
        unused parameters get none.
        """
        gradients = torch.autograd.grad(loss, self._trained, materialize_grads=True)
        if add:
            torch._foreach_add_(self._gradient_views, list(gradients))
        else:
            torch._foreach_copy_(self._gradient_views, list(gradients))

    def matrices(self, towers: int, units: int) -> list[tuple[int, tuple[int, int, int]]]:
        """Where the weights of hidden layers lie, G matrices of m x n each, as (place, (G, m, n)); weights of heads are
        none of them.

        The gates of a memory of so many units are a matrix each. Alike ones that follow each other in the vector count
        together: they are stepped at once.
        """
        found: list[tuple[int, tuple[int, int, int]]] = []
        for name, parameter, place in zip(self.names, self.parameters, self.offsets, strict=True):
            if parameter.ndim > 1 and parameter.shape[-1] > 1 and not name.endswith(("head_weight", "value_weight")):
                n = parameter.shape[2] if parameter.ndim == 3 else parameter[0].numel()  # a filter is a row
                rows = parameter.numel() // n
                G = parameter.shape[0] if parameter.ndim == 3 else towers if name.endswith("first_weight") else 1
                m = units if "memory." in name and rows % units == 0 else rows // G
                G = rows // m
                before, (count, *alike) = found[-1] if found else (0, (0, 0, 0))
                if alike == [m, n] and before + count * m * n == place:
                    found[-1] = (before, (count + G, m, n))
                else:
                    found.append((place, (G, m, n)))
        return found

    def not_finite(self) -> list[str]:
        """Names of the parameters that hold a NaN or an infinity. Reads back from the device."""
        return [
            name
            for name, parameter in zip(self.names, self.parameters, strict=True)
            if not bool(torch.isfinite(parameter).all())
        ]  # sync: the run is over
