"""The decorator of an environment's functions: plain Python that numba compiles for the CPU and recompiles for CUDA.

Knows nothing of environments, lanes or worlds. Only `world` decides where a function runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

FASTMATH = frozenset({"contract", "afn", "arcp", "nsz", "reassoc"})
"""The liberties the compiler may take on the CPU. Not `nnan`: with it `isnan(nan)` is false, and guards lie."""


def device(function: Callable[..., Any]) -> Any:
    """Compile a function for both backends, pasted into its caller (without pasting, stepping is three times slower on a CPU)."""
    return njit(inline="always", fastmath=set(FASTMATH), error_model="numpy")(function)


def device_call(function: Callable[..., Any]) -> Any:
    """As `device`, but called rather than pasted: for large helpers that several places use."""
    return njit(fastmath=set(FASTMATH), error_model="numpy")(function)
