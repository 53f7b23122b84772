"""Grayscale and area resize of pictures in integer arithmetic, bit-equal to the torch version
(operant/worlds/frame_stack.py).
"""

from __future__ import annotations

import functools

import numpy as np

LUMA = (19_595, 38_470, 7_471)
"""ITU-R 601 weights of red, green and blue, in 1/65,536."""


def grayscale(picture: np.ndarray) -> np.ndarray:
    """Convert a picture (H, W, 3) of bytes to grayscale, (H, W, 1)."""
    red, green, blue = (picture[..., k].astype(np.int32) * weight for k, weight in enumerate(LUMA))
    return ((red + green + blue + 32_768) >> 16).astype(np.uint8)[..., None]


@functools.cache
def resize_weights(before: int, after: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute the taps of an area resize of one axis from `before` to `after` pixels: source indices (K, after) int64
    and weights (K, after) int32.

    The weights of an output pixel sum to `before`; a source pixel fully covered weighs `after`.
    """
    start = np.arange(after) * before
    first = start // after
    count = max(-(-(pixel + before) // after) - pixel // after for pixel in start.tolist())
    index = np.minimum(first + np.arange(count)[:, None], before - 1)
    low, high = (
        np.maximum(index * after, start),
        np.minimum((first + np.arange(count)[:, None] + 1) * after, start + before),
    )
    beyond = first + np.arange(count)[:, None] > before - 1
    return index, np.where(beyond, 0, np.maximum(high - low, 0)).astype(np.int32)


def resized(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize a picture (H, W, C) of bytes to (height, width, C) by area averaging, rounding halves to even as OpenCV
    does.
    """
    before = picture.shape[:2]
    if before == (height, width):
        return picture
    rows, row_weights = resize_weights(before[0], height)
    columns, column_weights = resize_weights(before[1], width)
    values = picture.astype(np.int32)
    values = sum(values[index] * weight[:, None, None] for index, weight in zip(rows, row_weights, strict=True))
    values = sum(values[:, index] * weight[:, None] for index, weight in zip(columns, column_weights, strict=True))
    whole, remainder = np.divmod(values, before[0] * before[1])
    return (whole + (2 * remainder + (whole & 1) > before[0] * before[1])).astype(np.uint8)
