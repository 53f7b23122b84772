"""Cases of test_fused_memory.py: fused kernels of a recurrent policy against float64 autograd and the torch path.

Run by a process with Triton's interpreter (interpreter.py), and by benches/recurrent.py on a GPU.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from fused_probe import ENVS, relative_error, trainer, wide

from operant.algos.ppo import fused
from operant.algos.ppo.ppo import TERMS, Batch, loss_of_outputs
from operant.kernels import recurrent
from operant.kernels.recurrent import lstm
from operant.kernels.recurrent.learner import RecurrentLearner
from operant.nn import NetConfig, cells
from operant.nn.distributions import Gaussian, masked


def unrolled(memory, x, state, keep):
    """Plain loop over steps: features (K, L, S), initial state (R, S), keep (L, S) to the last output (M, L, S)."""
    M, layers = memory.units, memory.layers
    for k in range(layers):
        h, outputs = state[k * M : (k + 1) * M], []
        c = state[(layers + k) * M : (layers + k + 1) * M] if memory.kind == "lstm" else h
        for t in range(x.shape[1]):
            h, c = h * keep[t], c * keep[t]
            given = (memory.input_weights[k][0] @ x[:, t] + memory.input_biases[k][0]).split(M)
            if memory.kind == "mingru":
                hidden, z, p = given[0], given[1].sigmoid(), given[2].sigmoid()
                h = h + z * (torch.where(hidden >= 0, hidden + 0.5, hidden.sigmoid()) - h)
                outputs.append(p * h + (1 - p) * x[:, t])
                continue
            by = (memory.state_weights[k][0] @ h).split(M)
            if memory.kind == "gru":
                r, z = (given[0] + by[0]).sigmoid(), (given[1] + by[1]).sigmoid()
                h = (1 - z) * torch.tanh(given[2] + r * (by[2] + memory.state_biases[k][0])) + z * h
            else:
                i, f, o = ((given[n] + by[n]).sigmoid() for n in range(3))
                c = f * c + i * torch.tanh(given[3] + by[3])
                h = o * torch.tanh(c)
            outputs.append(h)
        x = torch.stack(outputs, dim=1)
    return x


class Doubled:
    """Network and distribution of a policy in float64, for the loss."""

    def __init__(self, policy):
        self.net, self.distribution = copy.deepcopy(policy.net).double(), copy.deepcopy(policy.distribution).double()


def exact_gradient(ppo, batch):
    """Flat gradient and loss terms of some segments, in float64."""
    policy, config = ppo.policy, ppo.config
    doubled, steps = Doubled(policy), Batch._make(None if field is None else field.flatten(-2) for field in batch.steps)
    advantage, every = steps.advantage, ppo.experience.advantage
    if config.normalize_advantages:
        advantage = (advantage - every.mean()) / (every.std() + 1e-8)
    encoder, seen = doubled.net.encoder, steps.observation
    features = (
        encoder.features(seen, policy.normalizer)
        if encoder.categories
        else encoder.features(policy.features(seen).double(), None)
    )
    x = unrolled(
        doubled.net.memory,
        features[0].unflatten(1, batch.reset.shape),
        batch.state[0].double(),
        1.0 - batch.reset.double(),
    )
    parameters, value = encoder.heads(x.flatten(1)[None])
    given = steps._replace(
        action=steps.action.double() if isinstance(policy.distribution, Gaussian) else steps.action,
        log_probability=steps.log_probability.double(),
        value=steps.value.double(),
        advantage=advantage.double(),
        returns=steps.returns.double(),
    )
    loss, terms = loss_of_outputs(
        doubled, parameters if steps.legal is None else masked(parameters, steps.legal), value, given, config
    )
    wanted = torch.zeros_like(policy.flat.values.data, dtype=torch.float64)
    every = [*doubled.net.parameters(), *doubled.distribution.parameters()]
    for begin, gradient in zip(policy.flat.offsets, torch.autograd.grad(loss, every), strict=True):
        wanted[begin : begin + gradient.numel()] = gradient.flatten()
    return wanted, [float(terms[name]) for name in TERMS]


def third_iteration(ppo):
    """Collect two iterations without learning, then a third one with its advantages."""
    for _ in range(2):
        ppo.collect()
        ppo.backend.update_normalizers()
        ppo.collector.carry_on()
    ppo.collect()
    ppo.backend.estimate_advantages()


def prepared(ppo, seed=5):
    """Prepare a rollout with nonzero initial states, targets that differ from the values, and old log-probabilities
    that differ from the new ones.
    """
    generator = torch.Generator().manual_seed(seed)

    def noise(tensor):
        return torch.randn(tensor.shape, generator=generator).to(tensor.device)

    ppo.policy.flat.values.data.add_(0.1 * noise(ppo.policy.flat.values))
    third_iteration(ppo)
    found = ppo.experience
    found.advantage.copy_(noise(found.advantage) + 2.0 * (found.raw[:, 0] > 0))
    found.log_probability.add_(0.2 * noise(found.log_probability))
    found.returns.copy_(found.value[:-1] + 1.0 + noise(found.returns))
    ppo.minibatches.shuffle()


def reconfigured(ppo, precision, **changes):
    """Rebuild the fused kernels with another precision of products (not of tanh) and other tiles."""
    task, own = fused.task(ppo.backend), ppo.backend.learner
    states = recurrent.States(ppo.backend.tensors()["state/0"], own.starts, True)
    spec = replace(own.spec, precision=precision)
    shape = replace(
        own.shape, precision=precision, **{key: changes.pop(key) for key in ("fused", "resident") if key in changes}
    )
    learner = RecurrentLearner(spec, task, replace(own.config, **changes), shape, states)
    learner.prepare()
    return learner


def gradient_case(env, net, algo, lanes=16, precision="ieee", horizon=6, where="cpu", minibatches=2, **changes):
    """Errors of a minibatch's gradient and loss terms against float64, and whether they are reproducible."""
    rules = ENVS[env] if isinstance(env, str) else wide(*env)
    config = {"epochs": 1, "minibatches": minibatches, "clip": 5.0, "kernels": "fused", "eager": True, **algo}
    ppo = trainer(rules, NetConfig(shared=True, **net), lanes=lanes, horizon=horizon, where=where, **config)
    prepared(ppo)
    learner = (
        reconfigured(ppo, precision, **changes)
        if changes or (precision != "ieee" and where == "cpu")
        else ppo.backend.learner
    )
    found = []
    for _ in range(2):
        learner.begin()
        learner.backward(minibatches - 1)
        learner.reduce()
        found.append(ppo.policy.flat.gradient.clone())
    wanted, exact = exact_gradient(ppo, list(ppo.backend.batches(ppo.minibatches.order[0].long()))[minibatches - 1])
    numbers = learner.totals[: len(TERMS)].tolist()
    flat = ppo.policy.flat
    parts = {
        name: relative_error(found[0][begin : begin + one.numel()].double(), wanted[begin : begin + one.numel()])
        for name, begin, one in zip(flat.names, flat.offsets, flat.parameters, strict=True)
    }
    return {
        "gradient": relative_error(found[0].double(), wanted),
        "parts": parts,
        "again": torch.equal(*found),
        "numbers": max(abs(a - b) / (abs(b) + 1e-2) for a, b in zip(numbers, exact, strict=True)),
    }


def rollout_case(env, net, algo, lanes=16, horizon=6, iterations=2, whole=True, lean=False, where="cpu", **more):
    """Differences between the fused and the torch path after whole iterations from one seed: actions, values, values of
    final observations, states, parameters.
    """
    rules = ENVS[env] if isinstance(env, str) else wide(*env)
    config = {"epochs": 2, "minibatches": 2, "eager": True, **algo}
    ours, theirs = (
        trainer(
            rules,
            NetConfig(shared=True, **net),
            lanes=lanes,
            horizon=horizon,
            where=where,
            kernels=kernels,
            **config,
            **more,
        )
        for kernels in ("fused", "torch")
    )
    ours.backend.learner.acts_in_one_launch &= whole
    ours.backend.learner.shape = ours.backend.learner.shape.lean() if lean else ours.backend.learner.shape
    for _ in range(iterations):
        for ppo in (ours, theirs):
            ppo.collect()
            ppo.update()
    cut = (ours.rollout.truncated & ~ours.rollout.terminated).bool()

    def distance(a, b):
        return float((a - b).abs().max()) if a.numel() else 0.0

    return {
        "actions": distance(ours.experience.raw, theirs.experience.raw),
        "truncated": int(cut.sum()),
        "values": distance(ours.experience.value, theirs.experience.value),
        "finals": distance(ours.experience.final_value[cut], theirs.experience.final_value[cut]),
        "states": distance(ours.backend.tensors()["state/0"], theirs.backend.tensors()["state/0"]),
        "parameters": distance(ours.policy.flat.values.data, theirs.policy.flat.values.data),
    }


def steps_case(towers, units, steps, lanes, precision="ieee", where="cpu"):
    """Errors of the LSTM kernels' states, last c and gradients against float64, and whether they are reproducible."""
    generator, before = torch.Generator().manual_seed(2), torch.backends.cuda.matmul.allow_tf32
    G, M, T, B = towers, units, steps, lanes
    shapes = ((G, 4 * M, T, B), (G, 4 * M, M), (G, M, B), (G, M, B), (T, B), (G, M, T, B))
    inputs, weight, h, c, keep, outer = (torch.randn(shape, generator=generator) for shape in shapes)
    given, found = (inputs, weight / M**0.5, h, c, (keep > -0.5).float(), outer), []
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    for function, kind, device in (
        (None, torch.float64, "cpu"),
        (lstm.Steps, torch.float32, where),
        (lstm.Steps, torch.float32, where),
    ):
        by, wide, *more, weigh = (part.to(device, kind) for part in given)
        wide = torch.cat([wide.flatten(), torch.full((64,), torch.nan, dtype=kind, device=device)])[
            : wide.numel()
        ].view(wide.shape)  # nothing beyond is read
        states, last = cells.lstm(by.requires_grad_(), wide.requires_grad_(), *more, function)
        found.append(
            [part.detach().cpu() for part in (states, last, *torch.autograd.grad((states * weigh).sum(), (by, wide)))]
        )
    torch.backends.cuda.matmul.allow_tf32 = before
    exact, ours, again = found
    return {
        "errors": [relative_error(part.double(), one) for part, one in zip(ours, exact, strict=True)],
        "again": all(map(torch.equal, ours, again)),
    }


CASES = {"gradient": gradient_case, "rollout": rollout_case, "steps": steps_case}
