"""Fused Triton kernels of PQN. An iteration is these launches, in this order:

| launch, a step t of T | grid                 | computes                                            |
|-----------------------|----------------------|-----------------------------------------------------|
| `act`                 | (lanes / BLOCK_M, 1) | Q(s, .), epsilon-greedy actions (1, N), max_a Q (N) |
| the world's step      |                      | rewards, ends of episodes, next observations        |

| launch, after the T steps | grid                     | computes                                                    |
|---------------------------|--------------------------|-------------------------------------------------------------|
| `bootstrap_values`        | (lanes / BLOCK_M, T + 1) | max_a Q of the last observation and of truncated lanes      |
| reward scaling            |                          | torch, in `estimate_advantages`; inherited                  |
| `advantage_body`          |                          | Q(lambda) returns (T, N); `operant.data.returns`            |
| `order_body`              |                          | orders of the blocks; `operant.data.minibatches`; inherited |
| `part_moments`, `begin`   | (parts, shards), (1,)    | explained variance, learning rate                           |
| per minibatch `backward`  | (chunks, 1)              | forward, loss, backward pass: partial sums (chunks, P + 32) |
| ... `reduce_partials`     | ((P + 32) / 32,)         | gradient (P), its squares; `record`: the loss terms         |
| ... `adam_step`           | (P / 256,)               | clipped step of the parameters (P)                          |
| `finish`                  | (1,)                     | statistics of the iteration                                 |
| `update_normalizers`      |                          | torch: running mean and variance; inherited                 |

`FusedBackend` overrides `act`, `bootstrap` and `update`. The rest is inherited from `TorchBackend`: `learn` with
`estimate_advantages`, the order of the blocks and `update_normalizers`.

`operant.kernels.dense.learner` launches them, as for PPO (`operant.algos.ppo.fused`); `kernels.py` has PQN's own part.
Networks with a convolution have kernels in place of `act` ... `reduce_partials` (`operant.kernels.convolution`). Triton
is imported only where it is used, so that a run without it does not wait for the import. Tested against
`pqn.TorchBackend`: the same buffers, noise and order of minibatches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from operant.algos.pqn.config import PQNConfig
from operant.algos.pqn.pqn import PQN, TorchBackend
from operant.data.on_policy import Buffers
from operant.kernels import dense

if TYPE_CHECKING:
    from operant.kernels.dense import Learner

WRITTEN = ("samples", "final_value", "iteration", "skip", "learning_rate", "stats")
"""Fields of `operant.data.on_policy.Buffers` that the kernels write."""


class FusedBackend(TorchBackend):
    """Backend of fused Triton kernels over the buffers of PQN."""

    name = "fused"

    def __init__(self, pqn: PQN, learner: Learner[Buffers, PQNConfig]) -> None:
        super().__init__(pqn)
        self.learner = learner
        self.chosen = {"kernel_config": line} if (line := str(learner.config)) else {}
        self.acts_on_slices = learner.acts_on_slices

    def prepare(self) -> None:
        """Load the observation normalizer into the kernels' buffer."""
        self.learner.prepare()

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Write epsilon-greedy actions of step t and max_a Q of its observations, for all lanes or a slice of
        `lanes`.
        """
        self.learner.act(t, lanes)

    def bootstrap(self) -> None:
        """Write max_a Q of the observation after the last step, and of the true final observation of every truncated
        episode.
        """
        self.learner.bootstrap(self.collector.world.can_truncate)

    def update(self) -> None:
        """Take one optimizer step per minibatch of every epoch over the rollout, and write `stats`."""
        self.learner.update(self.config.epochs * self.config.minibatches)


def build(pqn: PQN) -> FusedBackend | None:
    """Return the fused backend of a run, or None if torch does the work. Raises ConfigError if `algo.kernels` is
    "fused" and it is not supported.
    """
    config = pqn.config
    learner = dense.build(
        task(TorchBackend(pqn)), kernels=config.kernels, precision=config.precision, config=config.kernel_config
    )
    return None if learner is None else FusedBackend(pqn, learner)


def task(backend: TorchBackend) -> dense.Task[Buffers, PQNConfig]:
    """Describe a backend's policy and buffers for the kernels of `operant.kernels.dense`."""
    cycle = backend.cycle

    def hooks(learner: Learner[Buffers, PQNConfig]) -> dense.Hooks:
        from operant.algos.pqn.fused.kernels import PQNHooks

        return PQNHooks(learner, cycle.anneal_iterations)

    return dense.Task(
        name="pqn",
        policy=backend.policy,
        optimizer=backend.optimizer,
        buffers=backend.buffers(),
        coefficients=backend.config,
        layout=cycle.minibatches.layout,
        hooks=hooks,
        written=WRITTEN,
        boards=True,
    )
