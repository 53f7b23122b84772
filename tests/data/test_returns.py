"""Advantages and accrued returns: a table worked by hand, a plain float64 version, and both CPU shells."""

from __future__ import annotations

import functools

import numba
import pytest
import torch

from operant.compute import kernel
from operant.compute.kernel import bind
from operant.data import returns

CPU = torch.device("cpu")


@functools.cache
def compiled(body):
    return kernel.kernel(body, CPU)


def advantages(reward, value, final_value, terminated, truncated, *, gamma, lambda_):
    """Advantages and returns, (T, N) each, of rows a step."""
    as_floats = [torch.as_tensor(x, dtype=torch.float32) for x in (reward, value, final_value)]
    as_flags = [torch.as_tensor(x, dtype=torch.uint8) for x in (terminated, truncated)]
    written = [torch.full_like(as_floats[0], 777.0) for _ in range(2)]
    trace = bind(returns.Trace(*as_floats, *as_flags, *written))
    compiled(returns.advantage_body)(as_floats[0].shape[1], returns.Discount(gamma, gamma * lambda_), trace)
    return written


def test_advantages_by_hand():
    """gamma = 1/2, lambda = 1/2, so delta_t = r_t + V'/2 - V_t and A_t = delta_t + A_{t+1}/4; V' is 0, V(final) or
    V_{t+1}.

    All lanes have r = 1, 2, 3, 1 and V = 0, 1, 4, 0 and then 1; the final observation of step 2 is worth 9.

    ====  =====================  =======================  ========================  ========================
    t     lane 0: nothing ends   lane 1: terminated at 2  lane 2: truncated at 2    lane 3: both at 2
    ====  =====================  =======================  ========================  ========================
    3     1 + 1/2 - 0 = 1.5      1.5                      1.5                       1.5
    2     3 + 0/2 - 4 = -1       3 - 4 = -1               3 + 9/2 - 4 = 3.5         -1
          -1 + 1.5/4 = -0.625    -1                       3.5                       -1
    1     2 + 4/2 - 1 = 3        3                        3                         3
          3 - 0.625/4 = 2.84375  3 - 1/4 = 2.75           3 + 3.5/4 = 3.875         2.75
    0     1 + 1/2 - 0 = 1.5      1.5                      1.5                       1.5
          + A_1/4 = 2.2109375    1.5 + 2.75/4 = 2.1875    1.5 + 3.875/4 = 2.46875   2.1875
    ====  =====================  =======================  ========================  ========================
    """
    reward = torch.tensor([1.0, 2.0, 3.0, 1.0])[:, None].expand(4, 4).contiguous()
    value = torch.tensor([0.0, 1.0, 4.0, 0.0, 1.0])[:, None].expand(5, 4).contiguous()
    final_value = torch.full((4, 4), 9.0)
    terminated, truncated = torch.zeros(4, 4), torch.zeros(4, 4)
    terminated[2, [1, 3]], truncated[2, [2, 3]] = 1, 1
    advantage, target = advantages(reward, value, final_value, terminated, truncated, gamma=0.5, lambda_=0.5)
    expected = torch.tensor(
        [
            [2.2109375, 2.1875, 2.46875, 2.1875],
            [2.84375, 2.75, 3.875, 2.75],
            [-0.625, -1.0, 3.5, -1.0],
            [1.5, 1.5, 1.5, 1.5],
        ]
    )
    assert torch.equal(advantage, expected)
    assert torch.equal(target, expected + value[:4])


def test_the_last_step_of_a_rollout_may_end_an_episode():
    # One step: r = 1, V = 2, V of what follows 100, V of the final observation 10, gamma = 1/2.
    flags = torch.tensor([[0, 1, 0, 1]]), torch.tensor([[0, 0, 1, 1]])
    advantage, _ = advantages([[1.0] * 4], [[2.0] * 4, [100.0] * 4], [[10.0] * 4], *flags, gamma=0.5, lambda_=0.9)
    assert advantage.tolist() == [[49.0, -1.0, 4.0, -1.0]]


def random_trace(T, N, seed):
    generator = torch.Generator().manual_seed(seed)
    reward, value, final_value = (torch.randn(rows, N, generator=generator) for rows in (T, T + 1, T))
    terminated, truncated = (torch.rand(T, N, generator=generator) < 0.15 for _ in range(2))
    final_value[~truncated] = torch.nan  # nobody may read it there
    return reward, value, final_value, terminated, truncated


@pytest.mark.parametrize(("gamma", "lambda_"), [(0.99, 0.95), (1.0, 1.0), (0.9, 0.0), (0.0, 0.5)])
@pytest.mark.parametrize(("T", "N"), [(1, 1), (2, 5), (64, 33)])
def test_advantages_are_the_sum_of_the_paper(T, N, gamma, lambda_):
    """Equation 16: A_t = sum over l of (gamma lambda)^l delta_{t+l}, as far as the episode goes."""
    reward, value, final_value, terminated, truncated = random_trace(T, N, seed=T + N)
    advantage, target = advantages(reward, value, final_value, terminated, truncated, gamma=gamma, lambda_=lambda_)
    reward, value, final_value = (x.double() for x in (reward, value, final_value))
    for i in range(N):
        for t in range(T):
            expected, weight = 0.0, 1.0
            for u in range(t, T):
                following = (
                    0.0 if terminated[u, i] else float(final_value[u, i] if truncated[u, i] else value[u + 1, i])
                )
                expected += weight * (float(reward[u, i]) + gamma * following - float(value[u, i]))
                if terminated[u, i] or truncated[u, i]:
                    break
                weight *= gamma * lambda_
            assert float(advantage[t, i]) == pytest.approx(expected, rel=1e-5, abs=2e-5)
            assert float(target[t, i]) == pytest.approx(expected + float(value[t, i]), rel=1e-5, abs=2e-5)


def test_lambda_one_is_the_discounted_return():
    # With lambda = 1 the values cancel and the target is r_0 + gamma r_1 + gamma^2 r_2 + gamma^3 V: 1 + 2/2 + 4/4 + 8 x
    # 8/8... = 1 + 1 + 1 + 1.
    reward, value = [[1.0], [2.0], [4.0]], [[5.0], [-3.0], [7.0], [8.0]]
    none = torch.zeros(3, 1)
    _, target = advantages(reward, value, none, none, none, gamma=0.5, lambda_=1.0)
    assert target[:, 0].tolist() == [1.0 + 1.0 + 1.0 + 1.0, 2.0 + 2.0 + 2.0, 4.0 + 4.0]


def accrued(reward, terminated, truncated, carried, gamma):
    reward, carried = (
        torch.as_tensor(reward, dtype=torch.float32),
        torch.as_tensor(carried, dtype=torch.float32).clone(),
    )
    flags = [torch.as_tensor(x, dtype=torch.uint8) for x in (terminated, truncated)]
    written = torch.full_like(reward, 777.0)
    group = bind(returns.Accrual(reward, *flags, carried, written))
    compiled(returns.accrual_body)(reward.shape[1], returns.Discount(gamma, 0.0), group)
    return written, carried


def test_accrual_by_hand():
    """gamma = 1/2, r = 1, 2, 3, 1 and 8 carried in: g = 8/2 + 1 = 5; 5/2 + 2 = 4.5; 4.5/2 + 3 = 5.25; then 5.25/2 + 1,
    or 1 after an end.
    """
    reward = torch.tensor([1.0, 2.0, 3.0, 1.0])[:, None].expand(4, 3).contiguous()
    terminated, truncated = torch.zeros(4, 3), torch.zeros(4, 3)
    terminated[2, 1], truncated[2, 2] = 1, 1
    written, carried = accrued(reward, terminated, truncated, [8.0, 8.0, 8.0], 0.5)
    expected = torch.tensor([[5.0, 5.0, 5.0], [4.5, 4.5, 4.5], [5.25, 5.25, 5.25], [3.625, 1.0, 1.0]])
    assert torch.equal(written, expected)
    assert carried.tolist() == [3.625, 1.0, 1.0]


def test_accrual_continues_over_rollouts():
    reward, _, _, terminated, truncated = random_trace(12, 4, seed=3)
    whole, last = accrued(reward, terminated, truncated, torch.zeros(4), 0.9)
    first, carried = accrued(reward[:5], terminated[:5], truncated[:5], torch.zeros(4), 0.9)
    second, again = accrued(reward[5:], terminated[5:], truncated[5:], carried, 0.9)
    assert torch.equal(whole, torch.cat([first, second])) and torch.equal(last, again)
    ended = (terminated | truncated)[-1]
    assert torch.equal(last == 0, ended)


def test_parallel_kernel_equals_the_serial_one(monkeypatch):
    trace = random_trace(16, 101, seed=0)
    serial = advantages(*trace, gamma=0.99, lambda_=0.95)
    monkeypatch.setattr(kernel, "SERIAL_BELOW", 0)
    threads = numba.get_num_threads()
    several = advantages(*trace, gamma=0.99, lambda_=0.95)
    numba.set_num_threads(1)
    try:
        one = advantages(*trace, gamma=0.99, lambda_=0.95)
    finally:
        numba.set_num_threads(threads)
    assert all(torch.equal(a, b) and torch.equal(b, c) for a, b, c in zip(serial, several, one, strict=True))
