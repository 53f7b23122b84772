"""Adam on one flat vector, by torch's fused kernel, and Muon for the matrices in it. Knows a vector, its gradient and a
learning rate; no network, no loss.

The kernel is what `torch.optim.Adam(fused=True)` launches. The class around it is left out: making one imports torch's
compiler, which costs 1.4 s of every start on two CPU cores and 5 s beside an H200.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from operant.compute.exchange import SOLO, Exchange


def scalar(value: float | Tensor, device: torch.device) -> Tensor:
    """A number of a configuration on a device; where it is scheduled, it is there already, and changes."""
    return value if isinstance(value, Tensor) else torch.tensor(value, device=device)


class Adam:
    """Adam (Kingma & Ba 2015, algorithm 1), all of whose state lies on the device, so that a captured graph can step
    it.

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
        """One step down the gradient; none at all, of t included, where `skip` (a scalar on the device) is 1."""
        self._steps += 1
        torch._fused_adam_(  # type: ignore[call-overload]
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
        """What a checkpoint must hold."""
        return {"step": self._steps, "exp_avg": self._first, "exp_avg_sq": self._second}


class Muon(Adam):
    """Muon (Jordan et al. 2024) for matrices, Adam for all else.

    m <- b m + g;  u = g + b m;  W <- W - lr 0.2 sqrt(max(rows, columns)) U V^T, where u = U S V^T. The factor makes a
    step as large as one of Adam usually is (Liu et al. 2025, "Muon is scalable for LLM training"), so both share a
    learning rate.
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
        """`matrices`: where G matrices of m x n lie in the vector, one after the other, as (place, (G, m, n))."""
        super().__init__(values, gradient, learning_rate, epsilon)
        self._momentum = torch.zeros_like(values)
        self.matrices = matrices
        windows = [(slice(place, place + G * m * n), (G, m, n)) for place, (G, m, n) in matrices]
        self._matrices = [
            tuple(vector[window].view(shape) for vector in (values, gradient, self._momentum))
            for window, shape in windows
        ]

    @torch.no_grad()
    def step_matrices(self, skip: Tensor | None = None) -> None:
        """Step the matrices, whose gradients are then zero: a step of Adam leaves them so."""
        for weight, gradient, momentum in self._matrices:  # (G, m, n) each
            held = momentum * self.MOMENTUM + gradient
            update = orthogonalised(gradient + self.MOMENTUM * held)
            moved = weight - update * (self.learning_rate * (self.PER_ADAM_STEP * max(weight.shape[1:]) ** 0.5))
            # Chosen, not multiplied by 0: a skipped step may have a gradient that is not finite.
            momentum.copy_(held if skip is None else torch.where(skip > 0, momentum, held))
            weight.copy_(moved if skip is None else torch.where(skip > 0, weight, moved))
            gradient.zero_()

    def step(self, skip: Tensor | None = None) -> None:
        """One step, as Adam's."""
        self.step_matrices(skip)
        super().step(skip)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        return {**super().tensors(), "momentum": self._momentum}


def orthogonalised(matrices: Tensor) -> Tensor:
    """U V^T of matrices U S V^T (G, m, n), nearly: five Newton-Schulz iterations, after which singular values lie
    between about 0.7 and 1.2.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = (x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)).to(torch.bfloat16 if x.is_cuda else torch.float32)
    for _ in range(5):
        square = torch.bmm(x, x.transpose(1, 2))
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return (x.transpose(1, 2) if tall else x).float()


def clip_gradient(gradient: Tensor, most: float, exchange: Exchange = SOLO) -> Tensor:
    """Shorten a gradient to the norm `most`, where that is not 0: g <- g min(1, most / |g|) (Pascanu, Mikolov & Bengio
    2013). Its norm before.

    Of several ranks, each of which has its own part of a batch, it is first the mean of theirs.
    """
    with torch.no_grad():
        if exchange.ranks > 1:
            torch.mean(exchange.gather(gradient[None]), dim=0, out=gradient)
        norm = torch.linalg.vector_norm(gradient)
        if most > 0.0:
            gradient.mul_((most / (norm + 1e-6)).clamp_max(1.0))
        return norm
