"""FLOPs and bytes of acting and learning: lower bounds from the shapes of a policy and its environment."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from operant.envs import Box, Env
from operant.nn import mlp
from operant.nn.policy import Policy


class Work(NamedTuple):
    """Floating-point operations and bytes moved by some work."""

    flops: float
    bytes: float


def network_flops(policy: Policy) -> tuple[int, int]:
    """Return the FLOPs of one sample's matrix products, (forward, backward). A multiply-add counts as two; activations
    are not counted.
    """
    net, O, H = policy.net, policy.env.observation.size, policy.distribution.parameter_rows
    if not isinstance(net, mlp.MLP):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            observation = torch.zeros(O, 2, device=policy.device)
            if policy.recurrent:
                policy.unroll(observation, policy.initial_state(2), torch.zeros(1, 2, device=policy.device))
            else:
                net(observation)
        forward = counter.get_total_flops() // 2
        return forward, 2 * forward
    towers, widths = 1 if net.config.shared else 2, net.config.hidden
    first = 2 * net.first_weight.numel()
    forward = first + 2 * towers * sum(a * b for a, b in itertools.pairwise(widths)) + 2 * widths[-1] * (H + 1)
    return forward, 2 * forward - first  # no gradient with respect to the observation


def step_bytes(env: Env) -> int:
    """Return the bytes that one environment step of one lane must read and write: each array once in each direction."""
    state = 2 * 4 * env.fields + (
        2 * env.int_state.n * torch.empty(0, dtype=getattr(torch, env.int_state.dtype)).element_size()
        if env.int_state
        else 0
    )
    episode = 2 * 4 * (1 + 1 + len(env.tally))  # age, return, tallies
    # Reward and two flags at the end.
    return state + episode + 4 * env.action_size + observation_bytes(env) + env.mask_size + 4 + 1 + 1


def observation_bytes(env: Env) -> int:
    """Return the size of one observation in bytes."""
    return env.observation.size * torch.empty(0, dtype=getattr(torch, env.observation.dtype)).element_size()


def on_policy_work(policy: Policy, samples: int, lanes: int, passes: float) -> Work:
    """Return the FLOPs and bytes of an on-policy iteration: act on `samples` observations, evaluate `lanes` bootstrap
    values, and learn from all samples `passes` times (epochs).

    Bytes are those of the rollout's arrays alone. Weights and activations are assumed to stay in the cache.
    """
    env, distribution = policy.env, policy.distribution
    forward, backward = network_flops(policy)
    # The raw action, and for a Box the environment's.
    raw = 4 * distribution.action_rows * (1 if isinstance(env.action, Box) else 2)
    # Log-probability and value at the end.
    acting = observation_bytes(env) + env.mask_size + 2 * 4 * distribution.noise_rows + raw + 4 + 4
    estimating = 4 + 4 + 1 + 1 + 4 + 4  # reward, value, two flags; advantage, return
    learning = observation_bytes(env) + env.mask_size + 4 * distribution.action_rows + 4 * 4
    flops = forward * (samples + lanes) + passes * samples * (forward + backward)
    return Work(float(flops), float(samples * (step_bytes(env) + acting + estimating + passes * learning)))
