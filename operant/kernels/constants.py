"""Named compile-time constants for Triton kernels."""

from __future__ import annotations

from typing import Any

import triton.language as tl


class NamedConstants(tl.constexpr):
    """Named tuple of integers that kernels read by field, as in STAT.policy_loss."""

    # Triton's compiler looks into the value by itself, its interpreter does not.
    def __getattr__(self, name: str) -> Any:
        if "value" not in self.__dict__:  # while it is copied
            raise AttributeError(name)
        return getattr(self.value, name)
