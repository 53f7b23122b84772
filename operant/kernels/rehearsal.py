"""Launches of kernels, and the rehearsal of them that says whether a GPU can run them: they are compiled, and nothing
is launched. Knows no kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from triton import CompilationError, TritonError
from triton.runtime import driver


class Rehearsed:
    """What launches kernels by `launch` alone, so that it can be rehearsed. A class says in `fits` what that is."""

    _asked: int | None = None  # in a rehearsal the most shared memory that a kernel has asked for

    def launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        """Launch a kernel, or in a rehearsal only compile it."""
        if self._asked is None:
            kernel[grid](*arguments, **options)
        else:
            self._asked = max(self._asked, kernel.warmup(*arguments, grid=grid, **options).metadata.shared)

    def fits(self) -> bool:
        """Whether a GPU has the shared memory that programs ask for. Compiles them, and launches nothing."""
        raise NotImplementedError

    def unsupported_reason(self, precision: str) -> str | None:
        """What keeps a GPU from running the kernels, in a sentence; None where nothing does. `precision`: of their
        products.
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
        """The most shared memory that a program may take on a GPU, in bytes."""
        return int(
            driver.active.utils.get_device_properties(
                torch.cuda.current_device() if device.index is None else device.index
            )["max_shared_mem"]
        )

    def _has_room(self, device: torch.device, *works: Callable[[], None]) -> bool:
        """Whether there is shared memory for what each of `works` launches, which is only compiled."""
        with torch.cuda.device(device):
            self._asked = 0
            try:
                for work in works:
                    work()
            finally:
                asked, self._asked = self._asked, None
            return asked <= self._max_shared(device)


def cannot_compile(error: BaseException) -> str:
    """The sentence for what compiling a kernel has raised: there is no C compiler, or Triton does not know the GPU or
    cannot compile the kernel for it.
    """
    # the innermost says what is wrong, those around it where
    while isinstance(error, CompilationError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return f"Triton cannot compile them here: {lines[-1 if isinstance(error, CompilationError) else 0].strip()}"
