"""The three autoreset modes and partial resets, value for value against Gymnasium's own vector environment; and
wrappers that need a mode.
"""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from gymnasium.wrappers import vector as wrappers
from toys import COUNT, FILL

from operant.errors import UsageError
from operant.gym import make_vec

MODES = ["same_step", "next_step", "disabled"]
LANES, STEPS = 6, 16


class Count(gymnasium.Env):
    """toys.COUNT in plain Python: the observation counts steps; lane k > 0 terminates at k, lane 0 never; the reward is
    the count.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, lane):
        self.last = lane or 10**6

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.counted = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.counted += 1
        return np.full(1, self.counted, np.float32), float(self.counted), self.counted >= self.last, False, {}


def theirs(mode):
    def maker(lane):
        return lambda: RecordEpisodeStatistics(TimeLimit(Count(lane), COUNT.time_limit))

    return SyncVectorEnv([maker(lane) for lane in range(LANES)], autoreset_mode=AutoresetMode[mode.upper()])


def plain(value):
    """Infos as lists, without the seconds, which differ."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items() if key not in ("t", "_t")}
    if isinstance(value, np.ndarray):
        return [plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


def masked_alike(ours, their):
    """Infos are equal wherever their masks hold: Gymnasium leaves old values elsewhere."""
    assert ours.keys() == their.keys()
    for key in (key for key in ours if not key.startswith("_")):
        assert plain(ours[f"_{key}"]) == plain(their[f"_{key}"]), key
        if isinstance(ours[key], dict):
            masked_alike(
                {k: v for k, v in ours[key].items() if k not in ("t", "_t")},
                {k: v for k, v in their[key].items() if k not in ("t", "_t")},
            )
        else:
            assert [plain(row) for row, held in zip(ours[key], ours[f"_{key}"], strict=True) if held] == [
                plain(row) for row, held in zip(their[key], their[f"_{key}"], strict=True) if held
            ]


@pytest.mark.parametrize("mode", MODES)
def test_all_modes_match_gymnasiums_vector_environment(mode):
    ours, their = make_vec(COUNT, LANES, autoreset_mode=mode, seed=1), theirs(mode)
    assert ours.metadata["autoreset_mode"] is their.metadata["autoreset_mode"] is AutoresetMode[mode.upper()]
    for vector in (ours, their):
        vector.reset(seed=1)
    actions, ended_lanes = np.zeros(LANES, np.int64), 0
    for t in range(STEPS):
        outcomes = [vector.step(actions) for vector in (ours, their)]
        for one, other in zip(outcomes[0][:4], outcomes[1][:4], strict=True):
            assert one.dtype == other.dtype and np.array_equal(one, other), (t, one, other)
        # where Gymnasium says it in the info itself
        told = outcomes[0][4] if mode == "same_step" else outcomes[0][4].get("final_info", {})
        masked_alike(told, outcomes[1][4])
        ended = outcomes[0][2] | outcomes[0][3]
        ended_lanes += ended.sum()
        # In some steps a lane is begun anew that has not ended; where nothing resets by itself, those that have, too.
        mask = ended.copy() if mode == "disabled" else np.zeros(LANES, np.bool_)
        mask[t % LANES] |= t % 5 == 3
        if mask.any():
            firsts = [vector.reset(options={"reset_mask": mask.copy()})[0] for vector in (ours, their)]
            assert np.array_equal(*firsts), (t, mask, firsts)
    assert ended_lanes > 20


@pytest.mark.parametrize("mode", MODES)
def test_tensors_hold_the_same_numbers_as_arrays(mode):
    arrays, tensors = (make_vec(FILL, 5, autoreset_mode=mode, seed=3, output=output) for output in ("numpy", "torch"))
    generator = np.random.default_rng(1)
    assert np.array_equal(arrays.reset()[0], tensors.reset()[0])
    for _ in range(20):
        action = generator.integers(0, 6, 5)
        one, other = arrays.step(action), tensors.step(torch.from_numpy(action))
        for array, tensor in zip(one[:4], other[:4], strict=True):
            assert np.array_equal(array, tensor.numpy())
        assert np.array_equal(one[4]["action_mask"], other[4]["action_mask"])
        ended = one[2] | one[3]
        if ended.any():
            assert np.array_equal(one[4]["final_info"]["episode"]["r"], other[4]["final_info"]["episode"]["r"])
            assert np.array_equal(one[4]["final_info"]["tally"]["illegal"], other[4]["final_info"]["tally"]["illegal"])
        if ended.any() and mode == "disabled":
            assert np.array_equal(
                arrays.reset(options={"reset_mask": ended})[0],
                tensors.reset(options={"reset_mask": torch.from_numpy(ended)})[0],
            )


def test_a_lane_that_waits_for_its_reset_keeps_its_first_mask_and_loses_no_step():
    """FILL, whose observation is the board and whose mask is its free squares."""
    vector = make_vec(FILL, 8, autoreset_mode="next_step", seed=2)
    board, info = vector.reset()
    over, waited = np.zeros(8, np.bool_), 0
    for _ in range(30):
        action = info["action_mask"].argmax(axis=1)  # legal, but in a lane that is about to be reset
        new, rewards, terminated, truncated, info = vector.step(action)
        stones = new.sum(axis=1) - board.sum(axis=1)
        assert (stones[~over] == 1).all() and (new[over].sum(axis=1) == 1).all()
        assert not rewards[over].any() and not (terminated | truncated)[over].any()
        board, waited, over = new, waited + over.sum(), terminated | truncated
        assert np.array_equal(info["action_mask"][~over], 1 - board[~over])
    assert waited > 20


WRAPPED = {
    "NormalizeObservation": wrappers.NormalizeObservation,
    "NormalizeReward": wrappers.NormalizeReward,
    "FlattenObservation": wrappers.FlattenObservation,
    "RescaleAction": lambda vector: wrappers.RescaleAction(vector, -1.0, 1.0),
    "RecordEpisodeStatistics": wrappers.RecordEpisodeStatistics,
}


@pytest.mark.parametrize("name", WRAPPED)
def test_gymnasiums_wrappers_take_it(name):
    vector = WRAPPED[name](make_vec("pendulum", 4, seed=1, params={}, autoreset_mode="next_step"))
    observations, _ = vector.reset()
    for _ in range(205):  # beyond the time limit of 200
        observations, rewards, *_ = vector.step(vector.action_space.sample())
    assert observations.shape == (4, 3) and np.isfinite(observations).all() and np.isfinite(rewards).all()


def test_invalid_resets_and_modes_are_refused():
    with pytest.raises(
        UsageError, match=r"autoreset_mode is 'later': it must be one of 'next_step', 'same_step', 'disabled'"
    ):
        make_vec("cartpole", autoreset_mode="later")
    vector = make_vec(COUNT, 3, autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(UsageError, match="before the first reset"):
        vector.reset(options={"reset_mask": np.array([True, False, False])})
    vector.reset()
    vector.step(np.zeros(3, np.int64))
    with pytest.raises(UsageError, match=r"the episodes of lanes \[1\] have ended: call reset\(options=\{'reset_mask'"):
        vector.step(np.zeros(3, np.int64))
    for options, words in (
        ({"low": -1.0}, r"options \['low'\]: only reset_mask is supported"),
        ({"reset_mask": [False, False, False]}, "3 truth values, one of them True at least"),
        ({"reset_mask": np.ones(3)}, "3 truth values"),
        ({"reset_mask": np.ones(2, np.bool_)}, "3 truth values"),
    ):
        with pytest.raises(UsageError, match=words):
            vector.reset(options=options)
    with pytest.raises(UsageError, match="a seed starts the numbers of all lanes again"):
        vector.reset(seed=1, options={"reset_mask": np.ones(3, np.bool_)})
    with pytest.raises(UsageError, match=r"seed is \[1, 2, 3\]: it must be one whole number: lanes share a seed"):
        vector.reset(seed=[1, 2, 3])
