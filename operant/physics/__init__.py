"""Physics of MuJoCo's models, compiled for one model: from an MJCF file to device functions for CUDA and the CPU.

    model = Model.from_mjcf("half_cheetah.xml")
    engine = build(model)                # float32; build(model, float64) for tests on a CPU

`engine.step(s, ctrl, w)` in a `@device` function is one `mj_step` of the lane whose state column is `s`.
"""

from operant.physics.engine import Engine, build
from operant.physics.local import local_array
from operant.physics.model import Model

__all__ = ["Engine", "Model", "build", "local_array"]
