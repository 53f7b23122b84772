"""Bridged world: every value equals one world's, with any number of buffers, and restored state continues to the
bit.
"""

import numpy as np
import pytest
import torch

from operant import envs
from operant.worlds import BridgedWorld, DeviceWorld
from operant.worlds.bounds import rollout_actions

LANES, STEPS = 10, 120


def stepped(world, steps, generator):
    """Rollout of random actions, and its episode sums."""
    slot = world.slot(steps)
    world.reset(world.bind(slot, -1))
    for t in range(steps):
        slot.action[t].copy_(rollout_actions(world.spec, generator, t, world.count))
        world.step(world.bind(slot, t), t)
    world.advance(steps)
    return slot, world.episode_sums(slot)


@pytest.mark.parametrize("name", ["pendulum", pytest.param("g2048", marks=pytest.mark.slow), "cartpole"])
def test_a_bridged_world_equals_one_cpu_world_to_the_bit(name):
    whole, bridged = (
        DeviceWorld(envs.find(name), LANES, seed=4),
        BridgedWorld(envs.find(name), LANES, seed=4, device="cpu", buffers=3),
    )
    steps = 250 if name == "pendulum" else STEPS
    (slot, sums), (other, other_sums) = (stepped(world, steps, np.random.default_rng(1)) for world in (whole, bridged))
    ended = slot.truncated.bool()
    for one, two, which in zip(slot, other, slot._fields, strict=True):
        if which == "final_observation" and one is not None:
            one, two = one.transpose(1, 2)[ended], two.transpose(1, 2)[ended]
        assert one is two is None or torch.equal(one, two), which
    assert torch.allclose(sums, other_sums, rtol=1e-6) and sums[0] > 0
    noises = [torch.zeros(2, 3, LANES), torch.zeros(2, 3, LANES)]
    whole.noise(noises[0])
    bridged.noise(noises[1])
    assert torch.equal(*noises)


def test_final_pictures_are_copied():
    env = envs.with_pixels(envs.find("pendulum"), 16)
    whole, bridged = DeviceWorld(env, 3, seed=4), BridgedWorld(env, 3, seed=4, device="cpu", buffers=2)
    (slot, _), (other, _) = (stepped(world, 210, np.random.default_rng(1)) for world in (whole, bridged))
    assert torch.equal(slot.observation, other.observation) and int(slot.truncated.sum()) == 3
    assert torch.equal(slot.final_observation, other.final_observation)


@pytest.mark.parametrize("other", [{"buffers": 2}, {"buffers": 5, "least": 1}, None])
def test_state_resumes_with_another_number_of_buffers(other):
    env = envs.find("cartpole")
    one = BridgedWorld(env, LANES, seed=4, device="cpu", buffers=3)
    two = DeviceWorld(env, LANES, seed=4) if other is None else BridgedWorld(env, LANES, seed=4, device="cpu", **other)
    stepped(one, 30, np.random.default_rng(1))
    for name, tensor in two.state().items():
        tensor.copy_(one.state()[name])
    two.restored()
    slots = one.slot(), two.slot()
    for world, slot in zip((one, two), slots, strict=True):
        slot.action.fill_(1)
        world.step(world.bind(slot))
    assert torch.equal(slots[0].observation, slots[1].observation)
