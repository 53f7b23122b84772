"""What a process that computes sets up first: how idle threads wait, how many there are, and which device. Knows nothing of runs or training."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from operant.errors import MachineError

if TYPE_CHECKING:
    import torch


def quiet_threads() -> None:
    """Let OpenMP threads sleep at a barrier instead of spinning, unless the user has chosen. Works only before torch and numba are imported.

    A spinning thread keeps its core from whoever still computes: as soon as any other process wants a core, training becomes up to ten times slower
    (measured beside one busy process on two cores: 9,000 steps a second spinning, 44,000 sleeping).
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def set_threads(count: int) -> int:
    """Use `count` CPU threads, or one for each core where it is 0; the number in use. It belongs to a run's configuration: reductions depend on it."""
    import numba
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = count or cores
    torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    return threads


def find_device(text: str) -> torch.device:
    """The device of `run.device`. Raises MachineError where it asks for a GPU that is not there."""
    import torch

    available = torch.cuda.is_available()
    if text == "auto":
        return torch.device("cuda", 0) if available else torch.device("cpu")
    if not text.startswith("cuda"):
        return torch.device(text)
    if not available:
        built = "is a CPU build" if torch.version.cuda is None else f"is built for CUDA {torch.version.cuda} and finds no usable GPU"
        raise MachineError(f"no CUDA device for run.device={text!r}: torch {torch.__version__} {built}. Use run.device=cpu, or see `operant doctor`")
    index = int(text.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        raise MachineError(f"there is no {text}: this machine has cuda:0 to cuda:{torch.cuda.device_count() - 1}")
    return torch.device("cuda", index)
