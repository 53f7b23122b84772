"""Distributional critics (C51, Bellemare, Dabney & Munos 2017) of wide networks: softmax, projection, loss in Triton.

A critic's head has one output an atom, padded to a power of two. Its products are the library's; in bf16 the head's
weight is the sum of two operands in forward products, which gives it 16 bits. All else is `engine`'s.

Common parameters: `SPEC`: `WideSpec`; `NET`: `WideNet` of the critics; `BLOCK_M`: samples of a program;
`params_ptr` (P): a flat vector of parameters, of which the head's bias is read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from operant.kernels.actor_critic.buffers import LayerBuffers
from operant.kernels.actor_critic.task import ActorCriticTask
from operant.kernels.actor_critic.wide import parts as wide
from operant.kernels.actor_critic.wide.engine import WideEngine
from operant.kernels.actor_critic.wide.spec import BLOCK_M, WideSpec
from operant.kernels.ops.linear import operand

PROJECT, CRITIC_GRADIENT, MIN_Q_GRADIENT = (BLOCK_M, 4), (BLOCK_M, 4), (BLOCK_M, 4)
"""Rows of a program's tile, where the batch allows, and its warps: 8 rows or 8 warps are as fast on an H200."""

THREE_ATOMS, FOUR_ATOMS = tl.constexpr(2 / 3), tl.constexpr(0.5)
"""Minimum discounts at which at most three, or four, shifted atoms lie within one atom of another."""

# KERNELS


@triton.jit
def _softmax_outputs(logits_ptr, row, params_ptr, tower, SPEC: tl.constexpr, NET: tl.constexpr):
    """Return the atoms' probabilities and their logarithms, (rows, atoms), of critic number `tower` at samples `row`.
    `logits_ptr` (towers, B, 2 atoms): products with both operands of the output layer. Padding atoms have probability
    0.
    """
    atom = tl.arange(0, SPEC.atoms)
    mask = atom < NET.outputs
    offset = logits_ptr + (tower * SPEC.batch + row)[:, None] * (2 * SPEC.atoms) + atom[None, :]
    z = (
        tl.load(offset)
        + tl.load(offset + SPEC.atoms)
        + tl.load(params_ptr + NET.head_bias + tower * NET.outputs + atom, mask=mask, other=0.0)[None, :]
    )
    z = tl.where(mask[None, :], z, -1e30)
    z -= tl.max(z, axis=1)[:, None]
    e = tl.exp(z)
    total = tl.sum(e, axis=1)[:, None]
    return e / total, z - tl.log(total)


@triton.jit
def _load_support(support_ptr, NET: tl.constexpr, SPEC: tl.constexpr):
    """Load the values of the support's atoms, (1, atoms)."""
    atom = tl.arange(0, SPEC.atoms)
    return tl.load(support_ptr + atom, mask=atom < NET.outputs, other=0.0)[None, :]


@triton.jit
def _project_near(rows_ptr, shift, discount, NEAR: tl.constexpr, SPEC: tl.constexpr, NET: tl.constexpr):
    """Return the projected mass of each atom, (rows, atoms), if at most NEAR shifted atoms lie within one atom of it.

    `rows_ptr` (rows): pointers to each row's probabilities; atom i moves to position shift + discount i.
    """
    OUTPUTS: tl.constexpr = NET.outputs
    LAST: tl.constexpr = OUTPUTS - 1.0
    atom, step = tl.arange(0, SPEC.atoms)[None, :], tl.where(discount > 0.0, discount, 1.0)[:, None]
    # Mass beyond an end of the support goes to that end.
    position, probability = shift[:, None] + step * atom, tl.load(rows_ptr[:, None] + atom)
    below = tl.sum(probability * tl.minimum(tl.maximum(-position, 0.0), 1.0), axis=1)
    above = tl.sum(probability * tl.minimum(tl.maximum(position - LAST, 0.0), 1.0), axis=1)
    mass = tl.where(atom == 0, below[:, None], 0.0) + tl.where(atom == OUTPUTS - 1, above[:, None], 0.0)
    # The first shifted atom within one atom of this one, and those after it.
    first = tl.floor((atom - 1.0 - shift[:, None]) / step) + 1.0
    first = tl.minimum(tl.maximum(first, -NEAR), OUTPUTS)
    i, distance = first.to(tl.int32), shift[:, None] + step * first - atom
    for k in tl.static_range(NEAR):
        share = tl.maximum(1.0 - tl.abs(distance), 0.0)
        mass += tl.load(rows_ptr[:, None] + i + k, mask=(i + k >= 0) & (i + k < OUTPUTS), other=0.0) * share
        distance += step
    # With discount 0 all mass moves to one position.
    position = tl.minimum(tl.maximum(shift, 0.0), LAST)[:, None]
    return tl.where((discount > 0.0)[:, None], mass, tl.maximum(1.0 - tl.abs(position - atom), 0.0))


@triton.jit
def project(
    logits_ptr,
    params_ptr,
    batch,
    scratch,
    temperature,
    support_ptr,
    reward_factor_ptr,
    probability_ptr,
    target_ptr,
    SPEC: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Write target distributions: r + discount (Z' - alpha log pi) projected onto the support, Z' of the target critic
    with the lowest mean; without the entropy's term for TD3. Grid: (B / BLOCK_M,).

    Atom j gets sum_i p_i max(0, 1 - |Tz_i - z_j| / dz), a sum in fixed order; over three or four atoms where the
    discounts are 0 or large enough.

    | parameter         | shape                | meaning                                      |
    |-------------------|----------------------|----------------------------------------------|
    | logits_ptr        | (towers, B, 2 atoms) | products of the target critics' heads        |
    | params_ptr        | (P)                  | the target critics'                          |
    | batch             | struct               | `BatchBuffers`                               |
    | scratch           | struct               | `Scratch`                                    |
    | temperature       | struct               | `Temperature`                                |
    | support_ptr       | (outputs)            | the support                                  |
    | reward_factor_ptr | scalar               | factor on rewards                            |
    | probability_ptr   | (B, atoms)           | workspace: the lowest critic's probabilities |
    | target_ptr        | (B, atoms)           | written                                      |
    """
    NET: tl.constexpr = SPEC.critic
    TOWERS: tl.constexpr = NET.towers
    OUTPUTS: tl.constexpr = NET.outputs
    ATOMS: tl.constexpr = SPEC.atoms
    row, atom = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, SPEC.atoms)
    offset = row[:, None] * SPEC.atoms + atom[None, :]
    support = _load_support(support_ptr, NET, SPEC)
    probability, _log = _softmax_outputs(logits_ptr, row, params_ptr, 0, SPEC, NET)
    mean = tl.sum(probability * support, axis=1)
    for k in tl.static_range(1, TOWERS):
        other, _log = _softmax_outputs(logits_ptr, row, params_ptr, k, SPEC, NET)
        other_mean = tl.sum(other * support, axis=1)
        probability = tl.where((other_mean < mean)[:, None], other, probability)
        mean = tl.minimum(mean, other_mean)
    tl.store(probability_ptr + offset, probability)
    tl.debug_barrier()  # the row's other threads read them

    discount = tl.load(batch.discount + row)
    reward = tl.load(batch.reward + row) * tl.load(reward_factor_ptr)
    if SPEC.stochastic:
        reward = reward - discount * tl.exp(tl.load(temperature.log_alpha)) * tl.load(scratch.next_log_prob + row)
    low, high = tl.load(support_ptr), tl.load(support_ptr + OUTPUTS - 1)
    dz = (high - low) / (OUTPUTS - 1)
    shift = (reward + discount * low - low) / dz  # position of atom 0, in atoms
    rows_ptr, mass, min_discount = (
        probability_ptr + row * SPEC.atoms,
        tl.zeros((BLOCK_M, ATOMS), tl.float32),
        tl.min(tl.where(discount > 0.0, discount, 1.0), axis=0),
    )
    if min_discount >= THREE_ATOMS:
        mass += _project_near(rows_ptr, shift, discount, 3, SPEC, NET)
    elif min_discount >= FOUR_ATOMS:
        mass += _project_near(rows_ptr, shift, discount, 4, SPEC, NET)
    else:
        for i in range(OUTPUTS):
            position = tl.minimum(tl.maximum(shift + discount * i, 0.0), OUTPUTS - 1.0)
            mass += tl.load(rows_ptr + i)[:, None] * tl.maximum(1.0 - tl.abs(position[:, None] - atom[None, :]), 0.0)
    tl.store(target_ptr + offset, tl.where((atom < OUTPUTS)[None, :], mass, 0.0))


@triton.jit
def critic_gradient(
    logits_ptr,
    params_ptr,
    target_ptr,
    support_ptr,
    reward_factor_ptr,
    grad_logits_ptr,
    grad_bias_ptr,
    terms_ptr,
    SPEC: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Write the gradient of the critics' loss, the sum over critics of the mean cross-entropy, in the logits. Grid:
    (NET.programs, towers).

    | parameter         | shape                     | meaning                                                     |
    |-------------------|---------------------------|-------------------------------------------------------------|
    | logits_ptr        | (towers, B, 2 atoms)      | products of the critics' heads                              |
    | params_ptr    | (P)                       | the critics'                                                |
    | target_ptr        | (B, atoms)                | target distributions                                        |
    | support_ptr       | (outputs)                 | the support                                                 |
    | reward_factor_ptr | scalar                    | factor on rewards                                           |
    | grad_logits_ptr   | (towers, B, atoms)        | written                                                     |
    | grad_bias_ptr     | (programs, towers, atoms) | written: partial sums of it                                 |
    | terms_ptr         | (programs, towers, 3)     | written: sums of cross-entropy, of |Q - y| and Q in rewards |
    """
    program, tower = tl.program_id(0), tl.program_id(1)
    NET: tl.constexpr = SPEC.critic
    ATOMS: tl.constexpr = SPEC.atoms
    atom = tl.arange(0, ATOMS)
    support, inv_factor = _load_support(support_ptr, NET, SPEC), 1.0 / tl.load(reward_factor_ptr)
    grad_bias = tl.zeros((BLOCK_M, ATOMS), tl.float32)
    zero = tl.zeros((BLOCK_M,), tl.float32)
    cross_entropy, absolute, q_sum = zero, zero, zero
    for first in range(program * BLOCK_M, SPEC.batch, tl.num_programs(0) * BLOCK_M):
        row = first + tl.arange(0, BLOCK_M)
        offset = row[:, None] * SPEC.atoms + atom[None, :]
        probability, log_probability = _softmax_outputs(logits_ptr, row, params_ptr, tower, SPEC, NET)
        target = tl.load(target_ptr + offset)
        grad_logits = (probability * tl.sum(target, axis=1)[:, None] - target) / SPEC.batch
        tl.store(grad_logits_ptr + tower * SPEC.batch * SPEC.atoms + offset, operand(grad_logits, SPEC))
        grad_bias += grad_logits
        q = tl.sum(probability * support, axis=1)
        cross_entropy -= tl.sum(target * log_probability, axis=1)
        absolute += tl.abs(q - tl.sum(target * support, axis=1)) * inv_factor
        q_sum += q * inv_factor
    tl.store(grad_bias_ptr + (program * NET.towers + tower) * SPEC.atoms + atom, tl.sum(grad_bias, axis=0))
    wide.store_critic_terms(terms_ptr, program, tower, cross_entropy, absolute, q_sum, NET)


@triton.jit
def min_q_gradient(
    logits_ptr,
    params_ptr,
    support_ptr,
    grad_logits_ptr,
    scratch,
    SPEC: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Write each critic's Q at the actor's actions to `scratch.actor_q` (towers, B), and the gradient of the actor's
    loss -mean_B(min_c Q_c) in the critics' logits: 0 for all but the critic with the lowest Q of a sample. For TD3 only
    the first critic is evaluated. Grid: (B / BLOCK_M,).

    | parameter       | shape                | meaning                         |
    |-----------------|----------------------|---------------------------------|
    | logits_ptr      | (towers, B, 2 atoms) | products of the critics' heads  |
    | params_ptr      | (P)                  | the critics'                    |
    | support_ptr     | (outputs)            | the support                     |
    | grad_logits_ptr | (towers, B, atoms)   | written                         |
    | scratch         | struct               | `Scratch`: `actor_q` is written |
    """
    row, atom = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, SPEC.atoms)
    NET: tl.constexpr = SPEC.critic
    TOWERS: tl.constexpr = NET.towers if SPEC.stochastic else 1
    support = _load_support(support_ptr, NET, SPEC)
    min_q, lowest = tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M,), tl.int32)
    gradients = ()
    for k in tl.static_range(TOWERS):
        probability, _log = _softmax_outputs(logits_ptr, row, params_ptr, k, SPEC, NET)
        q = tl.sum(probability * support, axis=1)
        tl.store(scratch.actor_q + k * SPEC.batch + row, q)
        # dQ / d logit_k = p_k (z_k - Q)
        gradients = gradients + (probability * (support - q[:, None]) * (-1.0 / SPEC.batch),)
        if k == 0:
            min_q = q
        else:
            lowest = tl.where(q < min_q, k, lowest)
            min_q = tl.minimum(q, min_q)
    for k in tl.static_range(TOWERS):
        offset = (k * SPEC.batch + row)[:, None] * SPEC.atoms + atom[None, :]
        tl.store(grad_logits_ptr + offset, operand(tl.where((lowest == k)[:, None], gradients[k], 0.0), SPEC))


# LAUNCHES


class C51Engine(WideEngine):
    """Engine of SAC and TD3 for wide networks (up to 1,024 units) with distributional critics."""

    def __init__(self, shape: WideSpec, task: ActorCriticTask) -> None:
        super().__init__(shape, task)
        net, B, atoms, width = shape.critic, shape.batch, shape.atoms, shape.critic.layers[-1].width
        self._probability, self._target_distribution = self._zeros(B, atoms), self._zeros(B, atoms)
        # Heads as two operands with padded rows, their products, and the gradients.
        self._grad_logits = torch.zeros(net.towers, B, atoms, dtype=self._dtype, device=self._device)
        self._split_heads = (
            torch.zeros(net.towers, 2 * atoms, width, dtype=self._dtype, device=self._device),
            torch.zeros(net.towers, 2 * atoms, width, dtype=self._dtype, device=self._device),
        )
        self._logits, self._target_logits = (self._zeros(net.towers, B, 2 * atoms) for _ in range(2))
        self._grad_head, self._grad_head_bias = (
            self._zeros(net.towers, atoms, width),
            self._zeros(net.programs, net.towers, atoms),
        )

    def prepare(self) -> None:
        """Prepare an iteration: read normalizer and parameters, and split the critics' heads into two operands."""
        super().prepare()
        net = self.shape.critic
        for values, split in zip(
            (self._critics.parameters.vector, self._target_critics.values), self._split_heads, strict=True
        ):
            size = net.towers * net.outputs * split.shape[-1]
            head = values[net.head_weight :][:size].view(net.towers, net.outputs, -1)
            split[:, : net.outputs].copy_(head)
            split[:, self.shape.atoms :][:, : net.outputs].copy_(head - split[:, : net.outputs])

    def _multiply_head(self, buffers: LayerBuffers, head: Tensor, logits: Tensor, towers: int) -> None:
        """Write the products of the last hidden activations with both operands of the output layer to `logits`, for the
        first `towers` critics.
        """
        if self._asked is None:
            self._product(buffers.hidden[-1][:towers], head[:towers].transpose(1, 2), logits[:towers])

    def _critic_gradient(self) -> None:
        """Compute the gradient of the critics' loss in their last hidden layers' pre-activations, and in their output
        layers.
        """
        net, buffers, critics, task = self.shape.critic, self._critic_buffers, self._critics, self.task
        K, G, width, values = net.outputs, net.towers, net.layers[-1].width, critics.parameters.vector
        with self._overlapped(self._stream_a):
            self._multiply_head(buffers, self._split_heads[0], self._logits, G)
        self._multiply_head(self._target_buffers, self._split_heads[1], self._target_logits, G)
        self._launch_tiled(
            project,
            PROJECT,
            self.shape.batch,
            1,
            self._target_logits,
            self._target_critics.values,
            self._batch,
            self._scratch_buffers,
            self._temperature,
            task.support,
            task.reward_factor,
            self._probability,
            self._target_distribution,
        )
        self._join(self._stream_a)
        self._launch_tiled(
            critic_gradient,
            CRITIC_GRADIENT,
            net.programs,
            G,
            self._logits,
            values,
            self._target_distribution,
            task.support,
            task.reward_factor,
            self._grad_logits,
            self._grad_head_bias,
            critics.terms,
        )
        if self._asked is None:
            with self._overlapped(self._stream_a):
                self._product(self._grad_logits.transpose(1, 2), buffers.hidden[-1], self._grad_head)
                grad_head = critics.gradient[net.head_weight :][: G * K * width].view(G, K, width)
                grad_head.copy_(self._grad_head[:, :K])
                grad_bias = critics.gradient[net.head_bias :][: G * K].view(G, K)
                torch.sum(self._grad_head_bias[..., :K], 0, out=grad_bias)
        self._backward_head(train=True, towers=G)

    def _min_q_gradient(self, towers: int) -> None:
        """Compute the gradient of -min_c Q_c / B in the last hidden layers' pre-activations of the first `towers`
        critics.
        """
        self._multiply_head(self._critic_buffers, self._split_heads[0], self._logits, towers)
        self._launch_tiled(
            min_q_gradient,
            MIN_Q_GRADIENT,
            self.shape.batch,
            1,
            self._logits,
            self._critics.parameters.vector,
            self.task.support,
            self._grad_logits,
            self._scratch_buffers,
        )
        self._backward_head(train=False, towers=towers)

    def _launch_tiled(
        self, kernel: object, tile: tuple[int, int], max_programs: int, grid_1: int, *arguments: object
    ) -> None:
        """Launch a kernel over rows of the critics' outputs, in at most `max_programs` x `grid_1` programs."""
        B, (max_rows, warps) = self.shape.batch, tile
        rows = next(size for size in (max_rows, BLOCK_M) if B % size == 0)
        grid = (min(max_programs, B // rows), grid_1)
        self.launch(kernel, grid, *arguments, SPEC=self.shape, BLOCK_M=rows, num_warps=warps, num_stages=1)

    def _backward_head(self, *, train: bool, towers: int) -> None:
        """Run the backward pass of the output layer, from the logits to the last hidden layers' pre-activations.
        `train`: also compute the gradient of its weight.
        """
        grad_z = self._critic_buffers.grad_z
        if self._asked is None:
            head = self._split_heads[0][:towers, : self.shape.atoms]
            torch.bmm(self._grad_logits[:towers], head, out=grad_z[-1][:towers])
        self._backward_layer(self._critics, self._critic_buffers, len(grad_z) - 1, train=train, towers=towers)
