"""Lanes of an outside environment stepped in one process, over memory blocks that may be shared.

When an episode ends, the next one begins at once: the observation block then holds its first observation, and a
separate block the true final one. A lane is stepped exactly once per counted step.
"""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from operant.host.image import resized
from operant.host.source import Lane, Source, SourceError
from operant.host.spaces import MASK, InvalidValueError


class BlockLayout(NamedTuple):
    """Sizes and types of the memory blocks (arrays that processes share) of N lanes. A lane is one copy of the
    environment.
    """

    lanes: int
    observation: int  # O
    dtype: str
    action: int  # A
    action_dtype: str
    mask: int  # H; 0: every action is legal
    picture: int = 0  # largest side of a picture, pixels; 0: no drawing

    def columns(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of each memory block (array of all lanes) by name, in memory order."""
        N = self.lanes
        return {
            "observation": ((N, self.observation), self.dtype),
            "final_observation": ((N, self.observation), self.dtype),
            "action": ((N, self.action), self.action_dtype),
            "reward": ((N,), "float32"),
            "terminated": ((N,), "uint8"),
            "truncated": ((N,), "uint8"),
            "legal": ((N, self.mask), "uint8"),
            "seed": ((N,), "int64"),
            "busy": (
                (N,),
                "uint8",
            ),  # 1 while the lane's environment runs: locates a process that stopped responding
            "drawn": ((N,), "uint8"),  # 1 if the picture shows an episode's end, until the next step
            "picture": ((N, self.picture, self.picture, 3), "uint8"),
            "side": ((1,), "int32"),  # requested side of pictures
        }

    def bytes(self) -> int:
        """Total size of the memory blocks in bytes; each begins at a multiple of 64."""
        return sum(_padded_bytes(shape, kind) for shape, kind in self.columns().values())


def _padded_bytes(shape: tuple[int, ...], kind: str) -> int:
    """Size in bytes of a memory block of this shape and dtype (`kind`), rounded up to a multiple of 64."""
    return max(64, -(-math.prod(shape) * np.dtype(kind).itemsize // 64) * 64)


class Blocks:
    """Arrays over one memory that processes may share, one per attribute: observations, actions, rewards and the other
    data of N lanes (copies of the environment).
    """

    observation: np.ndarray
    final_observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    legal: np.ndarray
    seed: np.ndarray
    busy: np.ndarray
    drawn: np.ndarray
    picture: np.ndarray
    side: np.ndarray

    def __init__(self, memory: Any, shape: BlockLayout) -> None:
        self.shape, offset = shape, 0
        for name, (size, kind) in shape.columns().items():
            setattr(self, name, np.frombuffer(memory, kind, math.prod(size), offset).reshape(size))
            offset += _padded_bytes(size, kind)


class LaneError(Exception):
    """Error that an environment raised, or that prevented making it; carries lane, call, action, step and traceback."""

    def __init__(self, lane: int | str, doing: str, action: Any, error: BaseException, step: int = 0) -> None:
        """`doing` is the call ("make", "reset", "step" or "render"), `action` the lane's action or None, `step` the
        steps of its episode.
        """
        super().__init__(str(error))
        self.lane, self.doing, self.action, self.step = lane, doing, action, step
        self.invalid = (error.what, error.problem) if isinstance(error, InvalidValueError) else None
        self.raised = f"{type(error).__name__}: {error}" if not isinstance(error, SourceError) else str(error)
        self.traceback = "".join(traceback.format_exception(error)) if not isinstance(error, SourceError) else ""

    def document(self) -> dict[str, Any]:
        """Convert this error to a JSON-serialisable dict, for another process."""
        return {
            "lane": self.lane,
            "doing": self.doing,
            "action": self.action,
            "step": self.step,
            "invalid": self.invalid,
            "raised": self.raised,
            "traceback": self.traceback,
        }


@contextlib.contextmanager
def _lane_errors(lane: int, doing: str) -> Iterator[None]:
    """Context that converts an environment's error to a LaneError of this lane and call (`doing`)."""
    try:
        yield
    except Exception as error:
        raise LaneError(lane, doing, None, error) from error


class LaneGroup:
    """Environments of some lanes in one process, stepped one after the other. Each call serves the lanes of one buffer,
    given by its index in `buffers` (groups of lanes), and raises LaneError.
    """

    def __init__(self, source: Source, blocks: Blocks, buffers: Sequence[Sequence[int]], *, draws: bool) -> None:
        self._source, self._blocks, self._buffers, self._draws = source, blocks, buffers, draws
        self._lanes: dict[int, Lane] = {}
        self.calls: dict[str, Callable[[int], None]] = {
            "make": self.make,
            "reset": self.reset,
            "step": self.step,
            "draw": self.draw,
        }

    def make(self, buffer: int) -> None:
        """Make the environments of all buffers (groups of lanes). `buffer` is ignored."""
        for lane in (lane for lanes in self._buffers for lane in lanes):
            with _lane_errors(lane, "make"):
                self._lanes[lane] = Lane(self._source, draws=self._draws)

    def reset(self, buffer: int) -> None:
        """Reset the environments of a buffer (group of lanes), each with its seed in the shared arrays, and write
        observations and legal actions there.
        """
        blocks = self._blocks
        for lane in self._buffers[buffer]:
            blocks.busy[lane], blocks.drawn[lane] = 1, 0
            with _lane_errors(lane, "reset"):
                mask = self._lanes[lane].reset(int(blocks.seed[lane]), blocks.observation[lane])
                self._write_mask(lane, mask, self._lanes[lane].action.sizes)
            blocks.busy[lane] = 0

    def step(self, buffer: int) -> None:
        """Step the environments of a buffer (group of lanes), each with its action in the shared arrays, and reset
        those whose episode ended.
        """
        lane = -1
        try:
            for lane in self._buffers[buffer]:
                self._step(lane, self._lanes[lane])
        except LaneError:
            raise
        except Exception as error:
            stepped, action = self._lanes[lane], self._blocks.action[lane].tolist()
            raise LaneError(lane, stepped.doing, action, error, stepped.age) from error

    def _step(self, lane: int, stepped: Lane) -> None:
        """Step the environment `stepped` of one lane, and write its outcome to row `lane` of the shared arrays. If the
        episode ended, write the final observation and begin the next.
        """
        blocks = self._blocks
        blocks.busy[lane], blocks.drawn[lane], row = 1, 0, blocks.observation[lane]
        outcome = stepped.step(blocks.action[lane], row)
        blocks.reward[lane] = outcome.reward
        blocks.terminated[lane], blocks.truncated[lane] = outcome.terminated, outcome.truncated
        mask = outcome.mask
        if outcome.terminated or outcome.truncated:
            blocks.final_observation[lane] = row
            if blocks.side[0]:  # keep the final picture until the next step
                self._draw(lane)
                blocks.drawn[lane] = 1
            mask = stepped.reset(None, row)
        self._write_mask(lane, mask, stepped.action.sizes)
        blocks.busy[lane] = 0

    def draw(self, buffer: int) -> None:
        """Render the environments of a buffer (group of lanes) into the shared arrays, as square pictures of the
        requested side.
        """
        blocks = self._blocks
        for lane in self._buffers[buffer]:
            if not blocks.drawn[lane]:
                self._draw(lane)

    def close(self) -> None:
        """Close the environments of all lanes."""
        for lane in self._lanes.values():
            lane.close()
        self._lanes = {}

    def _draw(self, lane: int) -> None:
        """Render the environment of a lane into the shared arrays, resized to the requested side."""
        blocks, side = self._blocks, int(self._blocks.side[0])
        with _lane_errors(lane, "render"):
            blocks.picture[lane].reshape(-1)[: side * side * 3] = resized(
                self._lanes[lane].picture(), side, side
            ).reshape(-1)

    def _write_mask(self, lane: int, mask: np.ndarray | None, sizes: tuple[int, ...]) -> None:
        """Write the mask of legal actions of a lane, (H), to the shared arrays; None means that all are legal. `sizes`
        are the numbers of actions of its choices. Raises InvalidValueError if a choice has no legal action, hence no
        distribution.
        """
        if self._blocks.shape.mask:
            row, first = self._blocks.legal[lane], 0
            row[:] = 1 if mask is None else mask
            for count in sizes:
                if not row[first : first + count].any():
                    where = "" if len(sizes) == 1 else f" in entries {first} to {first + count - 1}"
                    raise InvalidValueError(f"the {MASK}", f"allows no action{where}")
                first += count
