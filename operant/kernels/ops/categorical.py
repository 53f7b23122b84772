"""Categorical distributions in Triton: masking of illegal actions, log-probabilities, entropies and sampling.

An action has one or several independent choices. `SPEC.sizes` are their numbers of actions, `SPEC.starts` the first
column of each choice in the logits (rows, out_pad). Columns from `SPEC.head_rows` on are not logits.
"""

from __future__ import annotations

import triton
import triton.language as tl

ILLEGAL = tl.constexpr(-1e9)
"""Logit of an illegal action, as `operant.nn.distributions.masked` sets it."""


@triton.jit
def load_legal_mask(legal_mask_ptr, sample, t, in_bounds, lanes, SPEC: tl.constexpr):
    """Load the legal-action mask (rows, out_pad) of samples t N + n: 0 for illegal actions, 1 for all other columns.

    | parameter      | shape         | meaning                        |
    |----------------|---------------|--------------------------------|
    | legal_mask_ptr | (T + 1, H, N) | uint8                          |
    | sample         | (rows)        | t N + n                        |
    | t              | (rows) or ()  | step of each sample            |
    | in_bounds      | (rows)        | rows to load; others are all 1 |
    | lanes          | scalar        | N                              |
    """
    column = tl.arange(0, SPEC.out_pad)
    mask = in_bounds[:, None] & (column < SPEC.head_rows)[None, :]
    offset = (sample + t * (SPEC.head_rows - 1) * lanes)[:, None] + column[None, :] * lanes
    return tl.load(legal_mask_ptr + offset, mask=mask, other=1)


@triton.jit
def mask_illegal(out, legal_mask, SPEC: tl.constexpr):
    """Return logits `out` (rows, out_pad) with those of illegal actions (`legal_mask` 0) replaced by -1e9; unchanged if
    the environment has no legal-action mask.
    """
    return tl.where(legal_mask != 0, out, ILLEGAL) if SPEC.legal else out


@triton.jit
def categorical(out, column, SPEC: tl.constexpr):
    """Return log-probabilities, probabilities and entropies of the actions, from logits `out` in the first columns;
    each (rows, out_pad), zero in columns that are not logits.

    The entropy is that of the choice to which a column belongs. `column` is tl.arange(0, out_pad).
    """
    log_p = tl.zeros_like(out)
    p = tl.zeros_like(out)
    entropy = tl.zeros_like(out)
    for k in tl.static_range(len(SPEC.sizes)):
        # log softmax: x - max - log sum exp(x - max)
        mask = ((column >= SPEC.starts[k]) & (column < SPEC.starts[k + 1]))[None, :]
        logits = tl.where(mask, out, -float("inf"))
        shifted = logits - tl.max(logits, axis=1)[:, None]
        exponentials = tl.exp(shifted)
        total = tl.sum(exponentials, axis=1)
        log_p = tl.where(mask, shifted - tl.log(total)[:, None], log_p)
        p = tl.where(mask, exponentials * (1.0 / total)[:, None], p)
        # H = - sum p log p
        entropy = tl.where(mask, -tl.sum(tl.where(mask, p * log_p, 0.0), axis=1)[:, None], entropy)
    return log_p, p, entropy


@triton.jit
def sample_choice(p, column, uniform, SPEC: tl.constexpr, CHOICE: tl.constexpr):
    """Sample the action of choice number CHOICE (several for MultiDiscrete) by the inverse transform: the first whose
    cumulative probability exceeds `uniform`.

    | parameter | shape           | meaning                              |
    |-----------|-----------------|--------------------------------------|
    | p         | (rows, out_pad) | probabilities from `categorical`     |
    | column    | (out_pad)       | tl.arange(0, out_pad)                |
    | uniform   | (rows)          | noise in [0, 1)                      |
    | returns   | (rows) int32    | action, 0 ... SPEC.sizes[CHOICE] - 1 |
    """
    START: tl.constexpr = SPEC.starts[CHOICE]
    END: tl.constexpr = SPEC.starts[CHOICE + 1]
    mask = (column >= START) & (column < END)
    own = tl.where(mask[None, :], p, 0.0)
    # The sum of probabilities may round to just below 1. Scaling the noise by it keeps the sample in range.
    threshold = (uniform * tl.sum(own, axis=1))[:, None]
    passed = (mask & (column < END - 1))[None, :] & (threshold >= tl.cumsum(own, axis=1))
    action = tl.sum(passed.to(tl.int32), axis=1)
    if SPEC.legal:
        # Rounding of the cumulative sums must not select an illegal action: move to the nearest with p > 0.
        index = (column - START)[None, :]
        before = tl.max(tl.where((own > 0.0) & (index <= action[:, None]), index, -1), axis=1)
        after = tl.min(tl.where((own > 0.0) & (index >= action[:, None]), index, SPEC.out_pad), axis=1)
        action = tl.where(after < SPEC.out_pad, after, tl.where(before >= 0, before, action))
    return action
