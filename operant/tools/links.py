"""What lies between this machine's GPUs, and the lines that start one run on several of them or on several hosts. Knows no run and starts nothing."""

from __future__ import annotations

import contextlib

from operant.tools.doctor import NOTE, OK, Finding

_TORCHRUN = "torchrun --nproc-per-node={ranks} -m operant.training.worker RUN"
_HOSTS = "torchrun --nnodes=2 --nproc-per-node={ranks} --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 -m operant.training.worker RUN"
_SRUN = "srun --ntasks={ranks} --gpus-per-task=1 --cpus-per-task=8 python -m operant.training.worker RUN"


def examine() -> list[Finding]:
    """The links of each pair of GPUs, and the launch lines."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    ranks = next(ranks for ranks in (8, 4, 2, 1) if ranks <= max(count, 2))
    found = [_pair(one, two) for one in range(count) for two in range(one + 1, count)]
    if count < 2:
        which = "no GPU" if not count else "one GPU"
        found.append(Finding("links", NOTE, f"{which}: a run is shared between processes of the CPU by run.ranks=2, over gloo"))
    lines = {"operant": f"operant train --gpus {ranks}" if count > 1 else "operant train run.device=cpu run.ranks=2", "prepare": "operant train --prepare"}
    lines |= {"torchrun": _TORCHRUN.format(ranks=ranks), "hosts": _HOSTS.format(ranks=ranks), "srun": _SRUN.format(ranks=ranks)}
    return [*found, *(Finding(name, OK, line) for name, line in lines.items())]


def _pair(one: int, two: int) -> Finding:
    """Whether two GPUs read each other's memory, and through what."""
    import torch

    links = _nvlinks(one)
    through = "PCIe" if links == 0 else "unknown links" if links is None else f"NVLink ({links} links)"
    if torch.cuda.can_device_access_peer(one, two) and torch.cuda.can_device_access_peer(two, one):
        found = f"{through}, peer access: gradients are exchanged inside the reduction kernel"
        return Finding(f"{one} - {two}", OK, found)
    advice = "NCCL exchanges instead, several times slower; a container may hide it (--ipc=host), or the machine's IOMMU"
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
