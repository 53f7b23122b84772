"""Dense engines: acting, gradients and optimizer steps of a network in a few Triton kernels.

An algorithm passes a `Task`: its buffers, its loss and its other Triton functions. `select` chooses the tile config;
`learner` (`ResidentLearner`), `per_layer` and `convolution` launch kernels of `operant.kernels`, compiled from a spec.
Modules that import Triton are imported where they are used, so that runs without it start faster.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from operant.errors import ConfigError
from operant.kernels import spec as kernel_spec
from operant.kernels.dense.task import B, C, Hooks, Task
from operant.kernels.tile_config import TileConfig, from_text

if TYPE_CHECKING:
    from operant.kernels.dense.learner import Learner
    from operant.kernels.dense.select import Seconds

__all__ = ["Hooks", "Learner", "Seconds", "Task", "build", "config_text", "machine_reason"]

FIRST = "first"
"""Value of `algo.kernel_config` for the first candidate without measurement: reproducible across runs."""

log = logging.getLogger("operant.kernels")


def build(
    task: Task[B, C], *, kernels: str, precision: str, config: str = "", measure: Seconds | None = None
) -> Learner[B, C] | None:
    """Return the engine that runs a task by fused kernels, or None if torch runs it. `kernels`: "auto", "torch" or
    "fused". Raises ConfigError if "fused" is not possible, or `config` not valid.

    `config`: the text of a tile config saved with a run; "first" for the first candidate; "" for the fastest by
    `measure` (by default on a GPU, never on a CPU). The convolution engine has no tile configs and accepts only "".
    Logs the choice, or the reason why "auto" uses torch on a GPU.
    """
    policy, (steps, lanes) = task.policy, task.buffers.rollout.reward.shape
    on_gpu = policy.device.type == "cuda"
    if kernels == "torch" or (kernels == "auto" and not on_gpu):
        return None
    board = task.boards and kernel_spec.is_convolutional(policy)
    reason = (None if board else kernel_spec.unsupported_reason(policy, (steps + 1) * lanes)) or machine_reason(
        policy.device, precision
    )
    learner: Learner[B, C] | None
    if reason is None and board:
        from operant.kernels.dense.convolution import build as build_for_board

        learner, reason = build_for_board(task, precision if on_gpu else "fp32")
        if learner is not None and config not in ("", FIRST):
            raise ConfigError(
                "the trainer",
                [f'algo.kernel_config = "{config}": fused kernels for boards have no tile config; remove the key'],
            )
        if learner is not None:
            return learner
    elif reason is None:
        from operant.kernels.dense.select import Selection

        spec = kernel_spec.describe(policy, precision if on_gpu else "fp32")
        selection = Selection(spec, task)
        learner = (
            selection.first() if config == FIRST else selection.learner(_given(config, task.exchange.ranks), measure)
        )
        if learner is not None:
            return learner
        reason = selection.problem
    if kernels == "fused":
        raise ConfigError("the trainer", [f'algo.kernels = "fused" is not possible: {reason} (use "auto" or "torch")'])
    log.info("kernels: torch instead of fused: %s", reason)
    return None


def _given(line: str, ranks: int) -> TileConfig | None:
    """Parse a saved tile config, whose chunks are those of all ranks, for one of `ranks`; None for "". Raises
    ConfigError.
    """
    try:
        config = from_text(line) if line else None
    except ValueError as error:
        raise ConfigError("the trainer", [f"algo.kernel_config: {error}"]) from None
    return config and replace(config, chunks=config.chunks // ranks)


def config_text(learner: Learner[Any, Any]) -> str:
    """Return the text of a learner's tile config, to be saved with a run: with the chunks of all ranks."""
    return str(replace(learner.config, chunks=learner.config.chunks * learner.task.exchange.ranks))


def machine_reason(device: torch.device, precision: str) -> str | None:
    """Return why this machine cannot run fused kernels in a precision ("fp32", "tf32", "bf16"), as a sentence, or None
    if it can.
    """
    if find_spec("triton") is None:
        return "Triton is not installed"
    if device.type != "cuda":
        return "there is no GPU" if os.environ.get("TRITON_INTERPRET") != "1" else None
    if torch.cuda.get_device_capability(device) < (8, 0) and precision != "fp32":
        return f'a GPU older than Ampere has no {precision} products (algo.precision = "fp32" works)'
    return None
