"""Checks of an environment's declaration: spaces, functions, parameters and playing. Compiles and runs nothing."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator

from numba.core.dispatcher import Dispatcher

from operant.envs import ranges
from operant.envs.base import Box, Discrete, Env, IntState, MultiDiscrete


def declaration_problems(env: Env) -> list[str]:
    """Check an environment's declaration (spaces, functions, parameters, fields for playing) and return its problems,
    one message each; [] if it is valid.
    """
    problems = [*_space_problems(env), *_function_problems(env)]
    try:
        params = env.Params()
        if (
            not isinstance(params, tuple)
            or not hasattr(params, "_asdict")
            or not all(isinstance(value, (bool, int, float)) for value in params)
        ):
            problems.append("Params must be a NamedTuple of numbers")
        else:
            problems += ranges.declaration_problems(env)
    except TypeError as error:
        problems.append(f"every field of Params needs a default ({error})")
    if not isinstance(env.fields, int) or env.fields < 0 or (env.fields == 0 and env.int_state is None):
        problems.append(f"fields is {env.fields!r}: rows of the state, at least 1 (or 0 with int_state)")
    if env.time_limit is not None and (not isinstance(env.time_limit, int) or env.time_limit < 1):
        problems.append(f"time_limit is {env.time_limit!r}: a whole number of steps, at least 1, or None")
    ints = env.int_state
    if ints is not None and (
        not isinstance(ints, IntState) or ints.n < 1 or ints.dtype not in ("int8", "uint8", "int16", "int32")
    ):
        problems.append(f"int_state is {ints!r}: IntState(n, dtype), n at least 1, of int8, uint8, int16 or int32")
    if not isinstance(env.workspace, int) or env.workspace < 0:
        problems.append(f"workspace is {env.workspace!r}: a whole number, 0 or more")
    if not isinstance(env.memory, int) or env.memory < 0 or (env.memory and (ints is not None or env.workspace)):
        problems.append(f"memory is {env.memory!r}: a whole number, 0 or more, and 0 with int_state or workspace")
    if (
        not isinstance(env.picture, int)
        or (env.picture > 0) != (env.arrange is not None)
        or (env.picture and (env.int_state is not None or env.workspace))
    ):
        problems.append(
            f"picture is {env.picture!r}: numbers that `arrange` writes, and not with int_state or workspace"
        )
    if not isinstance(env.observation_shards, int) or env.observation_shards < 0:
        problems.append(f"observation_shards is {env.observation_shards!r}: a whole number, 0 or more")
    if not isinstance(env.tally, tuple) or not all(isinstance(name, str) for name in env.tally):
        problems.append(f'tally is {env.tally!r}: a tuple of names, such as ("score",)')
    if unknown := [name for name in env.warnings if name not in env.tally]:
        problems.append(f"warnings names {unknown[0]!r}, which is not a tally")
    problems += _play_field_problems(env)
    try:
        hash(env)
    except TypeError as error:
        problems.append(f"bounds must be numbers or tuples, not lists or arrays ({error})")
    return problems


def _space_problems(env: Env) -> Iterator[str]:
    """Yield a message for each problem of the observation space, the action space or the mask of legal actions."""
    for name, space in (("observation", env.observation), ("action", env.action)):
        if name == "action" and isinstance(space, (Discrete, MultiDiscrete)):
            sizes = (space.n,) if isinstance(space, Discrete) else tuple(space.n)
            if not sizes or not all(isinstance(n, int) and n >= 1 for n in sizes):
                yield f"action is {space!r}: each n must be a whole number, at least 1"
        elif not isinstance(space, Box):
            yield (
                f"{name} is {space!r}: it must be "
                f"{'a Box' if name == 'observation' else 'Discrete, MultiDiscrete or a Box'}"
            )
        elif not isinstance(space.size, int) or space.size < 1:
            yield f"{name} has size {space.size!r}: at least 1"
        elif any(len(bound) != space.size for bound in space.bounds()):
            yield f"{name} has {space.size} values, but bounds for {[len(bound) for bound in space.bounds()]}"
        elif not all(low <= high for low, high in zip(*space.bounds(), strict=True)):
            yield f"{name} has a lower bound above its upper bound"
        elif space.dtype not in (("float32", "uint8") if name == "observation" else ("float32",)):
            yield f"{name} has dtype {space.dtype!r}: float32{' or uint8' if name == 'observation' else ''}"
        elif space.shape and math.prod(space.shape) != space.size:
            yield f"{name} has shape {space.shape}, which does not hold {space.size} values"
        elif isinstance(space.categories, tuple) and len(space.categories) != space.size:
            yield (
                f"{name} has {space.size} values, but categories for {len(space.categories)}: one for each, 0 for "
                "a numeric feature"
            )
        elif not all(isinstance(categories, int) for categories in space.category_counts()):
            yield (
                f"{name} has categories {space.categories!r}: a whole number for all, or a tuple with one for each, 0 "
                "for a numeric feature"
            )
        elif wrong := [
            k
            for k, high in zip(space.category_counts(), space.bounds()[1], strict=True)
            if k and not _may_be_categorical(space, k, high)
        ]:
            categories = wrong[0]
            yield (
                f"{name} has {categories} categories: they need dtype uint8 and values from 0 to {categories - 1}, so "
                f"high must be at most {categories - 1}"
            )
    if env.legal is not None and isinstance(env.action, Box):
        yield "`legal` is for actions of Discrete and MultiDiscrete; a Box action is limited by its bounds only"


def _may_be_categorical(space: Box, categories: int, high: float) -> bool:
    """Whether a feature of this space, with upper bound `high`, can have `categories` one-hot categories."""
    return space.dtype == "uint8" and 2 <= categories <= 256 and high <= categories - 1


def _play_field_problems(env: Env) -> Iterator[str]:
    """Yield a message for each problem of the fields for playing and viewing: `actions` (names of a Discrete's
    actions), `turns` (True: the game waits for its player) and `step_s` (seconds of a step).
    """
    names = env.actions
    if not isinstance(names, tuple) or not all(isinstance(name, str) and name and name.isprintable() for name in names):
        yield f'actions is {names!r}: a tuple of names, such as ("left", "right")'
    elif names and not isinstance(env.action, Discrete):
        yield "`actions` names the actions of a Discrete; this action space is another"
    elif names and isinstance(env.action, Discrete) and len(names) != env.action.n:
        yield (
            f"actions has {len(names)} name{'s' * (len(names) != 1)}, but action is {env.action!r}: name all actions, "
            "or leave `actions` empty"
        )
    elif len({name.lower() for name in names}) != len(names):
        lower = [name.lower() for name in names]
        repeated = sorted({name for name in names if lower.count(name.lower()) > 1})
        yield f"actions has a name twice: {', '.join(repeated)}"
    if not isinstance(env.turns, bool):
        yield f"turns is {env.turns!r}: True or False"
    if env.step_s is not None and (not isinstance(env.step_s, (int, float)) or not 0.0 < env.step_s < math.inf):
        yield f"step_s is {env.step_s!r}: seconds, above 0, or None"


def _function_problems(env: Env) -> Iterator[str]:
    """Yield a message for each function of the environment that is not a device function or takes other arguments than
    the contract.
    """
    grid = "ints, workspace, " if env.int_state is not None or env.workspace else ""
    shared = "ints, " if env.int_state is not None else ""  # functions that run in parallel have no workspace
    scratch = "memory, " if env.memory else grid
    wanted = {
        "reset": f"s, {scratch}p, key",
        "step": f"s, {scratch}action, p, key, tally",
        "pixel_shader": f"s, {'picture, ' if env.picture else shared}p, x, y",
        "arrange": "s, p, picture",
    }
    for name, out in (("observe", "obs"), ("legal", "mask")):
        wanted[name] = f"s, {shared}{out}, p, shard" if env.observation_shards else f"s, {grid}{out}, p"
    for name, arguments in wanted.items():
        function = getattr(env, name)
        if function is None and name in ("pixel_shader", "legal", "arrange"):
            continue
        if not isinstance(function, Dispatcher):
            yield f"`{name}` is not a device function: write @device above it"
            continue
        given = list(inspect.signature(function.py_func).parameters)
        if len(given) != arguments.count(",") + 1:
            yield f"`{name}` takes {len(given)} arguments: it must be {name}({arguments})"
        elif name in ("observe", "legal") and (given[-1] == "shard") != bool(
            env.observation_shards
        ):  # with int state both signatures have the same length
            yield (
                f"`{name}` is {name}({', '.join(given)}): where observation_shards is {env.observation_shards}, it "
                f"must be {name}({arguments})"
            )
