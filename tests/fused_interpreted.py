"""Cases of test_fused.py for a process with TRITON_INTERPRET=1 (interpreter.py): fused kernels on the CPU."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
import triton
from fused_probe import ENVS, gradients, prepared, relative_error, trainer, wide
from fused_q import iterations_case as q_case  # noqa: F401
from fused_rounded import both_gradients, expected
from triton import language as tl

from operant.algos.ppo.ppo import Stats
from operant.compute.exchange import Link
from operant.data import replay
from operant.kernels import exchange
from operant.kernels.dense.select import with_config
from operant.kernels.exchange import gather_words
from operant.kernels.muon import Matrices
from operant.kernels.ops.reduce import exchange_partials, reduce_partials, sum_shards
from operant.kernels.tile_config import Resident, from_text
from operant.nn import Muon, RunningNormalizer, mlp

# Batches from host memory are gathered in plain Python, by fewer threads than on a GPU: each takes several words.
replay.EARLY_BLOCKS, replay.EARLY_THREADS, replay.LATE_THREADS = 1, 32, 24


@triton.jit
def copy_kernel(x_ptr, y_ptr, COUNT: tl.constexpr):
    index = tl.arange(0, COUNT)
    tl.store(y_ptr + index, tl.load(x_ptr + index))


def copy_case(read, written):
    """Words of the error that copying 16 numbers raises, from a tensor of `read` to one of `written`; "" if none."""
    try:
        copy_kernel[(1,)](torch.zeros(read), torch.zeros(written), COUNT=16)
    except Exception as error:
        return str(error)
    return ""


def reconfigure(ppo, config, precision):
    """Switch to a small tile config, by default one whose chunks have several tiles. Other precisions emulate tensor
    cores, but not the hardware tanh.
    """
    spec = replace(ppo.backend.learner.spec, precision=precision)
    own = ppo.backend.learner.config
    resident = isinstance(own, Resident)
    given = (
        from_text(config)
        if isinstance(config, str)
        else replace(own, **(config or ({"block_m": 16, "chunks": 2} if resident else {})))
    )
    ppo.backend.learner = with_config(ppo.backend.learner, given, spec=spec)


def env_of(env):
    """Test environment by name, or CartPole by the arguments of `wide`: [120, 3] or {"observation": 120, "actions": 3,
    "judged": true}.
    """
    if isinstance(env, str):
        return ENVS[env]
    if isinstance(env, dict):
        return wide(**{key: tuple(value) if isinstance(value, list) else value for key, value in env.items()})
    return wide(*env)


def gradient_case(env, net, algo, lanes=12, config=None, precision="ieee"):
    """Errors of a minibatch's gradient and loss terms against float64; minibatches end within a tile."""
    ppo = trainer(env_of(env), mlp.Config(**net), lanes=lanes, horizon=6, minibatches=2, kernels="fused", **algo)
    reconfigure(ppo, config, precision)
    prepared(ppo)
    found, wanted, numbers, exact = gradients(ppo)
    return {
        "gradient": relative_error(found, wanted),
        "numbers": max(abs(a - b) / (abs(b) + 1e-2) for a, b in zip(numbers.tolist(), exact, strict=True)),
    }


def bits_case(env, net, algo, config, lanes):
    """A minibatch's gradient as text, bit by bit."""
    ppo = trainer(env_of(env), mlp.Config(**net), lanes=lanes, horizon=8, minibatches=2, kernels="fused", **algo)
    reconfigure(ppo, config, "ieee")
    prepared(ppo)
    return gradients(ppo)[0].float().numpy().tobytes().hex()


def some_case(env, net, lanes, cut, config):
    """Whether acting on slices of the lanes in turn has the bits of acting on all."""
    ppo = trainer(env_of(env), mlp.Config(**net), lanes=lanes, horizon=3, minibatches=1, kernels="fused")
    if config is not None:
        reconfigure(ppo, config, "ieee")
    ppo.start()
    ppo.world.noise(ppo.collector.noise)
    ppo.backend.prepare()
    ppo.backend.act(0)
    written = (ppo.experience.raw, ppo.experience.log_probability, ppo.experience.value, ppo.rollout.action)
    whole = [field[0].clone() for field in written]
    for field in written:
        field.zero_()
    for part in (slice(cut, lanes), slice(0, cut)):
        ppo.backend.act(0, part)
    return [bool(torch.equal(one, field[0])) for one, field in zip(whole, written, strict=True)] + [
        bool(whole[1].abs().min() > 0)
    ]


def rounded_case(env, net, algo, config, precision):
    """Distances of a minibatch's gradient from torch's with operands rounded like the kernels', and with exact
    operands.
    """
    ppo = trainer(env_of(env), mlp.Config(**net), lanes=10, horizon=4, minibatches=2, kernels="fused", **algo)
    reconfigure(ppo, config, precision)
    prepared(ppo)
    ppo.backend.learner.begin()
    found, wanted = both_gradients(ppo, 1)
    return relative_error(found, wanted), relative_error(found, expected(ppo, 1, "ieee"))


def iteration_case(env, net, algo, iterations=2, broken=False, scheduled=None):
    """Differences between fused kernels and torch after whole iterations from one seed; `scheduled` has a value per
    iteration.
    """
    scheduled = scheduled or {}
    config = {"lanes": 12, "horizon": 6, "epochs": 2, "minibatches": 2, **algo, "scheduled": tuple(scheduled)}
    ours, theirs = (
        trainer(env_of(env), mlp.Config(**net), kernels=kernels, **config) for kernels in ("fused", "torch")
    )
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
        "rollout": max(
            difference(getattr(ours.experience, name), getattr(theirs.experience, name))
            for name in ("value", "log_probability", "returns")
        ),
        "final": difference(
            ours.experience.final_value[ours.rollout.truncated != 0],
            theirs.experience.final_value[theirs.rollout.truncated != 0],
        )
        if ours.rollout.truncated.any()
        else None,
        "moved": difference(
            ours.policy.flat.values, trainer(env_of(env), mlp.Config(**net), **config).policy.flat.values
        ),
        "not_finite": [float(Stats(*ours.stats).not_finite), float(Stats(*theirs.stats).not_finite)],
    }


@triton.jit
def _no_record(terms, column, parameters, update, SPEC: tl.constexpr):
    tl.store(update + column, terms)


def reduced(rows, shards):
    """Rows of partial sums (C, width) reduced by the kernel."""
    gradient, terms = torch.zeros(rows.shape[1] - 32), torch.zeros(32)
    reduce_partials[(rows.shape[1] // 32,)](
        rows,
        rows.shape[1],
        gradient,
        torch.zeros(len(gradient) // 32),
        gradient,
        terms,
        SPEC=0,
        RECORD=_no_record,
        SHARDS=shards,
        SHARD_ROWS=len(rows) // shards,
    )
    return torch.cat([gradient, terms])


def tree_case(chunks, shards):
    """Whether rows are added in a binary tree, and whether a shard's rows alone give the same sum."""
    rows = torch.randn(chunks, 96, generator=torch.Generator().manual_seed(chunks)) * torch.logspace(-3, 3, 96)
    sums = torch.stack([reduced(part, 1) for part in rows.chunk(shards)])
    by_hand = list(rows.chunk(shards))
    for k, part in enumerate(by_hand):
        while len(part) > 1:
            part = part[: len(part) // 2] + part[len(part) // 2 :]
        by_hand[k] = part[0]
    whole = torch.stack(by_hand)
    while len(whole) > 1:
        whole = whole[0::2] + whole[1::2]
    return {
        "shards": bool(torch.equal(sums, torch.stack(by_hand))),
        "whole": bool(torch.equal(reduced(rows, shards), whole[0])),
    }


def muon_case(shapes, half, skip):
    """Muon's kernels against `operant.nn.Muon`: error of the parameters relative to the step, error of the momentum,
    and the largest remaining gradient.

    If the step is skipped, every matrix has a NaN in its gradient.
    """
    found = torch.randn(3, sum(m * n for m, n in shapes), generator=torch.Generator().manual_seed(3))
    places = [sum(m * n for m, n in shapes[:k]) for k in range(len(shapes))]
    rate, skipped = torch.tensor([3e-3]), torch.tensor([skip])
    if skip:
        found[1, places] = torch.nan
    values, gradient, momentum = found.double()
    matrices = [(at, (1, m, n)) for at, (m, n) in zip(places, shapes, strict=True)]
    exact = Muon(values, gradient, rate.double(), 1e-5, matrices)
    exact.tensors()["momentum"].copy_(momentum)
    gradient *= 0.5 / float(gradient.norm())
    exact.step_matrices(skipped.double())
    squares = found[1].square().view(-1, 2).sum(dim=1)
    before = found[0].double()
    ours = Matrices(matrices, torch.device("cpu"), half=half)
    ours.step(
        lambda kernel, grid, *arguments, **options: kernel[grid](*arguments, **options),
        *found,
        squares,
        skipped,
        rate,
        0.5,
    )
    steps = [[(moved - before)[at : at + m * n] for moved in (found[0], values)] for at, (_, m, n) in matrices]
    return {
        "step": float(torch.stack([(one - other).norm() / other.norm().clamp_min(1e-9) for one, other in steps]).max()),
        "momentum": relative_error(found[2], exact.tensors()["momentum"]),
        "gradient": float(found[1].abs().max()),
    }


def by_a_clock():
    """Replace the kernels' timer in the exchange by a clock that advances one nanosecond per reading."""
    ticks = itertools.count()
    exchange.globaltimer = lambda: next(ticks)
    return torch.zeros(1, dtype=torch.int64)


def exchange_case(chunks, shards, ranks, rank):
    """Whether one rank's shards and the words of the others give the one-rank gradient; three turns, as halves
    alternate.
    """
    generator, width = torch.Generator().manual_seed(chunks), 96
    boxes, turns, same = torch.zeros(ranks, 2, ranks, width, dtype=torch.int64), torch.zeros(3, dtype=torch.int32), []
    spent = by_a_clock()
    link = Link(boxes[rank], torch.tensor([box[0, rank].data_ptr() for box in boxes]), turns, spent)
    for turn in range(1, 4):
        rows, sums = torch.randn(chunks, width, generator=generator), torch.zeros(ranks, width)
        cut = {"SHARDS": shards // ranks, "SHARD_ROWS": chunks // shards}
        for other, part in enumerate(rows.chunk(ranks)):
            sum_shards[(3,)](part.contiguous(), width, sums[other], **cut)
        words = (turn << 32) | (sums.view(torch.int32).long() & 0xFFFFFFFF)
        for other in set(range(ranks)) - {rank}:
            boxes[rank, turn % 2, other] = words[other]
        gradient, terms = torch.zeros(width - 32), torch.zeros(32)
        own = rows.chunk(ranks)[rank].contiguous()
        exchange_partials[(3,)](
            own, width, gradient, torch.zeros(2), gradient, terms, link, SPEC=0, RECORD=_no_record, RANKS=ranks, **cut
        )
        sent = all(torch.equal(box[turn % 2, rank], words[rank]) for box in boxes)
        counted = spent.item() == turn  # of three programs the first
        same.append(
            sent
            and counted
            and bool(torch.equal(torch.cat([gradient, terms]), reduced(rows, shards)))
            and turns.eq(turn).all().item()
        )
    return same


def gather_case(size, ranks, rank):
    """Whether words of all ranks arrive in rank order, in two turns."""
    generator, programs = torch.Generator().manual_seed(size), -(-size // 128)
    boxes, turns, same = (
        torch.zeros(ranks, 2, ranks, 128 * programs, dtype=torch.int64),
        torch.zeros(programs, dtype=torch.int32),
        [],
    )
    spent = by_a_clock()
    link = Link(boxes[rank], torch.tensor([box[0, rank].data_ptr() for box in boxes]), turns, spent)
    for turn in (1, 2):
        words = torch.randint(-(2**31), 2**31, (ranks, size), generator=generator, dtype=torch.int32)
        boxes[rank, turn % 2] = turn << 32
        boxes[rank, turn % 2, :, :size] |= words.long() & 0xFFFFFFFF
        boxes[rank, turn % 2, rank] = 0
        gathered = torch.zeros(ranks, size, dtype=torch.int32)
        gather_words[(programs,)](words[rank].contiguous(), gathered, size, 128 * programs, link, RANKS=ranks)
        same.append(bool(torch.equal(gathered, words)))
    return same


class Both:
    """Exchange of two ranks in one process: gathers this rank's rows and fixed rows of the other."""

    ranks = 2

    def __init__(self, rank, theirs=None):
        self.rank, self.theirs, self.own = rank, theirs, None

    def gather(self, rows):
        """Rows of both ranks."""
        self.own = rows
        return (
            torch.cat([rows, self.theirs] if self.rank == 0 else [self.theirs, rows])
            if self.theirs is not None
            else torch.cat([rows, rows])
        )


def normalizer_case(features, steps, lanes, kind, shards=4):
    """Errors of a running normalizer's mean and variance against torch in float64 after two batches, and whether two
    ranks have the bits of one.
    """
    generator, dtype = torch.Generator().manual_seed(features), getattr(torch, kind)
    batches = [
        torch.randn(steps, features, lanes, generator=generator)
        .mul_(50 * (k + 1))
        .add_(100)
        .clamp_(0, 255)
        .to(dtype)
        .transpose(0, 1)
        for k in range(2)
    ]
    one, plain, two = (RunningNormalizer(features, torch.device("cpu")) for _ in range(3))
    for batch in batches:
        one.update_by_triton(batch, shards)
        plain.update(batch.double())
        halves = batch.chunk(2, dim=-1)
        other = Both(1)
        RunningNormalizer(features, torch.device("cpu")).update_by_triton(halves[1], shards // 2, other)
        two.update_by_triton(halves[0], shards // 2, Both(0, other.own))
    errors = [
        ((a - b).abs() / b.abs()).max().item()
        for a, b in ((one.running_mean, plain.running_mean), (one.running_variance, plain.running_variance))
    ]
    errors.append(((one.inv_std - plain.inv_std).abs() / plain.inv_std).max().item())
    return max(errors), all(torch.equal(one.tensors()[name], two.tensors()[name]) for name in one.tensors())
