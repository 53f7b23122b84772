"""Adam on a flat parameter vector, by torch's fused kernel, and Muon for the weight matrices in it.

The kernel is the one that `torch.optim.Adam(fused=True)` launches. That class is not used: creating it imports torch's
compiler, which adds 1.4 s to every start on two CPU cores and 5 s on the host of an H200.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from operant.compute.exchange import SOLO, Exchange

PAD_FLOATS = 32
"""Alignment of each parameter in the flat vector, in floats: 128 bytes."""


class FlatVector:
    """All parameters of some modules as views of one vector (`values`), and their gradients as views of another
    (`gradient`).

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
        """Write the gradient of a loss, by autograd, into the vector `gradient`; with `add`, add to it. Frozen and
        unused parameters get 0.
        """
        gradients = torch.autograd.grad(loss, self._trained, materialize_grads=True)
        if add:
            torch._foreach_add_(self._gradient_views, list(gradients))
        else:
            torch._foreach_copy_(self._gradient_views, list(gradients))

    def matrices(self, towers: int, units: int) -> list[tuple[int, tuple[int, int, int]]]:
        """Return the hidden layers' weight matrices for Muon, as (offset, (G, m, n)): G matrices of m x n from `offset`
        of the vector on. Weights of output layers are left out.

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
        """Return the names of the parameters with a NaN or infinite value. Waits for the device."""
        return [
            name
            for name, parameter in zip(self.names, self.parameters, strict=True)
            if not bool(torch.isfinite(parameter).all())
        ]  # sync: the run is over


def scalar(value: float | Tensor, device: torch.device) -> Tensor:
    """Return a configured number as a scalar tensor on a device. A scheduled one is such a tensor already and is
    returned unchanged.
    """
    return value if isinstance(value, Tensor) else torch.tensor(value, device=device)


class Adam:
    """Adam (Kingma & Ba 2015, algorithm 1) on a flat parameter vector. Its state lies on the device, so that a CUDA
    graph can capture a step.

    m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  x <- x - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon)
    """

    BETAS = (0.9, 0.999)

    def __init__(self, values: Tensor, gradient: Tensor, learning_rate: Tensor, epsilon: float) -> None:
        self._values, self._gradient, self.learning_rate, self._epsilon = values, gradient, learning_rate, epsilon
        self._first = torch.zeros_like(values)  # m
        self._second = torch.zeros_like(values)  # v
        self._steps = torch.zeros((), device=values.device)  # t

    @torch.no_grad()
    def step(self, skip: Tensor | None = None) -> None:
        """Take one step by the current gradient. Where `skip` (a scalar on the device) is 1 nothing changes, the step
        count included.
        """
        self._steps += 1
        torch._fused_adam_(
            [self._values],
            [self._gradient],
            [self._first],
            [self._second],
            [],
            [self._steps],
            lr=self.learning_rate,
            beta1=self.BETAS[0],
            beta2=self.BETAS[1],
            weight_decay=0.0,
            eps=self._epsilon,
            amsgrad=False,
            maximize=False,
            found_inf=skip,
        )
        if skip is not None:
            self._steps -= skip

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint, by name; a load copies into them."""
        return {"step": self._steps, "exp_avg": self._first, "exp_avg_sq": self._second}


class Muon(Adam):
    """Muon (Jordan et al. 2024) for the weight matrices in a flat parameter vector, Adam for all other parameters.

    m <- b m + g;  u = g + b m;  W <- W - lr 0.2 sqrt(max(rows, columns)) U V^T, where u = U S V^T. The factor gives a
    step the usual size of Adam's (Liu et al. 2025, "Muon is scalable for LLM training"), so both share a learning rate.
    """

    MOMENTUM = 0.95
    PER_ADAM_STEP = 0.2

    def __init__(
        self,
        values: Tensor,
        gradient: Tensor,
        learning_rate: Tensor,
        epsilon: float,
        matrices: Sequence[tuple[int, tuple[int, int, int]]],
    ) -> None:
        """Create the optimizer. `matrices` lists (offset, (G, m, n)): G neighbouring matrices of m x n from `offset` of
        the vector on.
        """
        super().__init__(values, gradient, learning_rate, epsilon)
        self._momentum = torch.zeros_like(values)
        self.matrices = matrices
        windows = [(slice(offset, offset + G * m * n), (G, m, n)) for offset, (G, m, n) in matrices]
        self._matrices = [
            tuple(vector[window].view(shape) for vector in (values, gradient, self._momentum))
            for window, shape in windows
        ]

    @torch.no_grad()
    def step_matrices(self, skip: Tensor | None = None) -> None:
        """Step the matrices and zero their gradients, so that the following step of Adam leaves them unchanged. Nothing
        changes where `skip` (a scalar on the device) is 1.
        """
        for weight, gradient, momentum in self._matrices:  # (G, m, n) each
            new_momentum = momentum * self.MOMENTUM + gradient
            update = orthogonalized(gradient + self.MOMENTUM * new_momentum)
            new_weight = weight - update * (self.learning_rate * (self.PER_ADAM_STEP * max(weight.shape[1:]) ** 0.5))
            # Selected, not multiplied by 0: the gradient of a skipped step may not be finite.
            momentum.copy_(new_momentum if skip is None else torch.where(skip > 0, momentum, new_momentum))
            weight.copy_(new_weight if skip is None else torch.where(skip > 0, weight, new_weight))
            gradient.zero_()

    def step(self, skip: Tensor | None = None) -> None:
        """Take one step of Muon and of Adam by the current gradient. Nothing changes where `skip` (a scalar on the
        device) is 1.
        """
        self.step_matrices(skip)
        super().step(skip)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint, by name; a load copies into them."""
        return {**super().tensors(), "momentum": self._momentum}


def orthogonalized(matrices: Tensor) -> Tensor:
    """Return approximately U V^T for matrices U S V^T (G, m, n), by five Newton-Schulz iterations, which bring singular
    values to about 0.7 to 1.2.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = (x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)).to(torch.bfloat16 if x.is_cuda else torch.float32)
    for _ in range(5):
        square = torch.bmm(x, x.transpose(1, 2))
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return (x.transpose(1, 2) if tall else x).float()


def clip_gradient(gradient: Tensor, max_norm: float, exchange: Exchange = SOLO) -> Tensor:
    """Scale a gradient in place to at most the norm `max_norm` (0: unlimited), g <- g min(1, max_norm / |g|) (Pascanu,
    Mikolov & Bengio 2013). Returns its norm before.

    With several ranks in `exchange` the gradient is first averaged over them.
    """
    with torch.no_grad():
        if exchange.ranks > 1:
            torch.mean(exchange.gather(gradient[None]), dim=0, out=gradient)
        norm = torch.linalg.vector_norm(gradient)
        if max_norm > 0.0:
            gradient.mul_((max_norm / (norm + 1e-6)).clamp_max(1.0))

        return norm
