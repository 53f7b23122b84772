"""The projection of C51: Bellemare, Dabney & Munos 2017, "A distributional perspective on reinforcement learning", algorithm 1. Knows no network."""

from __future__ import annotations

from torch import Tensor


def projected(probability: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """The distribution of R + discount Z on the support (K), where Z has the probabilities (K, B); reward and discount (B): (K, B).

    Each atom is moved, clipped to the support's ends, and its mass shared by the two nearest atoms in proportion to how near they are: atom j gets
    max(0, 1 - |Tz_i - z_j| / dz) of atom i. Written as a sum over i in a fixed order, without a scatter.
    """
    low, high, step = support[0], support[-1], (support[-1] - support[0]) / (len(support) - 1)
    moved = (reward + discount * support[:, None]).clamp(low, high)  # (K, B)
    place = (moved - low) / step  # in atoms
    near = (1.0 - (place[:, None] - support.new_tensor(range(len(support)))[None, :, None]).abs()).clamp_min(0.0)  # (K of i, K of j, B)
    return (near * probability[:, None]).sum(dim=0)
