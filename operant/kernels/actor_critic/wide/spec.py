"""Compile-time specification of wide networks and large batches, and the tile sizes of their kernels. The module works
without Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from operant.kernels.actor_critic.spec import MIN_COLUMNS, TILE, ActorCriticSpec, common_limits, describe_common
from operant.kernels.actor_critic.task import ActorCriticTask
from operant.kernels.spec import padded
from operant.nn import FlatVector, MLPEnsemble, SquashedActor

MAX_WIDTH, MAX_LAYERS, BLOCK_M = 1024, 6, TILE
"""Maximum units of a layer and hidden layers; maximum rows of a program's tile outside large products."""

MAX_PROGRAMS = 512
"""Maximum programs that sum vectors' gradients, a row of partial sums each: as many as a GPU runs at once."""

MAX_PART, MAX_EQUAL_PARTS = 256, 4
"""Maximum units of a part of a row; maximum number of equal parts, beyond which parts differ in size."""

MAX_BATCH_PARTS = 16

MAX_COLUMNS, MAX_FIRST_COLUMNS = 1024, 128
"""Maximum values of observation and action together; input columns beyond which a first layer is as any other layer:
its product is the library's, and its pre-activations are saved.
"""

MAX_TILE, LARGE_WIDTH, MAX_LARGE_TILE, STAGES, SLACK = 64 * 192, 192, 128 * 384, 3, 4096
"""Maximum accumulated values of a program of a whole hidden layer; width beyond which bf16 layers may accumulate the
larger maximum; its pipeline stages; other shared memory it takes, in bytes.
"""

FIRST_BLOCK_M, FIRST_BLOCK_N = 64, 64
"""Tile of the first layer's kernel."""

PROGRAMS = 2112
"""Maximum programs of a pass over a layer: sixteen a multiprocessor, one warp each."""

HEADS: dict[str, Any] = {"warps": 1, "values": 4}
HEAD_STAGES = 3
"""Warps of a head's kernel, values of a part of a row a thread holds; its pipeline stages."""

BLOCK_SIZE, REDUCE_BLOCK_M, REDUCE_BLOCK_N = 1024, 128, 32
"""Parameters that a program steps; tile of the reduction of partial sums."""

BACKWARD_TILES = 2
FIRST_TILE, GRADIENT_BLOCK_M = 128, 64
"""Unit tiles of a program of `first_backward` and rows and columns of each; rows of a tile of `first_gradient`."""

FEW_ACTIONS = 4
"""Maximum values of an action whose gradients are loops over outputs; beyond it they are matrix products."""

MAX_ACTIONS = 32
"""Maximum values of an action: a program holds the gradient of the whole head's weight."""

MAX_ATOMS = 128
"""Maximum atoms of a distributional critic."""

MAX_LAST = 256
"""Maximum units of the last hidden layer: a program holds the actor's whole head."""


@dataclass(frozen=True)
class WideLayer:
    """Sizes of a hidden layer, and offsets of its parameters (towers, ...) in the flat vector."""

    width: int
    pad: int  # a power of two, at least the width
    inputs: int
    weight: int
    bias: int
    gain: int  # -1 without layer normalization, as `shift`
    shift: int
    # number of partial sums: bias, gain, shift; in the last layer also the rows of the head's weight, and its bias
    vectors: int
    partial: int  # index of the first of them, in vectors of `WideNet.pad`
    parts: tuple[int, ...]  # the width, rounded up to a multiple of 16, as powers of two
    starts: tuple[int, ...]  # first unit of each part


@dataclass(frozen=True)
class WideNet:
    """Hidden layers of a network, and sizes and offsets of its head."""

    towers: int
    layers: tuple[WideLayer, ...]
    outputs: int
    head_weight: int
    head_bias: int
    vectors: int  # of a tower in a row of partial sums
    pad: int  # a power of two, at least the widths of the layers and the outputs
    programs: int  # of a tower, rows of partial sums; a power of two


@dataclass(frozen=True, kw_only=True)
class WideSpec(ActorCriticSpec):
    """Specification of wide networks: `actor` and `critic` are `WideNet`s."""

    parts: int  # of a batch, over which a first layer's gradient is summed separately
    layer_norm: bool
    saves_z: bool  # the backward pass reads pre-activations; otherwise activations are enough
    atoms: int  # of distributional critics, padded; otherwise 0


def _parts(width: int) -> tuple[int, ...]:
    """Return the powers of two, up to MAX_PART, into which a width (a multiple of 16) is split: few equal ones if
    possible, else largest first.
    """
    size = min(MAX_PART, width & -width)
    if width <= MAX_EQUAL_PARTS * size:
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
    separate_head: bool = False,
) -> WideNet:
    """Lay out the network of a flat vector. `outputs`: of a tower; `tiles`: of a batch; `separate_head`: the gradient
    of its output layer is computed without partial sums.
    """
    offset_of = dict(zip(flat.names, flat.offsets, strict=True))
    layers, partial = list[WideLayer](), 0
    for k, width in enumerate(hidden):
        last = k == len(hidden) - 1
        vectors = 3 + (outputs + 1 if last and not separate_head else 0)
        layers.append(
            WideLayer(
                width,
                padded(width),
                inputs if k == 0 else hidden[k - 1],
                offset_of[f"weights.{k}"],
                offset_of[f"biases.{k}"],
                offset_of.get(f"norm_gains.{k}", -1),
                offset_of.get(f"norm_biases.{k}", -1),
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
        offset_of[f"weights.{last}"],
        offset_of[f"biases.{last}"],
        partial,
        max(padded(outputs), *(layer.pad for layer in layers)),
        1 << (min(MAX_PROGRAMS // towers, 2 * tiles).bit_length() - 1),
    )


def describe(task: ActorCriticTask, precision: str) -> WideSpec:
    """Return the specification of a task's networks for products in `precision`: "fp32", "tf32" or "bf16"."""
    config, actor = task.config, task.actor
    assert isinstance(actor.net, MLPEnsemble)
    common = describe_common(task, precision)
    net, observation, action = actor.net.config, common["observation"], common["action"]
    tiles, heads, c51 = config.batch_size // BLOCK_M, 2 if common["stochastic"] else 1, config.critic == "c51"
    inputs, hidden, outputs = observation + action, net.of_critics.hidden, config.outputs
    tile = min(common["columns"], max(MIN_COLUMNS, padded(action)))
    common |= {"action_columns": tile, "action_start": min(observation, common["columns"] - tile)}
    return WideSpec(
        **common,
        actor=describe_net(actor.flat, 1, observation, net.hidden, heads * action, tiles),
        critic=describe_net(task.critic, config.critics, inputs, hidden, outputs, tiles, separate_head=c51),
        parts=min(MAX_BATCH_PARTS, tiles & -tiles) if common["columns"] <= MAX_FIRST_COLUMNS else 1,
        layer_norm=net.layer_norm,
        saves_z=net.layer_norm or net.activation != "relu",
        atoms=max(BLOCK_M, padded(config.atoms)) if c51 else 0,
    )


def own_first_layer(shape: WideSpec) -> bool:
    """Whether the first layer's inputs are few enough for the kernels of `first_layer`; otherwise it is computed like
    any other layer.
    """
    return shape.columns <= MAX_FIRST_COLUMNS


def layer_tile(shape: WideSpec, net: WideNet, k: int, rows: int, max_shared: int) -> tuple[int, int] | None:
    """Return the tile (BLOCK_M, BLOCK_K) of a program of whole rows of hidden layer k, or None if the library's product
    is faster, as of the first layer with many columns. `rows` are multiplied; `max_shared`: bytes of shared memory that
    a program may take.
    """
    layer, half = net.layers[k], shape.precision == "bf16"
    if k == 0 or layer.width % 16 or layer.inputs % 16 or len(set(layer.parts)) > 1:
        return None
    max_tile = MAX_LARGE_TILE if half and layer.width > LARGE_WIDTH else MAX_TILE
    tiles = (
        (block_m, block_k)
        for block_m in (128, 64, 32, BLOCK_M)
        for block_k in ((64, 32, 16) if half else (32, 16))
        if rows % block_m == 0
        and block_m * layer.width <= max_tile
        and layer.inputs % block_k == 0
        and STAGES * (block_m + layer.width) * block_k * (2 if half else 4) + SLACK <= max_shared
    )
    tile = next(tiles, None)
    return tile if tile is None or tile[0] >= 64 or k == len(net.layers) - 1 else None


def backward_tile(shape: WideSpec, net: WideNet) -> tuple[int, int, int] | None:
    """Return the tile (BLOCK_M, BLOCK_N, BLOCK_K) of `first_backward`, or None if the library's product and a pass
    after it are faster, as with layer normalization.
    """
    first, second, *_ = net.layers
    block_m = min(FIRST_TILE, shape.batch & -shape.batch)
    block_n, block_k = min(FIRST_TILE, first.width & -first.width), min(64, second.width & -second.width)
    faster = (
        own_first_layer(shape)
        and not shape.layer_norm
        and min(block_n, block_k) >= 16
        and (shape.precision == "bf16" or first.width <= 64)
        and shape.action <= FEW_ACTIONS
    )
    return (block_m, block_n, block_k) if faster else None


def gradient_tile(shape: WideSpec, net: WideNet) -> tuple[int, int] | None:
    """Return the tile (BLOCK_M, BLOCK_N) of `first_gradient`, or None if the library's product is faster."""
    width, part = net.layers[0].width, shape.batch // shape.parts
    block_n = min(FIRST_TILE, width & -width)
    return (
        (min(GRADIENT_BLOCK_M, part & -part), block_n)
        if own_first_layer(shape) and block_n >= 16 and (shape.precision == "bf16" or width <= 64)
        else None
    )


def backward_grid(net: WideNet, block_n: int) -> tuple[int, int]:
    """Return the number of programs of `first_backward` over the first layer's units, and the number of unit tiles of
    each program; `block_n`: units of a tile.
    """
    tiles = net.layers[0].width // block_n
    return (tiles // BACKWARD_TILES, BACKWARD_TILES) if tiles % BACKWARD_TILES == 0 else (tiles, 1)


def applies(task: ActorCriticTask) -> bool:
    """Whether the task has dense layers and continuous actions, as these kernels require."""
    return isinstance(task.actor.net, MLPEnsemble) and isinstance(task.actor, SquashedActor)


def unsupported_reason(task: ActorCriticTask) -> str | None:
    """Return the reason why these kernels cannot run the task, as a clause for a message, or None if they can."""
    if not applies(task):
        return "large batches and wide networks are fused for dense layers and continuous actions only"
    config, actor = task.config, task.actor
    assert isinstance(actor.net, MLPEnsemble)
    net, actions = actor.net.config, actor.env.action_size
    networks = net.hidden, net.of_critics.hidden
    layers = next((len(hidden) for hidden in networks if not 1 < len(hidden) <= MAX_LAYERS), 0)
    reasons = {
        f"a support of {config.atoms} atoms is larger than {MAX_ATOMS}": config.critic == "c51"
        and config.atoms > MAX_ATOMS,
        "rewards are scaled (algo.normalize_returns)": config.scales_rewards and config.critic != "c51",
        f"the network has {layers} hidden layers (must be 2 to {MAX_LAYERS})": layers > 0,
        f"a layer has more than {MAX_WIDTH} units": max(map(max, networks)) > MAX_WIDTH,
        f"the last hidden layer has more than {MAX_LAST} units": max(hidden[-1] for hidden in networks) > MAX_LAST,
        **common_limits(task, MAX_COLUMNS),
        f"an action of {actions} values has more than {MAX_ACTIONS}": actions > MAX_ACTIONS,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
