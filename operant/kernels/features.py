"""What kernels read of a policy beside its parameters: how observations are normalized, and which are categories. Knows
no Triton.
"""

from __future__ import annotations

import torch
from torch import Tensor

from operant.nn import Policy


class Features:
    """A policy's normalizer and categories as one table, which stands still between two calls of `refresh`."""

    def __init__(self, policy: Policy, unread: Tensor) -> None:
        """`unread` stands in for a table that no kernel reads."""
        device, self._normalizer = policy.device, policy.normalizer
        # Mean and inv_std side by side.
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
            self._categorical = (self.table[1] >= 0.0).float()  # whose mean is 0, and whose inv_std is 1
            self._numeric = 1.0 - self._categorical

    def refresh(self) -> None:
        """Take the normalizer as it is."""
        normalizer = self._normalizer
        if normalizer is not None and self._partial_one_hot is not None:
            mean, inv_std = self.table[2:]
            torch.index_select(normalizer.mean[:, 0], 0, self._partial_one_hot.feature, out=mean).mul_(self._numeric)
            torch.index_select(normalizer.inv_std[:, 0], 0, self._partial_one_hot.feature, out=inv_std).mul_(
                self._numeric
            ).add_(self._categorical)
        elif normalizer is not None:
            torch.cat([normalizer.mean.t(), normalizer.inv_std.t()], out=self.table)
