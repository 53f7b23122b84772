"""Targets: a lucky evaluation ends no run, fresh episodes decide, and log, evaluations.jsonl, `show`, the monitor and a
resume tell of the same.
"""

from __future__ import annotations

import json
import logging

import pytest
from processes import ITERATION, inline, the_run
from toys import LOTTERY

from operant import runs, text
from operant.training import worker as train

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def lottery(tmp_path):
    """The environment's file, in the test's folder."""
    (tmp_path / "lottery.py").write_text(LOTTERY)
    return tmp_path / "lottery.py"


def lines_of(run):
    return [json.loads(line) for line in (run.path / "eval" / "evaluations.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_lucky_evaluations_end_no_run(here, tmp_path, lottery, caplog):
    # Of twelve evaluations of one episode some pay 0.7 and more; the mean is 0.5.
    words = (f"run.steps={12 * ITERATION}", "eval.every=1", "eval.episodes=1", "run.target=0.7", "--name", "lucky")
    with caplog.at_level(logging.INFO):
        assert inline(here, "lottery.py", *words).code == 0
    run, lines = the_run(tmp_path), lines_of(the_run(tmp_path))
    described = runs.describe(run)
    assert (described["step"], described["target_reached"]) == (12 * ITERATION, False)
    assert [line["step"] for line in lines] == [k * ITERATION for k in range(1, 13)], "one line a step"
    lucky = [line for line in lines if "confirmation" in line]
    assert 2 <= len(lucky) < 12 and all(line["mean"] < 0.7 for line in lines)
    for line in lucky:
        told = line["confirmation"]
        assert (told["target"], told["reached"], told["first_episodes"], line["episodes"]) == (
            0.7,
            False,
            1,
            1024,
        ) and told["first_mean"] >= 0.7
        assert f"{text.number(line['mean'])} ±{text.number(line['ci95'])}, do not confirm it" in caplog.text
    assert described["eval_return"] == pytest.approx(lines[-1]["mean"]) and described["best_return"] == pytest.approx(
        max(line["mean"] for line in lines)
    )
    assert "finished: all steps done" in caplog.text
    shown = here("monitor", "--once", str(run.path)).out
    assert "all steps done in" in shown and "eval 0.512 (target 0.7 not r" in shown


def test_a_target_that_fresh_episodes_confirm_ends_the_run(here, tmp_path, lottery, caplog):
    words = (
        f"run.steps={12 * ITERATION}",
        "eval.every=1",
        "eval.episodes=64",
        "run.target=0.7",
        "env.params.luck=0.5",
        "--name",
        "sure",
    )
    with caplog.at_level(logging.INFO):
        assert inline(here, "lottery.py", *words).code == 0
    (line,) = lines_of(the_run(tmp_path))
    described = runs.describe(the_run(tmp_path))
    assert line["confirmation"]["reached"] and line["mean"] - line["ci95"] >= 0.7 and line["episodes"] >= 1024
    assert (described["target_reached"], described["step"], described["eval_return"]) == (
        True,
        ITERATION,
        pytest.approx(line["mean"]),
    )
    assert "confirm it" in caplog.text and f"target 0.7 reached after {ITERATION:,} steps" in caplog.text
    assert "target 0.7 reached" in here("monitor", "--once", str(the_run(tmp_path).path)).out


@pytest.mark.slow
def test_a_resume_confirms_with_the_same_episodes(here, tmp_path, lottery):
    words = (
        f"run.steps={8 * ITERATION}",
        "eval.every=1",
        "eval.episodes=1",
        "run.target=0.6",
        "checkpoint.every=2",
        "checkpoint.keep=9",
        "--name",
        "again",
    )
    assert inline(here, "lottery.py", *words).code == 0
    run = the_run(tmp_path)
    before = lines_of(run)
    train.train(run.path, resume=str(2 * ITERATION))
    after = lines_of(run)
    assert sum("confirmation" in line for line in before[2:]) > 0
    assert [line | {"session": 1} for line in after] == before
