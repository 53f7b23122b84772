"""PPO for recurrent policies: every lane has a state, and a minibatch is whole segments, through which gradients flow
back in time.

A lane's state is reset to the initial one after the end of an episode, in acting as in learning. The state before each
segment is stored while collecting. V of a truncated episode's true final observation is computed from the state before
it.

By torch, with the gradients of `operant.nn.cells`, on every device; or by fused kernels on a GPU.

Shape letters: T steps, N lanes, L steps of a segment, K = T / L segments of a lane, S segments of a minibatch, R rows
of a lane's state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from operant.algos.ppo import fused
from operant.algos.ppo.ppo import PPO, Batch, TorchBackend, loss_of_outputs
from operant.compute import threads
from operant.data import OnPolicyBackend
from operant.errors import ConfigError
from operant.kernels import recurrent

log = logging.getLogger("operant.ppo")


def choose(ppo: PPO) -> SequenceBackend:
    """Return the backend of a recurrent policy: fused kernels if they are supported and `algo.kernels` allows, else
    torch. Raises ConfigError if `algo.kernels` is "fused" and they are not supported.
    """
    # Only the policy tells whether a user's network is recurrent: the configuration was checked without.
    problems = ppo.config.problems(ppo.world.count * ppo.exchange.ranks, memory=True)
    if problems:
        raise ConfigError("the trainer", [f"algo.{key}: {message}" for key, message in problems])
    backend = FusedSequences(ppo)
    if backend.learner is not None:
        return backend
    log.info("kernels: torch's, over sequences: the policy has a memory")
    if ppo.config.kernels != "torch":
        recurrent.use_lstm_kernels(ppo.policy.net, ppo.policy.device)
    return SequenceBackend(ppo)


class Segments(NamedTuple):
    """Segments (L steps of a lane each) of a minibatch, and the recurrent states before them."""

    steps: Batch  # with fields (..., L, S)
    state: tuple[Tensor, ...]  # before the first steps, (R, S) each
    reset: Tensor  # (L, S) uint8, 1 where an episode begins

    @property
    def size(self) -> int:
        """Length of the axis that `split` divides: number of segments, S."""
        return self.reset.shape[1]

    @property
    def samples(self) -> int:
        """Number of samples, L S."""
        return self.reset.numel()

    def split(self, sizes: Sequence[int]) -> list[Segments]:
        """Return parts with these numbers of segments, as views."""
        states = zip(*(part.split(list(sizes), dim=1) for part in self.state), strict=True)
        return [
            Segments(*parts)
            for parts in zip(self.steps.split(sizes), states, self.reset.split(list(sizes), dim=1), strict=True)
        ]


class SequenceBackend(TorchBackend):
    """Backend of torch operations and autograd over segments, for recurrent policies. The recurrent state of every lane
    persists across steps and iterations.
    """

    batches_final_values = True
    """Whether values of true final observations may be computed for several steps at once."""

    def __init__(self, ppo: PPO) -> None:
        super().__init__(ppo)
        self.acts_on_slices = False
        T, N, cut = self.collector.steps, self.collector.world.count, self.cycle.minibatches.layout
        self._length = cut.length
        # States now, at the beginning of an episode, and at the beginning of each segment.
        self._state, self._initial = self.policy.initial_state(N), self.policy.initial_state(N)  # (R, N) each
        # (K, R, N) each
        self._starts = tuple(torch.zeros(cut.steps, *part.shape, device=self.device) for part in self._initial)
        # 1 where an episode begins; of the rollout's first step `_starts` holds the state already reset
        self._reset = torch.zeros(T, N, dtype=torch.uint8, device=self.device)
        self._no_reset = torch.zeros(1, N, dtype=torch.uint8, device=self.device)
        # Final observation and state of each lane's last truncation, where values of several steps are computed at
        # once: of as many steps as truncate a lane once at most.
        world, final_observation = self.collector.world, self.collector.rollout.final_observation
        self._gap = min(world.truncation_gap, T)
        together = self.batches_final_values and world.can_truncate and self._gap > 1
        self._truncated = (
            tuple(torch.zeros_like(part) for part in (final_observation[0], *self._state)) if together else ()
        )

    def single_threaded(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return `work`; on a CPU restricted to one thread, since one step of a cell is too little work for several."""
        return threads.alone()(work) if self.device.type == "cpu" else work

    def tensors(self) -> dict[str, Tensor]:
        """Return the lanes' recurrent states, by their names in a checkpoint."""
        return {f"state/{k}": part for k, part in enumerate(self._state)}

    # ACT

    def start(self) -> None:
        """Reset the recurrent states of all lanes."""
        for part, initial in zip(self._state, self._initial, strict=True):
            part.copy_(initial)

    def prepare(self) -> None:
        """Reset the recurrent states of all lanes if `algo.carry_state` is false, before a rollout."""
        if not self.config.carry_state:
            self.start()

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Write actions, log-probabilities and values of step t for all lanes. `lanes` must be None."""
        if t % self._length == 0:
            for starts, part in zip(self._starts, self._state, strict=True):
                starts[t // self._length].copy_(part)
        super().act(t)

    def forward(self, observation: Tensor, legal: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return action parameters (H, N) and values (N) for observations (O, N) and legal actions (H, N), and advance
        the lanes' recurrent states.
        """
        parameters, value, after = self._step(observation, legal)
        for part, new in zip(self._state, after, strict=True):
            part.copy_(new)
        return parameters, value

    def _step(
        self, observation: Tensor, legal: Tensor | None = None, state: tuple[Tensor, ...] | None = None
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Return action parameters (H, N), values (N) and next states for observations (O, N) and recurrent states, by
        default the lanes' own.
        """
        state = self._state if state is None else state
        if not self.cut:
            return self.policy.unroll(observation, state, self._no_reset, legal)
        lanes = observation.shape[1] // self.cycle.shards
        shards = [slice(first, first + lanes) for first in range(0, observation.shape[1], lanes)]
        outputs = [
            self.policy.unroll(
                observation[:, shard].contiguous(),
                tuple(part[:, shard].contiguous() for part in state),
                self._no_reset[:, shard],
                None if legal is None else legal[:, shard],
            )
            for shard in shards
        ]
        parameters, value, after = zip(*outputs, strict=True)
        return (
            torch.cat(parameters, dim=1),
            torch.cat(value),
            tuple(torch.cat(part, dim=1) for part in zip(*after, strict=True)),
        )

    def after(self, t: int) -> None:
        """Write V of the true final observations of episodes that step t truncated; reset the recurrent states of lanes
        where it ended an episode.
        """
        rollout, world = self.collector.rollout, self.collector.world
        if world.can_truncate:
            self._final_values(t, rollout.final_observation[t // world.final_window])
        ended = (rollout.terminated[t] | rollout.truncated[t]).bool()
        for part, initial in zip(self._state, self._initial, strict=True):
            torch.where(ended, initial, part, out=part)
        if t + 1 < self.collector.steps:
            self._reset[t + 1].copy_(ended)

    def _final_values(self, t: int, final_observation: Tensor) -> None:
        """Write V of the true final observation of every episode that step t truncated, given the lanes' final
        observations (O, N); other elements of `final_value` may be overwritten.
        """
        rollout, final_value, shards = self.collector.rollout, self.experience.final_value, self.cycle.shards
        if self._truncated:
            # Save the lanes that are truncated, and evaluate all of the last `_gap` steps together: a CUDA graph cannot
            # branch, and a CPU is fastest with few large products.
            truncated = rollout.truncated[t].bool()
            for saved, part in zip(self._truncated, (final_observation, *self._state), strict=True):
                torch.where(truncated, part, saved, out=saved)
            if (t + 1) % self._gap == 0 or t + 1 == self.collector.steps:
                values = self._step(self._truncated[0], state=self._truncated[1:])[1]
                final_value[t // self._gap * self._gap : t + 1] = values
        elif self.device.type == "cuda":
            final_value[t].copy_(self._step(final_observation)[1])
        else:
            # Shard by shard, since the shape of a product decides its last bits.
            lanes = self.collector.world.count // shards
            for first in range(0, lanes * shards, lanes):
                (lane,) = torch.nonzero(rollout.truncated[t, first : first + lanes], as_tuple=True)
                if len(lane):
                    lane += first
                    state = tuple(part[:, lane] for part in self._state)
                    no_reset = self._no_reset[:, : len(lane)]
                    final_value[t][lane] = self.policy.unroll(final_observation[:, lane], state, no_reset)[1]

    def bootstrap(self) -> None:
        """Write V of the observation after the last step, without advancing the recurrent states."""
        self.experience.value[-1] = self._step(self.collector.rollout.observation[-1])[1]

    # LEARN

    batches = OnPolicyBackend.batches

    def gather(self, blocks: Tensor) -> Segments:
        """Gather the segments of blocks (up to 32 neighbouring lanes) with the numbers `blocks` (m), and the recurrent
        states before them.
        """
        states = tuple(self.cycle.minibatches.gather(starts, blocks) for starts in self._starts)
        return Segments(super().gather(blocks), states, self.gather_rows(self._reset, blocks))

    def gather_rows(self, buffer: Tensor, blocks: Tensor) -> Tensor:
        """Gather the segments of blocks (m) from a buffer of the rollout: (T, N) -> (L, S), (T, R, N) -> (R, L, S)."""
        return self.cycle.minibatches.gather_segments(buffer, blocks)

    def gather_observations(self, blocks: Tensor) -> Tensor:
        """Gather the observations of blocks (m) from the rollout, (O, L, S)."""
        return self.gather_rows(self.collector.rollout.observation[:-1], blocks)

    def loss(self, batch: Segments) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch of segments, or of a part of it, and its terms by the names in `TERMS`."""
        steps = Batch._make(None if field is None else field.flatten(-2) for field in batch.steps)
        parameters, value, _ = self.policy.unroll(steps.observation, batch.state, batch.reset, steps.legal)
        return loss_of_outputs(self.policy, parameters, value, steps, self.config)


class FusedSequences(SequenceBackend):
    """Backend of fused Triton kernels over segments, by `operant.kernels.recurrent`. The kernels reset a lane's
    recurrent state when they next read it, not when its episode ends.
    """

    name = "fused"
    normalizes_advantages = True
    batches_final_values = False

    def __init__(self, ppo: PPO) -> None:
        """Build the kernels; `learner` is None if they are not supported and torch does the work."""
        super().__init__(ppo)
        config, finals = self.config, self.collector.world.can_truncate
        states = recurrent.States(self._state[0], self._starts[0], finals)
        self.learner = recurrent.build(
            fused.task(self), kernels=config.kernels, precision=config.precision, states=states
        )
        if self.learner is not None:
            self.bits_by_ranks = "the tiles of a memory's kernels depend on how many lanes a rank has"

    @property
    def kernels(self) -> recurrent.RecurrentLearner:
        """Fused kernels of this backend. Only valid if they are supported."""
        assert self.learner is not None
        return self.learner

    def prepare(self) -> None:
        """Load normalizer and weights into the kernels' buffers; reset all recurrent states if `algo.carry_state` is
        false.
        """
        super().prepare()
        self.kernels.prepare()

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Write actions, log-probabilities and values of step t for all lanes. `lanes` must be None."""
        if t % self._length == 0:
            self._starts[0][t // self._length].copy_(self._state[0])
        self.kernels.act(t)

    def after(self, t: int) -> None:
        """Write V of the true final observations of episodes that step t truncated."""
        if self.collector.world.can_truncate:
            self.kernels.final_values(t)

    def bootstrap(self) -> None:
        """Write V of the observation after the last step; then reset recurrent states where it ended an episode."""
        rollout = self.collector.rollout
        self.kernels.bootstrap(self.collector.world.can_truncate)
        ended = (rollout.terminated[-1] | rollout.truncated[-1]).bool()
        self._state[0].masked_fill_(ended, 0.0)

    def gather(self, blocks: Tensor) -> Segments:
        """Gather the segments of the blocks numbered `blocks` (m), in this order."""
        rollout = self.collector.rollout
        torch.bitwise_or(rollout.terminated[:-1], rollout.truncated[:-1], out=self._reset[1:])
        return super().gather(blocks)

    def update(self) -> None:
        """Take one optimizer step per minibatch of every epoch over the rollout, and write `stats`."""
        self.kernels.update(self.config.updates)
