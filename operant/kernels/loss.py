"""Interface of an algorithm's loss to the backward kernels. Knows no algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Loss:
    """Loss of an algorithm as three Triton device functions, compiled into the backward kernels.

    - `load_scalars(samples)`: tuple of scalars, loaded once per program.
    - `load_targets(samples, sample, t, in_bounds, tower, lanes, SPEC)`: tuple of the loss's targets, (rows) or (rows,
      out_pad) each, for samples t N + n; loaded one tile ahead.
    - `gradient(out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC)`: gradients in the outputs and in
      log_std, (rows, out_pad) each, and a tuple of loss terms (rows). All are zero out of bounds. The kernels divide
      them by the number of samples. `out` (rows, out_pad) is masked by `mask_illegal`.

    `samples` is a struct of the algorithm's buffers.

    With two towers, tower 0 computes the actor's part and tower 1 the critic's.
    """

    load_scalars: Any
    load_targets: Any
    gradient: Any
    towers: tuple[int, ...]  # for each loss term, the tower that computes it

    @property
    def cache_key(self) -> str:
        """Key of the loss in Triton's disk cache: its functions' source hashes."""
        return (
            "-".join(function.cache_key for function in (self.load_scalars, self.load_targets, self.gradient))
            + f"-{self.towers}"
        )
