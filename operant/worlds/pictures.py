"""Pictures of outside environments made grey and smaller on the device that learns: the bytes of operant/host/pictures.py. Knows no environment."""

from __future__ import annotations

import torch
from torch import Tensor

from operant.host.pictures import LUMA, taps


class Pictures:
    """Rows of frames as they come, (n, H x W x k x C) bytes, made rows of what is observed. Fixed tensors alone, so that a CUDA graph can hold it."""

    def __init__(self, shape: tuple[int, ...], frames: int, side: int | None, device: torch.device, *, grey: bool) -> None:
        self._shape, self._frames, self._grey = shape, frames, grey
        height, width, _ = shape
        self._area = height * width
        small = side is not None and (height, width) != (side, side)
        self._taps = [(axis, [_tap(*tap, axis, device) for tap in zip(*taps(shape[axis - 1], side), strict=True)]) for axis in (1, 2)] if small else []

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, H x W x k x C) -> (n, h x w x k x c)."""
        height, width, channels = self._shape
        numbers = rows.view(len(rows), height, width, self._frames, channels).int()
        if self._grey:
            red, green, blue = (numbers[..., k] * weight for k, weight in enumerate(LUMA))
            numbers = ((red + green + blue + 32_768) >> 16)[..., None]
        for axis, pixels in self._taps:
            numbers = torch.stack([numbers.index_select(axis, at) * weight for at, weight in pixels]).sum(0, dtype=torch.int32)
        if self._taps:
            numbers = (numbers + self._area // 2) // self._area
        return numbers.to(torch.uint8).flatten(1)


def _tap(index: object, weight: object, axis: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pixels and weights along an axis of (n, H, W, k, C)."""
    shape = [1] * 5
    shape[axis] = -1
    return torch.as_tensor(index, device=device), torch.as_tensor(weight, device=device).view(shape)
