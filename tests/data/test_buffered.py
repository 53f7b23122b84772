"""Acting on one buffer of lanes while the host steps another gives what all lanes together give, in any number of
buffers.
"""

from dataclasses import replace

import pytest
import torch

from operant import envs, worlds
from operant.data import Collector
from operant.data.buffered import BufferedCollection
from operant.envs import outside
from operant.host.source import Source
from operant.worlds.host_world import HostWorld

STEPS = 25


def hosted(buffers, processes, asynchronous=False):
    hosting = outside.Hosting(processes, buffers, asynchronous=asynchronous)
    env = replace(outside.declare(Source("gymnasium", "CartPole-v1", time_limit=9)), hosting=hosting)
    return HostWorld(env, 6, seed=3)


def unordered(buffers, processes):
    return hosted(buffers, processes, asynchronous=True)


def bridged(buffers, _processes, least=2048):
    return worlds.BridgedWorld(envs.find("cartpole"), 6, seed=3, device="cpu", buffers=buffers, least=least)


def driven(buffers, _processes):
    """Two threads that share the lanes of a buffer."""
    return bridged(buffers, 0, least=1)


def collected(world, overlapped):
    """Three collections by a policy that looks at each lane alone: rollouts, and the episodes' sums."""
    collector, found = Collector(world, STEPS, 1), []
    rollout, noise = collector.rollout, collector.noise

    def act(t, lanes=slice(None)):
        rollout.action[t][:, lanes] = (rollout.observation[t][2, lanes] + noise[t][:, lanes] > 0.5).int()

    collection = BufferedCollection(world, [world.bind(rollout, t) for t in range(STEPS)])
    collector.start()
    for _ in range(3):
        if overlapped:
            world.noise(noise)
            collection.collect(act)
            world.advance(STEPS)
        else:
            collector.collect(act)
        found += [
            field.clone()
            for name, field in rollout._asdict().items()
            if field is not None and name != "final_observation"
        ]
        found.append(world.episode_sums(rollout))
        collector.carry_on()
    if hasattr(world, "close"):
        world.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "buffers", "processes"),
    [(bridged, 3, 0), (driven, 2, 0), (hosted, 4, 2), (hosted, 2, 0), (unordered, 2, 2)],
)
def test_overlapped_steps_are_those_of_all_lanes_together(make, buffers, processes):
    whole, cut = collected(make(1, 0), False), collected(make(buffers, processes), True)
    assert all(torch.equal(one, other) for one, other in zip(whole, cut, strict=True))
    assert float(whole[-1][0]) > 0
