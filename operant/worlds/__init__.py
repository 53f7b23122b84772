"""Worlds: many lanes of one environment, wherever they run. Knows no policy and no algorithm.

The adapters outwards, `gym` and `sb3`, are not imported here: they need packages that are optional.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from operant.envs import Env
from operant.envs.outside import HostEnv
from operant.worlds.base import EPISODES, LENGTH, RETURN, TALLIES, Slot, World
from operant.worlds.bridge import BridgedWorld
from operant.worlds.buffered import BufferedWorld
from operant.worlds.device_world import DeviceWorld, Lanes
from operant.worlds.lane import reset_body, shards_body, step_body
from operant.worlds.noise import Clock, seed_words
from operant.worlds.painter import Painter
from operant.worlds.pixels import Scene, colour_function

if TYPE_CHECKING:
    from operant.worlds.host_world import HostPainter, HostWorld


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
    """A world of an environment, wherever its lanes run. With `draws` there are pictures of it, too; `changing` as
    `DeviceWorld` has it.
    """
    if isinstance(env, HostEnv):
        from operant.worlds.host_world import HostWorld

        return HostWorld(env, lanes, seed=seed, device=device, lane0=lane0, stream=stream, draws=draws)
    return DeviceWorld(
        env, lanes, seed=seed, device=device, params=params, lane0=lane0, stream=stream, changing=changing
    )


def painter(world: DeviceWorld | HostWorld) -> Painter | HostPainter:
    """What draws the lanes of a world that was made with `draws`."""
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
