"""PPO's gradient on the CPU by a manual forward and backward pass over memory allocated once, in chunks that stay in a core's cache, one thread a core.

Autograd allocates every intermediate anew, and on a CPU the pages of fresh memory cost more than the arithmetic. Here the same derivatives are written out:
those of the loss by hand, those of the layers as products added, chunk after chunk in one order, to the gradients of a thread, which are then summed in
order. Equal to autograd of `ppo_loss` to rounding. Knows the MLP and the distributions of `operant.nn`; knows no rollout and no optimiser.

Shape letters: O observation, G towers, M and K widths of layers, H numbers of the head, A actions, n samples of a chunk, B of a minibatch.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from operant.nn import inputs, mlp
from operant.nn.distributions import ILLEGAL, Categorical, Gaussian
from operant.nn.policy import Policy

if TYPE_CHECKING:
    from operant.algos.ppo.algorithm import Batch, PPOConfig

CHUNK = 1024
"""Samples computed together, at most: with fewer, calls cost more than work; with more, activations leave the cache before the backward pass reads them."""

FEWEST = 256
"""Samples that a thread is woken for, at least."""

SURROGATE, ERROR, ENTROPY, KL, CLIPPED, TERMS = range(6)  # what a sample adds to the numbers of the loss

_aten = torch.ops.aten


def unsupported_reason(policy: Policy) -> str | None:
    """Why this policy cannot be computed here, in a few words; None where it can."""
    if policy.device.type != "cpu":
        return "it is not on the CPU"
    if not isinstance(policy.net, mlp.MLP):
        return "its network is no built-in MLP"
    if policy.net.config.layer_norm:
        return "its network has layer normalization"
    return None


# ACTIVATIONS: y = f(x) and g <- g f'(x), elementwise, into given memory. The derivative follows from y, or where `KEEPS_INPUT`, from x.

KEEPS_INPUT = frozenset(("gelu", "silu"))
_FORWARD: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tanh": lambda x, y: torch.tanh(x, out=y),
    "relu": lambda x, y: torch.clamp_min(x, 0.0, out=y),
    "gelu": lambda x, y: _aten.gelu.out(x, out=y),
    "silu": lambda x, y: _aten.silu.out(x, out=y),
}
_BACKWARD: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tanh": lambda g, y: _aten.tanh_backward.grad_input(g, y, grad_input=g),
    "relu": lambda g, y: _aten.threshold_backward.grad_input(g, y, 0.0, grad_input=g),
    "gelu": lambda g, x: _aten.gelu_backward.grad_input(g, x, grad_input=g),
    "silu": lambda g, x: _aten.silu_backward.grad_input(g, x, grad_input=g),
}


# WEIGHTS


class _Weights(NamedTuple):
    """The network as products want it, or its gradient. Actor and critic end in one product: the head's rows read the first tower, the value's the last."""

    first: Tensor  # (G M, O); its gradient (O, G M): that product is three times as fast
    first_bias: Tensor  # (G M, 1)
    layers: list[Tensor]  # (G, M, K)
    biases: list[Tensor]  # (G, M, 1)
    last: Tensor  # (H + 1, G K), zero where a row does not read a tower
    last_bias: Tensor  # (H + 1, 1)
    log_std: Tensor  # (A, 1), or empty


class _Parameters:
    """A policy's weights, and the way of gradients back into its vector."""

    def __init__(self, policy: Policy) -> None:
        net, flat = policy.net, policy.flat
        assert isinstance(net, mlp.MLP)
        self._flat = flat
        self._towers = 1 if net.config.shared else 2
        value = {name: parameter.detach() for name, parameter in zip(flat.names, flat.parameters, strict=True)}
        self._head, self._value, self._head_bias, self._value_bias = (value[name] for name in ("head_weight", "value_weight", "head_bias", "value_bias"))
        H, K = self._head.shape
        layers = range(len(net.weights))
        log_std = value.get("log_std", torch.empty(0))
        self.weights = _Weights(
            value["first_weight"], value["first_bias"], [value[f"weights.{k}"] for k in layers], [value[f"biases.{k}"] for k in layers],
            torch.zeros(H + 1, self._towers * K), torch.zeros(H + 1, 1), log_std,
        )  # fmt: skip
        self._gradients = {
            name: flat.gradient[start : start + parameter.numel()].view(parameter.shape)
            for name, parameter, start in zip(flat.names, flat.parameters, flat.offsets, strict=True)
        }

    def refresh(self) -> None:
        """Copy what the last product reads from the policy's vector; the rest are views of it."""
        H, K = self._head.shape
        last, bias = self.weights.last, self.weights.last_bias
        last[:H, :K] = self._head
        last[H:, -K:] = self._value
        bias[:H] = self._head_bias
        bias[H:] = self._value_bias

    def gradients(self) -> tuple[Tensor, _Weights]:
        """One vector of zeros, and its parts."""
        weights = self.weights
        shapes = [weights.first.t().shape, weights.first_bias.shape, *(w.shape for w in weights.layers), *(b.shape for b in weights.biases)]
        shapes += [weights.last.shape, weights.last_bias.shape, weights.log_std.shape]
        vector = torch.zeros(sum(shape.numel() for shape in shapes))
        parts = [part.view(shape) for part, shape in zip(vector.split([shape.numel() for shape in shapes]), shapes, strict=True)]
        L = len(weights.layers)
        return vector, _Weights(parts[0], parts[1], parts[2 : 2 + L], parts[2 + L : 2 + 2 * L], *parts[2 + 2 * L :])

    def write(self, gradient: _Weights) -> None:
        """Copy a gradient into the policy's vector."""
        H, K = self._head.shape
        into = self._gradients
        into["first_weight"].copy_(gradient.first.t())
        into["first_bias"].copy_(gradient.first_bias)
        for k, (layer, bias) in enumerate(zip(gradient.layers, gradient.biases, strict=True)):
            into[f"weights.{k}"].copy_(layer)
            into[f"biases.{k}"].copy_(bias)
        into["head_weight"].copy_(gradient.last[:H, :K])
        into["value_weight"].copy_(gradient.last[H:, -K:])
        into["head_bias"].copy_(gradient.last_bias[:H])
        into["value_bias"].copy_(gradient.last_bias[H:])
        if "log_std" in into:
            into["log_std"].copy_(gradient.log_std)


# NETWORK


class _Network:
    """The MLP on chunks of n samples. All its memory, and every view of it that a product reads, is made once."""

    def __init__(self, policy: Policy, weights: _Weights, n: int) -> None:
        assert isinstance(policy.net, mlp.MLP)
        config = policy.net.config
        G = 1 if config.shared else 2
        self._normalizer, self._weights = policy.normalizer, weights
        self._activate, self._deactivate = _FORWARD[config.activation], _BACKWARD[config.activation]
        self._observation = torch.empty(weights.first.shape[1], n)
        self._partial_one_hot, categories = policy.net.partial_one_hot, policy.net.categories
        self._categories = torch.arange(categories if isinstance(categories, int) else 0, dtype=torch.uint8)[:, None]
        if self._partial_one_hot is not None:
            self._chosen = torch.empty(len(self._partial_one_hot.feature), n, dtype=torch.uint8)
            self._numeric = torch.empty(len(self._partial_one_hot.numeric_features), n)
        self._after = [torch.empty(G, width, n) for width in config.hidden]
        self._before = [torch.empty(G, width, n) for width in config.hidden] if config.activation in KEEPS_INPUT else self._after
        self._first_before, self._last_after = self._before[0].view(-1, n), self._after[-1].view(-1, n)
        self._after_t, self._last_after_t = [after.transpose(1, 2) for after in self._after], self._last_after.t()
        self._layers_t, self._last_t = [layer.transpose(1, 2) for layer in weights.layers], weights.last.t()
        self._out = torch.empty(len(weights.last), n)
        self.parameters, self.value = self._out[:-1], self._out[-1]

    def with_backward(self) -> _Network:
        """Itself, with the memory that `backward` needs."""
        n, after = self._out.shape[1], self._after
        # A layer's activations are read for the last time before the gradient of the layer below is written: where they are alike, that takes their place.
        self._gradient = [above if above.shape == own.shape and self._before is after else torch.empty_like(own) for own, above in itertools.pairwise(after)]
        self._gradient.append(torch.empty_like(after[-1]))
        self._first_gradient, self._last_gradient = self._gradient[0].view(-1, n), self._gradient[-1].view(-1, n)
        self._first_gradient_t = self._first_gradient.t()
        self._out_gradient = torch.empty_like(self._out)
        self.parameters_gradient, self.value_gradient = self._out_gradient[:-1], self._out_gradient[-1]
        return self

    def forward(self, observation: Tensor) -> None:
        """Observations (O, n) to `parameters` (H, n) and `value` (n)."""
        weights, before, after = self._weights, self._before, self._after
        torch.addmm(weights.first_bias, weights.first, self._features(observation), out=self._first_before)
        self._activate(before[0], after[0])
        for k, (layer, bias) in enumerate(zip(weights.layers, weights.biases, strict=True)):
            torch.baddbmm(bias, layer, after[k], out=before[k + 1])
            self._activate(before[k + 1], after[k + 1])
        torch.addmm(weights.last_bias, weights.last, self._last_after, out=self._out)

    def _features(self, observation: Tensor) -> Tensor:
        """What the first layer reads (see `reading`), without fresh memory."""
        into = self._observation
        if len(self._categories):
            torch.eq(observation[:, None], self._categories, out=into.view(len(observation), len(self._categories), -1))
            return into
        if self._partial_one_hot is not None:
            return self._partly_one_hot(observation, self._partial_one_hot)
        if self._normalizer is not None:
            torch.sub(observation, self._normalizer.mean, out=into)
            return into.mul_(self._normalizer.inv_std).clamp_(-self._normalizer.CLIP, self._normalizer.CLIP)
        return into.copy_(observation)

    def _partly_one_hot(self, observation: Tensor, encoder: inputs.PartialOneHot) -> Tensor:
        """The same where some features are categorical and others numeric."""
        torch.index_select(observation, 0, encoder.feature, out=self._chosen)
        into = torch.eq(self._chosen, encoder.category, out=self._observation)
        seen = self._numeric.copy_(torch.index_select(observation, 0, encoder.numeric_features, out=self._chosen[: len(encoder.numeric_features)]))
        if self._normalizer is not None:
            mean, inv_std = self._normalizer.mean[encoder.numeric_features], self._normalizer.inv_std[encoder.numeric_features]
            seen.sub_(mean).mul_(inv_std).clamp_(-self._normalizer.CLIP, self._normalizer.CLIP)
        return into.index_copy_(0, encoder.numeric_columns, seen)

    def backward(self, gradient: _Weights) -> None:
        """Add to the weights' gradient what follows from `parameters_gradient` (H, n) and `value_gradient` (n).

        Of y = W x + b: dW = g x^T, db = the sum of g, dx = W^T g.
        """
        kept, g = self._before, self._gradient
        gradient.last.addmm_(self._out_gradient, self._last_after_t)
        gradient.last_bias.add_(self._out_gradient.sum(dim=1, keepdim=True))
        torch.mm(self._last_t, self._out_gradient, out=self._last_gradient)
        for k in reversed(range(len(self._layers_t))):
            self._deactivate(g[k + 1], kept[k + 1])
            gradient.layers[k].baddbmm_(g[k + 1], self._after_t[k])
            gradient.biases[k].add_(g[k + 1].sum(dim=2, keepdim=True))
            torch.bmm(self._layers_t[k], g[k + 1], out=g[k])
        self._deactivate(g[0], kept[0])
        gradient.first.addmm_(self._observation, self._first_gradient_t)
        gradient.first_bias.add_(self._first_gradient.sum(dim=1, keepdim=True))


# DISTRIBUTIONS


class _Categorical:
    """Independent choices: log p(a), the entropy, and the loss's gradient by the logits x.

    d log p_a / d x_j = 1[j = a] - p_j;  d H / d x_j = -p_j (log p_j + H)
    """

    def __init__(self, distribution: Categorical, weights: _Weights, n: int) -> None:
        ends = list(itertools.accumulate(distribution.sizes))
        rows = [slice(end - size, end) for end, size in zip(ends, distribution.sizes, strict=True)]
        self._log_p, self._p, self._taken, self._row = torch.empty(4, distribution.parameter_rows, n)  # (H, n) each
        self._negative_entropy = torch.empty(distribution.action_rows, n)
        self._blocks = [(row, self._log_p[row], self._taken[row], self._row[row], distribution.row_values[row]) for row in rows]

    def forward(self, logits: Tensor, action: Tensor, log_probability: Tensor, entropy: Tensor) -> None:
        """Write log p(a) and H, (n) each, of actions (A, n)."""
        for k, (rows, log_p, taken, _, row_values) in enumerate(self._blocks):
            torch.log_softmax(logits[rows], dim=0, out=log_p)
            torch.eq(action[k], row_values, out=taken)
        torch.mul(self._log_p, self._taken, out=self._row)
        torch.sum(self._row, dim=0, out=log_probability)
        torch.exp(self._log_p, out=self._p)
        torch.mul(self._p, self._log_p, out=self._row)
        for k, (_, _, _, row, _) in enumerate(self._blocks):
            torch.sum(row, dim=0, out=self._negative_entropy[k])
        torch.sum(self._negative_entropy, dim=0, out=entropy).neg_()

    def backward(self, surrogate_gradient: Tensor, entropy_gradient: float, gradient: Tensor, weights_gradient: _Weights) -> None:
        """Write the gradient by the logits (H, n), from those by -log p(a), (n), and by -H, the same for every sample."""
        torch.sub(self._p, self._taken, out=gradient).mul_(surrogate_gradient)
        for k, (_, log_p, _, _, _) in enumerate(self._blocks):
            log_p.sub_(self._negative_entropy[k])
        gradient.addcmul_(self._log_p, self._p, value=entropy_gradient)


class _Gaussian:
    """A diagonal normal: log p(a), the entropy, and the loss's gradient by mean mu and logarithm of the standard deviation s; z = (a - mu) exp(-s).

    d log p / d mu = z exp(-s);  d log p / d s = z^2 - 1;  d H / d s = 1
    """

    def __init__(self, distribution: Gaussian, weights: _Weights, n: int) -> None:
        self._squash, self._log_std = distribution.squash, weights.log_std
        self._standard, self._square, self._row = torch.empty(3, distribution.action_rows, n)  # (A, n) each
        self._minus_inverse_std = torch.empty_like(self._log_std)

    def forward(self, mean: Tensor, action: Tensor, log_probability: Tensor, entropy: Tensor) -> None:
        """Write log p(a) and H, (n) each, of raw actions (A, n)."""
        torch.neg(self._log_std, out=self._minus_inverse_std).exp_().neg_()
        torch.sub(mean, action, out=self._standard).mul_(self._minus_inverse_std)
        torch.mul(self._standard, self._standard, out=self._square)
        torch.mul(self._square, -0.5, out=self._row).sub_(self._log_std + 0.5 * math.log(2.0 * math.pi))
        if self._squash:  # - log(1 - tanh^2 a) = 2 (a + softplus(-2 a) - log 2)
            self._row.add_(torch.nn.functional.softplus(-2.0 * action).add_(action).sub_(math.log(2.0)), alpha=2.0)
        torch.sum(self._row, dim=0, out=log_probability)
        entropy.copy_((self._log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum())

    def backward(self, surrogate_gradient: Tensor, entropy_gradient: float, gradient: Tensor, weights_gradient: _Weights) -> None:
        """Write the gradient by the mean (A, n) and add that by s, from those by -log p(a), (n), and by -H, the same for every sample."""
        torch.mul(self._standard, self._minus_inverse_std, out=gradient).mul_(surrogate_gradient)
        self._square.sub_(1.0).mul_(surrogate_gradient)
        weights_gradient.log_std.sub_(self._square.sum(dim=1, keepdim=True)).sub_(entropy_gradient * len(surrogate_gradient))


# THE LOSS


class _Chunk:
    """The loss and its gradient on chunks of n samples, as sums over them: whoever adds chunks up divides by B."""

    def __init__(self, policy: Policy, weights: _Weights, config: PPOConfig, n: int) -> None:
        distribution = policy.distribution
        self._config = config
        self._network = _Network(policy, weights, n).with_backward()
        self._distribution = _Categorical(distribution, weights, n) if isinstance(distribution, Categorical) else _Gaussian(distribution, weights, n)
        self._terms = torch.empty(TERMS, n)
        self._surrogate, self._error, self._entropy, self._kl, self._clipped = self._terms
        self._log_ratio, self._ratio_gradient, self._unclipped, self._near, self._moved, self._sign = torch.empty(6, n)
        self._illegal = torch.empty(policy.env.mask_size, n, dtype=torch.bool)

    def add(self, samples: Batch, gradient: _Weights, totals: Tensor) -> None:
        """Add to the gradient, and to the sums of the samples' terms (TERMS)."""
        network = self._network
        network.forward(samples.observation)
        if samples.legal is not None:  # whose logits are set by hand get no gradient: p - 1[taken] and p log p are exactly 0
            network.parameters.masked_fill_(torch.eq(samples.legal, 0, out=self._illegal), ILLEGAL)
        self._distribution.forward(network.parameters, samples.action, self._log_ratio, self._entropy)
        surrogate_gradient = self._surrogate_gradient(samples)
        self._distribution.backward(surrogate_gradient, self._config.entropy_coefficient, network.parameters_gradient, gradient)
        self._value_gradient(samples, network.value, network.value_gradient)
        network.backward(gradient)
        totals.add_(self._terms.sum(dim=1))

    def _surrogate_gradient(self, samples: Batch) -> Tensor:
        """B times the gradient of L_CLIP by log pi(a|s), (n).

        L_CLIP = E[min(r A, clip(r, 1 - epsilon, 1 + epsilon) A)] and d r / d log pi = r: so r A where the first is the smaller, 0 elsewhere.
        """
        clip, unclipped, gradient = self._config.clip, self._unclipped, self._ratio_gradient
        log_ratio = self._log_ratio.sub_(samples.log_probability)
        ratio = torch.exp(log_ratio, out=gradient)
        torch.sub(ratio, 1.0, out=unclipped)
        torch.sub(unclipped, log_ratio, out=self._kl)
        torch.gt(unclipped.abs_(), clip, out=self._clipped)
        torch.mul(ratio, samples.advantage, out=unclipped)
        ratio.clamp_(1.0 - clip, 1.0 + clip).mul_(samples.advantage)
        torch.minimum(unclipped, ratio, out=self._surrogate)
        # A product, not a choice: 0 * NaN stays NaN, and a broken number is not hidden.
        return torch.eq(unclipped, self._surrogate, out=gradient).mul_(unclipped)

    def _value_gradient(self, samples: Batch, value: Tensor, gradient: Tensor) -> None:
        """Write B c1 times the gradient of L_VF by V, (n): V - R; of the larger error where value_clip is set, half of each where they are equal."""
        reach = self._config.value_clip
        torch.sub(value, samples.returns, out=gradient)
        torch.mul(gradient, gradient, out=self._error)
        if reach is not None:
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


def _evenly(samples: int, parts: int) -> list[int]:
    """The sizes of so many parts, equal but for one sample."""
    return [(k + 1) * samples // parts - k * samples // parts for k in range(parts)]


# THREADS


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Let torch use no other thread for what this one computes. Torch's threads meet in every operation, and where a core is busy all wait for its thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _join(meeting: threading.Barrier) -> None:
    """Let torch use no other thread for what this one computes, for good."""
    torch.get_num_threads()  # a thread that never asked would take on the process's number at its first work
    torch.set_num_threads(1)
    meeting.wait()  # so that each thread of a pool does this once


class ThreadPool:
    """So many threads, the caller's among them, that each compute alone: they meet once a minibatch, where torch's own would meet in every operation."""

    def __init__(self, threads: int) -> None:
        self.threads, self._pool = threads, None
        if threads > 1:
            self._pool = ThreadPoolExecutor(threads - 1, "manual_backward")
            meeting = threading.Barrier(threads - 1)
            everyone = torch.get_num_threads()
            for future in [self._pool.submit(_join, meeting) for _ in range(threads - 1)]:
                future.result()
            torch.set_num_threads(everyone)  # which a thread cannot choose for itself alone, were it not asked once before

    def cut(self, samples: int) -> list[int]:
        """So many samples in about equal slices, one for each thread that is worth waking."""
        return _evenly(samples, max(1, min(self.threads, samples // FEWEST)))

    def run(self, work: Sequence[Callable[[], None]]) -> None:
        """Some pieces of work, one for each thread at most, at once; what the first that fails raises, once all have ended."""
        with alone():
            others = [self._pool.submit(piece) for piece in work[1:]] if self._pool is not None else []
            try:
                work[0]()
            finally:
                wait(others)
        for future in others:
            future.result()


class _Shard:
    """What one thread computes of every minibatch: a part of its samples, in chunks, and the sums over them."""

    def __init__(self, policy: Policy, parameters: _Parameters, config: PPOConfig, samples: int) -> None:
        self._sizes = _evenly(samples, -(-samples // CHUNK))
        self._chunks = {n: _Chunk(policy, parameters.weights, config, n) for n in sorted(set(self._sizes))}
        self.vector, self._gradient = parameters.gradients()
        self.totals = torch.zeros(TERMS)

    @torch.no_grad()
    def compute(self, part: Batch) -> None:
        """Fill `vector` and `totals` anew."""
        self.vector.zero_()
        self.totals.zero_()
        for n, samples in zip(self._sizes, part.split(self._sizes), strict=True):
            self._chunks[n].add(samples, self._gradient, self.totals)


class Gradient:
    """The gradient of `ppo_loss` on minibatches of B samples."""

    def __init__(self, policy: Policy, config: PPOConfig, B: int, pool: ThreadPool) -> None:
        self._parameters, self._threads, self._sizes = _Parameters(policy), pool, pool.cut(B)
        self._shards = [_Shard(policy, self._parameters, config, size) for size in self._sizes]
        self._sum, self._gradient = self._parameters.gradients()
        self._totals = torch.empty(TERMS)
        self._factors = torch.tensor([-1.0, 0.5, 1.0, 1.0, 1.0]) / B

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tensor:
        """Write it into the policy's gradient vector; [policy loss, value loss, entropy, approximate KL, clip fraction], (5)."""
        self._parameters.refresh()
        work = zip(self._shards, batch.split(self._sizes), strict=True)
        self._threads.run([functools.partial(shard.compute, part) for shard, part in work])
        self._sum.zero_()
        self._totals.zero_()
        for shard in self._shards:
            self._sum.add_(shard.vector)
            self._totals.add_(shard.totals)
        self._sum.div_(sum(self._sizes))
        self._parameters.write(self._gradient)
        return self._totals * self._factors


class _ForwardWorker:
    """What one thread computes of every forward pass: a part of the lanes, in chunks, into its part of the outputs."""

    def __init__(self, policy: Policy, parameters: _Parameters, heads: Tensor, values: Tensor) -> None:
        self._sizes = _evenly(len(values), -(-len(values) // CHUNK))
        self._networks = {n: _Network(policy, parameters.weights, n) for n in sorted(set(self._sizes))}
        self._heads, self._values = heads.split(self._sizes, dim=-1), values.split(self._sizes)

    @torch.no_grad()
    def compute(self, part: Tensor) -> None:
        """Fill the outputs anew."""
        for n, seen, head, value in zip(self._sizes, part.split(self._sizes, dim=-1), self._heads, self._values, strict=True):
            network = self._networks[n]
            network.forward(seen)
            head.copy_(network.parameters)
            value.copy_(network.value)


class Forward:
    """The network's outputs for N observations, which every call overwrites: without fresh memory, and without autograd's bookkeeping."""

    def __init__(self, policy: Policy, N: int, pool: ThreadPool) -> None:
        self._parameters, self._threads, self._sizes = _Parameters(policy), pool, pool.cut(N)
        self._heads, self._values = torch.empty(policy.distribution.parameter_rows, N), torch.empty(N)
        into = zip(self._heads.split(self._sizes, dim=-1), self._values.split(self._sizes), strict=True)
        self._shards = [_ForwardWorker(policy, self._parameters, *part) for part in into]

    def refresh(self) -> None:
        """Take the policy's weights as they are now: once a rollout."""
        self._parameters.refresh()

    def __call__(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """(O, N) -> head parameters (H, N) and values (N)."""
        slices = observation.split(self._sizes, dim=-1)
        self._threads.run([functools.partial(shard.compute, part) for shard, part in zip(self._shards, slices, strict=True)])
        return self._heads, self._values
