"""`dmc_env`: declaration of a task on one of dm_control's models, and device functions that tasks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy import float32

from operant.compute.device import device
from operant.envs.base import Box
from operant.envs.physics import MJCF, PhysicsEnv, View, physics_env
from operant.envs.tolerance import tolerance

__all__ = ["View", "controls", "dmc_env", "dmc_model"]


def dmc_model(domain: str, label: str = "", edit: Callable[[Any], None] | None = None) -> MJCF:
    """Location of the model of one of dm_control's domains, such as walker."""
    return MJCF("dm_control", f"suite/{domain}.xml", f"dmc_{label or domain}", edit)


def dmc_env(Params: type, domain: str | MJCF, *, observation: int, action: int, **rules: Any) -> PhysicsEnv:
    """Declare a task by the number of its observations and controls; `rules` are arguments of `physics_env`."""
    return physics_env(
        Params,
        domain if isinstance(domain, MJCF) else dmc_model(domain),
        observation=Box(observation),
        action=Box(action, low=-1.0, high=1.0),
        time_limit=1000,
        fresh=True,
        ranges={"frame_skip": (1, 1000)},
        **rules,
    )


_small = tolerance(margin=1.0, value_at_margin=0.0, sigmoid="quadratic")


@device
def controls(action):
    """Mean over the controls of 1 - u^2."""
    total = float32(0.0)
    for k in range(len(action)):
        total += _small(action[k])
    return total / float32(len(action))
