"""Soft actor-critic. Exports `ALGO`; knows only where it is."""

from operant.algos.sac.algorithm import SAC

ALGO = SAC

__all__ = ["ALGO", "SAC"]
