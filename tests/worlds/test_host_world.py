"""Outside environments: transitions equal Gymnasium's, faults are reported as sentences, and an ended process leaves
nothing behind.
"""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from waiting import wait_until

import operant
from operant.envs import outside
from operant.errors import EnvironmentFailedError, OperantError
from operant.host.image import resized
from operant.host.processes import distribute
from operant.host.source import Lane, Source
from operant.worlds.host_world import HostWorld, lane_seeds

gymnasium = pytest.importorskip("gymnasium")

LANES, SEED = 5, 3
MINE = Path(__file__).parents[1] / "outside_toys.py"


def env_of(name, *, processes=0, timeout_s=60.0, reward_clip=None, **changes):
    kind = "file" if ".py" in name else "gymnasium"
    found = outside.declare(Source(kind, name, **changes))
    return replace(found, hosting=outside.Hosting(processes, 2, timeout_s, reward_clip))


def actions(world, generator):
    space = world.spec.action
    if hasattr(space, "low"):
        return torch.from_numpy(generator.uniform(-3, 3, (space.size, world.count)).astype(np.float32))
    return torch.from_numpy(generator.integers(0, space.n, (1, world.count)).astype(np.int32))


def played(world, steps):
    """Slots of some steps, as arrays."""
    slot, generator, seen = world.slot(), np.random.default_rng(7), []
    world.reset(slot)
    seen.append({"observation": slot.observation.clone()})
    for _ in range(steps):
        slot.action.copy_(actions(world, generator))
        world.step(slot)
        world.advance(1)
        seen.append({name: value.clone() for name, value in slot._asdict().items() if value is not None})
    return seen


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1", "LunarLander-v3"]
)
def test_transitions_are_those_of_gymnasium_by_hand(name):
    if name == "LunarLander-v3":
        pytest.importorskip("Box2D")
    limit, steps = 13, 40
    world = HostWorld(env_of(name, time_limit=limit), LANES, seed=SEED)
    seen = played(world, steps)
    for lane, seed in enumerate(lane_seeds(SEED, 0, 0, LANES)):
        hand = gymnasium.make(name, max_episode_steps=limit)
        row = np.zeros(world.spec.observation.size, world.spec.observation.dtype)
        write = Lane(world.spec.source).view.frame

        def check(value, there, row=row, write=write):
            write(value, row)
            assert np.array_equal(row, there.numpy())

        check(hand.reset(seed=int(seed))[0], seen[0]["observation"][:, lane])
        for step in seen[1:]:
            chosen = step["action"][:, lane].numpy()
            value, reward, terminated, truncated, _ = hand.step(
                chosen if hasattr(world.spec.action, "low") else int(chosen[0])
            )
            outcome = (np.float32(reward), terminated, truncated)
            assert (
                step["reward"][lane].item(),
                bool(step["terminated"][lane]),
                bool(step["truncated"][lane]),
            ) == outcome
            if terminated or truncated:
                check(value, step["final_observation"][:, lane])
                value = hand.reset()[0]
            check(value, step["observation"][:, lane])
    ended = sum(int((step["terminated"] | step["truncated"]).sum()) for step in seen[1:])
    sums = world.episode_sums(world.slot())
    assert ended >= LANES and int(sums[0]) == ended and float(world.episode_sums(world.slot())[0]) == 0


def test_worker_processes_give_the_bits_of_in_process_steps():
    alone, shared = (HostWorld(env_of("CartPole-v1", processes=count), LANES, seed=SEED) for count in (0, 2))
    for one, other in zip(played(alone, 60), played(shared, 60), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    shared.close()


@pytest.mark.parametrize(("lanes", "buffers", "processes"), [(16, 2, 16), (5, 2, 3), (64, 8, 16), (7, 3, 2)])
def test_lanes_are_distributed_evenly_over_processes(lanes, buffers, processes):
    parts = [range(k * lanes // buffers, (k + 1) * lanes // buffers) for k in range(buffers)]
    shares = distribute(parts, processes)
    counts = [sum(map(len, share)) for share in shares]
    assert max(counts) - min(counts) <= 1
    assert [sorted(lane for share in shares for lane in share[k]) for k in range(buffers)] == [
        list(part) for part in parts
    ]


def test_actions_beyond_their_bounds_are_clipped_in_place():
    world = HostWorld(env_of("Pendulum-v1"), LANES, seed=SEED)
    assert max(step["action"].abs().max() for step in played(world, 5)[1:]) == 2.0


def test_masks_come_from_info():
    world = HostWorld(env_of("Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3"), LANES, seed=SEED)
    slot = world.slot()
    world.reset(slot)
    assert world.spec.mask_size == 6 and slot.observation.sum() == LANES and 0 < slot.legal.sum() < 6 * LANES


def test_frames_are_skipped_and_stacked_and_rewards_clipped():
    toy = f"{MINE}:counting"
    world = HostWorld(env_of(toy, frame_skip=3, frame_stack=2, reward_clip=1.0), 2, seed=SEED)
    seen = played(world, 4)
    assert [step["observation"][:, 0].tolist() for step in seen] == [[0, 0], [0, 3], [3, 6], [6, 9], [0, 0]]
    assert [step["reward"][0].item() for step in seen[1:]] == [1.0] * 4 and seen[4]["final_observation"][
        :, 0
    ].tolist() == [9, 10]
    assert world.episode_sums(world.slot()).tolist() == [2, 8, 20]  # two lanes: of length 4, the whole return 10


def test_pictures_are_grayscaled_and_resized():
    world = HostWorld(env_of(f"{MINE}:pictures", grayscale=True, resize=8, frame_stack=2), 2, seed=SEED)
    slot = world.slot()
    world.reset(slot)
    picture = slot.observation.t().reshape(2, 8, 8, 2)
    assert world.spec.observation.shape == (8, 8, 2) and slot.observation.dtype == torch.uint8
    assert picture[0, :4].unique().tolist() == [round(0.299 * 200)] and picture[0, 4:].unique().tolist() == [0]


@pytest.mark.parametrize(
    "changes",
    [{"grayscale": True, "resize": 9}, {"resize": 20, "frame_stack": 3}, {"grayscale": True, "frame_stack": 2}],
)
def test_preprocessing_on_the_device_equals_that_in_the_processes(changes):
    """Equal bytes, final observations included."""
    env = env_of(f"{MINE}:noisy", **changes)
    for one, other in zip(*(played(HostWorld(env, 2, seed=SEED, raw=raw), 12) for raw in (False, True)), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert len(one["observation"].unique()) > 20 and one["final_observation"].any()


def test_a_resized_pixel_is_the_mean_of_its_area():
    picture = np.random.default_rng(1).integers(0, 256, (7, 11, 3), dtype=np.uint8)
    whole = picture.repeat(3, axis=0).repeat(5, axis=1).astype(np.float64)  # 21 x 55: parts of 7 and 11
    assert np.array_equal(
        resized(picture, 3, 5), np.rint(whole.reshape(3, 7, 5, 11, 3).mean(axis=(1, 3))).astype(np.uint8)
    )
    assert np.array_equal(resized(picture, 14, 22), picture.repeat(2, axis=0).repeat(2, axis=1))


@pytest.mark.parametrize("processes", [0, 1])
def test_an_environment_that_raises_is_named_with_its_lane_and_action(processes):
    world = HostWorld(env_of(f"{MINE}:raising", processes=processes), 2, seed=SEED)
    with pytest.raises(
        EnvironmentFailedError,
        match=r"toys.py:raising: `step` of lane [01], after action \[[01]\] raised ValueError: at step 3",
    ) as caught:
        played(world, 9)
    assert "raise ValueError" in caught.value.detail and "outside_toys.py" in caught.value.detail
    world.close()


@pytest.mark.slow
def test_a_hanging_or_dying_environment_is_reported_within_the_timeout():
    with pytest.raises(
        EnvironmentFailedError,
        match=r"`step` of lane 0 \(last action \[[01]\]\) did not return within 0.5 s: env.timeout_s",
    ):
        played(HostWorld(env_of(f"{MINE}:hanging", processes=1, timeout_s=0.5), 1, seed=SEED), 9)
    with pytest.raises(EnvironmentFailedError, match=r"the process of lane 0 .* ended by SIGKILL in `step`"):
        played(HostWorld(env_of(f"{MINE}:dying", processes=1), 1, seed=SEED), 9)


def test_a_number_that_is_not_finite_is_named():
    with pytest.raises(
        EnvironmentFailedError,
        match=r"number 1 of the observation|observation\[1\] of the observation of lane 0 is nan after action",
    ):
        played(HostWorld(env_of(f"{MINE}:not_finite"), 1, seed=SEED), 9)


WRONG_VALUES = {
    "shrunk": r"the observation of lane \S+ has the shape \(1,\), its space \(3,\)",
    "scalar": r"the observation of lane \S+ has the shape \(\), its space \(3,\)",
    "transposed": r"the observation of lane \S+ has the shape \(2, 3\), its space \(3, 2\)",
    "byte": r"observation\[2\] of lane \S+ is 300, its space has 0 to 255",
    "negative": r"hand\[1\] of lane \S+ is -1, its space has 0 to 3",
    "choice": r"the observation of lane \S+ is 9, its space has 0 to 2",
    "one_hot": r"the observation of lane \S+ is 305, its space has 5 to 304",
    "binary": r"observation\[0\]\[0\] of lane \S+ is 2, its space has 0 to 1",
    "fraction": r"observation\[0, 0, 0\] of lane \S+ is 0.7, its space has whole numbers from 0 to 255",
    "cropped": r"the observation of lane \S+ has the shape \(19, 20, 1\), its space \(20, 20, 1\)",
    "channels": r"observation\[0, 0, 0\] of lane \S+ is 300, its space has 0 to 255",
    "no_action": r"the action_mask of lane \S+ allows no action",
    "long_mask": r"the action_mask of lane \S+ has 3 entries for 2 actions",
}


@pytest.mark.parametrize("case", WRONG_VALUES)
def test_a_value_that_is_not_in_its_space_ends_the_run_with_a_sentence(case):
    """It was broadcast, cut to a byte or ignored."""
    with pytest.raises(
        EnvironmentFailedError,
        match=rf"toys.py:wrong: {WRONG_VALUES[case]}, after action \[[01]\] in step 4 of its episode$",
    ):
        played(HostWorld(env_of(f"{MINE}:wrong", kwargs=(("case", case),)), 2, seed=SEED), 9)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ("reset", r"the result of `reset` is of type ndarray; it must be \(observation, info\), after reset"),
        ("step", r"the result of `step` of lane \S+ is 4 values \(ndarray, float, bool, dict\); it must be \(obs"),
        ("reward", r"the result of `step` of lane \S+ is 5 values \(ndarray, NoneType, bool, bool, dict\); it must be"),
    ],
)
def test_a_result_of_another_form_ends_the_run_with_a_sentence(call, sentence):
    with pytest.raises(OperantError, match=rf"toys.py:old_api: {sentence}"):
        played(HostWorld(env_of(f"{MINE}:old_api", kwargs=(("call", call),)), 2, seed=SEED), 3)


@pytest.mark.parametrize("case", ["byte", "choice", "fraction", "channels", "no_action", "long_mask"])
def test_a_vector_environments_value_that_is_not_in_its_space_too(case):
    with pytest.raises(EnvironmentFailedError, match=rf"{WRONG_VALUES[case]}, after action \[[01]\] in step 4 of"):
        played(HostWorld(env_of(f"{MINE}:wrong_vector", kwargs=(("case", case),)), 2, seed=SEED), 9)


def test_a_vector_environments_wrong_shape_names_its_lanes():
    with pytest.raises(EnvironmentFailedError, match=r"of lane 0 to 1 has the shape \(2, 1\), its space \(2, 3\)"):
        played(HostWorld(env_of(f"{MINE}:wrong_vector", kwargs=(("case", "shrunk"),)), 4, seed=SEED), 9)


def test_a_wrong_first_value_is_named_by_a_worker_process():
    """The mask may be empty where an episode ends, but not where one begins."""
    world = HostWorld(env_of(f"{MINE}:without_first_action", processes=1), 2, seed=SEED)
    with pytest.raises(EnvironmentFailedError, match=r"the action_mask of lane 0 allows no action, after reset$"):
        played(world, 9)
    world.close()


def test_an_environment_whose_close_raises_is_trained_with_a_warning(caplog):
    env = env_of(f"{MINE}:unclosable")
    assert "toys.py:unclosable: `close` raised OSError: the display is gone" in caplog.text
    caplog.clear()
    world = HostWorld(env, 2, seed=SEED)
    assert played(world, 3)[-1]["observation"].tolist() == [[3, 3]]
    world.close()
    assert caplog.text.count("`close` raised OSError") == 2


HOLDS = """
import sys, time
sys.path[:0] = sys.argv[1:3]
from operant.envs import outside
from operant.host.processes import LaneProcesses
from operant.host.lanes import BlockLayout
from operant.host.source import Source
shape = BlockLayout(4, 1, "float32", 1, "int32", 0)
steppers = LaneProcesses(Source("file", sys.argv[3]), shape, [range(4)], processes=2, timeout_s=60.0)
print("ready", flush=True)
time.sleep(600)
"""


def segments():
    return set(os.listdir("/dev/shm"))


@pytest.mark.slow
@pytest.mark.parametrize("cycles", [2, pytest.param(100, marks=pytest.mark.soak)])
def test_a_killed_trainer_leaves_no_process_and_no_memory(cycles):
    before = segments()
    home = str(Path(operant.__file__).parents[1])
    for _ in range(cycles):
        program = [sys.executable, "-c", HOLDS, home, str(MINE.parent), f"{MINE}:hanging"]
        holder = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        assert holder.stdout.readline() == "ready\n"
        workers = [worker.pid for worker in psutil.Process(holder.pid).children()]
        assert len(workers) == 2
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
        wait_until(lambda workers=workers: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    assert segments() <= before
