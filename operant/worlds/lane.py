"""Kernel bodies that step and reset one lane of any environment. The bodies call the functions that an
`operant.envs.Env` declares.

Implements once what every environment needs: automatic resets, time limits, true final observations, episode sums,
random numbers. A step of a lane at tick t:

    clip a Box action -> step -> age + 1 -> truncated when the age reaches the time limit
    if the episode ended: write the true final observation; add its tallies to `finished`; reset (numbers of tick t)
    observe, and write the legal actions if the environment defines them

An environment observed by pictures (`Env.pixels`) has them drawn by separate kernels, one thread per pixel, and its
step is split around them: `begin_body`, final pictures, `end_body`, pictures.

An environment with sharded observations (`Env.observation_shards`) steps all lanes first; then one thread per lane and
shard writes them (`shards_body`), shard 0 of all lanes first. Training uses too few lanes to fill a GPU, and a single
thread would wait for each value it loads; a CPU, too, writes one row of many lanes faster than the rows of one. A
truncated lane's final observation is still written by the thread that steps it: it is too rare to be worth a launch per
step.

`lanes` and `slot` are `Lanes` and `Slot` of arrays.

The nested functions are variants chosen at compile time by the environment's declaration, so that the bodies are
written once: with or without integer state and workspace (`_functions`, `_adapt_writer`, `shard_function`) or memory,
parameters as constants or read from memory (`_read_changing`), Discrete, MultiDiscrete or Box actions
(`_adapt_action`), with or without observation, legal actions and tallies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy import float32, uint32

from operant.compute import rng
from operant.compute.device import device, device_params
from operant.envs import Box, Discrete, Env
from operant.physics.local import lane_memory

_LOW_32 = 0xFFFFFFFF


class _Functions(NamedTuple):
    """Environment functions with uniform signatures: each takes all lanes and a lane index i, independent of the
    buffers that the environment declares.
    """

    reset: Any  # (lanes, i, p, key)
    step: Any  # (lanes, i, action column, p, key) -> reward, terminated
    write_observation: Any  # (lanes, i, slot, p): write the observation
    write_final: Any  # (lanes, i, slot, p)
    write_legal: Any  # (lanes, i, slot, p): write the legal actions, if there are any
    add_tallies: Any  # (lanes, i): add the episode's tallies to `finished`


@device
def _no_op(lanes, i, slot, p):
    pass


def _functions(env: Env, params: Any, changing: Sequence[str] = ()) -> _Functions:
    """Wrap an environment's functions so that they take (lanes, i, ...) instead of lane i's columns, whichever buffers
    the environment declares. Parameters named in `changing` are read from `lanes.changing`, memory that a schedule
    updates.
    """
    reset_, step_ = env.reset, env.step
    if has_int_state(env):

        @device
        def reset(lanes, i, p, key):
            reset_(lanes.state[:, i], lanes.int_state[:, i], lanes.workspace[:, i], p, key)

        @device
        def act(lanes, i, action, p, key):
            return step_(
                lanes.state[:, i], lanes.int_state[:, i], lanes.workspace[:, i], action, p, key, lanes.running[1:, i]
            )

    elif env.memory:
        size = env.memory

        @device
        def reset(lanes, i, p, key):
            reset_(lanes.state[:, i], lane_memory(lanes.memory, i, size, float32), p, key)

        @device
        def act(lanes, i, action, p, key):
            memory = lane_memory(lanes.memory, i, size, float32)
            return step_(lanes.state[:, i], memory, action, p, key, lanes.running[1:, i])

    else:

        @device
        def reset(lanes, i, p, key):
            reset_(lanes.state[:, i], p, key)

        @device
        def act(lanes, i, action, p, key):
            return step_(lanes.state[:, i], action, p, key, lanes.running[1:, i])

    functions = _Functions(
        reset, _adapt_action(env, act), *_observation_writers(env), _legal_writer(env), _tally_adder(len(env.tally))
    )
    return _read_changing(functions, params, changing) if changing else functions


def _read_changing(functions: _Functions, params: Any, changing: Sequence[str]) -> _Functions:
    """Wrap an environment's functions so that the parameters named in `changing` are read from `lanes.changing`, memory
    that a schedule updates; the others stay compile-time constants.
    """
    reset_, step_, write_observation_, write_final_, write_legal_, add_tallies = functions
    make_params, values = type(params), _params_reader(device_params(params), changing)

    @device
    def reset(lanes, i, p, key):
        reset_(lanes, i, make_params(*values(lanes)), key)

    @device
    def step(lanes, i, column, p, key):
        return step_(lanes, i, column, make_params(*values(lanes)), key)

    @device
    def write_observation(lanes, i, slot, p):
        write_observation_(lanes, i, slot, make_params(*values(lanes)))

    @device
    def write_final(lanes, i, slot, p):
        write_final_(lanes, i, slot, make_params(*values(lanes)))

    @device
    def write_legal(lanes, i, slot, p):
        write_legal_(lanes, i, slot, make_params(*values(lanes)))

    return _Functions(reset, step, write_observation, write_final, write_legal, add_tallies)


def _params_reader(params: Any, changing: Sequence[str]) -> Any:
    """Make a device function `(lanes) -> tuple` of all parameters: those named in `changing` are read from
    `lanes.changing`, the others are constants. Built by composition, because compiled code has no heterogeneous lists.
    """
    found: Any = _empty
    for name, value in params._asdict().items():
        found = _with_read(found, list(changing).index(name)) if name in changing else _with_constant(found, value)
    return found


@device
def _empty(lanes):
    return ()


def _with_read(before: Any, index: int) -> Any:
    """Make a device function `(lanes) -> tuple` that appends `lanes.changing[index]` to the tuple that `before`
    returns.
    """

    @device
    def values(lanes):
        return (*before(lanes), lanes.changing[index])

    return values


def _with_constant(before: Any, value: Any) -> Any:
    """Make a device function `(lanes) -> tuple` that appends the constant `value` to the tuple that `before`
    returns.
    """

    @device
    def values(lanes):
        return (*before(lanes), value)

    return values


def _adapt_writer(env: Env, function: Any) -> Any:
    """Wrap an environment's `observe` or `legal` as a device function `(lanes, i, out, p)` that writes the whole column
    `out` of lane i. For a sharded environment it writes all shards (parts of the observation) in order.
    """
    shards = env.observation_shards
    if shards and env.int_state is not None:

        @device
        def whole(lanes, i, out, p):
            s, ints = lanes.state[:, i], lanes.int_state[:, i]
            for shard in range(shards):
                function(s, ints, out, p, uint32(shard))

    elif shards:

        @device
        def whole(lanes, i, out, p):
            s = lanes.state[:, i]
            for shard in range(shards):
                function(s, out, p, uint32(shard))

    elif has_int_state(env):

        @device
        def whole(lanes, i, out, p):
            function(lanes.state[:, i], lanes.int_state[:, i], lanes.workspace[:, i], out, p)

    else:

        @device
        def whole(lanes, i, out, p):
            function(lanes.state[:, i], out, p)

    return whole


def shard_function(env: Env, function: Any) -> Any:
    """Wrap a sharded `observe` or `legal` of an environment as a device function `(lanes, i, out, p, shard)`, which
    writes one shard (a part of the observation) of lane i.
    """
    if env.int_state is not None:

        @device
        def write(lanes, i, out, p, shard):
            function(lanes.state[:, i], lanes.int_state[:, i], out, p, shard)

    else:

        @device
        def write(lanes, i, out, p, shard):
            function(lanes.state[:, i], out, p, shard)

    return write


def _observation_writers(env: Env) -> tuple[Any, Any]:
    """Make the device functions `(lanes, i, slot, p)` that write a lane's observation and its final observation; no-ops
    for pictures, which other kernels draw.
    """
    if env.pixels:
        return _no_op, _no_op
    observe = _adapt_writer(env, env.observe)

    @device
    def write_observation(lanes, i, slot, p):
        observe(lanes, i, slot.observation[:, i], p)

    @device
    def write_final(lanes, i, slot, p):
        observe(lanes, i, slot.final_observation[:, i], p)

    return write_observation, write_final


def _legal_writer(env: Env) -> Any:
    """Make the device function `(lanes, i, slot, p)` that writes a lane's mask of legal actions; a no-op if the
    environment defines none.
    """
    if not env.mask_size:
        return _no_op
    legal = _adapt_writer(env, env.legal)

    @device
    def write_legal(lanes, i, slot, p):
        legal(lanes, i, slot.legal[:, i], p)

    return write_legal


def has_int_state(env: Env) -> bool:
    """Whether an environment's functions take integer state and a workspace (scratch integers) in addition to the
    float32 state.
    """
    return env.int_state is not None or env.workspace > 0


def _adapt_action(env: Env, act: Any) -> Any:
    """Wrap `act(lanes, i, action, p, key)` so that it takes the lane's action column (A): a Discrete action is passed
    as its only entry, a Box action is clipped to its bounds in place.
    """
    if isinstance(env.action, Discrete):

        @device
        def step(lanes, i, column, p, key):
            return act(lanes, i, column[0], p, key)

    elif isinstance(env.action, Box):
        lows, highs = (tuple(float32(bound) for bound in bounds) for bounds in env.action.bounds())

        @device
        def step(lanes, i, column, p, key):
            for k in range(len(lows)):
                column[k] = min(max(column[k], lows[k]), highs[k])
            return act(lanes, i, column, p, key)

    else:
        step = act
    return step


def _tally_adder(tallies: int) -> Any:
    """Make the device function `(lanes, i)` that adds an ended episode's tallies (the environment's own statistics) to
    `lanes.finished` and zeroes them; a no-op if `tallies`, their number, is 0.
    """

    @device
    def add_tallies(lanes, i):
        for k in range(tallies):
            lanes.finished[k, i] += lanes.running[1 + k, i]
            lanes.running[1 + k, i] = float32(0.0)

    @device
    def no_op(lanes, i):
        pass

    return add_tallies if tallies else no_op


@device
def _key(lanes, i, offset, purpose):
    """Key of the random numbers of lane i at tick `lanes.tick` + `offset`, an argument of `rng.uniform`; `purpose`
    separates steps from resets.
    """
    tick = lanes.tick[0] + offset
    lane = uint32(uint32(lanes.lane0) + i)
    return (
        uint32(lanes.seed[0]),
        uint32(lanes.seed[1]),
        lane,
        uint32(tick & _LOW_32),
        uint32(tick >> 32),
        uint32(purpose),
    )


def step_body(
    env: Env, params: Any, every_final: bool = True, sharded: bool = False, changing: Sequence[str] = ()
) -> Any:
    """Make the kernel body `(i, lanes, slot, offset)` that steps lane i of an environment and resets it if its episode
    ended. Without `every_final` no final observation of a terminated episode is written, because nothing bootstraps
    from it. With `sharded` no observation is written: `shards_body` does that.

    Parameters named in `changing` are read from `lanes.changing`; without any the code is unaffected. Scattered stores
    by single lanes cost a GPU far more than coalesced ones. Sums over ended episodes are therefore derived by
    `episode_sums` from values stored anyway.
    """
    reset, step, write_observation, write_final, write_legal, add_tallies = _functions(env, params, changing)
    if sharded:
        write_observation, write_legal = _no_op, _no_op
    p = device_params(params)
    limit = env.time_limit if env.time_limit is not None else 2**31 - 1

    @device
    def body(i, lanes, slot, offset):
        tick = lanes.tick[0] + offset
        tick_low, tick_high = uint32(tick & _LOW_32), uint32(tick >> 32)
        lane = uint32(uint32(lanes.lane0) + i)
        seed_low, seed_high = uint32(lanes.seed[0]), uint32(lanes.seed[1])

        # Issue all loads first: one memory latency instead of several.
        age, episode_return = lanes.age[i] + 1, lanes.running[0, i]
        key = (seed_low, seed_high, lane, tick_low, tick_high, uint32(rng.STEP))
        reward, terminated = step(lanes, i, slot.action[:, i], p, key)
        truncated = age >= limit
        episode_return += float32(reward)
        slot.reward[i] = float32(reward)
        slot.terminated[i] = 1 if terminated else 0
        slot.truncated[i] = 1 if truncated else 0

        if terminated or truncated:
            if every_final or not terminated:
                write_final(lanes, i, slot, p)
            reset(lanes, i, p, (seed_low, seed_high, lane, tick_low, tick_high, uint32(rng.RESET)))
            add_tallies(lanes, i)
            age, episode_return = 0, float32(0.0)
        lanes.age[i] = age
        lanes.running[0, i] = episode_return
        write_observation(lanes, i, slot, p)
        write_legal(lanes, i, slot, p)

    return body


def begin_body(env: Env, params: Any) -> Any:
    """Make the kernel body for the first half of a step of lane i, up to the end of its episode, in an environment
    observed by pictures. Once the final pictures are drawn, `end_body` does the second half.
    """
    step = _functions(env, params).step
    p = device_params(params)
    limit = env.time_limit if env.time_limit is not None else 2**31 - 1

    @device
    def body(i, lanes, slot, offset):
        age, episode_return = lanes.age[i] + 1, lanes.running[0, i]
        reward, terminated = step(lanes, i, slot.action[:, i], p, _key(lanes, i, offset, rng.STEP))
        slot.reward[i] = float32(reward)
        slot.terminated[i] = 1 if terminated else 0
        slot.truncated[i] = 1 if age >= limit else 0
        lanes.age[i] = age
        lanes.running[0, i] = episode_return + float32(reward)

    return body


def end_body(env: Env, params: Any) -> Any:
    """Make the kernel body for the second half of a step of lane i in an environment observed by pictures: it resets
    the lane if `begin_body` ended its episode, and writes its legal actions.
    """
    reset, _, _, _, write_legal, add_tallies = _functions(env, params)
    p = device_params(params)

    @device
    def body(i, lanes, slot, offset):
        if slot.terminated[i] != 0 or slot.truncated[i] != 0:
            reset(lanes, i, p, _key(lanes, i, offset, rng.RESET))
            add_tallies(lanes, i)
            lanes.age[i] = 0
            lanes.running[0, i] = float32(0.0)
        write_legal(lanes, i, slot, p)

    return body


def reset_body(env: Env, params: Any, sharded: bool = False, changing: Sequence[str] = ()) -> Any:
    """Make the kernel body `(i, lanes, slot, offset)` that resets lane i with the random numbers of the current tick.
    With `sharded` no observation is written: `shards_body` does that. Parameters named in `changing` are read from
    `lanes.changing`.
    """
    reset, _, write_observation, _, write_legal, _ = _functions(env, params, changing)
    if sharded:
        write_observation, write_legal = _no_op, _no_op
    p = device_params(params)
    rows = 1 + len(env.tally)

    @device
    def body(i, lanes, slot, offset):
        reset(lanes, i, p, _key(lanes, i, offset, rng.RESET))
        lanes.age[i] = 0
        for k in range(rows):
            lanes.running[k, i] = float32(0.0)
        write_observation(lanes, i, slot, p)
        write_legal(lanes, i, slot, p)

    return body


def shards_body(env: Env, params: Any, threads: int) -> Any:
    """Make the kernel body `(i, scene, slot, offset)` that writes observations and legal actions in shards (parts of an
    observation), with `threads` threads per lane: index i is thread i // N of lane i % N.

    Neighbouring threads write the same rows of neighbouring lanes. `scene` is a `pixels.Scene` of arrays. A launch of N
    at offset k runs thread k only.
    """
    observe = shard_function(env, env.observe)
    write_legal: Any = shard_function(env, env.legal) if env.mask_size else None
    p, shards = device_params(params), env.observation_shards

    @device
    def write(scene, lane, slot, shard):
        observe(scene, lane, slot.observation[:, lane], p, shard)

    @device
    def write_with_legal(scene, lane, slot, shard):
        observe(scene, lane, slot.observation[:, lane], p, shard)
        write_legal(scene, lane, slot.legal[:, lane], p, shard)

    write_shard = write if write_legal is None else write_with_legal

    @device
    def body(i, scene, slot, offset):
        count = uint32(scene.state.shape[1])
        thread, lane = uint32(uint32(i // count) + uint32(offset)), uint32(i % count)
        if threads == shards:
            write_shard(scene, lane, slot, thread)
        else:
            for shard in range(thread * shards // threads, (thread + 1) * shards // threads):
                write_shard(scene, lane, slot, uint32(shard))

    return body
