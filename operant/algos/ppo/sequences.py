"""PPO for policies with a memory: acting with a state in every lane, and minibatches of whole segments, through which
gradients go back in time.

An episode that ends leaves nothing to the next: its lane's state is the initial one again before the next step, in
acting as in learning. What a segment begins with was stored when it was collected. V of a truncated episode's true
final observation is taken with the state before that.

By torch, with the gradients of `operant.nn.cells`, on every device; or by fused kernels on a GPU. Knows no rollout's
collection and no advantage.

Shape letters: T steps, N lanes, L steps of a segment, K = T / L segments of a lane, S segments of a minibatch, R
numbers of a lane's state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from operant.algos.ppo.backends import Parts, TorchBackend, fused_task
from operant.algos.ppo.loss import Batch, LossTerms, loss_of_outputs
from operant.compute import threads
from operant.errors import ConfigError
from operant.kernels import recurrent

log = logging.getLogger("operant.ppo")


class Segments(NamedTuple):
    """Segments to learn from."""

    steps: Batch  # each field (..., L, S)
    state: tuple[Tensor, ...]  # before their first steps, (R, S) each
    reset: Tensor  # (L, S) uint8, 1 where an episode begins

    @property
    def size(self) -> int:
        """What `split` cuts: S."""
        return self.reset.shape[1]

    @property
    def samples(self) -> int:
        """Steps of all segments, L S."""
        return self.reset.numel()

    def split(self, sizes: Sequence[int]) -> list[Segments]:
        """Its parts of so many segments each, as views."""
        states = zip(*(part.split(list(sizes), dim=1) for part in self.state), strict=True)
        return [
            Segments(*parts)
            for parts in zip(self.steps.split(sizes), states, self.reset.split(list(sizes), dim=1), strict=True)
        ]


def choose(parts: Parts) -> SequenceBackend:
    """The backend of a recurrent policy: fused kernels where they can be and `algo.kernels` allows them. Raises
    ConfigError where it asks for them in vain.
    """
    # That a user's network has a memory was not known when the configuration was read.
    problems = parts.config.problems(parts.collector.world.count * parts.exchange.ranks, memory=True)
    if problems:
        raise ConfigError("the trainer", [f"algo.{key}: {sentence}" for key, sentence in problems])
    backend = FusedSequences(parts)
    if backend.learner is not None:
        return backend
    log.info("kernels: torch's, over sequences: the policy has a memory")
    if parts.config.kernels != "torch":
        recurrent.quicken(parts.policy.net, parts.policy.device)
    return SequenceBackend(parts)


class SequenceBackend(TorchBackend):
    """A lane's state from step to step and from iteration to iteration, and torch's gradients of segments."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        T, N, cut = parts.collector.steps, parts.collector.world.count, parts.minibatches.layout
        self._length = cut.length
        # What every lane remembers now, at an episode's beginning, and at the beginning of each segment.
        self._state, self._first = self.policy.initial_state(N), self.policy.initial_state(N)  # (R, N) each
        # (K, R, N) each
        self._starts = tuple(torch.zeros(cut.steps, *part.shape, device=self.device) for part in self._first)
        # 1 where an episode begins; at the rollout's first step `_starts` says it
        self._reset = torch.zeros(T, N, dtype=torch.uint8, device=self.device)
        self._none = torch.zeros(1, N, dtype=torch.uint8, device=self.device)
        # What lanes saw and remembered when they were last truncated, where several steps are judged at once.
        world, seen = parts.collector.world, parts.collector.rollout.final_observation
        self._gap = min(world.truncation_gap, T)
        together = self.sets_aside and world.can_truncate and self._gap > 1
        self._cut_off = tuple(torch.zeros_like(part) for part in (seen[0], *self._state)) if together else ()

    sets_aside = True

    def alone(self, work: Callable[[], None]) -> Callable[[], None]:
        """On a CPU on this thread alone: a step of a cell is too little work for several."""
        return threads.alone()(work) if self.device.type == "cpu" else work

    def tensors(self) -> dict[str, Tensor]:
        """What every lane remembers."""
        return {f"state/{k}": part for k, part in enumerate(self._state)}

    # ACT

    def start(self) -> None:
        """Begin every lane anew."""
        for part, first in zip(self._state, self._first, strict=True):
            part.copy_(first)

    def prepare(self) -> None:
        """Forget everything, where a state is not carried from one iteration to the next."""
        if not self.config.carry_state:
            self.start()

    acts_on_some = False

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Actions, log-probabilities and values of step t, of all lanes."""
        if t % self._length == 0:
            for starts, part in zip(self._starts, self._state, strict=True):
                starts[t // self._length].copy_(part)
        super().act(t)

    def forward(self, observation: Tensor, legal: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Action parameters (H, N) and values (N) of observations (O, N) and legal actions (H, N), which every lane
        then remembers.
        """
        parameters, value, after = self._look(observation, legal)
        for part, new in zip(self._state, after, strict=True):
            part.copy_(new)
        return parameters, value

    def _look(
        self, observation: Tensor, legal: Tensor | None = None, state: tuple[Tensor, ...] | None = None
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Action parameters (H, N), values (N) and the state after them, of observations (O, N), and the state before
        where that is not what lanes remember.
        """
        state = self._state if state is None else state
        if not self._cut:
            return self.policy.unroll(observation, state, self._none, legal)
        lanes = observation.shape[1] // self.parts.minibatches.layout.shards
        shards = [slice(first, first + lanes) for first in range(0, observation.shape[1], lanes)]
        parts = [
            self.policy.unroll(
                observation[:, shard].contiguous(),
                tuple(part[:, shard].contiguous() for part in state),
                self._none[:, shard],
                None if legal is None else legal[:, shard],
            )
            for shard in shards
        ]
        parameters, value, after = zip(*parts, strict=True)
        return (
            torch.cat(parameters, dim=1),
            torch.cat(value),
            tuple(torch.cat(state, dim=1) for state in zip(*after, strict=True)),
        )

    def after(self, t: int) -> None:
        """Where an episode has ended with step t: V of its true final observation, if it was truncated, and then the
        state of a new one.
        """
        rollout, world = self.collector.rollout, self.collector.world
        if world.can_truncate:
            self._final_values(t, rollout.final_observation[t // world.final_window])
        ended = (rollout.terminated[t] | rollout.truncated[t]).bool()
        for part, first in zip(self._state, self._first, strict=True):
            torch.where(ended, first, part, out=part)
        if t + 1 < self.collector.steps:
            self._reset[t + 1].copy_(ended)

    def _final_values(self, t: int, seen: Tensor) -> None:
        """Values of the true final observations (O, N) of episodes that step t truncated; other places of `final_value`
        may be written, too.
        """
        out, N, shards = (
            self.experience.final_value[t],
            len(self.experience.final_value[t]),
            self.parts.minibatches.layout.shards,
        )
        # of as many steps as truncate a lane once at most, all together: a graph cannot choose, and a CPU likes few
        # large products
        if self._cut_off:
            truncated = self.collector.rollout.truncated[t].bool()
            for kept, part in zip(self._cut_off, (seen, *self._state), strict=True):
                torch.where(truncated, part, kept, out=kept)
            if (t + 1) % self._gap == 0 or t + 1 == self.collector.steps:
                self.experience.final_value[t // self._gap * self._gap : t + 1] = self._look(
                    self._cut_off[0], state=self._cut_off[1:]
                )[1]
            return
        if self.device.type == "cuda":
            out.copy_(self._look(seen)[1])
            return
        for first in range(0, N, N // shards):  # shard by shard: the shape of a product decides its last bits
            (lane,) = torch.nonzero(self.collector.rollout.truncated[t, first : first + N // shards], as_tuple=True)
            if len(lane):
                lane += first
                state = tuple(part[:, lane] for part in self._state)
                out[lane] = self.policy.unroll(seen[:, lane], state, self._none[:, : len(lane)])[1]

    def bootstrap(self) -> None:
        """V of the observation after the last step, which is not yet remembered."""
        self.experience.value[-1] = self._look(self.collector.rollout.observation[-1])[1]

    # LEARN

    def batches(self, order: Tensor) -> Iterator[Segments]:
        """The segments of an epoch's blocks (M), a minibatch at a time."""
        for blocks in order.chunk(self.config.minibatches):
            yield self.gather(blocks)

    def gather(self, blocks: Tensor) -> Segments:
        """The segments of some blocks (m), in this order."""
        gather = self.parts.minibatches.gather_segments
        states = tuple(self.parts.minibatches.gather(starts, blocks) for starts in self._starts)
        return Segments(self.taken(blocks, gather, gather), states, gather(self._reset, blocks))

    def loss(self, batch: Segments) -> tuple[Tensor, LossTerms]:
        """The loss of a minibatch of segments, or of some of them, and its terms."""
        steps = Batch._make(None if field is None else field.flatten(-2) for field in batch.steps)
        parameters, value, _ = self.policy.unroll(steps.observation, batch.state, batch.reset, steps.legal)
        return loss_of_outputs(self.policy, parameters, value, steps, self.config)


class FusedSequences(SequenceBackend):
    """The same by fused kernels (see `operant.kernels.recurrent`). There a state is forgotten when it is read, not when
    an episode ends.
    """

    name = "fused"
    normalizes_advantages = True
    sets_aside = False

    def __init__(self, parts: Parts) -> None:
        """With `learner` None where torch's kernels are to do the work."""
        super().__init__(parts)
        config, finals = parts.config, parts.collector.world.can_truncate
        states = recurrent.States(self._state[0], self._starts[0], finals)
        self.learner = recurrent.build(
            fused_task(parts), kernels=config.kernels, precision=config.precision, states=states
        )
        self.bits_by_ranks = (
            "the tiles of a memory's kernels depend on how many lanes a rank has"
            if self.learner is not None
            else self.bits_by_ranks
        )

    def prepare(self) -> None:
        """Take normalizer and weights as they are; forget everything, where a state is not carried from one iteration
        to the next.
        """
        super().prepare()
        self.fused.prepare()

    @property
    def fused(self) -> recurrent.RecurrentLearner:
        """The kernels."""
        assert self.learner is not None
        return self.learner

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Actions, log-probabilities and values of step t, of all lanes."""
        if t % self._length == 0:
            self._starts[0][t // self._length].copy_(self._state[0])
        self.fused.act(t)

    def after(self, t: int) -> None:
        """V of the true final observations of episodes that step t truncated."""
        if self.collector.world.can_truncate:
            self.fused.final_values(t)

    def bootstrap(self) -> None:
        """V of the observation after the last step; then forget where an episode ended with it."""
        rollout = self.collector.rollout
        self.fused.bootstrap(self.collector.world.can_truncate)
        ended = (rollout.terminated[-1] | rollout.truncated[-1]).bool()
        self._state[0].masked_fill_(ended, 0.0)

    # LEARN

    def gather(self, blocks: Tensor) -> Segments:
        """The segments of some blocks (m), in this order."""
        rollout = self.collector.rollout
        torch.bitwise_or(rollout.terminated[:-1], rollout.truncated[:-1], out=self._reset[1:])
        return super().gather(blocks)

    def update(self) -> None:
        """Epochs over the rollout in minibatches: optimizer steps, one more iteration, and `stats`."""
        self.fused.update(self.config.updates)
