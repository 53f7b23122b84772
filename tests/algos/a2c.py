"""Advantage actor-critic (Mnih et al. 2016) in one file: a complete algorithm as a user would write it. Used by the
tests.
"""

from __future__ import annotations

import torch
from pydantic import Field

from operant.algos.base import Estimate, Phase, policy_state
from operant.compute.graphs import Graphed
from operant.data import Collector
from operant.nn import Adam, Policy, on_policy_work
from operant.runs.metrics.spec import MetricSpec, Threshold
from operant.settings import Count, Real, Section


class A2CConfig(Section):
    horizon: Count = Field(8, ge=1, description="steps per lane in an iteration")
    learning_rate: Real = Field(3e-3, gt=0, description="learning rate of Adam")
    gamma: Real = Field(0.98, ge=0, le=1, description="discount")
    entropy_coefficient: Real = Field(0.01, ge=0, description="weight of the entropy bonus")
    max_gradient_norm: Real = Field(0.5, gt=0, description="maximum norm of the gradient")

    def problems(self, lanes):
        return []


class A2C:
    Config = A2CConfig
    metrics = (
        MetricSpec("loss/actor", "actor loss", order=50),
        MetricSpec(
            "loss/critic",
            "critic loss",
            figure="critic",
            order=40,
            advice="lower algo.learning_rate",
            thresholds=(Threshold("warn", at_least=1e-9, advice="the critic is not perfect"),),
        ),
        MetricSpec("entropy", "entropy", figure="entropy", order=60),
    )

    def __init__(self, world, config, net, *, seed, steps, eager=False):
        T, N, device = config.horizon, world.count, world.device
        self.world, self.config, self.device, self.chosen = world, config, device, {}
        self.steps_per_iteration = T * N
        self.actor = self.make_actor(world.spec, config, net, device, seed=seed)
        self.collector = Collector(world, T, self.actor.noise_rows)
        self.rollout = self.collector.rollout
        self._raw = torch.zeros(
            T, self.actor.distribution.action_rows, N, dtype=self.rollout.action.dtype, device=device
        )
        self._adam = Adam(
            self.actor.flat.values.data,
            self.actor.flat.gradient,
            torch.tensor(config.learning_rate, device=device),
            1e-5,
        )
        self.stats = torch.zeros(len(self.metrics) + 1, device=device)
        self.phases = (
            Phase("collect", Graphed(self._collect, device, eager=eager)),
            Phase("learn", Graphed(self._learn, device, eager=eager)),
        )

    @classmethod
    def make_actor(cls, spec, config, net, device, *, seed=0):
        return Policy(spec, net, seed=seed, device=device, normalize=False)

    @classmethod
    def estimate(cls, spec, config, net, lanes):
        steps = config.horizon * lanes
        flops, moved = on_policy_work(cls.make_actor(spec, config, net, torch.device("cpu")), steps, lanes, 1)
        return Estimate(steps, flops, moved, config)

    def start(self):
        self.collector.start()

    @torch.no_grad()
    def _collect(self):
        self.collector.collect(self._act)

    def _act(self, t):
        distribution = self.actor.distribution
        parameters, _ = self.actor.forward(self.rollout.observation[t], self.collector.legal(t))
        self._raw[t] = distribution.sample(parameters, self.collector.noise[t])
        self.rollout.action[t] = distribution.to_env(self._raw[t])

    def _learn(self):
        policy, rollout, T = self.actor, self.rollout, self.config.horizon
        # Returns backwards in time: R_t = r_t + gamma R_{t+1}, cut where an episode terminated, with V of its true
        # final observation where it was truncated.
        with torch.no_grad():
            following, returns = policy.forward(rollout.observation[T])[1], torch.zeros_like(rollout.reward)
            for t in reversed(range(T)):
                following = torch.where(
                    rollout.truncated[t] > 0, policy.forward(rollout.final_observation[t])[1], following
                )
                following = returns[t] = rollout.reward[t] + self.config.gamma * torch.where(
                    rollout.terminated[t] > 0, 0.0, following
                )
        observation, raw = (rows.transpose(0, 1).flatten(1) for rows in (rollout.observation[:-1], self._raw))
        parameters, value = policy.forward(
            observation, None if rollout.legal is None else rollout.legal[:-1].transpose(0, 1).flatten(1)
        )
        log_probability, entropy = policy.distribution.log_probability_and_entropy(parameters, raw)
        advantage = returns.flatten() - value
        actor_loss, critic_loss = -(log_probability * advantage.detach()).mean(), 0.5 * advantage.square().mean()
        policy.flat.backward(actor_loss + 0.5 * critic_loss - self.config.entropy_coefficient * entropy.mean())
        with torch.no_grad():
            gradient = policy.flat.gradient
            gradient.mul_((self.config.max_gradient_norm / (torch.linalg.vector_norm(gradient) + 1e-6)).clamp_max(1.0))
            self._adam.step()
            losses = torch.stack([actor_loss, critic_loss, entropy.mean()])
            not_finite = (~torch.isfinite(losses)).sum() + (~torch.isfinite(policy.flat.values)).sum()
            self.stats.copy_(torch.cat([losses, not_finite[None].float()]))
        self.collector.carry_on()

    def state(self, tier):
        if tier == "policy":
            return policy_state(self.actor)
        parts = {"world": self.world.state(), "adam": self._adam.tensors(), "algo": self.collector.tensors()}
        return policy_state(self.actor) | {
            f"{part}/{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()
        }


ALGO = A2C
