"""Observations as the first layer reads them, in Triton: one-hot encoding, normalization, and the bias column.

Shapes: T steps, N lanes, O features of an observation, K = `SPEC.columns` columns after one-hot encoding, padded to
`SPEC.columns_pad`. Column K is constant 1 and multiplies the bias, which is column K of the first weight. `SPEC` is an
`operant.kernels.spec.Spec`.

Normalizer tables (see `FeatureTable`):

| observation                                    | table  | rows                                           |
|------------------------------------------------|--------|------------------------------------------------|
| features alike (numeric, or k categories each) | (2, O) | mean, inv_std                                  |
| numeric and categorical (SPEC.partial_one_hot) | (4, K) | feature, category (-1: numeric), mean, inv_std |
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from operant.kernels.ops.linear import round_to_tf32
from operant.nn import Policy

# ARGUMENTS


class Inputs(NamedTuple):
    """Inputs of a network over a rollout: observations, normalizer, legal actions."""

    observation: Any  # (T + 1, O, N) float32 or uint8
    normalizer: Any  # table, see `operant.kernels.observations`
    legal_mask: Any  # (T + 1, H, N) uint8; unread if every action is legal


class FeatureTable:
    """Observation normalizer and one-hot columns of a policy as one tensor at a fixed address (`table`), which kernels
    read and `refresh` updates.

    `table` is (2, O) with mean and inv_std, or (4, K) with feature, category (-1: numeric), mean and inv_std of each
    column if the observation has numeric and categorical features.
    """

    def __init__(self, policy: Policy, unread: Tensor) -> None:
        """Allocate the table of a policy. `unread` is any tensor, used as the table if the policy's kernels read
        none.
        """
        device, self._normalizer = policy.device, policy.normalizer
        self.table = (
            torch.zeros(2, self._normalizer.mean.shape[0], device=device) if self._normalizer is not None else unread
        )
        self._partial_one_hot = getattr(getattr(policy.net, "encoder", policy.net), "partial_one_hot", None)
        if self._partial_one_hot is not None:
            encoder = self._partial_one_hot
            self.table = torch.zeros(4, len(encoder.feature), device=device)
            self.table[0] = encoder.feature
            self.table[1] = encoder.category[:, 0].float().index_fill_(0, encoder.numeric_columns, -1.0)
            self.table[3] = 1.0
            self._categorical = (self.table[1] >= 0.0).float()  # columns with mean 0 and inv_std 1
            self._numeric = 1.0 - self._categorical

    def refresh(self) -> None:
        """Copy mean and 1 / std of the policy's normalizer, as they are now, into the table."""
        normalizer = self._normalizer
        if normalizer is not None and self._partial_one_hot is not None:
            mean, inv_std = self.table[2:]
            torch.index_select(normalizer.mean[:, 0], 0, self._partial_one_hot.feature, out=mean).mul_(self._numeric)
            torch.index_select(normalizer.inv_std[:, 0], 0, self._partial_one_hot.feature, out=inv_std).mul_(
                self._numeric
            ).add_(self._categorical)
        elif normalizer is not None:
            torch.cat([normalizer.mean.t(), normalizer.inv_std.t()], out=self.table)


# DEVICE FUNCTIONS


@triton.jit
def feature_of(column, normalizer_ptr, SPEC: tl.constexpr):
    """Return the index of the feature that each column of the first layer's input encodes, (columns). Columns from K on
    get an index >= O, which loads must mask.
    """
    if SPEC.partial_one_hot:
        return tl.load(normalizer_ptr + column, mask=column < SPEC.columns, other=SPEC.observation).to(tl.int32)
    else:
        return column // SPEC.categories if SPEC.categories > 0 else column


@triton.jit
def one_hot(x, column, normalizer_ptr, SPEC: tl.constexpr):
    """One-hot encode x (rows, columns), which holds feature `feature_of(column)` in each column: 1 or 0 for a category;
    numeric features are unchanged.

    A value outside of the k categories encodes as zeros.
    """
    if SPEC.partial_one_hot:
        category = tl.load(normalizer_ptr + SPEC.columns + column, mask=column < SPEC.columns, other=-1.0)[None, :]
        return tl.where(category < 0.0, x, tl.where(x.to(tl.float32) == category, 1, 0).to(x.dtype))
    elif SPEC.categories > 0:
        equal = (x.to(tl.int32) == (column % SPEC.categories)[None, :]) & (column < SPEC.columns)[None, :]
        return tl.where(equal, 1, 0).to(x.dtype)
    else:
        return x


@triton.jit
def normalize(features, column, normalizer_ptr, SPEC: tl.constexpr):
    """Normalize encoded features (rows, columns): (x - mean) / std, clipped to +-10, as float32; set column K to 1, for
    the bias. Without SPEC.normalize only the latter.
    """
    x = features.to(tl.float32)
    if SPEC.normalize:
        in_bounds = column < SPEC.columns
        if SPEC.partial_one_hot:
            normalizer_ptr += 2 * SPEC.columns
        mean = tl.load(normalizer_ptr + column, mask=in_bounds, other=0.0)
        inv_std = tl.load(normalizer_ptr + SPEC.columns + column, mask=in_bounds, other=0.0)
        x = (x - mean[None, :]) * inv_std[None, :]
        x = tl.where(x > 10.0, 10.0, tl.where(x < -10.0, -10.0, x))
    return tl.where((column == SPEC.columns)[None, :], 1.0, x)


@triton.jit
def first_operand(x, SPEC: tl.constexpr):
    """Round the first layer's input x to tf32, in bf16 as well: raw observations may differ little and need the bits.
    Unchanged in float32 ("ieee").

    Bytes that are not normalized are exact in tf32.
    """
    return x if SPEC.precision == "ieee" or (SPEC.bytes and not SPEC.normalize) else round_to_tf32(x)


@triton.jit
def load_normalized(observation_ptr, normalizer_ptr, lane, in_bounds, t, lanes, SPEC: tl.constexpr):
    """Load observations of step t as the first layer's input, (rows, columns_pad) float32: one-hot encoded and
    normalized, not yet rounded to an operand.

    | parameter       | shape         | meaning                       |
    |-----------------|---------------|-------------------------------|
    | observation_ptr | (T + 1, O, N) | float32 or uint8              |
    | lane            | (rows)        | lanes to load                 |
    | in_bounds       | (rows)        | rows to load; others are zero |
    | t, lanes        | scalars       | step, N                       |
    """
    column = tl.arange(0, SPEC.columns_pad)
    feature = feature_of(column, normalizer_ptr, SPEC)
    mask = in_bounds[:, None] & (feature < SPEC.observation)[None, :]
    x = tl.load(observation_ptr + (t * SPEC.observation + feature[None, :]) * lanes + lane[:, None], mask=mask, other=0)
    return normalize(one_hot(x, column, normalizer_ptr, SPEC), column, normalizer_ptr, SPEC)


@triton.jit
def load_features(observation_ptr, normalizer_ptr, lane, in_bounds, t, lanes, SPEC: tl.constexpr):
    """Load observations of step t as the first layer's input, (rows, columns_pad): `load_normalized`, rounded as the
    operand of the first product.
    """
    return first_operand(load_normalized(observation_ptr, normalizer_ptr, lane, in_bounds, t, lanes, SPEC), SPEC)
