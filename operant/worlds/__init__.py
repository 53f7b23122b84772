"""Worlds: many lanes of one environment, wherever they run. Knows no policy and no algorithm.

The adapters outwards, `gym` and `sb3`, are not imported here: they need packages that are optional.
"""

from operant.worlds.base import EPISODES, LENGTH, RETURN, TALLIES, Slot, World
from operant.worlds.device_world import DeviceWorld, Lanes
from operant.worlds.lane import reset_body, shards_body, step_body
from operant.worlds.noise import Clock, seed_words
from operant.worlds.painter import Painter
from operant.worlds.pixels import Scene, colour_function

__all__ = [
    "EPISODES",
    "LENGTH",
    "RETURN",
    "TALLIES",
    "Clock",
    "DeviceWorld",
    "Lanes",
    "Painter",
    "Scene",
    "Slot",
    "World",
    "colour_function",
    "reset_body",
    "seed_words",
    "shards_body",
    "step_body",
]  # fmt: skip
