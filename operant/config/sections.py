"""Models of the sections `[run]`, `[env]`, `[checkpoint]` and `[eval]`. `[algo]` and `[net]` are declared by algorithms
and by operant/nn.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from operant.config import recipes
from operant.settings import Count, Real, Section

_DEVICE = r"^(auto|cpu|cuda|cuda:[0-9]{1,3})$"
_RUN_NAME = r"^(?!(latest|live)$)[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
AUTO_LANES = 65_536
"""Upper limit of `env.lanes = "auto"`."""
LANES_TRIED = tuple(32 << k for k in range(12))
"""Candidates for `env.lanes = "auto"`."""


def _check(pattern: str, allowed: str) -> AfterValidator:
    """Return a validator that accepts texts matching `pattern` fully, and reports any other as "input should be
    `allowed`".
    """

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"input should be {allowed}")
        return value

    return AfterValidator(check)


Device = Annotated[
    str, _check(_DEVICE, "auto, cpu, cuda or cuda:N, such as cuda:0"), Field(json_schema_extra={"pattern": _DEVICE})
]
RunName = Annotated[
    str,
    _check(
        _RUN_NAME,
        "1 to 64 letters, digits, dots, underscores and hyphens, the first a letter or a digit, and not latest or live",
    ),
    Field(json_schema_extra={"pattern": _RUN_NAME}),
]


def _rank_count(value: int) -> int:
    """Return a value of run.ranks if it is valid (1, 2, 4 or 8). Raises ValueError."""
    if value not in _COUNTS:
        raise ValueError(
            "input should be 1, 2, 4 or 8: the lanes form up to 8 equal shards, and each rank owns as many of them"
        )
    return value


def _gpus(value: object) -> object:
    """Validate a value of run.gpus (a number of GPUs, a list of GPU indices, or "all") and return it, digits as an
    integer. Raises ValueError.
    """
    parsed = int(value) if isinstance(value, str) and value.isdecimal() else value
    indices = [item for item in parsed if type(item) is int and 0 <= item < 1000] if isinstance(parsed, list) else []
    valid = parsed == "all" or (type(parsed) is int and parsed in (0, *_COUNTS))
    if not valid and not (isinstance(parsed, list) and len(set(indices)) == len(parsed) in _COUNTS):
        raise ValueError(
            'input should be 0, 1, 2, 4 or 8 GPUs, a list of 1, 2, 4 or 8 different indices, such as [0, 1], or "all"'
        )
    return parsed


_COUNTS = (1, 2, 4, 8)
Ranks = Annotated[Count, AfterValidator(_rank_count), Field(json_schema_extra={"enum": list(_COUNTS)})]
Gpus = Annotated[int | list[int] | Literal["all"], BeforeValidator(_gpus)]


class Run(Section, use_attribute_docstrings=True):
    """Section `[run]`: length, seeds, devices and name of a training run."""

    seed: Count = Field(1, ge=0, lt=2**63)
    """Seed of all random numbers; the same seed gives the same bits."""
    seeds: Count = Field(1, ge=1, le=1024)
    """Number of runs, with seed, seed + 1 and so on. More than 1 makes a group; each of its runs has 1."""
    device: Device = "auto"
    """auto (a GPU if available), cpu, cuda or cuda:N."""
    steps: Count = Field(2_000_000, gt=0, lt=2**62)
    """Environment steps of the run, summed over all lanes; rounded up to whole iterations."""
    target: Real | None = None
    """Stop once the mean return of an evaluation reaches this and 1,024 to 16,384 fresh episodes (outside environments:
    an eighth) confirm it; none: train for all steps.
    """
    record_hz: Real = Field(50.0, ge=0.1, le=1000)
    """Maximum rate of records in the metrics file, per second."""
    name: RunName | None = None
    """Id of the run; a suffix is added if the id exists. Not set: generated from environment and algorithm."""
    threads: Count = Field(0, ge=0, le=4096)
    """CPU threads; 0: one per core."""
    gpus: Gpus = 0
    """GPUs of this machine that share the lanes: 2, 4 or 8, "all", or a list of indices; 0: run.device decides."""
    ranks: Ranks = 1
    """Processes that share the lanes on the CPU: 1, 2, 4 or 8, with the same bits. On GPUs: run.gpus."""
    peer_timeout: Real = Field(30.0, ge=1, le=86400)
    """Seconds after which a rank that does not respond ends the run."""

    def problems(self) -> list[tuple[str, str]]:
        """Return the values of `[run]` that conflict with each other, as (key, message)."""
        if self.gpus != 0 and self.device != "auto":
            return [
                (
                    "gpus",
                    f"run.device = {self.device} selects a single device: remove one of the two keys, or set "
                    f"run.device=auto (got gpus = {self.gpus})",
                )
            ]
        if self.ranks > 1 and (self.gpus != 0 or self.device.startswith("cuda")):
            return [
                (
                    "ranks",
                    f"ranks are processes on the CPU; to share a run between GPUs set run.gpus={self.ranks} (got "
                    f"{self.ranks} ranks)",
                )
            ]
        return []


class Environment(Section, use_attribute_docstrings=True):
    """Section `[env]`: the environment, its number of lanes (copies stepped in parallel), and settings of environments
    of other libraries.
    """

    name: str = recipes.ENVIRONMENT
    """Shipped environment, its Gymnasium id, or your own file: my_env.py. Outside environments:
    gymnasium:LunarLander-v3, ale:pong, my_envs.py:make.
    """
    lanes: Annotated[Count, Field(ge=1, le=2**30)] | Literal["auto"] = 1024
    """Parallel copies of the environment; "auto": the fastest number that fits, measured once and recorded by the run.
    Alias: `num_envs`.
    """
    pixels: Count | None = Field(None, ge=16, le=128)
    """Side length in pixels of image observations drawn by the environment; not set: its usual observation."""
    flicker: float = Field(0.0, ge=0.0, le=1.0)
    """Probability that an observation is replaced by zeros (a black image): a task for a memory."""
    device: Literal["auto", "cpu"] = "auto"
    """Device that steps the lanes; "auto": the learner's device; cpu: threads of the CPU, even if a GPU learns."""
    threads: Annotated[Count, Field(ge=0, le=1024)] | Literal["auto"] = "auto"
    """Outside environments: worker processes per rank; "auto": one per core in total; 0: the trainer steps the lanes
    itself, for a debugger.
    """
    buffers: Count = Field(2, ge=1, le=64)
    """Lanes stepped on the host: number of parts. One part is stepped while the data of another is copied."""
    asynchronous: bool = False
    """Outside environments: each worker has its own buffers; with a GPU the policy acts on them in order of completion.
    Results are the same.
    """
    timeout_s: Real = Field(60.0, gt=0, le=86_400)
    """Outside environments: seconds after which a step counts as hanging and the run stops."""
    time_limit: Count | None = Field(None, ge=1, lt=2**31)
    """Outside environments: steps after which an episode is truncated; not set: the environment's limit."""
    frame_skip: Count | None = Field(None, ge=1, le=1000)
    """Outside environments: repetitions of each action, with rewards summed; not set: 1, for Atari games 4."""
    frame_stack: Count | None = Field(None, ge=1, le=64)
    """Outside environments: number of latest observations that are stacked; not set: 1, for Atari games 4."""
    grayscale: bool = False
    """Outside environments with image observations: convert them to grayscale."""
    resize: Count | None = Field(None, ge=8, le=1024)
    """Outside environments with image observations: resize them to this side length in pixels."""
    sticky: Real = Field(0.0, ge=0, lt=1)
    """Outside environments: probability that the previous action is repeated instead. 0.25 is usual for Atari."""
    reward_clip: Real | None = Field(None, gt=0)
    """Outside environments: clip rewards to plus and minus this value for learning; returns use unclipped rewards."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the environment by name; `operant envs --json` lists them. Outside environments: keyword arguments
    of the constructor.
    """


_OUTSIDE = (
    "threads",
    "asynchronous",
    "timeout_s",
    "time_limit",
    "frame_skip",
    "frame_stack",
    "grayscale",
    "resize",
    "sticky",
    "reward_clip",
)
OUTSIDE = {key: Environment.model_fields[key].default for key in _OUTSIDE}
"""Keys of `[env]` that are valid only for outside environments, with their defaults."""
ONCE = ("frame_skip", "frame_stack")
"""Keys of OUTSIDE for which 1 is accepted with every environment, since it describes ordinary stepping."""


class Checkpoint(Section, use_attribute_docstrings=True):
    """Section `[checkpoint]`: interval between checkpoints, and number of checkpoints to keep."""

    every: Count = Field(200, ge=1, lt=2**31)
    """Iterations between two checkpoints."""
    seconds: Real = Field(60.0, ge=0, le=31_536_000)
    """Seconds of work that a crash may lose: a checkpoint is also saved, after an iteration, when the last one is this
    old. Longer if saving would take more than 2 % of the time; 0: only `every` counts.
    """
    keep: Count = Field(3, ge=1, lt=2**31)
    """Number of latest checkpoints to keep, in addition to the best one."""
    replay: Literal["auto"] | bool = "auto"
    """Save the replay of an off-policy run; "auto": up to 4 GiB and 10 % of the free disk, in at most 5 % of the time.
    Without it a resume refills the replay first.
    """


class Evaluation(Section, use_attribute_docstrings=True):
    """Section `[eval]`: greedy episodes in a separate world, which do not affect training."""

    every: Count = Field(10, ge=0, lt=2**31)
    """Iterations between two evaluations; 0: no evaluation."""
    episodes: Count = Field(100, ge=1, le=2**24)
    """Episodes per evaluation."""


SECTIONS = ("run", "env", "algo", "net", "checkpoint", "eval")
"""Sections of a configuration, in the order of the file."""
READ_ELSEWHERE = ("sweep",)
"""Sections that a training run ignores: `operant.sweep` reads them."""
MODELS: dict[str, type[Section]] = {"run": Run, "env": Environment, "checkpoint": Checkpoint, "eval": Evaluation}
"""Models declared in this module."""
