"""Fused kernels of value-based algorithms without a GPU: whole iterations in Triton's interpreter against torch, and
compilation to machine code.
"""

from __future__ import annotations

import itertools
import os
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from fused_probe import interpreted, wide
from machine_code import LEAST_SHARED, compile_for

from operant.algos.dqn import DQN
from operant.algos.pqn import PQN, fused
from operant.envs import find
from operant.errors import ConfigError
from operant.kernels.spec import describe
from operant.nn import mlp
from operant.worlds.device_world import DeviceWorld

pytest.importorskip("triton")
needs_compiler = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interprets")

NORMED = {"hidden": [16, 24], "layer_norm": True, "activation": "relu"}
PLAIN = {"hidden": [16]}
JUDGED = {"observation": 6, "actions": 3, "judged": True}
BYTES = {"observation": 20, "actions": 3, "seen": "uint8", "judged": True}
SHORT = {"horizon": 6, "epochs": 2, "minibatches": 2}
PER_LAYER = "per-layer block_m=16 block_n=32 block_k=16 warps=4 stages=1 chunks=2 microbatch=32"

BOARD = {"kind": "cnn", "cnn": "minatar", "hidden": [32], "layer_norm": True}

PQN_CASES = [
    {"env": "cartpole", "net": NORMED, "config": {**SHORT, "normalize_observations": True}},
    {"env": JUDGED, "net": NORMED, "config": SHORT},
    {"env": JUDGED, "net": PLAIN, "config": {**SHORT, "kernel_config": PER_LAYER, "anneal": False, "horizon": 10}},
    {
        "env": "count",
        "net": NORMED,
        "config": {**SHORT, "kernel_config": PER_LAYER, "reward_scale": 0.5},
        "iterations": 1,
    },
    {"env": "cells", "net": BOARD, "config": {"horizon": 4, "epochs": 1, "minibatches": 2}, "lanes": 32},
    {
        "env": "board",
        "net": {**BOARD, "channels": [32]},
        "config": {"horizon": 4, "epochs": 2, "minibatches": 1},
        "lanes": 64,
        "iterations": 1,
    },
    {"env": "count", "net": PLAIN, "config": {**SHORT, "max_gradient_norm": 0.1}},
    {"env": BYTES, "net": PLAIN, "config": SHORT},
]


def same(case, found):
    assert found["backend"] == "fused" and found["finite"] and found["actions"] == 0, (case, found)
    assert max(found["stats"], *found["state"].values()) <= 2e-5, (case, found)
    assert found["moved"] > 1e-3, (case, found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "cases",
    [
        [PQN_CASES[1], *PQN_CASES[3:5]],
        pytest.param([*PQN_CASES[2:4], PQN_CASES[5]], marks=pytest.mark.slow),
        pytest.param([*PQN_CASES[:1], *PQN_CASES[6:]], marks=pytest.mark.soak),
    ],
    ids=["few", "more", "others"],
)
def test_fused_pqn_iterations_equal_torch(cases):
    """Epsilon-greedy actions, max Q, returns, Adam and statistics agree, with legal actions and truncated episodes."""
    found = interpreted([("q", {"algo": "pqn", **case}) for case in cases])
    for case, differences in zip(cases, found, strict=True):
        same(case, differences)
    assert any(differences["truncated"] for differences in found), (
        "no episode was truncated: the values of final observations are not put to the test"
    )


@needs_compiler
def test_fused_kernels_need_a_gpu():
    with pytest.raises(ConfigError, match="there is no GPU"):
        PQN(
            DeviceWorld(find("cartpole"), 4, seed=1),
            PQN.Config(horizon=4, minibatches=2, kernels="fused"),
            mlp.Config(),
            seed=1,
            steps=100,
        )


def pqn_launches(env, precision, net, shape):
    """(kernel, arguments, options) of each launch of an iteration of PQN, without a GPU."""
    from operant.kernels.dense.select import Selection, with_config
    from operant.kernels.tile_config import from_text

    config = PQN.Config(horizon=32, minibatches=1, kernels="torch")
    pqn = PQN(DeviceWorld(env, 64, seed=1), config, mlp.Config(**net), seed=1, steps=100)
    choice = Selection(describe(pqn.policy, precision), fused.task(pqn.backend))
    learner = with_config(choice.learner(None, None), from_text(shape))
    found: list = []
    learner.launch = lambda kernel, grid, *arguments, **options: found.append((kernel, arguments, options))
    learner.prepare()
    learner.act(0)
    learner.bootstrap(True)
    learner.update(1)
    return found


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "precision", "net", "shape"),
    [
        (
            find("cartpole"),
            "bf16",
            {"layer_norm": True, "activation": "relu"},
            "resident block_m=64 warps=8 chunks=4 act_block_m=64 act_warps=4",
        ),
        (wide(**JUDGED), "tf32", {"hidden": (32,)}, "resident block_m=32 warps=4 chunks=4 act_block_m=32 act_warps=4"),
        pytest.param(
            wide(**JUDGED),
            "bf16",
            {"hidden": (128, 64), "layer_norm": True},
            PER_LAYER.replace("stages=1", "stages=3"),
            marks=pytest.mark.soak,
        ),
    ],
)
def test_pqns_kernels_compile(env, precision, net, shape):
    seen = set()
    for kernel, arguments, options in pqn_launches(env, precision, net, shape):
        if (key := (kernel.__name__, repr(options))) not in seen:
            seen.add(key)
            assert compile_for(90, kernel, arguments, options) <= LEAST_SHARED[90]
    assert {"begin", "adam_step", "finish", "reduce_partials"} <= {name for name, _ in seen}


def made_for_board(game, precision, lanes, **config):
    """Learner of PQN on a board game, without a GPU."""
    from operant.kernels.dense import convolution

    net = mlp.Config(**{**BOARD, "hidden": [128]})
    pqn = PQN(DeviceWorld(find(game), lanes, seed=1), PQN.Config(**config, kernels="torch"), net, seed=1, steps=100)
    learner, reason = convolution.build(fused.task(pqn.backend), precision)
    assert learner is not None, reason
    return learner


def board_launches(game, precision, lanes, **config):
    """(kernel, arguments, options) of acting, final values and each minibatch's gradient, without a GPU."""
    learner, found = made_for_board(game, precision, lanes, **config), []
    learner.launch = lambda kernel, grid, *arguments, **options: found.append((kernel, arguments, options))
    learner.act(0)
    learner.bootstrap(True)
    for k in range(config["minibatches"]):
        learner.backward(k)
        learner.reduce()
    return found


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "precision"),
    [
        *itertools.product(["minatar_asterix", "minatar_seaquest"], ["tf32", "bf16"]),
        pytest.param("minatar_asterix", "fp32", marks=pytest.mark.soak),
    ],
)
def test_kernels_for_boards_compile(game, precision):
    found = board_launches(game, precision, 128, horizon=1, minibatches=1)
    for kernel, arguments, options in found:
        assert compile_for(90, kernel, arguments, options) <= LEAST_SHARED[90]
    assert len(found) == 7


@needs_compiler
@pytest.mark.parametrize(("lanes", "horizon", "blocks"), [(32, 8, 4), (64, 32, 32)])
def test_a_boards_minibatch_begins_where_the_last_one_ends(lanes, horizon, blocks):
    """Also if a minibatch takes its samples from several shards of the lanes."""
    launches = [
        (arguments, options)
        for kernel, arguments, options in board_launches(
            "minatar_breakout", "tf32", lanes, horizon=horizon, minibatches=2
        )
    ]
    assert [arguments[2] for arguments, options in launches if options.get("ACT") is False] == [0, blocks]


@needs_compiler
def test_board_kernels_are_compiled_before_a_run(monkeypatch):
    """`fits` compiles every kernel of a run, so that one with too much shared memory cannot end it later."""
    learner = made_for_board("minatar_breakout", "tf32", 64, horizon=4, minibatches=2)
    monkeypatch.setattr("torch.cuda.device", lambda device: nullcontext())
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    gpu = SimpleNamespace(get_device_properties=lambda device: {"max_shared_mem": 1})
    monkeypatch.setattr("operant.kernels.warmup.driver", SimpleNamespace(active=SimpleNamespace(utils=gpu)))
    tried, launched = set(), set()
    learner.launch = lambda kernel, grid, *arguments, **options: tried.add((kernel.__name__, repr(options)))
    assert learner.fits()
    learner.launch = lambda kernel, grid, *arguments, **options: launched.add((kernel.__name__, repr(options)))
    learner.act(0)
    learner.bootstrap(True)
    learner.bootstrap(False)
    learner.update(2)
    assert tried == launched


@pytest.mark.parametrize(
    ("net", "config", "lanes", "reason"),
    [
        ({"cnn": "board"}, {}, 32, 'of convolutional networks only net.cnn = "minatar"'),
        ({"hidden": [100]}, {}, 32, r"net.hidden \[100\]"),
        ({}, {"minibatches": 8}, 32, "a minibatch of 32 samples"),
        ({}, {}, 48, "a minibatch of 192 samples"),
        ({}, {}, 1024, "a minibatch of 4096 samples"),
        ({}, {"kernel_config": PER_LAYER}, 32, "have no tile config"),
    ],
)
def test_unsupported_boards_are_reported_with_a_reason(monkeypatch, net, config, lanes, reason):
    monkeypatch.setattr("operant.kernels.dense.machine_reason", lambda device, precision: None)
    with pytest.raises(ConfigError, match=reason):
        made = PQN.Config(**{"horizon": 8, "minibatches": 2, "kernels": "fused", **config})
        PQN(
            DeviceWorld(find("minatar_breakout"), lanes, seed=1),
            made,
            mlp.Config(**{**BOARD, **net}),
            seed=1,
            steps=100,
        )


# DQN

SMALL = {"horizon": 6, "batch_size": 24, "learning_starts": 40, "replay_capacity": 200, "target_every": 3}
DQN_CASES = [
    {"env": "cartpole", "net": {"hidden": [16, 24], "activation": "relu"}, "config": SMALL},
    {
        "env": "count",
        "net": NORMED,
        "config": {
            **SMALL,
            "n_step": 3,
            "double": True,
            "tau": 0.3,
            "target_every": 1,
            "updates_per_step": 2.0,
            "max_gradient_norm": 0.1,
            "replay_place": "host",
        },
    },
    {
        "env": JUDGED,
        "net": PLAIN,
        "config": {
            **SMALL,
            "duelling": True,
            "updates_per_step": 0.5,
            "max_gradient_norm": 0.0,
        },
    },
    {
        "env": {**BYTES, "observation": 70},
        "net": PLAIN,
        "config": {
            **SMALL,
            "double": True,
            "normalize_observations": True,
            "replay_capacity": 64,
            "replay_place": "host",
        },
    },
]


@pytest.mark.slow
@pytest.mark.parametrize("cases", [DQN_CASES[1:3], pytest.param(DQN_CASES, marks=pytest.mark.soak)], ids=["few", "all"])
def test_fused_dqn_iterations_equal_torch(cases):
    """Samples, n-step returns, targets, Adam, the target network and every byte of the replay agree, with legal actions
    and truncated episodes.
    """
    found = interpreted([("q", {"algo": "dqn", "iterations": 3, **case}) for case in cases])
    for case, differences in zip(cases, found, strict=True):
        same(case, differences)
    assert any(differences["truncated"] for differences in found), "no episode was truncated"


def dqn_on(env, net, **config):
    return DQN(DeviceWorld(env, 64, seed=1), DQN.Config(horizon=4, **config), mlp.Config(**net), seed=1, steps=1000)


@pytest.mark.parametrize(
    ("net", "config", "problem"),
    [
        ({"hidden": (256,)}, {}, "up to 128, and net.hidden has 256"),
        ({}, {"critic": "c51"}, 'algo.critic = "c51" is not supported'),
        ({}, {"replay_sampling": "prioritised"}, 'algo.replay_sampling = "prioritised" is not supported'),
        ({}, {"n_step": 17}, "returns of up to 16 steps"),
        ({}, {"batch_size": 16384}, "batches of up to 8,192"),
    ],
)
def test_unsupported_dqn_is_reported_with_a_reason(net, config, problem):
    with pytest.raises(ConfigError, match=problem):
        dqn_on(find("cartpole"), net, kernels="fused", **config)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "precision", "net", "config"),
    [
        (find("cartpole"), "bf16", {"hidden": (120, 84)}, {"n_step": 3, "double": True}),
        (find("cartpole"), "tf32", {"hidden": (32,), "layer_norm": True}, {"batch_size": 4096, "duelling": True}),
        (
            wide(**{**BYTES, "observation": 70}),
            "bf16",
            {"hidden": (64, 32)},
            {"updates_per_step": 0.5, "replay_place": "host"},
        ),
    ],
)
def test_dqn_kernels_compile(env, precision, net, config):
    from operant.algos.dqn.fused.engine import FusedDQN

    dqn = dqn_on(env, net, **config)
    learner, found = FusedDQN(describe(dqn.policy, precision), dqn), []
    learner.launch = lambda kernel, grid, *arguments, **options: found.append((kernel, arguments, options))
    learner.prepare()
    learner.act(3)
    learner.update(4, dqn.config.due(3)[0])
    learner._reduce_and_step(0, 3, 0, 1)  # as on a GPU
    names = {"choose", "store_tick", "act_and_learn", "reduce_and_step"} | (
        {"move_tick"} if config.get("replay_place") == "host" else set()
    )
    assert names == {kernel.__name__ for kernel, *_ in found}
    for kernel, arguments, options in found:
        assert compile_for(90, kernel, arguments, options) <= LEAST_SHARED[90]
