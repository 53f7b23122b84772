"""Checks of an outside environment (`operant check gymnasium:ID`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from operant.envs.outside import Box, HostEnv
from operant.errors import EnvironmentFailedError
from operant.worlds import Slot
from operant.worlds.host_world import HostWorld
from operant.worlds.quick_check import Finding, muted

LANES = 4
TIMED_S = 2.0
_SLACK = 1e-5  # relative tolerance of a bound, for float64 converted to float32


class _Rollout(NamedTuple):
    """Recorded rollout with random actions: observations, outcomes, and statistics of its episodes."""

    rows: np.ndarray  # (T + 1, O, N)
    outcomes: np.ndarray  # (T, 3, N): reward, terminated, truncated
    legal_share: float
    episodes: float
    length: float
    mean_return: float


def check(env: HostEnv, *, steps: int = 500, report: Callable[[str], None] = lambda name: None) -> Iterator[Finding]:
    """Run every check of an outside environment in order and yield each finding. An author's mistake is a finding and
    raises nothing; the checks end at a failure that later ones depend on. `report` is called with the name of the next
    check.
    """
    shown = "x".join(map(str, env.observation.shape)) if env.observation.shape else f"{env.observation.size} values"
    parts = ", ".join(field.name for field in env.observed[:8]) + (" ..." if len(env.observed) > 8 else "")
    yield Finding("spaces", True, f"observation {shown} {env.observation.dtype} ({parts}); {_action_text(env)}")
    alone = replace(env, hosting=env.hosting._replace(processes=0))
    report("runs")
    try:
        with muted():
            one, other = _rollout(alone, steps, 1), _rollout(alone, steps, 1)
    except EnvironmentFailedError as error:
        line = next(
            (line.strip() for line in reversed(error.detail.splitlines()) if line.strip().startswith("File")), ""
        )
        yield Finding("runs", False, f"{error}{f' ({line})' if line else ''}")
        return
    over = f"{steps:,} steps of {LANES} lanes"
    yield Finding("runs", True, f"random actions, finite values, {over}")
    same = np.array_equal(one.rows, other.rows) and np.array_equal(one.outcomes, other.outcomes)
    unlike = (
        "the same seed gave different values: runs cannot be repeated (are all random numbers drawn from "
        "self.np_random?)"
    )
    yield Finding(
        "repeatable", True, f"the same seed gives the same values over {over}" if same else unlike, warning=not same
    )
    yield _check_bounds(env, one)
    if env.mask_size:
        yield Finding("legal actions", one.legal_share > 0, f"by action_mask, {one.legal_share:.0%} of actions")
    limit = "no time limit" if env.time_limit is None else f"time limit {env.time_limit:,}"
    ended = (
        f"{one.episodes:,.0f} ended, mean length {one.length:.1f}, mean return {one.mean_return:.4g}"
        if one.episodes
        else "none ended"
    )
    endless = not one.episodes and env.time_limit is None
    yield Finding(
        "episodes end", True, f"{ended} in {over} ({limit}){'; set env.time_limit' if endless else ''}", warning=endless
    )
    if env.draws:
        report("picture")
        yield _check_picture(alone)
    report("speed")
    yield _measure_speed(env)


def _action_text(env: HostEnv) -> str:
    """Describe the environment's action space in words."""
    if isinstance(env.action, Box):
        return f"action of {env.action.size} bounded values"
    return f"{'x'.join(map(str, env.action.n)) if isinstance(env.action.n, tuple) else env.action.n} actions"


def _rollout(env: HostEnv, steps: int, seed: int) -> _Rollout:
    """Step a world of the environment `steps` times with random actions drawn with `seed`, and record the rollout."""
    world, generator = HostWorld(env, LANES, seed=seed), np.random.default_rng(seed)
    slot = world.slot()
    world.reset(slot)
    rows, outcomes, legal = [slot.observation.numpy().copy()], [], 0.0
    for _ in range(steps):
        _write_random_actions(env, slot, generator)
        world.step(slot)
        rows.append(slot.observation.numpy().copy())
        outcomes.append(np.stack([slot.reward.numpy(), slot.terminated.numpy(), slot.truncated.numpy()]).copy())
        legal += float(slot.legal.float().mean()) if slot.legal is not None else 1.0
    world.advance(steps)
    episodes, length, total = world.episode_sums(slot).tolist()
    world.close()
    return _Rollout(
        np.stack(rows), np.stack(outcomes), legal / steps, episodes, length / max(episodes, 1), total / max(episodes, 1)
    )


def _write_random_actions(env: HostEnv, slot: Slot, generator: np.random.Generator) -> None:
    """Write random actions to the slot: only legal ones if there is a mask, because the environment may fail on
    others.
    """
    space, lanes = env.action, slot.reward.shape[0]
    if isinstance(space, Box):
        low, high = (np.clip(np.array(bound, np.float32), -1000, 1000)[:, None] for bound in space.bounds())
        slot.action.copy_(torch.from_numpy(generator.uniform(low, high, (space.size, lanes)).astype(np.float32)))
        return
    sizes = [space.n] if isinstance(space.n, int) else list(space.n)
    draws = generator.random((sum(sizes), lanes)) * (1 if slot.legal is None else slot.legal.numpy())
    slot.action.copy_(
        torch.from_numpy(
            np.stack([block.argmax(axis=0) for block in np.split(draws, np.cumsum(sizes)[:-1])]).astype(np.int32)
        )
    )


def _check_bounds(env: HostEnv, rollout: _Rollout) -> Finding:
    """Check that the observations of a rollout lie within the declared bounds; the finding is a warning if they
    do not.
    """
    low, high = (np.asarray(bound, np.float64)[None, :, None] for bound in env.observation.bounds())
    slack = _SLACK * np.maximum(
        1.0, np.maximum(np.where(np.isfinite(low), abs(low), 0), np.where(np.isfinite(high), abs(high), 0))
    )
    outside = (rollout.rows < low - slack) | (rollout.rows > high + slack)
    if not outside.any():
        return Finding("within bounds", True, "observations within the declared bounds")
    t, column, lane = np.argwhere(outside)[0]
    name = next((field.name for field in env.observed if field.start <= column < field.stop), "observation")
    bounds = f"{low[0, column, 0]:g} to {high[0, column, 0]:g}"
    return Finding(
        "within bounds",
        True,
        f"{name} was {rollout.rows[t, column, lane]:g} at step {t}, outside the declared {bounds}",
        warning=True,
    )


def _check_picture(env: HostEnv) -> Finding:
    """Check that the environment renders a picture."""
    try:
        world = HostWorld(env, 1, seed=1, draws=True)
        slot = world.slot()
        with muted():
            world.reset(slot)
            shown = world.pictures(32)
    except EnvironmentFailedError as error:
        return Finding("picture", False, str(error))
    plain = int(shown.min()) == int(shown.max())
    return Finding(
        "picture",
        True,
        "`render` returned a single colour" if plain else "`render` returns an rgb_array",
        warning=plain,
    )


def _measure_speed(env: HostEnv) -> Finding:
    """Measure steps per second with random actions, in one process and with the number of processes that
    training uses.
    """
    parts = []
    for processes in dict.fromkeys((0, env.hosting.processes)):
        lanes = 16 * max(processes, 1)
        world, generator = (
            HostWorld(replace(env, hosting=env.hosting._replace(processes=processes)), lanes, seed=1),
            np.random.default_rng(1),
        )
        slot = world.slot()
        with muted():
            world.reset(slot)
            start_s, count = time.perf_counter(), 0
            while (spent := time.perf_counter() - start_s) < TIMED_S:
                _write_random_actions(env, slot, generator)
                world.step(slot)
                count += 1
        world.close()
        parts.append(
            f"{count * lanes / spent:,.0f} steps/s {f'with {processes} processes' if processes else 'in one process'}"
        )
    return Finding("speed", True, "; ".join(parts))
