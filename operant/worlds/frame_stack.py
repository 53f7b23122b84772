"""Frame preprocessing on the learner's device: grayscale, resize and frame stack, bit-equal to
operant/host/image.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from operant.host.image import LUMA, resize_weights


class FrameStack:
    """Preprocessor of frames of N lanes: grayscale, resize and stack raw frames (n, H x W x C bytes) to observations
    (n, h x w x k x c), oldest frame first.

    At the start of an episode all k frames are its first. Only fixed tensors are used, so a CUDA graph can capture it.
    """

    def __init__(
        self, frame: tuple[int, ...], observed: tuple[int, ...], lanes: int, device: torch.device, *, grey: bool
    ) -> None:
        """Allocate the frames of all lanes. `frame` (H, W, C) is the raw size, `observed` (h, w, k x c) that of an
        observation; `grey`: convert to grayscale.
        """
        self._shape, self._grey, self._area = frame, grey, frame[0] * frame[1]
        self._taps = []
        for axis, before, after in ((1, frame[0], observed[0]), (2, frame[1], observed[1])):
            if frame[:2] != observed[:2]:
                self._taps.append(
                    (axis, [_tap(*tap, axis, device) for tap in zip(*resize_weights(before, after), strict=True)])
                )
        channels = 1 if self._grey else frame[2]
        self._stack = torch.zeros(
            lanes, observed[0] * observed[1], observed[2] // channels, channels, dtype=torch.uint8, device=device
        )

    def push(self, frames: Tensor, lanes: slice, begun: Tensor) -> Tensor:
        """Preprocess raw frames (n, H x W x C) of a slice of the lanes, push them on their stacks and return the
        stacked observations (n, h x w x k x c). `begun` (n) marks frames that begin an episode; each fills its whole
        stack.
        """
        stack, newest = self._stack[lanes], self._preprocess(frames)
        older = stack[:, :, 1:]
        stack.copy_(torch.cat([torch.where(begun.bool()[:, None, None, None], newest, older), newest], 2))
        return stack.flatten(1)

    def final(self, frames: Tensor, lanes: Tensor) -> Tensor:
        """Stacked final observations (n, h x w x k x c) of the `lanes` whose episode ended with these raw `frames`.
        Call before `push`, which replaces the stack by the next episode's first frame.
        """
        return torch.cat([self._stack[lanes][:, :, 1:], self._preprocess(frames)], 2).flatten(1)

    def _preprocess(self, rows: Tensor) -> Tensor:
        """Convert raw frames to grayscale and resize them, each if configured: (n, H x W x C) to (n, h x w, 1, c)
        bytes.
        """
        values = rows.view(len(rows), *self._shape)
        if self._grey or self._taps:
            values = values.int()
        if self._grey:
            red, green, blue = (values[..., k] * weight for k, weight in enumerate(LUMA))
            values = ((red + green + blue + 32_768) >> 16)[..., None]
        for axis, pixels in self._taps:
            values = sum(
                (values.index_select(axis, index) * weight for index, weight in pixels[1:]),
                values.index_select(axis, pixels[0][0]) * pixels[0][1],
            )
        if self._taps:  # round to nearest, halves to even
            whole = values // self._area
            values = whole + ((values - whole * self._area) * 2 + (whole & 1) > self._area)
        return values.to(torch.uint8).flatten(1, 2)[:, :, None]


def _tap(index: object, weight: object, axis: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Convert the pixel indices and weights of one resize tap (one input pixel per output pixel) to tensors on
    `device`: `index` (n), and `weight` shaped to broadcast along `axis` of (n, H, W, C).
    """
    shape = [1] * 4
    shape[axis] = -1
    return torch.as_tensor(index, device=device), torch.as_tensor(weight, device=device).view(shape)
