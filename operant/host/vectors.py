"""Lanes of vectorised environments: EnvPool's, and a user's gymnasium.vector.VectorEnv.

All are brought to one reset convention: a step returns the first observation of the next episode and the last of the
old one, and no step only resets. A VectorEnv in mode SAME_STEP does so itself; one in mode DISABLED is given a
`reset_mask`. EnvPool begins the next episode in the step after the last one, so the ended lanes are stepped once more:
with `episodic_life` the game then continues with the next life, where `reset` would begin another game.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from operant.host import spaces
from operant.host.image import resized
from operant.host.lanes import Blocks, LaneError, LaneGroup
from operant.host.source import Source, SourceError, View, maker_of, missing

_OWN_KEYS = ("frame_skip", "frame_stack", "grayscale", "resize", "sticky")


class Step(NamedTuple):
    """Result of a step of n lanes; `final` holds the last observations of ended episodes."""

    observation: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final: Any
    info: Any


class Vector:
    """Base class of vectorised environments: n lanes (copies) of a source's environment, reset and stepped together by
    up to `threads` threads.
    """

    single_observation_space: Any
    single_action_space: Any

    def __init__(self, source: Source, count: int, threads: int) -> None:
        self.source, self.count, self.threads = source, count, threads

    def reset(self, seeds: np.ndarray) -> tuple[Any, Any]:
        """Reset all n lanes, with one seed each (n). Returns a batch of observations and an info."""
        raise NotImplementedError

    def step(self, actions: np.ndarray) -> Step:
        """Step all lanes with their actions (n, ...). Where an episode ended, the observation returned is the first of
        the next one.
        """
        raise NotImplementedError


class UserVector(Vector):
    """Vectorised environment of a user: a `gymnasium.vector.VectorEnv` with autoreset mode SAME_STEP or DISABLED.
    Raises SourceError for any other mode.
    """

    def __init__(self, source: Source, count: int, threads: int) -> None:
        super().__init__(source, count, threads)
        self.env = self._make_env()
        self.single_observation_space, self.single_action_space = (
            self.env.single_observation_space,
            self.env.single_action_space,
        )
        mode = str(getattr((getattr(self.env, "metadata", None) or {}).get("autoreset_mode"), "name", ""))
        if mode not in ("SAME_STEP", "DISABLED"):
            raise SourceError(
                f"{source.name}: its autoreset mode is {mode or 'unknown'}: make it with AutoresetMode.SAME_STEP, or "
                "DISABLED"
            )
        self._masked_reset = mode == "DISABLED"

    def _make_env(self) -> Any:
        """Make the user's `gymnasium.vector.VectorEnv` by calling the FUNCTION of FILE.py:FUNCTION with `num_envs` and
        the keyword arguments. Raises SourceError for settings that it cannot apply, or if its `num_envs` differs.
        """
        _reject_keys(self.source, (*_OWN_KEYS, "time_limit"), "a vector environment does that itself")
        env = maker_of(self.source)(num_envs=self.count, **dict(self.source.kwargs))
        if getattr(env, "num_envs", None) != self.count:
            raise SourceError(
                f"{self.source.name}(num_envs={self.count}) should return a VectorEnv with that num_envs "
                f"(got {getattr(env, 'num_envs', 'none')})"
            )
        return env

    def reset(self, seeds: np.ndarray) -> tuple[Any, Any]:
        """Reset all n lanes of the user's environment, with one seed each (n). Returns a batch of observations and an
        info.
        """
        return self.env.reset(seed=[int(seed) for seed in seeds])

    def step(self, actions: np.ndarray) -> Step:
        """Step all lanes with their actions (n, ...); in mode DISABLED a second call resets those whose episode
        ended.
        """
        observation, reward, terminated, truncated, info = self.env.step(actions)
        ended = terminated | truncated
        final = info.get("final_obs", observation) if isinstance(info, dict) else observation
        if self._masked_reset and ended.any():
            final = spaces.copy_batch(observation)
            observation, first_info = self.env.reset(options={"reset_mask": ended})
            info = _with_masks(info, first_info, np.flatnonzero(ended))
        return Step(observation, reward, terminated, truncated, final, info)


class EnvPoolVector(Vector):
    """Vectorised environment of EnvPool: n lanes of one game or task. Raises SourceError without the package, or for
    settings that EnvPool applies itself.
    """

    def __init__(self, source: Source, count: int, threads: int) -> None:
        super().__init__(source, count, threads)
        try:
            import envpool
        except ImportError:
            raise missing("envpool", source.name, "EnvPool") from None
        _reject_keys(source, _OWN_KEYS, "EnvPool does that itself, by env.params (such as env.params.stack_num)")
        self._limit = {} if source.time_limit is None else {"max_episode_steps": source.time_limit}
        self._envpool = envpool
        self.env = self._make_pool(0)
        self.single_observation_space, self.single_action_space = self.env.observation_space, self.env.action_space

    def _make_pool(self, seed: int) -> Any:
        """Make EnvPool's environment of all lanes with one seed."""
        settings = {
            "num_envs": self.count,
            "seed": seed,
            "num_threads": min(self.threads, self.count),
            **self._limit,
            **dict(self.source.kwargs),
        }
        return self._envpool.make_gymnasium(self.source.name, **settings)

    def reset(self, seeds: np.ndarray) -> tuple[Any, Any]:
        """Reset all lanes by making the pool again, because it has a single seed: the first of `seeds`. Returns
        observations and info.
        """
        self.env = self._make_pool(int(seeds[0]))
        return self.env.reset()

    def step(self, actions: np.ndarray) -> Step:
        """Step all lanes with their actions (n, ...), and those whose episode ended once more, which begins their next
        episode.
        """
        observation, reward, terminated, truncated, info = self.env.step(actions)
        ended = np.flatnonzero(terminated | truncated)
        final = observation
        if len(ended):  # EnvPool ignores these actions and begins the next episode, or continues with the next life
            observation = spaces.copy_batch(final)
            first, *_, first_info = self.env.step(actions[ended], ended.astype(np.int32))
            spaces.replace_rows(observation, first_info["env_id"], first)
            info = _with_masks(info, first_info, first_info["env_id"])
        return Step(observation, reward, terminated, truncated, final, info)


def _with_masks(info: Any, first_info: Any, lanes: np.ndarray) -> Any:
    """Copy `info` with the legal actions of some `lanes` replaced by those in `first_info`, whose rows are either all
    lanes or these only. Returns `info` itself if one of the two has no legal actions.
    """
    if not all(isinstance(one, dict) and spaces.MASK in one for one in (info, first_info)):
        return info
    masks, rows = spaces.copy_batch(info[spaces.MASK]), first_info[spaces.MASK]
    spaces.replace_rows(masks, lanes, rows if len(rows) == len(lanes) else rows[lanes])
    return {**info, spaces.MASK: masks}


def _reject_keys(source: Source, keys: Sequence[str], reason: str) -> None:
    """Check that the settings `keys` of a source have their default values. Raises SourceError with the `reason` why
    they cannot be set.
    """
    for key in keys:
        if getattr(source, key) != Source._field_defaults[key]:
            raise SourceError(f"env.{key} is {getattr(source, key)!r}: {reason}")


def vector_class(source: Source) -> type[Vector] | None:
    """Choose the class of a source's vectorised environment; None if the source makes single environments. Raises
    SourceError.
    """
    if source.kind == "envpool":
        return EnvPoolVector
    if source.kind == "file" and "num_envs" in inspect.signature(maker_of(source)).parameters:
        return UserVector
    return None


class VectorGroup(LaneGroup):
    """Lanes of a source in one process, with one vectorised environment per buffer (group of lanes). Has the interface
    of LaneGroup.
    """

    def __init__(
        self, source: Source, blocks: Blocks, buffers: Sequence[Sequence[int]], *, draws: bool, threads: int = 1
    ) -> None:
        super().__init__(source, blocks, buffers, draws=draws)
        self._threads, self._age = threads, np.zeros(blocks.shape.lanes, np.int64)
        self._vectors: list[Vector | None] = []
        self.calls = {name: self._with_lane_errors(name, call) for name, call in self.calls.items()}

    def _with_lane_errors(self, name: str, call: Callable[[int], None]) -> Callable[[int], None]:
        """Wrap the call `name` of a buffer (group of lanes) so that its lanes are marked busy and any error becomes a
        LaneError.
        """

        def guarded(buffer: int) -> None:
            lanes = self._buffers[buffer]
            try:
                if lanes or name == "make":
                    self._blocks.busy[lanes] = 1
                    call(buffer)
                    self._blocks.busy[lanes] = 0
            except LaneError:
                raise
            except Exception as error:
                lane_range = f"{lanes[0]} to {lanes[-1]}" if lanes else "-"
                raise LaneError(
                    lane_range, name, self._blocks.action[lanes].tolist() if name == "step" else None, error
                ) from error

        return guarded

    def make(self, buffer: int) -> None:
        """Make the vectorised environments of all buffers (groups of lanes). `buffer` is ignored."""
        vector_type = vector_class(self._source)
        assert vector_type is not None
        self._vectors = [
            vector_type(self._source, len(lanes), self._threads) if lanes else None for lanes in self._buffers
        ]
        first = next(vector for vector in self._vectors if vector is not None)
        self._view, self._action = view_of(self._source, first), spaces.action(first.single_action_space)
        # Fast path for one Box and one Discrete: all rows are one copy (pictures unchanged).
        self._kind, space = first.single_action_space.dtype, first.single_observation_space
        self._channels_first, self._shape = channels_first(space), tuple(space.shape or ())
        self._read_bytes = spaces.whole_numbers(spaces.Part("observation", (), space)) if self._channels_first else None
        self._plain = self._channels_first or (type(space).__name__ == "Box" and str(space.dtype) != "uint8")
        self._start = (
            int(first.single_action_space.start) if type(first.single_action_space).__name__ == "Discrete" else None
        )

    def reset(self, buffer: int) -> None:
        """Reset the vectorised environment of a buffer (group of lanes) with the seeds in the shared arrays, and write
        observations and legal actions there.
        """
        vector, lanes = self._vectors[buffer], self._buffers[buffer]
        assert vector is not None
        value, info = vector.reset(self._blocks.seed[lanes])
        self._age[lanes] = 0
        self._write(lanes, value, info)

    def step(self, buffer: int) -> None:
        """Step the vectorised environment of a buffer (group of lanes) with the actions in the shared arrays; ended
        episodes are followed by the next.
        """
        vector, lanes, blocks = self._vectors[buffer], self._buffers[buffer], self._blocks
        assert vector is not None
        if self._start is not None:
            actions = (blocks.action[lanes, 0] + self._start).astype(self._kind)
        else:
            actions = np.asarray([self._action.read(blocks.action[lane]) for lane in lanes], self._kind)
        done = vector.step(actions)
        blocks.reward[lanes], blocks.terminated[lanes], blocks.truncated[lanes] = (
            done.reward,
            done.terminated,
            done.truncated,
        )
        self._age[lanes[0] : lanes[-1] + 1] += 1
        for k in np.flatnonzero(done.terminated | done.truncated).tolist():
            try:
                self._write_observation(spaces.select(done.final, k), blocks.final_observation[lanes[k]])
            except spaces.InvalidValueError as error:
                raise self._invalid_value(lanes[k], error) from error
            self._age[lanes[k]] = 0
        self._write(lanes, done.observation, done.info)

    def _write(self, lanes: Sequence[int], value: Any, info: Any) -> None:
        """Write observations and legal actions of lanes to the shared arrays, from a batch of observations (`value`)
        and its info.
        """
        rows = self._blocks.observation
        whole = self._plain and self._write_all(lanes, np.asarray(value), rows)
        if whole and not self._blocks.shape.mask:
            return
        masks, lane = info.get(spaces.MASK) if isinstance(info, dict) else None, lanes[0]
        try:
            for k, lane in enumerate(lanes):
                observation = spaces.select(value, k)
                if not whole:
                    self._write_observation(observation, rows[lane])
                mask = {} if masks is None else {spaces.MASK: masks[k]}
                self._write_mask(lane, spaces.mask_of(mask, observation, self._action.sizes), self._action.sizes)
        except spaces.InvalidValueError as error:
            raise self._invalid_value(lane, error) from error

    def _write_all(self, lanes: Sequence[int], values: np.ndarray, rows: np.ndarray) -> bool:
        """Write a batch of observations to the lanes' rows in one copy. Returns False if the values must be checked one
        by one.
        """
        try:
            spaces.check_shape(values, (len(lanes), *self._shape), "observation")
        except spaces.InvalidValueError as error:
            raise self._invalid_value(lanes[0], error, f"{lanes[0]} to {lanes[-1]}") from error
        if self._channels_first and values.dtype != np.uint8:
            return False
        rows[lanes[0] : lanes[-1] + 1] = values.reshape(len(lanes), -1)
        return True

    def _write_observation(self, value: Any, row: np.ndarray) -> None:
        """Write one observation to a row. Raises InvalidValueError."""
        if not self._plain:
            self._view.frame(value, row)
            return
        values = np.asarray(value)
        spaces.check_shape(values, self._shape, "observation")
        checked = self._read_bytes is not None and values.dtype != np.uint8
        row[:] = self._read_bytes(values) if checked and self._read_bytes is not None else values.reshape(-1)

    def _invalid_value(self, lane: int, error: spaces.InvalidValueError, name: str = "") -> LaneError:
        """Make the LaneError for an invalid value of a lane. `name` names several lanes instead, such as "0 to 7"."""
        step, action = int(self._age[lane]), self._blocks.action[lane].tolist()
        return LaneError(name or lane, "step" if step else "reset", action, error, step)

    def draw(self, buffer: int) -> None:
        """Write the newest observed frame of every lane of a buffer (group of lanes) to the shared arrays, as a square
        picture of the requested side.
        """
        blocks, side = self._blocks, int(self._blocks.side[0])
        for lane in self._buffers[buffer]:
            height, width, channels = self._view.shape
            row = blocks.observation[lane]
            newest = (
                row.reshape(channels, height, width)[-1]
                if self._channels_first
                else row.reshape(self._view.shape)[..., -1]
            )
            frame = newest[..., None].repeat(3, axis=-1)
            blocks.picture[lane].reshape(-1)[: side * side * 3] = resized(frame, side, side).reshape(-1)


def channels_first(space: Any) -> bool:
    """Whether the lanes' observation rows keep the layout (C, H, W) of the environment, which the reader of the rows
    transposes.
    """
    return spaces.is_picture(space) and spaces.channels_first(space.shape)


def view_of(source: Source, vector: Vector) -> View:
    """Make the converter of a vectorised environment's observations to rows. It does no preprocessing: the environment
    does its own.
    """
    return View(source._replace(frame_stack=1, grayscale=False, resize=None), vector.single_observation_space)
