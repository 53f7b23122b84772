"""What an iteration must compute and move at least, counted from the shapes, and what a device can do at most, measured by one product and one copy.

Knows policies and environments; knows no algorithm's parts and no clock but its own two measurements.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from operant.envs import Box, Env
from operant.nn import mlp
from operant.nn.policy import Policy


class Work(NamedTuple):
    """Floating-point operations and bytes."""

    flops: float
    bytes: float


class Peak(NamedTuple):
    """The most that was seen: operations a second of one large product, bytes a second of one large copy, read and written."""

    flops: float
    bytes: float
    product: str  # which product


def network_flops(policy: Policy) -> tuple[int, int]:
    """Operations of the products of one sample, forward and backward; a multiplication and an addition are two. Activations are not counted."""
    net, O, H = policy.net, policy.env.observation.size, policy.distribution.parameter_rows
    if not isinstance(net, mlp.MLP):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            net(torch.zeros(O, 2, device=policy.device))
        forward = counter.get_total_flops() // 2
        return forward, 2 * forward
    towers, widths = 1 if net.config.shared else 2, net.config.hidden
    first = 2 * net.first_weight.numel()
    forward = first + 2 * towers * sum(a * b for a, b in itertools.pairwise(widths)) + 2 * widths[-1] * (H + 1)
    return forward, 2 * forward - first  # nobody asks for the gradient by the observation


def step_bytes(env: Env) -> int:
    """Bytes that one step of one lane must touch by the contract, each array once a direction."""
    state = 2 * 4 * env.fields + (2 * env.cells.n * torch.empty(0, dtype=getattr(torch, env.cells.dtype)).element_size() if env.cells else 0)
    carried = 2 * 4 * (1 + 1 + len(env.tally))  # age, return, tallies
    return state + carried + 4 * env.action_size + observation_bytes(env) + env.mask_size + 4 + 1 + 1  # reward, two flags


def observation_bytes(env: Env) -> int:
    """Bytes of one observation."""
    return env.observation.size * torch.empty(0, dtype=getattr(torch, env.observation.dtype)).element_size()


def iteration_work(policy: Policy, samples: int, lanes: int, passes: int) -> Work:
    """What one iteration must do: act on `samples`, look once more at `lanes` for their values, and learn from all samples `passes` times.

    Bytes are those of the rollout's arrays alone: weights and activations would stay on the chip if all went well.
    """
    env, distribution = policy.env, policy.distribution
    forward, backward = network_flops(policy)
    raw = 4 * distribution.action_rows * (1 if isinstance(env.action, Box) else 2)  # what was drawn, and what the environment is given
    acting = observation_bytes(env) + env.mask_size + 2 * 4 * distribution.noise_rows + raw + 4 + 4  # log-probability, value
    estimating = 4 + 4 + 1 + 1 + 4 + 4  # reward, value, two flags; advantage, return
    learning = observation_bytes(env) + env.mask_size + 4 * distribution.action_rows + 4 * 4
    flops = forward * (samples + lanes) + passes * samples * (forward + backward)
    return Work(float(flops), float(samples * (step_bytes(env) + acting + estimating + passes * learning)))


def peak(device: torch.device, precision: str) -> Peak:
    """Measure both, within a second or two. Changes no setting of torch for longer than that."""
    cuda = device.type == "cuda"
    size = (8192 if precision != "fp32" else 4096) if cuda else 1024
    kind = torch.bfloat16 if cuda and precision == "bf16" else torch.float32
    left, right, product = (torch.ones(size, size, dtype=kind, device=device) for _ in range(3))
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        product_s = _best_s(functools.partial(torch.mm, left, right, out=product), device)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    count = 1 << 28 if cuda else 1 << 25
    source, target = torch.ones(count, device=device), torch.empty(count, device=device)
    copy_s = _best_s(functools.partial(target.copy_, source), device)
    return Peak(2.0 * size**3 / product_s, 2.0 * 4.0 * count / copy_s, f"{precision if cuda else 'fp32'} {size} x {size} x {size}")


def _best_s(work: Callable[[], object], device: torch.device, repeats: int = 7) -> float:
    """Seconds of the fastest of some calls."""
    best = math.inf
    for _ in range(repeats + 2):  # the first two warm up
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return best
