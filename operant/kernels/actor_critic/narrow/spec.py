"""Compile-time specification of narrow networks (up to 256 units): sizes, and offsets of parameters, packed weights and
intermediate results. The module works without Triton.
"""

from __future__ import annotations

from dataclasses import dataclass

from operant.kernels.actor_critic.spec import ActorCriticSpec, common_limits, describe_common
from operant.kernels.actor_critic.task import ActorCriticTask
from operant.kernels.spec import padded
from operant.nn import FlatVector, MLPEnsemble, SquashedActor

SMALL_BLOCK, LARGE_BLOCK = 16, 32
"""Rows and columns of the weight block that one program steps: small for small networks, to fill the GPU."""

MAX_WIDTH, MAX_LAYERS, MAX_BATCH, MAX_COLUMNS = 256, 3, 2048, 128
"""Limits: units of a layer, hidden layers, samples of a batch, values of observation and action together. Beyond
them torch's products are faster, or a program exceeds registers and shared memory.
"""

MAX_CHUNK = 256
"""Maximum samples of a batch that a weight's gradient sums at a time."""

PRELOAD_WIDTH = 128
"""Maximum units and columns at which a program has the registers to load weights before it needs them."""


@dataclass(frozen=True)
class Layer:
    """One layer of a network: sizes of its weight (rows, columns) and bias in every tower, and their offsets; `_pad`
    sizes are those of the packed copy, zero outside.
    """

    rows: int
    columns: int
    rows_pad: int
    columns_pad: int
    weight: int  # offset in the flat vector; towers are rows x columns apart
    bias: int
    # offset of the packed copy: in `PackedWeights.single` for the first layer and a critic's head, else in `packed`
    packed: int
    packed_bias: int  # offset in `PackedWeights.single`
    first: bool
    last: bool
    source: int  # offset of its inputs in `SavedLayers.hidden`, (B, columns_pad) a tower; unused in the first layer
    grad_z: int  # offset of its gradients in `SavedLayers.grad_z`, (B, rows_pad) a tower
    block_rows: int  # of the weight blocks that programs step
    block_columns: int
    program: int  # the first of its programs in a tower

    @property
    def programs(self) -> int:
        """Number of weight blocks of a tower, one a program."""
        return (self.rows_pad // self.block_rows) * (self.columns_pad // self.block_columns)


@dataclass(frozen=True)
class Net:
    """Layers of a network, the last of which is its head. All towers (critics) have the same shape."""

    towers: int
    layers: tuple[Layer, ...]
    single: int  # size of a tower in `PackedWeights.single`
    packed: int  # size of a tower in `PackedWeights.packed`
    programs: int  # of a tower

    @property
    def hidden(self) -> int:
        """Number of hidden layers."""
        return len(self.layers) - 1


@dataclass(frozen=True, kw_only=True)
class NarrowSpec(ActorCriticSpec):
    """Specification of narrow networks: `actor` and `critic` are `Net`s, with an offset for every buffer."""

    chunk: int  # samples that a weight's gradient sums at a time
    max_depth: int  # maximum inner dimension of one product
    preload: bool  # load weights before the inputs they are multiplied with are known
    squares: int  # a power of two, at least the number of programs that step the critics
    # For `operant.kernels.ops`: inputs of first layers are numeric and already normalized.
    bytes: bool = False
    normalize: bool = False


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
    """Lay out a network whose weights and biases begin at these offsets of its flat vector, those of the output layer
    (`head` rows) last. `packed_head`: the output layer has a packed copy for matrix products.
    """
    rows, rows_pad = (*hidden, head), (*(padded(width) for width in hidden), head_pad)
    inputs_of, inputs_pad = (inputs, *hidden), (columns, *rows_pad[:-1])
    block = SMALL_BLOCK if max(*hidden, columns) <= PRELOAD_WIDTH else LARGE_BLOCK
    layers, single, packed, source, grad_z, program = list[Layer](), 0, 0, 0, 0, 0
    for k, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        size, last = rows_pad[k] * inputs_pad[k], k == len(hidden)
        in_single = k == 0 or (last and not packed_head)
        layer = Layer(
            rows[k],
            inputs_of[k],
            rows_pad[k],
            inputs_pad[k],
            weight,
            bias,
            single if in_single else packed,
            single + (size if in_single else 0),
            k == 0,
            last,
            source,
            grad_z,
            min(rows_pad[k], block),
            min(inputs_pad[k], block),
            program,
        )
        layers.append(layer)
        single, packed = single + rows_pad[k] + (size if in_single else 0), packed + (0 if in_single else size)
        source += 0 if k == 0 else towers * batch * inputs_pad[k]
        grad_z += towers * batch * rows_pad[k]
        program += layer.programs
    return Net(towers, tuple(layers), single, packed, program)


def _net(
    flat: FlatVector, *sizes: int, hidden: tuple[int, ...], batch: int, head: int, head_pad: int, packed_head: bool
) -> Net:
    """Lay out the network of a flat vector, of `sizes` towers, inputs and padded inputs. `packed_head`: its output
    layer has a packed copy for matrix products.
    """
    offset_of = dict(zip(flat.names, flat.offsets, strict=True))
    layers = range(len(hidden) + 1)
    weights, biases = (tuple(offset_of[f"{name}.{k}"] for k in layers) for name in ("weights", "biases"))
    towers, inputs, columns = sizes
    return describe_net(
        towers, inputs, columns, hidden, batch, weights, biases, head, head_pad, packed_head=packed_head
    )


def describe(task: ActorCriticTask, precision: str) -> NarrowSpec:
    """Return the specification of a task's networks for products in `precision`: "fp32", "tf32" or "bf16"."""
    config, actor, batch = task.config, task.actor, task.config.batch_size
    assert isinstance(actor.net, MLPEnsemble)
    common = describe_common(task, precision)
    net, observation, action, columns = actor.net.config, common["observation"], common["action"], common["columns"]
    critic_hidden, heads = net.of_critics.hidden, 2 if common["stochastic"] else 1
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
        hidden=critic_hidden,
        batch=batch,
        head=1,
        head_pad=16,
        packed_head=False,
    )
    small = max(*net.hidden, *critic_hidden, columns) <= PRELOAD_WIDTH
    return NarrowSpec(
        **common,
        actor=policy,
        critic=critic,
        chunk=min(batch & -batch, MAX_CHUNK if small else MAX_CHUNK // 2),
        max_depth=MAX_WIDTH if precision == "bf16" else MAX_WIDTH // 4,
        preload=small and precision != "fp32",
        squares=padded(critic.towers * critic.programs),
    )


def unsupported_reason(task: ActorCriticTask) -> str | None:
    """Return the reason why these kernels cannot run the task, as a clause for a message, or None if they can."""
    config, actor = task.config, task.actor
    if not isinstance(actor.net, MLPEnsemble):
        return "only dense networks are supported, and this one is a cnn or your own"
    net = actor.net.config
    critic_hidden = net.of_critics.hidden
    reasons = {
        "actions are discrete": not isinstance(actor, SquashedActor),
        "the network has layer normalization": net.layer_norm,
        'critics learn distributions (algo.critic = "c51")': config.critic == "c51",
        "rewards are scaled (algo.normalize_returns)": config.scales_rewards,
        f'activation "{net.activation}" is not supported (only "relu" and "tanh")': net.activation
        not in ("relu", "tanh"),
        f"the network has more than {MAX_LAYERS} hidden layers": max(len(net.hidden), len(critic_hidden)) > MAX_LAYERS,
        f"a layer has more than {MAX_WIDTH} units": max(*net.hidden, *critic_hidden) > MAX_WIDTH,
        **common_limits(task, MAX_COLUMNS),
        f"a batch of {config.batch_size} is larger than {MAX_BATCH}": config.batch_size > MAX_BATCH,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
