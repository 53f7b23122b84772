"""What the kernels for wide networks and large batches are generated from. Plain numbers, so that a `Wide` may be a
constant of a kernel; knows no Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from operant.kernels import padded
from operant.kernels.actor_critic.shape import LEAST_COLUMNS, MAX_COLUMNS
from operant.kernels.actor_critic.task import Stochastic, Task
from operant.nn import FlatVector, MLPEnsemble, SquashedActor

MAX_WIDTH, MAX_LAYERS, ROWS = 1024, 6, 16
"""Units of a layer and hidden layers at most; and rows of a program's tile at most, where it is no larger product's."""

MAX_PROGRAMS = 512
"""Programs that add up gradients of biases, each a row of partial sums: as many as a GPU runs at once."""

MAX_PART, MOST_PARTS = 256, 4
"""Units of a part of a row at most; and parts of one size, above which they have several sizes."""

MAX_BATCH_PARTS = 16

SUMS, FEW_SUMS, MANY_SUMS, STAGES, SLACK = 64 * 192, 192, 128 * 384, 3, 4096
"""Numbers that a program of a whole hidden layer sums up at most, and in bf16 of layers of more than so many units; its
steps that are on their way, and what else it keeps, in bytes.
"""

FIRST_ROWS, FIRST_CHUNK = 64, 64
"""Rows and units at a time of a program of the first layer."""

PROGRAMS = 2112
"""Programs of a pass over a layer, at most: sixteen a multiprocessor, each of a warp."""

HEADS: dict[str, Any] = {"warps": 1, "each": 4}
HEAD_STAGES = 3
"""Warps of a pass of heads and a thread's numbers of a part of a row; tiles that are on their way."""

BLOCK, SUM_ROWS, SUM_UNITS = 1024, 128, 32
"""Parameters that a program steps; rows of sums and units that are added up at a time."""

SLOPE_PARTS = 2
FIRST_TILE, GRADIENT_ROWS = 128, 64
"""Tiles of a program on the way back to the first layer, and rows and columns of each; rows at a time of one that finds
its gradient.
"""

FEW_ACTIONS = 4
"""Numbers of an action up to which their gradients are a pass's own, and beyond a product's."""

MAX_ATOMS = 128
"""Values of a support, at most."""

MAX_LAST = 256
"""Units of the last hidden layer, at most: a program holds the head of an actor."""


@dataclass(frozen=True)
class WideLayer:
    """A hidden layer: its sizes, and where its parameters begin in the flat vector, another tower's behind them."""

    width: int
    pad: int  # a power of two, not below
    inputs: int
    weight: int
    bias: int
    gain: int  # -1 without layer normalization, as `shift`
    shift: int
    # of its partial sums: bias, gain, shift; of the last layer each row of the head's weight, and the head's bias
    vectors: int
    partial: int  # where they begin, as vectors of `WideNet.pad`
    parts: tuple[int, ...]  # its width, rounded up to a multiple of 16, as powers of two, and where each begins
    starts: tuple[int, ...]


@dataclass(frozen=True)
class WideNet:
    """A network's hidden layers, and its head."""

    towers: int
    layers: tuple[WideLayer, ...]
    outputs: int
    head_weight: int
    head_bias: int
    vectors: int  # of a tower in a row of partial sums
    pad: int
    programs: int  # of a tower, rows of partial sums; a power of two


@dataclass(frozen=True)
class Wide:
    """An actor and its critics on one environment, for a batch."""

    batch: int
    parts: int  # of a batch, in which a first layer's gradient is summed up
    observation: int
    action: int
    columns: int  # of what first layers read, padded: observation, action, zeros
    activation: str
    precision: str  # "ieee", "tf32" or "bf16"
    approximate: bool
    layer_norm: bool
    actor: WideNet
    critic: WideNet
    needs_sums: bool  # on the way back; else activations are enough
    automatic: bool  # the temperature is learned
    normalized: bool  # what is read is normalized by running moments
    atoms: int  # of critics that learn distributions, padded; of others 0


def _parts(width: int) -> tuple[int, ...]:
    """A multiple of 16 as powers of two up to MAX_PART: a few of one size where that can be, else the largest first."""
    size = min(MAX_PART, width & -width)
    if width <= MOST_PARTS * size:
        return (size,) * (width // size)
    size = min(MAX_PART, 1 << (width.bit_length() - 1))
    return (size, *_parts(width - size))


def describe_net(
    flat: FlatVector,
    towers: int,
    inputs: int,
    hidden: tuple[int, ...],
    outputs: int,
    tiles: int,
    *,
    apart: bool = False,
) -> WideNet:
    """The network of some towers whose parameters are a flat vector. `apart`: its head has no part in rows of partial
    sums.
    """
    begin = dict(zip(flat.names, flat.offsets, strict=True))
    layers, partial = list[WideLayer](), 0
    for k, width in enumerate(hidden):
        last = k == len(hidden) - 1
        vectors = 3 + (outputs + 1 if last and not apart else 0)
        layers.append(
            WideLayer(
                width,
                padded(width),
                inputs if k == 0 else hidden[k - 1],
                begin[f"weights.{k}"],
                begin[f"biases.{k}"],
                begin.get(f"norm_gains.{k}", -1),
                begin.get(f"norm_biases.{k}", -1),
                vectors,
                partial,
                parts := _parts(-(-width // 16) * 16),
                tuple(accumulate(parts[:-1], initial=0)),
            )
        )
        partial += vectors
    last = len(hidden)
    return WideNet(
        towers,
        tuple(layers),
        outputs,
        begin[f"weights.{last}"],
        begin[f"biases.{last}"],
        partial,
        max(layer.pad for layer in layers),
        1 << (min(MAX_PROGRAMS // towers, 2 * tiles).bit_length() - 1),
    )


def describe(task: Task, precision: str) -> Wide:
    """The shape of a task's networks in "fp32", "tf32" or "bf16"."""
    config, actor = task.config, task.actor
    assert isinstance(actor.net, MLPEnsemble)
    net, observation, action = actor.net.config, actor.features.columns, actor.env.action_size
    tiles = config.batch_size // ROWS
    return Wide(
        config.batch_size,
        min(MAX_BATCH_PARTS, tiles & -tiles),
        observation,
        action,
        max(LEAST_COLUMNS, padded(observation + action)),
        net.activation,
        "ieee" if precision == "fp32" else precision,
        precision != "fp32",
        net.layer_norm,
        describe_net(actor.flat, 1, observation, net.hidden, 2 * action, tiles),
        describe_net(
            task.critic,
            config.critics,
            observation + action,
            net.of_critics.hidden,
            config.outputs,
            tiles,
            apart=config.critic == "c51",
        ),
        net.layer_norm or net.activation != "relu",
        isinstance(task.kind, Stochastic) and task.kind.adam is not None,
        actor.features.normalizer is not None,
        max(ROWS, padded(config.atoms)) if config.critic == "c51" else 0,
    )


def layer_tile(shape: Wide, net: WideNet, k: int, rows: int, room: int) -> tuple[int, int] | None:
    """Rows of a program of a whole hidden layer, and how much of what it reads it takes at a time; None where the
    library's product does better.

    `room`: bytes of shared memory that a program may take.
    """
    layer, half = net.layers[k], shape.precision == "bf16"
    if layer.width % 16 or layer.inputs % 16 or len(set(layer.parts)) > 1:
        return None
    most = MANY_SUMS if half and layer.width > FEW_SUMS else SUMS
    fits = (
        (size, deep)
        for size in (128, 64, 32, ROWS)
        for deep in ((64, 32, 16) if half else (32, 16))
        if rows % size == 0
        and size * layer.width <= most
        and layer.inputs % deep == 0
        and STAGES * (size + layer.width) * deep * (2 if half else 4) + SLACK <= room
    )
    found = next(fits, None)
    return found if found is None or found[0] >= 64 or k == len(net.layers) - 1 else None


def first_tile(shape: Wide, net: WideNet) -> tuple[int, int, int] | None:
    """Rows and columns of a program on the way back to the first layer, and how much it takes at a time; None where the
    library's product does better.

    With layer normalization that product and a pass after it do.
    """
    first, second, *_ = net.layers
    rows = min(FIRST_TILE, shape.batch & -shape.batch)
    columns, deep = min(FIRST_TILE, first.width & -first.width), min(64, second.width & -second.width)
    own = (
        not shape.layer_norm
        and min(columns, deep) >= 16
        and (shape.precision == "bf16" or first.width <= 64)
        and shape.action <= FEW_ACTIONS
    )
    return (rows, columns, deep) if own else None


def gradient_tile(shape: Wide, net: WideNet) -> tuple[int, int] | None:
    """Rows and columns at a time of a program that finds the first layer's gradient; None where the library's product
    does.
    """
    width, share = net.layers[0].width, shape.batch // shape.parts
    columns = min(FIRST_TILE, width & -width)
    return (
        (min(GRADIENT_ROWS, share & -share), columns)
        if columns >= 16 and (shape.precision == "bf16" or width <= 64)
        else None
    )


def slope_tiles(net: WideNet, columns: int) -> tuple[int, int]:
    """Programs beside each other over the first layer's units, and how many tiles of so many columns each of them
    takes.
    """
    tiles = net.layers[0].width // columns
    return (tiles // SLOPE_PARTS, SLOPE_PARTS) if tiles % SLOPE_PARTS == 0 else (tiles, 1)


def applies(task: Task) -> bool:
    """Whether these kernels are meant for such a task: SAC with dense layers and continuous actions."""
    return (
        isinstance(task.actor.net, MLPEnsemble)
        and isinstance(task.kind, Stochastic)
        and isinstance(task.actor, SquashedActor)
    )


def unsupported_reason(task: Task) -> str | None:
    """Why there are no such kernels for these networks and this configuration, in a sentence; None where there are."""
    if not applies(task):
        return "large batches and wide networks are fused for SAC with dense layers and continuous actions only"
    config, actor, seen = task.config, task.actor, task.actor.env.observation
    assert isinstance(actor.net, MLPEnsemble)
    net, actions = actor.net.config, actor.env.action_size
    columns, networks = actor.features.columns + actions, (net.hidden, net.of_critics.hidden)
    layers = next((len(hidden) for hidden in networks if not 1 < len(hidden) <= MAX_LAYERS), 0)
    reasons = {
        f"a support of {config.atoms} atoms is larger than {MAX_ATOMS}": config.critic == "c51"
        and config.atoms > MAX_ATOMS,
        "rewards are scaled (algo.normalize_returns)": config.scales_rewards and config.critic != "c51",
        f'samples are not uniform (algo.replay_sampling = "{config.replay_sampling}")': config.replay_sampling
        != "uniform",
        f"the network has {layers} hidden layers, and theirs has 2 to {MAX_LAYERS}": layers > 0,
        f"a layer has more than {MAX_WIDTH} units": max(map(max, networks)) > MAX_WIDTH,
        f"the last hidden layer has more than {MAX_LAST} units": max(hidden[-1] for hidden in networks) > MAX_LAST,
        f"observation and action have {columns} numbers together, more than {MAX_COLUMNS}": columns > MAX_COLUMNS,
        "the observation has bytes or categories": seen.dtype != "float32" or bool(seen.categories),
        "gradients are clipped (algo.max_gradient_norm)": config.max_gradient_norm > 0.0,
        f"a batch of {config.batch_size} is not a multiple of {ROWS}": config.batch_size % ROWS > 0,
        f"{actions} numbers of an action are more than {LEAST_COLUMNS // 2}": 2 * actions > LEAST_COLUMNS,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
