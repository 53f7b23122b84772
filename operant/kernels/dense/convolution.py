"""Convolution engine: Q-networks of one 3 x 3 convolution, a dense layer and a head (`net.cnn = "minatar"`).

An update is five launches, however small the minibatch: the dense layer by rows of positions, head and loss, gradients
by positions, reduction, and Adam. The kernels are `operant.kernels.convolution`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from operant.kernels.convolution import (
    BLOCK,
    act_on_rows,
    backward_positions,
    backward_rows,
    bootstrap_boards,
    forward_rows,
    reduce_small,
)
from operant.kernels.dense.learner import Learner
from operant.kernels.dense.task import B, C, Layout, Task
from operant.kernels.ops.reduce import REDUCE_COLUMNS
from operant.nn import Policy, cnn

log = logging.getLogger("operant.kernels")

POSITIONS, TILE, HEAD_TILE = 2, 128, 16
"""Positions per program of the gradient kernel, its largest tile of samples, and samples per program of the head."""
MIN_SAMPLES, MAX_SAMPLES = 64, 2048
"""Samples of a minibatch: a program of the head takes 1 / 32 of them, and more than 64 would not fit."""
MAX_SIDE = 10
"""Largest side of a board, rim included: a program holds the dense weight of one row of positions."""


@dataclass(frozen=True)
class ConvolutionSpec:
    """Sizes of one convolutional network, and the offsets of its parameters in the flat vector. Widths are powers of
    two.
    """

    observation: int  # bytes of an observation
    width: int  # of the board, rim included
    planes: int
    down: int  # rows of positions of the convolution
    across: int  # positions of a row
    taps: int  # inputs of a filter, 9 planes
    taps_pad: int
    filters: int
    hidden: int
    columns: int  # inputs of the dense layer, down x across x filters
    head_rows: int  # actions
    out_pad: int
    legal: bool
    precision: str  # "ieee", "tf32" or "bf16"
    norm_epsilon: float
    filter_weight: int
    filter_bias: int
    filter_gain: int
    filter_norm_bias: int
    weight: int
    weight_size: int
    bias: int
    gain: int
    norm_bias: int
    head_weight: int
    head_bias: int
    small: int  # number of parameters without the dense weight


def _power_of_two(number: int) -> bool:
    """Whether a positive number is a power of two."""
    return number & (number - 1) == 0


def unsupported_reason(policy: Policy, layout: Layout) -> str | None:
    """Return why these kernels cannot run a convolutional network with this layout of minibatches, as a sentence, or
    None if they can.
    """
    assert isinstance(policy.net, cnn.Convolutional)
    net, shape = policy.net, (*policy.env.observation.shape, 1)[:3]
    config = net.config
    channels, across = config.channels or (16,), shape[1] - 2
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
        max(shape[:2]) <= MAX_SIDE
        and _power_of_two(across)
        and across % POSITIONS == 0
        and 9 * shape[2] <= 128
        and policy.distribution.parameter_rows <= 32
    )
    if policy.env.pixels or policy.env.mask_size or not fits:
        return "fused kernels do not support this shape of board or these actions"
    samples = layout.samples
    if layout.block != BLOCK.value or not MIN_SAMPLES <= samples <= MAX_SAMPLES or not _power_of_two(samples):
        return (
            f"a minibatch of {samples} samples does not suit fused kernels: use a multiple of {BLOCK.value} lanes, and "
            f"{MIN_SAMPLES}, {2 * MIN_SAMPLES}, ... or {MAX_SAMPLES} samples"
        )
    return None


def describe(policy: Policy, precision: str) -> ConvolutionSpec:
    """Return the spec of a policy for which `unsupported_reason` is None."""
    assert isinstance(policy.net, cnn.Convolutional)
    offsets = dict(zip(policy.flat.names, policy.flat.offsets, strict=True))
    height, width, planes = (*policy.env.observation.shape, 1)[:3]
    (filters,), (hidden,) = policy.net.config.channels or (16,), policy.net.config.hidden
    columns, taps = (height - 2) * (width - 2) * filters, 9 * planes
    return ConvolutionSpec(
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
        filter_weight=offsets["body.filters.0.weight"],
        filter_bias=offsets["body.filters.0.bias"],
        filter_gain=offsets["body.norm_gains.0"],
        filter_norm_bias=offsets["body.norm_biases.0"],
        weight=offsets["weights.0"],
        weight_size=hidden * columns,
        bias=offsets["biases.0"],
        gain=offsets["norm_gains.0"],
        norm_bias=offsets["norm_biases.0"],
        head_weight=offsets["head_weight"],
        head_bias=offsets["head_bias"],
        small=policy.flat.values.numel() - hidden * columns,
    )


@dataclass(frozen=True)
class Tiling:
    """Placeholder for a tile config: this engine has a fixed tiling."""

    chunks: int

    def __str__(self) -> str:
        return ""


class ConvolutionLearner(Learner[B, C]):
    """Engine of a Q-network with one convolution: a program takes one row of positions of BLOCK samples, in the
    backward pass POSITIONS positions of all samples.
    """

    spec: Any  # ConvolutionSpec

    def __init__(self, policy: Policy, task: Task[B, C], precision: str) -> None:
        spec = describe(policy, precision)
        samples = task.layout.samples
        self._groups = spec.across // POSITIONS
        self._head_tile = max(HEAD_TILE, samples // 32)
        rows = max(32, 1 << (self._groups * spec.down - 1).bit_length())
        super().__init__(spec, task, Tiling(1))  # type: ignore[arg-type]
        device, self._samples = policy.device, samples
        self._width = spec.small + REDUCE_COLUMNS.value
        self._partial = torch.zeros(rows, self._width, device=device)
        self._squares = torch.zeros(self._groups * spec.down + spec.small // REDUCE_COLUMNS.value, device=device)
        self._row_sums = torch.zeros(spec.down, max(samples, self._lanes), spec.hidden, device=device)
        self._grad_z = torch.zeros(samples, spec.hidden, device=device)

    def fits(self) -> bool:
        """Whether the GPU has enough shared memory for all kernels. Compiles them without a launch."""
        return self._fits_shared(
            self.policy.device, lambda: self.act(0), lambda: self.bootstrap(finals=True), lambda: self.update(1)
        )

    # COLLECT

    def act(self, t: int, lanes: slice | None = None) -> None:
        """Write epsilon-greedy actions and max_a Q of step t for all lanes; `lanes` must be None."""
        self._forward(t, self._lanes, act=True)
        self.launch(
            act_on_rows,
            (self._lanes // HEAD_TILE,),
            self._row_sums,
            self.hooks.acting(),
            self._values,
            t,
            self._lanes,
            SPEC=self.spec,
            SAMPLE=self.hooks.sample,
            TILE=HEAD_TILE,
            num_warps=8,
        )

    def _forward(self, first: int, samples: int, *, act: bool) -> None:
        """Write each row of positions' contribution to the dense layer's pre-activations, for `samples` samples: with
        `act` the lanes of step `first`, otherwise blocks from number `first` of the shuffled order on.
        """
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
        """Write values of the observations after the last step, and with `finals` of the true final observations of
        truncated lanes.
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
            VALUE=self.hooks.value_of,
            num_warps=8,
            num_stages=1,
        )

    # UPDATE

    def backward(self, k: int) -> None:
        """Compute the gradient of the dense weight over minibatch k, counted over all epochs, and partial sums of all
        other gradients.
        """
        spec, samples, first = self.spec, self._samples, k * self.layout.shards * self.layout.shard_blocks
        self._forward(first, samples, act=False)
        self.launch(
            backward_rows,
            (samples // self._head_tile,),
            self.buffers.order,
            first,
            self._row_sums,
            samples,
            self.hooks.samples(),
            self._values,
            self._grad_z,
            self._partial,
            self._width,
            self._lanes,
            SPEC=spec,
            LOSS=self.hooks.loss,
            TILE=self._head_tile,
            num_warps=4,
            num_stages=1,
        )
        self.launch(
            backward_positions,
            (self._groups, spec.down),
            self.buffers.rollout.observation,
            self.buffers.order,
            first,
            self._values,
            self._grad_z,
            self._gradient,
            self._squares,
            self._partial,
            self._width,
            samples,
            self._lanes,
            SPEC=spec,
            POSITIONS=POSITIONS,
            TILE=min(TILE, samples),
            num_warps=8,
            num_stages=1,
        )

    def reduce(self) -> None:
        """Sum the partial sums to the gradient of all parameters except the dense weight, and pass the loss terms to
        `record`.
        """
        self.launch(
            reduce_small,
            (self._width // REDUCE_COLUMNS.value,),
            self._partial,
            self._width,
            self._gradient,
            self._squares[self._groups * self.spec.down :],
            self._values,
            self.hooks.update(),
            SPEC=self.spec,
            RECORD=self.hooks.record,
            ROWS=len(self._partial),
            num_warps=4,
        )


def build(task: Task[B, C], precision: str) -> tuple[ConvolutionLearner[B, C] | None, str | None]:
    """Build the engine of a task whose network has a convolution; return it and None, or None and the reason why it is
    not supported, a sentence.
    """
    steps, lanes = task.buffers.rollout.reward.shape
    reason = unsupported_reason(task.policy, task.layout)
    if reason is None and (steps + 1) * lanes * task.policy.env.observation.size >= 1 << 31:
        reason = f"an iteration of {steps} steps of {lanes:,} boards holds more than 2^31 values"
    if reason is not None:
        return None, reason
    learner = ConvolutionLearner(task.policy, task, precision)
    if task.policy.device.type == "cuda" and (reason := learner.unsupported_reason(precision)) is not None:
        return None, reason
    log.info("kernels: fused, for boards")
    return learner, None
