"""Live view of the agent for the monitor: a few extra lanes stepped by the current policy, drawn into the metrics file.

Without a viewer it costs one comparison per iteration. Watching changes no trained bit: the lanes have their own world,
buffers and random stream, and the policy is only read. Buffers are allocated at the first request.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import torch

from operant import worlds
from operant.compute.graphs import Graphed
from operant.compute.kernel import native
from operant.envs import Env
from operant.nn import Actor
from operant.training.rollout import Rollout

STREAM = 2
"""Random stream of the live view: see `rng.stream_seed`."""

LANES = 4

SMALLEST, LARGEST = 16, 96
"""Least and greatest side of one lane's picture, pixels."""

FRAME_BYTES = LANES * LARGEST * LARGEST * 3
"""Capacity of the metrics file's frame section."""

Mode = Literal["greedy", "sampled"]

log = logging.getLogger("operant")


class FrameWriter(Protocol):
    """Interface to which live frames are written, implemented by the metrics file's `Writer`."""

    def frame(self, step: int, pixels: memoryview, *, lanes: int, height: int, width: int, mode: str) -> None:
        """Publish the frames of one moment, (lanes, height, width, 3) uint8, with the training step and the acting mode
        ("greedy" or "sampled"). `pixels` is copied.
        """


class _Request(NamedTuple):
    """Request of a viewer for live frames: acting mode, frame size in pixels, and time until which it lasts."""

    mode: Mode
    size: int
    until_s: float


class _Drawn(NamedTuple):
    """Frame that is being copied to the host: its training step, size and acting mode."""

    step: int
    size: int
    mode: Mode


class WatchedLanes:
    """Lanes stepped by the policy for a viewer, and the buffers of their frames on the device and on the host."""

    def __init__(
        self, actor: Actor, env: Env, params: Any, *, seed: int, device: torch.device, stream: int, lanes: int
    ) -> None:
        self.lanes = lanes
        self._world = worlds.make(env, lanes, seed=seed, device=device, params=params, stream=stream, draws=True)
        self._rollout = Rollout(actor, self._world)
        eager = not self._world.capturable
        self._plays = {
            "greedy": Graphed(self._play_greedily, device, eager=eager),
            "sampled": Graphed(self._play_sampling, device, eager=eager),
        }
        self._painter = worlds.painter(self._world)
        # One buffer for all sizes: a change of size neither allocates nor captures.
        self._pixels = torch.zeros(lanes * LARGEST * LARGEST * 3, dtype=torch.uint8, device=device)
        self._canvases = functools.cache(self._bind_canvas)
        self._event = torch.cuda.Event() if device.type == "cuda" else None
        self._host = (
            torch.zeros(len(self._pixels), dtype=torch.uint8, pin_memory=True)
            if self._event is not None
            else self._pixels
        )
        self._bytes = memoryview(native(self._host))
        self._rollout.reset()

    def draw(self, size: int, mode: Mode) -> None:
        """Step every lane and start copying `size` x `size` frames to the host, without waiting; `arrived` reports
        completion. `mode` is "greedy" or "sampled".
        """
        self._plays[mode]()
        self._painter(self._canvases(size))
        if self._event is not None:
            used = self._frame_bytes(size)
            self._host[:used].copy_(self._pixels[:used], non_blocking=True)
            self._event.record()

    def arrived(self) -> bool:
        """Whether the newest live frames have been copied to the host."""
        return self._event is None or self._event.query()

    def pictures(self, size: int) -> memoryview:
        """Return the newest frames, (lanes, size, size, 3) bytes, valid until the next `draw`. Call once they have
        arrived.
        """
        return self._bytes[: self._frame_bytes(size)]

    def _frame_bytes(self, size: int) -> int:
        """Bytes of the frames of all lanes with sides of `size` pixels."""
        return self.lanes * size * size * 3

    def _bind_canvas(self, size: int) -> Any:
        """Bind the frame buffer as a canvas for frames with sides of `size` pixels."""
        return self._painter.bind(self._pixels[: self._frame_bytes(size)].view(self.lanes, size, size, 3))

    def _play_greedily(self) -> None:
        """Step every watched lane with the policy's mode."""
        self._rollout.step(greedy=True)
        self._world.advance(1)

    def _play_sampling(self) -> None:
        """Step every watched lane with sampled actions."""
        self._rollout.draw()
        self._rollout.step(greedy=False)
        self._world.advance(1)


class Watcher:
    """Live view of the agent on demand: draws frames while a viewer's request lasts, at most one per
    `minimum_interval_s` seconds. `params` are the environment's.

    An error ends the live view with a line in the log, never the training. (A `pixel_shader` that writes out of bounds
    is beyond this guard.)
    """

    def __init__(
        self,
        actor: Actor,
        environment: Env,
        params: Any,
        *,
        seed: int,
        device: torch.device,
        writer: FrameWriter,
        lanes: int = LANES,
        stream: int = STREAM,
        minimum_interval_s: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_stage = functools.partial(
            WatchedLanes, actor, environment, params, seed=seed, device=device, stream=stream, lanes=lanes
        )
        self._writer, self._interval_s, self._clock = writer, minimum_interval_s, clock
        self._stage: WatchedLanes | None = None
        self._drawn: _Drawn | None = None
        self._drawn_s = -math.inf
        # Each is written by one thread. They are equal when there is no viewer; no request is lost between the
        # threads.
        self._request: _Request | None = None
        self._served: _Request | None = None
        self.unavailable_reason = (
            "" if environment.draws else f"{environment.name or 'the environment'} draws no picture"
        )

    @property
    def available(self) -> bool:
        """Whether live frames can be drawn; `unavailable_reason` gives the reason if not."""
        return not self.unavailable_reason

    def request(self, mode: Mode, size: int, until_s: float) -> None:
        """Request live frames of the agent with sides of `size` pixels (16 to 96) until `until_s` (`time.monotonic`),
        played by a "greedy" or "sampled" policy. Thread-safe; a newer request replaces it.
        """
        if self.available:
            self._request = _Request(
                "sampled" if mode == "sampled" else "greedy", min(max(int(size), SMALLEST), LARGEST), until_s
            )

    def after(self, step: int) -> None:
        """Serve the viewer's current request for live frames, if there is one. The training thread calls it once per
        iteration with the number of environment steps so far.
        """
        request = self._request
        if request is not self._served:
            assert request is not None
            try:
                self._serve(request, step)
            except Exception as error:
                self._disable(error)

    def close(self) -> None:
        """End the live view and release all buffers."""
        self.unavailable_reason = self.unavailable_reason or "the run has ended"
        self._served, self._stage, self._drawn = self._request, None, None

    def _serve(self, request: _Request, step: int) -> None:
        """Draw a live frame if one is due for the request, and publish the frame that has arrived; end the service if
        the request has expired.
        """
        now_s = self._clock()
        if not (self.available and now_s < request.until_s):
            self._served, self._drawn = request, None
            return
        if self._stage is None:
            self._stage = self._make_stage()
        self._publish(self._stage)
        if self._drawn is None and now_s - self._drawn_s >= self._interval_s:
            self._stage.draw(request.size, request.mode)
            self._drawn, self._drawn_s = _Drawn(step, request.size, request.mode), self._clock()
            self._publish(self._stage)

    def _publish(self, stage: WatchedLanes) -> None:
        """Write the drawn frame to the metrics file, if it has arrived on the host."""
        drawn = self._drawn
        if drawn is not None and stage.arrived():
            self._drawn = None
            pixels = stage.pictures(drawn.size)
            self._writer.frame(
                drawn.step, pixels, lanes=stage.lanes, height=drawn.size, width=drawn.size, mode=drawn.mode
            )

    def _disable(self, error: Exception) -> None:
        """End the live view because of an error, with a line in the log."""
        lines = str(error).strip().splitlines()
        self.unavailable_reason = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
        self.close()
        log.warning("the live view has ended, training continues: %s", self.unavailable_reason)
