"""Draw a picture of each environment for its page: `python docs/draw.py [NAME ...]`. Needs Pillow."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from operant import envs
from operant.envs import Env
from operant.worlds import DeviceWorld
from operant.worlds.bounds import rollout_actions
from operant.worlds.painting import Painter

PICTURES = Path(__file__).resolve().parent / "pages" / "environments" / "pictures"
SIDE, STEPS = 240, 12


def picture(env: Env) -> bytes:
    """PNG of one lane after some steps."""
    world = DeviceWorld(env, 2, seed=3)
    slot = world.slot()
    world.reset(world.bind(slot))
    for t in range(STEPS):
        slot.action.copy_(rollout_actions(env, np.random.default_rng(t), t, 2, slot.legal))
        world.step(world.bind(slot), t)
    pixels = torch.zeros(2, SIDE, SIDE, 3, dtype=torch.uint8)
    painter = Painter(world)
    painter(painter.bind(pixels))
    file = io.BytesIO()
    Image.fromarray(pixels[0].numpy()).quantize(64).save(file, "PNG", optimize=True)
    return file.getvalue()


for name in sys.argv[1:] or envs.names():
    (PICTURES / f"{name}.png").write_bytes(picture(envs.find(name)))
    print(name)
