"""Run in a process of its own, with TRITON_INTERPRET=1: fused kernels on the CPU, one JSON object to standard output. See test_fused.py."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import torch
import triton
from fused_probe import ENVS, gradients, prepared, relative_error, trainer, wide
from fused_q import iterations_case
from fused_rounded import both_gradients, expected
from interpreter import teach
from triton import language as tl

from operant.compute.exchange import Link
from operant.kernels.dense.select import with_config
from operant.kernels.reduce import exchange_partials, reduce_partials, sum_shards
from operant.kernels.tiles import Resident, from_text
from operant.nn import mlp


def reconfigure(ppo, config, precision):
    """A small tile config: by default so that chunks have several tiles. Another precision is by a GPU's products, but not by its tanh."""
    spec = replace(ppo.backend.learner.spec, precision=precision)
    own = ppo.backend.learner.config
    resident = isinstance(own, Resident)
    given = from_text(config) if isinstance(config, str) else replace(own, **(config or ({"block_m": 16, "chunks": 2} if resident else {})))
    ppo.backend.learner = with_config(ppo.backend.learner, given, spec=spec)


def env_of(env):
    """One of the tests' environments by name; CartPole seen wide, by what `wide` is told: [120, 3] or {"observation": 120, "actions": 3, "judged": true}."""
    if isinstance(env, str):
        return ENVS[env]
    if isinstance(env, dict):
        return wide(**{key: tuple(value) if isinstance(value, list) else value for key, value in env.items()})
    return wide(*env)


def gradient_case(env, net, algo, lanes=12, config=None, precision="ieee"):
    """Errors of a minibatch's gradient and numbers beside float64; minibatches end within a tile."""
    ppo = trainer(env_of(env), mlp.Config(**net), lanes=lanes, horizon=6, minibatches=2, kernels="fused", **algo)
    reconfigure(ppo, config, precision)
    prepared(ppo)
    found, wanted, numbers, exact = gradients(ppo)
    return {"gradient": relative_error(found, wanted), "numbers": max(abs(a - b) / (abs(b) + 1e-2) for a, b in zip(numbers.tolist(), exact, strict=True))}


def bits_case(env, net, algo, config, lanes):
    """A minibatch's gradient as text, to the bit."""
    ppo = trainer(env_of(env), mlp.Config(**net), lanes=lanes, horizon=8, minibatches=2, kernels="fused", **algo)
    reconfigure(ppo, config, "ieee")
    prepared(ppo)
    return gradients(ppo)[0].float().numpy().tobytes().hex()


def rounded_case(env, net, algo, config, precision):
    """Distance of a minibatch's gradient from torch's of operands rounded as the kernels round them, and from torch's of operands that are not."""
    ppo = trainer(env_of(env), mlp.Config(**net), lanes=10, horizon=4, minibatches=2, kernels="fused", **algo)
    reconfigure(ppo, config, precision)
    prepared(ppo)
    ppo.backend.learner.begin()
    found, wanted = both_gradients(ppo, 1)
    return relative_error(found, wanted), relative_error(found, expected(ppo, 1, "ieee"))


def iteration_case(env, net, algo, iterations=2, broken=False, scheduled=None):
    """Differences between the two paths after whole iterations from the same seed; `scheduled` has a value for each iteration."""
    scheduled = scheduled or {}
    config = {"lanes": 12, "horizon": 6, "epochs": 2, "minibatches": 2, **algo, "scheduled": tuple(scheduled)}
    ours, theirs = (trainer(env_of(env), mlp.Config(**net), kernels=kernels, **config) for kernels in ("fused", "torch"))
    assert algo.get("kernel_config", "resident") in str(ours.backend.learner.config)
    for ppo in (ours, theirs):
        if broken:
            ppo.policy.flat.values.data[3] = float("nan")
        for iteration in range(iterations):
            for key, values in scheduled.items():
                getattr(ppo.config, key).fill_(values[iteration])
            ppo.collect()
            ppo.update()

    def difference(a, b):
        return float((a.double() - b.double()).abs().max())

    tensors = ours.state("all")
    return {
        "actions": int((ours.experience.raw.float() - theirs.experience.raw.float()).abs().gt(1e-4).sum()),
        "stats": difference(ours.stats, theirs.stats),
        "state": max(difference(tensors[name], other) for name, other in theirs.state("all").items()),
        "rollout": max(difference(getattr(ours.experience, name), getattr(theirs.experience, name)) for name in ("value", "log_probability", "returns")),
        "final": difference(ours.experience.final_value[ours.rollout.truncated != 0], theirs.experience.final_value[theirs.rollout.truncated != 0])
        if ours.rollout.truncated.any()
        else None,
        "moved": difference(ours.policy.flat.values, trainer(env_of(env), mlp.Config(**net), **config).policy.flat.values),
        "not_finite": [float(ours.stats[8]), float(theirs.stats[8])],
    }


@triton.jit
def _no_record(terms, column, parameters, update, SPEC: tl.constexpr):
    tl.store(update + column, terms)


def reduced(rows, shards):
    """Rows of partial sums (C, width) by the kernel."""
    gradient, terms = torch.zeros(rows.shape[1] - 32), torch.zeros(32)
    reduce_partials[(rows.shape[1] // 32,)](
        rows, rows.shape[1], gradient, torch.zeros(len(gradient) // 32), gradient, terms,
        SPEC=0, RECORD=_no_record, SHARDS=shards, SHARD_ROWS=len(rows) // shards,
    )  # fmt: skip
    return torch.cat([gradient, terms])


def tree_case(chunks, shards):
    """Whether rows are added in a binary tree, and a shard's rows apart from the others' are the same numbers."""
    rows = torch.randn(chunks, 96, generator=torch.Generator().manual_seed(chunks)) * torch.logspace(-3, 3, 96)
    sums = torch.stack([reduced(part, 1) for part in rows.chunk(shards)])
    by_hand = list(rows.chunk(shards))
    for k, part in enumerate(by_hand):
        while len(part) > 1:
            part = part[: len(part) // 2] + part[len(part) // 2 :]
        by_hand[k] = part[0]
    whole = torch.stack(by_hand)
    while len(whole) > 1:
        whole = whole[: len(whole) // 2] + whole[len(whole) // 2 :]
    return {"shards": bool(torch.equal(sums, torch.stack(by_hand))), "whole": bool(torch.equal(reduced(rows, shards), whole[0]))}


def exchange_case(chunks, shards, rank):
    """Whether half of the shards and what another rank has written make the gradient of all rows on one rank; three turns, as the halves alternate."""
    generator, width = torch.Generator().manual_seed(chunks), 96
    sums, flags, turns = torch.zeros(2, 2, shards // 2, width), torch.zeros(2, 3, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    places = [torch.tensor([part.data_ptr() for part in parts]) for parts in (sums, flags)]
    same = []
    for turn in range(1, 4):
        rows = torch.randn(chunks, width, generator=generator)
        halves = rows.chunk(2)
        sum_shards[(3,)](halves[1 - rank], width, sums[1 - rank, turn % 2], SHARDS=shards // 2, SHARD_ROWS=chunks // shards)
        flags[1 - rank] = turn
        gradient, terms = torch.zeros(width - 32), torch.zeros(32)
        exchange_partials[(3,)](
            halves[rank].contiguous(), width, gradient, torch.zeros(2), gradient, terms, Link(sums[rank], flags[rank], turns, *places),
            SPEC=0, RECORD=_no_record, SHARDS=shards // 2, SHARD_ROWS=chunks // shards, RANKS=2,
        )  # fmt: skip
        same.append(bool(torch.equal(torch.cat([gradient, terms]), reduced(rows, shards))) and flags[rank].eq(turn).all().item())
    return same


def main() -> None:
    """Run the cases of standard input."""
    teach()
    torch.set_num_threads(1)
    kinds = {"gradient": gradient_case, "rounded": rounded_case, "iteration": iteration_case, "tree": tree_case, "bits": bits_case, "q": iterations_case}
    kinds["exchange"] = exchange_case
    print(json.dumps([kinds[kind](**case) for kind, case in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
