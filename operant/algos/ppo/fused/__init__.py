"""Fused Triton kernels of PPO: acting and learning in a few launches, by `operant.kernels.dense`.

`kernels.py` has PPO's own Triton functions, `work.py` launches them. Both are imported only where they are used, so
that a run without Triton does not wait for its import. Tested against `ppo.TorchBackend`: the same buffers, noise and
order of minibatches, and sums of floats in a fixed order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from operant.algos.ppo.config import PPOConfig
from operant.algos.ppo.ppo import PPO, TorchBackend
from operant.data import Collector, Experience
from operant.data.on_policy import Buffers
from operant.kernels import dense
from operant.nn import Policy

if TYPE_CHECKING:
    from operant.kernels.dense import Learner

WRITTEN = ("raw", "samples", "final_value", "iteration", "skip", "learning_rate", "stats")
"""Fields of `operant.data.on_policy.Buffers` that the kernels write."""


class FusedBackend(TorchBackend):
    """Backend of fused Triton kernels over the buffers of PPO."""

    name = "fused"
    normalizes_advantages = True

    def __init__(self, ppo: PPO, learner: Learner[Buffers, PPOConfig]) -> None:
        super().__init__(ppo)
        self.learner, self.chosen, self.bits_by_ranks = learner, {"kernel_config": dense.config_text(learner)}, None
        self.acts_on_slices = learner.acts_on_slices

    def with_rollout(self, policy: Policy, collector: Collector, experience: Experience) -> FusedBackend:
        """Return a copy of this backend for another policy, rollout and experience, in the same tile config."""
        other = super().with_rollout(policy, collector, experience)
        other.learner = type(self.learner)(self.learner.spec, task(other), self.learner.config)
        return other

    def prepare(self) -> None:
        """Load the observation normalizer into the kernels' buffer."""
        self.learner.prepare()

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Write actions, log-probabilities and values of step t, for all lanes or a slice of `lanes`."""
        self.learner.act(t, lanes)

    def bootstrap(self) -> None:
        """Write V of the observation after the last step, and V of the true final observation of every truncated
        episode.
        """
        self.learner.bootstrap(self.collector.world.can_truncate)

    def update(self) -> None:
        """Take one optimizer step per minibatch of every epoch over the rollout, and write `stats`."""
        self.learner.update(self.config.updates)


def build(ppo: PPO) -> FusedBackend | None:
    """Return the fused backend of a run, or None if torch does the work. Raises ConfigError if `algo.kernels` is
    "fused" and it is not supported.

    Of several ranks the first chooses the tile config for all, since sums depend on it.
    """
    described, config, exchange = task(TorchBackend(ppo)), ppo.config, ppo.exchange

    def built(kernel_config: str) -> Learner[Buffers, PPOConfig] | None:
        return dense.build(described, kernels=config.kernels, precision=config.precision, config=kernel_config)

    learner = built(config.kernel_config) if exchange.rank == 0 else None
    if exchange.ranks > 1:
        agreed = exchange.agree("" if learner is None else dense.config_text(learner))
        if exchange.rank > 0 and agreed:
            learner = built(agreed)
    if learner is None:
        return None
    learner.connect()
    return FusedBackend(ppo, learner)


def task(backend: TorchBackend) -> dense.Task[Buffers, PPOConfig]:
    """Describe a backend's policy and buffers for the kernels of `operant.kernels.dense`."""
    cycle, chunks, exchange = backend.cycle, backend.config.chunks, backend.exchange

    def work(learner: Learner[Buffers, PPOConfig]) -> dense.Work:
        from operant.algos.ppo.fused.work import PPOWork

        return PPOWork(learner, cycle.anneal_iterations)

    return dense.Task(
        "ppo",
        backend.policy,
        backend.optimizer,
        backend.buffers(),
        backend.config,
        cycle.minibatches.layout,
        work,
        WRITTEN,
        chunks and chunks // exchange.ranks,
        exchange,
    )
