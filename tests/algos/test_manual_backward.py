"""The manual backward pass: equal to autograd in float32 and float64 for every network and distribution, however it is
cut into chunks and threads; the same bits again; nothing broken is hidden; and PPO that descends by it does what PPO
does.
"""

from __future__ import annotations

import copy
import itertools
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from toys import GATE, PICK, PUSH, bytes_of, iterate, ppo_on

from operant.algos.ppo import cpu
from operant.algos.ppo.ppo import TERMS, Batch, ppo_loss
from operant.compute.threads import ThreadPool
from operant.data import minibatches
from operant.envs import find
from operant.nn import chunked, manual, mlp

CARTPOLE = find("cartpole")
HEADS = {
    "categorical": (CARTPOLE, False),
    "multi": (PICK, False),
    "gaussian": (PUSH, False),
    "squashed": (PUSH, True),
    "masked": (GATE, False),
}
B = 75


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of up to 20 samples, and several threads for few samples."""
    monkeypatch.setattr(minibatches, "CPU_CHUNK", 20)
    monkeypatch.setattr(chunked, "MIN_THREAD_SAMPLES", 10)


def trainer(head="categorical", *, normalize=False, **changes):
    """A trainer with perturbed parameters: at the start biases are zero and the head nearly so."""
    env, squash = HEADS[head]
    given = {key: changes.pop(key) for key in ("hidden", "activation", "shared", "layer_norm") if key in changes}
    net = mlp.Config(**{"hidden": (7, 5), "squash": squash, **given})
    algo = {"entropy_coefficient": 0.03, "clip": 0.15, "normalize_observations": normalize, **changes}
    ppo = ppo_on(env, 8, net, horizon=8, start=False, **algo)
    flat = ppo.policy.flat
    flat.values.data.add_(0.2 * torch.randn(flat.values.shape, generator=torch.Generator().manual_seed(3)))
    return ppo


def batch_for(ppo, samples=B):
    """Samples that put every branch of the loss to the test."""
    env, policy, generator = ppo.world.spec, ppo.policy, torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    size = env.observation.size
    observation = (
        torch.randint(0, 4, (size, samples), generator=generator, dtype=torch.uint8)
        if env in (PICK, GATE)
        else normal(size, samples)
    )
    legal = (
        torch.tensor([[0, 1, 1, 1, 1], [1, 0, 1, 1, 0], [1, 0, 0, 1, 1]], dtype=torch.uint8).t()[
            :, torch.arange(samples) % 3
        ]
        if env is GATE
        else None
    )
    if policy.normalizer is not None:
        policy.normalizer.update(3.0 * normal(size, 50) + 1.0)
    with torch.no_grad():
        parameters, value = policy.forward(observation, legal)
        action = policy.distribution.sample(
            parameters, torch.rand(policy.distribution.noise_rows, samples, generator=generator)
        )
        log_probability = policy.distribution.log_probability_and_entropy(parameters, action)[0]
    old = log_probability + 0.25 * normal(samples)
    return Batch(
        observation, action, old, value + 0.2 * normal(samples), normal(samples), value + normal(samples), legal
    )


def by_autograd(ppo, batch):
    """Gradients by name and the numbers, by autograd in float32."""
    flat = ppo.policy.flat
    loss, terms = ppo_loss(ppo.policy, batch, ppo.config)
    flat.backward(loss)
    return gradients_of(flat), ppo.backend.stacked(terms)


def by_autograd_in_double(ppo, batch):
    """Gradient in float64: the bound on the error of both."""
    policy = ppo.policy
    net, distribution = copy.deepcopy(policy.net).double(), copy.deepcopy(policy.distribution).double()

    def forward(observation, legal=None):
        parameters, value = net(policy.features(observation).double())
        return parameters if legal is None else parameters.masked_fill(legal == 0, -1e9), value

    double = SimpleNamespace(distribution=distribution, forward=forward)
    action = batch.action.double() if batch.action.is_floating_point() else batch.action
    wide = Batch(batch.observation, action, *(field.double() for field in batch[2:6]), batch.legal)
    loss, terms = ppo_loss(double, wide, ppo.config)
    named = {name: parameter for module in (net, distribution) for name, parameter in module.named_parameters()}
    gradients = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
    return dict(zip(named, gradients, strict=True)), torch.stack([terms[name].double() for name in TERMS])


def gradients_of(flat):
    return {
        name: flat.gradient[start : start + parameter.numel()].view(parameter.shape).clone()
        for name, parameter, start in zip(flat.names, flat.parameters, flat.offsets, strict=True)
    }


def pool():
    """Thread pool with torch's number of threads."""
    return ThreadPool(torch.get_num_threads())


def chunk_sizes(samples):
    """Chunks of a CPU's number and about equal sizes; some are empty if there are fewer samples."""
    chunks = minibatches.cpu_chunks(samples, 2)
    return [(k + 1) * samples // chunks - k * samples // chunks for k in range(chunks)]


def gradient_of(ppo, samples=B):
    return cpu.Gradient(ppo.policy, ppo.config, chunk_sizes(samples), pool())


def by_hand(ppo, batch):
    flat = ppo.policy.flat
    flat.gradient.fill_(7.0)  # whatever the last minibatch left there is replaced
    numbers = gradient_of(ppo, batch.returns.shape[0])(batch)
    return gradients_of(flat), numbers


def assert_equal(found, expected, tolerance=1e-5):
    """Gradients, each relative to its own length, and numbers."""
    (gradients, numbers), (wanted, wanted_numbers) = found, expected
    assert gradients.keys() == wanted.keys()
    length = torch.cat([gradient.flatten() for gradient in wanted.values()]).norm()
    for name, gradient in wanted.items():
        error = (gradients[name] - gradient).norm()
        assert error <= tolerance * gradient.norm() + 1e-7 * length, f"{name}: {error / gradient.norm():.1e}"
    for name, number, wanted_number in zip(TERMS, numbers.tolist(), wanted_numbers.tolist(), strict=True):
        assert number == pytest.approx(wanted_number, rel=1e-5, abs=2e-7), name


COMBINATIONS = list(itertools.product([(6,), (7, 5), (6, 6, 6), (4, 9, 4)], [False, True], [None, 0.1]))


@pytest.mark.parametrize(
    "activation", ["tanh", "relu", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gelu", "silu"))]
)
@pytest.mark.parametrize("head", HEADS)
def test_gradient_equals_autograd(head, activation, small_chunks):
    for hidden, shared, value_clip in COMBINATIONS:
        ppo = trainer(head, activation=activation, hidden=hidden, shared=shared, value_clip=value_clip)
        batch = batch_for(ppo)
        found = by_hand(ppo, batch)
        assert_equal(found, by_autograd_in_double(ppo, batch))
        assert_equal(found, by_autograd(ppo, batch))
        assert 0.1 < found[1][4] < 0.9, "the clip is not put to the test"


@pytest.mark.parametrize("head", HEADS)
def test_observations_are_normalized_as_by_the_policy(head, small_chunks):
    ppo = trainer(head, normalize=True)
    batch = batch_for(ppo)
    assert_equal(by_hand(ppo, batch), by_autograd_in_double(ppo, batch))


@pytest.mark.parametrize("samples", [1, 2, 37, 74, 75, 160])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_chunks_change_only_rounding(samples, threads, small_chunks):
    torch.set_num_threads(threads)
    ppo = trainer("multi")
    batch = batch_for(ppo, samples)
    assert_equal(by_hand(ppo, batch), by_autograd_in_double(ppo, batch))


@pytest.mark.parametrize("head", ["multi", "squashed"])
def test_bits_do_not_depend_on_the_number_of_threads(head, small_chunks):
    """A row is a chunk's, and rows are added in one tree, so the sum does not depend on who computed which row."""
    ppo = trainer(head, layer_norm=True)
    batches, found = {samples: batch_for(ppo, samples) for samples in (B, 317)}, []
    for threads, (samples, batch) in itertools.product((1, 2, 3, 4, 5), batches.items()):
        torch.set_num_threads(threads)
        numbers = gradient_of(ppo, samples)(batch)
        found.append((samples, ppo.policy.flat.gradient.numpy().tobytes(), numbers.numpy().tobytes()))
    assert len(set(found)) == 2


@pytest.mark.parametrize("head", ["categorical", "gaussian"])
def test_two_halves_of_the_shards_add_up_to_the_bit(head):
    """Two devices with half of the chunks each: their sums, added, are the sum of one device. Divisions by powers of
    two are exact.
    """
    ppo, samples = trainer(head, hidden=(32, 32)), 1024
    batch, sizes = batch_for(ppo, samples), [128] * 8

    def computed(part, sizes):
        numbers = cpu.Gradient(ppo.policy, ppo.config, sizes, pool())(part)
        return ppo.policy.flat.gradient.clone(), numbers

    whole, first, second = computed(batch, sizes), *(computed(part, sizes[:4]) for part in batch.split([512, 512]))
    assert torch.equal((first[0] + second[0]) / 2, whole[0]) and torch.equal((first[1] + second[1]) / 2, whole[1])


@pytest.mark.parametrize("head", ["masked", "gaussian"])
@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu", "silu"])
@pytest.mark.parametrize("shared", [False, True])
def test_layer_normalization_gradient_equals_autograd(head, activation, shared, small_chunks):
    for hidden in ((6,), (7, 5), (6, 6, 6)):
        ppo = trainer(head, activation=activation, hidden=hidden, shared=shared, layer_norm=True)
        batch = batch_for(ppo)
        assert_equal(by_hand(ppo, batch), by_autograd_in_double(ppo, batch), tolerance=3e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_gradient_repeats_to_the_bit(threads, small_chunks):
    torch.set_num_threads(threads)
    ppo = trainer("gaussian")
    batch, gradient = batch_for(ppo), gradient_of(ppo)
    first, bits = gradient(batch), ppo.policy.flat.gradient.clone()
    for again in (gradient, gradient_of(ppo)):
        for _ in range(5):
            assert torch.equal(again(batch), first) and torch.equal(ppo.policy.flat.gradient, bits)


def test_gradient_uses_current_parameters(small_chunks):
    """Nothing of the weights is kept from one minibatch to the next."""
    ppo = trainer()
    batch, gradient = batch_for(ppo), gradient_of(ppo)
    gradient(batch)
    ppo.policy.flat.values.data.mul_(1.5)
    numbers = gradient(batch)
    assert_equal((gradients_of(ppo.policy.flat), numbers), by_autograd_in_double(ppo, batch))


def test_where_both_value_errors_are_equal_each_counts_half():
    """V = 1/2, the old value 0, the return 5/16: moved by at most 1/8, V would be 1/8, which misses by 3/16 as well, on
    the other side.

    The clipped one does not move with V, so half of V - R = 3/16 remains, times c1 = 1/2. Sums of powers of two are
    exact.
    """
    ppo = trainer(value_clip=0.125, value_coefficient=0.5)
    with torch.no_grad():
        ppo.policy.net.value_weight.zero_()
        ppo.policy.net.value_bias.fill_(0.5)
    batch = batch_for(ppo, 1)
    batch = batch._replace(value=torch.zeros(1), returns=torch.tensor([0.3125]))
    gradients, numbers = by_hand(ppo, batch)
    assert gradients["value_bias"].item() == 0.5 * 0.1875 * 0.5
    assert numbers[TERMS.index("value_loss")].item() == 0.5 * 0.1875**2
    assert torch.equal(by_autograd(ppo, batch)[0]["value_bias"], gradients["value_bias"])


@pytest.mark.parametrize("where", ["parameter", "advantage", "returns", "log_probability"])
def test_nan_parameters_give_nan_terms(where):
    ppo = trainer(value_clip=0.1)
    batch = batch_for(ppo)
    if where == "parameter":
        ppo.policy.net.first_weight.data[0, 0] = float("nan")
    else:
        getattr(batch, where)[3] = float("nan")
    gradients, numbers = by_hand(ppo, batch)
    assert not numbers.isfinite().all()
    assert not torch.cat([gradient.flatten() for gradient in gradients.values()]).isfinite().all()


def test_a_batch_of_another_size_is_refused():
    ppo = trainer()
    with pytest.raises(RuntimeError, match="split"):
        gradient_of(ppo)(batch_for(ppo, B + 1))


def test_exception_in_a_thread_is_raised(small_chunks):
    torch.set_num_threads(2)
    ppo = trainer()
    batch = batch_for(ppo)
    with pytest.raises(RuntimeError):
        gradient_of(ppo)(batch._replace(observation=batch.observation[:2]))


def test_threads_compute_alone_and_leave_torchs_number_as_it_was():
    torch.set_num_threads(2)
    pool, seen, met = ThreadPool(3), [], threading.Barrier(3)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(4)

    def look():
        met.wait(60)  # all three are under way at once
        torch.ones(200_000).sum()  # large enough for torch to look how many threads there are
        seen.append((threading.get_ident(), torch.get_num_threads()))

    for _ in range(3):
        pool.run([look] * 3)
    assert [count for _, count in seen] == [1] * 9 and len({thread for thread, _ in seen}) == 3
    assert torch.get_num_threads() == 4


def test_a_thread_pool_waits_for_all_before_it_raises():
    """Who calls again must not find a thread still at work on the buffers."""
    done = []

    def slow():
        time.sleep(0.05)
        done.append(True)

    def broken():
        raise ZeroDivisionError

    torch.set_num_threads(2)
    for work in ([broken, slow], [slow, broken]):
        with pytest.raises(ZeroDivisionError):
            ThreadPool(2).run(work)
    assert len(done) == 2 and torch.get_num_threads() == 2


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("activation", ["tanh", "gelu"])
@pytest.mark.parametrize("threads", [1, 3])
def test_forward_equals_the_policy(head, activation, threads, small_chunks):
    torch.set_num_threads(threads)
    ppo = trainer(head, activation=activation, normalize=True)
    batch, forward = (
        batch_for(ppo),
        chunked.Forward(ppo.policy, minibatches.layout(1, B, 1)._replace(shards=3).lane_sizes(), pool()),
    )
    for _ in range(2):
        forward.refresh()
        found, expected = forward(batch.observation), ppo.policy.forward(batch.observation)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-6)
        ppo.policy.flat.values.data.mul_(1.5)


USER = """
import torch
class Net(torch.nn.Module):
    def __init__(self, observation, head):
        super().__init__()
        self.head, self.value = torch.nn.Linear(observation, head), torch.nn.Linear(observation, 1)
    def forward(self, observation):
        return self.head(observation), self.value(observation)
"""


def test_unsupported_networks_use_torch(tmp_path):
    (tmp_path / "net.py").write_text(USER)
    own = ppo_on(CARTPOLE, 8, mlp.Config(kind=f"{tmp_path / 'net.py'}:Net"), horizon=8, start=False)
    assert manual.unsupported_reason(own.policy) == "its network is not a built-in MLP"
    assert manual.unsupported_reason(trainer().policy) is None


# IN PPO


def descended(kernels, iterations, *, env=PUSH, **algo):
    return iterate(
        ppo_on(env, 64, mlp.Config(hidden=(16, 16)), horizon=16, seed=2, minibatches=2, kernels=kernels, **algo),
        iterations,
    )


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("env", [CARTPOLE, PUSH, PICK], ids=["categorical", "gaussian", "multi"])
def test_ppo_uses_manual_backward_on_a_cpu(env, threads, small_chunks):
    torch.set_num_threads(threads)
    algo = {"env": env, "normalize_observations": True, "value_clip": 0.1, "target_kl": 0.05}
    plain, own = descended("torch", 1, **algo), descended("auto", 1, **algo)
    assert plain.kernels != "manual_backward" and len(own.backend._gradient.shards) == threads
    torch.testing.assert_close(own.rollout.action, plain.rollout.action)
    torch.testing.assert_close(own.policy.flat.values, plain.policy.flat.values, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(own.stats, plain.stats, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [2, 3])
def test_bits_do_not_depend_on_the_pace_of_threads(threads, small_chunks, monkeypatch):
    """The order of all sums follows from the minibatch's chunks, so neither the number of threads matters nor which is
    done first.
    """
    torch.set_num_threads(1)
    steady = bytes_of(descended("auto", 3))
    torch.set_num_threads(threads)
    turns = itertools.count()

    def unevenly(compute):
        def computed(*arguments):
            time.sleep((0.0, 0.002, 0.001)[next(turns) % 3])
            compute(*arguments)

        return computed

    for kind in (chunked.Shard, chunked.ForwardWorker):
        monkeypatch.setattr(kind, "compute", unevenly(kind.compute))
    assert bytes_of(descended("auto", 3)) == steady
    assert next(turns) > 0


def test_a_resumed_run_on_several_threads_ends_in_the_same_bits(small_chunks):
    torch.set_num_threads(2)
    whole = descended("auto", 2)
    saved = {name: tensor.clone() for name, tensor in whole.state("all").items()}
    resumed = ppo_on(PUSH, 64, mlp.Config(hidden=(16, 16)), horizon=16, seed=2, minibatches=2, start=False)
    for name, tensor in resumed.state("all").items():
        tensor.copy_(saved[name])
    assert bytes_of(iterate(resumed, 2)) == bytes_of(iterate(whole, 2))


@pytest.mark.parametrize(
    ("kernels", "own", "line"),
    [
        ("auto", False, "kernels: torch's, and a manual backward pass, on 1 thread"),
        (
            "auto",
            True,
            "kernels: torch and autograd instead of the manual backward pass: its network is not a built-in MLP",
        ),
        ("torch", False, None),
    ],
)
def test_log_names_the_kernels_in_one_line(kernels, own, line, tmp_path, caplog):
    (tmp_path / "net.py").write_text(USER)
    caplog.set_level("INFO", "operant")
    ppo = ppo_on(
        CARTPOLE, 8, mlp.Config(kind=f"{tmp_path / 'net.py'}:Net") if own else None, horizon=8, kernels=kernels
    )
    assert [record.getMessage() for record in caplog.records] == ([line] if line else [])
    assert (ppo.kernels == "manual_backward") == (kernels == "auto" and not own)
    assert torch.isfinite(iterate(ppo, 1).stats).all()
