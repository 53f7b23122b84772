"""Painter: draws the lanes of a world into a tensor of pixels."""

from __future__ import annotations

import functools
from typing import Any

import torch

from operant.compute.kernel import Kernel, bind
from operant.envs import Env
from operant.worlds.device_world import DeviceWorld
from operant.worlds.pixels import Canvas, arrange_body, scene, shade_body


@functools.cache
def _shader(env: Env, params: Any, device: torch.device) -> tuple[Kernel | None, Kernel]:
    """Kernels that arrange the picture of each lane (None without `env.arrange`) and shade its pixels. Shared by all
    worlds of equal rules in this process.
    """
    return (
        Kernel(arrange_body(env, params), device) if env.picture else None,
        Kernel(shade_body(env, params), device),
    )


class Painter:
    """Renderer of a world's lanes in their current state, by the environment's pixel shader. The first call compiles
    the kernel and must precede a graph capture.
    """

    def __init__(self, world: DeviceWorld) -> None:
        self._count = world.count
        self._scene = bind(scene(world.spec, world.lanes.state, world.lanes.int_state))
        self._arrange, self._shader = _shader(world.spec, world.params, world.device)

    def bind(self, pixels: torch.Tensor) -> Canvas:
        """Make the canvas for a contiguous uint8 tensor (N, H, W, 3) on the world's device, to be shaded by calling the
        painter. Raises ValueError for any other tensor.
        """
        if (
            pixels.dtype != torch.uint8
            or pixels.ndim != 4
            or (pixels.shape[0], pixels.shape[3]) != (self._count, 3)
            or not pixels.is_contiguous()
        ):
            raise ValueError(
                f"a canvas is uint8 ({self._count}, H, W, 3) without gaps, not {pixels.dtype} {tuple(pixels.shape)}"
            )
        return bind(Canvas(pixels))

    def __call__(self, canvas: Canvas) -> None:
        """Shade every pixel of a canvas made by `bind`, on the current stream."""
        lanes, height, width, _ = canvas.pixels.shape
        if self._arrange is not None:
            self._arrange(lanes, self._scene, canvas)
        self._shader(lanes * height * width, self._scene, canvas)
