"""The sections of the configuration that belong to no other module: `[run]`, `[env]`, `[checkpoint]`, `[eval]`. Knows no file and no command line."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from operant.config import recipes
from operant.settings import Count, Real, Section

_DEVICE = r"^(auto|cpu|cuda|cuda:[0-9]{1,3})$"
_RUN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
AUTO_LANES = 65_536
"""The most that `env.lanes = "auto"` comes to."""


def _check(pattern: str, allowed: str) -> AfterValidator:
    """A check of a whole text against a pattern, which tells what is allowed in words."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"input should be {allowed}")
        return value

    return AfterValidator(check)


Device = Annotated[str, _check(_DEVICE, "auto, cpu, cuda or cuda:N, such as cuda:0"), Field(json_schema_extra={"pattern": _DEVICE})]
RunName = Annotated[
    str,
    _check(_RUN_NAME, "1 to 64 letters, digits, dots, underscores and hyphens, the first a letter or a digit"),
    Field(json_schema_extra={"pattern": _RUN_NAME}),
]


class Run(Section, use_attribute_docstrings=True):
    """One training run: how long, where, and from which random numbers."""

    seed: Count = Field(1, ge=0, lt=2**63)
    """The seed of every random number; the same seed gives the same bits."""
    device: Device = "auto"
    """auto (a GPU where there is one), cpu, cuda or cuda:N."""
    steps: Count = Field(2_000_000, gt=0, lt=2**62)
    """Environment steps of the whole run, over all lanes; rounded up to whole iterations."""
    target: Real | None = None
    """Stop as soon as an evaluation's mean return reaches this; not set: train all steps."""
    record_hz: Real = Field(50.0, ge=0.1, le=1000)
    """The most records a second that reach the metrics file."""
    name: RunName | None = None
    """The id of the run; a suffix is added if the id is taken. Not set: made from environment and algorithm."""
    threads: Count = Field(0, ge=0, le=4096)
    """CPU threads; 0: one for each core."""


class Environment(Section, use_attribute_docstrings=True):
    """Which environment, and how many of it."""

    name: str = Field(recipes.ENVIRONMENT, min_length=1)
    """A shipped environment, its Gymnasium id, or a file of your own: my_env.py."""
    lanes: Annotated[Count, Field(ge=1, le=2**30)] | Literal["auto"] = 1024
    """Copies that run side by side; "auto": as many as fit into memory and are of use, which the run then keeps."""
    pixels: Count | None = Field(None, ge=16, le=128)
    """Learn from pictures of so many pixels a side, in place of what the environment observes; not set: from that."""
    params: dict[str, Any] = Field(default_factory=dict)
    """The environment's own constants, by name (`operant envs` lists them)."""


class Checkpoint(Section, use_attribute_docstrings=True):
    """When to save, and how much to keep."""

    every: Count = Field(200, ge=1, lt=2**31)
    """Iterations from one checkpoint to the next."""
    keep: Count = Field(3, ge=1, lt=2**31)
    """How many of the latest checkpoints stay; the best one always does."""


class Evaluation(Section, use_attribute_docstrings=True):
    """Greedy episodes in a world of their own; they change no trained bit."""

    every: Count = Field(10, ge=0, lt=2**31)
    """Iterations from one evaluation to the next; 0: never."""
    episodes: Count = Field(100, ge=1, le=2**24)
    """Episodes of one evaluation."""


SECTIONS = ("run", "env", "algo", "net", "checkpoint", "eval")
"""The sections of a configuration, in the order of the file."""
MODELS: dict[str, type[Section]] = {"run": Run, "env": Environment, "checkpoint": Checkpoint, "eval": Evaluation}
"""The models of those that stand here."""
