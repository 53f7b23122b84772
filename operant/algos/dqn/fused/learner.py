"""DQN's acting and learning as launches of fused kernels, over the buffers of its cycle. Knows what is launched when.

Of tick t: act and the world's step, beside them learn from the tick's first batch, then [step of Adam and of the target
network, and store the tick]. Further batches of the tick learn before that; a tick without an update acts and stores
alone. Nothing here allocates or reads back once it is made, so that a CUDA graph can hold it. Kernels compile at their
first launch, which must be before a capture.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from operant.algos.dqn.fused import buffers
from operant.algos.dqn.fused.kernels import act_and_learn, choose, move_tick, reduce_and_step, store_tick
from operant.kernels.arguments import Inputs, Moments
from operant.kernels.backward import TERM_COLUMNS
from operant.kernels.feature_table import FeatureTable
from operant.kernels.q_values import QActing
from operant.kernels.spec import Spec, padded
from operant.kernels.warmup import Launcher

if TYPE_CHECKING:
    from operant.algos.dqn.dqn import DQN

SMALL_BATCH, MOST_TILES = 1024, 64
MOST_ROWS = {"bf16": 128, "tf32": 32, "ieee": 16}
"""Batches up to so many samples are cut into tiles of 16; larger ones into so many tiles, where those have up to so
many rows.

In tf32 tiles of 64 rows ended in an illegal memory access on an H200 (Triton 3.6), and in fp32 they take minutes to
compile.
"""

ACT_ROWS, ACT_WARPS, WARPS = 64, 8, 8
STEP_COLUMNS, STEP_ROWS, STEP_NUMBERS, MOST_PROGRAMS = 128, 16, 4096, 2
"""Parameters that a program of a step takes at least, rows of partial sums that it adds up at a time, and numbers of
those; and programs a multiprocessor: they wait for each other, so all of them must run at once.
"""

STORE_LANES, STORE_NUMBERS = 32, 64
BESIDE = APART = True
"""Whether a tick's first batch is learned from beside acting and the world's step, or in acting's launch and before the
step; and whether what goes to host memory is stored beside that, too.
"""

CHOOSE, MOVED = 256, 1024


class FusedDQN(Launcher):
    """One policy's fused kernels."""

    def __init__(self, spec: Spec, dqn: DQN) -> None:
        config, cycle, policy = dqn.config, dqn.cycle, dqn.policy
        device, replay, rollout = policy.device, cycle.replay, cycle.rollout
        ring, legal = replay.ring, rollout.legal if spec.legal else rollout.terminated
        self.spec, self.dqn, self._on_gpu = spec, dqn, device.type == "cuda"
        self._lanes, self._batch, self._updates, self._due = (
            cycle.world.count,
            config.batch_size,
            config.updates,
            config.due,
        )
        self._last = config.horizon - 1
        self._side = torch.cuda.Stream(device) if self._on_gpu else None
        self._taken = torch.cuda.Event() if self._on_gpu else None  # once a batch of host memory is all on the device
        values, size = policy.flat.values.data, policy.flat.values.numel()
        self._kind = buffers.Learning(
            policy.distribution.actions,
            config.duelling,
            config.double,
            config.n_step,
            ring.final is not None,
            replay.on_host,
        )

        # Tiles of a batch, a row of partial sums each; the programs of a step.
        self._rows = (
            16 if self._batch <= SMALL_BATCH else min(MOST_ROWS[spec.precision], padded(-(-self._batch // MOST_TILES)))
        )
        self._tiles, self._width = -(-self._batch // self._rows), size + TERM_COLUMNS.value
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count if self._on_gpu else 1
        self._columns = STEP_COLUMNS
        while -(-self._width // self._columns) > MOST_PROGRAMS * multiprocessors and self._on_gpu:
            self._columns *= 2
        self._programs = -(-self._width // self._columns)
        self._partial, self._gradient = torch.zeros(self._tiles, self._width, device=device), policy.flat.gradient
        self._values, self._target = values, dqn.target.flat.values.data

        # What kernels take.
        adam = dqn.optimizer.tensors()
        corrections = torch.ones(2, device=device)
        self._moments = Moments(adam["exp_avg"], adam["exp_avg_sq"], corrections)
        self._stepping = buffers.Stepping(
            torch.zeros(self._programs, device=device),
            dqn.totals,
            adam["step"],
            corrections,
            torch.zeros(1, dtype=torch.int64, device=device),
            cycle.skip,
            dqn.optimizer.learning_rate,
            config.max_gradient_norm or math.inf,
            config.adam_epsilon,
            config.tau,
            config.target_every,
        )
        final = ring.observation if ring.final is None else ring.final
        self._ring = buffers.Ring(
            ring.observation,
            final,
            ring.action,
            ring.reward,
            ring.terminated,
            ring.truncated,
            ring.legal if spec.legal else ring.terminated,
            ring.ticks,
            ring.updates,
            ring.seed,
            self._lanes,
            ring.observation.shape[2],
            ring.reward.shape[0],
            final.shape[0],
            ring.window,
        )
        finals = rollout.observation if ring.final is None else rollout.final_observation
        self._source = buffers.Source(
            rollout.observation, finals, rollout.action, rollout.reward, rollout.terminated, rollout.truncated, legal
        )
        index, stored = (
            torch.zeros(self._updates, self._batch, dtype=torch.int32, device=device),
            [t + 1 for t in range(config.horizon) for _ in config.due(t)],
        )
        self._ahead = replay.ahead(stored, sampling=False)
        batches = [drawn.batch for drawn in self._ahead.drawn] if self._ahead is not None else [replay.batch] * 2
        self._samples = [
            buffers.Samples(index, config.gamma, self._batch, batch.observation, batch.next_observation)
            for batch in batches
        ]
        # What is seen before a tick, on its way to host memory.
        self._seen = torch.zeros_like(ring.observation[0], device=device) if self._ahead is not None else None
        self._stored = torch.tensor(stored, dtype=torch.int64, device=device)
        self._acting = QActing(cycle.collector.noise, dqn.epsilon, 1, rollout.action, dqn.totals)
        self._features = FeatureTable(policy, dqn.totals)
        self._inputs = Inputs(rollout.observation, self._features.table, legal)
        width = min(STORE_NUMBERS, 1 << (spec.observation - 1).bit_length())
        actions = 1 << (self._kind.actions - 1).bit_length() if spec.legal else 0
        self._storing = {
            "OBSERVATION": spec.observation,
            "KIND": self._kind,
            "ACTIONS": actions,
            "BLOCK": STORE_LANES,
            "WIDTH": width,
        }
        self._stores = -(-self._lanes // STORE_LANES) * -(-spec.observation // width)

    def fits(self) -> bool:
        """Whether the GPU has the shared memory that programs ask for. Compiles them, and launches nothing."""
        device, first = self.dqn.policy.device, next(t for t in range(self._last + 1) if self._due(t))
        return self._fits_shared(device, lambda: self.act(first), lambda: self.update(first + 1, 0))

    # AN ITERATION

    def prepare(self) -> None:
        """Choose the samples of all updates, and store what is seen before the first tick."""
        self._features.refresh()
        replay = self.dqn.cycle.replay
        self.launch(
            choose,
            (-(-self._batch // CHOOSE), self._updates),
            self._samples[0].index,
            self._stored,
            self._ring,
            self._batch,
            replay.shards,
            replay.n_step,
            BLOCK=CHOOSE,
            num_warps=4,
        )
        self._store(-1, 2)

    def act(self, t: int) -> None:
        """Actions of tick t; and the gradient of the first update that is due after it."""
        due = self._due(t)
        if not due:
            self._act_and_learn(t, 0, learn=False, act=True)
        elif self._side is None or not BESIDE or self._asked is not None:
            self._act_and_learn(t, due[0], learn=True, act=True)
        else:
            self._side.wait_stream(torch.cuda.current_stream(self._side.device))
            with torch.cuda.stream(self._side):
                self._act_and_learn(t, due[0], learn=True, act=False)
            self._act_and_learn(t, due[0], learn=False, act=True)

    def store(self, t: int) -> None:
        """Store tick t, unless its last update does: at once in host memory, where that takes a while, beside
        learning.
        """
        if self._apart:
            assert self._taken is not None
            if self._due(t):
                torch.cuda.current_stream(self.dqn.policy.device).wait_event(self._taken)
            self._store(t, self._what(t))
        elif not self._due(t):
            self._store(t, self._what(t))

    @property
    def _apart(self) -> bool:
        """Whether ticks are stored by launches of their own."""
        return APART and BESIDE and self._ahead is not None and self._on_gpu and self._asked is None

    def update(self, ticks: int, number: int) -> None:
        """Update `number` of the iteration after tick ticks - 1: one step of the network, and of the target network
        where it is due.
        """
        due = self._due(ticks - 1)
        if number == due[0] and self._side is not None and BESIDE and self._asked is None:
            torch.cuda.current_stream(self._side.device).wait_stream(self._side)
        elif number != due[0]:
            self._act_and_learn(ticks - 1, number, learn=True, act=False)
        stores = self._stores if number == due[-1] and not self._apart else 0
        if self._on_gpu:
            self._reduce_and_step(0, ticks - 1, number, stores)
        else:  # where programs run one after the other, none can wait for the next
            self._reduce_and_step(1, ticks - 1, number, stores)
            self._reduce_and_step(2, ticks - 1, number, 0)

    def _what(self, t: int) -> int:
        """What storing tick t stores: what is seen after an iteration's last tick is left to the next one's
        beginning.
        """
        return 1 if t == self._last else 0

    # LAUNCHES

    def _act_and_learn(self, t: int, update: int, *, learn: bool, act: bool) -> None:
        tiles = self._tiles if learn else 0
        # each row crosses the bus once: kernels read some of them twice
        if learn and self._ahead is not None and self._asked is None:
            self._ahead.take(update, t, lambda _ticks, number, drawn: drawn.place.copy_(self._samples[0].index[number]))
            if self._taken is not None:
                self._taken.record(torch.cuda.current_stream(self.dqn.policy.device))
        self.launch(
            act_and_learn,
            (tiles + (-(-self._lanes // ACT_ROWS) if act else 0),),
            self._samples[update % 2],
            self._ring,
            self._acting,
            self._inputs,
            self._values,
            self._target,
            self._partial,
            self._width,
            t,
            update,
            self._lanes,
            tiles,
            SPEC=self.spec,
            KIND=self._kind,
            BLOCK_M=self._rows,
            ACT_BLOCK_M=ACT_ROWS,
            num_warps=WARPS if learn else ACT_WARPS,
            num_stages=0,
        )

    def _reduce_and_step(self, part: int, t: int, update: int, stores: int) -> None:
        self.launch(
            reduce_and_step,
            (self._programs + stores,),
            self._partial,
            self._width,
            self._values.numel(),
            self._gradient,
            self._values,
            self._target,
            self._moments,
            self._stepping,
            self._ring,
            self._source,
            update,
            self._programs,
            t,
            ROWS=self._tiles,
            CHUNK=min(STEP_ROWS, 1 << (self._tiles - 1).bit_length(), max(1, STEP_NUMBERS // self._columns)),
            BLOCKS=padded(self._programs),
            TILE=self._columns,
            PART=part,
            WHAT=self._what(t),
            **self._storing,
            num_warps=4,
        )

    def _store(self, t: int, what: int) -> None:
        seen, ring = self._seen, self.dqn.cycle.replay.ring
        staged = seen is not None and what != 1
        self.launch(
            store_tick,
            (self._stores,),
            self._source,
            self._ring,
            ring.observation if seen is None else seen,
            t,
            WHAT=what,
            STAGED=staged,
            **self._storing,
            num_warps=4,
        )
        if seen is not None and staged:
            words, size = seen.view(torch.int64), seen.nbytes // 8
            self.launch(
                move_tick,
                (-(-size // MOVED),),
                words,
                ring.observation.view(torch.int64),
                ring.ticks,
                t,
                len(ring.reward),
                size,
                BLOCK=MOVED,
                num_warps=4,
            )
