"""The only builder of a world with an algorithm on it, for training, trials, profiles and benches. Knows no algorithm and no run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from pydantic import ValidationError

from operant import algos
from operant.algos.base import Algorithm, Estimate
from operant.config.load import Config
from operant.errors import ConfigError
from operant.nn import Actor
from operant.worlds import DeviceWorld


def build(config: Config, device: torch.device | str, *, eager: bool = False, chosen: Mapping[str, Any] | None = None) -> Algorithm:
    """The algorithm of a configuration on its world; call `start` or load a checkpoint's tensors into its `state`.

    `eager` launches every kernel by itself, without CUDA graphs. `chosen` are the values that an earlier session of the run chose for keys that its
    configuration left open: see `Algorithm.chosen`.
    """
    settings = _completed(config.algo, chosen)
    world = DeviceWorld(config.environment, config.lanes, seed=config.run.seed, device=device, params=config.params)
    made = algos.load(config.algo_name)(world, settings, config.net, seed=config.run.seed, steps=config.run.steps, eager=eager)
    return cast("Algorithm", made)


def _completed(settings: Any, chosen: object) -> Any:
    """An algorithm's configuration with chosen values for the keys that it leaves open. A document's values are checked like any other's."""
    left_open = {key for key, value in settings if value in ("", None)}
    taken = {key: value for key, value in chosen.items() if key in left_open} if isinstance(chosen, dict) else {}
    try:
        return type(settings).model_validate({**settings.model_dump(), **taken})
    except ValidationError as error:
        raise ConfigError("run.json", [f"chosen.{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]) from None


def make_actor(config: Config, device: torch.device) -> Actor:
    """The actor of a configuration alone, with the numbers that a run begins with."""
    made = algos.load(config.algo_name).make_actor(config.environment, config.algo, config.net, device, seed=config.run.seed)
    return cast("Actor", made)


def estimate(config: Config, lanes: int | None = None) -> Estimate:
    """What an iteration of a configuration takes, by default with its own number of lanes."""
    found = algos.load(config.algo_name).estimate(config.environment, config.algo, config.net, config.lanes if lanes is None else lanes)
    return cast("Estimate", found)


def with_lanes(config: Config, lanes: int) -> Config:
    """The same configuration with another number of lanes."""
    return replace(config, env=config.env.model_copy(update={"lanes": lanes}))
