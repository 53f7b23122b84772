"""PPO's gradient on a CPU by a manual forward and backward pass, in chunks that stay in a core's cache, one thread a core.

The loss's derivatives are written out here, those of network and distributions in `operant.nn`. Each chunk of a minibatch gives one row of partial sums, and
rows are added in a fixed binary tree, so the sum does not depend on the number of threads. Equal to autograd of `ppo_loss` to rounding. Knows no rollout and
no optimizer.

Shape letters: O observation, H parameters of the distribution, n samples of a chunk, B of a minibatch, C chunks, P numbers of a row.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from operant.compute.threads import ThreadPool
from operant.data.minibatches import CPU_CHUNK, tree_sum
from operant.nn import ILLEGAL, Policy, manual, manual_distributions

if TYPE_CHECKING:
    from operant.algos.ppo.config import PPOConfig
    from operant.algos.ppo.loss import Batch

FEWEST = 256
"""Samples that a thread is woken for, at least."""

SURROGATE, ERROR, ENTROPY, KL, CLIPPED, TERMS = range(6)  # what a sample adds to the numbers of the loss


# THE LOSS


class _Chunk:
    """The loss and its gradient on chunks of n samples, as sums over them: what adds the chunks up divides by B."""

    def __init__(self, policy: Policy, weights: manual.Weights, config: PPOConfig, n: int) -> None:
        self._config = config
        self._network = manual.Network(policy, weights, n).with_backward()
        self._distribution = manual_distributions.manual(policy.distribution, weights.log_std, n)
        self._terms = torch.empty(TERMS, n)
        self._surrogate, self._error, self._entropy, self._kl, self._clipped = self._terms
        self._log_ratio, self._ratio_gradient, self._unclipped, self._near, self._moved, self._sign = torch.empty(6, n)
        self._illegal = torch.empty(policy.env.mask_size, n, dtype=torch.bool)

    def add(self, samples: Batch, gradient: manual.Weights, totals: Tensor) -> None:
        """Add to the gradient, and to the sums of the samples' terms (TERMS)."""
        network = self._network
        network.forward(samples.observation)
        if samples.legal is not None:  # whose logits are set by hand get no gradient: p - 1[taken] and p log p are exactly 0
            network.parameters.masked_fill_(torch.eq(samples.legal, 0, out=self._illegal), ILLEGAL)
        self._distribution.forward(network.parameters, samples.action, self._log_ratio, self._entropy)
        surrogate_gradient = self._surrogate_gradient(samples)
        self._distribution.backward(surrogate_gradient, self._config.entropy_coefficient, network.parameters_gradient, gradient.log_std)
        self._value_gradient(samples, network.value, network.value_gradient)
        network.backward(gradient)
        totals.add_(self._terms.sum(dim=1))

    def _surrogate_gradient(self, samples: Batch) -> Tensor:
        """B times the gradient of L_CLIP by log pi(a|s), (n).

        L_CLIP = E[min(r A, clip(r, 1 - epsilon, 1 + epsilon) A)] and d r / d log pi = r: so r A where the first is the smaller, 0 elsewhere.
        """
        clip, unclipped, gradient = self._config.clip, self._unclipped, self._ratio_gradient
        # r = pi / pi_old, and the numbers that are reported: (r - 1) - log r, and whether |r - 1| > epsilon.
        log_ratio = self._log_ratio.sub_(samples.log_probability)
        ratio = torch.exp(log_ratio, out=gradient)
        torch.sub(ratio, 1.0, out=unclipped)
        torch.sub(unclipped, log_ratio, out=self._kl)
        torch.gt(unclipped.abs_(), clip, out=self._clipped)
        # The smaller of r A and clip(r) A.
        torch.mul(ratio, samples.advantage, out=unclipped)
        ratio.clamp_(1.0 - clip, 1.0 + clip).mul_(samples.advantage)
        torch.minimum(unclipped, ratio, out=self._surrogate)
        # A product, not a choice: 0 * NaN stays NaN, and a broken number is not hidden.
        return torch.eq(unclipped, self._surrogate, out=gradient).mul_(unclipped)

    def _value_gradient(self, samples: Batch, value: Tensor, gradient: Tensor) -> None:
        """Write B c1 times the gradient of L_VF by V, (n): V - R; of the larger error where value_clip is set, half of each where they are equal."""
        reach = self._config.value_clip
        # V - R, and its square.
        torch.sub(value, samples.returns, out=gradient)
        torch.mul(gradient, gradient, out=self._error)
        if reach is not None:
            # The same of the clipped value, V_old + clip(V - V_old); and which error is the larger: sign is 1, 0 or -1.
            moved, near, sign = self._moved, self._near, self._sign
            torch.sub(value, samples.value, out=moved)
            torch.clamp(moved, -reach, reach, out=near)
            torch.eq(moved, near, out=moved)  # 1 where it is near
            near.add_(samples.value).sub_(samples.returns)
            moved.mul_(near)
            near.mul_(near)
            torch.sub(self._error, near, out=sign).sign_()
            gradient.addcmul_(gradient, sign).add_(moved).addcmul_(moved, sign, value=-1.0).mul_(0.5)
            torch.maximum(self._error, near, out=self._error)
        gradient.mul_(self._config.value_coefficient)


# CHUNKS


class _Shard:
    """One thread's part of a minibatch: some chunks, and the tree of their rows."""

    def __init__(self, policy: Policy, parameters: manual.Parameters, config: PPOConfig, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._chunks = {n: _Chunk(policy, parameters.weights, config, n) for n in sorted(set(sizes) - {0})}
        # Rows on their way up: one of each height of a subtree, and one that is being computed.
        length = parameters.weights.numel()
        self._stack = [torch.zeros(length + TERMS) for _ in range(len(sizes).bit_length() + 1)]
        self._rows = [(parameters.weights.views(row), row[length:]) for row in self._stack]

    @torch.no_grad()
    def compute(self, part: Batch, rows: Tensor) -> None:
        """Fill rows (R, P) with the sums over as many equal subtrees of the chunks, in their order. R and a subtree's chunks are powers of two."""
        leaves = len(self._sizes) // len(rows)
        samples = iter(part.split(self._sizes))
        for k, row in enumerate(rows):
            row.copy_(self._subtree(itertools.islice(samples, leaves), self._sizes[k * leaves : (k + 1) * leaves]))

    def _subtree(self, samples: Iterator[Batch], sizes: Sequence[int]) -> Tensor:
        """The sum of some chunks' rows, (P): each is added to its neighbour as soon as both are there, so few are held at a time."""
        height = 0  # rows on the stack
        for k, (n, chunk) in enumerate(zip(sizes, samples, strict=True)):
            self._stack[height].zero_()
            if n > 0:
                self._chunks[n].add(chunk, *self._rows[height])
            height += 1
            # After leaf k as many pairs of equal subtrees are complete as k + 1 can be halved.
            while (k + 1) % 2 == 0:
                height -= 1
                self._stack[height - 1].add_(self._stack[height])
                k = (k + 1) // 2 - 1
        return self._stack[0]


class Gradient:
    """The gradient of `ppo_loss` on minibatches of B samples, in C chunks of given sizes; C is a power of two."""

    def __init__(self, policy: Policy, config: PPOConfig, sizes: Sequence[int], pool: ThreadPool) -> None:
        self._parameters, self._threads, B = manual.Parameters(policy), pool, sum(sizes)
        threads = max(1, min(pool.threads, B // FEWEST, len(sizes)))
        # As many subtrees as threads; several for each, where their number is not a power of two.
        subtrees = 1 << (threads - 1).bit_length()
        subtrees = min(len(sizes), subtrees if subtrees == threads else 4 * subtrees)
        cuts = [k * subtrees // threads for k in range(threads + 1)]
        leaves = len(sizes) // subtrees
        shares = [sizes[begin * leaves : end * leaves] for begin, end in itertools.pairwise(cuts)]
        self._shards = [_Shard(policy, self._parameters, config, share) for share in shares]
        self._sizes = [sum(share) for share in shares]
        self._rows = torch.zeros(subtrees, self._parameters.weights.numel() + TERMS)
        self._parts = [self._rows[begin:end] for begin, end in itertools.pairwise(cuts)]
        self._factors = torch.tensor([-1.0, 0.5, 1.0, 1.0, 1.0]) / B

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tensor:
        """Write it into the policy's gradient vector; [policy loss, value loss, entropy, approximate KL, clip fraction], (5)."""
        self._parameters.refresh()
        work = zip(self._shards, batch.split(self._sizes), self._parts, strict=True)
        self._threads.run([functools.partial(shard.compute, part, rows) for shard, part, rows in work])
        total = tree_sum(self._rows)
        gradient, terms = total[:-TERMS] / sum(self._sizes), total[-TERMS:]
        self._parameters.write(self._parameters.weights.views(gradient))
        return terms * self._factors


# THE FORWARD PASS


class _ForwardWorker:
    """What one thread computes of every forward pass: some slices of the lanes, into their parts of the outputs."""

    def __init__(self, policy: Policy, parameters: manual.Parameters, sizes: Sequence[int], outputs: Tensor, values: Tensor) -> None:
        self._sizes = list(sizes)
        self._networks = {n: manual.Network(policy, parameters.weights, n) for n in sorted(set(sizes))}
        self._outputs, self._values = outputs.split(self._sizes, dim=-1), values.split(self._sizes)

    @torch.no_grad()
    def compute(self, part: Tensor) -> None:
        """Fill the outputs anew."""
        for n, seen, output, value in zip(self._sizes, part.split(self._sizes, dim=-1), self._outputs, self._values, strict=True):
            network = self._networks[n]
            network.forward(seen)
            output.copy_(network.parameters)
            value.copy_(network.value)


class Forward:
    """The network's outputs for N observations, which every call overwrites: without fresh memory, and without autograd's bookkeeping.

    Slices have a shape that follows from the lanes of a shard, not from the number of threads: a product's shape decides its last bits.
    """

    def __init__(self, policy: Policy, N: int, shards: int, pool: ThreadPool) -> None:
        self._parameters, self._threads = manual.Parameters(policy), pool
        lanes = N // shards
        slices = -(-lanes // CPU_CHUNK)
        sizes = [(k + 1) * lanes // slices - k * lanes // slices for k in range(slices)] * shards
        threads = max(1, min(pool.threads, N // FEWEST, len(sizes)))
        shares = [sizes[k * len(sizes) // threads : (k + 1) * len(sizes) // threads] for k in range(threads)]
        self._sizes = [sum(share) for share in shares]
        self._outputs, self._values = torch.empty(policy.distribution.parameter_rows, N), torch.empty(N)
        parts = zip(shares, self._outputs.split(self._sizes, dim=-1), self._values.split(self._sizes), strict=True)
        self._shards = [_ForwardWorker(policy, self._parameters, *part) for part in parts]

    def refresh(self) -> None:
        """Take the policy's weights as they are now: once a rollout."""
        self._parameters.refresh()

    def __call__(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """(O, N) -> parameters of the distribution (H, N) and values (N)."""
        slices = observation.split(self._sizes, dim=-1)
        self._threads.run([functools.partial(shard.compute, part) for shard, part in zip(self._shards, slices, strict=True)])
        return self._outputs, self._values
