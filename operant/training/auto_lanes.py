"""How many lanes a device has room for: `env.lanes = "auto"` made a number, once, before a run begins and writes down
its configuration.

On a GPU by trying, on a CPU by an estimate. Knows how large a device's memory is and how a trainer is built; knows no
run and no algorithm's parts.
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

LANES_A_THREAD = 512
"""On a CPU: from about there on more lanes learn little faster, and each iteration only takes longer. On two cores, of
the rate at 1,024 lanes: 0.4 at 128,
0.7 at 256, 0.9 at 512, 1.1 at 2,048."""

LANES_A_PROCESS, MOST_HOST_LANES = 32, 1024
"""Of an outside environment: each lane has an environment of its own, and one process steps its lanes one after the
other, so more are no faster.
"""

FEWEST_ITERATIONS = 100
"""A run of `run.steps` is left so many: more lanes would learn less often, and from the same number of steps learn
less.
"""

SPARE = 1 / 16
"""The share of a GPU's memory that stays free, for what comes later: evaluations, a watched agent, other processes."""


def resolved(config: Config, device: torch.device, *, report: Callable[[str], None], ranks: int = 1) -> Config:
    """The configuration with a number in the place of `env.lanes = "auto"`; any other as it is.

    The number is the largest power of two of 65,536 at most (on a CPU of 512 for each of torch's threads) that the
    algorithm can divide, leaves the run 100 iterations, and fits into memory; of several ranks each gets as many.
    `report` takes a line about each number that is tried. Raises DeviceError where none fits, ConfigError where ranks
    cannot share them.
    """
    if config.env.lanes != "auto":
        return config
    fits = _tried if device.type == "cuda" else _estimated
    lanes = 0
    useful = config.run.steps // (FEWEST_ITERATIONS * building.estimate(config, 1).steps * ranks)
    for lanes in _candidates(config, device, useful):
        whole = building.with_lanes(config, lanes * ranks)
        if fits(building.with_lanes(config, lanes), device):
            building.require_shared(whole, ranks)
            why = (
                f" (more would leave run.steps fewer than {FEWEST_ITERATIONS} iterations)" if 2 * lanes > useful else ""
            )
            report(f"env.lanes = auto: {whole.lanes:,} lanes{f', {lanes:,} a rank' * (ranks > 1)}{why}")
            return whole
        report(f"env.lanes = auto: {lanes:,} lanes do not fit into the memory of {device}")
    raise DeviceError(
        f"out of memory: not even {lanes:,} lanes fit into the memory of {device}. Use a shorter algo.horizon, a "
        "smaller algo.microbatch or net.hidden, "
        "or end what else uses this device"
    )


def _candidates(config: Config, device: torch.device, useful: int) -> Iterator[int]:
    """The numbers to try, the largest first: none above `useful`, unless the algorithm can divide no other."""
    most = AUTO_LANES if device.type == "cuda" else min(AUTO_LANES, LANES_A_THREAD * torch.get_num_threads())
    if (hosting := getattr(config.environment, "hosting", None)) is not None:
        most = min(MOST_HOST_LANES, LANES_A_PROCESS * max(1, hosting.processes))
    allowed = [lanes for lanes in LANES_TRIED if not config.problems(lanes)]
    yield from reversed([lanes for lanes in allowed if lanes <= min(most, useful)] or allowed[:1])


def _estimated(config: Config, device: torch.device) -> bool:
    """Whether a run takes no more than half of the memory that is free: a CPU's is promised long before it is there, so
    trying would prove nothing.
    """
    return memory.estimate(config).total_bytes <= psutil.virtual_memory().available // 2


def _tried(config: Config, device: torch.device) -> bool:
    """Whether a trainer of this configuration can be built and trained on a GPU, which is left as empty as it was."""
    try:
        fits = _trains(config, device)
    except Exception as error:
        if not out_of_memory(error):
            raise
        fits = False
    gc.collect()  # a trainer and its graphs hold each other
    # 32 MiB for every stream that ever computed a product: a trainer's are gone with it
    if torch.version.cuda is not None:
        torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return fits


def _trains(config: Config, device: torch.device) -> bool:
    """Train twice, plainly and captured, after which a trainer asks for no more memory; whether enough is left then.
    Raises what went wrong.
    """
    algo = building.build(config, device)
    algo.start()
    for _ in range(2):
        for phase in algo.phases:
            phase.run()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return free >= SPARE * total
