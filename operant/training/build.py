"""Builder of an algorithm on its world, for training, trials, profiles and benches."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from pydantic import ValidationError

from operant import algos, worlds
from operant.algos.base import Algorithm, Estimate
from operant.config.load import Config
from operant.errors import ConfigError
from operant.nn import SOLO, Actor, Exchange


def build(
    config: Config,
    device: torch.device | str,
    *,
    eager: bool = False,
    chosen: Mapping[str, Any] | None = None,
    exchange: Exchange = SOLO,
) -> Algorithm:
    """Build the algorithm of a configuration on its world. With `eager` kernels are launched one by one instead of by
    CUDA graphs; `chosen` are values that an earlier session selected for keys left open. Before the first iteration
    call `start`, or load a checkpoint's tensors into `state`. Raises ConfigError if the ranks of `exchange` cannot
    share the lanes.

    With several ranks in `exchange` the world holds this rank's share of the lanes. `chosen`: see `Algorithm.chosen`.
    """
    settings, changing = _completed(config.algo, chosen), {}
    for key, schedule in config.scheduled.items():
        if key not in config.changing.values():
            changing[key] = (schedule, torch.tensor(schedule.at(0), dtype=torch.float32, device=device))
    settings = settings.model_copy(update={key: scalar for key, (_, scalar) in changing.items()})
    lanes, joined = config.lanes // exchange.ranks, {}
    if exchange.ranks > 1:
        require_shared(config, exchange.ranks)
        joined = {"exchange": exchange}
    placement = {
        "seed": config.run.seed,
        "device": device,
        "params": config.params,
        "lane0": exchange.rank * lanes,
        "changing": tuple(config.changing),
    }
    bridged, environment = (
        config.env.device == "cpu" and torch.device(device).type != "cpu" and not config.hosted,
        config.environment,
    )
    # worker processes of all ranks share the cores
    if exchange.ranks > 1 and config.hosted and config.env.threads == "auto":
        hosting = environment.hosting
        environment = replace(
            environment, hosting=hosting._replace(processes=max(1, hosting.processes // exchange.ranks))
        )
    world = (
        worlds.BridgedWorld(environment, lanes, **placement, buffers=config.env.buffers)
        if bridged
        else worlds.make(environment, lanes, **placement)
    )
    algo = algos.load(config.algo_name)(
        world, settings, config.net, seed=config.run.seed, steps=config.run.steps, eager=eager, **joined
    )
    algo.scheduled = changing | {
        key: (config.scheduled[key], world.changing[name]) for name, key in config.changing.items()
    }
    set_scheduled(algo, 0)
    return cast("Algorithm", algo)


def set_scheduled(algo: Algorithm, step: int, score: float = math.nan) -> None:
    """Set the algorithm's scheduled values on the device to those at `step` environment steps and at `score`, the
    newest evaluation's mean return (NaN: none yet). Captured graphs read them from memory and need no new capture.
    """
    for schedule, scalar in algo.scheduled.values():
        scalar.fill_(schedule.at(step, score))


def require_shared(config: Config, ranks: int) -> None:
    """Check that `ranks` ranks (processes) can share the lanes of a run. Raises ConfigError with the reason if they
    cannot.
    """
    problem, key = None, "run.gpus" if config.run.gpus or config.run.ranks == 1 else "run.ranks"
    if ranks == 1:
        return
    if "exchange" not in inspect.signature(algos.load(config.algo_name).__init__).parameters:
        problem = (
            f"{key}: {config.algo_label} trains on one device only (got {ranks} ranks): leave {key} out, or "
            "algo.name=ppo, which trains on several"
        )
    elif problem := getattr(config.algo, "unshared", lambda: None)():
        problem = f"{key}: {problem} (got {ranks} ranks)"
    else:
        shards = (
            config.algo.shards(config.lanes, memory=True)
            if config.net.is_recurrent
            else config.algo.shards(config.lanes)
        )
        if shards % ranks:
            problem = (
                f"{key}: {ranks} ranks cannot share env.lanes = {config.lanes:,}: a minibatch takes its samples from "
                f"{shards} "
                f"shard{'s' * (shards > 1)} of the lanes, and a rank owns whole shards (use a power of two of lanes, "
                "more lanes, or fewer algo.minibatches)"
            )
    if problem is not None:
        raise ConfigError("the number of ranks", [problem])


def _completed(settings: Any, chosen: object) -> Any:
    """Complete an algorithm's configuration: keys that it leaves open take the values in `chosen` (a mapping, from
    run.json), validated like any other value. Raises ConfigError.
    """
    left_open = {key for key, value in settings if value in ("", None)}
    values = {key: value for key, value in chosen.items() if key in left_open} if isinstance(chosen, dict) else {}
    try:
        return type(settings).model_validate({**settings.model_dump(), **values})
    except ValidationError as error:
        raise ConfigError(
            "run.json", [f"chosen.{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        ) from None


def make_actor(config: Config, device: torch.device) -> Actor:
    """Make the actor of a configuration (the policy without training buffers) with initial parameters."""
    actor = algos.load(config.algo_name).make_actor(
        config.environment, config.algo, config.net, device, seed=config.run.seed
    )
    return cast("Actor", actor)


def estimate(config: Config, lanes: int | None = None) -> Estimate:
    """Estimate the bytes and FLOPs of an iteration with `lanes` lanes, by default the configuration's."""
    result = algos.load(config.algo_name).estimate(
        config.environment, config.algo, config.net, config.lanes if lanes is None else lanes
    )
    return cast("Estimate", result)


def with_lanes(config: Config, lanes: int) -> Config:
    """Copy a configuration and set its `env.lanes`."""
    return replace(config, env=config.env.model_copy(update={"lanes": lanes}))
