"""A process of its own that runs one environment's kernels, for tests of what one process leaves to the next: `python
compiled_probe.py FILE DEVICE`.

Prints JSON: how many kernels it compiled and loaded, and the bytes of the world after some steps, through each shell
and, on a GPU, through a captured graph.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys

import torch

from operant import envs
from operant.compute.graphs import Graphed
from operant.compute.kernel import SERIAL_BELOW
from operant.worlds.device_world import DeviceWorld


class Counter(logging.Handler):
    """Lines of the log on compiled code."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.compiled, self.loaded, self.other = [], [], []

    def emit(self, record):
        line = record.getMessage()
        for kind, into in (("compiled in", self.compiled), ("loaded in", self.loaded)):
            if kind in line:
                into.append(line.split(f" {kind}")[0])
                return
        self.other.append(line)


def counter() -> Counter:
    """A counter of what happens from now on."""
    found, log = Counter(), logging.getLogger("operant.compute.jit_cache")
    log.setLevel(logging.DEBUG)
    log.addHandler(found)
    return found


def digest(env, lanes, device, *, graphed=False, steps=20):
    """The bytes of a world after some steps under the same actions, hashed."""
    world = DeviceWorld(env, lanes, seed=3, device=device)
    slot = world.slot()
    bound = world.bind(slot)
    world.reset(bound)
    slot.action.copy_(torch.arange(slot.action.numel(), device=device).view_as(slot.action) % 2)

    def step():
        world.step(bound)
        world.advance(1)

    run = Graphed(step, world.device, eager=not graphed)
    for _ in range(steps):
        run()
    parts = [world.lanes.state, world.lanes.age, world.lanes.running, slot.observation, slot.reward]
    return hashlib.sha256(b"".join(part.cpu().numpy().tobytes() for part in parts)).hexdigest()


def main():
    count, env, device = counter(), envs.find(sys.argv[1]), sys.argv[2]
    digests = [digest(env, 64, device), digest(env, SERIAL_BELOW, device)]
    if device != "cpu":
        digests.append(digest(env, 64, device, graphed=True))
    print(
        json.dumps(
            {
                "compiled": sorted(count.compiled),
                "loaded": sorted(count.loaded),
                "other": count.other,
                "digests": digests,
            }
        )
    )


if __name__ == "__main__":
    main()
