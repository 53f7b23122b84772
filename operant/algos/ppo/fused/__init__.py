"""Fused Triton kernels of PPO. An iteration is these launches, in this order:

| launch, a step t of T | grid                      | computes                                                     |
|-----------------------|---------------------------|--------------------------------------------------------------|
| `act`                 | (lanes / BLOCK_M, towers) | policy and value: actions (A, N), log p (N), V (N) of step t |
| the world's step      |                           | rewards, ends of episodes, next observations; not Triton     |

| launch, after the T steps | grid                     | computes                                                    |
|---------------------------|--------------------------|-------------------------------------------------------------|
| `bootstrap_values`        | (lanes / BLOCK_M, T + 1) | V of the last observation, and of truncated lanes           |
| reward scaling            |                          | torch, in `estimate_advantages`; inherited                  |
| `advantage_body`          |                          | GAE: advantages, returns (T, N); `operant.data.returns`     |
| `order_body`              |                          | orders of the blocks; `operant.data.minibatches`; inherited |
| `part_moments`            | (parts, shards)          | moments of advantages and returns, in parts                 |
| `begin`                   | (1,)                     | mean, std of advantages; explained variance; learning rate  |
| per minibatch `backward`  | (chunks, towers)         | forward, loss, backward pass: partial sums (chunks, P + 32) |
| ... `reduce_partials`     | ((P + 32) / 32,)         | gradient (P), its squares; `record`: the loss terms         |
| ... `adam_step`           | (P / 256,)               | clipped step of the parameters (P)                          |
| `finish`                  | (1,)                     | statistics of the iteration                                 |
| `update_normalizers`      |                          | torch: running mean and variance; inherited                 |

`FusedBackend` overrides `act`, `bootstrap` and `update`. The rest is inherited from `TorchBackend`: `learn` with
`estimate_advantages`, the order of the blocks and `update_normalizers`. Advantages are normalized where they are read.

T steps, N lanes, A rows of an action, P parameters. The actor and the critic are a *tower* each, unless they share a
trunk. A *chunk* is the part of a minibatch whose samples one program adds up; the world's lanes fall into *shards*,
aligned ranges of which every minibatch takes equally much.

Reading order: this table; `kernels.py`, PPO's own part (loss, `begin`, `record`); `operant.kernels.dense.learner`,
which launches (`Learner.update`); then the kernels `operant.kernels.backward` with `operant.kernels.network`,
`operant.kernels.ops.reduce` and `operant.kernels.ops.adam`. Networks that one program cannot hold
(`operant.kernels.tile_config.suits_resident`; all with a layer of more than 128 units, at most 512) have other kernels
in place of `act`, `bootstrap_values` and `backward` (`operant.kernels.dense.per_layer`). From 65 units on either may be
chosen, in tf32 and bf16.

Triton is imported only where it is used, so that a run without it does not wait for the import. Tested against
`ppo.TorchBackend`: the same buffers, noise and order of minibatches, and sums of floats in a fixed order.
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

    def hooks(learner: Learner[Buffers, PPOConfig]) -> dense.Hooks:
        from operant.algos.ppo.fused.kernels import PPOHooks

        return PPOHooks(learner, cycle.anneal_iterations)

    return dense.Task(
        name="ppo",
        policy=backend.policy,
        optimizer=backend.optimizer,
        buffers=backend.buffers(),
        coefficients=backend.config,
        layout=cycle.minibatches.layout,
        hooks=hooks,
        written=WRITTEN,
        chunks=chunks and chunks // exchange.ranks,
        exchange=exchange,
    )
