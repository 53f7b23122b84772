"""Deep Q-learning from a replay. Exports `ALGO`; knows only where it is."""

from operant.algos.dqn.algorithm import DQN

ALGO = DQN

__all__ = ["ALGO", "DQN"]
