"""Gymnasium spaces as flat rows: an observation is a row of float32 or bytes with named fields; an action is read from
a row.

A picture (a single Box of uint8 with two or three axes) is bytes (H, W, C). If every part is uint8, or Discrete,
MultiDiscrete or MultiBinary with at most 256 values, the row is bytes, and Discrete, MultiDiscrete and MultiBinary are
categorical features, read one-hot. Everything else is float32: Discrete and MultiDiscrete one-hot, MultiBinary 0 and 1,
uint8 divided by 255. Parts of a Dict or Tuple follow in their order, named as Python would access them: `position`,
`hand[1]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

MASK = "action_mask"
"""Key of the legal actions, in `info` or in a Dict observation."""

_CATEGORIES = 256  # values of a byte


class UnsupportedSpaceError(Exception):
    """A space that cannot be a row; the message is a sentence."""


class Part(NamedTuple):
    """Leaf of a space: name, path in a value, and space."""

    name: str
    path: tuple[Any, ...]
    space: Any


class Field(NamedTuple):
    """Named range of entries in a row."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Observation:
    """Description of an observation row, and `write(value, row)`, which fills one."""

    size: int
    dtype: str  # "float32" or "uint8"
    low: float | tuple[float, ...]
    high: float | tuple[float, ...]
    shape: tuple[int, ...]  # (H, W, C) of a picture, else ()
    categories: int | tuple[int, ...]
    fields: tuple[Field, ...]
    write: Callable[[Any, np.ndarray], None] = field(compare=False)


@dataclass(frozen=True)
class Action:
    """Description of an action row by the `sizes` of its choices or by bounds, and `read(row)`, which converts one to
    the environment's action.
    """

    sizes: tuple[int, ...]  # () for a Box
    low: tuple[float, ...]
    high: tuple[float, ...]
    multi: bool  # more than one choice
    read: Callable[[np.ndarray], Any] = field(compare=False)

    @property
    def size(self) -> int:
        """Number of entries in a row, A."""
        return len(self.sizes) or len(self.low)


def parts(space: Any, name: str = "", path: tuple[Any, ...] = ()) -> Iterator[Part]:
    """Yield the leaves (not Dict or Tuple) of a space, in order, named as Python would access them."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from parts(inner, f"{name}.{key}" if name else str(key), (*path, key))
    elif isinstance(space, spaces.Tuple):
        for k, inner in enumerate(space.spaces):
            yield from parts(inner, f"{name}[{k}]", (*path, k))
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        yield Part(name or "observation", path, space)
    else:
        raise UnsupportedSpaceError(
            f"{name or 'it'} is {space}: Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple are known"
        )


def _reach(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _choices(space: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Number of values and least value of each entry of an integer space (Discrete, MultiDiscrete, MultiBinary); None
    for a Box.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return np.array([space.n]), np.array([space.start])
    if isinstance(space, spaces.MultiDiscrete):
        return np.asarray(space.nvec).ravel(), np.asarray(space.start).ravel()
    if isinstance(space, spaces.MultiBinary):
        count = math.prod(space.n) if isinstance(space.n, tuple | list | np.ndarray) else int(space.n)
        return np.full(count, 2), np.zeros(count, np.int64)
    return None


def has_mask(space: Any) -> bool:
    """Whether the observations of this space are a Dict that holds the legal actions."""
    from gymnasium import spaces

    return isinstance(space, spaces.Dict) and MASK in space.spaces


def is_picture(space: Any) -> bool:
    """Whether observations of this space are pictures of bytes."""
    from gymnasium import spaces

    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) in (2, 3)
        and math.prod(space.shape) > 0
    )


def channels_first(shape: tuple[int, ...]) -> bool:
    """Whether pictures of this three-axis shape have their channels first: few entries in the first axis, many in the
    last.
    """
    return len(shape) == 3 and shape[0] <= 16 < shape[2] and shape[0] < shape[1]


def observation(space: Any) -> Observation:
    """Row description of an observation space. Raises UnsupportedSpaceError."""
    if has_mask(space):
        from gymnasium import spaces

        space = spaces.Dict({key: inner for key, inner in space.spaces.items() if key != MASK})
    if is_picture(space):
        return _picture(space)
    leaves = list(parts(space))
    if not leaves or not all(_numbers(part.space) for part in leaves):
        raise UnsupportedSpaceError("it has no entries")
    alike = [_choices(part.space) for part in leaves]
    in_bytes = all(
        str(part.space.dtype) == "uint8" if choices is None else choices[0].max() <= _CATEGORIES
        for part, choices in zip(leaves, alike, strict=True)
    )
    return _bytes(leaves, alike) if in_bytes else _floats(leaves, alike)


def _numbers(space: Any) -> int:
    choices = _choices(space)
    return math.prod(space.shape) if choices is None else len(choices[0])


def _picture(space: Any) -> Observation:
    turned = channels_first(space.shape)
    height, width, *planes = space.shape[1:] + space.shape[:1] if turned else space.shape
    shape = (int(height), int(width), int(planes[0]) if planes else 1)

    def write(value: Any, row: np.ndarray) -> None:
        picture = np.asarray(value)
        row.reshape(shape)[:] = (picture.transpose(1, 2, 0) if turned else picture).reshape(shape)

    size = math.prod(shape)
    return Observation(size, "uint8", 0.0, 255.0, shape, 0, (Field("observation", 0, size),), write)


def _bytes(leaves: list[Part], choices: list[Any]) -> Observation:
    """Row of bytes: categorical features and numeric uint8."""
    categories: list[int] = []
    high: list[float] = []
    fields, plans, offset = [], [], 0
    for part, choice in zip(leaves, choices, strict=True):
        count = _numbers(part.space)
        if choice is None:
            categories += [0] * count
            high += np.asarray(part.space.high, np.float64).ravel().tolist()
        else:
            categories += [int(k) if k > 1 else 0 for k in choice[0]]
            high += [float(k - 1) for k in choice[0]]
        fields.append(Field(part.name, offset, offset + count))
        plans.append((part.path, slice(offset, offset + count), 0 if choice is None else choice[1]))
        offset += count

    def write(value: Any, row: np.ndarray) -> None:
        for path, columns, least in plans:
            row[columns] = np.asarray(_reach(value, path)).ravel() - least

    return Observation(
        offset, "uint8", 0.0, tuple(max(bound, 1.0) for bound in high), (), tuple(categories), tuple(fields), write
    )


def _floats(leaves: list[Part], choices: list[Any]) -> Observation:
    """Row of float32: one-hot, 0 and 1, and plain values."""
    low: list[float] = []
    high: list[float] = []
    fields, offset = [], 0
    plans: list[tuple[Any, ...]] = []
    for part, choice in zip(leaves, choices, strict=True):
        plain = choice is None or part.space.__class__.__name__ == "MultiBinary"
        count = _numbers(part.space) if plain else int(choice[0].sum())
        fields.append(Field(part.name, offset, offset + count))
        if choice is None:
            scale = 1 / 255 if str(part.space.dtype) == "uint8" else 1.0
            low += (np.asarray(part.space.low, np.float64).ravel() * scale).tolist()
            high += (np.asarray(part.space.high, np.float64).ravel() * scale).tolist()
            plans.append((part.path, offset, offset + count, None, None, scale))
        else:
            low += [0.0] * count
            high += [1.0] * count
            one_hot = None if plain else offset + np.concatenate([[0], np.cumsum(choice[0])[:-1]]).astype(np.int64)
            plans.append((part.path, offset, offset + count, one_hot, None if plain else choice[1], 1.0))
        offset += count

    def write(value: Any, row: np.ndarray) -> None:
        for path, start, stop, one_hot, least, scale in plans:
            values = np.asarray(_reach(value, path)).ravel()
            if one_hot is None:
                row[start:stop] = values if scale == 1.0 else values * scale
            else:
                row[start:stop] = 0.0
                row[one_hot + (values - least)] = 1.0

    only = leaves[0]
    if len(leaves) == 1 and not only.path and choices[0] is None and str(only.space.dtype) != "uint8":

        def write(value: Any, row: np.ndarray) -> None:  # the common case
            row[:] = np.asarray(value).reshape(-1)

    return Observation(offset, "float32", tuple(low), tuple(high), (), 0, tuple(fields), write)


# ACTIONS


def action(space: Any) -> Action:
    """Row description of an action space. Raises UnsupportedSpaceError for a mix of choices and continuous values."""
    leaves = list(parts(space, "action"))
    choices_of_leaves = [_choices(part.space) for part in leaves]
    if all(choices is None for choices in choices_of_leaves) and leaves:
        low, high = (
            np.concatenate([np.asarray(getattr(part.space, bound), np.float64).ravel() for part in leaves])
            for bound in ("low", "high")
        )
        return Action((), tuple(low.tolist()), tuple(high.tolist()), False, _reader(space))
    if all(choices is not None for choices in choices_of_leaves) and leaves:
        sizes = tuple(int(n) for choices in choices_of_leaves if choices is not None for n in choices[0])
        single = len(leaves) == 1 and type(space).__name__ == "Discrete"
        return Action(sizes, (), (), not single, _reader(space))
    raise UnsupportedSpaceError("its action mixes discrete choices with a Box: use one kind")


def _reader(space: Any) -> Callable[[np.ndarray], Any]:
    """Function `read(row)` that converts a row to an action of a space."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda row: int(row[0]) + start
    if isinstance(space, spaces.Box):
        shape, kind = space.shape, space.dtype
        return lambda row: row.reshape(shape).astype(kind)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        choices = _choices(space)
        assert choices is not None
        least, shape, kind = choices[1], space.shape, space.dtype
        return lambda row: (row + least).reshape(shape).astype(kind)
    inner = list(space.spaces.items()) if isinstance(space, spaces.Dict) else list(enumerate(space.spaces))
    readers, offset = [], 0
    for key, part in inner:
        count = sum(_numbers(leaf.space) for leaf in parts(part))
        readers.append((key, slice(offset, offset + count), _reader(part)))
        offset += count
    if isinstance(space, spaces.Dict):
        return lambda row: {key: read(row[columns]) for key, columns, read in readers}
    return lambda row: tuple(read(row[columns]) for _, columns, read in readers)


# BATCHES


def select(value: Any, k: int) -> Any:
    """Entry k of a batch of values: of an array, or of each array in a dict or tuple."""
    if isinstance(value, dict):
        return {key: select(inner, k) for key, inner in value.items()}
    return tuple(select(inner, k) for inner in value) if isinstance(value, tuple) else value[k]


def copy_batch(value: Any) -> Any:
    """Copy of a batch of values: of an array, or of each array in a dict or tuple."""
    if isinstance(value, dict):
        return {key: copy_batch(inner) for key, inner in value.items()}
    return tuple(map(copy_batch, value)) if isinstance(value, tuple) else np.array(value)


def replace_rows(value: Any, which: np.ndarray, rows: Any) -> None:
    """Replace the entries `which` (n) of a batch of values by `rows` (n), in place."""
    if isinstance(value, dict | tuple):
        for key in value if isinstance(value, dict) else range(len(value)):
            replace_rows(value[key], which, rows[key])
    else:
        value[which] = rows


def mask_of(info: Any, value: Any, sizes: tuple[int, ...]) -> np.ndarray | None:
    """Legal actions, (H) of 0 and 1, from `info` or a Dict observation; None if neither has them."""
    mask = info.get(MASK) if isinstance(info, dict) else None
    if mask is None and isinstance(value, dict):
        mask = value.get(MASK)
    if mask is None or not sizes:
        return None
    flat = (
        np.concatenate([np.asarray(part).ravel() for part in mask])
        if isinstance(mask, tuple | list)
        else np.asarray(mask).ravel()
    )
    if len(flat) != sum(sizes):
        return None
    return (flat != 0).astype(np.uint8)
