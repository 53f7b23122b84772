"""Base class of worlds stepped on the host in buffers of lanes: staging blocks, copies and the clock.

A buffer's outcome lies in fixed host blocks, pinned with a GPU, and is copied to the device asynchronously. Of the
device's data only the actions are awaited, by an event. `step` performs a step of all lanes; its parts are called
separately where acting and stepping overlap (operant/data/buffered.py): `send`, `sent`, `begin`, `finish`, `receive`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from operant.compute import rng
from operant.envs import Env
from operant.worlds.base import TALLIES, Slot, make_slot, step_slot
from operant.worlds.noise import NoiseSource, seed_words

COPIED_FIELDS = ("observation", "legal", "reward", "terminated", "truncated")
"""Slot fields copied to the device after every step."""


class Staging(NamedTuple):
    """Copies of one buffer's outcome (observations, rewards, ends) on their way from host to device: `pairs` of (host,
    device) blocks, and views of the device blocks in slot layout, by name.
    """

    pairs: Sequence[tuple[Tensor, Tensor]]
    on_device: Mapping[str, Tensor]


class BufferedWorld:
    """Base class of worlds stepped on the host: N lanes in buffers, contiguous ranges of lanes that are stepped and
    copied in turn. A subclass provides `_staging` and `_actions` of each buffer and steps it.
    """

    capturable = False
    resumes = False
    pinned = False  # whether a graph may capture the copies
    late = 0
    """Number of buffers that may be stepping before the host waits for the first."""
    unordered = False
    """Whether buffers are stepped independently; `ready` then returns the finished ones."""
    can_truncate = True
    final_window = truncation_gap = 1

    spec: Any  # an `Env`
    changing: Mapping[str, Tensor] = MappingProxyType({})
    """Scheduled parameters by name."""

    def __init__(
        self, env: Env, lanes: int, *, seed: int, device: torch.device | str, lane0: int, stream: int, buffers: int
    ) -> None:
        self.spec, self.count, self.device = env, lanes, torch.device(device)
        count = max(1, min(buffers, lanes))
        self.buffers = tuple(slice(k * lanes // count, (k + 1) * lanes // count) for k in range(count))
        self._spent = dict.fromkeys(("environment", "copy", "waiting"), 0.0)
        self._staging: list[Staging] = []
        self._actions: list[Tensor] = []  # on the host, in the environment's layout
        self._rows = False  # whether actions are (n, A) rather than (A, n)
        self._finals = True
        self._arrived = [torch.cuda.Event() for _ in self.buffers] if self.device.type == "cuda" else []
        self._tick = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._noise = NoiseSource(self._tick, seed_words(seed, stream, self.device), lane0)
        self._sums = torch.zeros(TALLIES + len(env.tally), dtype=torch.float64, device=self.device)

    def slot(self, steps: int | None = None) -> Slot:
        """Allocate the tensors of one step, or, if `steps` is T, of a rollout: each with a leading T, observations and
        legal actions with T + 1.
        """
        return make_slot(self.spec, self.count, self.device, steps, self.final_window, finals=self._finals)

    def bind(self, slot: Slot, step: int | None = None) -> Slot:
        """Convert a slot (tensors of steps) to the form that `reset` and `step` take. With `step` = t it is one step of
        a rollout's slot (t = -1 for `reset`), without it a slot of one step.
        """
        return slot if step is None else step_slot(slot, step, self.final_window)

    def reset(self, slot: Slot) -> None:
        """Reset every lane and write the first observations to `slot`. Counts as one tick of the world's clock."""
        self._reset()
        for k in range(len(self.buffers)):
            self._copy_outcome(k, slot, ("observation", "legal"))
        self._tick.add_(1)

    def step(self, slot: Slot, offset: int = 0) -> None:
        """Step every lane: read the actions in `slot` and write observations, rewards and ends to it. `offset` is the
        number of steps since the last `advance`, which moves the world's clock.
        """
        count, late = len(self.buffers), len(self.buffers) if self.late else 0
        for k in range(count):
            with self.timed("copy"):
                self.send(k, slot)
                self.sent(k)
        with self.stepping(1):
            for out in range(count + late):
                if out < count:
                    self.begin(out, offset)
                if out >= late:
                    self.finish(out - late, slot)
                    with self.timed("copy"):
                        self.receive(out - late, slot)

    # PARTS OF A STEP

    def send(self, k: int, slot: Slot) -> None:
        """Start copying the actions of buffer k (a range of lanes) in `slot` to the host, in the
        environment's layout.
        """
        action = slot.action[:, self.buffers[k]]
        self._clip_actions(action)
        rows = action.t() if self._rows else action
        self._actions[k].copy_(rows if self.device.type == "cpu" else rows.contiguous(), non_blocking=True)

    def sent(self, k: int) -> None:
        """Record that all device work that buffer k (a range of lanes) waits for, such as the copy of its actions, is
        queued on the current stream.
        """
        if self._arrived:
            self._arrived[k].record(torch.cuda.current_stream(self.device))

    def begin(self, k: int, offset: int) -> None:
        """Wait for the actions of buffer k (a range of lanes) and start stepping it. `offset` is the number of steps
        since the last `advance`.
        """
        if self._arrived:
            with self.timed("environment"):
                while not self._arrived[k].query() and self._step_piece():
                    pass
            with self.timed("waiting"):
                self._arrived[k].synchronize()  # sync: environments on the host need the actions
        with self.timed("environment"):
            self._begin(k, offset)

    def arrived(self, k: int) -> bool:
        """Whether the actions of buffer k (a range of lanes) have arrived on the host."""
        return not self._arrived or self._arrived[k].query()

    def ready(self, *, wait: bool) -> list[int]:
        """Indices of the buffers (ranges of lanes) whose step has finished, in any order. With `wait` block until there
        is at least one.
        """
        raise NotImplementedError

    def finish(self, k: int, slot: Slot) -> None:
        """Wait until buffer k (a range of lanes) is stepped, and copy its true final observations to `slot` on the
        device.
        """
        with self.timed("environment"):
            self._finish(k)
        if self._finals:
            with self.timed("copy"):
                self._copy_finals(k, slot)

    def receive(self, k: int, slot: Slot) -> None:
        """Start copying the outcome of buffer k (a range of lanes) to `slot` on the device. Does not wait for
        the copy.
        """
        self._copy_outcome(k, slot, COPIED_FIELDS)

    def _copy_outcome(self, k: int, slot: Slot, names: Sequence[str]) -> None:
        """Copy the host blocks of buffer k (a range of lanes) to the device, then the fields `names` to `slot`, where
        rewards are clipped.
        """
        staging, lanes = self._staging[k], self.buffers[k]
        for host, device_block in staging.pairs:
            device_block.copy_(host, non_blocking=True)
        for name in names:
            out = getattr(slot, name)
            if out is not None:
                self._write_field(k, name, out[..., lanes])
                if name == "reward":
                    self._clip_rewards(out[lanes])

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Context whose duration is added to the time spent in `part` of a step, a key of `seconds`."""
        began_s = time.perf_counter()
        yield
        self._spent[part] += time.perf_counter() - began_s

    @property
    def seconds(self) -> dict[str, float]:
        """Time that the stepping thread has spent so far in the parts of a step, in seconds: "environment", "copy" and
        "waiting".
        """
        return dict(self._spent)

    @contextlib.contextmanager
    def stepping(self, steps: int) -> Iterator[None]:
        """Context in which every buffer (range of lanes) may be stepped `steps` times."""
        yield

    # IMPLEMENTED BY A SUBCLASS

    def _write_field(self, k: int, name: str, out: Tensor) -> None:
        """Write field `name` of the outcome of buffer k (a range of lanes) to `out`, that buffer's slice of a slot's
        tensor.
        """
        out.copy_(self._staging[k].on_device[name])

    def _reset(self) -> None:
        """Reset every lane on the host."""
        raise NotImplementedError

    def _begin(self, k: int, offset: int) -> None:
        """Step buffer k (a range of lanes), or start stepping it in other threads or processes."""
        raise NotImplementedError

    def _step_piece(self) -> bool:
        """Step some lanes of a buffer that other threads are stepping. Returns False if nothing was left to do."""
        return False

    def _finish(self, k: int) -> None:
        """Wait until buffer k (a range of lanes) is stepped."""

    def _copy_finals(self, k: int, slot: Slot) -> None:
        """Copy the true final observations of buffer k (a range of lanes) to `slot` on the device, where episodes
        ended.
        """
        raise NotImplementedError

    def _clip_actions(self, action: Tensor) -> None:
        """Clip actions (A, n) to the bounds of a Box, in place."""

    def _clip_rewards(self, reward: Tensor) -> None:
        """Clip rewards (n) in place, if the environment is configured so."""

    # CLOCK

    def advance(self, steps: int) -> None:
        """Advance the world's clock by the number of steps taken since the last call."""
        self._tick.add_(steps)

    def seek(self, tick: int) -> None:
        """Set the world's clock, which keys the random numbers, to `tick`. The same actions from the same state then
        give the same steps.
        """
        self._tick.fill_(tick)

    def noise(self, out: Tensor, purpose: int = rng.ACTION, hold: int = 1) -> None:
        """Fill `out` (T, U, N) with uniform numbers in [0, 1) for each lane and each of the next T steps, keyed by
        (seed, lane, tick, purpose). A lane's numbers stay the same for `hold` steps.
        """
        self._noise.fill(out, purpose, hold)

    def episode_sums(self, slot: Slot) -> Tensor:
        """Sums over the episodes that ended between the last call and the last `advance`, (3 + K) float64: number,
        length and return, then K tallies (the environment's own statistics). Ignores `slot`.
        """
        sums = self._sums.clone()
        self._sums.zero_()
        return sums

    @property
    def ended_tallies(self) -> Tensor | None:
        """Return None: `episode_sums` consumes the tallies of ended episodes."""
        return None

    @property
    def running_tallies(self) -> Tensor:
        """Tallies (the environment's own episode statistics) of each lane's current episode, (K, N)."""
        return torch.zeros(len(self.spec.tally), self.count, device=self.device)

    def state(self) -> dict[str, Any]:
        """Tensors of the world, by name, that a resumed run needs."""
        return {"tick": self._tick}

    def restored(self) -> None:
        """Do nothing: `state` returns the tensors in use, so new values in them apply at once."""
