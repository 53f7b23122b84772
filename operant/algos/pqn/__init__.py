"""Parallelised Q-learning: read `pqn.py`. Here the fastest supported backend is chosen."""

from __future__ import annotations

from operant.algos.pqn import cpu, fused, pqn
from operant.algos.pqn.config import PQNConfig
from operant.nn import manual

__all__ = ["ALGO", "PQN", "PQNConfig"]


class PQN(pqn.PQN):
    """PQN with the fastest backend that network, machine and `algo.kernels` allow."""

    def choose_backend(self) -> pqn.TorchBackend:
        """Return the first supported backend of: fused kernels, manual backward pass (CPU), torch. Raises ConfigError
        if `algo.kernels` = "fused" is not supported.
        """
        backend = fused.build(self)
        if backend is not None:
            return backend
        return cpu.ManualBackend(self) if manual.applies(self.policy, self.config.kernels) else pqn.TorchBackend(self)


ALGO = PQN
