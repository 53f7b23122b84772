"""Twin delayed deterministic policy gradient. Exports `ALGO`; knows only where it is."""

from operant.algos.td3.algorithm import TD3

ALGO = TD3

__all__ = ["ALGO", "TD3"]
