"""Table of normalizer statistics and categories that kernels read, see `operant.kernels.observations`. No Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from operant.nn import Policy


class FeatureTable:
    """Normalizer and categories of a policy as one tensor at a fixed address, updated by `refresh`.

    `table` is (2, O) with mean and inv_std, or (4, K) with feature, category (-1: numeric), mean and inv_std of each
    column if the observation has numeric and categorical features.
    """

    def __init__(self, policy: Policy, unread: Tensor) -> None:
        """`unread` is any tensor, used as the table if the policy's kernels read none."""
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
        """Copy the normalizer's current statistics into the table."""
        normalizer = self._normalizer
        if normalizer is not None and self._partial_one_hot is not None:
            mean, inv_std = self.table[2:]
            torch.index_select(normalizer.mean[:, 0], 0, self._partial_one_hot.feature, out=mean).mul_(self._numeric)
            torch.index_select(normalizer.inv_std[:, 0], 0, self._partial_one_hot.feature, out=inv_std).mul_(
                self._numeric
            ).add_(self._categorical)
        elif normalizer is not None:
            torch.cat([normalizer.mean.t(), normalizer.inv_std.t()], out=self.table)
