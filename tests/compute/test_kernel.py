"""Every kernel body compiled to PTX for four GPU generations without a GPU: no float64 and no undefined function. A new
body is a new line in `GROUPS`; a test fails until it is there.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from numba.cuda import compiler
from numpy import float32
from toys import FILL, GATE, PHYSICS

import operant
from operant import envs
from operant.compute import kernel, ptx
from operant.compute.kernel import cuda_shell
from operant.compute.ptx import ARCHITECTURES, compile_ptx, float64_lines, undefined_calls
from operant.compute.rng import integer
from operant.data import minibatches, priorities, returns, transitions
from operant.envs import Box, Env, IntState, MultiDiscrete, device, with_pixels
from operant.training import nonfinite
from operant.worlds import noise as world_noise
from operant.worlds import pixels
from operant.worlds.device_world import DeviceWorld
from operant.worlds.lane import begin_body, end_body, reset_body, shards_body, step_body

T, U, N = 4, 2, 64


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def clock() -> world_noise.Clock:
    return world_noise.Clock(tick=zeros(1, dtype=torch.int64), seed=zeros(2, dtype=torch.int32), lane0=0)


def trace() -> returns.Trace:
    flags = zeros(T, N, dtype=torch.uint8)
    return returns.Trace(zeros(T, N), zeros(T + 1, N), zeros(T, N), flags, flags, zeros(T, N), zeros(T, N))


def accrual() -> returns.Accrual:
    flags = zeros(T, N, dtype=torch.uint8)
    return returns.Accrual(zeros(T, N), flags, flags, zeros(N), zeros(T, N))


def discount() -> returns.Discount:
    return returns.Discount(float32(0.99), float32(0.95))  # a Python float would be a float64 argument


def checked() -> nonfinite.Checked:
    return nonfinite.Checked(
        zeros(T, U, N, dtype=torch.int32), zeros(T, N, dtype=torch.int32), zeros(T + 1, U, N, dtype=torch.int32)
    )


def result() -> nonfinite.Result:
    return nonfinite.Result(zeros(1, dtype=torch.int64), zeros(T, N, dtype=torch.int8), zeros(1, dtype=torch.int32))


# of a replay's ring, numbers of an observation, actions of which some are legal, samples
ROWS, OBSERVED, ACTIONS, BATCH = 8, 6, 3, 16


def ring() -> transitions.Ring:
    flags, observation = zeros(ROWS, N, dtype=torch.uint8), zeros(ROWS, N, OBSERVED)
    counts, seed = zeros(1, dtype=torch.int64), zeros(2, dtype=torch.int32)
    return transitions.Ring(
        observation,
        observation,
        zeros(ROWS, N, 1),
        zeros(ROWS, N),
        flags,
        flags,
        zeros(ROWS, N, ACTIONS, dtype=torch.uint8),
        counts,
        counts,
        seed,
        1,
    )


def staged() -> transitions.Staged:
    words = torch.zeros(N * 8, dtype=torch.int32)
    return transitions.Staged(words, words, torch.zeros(T, N, dtype=torch.uint8), N)


def host() -> transitions.Host:
    words = torch.zeros(8, N * 8, dtype=torch.int32)
    return transitions.Host(words, words, torch.zeros(1, dtype=torch.int64), 1)


def source() -> transitions.Source:
    flags, legal = zeros(T, N, dtype=torch.uint8), zeros(T + 1, ACTIONS, N, dtype=torch.uint8)
    return transitions.Source(
        zeros(T + 1, OBSERVED, N), zeros(T, OBSERVED, N), zeros(T, 1, N), zeros(T, N), flags, flags, legal, N, 1
    )


def sample() -> transitions.Sample:
    place = zeros(BATCH, dtype=torch.int32)
    return transitions.Sample(
        place, place, zeros(1, BATCH), zeros(BATCH), zeros(BATCH), zeros(U, BATCH), 8, 3, float32(0.99), 0
    )


def copied() -> transitions.Rows:
    place, words, taken = (
        zeros(BATCH, dtype=torch.int32),
        zeros(ROWS * N, OBSERVED, dtype=torch.int32),
        zeros(BATCH, OBSERVED, dtype=torch.int32),
    )
    legal, out = zeros(ROWS, N, ACTIONS, dtype=torch.uint8), zeros(ACTIONS, BATCH, dtype=torch.uint8)
    return transitions.Rows(words, words, legal, place, place, taken, taken, out, out)


def chosen() -> priorities.Sampling:
    counts, seed = zeros(1, dtype=torch.int64), zeros(2, dtype=torch.int32)
    return priorities.Sampling(zeros(BATCH, dtype=torch.int32), counts, counts, seed, ROWS, N, 8, 3, 0)


def priority_buffers() -> priorities.Priorities:
    return priorities.Priorities(zeros(ROWS, N), zeros(4, 8), zeros(BATCH), zeros(BATCH), zeros(1), zeros(1), 2)


GROUPS = {  # the two groups each body is launched with
    world_noise.noise_body: lambda: (clock(), world_noise.Noise(zeros(T, U, N))),
    minibatches.order_body: lambda: (clock(), minibatches.Order(zeros(T, N, dtype=torch.int32), 2, 1, 1)),
    returns.advantage_body: lambda: (discount(), trace()),
    returns.accrual_body: lambda: (discount(), accrual()),
    nonfinite.nonfinite_body: lambda: (checked(), result()),
    transitions.store_body: lambda: (source(), ring()),
    transitions.move_body: lambda: (staged(), host()),
    transitions.store_legal_body: lambda: (source(), ring()),
    transitions.draw_body: lambda: (ring(), sample()),
    transitions.returns_body: lambda: (ring(), sample()),
    transitions.rows_body: lambda: (copied(), copied()),
    transitions.part_body: lambda: (copied(), transitions.Part(zeros(1, dtype=torch.int64), ROWS, N, 3, 64)),
    transitions.legal_body: lambda: (copied(), copied()),
    priorities.mark_tick_body: lambda: (chosen(), priority_buffers()),
    priorities.sample_by_priority_body: lambda: (chosen(), priority_buffers()),
    priorities.write_priority_body: lambda: (chosen(), priority_buffers()),
}


class NoParams(NamedTuple):
    pass


@device
def grid_reset(s, cells, workspace, p, key):
    for k in range(9):
        cells[k] = integer(key, k, 3)


@device
def grid_step(s, cells, workspace, action, p, key, tally):
    workspace[0] = 3 * action[0] + action[1]
    result = float32(cells[workspace[0]])
    cells[workspace[0]] = 0
    tally[0] += result
    return result, result == float32(0.0)


@device
def grid_observe(s, cells, workspace, obs, p):
    for k in range(9):
        obs[k] = cells[k]


@device
def grid_shade(s, cells, p, x, y):
    grey = float32(cells[3 * int(float32(3.0) * y) + int(float32(3.0) * x)]) / float32(2.0)
    return grey, grey, grey


GRID = Env(
    NoParams,
    0,
    observation=Box(9, 0, 255, dtype="uint8"),
    action=MultiDiscrete((3, 3)),
    time_limit=None,
    reset=grid_reset,
    step=grid_step,
    observe=grid_observe,
    pixel_shader=grid_shade,
    int_state=IntState(9, "int8"),
    workspace=1,
    tally=("coins",),
)
WORLDS = {
    **{name: envs.find(name) for name in envs.names()},
    "a grid": GRID,
    "flickering": envs.with_flicker(GRID, 0.5),
    "masked": GATE,
    "a masked grid": FILL,
}


@device
def gate_shade(s, p, x, y):
    return x, y, s[0] * float32(0.5)


def ptx_of_all(body, lanes, slot, architectures=ARCHITECTURES) -> dict[tuple[int, int], str]:
    """PTX for each generation from one lowering, which does not depend on it."""
    with ptx._pretended_device(ARCHITECTURES[0]):
        types = kernel.signature(lanes, slot)
        library, _ = compiler._compile_pyfunc_with_fixup(
            cuda_shell(body), types, device=False, fastmath=True, cc=ARCHITECTURES[0], abi="numba"
        )
    return {capability: library.get_asm_str(cc=capability) for capability in architectures}


def check_ptx(body, lanes, slot, architectures=ARCHITECTURES) -> None:
    for capability, text in ptx_of_all(body, lanes, slot, architectures).items():
        check_text(text, capability)


def check_text(ptx: str, capability: tuple[int, int]) -> None:
    major, minor = capability
    assert f".target sm_{major}{minor}" in ptx
    assert ".visible .entry" in ptx
    assert float64_lines(ptx) == []
    assert undefined_calls(ptx) == []


ROBOTS = ("half_cheetah", "humanoid", "dmc_finger_spin")
"""Robots of the slow tests; the others are soak tests. All are compiled for one generation, as each generation takes
some twenty seconds.
"""

PLAIN = ("masked",)  # with every run of the tests, as each takes two seconds
PLAIN_BODIES = (returns.advantage_body,)


def marks(name: str):
    return () if name in PLAIN else pytest.mark.soak if name in PHYSICS and name not in ROBOTS else pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in WORLDS])
def test_environments_compile_without_float64(name):
    world = DeviceWorld(WORLDS[name], N, seed=1)
    env, slot = world.spec, world.slot()
    apart = env.observation_shards > 1
    architectures = ((9, 0),) if name in PHYSICS else ARCHITECTURES
    lanes = world.lanes._replace(memory=zeros(N, env.memory) if env.memory else None)  # as on a GPU
    for body in (step_body(env, world.params, sharded=apart), reset_body(env, world.params, apart)):
        check_ptx(body, lanes, slot, architectures)
    if apart:
        check_ptx(
            shards_body(env, world.params, env.observation_shards),
            pixels.Scene(world.lanes.state, world.lanes.int_state),
            slot,
        )
    if env.pixel_shader is not None:
        scene, canvas = (
            pixels.scene(env, world.lanes.state, world.lanes.int_state),
            pixels.Canvas(zeros(N, 8, 8, 3, dtype=torch.uint8)),
        )
        if env.picture:
            check_ptx(pixels.arrange_body(env, world.params), scene, canvas)
        check_ptx(pixels.shade_body(env, world.params), scene, canvas)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "changing"), [("cartpole", ("force", "gravity")), ("breakout", ("width", "tau"))])
def test_environments_with_scheduled_parameters_compile_without_float64(name, changing):
    env = envs.find(name)
    world = DeviceWorld(env, N, seed=1, changing=changing)
    for body in (step_body(env, world.params, changing=changing), reset_body(env, world.params, changing=changing)):
        check_ptx(body, world.lanes, world.slot())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["masked", "with cells", "cartpole"])
def test_environments_observed_by_pictures_compile_without_float64(name):
    env = with_pixels(
        {
            "masked": dataclasses.replace(GATE, pixel_shader=gate_shade),
            "with cells": FILL,
            "cartpole": envs.find("cartpole"),
        }[name],
        16,
    )
    world = DeviceWorld(env, N, seed=1, every_final=True)
    slot = world.bind(world.slot())
    for body in (
        begin_body(env, world.params),
        end_body(env, world.params),
        step_body(env, world.params),
        reset_body(env, world.params),
    ):
        check_ptx(body, world.lanes, slot)
    scene = pixels.Scene(world.lanes.state, world.lanes.int_state)
    for body in (
        pixels.observe_body(env, world.params),
        pixels.observe_final_body(env, world.params, every_final=False),
    ):
        check_ptx(body, scene, slot)


@pytest.mark.parametrize(
    "body",
    [body if body in PLAIN_BODIES else pytest.param(body, marks=pytest.mark.slow) for body in GROUPS],
    ids=lambda body: body.py_func.__name__,
)
def test_bodies_compile_without_float64(body):
    check_ptx(body, *GROUPS[body]())


@pytest.mark.slow
@pytest.mark.parametrize("capability", ARCHITECTURES[1:], ids=lambda capability: "sm_{}{}".format(*capability))
def test_one_lowering_serves_all(capability):
    """Equal to a complete compilation for the GPU."""

    def nameless(text: str) -> str:
        return re.sub(r"_ZN\w+", "", text)  # names hold the order of compilation

    groups = GROUPS[world_noise.noise_body]()
    assert nameless(ptx_of_all(world_noise.noise_body, *groups)[capability]) == nameless(
        compile_ptx(world_noise.noise_body, *groups, capability)
    )


def test_no_body_is_forgotten():
    built = {
        "step_body",
        "begin_body",
        "end_body",
        "reset_body",
        "shards_body",
        "arrange_body",
        "shade_body",
        "observe_body",
        "observe_final_body",
    }
    listed = {body.py_func.__name__ for body in GROUPS} | built
    source = "\n".join(path.read_text() for path in Path(operant.__file__).parent.rglob("*.py"))
    assert set(re.findall(r"^def ([a-z]\w*_body)\(", source, re.MULTILINE)) == listed


def test_float64_instructions_are_detected():
    @device
    def body(i, clock, out, offset):
        out.noise[0, 0, i] = out.noise[0, 0, i] * 0.1

    assert float64_lines(compile_ptx(body, clock(), world_noise.Noise(zeros(T, U, N)), (9, 0))) != []


def test_a_function_is_pasted_without_a_copy_of_what_numba_has_read(monkeypatch):
    """Two copies of each block, with all variables, took a quarter of all compilation."""

    @device
    def inner(x):
        return x + 1

    @device
    def outer(x):
        return inner(x) * inner(x + 1)

    copied, real = [], copy.deepcopy
    monkeypatch.setattr(
        copy, "deepcopy", lambda value, *memo: copied.append(type(value).__name__) or real(value, *memo)
    )
    assert outer(2) == 12 and "Block" not in copied
