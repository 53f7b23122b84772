"""Shader bodies for N pictures at once, one thread per pixel. The bodies call `arrange` and `pixel_shader` of an
`operant.envs.Env`.

The same body serves the live view in the monitor, pixel observations and films. Picture sizes are read from the canvas
at run time, so one compilation serves all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from numpy import float32, uint8

from operant.compute.device import device, device_params
from operant.envs import Env

if TYPE_CHECKING:
    import torch


class Scene(NamedTuple):
    """State of N lanes that a pixel shader reads. Tensors outside kernels, arrays inside."""

    state: Any  # (F, N) float32
    int_state: Any  # (C, N) of the environment's type; None if unused
    picture: Any = None  # (P, N) float32, written by `arrange_body`; None if unused


def scene(env: Env, state: torch.Tensor, int_state: torch.Tensor | None) -> Scene:
    """Scene of lanes with the given state, with a buffer for `env.arrange` if the environment declares one."""
    picture = state.new_zeros(env.picture, state.shape[1]) if env.picture else None
    return Scene(state, int_state, picture)


class Canvas(NamedTuple):
    """Buffer of N pictures that a pixel shader writes, (N, H, W, 3) uint8."""

    pixels: Any  # (N, H, W, 3) uint8, written: RGB from the top row down; N * H * W < 2^32


@device
def _level(value: Any) -> Any:
    """Quantise a colour channel from [0, 1] to a byte. Values outside are clipped, NaN becomes 0."""
    inside = min(float32(value), float32(1.0)) if float32(value) > float32(0.0) else float32(0.0)
    return uint8(inside * float32(255.0) + float32(0.5))


def colour_function(env: Env, params: Any) -> Any:
    """Wrap `env.pixel_shader` as a device function `(scene, lane, x, y) -> (red, green, blue)`, independent of the
    buffers that the environment declares.
    """
    shade, p = env.pixel_shader, device_params(params)
    assert shade is not None, "this environment draws no picture"
    if env.picture:

        @device
        def colour(scene: Any, lane: Any, x: Any, y: Any) -> Any:
            return shade(scene.state[:, lane], scene.picture[:, lane], p, x, y)

    elif env.int_state is not None:

        @device
        def colour(scene: Any, lane: Any, x: Any, y: Any) -> Any:
            return shade(scene.state[:, lane], scene.int_state[:, lane], p, x, y)

    else:

        @device
        def colour(scene: Any, lane: Any, x: Any, y: Any) -> Any:
            return shade(scene.state[:, lane], p, x, y)

    return colour


def _paint_function(env: Env, params: Any) -> Any:
    """Make the device function `(scene, i, pixels)` that shades pixel i, of all N * H * W, at its centre and writes it
    to `pixels` (N, H, W, 3) uint8.
    """
    colour = colour_function(env, params)

    @device
    def paint(scene: Any, i: Any, pixels: Any) -> None:
        height, width = pixels.shape[1], pixels.shape[2]
        column, above = i % width, i // width
        row, lane = above % height, above // height
        x = (float32(column) + float32(0.5)) / float32(width)
        y = (float32(row) + float32(0.5)) / float32(height)
        red, green, blue = colour(scene, lane, x, y)
        pixels[lane, row, column, 0] = _level(red)
        pixels[lane, row, column, 1] = _level(green)
        pixels[lane, row, column, 2] = _level(blue)

    return paint


def arrange_body(env: Env, params: Any) -> Any:
    """Make the kernel body that writes `scene.picture` of lane i, which its pixels share."""
    arrange, p = env.arrange, device_params(params)
    assert arrange is not None, "this environment arranges no picture"

    @device
    def body(i: Any, scene: Any, canvas: Any, offset: Any) -> None:
        arrange(scene.state[:, i], p, scene.picture[:, i])

    return body


def shade_body(env: Env, params: Any) -> Any:
    """Make the kernel body `(i, scene, canvas, offset)` that computes the colour of pixel i, of all N * H * W, by an
    environment's pixel shader and writes it to a `Canvas`.
    """
    paint = _paint_function(env, params)

    @device
    def body(i: Any, scene: Any, canvas: Any, offset: Any) -> None:
        paint(scene, i, canvas.pixels)

    return body


def observe_body(env: Env, params: Any) -> Any:
    """Make the kernel body `(i, scene, slot, offset)` that computes the colour of pixel i, of all N * H * W, by an
    environment's pixel shader and writes it to the observations (N, H, W, 3) of a slot.
    """
    paint = _paint_function(env, params)

    @device
    def body(i: Any, scene: Any, slot: Any, offset: Any) -> None:
        paint(scene, i, slot.observation)

    return body


def observe_final_body(env: Env, params: Any, every_final: bool) -> Any:
    """Make the kernel body `(i, scene, slot, offset)` that computes the colour of pixel i by an environment's pixel
    shader and writes it to the final observations (N, H, W, 3): in truncated lanes only, or with `every_final` in all
    whose episode ended.
    """
    paint = _paint_function(env, params)

    @device
    def body(i: Any, scene: Any, slot: Any, offset: Any) -> None:
        pixels = slot.final_observation
        lane = i // (pixels.shape[1] * pixels.shape[2])
        terminated = slot.terminated[lane] != 0
        if (slot.truncated[lane] != 0 or terminated) and (every_final or not terminated):
            paint(scene, i, pixels)

    return body
