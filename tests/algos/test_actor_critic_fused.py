"""The fused kernels of SAC and TD3 without a GPU: fp32 through Triton's interpreter beside the torch paths, which
test_sac.py and test_td3.py hold against float64; and compiled to machine code. What tf32 and bf16 compute only a GPU
can tell: benches/fused_sac.py.
"""

from __future__ import annotations

import pytest
from fused_probe import interpreted
from machine_code import compile_for, needs_compiler
from test_sac import sac_on
from test_td3 import td3_on
from toys import PUSH

from operant import envs
from operant.errors import ConfigError
from operant.kernels.actor_critic.narrow import spec as narrow_spec
from operant.kernels.actor_critic.wide import spec as wide_spec
from operant.nn import mlp

pytest.importorskip("triton")

FEW = {"horizon": 4, "batch_size": 16, "learning_starts": 32}
TWO = {**FEW, "horizon": 2, "actor_delay": 2}
CASES = [
    # Two tiles a batch; a time limit; actions beyond one.
    ("sac", "push", {"hidden": [16, 24], "activation": "relu"}, {**FEW, "batch_size": 32, "updates_per_step": 0.5}),
    # n-step returns, several updates a tick, a normalizer, widths that are no tile's, three layers; chunks of 16 of a
    # batch of 48. The actor learns in every second update.
    (
        "sac",
        "pendulum",
        {"hidden": [20, 16, 5], "activation": "tanh"},
        {**TWO, "batch_size": 48, "n_step": 3, "normalize_observations": True},
    ),
    # One critic, of other widths than the actor, which learns in every fourth update; a fixed temperature.
    (
        "sac",
        "push",
        {"hidden": [16], "critic_hidden": [24, 16], "activation": "relu"},
        {**FEW, "critics": 1, "temperature": 0.1, "actor_delay": 4},
    ),
    # Wide networks' kernels: layer normalization, products with what lies around them; and many units, without either;
    # a program takes several tiles. The actor learns in every second update, and critics are wider.
    (
        "sac",
        "push",
        {"hidden": [32, 16], "critic_hidden": [32, 48, 16], "activation": "silu", "layer_norm": True},
        {**TWO, "batch_size": 64, "n_step": 2},
    ),
    (
        "sac",
        "pendulum",
        {"hidden": [300, 20, 24], "activation": "relu"},
        {**FEW, "critics": 1, "temperature": 0.1, "normalize_observations": True},
    ),
    # The actor learns in every second update, lanes explore differently.
    (
        "td3",
        "push",
        {"hidden": [16, 24], "activation": "relu"},
        {**FEW, "batch_size": 32, "exploration_noise_max": 0.4},
    ),
    (
        "td3",
        "push",
        {"hidden": [16], "activation": "tanh"},
        {**FEW, "critics": 1, "actor_delay": 1, "updates_per_step": 0.5, "normalize_observations": True},
    ),
    # Distributions of returns.
    (
        "sac",
        "push",
        {"hidden": [32, 16], "activation": "silu", "layer_norm": True},
        {**TWO, "batch_size": 32, "critic": "c51", "atoms": 21, "gamma": 0.9},
    ),
    # Layer normalization, where widths allow no such products.
    (
        "sac",
        "push",
        {"hidden": [24, 40], "activation": "silu", "layer_norm": True},
        {**FEW, "batch_size": 32, "n_step": 2, "horizon": 2},
    ),
    # Distributions that a step narrows to two thirds or less: four atoms may come near one, or any number.
    (
        "sac",
        "push",
        {"hidden": [16, 16], "activation": "silu"},
        {**TWO, "batch_size": 32, "critic": "c51", "atoms": 21, "gamma": 0.8, "n_step": 2},
    ),
    (
        "sac",
        "push",
        {"hidden": [16, 16], "activation": "silu"},
        {**TWO, "batch_size": 32, "critic": "c51", "atoms": 21, "gamma": 0.6, "n_step": 2},
    ),
]


def words(case):
    return dict(zip(("name", "env", "net", "algo"), CASES[case], strict=True))


@pytest.mark.parametrize(
    "cases", [(1, 3, 5, 9), pytest.param((0, 2, 4, 6, 7, 8, 10), marks=pytest.mark.soak)], ids=["few", "others"]
)
def test_whole_iterations_are_the_torch_paths(cases):
    for differences in interpreted([("iteration", words(case)) for case in cases], "actor_critic_interpreted"):
        assert max(differences.values()) < 1e-5, differences
        assert {"policy/parameters", "algo/target", "adam/critic/exp_avg_sq", "replay/observation", "stats"} <= set(
            differences
        )


def test_rows_far_from_zero_are_normalized():
    """Their mean is a thousand standard deviations: its square has no digits left for the variance."""
    (apart,) = interpreted([("large_mean", words(3))], "actor_critic_interpreted")
    assert max(apart.values()) < 2e-3, apart
    assert {"adam/actor/exp_avg", "adam/critic/exp_avg"} <= set(apart)


@pytest.mark.soak
def test_a_seed_has_its_bits():
    assert interpreted([("bits", words(2))], "actor_critic_interpreted") == [[True, False]]


@pytest.mark.parametrize(
    ("net", "algo", "words"),
    [
        ({"layer_norm": True, "hidden": (16,)}, {}, "1 hidden layers \\(must be 2 to 6"),
        ({"hidden": (64, 257)}, {}, "last hidden layer has more than 256 units"),
        ({"hidden": (1025, 8)}, {}, "more than 1024 units"),
        ({"layer_norm": True, "critic_hidden": (16,)}, {}, "1 hidden layers \\(must be 2 to 6"),
        ({"critic_hidden": (64, 257)}, {}, "last hidden layer has more than 256 units"),
        ({"layer_norm": True}, {"critic": "c51", "atoms": 129}, "a support of 129 atoms is larger than 128"),
        ({}, {"batch_size": 24}, "not a multiple of 16"),
        ({}, {"max_gradient_norm": 1.0}, "max_gradient_norm"),
    ],
)
def test_what_cannot_be_fused_is_said(net, algo, words):
    """With "auto" it runs by torch; asked for fused kernels it is refused in a sentence."""
    given = mlp.Config(**{"hidden": (16, 16), "activation": "relu", **net})
    assert sac_on(PUSH, net=given, **algo).kernels == "torch"
    with pytest.raises(ConfigError, match=words):
        sac_on(PUSH, net=given, kernels="fused", **algo)


@pytest.mark.parametrize(
    ("net", "algo", "words"),
    [
        ({"layer_norm": True}, {}, "layer normalization"),
        ({"activation": "silu"}, {}, '"silu" is not supported'),
        ({"hidden": (64, 257)}, {}, "more than 256 units"),
        ({"hidden": (8, 8, 8, 8)}, {}, "more than 3 hidden layers"),
        ({}, {"batch_size": 4096}, "larger than 2048"),
    ],
)
def test_wide_networks_are_fused_for_sac_alone(net, algo, words):
    with pytest.raises(ConfigError, match=words):
        td3_on(PUSH, net=mlp.Config(**{"hidden": (16, 16), "activation": "relu", **net}), kernels="fused", **algo)


@pytest.mark.parametrize("make", [sac_on, td3_on])
def test_a_machine_without_a_gpu_is_told_so(make):
    with pytest.raises(ConfigError, match="there is no GPU"):
        make(PUSH, kernels="fused")


def launches(made, precision):
    """(kernel, arguments, options) of each launch of two updates and their tick, by kernels that have no GPU
    to run on.
    """
    from operant.kernels.actor_critic.narrow.engine import NarrowEngine

    task = actor_critic_task(made)
    engine, found = NarrowEngine(narrow_spec.describe(task, precision), task), []
    engine.launch = lambda kernel, grid, *arguments, **options: found.append((kernel, arguments, options))
    engine.prepare()
    engine.act(0)
    engine.store(0)
    engine.update(1, 0)
    engine.update(1, 1)
    names = {kernel.__name__ for kernel, *_ in found}
    assert {"sample", "act", "pack_network", "evaluate", "action_gradient", "actor_gradient", "step"} <= names
    return found


def actor_critic_task(algo):
    """The task that an algorithm describes to the fused kernels."""
    return algo.fused_task()


def most_shared(architecture, made, precision):
    """The most shared memory that a kernel asks for, once all are compiled."""
    seen = {
        (kernel.__name__, repr(options)): (kernel, values, options)
        for kernel, values, options in launches(made, precision)
    }
    return max(compile_for(architecture, *launch) for launch in seen.values())


@needs_compiler
@pytest.mark.compile
@pytest.mark.parametrize(
    ("make", "env", "precision", "net", "algo"),
    [
        (sac_on, "pendulum", "bf16", {"hidden": (128, 128), "activation": "relu"}, {"batch_size": 256}),
        (td3_on, "push", "tf32", {"hidden": (64, 40), "activation": "tanh"}, {"batch_size": 128, "n_step": 3}),
    ],
    ids=["sac", "td3"],
)
def test_kernels_compile(make, env, precision, net, algo):
    made = make(PUSH if env == "push" else envs.find(env), net=mlp.Config(**net), start=False, **algo)
    assert most_shared(90, made, precision) <= 227 << 10


@needs_compiler
@pytest.mark.compile
@pytest.mark.parametrize(
    ("precision", "layer_norm", "hidden", "own"),
    [
        ("bf16", True, (256, 96, 64), {"project", "actor_gradient_unrolled"}),
        (
            "bf16",
            True,
            (768, 384, 192),
            {"first_layer", "first_layers", "hidden_layer", "input_gradient", "actor_gradient_unrolled"},
        ),
        (
            "bf16",
            False,
            (768, 384, 192),
            {
                "first_layers",
                "first_backward",
                "first_gradient",
                "first_reduce",
                "reduce_action_gradient",
                "actor_gradient_unrolled",
            },
        ),
        pytest.param(
            "tf32",
            False,
            (768, 384, 192),
            {"first_layer", "hidden_layer", "actor_gradient_unrolled"},
            marks=pytest.mark.soak,
        ),
        pytest.param(
            "bf16",
            True,
            (512, 200),
            {"first_layer", "activate_layer", "q_values", "actor_gradient"},
            marks=pytest.mark.soak,
        ),
    ],
)
def test_kernels_of_wide_networks_compile(precision, layer_norm, hidden, own):
    from operant.kernels.actor_critic.wide.c51 import C51Engine
    from operant.kernels.actor_critic.wide.engine import WideEngine

    net = mlp.Config(hidden=hidden, activation="silu" if layer_norm else "relu", layer_norm=layer_norm)
    critic = "c51" if "project" in own else "scalar"
    task = actor_critic_task(sac_on(PUSH, net=net, start=False, batch_size=2048, actor_delay=2, critic=critic))
    engine, found = (C51Engine if critic == "c51" else WideEngine)(wide_spec.describe(task, precision), task), {}
    engine._asked = 0  # no products
    engine.launch = lambda kernel, grid, *arguments, **options: found.setdefault(
        (kernel.__name__, repr(options)), (kernel, arguments, options)
    )
    engine.prepare()
    engine.act(0)
    engine.store(0)
    engine.update(1, 0)
    engine.update(1, 1)
    every = {
        "load_lanes",
        "act",
        "sample_actions",
        "critic_gradient",
        "min_q_gradient",
        "backward_layer",
        "reduce",
        "step",
        "count",
        "finish",
    }
    assert every | own <= {name for name, _ in found}
    assert max(compile_for(90, *launch) for launch in found.values()) <= 227 << 10
    slopes = [
        launch for (name, _), launch in found.items() if name in ("first_backward", "first_gradient")
    ]  # whose tiles are the same on every GPU
    assert all(compile_for(120, *launch) <= 99 << 10 for launch in slopes)


@needs_compiler
@pytest.mark.soak
@pytest.mark.parametrize("make", [sac_on, td3_on])
@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_every_variant_compiles(make, architecture, precision):
    for hidden in ((256, 256), (16,), (256, 33, 128)):
        made = make(
            PUSH,
            net=mlp.Config(hidden=hidden, activation="relu"),
            start=False,
            batch_size=256,
            normalize_observations=True,
        )
        assert most_shared(architecture, made, precision) <= 227 << 10
