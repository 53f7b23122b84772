"""Recurrent networks: gradients through resets against torch's cells in float64, single steps, initial gates, users'
networks.
"""

from __future__ import annotations

import math

import pytest
import torch
from toys import COUNT, SEEN

from operant.errors import ConfigError
from operant.nn import NetConfig, Policy, QPolicy

pytestmark = pytest.mark.usefixtures("one_thread")
CELLS = ["mingru", "gru", "lstm"]
T, B = 7, 5


def policy(env=COUNT, *, seed=1, normalize=False, **net):
    return Policy(env, NetConfig(**net), seed=seed, device=torch.device("cpu"), normalize=normalize)


def resets(*marks):
    """Tensor (T, B), 1 at each given (step, lane)."""
    found = torch.zeros(T, B)
    for step, lane in marks:
        found[step, lane] = 1.0
    return found


SOME = resets((0, 1), (3, 1), (4, 1), (2, 2), (6, 3), *((t, 4) for t in range(T)))
"""Resets (T, N): consecutive, at both ends, at every step; none in the first lane."""


# A PLAIN VERSION, lane by lane and step by step, by torch's own cells


def torch_cell(kind, memory, layer, tower):
    """Torch's cell with the parameters of one layer and tower, in torch's order of gates."""
    weight, bias = memory.input_weights[layer][tower], memory.input_biases[layer][tower, :, 0]
    M, columns = memory.units, weight.shape[1]
    order = [0, 1, 2] if kind == "gru" else [0, 1, 3, 2]  # torch: i, f, g, o
    cell = (torch.nn.GRUCell if kind == "gru" else torch.nn.LSTMCell)(columns, M).double()
    recurrent_bias = torch.zeros(len(order) * M, dtype=torch.float64)
    if kind == "gru":
        recurrent_bias = torch.cat([recurrent_bias[: 2 * M], memory.state_biases[layer][tower, :, 0]])

    def ordered(rows):
        return torch.cat([rows.split(M)[k] for k in order])

    loop = ordered(memory.state_weights[layer][tower])
    named = {
        "weight_ih": ordered(weight),
        "weight_hh": loop,
        "bias_ih": ordered(bias),
        "bias_hh": ordered(recurrent_bias),
    }
    return lambda x, state: torch.func.functional_call(cell, named, (x, state))


def stepped(kind, memory, layer, tower, x, state):
    """Step of a single lane: x (K), state (h,) or (h, c) to output (M) and state."""
    if kind == "mingru":
        rows = memory.input_weights[layer][tower] @ x + memory.input_biases[layer][tower, :, 0]
        hidden, gate, highway = rows.split(memory.units)
        candidate = torch.where(hidden >= 0, hidden + 0.5, torch.sigmoid(hidden))
        h = state[0] + torch.sigmoid(gate) * (candidate - state[0])
        return torch.sigmoid(highway) * h + (1 - torch.sigmoid(highway)) * x, (h,)
    cell = torch_cell(kind, memory, layer, tower)
    if kind == "gru":
        h = cell(x[None], state[0][None])[0]
        return h, (h,)
    h, c = cell(x[None], (state[0][None], state[1][None]))
    return h[0], (h[0], c[0])


def plain(kind, memory, features, state, reset):
    """Plain version of `Memory`: features (G, K, T, B), state (S, layers, G, M, B) to output (G, M, T, B)."""
    towers = []
    for tower in range(memory.towers):
        lanes = []
        for lane in range(B):
            states = [tuple(part[layer, tower, :, lane] for part in state) for layer in range(memory.layers)]
            outputs = []
            for t in range(T):
                x = features[tower, :, t, lane]
                for layer in range(memory.layers):
                    before = tuple(torch.zeros_like(part) if reset[t, lane] else part for part in states[layer])
                    x, states[layer] = stepped(kind, memory, layer, tower, x, before)
                outputs.append(x)
            lanes.append(torch.stack(outputs, dim=1))
        towers.append(torch.stack(lanes, dim=2))
    return torch.stack(towers)


@pytest.mark.parametrize("reset", [resets(), SOME])
@pytest.mark.parametrize("kind", CELLS)
def test_values_and_gradients_are_those_of_autograd_over_the_unrolled_sequence(kind, reset):
    made = policy(memory=kind, memory_layers=2, hidden=(4,)).net
    made.double()
    memory, generator = made.memory, torch.Generator().manual_seed(3)
    for parameter in memory.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    features = torch.randn(2, 4, T, B, generator=generator, dtype=torch.float64, requires_grad=True)
    state = torch.randn(memory.rows, B, generator=generator, dtype=torch.float64)
    weights = torch.randn(2, 4, T, B, generator=generator, dtype=torch.float64)

    output, _ = memory(features.flatten(2), state, 1.0 - reset.double())
    expected = plain(kind, memory, features, state.view(-1, 2, 2, 4, B), reset)
    torch.testing.assert_close(output.view_as(expected), expected, rtol=1e-12, atol=1e-12)
    inputs = (features, *memory.parameters())
    found = torch.autograd.grad((output.view_as(expected) * weights).sum(), inputs)
    for name, one, other in zip(
        ("features", *dict(memory.named_parameters())),
        found,
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", CELLS)
def test_single_steps_equal_the_unrolled_sequence(kind, shared):
    """Steps of acting give the outputs and the final state of the unrolled sequence."""
    made, reset = policy(memory=kind, memory_layers=2, hidden=(8, 6), memory_size=6, shared=shared), SOME
    seen = torch.randn(1, T, B, generator=torch.Generator().manual_seed(0))
    (first,) = made.initial_state(B)
    parameters, value, (last,) = made.unroll(seen.flatten(1), (first,), reset)
    state = (first,)
    for t in range(T):
        state = (torch.where(reset[t].bool(), first, state[0]),)
        with torch.no_grad():
            parameters_t, value_t, after = made.unroll(seen[:, t], state, torch.zeros(1, B))
        torch.testing.assert_close(parameters_t, parameters.view(-1, T, B)[:, t])
        torch.testing.assert_close(value_t, value.view(T, B)[t])
        action, state = made.act(seen[:, t], state)
        assert torch.equal(state[0], after[0]) and torch.equal(action[0], parameters_t.argmax(dim=0).int())
    torch.testing.assert_close(state[0], last)


@pytest.mark.parametrize(("kind", "gate"), [("mingru", -1.0), ("gru", 1.0), ("lstm", 1.0)])
def test_memory_init_sets_the_time_scales(kind, gate):
    """The gate keeps sigmoid(ln(t - 1)) = 1 - 1/t of a unit's state at each step, t from 2 to 1,000."""
    biases = (
        policy(memory=kind, memory_init=1000, hidden=(64,)).net.memory.input_biases[0].detach().view(2, -1, 64)[:, 1]
    )
    spans = torch.exp(gate * biases) + 1.0
    assert float(spans.min()) >= 2.0 - 1e-3 and 900 < float(spans.max()) <= 1000.0 and 300 < float(spans.mean()) < 700
    assert float(
        policy(memory=kind, hidden=(64,)).net.memory.input_biases[0].detach().view(2, -1, 64)[:, 1].mean()
    ) == (1.0 if kind == "lstm" else 0.0)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_memory_init_1_makes_a_delay_line(kind):
    """The distance of two lanes' states is preserved over 30 steps, and lost with other gates."""
    apart = {}
    for longest in (1, None):
        made = policy(memory=kind, memory_init=longest, hidden=(64,), shared=True)
        seen = torch.zeros(1, 31)  # a number at each of 31 steps; the other lane's is another at the first
        other = seen.clone()
        other[:, 0] = 1.0
        found = []
        for steps in (1, 31):
            states = [
                made.unroll(lane[:, :steps], made.initial_state(1), torch.zeros(steps, 1))[2][0][:64]
                for lane in (seen, other)
            ]
            found.append(float((states[0] - states[1]).norm()))
        apart[longest] = found[1] / found[0]
    assert apart[1] > 0.5 and apart[None] < 0.25


def test_a_convolutional_network_with_a_memory():
    made = policy(SEEN, kind="cnn", cnn="impala", channels=(4,), hidden=(8,), memory="gru", memory_size=6)
    seen = torch.randint(
        0, 256, (SEEN.observation.size, B), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    first = made.initial_state(B)
    assert [tuple(part.shape) for part in first] == [(6, B)]
    _, state = made.act(seen, first)
    values = [made.unroll(seen, before, torch.zeros(1, B))[1] for before in (first, state)]
    assert not torch.allclose(*values)


# NETWORKS OF ONE'S OWN

OWN = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, observation, head):
        super().__init__()
        self.cell, self.head, self.value = nn.GRUCell(observation, 5), nn.Linear(5, head), nn.Linear(5, 1)
    def initial_state(self, lanes):
        return (torch.ones(lanes, 5),)
    def forward(self, observation, state, reset):
        (hidden,), outputs = state, []
        for seen, begins in zip(observation, reset):
            hidden = torch.where(begins[:, None] > 0, torch.ones_like(hidden), hidden)
            hidden = self.cell(seen, hidden)
            outputs.append(hidden)
        features = torch.stack(outputs)
        return self.head(features), self.value(features), (hidden,)
"""


def written(tmp_path, text):
    (tmp_path / "my_net.py").write_text(text)
    return f"{tmp_path / 'my_net.py'}:Net"


def test_a_users_own_recurrent_network(tmp_path):
    made = policy(kind=written(tmp_path, OWN))
    first = made.initial_state(B)
    assert made.recurrent and [tuple(part.shape) for part in first] == [(5, B)] and float(first[0].mean()) == 1.0
    seen = torch.randn(1, T * B, generator=torch.Generator().manual_seed(0))
    head, value, (last,) = made.unroll(seen, first, SOME)
    expected_head, expected_value, (expected_last,) = made.net.module(seen.t().view(T, B, 1), (torch.ones(B, 5),), SOME)
    torch.testing.assert_close(head, expected_head.flatten(0, 1).t())
    torch.testing.assert_close(value, expected_value.flatten())
    torch.testing.assert_close(last, expected_last.t())


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("begins[:, None] > 0", "begins[:, None] > 1", "should start from its initial state where reset"),
        ("(hidden,)\n", "(hidden.detach() * 0,)\n", "gives other outputs for a sequence than for its two halves"),
        ("return (torch.ones(lanes, 5),)", "return torch.ones(lanes, 5)", "should have an initial_state"),
        ("(hidden,)\n", "(hidden[:, :2],)\n", "a state of other shapes"),
        (
            "self.head(features), self.value(features), (hidden,)",
            "self.head(features), self.value(features)",
            "should return head parameters",
        ),
        ("torch.stack(outputs)", "torch.stack(outputs)[0]", "maps (4, 2, 1) to"),
    ],
)
def test_an_unfit_recurrent_network_of_a_user_is_refused_with_the_reason(tmp_path, old, new, sentence):
    text = (OWN + "\n").replace(old, new)
    assert text != OWN + "\n"
    with pytest.raises(ConfigError) as caught:
        policy(kind=written(tmp_path, text))
    assert sentence in str(caught.value)


# CONFIGURATION


def test_settings_that_a_cell_does_not_support_are_refused():
    with pytest.raises(ValueError, match=r"must be the last of net.hidden, 64"):
        NetConfig(memory="mingru", memory_size=32)
    assert (
        NetConfig(memory="mingru", memory_size=64).is_recurrent
        and NetConfig(memory="lstm", memory_size=32).is_recurrent
        and not NetConfig().is_recurrent
    )
    with pytest.raises(ValueError, match="must be 2 or more with mingru"):
        NetConfig(memory="mingru", memory_init=1)
    with pytest.raises(ValueError, match="of your own is recurrent if it has"):
        NetConfig(kind="net.py:Net", memory="gru")


def test_recurrent_q_networks_are_refused(tmp_path):
    for net in (NetConfig(memory="gru"), NetConfig(kind=written(tmp_path, OWN))):
        with pytest.raises(ConfigError, match="feed-forward networks only"):
            QPolicy(COUNT, net, seed=1, device=torch.device("cpu"), normalize=False)


def test_the_encoder_is_initialised_alike_with_and_without_a_memory():
    """The same seed draws the same encoder with and without a memory."""
    without, with_memory = policy(hidden=(8, 8)), policy(hidden=(8, 8), memory="lstm")
    assert torch.equal(without.net.first_weight, with_memory.net.encoder.first_weight)
    assert math.isclose(
        float(with_memory.net.memory.state_weights[0][0].detach().view(4, 8, 8)[2].det().abs()), 1.0, rel_tol=1e-5
    ), "orthogonal, gate by gate"
