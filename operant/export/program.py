"""Runs an exported policy with NumPy alone: the .npz and .safetensors files that `operant export policy` writes. Copy
this file to where Operant is not.

Such a file holds the policy's arrays by name, and the steps of its computation as JSON: a list of torch's core
operations (`aten`), each with the name of its result, its arguments and the type of what comes out. An argument {"$":
name} is an earlier result, an array of the file, or an input. Needs NumPy (and safetensors for its files); knows
nothing of Operant.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[Any]
PROGRAM = "program"
"""The entry of a file that holds the steps, beside the arrays."""


class Policy:
    """A policy from a file: called with arrays (B, ...), the observations first, then what else `inputs` names; returns
    the actions (B, A).

    A policy with a memory returns the actions and then its state, which the next call takes after the other inputs;
    `initial_state` is an episode's first.
    """

    def __init__(self, program: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        self.inputs: list[str] = list(program["inputs"])
        self._nodes, self._outputs, self._arrays = program["nodes"], program["outputs"], dict(arrays)
        self._state: list[dict[str, Any]] = program["state"]

    def initial_state(self, batch: int) -> list[Array]:
        """The state at an episode's start, for `batch` policies side by side; [] for one without a memory."""
        return [np.zeros((batch, *entry["shape"]), entry["dtype"]) for entry in self._state]

    def __call__(self, *inputs: Array) -> Any:
        """Actions for some inputs; with a memory, actions and states."""
        if len(inputs) != len(self.inputs):
            raise ValueError(
                f"the policy takes {len(self.inputs)} arrays ({', '.join(self.inputs)}), not {len(inputs)}"
            )
        values: dict[str, Any] = {**self._arrays, **dict(zip(self.inputs, map(np.asarray, inputs), strict=True))}
        for node in self._nodes:
            found = OPERATIONS[node["op"]](*_resolved(node["args"], values), **_resolved(node["kwargs"], values))
            dtype = node["dtype"]
            values[node["name"]] = found if dtype is None else np.asarray(found).astype(dtype, copy=False)
        outputs = [values[name] for name in self._outputs]
        return outputs[0] if len(outputs) == 1 else outputs


def load(path: str | Path) -> Policy:
    """The policy of a .npz or a .safetensors file."""
    if str(path).endswith(".safetensors"):
        from safetensors import safe_open

        with safe_open(str(path), "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
            return Policy(json.loads(file.metadata()[PROGRAM]), arrays)
    with np.load(path, allow_pickle=False) as file:
        return Policy(json.loads(str(file[PROGRAM])), {name: file[name] for name in file.files if name != PROGRAM})


def _resolved(value: Any, values: Mapping[str, Any]) -> Any:
    """An argument with names replaced by what they stand for."""
    if isinstance(value, dict):
        return values[value["$"]] if "$" in value else {key: _resolved(item, values) for key, item in value.items()}
    return [_resolved(item, values) for item in value] if isinstance(value, list) else value


# THE OPERATIONS: what they take and give is torch's


def _convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    _: Any,
    groups: int,
) -> Array:
    """(B, C, h, w) by filters (M, C, k, l) -> (B, M, h', w')."""
    if transposed or groups != 1 or any(step != 1 for step in dilation):
        raise ValueError("only plain convolutions can be run by NumPy")
    windows = _windows(x, weight.shape[2:], stride, padding, 0.0)  # (B, C, h', w', k, l)
    out = np.tensordot(windows, weight, axes=((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)
    return out if bias is None else out + bias[:, None, None]


def _windows(x: Array, size: Sequence[int], stride: Sequence[int], padding: Sequence[int], value: float) -> Array:
    padded = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2), constant_values=value)
    return sliding_window_view(padded, tuple(size), axis=(2, 3))[:, :, :: stride[0], :: stride[1]]


def _max_pool(
    x: Array, size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0, 0), *_: Any
) -> list[Array]:
    return [_windows(x, size, stride or size, list(padding) * (2 // len(padding)), -math.inf).max(axis=(4, 5))]


def _layer_norm(x: Array, shape: Sequence[int], gain: Array | None, bias: Array | None, epsilon: float) -> list[Array]:
    axes = tuple(range(-len(shape), 0))
    normal = (x - x.mean(axis=axes, keepdims=True)) / np.sqrt(x.var(axis=axes, keepdims=True) + np.float32(epsilon))
    normal = normal if gain is None else normal * gain
    return [normal if bias is None else normal + bias]


def _var_mean(
    x: Array, dim: Sequence[int] | None = None, *, correction: float = 1, keepdim: bool = False
) -> list[Array]:
    axes = None if dim is None else tuple(dim)
    return [x.var(axis=axes, ddof=int(correction), keepdims=keepdim), x.mean(axis=axes, keepdims=keepdim)]


def _softmax(x: Array, dim: int, *_: Any) -> Array:
    weights = np.exp(x - x.max(axis=dim, keepdims=True))
    return weights / weights.sum(axis=dim, keepdims=True)


def _sigmoid(x: Array) -> Array:
    tail = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1 / (1 + tail), tail / (1 + tail))


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _gelu(x: Array, *, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _split(x: Array, sizes: Sequence[int], dim: int = 0) -> list[Array]:
    return np.split(x, np.cumsum(sizes)[:-1], axis=dim)


def _slice(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


def _index(x: Array, places: Sequence[Array | None]) -> Array:
    return x[tuple(slice(None) if place is None else place for place in places)]


def _index_put(x: Array, places: Sequence[Array | None], values: Array, accumulate: bool = False) -> Array:
    out = x.copy()
    out[tuple(slice(None) if place is None else place for place in places)] = values
    return out


def _expand(x: Array, shape: Sequence[int], **_: Any) -> Array:
    lead = len(shape) - x.ndim
    return np.broadcast_to(x, [x.shape[k - lead] if size == -1 else size for k, size in enumerate(shape)])


def _squeeze(x: Array, dim: int | Sequence[int]) -> Array:
    dims = [dim] if isinstance(dim, int) else dim
    return np.squeeze(x, tuple(k for k in dims if x.shape[k] == 1))


def _filled(shape: Sequence[int], value: float, **_: Any) -> Array:
    return np.full(shape, value)


def _reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(x: Array, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
        axes = tuple(dim) or None if isinstance(dim, (list, tuple)) else dim
        return function(x, axis=axes, keepdims=keepdim)

    return reduce


def _scaled(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y, alpha=1: function(x, y if alpha == 1 else alpha * y)


def _same(x: Array, *_: Any, **__: Any) -> Array:
    return x


OPERATIONS: dict[str, Callable[..., Any]] = {
    # Sizes and shapes.
    "sym_size.int": lambda x, dim: x.shape[dim],
    "getitem": operator.getitem,
    "mul": operator.mul,
    "add": operator.add,
    "sub": operator.sub,
    "floordiv": operator.floordiv,
    "view.default": np.reshape,
    "_unsafe_view.default": np.reshape,
    "permute.default": np.transpose,
    "unsqueeze.default": np.expand_dims,
    "squeeze.dim": _squeeze,
    "squeeze.dims": _squeeze,
    "expand.default": _expand,
    "clone.default": _same,
    "_to_copy.default": _same,
    "alias.default": _same,
    "detach.default": _same,
    "split_with_sizes.default": _split,
    "slice.Tensor": _slice,
    "select.int": lambda x, dim, index: np.take(x, index, axis=dim),
    "cat.default": lambda parts, dim=0: np.concatenate(parts, axis=dim),
    "index_select.default": lambda x, dim, index: np.take(x, index, axis=dim),
    "index.Tensor": _index,
    "index_put.default": _index_put,
    "embedding.default": lambda weight, index, *_: weight[index],
    "gather.default": lambda x, dim, index: np.take_along_axis(x, index, axis=dim),
    # New arrays.
    "arange.start_step": lambda start, end, step=1, **_: np.arange(start, end, step),
    "full.default": _filled,
    "full_like.default": lambda x, value, **_: np.full_like(x, value),
    "scalar_tensor.default": lambda value, **_: np.asarray(value),
    "zeros.default": lambda shape, **_: np.zeros(shape),
    "ones.default": lambda shape, **_: np.ones(shape),
    # Arithmetic.
    "add.Tensor": _scaled(operator.add),
    "sub.Tensor": _scaled(operator.sub),
    "rsub.Scalar": lambda x, y: y - x,
    "mul.Tensor": operator.mul,
    "div.Tensor": operator.truediv,
    "neg.default": operator.neg,
    "abs.default": np.abs,
    "exp.default": np.exp,
    "log.default": np.log,
    "sqrt.default": np.sqrt,
    "rsqrt.default": lambda x: 1 / np.sqrt(x),
    "reciprocal.default": lambda x: 1 / x,
    "pow.Tensor_Scalar": operator.pow,
    "sin.default": np.sin,
    "cos.default": np.cos,
    "minimum.default": np.minimum,
    "maximum.default": np.maximum,
    "clamp.default": lambda x, low=None, high=None: np.clip(x, low, high),
    "add.Scalar": operator.add,
    "sub.Scalar": operator.sub,
    "mul.Scalar": operator.mul,
    "div.Scalar": operator.truediv,
    # Activations.
    "relu.default": lambda x: np.maximum(x, 0),
    "tanh.default": np.tanh,
    "sigmoid.default": _sigmoid,
    "gelu.default": _gelu,
    "erf.default": _erf,
    "leaky_relu.default": lambda x, slope=0.01: np.where(x > 0, x, slope * x),
    "elu.default": lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    "hardtanh.default": lambda x, low=-1.0, high=1.0: np.clip(x, low, high),
    "_softmax.default": _softmax,
    "log1p.default": np.log1p,
    "expm1.default": np.expm1,
    # Products.
    "mm.default": np.matmul,
    "bmm.default": np.matmul,
    "addmm.default": lambda bias, a, b: bias + a @ b,
    "convolution.default": _convolution,
    "max_pool2d_with_indices.default": _max_pool,
    "native_layer_norm.default": _layer_norm,
    # Sums and choices.
    "sum.dim_IntList": _reduced(np.sum),
    "mean.dim": _reduced(np.mean),
    "amax.default": _reduced(np.max),
    "amin.default": _reduced(np.min),
    "var_mean.correction": _var_mean,
    "argmax.default": lambda x, dim=None, keepdim=False: np.argmax(x, axis=dim, keepdims=keepdim),
    "cumsum.default": lambda x, dim, **_: np.cumsum(x, axis=dim),
    "where.self": np.where,
    "eq.Tensor": operator.eq,
    "eq.Scalar": operator.eq,
    "ne.Scalar": operator.ne,
    "ne.Tensor": operator.ne,
    "lt.Scalar": operator.lt,
    "lt.Tensor": operator.lt,
    "le.Scalar": operator.le,
    "le.Tensor": operator.le,
    "gt.Scalar": operator.gt,
    "gt.Tensor": operator.gt,
    "ge.Scalar": operator.ge,
    "ge.Tensor": operator.ge,
    "logical_and.default": np.logical_and,
    "logical_or.default": np.logical_or,
    "logical_not.default": np.logical_not,
    "bitwise_and.Tensor": operator.and_,
    "bitwise_or.Tensor": operator.or_,
    "bitwise_not.default": operator.invert,
}
"""What each operation of a program computes."""
