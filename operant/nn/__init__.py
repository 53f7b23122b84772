"""Networks, action distributions, normalizers and the optimizer. Knows no algorithm and no world."""

from operant.nn.distributions import ILLEGAL, Gaussian, masked
from operant.nn.normalization import RunningNormalizer, statistics
from operant.nn.optimizer import Adam
from operant.nn.policy import Actor, Policy
from operant.nn.q_policy import QPolicy, decayed, epsilon_greedy
from operant.nn.work import Work, step_bytes

__all__ = [
    "ILLEGAL",
    "Actor",
    "Adam",
    "Gaussian",
    "Policy",
    "QPolicy",
    "RunningNormalizer",
    "Work",
    "decayed",
    "epsilon_greedy",
    "masked",
    "statistics",
    "step_bytes",
]  # fmt: skip
