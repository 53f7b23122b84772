"""Deep Q-learning (Mnih et al. 2015) from a replay, on N lanes.

Plain DQN by default; keys turn on double Q-learning, a duelling head, n-step returns, a distribution of returns (C51),
prioritised replay, and Polyak targets. Only legal actions count in a maximum, and only they are explored.

One iteration is T ticks, steps of all N lanes (`ReplayAlgorithm` in operant/algos/base.py):

    for t in 0 ... T - 1: `act`, step the world, store N transitions in the replay, then each update that is
                              due, `algo.updates_per_step` of them a tick
    after T ticks: the running mean and variance of the normalizers

Actions are random for the first `algo.learning_starts` steps (`cycle.warming` is 1). Updates change nothing while the
replay holds fewer transitions (`cycle.skip` is 1). Both are decided at the start of an iteration: on a GPU it is one
CUDA graph, which cannot branch.

This file is the specification, in torch and autograd, and reads from top to bottom. Its last part is for the monitor:
thresholds and explanations of the metrics. `cpu.py` replaces the networks' passes by hand-written ones on a CPU, and
`fused/` everything by Triton kernels on a GPU, unless `algo.kernels = "torch"`; both are tested against it.

Shape letters: T ticks, N lanes, B samples of a batch, A actions, K atoms of a distribution, H = A K (or (A + 1) K,
duelling) outputs of the network.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from operant.algos.base import (
    NOT_FINITE,
    REPLAY_FILL,
    UPDATES,
    Estimate,
    ReplayAlgorithm,
    jumps,
    metric,
    metric_specs,
    runs_away,
)
from operant.algos.dqn import cpu, fused
from operant.algos.dqn.config import DQNConfig
from operant.data import Batch
from operant.envs import Env
from operant.nn import (
    SOLO,
    Adam,
    Exchange,
    NetConfig,
    QHead,
    QPolicy,
    clip_gradient,
    decayed,
    epsilon_greedy,
    masked,
    network_flops,
    observation_bytes,
    project_onto_support,
    scalar,
    step_bytes,
)
from operant.worlds import World


class Stats(NamedTuple):
    """Metrics of an iteration. The first four are means over its updates. `DETAILS` has their thresholds and
    explanations.
    """

    q_loss: Tensor = metric("loss/q", "Q loss", order=80)
    td_error: Tensor = metric("td_error", "TD error", figure="TD error", order=50)
    q_mean: Tensor = metric("q_mean", "mean Q value", figure="Q", order=45)
    gradient_norm: Tensor = metric("gradient_norm", "gradient norm", order=110)
    epsilon: Tensor = metric("epsilon", "epsilon", figure="epsilon", order=70)
    replay_fill: Tensor = REPLAY_FILL
    updates: Tensor = UPDATES
    not_finite: Tensor = NOT_FINITE


# TARGET AND LOSS


class QLoss(NamedTuple):
    """Loss of a batch, and priority, Q value and TD error of each of its B samples."""

    loss: Tensor  # (), weighted mean over the samples
    priority: Tensor  # (B), |Q - y|, or the cross-entropy of distributions, for prioritised replay
    q: Tensor  # (B), Q(s, a) of the sampled action
    td_error: Tensor  # (B), |Q - y|; of distributions, of their means


@torch.no_grad()
def q_target(head: QHead, target: Tensor, chooser: Tensor, batch: Batch) -> Tensor:
    """Return the TD target y = R + discount Q'(s', a') of a batch, (B), or with atoms its distribution on the support,
    (K, B).

    `target` (H, B) are the target network's outputs at s'. a' is the best legal action by the outputs `chooser` (H, B):
    the target network's (Mnih et al. 2015), or the online network's (double: van Hasselt, Guez & Silver 2016).
    """
    values = head.values(chooser)  # (A, B)
    best = (values if batch.next_legal is None else masked(values, batch.next_legal)).argmax(dim=0)[None]  # (1, B)
    # `reward` is r_t + gamma r_{t+1} + ... over n steps, `discount` gamma^n, or 0 where the episode terminated.
    if head.atoms == 1:
        return batch.reward + batch.discount * head.values(target).gather(0, best)[0]
    # C51: atom z moves to R + discount z, and its probability is shared by the two nearest atoms.
    probability = action_logits(head, target, best).softmax(dim=0)
    return project_onto_support(probability, batch.reward, batch.discount, head.support[0, :, 0])


def q_loss(head: QHead, outputs: Tensor, batch: Batch, target: Tensor, weight: Tensor | None = None) -> QLoss:
    """Return the mean of w (Q(s, a) - y)^2 / 2, or with atoms of w times the cross-entropy to the target distribution.

    `outputs` (H, B) are the network's at `batch.observation`; `target` is y (B), or (K, B); `weight` w (B) are
    importance-sampling weights, None: 1.
    """
    logits = action_logits(head, outputs, batch.action)  # (K, B)
    if head.atoms == 1:
        q, target_mean = logits[0], target
        losses = 0.5 * (q - target).square()
    else:
        log_prob, support = logits.log_softmax(dim=0), head.support[0]
        losses = -(target * log_prob).sum(dim=0)
        q, target_mean = (log_prob.exp() * support).sum(dim=0), (target * support).sum(dim=0)
    loss = (losses if weight is None else losses * weight).mean()
    td_error = (q - target_mean).detach().abs()
    return QLoss(loss, td_error if head.atoms == 1 else losses.detach(), q.detach(), td_error)


def action_logits(head: QHead, outputs: Tensor, action: Tensor) -> Tensor:
    """Return the outputs (K, B) of the actions `action` (1, B), from the network's outputs (H, B): Q itself (K = 1), or
    logits of its atoms.
    """
    return head.logits(outputs).gather(0, action.long()[:, None].expand(1, head.atoms, -1))[0]


# AN ITERATION


class DQN(ReplayAlgorithm):
    """Deep Q-learning for one choice among n actions (Discrete); `Config` turns on its variants."""

    Config, Stats = DQNConfig, Stats
    TERMS = Stats._fields[: Stats._fields.index("epsilon")]
    parts = ReplayAlgorithm.parts | {
        "outputs": "network",
        "next_outputs": "targets",
        "gradient": "gradient",
        "optimizer.step": "optimiser",
        "engine.act": "acting and gradient",
        "engine.update": "optimiser",
    }

    config: DQNConfig
    actor: QPolicy

    def __init__(
        self,
        world: World,
        config: DQNConfig,
        net: NetConfig,
        *,
        seed: int,
        steps: int,
        eager: bool = False,
        exchange: Exchange = SOLO,
    ) -> None:
        """Create networks, optimizer and the cycle; `eager`: without CUDA graphs. With an exchange of several ranks
        `world` holds this rank's lanes; `steps` is `run.steps`.
        """
        spec, device = world.spec, world.device
        self.policy = self.make_actor(spec, config, net, device, seed=seed)
        super().__init__(
            world, config, self.policy, seed=seed, steps=steps, acting_noise=self.policy.noise_rows, exchange=exchange
        )

        self.metrics = metric_specs(Stats, DETAILS)
        self.normalizer = self.policy.normalizer

        # The target network starts as a copy and shares the observation normalizer.
        self.target = self.make_actor(spec, config, net, device, seed=seed)
        self.target.normalizer = self.policy.normalizer
        flat = self.policy.flat
        self.optimizer = Adam(
            flat.values.data, flat.gradient, scalar(config.learning_rate, device), config.adam_epsilon
        )

        # Probability of a random action, (N): the same in all lanes.
        self.epsilon = torch.ones(world.count, device=device)
        self._epsilon_iterations = max(1.0, (config.epsilon_steps or steps / 10) / self.steps_per_iteration)

        self.engine = fused.build(self) if exchange.ranks == 1 else None
        if self.engine is None:
            cpu.use_manual_backward(self)
        self.capture(eager=eager)

    @classmethod
    def make_actor(
        cls, spec: Env, config: DQNConfig, net: NetConfig, device: torch.device, *, seed: int = 0
    ) -> QPolicy:
        """Create the Q network for the environment `spec` with its greedy policy, without buffers for training."""
        return QPolicy(
            spec,
            net,
            seed=seed,
            device=device,
            normalize=config.normalize_observations,
            precision=config.precision,
            atoms=config.atoms if config.critic == "c51" else 1,
            duelling=config.duelling,
            support=(config.v_min, config.v_max),
        )

    # ACT

    @torch.no_grad()
    def prepare(self) -> None:
        """Set the iteration's epsilon: 1 until `learning_starts` environment steps, then the schedule."""
        config, steps_done = self.config, self.cycle.iteration * self.steps_per_iteration
        progress = self.cycle.iteration[0] / self._epsilon_iterations
        scheduled = decayed(config.epsilon_start, config.epsilon_end, progress)
        self.epsilon.copy_(torch.where(steps_done < config.learning_starts, 1.0, scheduled))
        self.policy.epsilon.copy_(self.exchange.gather(self.epsilon.mean()[None]).mean())

    @torch.no_grad()
    def act(self, t: int) -> None:
        """Write epsilon-greedy actions (1, N) of tick t (step of all lanes) to the rollout. Only legal actions are
        chosen.
        """
        collector = self.cycle.collector
        rollout, legal = collector.rollout, collector.legal(t)
        values = self.policy.distribution.values(self.outputs(rollout.observation[t]))  # (A, N)
        if legal is not None:
            values = masked(values, legal)
        rollout.action[t] = epsilon_greedy(values, collector.noise[t], self.epsilon, legal)

    # LEARN

    @torch.no_grad()
    def update(self, ticks: int, number: int) -> None:
        """Learn from one batch, update `number` of the iteration after `ticks` stored ticks: step the network and, if
        it is due, move the target network.
        """
        config, cycle, skip = self.config, self.cycle, self.cycle.skip
        # B transitions: observation (O, B), action (1, B), n-step reward (B), discount (B), next_observation (O, B).
        # `weight` (B): importance-sampling weights of prioritised replay; None: all are 1. Of the iteration's ticks the
        # first `ticks` are stored. The newest n (`n_step`) stored ticks are not sampled; each shard of lanes has
        # equally many samples.
        batch, weight = cycle.sampler.sample(ticks, number)

        # One step of Adam down the gradient of E[w (Q(s, a) - y)^2] / 2, clipped to a norm; see `q_target`, `q_loss`.
        target = q_target(self.policy.distribution, *self.next_outputs(batch), batch)
        result = self.gradient(batch, target, weight)
        cycle.sampler.set_priorities(result.priority, skip)  # |Q - y|; with C51 the cross-entropy
        # The gradient is averaged over the ranks first, then clipped.
        gradient_norm = clip_gradient(self.policy.flat.gradient, config.max_gradient_norm, self.exchange)
        self.optimizer.step(skip)

        # theta' <- (1 - tau) theta' + tau theta in every `target_every`-th update.
        tau = config.tau * (1.0 - skip)
        if config.target_every > 1:
            tau = tau * ((cycle.replay.ring.updates[0] + (number + 1)) % config.target_every == 0)
        self.target.flat.values.data.lerp_(self.policy.flat.values.data, tau)

        self.record(
            q_loss=result.loss.detach(),
            td_error=result.td_error.mean(),
            q_mean=result.q.mean(),
            gradient_norm=gradient_norm,
        )

    # The three passes that `cpu.py` replaces.

    def outputs(self, observation: Tensor) -> Tensor:
        """Return the network's outputs (H, N) for observations (O, N); the next call may overwrite them."""
        return self.policy.parameters(observation)

    @torch.no_grad()
    def next_outputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the outputs (H, B) of two networks at the next observations s': of the target network, and of the
        network that chooses a', the online one with `double`.
        """
        target = self.target.parameters(batch.next_observation)
        return target, self.policy.parameters(batch.next_observation) if self.config.double else target

    def gradient(self, batch: Batch, target: Tensor, weight: Tensor | None) -> QLoss:
        """Write the gradient of the loss to the flat gradient vector; return the loss. `target` is y (B), or its
        distribution (K, B); `weight` (B) are importance-sampling weights, None: 1.
        """
        with torch.enable_grad():
            result = self.loss(self.policy.parameters(batch.observation), batch, target, weight)
            self.policy.flat.backward(result.loss)
        return result

    def loss(self, outputs: Tensor, batch: Batch, target: Tensor, weight: Tensor | None) -> QLoss:
        """Return the loss for the network's outputs (H, B) at `batch.observation`; arguments as for `q_loss`."""
        return q_loss(self.policy.distribution, outputs, batch, target, weight)

    # STATE, COST

    def iteration_stats(self) -> tuple[Tensor, ...]:
        """Return epsilon, the probability of a random action, (1)."""
        return (self.policy.epsilon.reshape(1),)

    def parameters(self) -> tuple[Tensor, ...]:
        """Return the parameter vector of the network."""
        return (self.policy.flat.values.data,)

    def tensors(self) -> dict[str, Tensor]:
        """Return optimizer state and target network by their names in a checkpoint."""
        adam = {f"adam/{name}": tensor for name, tensor in self.optimizer.tensors().items()}
        return adam | {"algo/target": self.target.flat.values.data}

    @classmethod
    def estimate(cls, spec: Env, config: DQNConfig, net: NetConfig, lanes: int) -> Estimate:
        """Estimate environment steps, FLOPs and bytes of an iteration of `lanes` lanes: acting, and the updates'
        forward and backward passes.
        """
        steps, samples = config.horizon * lanes, config.updates * config.batch_size
        forward, backward = network_flops(cls.make_actor(spec, config, net, torch.device("cpu")))
        flops = float(steps * forward + samples * ((2 + config.double) * forward + backward))
        row = observation_bytes(spec) + spec.mask_size + 4 + 4 + 1 + 1
        moved = float(steps * (step_bytes(spec) + 2 * row) + samples * 2 * (2 * row + observation_bytes(spec)))
        return Estimate(steps, flops, moved, config.trial())


# THE METRICS IN A MONITOR

_NOT_FINITE: Final = "lower algo.learning_rate or algo.max_gradient_norm"
_DIVERGES: Final = (
    "Q values run away: lower algo.learning_rate, raise algo.target_every (or lower algo.tau), or set algo.double=true"
)

DETAILS: Final[dict[str, dict[str, Any]]] = {
    "q_loss": {"advice": _NOT_FINITE},
    "td_error": {
        "advice": _NOT_FINITE,
        "thresholds": jumps(f"ten times the last minute's: if it stays, {_DIVERGES}"),
        "explanation": "The mean distance of Q values from their targets, in units of return. It should stay a small "
        "share of the Q values.",
    },
    "q_mean": {
        "advice": _NOT_FINITE,
        "thresholds": runs_away(_DIVERGES),
        "explanation": "The mean Q value of the sampled actions: the discounted return to come. A value that grows "
        "without bound while the return does not is the usual way in which Q-learning fails.",
    },
    "gradient_norm": {
        "advice": _NOT_FINITE,
        "explanation": "The norm of the loss's gradient before it is clipped to algo.max_gradient_norm. Its size "
        "depends on the task; a jump is what matters.",
    },
    "epsilon": {
        "explanation": "The probability of a random action; 1 until algo.learning_starts environment steps are taken.",
    },
}
