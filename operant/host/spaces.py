"""Gymnasium spaces as flat rows: an observation is a row of float32 or bytes with named fields; an action is read from
a row.

A picture (a single Box of uint8 with two or three axes) is bytes (H, W, C). If every part is uint8, or Discrete,
MultiDiscrete or MultiBinary with at most 256 values, the row is bytes, and Discrete, MultiDiscrete and MultiBinary are
categorical features, read one-hot. Everything else is float32: Discrete and MultiDiscrete one-hot, MultiBinary 0 and 1,
uint8 divided by 255. Parts of a Dict or Tuple follow in their order, named as Python would access them: `position`,
`hand[1]`.

A value of another shape, and a whole number that its space does not contain, raise InvalidValueError: a row would hold
another value. Numbers of a float Box beyond its bounds are used as they are.
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
    """Error for a space whose values cannot be converted to rows; the message is a sentence."""


class InvalidValueError(Exception):
    """Error for a value that its space does not contain: `what` (a noun phrase) and `problem` (a predicate) make a
    sentence.
    """

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(f"{what} {problem}")
        self.what, self.problem = what, problem


class Part(NamedTuple):
    """Leaf of a nested Gymnasium space (not a Dict or Tuple): its name, the path of keys to its value, and its
    space.
    """

    name: str
    path: tuple[Any, ...]
    space: Any


class Field(NamedTuple):
    """Named range of entries [start, stop) in an observation row."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Observation:
    """Layout of an observation row: size, dtype, bounds, categories and named fields. `write(value, row)` fills one."""

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
    """Layout of an action row: the `sizes` of its discrete choices, or the bounds of a Box. `read(row)` converts one to
    the environment's action.
    """

    sizes: tuple[int, ...]  # () for a Box
    low: tuple[float, ...]
    high: tuple[float, ...]
    multi: bool  # more than one choice
    read: Callable[[np.ndarray], Any] = field(compare=False)

    @property
    def size(self) -> int:
        """Number of entries in a row of actions, A."""
        return len(self.sizes) or len(self.low)


def parts(space: Any, name: str = "", path: tuple[Any, ...] = ()) -> Iterator[Part]:
    """Yield the leaves (not Dict or Tuple) of a space in order, named as Python would access them. Raises
    UnsupportedSpaceError.
    """
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


def _look_up(value: Any, path: tuple[Any, ...]) -> Any:
    """Look up the value at a path of keys in nested dicts and tuples."""
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
    """Whether observations of this space are a Dict that contains the mask of legal actions."""
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
    """Describe the row into which observations of a space are converted. Raises UnsupportedSpaceError."""
    if has_mask(space):
        from gymnasium import spaces

        space = spaces.Dict({key: inner for key, inner in space.spaces.items() if key != MASK})
    if is_picture(space):
        return _picture_row(space)
    leaves = list(parts(space))
    if not leaves or not all(_entry_count(part.space) for part in leaves):
        raise UnsupportedSpaceError("it has no entries")
    alike = [_choices(part.space) for part in leaves]
    in_bytes = all(
        str(part.space.dtype) == "uint8" if choices is None else choices[0].max() <= _CATEGORIES
        for part, choices in zip(leaves, alike, strict=True)
    )
    return _byte_row(leaves, alike) if in_bytes else _float_row(leaves, alike)


def _entry_count(space: Any) -> int:
    """Number of entries in the row of a value of this Gymnasium space."""
    choices = _choices(space)
    return math.prod(space.shape) if choices is None else len(choices[0])


# VALUES


def check_shape(values: np.ndarray, shape: tuple[int, ...], name: str) -> None:
    """Check that an observation called `name` has the shape of its space. Raises InvalidValueError."""
    if values.shape != shape:
        raise InvalidValueError(_noun_phrase(name), f"has the shape {values.shape}, its space {shape}")


def _noun_phrase(name: str) -> str:
    """Name of an observation's part for a sentence: "the NAME", or "observation[K]" for parts of a Tuple, whose names
    begin with their index.
    """
    return f"observation{name}" if name.startswith("[") else f"the {name}"


def whole_numbers(part: Part) -> Callable[[Any], Any]:
    """Make the function `read(value)` that converts a value of an integer space (or bytes) to its entries, (n) or for
    Discrete one number; choices are counted from 0. `read` raises InvalidValueError for a wrong shape or an entry that
    is not an integer of the space.
    """
    name, space, choices = part.name, part.space, _choices(part.space)
    shape = tuple(space.shape)
    lows = np.asarray(space.low, np.int64).ravel() if choices is None else np.asarray(choices[1], np.int64)
    highs = np.asarray(space.high, np.int64).ravel() if choices is None else lows + choices[0] - 1
    added = lows if choices is None and lows.any() else None
    spans, beyond, from_zero = (highs - lows).astype(np.uint64), np.empty(len(lows), np.bool_), not lows.any()
    any_byte = from_zero and spans.min() >= 255
    low, span = int(lows[0]), int(spans[0])

    def read(value: Any) -> np.ndarray:
        values = np.asarray(value)
        if values.shape != shape and not values.size == len(lows) == 1:
            check_shape(values, shape, name)
        flat = values.reshape(-1)
        if any_byte and flat.dtype == np.uint8:
            return flat
        if flat.dtype.kind not in "iub":
            flat = _without_fractions(flat)
        if from_zero and flat.dtype == np.int64:
            offsets = flat
        else:
            offsets = np.subtract(flat, lows, dtype=np.int64, casting="unsafe")
        # a negative number is a large one without its sign; the fastest test of a few values
        np.greater(offsets.view(np.uint64), spans, out=beyond)
        if 1 in beyond.tobytes():
            k = int(beyond.argmax())
            raise InvalidValueError(_entry_name(name, shape, k), f"is {flat[k]}, its space has {lows[k]} to {highs[k]}")
        return offsets if added is None else offsets + added

    def read_one(value: Any) -> Any:
        if isinstance(value, int | np.integer):
            offset = int(value) - low
            if 0 <= offset <= span:
                return offset
        return read(value)

    def _without_fractions(flat: np.ndarray) -> np.ndarray:
        if flat.dtype.kind != "f":
            raise InvalidValueError(_noun_phrase(name), f"is {flat.dtype}, its space {space.dtype}")
        if len(positions := np.flatnonzero(flat != np.trunc(flat))):
            k = int(positions[0])
            raise InvalidValueError(
                _entry_name(name, shape, k),
                f"is {flat[k]:.7g}, its space has whole numbers from {lows[k]} to {highs[k]}",
            )
        return np.clip(flat, -(2.0**62), 2.0**62).astype(np.int64)

    return read if shape else read_one


def _entry_name(name: str, shape: tuple[int, ...], k: int) -> str:
    """Name of entry number k of an observation's part with this shape, such as `observation[2, 0]`."""
    if not shape:
        return _noun_phrase(name)
    return f"{_noun_phrase(name).removeprefix('the ')}[{', '.join(map(str, map(int, np.unravel_index(k, shape))))}]"


# ROWS


def _picture_row(space: Any) -> Observation:
    """Describe the row of a picture: bytes (H, W, C), transposed if its channels come first."""
    declared, read = tuple(space.shape), whole_numbers(Part("observation", (), space))
    turned = channels_first(space.shape)
    height, width, *planes = space.shape[1:] + space.shape[:1] if turned else space.shape
    shape = (int(height), int(width), int(planes[0]) if planes else 1)

    def write(value: Any, row: np.ndarray) -> None:
        picture = np.asarray(value)
        if picture.shape != declared or picture.dtype != np.uint8:
            check_shape(picture, declared, "observation")
            picture = read(picture).astype(np.uint8).reshape(declared)
        row.reshape(shape)[:] = (picture.transpose(1, 2, 0) if turned else picture).reshape(shape)

    size = math.prod(shape)
    return Observation(size, "uint8", 0.0, 255.0, shape, 0, (Field("observation", 0, size),), write)


def _byte_row(leaves: list[Part], choices: list[Any]) -> Observation:
    """Describe the row of bytes for the leaves of a space: categorical features and numeric uint8. `choices` are the
    numbers and least values of each leaf's categories, or None.
    """
    categories: list[int] = []
    high: list[float] = []
    fields, plans, offset = [], [], 0
    for part, choice in zip(leaves, choices, strict=True):
        count = _entry_count(part.space)
        if choice is None:
            categories += [0] * count
            high += np.asarray(part.space.high, np.float64).ravel().tolist()
        else:
            categories += [int(k) if k > 1 else 0 for k in choice[0]]
            high += [float(k - 1) for k in choice[0]]
        fields.append(Field(part.name, offset, offset + count))
        plans.append((part.path, slice(offset, offset + count), whole_numbers(part)))
        offset += count

    def write(value: Any, row: np.ndarray) -> None:
        for path, columns, read in plans:
            row[columns] = read(_look_up(value, path))

    return Observation(
        offset, "uint8", 0.0, tuple(max(bound, 1.0) for bound in high), (), tuple(categories), tuple(fields), write
    )


def _float_row(leaves: list[Part], choices: list[Any]) -> Observation:
    """Describe the row of float32 for the leaves of a space: categories one-hot, MultiBinary as 0 and 1, other values
    as they are. `choices` are the numbers and least values of each leaf's categories, or None.
    """
    low: list[float] = []
    high: list[float] = []
    fields, offset = [], 0
    plans: list[tuple[Any, ...]] = []
    for part, choice in zip(leaves, choices, strict=True):
        plain = choice is None or part.space.__class__.__name__ == "MultiBinary"
        count = _entry_count(part.space) if plain else int(choice[0].sum())
        fields.append(Field(part.name, offset, offset + count))
        if choice is None:
            in_bytes = str(part.space.dtype) == "uint8"
            scale = 1 / 255 if in_bytes else 1.0
            low += (np.asarray(part.space.low, np.float64).ravel() * scale).tolist()
            high += (np.asarray(part.space.high, np.float64).ravel() * scale).tolist()
            fill = _fill_scaled(part, scale) if in_bytes else _fill_plain(part)
        else:
            low += [0.0] * count
            high += [1.0] * count
            fill = _fill_scaled(part, 1.0) if plain else _fill_one_hot(part, choice[0])
        plans.append((part.path, slice(offset, offset + count), fill))
        offset += count

    def write(value: Any, row: np.ndarray) -> None:
        for path, columns, fill in plans:
            fill(_look_up(value, path), row[columns])

    if len(plans) == 1 and not plans[0][0]:  # the common case
        write = plans[0][2]
    return Observation(offset, "float32", tuple(low), tuple(high), (), 0, tuple(fields), write)


def _fill_plain(part: Part) -> Callable[[Any, np.ndarray], None]:
    """Make the function `fill(value, out)` that writes a Box of any numbers, unscaled."""
    name, shape = part.name, tuple(part.space.shape)

    def fill(value: Any, out: np.ndarray) -> None:
        values = np.asarray(value)
        if values.shape != shape:
            check_shape(values, shape, name)
        out[:] = values.reshape(-1)

    return fill


def _fill_scaled(part: Part, scale: float) -> Callable[[Any, np.ndarray], None]:
    """Make the function `fill(value, out)` that writes bytes or MultiBinary, multiplied by `scale`."""
    read = whole_numbers(part)

    def fill(value: Any, out: np.ndarray) -> None:
        np.multiply(read(value), scale, out=out, casting="unsafe")

    return fill


def _fill_one_hot(part: Part, sizes: np.ndarray) -> Callable[[Any, np.ndarray], None]:
    """Make the function `fill(value, out)` that writes Discrete or MultiDiscrete one-hot; `sizes` are the numbers of
    categories.
    """
    read, first = whole_numbers(part), np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)

    def fill(value: Any, out: np.ndarray) -> None:
        out[:] = 0.0
        out[first + read(value)] = 1.0

    return fill


# ACTIONS


def action(space: Any) -> Action:
    """Describe the row from which actions of a space are read. Raises UnsupportedSpaceError for a mix of discrete
    choices and continuous values.
    """
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
    """Make the function `read(row)` that converts an action row to an action of a space."""
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
        count = sum(_entry_count(leaf.space) for leaf in parts(part))
        readers.append((key, slice(offset, offset + count), _reader(part)))
        offset += count
    if isinstance(space, spaces.Dict):
        return lambda row: {key: read(row[columns]) for key, columns, read in readers}
    return lambda row: tuple(read(row[columns]) for _, columns, read in readers)


# BATCHES


def select(value: Any, k: int) -> Any:
    """Return entry k of a batch of values: of an array, or of each array in a dict or tuple."""
    if isinstance(value, dict):
        return {key: select(inner, k) for key, inner in value.items()}
    return tuple(select(inner, k) for inner in value) if isinstance(value, tuple) else value[k]


def copy_batch(value: Any) -> Any:
    """Copy a batch of values: an array, or each array in a dict or tuple."""
    if isinstance(value, dict):
        return {key: copy_batch(inner) for key, inner in value.items()}
    return tuple(map(copy_batch, value)) if isinstance(value, tuple) else np.array(value)


def replace_rows(value: Any, which: np.ndarray, rows: Any) -> None:
    """Replace the entries `which` (n) of a batch of values by `rows` (n), in place: of an array, or of each array in a
    dict or tuple.
    """
    if isinstance(value, dict | tuple):
        for key in value if isinstance(value, dict) else range(len(value)):
            replace_rows(value[key], which, rows[key])
    else:
        value[which] = rows


def mask_of(info: Any, value: Any, sizes: tuple[int, ...]) -> np.ndarray | None:
    """Read the mask of legal actions, (H) of 0 and 1, from `info` or a Dict observation `value`; None if neither
    contains one. Raises InvalidValueError if it has not sum(`sizes`) entries.
    """
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
        raise InvalidValueError(f"the {MASK}", f"has {len(flat)} entries for {sum(sizes)} actions")
    return (flat != 0).astype(np.uint8)
