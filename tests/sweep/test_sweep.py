"""`operant sweep`: resumed after a kill of all its processes at any moment, no trial lost or doubled; faults, stops and
pruning of trials.
"""

import json
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import tomli
from made_runs import made
from processes import environment, operant_process
from waiting import DEADLINE_S, wait_until

from operant import runs
from operant.config import request
from operant.envs import cartpole
from operant.errors import MachineError, UsageError
from operant.runs import pool, sweeps
from operant.runs.scheduler import Scheduler

pytest.importorskip("optuna")
from operant.sweep import journal, report
from operant.sweep import plan as planning

SWEEP = """
[run]
steps = 6144
device = "cpu"
threads = 1
[env]
lanes = 64
[eval]
every = 2
episodes = 4
[checkpoint]
every = 2
[sweep]
{settings}
algo.learning_rate = {{log = [1e-4, 1e-2]}}
net.hidden = {{choice = [[8], [8, 8]]}}
"""


def begun(place: Path, *words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "operant.cli", "sweep", "my.toml", *words]
    return subprocess.Popen(
        command, cwd=place, env=environment(place), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def kill_everything(process: subprocess.Popen) -> None:
    """Kill the command and its workers."""
    tree = [*psutil.Process(process.pid).children(recursive=True), process]
    for one in tree:
        one.send_signal(signal.SIGKILL)
    process.communicate()
    psutil.wait_procs([one for one in tree if one is not process], timeout=DEADLINE_S)


def trials_of(place: Path) -> list[runs.Run]:
    return runs.list_runs(place / "runs", everywhere=False)


def finished(place: Path) -> int:
    return sum(runs.state(run).word == "finished" for run in trials_of(place))


def check(place: Path, count: int, printed: str) -> dict:
    """Check the output of `operant sweep --json`: every trial once, with one run, in the state of the run."""
    told = json.loads(printed[: printed.rindex("}") + 1])
    assert [trial["number"] for trial in told["trials"]] == [*range(count)]
    ids = [name for trial in told["trials"] for name in trial["runs"]]
    assert sorted(ids) == sorted(run.id for run in trials_of(place)) and len(set(ids)) == count
    for trial in told["trials"]:
        (word,) = {runs.state(run).word for run in trials_of(place) if run.id in trial["runs"]}
        assert (trial["state"], word) in (("complete", "finished"), ("pruned", "stopped")), trial
    return told


@pytest.mark.slow
def test_a_killed_sweep_resumes_with_no_trial_lost_or_doubled(tmp_path, here):
    own = {"algo.learning_rate": 2e-3, "net.hidden": [8]}
    (tmp_path / "my.toml").write_text(
        SWEEP.format(settings='trials = 5\npruner = "none"') + "[algo]\nlearning_rate = 2e-3\n[net]\nhidden = [8]\n"
    )
    process = begun(tmp_path, "--workers", "2")
    wait_until(lambda: finished(tmp_path) >= 2 or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    kill_everything(process)
    assert finished(tmp_path) < 5
    done = here("sweep", "my.toml", "--json", "--workers", "1")
    assert done.code == 0, done.err
    told = check(tmp_path, 5, done.out)
    assert told["complete"] == 5 and told["fail"] == told["running"] == 0
    assert [trial["params"] == own for trial in told["trials"]] == [
        True,
        False,
        False,
        False,
        False,
    ]  # the configuration itself comes first
    best = max(told["trials"], key=lambda trial: trial["values"])
    assert told["best"] == [best["number"]]
    recipe = (tmp_path / "runs" / "my-sweep" / "best.toml").read_text()
    assert recipe.startswith("# The best of 5 trials")
    assert tomli.loads(recipe)["algo"]["learning_rate"] == best["params"]["algo.learning_rate"]
    assert tomli.loads(recipe)["net"]["hidden"] == best["params"]["net.hidden"]


@pytest.mark.soak
def test_sixty_four_trials_with_kills_in_between_are_complete(tmp_path):
    (tmp_path / "my.toml").write_text(SWEEP.format(settings="trials = 64\nseed = 3"))
    moments = random.Random(7)
    for _ in range(3):
        process, goal = begun(tmp_path, "--workers", "2"), len(trials_of(tmp_path)) + moments.randrange(3, 16)
        wait_until(
            lambda process=process, goal=goal: len(trials_of(tmp_path)) >= goal or process.poll() is not None, 300
        )
        kill_everything(process)
    done = operant_process(tmp_path, "sweep", "my.toml", "--json")
    assert done.returncode == 0, done.stderr
    told = check(tmp_path, 64, done.stdout)
    assert told["complete"] + told["pruned"] == 64 and told["pruned"] > 0
    assert (tmp_path / "runs" / "my-sweep" / "parallel.png").stat().st_size > 5000


@pytest.mark.soak
def test_a_fault_fails_a_trial_and_a_stop_prunes_it_and_ctrl_c_keeps_it_open(tmp_path):
    (tmp_path / "my.toml").write_text(
        SWEEP.format(settings='trials = 6\npruner = "none"\nseeds = 2').replace("6144", "200000000")
    )
    process = begun(tmp_path, "--workers", "2")
    (first, second) = wait_until(
        lambda: len(live := [run for run in trials_of(tmp_path) if runs.state(run).word == "running"]) == 2 and live
    )
    assert {first.id, second.id} == {"my-sweep.0.1", "my-sweep.0.2"}
    # One worker is killed: its trial fails, the run of the other seed is stopped, the next trial starts.
    os.kill(runs.holder(first.path), signal.SIGKILL)
    after = wait_until(
        lambda: [
            run for run in trials_of(tmp_path) if run.id.startswith("my-sweep.1.") and runs.state(run).word == "running"
        ]
    )
    # A stop of a trial prunes it.
    assert operant_process(tmp_path, "stop", str(after[0].path)).returncode == 0
    wait_until(
        lambda: [
            run for run in trials_of(tmp_path) if run.id.startswith("my-sweep.2.") and runs.state(run).word == "running"
        ]
    )
    # Ctrl-C ends the command; its trials stay open and are resumed.
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, said
    assert (
        "trial 0 failed: crashed: killed by SIGKILL" in said
        and "trial 1 pruned: stopped" in said
        and "no trial has finished" in said
    )
    assert not [run for run in trials_of(tmp_path) if runs.has_trainer(run.path)]
    (run,) = [run for run in trials_of(tmp_path) if run.id == "my-sweep.2.1"]
    session = run.document["session"]
    process = begun(tmp_path, "--workers", "2")
    wait_until(lambda: runs.state(runs.load(run.path)).word == "running")
    assert runs.load(run.path).document["session"] == session + 1
    kill_everything(process)


@pytest.mark.soak
@pytest.mark.parametrize(
    "settings",
    [
        'sampler = "gp"',
        'sampler = "cma_es"\npruner = "wilcoxon"',
        "pareto = true",
        'objective = "area"\nseeds = 2',
        "steps = 30000",
    ],
)
def test_every_sampler_pruner_and_objective_completes_a_sweep(tmp_path, settings):
    (tmp_path / "my.toml").write_text(SWEEP.format(settings=f"trials = 14\n{settings}"))
    done = operant_process(tmp_path, "sweep", "my.toml", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout[: done.stdout.rindex("}") + 1])
    assert told["fail"] == 0 and told["complete"] >= 1
    assert len(told["trials"]) == 14 if "steps" not in settings else 5 <= len(told["trials"]) < 10
    if "pareto" in settings:
        assert (
            "trials are not pruned" in done.stderr
            and told["pruned"] == 0
            and (tmp_path / "runs" / "my-sweep" / "front.png").exists()
        )


@pytest.mark.soak
def test_a_detached_sweep_is_shown_stopped_and_joined_again(tmp_path):
    (tmp_path / "my.toml").write_text(SWEEP.format(settings='trials = 2\npruner = "none"').replace("6144", "200000000"))
    done = operant_process(tmp_path, "sweep", "my.toml", "--detach", "--workers", "1")
    assert done.returncode == 0 and "operant stop my-sweep" in done.stderr, done.stderr
    (run,) = wait_until(lambda: [run for run in trials_of(tmp_path) if runs.state(run).word == "running"])
    assert operant_process(tmp_path, "show", "my-sweep").stdout.startswith("my-sweep   0 of 2 trials   1 running")
    done = operant_process(tmp_path, "stop", "my-sweep")
    assert done.returncode == 0 and not runs.has_trainer(run.path), done.stderr
    assert any(run.checkpoints_path.glob("step-*")) and len(trials_of(tmp_path)) == 1
    assert json.loads(operant_process(tmp_path, "show", "my-sweep", "--json").stdout)["interrupted"] == 1
    done = operant_process(tmp_path, "sweep", "--join", "runs/my-sweep", "--detach", "--workers", "1")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: runs.state(runs.load(run.path)).word == "running")
    assert operant_process(tmp_path, "stop", "--all", "--now").returncode == 0
    assert not runs.has_trainer(run.path)


def test_detach_reports_an_invalid_sweep_at_once(tmp_path, here):
    (tmp_path / "my.toml").write_text(SWEEP.format(settings="trials = 0"))
    done = here("sweep", "my.toml", "--detach")
    assert done.code == 2 and "sweep.trials" in done.err and not (tmp_path / "runs").exists()


class Idle:
    """A worker whose runs end at once, with an evaluation if a score is given."""

    def __init__(self, score=None):
        self.run, self.begun, self.score = None, [], score

    def begin(self, run, *, resume=None, trusted=False):
        self.run = run
        self.begun.append((run.id, resume))
        if self.score is not None:
            (run.path / "eval").mkdir()
            (run.path / "eval" / "evaluations.jsonl").write_text(f'{{"step": 6144, "mean": {self.score}}}\n')

    def ended(self):
        run, self.run = self.run, None
        return None if run is None else pool.Ended(run, 0, 0.0)

    def stop(self):
        pass

    def close(self):
        pass


@pytest.fixture
def planned(tmp_path, here, monkeypatch):
    """Function that makes the plan of a sweep with given settings."""
    monkeypatch.setattr(pool, "wait", lambda workers, timeout_s: None)

    def plan(settings, text=SWEEP):
        (tmp_path / "my.toml").write_text(text.format(settings=settings))
        return planning.make(request.make([], config="my.toml", environment_file=None, settings={}), None, None)

    return plan


def test_a_sweep_books_no_score_of_a_run_that_merely_has_the_name_of_a_trial(tmp_path, planned, here):
    plan = planned("trials = 2")
    other = made(tmp_path / "runs", "my-sweep.0", [(10 * k, (1.0, 1.0, 355.1, 0.1)) for k in range(1, 4)])
    (other.path / "checkpoints" / "step-000000000001").mkdir(parents=True)
    said, worker = [], Idle()
    sweep = journal.SweepJournal(plan, devices=1, say=said.append, trusted=False)
    assert Scheduler(sweep, [worker], lambda: 0).run()
    (first, resume), (second, _) = worker.begun
    assert first.startswith("my-sweep.0-") and resume is None and second == "my-sweep.1"
    assert f"my-sweep.0 is not a run of this trial: it stays as it is, and the trial's is {first}" in said
    assert [line for line in said if line.startswith("trial")] == [f"trial {k} failed: no evaluation" for k in (0, 1)]
    shown = here("show", "my-sweep").out.splitlines()
    assert [line.split()[:2] for line in shown[1:]] == [["0", "failed"], ["1", "failed"]]
    assert all(line.endswith("(no evaluation)") for line in shown[1:])
    assert runs.load(other.path) is not None and {run.id for run in sweeps.trials(plan.folder)} == {first, second}


def test_a_full_disk_under_the_journal_is_named_and_loses_no_trial(planned):
    plan = planned("trials = 4")
    search, path = journal.SweepJournal(plan, devices=1, say=print, trusted=False), plan.folder / "journal.log"
    search.next_trial()
    content, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(content) + 10, limits[1]))  # room for a part of a line
    try:
        with pytest.raises(MachineError, match=r"journal.log cannot be written \(File too large\): free some"):
            search.next_trial()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == content
    again = journal.SweepJournal(plan, devices=1, say=print, trusted=False)
    assert again.next_trial().number == 1


def test_a_sweep_does_not_begin_in_a_folder_of_other_files(tmp_path, here):
    (tmp_path / "my.toml").write_text(SWEEP.format(settings="trials = 2"))
    (tmp_path / "runs" / "my-sweep").mkdir(parents=True)
    (tmp_path / "runs" / "my-sweep" / "thesis.txt").write_text("all of it")
    done = here("sweep", "my.toml")
    assert done.code == 2 and "runs/my-sweep is a folder with other files: give the sweep another name" in done.err


def test_a_sweep_that_was_killed_shows_interrupted_trials(planned, here, monkeypatch):
    plan = planned("trials = 4")
    with monkeypatch.context() as patch:
        patch.setattr(runs, "identity", lambda: {"pid": 1, "pid_start_ticks": -1, "boot_id": runs.boot_id()})
        killed = journal.SweepJournal(plan, devices=1, say=print, trusted=False)
        first, second = killed.next_trial(), killed.next_trial()
    shown = here("show", "my-sweep").out.splitlines()
    assert shown[0] == "my-sweep   0 of 4 trials   0 running   0 pruned   2 interrupted"
    assert shown[1] == "nothing works on it; continue: operant sweep --join runs/my-sweep"
    told = json.loads(here("show", "my-sweep", "--json").out)
    assert (told["running"], told["interrupted"]) == (0, 2) and told["trials"][0]["state"] == "interrupted"
    # Workers end the run they have: it trains on.
    run = runs.create(plan.folder.parent, first.ids[0], "", {})
    lock = runs.acquire(run.path)
    assert here("show", "my-sweep").out.startswith("my-sweep   0 of 4 trials   1 running   0 pruned   1 interrupted\n")
    lock.release()
    assert second.number == 1


def test_trials_of_equal_values_count_once(planned, here):
    text = SWEEP.replace("algo.learning_rate = {{log = [1e-4, 1e-2]}}\n", "").replace("[[8], [8, 8]]", "[[8]]")
    plan = planned('trials = 3\npruner = "none"', text)
    sweep = journal.SweepJournal(plan, devices=1, say=print, trusted=False)
    assert Scheduler(sweep, [Idle(score=7.5)], lambda: 0).run()
    told = json.loads(here("show", "my-sweep", "--json").out)
    assert [trial["same_as"] for trial in told["trials"]] == [None, 0, 0] and told["best"] == [0]
    shown = here("show", "my-sweep").out.splitlines()
    assert "2 with the values of an earlier trial: counted once" in shown and len(shown) == 3
    recipe = report.write_best(plan, sweep.study).read_text()
    assert recipe.startswith("# The best of 1 trials") and "2 trials have the values of an earlier one" in recipe


def test_a_sweep_whose_environment_file_changed_takes_no_further_trial(planned, tmp_path):
    own, text = tmp_path / "mine.py", SWEEP.replace("[env]", '[env]\nname = "mine.py"')
    before = Path(cartpole.__file__).read_text()
    own.write_text(before)
    plan = planned("trials = 2", text)
    said = []
    sweep = journal.SweepJournal(plan, devices=1, say=said.append, trusted=False)
    assert sweep.next_trial() is not None
    own.write_text(before + "\n# other physics\n")
    assert sweep.next_trial() is None and said == ["mine.py has changed since the sweep began: no further trial starts"]
    with pytest.raises(UsageError, match=r"mine\.py has changed since runs/my-sweep began"):
        planned("trials = 3", text)
    own.write_text(before)
    assert planned("trials = 3", text).trials == 3
