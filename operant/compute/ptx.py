"""Compilation of kernels to PTX without a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from numba import cuda
from numba.cuda import dispatcher as cuda_dispatcher

from operant.compute.kernel import cuda_shell, signature

ARCHITECTURES = ((7, 5), (8, 6), (9, 0), (10, 0))
"""Compute capabilities every kernel is compiled for: Turing, Ampere, Hopper, Blackwell."""

_RUNTIME_SYMBOLS = {"__assertfail", "malloc", "free"}  # provided by the driver


@contextmanager
def _pretended_device(capability: tuple[int, int]) -> Iterator[None]:
    """Context in which numba finds a current device of this compute capability, even without a driver. Numba asks for
    it when a helper is called instead of inlined.
    """
    if cuda.is_available():
        yield
        return
    original = cuda_dispatcher.get_current_device
    cuda_dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    try:
        yield
    finally:
        cuda_dispatcher.get_current_device = original


def compile_ptx(body: Callable[..., Any], lanes: Any, slot: Any, capability: tuple[int, int]) -> str:
    """Compile a kernel body to PTX without a GPU, for two named tuples of CPU tensors, bound or not, and a compute
    `capability` such as (9, 0). Raises numba's errors.
    """
    with _pretended_device(capability):
        return cuda.compile_ptx(cuda_shell(body), signature(lanes, slot), fastmath=True, cc=capability)[0]


def float64_lines(ptx: str) -> list[str]:
    """Instructions of a PTX text that compute in float64, one string each. With fastmath even trigonometry has none."""
    return [line.strip() for line in ptx.splitlines() if ".f64" in line and not line.strip().startswith((".reg", "//"))]


def undefined_calls(ptx: str) -> list[str]:
    """Names of the functions that a PTX text declares but does not define, which the driver would reject."""
    return sorted(set(re.findall(r"\.extern\s+\.func\s+(?:\([^)]*\)\s*)?([\w$]+)", ptx)) - _RUNTIME_SYMBOLS)
