"""Process setup before computing: idle thread behaviour, thread counts, device selection; and classification of device
errors.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import re
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from operant.errors import DeviceError, MachineError, UsageError

if TYPE_CHECKING:
    import torch

_OUT_OF_MEMORY = ("can't allocate memory", "CUDA_ERROR_OUT_OF_MEMORY")  # messages of torch on a CPU and of numba


def quiet_threads() -> None:
    """Limit OpenMP's spinning at barriers, unless the user configured it. Must run before torch and numba are imported.

    By default threads spin for milliseconds and take the core from a thread that still computes: next to other
    processes training becomes several times slower, at worst fifty times. 1000 spins are libgomp's own choice when
    threads outnumber cores; no spinning (PASSIVE) is as good next to other processes and a quarter slower alone. On two
    cores, thousand steps per second, alone and next to one busy process: default 150 to 190 and 3 to 65, 1000 spins 170
    to 180 and 90 to 100, PASSIVE 117 to 160 and 118 to 129.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Context for importing large modules without the garbage collector, which takes a sixth of the time.

    Imported objects are frozen, which makes each later collection a fifth of a second shorter; one precedes each
    capture. In a process that trains several runs only newly imported objects are frozen: a finished run's garbage must
    be collected.
    """
    gc.collect()  # garbage must not be frozen
    was_on, modules_before = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > modules_before:
            gc.freeze()
        if was_on:
            gc.enable()


def processor_name() -> str:
    """Return the name of the processor, as Linux knows it; else that of its architecture."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for key, _, value in (line.partition(":") for line in lines):
            if key.strip() == "model name":
                return " ".join(value.split())
    return platform.machine()


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use, which can be fewer than the machine has: a container or
    `taskset` limits them.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def wake_gpu(device: str) -> threading.Thread | None:
    """Start creating a GPU's CUDA context in a thread, while modules are imported. `device` "auto" and "cuda" mean GPU
    0, "cuda:N" GPU N. Returns the thread; None for any other device.

    The driver takes some tenths of a second for it. A missing or failing GPU is left to torch to report.
    """
    asked = re.fullmatch(r"auto|cuda(?::(\d{1,4}))?", device)
    if asked is None:
        return None
    thread = threading.Thread(target=_make_context, args=(int(asked[1] or 0),), name="context", daemon=True)
    thread.start()
    return thread


def _make_context(index: int) -> None:
    """Create CUDA's primary context of GPU `index`, which torch and numba use too. Ignores a missing driver."""
    with contextlib.suppress(OSError, AttributeError):  # missing or incompatible driver
        driver = ctypes.CDLL("libcuda.so.1")
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(handle), index) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)


def set_threads(count: int, ranks: int = 1) -> int:
    """Set torch and numba to `count` CPU threads; 0 means `usable_cores` divided by `ranks`, the processes that share
    them. Returns the number, which belongs to a run's configuration because reductions depend on it.
    """
    import numba
    import torch

    threads = count or max(1, usable_cores() // ranks)
    # Order matters: numba's first call starts its threads, and with OpenMP sets torch's number to all cores.
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    torch.set_num_threads(threads)
    return threads


def find_device(text: str) -> torch.device:
    """Convert the configuration's `run.device` to a torch device. Raises MachineError if the GPU does not exist or the
    package that compiles environments for it is missing, UsageError for any other text.
    """
    import torch

    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", text):
        raise UsageError(f"{text!r} is not a device: use auto, cpu, cuda or cuda:N, such as cuda:0")
    available = torch.cuda.is_available()
    if available and text != "cpu" and find_spec("numba_cuda") is None:
        raise MachineError(
            f"{text!r} means a GPU here, and environments need numba-cuda on a GPU: pip install 'operant[gpu]', or use "
            "run.device=cpu"
        )
    if text == "auto":
        return torch.device("cuda", 0) if available else torch.device("cpu")
    if not text.startswith("cuda"):
        return torch.device(text)
    if not available:
        built = (
            "is a CPU build"
            if torch.version.cuda is None
            else f"is built for CUDA {torch.version.cuda} and finds no usable GPU"
        )
        raise MachineError(
            f"no CUDA device for {text!r}: torch {torch.__version__} {built}. Use cpu or auto, or see `operant doctor`"
        )
    index = int(text.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        raise MachineError(f"there is no {text}: this machine has cuda:0 to cuda:{torch.cuda.device_count() - 1}")
    return torch.device("cuda", index)


def out_of_memory(error: BaseException) -> bool:
    """Whether `error`, or an error that it followed, reports that a device's memory is exhausted. (A failed graph
    capture hides the cause in its context.)
    """
    import torch

    full = isinstance(error, torch.OutOfMemoryError | MemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY)
    return full or (error.__context__ is not None and out_of_memory(error.__context__))


def device_error(error: Exception) -> DeviceError | None:
    """Convert an out-of-memory error or an unrecoverable GPU fault to a DeviceError with advice; None for any other
    error.
    """
    import torch

    if out_of_memory(error):
        # drop torch's further lines, to leave space for the advice
        said = str(error).partition("\n")[0].partition(". Including non-PyTorch memory")[0]
        return DeviceError(f"out of memory: {said}. Use fewer env.lanes or a shorter algo.horizon")
    if (
        isinstance(error, torch.AcceleratorError)
        or "CUDA error" in str(error)
        or type(error).__name__ == "CudaAPIError"
    ):
        return DeviceError(f"the GPU failed: {str(error).splitlines()[0]}")
    return None
