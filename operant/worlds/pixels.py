"""The bodies that shade the pixels of N pictures at once, one thread a pixel. Knows the environment contract; knows no
world, policy or file format.

The same body serves every picture: the live agent in the monitor, pixel observations, a film. A picture's size is read
from the canvas when the kernel runs, so that one compilation serves every size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy import float32, uint8

from operant.compute.device import device, device_params
from operant.envs import Env


class Scene(NamedTuple):
    """What is to be seen. Tensors outside the kernel, arrays inside."""

    state: Any  # (F, N) float32
    int_state: Any  # (C, N) of the environment's type; None where it has none


class Canvas(NamedTuple):
    """Where it is drawn."""

    pixels: (
        Any  # (N, H, W, 3) uint8, written: red, green and blue of each pixel, from the top row down; N * H * W < 2^32
    )


@device
def _level(value: Any) -> Any:
    """A colour's part, 0 to 1, as a byte. What is outside is cut off, and NaN is 0."""
    inside = min(float32(value), float32(1.0)) if float32(value) > float32(0.0) else float32(0.0)
    return uint8(inside * float32(255.0) + float32(0.5))


def colour_function(env: Env, params: Any) -> Any:
    """`env.pixel_shader` in one shape, `(scene, lane, x, y)` to red, green and blue, so that its callers need not know
    which buffers there are.
    """
    shade, p = env.pixel_shader, device_params(params)
    assert shade is not None, "this environment draws no picture"
    if env.int_state is not None:

        @device
        def colour(scene: Any, lane: Any, x: Any, y: Any) -> Any:
            return shade(scene.state[:, lane], scene.int_state[:, lane], p, x, y)

    else:

        @device
        def colour(scene: Any, lane: Any, x: Any, y: Any) -> Any:
            return shade(scene.state[:, lane], p, x, y)

    return colour


def _paint_function(env: Env, params: Any) -> Any:
    """`(scene, i, pixels)`: give pixel i of all N * H * W the colour of the point at its centre."""
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


def shade_body(env: Env, params: Any) -> Any:
    """The body that shades pixel i of all N * H * W of a canvas."""
    paint = _paint_function(env, params)

    @device
    def body(i: Any, scene: Any, canvas: Any, offset: Any) -> None:
        paint(scene, i, canvas.pixels)

    return body


def observe_body(env: Env, params: Any) -> Any:
    """The body that shades pixel i of a step's observations: a `world.Slot`, whose pictures are (N, H, W, 3)."""
    paint = _paint_function(env, params)

    @device
    def body(i: Any, scene: Any, slot: Any, offset: Any) -> None:
        paint(scene, i, slot.observation)

    return body


def observe_final_body(env: Env, params: Any, every_final: bool) -> Any:
    """As `observe_body`, of a step's true final observations: those of lanes that were truncated, or with `every_final`
    ended at all; all else returns.
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
