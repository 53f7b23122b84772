"""Soft actor-critic: read `sac.py`."""

from operant.algos.sac.sac import SAC

ALGO = SAC

__all__ = ["ALGO", "SAC"]
