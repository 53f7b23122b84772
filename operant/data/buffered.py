"""Collection of a rollout whose lanes the host steps, in buffers of lanes: a GPU acts on one while the host steps
another.

The device's work for a buffer between two of its steps is one CUDA graph per t, in the buffer's stream: receive the
outcome of step t - 1, act on it, send the actions to the host. The host waits only for the event of the actions it
needs. Results equal those of all lanes stepped together, provided that acting on a lane does not depend on others.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Sequence

import torch

from operant.worlds import BufferedWorld, Slot

MOST_GRAPHS = 8192
"""Maximum CUDA graphs; with more, work is launched eagerly. One takes some tens of KiB, and 1 ms to capture."""


class BufferedCollection:
    """Collection of a rollout whose lanes the host steps, in buffers of lanes: the GPU acts on one buffer while the
    host steps another. `slots` are bound to the rollout's T steps. On a CPU the order of work is the same, without
    streams.
    """

    def __init__(self, world: BufferedWorld, slots: Sequence[Slot], *, eager: bool = False) -> None:
        self._world, self._slots, self._on_gpu = world, slots, world.device.type == "cuda"
        count = len(world.buffers)
        # The host waits for these streams, so they have priority over others.
        self._streams = [torch.cuda.Stream(world.device, priority=-1) for _ in range(count)] if self._on_gpu else []
        self._plain = eager or not self._on_gpu or (len(slots) + 1) * count > MOST_GRAPHS
        self._called = False
        self._graphs: list[list[torch.cuda.CUDAGraph]] = []  # by step and buffer

    def collect(self, act: Callable[[int, slice], None]) -> None:
        """Take all T steps of every lane. `act(t, lanes)` writes the actions of a slice of lanes at step t to their
        slot.
        """
        world = self._world
        if self._on_gpu:  # earlier launches do not count as time of these steps
            torch.cuda.current_stream(
                world.device
            ).synchronize()  # sync: environments on the host need actions, which need all before them
        if self._called and not self._plain and not self._graphs and world.pinned:
            self._capture(act)
        self._called = True
        self._fork()
        self._step_in_turn(act)
        self._join()

    def _step_in_any_order(self, act: Callable[[int, slice], None]) -> None:
        """Step all buffers T times, each as soon as its actions have arrived and the host is free."""
        world, done = self._world, [0] * len(self._world.buffers)
        acting, stepping = set(range(len(done))), set[int]()
        while acting or stepping:
            for k in [k for k in acting if world.arrived(k)]:
                acting.remove(k)
                stepping.add(k)
                world.begin(k, done[k])
            with world.timed("waiting" if acting else "environment"):
                found = world.ready(wait=not acting) if stepping else []
            for k in found:
                with self._stream(k):
                    world.finish(k, self._slots[done[k]])
                    done[k] += 1
                    self._launch(act, done[k], k)
                stepping.remove(k)
                if done[k] < len(self._slots):
                    acting.add(k)

    @torch.no_grad()
    def _step_in_turn(self, act: Callable[[int, slice], None]) -> None:
        """Step all buffers T times in turn: the host begins a step of each, and finishes it `late` buffers later."""
        world, T, B, late = self._world, len(self._slots), len(self._world.buffers), self._world.late
        for k in range(B):
            with self._stream(k):
                self._launch(act, 0, k)
        if world.unordered:
            self._step_in_any_order(act)
            return
        with world.stepping(T):
            for place in range(T * B + late):
                if place < T * B:
                    world.begin(place % B, place // B)
                if place >= late:
                    t, k = divmod(place - late, B)
                    with self._stream(k):
                        world.finish(k, self._slots[t])
                        self._launch(act, t + 1, k)

    def _act_on_buffer(self, act: Callable[[int, slice], None], t: int, k: int) -> None:
        """Receive the outcome of step t - 1 of buffer k (a group of lanes), act on it, and send the actions of step t
        to the host.
        """
        world, slots = self._world, self._slots
        if t > 0:
            world.receive(k, slots[t - 1])
        if t < len(slots):
            act(t, world.buffers[k])
            world.send(k, slots[t])

    def _launch(self, act: Callable[[int, slice], None], t: int, k: int) -> None:
        with self._world.timed("copy"):
            if self._graphs:
                self._graphs[t][k].replay()
            else:
                self._act_on_buffer(act, t, k)
            self._world.sent(k)

    # STREAMS AND GRAPHS

    def _stream(self, k: int) -> contextlib.AbstractContextManager[object]:
        return torch.cuda.stream(self._streams[k]) if self._streams else contextlib.nullcontext()

    def _fork(self) -> None:
        for stream in self._streams:
            stream.wait_stream(torch.cuda.current_stream(self._world.device))

    def _join(self) -> None:
        for stream in self._streams:
            torch.cuda.current_stream(self._world.device).wait_stream(stream)

    def _capture(self, act: Callable[[int, slice], None]) -> None:
        """Capture the CUDA graphs of all steps and buffers while nothing else runs. Graphs of a buffer are replayed in
        sequence and share memory.
        """
        torch.cuda.synchronize(self._world.device)  # sync: once in a run
        gc.collect()
        collecting = gc.isenabled()
        gc.disable()
        pools = [torch.cuda.graph_pool_handle() for _ in self._streams]
        try:
            for t in range(len(self._slots) + 1):
                row = []
                for k, (stream, pool) in enumerate(zip(self._streams, pools, strict=True)):
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.stream(stream):
                        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                        try:
                            self._act_on_buffer(act, t, k)
                        finally:
                            graph.capture_end()
                    row.append(graph)
                self._graphs.append(row)
        finally:
            if collecting:
                gc.enable()
