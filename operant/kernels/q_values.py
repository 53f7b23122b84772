"""Triton functions of Q values: the best legal action, and epsilon-greedy ones, as `operant.nn.exploration` and
`q_policy` have them. Know no algorithm.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from operant.kernels.blocks import ILLEGAL, load_legal_mask


class QActing(NamedTuple):
    """What epsilon-greedy acting draws with, and what it writes."""

    noise: Any  # (T, 2, N), uniform in [0, 1)
    epsilon: Any  # (N), or one for all lanes
    epsilon_stride: Any  # 1, or 0 where it is one for all lanes
    action: Any  # (T, 1, N)
    value: Any  # (T + 1, N), max Q; where no kernel reads it, anything


@triton.jit
def all_legal(BLOCK_M: tl.constexpr, WIDTH: tl.constexpr):
    """A mask in which every action is legal."""
    return tl.full((BLOCK_M, WIDTH), 1, tl.uint8)


@triton.jit
def best(values, legal_mask, ACTIONS: tl.constexpr):
    """The action of the largest value that is legal (rows), and the values with -1e9 where they are not, -infinity
    behind the actions (rows, out_pad).
    """
    inside = (tl.arange(0, values.shape[1]) < ACTIONS)[None, :]
    allowed = tl.where(inside, tl.where(legal_mask != 0, values, ILLEGAL), -float("inf"))
    return tl.argmax(allowed, axis=1), allowed


@triton.jit
def explore(choice, legal_mask, acting, t, lane, in_bounds, lanes, ACTIONS: tl.constexpr, LEGAL: tl.constexpr):
    """Store the actions of some lanes at step t: `choice`, or with probability epsilon any that is legal."""
    place = 2 * t * lanes + lane
    epsilon = tl.load(acting.epsilon + lane * acting.epsilon_stride, mask=in_bounds, other=0.0)
    first, second = (
        tl.load(acting.noise + place, mask=in_bounds, other=1.0),
        tl.load(acting.noise + place + lanes, mask=in_bounds, other=0.0),
    )
    if LEGAL:
        # The action before which as many are legal as the number drawn says.
        inside = (tl.arange(0, legal_mask.shape[1]) < ACTIONS)[None, :]
        seen = tl.cumsum(tl.where(inside & (legal_mask != 0), 1, 0), axis=1)
        number = (second * tl.max(seen, axis=1).to(tl.float32)).to(tl.int32)
        drawn = tl.sum(tl.where(inside & (seen <= number[:, None]), 1, 0), axis=1)
    else:
        drawn = (second * ACTIONS).to(tl.int32)
    tl.store(acting.action + t * lanes + lane, tl.where(first < epsilon, drawn, choice.to(tl.int32)), mask=in_bounds)


@triton.jit
def act_epsilon_greedily(out, lane, in_bounds, legal_mask, acting, parameters, tower, t, lanes, SPEC: tl.constexpr):
    """From Q values (rows, out_pad) at step t: the action and max Q, each into its place. As
    `operant.kernels.act.sample_and_store`.
    """
    legal = all_legal(out.shape[0], SPEC.out_pad)
    if SPEC.legal:
        legal = load_legal_mask(legal_mask, t * lanes + lane, t, in_bounds, lanes, SPEC)
    choice, values = best(out, legal, SPEC.head_rows)
    explore(choice, legal, acting, t, lane, in_bounds, lanes, SPEC.head_rows, SPEC.legal)
    tl.store(acting.value + t * lanes + lane, tl.max(values, axis=1), mask=in_bounds)


@triton.jit
def largest_value(out, legal_mask, sample, t, judged, lanes, SPEC: tl.constexpr):
    """Max Q of each row, of legal actions where the environment has judged them. As
    `operant.kernels.act.state_value`.
    """
    legal = all_legal(out.shape[0], SPEC.out_pad)
    if SPEC.legal:
        legal = load_legal_mask(legal_mask, sample, t, judged, lanes, SPEC)
    return tl.max(best(out, legal, SPEC.head_rows)[1], axis=1)
