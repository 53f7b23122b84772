"""Parallelised Q-learning. Exports `ALGO`; knows only where it is."""

from operant.algos.pqn.algorithm import PQN
from operant.algos.pqn.config import PQNConfig

ALGO = PQN

__all__ = ["ALGO", "PQN", "PQNConfig"]
