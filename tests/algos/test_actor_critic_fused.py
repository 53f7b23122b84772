"""Fused kernels of SAC and TD3 without a GPU: fp32 in Triton's interpreter against the torch paths, which test_sac.py
and test_td3.py check against float64; and compiled to machine code. tf32 and bf16 need a GPU: benches/fused_sac.py.
"""

from __future__ import annotations

import pytest
from fused_probe import interpreted
from machine_code import LEAST_SHARED, compile_for, needs_compiler
from test_sac import sac_on
from test_td3 import td3_on
from toys import PUSH, broad

from operant import envs
from operant.errors import ConfigError
from operant.kernels.actor_critic.narrow import spec as narrow_spec
from operant.kernels.actor_critic.wide import spec as wide_spec
from operant.nn import mlp

pytest.importorskip("triton")

FEW = {"horizon": 4, "batch_size": 16, "learning_starts": 32}
TWO = {**FEW, "horizon": 2, "actor_delay": 2}
CASES = [
    # Two tiles a batch; a time limit; actions of several values.
    ("sac", "push", {"hidden": [16, 24], "activation": "relu"}, {**FEW, "batch_size": 32, "updates_per_step": 0.5}),
    # n-step returns, several updates a tick, a normalizer, three layers of widths that are not powers of two; a batch
    # of 48 in chunks of 16. The actor learns in every second update.
    (
        "sac",
        "pendulum",
        {"hidden": [20, 16, 5], "activation": "tanh"},
        {**TWO, "batch_size": 48, "n_step": 3, "normalize_observations": True},
    ),
    # One critic, of other widths than the actor; the actor learns in every fourth update; a fixed temperature.
    (
        "sac",
        "push",
        {"hidden": [16], "critic_hidden": [24, 16], "activation": "relu"},
        {**FEW, "critics": 1, "temperature": 0.1, "actor_delay": 4},
    ),
    # Wide engine: layer normalization in kernels with products; critics wider than the actor, which learns in every
    # second update. Then a width beyond the narrow engine's, without layer normalization; several tiles a program.
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
    # TD3: the actor learns in every second update, lanes explore differently.
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
    # Distributional critics.
    (
        "sac",
        "push",
        {"hidden": [32, 16], "activation": "silu", "layer_norm": True},
        {**TWO, "batch_size": 32, "critic": "c51", "atoms": 21, "gamma": 0.9},
    ),
    # Layer normalization of widths that need the library's products.
    (
        "sac",
        "push",
        {"hidden": [24, 40], "activation": "silu", "layer_norm": True},
        {**FEW, "batch_size": 32, "n_step": 2, "horizon": 2},
    ),
    # Discounts below 2/3 and below 1/2: the projection sums four neighbouring atoms, or all of them.
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
    # TD3 in the wide engine: layer normalization, target smoothing, delayed targets; one critic and a normalizer
    # without it; more outputs than the unrolled head's; distributional critics.
    (
        "td3",
        "push",
        {"hidden": [32, 16], "critic_hidden": [32, 48, 16], "activation": "silu", "layer_norm": True},
        {**TWO, "batch_size": 64, "n_step": 2, "exploration_noise_max": 0.4},
    ),
    (
        "td3",
        "pendulum",
        {"hidden": [300, 20, 24], "activation": "relu"},
        {**FEW, "critics": 1, "actor_delay": 1, "normalize_observations": True},
    ),
    (
        "td3",
        "push",
        {"hidden": [24, 40], "activation": "silu", "layer_norm": True},
        {**FEW, "batch_size": 32, "n_step": 2, "horizon": 2},
    ),
    (
        "td3",
        "push",
        {"hidden": [32, 16], "activation": "silu", "layer_norm": True},
        {**TWO, "batch_size": 32, "critic": "c51", "atoms": 21, "gamma": 0.9},
    ),
    # Long observations and actions of 17 values: first layers by the library's products, with and without layer
    # normalization, for both algorithms and kinds of critics; and by own kernels, with a tile of actions that has fewer
    # columns than the critics' input.
    (
        "sac",
        "broad 140",
        {"hidden": [16, 24], "activation": "relu"},
        {**FEW, "batch_size": 32, "normalize_observations": True},
    ),
    (
        "sac",
        "broad 140",
        {"hidden": [32, 16], "critic_hidden": [32, 48, 16], "activation": "silu", "layer_norm": True},
        {**TWO, "batch_size": 64, "n_step": 2},
    ),
    (
        "td3",
        "broad 140",
        {"hidden": [32, 16], "activation": "silu", "layer_norm": True},
        {**TWO, "batch_size": 32, "critic": "c51", "atoms": 21, "gamma": 0.9},
    ),
    (
        "sac",
        "broad 70",
        {"hidden": [16, 300, 24], "activation": "relu"},
        {**FEW, "batch_size": 32, "critics": 1},
    ),
]


def words(case):
    return dict(zip(("name", "env", "net", "algo"), CASES[case], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "cases",
    [(1, 3, 5, 9, 11, 14, 15, 18), pytest.param((0, 2, 4, 6, 7, 8, 10, 12, 13, 16, 17), marks=pytest.mark.soak)],
    ids=["few", "others"],
)
def test_whole_iterations_equal_the_torch_paths(cases):
    for differences in interpreted([("iteration", words(case)) for case in cases], "actor_critic_interpreted"):
        assert max(differences.values()) < 1e-5, differences
        assert {"policy/parameters", "algo/target", "adam/critic/exp_avg_sq", "replay/observation", "stats"} <= set(
            differences
        )


@pytest.mark.slow
def test_layer_normalization_of_a_large_mean_is_accurate():
    """A mean of a thousand standard deviations: in float32 its square leaves no digits for the variance."""
    (differences,) = interpreted([("large_mean", words(3))], "actor_critic_interpreted")
    assert max(differences.values()) < 2e-3, differences
    assert {"adam/actor/exp_avg", "adam/critic/exp_avg"} <= set(differences)


@pytest.mark.soak
def test_equal_seeds_give_equal_bits_and_other_seeds_do_not():
    assert interpreted([("bits", words(2))], "actor_critic_interpreted") == [[True, False]]


@pytest.mark.soak
def test_an_update_that_began_with_a_failed_step_is_completed():
    """A checkpoint after the environment's failure holds whole updates: of critics, actor and temperature."""
    net = {"hidden": [32, 16], "activation": "silu", "layer_norm": True}
    case = {"name": "sac", "env": "push", "net": net, "algo": {**FEW, "horizon": 2, "learning_starts": 16}}
    assert interpreted([("failed_step", case)], "actor_critic_interpreted") == [[]]


@pytest.mark.parametrize("make", [sac_on, td3_on])
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
def test_unsupported_configurations_use_torch_or_raise_with_the_reason(make, net, algo, words):
    """Check that "auto" runs them by torch, and "fused" raises ConfigError with the reason."""
    given = mlp.Config(**{"hidden": (16, 16), "activation": "relu", **net})
    assert make(PUSH, net=given, **algo).kernels == "torch"
    with pytest.raises(ConfigError, match=words):
        make(PUSH, net=given, kernels="fused", **algo)


@pytest.mark.parametrize("make", [sac_on, td3_on])
def test_fused_kernels_without_a_gpu_raise(make):
    with pytest.raises(ConfigError, match="there is no GPU"):
        make(PUSH, kernels="fused")


def launches(made, precision):
    """(kernel, arguments, options) of each launch of one tick and two updates, recorded instead of launched."""
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
    """Description of an algorithm for the fused kernels."""
    return algo.fused_task()


def most_shared(architecture, made, precision):
    """Compile all kernels; return the largest amount of shared memory that one asks for, in bytes."""
    unique = {
        (kernel.__name__, repr(options)): (kernel, values, options)
        for kernel, values, options in launches(made, precision)
    }
    return max(compile_for(architecture, *launch) for launch in unique.values())


@needs_compiler
@pytest.mark.slow
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
@pytest.mark.slow
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
        # broad(348): the first layer's product is the library's
        ("bf16", True, (256, 256), {"activate_layer", "actor_gradient", "hidden_layer"}),
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
    net = mlp.Config(hidden=hidden, activation="silu" if layer_norm else "relu", layer_norm=layer_norm)
    critic = "c51" if "project" in own else "scalar"
    env = broad(348) if hidden == (256, 256) else PUSH
    made = sac_on(env, net=net, start=False, batch_size=2048, actor_delay=2, critic=critic)
    assert own <= compile_wide_kernels(made, precision, 90)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "critic", "hidden"),
    [
        (90, "scalar", (256, 96, 64)),
        pytest.param(90, "c51", (256, 96, 64), marks=pytest.mark.soak),
        pytest.param(80, "scalar", (512, 200), marks=pytest.mark.soak),
        pytest.param(100, "c51", (256, 96, 64), marks=pytest.mark.soak),
    ],
)
def test_kernels_of_wide_networks_of_td3_compile(architecture, critic, hidden):
    net = mlp.Config(hidden=hidden, activation="silu", layer_norm=True)
    made = td3_on(PUSH, net=net, start=False, batch_size=2048, critic=critic)
    own = {"project"} if critic == "c51" else {"critic_gradient"}
    assert own <= compile_wide_kernels(made, "bf16", architecture)


def compile_wide_kernels(made, precision, architecture):
    """Compile the kernels that the wide engine launches for a tick and two updates; return their names."""
    from operant.kernels.actor_critic.wide.c51 import C51Engine
    from operant.kernels.actor_critic.wide.engine import WideEngine

    task, found = actor_critic_task(made), {}
    kind = C51Engine if task.config.critic == "c51" else WideEngine
    engine = kind(wide_spec.describe(task, precision), task)
    engine._asked = 0  # skip the library's products
    engine.launch = lambda kernel, grid, *arguments, **options: found.setdefault(
        (kernel.__name__, repr(options)), (kernel, arguments, options)
    )
    engine.prepare()
    engine.act(0)
    engine.store(0)
    engine.update(1, 0)
    engine.update(1, 1)
    expected = {
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
    names = {name for name, _ in found}
    assert expected <= names
    assert max(compile_for(architecture, *launch) for launch in found.values()) <= LEAST_SHARED[architecture]
    # Their tiles are the same on every GPU.
    fixed = [launch for (name, _), launch in found.items() if name in ("first_backward", "first_gradient")]
    assert all(compile_for(120, *launch) <= 99 << 10 for launch in fixed)
    return names


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
