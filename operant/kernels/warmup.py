"""Kernel launches, and a warmup that compiles a learner's kernels without launching them, to check that a GPU can run
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from triton import CompilationError, TritonError
from triton.runtime import driver


class Launcher:
    """Base of all engines: kernels are launched by `launch`, which during a warmup (`fits`) compiles them instead."""

    _asked: int | None = None  # during a warmup: largest shared memory of the kernels compiled, bytes

    def launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        """Launch a kernel on a grid; during a warmup only compile it."""
        if self._asked is None:
            kernel[grid](*arguments, **options)
        else:
            self._asked = max(self._asked, kernel.warmup(*arguments, grid=grid, **options).metadata.shared)

    def fits(self) -> bool:
        """Whether the GPU has enough shared memory for all kernels. Compiles them without a launch."""
        raise NotImplementedError

    def unsupported_reason(self, precision: str) -> str | None:
        """Return why the GPU cannot run this engine's kernels, as a sentence, or None if it can. `precision` of their
        products is named in it.
        """
        try:
            return (
                None
                if self.fits()
                else f"a network this wide takes more shared memory in {precision} than this GPU has"
            )
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TritonError) as error:
            return cannot_compile(error)

    @staticmethod
    def _max_shared(device: torch.device) -> int:
        """Return the bytes of shared memory that a program may use on a GPU."""
        return int(
            driver.active.utils.get_device_properties(
                torch.cuda.current_device() if device.index is None else device.index
            )["max_shared_mem"]
        )

    def _fits_shared(self, device: torch.device, *calls: Callable[[], None]) -> bool:
        """Compile the kernels that `calls` would launch; return whether each fits into the GPU's shared memory."""
        with torch.cuda.device(device):
            self._asked = 0
            try:
                for call in calls:
                    call()
            finally:
                asked, self._asked = self._asked, None
            return asked <= self._max_shared(device)


def cannot_compile(error: BaseException) -> str:
    """Return a sentence for an error raised while compiling a kernel: no C compiler, an unknown GPU, or a limitation of
    Triton.
    """
    # The innermost error names the cause, the outer ones the location.
    while isinstance(error, CompilationError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return f"Triton cannot compile the kernels: {lines[-1 if isinstance(error, CompilationError) else 0].strip()}"
