"""The World protocol: N lanes of one environment, wherever they run, as acting and learning see them. Knows no world in
particular, no policy, no algorithm.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from operant.compute import rng
from operant.envs import Box, Env

EPISODES, LENGTH, RETURN, TALLIES = range(4)  # rows of `World.episode_sums`; an environment's own tallies follow


class Slot(NamedTuple):
    """Where one step's action is read and its outcome written."""

    action: Any  # (A, N) int32 or float32; a Box action is clipped to its bounds in place
    observation: Any  # (O, N), of the state after the step (and after the reset where the episode ended)
    # (O, N), written only in lanes that were truncated (or ended at all, where a world is asked for that): what an
    # observer would have seen. None where that is a picture and nothing is ever truncated.
    final_observation: Any
    reward: Any  # (N) float32
    terminated: Any  # (N) uint8
    truncated: Any  # (N) uint8
    # (H, N) uint8, 1 for each action that may be taken at `observation`; None where the environment judges none
    legal: Any


def make_slot(env: Env, lanes: int, device: torch.device, steps: int | None, window: int, *, finals: bool) -> Slot:
    """The buffers of `World.slot`. Final observations have a leading T / `window`, rounded up; none unless there are
    `finals`.
    """
    N = lanes
    T = () if steps is None else (steps,)
    after = () if steps is None else (steps + 1,)
    actions = torch.float32 if isinstance(env.action, Box) else torch.int32

    def zeros(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    def seen(*lead: int) -> torch.Tensor:
        O, kind = env.observation.size, getattr(torch, env.observation.dtype)
        return zeros((*lead, N, O), kind).transpose(-1, -2) if env.pixels else zeros((*lead, O, N), kind)

    return Slot(
        action=zeros((*T, env.action_size, N), actions),
        observation=seen(*after),
        final_observation=seen(*(-(-length // window) for length in T)) if finals else None,
        reward=zeros((*T, N)),
        terminated=zeros((*T, N), torch.uint8),
        truncated=zeros((*T, N), torch.uint8),
        legal=zeros((*after, env.mask_size, N), torch.uint8) if env.mask_size else None,
    )


def step_slot(slot: Slot, step: int, window: int) -> Slot:
    """The slot of step t of a rollout, whose observation and legal actions are those of t + 1; of step -1, which a
    reset writes, those of step 0.
    """
    places = {"observation": step + 1, "legal": step + 1, "final_observation": max(step, 0) // window}
    return Slot(
        *(None if buffer is None else buffer[places.get(name, step)] for name, buffer in slot._asdict().items())
    )


class World(Protocol):
    """N lanes that are stepped together. Resets, time limits, episode sums and random numbers are the world's: its
    clock, a tick a step, is private to it.
    """

    @property
    def spec(self) -> Env:
        """The environment."""

    @property
    def count(self) -> int:
        """N."""

    @property
    def device(self) -> torch.device:
        """Where the buffers of its slots lie."""

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph may hold `step`."""

    @property
    def can_truncate(self) -> bool:
        """Whether a time limit can end an episode."""

    @property
    def truncation_gap(self) -> int:
        """So many steps at least lie between two truncations of a lane."""

    @property
    def resumes(self) -> bool:
        """Whether `state` holds all of its lanes: a resumed run begins them anew otherwise."""

    @property
    def seconds(self) -> dict[str, float]:
        """Of the host's time, what its parts took until now, such as "environment" and "copy"; empty where a graph
        holds a step.
        """

    @property
    def final_window(self) -> int:
        """Steps of a rollout that share one final observation a lane."""

    def slot(self, steps: int | None = None) -> Slot:
        """Fresh buffers for one step, or for a rollout: each with a leading T, observations and legal actions T + 1."""

    def bind(self, slot: Slot, step: int | None = None) -> Slot:
        """A slot as `reset` and `step` want it: of one step, or step t of a rollout; step -1 of a rollout is what
        `reset` wants.
        """

    def reset(self, slot: Slot) -> None:
        """Begin every lane anew and write the first observations to a bound slot. Counts as one tick."""

    def step(self, slot: Slot, offset: int = 0) -> None:
        """One step of every lane, at tick + offset, from and to a bound slot. The caller moves the clock: see
        `advance`.
        """

    def advance(self, steps: int) -> None:
        """Move the clock on, once for as many steps as were taken with offsets 0 ... steps - 1."""

    def seek(self, tick: int) -> None:
        """Set the clock: from there on the same actions give the same steps."""

    def noise(self, out: torch.Tensor, purpose: int = rng.ACTION) -> None:
        """Fill `out` (T, U, N) with uniform numbers in [0, 1) for each lane and each of the next T steps: those of
        (seed, lane, tick, purpose).
        """

    def episode_sums(self, slot: Slot) -> torch.Tensor:
        """Sums over the episodes that ended in the steps of an unbound slot, which are all steps since the last call:
        (3 + K) float64.
        """

    @property
    def running_tallies(self) -> torch.Tensor:
        """(K, N), the environment's own sums over each lane's episode under way."""

    @property
    def ended_tallies(self) -> torch.Tensor | None:
        """(K, N), the same over each lane's episodes that ended since `episode_sums`; None where the environment has
        none.
        """

    def restored(self) -> None:
        """Take in what was written into the tensors of `state`; called after each time."""

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that a resumed run needs to go on as if nothing had happened, by name."""
