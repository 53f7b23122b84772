"""Triton kernels, and the engines that launch them.

- `ops`: device functions shared by all kernels (products, activations, layer normalization, distributions, Adam, ...).
- `spec`, `tile_config`: sizes of a network, tilings.
- `observations`, `network`, `act`, `backward`: a dense network that one program holds (resident engine).
- `packing`, `layers`: a dense network in one launch per layer (per-layer engine).
- `convolution`: a Q-network with one convolution.
- `single_tile`, `q_values`, `statistics`: small batches, Q-learning, statistics of an update.
- `muon`, `exchange`: Muon's optimizer step, sums of several GPUs.
- `dense`, `recurrent`, `actor_critic`: the engines, which launch these kernels over an algorithm's buffers.
"""

from operant.kernels.spec import Spec, padded
from operant.kernels.tile_config import (
    PerLayer,
    Resident,
    TileConfig,
    Workload,
    candidates,
    from_text,
    multiple,
    power_of_two,
    suits,
)

__all__ = [
    "PerLayer",
    "Resident",
    "Spec",
    "TileConfig",
    "Workload",
    "candidates",
    "from_text",
    "multiple",
    "padded",
    "power_of_two",
    "suits",
]
