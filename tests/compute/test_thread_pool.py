"""Thread pool for kernels: results of one launch whichever thread takes which piece, and an end under all
circumstances.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from operant.compute.device import device
from operant.compute.kernel import Kernel, bind
from operant.compute.thread_pool import KernelThreadPool

COUNT = 1000


class Numbers(NamedTuple):
    value: Any
    times: Any


class Factor(NamedTuple):
    factor: Any


@device
def _counting(i, lanes, slot, offset):
    lanes.value[i] += slot.factor[0] * (i + offset)
    lanes.times[i] += 1


@pytest.fixture
def numbers():
    return Numbers(torch.zeros(COUNT, dtype=torch.int64), torch.zeros(COUNT, dtype=torch.int64))


def pool(numbers, threads):
    return KernelThreadPool(
        Kernel(_counting, torch.device("cpu")), threads, bind(numbers), bind(Factor(torch.tensor([3])))
    )


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_each_index_is_processed_once_in_submission_order(numbers, threads):
    shared = pool(numbers, threads)
    for offset in range(3):  # sessions
        with shared.session(5):
            given = [shared.submit(*part, offset) for part in ((0, 1), (1, 400), (400, 400), (400, 999), (999, COUNT))]
            for number in given:
                shared.wait(number)
                assert numbers.times[: [1, 400, 400, 999, COUNT][number]].eq(offset + 1).all()
    assert np.array_equal(numbers.value.numpy(), 3 * (3 * np.arange(COUNT) + 3))


def test_help_processes_pieces_until_none_is_left(numbers):
    alone = pool(numbers, 1)
    with alone.session(2):
        assert not alone.help()
        given = [alone.submit(0, 500, 0), alone.submit(500, COUNT, 0)]
        assert [alone.help() for _ in range(3)] == [True, True, False] and numbers.times.eq(1).all()
        for number in given:
            alone.wait(number)
    assert numbers.times.eq(1).all()


def test_an_interrupted_session_releases_its_threads(numbers):
    shared = pool(numbers, 3)
    with pytest.raises(KeyboardInterrupt), shared.session(100):
        shared.wait(shared.submit(0, COUNT, 0))
        raise KeyboardInterrupt
    with shared.session(1):
        shared.wait(shared.submit(0, COUNT, 0))
    assert numbers.times.eq(2).all()
