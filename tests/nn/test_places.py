"""A network whose places share their weights: what it makes of places in another order, of a sequence in two parts, and what it refuses."""

import pytest
import torch

from operant import envs
from operant.errors import ConfigError
from operant.nn import NetConfig, Policy, QPolicy
from operant.nn.towers import network

CARDS, T, B = envs.find("concentration"), 5, 3


def policy(env=CARDS, **net):
    return Policy(env, NetConfig(kind="places", **{"hidden": (8,), **net}), seed=1, device=torch.device("cpu"), normalize=False)


def codes():
    return torch.randint(0, 14, (52, T * B), generator=torch.Generator().manual_seed(2)).to(torch.uint8)


@pytest.mark.parametrize("memory", ["mingru", "gru", "lstm", "none"])
def test_places_in_another_order_give_logits_in_that_order(memory):
    net, order = policy(memory=memory, memory_layers=2), torch.randperm(52, generator=torch.Generator().manual_seed(3))
    if memory == "none":
        found, moved = net.forward(codes()), net.forward(codes()[order])
    else:
        found, moved = (net.unroll(seen, net.initial_state(B), torch.zeros(T, B)) for seen in (codes(), codes()[order]))
    torch.testing.assert_close(moved[0], found[0][order])
    torch.testing.assert_close(moved[1], found[1])
    assert found[0].shape == (52, T * B) and found[0].std() > 0 and found[1].shape == (T * B,)


@pytest.mark.parametrize("memory", ["mingru", "gru", "lstm"])
def test_a_sequence_in_two_parts_gives_what_the_whole_gives_and_a_reset_forgets(memory):
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


def test_muon_steps_blocks_and_each_gate_of_a_memory_and_no_head():
    net = policy(memory="lstm", memory_layers=1)
    sizes = [size for _, size in net.flat.matrices(1, 8)]
    assert sizes == [(1, 8, 14), (1, 8, 16), (1, 8, 14), (1, 8, 16), (4, 8, 8), (4, 8, 8)], sizes


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: policy(envs.find("cartpole")), "an action must name one of them"),
        (lambda: policy(envs.find("repeat_first")), "an action must name one of them"),
        (lambda: policy(hidden=(8, 8)), r"one number: got \[8, 8\]"),
        (lambda: policy(memory="gru", memory_size=4), "are as wide as net.hidden, 8"),
        (lambda: policy(layer_norm=True), "net.layer_norm"),
        (lambda: network(CARDS, NetConfig(kind="places", hidden=(8,)), 0, 52, torch.Generator(), torch.device("cpu")), "SAC and TD3"),
        (lambda: QPolicy(CARDS, NetConfig(kind="places", hidden=(8,)), seed=1, device=torch.device("cpu"), normalize=False, atoms=5), "the algorithm asks for"),
    ],
)
def test_what_it_cannot_read_is_said_in_a_sentence(make, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make()
