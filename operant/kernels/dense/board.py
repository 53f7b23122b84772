"""Q networks for boards in fused kernels: one convolution of 3 x 3, a dense layer and a head (`net.cnn = "minatar"`),
as launches over an algorithm's buffers.

Five launches are an update, however small the minibatch: the dense layer by rows of places, the head and the loss,
gradients by places, sums, and Adam's step. Knows what is launched when; the kernels are `operant.kernels.board`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from operant.kernels.board import (
    BLOCK,
    act_on_rows,
    backward_places,
    backward_rows,
    bootstrap_boards,
    forward_rows,
    reduce_small,
)
from operant.kernels.dense.learner import Learner
from operant.kernels.ops.reduce import REDUCE_COLUMNS

log = logging.getLogger("operant.kernels")

PLACES, TILE, HEAD_TILE = 2, 128, 16
"""Places of a program of the gradient, samples that it takes at a time at most, and samples of a program of the head.
"""
LEAST, MOST = 64, 2048
"""Samples of a minibatch: a program of the head takes 1 / 32 of many, and more than 64 would not fit."""
LARGEST = 10
"""A board's sides, at most, its rim included: a program holds the dense weight of a row of places."""


@dataclass(frozen=True)
class BoardSpec:
    """One network as plain numbers. Places of parameters are those in the flat vector; widths are powers of two."""

    observation: int
    width: int  # of the board, with its rim
    planes: int
    down: int  # places of the convolution
    across: int
    taps: int
    taps_pad: int
    filters: int
    hidden: int
    columns: int  # of the dense weight
    head_rows: int
    out_pad: int
    legal: bool
    precision: str  # "ieee", "tf32" or "bf16"
    norm_epsilon: float
    filter_weight: int
    filter_bias: int
    filter_gain: int
    filter_shift: int
    weight: int
    weight_size: int
    bias: int
    gain: int
    shift: int
    head_weight: int
    head_bias: int
    small: int  # numbers of all parameters but the dense weight


def _power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def unsupported_reason(policy: Any, layout: Any) -> str | None:
    """The sentence that says why a convolutional network cannot run fused, or None where it can. `layout`: of the
    minibatches.
    """
    net, shape = policy.net, (*policy.env.observation.shape, 1)[:3]
    config = net.config
    channels, places = config.channels or (16,), shape[1] - 2
    if (
        config.cnn != "minatar"
        or not config.layer_norm
        or net.categories
        or len(channels) != 1
        or len(config.hidden) != 1
    ):
        return 'of convolutional networks only net.cnn = "minatar" with net.layer_norm has fused kernels'
    if channels[0] not in (16, 32, 64) or config.hidden[0] not in (32, 64, 128, 256):
        asked = f"net.channels is {list(channels)}, net.hidden {list(config.hidden)}"
        return f"fused kernels for boards take 16, 32 or 64 channels and 32, 64, 128 or 256 hidden units, and {asked}"
    fits = (
        max(shape[:2]) <= LARGEST
        and _power_of_two(places)
        and places % PLACES == 0
        and 9 * shape[2] <= 128
        and policy.distribution.parameter_rows <= 32
    )
    if policy.env.pixels or policy.env.mask_size or not fits:
        return "the board's shape or its actions are none that fused kernels read"
    if layout.block != BLOCK.value or not LEAST <= layout.samples <= MOST or not _power_of_two(layout.samples):
        return f"a minibatch of {layout.samples} samples is none of 64, 128, 256 ... {MOST} of 32, 64, 96 ... lanes"
    return None


def describe(policy: Any, precision: str) -> BoardSpec:
    """The spec of a policy that has no `unsupported_reason`."""
    begin = dict(zip(policy.flat.names, policy.flat.offsets, strict=True))
    height, width, planes = (*policy.env.observation.shape, 1)[:3]
    (filters,), (hidden,) = policy.net.config.channels or (16,), policy.net.config.hidden
    columns, taps = (height - 2) * (width - 2) * filters, 9 * planes
    return BoardSpec(
        observation=policy.env.observation.size,
        width=width,
        planes=planes,
        down=height - 2,
        across=width - 2,
        taps=taps,
        taps_pad=max(16, 1 << (taps - 1).bit_length()),
        filters=filters,
        hidden=hidden,
        columns=columns,
        head_rows=policy.distribution.parameter_rows,
        out_pad=32,
        legal=False,
        precision="ieee" if precision == "fp32" else precision,
        norm_epsilon=1e-5,
        filter_weight=begin["body.filters.0.weight"],
        filter_bias=begin["body.filters.0.bias"],
        filter_gain=begin["body.norm_gains.0"],
        filter_shift=begin["body.norm_biases.0"],
        weight=begin["weights.0"],
        weight_size=hidden * columns,
        bias=begin["biases.0"],
        gain=begin["norm_gains.0"],
        shift=begin["norm_biases.0"],
        head_weight=begin["head_weight"],
        head_bias=begin["head_bias"],
        small=policy.flat.values.numel() - hidden * columns,
    )


@dataclass(frozen=True)
class Tiling:
    """In place of a tile config: there is nothing to choose."""

    chunks: int

    def __str__(self) -> str:
        return ""


class BoardLearner(Learner):
    """A program a row of places and 32 samples; of the gradient a program two places."""

    spec: Any

    def __init__(self, policy: Any, task: Any, precision: str) -> None:
        spec = describe(policy, precision)
        samples = task.layout.samples
        self._groups = spec.across // PLACES
        self._head_tile = max(HEAD_TILE, samples // 32)
        rows = max(32, 1 << (self._groups * spec.down - 1).bit_length())
        super().__init__(spec, task, Tiling(1))  # type: ignore[arg-type]
        device, self._samples = policy.device, samples
        self._width = spec.small + REDUCE_COLUMNS.value
        self._partial = torch.zeros(rows, self._width, device=device)
        self._squares = torch.zeros(self._groups * spec.down + spec.small // REDUCE_COLUMNS.value, device=device)
        self._row_sums = torch.zeros(spec.down, max(samples, self._lanes), spec.hidden, device=device)
        self._gradient_z = torch.zeros(samples, spec.hidden, device=device)

    def fits(self) -> bool:
        """Whether the GPU has the shared memory that all programs of a run ask for. Compiles them, and launches
        nothing.
        """
        return self._has_room(
            self.policy.device, lambda: self.act(0), lambda: self.bootstrap(finals=True), lambda: self.update(1)
        )

    # COLLECT

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Actions of step t, and what else the algorithm's `sample` writes."""
        self._forward(t, self._lanes, act=True)
        self.launch(
            act_on_rows,
            (self._lanes // HEAD_TILE,),
            self._row_sums,
            self.work.acting(),
            self._values,
            t,
            self._lanes,
            SPEC=self.spec,
            SAMPLE=self.work.sample,
            TILE=HEAD_TILE,
            num_warps=8,
        )

    def _forward(self, first: int, samples: int, *, act: bool) -> None:
        self.launch(
            forward_rows,
            (samples // BLOCK.value, self.spec.down),
            self.buffers.rollout.observation,
            self.buffers.order,
            first,
            self._values,
            self._row_sums,
            samples,
            self._lanes,
            SPEC=self.spec,
            ACT=act,
            num_warps=8,
            num_stages=1,
        )

    def bootstrap(self, finals: bool) -> None:
        """The value of the observation after the last step, and with `finals` of the true final observations of
        truncated episodes.
        """
        first = 0 if finals else self._steps
        self.launch(
            bootstrap_boards,
            (self._lanes // BLOCK.value, self._steps + 1 - first),
            self._bootstrap(),
            self._values,
            first,
            self._steps,
            self._lanes,
            SPEC=self.spec,
            VALUE=self.work.value_of,
            num_warps=8,
            num_stages=1,
        )

    # UPDATE

    def backward(self, k: int) -> None:
        """The gradient of minibatch k's loss: the dense weight's, and rows of partial sums of the others'."""
        spec, samples, first = self.spec, self._samples, k * self.layout.shards * self.layout.shard_blocks
        self._forward(first, samples, act=False)
        self.launch(
            backward_rows,
            (samples // self._head_tile,),
            self.buffers.order,
            first,
            self._row_sums,
            samples,
            self.work.samples(),
            self._values,
            self._gradient_z,
            self._partial,
            self._width,
            self._lanes,
            SPEC=spec,
            LOSS=self.work.loss,
            TILE=self._head_tile,
            num_warps=4,
            num_stages=1,
        )
        self.launch(
            backward_places,
            (self._groups, spec.down),
            self.buffers.rollout.observation,
            self.buffers.order,
            first,
            self._values,
            self._gradient_z,
            self._gradient,
            self._squares,
            self._partial,
            self._width,
            samples,
            self._lanes,
            SPEC=spec,
            PLACES=PLACES,
            TILE=min(TILE, samples),
            num_warps=8,
            num_stages=1,
        )

    def reduce(self) -> None:
        """The rest of the gradient from its rows of partial sums, and the update's numbers."""
        self.launch(
            reduce_small,
            (self._width // REDUCE_COLUMNS.value,),
            self._partial,
            self._width,
            self._gradient,
            self._squares[self._groups * self.spec.down :],
            self._values,
            self.work.update(),
            SPEC=self.spec,
            RECORD=self.work.record,
            ROWS=len(self._partial),
            num_warps=4,
        )


def build(task: Any, precision: str) -> tuple[BoardLearner | None, str | None]:
    """The fused kernels over a task's buffers; or None, and the sentence that says why."""
    steps, lanes = task.buffers.rollout.reward.shape
    reason = unsupported_reason(task.policy, task.layout)
    if reason is None and (steps + 1) * lanes * task.policy.env.observation.size >= 1 << 31:
        reason = f"an iteration of {steps} steps of {lanes:,} boards holds more than 2^31 numbers"
    if reason is not None:
        return None, reason
    learner = BoardLearner(task.policy, task, precision)
    if task.policy.device.type == "cuda" and (reason := learner.unsupported_reason(precision)) is not None:
        return None, reason
    log.info("kernels: fused, for boards")
    return learner, None
