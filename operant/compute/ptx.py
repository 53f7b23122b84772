"""Kernels compiled to PTX where there is no GPU, and numba's errors in one sentence. Knows nothing of environments or of what a kernel does."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from numba import cuda, typeof, types
from numba.cuda import dispatcher as cuda_dispatcher

from operant.compute.kernel import bind, cuda_shell

ARCHITECTURES = ((7, 5), (8, 6), (9, 0), (10, 0))
"""Compute capabilities every kernel is compiled for: Turing, Ampere, Hopper, Blackwell."""

_RETURNED = {
    "reward, terminated": "`step` must return two values, the reward and whether the episode terminated",
    "red, green, blue": "`pixel_shader` must return three values, red, green and blue",
}
"""What an environment's functions return, by the names it is unpacked into."""

_RUNTIME_SYMBOLS = {"__assertfail", "malloc", "free"}  # the driver brings these


@contextmanager
def _pretended_device(capability: tuple[int, int]) -> Iterator[None]:
    """Without a driver, numba still asks the current device for its capability when a helper is called rather than pasted: answer for it."""
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
    """The PTX of a body in its GPU shell, for two groups of (CPU) tensors as `Kernel` would be handed, bound or not. Raises numba's errors."""
    with _pretended_device(capability):
        return cuda.compile_ptx(cuda_shell(body), signature(lanes, slot), fastmath=True, cc=capability)[0]


def float64_lines(ptx: str) -> list[str]:
    """Instructions that touch float64. With fastmath even trigonometry has none."""
    return [line.strip() for line in ptx.splitlines() if ".f64" in line and not line.strip().startswith((".reg", "//"))]


def undefined_calls(ptx: str) -> list[str]:
    """Functions that are declared but nowhere defined: the driver would refuse the module."""
    return sorted(set(re.findall(r"\.extern\s+\.func\s+(?:\([^)]*\)\s*)?([\w$]+)", ptx)) - _RUNTIME_SYMBOLS)


def signature(lanes: Any, slot: Any) -> tuple[Any, ...]:
    """The numba types of a shell's arguments, for two groups of tensors, bound or not."""
    return types.int64, typeof(bind(lanes)), typeof(bind(slot)), types.int64


def essence(error: BaseException) -> str:
    """What an author needs of numba's many lines: the place, the line of code, what is wrong."""
    if isinstance(error, RecursionError):
        return "numba looks in vain for a function that it calls: np.random and other parts of NumPy exist on the CPU only"
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Failed in ")]
    sentence = re.sub(r"Function\((<[^>]*>)\)", r"\1", lines[0]) if lines else type(error).__name__
    for line in lines[1:4]:
        if line.startswith(">>>"):
            sentence += " " + line.removeprefix(">>>").strip()
    sentence = re.sub(r" for '[^']*', defined at .*| ?Raised from .*", "", sentence)
    place = _place(error, text)
    if "failed to unpack" in sentence or "wrong tuple length" in sentence:
        for names, wanted in _RETURNED.items():
            if names in text or names in place:
                return wanted
    sentence = sentence.rstrip(".")
    return f"{place}: {sentence}" if place else sentence


def _place(error: BaseException, text: str) -> str:
    where = getattr(error, "loc", None)
    if where is not None:
        return quoted(where.filename, where.line)
    named = re.findall(r" (?:at|from) (\S+\.py) \((\d+)\)", text)
    return quoted(named[-1][0], int(named[-1][1])) if named else ""


def quoted(filename: str, line: int) -> str:
    """A line of a file, as an author finds it again."""
    code = linecache.getline(filename, line).strip()
    return f"{filename}:{line}" + (f" (`{code}`)" if code else "")
