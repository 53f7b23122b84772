"""Quick checks of an environment, run by `operant check` and before training with a user's file. Needs no GPU and few
steps.

An author's mistake is reported as a sentence that names the line, never as a traceback or a crash.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from operant.compute.numba_errors import summary
from operant.compute.runtime import device_error
from operant.envs import Env
from operant.envs.declaration import declaration_problems
from operant.envs.language import language_problems, prints
from operant.errors import ConfigError
from operant.worlds import DeviceWorld
from operant.worlds.bounds import STEPS, BoundsChecked, index_error, rollout_actions, shade_index_error

LANES, LONG_STEPS = 64, 1000
"""Lanes of a check, and its steps if no time limit ends an episode."""


class Finding(NamedTuple):
    """Result of one check of an environment: its name, whether it passed, and a detail to print. A `warning` has passed
    but deserves attention; a `note` has passed only because this machine cannot make the check and does not need it.
    """

    name: str
    passed: bool
    detail: str
    warning: bool = False
    note: bool = False

    @property
    def word(self) -> str:
        """Outcome in one word: problem, warning, note or ok."""
        return "problem" if not self.passed else "warning" if self.warning else "note" if self.note else "ok"


def require_sound(env: Env, file: Path, params: Any, device: torch.device) -> list[str]:
    """Run the quick checks on a user's environment file and return their warnings. Raises ConfigError with every
    problem found.
    """
    findings = list(quick_check(env, params, device))
    if problems := [finding.detail for finding in findings if not finding.passed]:
        raise ConfigError(file.name, problems, advice=f"for the full check: operant check {file}")
    return [f"{file.name}: {finding.detail}" for finding in findings if finding.warning]


def quick_check(env: Env, params: Any, device: torch.device) -> Iterator[Finding]:
    """Run the quick checks of an environment and yield each result, ending at the first failure. Code compiled by an
    earlier process is loaded from the cache.
    """
    env = env.ready(params)
    yield (finding := check_declaration(env))
    if not finding.passed:
        return
    checked = BoundsChecked(env, LANES, params, cached=True)
    yield (finding := check_compilation(checked))
    if not finding.passed:
        return
    yield from check_prints(env)
    steps = LONG_STEPS if env.time_limit is None else STEPS
    yield (finding := check_indices(checked, steps))
    if not finding.passed:
        return
    if not checked.episodes:
        yield from check_episodes_end(env, steps, LANES)
    if env.pixel_shader is not None:
        yield _check_shader(checked)
    yield _check_device(env, params, device)


def check_declaration(env: Env) -> Finding:
    """Check that an environment's declaration is consistent: its spaces, functions and parameters."""
    problems = declaration_problems(env)
    return Finding(
        "declaration", not problems, "; ".join(problems) or f"{env.fields} fields, {env.observation.size} observed"
    )


def check_compilation(checked: BoundsChecked) -> Finding:
    """Check that the environment's functions use only what a kernel supports, and compile."""
    name = "compiles for the CPU"
    if problems := language_problems(checked.env):
        return Finding(name, False, "; ".join(problems))
    try:
        checked.compile()
    except Exception as error:
        return Finding(name, False, summary(error))
    return Finding(name, True, ", ".join(checked.calls))


def _check_device(env: Env, params: Any, device: torch.device) -> Finding:
    """Check that a world of the environment compiles and steps on `device`. Later worlds in this process reuse the
    kernels. Raises errors of the device itself.
    """
    name, world = f"compiles for {device.type}", DeviceWorld(env, 1, seed=1, device=device, params=params)
    slot = world.bind(world.slot())
    try:
        with muted():
            world.reset(slot)
            world.step(slot)
    except Exception as error:
        if device_error(error) is not None:
            raise
        return Finding(name, False, summary(error))
    return Finding(name, True, "reset and step")


def _check_shader(checked: BoundsChecked) -> Finding:
    """Check that every index of the pixel shader is in range. Training would run the shader only once a monitor shows
    the agent.
    """
    try:
        with muted():
            checked.draw()
    except IndexError:
        return Finding("picture", False, shade_index_error(checked))
    return Finding("picture", True, "every index checked")


def check_prints(env: Env) -> Iterator[Finding]:
    """Yield a warning if a function of the environment prints."""
    if lines := prints(env):
        yield Finding("prints", True, f"it prints, once for every lane and step: {'; '.join(lines)}", warning=True)


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Context that discards output to stdout."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def check_episodes_end(env: Env, steps: int, lanes: int) -> Iterator[Finding]:
    """Yield a warning if an environment has no time limit. The caller has seen no episode end within `steps` steps of
    `lanes` lanes.
    """
    if env.time_limit is None:
        sentence = "returns are those of ended episodes: set time_limit, or let `step` return True as `terminated`"
        yield Finding(
            "episodes end",
            True,
            f"none ended in {steps:,} steps of {lanes:,} lanes, and there is no time limit; {sentence}",
            warning=True,
        )


def check_indices(checked: BoundsChecked, steps: int) -> Finding:
    """Check that an environment's functions index only within their buffers, in `steps` steps with random and extreme
    actions.
    """
    name, generator = "keeps to its columns", np.random.default_rng(1)
    try:
        with muted():
            checked.run("reset")
            for t in range(steps):
                checked.slot.action.copy_(rollout_actions(checked.env, generator, t, checked.count, checked.slot.legal))
                checked.run("step")
    except IndexError:
        return Finding(
            name,
            False,
            index_error(checked.env, checked.params)
            or "an index is outside s, int_state, workspace, obs, mask, action or tally",
        )
    except Exception as error:
        return Finding(name, False, f"{type(error).__name__}: {summary(error)}")
    if buffer := checked.overwritten_buffer():
        return Finding(
            name,
            False,
            f"a value was written next to {buffer}, outside this lane's column: check the indices in the helpers",
        )
    return Finding(name, True, f"{steps} steps with every index checked")
