"""`operant stop` and `operant rm` of a sweep: commands that work on it are asked to end, and waited for."""

import subprocess
import sys

from processes import environment, operant_process
from waiting import wait_until

from operant import runs
from operant.runs import sweeps

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


def test_rm_deletes_a_sweep_with_its_runs_but_never_one_that_is_worked_on(tmp_path):
    folder = tmp_path / "runs" / "my-sweep"
    folder.mkdir(parents=True)
    (folder / "sweep.toml").write_text("")
    for name in ("my-sweep.0", "my-sweep.12", "my-sweep.best", "other"):
        runs.create(tmp_path / "runs", name, "x", {})
    process = worked(folder, tmp_path)
    done = operant_process(tmp_path, "rm", "my-sweep", "--yes")
    assert done.returncode == 6 and "my-sweep is still running.  Stop it: operant stop my-sweep" in done.stderr
    sweeps.ask_stop(folder)
    process.communicate()
    assert operant_process(tmp_path, "rm", "my-sweep", "--yes").returncode == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()) == ["my-sweep.best", "other"]
