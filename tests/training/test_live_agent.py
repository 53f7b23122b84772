"""Live view: no trained bit changes, frames show the current policy at play, and no error reaches the training."""

from __future__ import annotations

import logging
import math
import random
import threading
from dataclasses import replace

import numba
import numpy as np
import pytest
import torch
from numpy import float32
from toys import COUNT, PICK, PUSH, SEEN, iterate

from operant.algos.ppo import PPO
from operant.envs import device, find
from operant.nn import mlp
from operant.nn.policy import Policy
from operant.runs.metrics import Metric, Reader, Writer
from operant.training import live_agent
from operant.training.live_agent import FRAME_BYTES, Watcher
from operant.worlds.device_world import DeviceWorld
from operant.worlds.painting import Painter

CPU = torch.device("cpu")
CARTPOLE = find("cartpole")


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors on a shared machine."""
    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    numba.set_num_threads(before[1])


@device
def _push_shade(s, p, x, y):
    return abs(s[0]), abs(s[1]), x


@device
def _pick_shade(s, p, x, y):
    return s[0] / float32(3.0), s[1] / float32(8.0), y


@device
def _count_shade(s, p, x, y):
    return s[0] / float32(255.0), float32(0.0), float32(0.0)


WATCHED = {
    "discrete": CARTPOLE,
    "box": replace(PUSH, pixel_shader=_push_shade),
    "multidiscrete": replace(PICK, pixel_shader=_pick_shade),
    "pictures, masked": SEEN,
}
SHOWN_COUNT = replace(COUNT, pixel_shader=_count_shade)


class Frames:
    """Writer that stores its frames."""

    def __init__(self):
        self.kept = []

    def frame(self, step, pixels, *, lanes, height, width, mode):
        self.kept.append((step, mode, np.frombuffer(bytes(pixels), np.uint8).reshape(lanes, height, width, 3)))

    @property
    def steps(self):
        return [step for step, _, _ in self.kept]


class ManualClock:
    """Clock moved by the test."""

    def __init__(self):
        self.now_s, self.looks = 100.0, 0

    def __call__(self):
        self.looks += 1
        return self.now_s


def policy_for(env, **config):
    return Policy(env, mlp.Config(hidden=(8,), **config), seed=1, device=CPU, normalize=False)


def watched(env, *, policy=None, writer=None, **more):
    writer, clock = writer or Frames(), ManualClock()
    watcher = Watcher(
        policy or policy_for(env), env, env.Params(), seed=1, device=CPU, writer=writer, clock=clock, **more
    )
    return watcher, writer, clock


def bytes_of(ppo):
    return {name: tensor.cpu().numpy().tobytes() for name, tensor in ppo.state("all").items()}


def trainer(env, where=CPU):
    config = PPO.Config(horizon=4, normalize_observations=True, normalize_rewards=True)
    ppo = PPO(DeviceWorld(env, 16, seed=1, device=where), config, mlp.Config(hidden=(8,)), seed=1, steps=10_000)
    ppo.start()
    return ppo


# NO TRAINED BIT CHANGES

DEVICES = [
    CPU,
    pytest.param(
        torch.device("cuda"),
        marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")],
    ),
]


@pytest.mark.parametrize("where", DEVICES, ids=str)
@pytest.mark.parametrize(
    "name",
    ["discrete", *(pytest.param(k, marks=pytest.mark.slow) for k in ("pictures, masked", "box", "multidiscrete"))],
)
def test_watching_changes_no_trained_bit(name, where):
    env, draw = WATCHED[name], random.Random(name)
    largest = 96 if name == "discrete" else 45  # beyond that a picture is drawn by all threads: another compilation
    alone, shown = trainer(env, where), trainer(env, where)
    frames, clock = Frames(), ManualClock()
    watcher = Watcher(shown.policy, env, env.Params(), seed=1, device=shown.device, writer=frames, clock=clock)
    state = torch.get_rng_state()
    device_state = torch.cuda.get_rng_state() if where.type == "cuda" else None
    for iteration in range(60):
        iterate(alone, 1)
        iterate(shown, 1)
        before = bytes_of(shown)
        assert before == bytes_of(alone)
        # Wishes come, change and run out at moments of their own; sometimes nobody watches.
        clock.now_s += draw.choice([0.001, 0.05, 0.1, 0.5])
        if draw.random() < 0.3:
            watcher.request(
                draw.choice(["greedy", "sampled"]),
                draw.randint(10, largest),
                clock.now_s + draw.choice([0.0, 0.2, 1.0]),
            )
        watcher.after(iteration)
        assert bytes_of(shown) == before
    assert len(frames.kept) > 5 and {mode for _, mode, _ in frames.kept} == {"greedy", "sampled"}
    assert torch.equal(state, torch.get_rng_state())
    assert device_state is None or torch.equal(device_state, torch.cuda.get_rng_state())


def _hammer(rounds):
    """Send requests from another thread at any moment during training; returns whether all bits equal those without."""
    alone, shown = trainer(CARTPOLE), trainer(CARTPOLE)
    frames = Frames()
    watcher = Watcher(
        shown.policy,
        CARTPOLE,
        CARTPOLE.Params(),
        seed=1,
        device=CPU,
        writer=frames,
        minimum_interval_s=0.0,
        clock=lambda: 0.0,
    )
    over = threading.Event()

    def wish():
        draw = random.Random(1)
        while not over.is_set():
            watcher.request(draw.choice(["greedy", "sampled"]), draw.randrange(16, 97), draw.choice([-1.0, 1.0, 1.0]))
            over.wait(draw.choice([0.0, 0.0, 1e-4]))

    thread = threading.Thread(target=wish)
    thread.start()
    try:
        for iteration in range(rounds):
            iterate(shown, 1)
            watcher.after(iteration)
    finally:
        over.set()
        thread.join()
    iterate(alone, rounds)
    assert watcher.available and len(frames.kept) > rounds // 10
    assert all(pixels.shape[1] == pixels.shape[2] and pixels.any() for _, _, pixels in frames.kept)
    assert bytes_of(alone) == bytes_of(shown)


@pytest.mark.slow
def test_requests_from_another_thread_change_no_trained_bit():
    _hammer(60)


@pytest.mark.soak
def test_many_requests_from_another_thread_change_no_trained_bit():
    _hammer(3_000)


# WHAT IS SHOWN


@pytest.mark.parametrize("mode", ["greedy", "sampled"])
@pytest.mark.parametrize("name", WATCHED)
def test_a_frame_is_the_next_step_of_the_policy_in_its_own_world(name, mode):
    env, policy = WATCHED[name], policy_for(WATCHED[name])
    watcher, frames, clock = watched(env, policy=policy)
    watcher.request(mode, 24, math.inf)
    for step in range(30):
        clock.now_s += 0.2
        watcher.after(step)
    # The same played by hand: stream 2, four lanes, uniforms of each tick.
    world = DeviceWorld(env, 4, seed=1, stream=2)
    slot = world.slot()
    bound, uniform = world.bind(slot), torch.zeros(1, policy.distribution.noise_rows, 4)
    world.reset(bound)
    for step, (told, told_mode, pixels) in enumerate(frames.kept):
        world.noise(uniform)
        slot.action.copy_(policy.act(slot.observation, (), uniform[0] if mode == "sampled" else None, slot.legal)[0])
        world.step(bound)
        world.advance(1)
        expected = torch.zeros(4, 24, 24, 3, dtype=torch.uint8)
        painter = Painter(world)
        painter(painter.bind(expected))
        assert (told, told_mode) == (step, mode)
        assert np.array_equal(pixels, expected.numpy())
    assert len(frames.kept) == 30
    assert len({pixels.tobytes() for _, _, pixels in frames.kept}) > 5


def counts(frames):
    """Count of each lane of COUNT, read from each frame."""
    return [pixels[:, 0, 0, 0].tolist() for _, _, pixels in frames.kept]


def test_ended_episodes_are_reset():
    watcher, frames, clock = watched(SHOWN_COUNT)
    watcher.request("greedy", 16, math.inf)
    for step in range(6):
        clock.now_s += 0.1001
        watcher.after(step)
    # Lane 0 is truncated after 3 steps; lanes 1, 2 and 3 end after as many as their number.
    assert counts(frames) == [[1, 0, 1, 1], [2, 0, 0, 2], [0, 0, 1, 0], [1, 0, 0, 1], [2, 0, 1, 2], [0, 0, 0, 0]]


def test_the_live_view_uses_the_current_policy():
    policy = policy_for(CARTPOLE)
    watcher, frames, clock = watched(CARTPOLE, policy=policy)
    watcher.request("greedy", 96, math.inf)

    def where_after(steps, action):
        with torch.no_grad():
            policy.net.head_bias[action], policy.net.head_bias[1 - action] = 50.0, -50.0
        for _ in range(steps):
            clock.now_s += 0.2
            watcher.after(0)
        return watcher._stage._world.lanes.state[1].mean().item()  # the carts' speed

    right = where_after(4, 1)
    assert right > 0.5 and where_after(8, 0) < right - 1.0
    assert len(frames.kept) == 12


def test_sampled_actions_follow_the_policys_probabilities():
    policy = policy_for(CARTPOLE)
    shown = {}
    for likely in (False, True):
        with torch.no_grad():
            policy.net.head_bias[1] = 80.0 if likely else 0.0
        for mode in ("greedy", "sampled"):
            watcher, frames, clock = watched(CARTPOLE, policy=policy)
            watcher.request(mode, 64, math.inf)
            for step in range(8):
                clock.now_s += 0.2
                watcher.after(step)
            shown[likely, mode] = [pixels.tobytes() for _, _, pixels in frames.kept]
    assert shown[True, "greedy"] == shown[True, "sampled"]
    assert shown[False, "greedy"] != shown[False, "sampled"]


def test_frames_reach_a_reader(tmp_path):
    path = tmp_path / "metrics.mm"
    with (
        Writer(path, [Metric("return")], run_uuid=bytes(16), version="test", frame_bytes=FRAME_BYTES) as writer,
        Reader(path) as reader,
    ):
        watcher, _, clock = watched(SHOWN_COUNT, writer=writer)
        assert reader.frame() is None
        watcher.request("sampled", 1000, math.inf)  # the largest there is room for
        for step in (7, 8):
            clock.now_s += 0.2
            watcher.after(step)
        frame = reader.frame()
        assert (frame.step, frame.mode, frame.lanes, frame.height, frame.width, frame.channels) == (
            8,
            "sampled",
            4,
            96,
            96,
            3,
        )
        assert np.frombuffer(frame.pixels, np.uint8).reshape(4, 96, 96, 3)[:, 50, 50, 0].tolist() == [2, 0, 0, 2]


# WHEN


def test_without_a_viewer_nothing_is_allocated():
    watcher, frames, clock = watched(CARTPOLE)
    for step in range(100):
        watcher.after(step)
    assert frames.kept == [] and watcher._stage is None and clock.looks == 0


def test_at_most_ten_frames_a_second():
    watcher, frames, clock = watched(SHOWN_COUNT)
    watcher.request("greedy", 16, math.inf)
    for step in range(2048):  # an iteration takes 1/1024 s, so 0.1 s have gone by after 103
        clock.now_s = step / 1024
        watcher.after(step)
    assert frames.steps == list(range(0, 2048, 103))


def test_slow_iterations_get_a_frame_each():
    watcher, frames, clock = watched(SHOWN_COUNT)
    watcher.request("greedy", 16, math.inf)
    for step in range(5):
        clock.now_s += 3.0
        watcher.after(step)
    assert frames.steps == [0, 1, 2, 3, 4]


def test_a_request_expires_and_a_later_one_is_served():
    watcher, frames, clock = watched(SHOWN_COUNT)
    watcher.request("greedy", 16, clock.now_s + 0.5)
    for step in range(10):
        watcher.after(step)
        clock.now_s += 0.2
    assert frames.steps == [0, 1, 2]  # at 0, 0.2 and 0.4 s
    looks = clock.looks
    for step in range(10, 20):
        watcher.after(step)
    assert clock.looks == looks, "an expired wish still costs a look at the clock"
    watcher.request("greedy", 16, clock.now_s + 0.1)
    watcher.after(20)
    assert frames.steps == [0, 1, 2, 20]
    assert counts(frames)[-1] == [1, 0, 0, 1], "the episodes went on from where they were"


def test_an_expired_request_is_not_served():
    watcher, frames, clock = watched(SHOWN_COUNT)
    for until_s in (clock.now_s, clock.now_s - 5.0, math.nan, -math.inf):
        watcher.request("greedy", 16, until_s)
        watcher.after(0)
    assert frames.kept == [] and watcher._stage is None


def test_the_newest_request_counts():
    watcher, frames, clock = watched(SHOWN_COUNT)
    shapes = []
    for mode, size in (("greedy", 64), ("sampled", 16), ("greedy", 3), ("sampled", 96), ("greedy", 97), ("greedy", -1)):
        watcher.request("sampled", 50, math.inf)
        watcher.request(mode, size, math.inf)
        clock.now_s += 1.0
        watcher.after(0)
        _, told, pixels = frames.kept[-1]
        shapes.append((told, *pixels.shape))
    assert shapes == [
        ("greedy", 4, 64, 64, 3),
        ("sampled", 4, 16, 16, 3),
        ("greedy", 4, 16, 16, 3),
        ("sampled", 4, 96, 96, 3),
        ("greedy", 4, 96, 96, 3),
        ("greedy", 4, 16, 16, 3),
    ]


def test_frames_under_way_never_block_training(monkeypatch):
    arrived = False
    monkeypatch.setattr(live_agent.WatchedLanes, "arrived", lambda stage: arrived)
    watcher, frames, clock = watched(SHOWN_COUNT)
    watcher.request("greedy", 16, 101.0)
    for step in range(3):  # as on a busy GPU: the copy of the first takes 0.3 s, and no other is begun
        watcher.after(step)
        clock.now_s += 0.15
    assert frames.kept == []
    arrived = True
    watcher.after(3)
    assert frames.steps == [0, 3] and counts(frames)[1] == [2, 0, 0, 2]
    arrived = False
    clock.now_s += 0.2
    watcher.after(4)
    clock.now_s = 102.0
    watcher.after(5)  # nobody watches any more: what is on its way is dropped
    arrived = True
    watcher.request("greedy", 16, 103.0)
    watcher.after(6)
    assert frames.steps == [0, 3, 6]


# WHAT GOES WRONG


def test_an_environment_without_pictures_has_no_live_view():
    watcher, frames, _ = watched(replace(COUNT, name="count"))
    assert not watcher.available and watcher.unavailable_reason == "count draws no picture"
    watcher.request("greedy", 64, math.inf)
    watcher.after(0)
    assert frames.kept == [] and watcher._stage is None


@device
def _fails_to_compile(s, p, x, y):
    return s[0] + "red", 0.0, 0.0


@device
def _two_colours(s, p, x, y):
    return s[0], s[0]


def _plain_python(s, p, x, y):
    return s[0], s[0], s[0]


class Broken:
    """Writer whose disk is full."""

    def frame(self, step, pixels, **more):
        raise ValueError("no room for pictures\nsecond line")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shade", "writer", "sentence"),
    [
        (_fails_to_compile, None, "TypingError: "),
        (_two_colours, None, "TypingError: "),
        (_plain_python, None, "TypingError: "),
        (_count_shade, Broken(), "ValueError: no room for pictures"),
    ],
    ids=["does not compile", "two colours", "undecorated", "writer"],
)
def test_an_error_ends_the_live_view_and_not_the_training(shade, writer, sentence, caplog):
    alone, shown = trainer(COUNT), trainer(COUNT)
    watcher, frames, clock = watched(replace(COUNT, pixel_shader=shade), policy=shown.policy, writer=writer)
    with caplog.at_level(logging.WARNING, logger="operant"):
        for step in range(4):
            iterate(alone, 1)
            iterate(shown, 1)
            watcher.request("greedy", 16, math.inf)
            clock.now_s += 1.0
            watcher.after(step)
    assert (
        not watcher.available
        and watcher.unavailable_reason.startswith(sentence)
        and "\n" not in watcher.unavailable_reason
    )
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == [f"the live view has ended, training continues: {watcher.unavailable_reason}"]
    assert watcher._stage is None and getattr(frames, "kept", []) == []
    assert bytes_of(alone) == bytes_of(shown)


def test_a_stop_is_not_taken_for_an_error_of_the_live_view(monkeypatch):
    def interrupted(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(live_agent.WatchedLanes, "draw", interrupted)
    watcher, _, _ = watched(SHOWN_COUNT)
    watcher.request("greedy", 16, math.inf)
    with pytest.raises(KeyboardInterrupt):
        watcher.after(0)
    assert watcher.available


def test_a_closed_watcher_shows_nothing():
    watcher, frames, clock = watched(SHOWN_COUNT)
    watcher.request("greedy", 16, math.inf)
    watcher.after(0)
    watcher.close()
    watcher.request("greedy", 16, math.inf)
    clock.now_s += 1.0
    watcher.after(1)
    watcher.close()
    assert frames.steps == [0] and not watcher.available and watcher._stage is None


def test_a_request_at_the_end_of_the_run_is_dropped():
    # The other thread had looked whether there could be pictures just before this one gave up.
    watcher, frames, _ = watched(SHOWN_COUNT)
    watcher.close()
    watcher._request = live_agent._Request("greedy", 16, math.inf)
    watcher.after(0)
    assert frames.kept == [] and watcher._stage is None and watcher._request is watcher._served
