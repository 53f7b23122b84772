"""Stable-Baselines3 adapter of a world, built on the Gymnasium adapter.

Needs `gymnasium` and `stable_baselines3`, optional dependencies of this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from operant.envs import Env
from operant.errors import MachineError, UsageError
from operant.worlds.gym import make_vec

try:
    from stable_baselines3.common.vec_env import VecEnv

    _SB3 = True
except ImportError:
    VecEnv, _SB3 = object, False  # type: ignore[assignment, misc, unused-ignore]


class SB3VecEnv(VecEnv):  # type: ignore[misc, unused-ignore]  # Any where the package is missing
    """Stable-Baselines3 `VecEnv` over `num_envs` lanes (parallel copies) of an environment. The arguments are those of
    `make_vec`.

    `infos[i]` of a lane whose episode ended holds "terminal_observation", "TimeLimit.truncated" and, as SB3's Monitor
    writes it, "episode" (r, l, t, and the environment's tallies). MaskablePPO of sb3-contrib finds the masks of legal
    actions. Lanes are not Python objects: `set_attr` and `env_method` are not supported.

    Raises MachineError without stable_baselines3, and the errors of `make_vec`.
    """

    def __init__(
        self,
        name: str | Env,
        num_envs: int = 1,
        *,
        device: str | torch.device = "cpu",
        seed: int | None = None,
        params: Mapping[str, Any] | tuple[Any, ...] | None = None,
        pixels: int | None = None,
    ) -> None:
        if not _SB3:
            raise MachineError(
                'SB3VecEnv needs Stable-Baselines3, which is not installed: pip install "stable-baselines3>=2.3"'
            )
        self.vector = make_vec(name, num_envs, device=device, seed=seed, params=params, pixels=pixels)
        self._actions: np.ndarray | None = None
        super().__init__(num_envs, self.vector.single_observation_space, self.vector.single_action_space)

    def reset(self) -> np.ndarray:
        """Reset every lane, with the seed of the last call of `seed` if there was one; returns observations (N, O).
        Raises UsageError if options were set.
        """
        if any(self._options):
            raise UsageError("reset has no options here: call set_options() to clear them")
        observations, _ = self.vector.reset(seed=self._seeds[0])
        self._reset_seeds()
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """Store the actions, (N) or (N, A), for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Step every lane with the stored actions; returns observations (N, O), rewards (N) float32, ends of episodes
        (N) bool, and an info per lane.
        """
        observations, rewards, terminated, truncated, info = self.vector.step(self._actions)
        ended = terminated | truncated
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        for i in np.flatnonzero(ended):
            final = info["final_info"]
            sums = {
                "r": final["episode"]["r"],
                "l": final["episode"]["l"],
                "t": final["episode"]["t"],
                **self._tallies(final),
            }
            infos[i] = {
                "TimeLimit.truncated": bool(truncated[i] and not terminated[i]),
                "terminal_observation": info["final_obs"][i],
                "episode": {key: values[i].item() for key, values in sums.items()},
            }
        return observations, rewards.astype(np.float32), ended, infos

    def close(self) -> None:
        """Release the buffers of this vector environment."""
        self.vector.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return attribute `attr_name` of the underlying vector environment, once for each lane in `indices`. Raises
        AttributeError if there is none.
        """
        if attr_name == "action_masks" and not self.vector.world.spec.mask_size:
            raise AttributeError("this environment defines no legal actions")
        value = getattr(self.vector, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Raise UsageError: lanes are not Python objects whose attributes could be set."""
        raise UsageError(
            f"{attr_name!r} cannot be set: lanes are columns of a tensor, not objects; parameters go to "
            "SB3VecEnv(params=...)"
        )

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Return the masks of legal actions (H), one for each lane in `indices`, for the method "action_masks". Raises
        UsageError for any other method.
        """
        if method_name == "action_masks":
            return list(self.vector.action_masks()[list(self._get_indices(indices))])
        raise UsageError(f"{method_name!r} cannot be called: lanes are columns of a tensor, not objects")

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Return False for every requested lane: lanes have no wrappers."""
        return [False for _ in self._get_indices(indices)]

    def _tallies(self, final_info: dict[str, Any]) -> dict[str, np.ndarray]:
        """Tallies (the environment's own statistics) of ended episodes by name, (N) each, from an info's
        "final_info".
        """
        return {name: final_info["tally"][name] for name in self.vector.world.spec.tally}
