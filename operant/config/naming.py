"""Messages about names of algorithms and environments that do not exist, with suggestions. Imports no algorithm and no
environment: torch and numba take seconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from operant import algos, similar
from operant.config import recipes
from operant.config.raw import quoted


def unknown_algorithm(name: object) -> tuple[str, str | None]:
    """Write the error message for an unknown algorithm in the configuration, and find the shipped name that is closest;
    None if none is close.
    """
    shipped = ", ".join(algos.names())
    if not isinstance(name, str):
        return f"algo.name: input should be one of {shipped} (got {quoted(name)})", None
    alike = [other for other in algos.names() if other[0] == name[:1].lower()]  # a2c is not sac
    nearest = similar.nearest(name, alike)
    available = f"Available: {shipped}, or your own as FILE.py:CLASS, such as my_algo.py:MyAlgo"
    return f"algo.name: unknown algorithm {quoted(name)}{similar.did_you_mean(nearest) or '.'} {available}", nearest


def unknown_environment(name: str, shipped: Sequence[str]) -> tuple[str, str | None]:
    """Write the error message for an unknown environment in the configuration, and find the name among `shipped` that
    is closest; None if none is close or something else is meant.
    """
    if name in algos.names():
        return f"env.name: {name} is an algorithm, not an environment: operant train cartpole algo.name={name}", None
    if name.endswith(".toml") or any(name in (recipe, recipe.partition("/")[2]) for recipe in recipes.shipped()):
        return f"env.name: {similar.configuration_given(name)}", None
    nearest = similar.nearest(name, shipped)
    own = "your own file (my_env.py), an outside one (gymnasium:ID, ale:NAME, envpool:ID, my_envs.py:make)"
    meant = _outside_meant(name, nearest)
    return f"env.name: {similar.unknown_environment(name, shipped, others=own, suggested=meant)}", nearest


def _outside_meant(name: str, nearest: str | None) -> str | None:
    """Return the name, with its library, of the Gymnasium or Atari environment that an unknown name probably means;
    None if it is rather `nearest`, a shipped one.
    """
    if name.startswith("ALE/"):
        return f"ale:{name.removeprefix('ALE/').partition('-')[0]}"
    versioned = re.search(r"-v\d+$", name)
    if nearest and (not versioned or nearest.replace("_", "") == name.partition("-")[0].lower()):
        return None
    try:
        from gymnasium import registry
    except ImportError:
        registry = {}
    if name in registry:
        return f"gymnasium:{name}"
    if nearest:
        return None
    versions = [id_ for id_ in registry if id_.rpartition("-v")[0] == name]
    looks_like_one = re.fullmatch(r"[\w.-]+(/[\w.-]+)?-v\d+", name)
    return f"gymnasium:{versions[-1]}" if versions else f"gymnasium:{name}" if looks_like_one else None
