"""DQN's fused kernels: launches of acting and learning.

Tick t: act and step the world, concurrently compute the gradient of the tick's first batch; then step Adam and the
target network and store the tick, in one launch. Further batches of the tick learn before that; a tick without an
update acts and stores alone. Nothing allocates or reads back after construction, so a CUDA graph can hold an iteration.
Kernels compile at their first launch, which must come before a capture.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from operant.algos.dqn.fused.kernels import (
    DQNSpec,
    OptimizerBuffers,
    RingBuffers,
    SampleBuffers,
    TickBuffers,
    act_and_learn,
    choose,
    move_tick,
    reduce_and_step,
    store_tick,
)
from operant.kernels.backward import TERM_COLUMNS
from operant.kernels.observations import FeatureTable, Inputs
from operant.kernels.ops.adam import Moments
from operant.kernels.q_values import QActing
from operant.kernels.spec import Spec, padded, statistics_index
from operant.kernels.warmup import Launcher

if TYPE_CHECKING:
    from operant.algos.dqn.dqn import DQN

SMALL_BATCH, MAX_TILES = 1024, 64
MAX_ROWS = {"bf16": 128, "tf32": 32, "ieee": 16}
"""Batches of up to SMALL_BATCH samples are cut into tiles of 16; larger ones into at most MAX_TILES tiles of at most
MAX_ROWS rows.

In tf32 tiles of 64 rows ended in an illegal memory access on an H200 (Triton 3.6), and in fp32 they take minutes to
compile.
"""

ACT_BLOCK_M, ACT_WARPS, WARPS = 64, 8, 8
STEP_BLOCK_N, STEP_BLOCK_M, STEP_TILE, MAX_PROGRAMS = 128, 16, 4096, 2
"""Minimum parameters of a program of a step; rows of partial sums it adds at a time, and values of that tile at most;
programs a multiprocessor, which wait for each other and so must run at once.
"""

STORE_LANES, STORE_COLUMNS = 32, 64
OVERLAP = STORE_OVERLAP = True
"""Whether a tick's first batch is computed concurrently with acting and the world's step, or in acting's launch and
before the step; and whether storing in host memory overlaps, too.
"""

CHOOSE_BLOCK, MOVE_BLOCK = 256, 1024


class FusedDQN(Launcher):
    """Engine of one DQN: launches the fused kernels of its acting, storing and updates. Implements
    `operant.algos.base.Engine`.
    """

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
        self._stream = torch.cuda.Stream(device) if self._on_gpu else None
        self._gathered = torch.cuda.Event() if self._on_gpu else None  # a batch from host memory has arrived
        values, size = policy.flat.values.data, policy.flat.values.numel()
        self._dqn_spec = DQNSpec(
            policy.distribution.actions,
            config.duelling,
            config.double,
            config.n_step,
            ring.final is not None,
            replay.on_host,
            statistics_index(dqn.TERMS),
        )

        # Tiles of a batch, with a row of partial sums each; programs of a step.
        self._block_m = (
            16 if self._batch <= SMALL_BATCH else min(MAX_ROWS[spec.precision], padded(-(-self._batch // MAX_TILES)))
        )
        self._tiles, self._width = -(-self._batch // self._block_m), size + TERM_COLUMNS.value
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count if self._on_gpu else 1
        self._block_n = STEP_BLOCK_N
        while -(-self._width // self._block_n) > MAX_PROGRAMS * multiprocessors and self._on_gpu:
            self._block_n *= 2
        self._programs = -(-self._width // self._block_n)
        self._partials, self._gradient = torch.zeros(self._tiles, self._width, device=device), policy.flat.gradient
        self._values, self._target = values, dqn.target.flat.values.data

        # Arguments of the kernels.
        adam = dqn.optimizer.tensors()
        corrections = torch.ones(2, device=device)
        self._moments = Moments(adam["exp_avg"], adam["exp_avg_sq"], corrections)
        self._optimizer = OptimizerBuffers(
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
        self._ring = RingBuffers(
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
        self._source = TickBuffers(
            rollout.observation, finals, rollout.action, rollout.reward, rollout.terminated, rollout.truncated, legal
        )
        index, stored = (
            torch.zeros(self._updates, self._batch, dtype=torch.int32, device=device),
            [t + 1 for t in range(config.horizon) for _ in config.due(t)],
        )
        self._prefetch = replay.prefetch(stored, sampling=False)
        batches = (
            [buffers.batch for buffers in self._prefetch.buffers] if self._prefetch is not None else [replay.batch] * 2
        )
        self._samples = [
            SampleBuffers(index, config.gamma, self._batch, batch.observation, batch.next_observation)
            for batch in batches
        ]
        # A tick's observation on its way to host memory.
        self._staging = torch.zeros_like(ring.observation[0], device=device) if self._prefetch is not None else None
        self._stored = torch.tensor(stored, dtype=torch.int64, device=device)
        self._acting = QActing(cycle.collector.noise, dqn.epsilon, 1, rollout.action, dqn.totals)
        self._features = FeatureTable(policy, dqn.totals)
        self._inputs = Inputs(rollout.observation, self._features.table, legal)
        width = min(STORE_COLUMNS, 1 << (spec.observation - 1).bit_length())
        actions = 1 << (self._dqn_spec.actions - 1).bit_length() if spec.legal else 0
        self._storing = {
            "OBSERVATION": spec.observation,
            "DQN": self._dqn_spec,
            "ACTIONS": actions,
            "STORE_LANES": STORE_LANES,
            "STORE_COLUMNS": width,
        }
        self._stores = -(-self._lanes // STORE_LANES) * -(-spec.observation // width)

    def fits(self) -> bool:
        """Whether the GPU has the shared memory that the kernels' programs need. Compiles them, and launches
        nothing.
        """
        device, first = self.dqn.policy.device, next(t for t in range(self._last + 1) if self._due(t))
        return self._fits_shared(device, lambda: self.act(first), lambda: self.update(first + 1, 0))

    # AN ITERATION

    def prepare(self) -> None:
        """Choose the samples of all updates of the iteration, and store the observation before the first tick."""
        self._features.refresh()
        replay = self.dqn.cycle.replay
        self.launch(
            choose,
            (-(-self._batch // CHOOSE_BLOCK), self._updates),
            self._samples[0].index,
            self._stored,
            self._ring,
            self._batch,
            replay.shards,
            replay.n_step,
            BLOCK_SIZE=CHOOSE_BLOCK,
            num_warps=4,
        )
        self._store(-1, 2)

    def act(self, t: int) -> None:
        """Choose the actions of tick t (vectorised step), and compute the gradient of the first update that is due
        after it.
        """
        due = self._due(t)
        if not due:
            self._act_and_learn(t, 0, learn=False, act=True)
        elif self._stream is None or not OVERLAP or self._asked is not None:
            self._act_and_learn(t, due[0], learn=True, act=True)
        else:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
            with torch.cuda.stream(self._stream):
                self._act_and_learn(t, due[0], learn=True, act=False)
            self._act_and_learn(t, due[0], learn=False, act=True)

    def store(self, t: int) -> None:
        """Store tick t in the replay, unless its last update does. Storing in host memory is slow, so it overlaps with
        learning.
        """
        if self._stores_apart:
            assert self._gathered is not None
            if self._due(t):
                torch.cuda.current_stream(self.dqn.policy.device).wait_event(self._gathered)
            self._store(t, self._stored_parts(t))
        elif not self._due(t):
            self._store(t, self._stored_parts(t))

    @property
    def _stores_apart(self) -> bool:
        """Whether ticks are stored by separate launches."""
        return STORE_OVERLAP and OVERLAP and self._prefetch is not None and self._on_gpu and self._asked is None

    def update(self, ticks: int, number: int) -> None:
        """Update `number` of the iteration, after tick ticks - 1: step the network, move the target network if due."""
        due = self._due(ticks - 1)
        if number == due[0] and self._stream is not None and OVERLAP and self._asked is None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        elif number != due[0]:
            self._act_and_learn(ticks - 1, number, learn=True, act=False)
        stores = self._stores if number == due[-1] and not self._stores_apart else 0
        if self._on_gpu:
            self._reduce_and_step(0, ticks - 1, number, stores)
        else:  # the interpreter runs programs one after the other: none can wait for the next
            self._reduce_and_step(1, ticks - 1, number, stores)
            self._reduce_and_step(2, ticks - 1, number, 0)

    def complete_update(self, ticks: int) -> int:
        """Return 0: `act` computes a gradient, but takes no step."""
        return 0

    def _stored_parts(self, t: int) -> int:
        """Constant STORES of `store_tick` for tick t: the observation after an iteration's last tick is stored by the
        next iteration's `prepare`.
        """
        return 1 if t == self._last else 0

    # LAUNCHES

    def _act_and_learn(self, t: int, update: int, *, learn: bool, act: bool) -> None:
        """Launch the gradient of the batch of update `update` (with `learn`) and the actions of tick t (with `act`)."""
        tiles = self._tiles if learn else 0
        # Gather rows from host memory, so that each crosses the bus once: kernels read some twice.
        if learn and self._prefetch is not None and self._asked is None:
            self._prefetch.batch(
                update, t, lambda _ticks, number, drawn: drawn.index.copy_(self._samples[0].index[number])
            )
            if self._gathered is not None:
                self._gathered.record(torch.cuda.current_stream(self.dqn.policy.device))
        self.launch(
            act_and_learn,
            (tiles + (-(-self._lanes // ACT_BLOCK_M) if act else 0),),
            self._samples[update % 2],
            self._ring,
            self._acting,
            self._inputs,
            self._values,
            self._target,
            self._partials,
            self._width,
            t,
            update,
            self._lanes,
            tiles,
            SPEC=self.spec,
            DQN=self._dqn_spec,
            BLOCK_M=self._block_m,
            ACT_BLOCK_M=ACT_BLOCK_M,
            num_warps=WARPS if learn else ACT_WARPS,
            num_stages=0,
        )

    def _reduce_and_step(self, part: int, t: int, update: int, stores: int) -> None:
        """Launch the optimizer step of update `update`, PART `part` of it, and store tick t in `stores` further
        programs.
        """
        self.launch(
            reduce_and_step,
            (self._programs + stores,),
            self._partials,
            self._width,
            self._values.numel(),
            self._gradient,
            self._values,
            self._target,
            self._moments,
            self._optimizer,
            self._ring,
            self._source,
            update,
            self._programs,
            t,
            ROWS=self._tiles,
            BLOCK_M=min(STEP_BLOCK_M, 1 << (self._tiles - 1).bit_length(), max(1, STEP_TILE // self._block_n)),
            BLOCKS=padded(self._programs),
            BLOCK_N=self._block_n,
            PART=part,
            STORES=self._stored_parts(t),
            **self._storing,
            num_warps=4,
        )

    def _store(self, t: int, parts: int) -> None:
        """Launch the storing of tick t; `parts` is the constant STORES of `store_tick`."""
        staging, ring = self._staging, self.dqn.cycle.replay.ring
        staged = staging is not None and parts != 1
        self.launch(
            store_tick,
            (self._stores,),
            self._source,
            self._ring,
            ring.observation if staging is None else staging,
            t,
            STORES=parts,
            STAGED=staged,
            **self._storing,
            num_warps=4,
        )
        if staging is not None and staged:
            words, size = staging.view(torch.int64), staging.nbytes // 8
            self.launch(
                move_tick,
                (-(-size // MOVE_BLOCK),),
                words,
                ring.observation.view(torch.int64),
                ring.ticks,
                t,
                len(ring.reward),
                size,
                BLOCK_SIZE=MOVE_BLOCK,
                num_warps=4,
            )
