"""MLPs against a plain float64 version, their initialisation, the flat vector, and users' own networks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from toys import PICK, PUSH

from operant.envs import Box
from operant.errors import ConfigError
from operant.nn import mlp as nets
from operant.nn.mlp import MLP
from operant.nn.optimizer import PAD_FLOATS, FlatVector
from operant.nn.policy import Policy

CPU = torch.device("cpu")
ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "gelu": nn.functional.gelu, "silu": nn.functional.silu}


def mlp(observation=3, head=2, *, seed=0, **config):
    return MLP(observation, head, nets.Config(**config), torch.Generator().manual_seed(seed))


def policy(env=PUSH, *, seed=0, normalize=False, **config):
    return Policy(env, nets.Config(**config), seed=seed, device=CPU, normalize=normalize)


def shaken(module, seed=9):
    """Add noise to every parameter, so that biases and small heads matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return module


def offsets(flat):
    """Offset of each parameter in the vector, by name."""
    return {
        name: (parameter.data_ptr() - flat.values.data_ptr()) // 4
        for name, parameter in zip(flat.names, flat.parameters, strict=True)
    }


# THE NETWORK


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("hidden", [(5,), (6, 4), (4, 7, 3)])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_outputs_and_gradients_are_those_of_torch_layers(activation, shared, hidden, layer_norm):
    net = shaken(mlp(hidden=hidden, activation=activation, shared=shared, layer_norm=layer_norm))
    observation = torch.randn(3, 11, generator=torch.Generator().manual_seed(1))
    head, value = net(observation)
    assert head.shape == (2, 11) and value.shape == (11,)

    def tower(g):
        """Sample by sample, in float64: h <- f(W h + b)."""
        width = hidden[0]
        features = observation.double().t()
        rows = slice(g * width, (g + 1) * width)
        layers = [(net.first_weight[rows], net.first_bias[rows, 0])]
        layers += [(weight[g], bias[g, :, 0]) for weight, bias in zip(net.weights, net.biases, strict=True)]
        for k, (weight, bias) in enumerate(layers):
            features = nn.functional.linear(features, weight.double(), bias.double())
            if layer_norm:
                gain, shift = net.norm_gains[k][g, :, 0].double(), net.norm_biases[k][g, :, 0].double()
                features = nn.functional.layer_norm(features, gain.shape, gain, shift, eps=1e-5)
            features = ACTIVATIONS[activation](features)
        return features

    actor, critic = tower(0), tower(0 if shared else 1)
    expected_head = nn.functional.linear(actor, net.head_weight.double(), net.head_bias[:, 0].double())
    expected_value = nn.functional.linear(critic, net.value_weight.double(), net.value_bias[:, 0].double())
    torch.testing.assert_close(head.double().t(), expected_head, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(value.double(), expected_value[:, 0], rtol=1e-5, atol=1e-6)

    parameters, weights = (
        dict(net.named_parameters()),
        (torch.randn(head.shape, generator=torch.Generator().manual_seed(2)), torch.arange(11.0)),
    )
    found = torch.autograd.grad((head * weights[0]).sum() + (value * weights[1]).sum(), list(parameters.values()))
    exact = torch.autograd.grad(
        (expected_head.t() * weights[0]).sum() + (expected_value[:, 0] * weights[1]).sum(), list(parameters.values())
    )
    for name, gradient, expected in zip(parameters, found, exact, strict=True):
        torch.testing.assert_close(
            gradient, expected, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_parameter_counts():
    # Two towers of 4-64-64, a head of 2 and a value; one trunk has half of it but the ends.
    tower, ends = 4 * 64 + 64 + 64 * 64 + 64, 2 * 64 + 2 + 64 + 1
    for shared, towers in ((False, 2), (True, 1)):
        assert sum(parameter.numel() for parameter in mlp(4, 2, shared=shared).parameters()) == towers * tower + ends


def test_layer_normalization_starts_with_unit_gain_and_adds_two_parameters_for_each_unit():
    with_norm, without = mlp(5, 3, hidden=(8, 6), layer_norm=True), mlp(5, 3, hidden=(8, 6))
    assert all(torch.equal(gain, torch.ones_like(gain)) for gain in with_norm.norm_gains) and not any(
        bias.any() for bias in with_norm.norm_biases
    )
    assert torch.equal(with_norm.first_weight, without.first_weight) and torch.equal(
        with_norm.head_weight, without.head_weight
    )
    sizes = [sum(parameter.numel() for parameter in net.parameters()) for net in (with_norm, without)]
    assert sizes[0] - sizes[1] == 2 * 2 * (8 + 6)


def test_initial_weights_are_orthogonal_with_their_gains():
    net = mlp(5, 3, hidden=(8, 6))
    identity = torch.eye(8)
    for g in range(2):
        # sqrt(2) times orthonormal columns (8 x 5), then rows (6 x 8); the head's rows are 0.01 long, the value's 1.
        first, second = net.first_weight[8 * g : 8 * g + 8], net.weights[0][g]
        torch.testing.assert_close(first.t() @ first, 2.0 * identity[:5, :5])
        torch.testing.assert_close(second @ second.t(), 2.0 * identity[:6, :6])
    torch.testing.assert_close(net.head_weight @ net.head_weight.t(), 1e-4 * identity[:3, :3])
    assert float(net.value_weight.detach().norm()) == pytest.approx(1.0)
    assert not torch.equal(net.first_weight[:8], net.first_weight[8:]), "the towers begin alike"
    for bias in (net.first_bias, *net.biases, net.head_bias, net.value_bias):
        assert not bias.any()


def test_initialisation_does_not_depend_on_the_number_of_threads():
    before, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(nets.orthogonal(64, 64, 1.0, torch.Generator().manual_seed(1)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_initialisation_depends_on_the_seed_alone():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = policy(seed=4).flat.values.detach()
    assert torch.equal(torch.get_rng_state(), state), "building a policy moved torch's global generator"
    torch.manual_seed(2)
    assert torch.equal(first, policy(seed=4).flat.values)
    assert not torch.equal(first, policy(seed=5).flat.values)


def test_tanh_by_sigmoid_equals_tanh():
    features = torch.linspace(-30.0, 30.0, 2001, requires_grad=True)
    output = nets._tanh(features)
    (gradient,) = torch.autograd.grad(output.sum(), features)
    exact = features.detach().double().tanh()
    torch.testing.assert_close(output.double(), exact, rtol=0, atol=2e-7)
    torch.testing.assert_close(gradient.double(), 1.0 - exact.square(), rtol=0, atol=4e-7)


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden": ()},
        {"hidden": (0,)},
        {"hidden": (5000,)},
        {"hidden": (8,) * 9},
        {"activation": "swish"},
        {"initial_log_std": 9},
        {"width": 3},
    ],
)
def test_configurations_that_are_refused(wrong):
    with pytest.raises(ValidationError):
        nets.Config(**wrong)


# THE FLAT VECTOR


def test_parameters_are_views_of_one_vector():
    modules = (mlp(hidden=(5, 3)), nn.Linear(7, 2))
    before = [parameter.detach().clone() for module in modules for parameter in module.parameters()]
    flat = FlatVector(modules, CPU)
    offset = 0
    for parameter, value, view in zip(flat.parameters, before, flat._gradient_views, strict=True):
        assert torch.equal(parameter, value)
        assert parameter.data_ptr() == flat.values.data_ptr() + 4 * offset, "a parameter is not where the vector has it"
        assert view.data_ptr() == flat.gradient.data_ptr() + 4 * offset and view.shape == parameter.shape
        assert offset % PAD_FLOATS == 0
        offset += math.ceil(parameter.numel() / PAD_FLOATS) * PAD_FLOATS
    assert flat.values.numel() == offset and flat.values.grad is flat.gradient
    assert len(flat.names) == len(flat.parameters) == len(before)

    other = torch.arange(float(offset))
    flat.values.data.copy_(other)
    first, second = (parameter.detach().flatten() for parameter in flat.parameters[:2])
    assert first[1] == 1.0 and second[0] == other[PAD_FLOATS]
    with torch.no_grad():
        flat.parameters[1].fill_(-1.0)
    assert flat.values[PAD_FLOATS] == -1.0
    assert PAD_FLOATS * 4 == 128


def test_backward_overwrites_the_gradient():
    net = mlp(hidden=(5,))
    flat = FlatVector((net,), CPU)
    observation = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))

    def loss():
        head, value = net(observation)
        return head.square().sum() + value.sum()

    expected = torch.autograd.grad(loss(), flat.parameters)
    for _ in range(2):
        flat.backward(loss())
        for parameter, gradient, view in zip(flat.parameters, expected, flat._gradient_views, strict=True):
            torch.testing.assert_close(view, gradient)
            assert parameter.grad is None
    used = sum(parameter.numel() for parameter in flat.parameters)
    assert int((flat.gradient != 0).sum()) <= used < flat.gradient.numel()
    assert flat.values.grad is flat.gradient


def test_padding_stays_zero_under_the_optimizer():
    flat = FlatVector((nn.Linear(3, 1),), CPU)
    optimizer = torch.optim.Adam([flat.values], lr=0.1, fused=True)
    for _ in range(3):
        flat.backward(sum(parameter.square().sum() for parameter in flat.parameters) + flat.parameters[1].sum())
        optimizer.step()
    assert flat.values[:3].all() and not flat.values[3:PAD_FLOATS].any() and not flat.values[PAD_FLOATS + 1 :].any()


def test_neighbouring_matrices_of_one_shape_are_joined():
    built = policy(hidden=(16,), memory="mingru", memory_layers=3, shared=True)
    place = built.flat.offsets[built.flat.names.index("memory.input_weights.0")]
    (_, (G, m, _)), memory = built.flat.matrices(1, 16)
    assert (G, m) == (1, 16) and memory == (place, (9, 16, 16))


def test_not_finite_names_the_parameters():
    built = policy(hidden=(4,))
    assert built.flat.not_finite() == []
    with torch.no_grad():
        built.net.value_bias.fill_(math.inf)
        built.distribution.log_std[1] = math.nan
    assert built.flat.not_finite() == ["value_bias", "log_std"]


# A POLICY


def test_bytes_equal_their_floats():
    built = policy(PICK, hidden=(4,))
    byte = torch.tensor([[255], [0], [7]], dtype=torch.uint8)
    assert torch.equal(built.forward(byte)[0], built.forward(byte.float())[0])


def test_act_samples_with_noise_and_takes_the_mode_without():
    built = policy(hidden=(4,), initial_log_std=1.0)
    observation = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    greedy, _ = built.act(observation, ())
    assert torch.equal(greedy, built.distribution.to_env(built.forward(observation)[0])) and not greedy.requires_grad
    drawn, _ = built.act(observation, (), torch.rand(4, 6, generator=torch.Generator().manual_seed(0)))
    assert greedy.shape == drawn.shape == (2, 6) and not torch.equal(greedy, drawn)
    assert (drawn[0].abs() <= 1).all() and (drawn[1] >= 0).all() and (drawn[1] <= 1).all()


def test_checkpoint_tensors_of_a_policy():
    assert set(policy().tensors()) == {"parameters"}
    assert set(policy(normalize=True).tensors()) == {
        "parameters",
        "observation/mean",
        "observation/variance",
        "observation/weight",
        "observation/shift",
        "observation/scale",
    }
    built = policy()
    built.tensors()["parameters"].zero_()
    assert not any(parameter.any() for parameter in built.net.parameters())


# A USER'S OWN NETWORK

GOOD = """
from __future__ import annotations
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Sizes:
    width: int = 6

class Net(nn.Module):
    def __init__(self, observation, head):
        super().__init__()
        self.body = nn.Linear(observation, Sizes().width)
        self.head, self.value = nn.Linear(6, head), nn.Linear(6, 1)

    def forward(self, observation):
        features = self.body(observation.view(-1, 1, 3).view(-1, 3)).relu()
        return self.head(features), self.value(features)
"""


def written(tmp_path, text):
    (tmp_path / "my_net.py").write_text(text)
    return f"{tmp_path / 'my_net.py'}:Net"


def test_a_users_own_network(tmp_path):
    kind = written(tmp_path, GOOD)
    built = policy(kind=kind, seed=3)
    observation = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    head, value = built.forward(observation)
    assert head.shape == (2, 5) and value.shape == (5,)
    expected_head, expected_value = built.net.module(observation.t().contiguous())
    torch.testing.assert_close(head.t(), expected_head)
    torch.testing.assert_close(value, expected_value[:, 0])
    state = torch.get_rng_state()
    assert torch.equal(built.flat.values, policy(kind=kind, seed=3).flat.values)
    assert not torch.equal(built.flat.values, policy(kind=kind, seed=4).flat.values)
    assert torch.equal(torch.get_rng_state(), state)


def test_categories_for_too_few_bytes_are_refused_with_the_reason():
    env = replace(PUSH, observation=Box(3, low=0, high=255, dtype="uint8", categories=(0, 31)))
    with pytest.raises(ConfigError, match="3 values, but categories for 2"):
        Policy(env, nets.Config(hidden=(4,)), seed=1, device=torch.device("cpu"), normalize=False)


@pytest.mark.parametrize("normalize", [False, True])
def test_a_users_own_network_reads_categories_as_numbers(tmp_path, normalize):
    env = replace(PUSH, observation=Box(3, low=0, high=(255, 30, 255), dtype="uint8", categories=(0, 31, 0)))
    built = policy(env, kind=written(tmp_path, GOOD), normalize=normalize)
    observation = torch.tensor([[10, 30], [3, 17], [200, 200]], dtype=torch.uint8)
    if normalize:
        built.normalizer.update(observation)
    read = built.features(observation)
    expected = torch.tensor([[-1.0, 1.0], [3.0, 17.0], [0.0, 0.0]]) if normalize else observation.float()
    torch.testing.assert_close(read, expected, rtol=0, atol=2e-2)
    assert torch.equal(built.forward(observation)[0].t(), built.net.module(read.t().contiguous())[0])


def test_a_network_may_have_parameters_that_it_does_not_use_or_train(tmp_path):
    text = GOOD.replace("self.body = ", "self.spare = nn.Parameter(torch.ones(2))\n        self.body = ")
    text = text.replace("nn.Linear(6, 1)\n", "nn.Linear(6, 1)\n        self.body.bias.requires_grad_(False)\n")
    built = policy(kind=written(tmp_path, text))
    # Of random observations some leave the first unit, whose gradient is compared, at 0.
    head, value = built.forward(torch.randn(3, 5, generator=torch.Generator().manual_seed(0)))
    built.flat._gradient_views[0].fill_(1.0)
    built.flat.backward(head.sum() + value.sum() + built.distribution.log_std.sum())
    gradient = {name: built.flat.gradient[offset] for name, offset in offsets(built.flat).items()}
    assert gradient["module.spare"] == 0 and gradient["module.body.bias"] == 0
    assert gradient["module.body.weight"] != 0 and gradient["module.value.bias"] == 5 and gradient["log_std"] == 1


def net_file(forward, layer="nn.Linear(o, h)"):
    """File with a network of one layer `a` and a given `forward(x)`."""
    return f"""
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, o, h):
        super().__init__()
        self.a = {layer}
    def forward(self, x):
        {forward}
"""


def test_a_class_that_a_networks_file_lacks_is_named(tmp_path):
    kind = written(tmp_path, net_file("return self.a(x), x[:, 0]")).rpartition(":")[0]
    with pytest.raises(ConfigError, match=r"net\.kind: Zed is no class of my_net\.py"):
        policy(kind=f"{kind}:Zed")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import nowhere_to_be_found", "nowhere_to_be_found"),
        ("def Net(:", "SyntaxError"),
        ("class Other: pass", "Net"),
        ("from torch import nn\nclass Net(nn.Module):\n    def __init__(self): super().__init__()", "TypeError"),
        (
            "class Net:\n    def __init__(self, o, h): pass\n    def __call__(self, x): return x, x",
            "is not a torch.nn.Module",
        ),
        (net_file("raise ValueError('not today')"), "ValueError: not today"),
        (net_file("return self.a(x)"), "should return two tensors"),
        (net_file("return self.a(x), 0.0"), "should return two tensors"),
        (net_file("return self.a(x), None"), "should return two tensors"),
        (net_file("return self.a(x), self.a(x)"), "expected (2, 2) and (2)"),
        (net_file("return self.a(x)[:, :1], self.a(x)[:, 0]"), "expected (2, 2) and (2)"),
        (net_file("return self.a(x), self.a(x)[:1]"), "expected (2, 2) and (2)"),
        (
            net_file("return self.a(x.double()).float(), x[:, 0]", "nn.Linear(o, h).double()"),
            "not float32: a.weight, a.bias",
        ),
        (net_file("return self.a(x).detach(), x[:, 0]"), "gradient"),
        (net_file("return self.a(x), x[:, 0]", "nn.Sequential(nn.Linear(o, h), nn.BatchNorm1d(h))"), "BatchNorm"),
        (net_file("return self.a(x), x[:, 0]", "nn.Sequential(nn.Linear(o, h), nn.Dropout())"), "Dropout"),
    ],
)
def test_broken_networks_are_refused_in_a_sentence(tmp_path, text, sentence):
    kind = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        policy(kind=kind)
    assert sentence in str(caught.value) and "net.kind" in str(caught.value) and "my_net.py" in str(caught.value)


def test_an_unknown_kind_is_refused_with_the_reason(tmp_path):
    with pytest.raises(
        ConfigError,
        match=r'net.kind should be "mlp", "cnn", "places" \(ppo, dqn and pqn\) or "FILE.py:Class" \(got \'mpl\'\)',
    ):
        policy(kind="mpl")


def test_a_file_name_may_hold_colons(tmp_path):
    (tmp_path / "a:b").mkdir()
    assert policy(kind=written(tmp_path / "a:b", GOOD)).net is not None


def test_a_missing_network_file_is_refused_with_the_reason(tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        policy(kind=f"{tmp_path / 'absent.py'}:Net")
    (tmp_path / "net.txt").write_text(GOOD)
    with pytest.raises(ConfigError, match=r"\.py"):
        policy(kind=f"{tmp_path / 'net.txt'}:Net")
