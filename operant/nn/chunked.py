"""Manual forward and backward passes over minibatches, in chunks that fit a core's cache, one thread for each core.

Each chunk of a minibatch yields one row of partial sums. Rows are added in a fixed binary tree, so the sum does not
depend on the number of threads.

Shape letters: O observation, H parameters of the distribution, n samples of a chunk, B of a minibatch, N lanes, C
chunks, P elements of a row, E terms of a loss.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from operant.compute.exchange import SOLO, Exchange
from operant.compute.threads import ThreadPool
from operant.nn import manual
from operant.nn.policy import Policy

MIN_THREAD_SAMPLES = 256
"""Least samples for which another thread is used."""


class Chunk(Protocol):
    """Loss and gradient on a chunk (n samples of a minibatch), as sums over the samples. The caller divides by B."""

    def add(self, samples: Any, gradient: manual.Weights, totals: Tensor) -> None:
        """Add the gradient of `samples` to `gradient`, and the sums of its loss terms to `totals` (E)."""


def tree_sum(rows: Tensor) -> Tensor:
    """Sum C rows (C, ...) in a fixed binary tree, adjacent pairs first, so that the bits do not depend on how rows were
    computed. Returns (...). C must be a power of two.

    Equal to the tree over each shard's rows and then over the shards, whichever device or thread computes them.
    """
    while len(rows) > 1:
        rows = rows[0::2] + rows[1::2]
    return rows[0]


def tree_sum_of(rows: Iterable[Tensor]) -> Tensor:
    """Return the `tree_sum` of C rows from an iterator, holding at most log2 C + 1 of them at a time. C must be a power
    of two.
    """
    stack: list[Tensor] = []  # sums of complete subtrees
    for k, row in enumerate(rows):
        stack.append(row)
        while k % 2:
            right = stack.pop()
            stack[-1] = stack[-1] + right
            k //= 2
    return stack[0]


# THE GRADIENT


class Shard:
    """One thread's part of a minibatch: some chunks of `sizes` samples, and the tree sum of their gradients.
    `make_chunk(weights, n)` creates the loss of a chunk of n samples; `terms` is the number of its terms, E.
    """

    def __init__(
        self,
        parameters: manual.Parameters,
        make_chunk: Callable[[manual.Weights, int], Chunk],
        terms: int,
        sizes: Sequence[int],
    ) -> None:
        self._sizes = sizes
        self._chunks = {n: make_chunk(parameters.weights, n) for n in sorted(set(sizes) - {0})}
        # Stack of partial sums: one row for each height of a subtree, and one for the chunk being computed.
        length = parameters.weights.numel()
        self._stack = [torch.zeros(length + terms) for _ in range(len(sizes).bit_length() + 1)]
        self._rows = [(parameters.weights.views(row), row[length:]) for row in self._stack]

    @torch.no_grad()
    def compute(self, part: Any, rows: Tensor) -> None:
        """Fill `rows` (R, P) with the sums over R equal subtrees of the chunks of `part`, in their order. R and the
        chunks of a subtree are powers of two.
        """
        leaves = len(self._sizes) // len(rows)
        samples = iter(part.split(self._sizes))
        for k, row in enumerate(rows):
            row.copy_(self._subtree(itertools.islice(samples, leaves), self._sizes[k * leaves : (k + 1) * leaves]))

    def _subtree(self, samples: Iterator[Any], sizes: Sequence[int]) -> Tensor:
        """Return the tree sum (P) of the rows of some chunks, of gradient and loss terms. A row is added to its
        neighbour as soon as both are complete, so few are held at a time.
        """
        height = 0  # rows on the stack
        for k, (n, chunk) in enumerate(zip(sizes, samples, strict=True)):
            self._stack[height].zero_()
            if n > 0:
                self._chunks[n].add(chunk, *self._rows[height])
            height += 1
            # Merge equal subtrees: after leaf k, once for every factor of two in k + 1.
            while (k + 1) % 2 == 0:
                height -= 1
                self._stack[height - 1].add_(self._stack[height])
                k = (k + 1) // 2 - 1
        return self._stack[0]


class Gradient:
    """Gradient of a loss on minibatches of B samples, computed by a thread pool in C chunks of `sizes` samples, C a
    power of two. `make_chunk(weights, n)` creates the loss of a chunk; `terms` is E.

    With an exchange, samples and chunks are this rank's part, and the gradient is that of all ranks together.
    """

    def __init__(
        self,
        policy: Policy,
        make_chunk: Callable[[manual.Weights, int], Chunk],
        terms: int,
        sizes: Sequence[int],
        pool: ThreadPool,
        exchange: Exchange = SOLO,
    ) -> None:
        self._exchange = exchange
        self._parameters, self._threads, self._terms, B = manual.Parameters(policy), pool, terms, sum(sizes)
        threads = max(1, min(pool.threads, B // MIN_THREAD_SAMPLES, len(sizes)))
        # One subtree for each thread, or four where the number of threads is not a power of two.
        subtrees = 1 << (threads - 1).bit_length()
        subtrees = min(len(sizes), subtrees if subtrees == threads else 4 * subtrees)
        cuts = [k * subtrees // threads for k in range(threads + 1)]
        leaves = len(sizes) // subtrees
        shares = [sizes[begin * leaves : end * leaves] for begin, end in itertools.pairwise(cuts)]
        self.shards = [Shard(self._parameters, make_chunk, terms, share) for share in shares]
        self._sizes = [sum(share) for share in shares]
        self._rows = torch.zeros(subtrees, self._parameters.weights.numel() + terms)
        self._parts = [self._rows[begin:end] for begin, end in itertools.pairwise(cuts)]

    @torch.no_grad()
    def __call__(self, batch: Any) -> Tensor:
        """Write the mean gradient over the samples of `batch` into the policy's gradient vector. Returns the sums of
        the loss terms over the samples (E). `batch` has a method `split(sizes)`.
        """
        self._parameters.refresh()
        work = zip(self.shards, batch.split(self._sizes), self._parts, strict=True)
        self._threads.run([functools.partial(shard.compute, part, rows) for shard, part, rows in work])
        total = tree_sum(self._exchange.gather(tree_sum(self._rows)[None]))
        gradient, terms = total[: -self._terms] / (sum(self._sizes) * self._exchange.ranks), total[-self._terms :]
        self._parameters.write(self._parameters.weights.views(gradient))
        return terms


# THE FORWARD PASS


class ForwardWorker:
    """One thread's part of every forward pass: slices of `sizes` lanes, whose results are written to parts of `outputs`
    and `values`.
    """

    def __init__(
        self, policy: Policy, parameters: manual.Parameters, sizes: Sequence[int], outputs: Tensor, values: Tensor
    ) -> None:
        self._sizes = list(sizes)
        self._networks = {n: manual.Network(policy, parameters.weights, n) for n in sorted(set(sizes))}
        self._outputs, self._values = outputs.split(self._sizes, dim=-1), values.split(self._sizes)

    @torch.no_grad()
    def compute(self, part: Tensor) -> None:
        """Write the network's outputs and values for `part`, the observations of this thread's lanes."""
        for n, observation, output, value in zip(
            self._sizes, part.split(self._sizes, dim=-1), self._outputs, self._values, strict=True
        ):
            network = self._networks[n]
            network.forward(observation)
            output.copy_(network.parameters)
            value.copy_(network.value)


class Forward:
    """Forward pass of the network for N observations on a thread pool, without allocations or autograd. Every call
    overwrites its outputs.

    The `sizes` of the slices of lanes are fixed, whatever the number of threads: the last bits of a product depend on
    its shape.
    """

    def __init__(self, policy: Policy, sizes: Sequence[int], pool: ThreadPool) -> None:
        self._parameters, self._threads, N = manual.Parameters(policy), pool, sum(sizes)
        threads = max(1, min(pool.threads, N // MIN_THREAD_SAMPLES, len(sizes)))
        shares = [sizes[k * len(sizes) // threads : (k + 1) * len(sizes) // threads] for k in range(threads)]
        self._sizes = [sum(share) for share in shares]
        self._outputs, self._values = torch.empty(policy.distribution.parameter_rows, N), torch.empty(N)
        parts = zip(shares, self._outputs.split(self._sizes, dim=-1), self._values.split(self._sizes), strict=True)
        self._shards = [ForwardWorker(policy, self._parameters, *part) for part in parts]

    def refresh(self) -> None:
        """Copy the policy's current weights into the layout that matrix products read. Call once for each rollout."""
        self._parameters.refresh()

    def __call__(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Map observations (O, N) to parameters of the distribution (H, N) and values (N)."""
        slices = observation.split(self._sizes, dim=-1)
        self._threads.run(
            [functools.partial(shard.compute, part) for shard, part in zip(self._shards, slices, strict=True)]
        )
        return self._outputs, self._values
