"""Kernels: one body run for every index on the CPU or on a GPU.

A body is a `@device` function `body(i, lanes, slot, offset)`: an index, two named tuples of arrays and scalars, and an
integer. Its two shells are a loop over chunks of indices on the CPU and one thread per index on a GPU. The index is
uint32: an unsigned index needs no check for negative indexing. A GPU launch goes to torch's current stream, so a CUDA
graph can capture it; values passed by value (`offset`, scalars in a tuple) are then frozen in the graph.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from numba import get_num_threads, njit, prange, typeof, types
from numba._dispatcher import compute_fingerprint
from numba.core import config
from numpy import asarray, uint8, uint32

from operant.compute.atomics import add, load, yield_thread
from operant.compute.cuda_ranges import lower_ranges_plainly
from operant.compute.device import FASTMATH, NO_REFERENCE_COUNTS, inline_without_copies
from operant.compute.jit_cache import cache_cpu, cache_cuda
from operant.compute.machine_code import SealedCompiler, address, call

THREADS = 64
"""Threads per block on a GPU."""

SERIAL_BELOW = 8192
"""Number of indices, with two CPU threads, below which a launch stays on the calling thread: waking the other costs
more than it saves. The limit shrinks with more threads.
"""

LINE = 16
"""int64 entries per cache line group of a board: spacing that avoids false sharing between threads."""

SUBMITTED, STOPPED = 0, LINE
"""Offsets on a board: number of submitted orders; stop flag. From 3 LINE on each order has three lines: (first index,
last, offset, pieces), pieces taken, pieces done.
"""


class _Mapped:
    """Wrapper that gives host memory from `host_zeros` a CUDA array interface: a GPU accesses it in place, at the same
    address (unified addressing).
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor  # keeps the memory alive
        self.__cuda_array_interface__ = dict(tensor.numpy().__array_interface__)


def host_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Allocate zeros in host memory that kernels on `device` read and write in place: page-locked for a GPU. Returns a
    CPU tensor, which `bind` accepts.
    """
    if device.type != "cuda":
        return torch.zeros(tuple(shape), dtype=dtype)
    from numba import cuda

    # Not torch's pinned memory, which rounds up to a power of two.
    memory = cuda.mapped_array(math.prod(shape) * dtype.itemsize, dtype=uint8)
    return torch.from_numpy(asarray(memory)).zero_().view(dtype).view(tuple(shape))


def native(tensor: torch.Tensor, *, on_gpu: bool = False) -> Any:
    """Convert a tensor to a numba array over the same memory: a NumPy array, or a CUDA array for a GPU tensor. With
    `on_gpu` also host memory from `host_zeros` becomes a CUDA array.
    """
    if not (tensor.is_cuda or on_gpu):
        return tensor.numpy()
    from numba import cuda

    return cuda.as_cuda_array(tensor if tensor.is_cuda else _Mapped(tensor), sync=False)


def bind(group: Any, device: torch.device | None = None) -> Any:
    """Convert a named tuple of tensors and scalars to kernel arguments: tensors become arrays over the same memory,
    None (a missing buffer) becomes 0.

    `device` is the device of the kernels, required with tensors of `host_zeros`. Bind once and launch often: binding
    costs more than a launch.
    """
    on_gpu = device is not None and device.type == "cuda"
    return type(group)(
        *(
            native(value, on_gpu=on_gpu) if isinstance(value, torch.Tensor) else 0 if value is None else value
            for value in group
        )
    )


def signature(lanes: Any, slot: Any) -> tuple[Any, ...]:
    """Numba types of the arguments of a kernel's loop (a count, `lanes`, `slot` and an offset), for two named tuples of
    tensors, bound or not.
    """
    return types.int64, typeof(bind(lanes)), typeof(bind(slot)), types.int64


def cuda_shell(body: Callable[..., Any]) -> Callable[..., None]:
    """Make the GPU loop around a kernel body, one thread per index, as a plain function: for `cuda.jit`, and for tests
    without a GPU.
    """
    from numba import cuda  # lazy: saves a third of a second without a GPU
    from numba.cuda.core import inline_closurecall

    inline_without_copies(inline_closurecall)
    lower_ranges_plainly()

    def shell(count, lanes, slot, offset):
        i: int = cuda.grid(1)  # type: ignore[call-arg]  # numba declares it as a method
        if i < count:
            body(uint32(i), lanes, slot, offset)

    return shell


def cpu_shells(body: Callable[..., Any]) -> tuple[Any, Any, Any, Any]:
    """Compile the CPU loops around a kernel body: serial, parallel, and two for the threads of a pool
    (operant/compute/thread_pool.py), `run_piece` and `run_orders`. Only the serial loop contains the body; the others
    call its machine code, at the address `code`.
    """

    # nogil: the threads for signals and requests run during a launch.
    @njit(fastmath=set(FASTMATH), error_model="numpy", nogil=True, pipeline_class=SealedCompiler, **NO_REFERENCE_COUNTS)
    def serial(first, last, lanes, slot, offset):
        for i in range(first, last):
            body(uint32(i), lanes, slot, offset)

    # The parallel loop contains only a call: numba's parallel pass drops stores to arrays reached through a tuple.
    @njit(parallel=True, nogil=True)
    def parallel(count, chunks, code, lanes, slot, offset):
        for chunk in prange(chunks):
            call(code, chunk * count // chunks, (chunk + 1) * count // chunks, lanes, slot, offset)

    @njit(nogil=True, **NO_REFERENCE_COUNTS)
    def run_piece(number, board, code, lanes, slot):
        """Run the kernel body for one piece (a subrange of the indices) of order `number` on the thread pool's board.
        Returns False if no piece was left.
        """
        row = (3 + 3 * number) * LINE
        pieces = board[row + 3]
        piece = add(board, row + LINE, 1)
        if piece >= pieces:
            return False
        first, count = board[row], board[row + 1] - board[row]
        last = first + (piece + 1) * count // pieces
        call(code, first + piece * count // pieces, last, lanes, slot, board[row + 2])
        add(board, row + 2 * LINE, 1)
        return True

    @njit(nogil=True, **NO_REFERENCE_COUNTS)
    def run_orders(number, until, board, code, lanes, slot):
        """Run pieces of the orders [number, until) on the thread pool's board until the last order is complete or a
        stop is posted.
        """
        while number < until:
            row = (3 + 3 * number) * LINE
            if load(board, SUBMITTED) > number:
                if not run_piece(number, board, code, lanes, slot):
                    number += 1
                    while number == until and load(board, row + 2 * LINE) < board[row + 3]:
                        yield_thread()
            elif load(board, STOPPED) > 0:
                return
            else:
                yield_thread()

    return serial, parallel, run_piece, run_orders


class Kernel:
    """Kernel body compiled with the loop (CPU) or grid (GPU) that runs it for each index. It compiles, or loads from
    the cache, at the first launch, which must therefore precede a capture.

    All loops on the CPU run the same machine code, so a seed gives the same bits with any number of threads.
    """

    def __init__(self, body: Callable[..., Any], device: torch.device) -> None:
        self._device = device
        self._codes: dict[bytes, int] = {}  # addresses of machine code by types of arguments
        name = getattr(body, "py_func", body).__qualname__.partition(".")[0]
        if device.type == "cuda":
            from numba import cuda
            from numba.cuda.core import config as cuda_config

            # Few lanes are reasonable for a small network; silence numba's warning about few blocks.
            cuda_config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
            self._shell = cache_cuda(cuda.jit(cuda_shell(body), fastmath=True), name)
        else:
            serial, parallel, run_piece, run_orders = cpu_shells(body)
            self._serial, self._parallel = cache_cpu(serial, name), cache_cpu(parallel, f"{name} on all threads")
            self.run_piece, self.run_orders = (
                cache_cpu(run_piece, f"{name} by pieces"),
                cache_cpu(run_orders, f"{name} shared"),
            )

    def __call__(self, count: int, lanes: Any, slot: Any, offset: int = 0, *, threads: int = THREADS) -> None:
        """Run the body for each i in [0, count) on the current stream, with `threads` threads per block on a GPU."""
        if self._device.type == "cuda":
            stream = _numba_stream(self._device, torch.cuda.current_stream(self._device).cuda_stream)
            self._shell[(count + threads - 1) // threads, threads, stream](count, lanes, slot, offset)
        elif _is_serial(count, workers := get_num_threads()):
            self._serial(0, count, lanes, slot, offset)
        else:
            self._parallel(count, workers, self.code(lanes, slot), lanes, slot, offset)

    def code(self, lanes: Any, slot: Any) -> int:
        """Address of the CPU loop's machine code for two bound groups. It compiles, or loads from the cache, at the
        first call for their types.
        """
        kinds = compute_fingerprint((lanes, slot))
        if kinds not in self._codes:
            arguments = types.int64, types.int64, typeof(lanes), typeof(slot), types.int64
            self._codes[kinds] = address(self._serial, arguments)
        return self._codes[kinds]


def _is_serial(count: int, workers: int) -> bool:
    """Whether the calling thread runs all `count` indices: too few to wake others, or nothing is compiled."""
    interpreted: bool = config.DISABLE_JIT  # type: ignore[attr-defined]  # numba sets it as it is imported
    return interpreted or workers == 1 or count * workers < 2 * SERIAL_BELOW


@functools.cache
def _numba_stream(device: torch.device, handle: int) -> Any:
    """Convert a torch stream, given by its `handle`, to a numba stream. Cached: numba creates a class per stream and
    keeps the last hundred alive.
    """
    from numba import cuda

    return cuda.external_stream(handle)


@functools.cache
def kernel(body: Callable[..., Any], device: torch.device) -> Kernel:
    """Return the kernel of a body on a device, which is made once per process and shared."""
    return Kernel(body, device)
