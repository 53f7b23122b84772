"""Operant's environments for Gymnasium and Stable-Baselines3: the public names of `operant.worlds.gym`. Knows nothing else."""

from operant.worlds.gym import OperantVectorEnv, SB3VecEnv, make_vec

__all__ = ["OperantVectorEnv", "SB3VecEnv", "make_vec"]
