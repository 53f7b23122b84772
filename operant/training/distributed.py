"""What several ranks of one run hand each other by torch.distributed: rows of partial sums, and a checkpoint's tensors, lanes in their order.

gloo on CPUs, NCCL on GPUs. Knows tensors, process groups and what an algorithm's state is called; knows no run folder and no launcher.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from operant.algos.base import Algorithm, Tier
from operant.compute.exchange import Exchange

FOREVER = timedelta(days=365)
"""No exchange has a time limit of its own: a rank that has gone, or has stopped answering, is found by `operant.training.peers`."""

_LANES = ("world/", "algo/")  # groups of an algorithm's state in which a tensor whose last axis is the lanes holds a column for each
_SUMS = frozenset({"world/carried"})  # sums over a rank's lanes, of which only the total matters


class GroupExchange:
    """An `Exchange` over a process group."""

    def __init__(self, rank: int, ranks: int, group: Any) -> None:
        self.rank, self.ranks, self._group = rank, ranks, group
        self.seconds = 0.0  # that the host has spent in it

    def gather(self, rows: Tensor) -> Tensor:
        """The rows (k, ...) of all ranks in their order, (W k, ...)."""
        began_s = time.perf_counter()
        own = rows.detach().contiguous()
        gathered = torch.empty((self.ranks * len(own), *own.shape[1:]), dtype=own.dtype, device=own.device)
        self._group._allgather_base(gathered.view(-1), own.view(-1)).wait()
        self.seconds += time.perf_counter() - began_s
        return gathered


def gloo(store: dist.Store, rank: int, ranks: int) -> GroupExchange:
    """An exchange on CPUs. Returns once all ranks have called it."""
    return GroupExchange(rank, ranks, dist.ProcessGroupGloo(store, rank, ranks, FOREVER))


# A CHECKPOINT'S TENSORS


def _has_lanes(name: str, tensor: Tensor, lanes: int) -> bool:
    return name.startswith(_LANES) and tensor.ndim > 0 and tensor.shape[-1] == lanes


def whole_state(algo: Algorithm, tier: Tier, exchange: Exchange) -> dict[str, Tensor]:
    """A tier's tensors on the CPU as one rank alone would have them. All ranks call it together."""
    found = {}
    for name, tensor in algo.state(tier).items():
        if exchange.ranks == 1:
            found[name] = tensor.detach().to("cpu", copy=True)  # sync: a checkpoint
        elif name in _SUMS:
            found[name] = exchange.gather(tensor[None]).sum(0).to("cpu", copy=True)  # sync: a checkpoint
        elif _has_lanes(name, tensor, algo.world.count):
            found[name] = exchange.gather(tensor.movedim(-1, 0)).movedim(0, -1).to("cpu", copy=True).contiguous()  # sync: a checkpoint
        else:
            found[name] = tensor.detach().to("cpu", copy=True)  # sync: a checkpoint
    return found


def own_state(algo: Algorithm, whole: Mapping[str, Tensor], exchange: Exchange) -> dict[str, Tensor]:
    """The part of such tensors that is this rank's, as views."""
    if exchange.ranks == 1:
        return dict(whole)
    lanes = algo.world.count
    found = {}
    for name, tensor in whole.items():
        if name in _SUMS:
            found[name] = tensor if exchange.rank == 0 else torch.zeros_like(tensor)
        elif _has_lanes(name, tensor, lanes * exchange.ranks):
            found[name] = tensor.narrow(-1, exchange.rank * lanes, lanes)
        else:
            found[name] = tensor
    return found
