"""Pictures: every pixel equals plain Python's `pixel_shader` at its centre, at any size, with integer state and any
colour.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy import float32
from toys import COUNT, NoParams, by_name

from operant.compute.device import device_params
from operant.compute.kernel import SERIAL_BELOW, Kernel, bind
from operant.envs import Box, Discrete, Env, IntState, device, find, names
from operant.worlds.bounds import rollout_actions
from operant.worlds.device_world import DeviceWorld
from operant.worlds.painting import Painter
from operant.worlds.pixels import Canvas, arrange_body, scene


def painted(world: DeviceWorld, height: int, width: int) -> np.ndarray:
    pixels = torch.full((world.count, height, width, 3), 77, dtype=torch.uint8)
    painter = Painter(world)
    painter(painter.bind(pixels))
    return pixels.numpy()


def arranged(world: DeviceWorld) -> torch.Tensor:
    """Numbers that the pixels of a lane's picture share, (P, N)."""
    drawn = scene(world.spec, world.lanes.state, world.lanes.int_state)
    canvas = Canvas(torch.zeros(world.count, 1, 1, 3, dtype=torch.uint8))
    Kernel(arrange_body(world.spec, world.params), world.device)(world.count, bind(drawn), bind(canvas))
    return drawn.picture


def plain(
    world: DeviceWorld,
    lane: int,
    height: int,
    width: int,
    shift: float = 0.0,
    picture: torch.Tensor | None = None,
) -> np.ndarray:
    """Picture of a lane by the Python of `pixel_shader`, pixel by pixel: (height, width, 3) bytes. `shift` moves every
    point down and right; `picture` (P, N) is what `arrange` wrote.
    """
    shade, p, s = world.spec.pixel_shader.py_func, device_params(world.params), world.lanes.state[:, lane].numpy()
    cells = () if world.spec.int_state is None else (world.lanes.int_state[:, lane].numpy(),)
    if picture is not None:
        cells = (picture[:, lane].numpy(),)
    found = np.zeros((height, width, 3), np.uint8)
    for row in range(height):
        for column in range(width):
            x, y = (column + 0.5) / width + shift, (row + 0.5) / height + shift
            # To the nearest byte, in float32: 0.9 * 255 lies half way.
            found[row, column] = [
                int(float32(part) * float32(255.0) + float32(0.5))
                for part in shade(s, *cells, p, float32(x), float32(y))
            ]
    return found


# Steps after which the pictures of three lanes differ: the chain shows its bit at the start, the pendulum falls and is
# reset.
DIFFER_AFTER = {"memory_chain": 0, "inverted_pendulum": 23}
SMALL = {"cartpole", "mountaincar", "repeat_previous"}  # shapes, a curve, a sign and a bar


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", by_name([name for name in names() if find(name).pixel_shader is not None], plain=SMALL)
)
def test_every_pixel_is_what_shade_says_of_its_centre(name):
    env, height, width = find(name), 24, 36
    world = DeviceWorld(env, 3, seed=7)
    slot = world.slot()
    world.reset(world.bind(slot))
    steps = DIFFER_AFTER.get(name, 24)
    for t in range(steps):
        slot.action.copy_(rollout_actions(env, np.random.default_rng(t), 0, 3, slot.legal))
        world.step(world.bind(slot), t)
    world.advance(steps)
    pixels, picture = painted(world, height, width), arranged(world) if world.spec.picture else None
    for lane in range(3):
        # A point on an edge may fall to either side, by the last bit: there the colour is that of a neighbour a hair
        # away.
        allowed = [plain(world, lane, height, width, shift, picture) for shift in (0.0, 1e-5, -1e-5)]
        right = np.any([np.all(pixels[lane] == one, axis=2) for one in allowed], axis=0)
        assert right.all(), f"lane {lane}: {(~right).sum()} pixels are wrong"
        assert np.mean(np.all(pixels[lane] == allowed[0], axis=2)) > 0.99
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) >= 3
    assert len({picture.tobytes() for picture in pixels}) > 1


def test_the_five_environments_of_classic_control_have_pictures():
    drawn = {name for name in names() if find(name).pixel_shader is not None}
    assert drawn >= {
        f"{first}{second}"
        for first, second in (("acro", "bot"), ("cart", "pole"), ("mountain", "car"), ("pend", "ulum"))
    }
    assert "mountaincar_continuous" in drawn


@device
def _place_shade(s, p, x, y):
    return x, y, s[0]


PLACE = replace(COUNT, pixel_shader=_place_shade)


def test_x_goes_right_y_goes_down_and_lanes_follow_each_other():
    world = DeviceWorld(PLACE, 2, seed=1)
    world.lanes.state[0] = torch.tensor([0.0, 1.0])
    pixels = painted(world, 2, 4)
    # Centres at 1/8, 3/8, 5/8, 7/8 and at 1/4, 3/4; times 255, to the nearest.
    assert pixels[0, 0, :, 0].tolist() == [32, 96, 159, 223]
    assert pixels[1, :, 2, 1].tolist() == [64, 191]
    assert (pixels[0, :, :, 2] == 0).all() and (pixels[1, :, :, 2] == 255).all()


@pytest.mark.parametrize(
    ("value", "byte"),
    [
        (0.0, 0),
        (0.5, 128),
        (1.0, 255),
        (0.0019, 0),
        (0.002, 1),
        (-3.0, 0),
        (7.0, 255),
        (math.inf, 255),
        (-math.inf, 0),
        (math.nan, 0),
    ],
)
def test_a_colour_becomes_a_byte(value, byte):
    world = DeviceWorld(PLACE, 1, seed=1)
    world.lanes.state[0] = value
    assert (painted(world, 3, 3)[..., 2] == byte).all()


@device
def _board_reset(s, cells, workspace, p, key):
    for k in range(6):
        cells[k] = k


@device
def _board_step(s, cells, workspace, action, p, key, tally):
    return float32(0.0), False


@device
def _board_observe(s, cells, workspace, obs, p):
    obs[0] = cells[0]


@device
def _board_shade(s, cells, p, x, y):
    grey = float32(cells[3 * int(float32(2.0) * y) + int(float32(3.0) * x)]) / float32(255.0)
    return grey, grey, float32(1.0)


BOARD = Env(
    NoParams,
    0,
    Box(1),
    Discrete(2),
    None,
    int_state=IntState(6, "uint8"),
    reset=_board_reset,
    step=_board_step,
    observe=_board_observe,
    pixel_shader=_board_shade,
)


def test_the_shader_reads_integer_state():
    world = DeviceWorld(BOARD, 2, seed=1)
    world.reset(world.bind(world.slot()))
    world.lanes.int_state[:, 1] += 100
    pixels = painted(world, 4, 6)
    assert pixels[0, :, :, 0].tolist() == [[0, 0, 1, 1, 2, 2]] * 2 + [[3, 3, 4, 4, 5, 5]] * 2
    assert (pixels[1, :, :, 1] == pixels[0, :, :, 0] + 100).all() and (pixels[..., 2] == 255).all()


def test_one_compilation_serves_every_size_and_number_of_lanes(caplog):
    assert 3 * 64 * 64 > SERIAL_BELOW > 64 * 64
    world = DeviceWorld(find("cartpole"), 3, seed=1)
    world.reset(world.bind(world.slot()))
    together = painted(world, 64, 64)  # on all threads
    painted(world, 8, 8)  # on one thread
    alone = DeviceWorld(find("cartpole"), 1, seed=1)
    caplog.set_level("DEBUG", "operant.compute.jit_cache")  # which logs each kernel that is compiled, or loaded
    caplog.clear()  # of an earlier test's level
    for lane in range(3):
        alone.lanes.state.copy_(world.lanes.state[:, lane : lane + 1])
        assert (painted(alone, 64, 64)[0] == together[lane]).all()
    assert painted(world, 1, 1).shape == (3, 1, 1, 3) and painted(world, 5, 96).shape == (3, 5, 96, 3)
    assert caplog.messages == []


def test_drawing_changes_no_state():
    world = DeviceWorld(find("acrobot"), 3, seed=1)
    world.reset(world.bind(world.slot()))
    before = {name: tensor.clone() for name, tensor in world.state().items()}
    painted(world, 20, 20)
    assert all(torch.equal(tensor, before[name]) for name, tensor in world.state().items())


@pytest.mark.parametrize(
    "canvas",
    [
        torch.zeros(3, 8, 8, 3),
        torch.zeros(2, 8, 8, 3, dtype=torch.uint8),
        torch.zeros(3, 8, 8, 4, dtype=torch.uint8),
        torch.zeros(3, 64, 3, dtype=torch.uint8),
        torch.zeros(3, 8, 16, 3, dtype=torch.uint8)[:, :, ::2],
    ],
)
def test_an_invalid_canvas_is_refused(canvas):
    with pytest.raises(ValueError, match=r"a canvas is uint8 \(3, H, W, 3\)"):
        Painter(DeviceWorld(PLACE, 3, seed=1)).bind(canvas)
