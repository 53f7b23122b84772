"""`device`: the decorator of an environment's functions, compiled by numba for the CPU and recompiled for CUDA."""

from __future__ import annotations

import functools
import itertools
import os
import secrets
from collections.abc import Callable, Mapping
from types import CellType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

from numba import njit
from numba.core import inline_closurecall
from numba.core.bytecode import FunctionIdentity
from numpy import float32, int32

from operant.compute.machine_code import HelperCompiler

FASTMATH = frozenset({"contract", "afn", "arcp", "nsz", "reassoc"})
"""Fast-math flags on the CPU. Without `nnan`, which would make `isnan(nan)` false and break guards."""

NO_REFERENCE_COUNTS: Any = {"_nrt": False}
"""Disable numba's reference counts of arrays: nothing here allocates, and counting took more than half of a step's
time. (CUDA has none.)
"""

LEAST_NUMBER = 10**18
"""Start of the range from which compiled functions are numbered: see `_number_uniquely`."""


def device(function: Callable[..., Any]) -> Any:
    """Decorate a function of an environment: compile it for CPU and CUDA, inlined into its caller. (Without inlining a
    step is three times slower on a CPU.)
    """
    _number_uniquely()
    inline_without_copies(inline_closurecall)
    return njit(inline="always", fastmath=set(FASTMATH), error_model="numpy", **NO_REFERENCE_COUNTS)(function)


def device_call(function: Callable[..., Any]) -> Any:
    """Decorate a large helper with several call sites: compile it for CPU and CUDA like `device`, but call it instead
    of inlining it.
    """
    _number_uniquely()
    options: Any = {"fastmath": set(FASTMATH), "error_model": "numpy", **NO_REFERENCE_COUNTS}
    called: Any = njit(**options)(function)
    if not hasattr(called, "get_call_template"):  # NUMBA_DISABLE_JIT: a plain Python function
        return called
    # Compiled callers need no wrappers for calls from Python and C, which take a tenth of all compilation.
    options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    bare: Any = njit(pipeline_class=HelperCompiler, **options)(function)
    called.get_call_template, called.get_overload = bare.get_call_template, bare.get_overload
    called._compiling_counter = bare._compiling_counter  # recursion check
    return called


def as_python(function: Any, replaced: Mapping[str, Any] | None = None) -> Any:
    """Rebuild a device function and its callees as plain Python functions of the same code, for calls that are too few
    to be worth a compilation. `replaced`: globals and builtins by name that the copies use instead of their own.
    """
    if not hasattr(function, "py_func"):
        return function
    plain, replaced = function.py_func, replaced or {}
    used = {name: value for name, value in (plain.__globals__ | replaced).items() if name in plain.__code__.co_names}
    names = {name: as_python(value, replaced) for name, value in used.items()}
    cells = tuple(CellType(as_python(cell.cell_contents, replaced)) for cell in plain.__closure__ or ())
    return FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__, cells)


def device_params(params: Any) -> Any:
    """Convert the values of a parameter tuple for device functions: float to float32, int to int32, bool unchanged."""

    def narrow(value: Any) -> Any:
        if isinstance(value, bool):
            return value
        return int32(value) if isinstance(value, int) else float32(value)

    return type(params)(*(narrow(value) for value in params))


@functools.cache
def inline_without_copies(numbas: ModuleType) -> None:
    """Patch numba's inliner to use a function's IR (intermediate representation) directly instead of two deep copies of
    it, which saves a quarter of all compilation.

    `numbas` is the inlining module of a backend. IR read for inlining is used once, so nothing else sees the change.
    """
    if not hasattr(numbas, "copy"):  # this numba does not use copy.deepcopy
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
def _number_uniquely() -> None:
    """Start numba's numbering of compiled functions at a random number, so that two processes never give functions
    equal numbers.

    A mangled name contains the function's number in compilation order. Cached code from another process would otherwise
    define names that mean something else here, and whichever is linked first would serve both.
    """

    def begin() -> None:
        FunctionIdentity._unique_ids = itertools.count(LEAST_NUMBER + secrets.randbelow(LEAST_NUMBER))

    begin()
    os.register_at_fork(after_in_child=begin)
