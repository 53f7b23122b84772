"""Exported policies in plain NumPy: run the .npz and .safetensors files that `operant export policy` writes.

Dense networks and their memories (GRU, LSTM, MinGRU). Copy this file to a machine without Operant: it needs NumPy
alone (and safetensors for its files).

A file holds the policy's arrays by name, and its computation as JSON: a list of torch core operations (`aten`), each
with the name of its result, its arguments and the dtype of its result. An argument {"$": name} is an earlier result, an
array of the file or an input.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
PROGRAM = "program"
"""Entry of a file that holds the operations."""


class Policy:
    """Policy read from an exported file. Call it with arrays (B, ...), observations first, then the other `inputs`; it
    returns actions (B, A).

    A recurrent policy returns the actions and its next state, the last inputs of the next call. `initial_state` is the
    state at an episode's start.
    """

    def __init__(self, program: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        self.inputs: list[str] = list(program["inputs"])
        self._nodes, self._outputs, self._arrays = program["nodes"], program["outputs"], dict(arrays)
        self._state: list[dict[str, Any]] = program["state"]
        if unknown := sorted({node["op"] for node in self._nodes} - OPERATIONS.keys()):
            raise ValueError(
                f"this policy computes {', '.join(unknown)}, which program.py no longer supports: use the program.py "
                "of the version that wrote the file, or export the policy with --to onnx"
            )

    def initial_state(self, batch: int) -> list[Array]:
        """Recurrent state of `batch` lanes at an episode's start; [] for a feed-forward policy."""
        return [np.zeros((batch, *entry["shape"]), entry["dtype"]) for entry in self._state]

    def __call__(self, *inputs: Array) -> Any:
        """Return actions (B, A), or [actions, *next state] for a recurrent policy. The inputs are arrays (B, ...) in
        the order of `inputs`.
        """
        if len(inputs) != len(self.inputs):
            raise ValueError(
                f"the policy takes {len(self.inputs)} arrays ({', '.join(self.inputs)}), not {len(inputs)}"
            )
        values: dict[str, Any] = {**self._arrays, **dict(zip(self.inputs, map(np.asarray, inputs), strict=True))}
        for node in self._nodes:
            result = OPERATIONS[node["op"]](*_resolve(node["args"], values), **_resolve(node["kwargs"], values))
            dtype = node["dtype"]
            values[node["name"]] = result if dtype is None else np.asarray(result).astype(dtype, copy=False)
        outputs = [values[name] for name in self._outputs]
        return outputs[0] if len(outputs) == 1 else outputs


def load(path: str | Path) -> Policy:
    """Load an exported policy from a .npz or a .safetensors file."""
    if str(path).endswith(".safetensors"):
        from safetensors import safe_open

        with safe_open(str(path), "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
            return Policy(json.loads(file.metadata()[PROGRAM]), arrays)
    with np.load(path, allow_pickle=False) as file:
        return Policy(json.loads(str(file[PROGRAM])), {name: file[name] for name in file.files if name != PROGRAM})


def _resolve(value: Any, values: Mapping[str, Any]) -> Any:
    """Replace references {"$": name} in an operation's argument by their values."""
    if isinstance(value, dict):
        return values[value["$"]] if "$" in value else {key: _resolve(item, values) for key, item in value.items()}
    return [_resolve(item, values) for item in value] if isinstance(value, list) else value


# OPERATIONS, with the arguments of torch's


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


def _gelu(x: Array, *, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2)))


def _split(x: Array, sizes: Sequence[int], dim: int = 0) -> list[Array]:
    return np.split(x, np.cumsum(sizes)[:-1], axis=dim)


def _slice(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


def _index(x: Array, indices: Sequence[Array | None]) -> Array:
    return x[tuple(slice(None) if index is None else index for index in indices)]


def _index_put(x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False) -> Array:
    out = x.copy()
    out[tuple(slice(None) if index is None else index for index in indices)] = values
    return out


def _expand(x: Array, shape: Sequence[int], **_: Any) -> Array:
    lead = len(shape) - x.ndim
    return np.broadcast_to(x, [x.shape[k - lead] if size == -1 else size for k, size in enumerate(shape)])


def _sum(x: Array, dim: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> Any:
    return np.sum(x, axis=tuple(dim) if dim else None, keepdims=keepdim)


def _scaled(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y, alpha=1: function(x, y if alpha == 1 else alpha * y)


def _identity(x: Array, *_: Any, **__: Any) -> Array:
    return x


OPERATIONS: dict[str, Callable[..., Any]] = {
    # Sizes and shapes.
    "sym_size.int": lambda x, dim: x.shape[dim],
    "getitem": operator.getitem,
    "mul": operator.mul,
    "view.default": np.reshape,
    "_unsafe_view.default": np.reshape,
    "permute.default": np.transpose,
    "unsqueeze.default": np.expand_dims,
    "expand.default": _expand,
    "clone.default": _identity,
    "_to_copy.default": _identity,
    "alias.default": _identity,
    "split_with_sizes.default": _split,
    "slice.Tensor": _slice,
    "select.int": lambda x, dim, index: np.take(x, index, axis=dim),
    "cat.default": lambda parts, dim=0: np.concatenate(parts, axis=dim),
    "index_select.default": lambda x, dim, index: np.take(x, index, axis=dim),
    "index.Tensor": _index,
    "index_put.default": _index_put,
    # New arrays.
    "arange.start_step": lambda start, end, step=1, **_: np.arange(start, end, step),
    "full.default": lambda shape, value, **_: np.full(shape, value),
    "scalar_tensor.default": lambda value, **_: np.asarray(value),
    # Arithmetic.
    "add.Tensor": _scaled(operator.add),
    "sub.Tensor": _scaled(operator.sub),
    "mul.Tensor": operator.mul,
    "div.Tensor": operator.truediv,
    "neg.default": operator.neg,
    "abs.default": np.abs,
    "rsqrt.default": lambda x: 1 / np.sqrt(x),
    "minimum.default": np.minimum,
    "maximum.default": np.maximum,
    "clamp.default": lambda x, low=None, high=None: np.clip(x, low, high),
    # Activations and normalization.
    "relu.default": lambda x: np.maximum(x, 0),
    "tanh.default": np.tanh,
    "sigmoid.default": _sigmoid,
    "gelu.default": _gelu,
    "leaky_relu.default": lambda x, slope=0.01: np.where(x > 0, x, slope * x),
    "elu.default": lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    "_softmax.default": _softmax,
    "native_layer_norm.default": _layer_norm,
    "var_mean.correction": _var_mean,
    # Products, sums and choices.
    "mm.default": np.matmul,
    "bmm.default": np.matmul,
    "addmm.default": lambda bias, a, b: bias + a @ b,
    "sum.dim_IntList": _sum,
    "argmax.default": lambda x, dim=None, keepdim=False: np.argmax(x, axis=dim, keepdims=keepdim),
    "where.self": np.where,
    "eq.Tensor": operator.eq,
    "eq.Scalar": operator.eq,
    "ne.Scalar": operator.ne,
    "ge.Scalar": operator.ge,
}
"""Operations of dense networks and their memories, by torch's names."""
