"""What the kernels of actors and critics are generated from: networks' shapes, where parameters lie, and where packed
weights and intermediate results go.

Everything is a plain number, so that a `Shape` may be a constant of a Triton kernel. Knows no Triton.
"""

from __future__ import annotations

from dataclasses import dataclass

from operant.kernels import padded
from operant.kernels.actor_critic.task import Stochastic, Task
from operant.nn import FlatVector, MLPEnsemble, SquashedActor

NARROW_BLOCK, WIDE_BLOCK = 16, 32
"""Rows and columns of the block of a weight that one program steps: of a narrow network small ones, which fill the GPU.
"""

LEAST_COLUMNS = 32
"""Columns that first layers read, at least. Where a product has no more columns than rows Triton 3.6 gives each warp
all of them, and so in every product that it is chained with.
"""

MAX_COLUMNS, MAX_WIDTH, MAX_LAYERS, MAX_BATCH = 128, 256, 3, 2048
"""Observation and action together, units of a layer, hidden layers, samples of a batch: beyond those torch's products
do better, or a program has no room.
"""

TILE, MAX_CHUNK = 16, 256
"""Samples of a program's tile, and of a weight's gradient at a time, at most."""

NARROW = 128
"""Units and columns up to which a program has the registers for its weights before it needs them."""


@dataclass(frozen=True)
class Layer:
    """One weight (rows, columns) with its bias, of every tower of a network; `_pad` are the sizes of its packed copy,
    zero outside.
    """

    rows: int
    columns: int
    rows_pad: int
    columns_pad: int
    weight: int  # where it begins in the flat vector; another tower's rows x columns later
    bias: int
    packed: (
        int  # where its packed copy begins: of the first and a critic's last layer in `single`, of others in `packed`
    )
    packed_bias: int  # in `single`
    first: bool
    last: bool
    # where what it reads begins in `hidden`, a tower's (B, columns_pad) after another's; of the first layer nothing
    source: int
    gradient: int  # where the gradients of what it puts out begin in `gradient`, (B, rows_pad) a tower
    block_rows: int  # of the blocks that programs step
    block_columns: int
    program: int  # the first of its programs in a tower

    @property
    def programs(self) -> int:
        """Blocks, one a program."""
        return (self.rows_pad // self.block_rows) * (self.columns_pad // self.block_columns)


@dataclass(frozen=True)
class Net:
    """A network's layers, the last of which is its head; towers of the same shape lie side by side."""

    towers: int
    layers: tuple[Layer, ...]
    single: int  # numbers of a tower in `single`
    packed: int
    programs: int  # of a tower

    @property
    def hidden(self) -> int:
        """Hidden layers."""
        return len(self.layers) - 1


@dataclass(frozen=True)
class Shape:
    """An actor and its critics on one environment, for a batch."""

    stochastic: bool  # the actor draws its actions; otherwise it takes its means
    batch: int
    observation: int
    action: int
    columns: int  # padded, of what first layers read: observation, action, zeros
    activation: str
    precision: str  # "ieee", "tf32" or "bf16"
    approximate: bool
    actor: Net
    critic: Net
    chunk: int  # rows of a weight's gradient at a time
    deep: int  # what a product sums over at a time, at most
    early: bool  # weights are loaded before what they are multiplied with is known
    automatic: bool = True  # the temperature is learned
    squares: int = 256  # a power of two, not below the programs that step the critics
    bytes: bool = False  # as the building blocks ask: what the first layer reads are numbers, already normalized
    normalize: bool = False
    normalized: bool = False  # acting normalizes what it reads


def describe_net(
    towers: int,
    inputs: int,
    columns: int,
    hidden: tuple[int, ...],
    batch: int,
    weights: tuple[int, ...],
    biases: tuple[int, ...],
    head: int,
    head_pad: int,
    *,
    packed_head: bool,
) -> Net:
    """A network whose weights and biases begin at these places of its flat vector, the head's last."""
    rows, rows_pad = (*hidden, head), (*(padded(width) for width in hidden), head_pad)
    reads, reads_pad = (inputs, *hidden), (columns, *rows_pad[:-1])
    block = NARROW_BLOCK if max(*hidden, columns) <= NARROW else WIDE_BLOCK
    layers, single, packed, source, gradient, program = list[Layer](), 0, 0, 0, 0, 0
    for k, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        size, last = rows_pad[k] * reads_pad[k], k == len(hidden)
        in_single = k == 0 or (last and not packed_head)
        layer = Layer(
            rows[k],
            reads[k],
            rows_pad[k],
            reads_pad[k],
            weight,
            bias,
            single if in_single else packed,
            single + (size if in_single else 0),
            k == 0,
            last,
            source,
            gradient,
            min(rows_pad[k], block),
            min(reads_pad[k], block),
            program,
        )
        layers.append(layer)
        single, packed = single + rows_pad[k] + (size if in_single else 0), packed + (0 if in_single else size)
        source += 0 if k == 0 else towers * batch * reads_pad[k]
        gradient += towers * batch * rows_pad[k]
        program += layer.programs
    return Net(towers, tuple(layers), single, packed, program)


def _net(
    flat: FlatVector, *sizes: int, hidden: tuple[int, ...], batch: int, head: int, head_pad: int, packed_head: bool
) -> Net:
    """The network of some towers whose parameters are a flat vector."""
    begin = dict(zip(flat.names, flat.offsets, strict=True))
    layers = range(len(hidden) + 1)
    weights, biases = (tuple(begin[f"{name}.{k}"] for k in layers) for name in ("weights", "biases"))
    towers, inputs, columns = sizes
    return describe_net(
        towers, inputs, columns, hidden, batch, weights, biases, head, head_pad, packed_head=packed_head
    )


def describe(task: Task, precision: str) -> Shape:
    """The shape of a task's networks in "fp32", "tf32" or "bf16"."""
    config, actor, batch = task.config, task.actor, task.config.batch_size
    assert isinstance(actor.net, MLPEnsemble)
    net, observation, action = actor.net.config, actor.features.columns, actor.env.action_size
    judging = net.of_critics.hidden
    stochastic, columns = isinstance(task.kind, Stochastic), max(LEAST_COLUMNS, padded(observation + action))
    heads = 2 if stochastic else 1
    policy = _net(
        actor.flat,
        1,
        observation,
        columns,
        hidden=net.hidden,
        batch=batch,
        head=heads * action,
        head_pad=heads * columns,
        packed_head=True,
    )
    critic = _net(
        task.critic,
        config.critics,
        observation + action,
        columns,
        hidden=judging,
        batch=batch,
        head=1,
        head_pad=16,
        packed_head=False,
    )
    narrow = max(*net.hidden, *judging, columns) <= NARROW
    return Shape(
        stochastic,
        batch,
        observation,
        action,
        columns,
        net.activation,
        "ieee" if precision == "fp32" else precision,
        precision != "fp32",
        policy,
        critic,
        chunk=min(batch & -batch, MAX_CHUNK if narrow else MAX_CHUNK // 2),
        deep=MAX_WIDTH if precision == "bf16" else MAX_WIDTH // 4,
        early=narrow and precision != "fp32",
        automatic=isinstance(task.kind, Stochastic) and task.kind.adam is not None,
        squares=padded(critic.towers * critic.programs),
        normalized=actor.features.normalizer is not None,
    )


def unsupported_reason(task: Task) -> str | None:
    """Why there are no fused kernels for these networks and this configuration, in a sentence; None where there are."""
    config, actor = task.config, task.actor
    if not isinstance(actor.net, MLPEnsemble):
        return "the network is a cnn or your own, and theirs is of dense layers"
    net, seen, columns = actor.net.config, actor.env.observation, actor.features.columns + actor.env.action_size
    judging = net.of_critics.hidden
    reasons = {
        "actions are discrete": not isinstance(actor, SquashedActor),
        "the network has layer normalization": net.layer_norm,
        'critics learn distributions (algo.critic = "c51")': config.critic == "c51",
        "rewards are scaled (algo.normalize_returns)": config.scales_rewards,
        f'samples are not uniform (algo.replay_sampling = "{config.replay_sampling}")': config.replay_sampling
        != "uniform",
        f'activation "{net.activation}" is not one of theirs ("relu" and "tanh" are)': net.activation
        not in ("relu", "tanh"),
        f"the network has more than {MAX_LAYERS} hidden layers": max(len(net.hidden), len(judging)) > MAX_LAYERS,
        f"a layer has more than {MAX_WIDTH} units": max(*net.hidden, *judging) > MAX_WIDTH,
        f"observation and action have {columns} numbers together, more than {MAX_COLUMNS}": columns > MAX_COLUMNS,
        "the observation has bytes or categories": seen.dtype != "float32" or bool(seen.categories),
        "gradients are clipped (algo.max_gradient_norm)": config.max_gradient_norm > 0.0,
        f"a batch of {config.batch_size} is not a multiple of {TILE}": config.batch_size % TILE > 0,
        f"a batch of {config.batch_size} is larger than {MAX_BATCH}": config.batch_size > MAX_BATCH,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
