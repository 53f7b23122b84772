"""Evaluations: one episode per lane, their own random numbers, reproducible by number, and no change of the
training.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from numpy import float32
from toys import COUNT, PICK, PUSH, bytes_of, iterate, ppo_on

from operant.envs import device, find
from operant.nn import mlp
from operant.nn.policy import Policy
from operant.training import evaluate
from operant.training.evaluate import Evaluator

CPU = torch.device("cpu")
CARTPOLE = find("cartpole")


pytestmark = pytest.mark.usefixtures("one_thread")


def evaluator(env, episodes, *, seed=1, policy_seed=1, **more):
    policy = Policy(env, mlp.Config(hidden=(8,)), seed=policy_seed, device=CPU, normalize=False)
    return Evaluator(policy, env, env.Params(), episodes=episodes, seed=seed, **more)


def test_each_lane_plays_one_episode():
    # Lane 0 is truncated after 1 + 2 + 3, lane 1 ends after 1, lane 2 after 1 + 2, lane 3 after 1 + 2 + 3: mean 4,
    # deviations 2, -3, -1, 2.
    found = evaluator(COUNT, 4).run(0)
    deviation = math.sqrt((4 + 9 + 1 + 4) / 3)
    assert found == evaluate.Evaluation(
        mean=4.0,
        ci95=pytest.approx(1.96 * deviation / 2),
        std=pytest.approx(deviation),
        minimum=1.0,
        maximum=6.0,
        length=(3 + 1 + 2 + 3) / 4,
        episodes=4,
        unfinished=0,
        tally={},
    )


def test_a_single_episode_has_no_standard_deviation():
    found = evaluator(COUNT, 1).run(0)
    assert (found.mean, found.std, found.ci95, found.episodes) == (6.0, None, None, 1)


def test_episodes_that_never_end_are_cut_off_and_counted():
    # Without a time limit lane 0 goes on for ever: 64 steps pay 64 * 65 / 2; lanes 1 and 2 ended long before.
    found = evaluator(replace(COUNT, time_limit=None), 3, max_steps=64).run(0)
    assert found.unfinished == 1
    assert (found.maximum, found.minimum, found.length) == (64 * 65 / 2, 1.0, (64 + 1 + 2) / 3)


def test_an_environment_without_a_time_limit_is_cut_off_earlier():
    assert (
        evaluator(COUNT, 1).max_steps == 100_000 and evaluator(replace(COUNT, time_limit=None), 1).max_steps == 20_000
    )


def test_an_evaluation_can_be_interrupted():
    lanes, asked = evaluator(replace(COUNT, time_limit=None), 3), []

    def interrupted():
        asked.append(True)
        return len(asked) == 3

    with pytest.raises(evaluate.EvaluationInterruptedError):
        lanes.run(0, interrupted=interrupted)
    assert len(asked) == 3
    other = evaluator(COUNT, 4)
    with pytest.raises(evaluate.EvaluationInterruptedError):
        other.run(1, interrupted=lambda: True)
    assert other.run(0) == evaluator(COUNT, 4).run(0)


@device
def _spoilt_reset(s, p, key):
    s[0] += float32(1.0)
    s[1] = float32(0.0)


@device
def _spoilt_step(s, action, p, key, tally):
    s[1] += float32(1.0)
    tally[0] += float32(10.0) * s[0]
    return float32(math.nan) if s[0] > float32(1.0) else float32(1.0), s[1] > float32(key[2])


def test_steps_after_the_first_episode_do_not_count():
    # s[0] counts a lane's episodes, and from the second on the reward is not a number. Lane k's first episode pays 1 a
    # step, for k + 1 steps, and each of its steps tallies ten times the number of the episode.
    lanes = evaluator(replace(COUNT, time_limit=None, reset=_spoilt_reset, step=_spoilt_step, tally=("ten",)), 4)
    found = lanes.run(0)
    assert (found.mean, found.minimum, found.maximum, found.length) == (2.5, 1.0, 4.0, 2.5)
    assert found.tally == {"ten": 25.0}


def test_a_cut_off_episode_counts_its_tallies_so_far():
    env = replace(COUNT, time_limit=None, reset=_spoilt_reset, step=_spoilt_step, tally=("ten",))
    found = evaluator(env, 40, max_steps=32).run(0)  # lanes 32 to 39 have taken 32 steps
    assert found.unfinished == 8
    assert found.tally == {"ten": 10 * (sum(range(1, 33)) + 8 * 32) / 40}


def test_an_evaluation_is_reproducible_by_its_number():
    first = evaluator(CARTPOLE, 16)
    found = [first.run(number) for number in (3, 4, 3)]
    assert found[0] == found[2] != found[1]
    assert evaluator(CARTPOLE, 16).run(3) == found[0]
    assert evaluator(CARTPOLE, 16, seed=2).run(3) != found[0]


def test_evaluation_numbers_may_be_as_large_as_iteration_counts():
    lanes = evaluator(CARTPOLE, 16)
    large = 2**31 - 1
    first = lanes.run(large)
    assert int(lanes.rollout.world.lanes.tick) > large << 32, "the tick overflowed"
    assert first != lanes.run(0) and first == lanes.run(large)


@pytest.mark.parametrize("env", [CARTPOLE, PUSH, PICK])
def test_greedy_and_sampled_evaluations_differ(env):
    greedy, sampled = evaluator(env, 16), evaluator(env, 16, greedy=False)
    assert sampled.run(1) == sampled.run(1)
    assert greedy.run(1) != sampled.run(1)
    assert sampled.run(1) != sampled.run(2)


def test_sampling_follows_the_policy():
    # A head that always chooses 1 with all but certainty: sampled is greedy.
    likely, certain = (evaluator(CARTPOLE, 16, greedy=greedy) for greedy in (False, True))
    for each in (likely, certain):
        with torch.no_grad():
            each.actor.net.head_bias[1] = 80.0
    assert likely.run(0) == certain.run(0)


def test_an_evaluation_uses_its_own_random_stream():
    training = ppo_on(CARTPOLE, 16, horizon=4)
    lanes = Evaluator(training.policy, CARTPOLE, CARTPOLE.Params(), episodes=16, seed=1)
    lanes.rollout.reset()
    assert not torch.isclose(training.rollout.observation[0], lanes.rollout.slot.observation).any()


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("env", [CARTPOLE, PUSH])
def test_no_trained_bit_changes(env, greedy):
    normalised = {"normalize_observations": True, "normalize_rewards": True}
    alone, watched = (ppo_on(env, 16, horizon=4, **normalised) for _ in range(2))
    lanes = Evaluator(watched.policy, env, env.Params(), episodes=8, seed=1, greedy=greedy)
    state = torch.get_rng_state()
    for number in range(3):
        iterate(alone, 1)
        iterate(watched, 1)
        before = bytes_of(watched)
        lanes.run(number)
        assert bytes_of(watched) == before
    assert bytes_of(alone) == bytes_of(watched)
    assert torch.equal(state, torch.get_rng_state())


def test_a_better_policy_scores_better():
    # Push against the pole's angle and its speed: a policy known to balance.
    lanes = evaluator(CARTPOLE, 64)
    random = lanes.run(0)
    net = lanes.actor.net
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        net.first_weight[0] = torch.tensor([0.0, 0.0, 1.0, 0.5])  # actor's first unit
        net.head_weight[1, 0] = 1.0
    balanced = lanes.run(0)
    assert balanced.mean > 150 > random.mean and balanced.maximum <= 500


def test_an_evaluation_prints_rounded_and_keeps_its_values_exact():
    found = evaluate.Evaluation(499.96171875, 0.123456789, None, 480.0, 500.0, 499.9617, 1024, 0, {"won": 2 / 3})
    assert repr(found) == (
        "Evaluation(mean=499.962, ci95=0.123457, std=None, minimum=480.0, maximum=500.0, length=499.962, "
        "episodes=1024, unfinished=0, tally={'won': 0.666667})"
    )
    assert found.ci95 == 0.123456789
