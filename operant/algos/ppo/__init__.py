"""Proximal policy optimisation. Exports `ALGO`; knows only where it is."""

from operant.algos.ppo.algorithm import PPO, PPOConfig

ALGO = PPO

__all__ = ["ALGO", "PPO", "PPOConfig"]
