"""Several ranks train the same bytes as one."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from toys import iterate

from operant.compute.exchange import SOLO
from operant.config import load
from operant.errors import ConfigError
from operant.training import distributed
from operant.training.build import build, require_shared
from operant.training.meters import specs_for

pytestmark = pytest.mark.usefixtures("one_thread")


def on_ranks(ranks, work):
    """Results of `work(exchange)` on each rank; ranks are threads of this process joined by gloo."""
    store, found, failed = dist.HashStore(), {}, []

    def one(rank):
        try:
            torch.set_num_threads(1)
            found[rank] = work(distributed.join(store, rank, ranks, torch.device("cpu")))
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not failed:
        for thread in threads:
            thread.join(0.05)
    assert not failed, failed
    return [found[rank] for rank in range(ranks)]


def trained(config, exchange=SOLO, iterations=3):
    """Tensors of a checkpoint after some iterations, and the update's statistics, as bytes."""
    algo = build(config, "cpu", exchange=exchange)
    algo.start()
    iterate(algo, iterations)
    whole = distributed.whole_state(algo, "train", exchange)
    return {name: tensor.numpy().tobytes() for name, tensor in [*whole.items(), ("stats", algo.stats)]}


def test_an_exchange_that_is_not_fully_timed_reports_no_time(monkeypatch, caplog):
    """Kernels count their own time; more than 65,536 values go another way. (One rank without a GPU: no kernel, no
    stream.)
    """
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, distributed.FOREVER)
    exchange, large = (
        distributed.SymmetricExchange(0, 1, group, torch.device("cpu"), in_kernel=True),
        torch.zeros(1, distributed.MAX_SYMMETRIC_WORDS + 1),
    )
    exchange.counts = False  # as for a checkpoint
    exchange.gather(large)
    assert exchange.spent_s() == 0.0
    exchange.counts = True
    with caplog.at_level("INFO"):
        exchange.gather(large)
        exchange.gather(large)
    assert "more than 65,536 numbers" in exchange.untimed
    assert math.isnan(exchange.spent_s()) and caplog.text.count("the exchange's share is not measured") == 1


def test_the_metric_of_an_untimed_exchange_gives_the_reason():
    algo = build(load.load(None, ["env.lanes=8", "algo.horizon=8", "net.hidden=[4]"]), "cpu")
    said = {
        name: distributed.GroupExchange(0, 2, None, name, torch.device(kind))
        for name, kind in (("NCCL", "cuda"), ("gloo", "cpu"))
    }
    absent = {
        name: {spec.name: spec.absent for spec in specs_for(algo, exchange)}["gpu/1/exchange_share"]
        for name, exchange in said.items()
    }
    assert absent == {"NCCL": "not measured with NCCL", "gloo": ""}


SHAPE = [
    "env.lanes=512",
    "algo.horizon=16",
    "algo.minibatches=2",
    "algo.epochs=2",
    "run.steps=100k",
    "net.hidden=[16,16]",
]
CASES = {
    "everything": [
        "algo.normalize_observations=true",
        "algo.normalize_rewards=true",
        "algo.target_kl=0.002",
        "algo.value_clip=0.2",
        "algo.learning_rate=0.01",
    ],
    "two chunks a shard": ["algo.chunks=16"],
    "overlap": ["algo.overlap=true", "algo.normalize_observations=true", "algo.target_kl=0.002"],
    "muon": ["algo.optimizer=muon", "algo.replay_ratio=1.5"],
    "torch": ["algo.kernels=torch", "algo.chunks=8", "algo.normalize_observations=true", "algo.target_kl=0.002"],
    "memory": [
        "net.memory=gru",
        "algo.chunks=8",
        "algo.bptt=8",
        "algo.normalize_observations=true",
        "algo.normalize_rewards=true",
    ],
    "truncated": [
        "env.name=pendulum",
        "env.lanes=128",
        "algo.horizon=128",
        "algo.normalize_observations=true",
        "algo.normalize_rewards=true",
    ],
}


@pytest.mark.parametrize(
    "name", [name if name == "everything" else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_two_ranks_make_the_same_bytes_as_one(name):
    shape = [*SHAPE, *CASES[name]]
    config = load.load(None, shape)
    alone = trained(config)
    assert alone != trained(load.load(None, [*shape, "run.seed=2"]))
    for found in on_ranks(2, lambda exchange: trained(config, exchange)):
        assert [key for key in alone if found[key] != alone[key]] == []


def test_a_checkpoint_resumes_on_another_number_of_ranks_with_equal_bytes():
    config = load.load(None, [*SHAPE, *CASES["everything"]])
    whole = trained(config, iterations=4)

    def half(exchange):
        algo = build(config, "cpu", exchange=exchange)
        algo.start()
        iterate(algo, 2)
        return distributed.whole_state(algo, "train", exchange)

    def rest(exchange, state):
        algo = build(config, "cpu", exchange=exchange)
        for name, tensor in distributed.own_state(algo, state, exchange).items():
            algo.state("train")[name].copy_(tensor)
        iterate(algo, 2)
        return {
            name: tensor.numpy().tobytes() for name, tensor in distributed.whole_state(algo, "train", exchange).items()
        }

    stats = whole.pop("stats")
    assert stats
    assert rest(SOLO, on_ranks(2, half)[0]) == whole
    state = half(SOLO)
    assert on_ranks(2, lambda exchange: rest(exchange, state)) == [whole, whole]


def test_lanes_that_ranks_cannot_share_are_refused_with_the_reason():
    with pytest.raises(ConfigError, match=r"2 ranks cannot share env.lanes = 48: .* from 1 shard of the lanes"):
        require_shared(load.load(None, ["env.lanes=48"]), 2)
    for words, key in ((["run.gpus=2"], "run.gpus"), (["run.ranks=2"], "run.ranks")):
        with pytest.raises(
            ConfigError, match=rf"{key}: pqn trains on one device only \(got 2 ranks\): leave {key} out"
        ):
            require_shared(load.load(None, ["algo.name=pqn", *words]), 2)
    with pytest.raises(ConfigError, match=r'algo.replay_sampling = "prioritised" has priorities of one rank only'):
        require_shared(load.load(None, ["algo.name=dqn", "algo.replay_sampling=prioritised"]), 2)


def test_gather_supports_every_dtype():
    """An environment's state uses the smallest type that holds it."""
    for kind in (torch.bool, torch.int16, torch.uint16, torch.int64, torch.bfloat16):
        found = on_ranks(2, lambda exchange, kind=kind: exchange.gather(torch.full((2, 3), exchange.rank).to(kind)))
        assert all(rows.dtype == kind and rows.tolist() == [[0, 0, 0]] * 2 + [[1, 1, 1]] * 2 for rows in found), kind


REPLAYS = {
    "dqn": ["env.name=cartpole"],
    "sac": ["env.name=pendulum", "algo.critic=c51"],
    "td3": ["env.name=pendulum", "algo.n_step=3"],
}


@pytest.mark.parametrize("name", REPLAYS)
def test_two_ranks_with_a_replay_each_learn_from_the_samples_of_one(name):
    """Sums over a batch are added in another order, so values are close but not equal; samples and collected data are
    equal.
    """
    words = [
        f"algo.name={name}",
        *REPLAYS[name],
        "env.lanes=32",
        "algo.horizon=16",
        "algo.batch_size=64",
        "algo.learning_starts=256",
        "net.hidden=[16]",
    ]
    config = load.load(
        None,
        [
            *words,
            "algo.replay_capacity=4k",
            "algo.normalize_observations=true",
            "run.steps=10k",
            "algo.updates_per_step=0.25",
        ],
    )

    def whole(exchange, state=None):
        algo = build(config, "cpu", exchange=exchange)
        algo.start()
        for key, tensor in (distributed.own_state(algo, state, exchange) if state else {}).items():
            algo.state("all")[key].copy_(tensor)
        for phase in 2 * algo.phases:
            phase.run()
        assert algo.steps_per_iteration == 512
        return {**distributed.whole_state(algo, "all", exchange), "stats": algo.stats.clone()}

    first = whole(SOLO)
    halves = on_ranks(2, whole)
    assert {key for key in first if not torch.equal(halves[0][key], halves[1][key])} == set()  # on both ranks the same
    for found in (halves[0], whole(SOLO, {key: tensor for key, tensor in halves[0].items() if key != "stats"})):
        assert {key: tensor.shape for key, tensor in found.items()} == {
            key: tensor.shape for key, tensor in first.items()
        }
    assert torch.equal(halves[0]["replay/reward"], first["replay/reward"]) and torch.equal(
        halves[0]["replay/action"][:17], first["replay/action"][:17]
    )
    assert not torch.equal(first["policy/parameters"], build(config, "cpu").state("policy")["policy/parameters"])
    torch.testing.assert_close(halves[0]["policy/parameters"], first["policy/parameters"], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(halves[0]["stats"], first["stats"], rtol=1e-2, atol=1e-3)


PER_LAYER = "per-layer block_m=32 block_n=32 block_k=16 warps=4 stages=2 chunks=4 microbatch=128"


@pytest.mark.soak
@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
@pytest.mark.parametrize(
    "more", ["algo.target_kl=0.01", f"algo.kernel_config={PER_LAYER}", "net.memory=gru;algo.bptt=8"]
)
def test_two_ranks_of_the_fused_kernels_make_the_same_bytes_as_one(tmp_path, more):
    """Kernels in Triton's interpreter, one process per rank."""
    shape = [
        *SHAPE,
        "env.lanes=64",
        "algo.horizon=32",
        "algo.epochs=1",
        "net.hidden=[16]",
        "net.shared=true",
        "algo.kernels=fused",
    ]
    shape += ["algo.kernel_config=first", *more.split(";")]
    script, variables = Path(__file__).parents[1] / "fused_ranks.py", os.environ | {"TRITON_INTERPRET": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), tmp_path / "store", json.dumps(shape)],
            env=variables,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    assert [json.loads(rank.communicate(timeout=300)[0]) for rank in ranks] == [[[], True]] * 2
