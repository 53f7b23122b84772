"""Exchange between the ranks of a run by torch.distributed: rows of partial sums, and a checkpoint's tensors in lane
order.

gloo on CPUs; symmetric memory or NCCL on GPUs.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, Protocol

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from operant.algos.base import Algorithm, Tier
from operant.compute.exchange import SOLO, Exchange, Link
from operant.errors import MachineError

__all__ = [
    "SINGLE",
    "SOLO",
    "Algorithm",
    "EpisodeSums",
    "Exchange",
    "GroupExchange",
    "RankGroup",
    "RankMetrics",
    "Tier",
    "join",
    "own_state",
    "whole_state",
]

log = logging.getLogger("operant")

FOREVER = timedelta(days=365)
"""Timeout of collective operations: none. `operant.training.peers` detects a rank that has exited or stopped
responding.
"""

MAX_SYMMETRIC_WORDS = 1 << 20
"""Most 32-bit words that symmetric memory exchanges; larger tensors occur only in checkpoints."""

MAX_KERNEL_WORDS = 1 << 16
"""Most 32-bit words that the kernel exchanges with sequence numbers; beyond it two barriers are cheaper."""

_COUNTERS = 32
"""Timed links of a `SymmetricExchange`, and one slot for all untimed ones."""

_LEAST_ITERATIONS = 8
"""Iterations over which a share of time is computed: ranks report in the middle of one."""

_LAST_WORD_S = 5.0
_TEXT_BYTES = 255
_LANES = {"world": -1, "algo": -1, "replay": 1}
"""Lane axis of the tensors of each group of an algorithm's state, if that axis has one entry per lane."""

_PART_BYTES = 1 << 26  # of a replay, gathered at a time
# parameters, whose size may equal the number of lanes
_ALIKE = frozenset({"algo/target", "algo/critic", "algo/target_actor"})
_SUMS = frozenset({"world/carried"})  # sums over a rank's lanes; only their total is meaningful


class GroupExchange:
    """Exchange between ranks over a process group (gloo or NCCL): every tensor is gathered by one collective call."""

    counts = True

    def __init__(self, rank: int, ranks: int, group: Any, name: str, device: torch.device) -> None:
        self.rank, self.ranks, self._group, self.name, self.device = rank, ranks, group, name, device
        self._host_s = 0.0

    @property
    def untimed(self) -> str:
        """Reason why the time spent in the exchange is unknown; "" on a CPU. On a GPU the host does not wait for the
        exchange.
        """
        return "" if self.device.type == "cpu" else f"not measured with {self.name}"

    def gather(self, rows: Tensor) -> Tensor:
        """All-gather rows (k, ...) from all W ranks in rank order: (W k, ...). Raises MachineError if the exchange
        fails.
        """
        began_s = time.perf_counter()
        local = rows.detach().contiguous()
        gathered = torch.empty((self.ranks * len(local), *local.shape[1:]), dtype=local.dtype, device=local.device)
        # as bytes: not every dtype is supported
        gathered_bytes, local_bytes = gathered.view(-1).view(torch.uint8), local.view(-1).view(torch.uint8)
        try:
            if self.device.type == "cuda":
                dist.all_gather_into_tensor(gathered_bytes, local_bytes, group=self._group)
            else:
                self._group._allgather_base(gathered_bytes, local_bytes).wait()
        except RuntimeError as error:
            time.sleep(_LAST_WORD_S)  # the watching thread knows the cause and exits this process meanwhile
            raise MachineError(f"the exchange between the ranks failed: {str(error).splitlines()[0]}") from error
        if self.counts:
            self._host_s += time.perf_counter() - began_s
        return gathered

    def agree(self, text: str) -> str:
        """Broadcast rank 0's `text`, up to 255 bytes of UTF-8, and return it on every rank. A collective call."""
        local = torch.tensor(list(text.encode().ljust(_TEXT_BYTES, b"\0")), dtype=torch.uint8)
        counts, self.counts = self.counts, False  # not part of an iteration
        first = self.gather(local.to(self.device)[None])[0].cpu()  # sync: before a run begins
        self.counts = counts
        return bytes(first.tolist()).rstrip(b"\0").decode()  # sync: the same

    def link(self, width: int, programs: int) -> Link | None:
        """Return None: process groups have no memory that kernels share."""
        return None

    def spent_s(self) -> float | None:
        """Seconds that the host has spent in `gather`; None on a GPU, where the time is unknown."""
        return self._host_s if self.device.type == "cpu" else None


class SymmetricExchange(GroupExchange):
    """Exchange between GPUs with peer access over symmetric memory: small tensors are gathered in one kernel launch,
    gradients inside the reduction kernel.

    Without `in_kernel`, copies between two of torch's barriers, which need less of the hardware.
    """

    def __init__(self, rank: int, ranks: int, group: Any, device: torch.device, *, in_kernel: bool) -> None:
        from torch.distributed import _symmetric_memory as symmetric

        name = "symmetric memory inside the reduction kernel" if in_kernel else "symmetric memory"
        super().__init__(rank, ranks, group, name, device)
        self._symmetric, self._in_kernel = symmetric, in_kernel
        self._buffers: list[
            tuple[Tensor, Any, list[Tensor]]
        ] = []  # never freed: other ranks may still read one that is unused here
        self._links: dict[int, Link] = {}  # of `gather`, by number of words
        self._copies: dict[int, tuple[Tensor, Any, list[Tensor]]] = {}
        # Nanoseconds per link at a stride of 16 bytes, the alignment kernels are compiled for. Read on a separate
        # stream, concurrently with training.
        self._spent, self._stream = (
            torch.zeros(_COUNTERS, 2, dtype=torch.int64, device=device),
            torch.cuda.Stream(device),
        )
        self._link_count, self._untimed = 0, False

    @property
    def untimed(self) -> str:
        """Reason why the time spent in the exchange may be unknown. Only kernels that count their waiting are timed."""
        return (
            f"no value yet; not measured where an iteration exchanges more than {MAX_KERNEL_WORDS:,} numbers at once"
            if self._in_kernel
            else super().untimed
        )

    def _allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Any, list[Tensor]]:
        """Allocate a symmetric buffer of a shape: returns this rank's tensor, its handle, and views of every rank's
        tensor. A collective call, before any graph capture.
        """
        own = self._symmetric.empty(*shape, dtype=dtype, device=self.device).zero_()
        handle = self._symmetric.rendezvous(own, self._group.group_name)
        every = [handle.get_buffer(rank, shape, dtype) for rank in range(self.ranks)]
        torch.cuda.synchronize(self.device)  # sync: once, before a run begins
        dist.barrier(group=self._group)  # zero on every rank before any rank writes
        self._buffers.append((own, handle, every))
        return self._buffers[-1]

    def gather(self, rows: Tensor) -> Tensor:
        """All-gather rows (k, ...) from all W ranks in rank order: (W k, ...), by the fastest way that their size
        allows.
        """
        size = rows.nbytes // 4
        in_kernel = self._in_kernel and rows.nbytes % 4 == 0 and 0 < size <= MAX_KERNEL_WORDS
        if self.counts and not in_kernel:
            self._mark_untimed("exchange more than 65,536 numbers at once")
        if rows.nbytes % 4 or not 0 < size <= MAX_SYMMETRIC_WORDS:
            return super().gather(rows)
        own = rows.detach().contiguous().view(-1).view(torch.int32)
        gathered = self._gather_in_kernel(own) if in_kernel else self._gather_by_copies(own)
        return gathered.view(-1).view(rows.dtype).view(self.ranks * len(rows), *rows.shape[1:])

    def _gather_in_kernel(self, own: Tensor) -> Tensor:
        """All-gather words (n) int32 from all W ranks to (W, n), in one kernel launch."""
        from operant.kernels import exchange

        size, columns = len(own), exchange.GATHER_COLUMNS.value
        programs = -(-size // columns)
        if size not in self._links:
            self._links[size] = self.link(programs * columns, programs)  # type: ignore[assignment]
        gathered = torch.empty(self.ranks, size, dtype=torch.int32, device=self.device)
        link = self._links[size] if self.counts else self._links[size]._replace(spent=self._spent[-1])
        exchange.gather_words[(programs,)](own, gathered, size, programs * columns, link, RANKS=self.ranks, num_warps=4)
        return gathered

    def _gather_by_copies(self, own: Tensor) -> Tensor:
        """All-gather words (n) int32 from all W ranks to one tensor (W n,), by copies between two barriers."""
        if len(own) not in self._copies:
            self._copies[len(own)] = self._allocate(tuple(own.shape), own.dtype)
        room, handle, every = self._copies[len(own)]
        room.copy_(own)
        handle.barrier(channel=0)
        gathered = torch.cat(every)
        handle.barrier(channel=1)
        return gathered

    def link(self, width: int, programs: int) -> Link | None:
        """Create the buffers through which a kernel of `programs` programs exchanges `width` sums with other ranks;
        None if the kernel must use `gather` instead. Every rank must call it.
        """
        if not self._in_kernel or width > MAX_SYMMETRIC_WORDS:
            return None
        inbox, _, every = self._allocate((2, self.ranks, width), torch.int64)
        rows = torch.tensor([theirs[0, self.rank].data_ptr() for theirs in every], device=self.device)
        spent = self._spent[min(self._link_count, _COUNTERS - 1)]
        self._link_count += self.counts
        if self._link_count >= _COUNTERS:
            self._mark_untimed(f"have {_COUNTERS} kernels or more that exchange")
        return Link(inbox, rows, torch.zeros(programs, dtype=torch.int32, device=self.device), spent)

    def _mark_untimed(self, reason: str) -> None:
        """Declare the exchange time unknown from now on, and log the reason: time measured for only some exchanges
        would be too low.
        """
        if self._in_kernel and not self._untimed:
            log.info(
                "the exchange's share is not measured, as iterations %s: gpu/<rank>/exchange_share has no value", reason
            )
        self._untimed = True

    def spent_s(self) -> float | None:
        """Seconds that the first program of each kernel has waited for other ranks; NaN if iterations also exchange
        larger tensors, None if exchanges use torch's barriers.
        """
        if not self._in_kernel or self._untimed:
            return math.nan if self._in_kernel else None
        with torch.cuda.stream(self._stream):
            spent = self._spent.cpu()  # sync: some hundred bytes, on a separate stream
        return float(spent[:-1, 0].sum()) * 1e-9


def _between_gpus(store: dist.Store, rank: int, ranks: int, device: torch.device, *, multi_node: bool) -> GroupExchange:
    """Create the exchange of this rank with the other ranks' GPUs: the fastest that all support, or the one named by
    $OPERANT_EXCHANGE (kernel, symmetric or nccl). With `multi_node` (ranks on several hosts) it is NCCL. Every rank
    must call it; `store` is their rendezvous.
    """
    torch.cuda.set_device(device)
    # No multicast through the NVSwitch is needed, and a container may not be allowed to set it up.
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    dist.init_process_group("nccl", store=store, rank=rank, world_size=ranks, device_id=device, timeout=FOREVER)
    plain = GroupExchange(rank, ranks, dist.group.WORLD, "NCCL", device)
    asked = os.environ.get("OPERANT_EXCHANGE", "kernel")
    peers = [index for index in range(torch.cuda.device_count()) if index != device.index]
    able = (
        not multi_node and asked != "nccl" and all(torch.cuda.can_device_access_peer(device, index) for index in peers)
    )
    symmetric = None
    if able:
        try:
            symmetric = SymmetricExchange(rank, ranks, dist.group.WORLD, device, in_kernel=asked == "kernel")
            symmetric.gather(torch.zeros(1, 8, device=device))
        except (RuntimeError, ImportError) as error:
            log.warning("exchange: no symmetric memory between the GPUs (%s)", str(error).splitlines()[0])
            symmetric = None
    # All ranks must agree: if one lacks symmetric memory, none uses it.
    everyone = plain.gather(torch.tensor([[float(symmetric is not None)]], device=device))
    return symmetric if symmetric is not None and bool(everyone.min() > 0) else plain  # sync: before a run begins


def join(store: dist.Store, rank: int, ranks: int, device: torch.device, *, multi_node: bool = False) -> GroupExchange:
    """Join the ranks of a run and return their exchange: gloo on CPUs, symmetric memory or NCCL on GPUs. Blocks until
    every rank has called it. `multi_node` means that ranks run on several hosts.
    """
    if device.type == "cuda":
        return _between_gpus(store, rank, ranks, device, multi_node=multi_node)
    # gloo resolves the host name by default, which may fail
    if not multi_node and "GLOO_SOCKET_IFNAME" not in os.environ:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    return GroupExchange(rank, ranks, dist.ProcessGroupGloo(store, rank, ranks, FOREVER), "gloo", device)


def host_store(address: str) -> dist.TCPStore:
    """Open a TCPStore on rank 0's host for the process group's rendezvous, on a free port of the interface `address`,
    or of all interfaces with "".
    """
    listener = socket.create_server((address, 0))
    port = listener.getsockname()[1]
    return dist.TCPStore(
        address or "localhost",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=FOREVER,
        use_libuv=True,
        master_listen_fd=listener.detach(),
    )


def reach_store(address: str, port: int) -> dist.TCPStore:
    """Connect to rank 0's TCPStore (the process group's rendezvous) at an address and port."""
    return dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60))


class RankGroup(Protocol):
    """Interface of the group of all ranks (processes) of a run, for checkpoints and meters."""

    exchange: Exchange

    @property
    def rank_metrics(self) -> Mapping[int, Mapping[str, float]]:
        """Newest metrics that the other ranks (processes) reported, by rank."""

    def state(self, algo: Algorithm, tier: Tier) -> dict[str, Tensor]:
        """Return the tensors of a tier ("policy", "train" or "all") on the CPU, by name, with the lanes of all
        ranks.
        """


class SingleRank:
    """Group of ranks (`RankGroup`) of a run that has only one."""

    exchange, rank_metrics = SOLO, dict[int, dict[str, float]]()

    def state(self, algo: Algorithm, tier: Tier) -> dict[str, Tensor]:
        """Return the tensors of a tier ("policy", "train" or "all") as copies on the CPU, by name."""
        return whole_state(algo, tier, SOLO)


SINGLE: Final[RankGroup] = SingleRank()


class EpisodeSums:
    """Callable that sums over the episodes that ended since its last call, on all ranks' lanes: number, length, return
    and K tallies, (3 + K) float64. A collective call.
    """

    def __init__(self, algo: Algorithm, exchange: Exchange) -> None:
        self._algo, self._exchange = algo, exchange

    def __call__(self) -> Tensor:
        """Return the sums since the last call, (3 + K) float64."""
        own = self._algo.world.episode_sums(self._algo.rollout)
        return own if self._exchange.ranks == 1 else self._exchange.gather(own[None]).sum(0)


class RankMetrics:
    """Callable that returns the columns of a metrics record about each rank: memory, and the recent share of an
    iteration spent in the exchange.
    """

    def __init__(self, device: torch.device, group: RankGroup) -> None:
        self._device, self._exchange, self._group = device, group.exchange, group
        self._before: dict[
            int, tuple[float, float, int, float]
        ] = {}  # by rank: its iterations and exchange seconds, records' iterations and seconds
        self._shares: dict[int, float] = {}
        self._recorded, self._training_s = 0, 0.0

    def __call__(self, done: int, iterations: int, training_s: float) -> dict[str, float]:
        """Return the columns about ranks by name: memory and share of time in the exchange of each rank. {} with one
        rank; NaN for a rank that has not reported yet.

        `done` is the number of iterations so far; `iterations` and `training_s` cover the record.
        """
        values = {}
        self._recorded, self._training_s = self._recorded + iterations, self._training_s + training_s
        for rank in range(self._exchange.ranks if self._exchange.ranks > 1 else 0):
            reported = (
                rank_metrics(self._device, self._exchange, done)
                if rank == self._exchange.rank
                else self._group.rank_metrics.get(rank, {})
            )
            done_there, spent_s = reported.get("iterations", math.nan), reported.get("exchange_s", math.nan)
            before, before_s, recorded, recorded_s = self._before.get(rank, (math.nan, math.nan, 0, 0.0))
            if not done_there - before < _LEAST_ITERATIONS and self._recorded > recorded:
                iteration_s = max(self._training_s - recorded_s, 1e-9) / (self._recorded - recorded)
                self._before[rank] = (done_there, spent_s, self._recorded, self._training_s)
                self._shares[rank] = (spent_s - before_s) / (done_there - before) / iteration_s
            values[f"gpu/{rank}/memory_bytes"] = reported.get("memory_bytes", math.nan)
            values[f"gpu/{rank}/exchange_share"] = self._shares.get(rank, math.nan)
        return values


def rank_metrics(device: torch.device, exchange: Exchange, iterations: int) -> dict[str, float]:
    """Measure this rank after `iterations` iterations: bytes in use and seconds spent in the exchange (NaN: unknown),
    by name.
    """
    used = torch.cuda.memory_allocated(device) if device.type == "cuda" else psutil.Process().memory_info().rss
    spent_s = exchange.spent_s()
    return {
        "memory_bytes": float(used),
        "exchange_s": math.nan if spent_s is None else spent_s,
        "iterations": float(iterations),
    }


# A CHECKPOINT'S TENSORS


def _lane_axis(name: str, tensor: Tensor, lanes: int) -> int | None:
    """Axis of an algorithm's tensor that has one entry per lane (0 or -1); None if the tensor is equal on all ranks."""
    axis = None if name in _ALIKE else _LANES.get(name.partition("/")[0])
    return axis if axis is not None and tensor.ndim > max(axis, 0) and tensor.shape[axis] == lanes else None


def _gather_lanes(tensor: Tensor, axis: int, device: torch.device, exchange: Exchange) -> Tensor:
    """Gather the lanes of all ranks, along `axis`, into one CPU tensor, a limited number of bytes at a time. A
    collective call.
    """
    columns = tensor.movedim(axis, 0)  # (N, ...)
    rest = columns.flatten(1) if columns.ndim > 1 else columns[:, None]
    width = max(1, _PART_BYTES // (len(rest) * tensor.element_size()))
    gathered = (exchange.gather(part.to(device)) for part in rest.split(width, dim=1))
    parts = [part.to("cpu", copy=True) for part in gathered]  # sync: a checkpoint
    whole = torch.cat(parts, dim=1).view(exchange.ranks * len(columns), *columns.shape[1:])
    return whole.movedim(0, axis).contiguous()


def whole_state(algo: Algorithm, tier: Tier, exchange: Exchange) -> dict[str, Tensor]:
    """Gather the tensors of a tier ("policy", "train" or "all") on the CPU, by name, with the lanes of all ranks, as a
    single rank would have them. A collective call.
    """
    tensors, exchange.counts = {}, False
    for name, tensor in algo.state(tier).items():
        if exchange.ranks == 1:
            tensors[name] = tensor.detach().to("cpu", copy=True)  # sync: a checkpoint
        elif name in _SUMS:
            tensors[name] = exchange.gather(tensor[None]).sum(0).to("cpu", copy=True)  # sync: a checkpoint
        elif (axis := _lane_axis(name, tensor, algo.world.count)) is not None:
            tensors[name] = _gather_lanes(tensor, axis, algo.device, exchange)
        else:
            tensors[name] = tensor.detach().to("cpu", copy=True)  # sync: a checkpoint
    exchange.counts = True
    return tensors


def whole_like(algo: Algorithm, own: Mapping[str, Tensor], exchange: Exchange) -> dict[str, Tensor]:
    """Allocate zeros on the CPU, by name, for tensors with the lanes of all ranks, in the shapes that `whole_state`
    gives to this rank's tensors `own`.
    """
    zeros = {}
    for name, tensor in own.items():
        shape = list(tensor.shape)
        if (axis := _lane_axis(name, tensor, algo.world.count)) is not None:
            shape[axis] *= exchange.ranks
        zeros[name] = torch.zeros(shape, dtype=tensor.dtype)
    return zeros


def own_state(algo: Algorithm, whole: Mapping[str, Tensor], exchange: Exchange) -> dict[str, Tensor]:
    """Slice this rank's lanes out of `whole`, tensors with the lanes of all ranks, by name. Returns views."""
    if exchange.ranks == 1:
        return dict(whole)
    lanes = algo.world.count
    parts = {}
    for name, tensor in whole.items():
        if name in _SUMS:
            parts[name] = tensor if exchange.rank == 0 else torch.zeros_like(tensor)
        elif (axis := _lane_axis(name, tensor, lanes * exchange.ranks)) is not None:
            parts[name] = tensor.narrow(axis, exchange.rank * lanes, lanes)
        else:
            parts[name] = tensor
    return parts
