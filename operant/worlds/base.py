"""World protocol: N lanes of one environment as acting and learning see them."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from operant.compute import rng
from operant.envs import Box, Env

EPISODES, LENGTH, RETURN, TALLIES = range(4)  # rows of `World.episode_sums`, followed by the environment's tallies


class Slot(NamedTuple):
    """Buffers of one step of N lanes (parallel copies of an environment), or of T steps: the actions and their outcome,
    that is observations, rewards, ends of episodes and legal actions.
    """

    action: Any  # (A, N) int32 or float32; a Box action is clipped to its bounds in place
    observation: Any  # (O, N), observation after the step (after the reset if the episode ended)
    # (O, N), true final observation, written only in truncated lanes (with every_final: in all ended lanes). None for
    # pictures without truncation.
    final_observation: Any
    reward: Any  # (N) float32
    terminated: Any  # (N) uint8
    truncated: Any  # (N) uint8
    # (H, N) uint8, 1 for each legal action at `observation`; None if the environment defines none
    legal: Any


def make_slot(env: Env, lanes: int, device: torch.device, steps: int | None, window: int, *, finals: bool) -> Slot:
    """Allocate a `Slot`, the tensors of actions, observations, rewards and ends: for one step of `lanes` lanes, or for
    `steps` = T steps with a leading T (observations and legal actions T + 1). Final observations have a leading T /
    `window`, rounded up; they are None without `finals`.
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
    """Slice step t (`step`) out of a rollout's slot: observation and legal actions at t + 1, final observation at t //
    `window`, the rest at t. For t = -1 (a reset) observation and legal actions of step 0.
    """
    indices = {"observation": step + 1, "legal": step + 1, "final_observation": max(step, 0) // window}
    return Slot(
        *(None if buffer is None else buffer[indices.get(name, step)] for name, buffer in slot._asdict().items())
    )


class World(Protocol):
    """N lanes (parallel copies of one environment) stepped together. The world owns resets, time limits, episode sums
    and random numbers; its clock, one tick per step of all lanes, is private.
    """

    @property
    def spec(self) -> Env:
        """Declaration of the environment whose lanes this world steps."""

    @property
    def count(self) -> int:
        """Number of lanes (parallel copies of the environment), N."""

    @property
    def device(self) -> torch.device:
        """Device of the tensors in slots (buffers of a step)."""

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph may capture `step`."""

    @property
    def can_truncate(self) -> bool:
        """Whether a time limit can end an episode of this environment."""

    @property
    def truncation_gap(self) -> int:
        """Least number of steps between two truncations of a lane."""

    @property
    def resumes(self) -> bool:
        """Whether `state` contains the lanes' full state. If not, a resumed run resets every lane."""

    @property
    def seconds(self) -> dict[str, float]:
        """Host time spent so far in the parts of a step, in seconds by name, such as "environment" and "copy"; empty if
        a graph contains the step.
        """

    @property
    def final_window(self) -> int:
        """Number of steps of a rollout that share one final observation per lane."""

    def slot(self, steps: int | None = None) -> Slot:
        """Allocate the buffers of one step, or, if `steps` is T, of a rollout: each with a leading T, observations and
        legal actions with T + 1.
        """

    def bind(self, slot: Slot, step: int | None = None) -> Slot:
        """Convert a slot (buffers of steps) to the form that `reset` and `step` take. With `step` = t it is one step of
        a rollout's slot (t = -1 for `reset`), without it a slot of one step.
        """

    def reset(self, slot: Slot) -> None:
        """Reset every lane and write the first observations to `slot`, which `bind` has converted. Counts as one tick
        of the world's clock.
        """

    def step(self, slot: Slot, offset: int = 0) -> None:
        """Step every lane: read the actions in `slot`, which `bind` has converted, and write observations, rewards and
        ends to it. `offset` is the number of steps since the last `advance`, which moves the world's clock.
        """

    def advance(self, steps: int) -> None:
        """Advance the world's clock by the number of steps taken since the last call."""

    def seek(self, tick: int) -> None:
        """Set the world's clock, which keys the random numbers, to `tick`. The same actions from the same state then
        give the same steps.
        """

    def noise(self, out: torch.Tensor, purpose: int = rng.ACTION, hold: int = 1) -> None:
        """Fill `out` (T, U, N) with uniform numbers in [0, 1) for each lane and each of the next T steps, keyed by
        (seed, lane, tick, purpose). A lane's numbers stay the same for `hold` steps.
        """

    def episode_sums(self, slot: Slot) -> torch.Tensor:
        """Sums over the episodes that ended in the steps of `slot`, (3 + K) float64: number, length and return, then K
        tallies (the environment's own statistics). The slot must hold all steps since the last call.
        """

    @property
    def running_tallies(self) -> torch.Tensor:
        """Tallies (an environment's own episode statistics) of each lane's current episode, (K, N)."""

    @property
    def ended_tallies(self) -> torch.Tensor | None:
        """Tallies (an environment's own episode statistics) summed over the episodes that ended since the last
        `episode_sums`, per lane (K, N); None if the environment has none.
        """

    def restored(self) -> None:
        """Apply new values of the tensors that `state` returned. Called after each restore from a checkpoint."""

    def state(self) -> dict[str, torch.Tensor]:
        """Tensors of the world, by name, that a resumed run needs to continue bit for bit."""
