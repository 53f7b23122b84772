"""Fused kernels of recurrent policies without a GPU: by Triton's interpreter against float64 autograd over unrolled
sequences and against the torch path, and compiled to machine code. On a GPU: benches/recurrent.py.
"""

from __future__ import annotations

import pytest
import torch
from fused_probe import interpreted, trainer, wide
from machine_code import LEAST_SHARED, compile_for, needs_compiler

from operant.algos.ppo import fused
from operant.kernels import recurrent
from operant.kernels.recurrent import lstm
from operant.kernels.recurrent.shape import reason_for_torch
from operant.nn import NetConfig

pytest.importorskip("triton")


def launches(precision, net, *, lanes=256, horizon=16, env=None, minibatches=2, small=False, **algo):
    """Launches of an iteration as (kernel, arguments, options), not executed."""
    from operant.kernels.recurrent.learner import RecurrentLearner, tile_config

    ppo = trainer(
        env or wide(118, 3),
        NetConfig(shared=True, **net),
        lanes=lanes,
        kernels="torch",
        horizon=horizon,
        minibatches=minibatches,
        epochs=1,
        **algo,
    )
    task, policy = fused.task(ppo.backend), ppo.policy
    dense, shape = recurrent.describe(policy, precision, task.layout.length, task.layout.block)
    states = recurrent.States(policy.initial_state(lanes)[0], policy.initial_state(lanes)[0][None], True)
    config = tile_config(dense, shape, task.layout, None, small=small)
    learner, found = RecurrentLearner(dense, task, config, shape.lean() if small else shape, states), []
    learner.launch = lambda kernel, grid, *arguments, **options: found.append((kernel, arguments, options))
    learner.prepare()
    for t in (0, 1):
        learner.act(t)
        learner.final_values(t)
    learner.bootstrap(True)
    learner.update(1)
    return found


GRADIENTS = [
    {
        "env": "categorical",
        "net": {"memory": "mingru", "hidden": (20,), "memory_layers": 2, "activation": "relu"},
        "algo": {"normalize_observations": True},
    },
    {
        "env": "judged",
        "net": {"memory": "gru", "hidden": (20, 18), "activation": "gelu"},
        "algo": {"bptt": 2, "value_clip": 0.2},
    },
    {
        "env": "gaussian",
        "net": {"memory": "lstm", "hidden": (17,), "memory_layers": 2, "layer_norm": True},
        "algo": {"bptt": 3},
        "resident": False,
    },
    {
        "env": "gaussian",
        "net": {"memory": "mingru", "hidden": (20,), "memory_layers": 2, "activation": "silu"},
        "algo": {},
        "fused": False,
    },
]
ROUNDED = [
    {
        "env": "categorical",
        "net": {"memory": memory, "hidden": (40,), "memory_layers": 2},
        "algo": {},
        "precision": precision,
        **more,
    }
    for memory, precision, more in (("mingru", "bf16", {}), ("gru", "tf32", {"resident": False}), ("lstm", "bf16", {}))
]
STEPS = [
    {"towers": 2, "units": 20, "steps": 4, "lanes": 19},
    {"towers": 1, "units": 32, "steps": 3, "lanes": 32, "precision": "tf32"},
    {"towers": 1, "units": 8, "steps": 1, "lanes": 5},
]
LIMITS = {"ieee": 1e-5, "tf32": 3e-3, "bf16": 3e-2}


@pytest.mark.slow
def test_gradients_equal_float64_autograd_over_unrolled_sequences():
    """Episodes begin and end anywhere in a segment; results are reproducible."""
    cases = [*GRADIENTS, *ROUNDED]
    asked = [*(("gradient", case) for case in cases), *(("steps", case) for case in STEPS)]
    every = interpreted(asked, "memory_interpreted")
    for case, found in zip(STEPS, every[len(cases) :], strict=True):
        assert max(found["errors"]) <= LIMITS[case.get("precision", "ieee")] and found["again"], (case, found)
    for case, found in zip(cases, every[: len(cases)], strict=True):
        precision = case.get("precision", "ieee")
        assert max(found["gradient"], found["numbers"]) <= LIMITS[precision] and found["again"], (case, found)
        assert precision == "ieee" or found["gradient"] > 1e-5, (case, found)


ROLLOUTS = [
    {
        "env": "gaussian",
        "net": {"memory": "mingru", "hidden": (20,), "memory_layers": 2},
        "algo": {"normalize_observations": True},
    },
    {
        "env": "judged",
        "net": {"memory": "lstm", "hidden": (20, 18)},
        "algo": {"bptt": 3, "optimizer": "muon", "replay_ratio": 1.5},
        "lean": True,
    },
    {
        "env": "judged",
        "net": {"memory": "gru", "hidden": (20,), "layer_norm": True},
        "algo": {"bptt": 2, "carry_state": False},
        "whole": False,
        "lean": True,
    },
    {
        "env": "board",
        "net": {"memory": "mingru", "hidden": (20,), "memory_layers": 2},
        "algo": {},
        "whole": False,
        "lean": True,
    },
]


@pytest.mark.slow
def test_iterations_equal_the_torch_path():
    """Values, values of true final observations, final states and parameters; acting in one launch and layer by
    layer.
    """
    for case, found in zip(
        ROLLOUTS, interpreted([("rollout", case) for case in ROLLOUTS], "memory_interpreted"), strict=True
    ):
        assert found["truncated"] > 0, (case, found)
        assert max(found[name] for name in ("actions", "values", "finals", "states", "parameters")) < 1e-5, (
            case,
            found,
        )


@pytest.mark.parametrize(
    ("memory", "units", "precision", "ours"),
    [
        ("gru", 256, "bf16", True),
        ("lstm", 200, "tf32", True),
        ("lstm", 128, "fp32", False),
        ("mingru", 64, "fp32", True),
    ],
)
def test_wide_memories_use_torch_in_fp32_only(memory, units, precision, ours):
    policy = trainer(
        wide(118, 3), NetConfig(shared=True, memory=memory, hidden=(units,)), kernels="torch", horizon=8, minibatches=1
    ).policy
    reason = reason_for_torch(policy, precision)
    assert reason is None if ours else f"{memory} of {units} units" in reason


def test_layers_of_a_memory_share_their_kernels():
    """The number of compiled kernels does not grow with the layers, nor does the time to start."""
    kinds = {
        layers: {
            (kernel.__name__, repr(options).replace(f"layers={layers}", "").replace(f"rows={layers * 160}", ""))
            for kernel, _, options in launches(
                "bf16", {"memory": "mingru", "hidden": (160,), "memory_layers": layers}, lanes=32
            )
            if kernel.__name__
            in ("project_inputs", "mingru_forward", "mingru_backward", "input_gradient", "weight_gradient")
        }
        for layers in (2, 4)
    }
    assert len(kinds[2]) == len(kinds[4])


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "precision", "net"),
    [
        (90, "bf16", {"memory": "mingru", "memory_layers": 2, "hidden": (64,), "activation": "relu"}),
        (90, "bf16", {"memory": "mingru", "hidden": (512,), "activation": "gelu"}),
        (90, "bf16", {"memory": "lstm", "hidden": (128,), "activation": "relu"}),
        (90, "tf32", {"memory": "gru", "hidden": (128,), "layer_norm": True}),
        (75, "fp32", {"memory": "gru", "hidden": (20, 24)}),
        (90, "fp32", {"memory": "lstm", "hidden": (128,)}),
        (90, "bf16", {"memory": "gru", "hidden": (256,)}),
        (100, "bf16", {"memory": "gru", "hidden": (128,)}),
        (86, "tf32", {"memory": "mingru", "hidden": (64,)}),
    ],
)
def test_kernels_compile(architecture, precision, net):
    compile_all(architecture, launches(precision, net, small=architecture != 90))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("memory", ["mingru", "lstm"])
def test_kernels_that_read_bytes_compile(memory):
    compile_all(
        90,
        launches(
            "bf16", {"memory": memory, "hidden": (64,)}, env=wide(118, 3, seen="uint8"), normalize_observations=True
        ),
    )


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "units", "precision"), [(75, 32, "ieee"), (86, 64, "tf32"), (90, 32, "tf32"), (100, 20, "tf32")]
)
def test_the_steps_of_an_lstm_compile(architecture, units, precision):
    rows, options = torch.zeros(16), {**lstm.options(units), "PRECISION": precision}
    sizes, kernels = (104, 3328, 104 * 3328 * units), ((lstm.lstm_forward, 8), (lstm.lstm_backward, 7))
    compile_all(architecture, [(kernel, (*[rows] * tensors, *sizes), options) for kernel, tensors in kernels])


@needs_compiler
@pytest.mark.slow
def test_kernels_of_a_first_layer_whose_padding_is_no_power_of_two_compile():
    compile_all(90, launches("bf16", {"memory": "lstm", "hidden": (64,)}, env=wide(150, 3)))


def compile_all(architecture, every):
    seen = set()
    for kernel, arguments, options in every:
        kinds = tuple(
            str(value) if isinstance(value, tuple) else value.dtype if isinstance(value, torch.Tensor) else value
            for value in arguments
        )
        if (key := (kernel.__name__, kinds, repr(options))) not in seen:
            seen.add(key)
            shared = compile_for(architecture, kernel, arguments, options)
            assert shared <= LEAST_SHARED[architecture], kernel.__name__
