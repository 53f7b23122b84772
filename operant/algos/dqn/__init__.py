"""Deep Q-learning: read `dqn.py`."""

from operant.algos.dqn.dqn import DQN

ALGO = DQN

__all__ = ["ALGO", "DQN"]
