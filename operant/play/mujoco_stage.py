"""Stage of a robot's environment whose pictures are drawn by MuJoCo's own renderer (`operant render --renderer
mujoco`). Needs `mujoco`, the model's MJCF file and OpenGL.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from operant.envs.physics import PhysicsEnv
from operant.errors import MachineError, UsageError
from operant.play.stage import Stage
from operant.text import safe

if TYPE_CHECKING:
    from operant.envs import Env

_DRAWN = ("geom_size", "geom_pos", "geom_quat", "body_pos", "body_quat", "jnt_pos", "jnt_axis", "qpos0")
"""Arrays of the model that its pictures depend on, and that parameters may have changed."""

_NO_OPENGL = (
    "MuJoCo's renderer found no OpenGL on this machine: set MUJOCO_GL=egl (a GPU, or Mesa without a display) or "
    "MUJOCO_GL=osmesa, or leave --renderer out"
)


class MujocoStage(Stage):
    """Stage of a robot's environment, drawn by MuJoCo: by the model's camera `track` where it has one, else by a camera
    that follows its first body. Close it with `close`.

    Raises UsageError for an environment that is not on a robot's model, MachineError without `mujoco`, without the MJCF
    file's package or without OpenGL, NotFoundError without the file.
    """

    def __init__(self, env: Env, params: Any, **options: Any) -> None:
        if not isinstance(env, PhysicsEnv) or env.source is None:
            raise UsageError(f"{safe(env.name)} is not on a MuJoCo model: --renderer mujoco draws only those")
        try:
            import mujoco
        except ImportError:
            raise MachineError("--renderer mujoco needs mujoco: pip install 'operant[mujoco]'") from None
        except AttributeError:  # PyOpenGL without the library that MUJOCO_GL names
            raise MachineError(_NO_OPENGL) from None
        from operant.physics import build

        self._mujoco = mujoco
        mujoco.set_mju_user_warning(lambda warning: None)  # otherwise to stderr and MUJOCO_LOG.TXT
        self._model = mujoco.MjModel.from_xml_path(str(env.source.file()))
        mujoco.set_mju_user_warning(None)
        super().__init__(env, params, **options)
        changed: Any = env.ready(params).model  # type: ignore[attr-defined]
        for name in _DRAWN:
            getattr(self._model, name)[:] = getattr(changed, name)
        self._data, self._first = mujoco.MjData(self._model), build(changed, np.float32).QPOS
        self._camera = mujoco.MjvCamera()
        track = mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
        mujoco.mjv_defaultFreeCamera(self._model, self._camera)
        if track >= 0:
            self._camera.type, self._camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, track
        elif self._model.nbody > 1:
            self._camera.type, self._camera.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, 1
        self._renderer: Any = None

    def canvas(self, side: int) -> torch.Tensor:
        """Allocate a zeroed buffer for `picture`, `side` x `side` pixels for each lane, and MuJoCo's renderer for it.
        Raises MachineError without OpenGL.
        """
        self.close()
        mujoco, frame = self._mujoco, self._model.vis.global_
        frame.offwidth, frame.offheight = max(frame.offwidth, side), max(frame.offheight, side)
        try:
            with warnings.catch_warnings(action="ignore"):  # GLFW's, without a display
                self._renderer = mujoco.Renderer(self._model, side, side)
        except (mujoco.FatalError, RuntimeError, ImportError, AttributeError):
            raise MachineError(_NO_OPENGL) from None
        return torch.zeros(self.lanes, side, side, 3, dtype=torch.uint8)

    def picture(self, canvas: torch.Tensor) -> NDArray[np.uint8]:
        """Draw the lanes on `canvas` and return it as (N, H, W, 3) bytes, valid until the next call."""
        count = self._model.nq
        qpos = self._world.lanes.state[self._first : self._first + count].cpu().numpy()  # sync: (nq, N)
        for lane in range(self.lanes):
            self._data.qpos[:] = qpos[:, lane]
            self._mujoco.mj_forward(self._model, self._data)
            self._renderer.update_scene(self._data, self._camera)
            canvas[lane] = torch.from_numpy(self._renderer.render())
        return canvas.numpy()

    def close(self) -> None:
        """Free the renderer and its OpenGL context."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _compile(self) -> None:
        painter, self._painter = self._painter, None  # its kernel is not needed
        super()._compile()
        self._painter = painter
