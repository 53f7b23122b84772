"""Q-values in Triton: greedy legal actions, epsilon-greedy exploration, and max-Q values.

Equal to `operant.nn.q_policy`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from operant.kernels.ops.categorical import ILLEGAL, load_legal_mask


class QActing(NamedTuple):
    """Noise and epsilon for epsilon-greedy acting, and the buffers of the results."""

    noise: Any  # (T, 2, N) uniform in [0, 1)
    epsilon: Any  # (N), or (1) for all lanes
    epsilon_stride: Any  # 1, or 0 if epsilon is (1)
    action: Any  # (T, 1, N) written
    value: Any  # (T + 1, N) max Q, written; unused by DQN


@triton.jit
def all_legal(BLOCK_M: tl.constexpr, WIDTH: tl.constexpr):
    """Return a legal-action mask of ones, (BLOCK_M, WIDTH) uint8: every action is legal."""
    return tl.full((BLOCK_M, WIDTH), 1, tl.uint8)


@triton.jit
def best(q, legal_mask, ACTIONS: tl.constexpr):
    """Return the greedy legal action of each row, (rows), and the Q-values q (rows, out_pad) with masked ones replaced.
    ACTIONS: number of actions; `legal_mask` (rows, out_pad) is 0 for illegal ones.

    Masked Q-values are `ILLEGAL` for illegal actions and -infinity in columns that are not actions.
    """
    is_action = (tl.arange(0, q.shape[1]) < ACTIONS)[None, :]
    masked = tl.where(is_action, tl.where(legal_mask != 0, q, ILLEGAL), -float("inf"))
    return tl.argmax(masked, axis=1), masked


@triton.jit
def explore(greedy, legal_mask, acting, t, lane, in_bounds, lanes, ACTIONS: tl.constexpr, LEGAL: tl.constexpr):
    """Store epsilon-greedy actions of step t: the greedy action of each lane, or with probability epsilon a legal one
    drawn uniformly.

    | parameter  | shape           | meaning          |
    |------------|-----------------|------------------|
    | greedy     | (rows)          | greedy actions   |
    | legal_mask | (rows, out_pad) | read if LEGAL    |
    | acting     | struct          | `QActing`        |
    | lane       | (rows)          | lane of each row |
    """
    offset = 2 * t * lanes + lane
    epsilon = tl.load(acting.epsilon + lane * acting.epsilon_stride, mask=in_bounds, other=0.0)
    u1, u2 = (
        tl.load(acting.noise + offset, mask=in_bounds, other=1.0),
        tl.load(acting.noise + offset + lanes, mask=in_bounds, other=0.0),
    )
    if LEGAL:
        # Legal action number floor(u2 L) of the row's L legal actions.
        is_action = (tl.arange(0, legal_mask.shape[1]) < ACTIONS)[None, :]
        legal_count = tl.cumsum(tl.where(is_action & (legal_mask != 0), 1, 0), axis=1)
        number = (u2 * tl.max(legal_count, axis=1).to(tl.float32)).to(tl.int32)
        random = tl.sum(tl.where(is_action & (legal_count <= number[:, None]), 1, 0), axis=1)
    else:
        random = (u2 * ACTIONS).to(tl.int32)
    tl.store(acting.action + t * lanes + lane, tl.where(u1 < epsilon, random, greedy.to(tl.int32)), mask=in_bounds)


@triton.jit
def act_epsilon_greedily(out, lane, in_bounds, legal_mask_ptr, acting, params_ptr, tower, t, lanes, SPEC: tl.constexpr):
    """Store epsilon-greedy actions and max_a Q of step t from Q-values `out` (rows, out_pad) of lanes `lane` (rows):
    SAMPLE of PQN.

    Has the signature of `operant.kernels.act.sample_and_store`; `acting` is a `QActing`.
    """
    legal_mask = all_legal(out.shape[0], SPEC.out_pad)
    if SPEC.legal:
        legal_mask = load_legal_mask(legal_mask_ptr, t * lanes + lane, t, in_bounds, lanes, SPEC)
    greedy, masked = best(out, legal_mask, SPEC.head_rows)
    explore(greedy, legal_mask, acting, t, lane, in_bounds, lanes, SPEC.head_rows, SPEC.legal)
    tl.store(acting.value + t * lanes + lane, tl.max(masked, axis=1), mask=in_bounds)


@triton.jit
def largest_value(out, legal_mask_ptr, sample, t, has_mask, lanes, SPEC: tl.constexpr):
    """Return max_a Q (rows) of Q-values `out` (rows, out_pad), over legal actions in rows where `has_mask`: VALUE of
    PQN.

    Has the signature of `operant.kernels.act.state_value`.
    """
    legal_mask = all_legal(out.shape[0], SPEC.out_pad)
    if SPEC.legal:
        legal_mask = load_legal_mask(legal_mask_ptr, sample, t, has_mask, lanes, SPEC)
    return tl.max(best(out, legal_mask, SPEC.head_rows)[1], axis=1)
