"""Benches: JAX runs in a separate process; results of single seeds become rows of benches/zoo.toml, which the
documentation shows; recipes whose environment cannot be built are skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import tomli

from operant.config import recipes
from operant.envs import outside
from operant.runs import History, Metric, Writer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benches"))
import recipes as recipes_bench
import zoo as zoo_bench
from compare_jax import PROGRAM, jax_training

BENCHES = Path(__file__).resolve().parent.parent / "benches"


@pytest.mark.parametrize(
    ("answer", "figures", "said"),
    [
        ("echo '{\"sps\": 100.0}'", {"sps": 100.0}, ""),
        ("echo oh >&2; echo no >&2; exit 3", {}, "no"),
        ("exit 1", {}, "it ended without a message"),
        ("echo nothing", {}, "JSONDecodeError at 8 x 4"),
    ],
)
def test_jax_runs_in_a_separate_process(tmp_path, answer, figures, said):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{answer}\n')
    python.chmod(0o755)
    assert jax_training(8, 4, "cpu", python=str(python), repeats=3) == (figures, said)
    assert (tmp_path / "calls").read_text().endswith("jax_ppo.py --json --lanes 8 --horizon 4 --repeats 3\n")


def test_jax_program_imports_only_jax_and_the_standard_library():
    words = [
        line.split()[1].split(".")[0]
        for line in PROGRAM.read_text().splitlines()
        if line.startswith(("import ", "from "))
    ]
    assert set(words) - sys.stdlib_module_names == {"jax"}


@pytest.mark.slow
def test_the_bench_of_recipes_trains_and_plays_fresh_episodes(tmp_path):
    wanted = [
        "run.steps=2048",
        "env.lanes=64",
        "algo.horizon=16",
        "eval.every=1",
        "eval.episodes=8",
        "run.device=cpu",
        "run.threads=1",
    ]
    row = recipes_bench.row("ppo/cartpole", 3, wanted, 8, tmp_path)
    assert (
        (row["steps"], row["target"], row["holds"]) == (2048, 475.0, False)
        and row["fresh"] >= 8.0
        and len(row["last"]) == row["evaluations"] == 2
    )


def write_result(folder, seed, kind="cpu", overrides=(), **found):
    about = {"recipe": "ppo/pong", "seed": seed, "kind": kind, "overrides": list(overrides), "took_s": 9.0}
    about |= {"version": "0.1.0", "commit": "abc", "date": f"2026-11-2{seed}"}
    folder.mkdir(exist_ok=True)
    (folder / f"ppo-pong-{kind}-{seed}.json").write_text(json.dumps(about | found))


def finished(mean, wall_s, device="Chip, 2 cores"):
    seconds = {"training_s": wall_s / 2, "wall_s": wall_s, "cpu_s": 3.0, "load": 2.0, "machine_cores": 64}
    return {"mean": mean, "ci95": 0.1, "episodes": 16, "target": 20, "steps": 100, "device": device, **seconds}


def test_seeds_of_a_recipe_become_a_row_for_each_kind_of_device(tmp_path):
    out = tmp_path / "zoo.toml"
    out.write_text('["dqn/snake".cpu]\nwall_s = 1.0\n')
    for seed, (mean, wall_s) in enumerate([(19.0, 30.0), (21.0, 8.0), (20.0, 9.0)], start=1):
        write_result(tmp_path / "one", seed, **finished(mean, wall_s))
    write_result(tmp_path / "one", 4, unfinished_s=99.6)
    write_result(tmp_path / "one", 5, error="RuntimeError: killed")
    single = finished(20.5, 6.0, "A GPU")
    write_result(tmp_path / "two", 1, kind="gpu", overrides=["run.steps=5M"], **single, beside=2)
    zoo_bench.merge([tmp_path / "one", tmp_path / "two"], out, keeping=False)
    table = tomli.loads(out.read_text())
    cpu, gpu = table["ppo/pong"]["cpu"], table["ppo/pong"]["gpu"]
    assert table["dqn/snake"] == {"cpu": {"wall_s": 1.0}}
    assert (cpu["mean_return"], cpu["seeds"], cpu["solved"], cpu["steps"]) == (20.0, 3, 2, 100)
    assert cpu["ci95"] == pytest.approx(4.303 / 3**0.5, abs=1e-3), "Student's t with 2 degrees of freedom, std of 1"
    assert (cpu["training_s"], cpu["wall_s"]) == (4.5, 9.0), "medians: the first seed compiles"
    assert (cpu["unfinished"], cpu["unfinished_s"], cpu["device"]) == (1, 100, "Chip, 2 cores")
    assert cpu["command"] == "operant train --config ppo/pong --seeds 3" and cpu["date"] == "2026-11-24"
    assert gpu["command"] == "operant train --config ppo/pong run.steps=5M --seeds 1" and gpu["device"] == "A GPU"
    assert "ci95" not in gpu and gpu["beside"] == 2 and "beside" not in cpu


def test_a_measured_row_is_not_replaced_by_one_without_a_finished_seed(tmp_path):
    out = tmp_path / "zoo.toml"
    write_result(tmp_path / "one", 1, **finished(21.0, 8.0))
    zoo_bench.merge([tmp_path / "one"], out, keeping=False)
    before = out.read_text()
    write_result(tmp_path / "two", 1, unfinished_s=5.0)
    zoo_bench.merge([tmp_path / "two"], out, keeping=False)
    assert out.read_text() == before
    zoo_bench.merge([tmp_path / "one", tmp_path / "two"], out, keeping=False)
    assert out.read_text() == before, "of a seed in two folders the finished one counts"


def test_seeds_with_different_overrides_are_not_merged(tmp_path):
    write_result(tmp_path, 1, **finished(21.0, 8.0))
    write_result(tmp_path, 2, overrides=["run.steps=5M"], **finished(20.0, 8.0))
    with pytest.raises(SystemExit, match="seeds of ppo/pong were trained with different overrides"):
        zoo_bench.merge([tmp_path], tmp_path / "zoo.toml", keeping=False)


def docs_hooks():
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("docs_hooks", BENCHES.parent / "docs" / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    return hooks


def shown_row(recipe, entry):
    """Row of the documentation's table."""
    return docs_hooks().zoo_row(recipe, entry, ["cpu"])


def test_a_recipe_that_no_run_finished_is_in_the_table_without_a_machine(tmp_path):
    out = tmp_path / "zoo.toml"
    write_result(tmp_path, 1, **finished(21.0, 8.0))
    write_result(tmp_path, 2, recipe="ppo/snake", unfinished_s=99.6)
    zoo_bench.merge([tmp_path], out, keeping=False)
    shown = docs_hooks().zoo_table(tomli.loads(out.read_text()))
    assert "1 not finished in 100" in shown and "CPU: Chip, 2 cores." in shown


def test_a_row_has_only_figures_of_all_finished_seeds_and_the_table_a_dash_for_the_load(tmp_path):
    out = tmp_path / "zoo.toml"
    for seed, left_out in ((1, {"cpu_s", "load", "machine_cores"}), (2, {"load"})):
        result = {key: value for key, value in finished(21.0, 8.0).items() if key not in left_out}
        write_result(tmp_path, seed, **result)
    zoo_bench.merge([tmp_path], out, keeping=False)
    entry = tomli.loads(out.read_text())["ppo/pong"]
    assert (entry["cpu"]["training_s"], entry["cpu"]["wall_s"]) == (4.0, 8.0)
    assert not {"cpu_s", "load", "machine_cores"} & set(entry["cpu"])
    assert shown_row("ppo/pong", entry)[4] == "4 / 8, load -"
    measured = {**entry["cpu"], "load": 9.0, "machine_cores": 2}
    assert shown_row("ppo/pong", {"cpu": measured})[4] == "4 / 8, load 9 on 2 cores"
    overridden = {**measured, "command": "operant train --config ppo/pong a=1 b.c=[2,3] --seeds 3"}
    assert shown_row("ppo/pong", {"cpu": overridden})[5] == "`a=1`<br>`b.c=[2,3]`"
    shared = {**measured, "load": 2.0, "beside": 3}
    assert shown_row("ppo/pong", {"cpu": shared})[4] == "4 / 8, beside 3 others"
    del measured["training_s"], measured["wall_s"]
    assert shown_row("ppo/pong", {"cpu": measured})[4] == "-"


def without_box2d(monkeypatch):
    pytest.importorskip("gymnasium")
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "Box2D", None)


def with_an_old_ale(monkeypatch):
    pytest.importorskip("gymnasium")
    monkeypatch.setitem(sys.modules, "ale_py", ModuleType("ale_py"))


@pytest.mark.parametrize(
    ("recipe", "change", "sentence"),
    [
        ("ppo/ale", with_an_old_ale, "ale:pong needs ale-py 0.11 or later, which is not installed: pip install"),
        ("ppo/gymnasium_lunarlander", without_box2d, "gymnasium:LunarLander-v3 needs a package that is not installed"),
    ],
)
def test_all_skips_a_recipe_whose_environment_cannot_be_built_with_the_reason(
    recipe, change, sentence, monkeypatch, capsys
):
    outside.declare.cache_clear()
    monkeypatch.setattr(recipes, "shipped", lambda: [recipe, "ppo/cartpole"])
    change(monkeypatch)
    asked = argparse.Namespace(recipes=["all"], seeds=1, seed=None, device="cpu", set=[], short=False)
    assert list(zoo_bench.wanted(asked)) == ["ppo/cartpole"]
    assert f"{recipe} is skipped: {sentence}" in capsys.readouterr().err


@pytest.mark.slow
def test_a_seed_leaves_its_result_and_a_policy_of_its_own_process(tmp_path):
    command = [sys.executable, BENCHES / "zoo.py", "ppo/cartpole:run.steps=32k,eval.every=1", "--episodes", "8"]
    one, two, again = tmp_path / "one", tmp_path / "two", tmp_path / "again"
    asked = [*command, "--seed", "2", "--results", one, "--commit", "abc", "--runs", tmp_path / "runs"]
    done = subprocess.run(asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads((one / "ppo-cartpole-cpu-2.json").read_text())
    assert (result["commit"], result["overrides"]) == ("abc", ["run.steps=32k", "eval.every=1"])
    assert 8 <= result["mean"] <= 500 and result["cpu_s"] > 0 and "core" in result["device"]
    (policy,) = (one / "ppo-cartpole-cpu-2").glob("checkpoints/step-*/tensors.safetensors")
    assert 0 < policy.stat().st_size < 1e6
    # Runs of an earlier call that still exist, with the same seed, are others.
    repeated = subprocess.run([*command, "--seed", "2", "--results", again], capture_output=True, text=True)
    assert repeated.returncode == 0, repeated.stderr
    other = json.loads((again / "ppo-cartpole-cpu-2.json").read_text())
    assert other["mean"] == result["mean"] and other["uuid"] != result["uuid"]
    ended = subprocess.run([*command, "--results", two, "--limit", "2"], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "unfinished_s" in json.loads((two / "ppo-cartpole-cpu-1.json").read_text())


@pytest.mark.parametrize(
    ("device", "collect", "update"),
    [
        ("CPU", [30.0, 0.5, 0.25], [5.0, 1.0, 1.0]),
        ("GPU, whose clock is read one iteration late", [0.0, 30.0, 0.5, 0.25], [0.0, 5.0, 1.0, 1.0]),
    ],
)
def test_seconds_of_training_leave_out_the_iteration_that_compiles(tmp_path, device, collect, update):
    metrics = (Metric("seconds/collect", "counter"), Metric("seconds/update", "counter"), Metric("seconds/evaluate"))
    place = tmp_path / "metrics.mm"
    writer = Writer(place, metrics, run_uuid=bytes(16), session=1, capacity=16, version="t", host="h")
    history = History(tmp_path / "history", place, writer=writer, run_uuid=bytes(16), session=1)
    history.start()
    for step, (first, second) in enumerate(zip(collect, update, strict=True), start=1):
        writer.publish(step, [first, second, 9.0])
    assert history.close()
    writer.close()
    assert recipes_bench.trained_s(tmp_path) == 2.75, device
