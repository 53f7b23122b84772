"""Adam on one flat vector, by torch's fused kernel. Knows a vector, its gradient and a learning rate; knows no network and no loss.

The kernel is what `torch.optim.Adam(fused=True)` launches. The class around it is left out: making one imports torch's compiler, which costs 1.4 s of every
start on two CPU cores and 5 s beside an H200.
"""

from __future__ import annotations

import torch
from torch import Tensor


def scalar(value: float | Tensor, device: torch.device) -> Tensor:
    """A number of a configuration on a device; where it is scheduled, it is there already, and changes."""
    return value if isinstance(value, Tensor) else torch.tensor(value, device=device)


class Adam:
    """Adam (Kingma & Ba 2015, algorithm 1), all of whose state lies on the device, so that a captured graph can step it.

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
            [self._values], [self._gradient], [self._first], [self._second], [], [self._steps],
            lr=self.learning_rate, beta1=self.BETAS[0], beta2=self.BETAS[1], weight_decay=0.0, eps=self._epsilon,
            amsgrad=False, maximize=False, found_inf=skip,
        )  # fmt: skip
        if skip is not None:
            self._steps -= skip

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        return {"step": self._steps, "exp_avg": self._first, "exp_avg_sq": self._second}


def clip_gradient(gradient: Tensor, most: float) -> Tensor:
    """Shorten a gradient to the norm `most`, where that is not 0: g <- g min(1, most / |g|) (Pascanu, Mikolov & Bengio 2013). Its norm before."""
    with torch.no_grad():
        norm = torch.linalg.vector_norm(gradient)
        if most > 0.0:
            gradient.mul_((most / (norm + 1e-6)).clamp_max(1.0))
        return norm
