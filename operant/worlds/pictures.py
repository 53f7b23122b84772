"""Frame preprocessing on the learner's device: grayscale, resize and frame stack, bit-equal to operant/host/image.py.
Knows no environment.
"""

from __future__ import annotations

import torch
from torch import Tensor

from operant.host.pictures import LUMA, taps


class Pictures:
    """Preprocess frames of N lanes: raw rows of H x W x C bytes to stacked observations h x w x k x c, oldest frame
    first.

    At the start of an episode all k frames are its first. Only fixed tensors are used, so a CUDA graph can capture it.
    """

    def __init__(
        self, frame: tuple[int, ...], observed: tuple[int, ...], lanes: int, device: torch.device, *, grey: bool
    ) -> None:
        """`frame` (H, W, C), `observed` (h, w, k x c)."""
        self._shape, self._grey, self._area = frame, grey, frame[0] * frame[1]
        self._taps = []
        for axis, before, after in ((1, frame[0], observed[0]), (2, frame[1], observed[1])):
            if frame[:2] != observed[:2]:
                self._taps.append((axis, [_tap(*tap, axis, device) for tap in zip(*taps(before, after), strict=True)]))
        channels = 1 if self._grey else frame[2]
        self._seen = torch.zeros(
            lanes, observed[0] * observed[1], observed[2] // channels, channels, dtype=torch.uint8, device=device
        )

    def observed(self, frames: Tensor, lanes: slice, begun: Tensor) -> Tensor:
        """Push raw frames (n, H x W x C) and return the stacked observations (n, h x w x k x c). `begun` (n): first
        frame of an episode.
        """
        seen, newest = self._seen[lanes], self._made(frames)
        older = seen[:, :, 1:]
        seen.copy_(torch.cat([torch.where(begun.bool()[:, None, None, None], newest, older), newest], 2))
        return seen.flatten(1)

    def last(self, frames: Tensor, lanes: Tensor) -> Tensor:
        """Stacked final observation of lanes whose episode ended with these frames. Call before `observed` pushes the
        next episode's first.
        """
        return torch.cat([self._seen[lanes][:, :, 1:], self._made(frames)], 2).flatten(1)

    def _made(self, rows: Tensor) -> Tensor:
        """Grayscale and resize: (n, H x W x C) to (n, h x w, 1, c)."""
        numbers = rows.view(len(rows), *self._shape)
        if self._grey or self._taps:
            numbers = numbers.int()
        if self._grey:
            red, green, blue = (numbers[..., k] * weight for k, weight in enumerate(LUMA))
            numbers = ((red + green + blue + 32_768) >> 16)[..., None]
        for axis, pixels in self._taps:
            numbers = sum(
                (numbers.index_select(axis, at) * weight for at, weight in pixels[1:]),
                numbers.index_select(axis, pixels[0][0]) * pixels[0][1],
            )
        if self._taps:  # the nearest whole number, of two the even one
            whole = numbers // self._area
            numbers = whole + ((numbers - whole * self._area) * 2 + (whole & 1) > self._area)
        return numbers.to(torch.uint8).flatten(1, 2)[:, :, None]


def _tap(index: object, weight: object, axis: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pixel indices and weights along an axis of (n, H, W, C)."""
    shape = [1] * 4
    shape[axis] = -1
    return torch.as_tensor(index, device=device), torch.as_tensor(weight, device=device).view(shape)
