"""Proximal policy optimisation: read `ppo.py`. Here the fastest supported backend is chosen."""

from __future__ import annotations

from typing import Any

from operant.algos.ppo import cpu, fused, memory, ppo
from operant.algos.ppo.config import PPOConfig
from operant.algos.ppo.overlap import Overlapped
from operant.nn import manual
from operant.worlds import World

__all__ = ["ALGO", "PPO", "PPOConfig"]


class PPO(ppo.PPO):
    """PPO with the fastest backend that network, machine and `algo.kernels` allow; with `algo.overlap` an instance is
    an `OverlappedPPO`.
    """

    def __new__(cls, world: World, config: PPOConfig, *_: Any, **__: Any) -> PPO:
        """Return an instance of `PPO`, or with `algo.overlap` of `OverlappedPPO`."""
        return super().__new__(OverlappedPPO if cls is PPO and config.overlap else cls)

    def choose_backend(self) -> ppo.TorchBackend:
        """Return the first supported backend of: fused kernels, torch over sequences (recurrent policies), manual
        backward pass (CPU), torch. Raises ConfigError if `algo.kernels` = "fused" is not supported.
        """
        if self.policy.recurrent:
            return memory.choose(self)
        backend = fused.build(self)
        if backend is not None:
            return backend
        return cpu.ManualBackend(self) if manual.applies(self.policy, self.config.kernels) else ppo.TorchBackend(self)


class OverlappedPPO(Overlapped, PPO):
    """PPO that collects the next rollout while it learns from the last one."""


ALGO = PPO
