"""`operant show RUN`: outcome, progress, results, differences from the recipe, a curve, the next commands. No torch."""

import json

import pytest
from made_runs import made

from operant import runs
from operant.runs import Metric, MetricSpec, Threshold, launch
from operant.runs.metrics.spec import POSITIVE

NAN = float("nan")
CONFIG = "/somewhere/configs/ppo/cartpole.toml"


def rows(means):
    return [(100 * k, (10.0 * k, 1.0, mean, 0.01)) for k, mean in enumerate(means, 1)]


@pytest.fixture
def shown(here, tmp_path):
    """Function that makes a run and returns the lines of its summary by name, and the first one."""

    def show(means, *, overrides=(), **document):
        request = {"config": CONFIG, "overrides": ["env.name=cartpole", "run.name=x", *overrides]}
        made(tmp_path / "runs", "cartpole-ppo-4f2a", rows(means), request=request, lanes=8, device="cpu", **document)
        head, *lines = here("show", "4f2a").out.splitlines()
        return {line[:14].strip(): line[14:] for line in lines} | {"": head}

    return show


def test_a_finished_run_is_summarised(shown):
    lines = shown([10.0, 20.0, 40.0, 80.0], overrides=["algo.gamma=0.9"], target=75.0, target_reached=True)
    assert lines[""] == "✔ finished  cartpole-ppo-4f2a"
    assert lines["task"] == "cartpole by ppo, 8 lanes on cpu, seed 1"
    assert lines["recipe"] == "ppo/cartpole with algo.gamma=0.9"
    assert lines["steps"].startswith("400") and "of 1,000" not in lines["steps"], "it has ended at its target"
    assert lines["evaluation"] == "mean return 80.0 at step 400 (target 75 reached)"
    assert lines["training"] == "mean return 40.0 of the last episodes"
    assert lines["curve"] == "▁▂▄█  evaluation, 10.0 to 80.0"
    assert "note" not in lines and lines["next"] == "operant monitor 4f2a"


def test_a_run_that_ended_early_shows_its_cause_progress_and_lost_work(shown, tmp_path, here):
    shown([10.0, NAN, NAN, NAN], state=None)
    run = runs.load(tmp_path / "runs" / "cartpole-ppo-4f2a")
    runs.write_json(run.exit_path, {"signal": 9, "wall_s": 61.0})
    (run.checkpoints_path / "step-000000000100").mkdir(parents=True)
    head, *lines = here("show", "4f2a").out.splitlines()
    assert head == "✖ crashed  cartpole-ppo-4f2a   killed by SIGKILL"
    told = {line[:14].strip(): line[14:] for line in lines}
    assert told["steps"] == "400 of 1,000 (40 %) in 0:01:01"
    assert told["curve"].endswith("training, 10.0 to 40.0"), "too few evaluations for a curve"
    assert told["checkpoint"].startswith("none; lost at the end: ")
    assert told["next"] == "operant resume 4f2a   operant logs 4f2a"


def test_a_run_without_records_and_with_a_damaged_request_is_summarised(here, tmp_path):
    run = runs.create(tmp_path / "runs", "young", "x", {"config": 3, "overrides": "\x1b[2J"})
    launch.announce(run)
    lines = here("show", "young").out.splitlines()
    assert lines[0] == "✖ crashed  young   unknown" or lines[0].startswith("● starting  young")
    assert lines[1] == "  recipe      defaults" and not any("\x1b" in line for line in lines)


def test_a_count_that_ought_to_be_zero_is_a_sentence_about_the_whole_run(here, tmp_path):
    run = made(
        tmp_path / "runs", "ant-ppo-77aa", [(100, (1.0, 0.0)), (200, (2.0, 0.25)), (300, (3.0, 0.0))],
        metrics=[Metric("return"), Metric("tally/lost_contacts")], lanes=8, device="cpu",
    )  # fmt: skip
    rule = Threshold("warn", at_least=POSITIVE, advice="fewer geoms", ever=True)
    runs.write_specs(run.path, [MetricSpec("tally/lost_contacts", "lost contacts", "per episode", thresholds=(rule,))])
    lines = here("show", "77aa").out.splitlines()
    assert "  health      lost contacts 0.25 per episode, at its highest: fewer geoms" in lines


def test_the_list_names_evaluations_and_training_returns_apart(shown, here):
    shown([10.0, 20.0, 40.0, 80.0])
    head, row = (line.split() for line in here("runs").out.splitlines())
    assert row[head.index("eval")] == "80.0" and row[head.index("return")] == "40.0"
    assert row[head.index("progress")] == "100"
    assert json.loads(here("show", "4f2a", "--json").out)["progress"] == 1.0
