"""Shared by tests and bench of the fused kernels: trainers of every kind, and gradients against float64 autograd."""

from __future__ import annotations

import atexit
import copy
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from toys import FILL, GATE, PICK, PUSH

from operant.algos.ppo import PPO
from operant.algos.ppo.ppo import TERMS, Batch, ppo_loss
from operant.envs import Box, Discrete, Env, MultiDiscrete, device, find
from operant.nn import mlp
from operant.nn.distributions import Gaussian, masked
from operant.worlds.device_world import DeviceWorld

CARTPOLE = find("cartpole")


@functools.cache
def wide(
    observation: int,
    actions: int | tuple[int, ...],
    *,
    seen: str = "float32",
    categories: int | tuple[int, ...] = 0,
    judged: bool = False,
) -> Env:
    """CartPole with more observations, and with more actions than it uses. Bytes are numeric or, with `categories`,
    categorical, some with values outside of their categories.

    If `judged`, a third of the actions, but never the first of a choice, is illegal and has no other effect.
    """
    rules, advance = CARTPOLE, CARTPOLE.step
    choices = (actions,) if isinstance(actions, int) else actions
    most = max(categories) + 9 if isinstance(categories, tuple) else categories + 1 if categories else 256
    first = tuple(sum(choices[:k]) for k in range(len(choices)))
    single = len(choices) == 1

    @device
    def step(s, action, p, key, tally):
        return advance(s, (action if single else action[0]) % 2, p, key, tally)

    @device
    def observe(s, obs, p):
        for k in range(observation):
            obs[k] = s[k % 4] / (1 + k // 4)

    @device
    def observe_bytes(s, obs, p):
        for k in range(observation):
            obs[k] = int(abs(s[k % 4]) * (500 + 37 * k)) % most

    @device
    def legal(s, mask, p):
        for k in range(sum_of_choices):
            mask[k] = 0 if (int(abs(s[2]) * 4000) + k) % 3 == 0 else 1
        for k in first:
            mask[k] = 1

    sum_of_choices = sum(choices)
    return Env(
        rules.Params,
        rules.fields,
        observation=Box(observation, dtype=seen, categories=categories),
        action=Discrete(actions) if single else MultiDiscrete(choices),
        time_limit=500,
        reset=rules.reset,
        step=step,
        observe=observe if seen == "float32" else observe_bytes,
        legal=legal if judged else None,
    )


@functools.cache
def interpreter():
    """Process with Triton's interpreter. It serves cases until this process ends, since its imports take longer than
    most cases.
    """
    here = Path(__file__).resolve().parent
    # Environments run as plain Python there: faster for a few steps of many environments than compiling them.
    plain = {"TRITON_INTERPRET": "1", "NUMBA_DISABLE_JIT": "1", "OPERANT_CACHE": "0"}
    places = [str(place) for place in (here, here / "algos", here / "kernels", here.parent)]
    environment = {**os.environ, **plain, "PYTHONPATH": os.pathsep.join([*places, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-B", "-W", "ignore", str(here / "interpreter.py")]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)
    return process


def interpreted(cases, module="fused_interpreted"):
    """Results of a test module's functions for (kind, arguments), in a process with Triton's interpreter."""
    process = interpreter()
    print(json.dumps([module, cases]), file=process.stdin, flush=True)
    answer = json.loads(process.stdout.readline() or '{"error": "the interpreter ended"}')
    assert "error" not in answer, answer["error"]
    return answer["found"]


class Doubled:
    """Copy of a policy's network and distribution in float64."""

    def __init__(self, policy) -> None:
        self.net, self.distribution = copy.deepcopy(policy.net).double(), copy.deepcopy(policy.distribution).double()
        self.features, self.normalizer = policy.features, policy.normalizer
        self.parameters = [*self.net.parameters(), *self.distribution.parameters()]

    def forward(self, observation, legal=None):
        # Categorical features, and numeric ones among them, are read by the network itself; numeric ones alone it would
        # normalise in float32, too.
        parameters, value = (
            self.net(observation, self.normalizer)
            if self.net.categories
            else self.net(self.features(observation).double())
        )
        return (parameters if legal is None else masked(parameters, legal)), value


def prepared(ppo: PPO, seed: int = 5) -> None:
    """Rollout for a gradient: targets differ from values, old log-probabilities from new ones, and actions have
    different advantages.

    With equal advantages the samples' gradients would nearly cancel, and leave mostly rounding errors.
    """
    generator = torch.Generator().manual_seed(seed)

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        return torch.randn(tensor.shape, generator=generator).to(tensor.device)

    ppo.policy.flat.values.data.add_(0.1 * noise(ppo.policy.flat.values))
    ppo.collect()
    if ppo.policy.normalizer is not None:  # which so far tell nothing of what is seen
        ppo.backend.update_normalizers()
        ppo.collector.carry_on()
        ppo.collect()
    ppo.backend.estimate_advantages()
    ppo.experience.advantage.copy_(noise(ppo.experience.advantage) + 2.0 * (ppo.experience.raw[:, 0] > 0))
    ppo.experience.log_probability.add_(0.2 * noise(ppo.experience.log_probability))
    ppo.experience.returns.copy_(ppo.experience.value[:-1] + 1.0 + noise(ppo.experience.returns))
    ppo.experience.value[:-1].add_(0.2 * noise(ppo.experience.returns))
    _leave_thresholds(ppo)
    ppo.minibatches.shuffle()


def _leave_thresholds(ppo: PPO, margin: float = 0.05) -> None:
    """Move samples away from kinks of the loss, where rounding decides the branch and thereby the sample's gradient."""
    policy, config, observation = ppo.policy, ppo.config, ppo.rollout.observation[:-1]
    everything = observation.transpose(0, 1).flatten(1)
    with torch.no_grad():
        legal = None if ppo.rollout.legal is None else ppo.rollout.legal[:-1].transpose(0, 1).flatten(1)
        parameters, value = Doubled(policy).forward(everything, legal)
        action = ppo.experience.raw.transpose(0, 1).flatten(1)
        log_probability = (
            Doubled(policy)
            .distribution.log_probability_and_entropy(parameters, action)[0]
            .view_as(ppo.experience.log_probability)
        )
    ratio = (log_probability - ppo.experience.log_probability).exp()
    close = ((ratio - 1.0).abs() - config.clip).abs() < margin
    ppo.experience.log_probability.copy_(torch.where(close, log_probability.float(), ppo.experience.log_probability))
    if config.value_clip is not None:
        value, old = value.view_as(ppo.experience.returns), ppo.experience.value[:-1]
        moved, error = value - old, value - ppo.experience.returns
        near = old + moved.clamp(-config.value_clip, config.value_clip) - ppo.experience.returns
        close = ((moved.abs() - config.value_clip).abs() < margin) | (
            (moved.abs() > config.value_clip) & ((error.abs() - near.abs()).abs() < margin)
        )
        old.copy_(torch.where(close, value.float(), old))


def gradients(ppo: PPO, minibatch: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[float]]:
    """Compute of one minibatch: fused gradient, float64 autograd's gradient, the kernels' loss terms, and the
    float64 loss terms.
    """
    fused, config, policy = ppo.backend.learner, ppo.config, ppo.policy
    fused.begin()
    for buffer in (
        fused._partial,
        *getattr(fused, "_gradients", ()),
    ):  # of which nothing may be read that was not written
        buffer.fill_(float("nan"))
    fused._partial[:, _unused(ppo)] = 0.0
    fused.backward(minibatch)
    fused.reduce()
    found = policy.flat.gradient.double()

    batch = list(ppo.backend.batches(ppo.minibatches.order[0].long()))[minibatch]
    advantage, every = batch.advantage, ppo.experience.advantage
    if config.normalize_advantages:
        advantage = (advantage - every.mean()) / (every.std() + 1e-8)
    exact = Batch(
        batch.observation,
        batch.action.double() if isinstance(policy.distribution, Gaussian) else batch.action,
        *(x.double() for x in (batch.log_probability, batch.value, advantage, batch.returns)),
        batch.legal,
    )
    doubled = Doubled(policy)
    loss, terms = ppo_loss(doubled, exact, config)
    wanted = torch.zeros_like(found)
    flat = policy.flat
    for begin, gradient in zip(flat.offsets, torch.autograd.grad(loss, doubled.parameters), strict=True):
        wanted[begin : begin + gradient.numel()] = gradient.flatten()
    return found, wanted, fused.totals[: len(TERMS)].clone(), [terms[name].item() for name in TERMS]


def _unused(ppo: PPO) -> torch.Tensor:
    """Mask of the columns of partial sums that no program writes: padding of parameters and of loss terms."""
    flat = ppo.policy.flat
    unused = torch.ones(ppo.backend.learner._width, dtype=torch.bool, device=flat.values.device)
    for begin, parameter in zip(flat.offsets, flat.parameters, strict=True):
        unused[begin : begin + parameter.numel()] = False
    unused[flat.values.numel() : flat.values.numel() + 5] = False
    return unused


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """|actual - expected| / |expected|; NaN if any value is NaN."""
    return float((found - wanted).norm() / wanted.norm())


def trainer(
    env: Env,
    net: mlp.Config,
    *,
    lanes: int = 8,
    where: str = "cpu",
    seed: int = 1,
    eager: bool = False,
    scheduled: tuple = (),
    **algo,
) -> PPO:
    """PPO on a new world, started; keys in `scheduled` are scalars on the device, as `training.build` makes them."""
    config = PPO.Config(**algo)
    config = config.model_copy(
        update={key: torch.tensor(float(getattr(config, key) or 0.0), device=where) for key in scheduled}
    )
    ppo = PPO(DeviceWorld(env, lanes, seed=seed, device=where), config, net, seed=seed, steps=100_000_000, eager=eager)
    ppo.start()
    return ppo


ENVS = {"categorical": CARTPOLE, "multi": PICK, "gaussian": PUSH, "judged": GATE, "board": FILL}
