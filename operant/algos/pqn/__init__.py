"""Parallelised Q-learning. Exports `ALGO`; knows only where it is."""

from operant.algos.pqn.algorithm import PQN

ALGO = PQN

__all__ = ["ALGO", "PQN"]
