"""The decorator of an environment's functions: plain Python that numba compiles for the CPU and recompiles for CUDA.

Knows nothing of environments, lanes or worlds. Only `world` decides where a function runs.
"""

from __future__ import annotations

import functools
import itertools
import os
import secrets
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from numba import njit
from numba.core import inline_closurecall
from numba.core.bytecode import FunctionIdentity
from numpy import float32, int32

FASTMATH = frozenset({"contract", "afn", "arcp", "nsz", "reassoc"})
"""The liberties the compiler may take on the CPU. Not `nnan`: with it `isnan(nan)` is false, and guards lie."""

UNCOUNTED: Any = {"_nrt": False}
"""Numba counts no references to arrays: nothing here allocates, and counting took more than half of a step's time (on a
GPU there is no such count).
"""

LEAST_NUMBER = 10**18
"""Numba numbers the functions it compiles, here from some place above this on: see `_number_apart`."""


def device(function: Callable[..., Any]) -> Any:
    """Compile a function for both backends, pasted into its caller (without pasting, stepping is three times slower on
    a CPU).
    """
    _number_apart()
    paste_without_copies(inline_closurecall)
    return njit(inline="always", fastmath=set(FASTMATH), error_model="numpy", **UNCOUNTED)(function)


def device_call(function: Callable[..., Any]) -> Any:
    """As `device`, but called rather than pasted: for large helpers that several places use."""
    _number_apart()
    options: Any = {"fastmath": set(FASTMATH), "error_model": "numpy", **UNCOUNTED}
    called: Any = njit(**options)(function)
    if not hasattr(called, "get_call_template"):  # NUMBA_DISABLE_JIT: plain Python
        return called
    # Compiled code calls one without numba's wrappers for calls from Python and C: they take a tenth of all
    # compilation.
    options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    bare: Any = njit(**options)(function)
    called.get_call_template, called.get_overload = bare.get_call_template, bare.get_overload
    called._compiling_counter = bare._compiling_counter  # which tells numba that a function calls itself
    return called


def device_params(params: Any) -> Any:
    """Parameters as device functions see them: floats as float32, whole numbers as int32, truth values as they are."""

    def narrow(value: Any) -> Any:
        if isinstance(value, bool):
            return value
        return int32(value) if isinstance(value, int) else float32(value)

    return type(params)(*(narrow(value) for value in params))


@functools.cache
def paste_without_copies(numbas: ModuleType) -> None:
    """Have numba paste a function as it has just read it, rather than two copies of that, each block with all
    variables: a quarter of all compilation.

    `numbas` is the module of a backend that pastes. What is read to be pasted is used once, there, so that nothing else
    sees it change.
    """
    if not hasattr(numbas, "copy"):  # a numba that copies in another way, or not at all
        return
    paste = numbas.InlineWorker.inline_function

    @functools.wraps(paste)
    def inline_function(*words: Any, **named: Any) -> Any:
        before, numbas.copy = numbas.copy, SimpleNamespace(deepcopy=lambda block: block)  # type: ignore[attr-defined]
        try:
            return paste(*words, **named)
        finally:
            numbas.copy = before  # type: ignore[attr-defined]

    numbas.InlineWorker.inline_function = inline_function


@functools.cache
def _number_apart() -> None:
    """Make compiled functions' names differ from those of any other process.

    A name holds the function's place in the order of compilation. Code that another process compiled and left on disk
    would otherwise bring names that mean something else here, and whichever of the two came first would run in place of
    both.
    """

    def begin() -> None:
        FunctionIdentity._unique_ids = itertools.count(LEAST_NUMBER + secrets.randbelow(LEAST_NUMBER))

    begin()
    os.register_at_fork(after_in_child=begin)
