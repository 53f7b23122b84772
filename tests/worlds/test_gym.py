"""Gymnasium and Stable-Baselines3 adapters, against the underlying world and Gymnasium's own vector environment."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy import float32
from toys import FILL

from operant.envs import Box, Env, MultiDiscrete, cartpole, device
from operant.errors import MachineError, UsageError
from operant.gym import SB3VecEnv, make_vec
from operant.worlds import gym
from operant.worlds import sb3 as sb3_adapter
from operant.worlds.device_world import DeviceWorld
from operant.worlds.painting import Painter

SHORT = dataclasses.replace(cartpole.ENV, time_limit=12)  # ends both ways under random pushes


class BoardParams(NamedTuple):
    step: int = 1
    pay: float = 0.5


@device
def board_reset(s, p, key):
    s[0] = float32(0.0)
    s[1] = float32(0.0)


@device
def board_step(s, action, p, key, tally):
    s[0] += p.step * action[0]
    s[1] += p.step * action[1]
    tally[0] += float32(action[1])
    return action[0] * p.pay, s[0] >= 4


@device
def large_step(s, action, p, key, tally):
    s[0] += float32(1.0)
    return float32(2.0**24) if s[0] == float32(1.0) else float32(1.0), s[0] >= float32(5.0)


@device
def board_observe(s, obs, p):
    for k in range(6):
        obs[k] = int(s[0]) + 10 * int(s[1]) + 100 * (k // 3)


# Pictures of 2 x 3 bytes, two actions at once, a tally.
BOARD = Env(
    BoardParams,
    2,
    observation=Box(6, dtype="uint8", shape=(2, 3)),
    action=MultiDiscrete((3, 2)),
    time_limit=6,
    reset=board_reset,
    step=board_step,
    observe=board_observe,
    tally=("score",),
    name="board",
)


def shape_of(value):
    """Keys, shapes and types of an info, without its values."""
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in value.items()}
    inner = sorted({str(shape_of(item)) for item in value if item is not None}) if value.dtype == object else []
    return type(value), value.shape, value.dtype, inner


def pushes(steps: int, lanes: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, (steps, lanes))


# --- Gymnasium ---


def test_is_a_vector_environment_with_gymnasiums_spaces():
    vector = make_vec("CartPole-v1", 3, seed=1)
    assert isinstance(vector, VectorEnv)
    assert vector.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert vector.num_envs == 3
    assert vector.single_action_space == gymnasium.spaces.Discrete(2)
    assert vector.action_space == gymnasium.spaces.MultiDiscrete([2, 2, 2])
    assert vector.single_observation_space.shape == (4,)
    assert vector.observation_space.shape == (3, 4)
    assert vector.observation_space.dtype == np.float32
    observations, info = vector.reset(seed=3)
    assert info == {}
    assert vector.np_random_seed == 3
    assert vector.observation_space.contains(observations)
    vector.action_space.seed(0)
    for _ in range(5):
        observations, *_ = vector.step(vector.action_space.sample())
        assert vector.observation_space.contains(observations)


def test_spaces_have_the_environments_bounds():
    env = dataclasses.replace(BOARD, observation=Box(2, (-1.0, -8.0), (1.0, 8.0)), action=Box(2, -2.0, (2.0, 3.0)))
    vector = make_vec(env)
    low, high = np.array([-1, -8], np.float32), np.array([1, 8], np.float32)
    assert vector.single_observation_space == gymnasium.spaces.Box(low, high, dtype=np.float32)
    assert vector.single_action_space == gymnasium.spaces.Box(
        np.array([-2, -2], np.float32), np.array([2, 3], np.float32)
    )
    assert vector.action_space.shape == (1, 2)
    cartpole = make_vec("cartpole", params={"gravity": 9.8}).single_observation_space
    assert cartpole.shape == (4,) and cartpole.dtype == np.float32
    assert np.array_equal(cartpole.high, np.array([4.8, np.inf, 24 * np.pi / 180, np.inf], np.float32))


def test_with_other_parameters_only_bytes_are_bounded():
    vector = make_vec("cartpole", 64, seed=1, params={"x_limit": 1000.0, "theta_limit": 3.0})
    assert np.isinf(vector.single_observation_space.high).all() and np.isinf(vector.single_observation_space.low).all()
    vector.reset()
    leant = 0.0
    for _ in range(60):
        observations, *_ = vector.step(np.ones(64, np.int64))
        assert vector.observation_space.contains(observations)
        leant = max(leant, abs(observations[:, 2]).max())
    assert leant > 24 * np.pi / 180
    assert (
        make_vec("snake", params={"food": 2.0}).single_observation_space == make_vec("snake").single_observation_space
    )


def test_same_trajectory_as_the_world():
    N, T = 6, 60
    vector = make_vec(SHORT, N, seed=7)
    world = DeviceWorld(SHORT, N, seed=7, every_final=True)
    slot = world.slot()
    world.reset(world.bind(slot))
    observations, _ = vector.reset()
    assert np.array_equal(observations, slot.observation.numpy().T)
    ended_lanes = 0
    for actions in pushes(T, N):
        observations, rewards, terminated, truncated, info = vector.step(actions)
        slot.action.copy_(torch.from_numpy(actions))
        lengths, returns = world.lanes.age + 1, world.lanes.running[0].clone()
        world.step(world.bind(slot))
        world.advance(1)
        returns += slot.reward
        assert np.array_equal(observations, slot.observation.numpy().T)
        assert np.array_equal(rewards, slot.reward.numpy())
        assert np.array_equal(terminated, slot.terminated.numpy())
        assert np.array_equal(truncated, slot.truncated.numpy())
        ended = np.flatnonzero(terminated | truncated)
        assert bool(info) == bool(ended.size)
        for i in ended:
            assert np.array_equal(info["final_obs"][i], slot.final_observation[:, i].numpy())
            assert not np.array_equal(info["final_obs"][i], observations[i])
            assert info["final_info"]["episode"]["l"][i] == lengths[i] > 0
            assert info["final_info"]["episode"]["r"][i] == returns[i]
        ended_lanes += ended.size
    assert ended_lanes > N


def test_infos_have_gymnasiums_keys_shapes_and_types():
    ours = make_vec("CartPole-v1", 2, seed=0)
    theirs = gymnasium.make_vec(
        "CartPole-v1",
        num_envs=2,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
        wrappers=[gymnasium.wrappers.RecordEpisodeStatistics],
    )
    assert theirs.metadata["autoreset_mode"] is ours.metadata["autoreset_mode"]
    assert theirs.single_action_space == ours.single_action_space
    assert theirs.action_space == ours.action_space
    infos = []
    for vector in (ours, theirs):
        first, info = vector.reset(seed=0)
        infos.append([])
        for _ in range(30):  # pushing one way topples the pole within a dozen steps; the lanes end in different ones
            actions = np.array([1, vector is ours], dtype=np.int64)
            observations, rewards, terminated, truncated, info = vector.step(actions)
            infos[-1].append(info)
        shapes = [(array.shape, array.dtype) for array in (first, observations, rewards, terminated, truncated)]
        assert shapes == [
            ((2, 4), np.float32),
            ((2, 4), np.float32),
            ((2,), np.float64),
            ((2,), np.bool_),
            ((2,), np.bool_),
        ]
    ended = [[info for info in run if info] for run in infos]
    assert all(0 < len(run) < 30 for run in ended)
    assert len({str(shape_of(info)) for run in ended for info in run}) == 1, [shape_of(run[0]) for run in ended]
    for run in ended:
        for info in run:
            for i in range(2):
                assert (info["final_obs"][i] is not None) == info["_final_obs"][i] == info["_final_info"][i]
                assert (info["final_info"]["episode"]["l"][i] > 0) == info["final_info"]["_episode"][i]


def test_gymnasiums_vector_wrappers_agree():
    vector = gymnasium.wrappers.vector.RecordEpisodeStatistics(make_vec(SHORT, 4, seed=2))
    listed = gymnasium.wrappers.vector.DictInfoToList(vector)
    listed.reset()
    ended: list[int] = []
    for actions in pushes(40, 4):
        _, _, terminated, truncated, infos = listed.step(actions)
        for i in np.flatnonzero(terminated | truncated):
            ours, theirs = infos[i]["final_info"]["episode"], infos[i]["episode"]
            if i not in ended:  # a lane's first episode: before 1.4 the wrapper does not know of resets within a step
                assert (ours["r"], ours["l"]) == (theirs["r"], theirs["l"])
            ended.append(i)
    assert vector.episode_count == len(ended) > len(set(ended)) == 4


def test_pictures_several_actions_and_tallies():
    vector = make_vec(BOARD, 2, seed=0, params={"pay": 2})
    observations, _ = vector.reset()
    space = vector.single_observation_space
    assert (space.shape, space.dtype, space.low.max(), space.high.min()) == ((2, 3), np.uint8, 0, 255)
    assert observations.shape == (2, 2, 3) and observations.dtype == np.uint8
    assert observations[0].tolist() == [[0, 0, 0], [100, 100, 100]]
    actions = np.array([[2, 1], [1, 0]])
    _, rewards, terminated, _, info = vector.step(actions)
    assert (rewards.tolist(), terminated.tolist(), info) == ([4.0, 2.0], [False, False], {})
    observations, _, terminated, truncated, info = vector.step(actions)
    assert (terminated.tolist(), truncated.tolist()) == ([True, False], [False, False])
    assert observations[:, 0, 0].tolist() == [0, 2]
    assert info["final_obs"][0].tolist() == [[24, 24, 24], [124, 124, 124]]
    assert info["final_obs"][1] is None
    assert info["final_info"]["episode"]["r"].tolist() == [8.0, 0.0]
    assert info["final_info"]["episode"]["l"].tolist() == [2, 0]
    assert info["final_info"]["tally"]["score"].tolist() == [2.0, 0.0]
    assert info["final_info"]["tally"]["_score"].tolist() == [True, False]
    for _ in range(4):
        _, _, terminated, truncated, info = vector.step(np.array([[0, 0], [0, 0]]))
    assert (terminated.tolist(), truncated.tolist()) == ([False, False], [False, True])
    assert info["final_obs"][1].tolist() == [[2, 2, 2], [102, 102, 102]]


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_returns_are_summed_in_double_precision(output):
    # A first reward of 2^24, then ones: float32 cannot add one to it.
    environment = dataclasses.replace(cartpole.ENV, reset=board_reset, step=large_step)
    vector = make_vec(environment, 2, seed=1, output=output)
    vector.reset()
    for _ in range(2):  # two episodes: the second begins at zero
        for _ in range(5):
            *_, info = vector.step(np.zeros(2, np.int64))
        assert [float(total) for total in info["final_info"]["episode"]["r"]] == [2.0**24 + 4.0] * 2
    vector.step(np.zeros(2, np.int64))
    vector.reset()
    for _ in range(5):
        *_, info = vector.step(np.zeros(2, np.int64))
    assert float(info["final_info"]["episode"]["r"][0]) == 2.0**24 + 4.0


def test_arrays_are_copies():
    vector = make_vec(SHORT, 2, seed=0)
    vector.reset()
    results = [vector.step(actions)[:4] for actions in pushes(8, 2)]
    kept = [[array.copy() for array in result] for result in results]
    vector.step(np.array([0, 1]))
    assert all(
        np.array_equal(a, b) for one, other in zip(results, kept, strict=True) for a, b in zip(one, other, strict=True)
    )
    assert all(result[0].flags.c_contiguous and result[0].flags.writeable for result in results)


# --- tensors ---


def test_masks_are_those_of_the_boards_shown():
    arrays, tensors = make_vec(FILL, 4, seed=3), make_vec(FILL, 4, seed=3, output="torch")
    observations, info = arrays.reset()
    _, other = tensors.reset()
    for t in range(12):
        assert info["action_mask"].dtype == np.int8 and np.array_equal(info["action_mask"], 1 - observations)
        assert info["_action_mask"].all() and other["_action_mask"].all()
        assert np.array_equal(other["action_mask"].numpy(), info["action_mask"])
        assert np.array_equal(arrays.action_masks(), observations == 0) and np.array_equal(
            tensors.action_masks().numpy(), observations == 0
        )
        space = arrays.single_action_space
        actions = np.array([space.sample(mask) for mask in info["action_mask"]])
        if t < 3:
            assert np.take_along_axis(observations, actions[:, None], 1).sum() == 0
        observations, _, _, _, info = arrays.step(actions)
        *_, other = tensors.step(torch.from_numpy(actions))
    assert "final_info" in other
    unmasked = make_vec("cartpole", 2)
    assert unmasked.reset()[1] == {}
    with pytest.raises(UsageError, match="defines no legal actions"):
        unmasked.action_masks()


def test_pictures_are_observations():
    arrays, tensors = (make_vec(FILL, 3, seed=3, pixels=16, output=output) for output in ("numpy", "torch"))
    world = DeviceWorld(FILL, 3, seed=3)
    painter, canvas = Painter(world), torch.zeros(3, 16, 16, 3, dtype=torch.uint8)
    slot = world.slot()
    world.reset(world.bind(slot))
    observations, _ = arrays.reset()
    same, _ = tensors.reset()
    assert arrays.single_observation_space == gymnasium.spaces.Box(0, 255, (16, 16, 3), np.uint8)
    ends = 0
    for t in range(9):
        painter(painter.bind(canvas))
        assert np.array_equal(observations, canvas.numpy()) and torch.equal(same, canvas)
        slot.action.copy_(torch.tensor([[t % 6] * 3]))
        world.step(world.bind(slot))
        world.advance(1)
        observations, _, terminated, truncated, info = arrays.step(np.full(3, t % 6))
        same, *_ = tensors.step(torch.full((3,), t % 6))
        for i in np.flatnonzero(terminated | truncated):
            ends += 1
            assert (
                info["final_obs"][i].shape == (16, 16, 3) and (info["final_obs"][i][15, :, 0] == 255).sum() > 6
            )  # more than the two squares of a beginning
    assert ends >= 6
    with pytest.raises(UsageError, match="draws no picture"):
        make_vec(dataclasses.replace(FILL, pixel_shader=None), pixels=16)
    with pytest.raises(UsageError, match="the side of a picture"):
        make_vec(FILL, pixels=0)


def test_tensors_are_the_worlds_own_memory():
    vector = make_vec(SHORT, 5, seed=4, output="torch")
    slots = [slot for slot, _ in vector._slots]
    first, _ = vector.reset()
    before = first.clone()
    observations, rewards, terminated, truncated, _ = vector.step(torch.ones(5, dtype=torch.int64))
    slot = next(slot for slot in slots if slot.observation.data_ptr() == observations.data_ptr())
    assert rewards.data_ptr() == slot.reward.data_ptr()
    assert terminated.data_ptr() == slot.terminated.data_ptr()
    assert truncated.data_ptr() == slot.truncated.data_ptr()
    assert [tuple(tensor.shape) for tensor in (observations, rewards, terminated, truncated)] == [
        (5, 4),
        (5,),
        (5,),
        (5,),
    ]
    assert [tensor.dtype for tensor in (observations, rewards, terminated)] == [
        torch.float32,
        torch.float32,
        torch.bool,
    ]
    # The observation before a step outlives the step, and no more than that is promised.
    assert torch.equal(first, before)
    vector.step(torch.ones(5, dtype=torch.int64))
    assert not torch.equal(first, before)


def test_tensors_hold_the_same_numbers_as_arrays():
    arrays, tensors = make_vec(SHORT, 4, seed=4), make_vec(SHORT, 4, seed=4, output="torch")
    assert np.array_equal(arrays.reset()[0], tensors.reset()[0].numpy())
    seen = 0
    for actions in pushes(40, 4):
        *expected, info = arrays.step(actions)
        *got, device_info = tensors.step(torch.from_numpy(actions))
        for a, b in zip(expected, got, strict=True):
            assert np.array_equal(a, b.numpy())
        ended = device_info["_final_obs"].numpy()
        assert np.array_equal(ended, expected[2] | expected[3])
        assert device_info["final_info"].keys() == {"episode", "_episode"}
        for i in np.flatnonzero(ended):
            assert np.array_equal(info["final_obs"][i], device_info["final_obs"][i].numpy())
            for key in "rl":
                assert info["final_info"]["episode"][key][i] == device_info["final_info"]["episode"][key][i].item()
            seen += 1
    assert seen > 4
    tallied = make_vec(BOARD, 2, seed=0, output="torch")
    assert tallied.reset()[0].shape == (2, 2, 3)
    info = tallied.step(torch.tensor([[2, 1], [2, 1]]))[4]
    assert info["final_info"]["tally"]["score"].tolist() == [0.0, 0.0]
    assert tallied.step(torch.tensor([[2, 1], [2, 1]]))[4]["final_info"]["tally"]["score"].tolist() == [2.0, 2.0]


# --- seeds ---


def test_equal_seeds_give_equal_trajectories():
    def rollout(vector, **options):
        first, _ = vector.reset(**options)
        return np.stack([first, *(vector.step(actions)[0] for actions in pushes(30, 3))])

    vector = make_vec(SHORT, 3, seed=5)
    first = rollout(vector)
    assert not np.array_equal(first, rollout(vector))  # a second reset goes on with new numbers
    assert np.array_equal(first, rollout(vector, seed=5))  # a seed begins again
    assert np.array_equal(first, rollout(make_vec(SHORT, 3), seed=np.int64(5)))
    assert not np.array_equal(first, rollout(vector, seed=6))
    assert not np.array_equal(rollout(make_vec(SHORT, 3)), rollout(make_vec(SHORT, 3)))


# --- mistakes ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "cartpol"}, r"unknown environment 'cartpol' - did you mean 'cartpole'\?"),
        ({"num_envs": 0}, "num_envs is 0"),
        ({"output": "jax"}, "output is 'jax'"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": [1, 2]}, r"seed is \[1, 2\]"),
        ({"device": "gpu"}, "device is 'gpu'"),
        ({"device": "meta"}, "device is 'meta'"),
        ({"params": {"gravty": 3.0}}, r"cartpole has no parameter 'gravty' \(did you mean 'gravity'\?\)"),
        ({"params": {"gravity": "3"}}, r"parameter 'gravity' of cartpole: input should be a number \(got '3'\)"),
        ({"params": {"gravity": True}}, r"'gravity' of cartpole: input should be a number \(got True\)"),
        ({"params": 3}, "params is 3"),
        ({"name": BOARD, "params": {"step": 1.5}}, r"'step' of board: input should be a whole number \(got 1.5\)"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(UsageError, match=message):
        make_vec(**{"name": "cartpole"} | arguments)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.array([0, 1]), r"shape \(2,\): it must be \(3,\)"),
        (np.array([0.0, 1.0, 1.0]), "actions are float64"),
        (np.array([0, 2, 1]), r"not in Discrete\(2\): they run from 0 to 2"),
        (torch.tensor([0, -1, 1]), "run from -1 to 1"),
        ("left", "cannot be read"),
    ],
)
def test_wrong_actions_are_named(actions, message):
    vector = make_vec("cartpole", 3, seed=1)
    vector.reset()
    with pytest.raises(UsageError, match=message):
        vector.step(actions)


def test_step_before_reset_and_after_close_are_refused():
    vector = make_vec("cartpole", 2, seed=1)
    with pytest.raises(UsageError, match="before reset"):
        vector.step(np.array([0, 1]))
    with pytest.raises(UsageError, match="reset_mask"):
        vector.reset(options={"reset_mask": np.array([True, False])})
    vector.reset(options={})
    vector.close()
    vector.close()
    assert vector.closed
    for call in (vector.reset, lambda: vector.step(np.array([0, 1]))):
        with pytest.raises(UsageError, match="closed"):
            call()


def test_a_missing_gpu_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MachineError, match="no CUDA"):
        make_vec("cartpole", device="cuda:1")


def test_whole_numbers_for_float_parameters_become_floats():
    given = make_vec("cartpole", params={"gravity": 10}).world.params
    assert isinstance(given.gravity, float) and given.gravity == 10.0
    assert make_vec("cartpole", params=given).world.params == given


def test_missing_packages_are_named_with_the_line_that_installs_them(monkeypatch):
    def load(source):
        spec = importlib.util.spec_from_file_location("operant_gym_again", source.__file__)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.vec_env", None)
    with pytest.raises(MachineError, match='pip install "stable-baselines3'):
        load(sb3_adapter).SB3VecEnv("cartpole")
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MachineError, match='pip install "gymnasium'):
        load(gym)


# --- Stable-Baselines3 ---


def test_sb3_infos_and_seeds():
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import VecEnv

    sb3, vector = SB3VecEnv(SHORT, 4, seed=3), make_vec(SHORT, 4, seed=3)
    assert isinstance(sb3, VecEnv)
    assert sb3.observation_space == vector.single_observation_space
    assert np.array_equal(sb3.reset(), vector.reset()[0])
    kinds = set()
    for actions in pushes(60, 4):
        observations, rewards, ended, infos = sb3.step(actions)
        expected, expected_rewards, terminated, truncated, info = vector.step(actions)
        assert np.array_equal(observations, expected)
        assert np.array_equal(rewards, expected_rewards) and rewards.dtype == np.float32
        assert np.array_equal(ended, terminated | truncated)
        for i in range(4):
            kinds.add((bool(terminated[i]), bool(truncated[i])))
            assert infos[i]["TimeLimit.truncated"] is bool(truncated[i] and not terminated[i])
            assert ("terminal_observation" in infos[i]) == ("episode" in infos[i]) == ended[i]
            if ended[i]:
                assert np.array_equal(infos[i]["terminal_observation"], info["final_obs"][i])
                assert infos[i]["episode"]["l"] == info["final_info"]["episode"]["l"][i]
                assert infos[i]["episode"]["r"] == info["final_info"]["episode"]["r"][i]
                assert infos[i]["episode"].keys() == {"r", "l", "t"}
    assert {(True, False), (False, True)} < kinds

    sb3.seed(3)
    assert np.array_equal(sb3.reset(), make_vec(SHORT, 4, seed=3).reset()[0])
    assert sb3.get_attr("num_envs", [0, 2]) == [4, 4]
    assert not sb3.has_attr("nothing")
    assert sb3.env_is_wrapped(object, 1) == [False]
    for call in (lambda: sb3.set_attr("gravity", 1.0), lambda: sb3.env_method("render")):
        with pytest.raises(UsageError, match="columns of a tensor"):
            call()
    sb3.set_options({"low": 1})
    with pytest.raises(UsageError, match="no options"):
        sb3.reset()
    sb3.close()


def test_sb3_episode_carries_the_tallies():
    pytest.importorskip("stable_baselines3")
    sb3 = SB3VecEnv(BOARD, 1, seed=0)
    sb3.reset()
    sb3.step(np.array([[2, 1]]))
    _, _, _, infos = sb3.step(np.array([[2, 1]]))
    assert infos[0]["episode"]["score"] == 2.0
    assert infos[0]["terminal_observation"].shape == (2, 3)


def test_sb3_finds_the_masks():
    """Masks from the calls of `sb3_contrib.common.maskable.utils`."""
    pytest.importorskip("stable_baselines3")
    sb3 = SB3VecEnv(FILL, 3, seed=0)
    observations = sb3.reset()
    assert sb3.has_attr("action_masks") and not SB3VecEnv(BOARD, 1).has_attr("action_masks")
    assert np.array_equal(np.stack(sb3.env_method("action_masks")), observations == 0)
    assert np.array_equal(np.stack(sb3.env_method("action_masks", indices=[2])), observations[2:] == 0)


def test_sb3_ppo_trains():
    pytest.importorskip("stable_baselines3")
    from stable_baselines3 import PPO

    env = SB3VecEnv(SHORT, 4, seed=0)
    model = PPO("MlpPolicy", env, n_steps=16, batch_size=32, n_epochs=1, seed=0, device="cpu")
    before = [parameter.detach().clone() for parameter in model.policy.parameters()]
    model.learn(2 * 4 * 16)
    assert model.num_timesteps == 128
    assert len(model.ep_info_buffer) > 4  # SB3 found our episodes
    assert any(not torch.equal(a, b) for a, b in zip(before, model.policy.parameters(), strict=True))
