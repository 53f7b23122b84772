"""Flicker wrapper: observations are blank at random (Hausknecht & Stone 2015, "Deep Recurrent Q-Learning for Partially
Observable MDPs").

The draw for each observation is stored in an extra state row after the environment's own, so that all shards of an
observation, and the final observation, agree. It uses a separate random draw: the same actions lead through the same
states as without flicker.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple

from numpy import float32

from operant.compute.device import device
from operant.compute.rng import uniform
from operant.envs.base import Env

_DRAW = 65_535  # the last draw index of a step, used by no environment


def with_flicker(env: Env, probability: float) -> Env:
    """Copy an environment and blank each of its observations (all zeros) with a probability in [0, 1].

    With pixel observations a blank is a black picture, in films and in the viewer as well.
    """
    if not probability:
        return env
    wrapped = _wrap(replace(env, name=""), float(probability))
    return replace(env, fields=env.fields + 1, **wrapped._asdict())


class _WrappedFunctions(NamedTuple):
    """Functions of an environment with flicker (observations that are blank at random)."""

    reset: Any
    step: Any
    observe: Any
    pixel_shader: Any


@functools.cache
def _wrap(env: Env, probability: float) -> _WrappedFunctions:
    """Wrap the functions of an environment with flicker: observations are blank with this probability. Cached, so that
    equal environments share one compiled kernel.
    """
    reset, step = _reset_and_step(env, float32(probability))
    pixels = env.pixels > 0
    return _WrappedFunctions(
        reset, step, env.observe if pixels else _observe(env), _pixel_shader(env) if pixels else env.pixel_shader
    )


def _reset_and_step(env: Env, probability: float32) -> tuple[Any, Any]:
    """Make the `reset` and `step` of an environment with flicker (observations that are blank at random): they also
    draw whether the next observation is blank.
    """
    reset_, step_, row = env.reset, env.step, env.fields

    @device
    def draw(s, key):
        s[row] = float32(1.0) if uniform(key, _DRAW) < probability else float32(0.0)

    if env.int_state is not None or env.workspace:

        @device
        def reset(s, ints, workspace, p, key):
            reset_(s, ints, workspace, p, key)
            draw(s, key)

        @device
        def step(s, ints, workspace, action, p, key, tally):
            draw(s, key)
            return step_(s, ints, workspace, action, p, key, tally)

    elif env.memory:

        @device
        def reset(s, memory, p, key):
            reset_(s, memory, p, key)
            draw(s, key)

        @device
        def step(s, memory, action, p, key, tally):
            draw(s, key)
            return step_(s, memory, action, p, key, tally)

    else:

        @device
        def reset(s, p, key):
            reset_(s, p, key)
            draw(s, key)

        @device
        def step(s, action, p, key, tally):
            draw(s, key)
            return step_(s, action, p, key, tally)

    return reset, step


def _observe(env: Env) -> Any:
    """Make the `observe` of an environment with flicker (observations that are blank at random): it writes zeros for a
    blank observation.

    A blank shard zeroes an equal part of all rows, which may differ from the rows that it writes otherwise; together
    the shards still write every row.
    """
    observe_, row, size, shards = env.observe, env.fields, env.observation.size, max(env.observation_shards, 1)

    @device
    def blank(obs, shard):
        for k in range(size * shard // shards, size * (shard + 1) // shards):
            obs[k] = 0

    if env.observation_shards and env.int_state is not None:

        @device
        def observe(s, ints, obs, p, shard):
            if s[row] != float32(0.0):
                blank(obs, shard)
            else:
                observe_(s, ints, obs, p, shard)

    elif env.observation_shards:

        @device
        def observe(s, obs, p, shard):
            if s[row] != float32(0.0):
                blank(obs, shard)
            else:
                observe_(s, obs, p, shard)

    elif env.int_state is not None or env.workspace:

        @device
        def observe(s, ints, workspace, obs, p):
            if s[row] != float32(0.0):
                blank(obs, 0)
            else:
                observe_(s, ints, workspace, obs, p)

    else:

        @device
        def observe(s, obs, p):
            if s[row] != float32(0.0):
                blank(obs, 0)
            else:
                observe_(s, obs, p)

    return observe


def _pixel_shader(env: Env) -> Any:
    """Make the `pixel_shader` of an environment with flicker (observations that are blank at random): it returns black
    for a blank observation.
    """
    shade: Any = env.pixel_shader
    row, black = env.fields, (float32(0.0), float32(0.0), float32(0.0))

    if env.int_state is not None or env.picture:  # `ints` is then the picture's column

        @device
        def pixel_shader(s, ints, p, x, y):
            red, green, blue = black
            if s[row] == float32(0.0):
                red, green, blue = shade(s, ints, p, x, y)
            return red, green, blue

    else:

        @device
        def pixel_shader(s, p, x, y):
            red, green, blue = black
            if s[row] == float32(0.0):
                red, green, blue = shade(s, p, x, y)
            return red, green, blue

    return pixel_shader
