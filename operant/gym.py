"""Operant's environments for Gymnasium and Stable-Baselines3: the public names of `operant.worlds.gym` and `sb3`."""

from operant.worlds.gym import OperantVectorEnv, make_vec
from operant.worlds.sb3 import SB3VecEnv

__all__ = ["OperantVectorEnv", "SB3VecEnv", "make_vec"]
