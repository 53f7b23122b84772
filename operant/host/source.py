"""Sources of outside environments and their preprocessing: `Source`, and one lane of it, `Lane`.

    gymnasium:ID          an environment registered with Gymnasium, `gymnasium.make(ID)`
    ale:NAME              an Atari game: see operant/host/atari.py
    envpool:ID            a batch of lanes: see operant/host/vectors.py
    FILE.py:FUNCTION      a user's function (or class) that returns a gymnasium.Env, or with `num_envs` a VectorEnv

Preprocessing in order: action repeat (`sticky`, `frame_skip`), grayscale and resize, frame stack.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import inspect
import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from operant.compute import user_file
from operant.host import spaces
from operant.host.atari import Game
from operant.host.image import grayscale, resized
from operant.host.names import install_command

log = logging.getLogger("operant")


class SourceError(Exception):
    """Error for an outside environment that cannot be made or is not supported; the message is a sentence. `missing`
    marks a package that is not installed.
    """

    def __init__(self, sentence: str, *, missing: bool = False) -> None:
        super().__init__(sentence)
        self.missing = missing


class Source(NamedTuple):
    """Specification of an outside environment: kind, name, arguments and preprocessing. A worker process needs nothing
    else to make it.
    """

    kind: str  # "gymnasium", "ale", "envpool" or "file"
    name: str  # an id, or FILE.py:FUNCTION
    kwargs: tuple[tuple[str, Any], ...] = ()  # keyword arguments of the constructor
    version: str = ""  # hash of a user's file
    time_limit: int | None = None  # None: the environment's own
    frame_skip: int = 1
    frame_stack: int = 1
    grayscale: bool = False
    resize: int | None = None  # side in pixels
    sticky: float = 0.0  # probability of repeating the previous action

    def to_json(self) -> str:
        """Serialise this environment's specification as JSON text, for a worker process."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> Source:
        """Parse an environment's specification from the text that `to_json` returned."""
        fields = json.loads(text)
        return cls(**{**fields, "kwargs": tuple((key, tupled(value)) for key, value in fields["kwargs"])})


def tupled(value: Any) -> Any:
    """Convert lists to tuples, at every depth, so that the value is hashable."""
    return tuple(map(tupled, value)) if isinstance(value, list) else value


def make(source: Source, *, draws: bool = False) -> Any:
    """Make the gymnasium.Env of a source (an environment's specification); with `draws` one whose `render` returns a
    picture. Raises SourceError, marked as `missing` if a package is not installed.
    """
    try:
        import gymnasium
    except ImportError:
        raise missing(source.kind if source.kind != "file" else "", source.name, "Gymnasium 1.2 or later") from None
    for variable, value in _without_screen().items():
        os.environ.setdefault(variable, value)
    kwargs = dict(source.kwargs)
    if source.kind == "ale":
        return _make_game(source, kwargs)
    if source.kind == "file":
        return _make_from_file(source, kwargs, draws)
    name = source.name
    if draws:
        kwargs["render_mode"] = "rgb_array"
    try:
        return gymnasium.make(
            name, max_episode_steps=-1 if source.time_limit else None, disable_env_checker=True, **kwargs
        )
    except gymnasium.error.DependencyNotInstalled as error:
        raise SourceError(
            f"{source.kind}:{name} needs a package that is not installed: {_first_line(error)}", missing=True
        ) from None
    except gymnasium.error.UnregisteredEnv as error:
        raise SourceError(f"Gymnasium has no environment {name!r}: {_first_line(error)}") from None
    except Exception as error:
        if (reason := _missing_module(source)) is not None:
            raise SourceError(reason) from error
        raise SourceError(
            f"{source.kind}:{name} could not be made: {type(error).__name__}: {_first_line(error)}"
        ) from error


def _missing_module(source: Source) -> str | None:
    """Explain that an id such as gymnasium:MODULE:ID names a module that Python does not find; None if the module
    exists or the id names none.
    """
    module = source.name.rpartition(":")[0]
    package = module.partition(".")[0]
    if not package.isidentifier() or importlib.util.find_spec(package) is not None:
        return None
    file = f"{module.replace('.', '/')}.py"
    here = (
        f". {file} lies in this folder, from which nothing is imported: set PYTHONPATH=$PWD, or name a function of it "
        f"that makes the environment, {file}:FUNCTION"
        if os.path.isfile(file)
        else ""
    )
    return f"{source.kind}:{source.name} imports the module {module!r}, which is not installed{here}"


def _make_game(source: Source, kwargs: dict[str, Any]) -> Game:
    """Make the Atari game of a source. Raises SourceError for an unknown argument, a missing package or an unknown
    game.
    """
    allowed = [
        name
        for name in inspect.signature(Game).parameters
        if name not in ("name", "frame_skip", "repeat_action_probability")
    ]
    for name in kwargs:
        if name not in allowed:
            raise SourceError(
                f"ale:{source.name} takes no env.params.{name}: env.frame_skip, env.frame_stack, env.resize, "
                "env.sticky and env.time_limit are for every "
                f"outside environment, and env.params takes {', '.join(allowed)}"
            )
    try:
        return Game(source.name, frame_skip=source.frame_skip, repeat_action_probability=source.sticky, **kwargs)
    except ImportError:
        raise missing("ale", source.name, "ale-py 0.11 or later") from None
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise SourceError(f"ale:{source.name} could not be made: {kind}{error}") from error


def _without_screen() -> dict[str, str]:
    """Environment variables for headless rendering and quiet imports, by name."""
    variables = {
        "PYGAME_HIDE_SUPPORT_PROMPT": "1",
        "SDL_VIDEODRIVER": "dummy",
        "XDG_RUNTIME_DIR": tempfile.gettempdir(),
    }
    return variables if "DISPLAY" in os.environ else {**variables, "MUJOCO_GL": _drawing_library()}


@functools.cache
def _drawing_library() -> str:
    """Choose MuJoCo's rendering backend on a machine without a display: "egl", "osmesa" or, if neither library exists,
    "disabled".
    """
    for name, file in (("egl", "libEGL.so.1"), ("osmesa", "libOSMesa.so.8")):
        with contextlib.suppress(OSError):
            ctypes.CDLL(file)
            return name
    return "disabled"


def _first_line(error: Exception) -> str:
    """First line of an error's message, or the name of its class if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def missing(kind: str, name: str, package: str) -> SourceError:
    """Make the SourceError for an environment whose `package` is not installed, with the command that installs it."""
    what = f"{kind}:{name}" if kind else name
    return SourceError(f"{what} needs {package}, which is not installed: {install_command(kind)}", missing=True)


def maker_of(source: Source) -> Callable[..., Any]:
    """Import a user's file and return its function that makes the environment. Raises SourceError."""
    path, _, function = source.name.rpartition(":")
    file = Path(path)
    try:
        module = _import_once(file, source.version)
    except (Exception, SystemExit) as error:
        raise SourceError(f"{file} could not be imported: {user_file.problem(error, file)}") from error
    if not callable(maker := getattr(module, function, None)):
        raise SourceError(
            f"{file.name} has no {function!r}: it should be a function or class that returns a gymnasium.Env"
        )
    return maker


def _make_from_file(source: Source, kwargs: dict[str, Any], draws: bool) -> Any:
    """Make a user's environment by calling the function of the file with `kwargs`, and with `render_mode` if `draws`
    and the function takes it. Raises SourceError.
    """
    path, _, function = source.name.rpartition(":")
    file, maker = Path(path), maker_of(source)
    takes = inspect.signature(maker).parameters
    if draws and (
        "render_mode" in takes or any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in takes.values())
    ):
        kwargs["render_mode"] = "rgb_array"
    try:
        env = maker(**kwargs)
    except Exception as error:
        raise SourceError(
            f"{file.name}:{function}({', '.join(kwargs)}) failed: {user_file.problem(error, file)}"
        ) from error
    if not all(hasattr(env, name) for name in ("reset", "step")):
        raise SourceError(f"{file.name}:{function} returned {type(env).__name__}: it should be a gymnasium.Env")
    return env


_MODULES: dict[tuple[str, str], Any] = {}


def _import_once(file: Path, version: str) -> Any:
    """Import a user's file and return the module; it is imported once per `version` (hash of its text)."""
    key = (str(file), version)
    if key not in _MODULES:
        _MODULES[key] = user_file.load(file, f"operant_user_source_{file.stem}")
    return _MODULES[key]


# ONE LANE


class View:
    """Converter of an environment's observations to rows of numbers: grayscale, resize and frame stack."""

    def __init__(self, source: Source, space: Any) -> None:
        """Prepare the conversion of observations of `space`. Raises SourceError for a space that is not supported, or
        keys that do not apply to it.
        """
        try:
            self._plain = spaces.observation(space)
        except spaces.UnsupportedSpaceError as error:
            raise SourceError(f"its observation cannot be read: {error}") from None
        self._grey, self._side, self._stack = source.grayscale, source.resize, source.frame_stack
        shape, size = self._plain.shape, self._plain.size
        self.frame_shape = shape  # of a raw picture
        if (self._grey or self._side) and not shape:
            key = "env.grayscale" if self._grey else "env.resize"
            raise SourceError(f"{key} needs picture observations (got {size} values of {self._plain.dtype})")
        if self._grey and shape[2] < 3:
            raise SourceError(f"env.grayscale needs pictures with three channels (got {shape[2]})")
        if shape:
            shape = (self._side or shape[0], self._side or shape[1], (1 if self._grey else shape[2]) * self._stack)
        self.shape, self.size = shape, math.prod(shape) if shape else size * self._stack
        self.one, self.dtype = self.size // self._stack, self._plain.dtype  # width of a frame
        self._row = np.zeros(size, self._plain.dtype)

    def declared(self) -> spaces.Observation:
        """Describe the rows to which observations are converted, frame stack included."""
        plain, k = self._plain, self._stack
        if self.shape:
            return spaces.Observation(
                self.size, "uint8", 0.0, 255.0, self.shape, 0, (spaces.Field("observation", 0, self.size),), self.frame
            )
        low, high = (bound * k if isinstance(bound, tuple) else bound for bound in (plain.low, plain.high))
        categories = plain.categories * k if isinstance(plain.categories, tuple) else plain.categories
        fields = [
            spaces.Field(
                f"{name} ({k - 1 - age} steps before)" if k - 1 - age else name,
                start + age * plain.size,
                stop + age * plain.size,
            )
            for age in range(k)
            for name, start, stop in plain.fields
        ]
        return spaces.Observation(self.size, plain.dtype, low, high, (), categories, tuple(fields), self.frame)

    def frame(self, value: Any, row: np.ndarray) -> None:
        """Write one observation to a row (without frame stack), as grayscale and resized if configured."""
        if not (self._grey or self._side):
            self._plain.write(value, row)
            return
        self._plain.write(value, self._row)
        picture = self._row.reshape(self._plain.shape)
        if self._grey:
            picture = grayscale(picture)
        if self._side:
            picture = resized(picture, self._side, self._side)
        row[:] = picture.reshape(-1)

    def stacked(self, frames: np.ndarray, row: np.ndarray) -> None:
        """Write the last k frames (k, size of a frame), oldest first, to one observation row (O)."""
        if self.shape:  # frames become channels
            height, width, channels = self.shape
            row.reshape(height, width, self._stack, channels // self._stack)[:] = frames.reshape(
                self._stack, height, width, -1
            ).transpose(1, 2, 0, 3)
        else:
            row[:] = frames.reshape(-1)


def _described(given: object) -> str:
    """Phrase for what a call returned: the types of a tuple's values, or the type."""
    if not isinstance(given, tuple):
        return f"of type {type(given).__name__}"
    return f"{len(given)} values ({', '.join(type(value).__name__ for value in given)})"


class Outcome(NamedTuple):
    """Result of a step of one lane: reward, ends of the episode and legal actions. The observation is written
    to a row.
    """

    reward: float
    terminated: bool
    truncated: bool
    mask: np.ndarray | None


class Lane:
    """Environment instance that reads actions and writes observations as rows of numbers. It never resets by itself:
    `reset` begins an episode.
    """

    def __init__(self, source: Source, *, draws: bool = False) -> None:
        self.env = make(source, draws=draws)
        # Game repeats actions itself
        self._source = source if source.kind != "ale" else source._replace(frame_skip=1, sticky=0.0)
        if hasattr(self.env, "num_envs"):
            raise SourceError(
                f"{source.name} returned a vector environment of {self.env.num_envs}: let it return one gymnasium.Env, "
                "or take num_envs"
            )
        for space in ("observation_space", "action_space"):
            if getattr(self.env, space, None) is None:
                example = "Box(-1, 1, (3,))" if space == "observation_space" else "Discrete(2)"
                raise SourceError(f"its {space} is missing: set self.{space} = gymnasium.spaces.{example} in __init__")
        self.view = View(source, self.env.observation_space)
        try:
            self.action = spaces.action(self.env.action_space)
        except spaces.UnsupportedSpaceError as error:
            raise SourceError(f"its action cannot be given: {error}") from None
        self._frames = np.zeros((source.frame_stack, self.view.one), self.view.dtype)
        self.age, self.doing = 0, "reset"  # steps of the episode, and the call under way
        self._before, self._draw = None, np.random.default_rng(0)
        self._close: Callable[[], None] = getattr(self.env, "close", lambda: None)

    def reset(self, seed: int | None, row: np.ndarray) -> np.ndarray | None:
        """Begin an episode of the environment and write its first observation to `row` (O). Returns the mask of legal
        actions, or None if there is none. With `seed` None the environment's generator continues.
        """
        self.age, self.doing, self._before = 0, "reset", None
        given = self.env.reset(seed=seed)
        try:
            value, info = given
        except (TypeError, ValueError):
            raise spaces.InvalidValueError(
                "the result of `reset`", f"is {_described(given)}; it must be (observation, info)"
            ) from None
        if seed is not None:
            self._draw = np.random.default_rng(seed)
        self.view.frame(value, self._frames[0])
        self._frames[1:] = self._frames[0]
        self.view.stacked(self._frames, row)
        return spaces.mask_of(info, value, self.action.sizes)

    def step(self, chosen: np.ndarray, row: np.ndarray) -> Outcome:
        """Step the environment with an action row `chosen` (A) and write the next observation to `row` (O): at an
        episode's end the true final one. Raises whatever the environment raises.
        """
        source, total, terminated, truncated, self.doing = self._source, 0.0, False, False, "step"
        action = self.action.read(chosen)
        value: Any = None
        info: Mapping[str, Any] = {}
        for _ in range(source.frame_skip):
            if source.sticky and self._before is not None and self._draw.random() < source.sticky:
                action = self._before
            self._before = action
            given = self.env.step(action)
            try:
                value, reward, terminated, truncated, info = given
                total += float(reward)
            except (TypeError, ValueError):
                raise spaces.InvalidValueError(
                    "the result of `step`",
                    f"is {_described(given)}; it must be (observation, reward, terminated, truncated, info), with a "
                    "number as reward",
                ) from None
            if terminated or truncated:
                break
        self.age += 1
        if source.time_limit is not None and self.age >= source.time_limit:
            truncated = True
        self._frames[:-1] = self._frames[1:]
        self.view.frame(value, self._frames[-1])
        self.view.stacked(self._frames, row)
        return Outcome(total, bool(terminated), bool(truncated), spaces.mask_of(info, value, self.action.sizes))

    def picture(self) -> np.ndarray:
        """Render the environment as (H, W, 3) bytes. Raises SourceError if `render` returns no picture."""
        rendered = self.env.render()
        picture = np.asarray(rendered[-1] if isinstance(rendered, list) and rendered else rendered)
        if picture.ndim != 3 or picture.shape[2] < 3:
            raise SourceError(
                f"`render` returned {type(rendered).__name__} of the shape {picture.shape}: a picture is (H, W, "
                f"3) bytes"
            )
        return picture[..., :3].astype(np.uint8)

    def close(self) -> None:
        """Close the environment. An error is only logged, because nothing depends on it."""
        try:
            self._close()
        except Exception as error:
            log.warning("%s: `close` raised %s: %s", self._source.name, type(error).__name__, error)
