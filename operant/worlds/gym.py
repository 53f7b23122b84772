"""Gymnasium adapter: a world as a vector environment (`make_vec`).

Resets of ended lanes follow Gymnasium's `AutoresetMode`, named by its values:

    "same_step" (default)   `step` returns the next episode's first observation; the last one of the old is in `info`
    "next_step"             `step` returns the last observation; the next step resets the lane, with reward 0
    "disabled"              `step` returns the last observation; `reset(options={"reset_mask": ended})` must follow

Keys of ended episodes are, in all modes, those of Gymnasium's `SyncVectorEnv` with "same_step" and
`RecordEpisodeStatistics` around each environment, so that the vector wrapper of that name can add its own:

    info["final_obs"], info["_final_obs"]                true last observations, and their lanes ("same_step" only)
    info["final_info"]["episode"]["r" | "l" | "t"]       the episode's return, length, and seconds
    info["final_info"]["tally"][name]                    the environment's tallies, if it has any

If an environment defines legal actions, `reset` and `step` add to `info`

    info["action_mask"]                                  (N, H) int8, 1 for a legal action; MultiDiscrete: concatenated

With `output="numpy"` the keys of ended episodes exist only in steps in which an episode ended, and every array is a
copy. With `output="torch"` nothing leaves the device or waits for it, so the host cannot know whether an episode ended:
the keys always exist, masks mark where they hold, and there is no "t".

Needs `gymnasium`, an optional dependency of this package.
"""

from __future__ import annotations

import operator
import secrets
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from operant import envs, similar
from operant.envs import Box, Discrete, Env
from operant.errors import MachineError, OperantError, UsageError
from operant.worlds.base import Slot
from operant.worlds.device_world import DeviceWorld
from operant.worlds.snapshot import Snapshot

try:
    import gymnasium
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError as missing:
    raise MachineError(
        'operant.gym needs Gymnasium 1.2 or later, which is not installed: pip install "gymnasium>=1.2,<2"'
    ) from missing

__all__ = ["OperantVectorEnv", "make_vec"]

_OUTPUTS = ("numpy", "torch")


def make_vec(
    name: str | Env,
    num_envs: int = 1,
    *,
    device: str | torch.device = "cpu",
    seed: int | None = None,
    output: str = "numpy",
    params: Mapping[str, Any] | tuple[Any, ...] | None = None,
    pixels: int | None = None,
    autoreset_mode: str | AutoresetMode = "same_step",
) -> OperantVectorEnv:
    """Make `num_envs` lanes of an environment as a `gymnasium.vector.VectorEnv`. Raises UsageError (invalid name,
    number or parameter, an environment without pictures), MachineError (no such device), NotFoundError (no such file).

    `name` is an environment's name, its Gymnasium id, the path of a file ending in `.py`, or an `Env`. `params` are
    values of its `Params` by name, or a whole `Params`. Without a `seed` a random one is chosen. `output="torch"`
    returns tensors on `device`, "numpy" arrays. With `pixels` observations are pictures, (pixels, pixels, 3) bytes
    each. `autoreset_mode` is "same_step", "next_step" or "disabled", or Gymnasium's enumeration; several of its
    wrappers require "next_step".
    """
    env = name if isinstance(name, Env) else _find_env(name)
    if num_envs < 1:
        raise UsageError(f"num_envs is {num_envs}: it must be at least 1")
    if pixels is not None:
        env = _with_pixels(env, pixels)
    if output not in _OUTPUTS:
        raise UsageError(f"output is {output!r}: it must be 'numpy' or 'torch'")
    seed = secrets.randbits(63) if seed is None else _checked_seed(seed)
    mode = _checked_mode(autoreset_mode)
    return OperantVectorEnv(
        env, num_envs, device=_checked_device(device), seed=seed, output=output, params=params, autoreset_mode=mode
    )


class _Ended(NamedTuple):
    """Length, return and tallies (the environment's own statistics) of each lane's episode after a step, valid where an
    episode ended.
    """

    length: Any  # (N)
    total: Any  # (N) float64, the return
    tallies: Any  # (K, N)


class OperantVectorEnv(VectorEnv):
    """Gymnasium vector environment over N lanes on one device. Create it by `make_vec`, which validates the arguments.

    `world` is the underlying world. `info` consumes its finished tallies, so read them nowhere else.
    """

    def __init__(
        self,
        env: Env,
        num_envs: int,
        *,
        device: torch.device,
        seed: int,
        output: str,
        params: Any,
        autoreset_mode: AutoresetMode,
    ) -> None:
        self.num_envs = num_envs
        self.world = DeviceWorld(env, num_envs, seed=seed, device=device, params=params, every_final=True)
        self.single_observation_space = _observation_space(env.observation, bounded=self.world.params == env.Params())
        self.single_action_space = _action_space(env.action)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": autoreset_mode, "render_modes": []}
        self._mode = autoreset_mode
        self._numpy = output == "numpy"
        self._seed = seed
        # Two alternating slots: with torch output the previous observation stays valid during a step.
        self._slots = [(slot, self.world.bind(slot)) for slot in (self.world.slot(), self.world.slot())]
        self._choices = None if isinstance(env.action, Box) else torch.tensor(env.action.n).reshape(-1, 1)  # (A, 1)
        self._begun = np.zeros(num_envs)  # (N), start of each lane's episode, time.perf_counter
        # (N), returns of current episodes in float64; the world sums in float32
        self._returns = torch.zeros(num_envs, dtype=torch.float64, device=self.world.device)
        self._no_tallies = torch.zeros(0, num_envs, device=self.world.device)
        self._everywhere = torch.ones(num_envs, dtype=torch.bool, device=self.world.device)
        self._started = False
        # (N), ended lanes not yet reset
        self._waiting = torch.zeros(num_envs, dtype=torch.bool, device=self.world.device)
        self._shown: torch.Tensor | None = None  # (O, N), observations returned last

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset every lane; returns observations (N, O), and an info with the mask of legal actions if there is one.
        Raises UsageError for invalid options.

        A `seed` restarts the random numbers; without one they continue (the first time from the seed of `make_vec`).
        `options={"reset_mask": mask}`, (N) bool, resets only the lanes in the mask; the last observations of the others
        are returned. There are no other options.
        """
        self._require_open()
        mask = self._reset_mask(options)
        if seed is not None:
            if mask is not None:
                raise UsageError(
                    "reset got a seed and a reset_mask: a seed starts the numbers of all lanes again, so it "
                    "takes no mask"
                )
            self._seed = _checked_seed(seed)
            self.world = DeviceWorld(
                self.world.spec,
                self.num_envs,
                seed=self._seed,
                device=self.world.device,
                params=self.world.params,
                every_final=True,
            )
        super().reset(seed=self._seed if seed is not None or not self._started else None)
        before = Snapshot.of(self.world, self._slots[0][0])
        slot, bound = self._next_slot()
        self.world.reset(bound)
        if mask is None or self._shown is None:
            mask, self._shown = self._everywhere, slot.observation
        else:
            before.restore(self.world, slot, ~mask)
            self._shown = torch.where(mask, slot.observation, self._shown)
        self._begun[mask.cpu().numpy()] = time.perf_counter()
        self._returns.masked_fill_(mask, 0.0)
        self._waiting &= ~mask
        self._started = True
        return self._observations(self._shown), self._mask_info(slot)

    def _reset_mask(self, options: dict[str, Any] | None) -> torch.Tensor | None:
        """Read the mask of lanes to reset, (N) bool on the world's device, from the options of `reset`; None if all
        lanes are reset. Raises UsageError for an invalid mask or any other option.
        """
        if others := sorted(set(options or {}) - {"reset_mask"}):
            raise UsageError(
                f"reset got the options {others}: only reset_mask is supported; set the environment's parameters by "
                "make_vec(params=...)"
            )
        if not options:
            return None
        if not self._started:
            raise UsageError("reset got a reset_mask before the first reset: call reset() once first")
        given = options["reset_mask"]
        mask = given if isinstance(given, torch.Tensor) else torch.from_numpy(np.array(given))
        if mask.dtype != torch.bool or tuple(mask.shape) != (self.num_envs,) or not bool(mask.any()):
            raise UsageError(
                f"reset_mask is {given!r}: it must be an array of {self.num_envs} truth values, one of them True "
                "at least"
            )
        return mask.to(self.world.device)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every lane; returns observations (N, O), rewards (N), terminations (N), truncations (N), info. Raises
        UsageError for invalid actions.

        `actions` is an array or tensor of `action_space.shape`: (N) for Discrete, else (N, A). Box actions are clipped
        to their bounds. Integers are validated, except in a GPU tensor, where reading them would wait for the device.

        Arrays are copies, with rewards in float64. As tensors, observations are a transposed view, rewards are float32,
        and results stay valid until the step after the next.
        """
        self._require_open()
        if not self._started:
            raise UsageError("step was called before reset: call reset() once first")
        if self._mode is AutoresetMode.DISABLED and bool(self._waiting.any()):
            lanes = self._waiting.nonzero().flatten().tolist()
            raise UsageError(
                f"the episodes of lanes {lanes[:8]} have ended: call reset(options={{'reset_mask': terminated | "
                f"truncated}}) before step"
            )
        before = Snapshot.of(self.world, self._slots[0][0]) if self._mode is AutoresetMode.NEXT_STEP else None
        slot, bound = self._next_slot()
        slot.action.copy_(self._checked_actions(actions))
        length = self.world.lanes.age + 1
        self.world.step(bound)
        self.world.advance(1)
        if before is not None:
            before.restore(self.world, slot, self._waiting)
            self._begun[self._waiting.cpu().numpy()] = time.perf_counter()
        total, over = self._returns + slot.reward, (slot.terminated | slot.truncated).bool()
        self._returns = total.masked_fill(over, 0.0)
        self._shown = slot.observation
        if self._mode is not AutoresetMode.SAME_STEP:
            self._waiting, self._shown = over, torch.where(over, slot.final_observation, slot.observation)
        ended = _Ended(length, total, self._pop_tallies())
        observations = self._observations(self._shown)
        if self._numpy:
            terminated, truncated = (
                flags.cpu().numpy().astype(np.bool_) for flags in (slot.terminated, slot.truncated)
            )
            info = self._numpy_info(slot, _Ended(*(column.cpu().numpy() for column in ended)), terminated | truncated)
            return (
                observations,
                slot.reward.cpu().numpy().astype(np.float64),
                terminated,
                truncated,
                info | self._mask_info(slot),
            )
        terminated, truncated = slot.terminated.view(torch.bool), slot.truncated.view(torch.bool)
        return (
            observations,
            slot.reward,
            terminated,
            truncated,
            self._torch_info(slot, ended, terminated | truncated) | self._mask_info(slot),
        )

    def action_masks(self) -> Any:
        """Masks of legal actions, (N, H) bool, in the form that MaskablePPO of sb3-contrib expects. Raises UsageError
        if the environment defines none.
        """
        self._require_open()
        legal = self._slots[0][0].legal
        if legal is None:
            raise UsageError(f"{self.world.spec.name or 'the environment'} defines no legal actions")
        return legal.T.cpu().numpy() == 1 if self._numpy else legal.T == 1

    def _mask_info(self, slot: Slot) -> dict[str, Any]:
        """Make the entries "action_mask" and "_action_mask" of `info` from a slot; {} if the environment defines no
        legal actions.
        """
        if slot.legal is None:
            return {}
        if self._numpy:
            return _masked(
                {"action_mask": slot.legal.T.cpu().numpy().astype(np.int8)}, np.ones(self.num_envs, dtype=np.bool_)
            )
        return _masked({"action_mask": slot.legal.T.view(torch.int8)}, self._everywhere)

    def _pop_tallies(self) -> torch.Tensor:
        """Tallies (the environment's own statistics) of the episodes that the last step ended, (K, N). Zeroes the
        world's sums.
        """
        finished = self.world.lanes.finished
        if finished is None:
            return self._no_tallies
        tallies = finished.clone()
        finished.zero_()
        return tallies

    def close_extras(self, **kwargs: Any) -> None:
        """Release the world and the buffers of this vector environment."""
        del self.world, self._slots

    def _require_open(self) -> None:
        if self.closed:
            raise UsageError("this vector environment is closed: make another with make_vec")

    def _next_slot(self) -> tuple[Slot, Slot]:
        """Swap the two slots (buffers of a step) and return the one for the next step, unbound and bound to kernels.
        The other keeps the last step's results.
        """
        self._slots.reverse()
        return self._slots[0]

    def _observations(self, field_major: torch.Tensor) -> Any:
        """Convert observations (O, N) to (N, O), or to (N, *shape) for pictures: a copy as an array, a view as a
        tensor, as `output` demands.
        """
        shape = self.single_observation_space.shape
        assert shape is not None
        if self._numpy:
            return field_major.cpu().numpy().T.copy().reshape(-1, *shape)
        return field_major.T.unflatten(1, shape)

    def _checked_actions(self, actions: Any) -> torch.Tensor:
        """Convert a caller's actions to a field-major tensor (A, N). Raises UsageError for a wrong shape or type, or,
        unless they are on a GPU, a value out of range.
        """
        try:
            tensor = actions.detach() if isinstance(actions, torch.Tensor) else torch.from_numpy(np.array(actions))
        except (TypeError, ValueError) as error:
            raise UsageError(f"actions cannot be read as an array of numbers: {error}") from error
        shape = self.action_space.shape
        if tuple(tensor.shape) != shape:
            raise UsageError(f"actions have the shape {tuple(tensor.shape)}: it must be {shape}")
        column = tensor.reshape(self.num_envs, -1).T
        if self._choices is not None:
            if column.is_floating_point() or column.is_complex():
                raise UsageError(
                    f"actions are {str(tensor.dtype).removeprefix('torch.')}: {self.single_action_space} takes "
                    "whole numbers"
                )
            if not column.is_cuda and bool(((column < 0) | (column >= self._choices)).any()):
                low, high = int(column.min()), int(column.max())
                raise UsageError(f"an action is not in {self.single_action_space}: they run from {low} to {high}")
        return column

    def _numpy_info(self, slot: Slot, sums: _Ended, ended: np.ndarray) -> dict[str, Any]:
        """Make the entries of `info` about ended episodes, as arrays; {} if no episode ended. `sums` are the episodes'
        results, `ended` is the mask of lanes, (N).
        """
        lanes = np.flatnonzero(ended)
        if not lanes.size:
            return {}
        now = time.perf_counter()
        seconds = np.where(ended, np.round(now - self._begun, 6), 0.0)
        self._begun[ended] = now
        length, total = (np.where(ended, column, 0) for column in (sums.length, sums.total))
        episode = {"r": total.astype(np.float64), "l": length.astype(np.int64), "t": seconds}
        tally = {name: row.astype(np.float64) for name, row in zip(self.world.spec.tally, sums.tallies, strict=True)}
        info = {"final_info": _final_info(episode, tally, ended)}
        if self._mode is not AutoresetMode.SAME_STEP:
            return _masked(info, ended)
        final_obs = np.full(self.num_envs, None, dtype=object)
        rows = self._observations(slot.final_observation[:, torch.from_numpy(lanes).to(slot.reward.device)])
        for lane, row in zip(lanes, rows, strict=True):
            final_obs[lane] = row
        return _masked({"final_obs": final_obs, **info}, ended)

    def _torch_info(self, slot: Slot, sums: _Ended, ended: torch.Tensor) -> dict[str, Any]:
        """Make the entries of `info` about ended episodes, as tensors. They always exist; `ended`, the mask of lanes
        (N), marks where they hold. `sums` are the episodes' results.
        """
        episode = {"r": torch.where(ended, sums.total, 0.0), "l": torch.where(ended, sums.length, 0).to(torch.int64)}
        tally = dict(zip(self.world.spec.tally, sums.tallies, strict=True))
        info = {"final_info": _final_info(episode, tally, ended)}
        if self._mode is not AutoresetMode.SAME_STEP:
            return _masked(info, ended)
        return _masked({"final_obs": self._observations(slot.final_observation), **info}, ended)


def _masked(values: dict[str, Any], mask: Any) -> dict[str, Any]:
    """Add an entry "_KEY" for every KEY of `values`: the mask of lanes in which its value holds, as Gymnasium does."""
    masked = {}
    for key, value in values.items():
        masked[key], masked[f"_{key}"] = value, mask
    return masked


def _final_info(episode: dict[str, Any], tally: dict[str, Any], ended: Any) -> dict[str, Any]:
    """Build the entries "final_info" and "_final_info" of `info`, laid out as in Gymnasium's `SyncVectorEnv`, from
    arrays by name: results (`episode`) and tallies of ended episodes. `ended` is the mask of lanes, (N).
    """
    info = {"episode": _masked(episode, ended)}
    if tally:
        info["tally"] = _masked(tally, ended)
    return _masked(info, ended)


def _observation_space(box: Box, *, bounded: bool = True) -> gymnasium.Space[Any]:
    """Gymnasium Box with the environment's bounds, or a byte's limits where none are declared. `bounded=False` ignores
    declared float bounds, which hold for default parameters only.
    """
    shape, dtype = box.shape or (box.size,), np.dtype(box.dtype)
    low, high = (np.array(bounds, dtype=np.float64).reshape(shape) for bounds in box.bounds())
    if dtype.kind == "f" and not bounded:
        low, high = np.full(shape, -np.inf), np.full(shape, np.inf)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = np.maximum(low, limits.min), np.minimum(high, limits.max)
    return gymnasium.spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)


def _action_space(action: Any) -> gymnasium.Space[Any]:
    if isinstance(action, Box):
        return _observation_space(action)
    return (
        gymnasium.spaces.Discrete(action.n)
        if isinstance(action, Discrete)
        else gymnasium.spaces.MultiDiscrete(action.n)
    )


def _find_env(name: str) -> Env:
    """Find an environment by name, Gymnasium id or path of a file. Raises UsageError, which suggests the nearest name,
    if there is none.
    """
    try:
        return envs.find(name)
    except KeyError:
        others = "a Gymnasium id, your own file (my_env.py)"
        raise UsageError(similar.unknown_environment(name, envs.names(), others=others)) from None


def _with_pixels(env: Env, pixels: Any) -> Env:
    """Copy of `env` whose observations are pictures of `pixels` x `pixels`. Raises UsageError for an invalid side or an
    environment without pictures.
    """
    if not isinstance(pixels, int) or not 1 <= pixels <= 4096:
        raise UsageError(f"pixels is {pixels!r}: it must be a whole number, the side of a picture")
    try:
        return envs.with_pixels(env, pixels)
    except OperantError as error:
        raise UsageError(str(error)) from None


def _checked_mode(mode: Any) -> AutoresetMode:
    """Convert a user's autoreset mode, a name or Gymnasium's enumeration, to the enumeration. Raises UsageError."""
    names = {result.name.lower(): result for result in AutoresetMode}
    result = mode if isinstance(mode, AutoresetMode) else names.get(mode) if isinstance(mode, str) else None
    if result is None:
        raise UsageError(f"autoreset_mode is {mode!r}: it must be one of {', '.join(map(repr, names))}")
    return result


def _checked_seed(seed: Any) -> int:
    """Convert a user's seed to an int in [0, 2^63). Raises UsageError."""
    try:
        number = operator.index(seed)
    except TypeError:
        raise UsageError(
            f"seed is {seed!r}: it must be one whole number: lanes share a seed, and lane i draws the numbers of "
            "(seed, i)"
        ) from None
    if not 0 <= number < 2**63:
        raise UsageError(f"seed is {number}: it must be at least 0 and below 2^63")
    return number


def _checked_device(device: str | torch.device) -> torch.device:
    """Convert a user's device to a `torch.device` that exists. Raises UsageError for a wrong name, MachineError without
    CUDA.
    """
    try:
        checked = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"device is {device!r}: it must be 'cpu', 'cuda' or 'cuda:<number>'") from error
    if checked.type not in ("cpu", "cuda"):
        raise UsageError(f"device is {str(device)!r}: it must be 'cpu', 'cuda' or 'cuda:<number>'")
    if checked.type == "cuda" and not torch.cuda.is_available():
        raise MachineError(
            f"device is {str(device)!r}, and this machine has no CUDA that torch can use: take device='cpu'"
        )
    return checked
