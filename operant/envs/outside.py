"""Outside environments (gymnasium:, ale:, envpool:, FILE.py:FUNCTION) as an `Env`: spaces, time limit, legal actions.

They are read from one instance. There are no rules to compile: operant/worlds/host_world.py steps the lanes.
`operant.host` is imported only once an outside environment is made.
"""

from __future__ import annotations

import collections
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from operant.compute import runtime, user_file
from operant.envs.base import Box, Discrete, Env, MultiDiscrete
from operant.errors import MachineError, OperantError

if TYPE_CHECKING:
    from operant.host import spaces, vectors
    from operant.host.source import Source


class Hosting(NamedTuple):
    """Settings of the worker processes that step the lanes of an outside environment."""

    processes: int = 0  # 0: step in the trainer's process
    buffers: int = 2
    timeout_s: float = 60.0
    reward_clip: float | None = None  # clip training rewards to [-reward_clip, reward_clip]
    asynchronous: bool = False  # each process has its own buffers


def _never_called(*arguments: Any) -> None:
    """Stand in for the device functions of an outside environment; never called."""


@dataclass(frozen=True)
class HostEnv(Env):
    """Declaration of an outside environment, whose lanes are stepped on the host: spaces and limits, but no rules."""

    source: Source | None = None  # set by `declare`
    observed: tuple[spaces.Field, ...] = ()  # names of the observation's parts
    pictures: bool = False  # the environment can `render`
    channels_first: bool = False  # the environment's pictures are (C, H, W); observations are (H, W, C)
    # (H, W, C) of a raw frame before grayscale, resizing and stacking; empty if raw frames are not available
    frame_shape: tuple[int, ...] = ()
    hosting: Hosting = field(default=Hosting(), compare=False)

    @property
    def draws(self) -> bool:
        """Whether this outside environment can render pictures."""
        return self.pictures


def source(kind: str, name: str, settings: Any) -> Source:
    """Make the `Source` (kind, name, preprocessing) of an outside environment from the values of `[env]`, with the
    usual defaults for Atari games. Raises OSError for a file that cannot be read.
    """
    from operant.host.source import Source, tupled

    version = hashlib.sha256(Path(name.rpartition(":")[0]).read_bytes()).hexdigest() if kind == "file" else ""
    kwargs = tuple((key, tupled(value)) for key, value in settings.params.items())
    game = kind == "ale"
    skip, stack = (number or (4 if game else 1) for number in (settings.frame_skip, settings.frame_stack))
    side, grayscale = (settings.resize or 84, False) if game else (settings.resize, settings.grayscale)
    return Source(kind, name, kwargs, version, settings.time_limit, skip, stack, grayscale, side, settings.sticky)


def hosting(settings: Any) -> Hosting:
    """Make the settings of the worker processes of an outside environment from the values of `[env]`."""
    return Hosting(
        runtime.usable_cores() if settings.threads == "auto" else settings.threads,
        settings.buffers,
        settings.timeout_s,
        settings.reward_clip,
        settings.asynchronous,
    )


@functools.cache
def declare(source: Source) -> HostEnv:
    """Declare the environment of a source, whose spaces are read from an instance that is made and reset. Raises
    OperantError if it cannot be made or is not supported, MachineError if a package is missing.
    """
    from operant.host import spaces, vectors
    from operant.host.source import SourceError

    try:
        made = vectors.vector_class(source)
        probe = _probe_lane(source) if made is None else _probe_vector(source, made(source, 1, 1))
    except SourceError as error:
        raise (MachineError if error.missing else OperantError)(str(error)) from error.__cause__
    except spaces.UnsupportedSpaceError as error:
        raise OperantError(f"{source.name}: {error}") from None
    except spaces.InvalidValueError as error:
        raise OperantError(f"{source.name}: {error}, after reset") from None
    except OperantError:
        raise
    except Exception as error:
        problem = user_file.problem(error, Path(source.name.rpartition(":")[0]))
        raise OperantError(f"{source.name}: `reset` raised {problem}") from error
    seen, action, mask, limit, metadata, channels_first, frame_shape = probe
    kwargs = dict(source.kwargs)
    return HostEnv(
        Params=_params_class(kwargs),
        fields=0,
        observation=Box(seen.size, seen.low, seen.high, seen.dtype, seen.shape, seen.categories),
        action=_action_space(action.sizes, action.low, action.high, action.multi),
        time_limit=source.time_limit or limit,
        reset=_never_called,
        step=_never_called,
        observe=_never_called,
        legal=_never_called if mask is not None else None,
        pixels=seen.shape[0] if seen.shape else 0,
        step_s=_step_s(metadata, source.frame_skip),
        gymnasium=source.name if source.kind == "gymnasium" else None,
        name=source.name.rpartition("/")[2] if source.kind == "file" else f"{source.kind}:{source.name}",
        source=source,
        observed=seen.fields,
        pictures="rgb_array" in (metadata.get("render_modes") or ()),
        channels_first=channels_first,
        frame_shape=frame_shape,
    )


class _Probe(NamedTuple):
    """Properties of an outside environment read from an instance: spaces, legal actions, time limit and metadata."""

    seen: spaces.Observation
    action: spaces.Action
    mask: Any  # legal actions, None if the environment does not report them
    limit: int | None
    metadata: Mapping[str, Any]
    channels_first: bool = False
    frame_shape: tuple[int, ...] = ()


def _probe_lane(source: Source) -> _Probe:
    """Make a single environment of a source, reset it and read its properties."""
    from operant.host.source import Lane

    lane = Lane(source)
    try:
        mask = lane.reset(0, np.zeros(lane.view.size, lane.view.dtype))
    finally:
        lane.close()
    metadata = getattr(lane.env, "metadata", None) or {}
    limit = getattr(getattr(lane.env, "spec", None), "max_episode_steps", None)
    return _Probe(lane.view.declared(), lane.action, mask, limit, metadata, frame_shape=lane.view.frame_shape)


def _probe_vector(source: Source, vector: vectors.Vector) -> _Probe:
    """Reset a vectorised environment of a source with one lane and read its properties."""
    from operant.host import spaces, vectors

    seen, action = vectors.view_of(source, vector).declared(), spaces.action(vector.single_action_space)
    value, info = vector.reset(np.zeros(1, np.int64))
    masks = info.get(spaces.MASK) if isinstance(info, dict) else None
    mask = spaces.mask_of({} if masks is None else {spaces.MASK: masks[0]}, spaces.select(value, 0), action.sizes)
    shown = {"render_modes": ["rgb_array"]} if seen.shape else {}  # the observation itself is the picture
    return _Probe(seen, action, mask, None, shown, vectors.channels_first(vector.single_observation_space))


def _params_class(kwargs: Mapping[str, Any]) -> type:
    """Make a class `Params` whose fields, with defaults, are the keyword arguments `kwargs` of an outside
    environment.
    """
    return collections.namedtuple("Params", list(kwargs), defaults=list(kwargs.values()))


def _action_space(
    sizes: tuple[int, ...], low: tuple[float, ...], high: tuple[float, ...], multi: bool
) -> Discrete | MultiDiscrete | Box:
    """Make the action space from the sizes of discrete choices, or if there are none from the bounds of a Box. `multi`
    gives a MultiDiscrete even for one choice.
    """
    if not sizes:
        return Box(len(low), low, high)
    return MultiDiscrete(sizes) if multi else Discrete(sizes[0])


def _step_s(metadata: Mapping[str, Any], skip: int) -> float | None:
    """Seconds of a step of `skip` frames, by the frame rate "render_fps" in an environment's metadata; None if
    unknown.
    """
    rate = metadata.get("render_fps")
    return skip / float(rate) if isinstance(rate, int | float) and rate > 0 else None
