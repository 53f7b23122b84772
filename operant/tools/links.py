"""What lies between this machine's GPUs, how long an exchange takes, and the lines that start one run on several of
them or on several hosts. Knows no run.
"""

from __future__ import annotations

import contextlib

from operant.tools import exchange_probe
from operant.tools.doctor import NOTE, OK, Finding

_TORCHRUN = "torchrun --nproc-per-node={ranks} -m operant.training.worker RUN"
_HOSTS = (
    "torchrun --nnodes=2 --nproc-per-node={ranks} --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 -m "
    "operant.training.worker RUN"
)
_SRUN = "srun --ntasks={ranks} --gpus-per-task=1 --cpus-per-task=8 python -m operant.training.worker RUN"


MINIBATCHES = 16
"""Of an iteration, by default: each has an exchange."""

LAUNCH_US = 1.7
"""Of a kernel in a graph, which an exchange inside another kernel saves."""

ITERATIONS_MS = (0.33, 1.4, 7.5)
"""Of CartPole on one H200, 2,048 x 16, 8,192 x 64 and 65,536 x 64."""


def examine() -> list[Finding]:
    """The links of each pair of GPUs, the time of an exchange between all, and the launch lines."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    ranks = next(ranks for ranks in (8, 4, 2, 1) if ranks <= max(count, 2))
    found = [_pair(one, two) for one in range(count) for two in range(one + 1, count)]
    if count < 2:
        which = "no GPU" if not count else "one GPU"
        found.append(
            Finding("links", NOTE, f"{which}: a run is shared between processes of the CPU by run.ranks=2, over gloo")
        )
    else:
        found += _exchange(ranks)
    lines = {
        "operant": f"operant train --gpus {ranks}" if count > 1 else "operant train run.device=cpu run.ranks=2",
        "prepare": "operant train --prepare",
    }
    lines |= {
        "torchrun": _TORCHRUN.format(ranks=ranks),
        "hosts": _HOSTS.format(ranks=ranks),
        "srun": _SRUN.format(ranks=ranks),
    }
    return [*found, *(Finding(name, OK, line) for name, line in lines.items())]


def _exchange(ranks: int) -> list[Finding]:
    """The measured time of an exchange between so many GPUs, and what it makes of short and long iterations."""
    measured = exchange_probe.measured(ranks, gpu=True)
    if measured.problem:
        return [
            Finding(
                "exchange",
                NOTE,
                f"could not be measured between {ranks} GPUs: {measured.problem}",
                "operant train --gpus says more",
            )
        ]
    times = ", ".join(f"{us:g} us for {size:,}" for size, us in measured.us.items())
    saved_us = LAUNCH_US if "kernel" in measured.name else 0.0
    spent_ms = MINIBATCHES * max(measured.us[exchange_probe.SIZES[1]] - saved_us, 0.0) / 1e3
    shares = ", ".join(f"{ms / (ms + spent_ms):.2f} of {ms:g} ms" for ms in ITERATIONS_MS)
    expected = (
        f"with {MINIBATCHES} exchanges of {exchange_probe.SIZES[1]:,} numbers in an iteration that takes one "
        f"GPU so long: {shares}"
    )
    return [
        Finding("exchange", OK, f"{ranks} GPUs by {measured.name}: {times} numbers"),
        Finding("efficiency", OK, f"expected {expected}"),
    ]


def _pair(one: int, two: int) -> Finding:
    """Whether two GPUs read each other's memory, and through what."""
    import torch

    links = _nvlinks(one)
    through = "PCIe" if links == 0 else "unknown links" if links is None else f"NVLink ({links} links)"
    if torch.cuda.can_device_access_peer(one, two) and torch.cuda.can_device_access_peer(two, one):
        found = f"{through}, peer access: gradients are exchanged inside the reduction kernel"
        return Finding(f"{one} - {two}", OK, found)
    advice = (
        "NCCL exchanges instead, several times slower; a container may hide it (--ipc=host), or the machine's IOMMU"
    )
    return Finding(f"{one} - {two}", NOTE, f"{through}, no peer access", advice)


def _nvlinks(index: int) -> int | None:
    """Active NVLinks of a GPU; None where the driver does not say."""
    with contextlib.suppress(Exception):  # another's library: without it nothing is known
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        active = 0
        for link in range(18):
            with contextlib.suppress(pynvml.NVMLError):
                active += pynvml.nvmlDeviceGetNvLinkState(handle, link)
        return active
    return None
