"""SAC with Discrete actions: gradients against float64, legal actions only, bits of a resume, and that it
learns.
"""

from __future__ import annotations

import math

import pytest
import torch
from test_sac import SMALL, bytes_of, doubles, gradient_error, iterate, plain, sac_on
from toys import FILL, PUSH

from operant.algos.sac import SAC
from operant.algos.sac.sac import Stats
from operant.envs import find
from operant.errors import ConfigError
from operant.nn import NetConfig
from operant.worlds import DeviceWorld

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("critics", [1, 2])
def test_gradients_equal_float64(critics):
    algo = iterate(sac_on(FILL, critics=critics, n_step=2, initial_temperature=0.3, batch_size=256), 12)
    actor, critic, target = doubles(algo.actor.flat), doubles(algo.critic_flat), doubles(algo.target_flat)
    alpha = algo.state("train")["algo/log_temperature"].double().exp()
    algo.update(0, 5)
    batch = algo.cycle.replay.batch

    def read(cells):
        """Categories as one-hot vectors, (12, B)."""
        return torch.stack([cells == 0, cells == 1], dim=1).flatten(0, 1).double()

    def policy(cells, legal):
        logits = torch.where(legal != 0, plain(actor, read(cells), 0), -1e9)
        return logits.softmax(dim=0), logits.log_softmax(dim=0)

    # The critics: y = r + discount sum pi (min Q' - alpha log pi), over legal actions.
    assert (batch.legal == 0).any() and (batch.next_legal == 0).any()
    probability, log_probability = policy(batch.next_observation, batch.next_legal)
    assert (probability[batch.next_legal == 0] == 0).all()
    values = torch.stack([plain(target, read(batch.next_observation), k) for k in range(critics)]).min(dim=0).values
    y = (
        batch.reward.double() + batch.discount.double() * (probability * (values - alpha * log_probability)).sum(dim=0)
    ).detach()
    taken = torch.nn.functional.one_hot(batch.action[0].long(), 6).t()
    sum(
        (((plain(critic, read(batch.observation), k) * taken).sum(dim=0) - y) ** 2).mean() for k in range(critics)
    ).backward()
    assert gradient_error(algo.critic_flat, algo.critic_flat.gradient, critic) < 1e-5

    # The actor: sum pi (alpha log pi - min Q), by the critics after their step.
    critic = doubles(algo.critic_flat)
    probability, log_probability = policy(batch.observation, batch.legal)
    values = torch.stack([plain(critic, read(batch.observation), k) for k in range(critics)]).min(dim=0).values.detach()
    (probability * (alpha * log_probability - values)).sum(dim=0).mean().backward()
    assert gradient_error(algo.actor.flat, algo.actor.flat.gradient, actor) < 1e-5


def test_only_legal_actions_are_sampled():
    algo = sac_on(FILL, lanes=64, learning_starts=1024)
    for k in range(8):
        iterate(algo, 1)
        observation, action = algo.rollout.observation[:-1], algo.rollout.action
        if k < 1:
            assert action.unique().tolist() == list(range(6))
        # The square was empty; the first observation of the rollout has made way for the next one's.
        assert (observation[1:].gather(1, action[1:].long()) == 0).all()
    assert algo.world.ended_tallies.sum().item() == 0.0


@pytest.mark.slow
def test_cartpole_is_solved_and_a_resume_continues_bit_for_bit():
    def made(**keys):
        config = SAC.Config(
            **{
                **SMALL,
                "horizon": 32,
                "batch_size": 64,
                "learning_starts": 512,
                "learning_rate": 2e-3,
                "critic_learning_rate": 2e-3,
                "tau": 0.02,
                "n_step": 3,
            }
        )
        return SAC(
            DeviceWorld(find("cartpole"), 8, seed=1),
            config,
            NetConfig(hidden=(32, 32), activation="relu"),
            seed=1,
            steps=1,
            **keys,
        )

    algo = made()
    algo.start()
    ended = []
    for _ in range(50):
        iterate(algo, 1)
        ended.append((algo.rollout.terminated | algo.rollout.truncated).sum().item())
    assert sum(ended[-10:]) < 0.4 * sum(ended[:10]), ended
    assert 0.0 < Stats(*algo.stats).entropy.item() < math.log(2)  # the entropy
    other = made()
    for name, tensor in other.state("all").items():
        tensor.copy_(algo.state("all")[name])
    assert bytes_of(iterate(algo, 1)) == bytes_of(iterate(other, 1))


def test_c51_with_discrete_actions_raises():
    with pytest.raises(ConfigError, match="has Discrete actions, for which SAC has"):
        sac_on(FILL, critic="c51")
    assert sac_on(PUSH, critic="c51").critic_flat.values.numel() > sac_on(PUSH).critic_flat.values.numel()
