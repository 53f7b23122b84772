"""`operant bench`: medians on a fake clock, what is measured on which device, and the command's tables and JSON. No
test depends on speed.
"""

from __future__ import annotations

import json
import os

import pytest
import torch
from toys import ORDINARY, PICK, PUSH
from typer.testing import CliRunner

from operant import envs
from operant.cli import speed
from operant.cli.speed import app
from operant.errors import MachineError, UsageError
from operant.nn.flops import step_bytes
from operant.tools import bench
from operant.tools.bench import Bench

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_thread")


# TIME


def test_the_median_region_counts_after_a_warm_up(monkeypatch):
    """Warm-up calls take 2 s and then 1 s each; regions of two calls take 6, 2, 4, 8 and 2 s: the median is 4 s, 2 s
    per call.
    """
    spans = iter([2.0, 1.0, 1.0, 1.0, *(3.0, 3.0), *(1.0, 1.0), *(2.0, 2.0), *(4.0, 4.0), *(1.0, 1.0)])
    now = 0.0

    def work():
        nonlocal now
        now += next(spans)

    monkeypatch.setattr(bench.time, "perf_counter", lambda: now)
    assert bench.seconds(work, CPU, repeats=5, least_s=2.0) == 2.0
    assert next(spans, None) is None


# STEPPING


def test_every_environment_is_stepped_and_the_first_at_every_size():
    plan = [(env.name, lanes) for env, lanes in bench.stepping_plan((), (1024, 65_536, 1 << 24))]
    assert plan[:3] == [("cartpole", 1024), ("cartpole", 65_536), ("cartpole", 1 << 24)]
    assert sorted(plan[3:]) == sorted((name, 65_536) for name in ORDINARY if name != "cartpole")
    assert [(env.name, lanes) for env, lanes in bench.stepping_plan(["pendulum"], (1 << 22,))] == [
        ("pendulum", 1 << 22)
    ]
    with pytest.raises(UsageError, match="nowhere"):
        bench.stepping_plan(["nowhere"], (8,))


@pytest.mark.parametrize("env", [envs.find("cartpole"), PUSH, PICK], ids=["cartpole", "push", "pick"])
def test_actions_are_those_that_the_environment_takes(env):
    shape = torch.zeros(env.action_size, 1000, dtype=torch.float32 if env is PUSH else torch.int32)
    one, other = bench.random_actions(env, shape, 2)
    assert one.dtype == shape.dtype and one.shape == shape.shape and not torch.equal(one, other)
    lows, highs = ((-1.0, 0.0), (1.0, 1.0)) if env is PUSH else ((0, 0), (1,)) if env is not PICK else ((0, 0), (2, 1))
    for row, (low, high) in enumerate(zip(lows, highs, strict=False)):
        assert low <= one[row].min() and one[row].max() <= high
        assert one[row].max() - one[row].min() > 0.9 * (high - low)


def test_stepping_counts_what_a_step_moves():
    found = bench.stepping(envs.find("pendulum"), 64, CPU, repeats=1, least_s=0.001)
    assert (found.environment, found.lanes) == ("pendulum", 64) and found.sps > 0.0
    assert found.bytes_per_s == found.sps * step_bytes(envs.find("pendulum"))


# TRAINING


def test_training_reports_its_size_and_phases():
    found = bench.training(64, 8, "tf32", CPU, repeats=1, least_s=0.001)
    assert found[:3] == (64, 8, "fp32"), "a CPU computes in fp32 whatever is asked"
    assert found.sps == pytest.approx(64 * 8 / found.iteration_s)
    assert min(found.collect_s, found.update_s) > 0.0


@pytest.mark.parametrize(("target", "reached"), [(20, True), (501, False)])
def test_solving_ends_at_the_target_or_at_the_last_step(target, reached):
    small = ["env.lanes=64", "algo.horizon=8", "run.steps=1536", f"run.target={target}"]
    found = bench.solve(1, CPU, small)
    assert found.reached is reached and (found.mean_return >= target) is reached
    assert found.steps % 512 == 0 and (0 < found.steps <= 1536 if reached else found.steps == 1536)
    assert 0.0 <= found.training_s < found.whole_s


# ALL OF IT


def small_bench(**changes) -> Bench:
    asked = {
        "device": "cpu",
        "threads": 1,
        "environments": ["cartpole"],
        "lanes": [32],
        "sizes": [(32, 4)],
        "repeats": 1,
        "least_s": 0.001,
    }
    return bench.bench(**{**asked, **changes})


def test_parts_that_are_not_asked_for_stay_empty():
    lines: list[str] = []
    found = small_bench(sections=["stepping", "ppo"], report=lines.append)
    assert [(row.environment, row.lanes) for row in found.stepping] == [("cartpole", 32)] and [
        row.lanes for row in found.ppo
    ] == [32]
    assert found.solve == []
    assert lines == ["stepping cartpole, 32 lanes", "PPO, 32 lanes x 4, fp32"]
    document = json.loads(json.dumps(found.document()))
    assert (
        document["schema"] == 1
        and document["ppo"][0]["sps"] == found.ppo[0].sps
        and document["stepping"][0]["environment"] == "cartpole"
    )


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ({"sections": ["speed"]}, UsageError),
        ({"sections": ["jax"]}, UsageError),
        ({"sections": []}, UsageError),
        ({"sections": ["ppo"], "device": "gpu"}, UsageError),
        ({"sections": ["ppo"], "device": "cuda:99"}, MachineError),
    ],
)
def test_unknown_sections_environments_and_devices_are_refused(words, error):
    with pytest.raises(error):
        small_bench(**words)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_bench_on_a_gpu():
    found = small_bench(
        device="cuda", sections=["stepping", "ppo", "solve"], lanes=[8192], sizes=[(1024, 16)], seeds=[1], least_s=0.05
    )
    assert (
        found.stepping[0].sps > 1e8
        and {row.precision for row in found.ppo} == {"bf16", "tf32", "fp32"}
        and found.solve[0].reached
    )


# THE COMMAND


def run(*words):
    return CliRunner().invoke(app, ["bench", *map(str, words)])


def test_the_command_prints_tables_and_json(monkeypatch):
    whole = small_bench(sections=["stepping", "ppo"])._replace(
        solve=[bench.Solved(1, True, 0.5, 2.0, 1000, 480.0), bench.Solved(2, False, 0.5, 2.0, 1000, 80.0)],
    )
    asked = {}
    monkeypatch.setattr(bench, "bench", lambda **words: asked.update(words) or whole)
    done = run(
        "--only",
        "stepping, ppo",
        "--lanes",
        "32,64",
        "--sizes",
        "32x4,64x8",
        "--precision",
        "fp32",
        "--repeats",
        3,
        "--device",
        "cpu",
    )
    assert done.exit_code == 0, done.output
    assert (asked["sections"], asked["lanes"], asked["sizes"]) == (["stepping", "ppo"], [32, 64], [(32, 4), (64, 8)])
    assert (asked["precisions"], asked["repeats"], asked["device"]) == (["fp32"], 3, "cpu")
    for text in ("stepping", "PPO, CartPole", "solve CartPole", "80.0, not reached"):
        assert text in done.output
    assert json.loads(run("--json").stdout)["solve"][0]["mean_return"] == 480.0


@pytest.mark.parametrize(
    "words", [("--sizes", "2048"), ("--sizes", "axb"), ("--lanes", "0"), ("--lanes", "many"), ("--precision", "fp8")]
)
def test_words_that_mean_nothing_are_refused(words):
    assert isinstance(run(*words).exception, UsageError)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.00000123, "1.23 us"), (0.0456, "45.6 ms"), (12.0, "12 s"), (0.9999, "1 s"), (0.00099, "990 us")],
)
def test_times_in_few_figures(number, text):
    assert speed.duration(number) == text


def test_this_process_is_left_as_it_was():
    before = dict(os.environ)
    small_bench(sections=["ppo"])
    assert dict(os.environ) == before
