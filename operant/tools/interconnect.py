"""Interconnect of this machine's GPUs (`operant doctor --links`): links, exchange time, and the commands that start one
run on several GPUs or hosts.
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
"""Exchanges per iteration with default settings, one per minibatch."""

LAUNCH_US = 1.7
"""Microseconds of a kernel launch in a graph, saved if the exchange is part of another kernel."""

ITERATIONS_MS = (0.33, 1.4, 7.5)
"""Milliseconds of a CartPole iteration on one H200 with 2,048 x 16, 8,192 x 64 and 65,536 x 64 samples."""


def examine() -> list[Finding]:
    """Check the interconnect of this machine's GPUs: findings about the link of each pair, the time of an exchange
    between all, and the commands that launch a run on several.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    ranks = next(ranks for ranks in (8, 4, 2, 1) if ranks <= max(count, 2))
    findings = [_check_pair(one, two) for one in range(count) for two in range(one + 1, count)]
    if count < 2:
        which = "no GPU" if not count else "one GPU"
        findings.append(Finding("links", NOTE, f"{which}; run.ranks=2 splits a run over CPU processes, with gloo"))
    else:
        findings += _check_exchange(ranks)
    lines = {
        "operant": f"operant train --gpus {ranks}" if count > 1 else "operant train run.device=cpu run.ranks=2",
        "prepare": "operant train --prepare",
    }
    lines |= {
        "torchrun": _TORCHRUN.format(ranks=ranks),
        "hosts": _HOSTS.format(ranks=ranks),
        "srun": _SRUN.format(ranks=ranks),
    }
    return [*findings, *(Finding(name, OK, line) for name, line in lines.items())]


def _check_exchange(ranks: int) -> list[Finding]:
    """Measure the time of an exchange between `ranks` GPUs: findings about it and about the resulting efficiency for
    short and long iterations.
    """
    result = exchange_probe.measure(ranks, gpu=True)
    if result.problem:
        return [
            Finding(
                "exchange",
                NOTE,
                f"could not be measured between {ranks} GPUs: {result.problem}",
                "see the messages of operant train --gpus",
            )
        ]
    times = ", ".join(f"{us:g} us for {size:,}" for size, us in result.us.items())
    saved_us = LAUNCH_US if "kernel" in result.name else 0.0
    spent_ms = MINIBATCHES * max(result.us[exchange_probe.SIZES[1]] - saved_us, 0.0) / 1e3
    shares = ", ".join(f"{ms / (ms + spent_ms):.2f} of {ms:g} ms" for ms in ITERATIONS_MS)
    expected = (
        f"with {MINIBATCHES} exchanges of {exchange_probe.SIZES[1]:,} values per iteration, by the iteration "
        f"time on one GPU: {shares}"
    )
    return [
        Finding("exchange", OK, f"{ranks} GPUs by {result.name}: {times} values"),
        Finding("efficiency", OK, f"expected {expected}"),
    ]


def _check_pair(one: int, two: int) -> Finding:
    """Check the link between two GPUs, given by index: its kind, and whether they can access each other's memory."""
    import torch

    links = _nvlinks(one)
    through = "PCIe" if links == 0 else "unknown links" if links is None else f"NVLink ({links} links)"
    if torch.cuda.can_device_access_peer(one, two) and torch.cuda.can_device_access_peer(two, one):
        result = f"{through}, peer access: gradients are exchanged inside the reduction kernel"
        return Finding(f"{one} - {two}", OK, result)
    advice = (
        "NCCL is used instead, several times slower; a container (use --ipc=host) or the IOMMU may block peer access"
    )
    return Finding(f"{one} - {two}", NOTE, f"{through}, no peer access", advice)


def _nvlinks(index: int) -> int | None:
    """Number of active NVLinks of a GPU; None if the driver does not report it."""
    with contextlib.suppress(Exception):  # optional library
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        active = 0
        for link in range(18):
            with contextlib.suppress(pynvml.NVMLError):
                active += pynvml.nvmlDeviceGetNvLinkState(handle, link)
        return active
    return None
