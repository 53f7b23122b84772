"""Base class of an algorithm in one file: its returns are those of their definition."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from operant.algos import OffPolicy
from operant.config import load
from operant.training.build import build

A2C = Path(__file__).with_name("a2c.py")


def test_a_resume_keeps_the_end_of_epsilon_of_the_first_start():
    began = OffPolicy.Config().completed(1000)
    assert began.epsilon_steps == 100 and began.completed(5000) == began


@pytest.mark.parametrize("gae_lambda", [1.0, 0.9])
def test_returns_bootstrap_from_the_true_final_observation_and_stop_at_a_termination(gae_lambda, one_thread):
    T, N, gamma = 12, 6, 0.98
    words = (f"algo.name={A2C}:A2C", f"algo.horizon={T}", f"env.lanes={N}", f"algo.gamma={gamma}")
    algo = build(load.load(None, [*words, f"algo.gae_lambda={gae_lambda}"]), "cpu")
    algo.start()
    algo.phases[0].run()
    rollout = algo.rollout
    rollout.terminated[4, :2] = 1
    rollout.truncated[7, 1:4] = 1
    rollout.final_observation.copy_(torch.rand(rollout.final_observation.shape, generator=torch.manual_seed(0)))

    def value(observation):
        return algo.actor.forward(observation)[1].tolist()

    with torch.no_grad():
        values = [value(rollout.observation[t]) for t in range(T + 1)]
        final = [value(rollout.final_observation[t]) for t in range(T)]
        found = algo.batch()
    for lane in range(N):
        for start in range(T):
            # sum over t >= start of (gamma lambda)^(t - start) delta_t, until the episode or the rollout ends
            total, weight = 0.0, 1.0
            for t in range(start, T):
                terminated, truncated = bool(rollout.terminated[t, lane]), bool(rollout.truncated[t, lane])
                after = 0.0 if terminated else final[t][lane] if truncated else values[t + 1][lane]
                total += weight * (float(rollout.reward[t, lane]) + gamma * after - values[t][lane])
                weight *= gamma * gae_lambda
                if terminated or truncated:
                    break
            sample = start * N + lane
            assert float(found.advantage[sample]) == pytest.approx(total, rel=1e-4, abs=1e-5)
            assert float(found.returns[sample]) == pytest.approx(total + values[start][lane], rel=1e-4, abs=1e-5)
            assert torch.equal(found.observation[:, sample], rollout.observation[start, :, lane])
            assert torch.equal(found.action[:, sample], algo.action[start, :, lane])
