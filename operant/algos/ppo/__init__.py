"""Proximal policy optimisation. Exports `ALGO`; knows only where it is."""

from operant.algos.ppo.algorithm import PPO
from operant.algos.ppo.config import PPOConfig

ALGO = PPO

__all__ = ["ALGO", "PPO", "PPOConfig"]
