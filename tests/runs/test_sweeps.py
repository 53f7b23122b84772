"""`operant stop` and `operant rm` of a sweep: commands that work on it are asked to end, and waited for."""

import shutil
import subprocess
import sys

import pytest
from processes import environment, operant_process
from waiting import wait_until

from operant import runs
from operant.runs import membership, sweeps


@pytest.fixture(autouse=True)
def _own_index(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


WORK = """
import sys, time
from pathlib import Path
from operant.runs import sweeps
with sweeps.entered(Path(sys.argv[1])) as asked:
    while not asked():
        time.sleep(0.01)
    print(asked())
"""


def worked(folder, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", WORK, str(folder)], env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    )
    wait_until(lambda: any(one["pid"] == process.pid for one in sweeps.working(folder)))
    return process


@pytest.mark.slow
def test_stop_ends_the_commands_that_work_on_a_sweep(tmp_path):
    folder = tmp_path / "runs" / "my-sweep"
    folder.mkdir(parents=True)
    (folder / "sweep.toml").write_text("")
    for words, told in (((), "1"), (("--now",), "2"), ((), "1")):
        process = worked(folder, tmp_path)
        done = operant_process(tmp_path, "stop", "my-sweep", *words)
        assert (done.returncode, process.communicate()[0].strip()) == (0, told), done.stderr
        assert (
            "my-sweep: stopped.  next: operant sweep --join runs/my-sweep" in done.stderr
            and sweeps.working(folder) == []
        )


def test_a_sweep_of_a_killed_command_is_stopped_already(tmp_path):
    folder = tmp_path / "runs" / "my-sweep"
    folder.mkdir(parents=True)
    (folder / "sweep.toml").write_text("")
    process = worked(folder, tmp_path)
    process.kill()
    process.communicate()
    done = operant_process(tmp_path, "stop", str(folder))
    assert done.returncode == 0 and "my-sweep: it is not running" in done.stderr


def sweep(tmp_path):
    folder = tmp_path / "runs" / "my-sweep"
    folder.mkdir(parents=True)
    (folder / "sweep.toml").write_text("")
    sweeps.create_identity(folder)
    return folder


def test_rm_deletes_a_sweep_with_its_runs_but_never_one_that_is_worked_on(tmp_path):
    folder = sweep(tmp_path)
    own = membership.identity(sweeps.uuid(folder), 0)
    for name in ("my-sweep.0", "my-sweep.12", "my-sweep.0-4f2a"):
        runs.create(tmp_path / "runs", name, "x", {}, **own)
    process = worked(folder, tmp_path)
    done = operant_process(tmp_path, "rm", "my-sweep", "--yes")
    assert done.returncode == 6 and "my-sweep is still running.  Stop it: operant stop my-sweep" in done.stderr
    sweeps.ask_stop(folder)
    process.communicate()
    for name in ("my-sweep.1", "my-sweep.9-own-baseline", "my-sweep.best", "my-sweep.", "other"):
        runs.create(tmp_path / "runs", name, "x", {})
    done = operant_process(tmp_path, "rm", "my-sweep", "--yes")
    assert done.returncode == 0 and "my-sweep.9-own-baseline: not a run of my-sweep, not deleted" in done.stderr
    names = ["my-sweep.", "my-sweep.1", "my-sweep.9-own-baseline", "my-sweep.best", "other"]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()) == names


def test_a_copy_of_a_sweep_has_no_runs_and_a_renamed_one_keeps_them(tmp_path):
    folder = sweep(tmp_path)
    run = runs.create(tmp_path / "runs", "my-sweep.0", "x", {}, **membership.identity(sweeps.uuid(folder), 0))
    copy = tmp_path / "runs" / "copy"
    shutil.copytree(folder, copy)
    shutil.copytree(run.path, tmp_path / "runs" / "my-sweep.1")
    assert sweeps.trials(copy) == [] and [one.id for one in sweeps.trials(folder)] == ["my-sweep.0"]
    shutil.rmtree(copy)
    assert [one.id for one in sweeps.trials(folder.rename(copy))] == ["my-sweep.0"]


def test_a_sweep_from_before_knows_its_runs_by_their_requests(tmp_path):
    folder = sweep(tmp_path)
    (folder / "sweep.json").unlink()
    request = {"config": str(folder / "sweep.toml"), "overrides": ["algo.gamma=0.9", "run.seed=1", "run.seeds=1"]}
    for name in ("my-sweep.0", "my-sweep.1.2", "my-sweep.2-4f2a", "my-sweep.9-own-baseline"):
        runs.create(tmp_path / "runs", name, "x", request)
    runs.create(tmp_path / "runs", "my-sweep.3", "x", request | {"config": None})
    runs.create(tmp_path / "runs", "my-sweep.4", "x", request | {"overrides": ["run.name=my-sweep.4"]})
    assert sorted(run.id for run in sweeps.trials(folder)) == ["my-sweep.0", "my-sweep.1.2", "my-sweep.2-4f2a"]
