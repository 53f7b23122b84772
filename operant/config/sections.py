"""The sections of the configuration that belong to no other package: `[run]`, `[env]`, `[checkpoint]`, `[eval]`. Knows
no file and no command line.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from operant.config import recipes
from operant.settings import Count, Real, Section

_DEVICE = r"^(auto|cpu|cuda|cuda:[0-9]{1,3})$"
_RUN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
AUTO_LANES = 65_536
"""The upper limit of `env.lanes = "auto"`."""
LANES_TRIED = tuple(32 << k for k in range(12))
"""What it chooses from, up to the limit. Where not even the fewest fit, lanes are not what is too large."""


def _check(pattern: str, allowed: str) -> AfterValidator:
    """A validator of a whole text by a pattern; its message says what is allowed."""

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
    _check(_RUN_NAME, "1 to 64 letters, digits, dots, underscores and hyphens, the first a letter or a digit"),
    Field(json_schema_extra={"pattern": _RUN_NAME}),
]


def _rank_count(value: int) -> int:
    if value not in _COUNTS:
        raise ValueError(
            "input should be 1, 2, 4 or 8: the lanes form up to 8 equal shards, and each rank owns as many of them"
        )
    return value


def _gpus(value: object) -> object:
    """The number of GPUs, or which."""
    found = int(value) if isinstance(value, str) and value.isdecimal() else value
    numbers = [] if not isinstance(found, list) else [item for item in found if type(item) is int and 0 <= item < 1000]
    sound = found == "all" or (type(found) is int and found in (0, *_COUNTS))
    if not sound and not (isinstance(found, list) and len(set(numbers)) == len(found) in _COUNTS):
        raise ValueError(
            'input should be 0, 1, 2, 4 or 8 GPUs, a list of so many different numbers, such as [0, 1], or "all"'
        )
    return found


_COUNTS = (1, 2, 4, 8)
Ranks = Annotated[Count, AfterValidator(_rank_count), Field(json_schema_extra={"enum": list(_COUNTS)})]
Gpus = Annotated[int | list[int] | Literal["all"], BeforeValidator(_gpus)]


class Run(Section, use_attribute_docstrings=True):
    """One training run: its length, its device, its seed."""

    seed: Count = Field(1, ge=0, lt=2**63)
    """Seed of all random numbers; the same seed gives the same bits."""
    seeds: Count = Field(1, ge=1, le=1024)
    """Runs to train, with seed, seed + 1 and so on: a group, whose runs have 1 here."""
    device: Device = "auto"
    """auto (a GPU if available), cpu, cuda or cuda:N."""
    steps: Count = Field(2_000_000, gt=0, lt=2**62)
    """Environment steps of the run, summed over all lanes; rounded up to whole iterations."""
    target: Real | None = None
    """Stop once an evaluation's mean return reaches this and 1,024 to 16,384 fresh ones (outside: an eighth) confirm
    it; none: train for all steps.
    """
    record_hz: Real = Field(50.0, ge=0.1, le=1000)
    """Maximum rate of records in the metrics file, per second."""
    name: RunName | None = None
    """Id of the run; a suffix is added if the id exists. None: made from environment and algorithm."""
    threads: Count = Field(0, ge=0, le=4096)
    """CPU threads; 0: one per core."""
    gpus: Gpus = 0
    """GPUs of this machine that share the lanes: 2, 4 or 8 of them, "all", or a list of their numbers; 0: run.device
    decides.
    """
    ranks: Ranks = 1
    """Processes that share the lanes on the CPU: 1, 2, 4 or 8, with the same bits. On GPUs: run.gpus."""
    peer_timeout: Real = Field(30.0, ge=1, le=86400)
    """Seconds after which a rank that does not answer ends the run."""

    def problems(self) -> list[tuple[str, str]]:
        """Values that do not fit together, as (key, message)."""
        if self.gpus != 0 and self.device != "auto":
            return [
                (
                    "gpus",
                    f"run.device = {self.device} names one device: leave one of them out, or set run.device=auto (got "
                    f"gpus = {self.gpus})",
                )
            ]
        if self.ranks > 1 and (self.gpus != 0 or self.device.startswith("cuda")):
            return [
                (
                    "ranks",
                    f"these are processes on the CPU; GPUs share a run by run.gpus={self.ranks} (got "
                    f"{self.ranks} ranks)",
                )
            ]
        return []


class Environment(Section, use_attribute_docstrings=True):
    """The environment, and the number of lanes: copies of it that are stepped in parallel."""

    name: str = Field(recipes.ENVIRONMENT, min_length=1)
    """A shipped environment, its Gymnasium id, or your own file: my_env.py. An outside one: gymnasium:LunarLander-v3,
    ale:pong, my_envs.py:make.
    """
    lanes: Annotated[Count, Field(ge=1, le=2**30)] | Literal["auto"] = 1024
    """Parallel copies of the environment; "auto": as many as fit and raise the speed, measured once, kept by the run.
    Also `num_envs`.
    """
    pixels: Count | None = Field(None, ge=16, le=128)
    """Observe images of this many pixels a side, drawn by the environment; not set: its own observation."""
    flicker: float = Field(0.0, ge=0.0, le=1.0)
    """Probability that an observation is blank (all zeros, a black picture): a task for a memory."""
    device: Literal["auto", "cpu"] = "auto"
    """Where the lanes are stepped; "auto": on the device that learns; cpu: by the CPU's threads, though a GPU learns.
    """
    threads: Annotated[Count, Field(ge=0, le=1024)] | Literal["auto"] = "auto"
    """Of an outside environment: worker processes of each rank; "auto": one per core, in all; 0: none, the trainer
    steps the lanes itself, for a debugger.
    """
    buffers: Count = Field(2, ge=1, le=64)
    """Of lanes that are stepped on the host: parts, of which one is stepped while another's numbers are copied."""
    asynchronous: bool = False
    """Of an outside environment: each worker has buffers of its own, which beside a GPU are acted on in the order in
    which they are done; the same results.
    """
    timeout_s: Real = Field(60.0, gt=0, le=86_400)
    """Of an outside environment: seconds after which a step is called hanging, and the run stops."""
    time_limit: Count | None = Field(None, ge=1, lt=2**31)
    """Of an outside environment: steps after which an episode is truncated; not set: its own limit."""
    frame_skip: Count | None = Field(None, ge=1, le=1000)
    """Of an outside environment: how often each action is taken; rewards are added up; not set: once, in an Atari game
    4 times.
    """
    frame_stack: Count | None = Field(None, ge=1, le=64)
    """Of an outside environment: how many of the last observations are shown together; not set: one, of an Atari game
    4.
    """
    grayscale: bool = False
    """Of an outside environment that shows pictures: in shades of grey."""
    resize: Count | None = Field(None, ge=8, le=1024)
    """Of an outside environment that shows pictures: to so many pixels a side."""
    sticky: Real = Field(0.0, ge=0, lt=1)
    """Of an outside environment: the probability that the action before is taken again instead. 0.25 is usual for
    Atari.
    """
    reward_clip: Real | None = Field(None, gt=0)
    """Of an outside environment: rewards are clipped to plus and minus this to learn from; returns are of the whole
    ones.
    """
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the environment by name; `operant envs --json` lists them. Of an outside one: the keyword arguments
    of its constructor.
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
"""The keys of `[env]` that outside environments alone have, and their defaults."""
ONCE = ("frame_skip", "frame_stack")
"""Those of them of which 1 says what every other environment does."""


class Checkpoint(Section, use_attribute_docstrings=True):
    """When to save checkpoints, and how many to keep."""

    every: Count = Field(200, ge=1, lt=2**31)
    """Iterations between two checkpoints."""
    keep: Count = Field(3, ge=1, lt=2**31)
    """Number of latest checkpoints to keep, besides the best one."""
    replay: Literal["auto"] | bool = "auto"
    """Save the replay of an off-policy run; "auto": up to 4 GiB and 10 % of the free disk, in at most 5 % of the time.
    Without it a resume is a warm one.
    """


class Evaluation(Section, use_attribute_docstrings=True):
    """Evaluation by greedy episodes in a separate world; it does not affect the training."""

    every: Count = Field(10, ge=0, lt=2**31)
    """Iterations between two evaluations; 0: no evaluation."""
    episodes: Count = Field(100, ge=1, le=2**24)
    """Episodes per evaluation."""


SECTIONS = ("run", "env", "algo", "net", "checkpoint", "eval")
"""The sections of a configuration, in the order of the file."""
READ_ELSEWHERE = ("sweep",)
"""Sections of the same file that a training run passes over: `operant.sweep` reads its own."""
MODELS: dict[str, type[Section]] = {"run": Run, "env": Environment, "checkpoint": Checkpoint, "eval": Evaluation}
"""The models of those that stand here."""
