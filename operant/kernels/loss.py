"""An algorithm's loss as the backward kernels take it: Triton functions that are handed over when a kernel is compiled.
Knows no algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Loss:
    """Three `@triton.jit` functions. `samples` is whatever tuple of buffers the algorithm hands to the kernel.

    - `load_scalars(samples)`: a tuple of scalars, loaded once a program;
    - `load_targets(samples, sample, t, in_bounds, tower, lanes, SPEC)`: a tuple of what the loss asks for of samples t
      N + n, (rows) or (rows, out_pad) each,
      loaded a tile ahead;
    - `gradient(out, targets, legal_mask, in_bounds, tower, log_std, scalars, SPEC)`: from outputs (rows, out_pad) that
      `mask_illegal` has masked, the loss's gradients in the outputs and in log_std (rows, out_pad), times the batch,
      and a tuple of terms (rows) to be averaged; all zero out of bounds.

    With two towers each computes its own half: tower 0 the actor's, tower 1 the critic's.
    """

    load_scalars: Any
    load_targets: Any
    gradient: Any
    towers: tuple[int, ...]  # of each term, the tower that computes it

    @property
    def cache_key(self) -> str:
        """What Triton's cache on disk tells losses apart by: the functions' source."""
        return (
            "-".join(function.cache_key for function in (self.load_scalars, self.load_targets, self.gradient))
            + f"-{self.towers}"
        )
