"""Ranks of a run and their devices, from the configuration or from torchrun's or srun's environment variables.

Also starts the other ranks on this machine.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from operant import __version__
from operant.errors import ConfigError, MachineError, UsageError

if TYPE_CHECKING:
    import torch

COUNTS = (8, 4, 2, 1)
"""Allowed numbers of ranks: the lanes form up to 8 equal shards, and a rank owns whole shards."""

JOIN_S = 120.0
"""Seconds that a rank may take to join: the first imports from a slow disk take a minute."""


class Placement(NamedTuple):
    """Position of this process among the ranks (processes) of its run and of its host."""

    rank: int
    ranks: int
    local_rank: int  # index among the ranks of its host
    local_ranks: int
    launcher: str | None = None  # "torchrun" or "srun"; None: rank 0 starts the others

    @property
    def multi_node(self) -> bool:
        """Whether the run's ranks (processes) are on several hosts."""
        return self.local_ranks != self.ranks


SINGLE = Placement(0, 1, 0, 1)


def placement(environment: Mapping[str, str]) -> Placement:
    """Read this process's rank from the environment variables of its launcher (torchrun or srun); `SINGLE` without one.
    Raises UsageError for an unsupported number of ranks or a malformed variable.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        names, launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), "torchrun"
    elif "SLURM_PROCID" in environment:
        tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
        names, launcher = ("SLURM_PROCID", tasks, "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"), "srun"
    else:
        return SINGLE

    def number(name: str, default: int) -> int:
        # Slurm writes 4(x2): four on each of two hosts
        word = environment.get(name, str(default)).partition("(")[0].partition(",")[0]
        if not word.isdecimal():
            raise UsageError(f"${name} must be a number set by {launcher} (got {environment.get(name)!r})")
        return int(word)

    rank, ranks = number(names[0], 0), number(names[1], 1)
    result = Placement(rank, ranks, number(names[2], rank), number(names[3], ranks), launcher)
    if result.ranks not in COUNTS or not result.rank < result.ranks:
        raise UsageError(f"{launcher} has started {result.ranks} ranks: a run has 1, 2, 4 or 8")
    return result


def require_first_start(folder: Path, document: Mapping[str, object], environment: Mapping[str, str]) -> None:
    """Check that the ranks of a run are started for the first time. Raises UsageError if a launcher restarts a run that
    has already trained, which would begin again.
    """
    restarts = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restarts not in ("", "0") or document.get("session"):
        again = (
            "torchrun has started the ranks again" if restarts not in ("", "0") else "this run has been trained already"
        )
        launcher = ", or the same launch command with --resume last after the folder (and --max-restarts=0)"
        raise UsageError(
            f"{again}; a run is not restarted automatically. "
            f"{resume_advice(folder)}{launcher if _has_checkpoint(folder) else ''}"
        )


def resume_advice(folder: Path) -> str:
    """Advise the user, after the end of a run of several ranks, how to continue: the command that resumes it, or a new
    run.
    """
    if _has_checkpoint(folder):
        return f"To continue from the last checkpoint: operant resume {folder.name}"
    return "It has no checkpoint to continue from: start a new run"


def _has_checkpoint(folder: Path) -> bool:
    """Whether the run of a folder has a checkpoint to resume from."""
    return any((folder / "checkpoints").glob("step-*"))


def versions() -> dict[str, str]:
    """Installed versions of the packages that must be equal on all ranks, by name."""
    installed = {"operant": __version__}
    for name in ("torch", "numba", "numpy", "triton"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


# DEVICES


def assign_gpus(
    run: Any, this: Placement, visible: int, *, resume: bool
) -> tuple[Placement, tuple[int, ...], str | None]:
    """Choose the GPUs of a run's ranks. Returns this process's placement, the GPU indices of this host's ranks in order
    (empty: `run.device` decides), and a note for the log or None. `run` is the section [run], `visible` the number of
    GPUs. Raises ConfigError or MachineError if the requested ranks are impossible.

    `resume`: the run has trained before, so a GPU that is missing is noted rather than refused.
    """
    if this.launcher is not None:
        if run.gpus and _gpu_count(run.gpus, visible) != this.ranks:
            raise ConfigError(
                "the number of ranks",
                [f"run.gpus: {this.launcher} has started {this.ranks} ranks (got {_gpus_text(run.gpus)})"],
            )
        on_gpus = visible > 0 and run.device in ("auto", "cuda")
        if on_gpus and this.local_ranks > visible:
            raise MachineError(
                f"{this.local_ranks} ranks on this host have {visible} GPU{'s' * (visible != 1)}: one each is needed, "
                "or run.device=cpu"
            )
        return this, tuple(range(this.local_ranks)) if on_gpus else (), None
    if not run.gpus:
        return Placement(this.rank, run.ranks, this.local_rank, run.ranks), (), None
    if not visible:
        raise MachineError(
            f"no GPU for run.gpus = {_gpus_text(run.gpus)}: torch finds no GPU on this machine. To train on the "
            f"CPU: run.gpus=0 run.ranks=2, "
            "or see `operant doctor`"
        )
    requested = (
        list(run.gpus) if isinstance(run.gpus, list) else list(range(visible if run.gpus == "all" else run.gpus))
    )
    existing = [index for index in requested if index < visible]
    if len(existing) < len(requested) and not resume:
        missing = ", ".join(str(index) for index in requested if index >= visible)
        raise MachineError(
            f"run.gpus = {_gpus_text(run.gpus)}: this machine has {visible} GPU{'s' * (visible != 1)}; there is no GPU "
            f"{missing}"
        )
    if not existing:
        raise MachineError(
            f"run.gpus = {_gpus_text(run.gpus)}: these GPUs do not exist on this machine, which has {visible}: use "
            f"run.gpus=all"
        )
    count = next(count for count in COUNTS if count <= len(existing))
    idle = [index for index in range(visible) if index not in existing[:count]]
    note = None
    if count < len(requested) or (run.gpus == "all" and idle):
        used, unused = (", ".join(map(str, indices)) or "none" for indices in (existing[:count], idle))
        note = f"1, 2, 4 or 8 GPUs share a run: it trains on {used}; idle: {unused}"
    return Placement(this.rank, count, this.local_rank, count), tuple(existing[:count]), note


def resolve_device(run: Any, this: Placement, *, resume: bool) -> tuple[Placement, str, str | None]:
    """Choose the device of this process: returns its placement, the device's name, and a note for the log or None.
    Arguments and errors are those of `assign_gpus`.
    """
    import torch

    this, gpus, note = assign_gpus(
        run, this, torch.cuda.device_count() if torch.cuda.is_available() else 0, resume=resume
    )
    return this, f"cuda:{gpus[this.local_rank]}" if gpus else "cpu" if this.ranks > 1 else run.device, note


def resume_keys(run: Any, this: Placement, device: torch.device) -> dict[str, Any]:
    """Values of keys in section [run] with which a resume will use the same number of ranks."""
    if this.ranks > 1 and device.type == "cuda":
        return {"gpus": run.gpus or this.ranks, "ranks": 1, "device": "auto"}
    return {"ranks": this.ranks, "device": "auto" if run.gpus else str(device)}


def _gpu_count(gpus: int | str | Sequence[int], visible: int) -> int:
    """Number of GPUs that `run.gpus` requests, of `visible` ones."""
    return len(gpus) if isinstance(gpus, list) else visible if gpus == "all" else int(gpus)  # type: ignore[arg-type]


def _gpus_text(gpus: object) -> str:
    """Format the value of `run.gpus` without spaces, as on a command line."""
    return str(gpus).replace(" ", "")


# RANKS ON THIS MACHINE


ADDRESS_FILE = "ranks.json"
"""File in the run folder with rank 0's address and the token that admits a rank; readable by its owner only."""


class LocalRanks:
    """Processes of ranks 1 to W - 1 on rank 0's own machine. They are started before rank 0's heavy imports, so that
    all import in parallel.
    """

    def __init__(self, command: Sequence[str], folder: Path, ranks: int) -> None:
        """Start the processes by `command`, extended by --rank R --ranks W. Output of rank R goes to log.R.txt."""
        self.ranks, self._processes = ranks, dict[int, subprocess.Popen[bytes]]()
        if ranks > 1:
            (folder / ADDRESS_FILE).unlink(missing_ok=True)  # left behind by a killed session
        for rank in range(1, ranks):
            with open(folder / log_name(rank), "ab") as log:
                arguments = ["--rank", str(rank), "--ranks", str(ranks)]
                self._processes[rank] = subprocess.Popen(
                    [*command, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )

    def ended(self) -> tuple[int, str] | None:
        """Find a rank whose process has exited: its index and a description of the exit. None while all run."""
        return next(
            ((rank, self.exit_text(rank)) for rank, process in self._processes.items() if process.poll() is not None),
            None,
        )

    def exit_text(self, rank: int) -> str:
        """Describe how a rank's process exited, such as by its exit code; "" if it still runs or is not a child of this
        process.
        """
        process = self._processes.get(rank)
        if process is None:
            return ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(0.3)
            return f"killed by signal {-code}" if code < 0 else f"exit code {code}, see {log_name(rank)}"
        return ""

    def close(self, timeout_s: float = 5.0) -> None:
        """Wait up to `timeout_s` seconds for the processes to exit, then kill the rest."""
        deadline_s = time.monotonic() + timeout_s
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline_s - time.monotonic()))
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()


def log_name(rank: int) -> str:
    """File name of a rank's log in the run folder."""
    return "log.txt" if rank == 0 else f"log.{rank}.txt"
