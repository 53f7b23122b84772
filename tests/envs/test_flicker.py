"""Blank observations: which and how often, with everything else unchanged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from operant import envs
from operant.compute.device import device_params
from operant.config.load import load
from operant.envs import with_flicker, with_pixels
from operant.errors import ConfigError
from operant.worlds.device_world import DeviceWorld

LANES, STEPS = 64, 100


def rollout(env):
    """Observations (T, O, N), final observations, rewards and ends over some steps to the right and left."""
    world = DeviceWorld(env, LANES, seed=1, every_final=True)
    slot = world.slot(STEPS)
    world.reset(world.bind(slot, -1))
    for t in range(STEPS):
        slot.action[t] = torch.arange(LANES, dtype=torch.int32) // (1 + t % 5) % 2
        world.step(world.bind(slot, t), t)
    return slot


def test_other_observations_equal_those_without_flicker():
    plain, flickering = rollout(envs.find("cartpole")), rollout(with_flicker(envs.find("cartpole"), 0.3))
    assert (
        torch.equal(plain.reward, flickering.reward)
        and torch.equal(plain.terminated, flickering.terminated)
        and plain.terminated.sum() > 0
    )
    blank = (flickering.observation == 0).all(dim=1)
    assert torch.equal(flickering.observation, torch.where(blank[:, None], 0.0, plain.observation))
    share, count = float(blank.double().mean()), blank.numel()
    assert abs(share - 0.3) < 5 * (0.3 * 0.7 / count) ** 0.5
    assert blank[0].any() and not blank[0].all()  # at the start as well
    ended = plain.terminated.bool()
    gone = (flickering.final_observation == 0).all(dim=1)[ended]
    assert gone.any() and not gone.all()
    kept = ended & ~(flickering.final_observation == 0).all(dim=1)
    assert torch.equal(
        flickering.final_observation.transpose(1, 2)[kept], plain.final_observation.transpose(1, 2)[kept]
    )


@pytest.mark.slow
def test_all_shards_of_a_blank_observation_are_zero():
    env = with_flicker(envs.find("snake"), 1.0)
    s, cells, p = (
        np.zeros(env.fields, np.float32),
        np.zeros(env.int_state.n, env.int_state.dtype),
        device_params(env.Params()),
    )
    env.reset.py_func(s, cells, np.zeros(0, np.int32), p, tuple(np.uint32(word) for word in (1, 2, 3, 4, 5, 6)))
    for blank in (1.0, 0.0):
        assert s[-1] == 1.0 if blank else True
        s[-1], obs = blank, np.full(env.observation.size, 7, np.uint8)
        for shard in range(env.observation_shards):
            env.observe.py_func(s, cells, obs, p, shard)
        assert bool((obs == 0).all()) == bool(blank) and 7 not in obs


def test_blank_pictures_are_black():
    env = with_flicker(with_pixels(envs.find("cartpole"), 16), 0.5)
    p, s = device_params(env.Params()), np.zeros(env.fields, np.float32)
    assert env.pixel_shader.py_func(s, p, np.float32(0.5), np.float32(0.7)) != (0.0, 0.0, 0.0)
    s[-1] = 1.0
    assert env.pixel_shader.py_func(s, p, np.float32(0.5), np.float32(0.7)) == (0.0, 0.0, 0.0)
    plain = envs.find("cartpole")
    assert (
        with_flicker(plain, 0.5).pixel_shader is plain.pixel_shader
    )  # the observation is numeric; the picture is for viewers only
    assert with_flicker(plain, 0.0) is plain and with_flicker(plain, 0.5) == with_flicker(plain, 0.5) != with_flicker(
        plain, 0.4
    )


def test_flicker_is_available_for_every_environment():
    config = load(None, ["env.name=tmaze", "env.flicker=0.25"])
    assert config.environment == with_flicker(envs.find("tmaze"), 0.25) and config.environment.name == "tmaze"
    assert load(None, []).environment == envs.find("cartpole")
    with pytest.raises(ConfigError, match=r"env\.flicker"):
        load(None, ["env.flicker=1.5"])
