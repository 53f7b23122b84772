"""Fused kernels without a GPU: in Triton's interpreter against float64 autograd and against torch, and compiled to
machine code for four GPU generations. Results of tf32 and bf16 on a GPU: benches/fused.py.
"""

from __future__ import annotations

import itertools
import math
import os

import pytest
import torch
from fused_probe import interpreted, wide
from machine_code import LEAST_SHARED, compile_for, needs_compiler
from toys import COUNT, GATE, PICK, PUSH, SEEN, ppo_on

from operant.algos.ppo import PPO, fused
from operant.envs import Box, Discrete, Env, find
from operant.errors import ConfigError
from operant.kernels.muon import MAX_SIDE
from operant.kernels.spec import Spec, deep_padded, describe, padded, unsupported_reason
from operant.kernels.tile_config import PerLayer, Workload, candidates, from_text
from operant.nn import mlp
from operant.nn.distributions import Gaussian
from operant.nn.policy import Policy
from operant.worlds.device_world import DeviceWorld

triton = pytest.importorskip("triton")

CPU = torch.device("cpu")
PLAIN = {"entropy_coefficient": 0.03}
CLIPPED = {**PLAIN, "value_clip": 0.1, "normalize_observations": True}


# GRADIENTS AND LOSS TERMS
#
# Loss terms have a larger tolerance than gradients: the KL divergence is the difference of two similar float32 values.

GRADIENTS = [
    ("categorical", {"hidden": [16, 16]}, PLAIN),
    ("categorical", {"hidden": [24, 16, 5], "activation": "relu"}, PLAIN),
    ("multi", {"hidden": [16], "shared": True, "activation": "silu"}, CLIPPED),
    ("multi", {"hidden": [16, 16]}, {**PLAIN, "normalize_advantages": False}),
    ("gaussian", {"hidden": [16, 20], "activation": "gelu", "squash": True}, CLIPPED),
    ("gaussian", {"hidden": [16], "shared": True}, PLAIN),
    ([20, 17], {"hidden": [16]}, PLAIN),
    ("judged", {"hidden": [16], "shared": True}, PLAIN),
    ("board", {"hidden": [16]}, CLIPPED),
    ("categorical", {"hidden": [24, 40], "layer_norm": True}, PLAIN),
    ("multi", {"hidden": [20, 16, 33], "layer_norm": True, "shared": True, "activation": "relu"}, CLIPPED),
]

# A chunk has two tiles of rows, the last chunk a partial one; several tiles of columns, and several steps of a sum.
SMALL = "per-layer block_m=16 block_n=32 block_k=16 warps=4 stages=1 chunks=2 microbatch=32"
BROAD = "per-layer block_m=32 block_n=32 block_k=16 warps=4 stages=1 chunks=4 microbatch=32"
LAYERED = [
    ("categorical", {"hidden": [24, 40]}, CLIPPED, SMALL),
    ("multi", {"hidden": [24, 16, 33], "shared": True, "activation": "silu"}, CLIPPED, BROAD),
    ("gaussian", {"hidden": [20], "activation": "gelu", "squash": True}, PLAIN, SMALL),
    (
        "gaussian",
        {"hidden": [16, 16], "shared": True, "activation": "relu"},
        {**PLAIN, "normalize_advantages": False},
        BROAD,
    ),
]

LAYERED += [
    ("categorical", {"hidden": [24, 40], "layer_norm": True}, CLIPPED, SMALL),
    ("gaussian", {"hidden": [20, 16, 33], "layer_norm": True, "shared": True, "activation": "silu"}, PLAIN, BROAD),
    ("categorical", {"hidden": [20], "layer_norm": True, "activation": "relu"}, PLAIN, SMALL),
]

# A first layer wider than a tile, with a number of columns that is not a power of two; and a head whose tiles have
# fewer rows than those of other layers.
WIDE = "per-layer block_m=32 block_n=128 block_k=32 warps=4 stages=1 chunks=2 microbatch=32"
TALL = "per-layer block_m=64 block_n=128 block_k=64 warps=4 stages=1 chunks=2 microbatch=64"
BYTES = {"observation": 150, "actions": 4, "seen": "uint8"}
NAMES = {"observation": 16, "actions": 5, "seen": "uint8", "categories": 9, "judged": True}
MIXED = {"observation": 20, "actions": 3, "seen": "uint8", "categories": [0, 31, 0, 0, 2, *[0] * 8, 28, 5, *[0] * 5]}
MANY = {"observation": 150, "actions": [2, 90], "judged": True}
LAYERED += [
    (BYTES, {"hidden": [24], "activation": "relu"}, CLIPPED, WIDE),
    (NAMES, {"hidden": [24]}, PLAIN, WIDE),
    (MIXED, {"hidden": [24]}, PLAIN, WIDE),
    (MIXED, {"hidden": [24, 16], "shared": True}, CLIPPED, None),
    (MANY, {"hidden": [16, 24, 16], "shared": True}, PLAIN, TALL),
]
ROUGH = [(precision, shape) for precision in ("tf32", "bf16") for shape in (None, SMALL)]
LIMITS = {"ieee": 1e-5, "tf32": 2e-3, "bf16": 2e-2}


def gradient_groups():
    """Cases of a minibatch's gradient, in groups that run in one process each."""
    resident = [{"env": e, "net": n, "algo": a} for e, n, a in GRADIENTS]
    per_layer = [{"env": e, "net": n, "algo": a, "config": config} for e, n, a, config in LAYERED]
    # Tiles of the head, and the samples, end within a tile of the other layers.
    per_layer.append(
        {"env": MANY, "net": {"hidden": [16, 24, 16], "shared": True}, "algo": PLAIN, "config": TALL, "lanes": 10}
    )
    rough = [
        {"env": "categorical", "net": {"hidden": [24, 40]}, "algo": PLAIN, "config": config, "precision": precision}
        for precision, config in ROUGH
    ]
    rough += [{**case, "net": {**case["net"], "layer_norm": True}} for case in rough if case["config"] == SMALL]
    small = {"net": {"hidden": [16], "shared": True}, "algo": CLIPPED, "config": WIDE}
    rough += [
        {"env": env, **small, "precision": precision}
        for precision, env in zip(("tf32", "bf16", "tf32"), (BYTES, NAMES, MIXED), strict=True)
    ]
    return {"resident": resident, "per-layer": per_layer, "rounded": rough}


def test_the_interpreter_refuses_addresses_outside_of_the_tensors():
    sizes = [(16, 16), (12, 16), (16, 12)]
    found = interpreted([("copy", {"read": read, "written": written}) for read, written in sizes])
    assert found[0] == "" and all("4 of 16 addresses are outside" in words for words in found[1:])


@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1], ids=["some", "others"])
@pytest.mark.parametrize("group", ["resident", "per-layer", "rounded"])
def test_the_gradient_is_float64_autograds(group, half):
    """Within float32 rounding, or in tf32 and bf16 within that of their operands. The interpreter emulates tensor
    cores, but not the hardware tanh.
    """
    cases = gradient_groups()[group][half::2]
    for case, found in zip(cases, interpreted([("gradient", case) for case in cases]), strict=True):
        precision = case.get("precision", "ieee")
        assert found["gradient"] <= LIMITS[precision] and found["numbers"] <= 5 * LIMITS[precision], (case, found)
        assert precision == "ieee" or found["gradient"] > 1e-5, (case, found)


@pytest.mark.slow
def test_the_bits_depend_on_the_chunks_alone():
    """The gradient's bits depend neither on the microbatch nor on slices of lanes that act together; they depend on the
    chunks.
    """
    line = "per-layer block_m=16 block_n=32 block_k=16 warps=4 stages=1 chunks={} microbatch={}"
    case = {"env": "categorical", "net": {"hidden": [24, 16]}, "algo": PLAIN, "lanes": 32}
    cases = [
        ("bits", {**case, "config": line.format(chunks, microbatch)})
        for chunks, microbatch in ((4, 32), (4, 64), (4, 4096), (2, 4096))
    ]
    some = [
        ("some", {"env": "multi", "net": {"hidden": [16]}, "lanes": 150, "cut": 128, "config": config})
        for config in (None, line.format(2, 32))
    ]
    *found, whole, layers = interpreted([*cases, *some])
    assert found[0] == found[1] == found[2] != found[3] and whole == layers == [True] * 5


@pytest.mark.slow
def test_rows_of_partial_sums_are_added_in_a_binary_tree():
    """Rows are added within each shard first: a shard's sum has the same bits on a device with that shard alone."""
    cases = [{"chunks": chunks, "shards": shards} for chunks, shards in ((32, 8), (16, 4), (8, 8), (4, 1), (1, 1))]
    for case, found in zip(cases, interpreted([("tree", case) for case in cases]), strict=True):
        assert found == {"shards": True, "whole": True}, case


def test_the_exchange_inside_the_reduction_adds_what_one_rank_would():
    cases = [{"chunks": 16, "shards": 8, "ranks": ranks, "rank": rank} for ranks, rank in ((2, 0), (2, 1), (4, 2))]
    gathers = [
        ("gather", {"size": size, "ranks": ranks, "rank": rank}) for size, ranks, rank in ((3, 2, 1), (300, 4, 2))
    ]
    assert interpreted([*(("exchange", case) for case in cases), *gathers]) == [[True] * 3] * 3 + [[True] * 2] * 2


def test_running_normalizers_of_a_gpu_are_torchs_and_do_not_depend_on_the_number_of_ranks():
    cases = [{"features": 3, "steps": 5, "lanes": 64, "kind": kind} for kind in ("float32", "float64", "uint8")]
    cases.append({"features": 2, "steps": 9, "lanes": 4096, "kind": "float32"})  # several tiles a shard
    for case, (error, same) in zip(cases, interpreted([("normalizer", case) for case in cases]), strict=True):
        assert error < 1e-6, case
        assert same, case


@triton.jit
def no_record(terms, column, parameters, update, SPEC: triton.language.constexpr):
    triton.language.store(update + column, terms)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 8])
def test_the_exchange_compiles(ranks):
    from operant.compute.exchange import Link
    from operant.kernels import exchange
    from operant.kernels.ops import reduce
    from operant.nn import normalization_kernels as moments

    rows, numbers, counts, places = (
        torch.zeros(16, 96),
        torch.zeros(96),
        torch.zeros(3, dtype=torch.int32),
        torch.zeros(ranks, dtype=torch.int64),
    )
    shards = {"SHARDS": 8 // ranks, "SHARD_ROWS": 2, "num_warps": 4}
    compile_for(90, reduce.sum_shards, (rows, 96, numbers), shards)
    link = Link(places, places, counts, places)
    for batch in (numbers, numbers.double(), numbers.byte()):
        compile_for(
            90, moments.partial_moments_kernel, (batch, numbers.double(), 3, 64, 64, 64), {"TILE": 4096, "num_warps": 8}
        )
    compile_for(
        90,
        moments.merge_kernel,
        (numbers.double(), 5, *(numbers.double(),) * 3, numbers, numbers, 1e-8),
        {"ROWS": 8, "num_warps": 1},
    )
    compile_for(90, exchange.gather_words, (counts, counts, 300, 384, link), {"RANKS": ranks, "num_warps": 4})
    compile_for(
        90,
        reduce.exchange_partials,
        (rows, 96, numbers, numbers, numbers, numbers, link),
        {"SPEC": 0, "RECORD": no_record, "RANKS": ranks, **shards},
    )


@pytest.mark.soak
def test_the_gradient_of_every_combination_is_float64_autograds():
    activations, widths = ("tanh", "relu", "gelu", "silu"), ([64, 64], [128], [33, 17, 64], [128, 128])
    every = [
        (
            "gradient",
            {
                "env": env,
                "net": {"hidden": hidden, "activation": activation, "shared": shared},
                "algo": CLIPPED if shared else PLAIN,
                "lanes": 32,
            },
        )
        for env, activation, hidden, shared in itertools.product(
            ("categorical", "multi", "gaussian"), activations, widths, (False, True)
        )
    ]
    every.append(
        ("gradient", {"env": [118, 3], "net": {"hidden": [128, 128]}, "algo": PLAIN, "config": {"block_m": 32}})
    )
    every.append(("gradient", {"env": [128, 2], "net": {"hidden": [32]}, "algo": PLAIN}))
    wide = {"env": [118, 3], "net": {"hidden": [256, 256]}, "algo": PLAIN, "lanes": 64}
    wide_config = "per-layer block_m=64 block_n=128 block_k=32 warps=4 stages=1 chunks=4 microbatch=128"
    every += [("gradient", {**wide, "config": wide_config, "precision": precision}) for precision in LIMITS]
    every += [
        (
            "gradient",
            {
                "env": env,
                "net": {"hidden": hidden, "activation": activation, "shared": shared},
                "algo": CLIPPED,
                "lanes": 32,
                "config": SMALL,
            },
        )
        for env, activation, hidden, shared in itertools.product(
            ("categorical", "multi", "gaussian"), activations, ([48], [33, 17, 64]), (False, True)
        )
    ]
    for case, found in zip(every, interpreted(every), strict=True):
        limit = LIMITS[case[1].get("precision", "ieee")]
        assert found["gradient"] <= limit and found["numbers"] <= 5 * limit, (case, found)


SCHEDULED = {
    "clip": [0.02, 0.3],
    "value_clip": [0.01, 0.4],
    "entropy_coefficient": [0.0, 0.1],
    "value_coefficient": [1.0, 0.2],
    "learning_rate": [1e-3, 5e-3],
}
ITERATIONS = [
    {
        "env": "categorical",
        "net": {"hidden": [16]},
        "algo": {"normalize_rewards": True, "normalize_observations": True},
    },
    {
        "env": "multi",
        "net": {"hidden": [16], "shared": True},
        "scheduled": SCHEDULED,
        "algo": {"value_clip": 0.2, "anneal": False, "horizon": 10, "replay_ratio": 1.6},
    },
    {
        "env": "gaussian",
        "net": {"hidden": [16], "squash": True},
        "algo": {"target_kl": 1e-7, "learning_rate": 0.01, "normalize_advantages": False},
    },
    {
        "env": "gaussian",
        "net": {"hidden": [24]},
        "algo": {
            "target_kl": 0.01,
            "normalize_observations": True,
            "horizon": 8,
            "kernel_config": BROAD,
            "optimizer": "muon",
        },
    },
    {
        "env": "categorical",
        "net": {"hidden": [16, 24], "layer_norm": True, "activation": "relu"},
        "algo": {"kernel_config": SMALL},
        "iterations": 1,
    },
    {"env": "board", "net": {"hidden": [16], "shared": True}, "algo": {"horizon": 8, "kernel_config": WIDE}},
    {"env": "judged", "net": {"hidden": [16]}, "algo": {"normalize_observations": True, "horizon": 4}},
    {"env": "categorical", "net": {"hidden": [16]}, "algo": {}, "broken": True, "iterations": 1},
]


@pytest.mark.parametrize(
    "cases",
    [
        [ITERATIONS[1], ITERATIONS[3], ITERATIONS[-1]],
        pytest.param([ITERATIONS[0], *ITERATIONS[3:5], ITERATIONS[-1]], marks=pytest.mark.slow),
        pytest.param(ITERATIONS, marks=pytest.mark.soak),
    ],
    ids=["few", "others", "all"],
)
def test_fused_iterations_equal_torch(cases):
    """Rollout, advantages, Adam, normalizer moments, statistics and checkpoint agree, also with early stopping, whose
    skipped steps are not counted.
    """
    *runs, (_, broken) = zip(cases, interpreted([("iteration", case) for case in cases]), strict=True)
    found = [differences for _, differences in runs]
    for case, differences in runs:
        assert differences["actions"] == 0, (case, differences)
        assert max(differences["stats"], differences["state"], differences["rollout"]) <= 2e-5, (case, differences)
        assert differences["moved"] > 1e-3, (case, differences)
        assert differences["not_finite"] == [0.0, 0.0]
    truncated = [differences["final"] for differences in found if differences["final"] is not None]
    assert truncated and max(truncated) <= 2e-5, (
        "no episode was truncated: the values of final observations are not put to the test"
    )
    assert all(count > 0 for count in broken["not_finite"]), "a broken parameter goes unnoticed"


# CHOICE


def policy_of(env, **net):
    return Policy(env, mlp.Config(**net), seed=1, device=CPU, normalize=False)


def broad(observation, actions):
    rules = find("cartpole")
    return Env(
        rules.Params,
        rules.fields,
        observation=Box(observation),
        action=Discrete(actions),
        time_limit=9,
        reset=rules.reset,
        step=rules.step,
        observe=rules.observe,
    )


def test_unsupported_networks_are_reported_with_a_reason(tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n    def __init__(self, o, h):\n        super().__init__()\n        "
        "self.l = torch.nn.Linear(o, h)\n"
        "    def forward(self, x):\n        return self.l(x), x[:, 0]\n"
    )
    cartpole = find("cartpole")
    assert unsupported_reason(policy_of(cartpole, hidden=(16, 256, 48)), 1000) is None
    assert "fused kernels support dense layers only" in unsupported_reason(
        policy_of(cartpole, kind=f"{tmp_path / 'net.py'}:Net"), 1000
    )
    assert "[513, 16]" in unsupported_reason(policy_of(cartpole, hidden=(513, 16)), 1000)
    assert "up to 3 hidden layers" in unsupported_reason(policy_of(cartpole, hidden=(16,) * 4), 1000)
    assert unsupported_reason(policy_of(wide(1024, 127, seen="uint8")), 1000) is None
    assert unsupported_reason(policy_of(wide(64, 4, seen="uint8", categories=16, judged=True)), 1000) is None
    assert "1025 wide, and" in unsupported_reason(policy_of(broad(1025, 2)), 1000)
    assert "1040 wide (65 values of 16 categories)" in unsupported_reason(
        policy_of(wide(65, 4, seen="uint8", categories=16)), 1000
    )
    assert "1026 wide (3 values, some categorical)" in unsupported_reason(
        policy_of(wide(3, 4, seen="uint8", categories=(1024, 0, 1))), 1000
    )
    assert "128 parameters" in unsupported_reason(policy_of(broad(4, 128)), 1000)
    assert "a picture" in unsupported_reason(policy_of(SEEN), 1000)
    assert "a convolutional one" in unsupported_reason(policy_of(SEEN, kind="cnn", cnn="impala", channels=(4,)), 1000)
    assert "2^31" in unsupported_reason(policy_of(cartpole), 2**29)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interprets")
def test_cpu_uses_torch_kernels_by_default():
    assert ppo_on(COUNT, 4, horizon=4, start=False).kernels != "fused"
    assert ppo_on(COUNT, 4, horizon=4, start=False, kernels="torch").kernels != "fused"
    with pytest.raises(ConfigError, match="there is no GPU"):
        PPO(DeviceWorld(COUNT, 4, seed=1), PPO.Config(horizon=4, kernels="fused"), mlp.Config(), seed=1, steps=100)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("hidden", [(16,), (64, 64), (128, 100), (256, 256, 256)])
def test_candidate_tile_configs_cover_the_problem(hidden, precision):
    """Programs do not exceed tiles, tiles divide every product, buffers are bounded, and wide networks are not
    resident.
    """
    spec = describe(policy_of(broad(118, 3) if len(hidden) > 1 else find("cartpole"), hidden=hidden), precision)
    for minibatch in (1, 64, 8192, 131_072, 2**20):
        groups = list(candidates(spec, Workload(minibatch, 132)))
        assert all(groups) and all(len(set(group)) == len(group) for group in groups)
        for shape in itertools.chain(*groups):
            assert from_text(str(shape)) == shape
            if isinstance(shape, PerLayer):
                assert shape.block_m % shape.block_k == 0 and shape.microbatch % 32 == 0 and shape.block_n <= 128
                assert (
                    shape.microbatch * spec.towers * sum(spec.widths) * 12 <= 2**31
                    and shape.microbatch < minibatch + 128
                )
                assert minibatch <= shape.chunks * shape.microbatch, "no chunk fits into a microbatch"
            else:
                assert 1 <= shape.chunks <= math.ceil(minibatch / shape.block_m) and max(hidden) <= 128
                assert hidden != (128, 100) or precision != "tf32", "more shared memory than a GPU has"
        assert isinstance(groups[-1][0], PerLayer)


@pytest.mark.parametrize("name", ["breakout", "g2048", "go", "pacman", "platformer", "snake"])
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_every_game_has_a_tile_config(name, precision):
    """Every game's policy has a tile config; with a wide first layer a per-layer one, whose blocks divide its sums."""
    policy = policy_of(find(name), hidden=(256, 256), shared=True)
    assert unsupported_reason(policy, 8193 * 64) is None
    spec = describe(policy, precision)
    assert (
        spec.columns < spec.columns_pad <= spec.columns + 64 + 64 * (spec.columns < 128)
        and len(policy.net.first_weight[0]) == spec.columns
    )
    for shape in itertools.chain(*candidates(spec, Workload(65536, 132))):
        assert isinstance(shape, PerLayer) and spec.columns_pad % shape.block_k == 0


def choice_of(env, precision, net, **algo):
    """Selection of a tile config for PPO's kernels, with 2,048 samples in a minibatch."""
    from operant.kernels.dense.select import Selection

    ppo = PPO(
        DeviceWorld(env, 64, seed=1),
        PPO.Config(horizon=32, minibatches=1, target_kl=0.1, **algo, kernels="torch"),
        mlp.Config(**net),
        seed=1,
        steps=100,
    )
    choice = Selection(describe(ppo.policy, precision), fused.task(ppo.backend))
    choice._multiprocessors = 132
    return choice


@pytest.fixture
def forgetful(monkeypatch, tmp_path):
    """Empty cache folder."""
    monkeypatch.delenv("OPERANT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "operant" / "tile_configs"


def test_fastest_tile_config_is_chosen_and_cached(forgetful, caplog):
    caplog.set_level("INFO")
    choice = choice_of(broad(118, 3), "bf16", {"hidden": (128, 128)})
    rollout = [buffer for buffer in choice.task.buffers.rollout if buffer is not None]
    before = [
        tensor.clone()
        for tensor in (
            *choice.task.buffers[1:],
            *rollout,
            *choice.task.optimizer.tensors().values(),
            choice.task.policy.flat.gradient,
        )
    ]
    asked = []

    def measure(learner):
        """Simulate a GPU on which 128 rows are the fastest, and overwrite every buffer that a measurement may write."""
        asked.append(learner.config)
        buffers = learner.buffers
        for scratch in (
            buffers.raw,
            buffers.samples,
            buffers.final_value,
            buffers.rollout.action,
            buffers.skip,
            buffers.stats,
            learner._gradient,
        ):
            scratch.fill_(7)
        learner.adam["step"] += 1
        assert learner.layout.minibatches == 1 and len(set(buffers.order.flatten().tolist())) == 64, (
            "the order is no shuffled one"
        )
        return {32: 0.9, 64: 1.0, 128: 0.7}[learner.config.block_m] + 0.01 * len(asked)

    chosen = choice.learner(None, measure)
    assert len(asked) == len(set(asked)) == 4 and chosen.config == asked[1] and chosen.config.block_m == 128
    assert chosen.buffers is choice.task.buffers, "it would learn from the copies that it was measured with"
    after = (
        *choice.task.buffers[1:],
        *rollout,
        *choice.task.optimizer.tensors().values(),
        choice.task.policy.flat.gradient,
    )
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), "a measurement has left traces"
    assert f"{chosen.config} (the fastest of 4" in caplog.text

    asked.clear()
    assert choice.learner(None, measure).config == chosen.config and not asked and "earlier start" in caplog.text
    assert choice_of(broad(118, 3), "tf32", {"hidden": (128, 64)}).learner(None, measure).config and asked, (
        "another precision is another question"
    )
    asked.clear()
    for file in forgetful.iterdir():
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert choice.learner(None, measure).config == chosen.config and asked, "a damaged file was believed"


@pytest.mark.usefixtures("forgetful")
def test_tile_config_barely_faster_or_not_launchable_is_rejected():
    from triton.runtime.errors import OutOfResources

    def measure(learner):
        if learner.config.block_m == 64:
            raise OutOfResources(1, 0, "registers")
        return {128: 1.0, 32: 0.98}[learner.config.block_m]

    assert choice_of(broad(118, 3), "bf16", {"hidden": (128, 128)}).learner(None, measure).config.block_m == 128


def test_run_keeps_its_tile_config(caplog):
    choice, other = choice_of(find("cartpole"), "tf32", {}), choice_of(find("cartpole"), "tf32", {"hidden": (200,)})
    given = from_text("resident block_m=32 warps=2 chunks=8 act_block_m=16 act_warps=1")

    def measure(learner):
        raise AssertionError("nothing is to be measured")

    assert choice.learner(given, measure).config == given and not caplog.records
    assert (
        str(choice.learner(given, measure).config)
        == "resident block_m=32 warps=2 chunks=8 act_block_m=16 act_warps=1 max_registers=0"
    )
    assert isinstance(other.learner(given, None).config, PerLayer) and "does not suit" in caplog.text


def test_given_chunks_are_used():
    """All candidates have the given chunks; a saved tile config with other chunks is rejected."""
    choice = choice_of(find("cartpole"), "tf32", {})
    choice.task = choice.task.replace(chunks=16)
    assert all(config.chunks == 16 for group in candidates(choice.spec, Workload(2048, 132, 2, 16)) for config in group)
    assert choice.learner(None, None).config.chunks == 16
    given = from_text("resident block_m=32 warps=2 chunks=8 act_block_m=16 act_warps=1")
    assert choice.learner(given, None).config.chunks == 16


@pytest.mark.parametrize(
    ("samples", "shared", "chunks"),
    [(8192, False, 128), (131_072, False, 128), (2**20, False, 256), (131_072, True, 256), (512, True, 8)],
)
def test_default_chunks_follow_the_rule(samples, shared, chunks):
    """A minibatch has the measured best number of chunks, each of at least one tile."""
    config = next(candidates(spec_of(find("cartpole"), "bf16", shared=shared), Workload(samples, 132, shards=8)))[0]
    assert config.chunks == chunks


def test_invalid_kernel_config_is_a_configuration_error(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ConfigError, match=r"algo\.kernel_config: a tile config begins with"):
        PPO(
            DeviceWorld(COUNT, 4, seed=1),
            PPO.Config(horizon=4, kernels="fused", kernel_config="square"),
            mlp.Config(),
            seed=1,
            steps=100,
        )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "round rows=3",
        "resident",
        "resident block_m=64 warps=four chunks=1 act_block_m=64 act_warps=4",
        "per-layer block_m=1",
    ],
)
def test_invalid_tile_config_text_is_reported(line):
    with pytest.raises(ValueError, match=r"a tile config |chunks should be"):
        from_text(line)


def test_parameter_offsets():
    for env, net in ((find("cartpole"), {}), (PICK, {"shared": True, "hidden": (7,)}), (PUSH, {"hidden": (16, 9, 33)})):
        policy = policy_of(env, **net)
        spec, values = describe(policy, "fp32"), policy.flat.values.data
        values.copy_(torch.arange(len(values)))
        assert (
            policy.net.first_weight.flatten()[0] == spec.first_weight
            and policy.net.first_bias.flatten()[0] == spec.first_bias
        )
        assert [weight.flatten()[0].item() for weight in policy.net.weights] == list(spec.weights)
        assert [bias.flatten()[0].item() for bias in policy.net.biases] == list(spec.biases)
        assert (
            policy.net.head_weight.flatten()[0] == spec.head_weight
            and policy.net.head_bias.flatten()[0] == spec.head_bias
        )
        assert (
            policy.net.value_weight.flatten()[0] == spec.value_weight
            and policy.net.value_bias.flatten()[0] == spec.value_bias
        )
        assert spec.log_std == (
            policy.distribution.log_std.flatten()[0] if isinstance(policy.distribution, Gaussian) else -1
        )
        assert spec.starts[-1] == sum(spec.sizes)


@pytest.mark.parametrize(
    ("width", "tile", "deep"),
    [(1, 16, 16), (16, 16, 16), (17, 32, 32), (64, 64, 64), (65, 128, 128), (301, 512, 320), (385, 512, 448)],
)
def test_padding(width, tile, deep):
    assert padded(width) == tile and deep_padded(width) == deep


# MACHINE CODE


def launches(env: Env, precision: str, net: dict, shape: str | None = None, **algo) -> list[tuple]:
    """(kernel, arguments, options) of each launch of an iteration, without a GPU; `shape`: a tile config."""
    from operant.kernels.dense.select import with_config

    choice = choice_of(env, precision, net, **algo)
    learner = choice.learner(None, None)
    learner = with_config(learner, from_text(shape)) if shape else learner
    found: list[tuple] = []
    learner.launch = lambda kernel, grid, *arguments, **options: found.append((kernel, arguments, options))
    learner.prepare()
    learner.act(0)
    learner.bootstrap(True)
    learner.update(1)
    assert {"begin", "adam_step", "finish"} <= {kernel.__name__ for kernel, *_ in found}
    return found


def spec_of(env: Env, precision: str, **net) -> Spec:
    return describe(policy_of(env, **net), precision)


def compile_all(architecture: int, *arguments, most_shared: int = 227 << 10, **more) -> None:
    """Compile every kernel of an iteration, and check its shared memory against `most_shared`."""
    seen = set()
    for kernel, values, options in launches(*arguments, **more):
        kinds = tuple(
            str(value) if isinstance(value, tuple) else value.dtype if isinstance(value, torch.Tensor) else value
            for value in values
        )
        if (key := (kernel.__name__, kinds, repr(options))) not in seen:
            seen.add(key)
            assert compile_for(architecture, kernel, values, options) <= most_shared


FEW = "per-layer block_m=32 block_n=32 block_k=16 warps=4 stages=2 chunks=4 microbatch=1024"
TILES = "per-layer block_m=64 block_n=32 block_k=32 warps=4 stages=3 chunks=4 microbatch=1024"
BROADER = "per-layer block_m=128 block_n=128 block_k=64 warps=8 stages=3 chunks=4 microbatch=1024"
BROAD_TF32 = "per-layer block_m=128 block_n=128 block_k=32 warps=8 stages=3 chunks=4 microbatch=1024"


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "env", "precision", "net", "shape"),
    [
        (75, PUSH, "fp32", {"hidden": (16,), "activation": "gelu"}, None),
        (86, PICK, "tf32", {"hidden": (16, 16)}, None),
        (90, find("cartpole"), "bf16", {}, None),
        (100, PUSH, "bf16", {"hidden": (32, 16), "squash": True, "shared": True}, None),
        (75, GATE, "fp32", {"hidden": (32,), "shared": True, "activation": "silu"}, FEW),
        pytest.param(90, find("cartpole"), "bf16", {"hidden": (40, 64)}, TILES, marks=pytest.mark.soak),
        (86, GATE, "tf32", {"hidden": (16,), "shared": True}, None),
        (90, find("cartpole"), "bf16", {"hidden": (64, 40), "layer_norm": True}, TILES),
        (90, find("cartpole"), "tf32", {"hidden": (128, 128), "layer_norm": True}, BROAD_TF32),
        (86, PUSH, "tf32", {"hidden": (256, 33, 16), "layer_norm": True, "shared": True, "activation": "gelu"}, FEW),
        (90, wide(300, 4, seen="uint8"), "bf16", {"hidden": (64,), "activation": "relu", "shared": True}, BROADER),
        (86, wide(16, 4, seen="uint8", categories=18, judged=True), "tf32", {"hidden": (32,), "shared": True}, TILES),
        pytest.param(
            100,
            wide(9, 82, seen="uint8", judged=True),
            "bf16",
            {"hidden": (32,), "shared": True},
            BROADER,
            marks=pytest.mark.soak,
        ),
    ],
)
def test_kernels_compile(architecture, env, precision, net, shape):
    compile_all(architecture, env, precision, net, shape, most_shared=LEAST_SHARED[architecture])


@pytest.mark.slow
@pytest.mark.parametrize("half", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["fp32", "bf16"])
def test_muons_step_is_that_of_torch(half):
    """Small and tiled matrices: wide, square and tall, with whole and partial tiles. In bf16 the error is that of its
    products.
    """
    shapes = [[16, 9], [5, 24], [150, 40], [8, 8], [66, 192], [130, 130]]
    stepped, skipped = interpreted([("muon", {"shapes": shapes, "half": half, "skip": skip}) for skip in (0.0, 1.0)])
    assert stepped["step"] < (0.05 if half else 1e-3) and stepped["momentum"] < 1e-6
    assert skipped["step"] == 0 and skipped["momentum"] < 1e-6
    assert stepped["gradient"] == skipped["gradient"] == 0


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "half"), [(75, False), (90, True)])
def test_muons_step_compiles(architecture, half):
    from operant.kernels.muon import Matrices

    taken = []

    def launch(kernel, grid, *arguments, **options):
        taken.append(compile_for(architecture, kernel, arguments, options))

    size, at = MAX_SIDE if half else 64, torch.zeros(64)
    Matrices([(0, (2, size, size)), (2 * size**2, (2, 256, 200))], CPU, half=half).step(
        launch, at, at, at, at, at, at, 0.5
    )
    assert len(taken) == 19 and max(taken) <= LEAST_SHARED[architecture]
    if half:  # products load the next two tiles meanwhile, which takes all numbers' places to be known as multiples
        assert taken[3:6] == [3 * 2 * 64 * 64 * 2] * 3


@needs_compiler
@pytest.mark.soak
@pytest.mark.parametrize("architecture", [75, 86, 90, 100])
def test_every_variant_compiles(architecture):
    """Turing has neither tf32 nor bf16 products: there both run by torch."""
    precisions = ("fp32",) if architecture < 80 else ("fp32", "tf32", "bf16")
    networks = [{"hidden": (64, 64), "activation": activation} for activation in ("tanh", "relu", "gelu", "silu")]
    networks += [{"hidden": (16,)}, {"hidden": (32, 64, 16), "shared": True}]
    for precision, env, net in itertools.product(precisions, (find("cartpole"), PICK, PUSH), networks):
        if precision == "fp32":
            net = {**net, "hidden": tuple(min(width, 32) for width in net["hidden"])}
        compile_all(
            architecture,
            env,
            precision,
            net,
            normalize_observations=net["hidden"] == (16,),
            value_clip=0.1 if len(net["hidden"]) == 3 else None,
        )
    for precision in precisions[1:]:
        compile_all(architecture, broad(118, 3), precision, {"hidden": (128, 128)})


@needs_compiler
@pytest.mark.soak
@pytest.mark.parametrize("architecture", [75, 86, 90, 100])
def test_every_shape_of_a_wide_network_compiles(architecture):
    """In all precisions of the GPU. The last tile config fits its shared memory; on larger GPUs every one does.

    For Blackwell, Triton 3.6 compiles a shared trunk's head in the last tile config alone.
    """
    precisions = ("fp32",) if architecture < 80 else ("fp32", "tf32", "bf16")
    for precision, net in itertools.product(
        precisions, ({"hidden": (256, 256)}, {"hidden": (200, 129, 16), "shared": True, "activation": "gelu"})
    ):
        env = broad(118, 3) if "shared" not in net else PUSH
        groups = list(candidates(spec_of(env, precision, **net), Workload(131_072, 132)))
        last_alone = architecture == 100 and "shared" in net and precision != "fp32"
        for shape in groups[-1] if last_alone else itertools.chain(*groups):
            room = LEAST_SHARED[architecture] if shape == groups[-1][-1] or architecture >= 90 else 227 << 10
            compile_all(architecture, env, precision, net, str(shape), most_shared=room)


@needs_compiler
@pytest.mark.soak
@pytest.mark.parametrize("architecture", [75, 86, 90, 100])
@pytest.mark.parametrize(
    ("name", "hidden", "shared"),
    [("snake", (128, 64), True), ("pacman", (128, 128), False), ("g2048", (512, 512), True), ("go", (256, 256), True)],
)
def test_every_shape_of_a_games_network_compiles(name, hidden, shared, architecture):
    """For Blackwell, a shared trunk's head with few outputs compiles in the last tile config alone; with many outputs
    its tiles have few rows in every config.
    """
    env, net = find(name), {"hidden": hidden, "shared": shared, "activation": "relu"}
    for precision in ("fp32",) if architecture < 80 else ("tf32", "bf16"):
        groups = list(candidates(spec_of(env, precision, **net), Workload(131_072, 132)))
        last_alone = architecture == 100 and shared and name != "go"
        for shape in groups[-1] if last_alone else itertools.chain(*groups):
            room = LEAST_SHARED[architecture] if shape == groups[-1][-1] or architecture >= 90 else 227 << 10
            compile_all(architecture, env, precision, net, str(shape), most_shared=room)
