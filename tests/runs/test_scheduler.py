"""Scheduler of trials with a journal in memory and workers that train nothing. No torch."""

import pytest

from operant import runs
from operant.cli import grouped
from operant.errors import BusyError, OperantError
from operant.runs import groups, membership, notes, pool, scheduler
from operant.runs.scheduler import Journal, Scheduler, Trial


class FakeWorker:
    """A worker whose runs end at the second look, with an exit code by run id (default 0)."""

    def __init__(self, codes=None):
        self.run, self.codes = None, codes or {}
        self.begun, self.looks, self.is_stopped, self.is_closed = [], 0, False, False

    def begin(self, run, *, resume=None, trusted=False):
        if runs.has_trainer(run.path):
            raise BusyError(run.id)
        self.run, self.looks = run, 0
        self.begun.append((run.id, resume))

    def ended(self):
        self.looks += 1
        if self.run is None or self.looks < 2:
            return None
        run, self.run = self.run, None
        return pool.Ended(run, 130 if self.is_stopped else self.codes.get(run.id, 0), 0.0)

    def stop(self):
        self.is_stopped = self.run is not None

    def close(self):
        self.is_closed = True


class ListJournal(Journal):
    """Trials of a list. Records the ends of runs and trials; a failed run fails its trial."""

    trusted, uuid = False, "1" * 32

    def __init__(self, root, trials):
        self.root, self.trials = root, list(trials)
        self.runs, self.results, self.ids = [], [], []

    def next_trial(self):
        return self.trials.pop(0) if self.trials else None

    def request(self, trial, index, worker):
        return {"overrides": [f"run.seed={index}"], "worker": worker}

    def save_ids(self, trial):
        self.ids.append(dict(trial.ids))

    def run_ended(self, trial, index, run, code):
        self.runs.append((run.id, code))
        if code:
            trial.end("fail", f"exit code {code}")

    def trial_ended(self, trial):
        self.results.append((trial.number, trial.verdict))
        if trial.verdict == "fail" and len(self.results) > 2:
            raise OperantError("too many")


@pytest.fixture(autouse=True)
def _no_waits(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(scheduler.pool, "wait", lambda workers, timeout_s: None)


def trials(*seeds):
    return [
        Trial(number=number, ids={k: f"t.{number}.{k}" for k in range(count)}, waiting=[*range(count)])
        for number, count in enumerate(seeds)
    ]


def own_run(journal, id_, number, index, **fields):
    """Run as the scheduler makes it for a trial."""
    request = journal.request(None, index, 0) | fields.pop("request", {})
    return runs.create(journal.root, id_, "", request, **{**membership.identity(journal.uuid, number, index), **fields})


def test_every_run_of_every_trial_is_trained_once(tmp_path):
    journal, workers = ListJournal(tmp_path, trials(2, 1, 2)), [FakeWorker(), FakeWorker()]
    assert Scheduler(journal, workers, lambda: 0).run() is True
    ids = ["t.0.0", "t.0.1", "t.1.0", "t.2.0", "t.2.1"]
    assert sorted(journal.runs) == [(id_, 0) for id_ in ids]
    assert sorted(begun for worker in workers for begun in worker.begun) == [(id_, None) for id_ in ids]
    assert sorted(journal.results) == [(0, ""), (1, ""), (2, "")] and all(worker.is_closed for worker in workers)
    assert runs.load(tmp_path / "t.2.1").document["request"]["overrides"] == ["run.seed=1"]


def test_a_failed_run_ends_its_trial_and_no_other_run_of_it_starts(tmp_path):
    journal, worker = ListJournal(tmp_path, trials(3, 1)), FakeWorker({"t.0.1": 1})
    assert Scheduler(journal, [worker], lambda: 0).run() is True
    assert [id_ for id_, _ in worker.begun] == ["t.0.0", "t.0.1", "t.1.0"]
    assert journal.results == [(0, "fail"), (1, "")]


def test_an_error_of_the_journal_closes_the_workers(tmp_path):
    journal, worker = ListJournal(tmp_path, trials(1, 1, 1, 1)), FakeWorker({f"t.{k}.0": 1 for k in range(4)})
    with pytest.raises(OperantError, match="too many"):
        Scheduler(journal, [worker], lambda: 0).run()
    assert worker.is_closed and len(journal.results) == 3


def test_a_stop_leaves_trials_open_for_the_next_scheduler(tmp_path):
    journal, worker, turns = ListJournal(tmp_path, trials(2, 1)), FakeWorker(), []
    one = Scheduler(journal, [worker], lambda: int(len(turns) > 0))
    assert one.run(lambda: turns.append(len(turns))) is False
    assert journal.runs == [] and journal.results == [] and len(worker.begun) == 1
    assert [(trial.number, sorted(trial.waiting)) for trial in one.trials] == [(0, [0, 1])]

    # A run with a checkpoint is resumed; one without is made again.
    (tmp_path / "t.0.0" / "checkpoints" / "step-000000000001").mkdir(parents=True)
    uuid = own_run(journal, "t.0.1", 0, 1).uuid
    journal.unfinished, worker = lambda: one.trials, FakeWorker()
    assert Scheduler(journal, [worker], lambda: 0).run() is True
    assert sorted(worker.begun) == [("t.0.0", "last"), ("t.0.1", None), ("t.1.0", None)]
    assert runs.load(tmp_path / "t.0.0").document["request"]["resume_overrides"] == []
    assert runs.load(tmp_path / "t.0.1").uuid != uuid and sorted(journal.results) == [(0, ""), (1, "")]


def test_an_urgent_stop_returns_at_once(tmp_path):
    journal, worker = ListJournal(tmp_path, trials(1)), FakeWorker()
    assert Scheduler(journal, [worker], lambda: 2).run() is False and worker.is_closed and worker.begun == []


def test_a_run_of_another_process_is_waited_for(tmp_path, monkeypatch):
    busy = {"t.0.0"}
    monkeypatch.setattr(runs, "has_trainer", lambda path: path.name in busy)
    monkeypatch.setattr(runs, "state", lambda run: runs.State("finished"))
    journal, worker, turns = ListJournal(tmp_path, trials(1)), FakeWorker(), []
    own_run(journal, "t.0.0", 0, 0)

    def after_turn():
        turns.append(list(journal.runs))
        if len(turns) == 3:
            busy.clear()

    assert Scheduler(journal, [worker], lambda: 0).run(after_turn) is True
    assert worker.begun == [] and turns[2] == [] and journal.runs == [("t.0.0", 0)] and journal.results == [(0, "")]


def test_a_run_whose_id_is_used_gets_another_one(tmp_path):
    (tmp_path / "t.0.0").mkdir()
    journal, worker = ListJournal(tmp_path, trials(1)), FakeWorker()
    assert Scheduler(journal, [worker], lambda: 0).run() is True
    ((id_, _),) = worker.begun
    assert id_ != "t.0.0" and journal.ids == [{0: id_}] and journal.runs == [(id_, 0)]


OTHERS = {
    "of nobody": {"member_of": None},
    "of another sweep": {"member_of": {"uuid": "2" * 32, "trial": 0, "index": 0}},
    "of another trial": {"member_of": {"uuid": "1" * 32, "trial": 1, "index": 0}},
    "with other values": {"request": {"overrides": ["run.seed=7"]}},
    "resumed with other values": {"request": {"resume_overrides": ["run.steps=9M"]}},
}


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_run_of_the_right_name_is_adopted_and_removed_only_if_it_is_the_trials(tmp_path, kind, has_checkpoint):
    journal, worker = ListJournal(tmp_path, trials(1)), FakeWorker()
    other = own_run(journal, "t.0.0", 0, 0, **OTHERS[kind])
    if has_checkpoint:
        (other.path / "checkpoints" / "step-000000000001").mkdir(parents=True)
    assert Scheduler(journal, [worker], lambda: 0).run() is True
    ((id_, resume),) = worker.begun
    assert id_ != "t.0.0" and resume is None and journal.ids == [{0: id_}] and journal.runs == [(id_, 0)]
    assert runs.load(other.path) == other


def test_a_run_with_a_note_is_not_removed_to_be_trained_again(tmp_path):
    journal, worker = ListJournal(tmp_path, trials(1)), FakeWorker()
    noted = own_run(journal, "t.0.0", 0, 0)
    notes.write(noted.path, "look at this one")
    assert Scheduler(journal, [worker], lambda: 0).run() is True
    assert worker.begun[0][0] != "t.0.0" and notes.read(noted.path)["note"] == "look at this one"


def group_runs(group, monkeypatch):
    """Train a group on a worker that trains nothing."""
    worker = FakeWorker()
    monkeypatch.setattr(pool, "Worker", lambda log: worker)
    groups.train(group)
    return dict(worker.begun), groups.load(group.path)


def test_a_group_takes_no_run_of_another_task_into_its_mean(tmp_path, monkeypatch):
    group = groups.create(tmp_path, "g", "x", {"overrides": ["algo.gamma=0.9"]}, [1, 2])
    other = runs.create(tmp_path, "g.2", "", {"overrides": ["env.name=pendulum"]})
    (other.path / "checkpoints" / "step-000000000001").mkdir(parents=True)
    assert group.taken == {2: "g.2"} and group.runs == {}
    begun, group = group_runs(group, monkeypatch)
    second = group.members[2]
    assert begun == {"g.1": None, second: None} and second != "g.2" and set(group.runs) == {1, 2}
    assert runs.load(other.path) == other and not group.taken

    # A run that was resumed with other values stays a run of the group, but out of its mean, and is replaced.
    request = runs.load(tmp_path / "g.1").document["request"]
    runs.update_document(tmp_path / "g.1", request=request | {"resume_overrides": ["run.steps=4M"]})
    row = groups.describe(group)["runs"][0]
    assert (row["id"], row["counts"]) == ("g.1", False) and set(group.runs) == {1, 2} and group.taken == {1: "g.1"}


def test_a_new_group_is_kept_if_the_names_of_all_its_runs_are_taken(tmp_path, monkeypatch):
    """`operant train --seeds` deletes a new group only if it has no run."""
    group = groups.create(tmp_path, "g", "x", {"overrides": ["algo.gamma=0.9"]}, [1])
    runs.create(tmp_path, "g.1", "", {"overrides": ["env.name=pendulum"]})
    monkeypatch.setattr(groups, "start", lambda group: group_runs(group, monkeypatch))
    grouped.run(group, detach=False, is_new=True)
    (run,) = groups.load(group.path).runs.values()
    assert run.id.startswith("g.1-")


def test_a_group_from_before_knows_its_runs_by_their_requests(tmp_path):
    made = groups.create(tmp_path, "g", "x", {"config": None, "overrides": ["algo.gamma=0.9"]}, [1, 2, 3])
    runs.write_json(made.path / "group.json", {k: v for k, v in made.document.items() if k not in ("uuid", "files")})
    group = groups.load(made.path)
    own = runs.create(tmp_path, "g.1", "", group.request(1))
    runs.update_document(own.path, request=group.request(1) | {"resume_overrides": [], "resume_directory": "/"})
    runs.create(tmp_path, "g.2", "", group.request(2) | {"overrides": ["run.seed=2"]})
    runs.create(tmp_path, "g.3", "", group.request(3), member_of={"uuid": "2" * 32, "trial": 3, "index": 0})
    assert list(group.runs) == list(group.unchanged) == [1] and group.taken == {2: "g.2", 3: "g.3"}


def test_a_group_whose_configuration_changed_starts_no_further_run(tmp_path, monkeypatch):
    config = tmp_path / "my.toml"
    config.write_text("[algo]\ngamma = 0.9\n")
    group = groups.create(tmp_path / "runs", "g", "x", {"overrides": []}, [1, 2], files=[config])
    config.write_text("[algo]\ngamma = 0.8\n")
    begun, group = group_runs(group, monkeypatch)
    assert (
        begun == {} and "my.toml has changed since the group began. Not started: seed 1, 2" in group.document["problem"]
    )
    config.write_text("[algo]\ngamma = 0.9\n")
    begun, group = group_runs(group, monkeypatch)
    assert list(begun) == ["g.1", "g.2"] and group.document["problem"] is None
