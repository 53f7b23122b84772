"""Several ranks: the same bytes as one."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist
from toys import iterate

from operant.compute.exchange import SOLO
from operant.config import load
from operant.training import distributed
from operant.training.build import build

pytestmark = pytest.mark.usefixtures("one_thread")


def on_ranks(ranks, work):
    """What `work(exchange)` returns on each of so many ranks, threads of this process that gloo joins."""
    store, found, failed = dist.HashStore(), {}, []

    def one(rank):
        try:
            torch.set_num_threads(1)
            found[rank] = work(distributed.gloo(store, rank, ranks))
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
    """All that a checkpoint would hold after some iterations, and the update's numbers, as bytes."""
    algo = build(config, "cpu", exchange=exchange)
    algo.start()
    iterate(algo, iterations)
    whole = distributed.whole_state(algo, "train", exchange)
    return {name: tensor.numpy().tobytes() for name, tensor in [*whole.items(), ("stats", algo.stats)]}


CASES = {
    "everything": ["algo.normalize_observations=true", "algo.normalize_rewards=true", "algo.target_kl=0.002", "algo.value_clip=0.2", "algo.learning_rate=0.01"],
    "two chunks a shard": ["algo.chunks=16"],
    "torch": ["algo.kernels=torch", "algo.chunks=8", "algo.normalize_observations=true", "algo.target_kl=0.002"],
    "memory": ["net.memory=gru", "algo.chunks=8", "algo.bptt=8", "algo.normalize_observations=true", "algo.normalize_rewards=true"],
    "truncated": ["env.name=pendulum", "env.lanes=128", "algo.horizon=128", "algo.normalize_observations=true", "algo.normalize_rewards=true"],
}


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_make_the_same_bytes_as_one(name):
    shape = ["env.lanes=512", "algo.horizon=16", "algo.minibatches=2", "algo.epochs=2", "run.steps=100k", "net.hidden=[16,16]", *CASES[name]]
    config = load.load(None, shape)
    alone = trained(config)
    assert alone != trained(load.load(None, [*shape, "run.seed=2"]))
    for found in on_ranks(2, lambda exchange: trained(config, exchange)):
        assert [key for key in alone if found[key] != alone[key]] == []
