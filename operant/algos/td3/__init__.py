"""Twin delayed deterministic policy gradient: read `td3.py`."""

from operant.algos.td3.td3 import TD3

ALGO = TD3

__all__ = ["ALGO", "TD3"]
