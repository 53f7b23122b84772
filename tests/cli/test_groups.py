"""`operant train --seeds N`: a group of runs that is trained, stopped, resumed and shown as one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ITERATION, SMALL, environment, made, operant_process, tensors
from waiting import DEADLINE_S, state, wait_until

from operant import runs
from operant.cli import grouped
from operant.errors import BusyError, UsageError
from operant.runs import control, groups, sweeps
from operant.training import worker

WORDS = (
    *SMALL,
    f"run.steps={40 * ITERATION}",
    "algo.learning_rate=1e-4",
    "checkpoint.every=5",
    "eval.every=20",
    "eval.episodes=4",
)


@pytest.mark.slow
def test_a_group_is_trained_stopped_resumed_and_shown(here, tmp_path):
    command = [sys.executable, "-m", "operant.cli", "train", "--name", "both", "--seeds", "2", "--seed", "7", *WORDS]
    viewer = subprocess.Popen(
        command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    root = tmp_path / "runs"
    first = wait_until(lambda: runs.load(root / "both.7"))
    wait_until(lambda: runs.holder(first.path))
    paused = control.send(first, "pause")  # so that it does not end before the stop
    wait_until(lambda: control.answer(first, paused, 0.0, final=True))
    group = groups.load(root / "both")
    assert group.members == {7: "both.7", 8: "both.8"} and list(group.runs) == [7] and group.live
    with pytest.raises(BusyError, match="is still training"):
        groups.remove(group)

    # A stop ends the one that trains, and the other does not begin; the viewer says so, and ends as a stopped run does.
    stopped = operant_process(tmp_path, "stop", "both")
    assert (
        stopped.returncode == 0 and "both.8 has not begun" in stopped.stderr and "both.7: stopped" in stopped.stderr
    ), stopped.stderr
    _, said = viewer.communicate(timeout=DEADLINE_S)
    assert viewer.returncode == 130 and "0 of 2 finished" in said and "next: operant resume both" in said, said
    assert not groups.load(root / "both").live and runs.load(root / "both.8") is None

    # A resume trains the one on, and the other from its beginning: the same bits as of a run that is alone.
    resumed = here("resume", "both")
    assert resumed.code == 0, resumed.err
    assert (
        "both.7: stopped, is resumed" in resumed.err
        and "both.8: not begun, is trained from its beginning" in resumed.err
    )
    worker.train(made(tmp_path, *WORDS, "run.seed=7", name="alone").path, resume=None)
    assert tensors(root / "both.7") == tensors(root / "alone") != tensors(root / "both.8")
    assert state(runs.load(root / "both.7")).word == state(runs.load(root / "both.8")).word == "finished"
    assert runs.load(root / "both.7").document["session"] == 2

    # The mean and its interval, of the two: t is 12.706.
    told = json.loads(operant_process(tmp_path, "show", "both", "--json").stdout)
    a, b = (row["eval_return"] for row in told["runs"])
    assert told["bands"]["eval_return"] == pytest.approx(
        {"seeds": 2, "mean": (a + b) / 2, "half": 12.706 * abs(a - b) / 2}
    )
    assert "2 of 2 finished" in operant_process(tmp_path, "runs").stdout
    assert "mean of 2 seeds with its 95 % band" in operant_process(tmp_path, "monitor", "both", "--once").stdout
    groups.remove(groups.find("both", root))
    assert [run.id for run in runs.list_runs(root, everywhere=False)] == ["alone"] and not (root / "both").exists()


@pytest.mark.slow
def test_an_invalid_configuration_leaves_no_group(tmp_path):
    done = operant_process(tmp_path, "train", "--seeds", "3", "algo.gamma=2", *SMALL)
    assert done.returncode == 2 and "algo.gamma: input should be less than or equal to 1" in done.stderr
    assert list((tmp_path / "runs").iterdir()) == []
    done = operant_process(tmp_path, "train", "--seeds", "3", "--inline")
    assert done.returncode == 2 and "--inline is for one run, not for a group of 3 seeds" in done.stderr


def test_a_group_records_the_files_that_it_trains(here, tmp_path, monkeypatch):
    """The configuration, and the code that it or the command line names."""
    monkeypatch.setattr(grouped, "run", lambda group, **words: 0)
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "net.py").write_text("")
    (tmp_path / "my.toml").write_text('[net]\nkind = "net.py:Net"\n')
    here("train", "--config", "my.toml", "--env", "mine.py", "--seeds", "2", "--name", "g")
    assert {Path(path).name for path in groups.load(tmp_path / "runs" / "g").document["files"]} == {
        "my.toml",
        "mine.py",
        "net.py",
    }


def test_a_group_has_bands_and_is_found_by_its_name(tmp_path):
    assert groups.band([]) is None and groups.band([3.0]) == (1, 3.0, None)
    assert groups.band([1.0, 2.0, 3.0]) == pytest.approx((3, 2.0, 4.303 / 3**0.5))
    made = groups.create(tmp_path, None, "cartpole-ppo", {}, range(2))
    assert (
        groups.find(made.id, tmp_path)
        == made
        == groups.find(made.id.rpartition("-")[2], tmp_path)
        == groups.find(str(made.path), tmp_path)
    )
    assert groups.find("nothing", tmp_path) is None and groups.find("", tmp_path) is None
    groups.create(tmp_path, "mine", "", {}, range(2))
    with pytest.raises(UsageError, match="exists already"):
        groups.create(tmp_path, "mine", "", {}, range(2))
    with pytest.raises(UsageError, match="cannot be the name"):
        groups.create(tmp_path, "-", "", {}, range(2))


def test_the_table_of_a_group_names_the_seed_of_a_run_that_is_starting(tmp_path):
    group = groups.create(tmp_path, "usual", "", {}, [7])
    runs.create(tmp_path, "usual.7", "x", group.request(7), **runs.membership.identity(group.uuid, 7))
    assert [row["seed"] for row in groups.describe(group)["runs"]] == [7]


def test_of_groups_and_sweeps_of_one_name_that_of_the_folder_is_found(tmp_path, monkeypatch):
    here, other = tmp_path / "here", tmp_path / "other"
    monkeypatch.setattr(runs, "index_roots", lambda: [here, other])
    made_here, made_there = (groups.create(root, "usual", "", {}, range(2)) for root in (here, other))
    for root in (here, other):
        (root / "search-sweep").mkdir()
        (root / "search-sweep" / sweeps.FILE).write_text('{"schema": 1}')
    assert groups.find("usual", here) == made_here and groups.find("usual", other) == made_there
    assert sweeps.find("search-sweep", here) == here / "search-sweep"
    assert groups.find("usual", tmp_path) is None
