"""Compile-time description of a recurrent policy for its kernels, and the reasons why a policy is not supported."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from operant.kernels import spec as kernel_spec
from operant.nn import Policy

MAX_GATED, MAX_FP32 = 256, 64
"""Limits: padded units of a GRU or an LSTM, of which one program computes every step; units of a cell in fp32 that are
known to be no slower than torch.
"""

FUSED_BYTES = 64 << 10
"""Largest weights of a MinGRU layer that a program holds twice, plain and transposed: gates and scan are then one
kernel.
"""

ACT_RESIDENT_BYTES = 64 << 10
"""Largest weights of all layers that a program holds in registers while acting."""

RESIDENT_BYTES = 136 << 10
"""Largest recurrent weights of a GRU or an LSTM that a program holds for all steps. Larger ones are streamed at each
step.
"""


@dataclass(frozen=True)
class Shape:
    """Compile-time constants of the recurrent layers, all of one cell and one width."""

    kind: str  # "mingru", "gru" or "lstm"
    layers: int
    units: int  # M
    pad: int  # P: M rounded up to a power of two; padding has no effect
    gates: int  # K
    columns: int  # of a row of the gates' buffer: K P, of a GRU 4 P
    rows: int  # R, values of a lane's state
    length: int  # L, steps of a segment
    block: int  # neighbouring lanes whose segments are stored side by side
    precision: str  # of products: "ieee", "tf32" or "bf16"
    approximate: bool  # tanh and sigmoid by the GPU's approximate instruction
    fused: bool  # MinGRU: gates are computed inside the scan
    resident: bool  # a program holds the recurrent weights
    block_k: int  # otherwise: units of one step of a streamed product; few in fp32, whose operands are in registers
    act_resident: bool  # a program that acts holds all weights
    input_weights: tuple[int, ...]  # offsets of each layer in the flat vector
    input_biases: tuple[int, ...]
    state_weights: tuple[int, ...]  # empty for MinGRU
    state_biases: tuple[int, ...]  # GRU only

    def lean(self) -> Shape:
        """Return a copy for programs that do not hold weights on chip."""
        return replace(self, fused=False, resident=False, act_resident=False)

    @property
    def act_tiled(self) -> bool:
        """Whether acting computes a GRU or an LSTM of one layer in blocks of units, because its weights do not fit in
        registers.
        """
        return self.kind != "mingru" and not self.act_resident and self.layers == 1

    @property
    def streams_weights(self) -> bool:
        """Whether recurrent weights of a GRU or an LSTM are loaded in blocks at every step."""
        return self.kind != "mingru" and not self.resident

    @property
    def recurrent_columns(self) -> tuple[int, ...]:
        """Column (in P) of each gate's gradient for the recurrent weights. A GRU's n has two columns: 2 of its input
        projection, 3 of W_n h + b_n.
        """
        return (0, 1, 3) if self.kind == "gru" else tuple(range(self.gates))

    @property
    def matrix(self) -> int:
        """Number of elements in a layer's packed weight, (K P, P)."""
        return self.gates * self.pad * self.pad

    @property
    def matrices(self) -> int:
        """Number of packed weights of a layer: the input's, and the recurrent one of a GRU or an LSTM."""
        return 1 if self.kind == "mingru" else 2


class Sequences(NamedTuple):
    """Location of sequences in the rollout: segments of a minibatch by its order, or (for acting) single steps of all
    lanes.
    """

    order: Any  # (E, M) int32, blocks of a minibatch's steps
    first: Any  # index of the first sequence in `order`, or the first lane
    step: Any  # step to act at; states are reset where an episode ended before it (0: nowhere)
    sample: Any  # t N + n of the first lane, for final observations
    state: Any  # (R, N), or (K, R, N) before each segment
    terminated: Any  # (T, N) uint8
    truncated: Any  # (T, N) uint8


class Finals(NamedTuple):
    """True final observations of truncated episodes, and the buffers of their values."""

    observation: Any  # (T, O, N)
    value: Any  # (T, N)


class States(NamedTuple):
    """Recurrent states that the algorithm owns: of the lanes, and before each segment."""

    now: Tensor  # current states, (R, N)
    starts: Tensor  # states before each segment, (K, R, N)
    finals: bool  # whether episodes may be truncated


def unsupported_reason(policy: Policy, samples: int) -> str | None:
    """Return why fused kernels cannot run a recurrent policy, as a clause for a message, or None if they can.
    `samples`: (T + 1) N.
    """
    net: Any = policy.net
    if not hasattr(net, "encoder"):
        return "fused kernels support dense layers only"
    reason = kernel_spec.unsupported_reason(policy, samples, net.encoder)
    if reason is not None:
        return reason
    memory = net.memory
    if memory.towers != 1:
        return "actor and critic have separate memories (net.shared = true is supported)"
    if memory.units != net.encoder.config.hidden[-1]:
        return (
            f"net.memory_size is {memory.units}, and fused kernels need the width of the last hidden layer, "
            f"{net.encoder.config.hidden[-1]}"
        )
    if memory.kind != "mingru" and memory.units > MAX_GATED:
        return f"fused kernels support up to {MAX_GATED} units of a {memory.kind}, and the memory has {memory.units}"
    return None


def reason_for_torch(policy: Policy, precision: str) -> str | None:
    """Return why torch is preferred for a recurrent policy that fused kernels could run, or None if it is not."""
    memory: Any = policy.net.memory
    if precision == "fp32" and memory.units > MAX_FP32:
        override = 'algo.kernels = "fused" uses them nevertheless'
        return (
            f"fused kernels are not known to be faster for a {memory.kind} of {memory.units} units in fp32 ({override})"
        )
    return None


def describe(policy: Policy, precision: str, length: int, block: int) -> tuple[kernel_spec.Spec, Shape]:
    """Return the spec of the dense layers around the recurrent ones, and the shape of the latter, of a supported
    policy. `length`: steps of a segment; `block`: neighbouring lanes that are shuffled together.
    """
    net: Any = policy.net
    memory, spec = net.memory, kernel_spec.describe(policy, precision, net.encoder, "encoder.")
    begin = dict(zip(policy.flat.names, policy.flat.offsets, strict=True))
    pad, gates = kernel_spec.padded(memory.units), memory.input_biases[0].shape[1] // memory.units
    item_bytes = 2 if spec.precision == "bf16" else 4

    def offsets(name: str) -> tuple[int, ...]:
        return tuple(begin[f"memory.{name}.{k}"] for k in range(len(getattr(memory, name))))

    shape = Shape(
        memory.kind,
        memory.layers,
        memory.units,
        pad,
        gates,
        (3 if memory.kind == "mingru" else 4) * pad,
        memory.rows,
        length,
        block,
        spec.precision,
        spec.approximate,
        False,
        False,
        0 if memory.kind == "mingru" else min(16 if spec.precision == "ieee" else 32, pad),
        False,
        offsets("input_weights"),
        offsets("input_biases"),
        offsets("state_weights"),
        offsets("state_biases"),
    )
    packed_bytes = item_bytes * shape.matrix
    mingru = memory.kind == "mingru"
    fused, resident, few = (
        mingru and packed_bytes <= FUSED_BYTES,
        not mingru and packed_bytes <= RESIDENT_BYTES,
        packed_bytes * shape.matrices * shape.layers <= ACT_RESIDENT_BYTES,
    )
    return spec, replace(shape, fused=fused, resident=resident, act_resident=few)
