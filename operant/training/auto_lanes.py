"""Resolution of `env.lanes = "auto"`: the largest number of lanes that fits on the device, fixed before the run starts.

On a GPU candidates are tried; on a CPU memory is estimated.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import psutil
import torch

from operant.compute.runtime import out_of_memory
from operant.config.load import Config
from operant.config.sections import AUTO_LANES, LANES_TRIED
from operant.errors import DeviceError
from operant.training import build as building
from operant.training import memory

LANES_PER_THREAD = 512
"""CPU lanes per thread above which throughput hardly grows while each iteration takes longer.

Two cores, relative to 1,024 lanes: 0.4 at 128, 0.7 at 256, 0.9 at 512, 1.1 at 2,048.
"""

LANES_PER_PROCESS, MAX_HOST_LANES = 32, 1024
"""Outside environments: lanes per worker process (a process steps its lanes one after the other) and the most in
total.
"""

MIN_ITERATIONS = 100
"""Least number of iterations in a run of `run.steps`: with more lanes the policy would be updated too rarely."""

FREE_SHARE = 1 / 16
"""Share of GPU memory left free for evaluations, a watched agent and other processes."""


def resolve(config: Config, device: torch.device, *, report: Callable[[str], None], ranks: int = 1) -> Config:
    """Replace `env.lanes = "auto"` in a configuration by a number of lanes (parallel environments); return any other
    configuration unchanged. Raises DeviceError if no number fits and ConfigError if the ranks cannot share the lanes.

    The number is the largest power of two up to 65,536 (CPU: 512 per torch thread) that the algorithm can divide, that
    leaves at least 100 iterations, and that fits into memory. With several ranks each rank gets that many. `report`
    receives one line per candidate.
    """
    if config.env.lanes != "auto":
        return config
    fits = _fits_by_trial if device.type == "cuda" else _fits_by_estimate
    lanes = 0
    useful = config.run.steps // (MIN_ITERATIONS * building.estimate(config, 1).steps * ranks)
    for lanes in _candidates(config, device, useful):
        total = building.with_lanes(config, lanes * ranks)
        if fits(building.with_lanes(config, lanes), device):
            building.require_shared(total, ranks)
            note = f" (more would leave run.steps fewer than {MIN_ITERATIONS} iterations)" if 2 * lanes > useful else ""
            report(f"env.lanes = auto: {total.lanes:,} lanes{f', {lanes:,} a rank' * (ranks > 1)}{note}")
            return total
        report(f"env.lanes = auto: {lanes:,} lanes do not fit into the memory of {device}")
    raise DeviceError(
        f"out of memory: not even {lanes:,} lanes fit into the memory of {device}. Use a shorter algo.horizon, a "
        "smaller algo.microbatch or net.hidden, "
        "or end what else uses this device"
    )


def _candidates(config: Config, device: torch.device, useful: int) -> Iterator[int]:
    """Yield the numbers of lanes (parallel environments) to try, largest first: at most `useful`, unless the algorithm
    allows no smaller number.
    """
    most = AUTO_LANES if device.type == "cuda" else min(AUTO_LANES, LANES_PER_THREAD * torch.get_num_threads())
    if (hosting := getattr(config.environment, "hosting", None)) is not None:
        most = min(MAX_HOST_LANES, LANES_PER_PROCESS * max(1, hosting.processes))
    allowed = [lanes for lanes in LANES_TRIED if not config.problems(lanes)]
    yield from reversed([lanes for lanes in allowed if lanes <= min(most, useful)] or allowed[:1])


def _fits_by_estimate(config: Config, device: torch.device) -> bool:
    """Whether a run of this configuration needs at most half of the free CPU memory, by estimate. A trial would prove
    nothing, because a CPU allocator promises pages before they exist.
    """
    return memory.estimate(config, device).total_bytes <= psutil.virtual_memory().available // 2


def _fits_by_trial(config: Config, device: torch.device) -> bool:
    """Whether a trainer of this configuration can be built and trained on the GPU, found by a trial whose memory is
    freed.
    """
    try:
        fits = _run_trial(config, device)
    except Exception as error:
        if not out_of_memory(error):
            raise
        fits = False
    gc.collect()  # trainer and graphs reference each other
    # release the workspaces of 32 MiB per stream that the trainer used
    if torch.version.cuda is not None:
        torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return fits


def _run_trial(config: Config, device: torch.device) -> bool:
    """Train two iterations (eager, then captured in a CUDA graph), after which a trainer allocates nothing more.
    Returns whether enough GPU memory is left; raises any error, out-of-memory included.
    """
    algo = building.build(config, device)
    algo.start()
    for _ in range(2):
        for phase in algo.phases:
            phase.run()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return free >= FREE_SHARE * total
