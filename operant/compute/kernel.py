"""Runs one body for every index, on the CPU or on a GPU: the only file that knows `prange` or `cuda`. Knows nothing of
what a body does.

A body is a `@device` function `body(i, lanes, slot, offset)`: an index, two named tuples of arrays and scalars, and a
whole number. The same body gets two shells: a loop over chunks of indices on the CPU, and one thread an index on a GPU.
The index is a uint32: without a sign, no access need look whether it counts from the end. On a GPU a launch goes to
torch's current stream, so it can be captured in a CUDA graph; numbers handed in by value (`offset`, scalars in a tuple)
are then frozen into the graph.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from numba import get_num_threads, njit, prange, typeof, types
from numpy import asarray, uint8, uint32

from operant.compute.atomics import add, read, rest
from operant.compute.device import FASTMATH, UNCOUNTED, paste_without_copies
from operant.compute.jit_cache import keep, keep_cuda

THREADS = 64
"""Threads a block on a GPU."""

SERIAL_BELOW = 8192
"""With two CPU threads, fewer indices than this run on the calling thread: waking the other would cost more than it
saves. With more the fewer, in worlds.
"""

LINE = 16
"""Numbers of a board that lie apart from those of others: two threads that write would otherwise wait for each other.
"""

GIVEN, STOPPED = 0, LINE
"""Places on a board: how many orders there are, and whether no more will come. From 3 LINE on there are three lines an
order: what it is (first index, last, offset, pieces), how many pieces are taken, how many are done.
"""


class _Mapped:
    """Host memory of `host_zeros` as `cuda.as_cuda_array` takes it: a GPU reads and writes it in place, at the same
    address (unified addressing).
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor  # which lives as long as this
        self.__cuda_array_interface__ = dict(tensor.numpy().__array_interface__)


def host_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros in host memory that kernels on the device, numba's and Triton's, read and write in place: page-locked where
    it is a GPU. A tensor of the CPU.
    """
    if device.type != "cuda":
        return torch.zeros(tuple(shape), dtype=dtype)
    from numba import cuda

    # Not torch's own page-locked memory, which takes a power of two of bytes.
    memory = cuda.mapped_array(math.prod(shape) * dtype.itemsize, dtype=uint8)
    return torch.from_numpy(asarray(memory)).zero_().view(dtype).view(tuple(shape))


def native(tensor: torch.Tensor, *, on_gpu: bool = False) -> Any:
    """The tensor's memory as numba sees it, without a copy: a NumPy array, or a CUDA array, which host memory of
    `host_zeros` may be, too.
    """
    if not (tensor.is_cuda or on_gpu):
        return tensor.numpy()
    from numba import cuda

    return cuda.as_cuda_array(tensor if tensor.is_cuda else _Mapped(tensor), sync=False)


def bind(group: Any, device: torch.device | None = None) -> Any:
    """A named tuple of tensors and scalars as one of arrays and scalars, None (a buffer that is not there) as 0.

    `device` is where kernels run, which has to be told if tensors of `host_zeros` are among them. Bind once and launch
    often: it costs more than a launch.
    """
    on_gpu = device is not None and device.type == "cuda"
    return type(group)(
        *(
            native(value, on_gpu=on_gpu) if isinstance(value, torch.Tensor) else 0 if value is None else value
            for value in group
        )
    )


def signature(lanes: Any, slot: Any) -> tuple[Any, ...]:
    """The numba types of a shell's arguments, for two groups of tensors, bound or not."""
    return types.int64, typeof(bind(lanes)), typeof(bind(slot)), types.int64


def cuda_shell(body: Callable[..., Any]) -> Callable[..., None]:
    """The GPU's shell as a plain function, one thread an index: `cuda.jit` compiles it, and so does a test without a
    GPU.
    """
    from numba import cuda  # here: a start without a GPU is spared a third of a second
    from numba.cuda.core import inline_closurecall

    paste_without_copies(inline_closurecall)

    def shell(count, lanes, slot, offset):
        i: int = cuda.grid(1)  # type: ignore[call-arg]  # numba declares it as a method
        if i < count:
            body(uint32(i), lanes, slot, offset)

    return shell


def cpu_shells(body: Callable[..., Any]) -> tuple[Any, Any, Any, Any]:
    """The CPU's shells: one thread, all of numba's, and one of several that share what is ordered on a board
    (operant/compute/crew.py): a piece, or all.
    """

    # Without the GIL, so that the threads that answer signals and requests run beside a launch, however long it takes.
    @njit(fastmath=set(FASTMATH), error_model="numpy", nogil=True, **UNCOUNTED)
    def serial(first, last, lanes, slot, offset):
        for i in range(first, last):
            body(uint32(i), lanes, slot, offset)

    # The parallel loop holds a call and nothing else: numba's parallel pass drops stores to arrays that it reaches
    # through a tuple.
    @njit(parallel=True, nogil=True)
    def parallel(count, chunks, lanes, slot, offset):
        for chunk in prange(chunks):
            serial(chunk * count // chunks, (chunk + 1) * count // chunks, lanes, slot, offset)

    @njit(nogil=True, **UNCOUNTED)
    def take(number, board, lanes, slot):
        """One piece of an order, unless all are taken; whether it was one."""
        row = (3 + 3 * number) * LINE
        pieces = board[row + 3]
        piece = add(board, row + LINE, 1)
        if piece >= pieces:
            return False
        first, count = board[row], board[row + 1] - board[row]
        serial(first + piece * count // pieces, first + (piece + 1) * count // pieces, lanes, slot, board[row + 2])
        add(board, row + 2 * LINE, 1)
        return True

    @njit(nogil=True, **UNCOUNTED)
    def share(number, until, board, lanes, slot):
        """Pieces of all orders from one number to another, until the last is done or no more come."""
        while number < until:
            row = (3 + 3 * number) * LINE
            if read(board, GIVEN) > number:
                if not take(number, board, lanes, slot):
                    number += 1
                    while number == until and read(board, row + 2 * LINE) < board[row + 3]:
                        rest()
            elif read(board, STOPPED) > 0:
                return
            else:
                rest()

    return serial, parallel, take, share


class Kernel:
    """A body and the shell its device asks for.

    On the CPU the shell follows from the count and the number of threads or, `by_count`, from the count alone: where
    the compiler rounds differently in the two shells, the same seed gives the same bits with any number of threads.

    Compiles at the first launch, or loads what an earlier process compiled: that launch must therefore happen before a
    capture.
    """

    def __init__(self, body: Callable[..., Any], device: torch.device, *, by_count: bool = False) -> None:
        self._device, self._by_count = device, by_count
        name = getattr(body, "py_func", body).__qualname__.partition(".")[0]
        if device.type == "cuda":
            from numba import cuda
            from numba.cuda.core import config

            # A few lanes are a fair choice for a small network; numba would warn of each kernel's few blocks.
            config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
            self._shell = keep_cuda(cuda.jit(cuda_shell(body), fastmath=True), name)
        else:
            serial, parallel, take, share = cpu_shells(body)
            self._serial, self._parallel = keep(serial, name), keep(parallel, f"{name} on all threads")
            self.take, self.share = keep(take, f"{name} by pieces"), keep(share, f"{name} shared")

    def __call__(self, count: int, lanes: Any, slot: Any, offset: int = 0, *, threads: int = THREADS) -> None:
        """Run the body for each i in [0, count), so many threads a block on a GPU. `lanes` and `slot` are groups that
        `bind` made.
        """
        if self._device.type == "cuda":
            stream = _numba_stream(self._device, torch.cuda.current_stream(self._device).cuda_stream)
            self._shell[(count + threads - 1) // threads, threads, stream](count, lanes, slot, offset)
        elif self._runs_alone(count, workers := get_num_threads()):
            self._serial(0, count, lanes, slot, offset)
        else:
            self._parallel(count, workers, lanes, slot, offset)

    def _runs_alone(self, count: int, workers: int) -> bool:
        return count < SERIAL_BELOW if self._by_count else workers == 1 or count * workers < 2 * SERIAL_BELOW


@functools.cache
def _numba_stream(device: torch.device, handle: int) -> Any:
    """One of torch's few streams as numba has it. Made once: numba makes a class each time, and keeps the last hundred
    beyond the end of a run.
    """
    from numba import cuda

    return cuda.external_stream(handle)


@functools.cache
def kernel(body: Callable[..., Any], device: torch.device) -> Kernel:
    """The kernel of a body on a device, the same one each time: it compiles once in a process, however many algorithms
    and evaluations use it.
    """
    return Kernel(body, device, by_count=True)
