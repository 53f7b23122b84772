"""The fused kernels without a GPU: fp32 through Triton's interpreter beside float64 autograd and beside the torch path, and every variant compiled to
machine code for four generations of GPUs. What tf32 and bf16 compute only a GPU can tell: benches/fused.py."""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from toys import COUNT, PICK, PUSH, ppo_on

from operant import nets
from operant.algos.ppo import PPO
from operant.envs import Box, Discrete, Env, find
from operant.errors import ConfigError
from operant.fused.spec import Spec, describe, padded, shapes, why_not
from operant.heads import Gaussian
from operant.policy import Policy
from operant.world import World

triton = pytest.importorskip("triton")

CPU = torch.device("cpu")
PLAIN = {"entropy_coefficient": 0.03}
CLIPPED = {**PLAIN, "value_clip": 0.1, "normalize_observations": True}


def interpreted(cases):
    """What `fused_interpreted` finds for (kind, arguments), in a process whose Triton interprets."""
    here = Path(__file__).resolve().parent
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-B", "-W", "ignore", str(here / "fused_interpreted.py")]
    done = subprocess.run(command, input=json.dumps(cases), env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


# NUMBERS
# The loss's numbers have more room than the gradient: the KL divergence is what is left of two float32 numbers that are nearly the same.

GRADIENTS = [
    ("categorical", {"hidden": [16, 16]}, PLAIN),
    ("categorical", {"hidden": [24, 16, 5], "activation": "relu"}, PLAIN),
    ("multi", {"hidden": [16], "shared": True, "activation": "silu"}, CLIPPED),
    ("multi", {"hidden": [16, 16]}, {**PLAIN, "normalize_advantages": False}),
    ("gaussian", {"hidden": [16, 20], "activation": "gelu", "squash": True}, CLIPPED),
    ("gaussian", {"hidden": [16], "shared": True}, PLAIN),
    ([20, 17], {"hidden": [16]}, PLAIN),
]


@functools.cache
def plain_run():
    """What both plain tests look at, from one process: it compiles each environment once."""
    return interpreted([("gradient", {"env": e, "net": n, "algo": a}) for e, n, a in GRADIENTS] + [("iteration", case) for case in ITERATIONS])


def test_the_gradient_is_float64_autograds():
    for case, found in zip(GRADIENTS, plain_run(), strict=False):
        assert found["gradient"] <= 1e-5 and found["numbers"] <= 5e-5, (case, found)


@pytest.mark.soak
def test_the_gradient_of_every_combination_is_float64_autograds():
    activations, widths = ("tanh", "relu", "gelu", "silu"), ([64, 64], [128], [33, 17, 64], [128, 128])
    every = [
        ("gradient", {"env": env, "net": {"hidden": hidden, "activation": activation, "shared": shared}, "algo": CLIPPED if shared else PLAIN, "lanes": 32})
        for env, activation, hidden, shared in itertools.product(("categorical", "multi", "gaussian"), activations, widths, (False, True))
    ]
    every.append(("gradient", {"env": [118, 3], "net": {"hidden": [128, 128]}, "algo": PLAIN, "shape": {"rows": 32}}))
    every.append(("gradient", {"env": [128, 2], "net": {"hidden": [32]}, "algo": PLAIN}))
    for case, found in zip(every, interpreted(every), strict=True):
        assert found["gradient"] <= 1e-5 and found["numbers"] <= 5e-5, (case, found)


ITERATIONS = [
    {"env": "categorical", "net": {"hidden": [16]}, "algo": {"normalize_rewards": True, "normalize_observations": True}},
    {"env": "multi", "net": {"hidden": [16], "shared": True}, "algo": {"value_clip": 0.2, "anneal": False, "horizon": 10}},
    {"env": "gaussian", "net": {"hidden": [16], "squash": True}, "algo": {"target_kl": 1e-7, "learning_rate": 0.01, "normalize_advantages": False}},
    {"env": "categorical", "net": {"hidden": [16]}, "algo": {}, "broken": True, "iterations": 1},
]


def test_whole_iterations_are_the_torch_paths():
    """Rollout, advantages, several steps of Adam, moments, statistics, what a checkpoint holds; and the early stop, whose skipped steps are not counted."""
    *found, broken = plain_run()[len(GRADIENTS) :]
    for case, differences in zip(ITERATIONS, found, strict=False):
        assert differences["actions"] == 0, (case, differences)
        assert max(differences["stats"], differences["state"], differences["rollout"]) <= 2e-5, (case, differences)
        assert differences["moved"] > 1e-3, (case, differences)
        assert differences["not_finite"] == [0.0, 0.0]
    truncated = [differences["final"] for differences in found if differences["final"] is not None]
    assert truncated and max(truncated) <= 2e-5, "no episode was truncated: the values of final observations are not put to the test"
    assert all(count > 0 for count in broken["not_finite"]), "a broken parameter goes unnoticed"


# CHOICE


def policy_of(env, **net):
    return Policy(env, nets.Config(**net), seed=1, device=CPU, normalize=False)


def broad(observation, actions):
    rules = find("cartpole")
    return Env(
        rules.Params, rules.fields, observation=Box(observation), action=Discrete(actions), time_limit=9,
        reset=rules.reset, step=rules.step, observe=rules.observe,
    )  # fmt: skip


def test_what_cannot_be_fused_is_said(tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n    def __init__(self, o, h):\n        super().__init__()\n        self.l = torch.nn.Linear(o, h)\n"
        "    def forward(self, x):\n        return self.l(x), x[:, 0]\n"
    )
    cartpole = find("cartpole")
    assert why_not(policy_of(cartpole, hidden=(16, 128, 48)), 1000) is None
    assert "not one of Operant's own" in why_not(policy_of(cartpole, kind=f"{tmp_path / 'net.py'}:Net"), 1000)
    assert "[256, 16]" in why_not(policy_of(cartpole, hidden=(256, 16)), 1000)
    assert "up to 3 hidden layers" in why_not(policy_of(cartpole, hidden=(16,) * 4), 1000)
    assert "129 wide" in why_not(policy_of(broad(129, 2)), 1000)
    assert "64 parameters" in why_not(policy_of(broad(4, 64)), 1000)
    assert "2^31" in why_not(policy_of(cartpole), 2**29)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interprets")
def test_a_cpu_takes_torchs_kernels_unless_told_otherwise():
    assert ppo_on(COUNT, 4, horizon=4, start=False).fused is None
    assert ppo_on(COUNT, 4, horizon=4, start=False, kernels="torch").fused is None
    with pytest.raises(ConfigError, match="there is no GPU"):
        PPO(World(COUNT, 4, seed=1), PPO.Config(horizon=4, kernels="fused"), nets.Config(), seed=1, steps=100)


def test_a_shape_never_has_more_programs_than_tiles():
    spec = describe(policy_of(find("cartpole")), "bf16")
    for minibatch in (1, 64, 8192, 131_072, 2**20):
        for shape in shapes(spec, minibatch, 132):
            assert 1 <= shape.programs <= math.ceil(minibatch / shape.rows)


def test_where_parameters_lie():
    for env, net in ((find("cartpole"), {}), (PICK, {"shared": True, "hidden": (7,)}), (PUSH, {"hidden": (16, 9, 33)})):
        policy = policy_of(env, **net)
        spec, values = describe(policy, "fp32"), policy.flat.values.data
        values.copy_(torch.arange(len(values)))
        assert policy.net.first_weight.flatten()[0] == spec.first_weight and policy.net.first_bias.flatten()[0] == spec.first_bias
        assert [weight.flatten()[0].item() for weight in policy.net.weights] == list(spec.weights)
        assert [bias.flatten()[0].item() for bias in policy.net.biases] == list(spec.biases)
        assert policy.net.head_weight.flatten()[0] == spec.head_weight and policy.net.head_bias.flatten()[0] == spec.head_bias
        assert policy.net.value_weight.flatten()[0] == spec.value_weight and policy.net.value_bias.flatten()[0] == spec.value_bias
        assert spec.log_std == (policy.head.log_std.flatten()[0] if isinstance(policy.head, Gaussian) else -1)
        assert spec.starts[-1] == sum(spec.sizes)


@pytest.mark.parametrize(("width", "tile"), [(1, 16), (16, 16), (17, 32), (64, 64), (65, 128)])
def test_padding(width, tile):
    assert padded(width) == tile


# MACHINE CODE

POINTERS = {"order": "*i32", "action": "*i32", "raw": "*i32", "truncated": "*u8", "iteration": "*i64"}
WHOLE = {"t", "lanes", "first", "steps", "first_block", "count", "stride", "width", "programs", "size", "blocks"}
FLOATS = {"clip", "value_clip", "entropy_coefficient", "value_coefficient", "start_rate", "iterations", "target_kl", "max_norm", "epsilon"}


def compile_for(architecture: int, kernel, constants, gaussian: bool = False, floats=frozenset(), pointers=frozenset(), **options) -> None:
    """One kernel to a cubin; raises where it does not compile."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name in FLOATS | floats:
            signature[name] = "fp32"
        elif name in WHOLE - pointers:
            signature[name] = "i32"
        else:
            signature[name] = "*fp32" if gaussian and name in ("action", "raw") else POINTERS.get(name, "*fp32")
    compiled = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", architecture, 32), options=options)
    assert len(compiled.asm["cubin"]) > 1000


def spec_of(env: Env, precision: str, normalize: bool = False, **net) -> Spec:
    return describe(Policy(env, nets.Config(**net), seed=1, device=CPU, normalize=normalize), precision)


def compile_network(architecture: int, spec: Spec, value_clipped: bool = False) -> None:
    """The three kernels that hold a network, in the first shape."""
    from operant.fused.act import act, leftover_values
    from operant.fused.descend import gradient

    shape = next(iter(shapes(spec, 8192, 132)))
    options = {"num_warps": shape.warps, "num_stages": 0}
    gaussian = spec.log_std >= 0
    compile_for(architecture, act, {"SPEC": spec, "ROWS": shape.act_rows}, gaussian, **options)
    compile_for(architecture, leftover_values, {"SPEC": spec, "ROWS": shape.act_rows}, gaussian, **options)
    compile_for(architecture, gradient, {"SPEC": spec, "VALUE_CLIPPED": value_clipped, "ROWS": shape.rows, "BLOCK": 32}, gaussian, **options)


def compile_step(architecture: int, spec: Spec) -> None:
    """The kernels around the gradient."""
    from operant.fused import step

    floats = frozenset({"steps"})
    compile_for(architecture, step.part_moments, {"PARTS": 512, "TILE": 4096}, num_warps=8)
    compile_for(architecture, step.begin, {"NORMALIZE": True, "ANNEAL": True, "PARTS": 512})
    compile_for(architecture, step.add_parts, {"SPEC": spec, "TARGETED": True, "CHUNK": 128}, pointers=floats)
    compile_for(architecture, step.adam, {"BLOCKS": 512, "TILE": 256}, pointers=frozenset({"first"}))
    compile_for(architecture, step.finish, {"TILE": 1024}, floats=floats)


needs_compiler = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interprets")


@needs_compiler
@pytest.mark.parametrize(
    ("architecture", "env", "precision", "net"),
    [
        (75, PUSH, "fp32", {"hidden": (16,), "activation": "gelu"}),
        (86, PICK, "tf32", {"hidden": (16, 16)}),
        (90, find("cartpole"), "bf16", {}),
        (100, PUSH, "bf16", {"hidden": (32, 16), "squash": True, "shared": True}),
    ],
)
def test_kernels_compile(architecture, env, precision, net):
    spec = spec_of(env, precision, **net)
    compile_network(architecture, spec)
    compile_step(architecture, spec)


@needs_compiler
@pytest.mark.soak
@pytest.mark.parametrize("architecture", [75, 86, 90, 100])
def test_every_variant_compiles(architecture):
    """Turing has neither tf32 nor bf16 products: there both run through torch."""
    precisions = ("fp32",) if architecture < 80 else ("fp32", "tf32", "bf16")
    networks = [{"hidden": (64, 64), "activation": activation} for activation in ("tanh", "relu", "gelu", "silu")]
    networks += [{"hidden": (16,)}, {"hidden": (32, 64, 16), "shared": True}]
    for precision, env, net in itertools.product(precisions, (find("cartpole"), PICK, PUSH), networks):
        if precision == "fp32":
            net = {**net, "hidden": tuple(min(width, 32) for width in net["hidden"])}
        compile_network(architecture, spec_of(env, precision, normalize=net["hidden"] == (16,), **net), value_clipped=len(net["hidden"]) == 3)
    for precision in precisions[1:]:
        compile_network(architecture, spec_of(broad(118, 3), precision, hidden=(128, 128)))


