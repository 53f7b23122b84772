"""Worlds: N lanes of one environment, on a GPU or on the host.

Names are imported on first use: `operant.worlds.lane` and `pixels` need no torch. The outward adapters `gym` and `sb3`
are not among them, as they need optional packages; `host_world` is imported only for an outside environment.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

    from operant.envs import Env
    from operant.worlds.base import EPISODES, LENGTH, RETURN, TALLIES, Slot, World
    from operant.worlds.bridge import BridgedWorld
    from operant.worlds.buffered import BufferedWorld
    from operant.worlds.device_world import DeviceWorld, Lanes
    from operant.worlds.host_world import HostPainter, HostWorld
    from operant.worlds.lane import reset_body, shards_body, step_body
    from operant.worlds.noise import Clock, seed_words
    from operant.worlds.painting import Painter
    from operant.worlds.pixels import Scene, colour_function

_MODULES: Final = {
    "base": ("EPISODES", "LENGTH", "RETURN", "TALLIES", "Slot", "World"),
    "bridge": ("BridgedWorld",),
    "buffered": ("BufferedWorld",),
    "device_world": ("DeviceWorld", "Lanes"),
    "lane": ("reset_body", "shards_body", "step_body"),
    "noise": ("Clock", "seed_words"),
    "painting": ("Painter",),
    "pixels": ("Scene", "colour_function"),
}
"""Names of this package by the module that defines them."""


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module 'operant.worlds' has no attribute {name!r}")


def make(
    env: Env,
    lanes: int,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    params: Any = None,
    stream: int = 0,
    lane0: int = 0,
    draws: bool = False,
    changing: Sequence[str] = (),
) -> DeviceWorld | HostWorld:
    """Make the world (N lanes stepped together) of an environment: kernels on a device, or host processes for an
    outside one. `seed` and `stream` key its random numbers, `changing` names scheduled parameters. `draws` makes the
    lanes of an outside environment drawable by `painter`.

    `params`, `stream`, `lane0` and `changing`: see `DeviceWorld`.
    """
    from operant.envs.outside import HostEnv

    if isinstance(env, HostEnv):
        from operant.worlds.host_world import HostWorld

        return HostWorld(env, lanes, seed=seed, device=device, lane0=lane0, stream=stream, draws=draws)
    from operant.worlds.device_world import DeviceWorld

    return DeviceWorld(
        env, lanes, seed=seed, device=device, params=params, lane0=lane0, stream=stream, changing=changing
    )


def painter(world: DeviceWorld | HostWorld) -> Painter | HostPainter:
    """Make the painter, which draws the lanes of a world. A world of an outside environment must have been made with
    `draws`.
    """
    from operant.worlds.device_world import DeviceWorld
    from operant.worlds.painting import Painter

    if isinstance(world, DeviceWorld):
        return Painter(world)
    from operant.worlds.host_world import HostPainter

    return HostPainter(world)


__all__ = [
    "EPISODES",
    "LENGTH",
    "RETURN",
    "TALLIES",
    "BridgedWorld",
    "BufferedWorld",
    "Clock",
    "DeviceWorld",
    "Lanes",
    "Painter",
    "Scene",
    "Slot",
    "World",
    "colour_function",
    "make",
    "painter",
    "reset_body",
    "seed_words",
    "shards_body",
    "step_body",
]
