"""Deep-sets networks: permutation equivariance, sequences in two parts, unsupported settings."""

import pytest
import torch
from toys import FILL

from operant import envs
from operant.errors import ConfigError
from operant.nn import NetConfig, Policy, QPolicy
from operant.nn.ensemble import network

CARDS, T, B = envs.find("concentration"), 5, 3


def policy(env=CARDS, **net):
    return Policy(
        env, NetConfig(kind="places", **{"hidden": (8,), **net}), seed=1, device=torch.device("cpu"), normalize=False
    )


def codes():
    return torch.randint(0, 14, (52, T * B), generator=torch.Generator().manual_seed(2)).to(torch.uint8)


@pytest.mark.parametrize("memory", ["mingru", "gru", "lstm", "none"])
def test_outputs_are_permutation_equivariant(memory):
    net, order = policy(memory=memory, memory_layers=2), torch.randperm(52, generator=torch.Generator().manual_seed(3))
    if memory == "none":
        found, moved = net.forward(codes()), net.forward(codes()[order])
    else:
        found, moved = (net.unroll(seen, net.initial_state(B), torch.zeros(T, B)) for seen in (codes(), codes()[order]))
    torch.testing.assert_close(moved[0], found[0][order])
    torch.testing.assert_close(moved[1], found[1])
    assert found[0].shape == (52, T * B) and found[0].std() > 0 and found[1].shape == (T * B,)


@pytest.mark.parametrize("memory", ["mingru", "gru", "lstm"])
def test_a_sequence_in_two_parts_equals_the_whole_and_a_reset_clears_the_state(memory):
    net, reset = policy(memory=memory, memory_layers=2, memory_init=20), torch.zeros(T, B)
    reset[2, 1] = 1.0
    head, value, after = net.unroll(codes(), net.initial_state(B), reset)
    first = net.unroll(codes()[:, : 2 * B], net.initial_state(B), reset[:2])
    second = net.unroll(codes()[:, 2 * B :], first[2], reset[2:])
    torch.testing.assert_close(torch.cat([first[0], second[0]], dim=1), head)
    torch.testing.assert_close(torch.cat([first[1], second[1]]), value)
    for part, whole in zip(second[2], after, strict=True):
        torch.testing.assert_close(part, whole)
    anew = net.unroll(codes()[:, 2 * B :], net.initial_state(B), torch.zeros(T - 2, B))
    torch.testing.assert_close(anew[0].view(52, -1, B)[:, :, 1], second[0].view(52, -1, B)[:, :, 1])
    assert not torch.allclose(anew[0].view(52, -1, B)[:, :, 0], second[0].view(52, -1, B)[:, :, 0])


@pytest.mark.parametrize("memory", ["mingru", "gru", "lstm", "none"])
def test_outputs_and_gradients_equal_a_plain_loop_over_lanes_steps_and_items(memory):
    """Reference in float64, one vector at a time, with given states and resets anywhere."""
    generator = torch.Generator().manual_seed(4)
    net, layers = policy(FILL, memory=memory, hidden=(4,), memory_layers=2), 2 if memory != "none" else 0
    codes, reset = (
        torch.randint(0, 2, (6, T * B), generator=generator).to(torch.uint8),
        (torch.rand(T, B, generator=generator) < 0.3).float(),
    )
    reset[0, 0] = 1.0
    with torch.no_grad():
        net.flat.values.add_(0.3 * torch.randn(net.flat.values.shape, generator=generator))
    state = tuple(torch.randn(part.shape, generator=generator) for part in net.initial_state(B))
    weigh = [torch.randn(6, T * B, generator=generator), torch.randn(T * B, generator=generator)]
    head, value, after = net.unroll(codes, state, reset) if layers else (*net.forward(codes), ())
    gradients = torch.autograd.grad(
        (head * weigh[0]).sum() + (value * weigh[1]).sum(), net.flat.parameters, materialize_grads=True
    )

    exact = {
        name: part.detach().double().requires_grad_()
        for name, part in zip(net.flat.names, net.flat.parameters, strict=True)
    }
    before = [part.view(-1, 6, B).transpose(0, 1).double() for part in state]  # of each memory (places, numbers, lanes)
    lanes = [
        looped(exact, memory, layers, codes.view(6, T, B)[:, :, b], [part[:, :, b] for part in before], reset[:, b])
        for b in range(B)
    ]
    heads, values = (
        torch.stack([lane[0] for lane in lanes], dim=2).flatten(1),
        torch.stack([lane[1] for lane in lanes], dim=1).flatten(),
    )
    torch.testing.assert_close(head.double(), heads, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(value.double(), values, rtol=1e-4, atol=1e-5)
    for k, part in enumerate(after):
        torch.testing.assert_close(
            part.double().view(-1, 6, B).transpose(0, 1),
            torch.stack([lane[2][k] for lane in lanes], dim=2),
            rtol=1e-4,
            atol=1e-5,
        )
    loss = (heads * weigh[0].double()).sum() + (values * weigh[1].double()).sum()
    expected = torch.autograd.grad(loss, list(exact.values()), allow_unused=True, materialize_grads=True)
    for name, found, other in zip(exact, gradients, expected, strict=True):
        torch.testing.assert_close(
            found.double(), other, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def looped(exact, memory, layers, codes, state, reset):
    """Logits (N, T), values (T) and final states of a lane, from its codes (N, T), initial states and resets (T)."""
    N, steps, heads, values = *codes.shape, [], []
    state = [list(part) for part in state]
    for t in range(steps):
        if reset[t]:
            state = [[torch.zeros_like(own) for own in part] for part in state]
        features = [torch.nn.functional.one_hot(codes[n, t].long(), 2).double() for n in range(N)]
        for block in range(3):
            total = sum(features) / 4
            made = [
                exact[f"own.{block}"] @ own + exact[f"all.{block}"] @ total + exact[f"biases.{block}"][:, 0]
                for own in features
            ]
            features = [x.tanh() for x in made]
            if block < layers:
                weights = [
                    exact.get(f"memory.{block}.{name}.0")
                    for name in ("input_weights", "input_biases", "state_weights", "state_biases")
                ]
                steps_made = [
                    remembered(memory, *weights, x, own) for x, own in zip(features, state[block], strict=True)
                ]
                state[block] = [after for _, after in steps_made]
                features = [torch.cat([x, found]) for x, (found, _) in zip(features, steps_made, strict=True)]
        heads.append(torch.cat([exact["head_weight"] @ x for x in features]))
        values.append((exact["value_weight"] @ (sum(features) / N) + exact["value_bias"])[0])
    return torch.stack(heads, dim=1), torch.stack(values), [torch.stack(part) for part in state]


def remembered(memory, weight, bias, own_weight, own_bias, x, state):
    """A cell's step of one place: its output and the state after."""
    rows, M = weight[0] @ x + bias[0, :, 0], len(x)
    if memory == "mingru":
        hidden, z, p = rows[:M], rows[M : 2 * M].sigmoid(), rows[2 * M :].sigmoid()
        after = (1 - z) * state + z * torch.where(hidden >= 0, hidden + 0.5, hidden.sigmoid())
        return p * after + (1 - p) * x, after
    loop = own_weight[0] @ state[:M]
    if memory == "gru":
        r, z = (rows + loop)[: 2 * M].sigmoid().split(M)
        n = (rows[2 * M :] + r * (loop[2 * M :] + own_bias[0, :, 0])).tanh()
        after = (1 - z) * n + z * state
        return after, after
    i, f, o, g = (rows + loop).split(M)
    c = f.sigmoid() * state[M:] + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return h, torch.cat([h, c])


def test_muon_steps_blocks_and_each_gate_of_a_memory_and_no_head():
    net = policy(memory="lstm", memory_layers=1)
    sizes = [size for _, size in net.flat.matrices(1, 8)]
    assert sizes == [(1, 8, 14), (1, 8, 16), (1, 8, 14), (1, 8, 16), (4, 8, 8), (4, 8, 8)], sizes


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: policy(envs.find("cartpole")), "Discrete actions, one for each byte"),
        (lambda: policy(envs.find("repeat_first")), "Discrete actions, one for each byte"),
        (lambda: policy(hidden=(8, 8)), r"must be one width .* \(got \[8, 8\]\)"),
        (lambda: policy(memory="gru", memory_size=4), "must be the width of net.hidden, 8"),
        (lambda: policy(layer_norm=True), "net.layer_norm"),
        (
            lambda: network(
                CARDS, NetConfig(kind="places", hidden=(8,)), 0, 52, torch.Generator(), torch.device("cpu")
            ),
            "SAC and TD3",
        ),
        (
            lambda: QPolicy(
                CARDS,
                NetConfig(kind="places", hidden=(8,)),
                seed=1,
                device=torch.device("cpu"),
                normalize=False,
                atoms=5,
            ),
            "the algorithm needs",
        ),
    ],
)
def test_unsupported_environments_and_settings_are_refused_with_the_reason(make, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make()
