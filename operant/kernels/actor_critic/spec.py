"""Compile-time specification of an actor and its critics: the fields that kernels of both engines read, and the limits
that both engines have. The module works without Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from operant.kernels.actor_critic.task import ActorCriticTask, StochasticActor
from operant.kernels.spec import padded, statistics_index
from operant.nn import MLPEnsemble

MIN_COLUMNS = 32
"""Minimum input columns of first layers, and columns of a tile of actions. Where a product has no more
columns than rows, Triton 3.6 gives all columns to each warp, and does so in every product chained with it.
"""

TILE = 16
"""Samples of a program's tile outside large products; a batch has a multiple of them."""


@dataclass(frozen=True, kw_only=True)
class ActorCriticSpec:
    """Compile-time constants of an actor and its critics on one environment, for one batch size. All fields are plain
    values, so that a specification may be a constexpr of a Triton kernel. The engines add the shapes of their networks.
    """

    stochastic: bool  # the actor samples its actions (SAC); otherwise it is deterministic (TD3)
    automatic: bool  # the temperature is learned
    batch: int
    observation: int  # values of an observation
    action: int  # values of an action
    columns: int  # input columns of first layers, padded: observation, action, zeros
    action_start: int  # the first of these columns in a tile of actions
    action_columns: int  # columns of that tile
    activation: str
    precision: str  # "ieee", "tf32" or "bf16"
    approximate: bool  # tensor cores' approximations: false in "ieee"
    normalized: bool  # acting normalizes observations by running moments
    stat: Any  # index of each statistic by name
    actor: Any  # the actor's layers: a `narrow.spec.Net` or a `wide.spec.WideNet`
    critic: Any  # the critics', all of the same shape


def describe_common(task: ActorCriticTask, precision: str) -> dict[str, Any]:
    """Return the fields of `ActorCriticSpec` except `actor` and `critic`, for products in `precision`: "fp32", "tf32"
    or "bf16". A tile of actions has all columns.
    """
    actor, kind = task.actor, task.kind
    assert isinstance(actor.net, MLPEnsemble)
    observation, action = actor.features.columns, actor.env.action_size
    columns = max(MIN_COLUMNS, padded(observation + action))
    return {
        "stochastic": isinstance(kind, StochasticActor),
        "automatic": isinstance(kind, StochasticActor) and kind.adam is not None,
        "batch": task.config.batch_size,
        "observation": observation,
        "action": action,
        "columns": columns,
        "action_start": 0,
        "action_columns": columns,
        "activation": actor.net.config.activation,
        "precision": "ieee" if precision == "fp32" else precision,
        "approximate": precision != "fp32",
        "normalized": actor.features.normalizer is not None,
        "stat": statistics_index(task.terms),
    }


def common_limits(task: ActorCriticTask, max_columns: int) -> dict[str, bool]:
    """Return the reasons that make a task unsupported by either engine, as clauses for a message, and whether each
    holds. `max_columns`: values of observation and action together that the engine takes.
    """
    config, actor, observation = task.config, task.actor, task.actor.env.observation
    columns = actor.features.columns + actor.env.action_size
    return {
        f'algo.replay_sampling = "{config.replay_sampling}" is not supported (only "uniform")': config.replay_sampling
        != "uniform",
        f"observation and action have {columns} values together, more than {max_columns}": columns > max_columns,
        "the observation has bytes or categories": observation.dtype != "float32" or bool(observation.categories),
        "gradients are clipped (algo.max_gradient_norm)": config.max_gradient_norm > 0.0,
        f"a batch of {config.batch_size} is not a multiple of {TILE}": config.batch_size % TILE > 0,
    }
