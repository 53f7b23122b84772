"""Iterations of value-based algorithms by fused kernels and by torch, from one seed; for tests and the bench."""

from __future__ import annotations

from dataclasses import replace

import torch
from fused_probe import CARTPOLE, wide
from toys import COUNT

from operant import algos
from operant.envs import Box
from operant.nn import mlp
from operant.worlds.device_world import DeviceWorld

CELLS = replace(wide(48, 3, seen="uint8"), observation=Box(48, dtype="uint8", shape=(4, 4, 3)), time_limit=5)
"""CartPole seen through the cells of a board."""

BOARD = replace(wide(72, 3, seen="uint8"), observation=Box(72, dtype="uint8", shape=(6, 6, 2)), time_limit=5)
"""Configuration for a board with several groups of cells in a row."""

ENVS = {"cartpole": CARTPOLE, "count": COUNT, "cells": CELLS, "board": BOARD}


def built(algo, env, net, config, *, lanes=12, kernels="fused", where="cpu", seed=1, eager=False, steps=100_000):
    """Algorithm by name on a new world, started."""
    if isinstance(env, dict):
        env = wide(**{key: tuple(value) if isinstance(value, list) else value for key, value in env.items()})
    rules = ENVS[env] if isinstance(env, str) else env
    kind = algos.load(algo)
    made = kind(
        DeviceWorld(rules, lanes, seed=seed, device=where),
        kind.Config(kernels=kernels, **config),
        mlp.Config(**net),
        seed=seed,
        steps=steps,
        eager=eager,
    )
    made.start()
    return made


def difference(a, b):
    return float((a.double() - b.double()).abs().max()) if a.numel() else 0.0


def iterations_case(algo, env, net, config, lanes=12, iterations=2):
    """Differences between fused kernels and torch after whole iterations."""
    ours, theirs = (built(algo, env, net, config, lanes=lanes, kernels=kernels) for kernels in ("fused", "torch"))
    before = ours.policy.flat.values.clone()
    actions = 0
    for _ in range(iterations):
        for one in (ours, theirs):
            for phase in one.phases:
                phase.run()
        actions += int((ours.rollout.action != theirs.rollout.action).sum())
    tensors = ours.state("all")
    return {
        "backend": ours.kernels,
        "actions": actions,
        "stats": difference(ours.stats, theirs.stats),
        "state": {name: difference(tensors[name], other) for name, other in theirs.state("all").items()},
        "moved": difference(ours.policy.flat.values, before),
        "truncated": int(ours.rollout.truncated.sum()),
        "finite": bool(torch.isfinite(ours.stats).all()),
    }
