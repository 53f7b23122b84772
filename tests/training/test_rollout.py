"""Recurrent actor in a world: its state ends with an episode, in evaluations, live view, films and play."""

from __future__ import annotations

import pytest
import torch
from toys import PICK

from operant.nn import NetConfig, Policy
from operant.play.stage import Player, Stage
from operant.training.evaluate import Evaluator
from operant.training.rollout import Rollout
from operant.worlds import DeviceWorld

pytestmark = pytest.mark.usefixtures("one_thread")


class Noted:
    """Recurrent policy that records its inputs of each step."""

    def __init__(self) -> None:
        self._policy = Policy(
            PICK, NetConfig(memory="gru", hidden=(8,)), seed=1, device=torch.device("cpu"), normalize=False
        )
        self.states = []

    def __getattr__(self, name):
        return getattr(self._policy, name)

    def act(self, observation, state, noise=None, legal=None):
        self.states.append(state[0].clone())
        return self._policy.act(observation, state, noise, legal)


def begins(ended):
    """Lanes in which each step begins an episode, from the previous step's flags."""
    return torch.cat([torch.ones(1, ended.shape[1], dtype=torch.bool), ended[:-1]])


def test_recurrent_state_is_reset_only_in_lanes_whose_episode_ended():
    actor = Noted()
    world = DeviceWorld(PICK, 6, seed=1)
    rollout = Rollout(actor, world)
    for _ in range(2):  # the second time from the middle of episodes
        rollout.reset()
        actor.states, ended = [], []
        for _ in range(12):
            rollout.draw()
            rollout.step(greedy=False)
            world.advance(1)
            ended.append((rollout.slot.terminated | rollout.slot.truncated).bool().clone())
        forgot = torch.stack([(state == 0.0).all(dim=0) for state in actor.states])
        assert torch.equal(forgot, begins(torch.stack(ended))) and forgot[1:].any()


def test_a_stage_plays_the_episodes_of_an_evaluation():
    """Films and the viewer: several episodes in sequence, each with its own recurrent state."""
    actor = Noted()
    evaluated = Evaluator(actor, PICK, None, episodes=4, seed=3, greedy=False).run(5)
    stage = Stage(PICK, None, seed=3, lanes=4, number=5)
    player = Player(stage, actor, greedy=False)
    actor.states, ended, first = [], [], {}
    for _ in range(14):
        player.step()
        ended.append(torch.from_numpy(stage.ended.copy()))
        for lane in range(4):
            if stage.ended[lane]:
                first.setdefault(lane, float(stage.returns[lane]))
    assert sum(first.values()) / 4 == pytest.approx(evaluated.mean)
    forgot = torch.stack([(state == 0.0).all(dim=0) for state in actor.states])
    assert torch.equal(forgot, begins(torch.stack(ended))) and forgot[1:].any()
