"""Live feed, on run folders written by a metrics file's writer and by live fake trainers."""

import contextlib
import errno
import os
import signal
import threading
import time

import pytest
from waiting import DEADLINE_S, wait_until

from monitor.data import feed as feeds
from monitor.data.event_log import EventLog, log_line
from monitor.data.feed import LiveFeed
from monitor.data.listing import RunListing
from monitor.data.run_reader import RunReader, load_history, process_state
from monitor.data.snapshot import LogLine
from monitor.screen.header import measured
from monitor.screen.model import Model
from monitor.screen.view import View
from operant import runs, text
from operant.runs.control import Inbox
from operant.runs.history import History
from operant.runs.log import LEFT_OUT, SESSION_MARK
from operant.runs.metrics import FLAG_CHECKPOINT, FLAG_EVAL, Metric, Reader, Writer
from operant.runs.metrics.spec import MetricSpec, Threshold, encode

BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
NAN = float("nan")
METRICS = [
    Metric("return", unit="reward", higher_better=True),
    Metric("iterations", "counter"),
    Metric("sps", "rate", higher_better=True),
    Metric("eval/return", higher_better=True),
    Metric("entropy", must_be_finite=True),
    Metric("seconds/collect"),
    Metric("seconds/update"),
    Metric("secret", hidden=True),
]
STEPS_PER_ITERATION = 100


class Trainer:
    """This process as the worker of a run."""

    def __init__(self, root, run=None, *, metrics=METRICS, session=1, frame_bytes=0, specs=(), **document):
        self.run = run or runs.create(root, "cartpole-ppo-4f2a", "x", {})
        self.lock = runs.acquire(self.run.path)
        fields = {
            "env": "cartpole",
            "algo": "ppo",
            "steps": 1_000_000,
            "device": "cpu",
            "seed": 1,
            "lanes": 8,
            "target": 475.0,
            **document,
        }
        runs.update_document(self.run.path, **runs.identity(), **fields)
        self.metrics = metrics
        if specs:
            runs.write_json(self.run.path / "metrics.json", encode(specs))
        self.writer = Writer(
            self.run.metrics_path,
            metrics,
            run_uuid=self.run.uuid,
            session=session,
            version="0.1.0",
            frame_bytes=frame_bytes,
        )
        self.writer.set_state("running")
        self.writer.heartbeat()
        self.iteration = 0

    def record(self, count=1, *, flags=0, **values):
        for _ in range(count):
            self.iteration += 1
            known = {
                "return": float(self.iteration),
                "iterations": 1.0,
                "sps": 1e6,
                "entropy": 0.5,
                "seconds/collect": 0.001,
                "seconds/update": 0.003,
            } | values
            self.writer.publish(
                self.iteration * STEPS_PER_ITERATION,
                [known.get(metric.name, NAN) for metric in self.metrics],
                flags=flags,
            )
            self.writer.tick()

    def leave(self, state=None, exit_code=0, **ending):
        """End with or without a terminal state; `ending` is the content of exit.json."""
        if state:
            self.writer.set_state(state, exit_code=exit_code)
        self.writer.close()
        self.lock.release()
        if ending:
            runs.write_json(self.run.exit_path, ending)


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def trainer(tmp_path):
    made = Trainer(tmp_path / "runs")
    yield made
    made.writer.close()
    made.lock.release()


@pytest.fixture
def opened():
    """Factory of feeds that closes them."""
    feeds_open = []

    def open_feed(run, **how):
        feeds_open.append(LiveFeed(run, **how))
        return feeds_open[-1]

    yield open_feed
    for one in feeds_open:
        one.close()
    assert "feed" not in [thread.name for thread in threading.enumerate()]


def until(feed, holds):
    """Wait for the first snapshot for which `holds` is true."""
    end = time.monotonic() + DEADLINE_S
    while not holds(snapshot := feed.snapshot()):
        assert time.monotonic() < end, (
            snapshot.state,
            snapshot.cause,
            snapshot.progress,
            snapshot.notice,
            snapshot.log[-5:],
        )
        time.sleep(0.01)
    return snapshot


def returns(snapshot):
    """Returns in the chart of the newest hundred records."""
    curve = snapshot.series["return"]
    first, last = curve.extent("iteration")
    first = max(first, last - 100)
    return [
        None if point is None else point.mean
        for point in curve.view("iteration", first + 0.5, last + 0.5, round(last - first))
    ]


# A LIVING RUN


def test_the_first_snapshot_has_data_at_once(trainer, opened):
    trainer.record(50, **{"eval/return": 450.0})
    snapshot = opened(trainer.run).snapshot()
    assert snapshot.state == "running" and snapshot.run.env == "cartpole" and snapshot.run.short == "4f2a"
    assert (
        snapshot.progress.step == 5000 and snapshot.progress.steps == 1_000_000 and snapshot.progress.iterations == 50
    )
    assert returns(snapshot) == [float(n) for n in range(1, 51)]
    assert list(snapshot.series) == [
        "return",
        "sps",
        "eval/return",
        "entropy",
        "seconds/collect",
        "seconds/update",
        "iterations",
    ]
    assert {figure.metric: figure.value for figure in snapshot.figures} == {
        "return": 50.0,
        "sps": 1e6,
        "eval/return": 450.0,
    }
    assert (
        [share.name for share in snapshot.phases] == ["collect", "update", "other"]
        and snapshot.health
        and snapshot.ending is None
    )


def test_new_records_appear_and_nothing_new_is_the_same_object(trainer, opened):
    trainer.record(5)
    feed = opened(trainer.run)
    trainer.record(5)
    snapshot = until(feed, lambda one: one.progress.step == 1000)
    assert returns(snapshot) == [float(n) for n in range(1, 11)]
    trainer.leave("finished", exit=0, wall_s=12.0)
    ended = until(feed, lambda one: one.state == "finished" and one.ending and "0:00:12" in one.ending.sentence)
    for _ in range(3):
        feed.watch(False)  # which makes it look
        time.sleep(0.1)
    assert feed.snapshot() is ended and ended.version > snapshot.version


def test_many_records_at_once_and_a_ring_that_went_round(trainer, opened):
    feed = opened(trainer.run)
    trainer.record(3000)
    snapshot = until(feed, lambda one: one.progress.step == 300_000)
    assert returns(snapshot) == [float(n) for n in range(2901, 3001)]


def test_marks_are_set_once(trainer, opened):
    trainer.record(10)
    trainer.record(flags=FLAG_EVAL)
    trainer.record(5)
    feed = opened(trainer.run)
    trainer.writer.set_checkpoint(1500)
    marks = until(feed, lambda one: any(mark.kind == "checkpoint" for mark in one.marks)).marks
    trainer.record(flags=FLAG_CHECKPOINT)  # the record that tells of the same checkpoint
    trainer.record(entropy=NAN)
    marks = until(feed, lambda one: one.progress.step == 1800).marks
    assert [(mark.kind, mark.step) for mark in marks] == [
        ("eval", 1100.0),
        ("checkpoint", 1500.0),
        ("not_finite", 1800.0),
    ]
    assert marks[0].iteration == 11.0


def test_checkpoints_of_before_are_marked(trainer, opened):
    trainer.record(20)
    for step in (500, 1500):
        (trainer.run.checkpoints_path / f"step-{step:012d}").mkdir(parents=True)
    (trainer.run.checkpoints_path / "step-x").mkdir()
    assert [mark.step for mark in opened(trainer.run).snapshot().marks] == [500.0, 1500.0]


def test_rate_and_remaining_time(trainer, opened, monkeypatch):
    clock = [time.clock_gettime_ns(BOOTTIME) - 10**10]
    monkeypatch.setattr("operant.runs.metrics.writer.time.clock_gettime_ns", lambda which: clock[0])
    for _ in range(100):
        clock[0] += 10**8
        trainer.record()
    snapshot = opened(trainer.run).snapshot()
    assert (
        snapshot.state == "running"
        and snapshot.progress.eta_s == pytest.approx((1_000_000 - 10_000) / 1000.0, rel=0.02)
        and snapshot.progress.done_at
    )


# ENDINGS


@pytest.mark.parametrize(
    "state,code,ending,word,said",
    [
        ("finished", 0, {"exit": 0, "wall_s": 161.0}, "finished", "all steps done in 0:02:41"),
        ("stopped", 130, {"exit": 130}, "stopped", "stopped, without a checkpoint"),
        ("failed", 1, {"exit": 1}, "failed", "ended by an error: ValueError: no"),
        ("diverged", 5, {"exit": 5}, "diverged", "training produced values that are not finite"),
        ("gpu_fault", 7, {"exit": 7}, "gpu_fault", "the GPU failed"),
        ("oom", 7, {"exit": 7}, "oom", "out of memory"),
        (
            None,
            0,
            {"signal": signal.SIGKILL},
            "crashed",
            "killed by SIGKILL (kill -9, a job manager, or a memory limit)",
        ),
        (None, 0, {"signal": signal.SIGKILL, "oom_kill": 1}, "crashed", "killed by the machine's out-of-memory killer"),
        (None, 0, {}, "crashed", "ended without a terminal state"),
    ],
)
def test_ending_of_each_terminal_state(trainer, opened, state, code, ending, word, said):
    trainer.record(10, **{"eval/return": 460.0})
    feed = opened(trainer.run)
    log = (
        'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: no\n'
        if state == "failed"
        else "13:00:00 hello\n"
    )
    trainer.run.log_path.write_text(f"{SESSION_MARK}x\n{log}")
    trainer.leave(state, code, **ending)
    snapshot = until(feed, lambda one: one.state == word and one.ending is not None and said in one.ending.sentence)
    assert (
        snapshot.ending.commands[-1] == "operant show 4f2a"
        and "eval 460.0 (target 475 not reached)" in snapshot.ending.facts
    )
    assert (snapshot.ending.traceback[-1:] == ("ValueError: no",)) == (state == "failed")
    assert snapshot.progress.eta_s is None and snapshot.agent_absent == "the run has ended" and snapshot.system is None
    assert returns(snapshot) == [float(n) for n in range(1, 11)]


def test_a_run_that_was_killed_is_called_crashed_with_its_cause(started, opened):
    run = started("forever")
    feed = opened(run)
    until(feed, lambda one: one.state == "running" and one.progress.step)
    os.kill(runs.holder(run.path), signal.SIGKILL)
    snapshot = until(feed, lambda one: one.state not in ("running", "stalled"))
    assert (snapshot.state, snapshot.cause) == ("crashed", "killed by SIGKILL")  # never "unknown" in between


@pytest.mark.slow
def test_a_suspended_trainer_says_what_its_process_does(started, opened):
    run = started("forever")
    feed = opened(run)
    until(feed, lambda one: one.state == "running")
    pid = runs.holder(run.path)
    os.kill(pid, signal.SIGSTOP)
    snapshot = until(feed, lambda one: one.state == "suspended")
    assert "stopped by a signal (T)" in snapshot.cause and f"kill -CONT {pid}" in snapshot.cause
    os.kill(pid, signal.SIGCONT)
    until(feed, lambda one: one.state == "running")


def test_a_run_that_never_started_has_a_state_and_no_records(tmp_path, opened):
    run = runs.create(tmp_path / "runs", "cartpole-ppo-4f2a", "x", {})
    feed = opened(run)
    assert feed.snapshot().state == "starting" and not feed.snapshot().series
    runs.update_document(run.path, pid=1)
    run.log_path.write_text("error: ppo.toml has 1 problem\n  ppo.toml:3: unknown key\n")
    # after the log, as a trainer does: the monitor may look between the two
    runs.write_json(run.exit_path, {"exit": 2})
    snapshot = until(feed, lambda one: one.state == "failed")
    assert snapshot.ending.traceback[0] == "error: ppo.toml has 1 problem" and snapshot.figures == ()


# FILES THAT CHANGE UNDER THE READER


@pytest.mark.slow
def test_a_resume_is_followed_and_what_it_repeats_is_dropped(trainer, opened):
    trainer.record(60)
    feed = opened(trainer.run)
    until(feed, lambda one: one.progress.step == 6000)
    trainer.leave(exit=137)
    until(feed, lambda one: one.state == "crashed")
    again = Trainer(None, trainer.run, session=2)
    again.iteration = 40  # it begins at a checkpoint of step 4000
    for value in range(5):
        again.record(**{"return": 1000.0 + value})
    try:
        snapshot = until(feed, lambda one: one.progress.step == 4500)
        assert snapshot.state == "running"
        assert returns(snapshot) == [*map(float, range(1, 41)), 1000.0, 1001.0, 1002.0, 1003.0, 1004.0]
        assert [(mark.kind, mark.step) for mark in snapshot.marks] == [("resume", 4000.0)]
    finally:
        again.leave()


def test_a_truncated_file_leaves_the_last_frame(trainer, opened):
    trainer.record(10)
    feed = opened(trainer.run)
    size = trainer.run.metrics_path.stat().st_size
    content = trainer.run.metrics_path.read_bytes()
    (trainer.run.path / "copy").write_bytes(content)
    os.rename(trainer.run.path / "copy", trainer.run.metrics_path)  # the writer keeps its own
    until(feed, lambda one: not one.notice)
    with open(trainer.run.metrics_path, "r+b") as file:
        file.truncate(5000)
    snapshot = until(feed, lambda one: one.state == "unreadable")
    assert (
        "showing the last values" in snapshot.notice
        and "metrics.mm" in snapshot.cause
        and returns(snapshot) == [float(n) for n in range(1, 11)]
    )
    (trainer.run.path / "copy").write_bytes(content[:size])
    os.rename(trainer.run.path / "copy", trainer.run.metrics_path)
    assert until(feed, lambda one: one.state != "unreadable").progress.step == 1000


def test_a_deleted_file_is_still_followed_until_it_is_put_back(trainer, opened):
    trainer.record(10)
    feed = opened(trainer.run)
    trainer.run.metrics_path.unlink()
    trainer.record(5)
    snapshot = until(feed, lambda one: one.progress.step == 1500)
    assert snapshot.state == "running" and "deleted" in until(feed, lambda one: one.notice).notice
    trainer.writer.restore()
    trainer.record(5)
    snapshot = until(feed, lambda one: one.progress.step == 2000 and not one.notice)
    assert returns(snapshot) == [float(n) for n in range(1, 21)]


@pytest.mark.slow
def test_a_deleted_folder_leaves_the_last_frame(trainer, opened):
    trainer.record(10)
    feed = opened(trainer.run)
    os.rename(trainer.run.path, trainer.run.path.with_name("elsewhere"))
    snapshot = until(feed, lambda one: one.state == "unreadable")
    assert "deleted" in snapshot.cause and returns(snapshot) == [float(n) for n in range(1, 11)]
    os.rename(trainer.run.path.with_name("elsewhere"), trainer.run.path)
    until(feed, lambda one: one.state == "running")


@pytest.mark.parametrize("content", [b"", b"nonsense" * 5000, None])
def test_an_unreadable_file_is_a_state_and_no_error(tmp_path, opened, content):
    run = runs.create(tmp_path / "runs", "cartpole-ppo-4f2a", "x", {})
    if content is None:
        run.metrics_path.mkdir()
    else:
        run.metrics_path.write_bytes(content)
    snapshot = opened(run).snapshot()
    assert snapshot.state == "unreadable" and "metrics.mm" in snapshot.cause


def test_a_run_on_another_machine_is_remote(trainer, opened):
    trainer.record(10)
    runs.update_document(trainer.run.path, host="gpu03", boot_id="another")
    trainer.lock.release()
    feed = opened(runs.load(trainer.run.path))
    assert feed.snapshot().state == "remote" and "gpu03" in feed.snapshot().cause
    feed.watch(True)
    assert "on the machine" in until(feed, lambda one: one.agent_absent).agent_absent


@pytest.mark.parametrize(
    "name", ["\x1b]52;c;aGk=\x07", "[@click=app.quit]x", "\u202egnp.exe", "x" * 5000, "a\x00b", "\x9b31m", "\ud800"]
)
def test_hostile_text_is_harmless(trainer, opened, name):
    runs.update_document(
        trainer.run.path,
        env=name,
        algo=name,
        host=name,
        device_name=name,
        version=name,
        phase=name,
        paused_by=name,
        stopped_by=name,
    )
    trainer.record(3)
    trainer.writer.event(name)
    raw = name.encode("utf-8", "surrogatepass")
    trainer.run.log_path.write_bytes(raw + b"\nerror: " + raw + b"\n")
    trainer.run.config_path.write_bytes(raw)
    for state in ("paused", "failed"):
        trainer.writer.set_state(state)
        if state == "failed":
            trainer.leave()
        for word in words_of(opened(runs.load(trainer.run.path)).snapshot()):
            assert word == text.safe(word, 10_000, lines=True), repr(word)


def words_of(value):
    """All texts in a snapshot, recursively."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from words_of(part)


# HISTORY


@pytest.fixture
def with_history(trainer):
    """Run of 5,000 records: the ring buffer has the newest 1,024, the history those it had time to copy."""
    past = History(
        trainer.run.path / "history",
        trainer.run.metrics_path,
        writer=trainer.writer,
        run_uuid=trainer.run.uuid,
        session=1,
    )
    past.start()
    for k in range(50):
        trainer.record(100, flags=FLAG_EVAL if k % 10 == 0 else 0)
        past.sync()
        end = time.monotonic() + DEADLINE_S
        with Reader(trainer.run.metrics_path) as reader:
            while reader.status().history_synced < (k + 1) * 100:
                assert time.monotonic() < end
                time.sleep(0.002)
    past.close()
    return trainer


def test_the_history_joins_the_ring(with_history, opened):
    trainer = with_history
    feed = opened(trainer.run)
    assert feed.snapshot().series["return"].extent("iteration")[0] > 3900  # at once, what the ring has
    snapshot = until(feed, lambda one: len([mark for mark in one.marks if mark.kind == "eval"]) == 500)
    curve = snapshot.series["return"]
    assert curve.extent("step") == (0.0, 500_000.0) and curve.extent("iteration") == (0.0, 5000.0)
    trainer.record(10)
    snapshot = until(feed, lambda one: one.progress.step == 501_000)
    assert snapshot.series["return"].extent("iteration")[1] == 5010.0 and returns(snapshot) == [
        float(n) for n in range(4911, 5011)
    ]


def test_a_replay_needs_the_folder_alone(with_history, opened, tmp_path):
    trainer = with_history
    trainer.leave("finished", exit=0, wall_s=12.0)
    os.rename(trainer.run.path, tmp_path / "copied")
    (tmp_path / "copied" / "metrics.mm").unlink()
    feed = opened(runs.load(tmp_path / "copied"))
    snapshot = until(feed, lambda one: one.series)
    assert snapshot.series["return"].extent("step") == (0.0, 500_000.0)
    assert (
        snapshot.state == "finished"
    )  # without a metrics file there is the exit code, and only a worker that is done ends with 0


def test_a_damaged_history_is_no_error(with_history):
    trainer = with_history
    for path in (trainer.run.path / "history").iterdir():
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2 : len(raw) // 2 + 100] = b"x" * 100
        path.write_bytes(raw[:-3])
    past = load_history(trainer.run, METRICS)
    assert past is not None and 0 < past.timeline.table.records < 5000
    assert load_history(trainer.run, [Metric("other")]).timeline.table.curves["other"].extent("step") is None


def test_a_viewer_that_slept_asks_for_the_history(trainer):
    trainer.record(10)
    reading = RunReader(trainer.run)
    reading.poll(0.0)
    reading.wants_history = False
    trainer.record(500)
    reading.poll(1.0)
    assert not reading.wants_history
    trainer.record(2000)
    reading.poll(2.0)
    assert reading.wants_history and reading.timeline.table.last[0] == 251_000.0
    reading.close()


# LOOKING BACK


def test_seek_shows_an_earlier_step(tmp_path, opened):
    spec = MetricSpec("entropy", figure="entropy", order=40, thresholds=(Threshold("warn", below=0.1),))
    trainer = Trainer(
        tmp_path / "runs", specs=(spec, MetricSpec("return", figure="return", higher_better=True, order=10))
    )
    trainer.record(300, entropy=0.6)
    trainer.record(300, entropy=0.2, **{"return": -5.0})
    trainer.leave("finished", exit=0, wall_s=1.0)
    feed = opened(trainer.run)
    newest = feed.snapshot()
    feed.seek(20_000.0)
    then = feed.snapshot()
    figures = {figure.metric: figure for figure in then.figures}
    assert (
        then.at_step == 20_000.0
        and then.progress.step == 20_000
        and then.progress.iterations == 200
        and figures["return"].value == 200.0
    )
    assert figures["return"].best >= 200.0 and figures["entropy"].value == pytest.approx(0.6)
    assert (
        then.version != newest.version
        and feed.snapshot() is then
        and then.series is newest.series
        and then.ending == newest.ending
    )
    assert any(finding.title.startswith("entropy 0.6") for finding in then.health) and then.phases
    for odd in (-5.0, 1e18):
        feed.seek(odd)
        assert feed.snapshot().at_step == odd and feed.snapshot().figures
    feed.seek(None)
    assert feed.snapshot() is newest


@pytest.mark.parametrize("step", [None, 29_950.0, 1_550.0])
def test_header_charts_and_health_show_one_value_and_the_label_its_step(tmp_path, opened, step):
    specs = [
        MetricSpec(name, label=name, figure=name, thresholds=(Threshold("warn", below=0.01, records=0.5),))
        for name in ("entropy", "sps")
    ]
    trainer = Trainer(tmp_path / "runs", specs=specs)
    for n in range(300):
        trainer.record(entropy=0.9 - n / 1000, sps=1e6 + 1000 * n, **{"eval/return": float(n)})
    trainer.leave("finished", exit=0, wall_s=1.0)
    feed = opened(trainer.run)
    feed.seek(step)
    snapshot = feed.snapshot()
    model = Model(snapshot, View(at=step))
    titles = " | ".join(finding.title for finding in snapshot.health)
    for figure in snapshot.figures:
        said = measured(figure)
        assert f"{figure.metric} {said}" in titles, (figure, titles)
    entropy = next(figure.value for figure in snapshot.figures if figure.metric == "entropy")
    assert entropy == pytest.approx(0.9 - (snapshot.progress.step / STEPS_PER_ITERATION - 1) / 1000)
    assert f"eval {text.number(snapshot.progress.step / STEPS_PER_ITERATION - 1)}" in titles
    assert step is None or f"at {text.count(snapshot.progress.step)} steps" in model.mode_sentence


# REQUESTS, PICTURES


def test_on_a_full_disk_a_stop_is_a_signal_and_said(started, opened, monkeypatch):
    feed = opened(started("forever"))
    until(feed, lambda one: one.state == "running")
    real = os.open

    def full(path, flags, *mode, dir_fd=None):
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, flags, *mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", full)
    feed.request("stop")
    until(feed, lambda one: any("(No space left on device). SIGTERM was sent instead" in line.text for line in one.log))
    until(feed, lambda one: one.state == "stopped")


def test_a_request_reaches_the_trainer_and_its_answer_the_log(trainer, opened):
    trainer.record(3)
    feed, inbox = opened(trainer.run), Inbox(trainer.run.path, trainer.run.uuid, report=lambda line: None)
    feed.request("pause")
    requests = []
    end = time.monotonic() + DEADLINE_S
    while not requests:
        assert time.monotonic() < end
        requests = inbox.poll()
        time.sleep(0.01)
    assert [request.verb for request in requests] == ["pause"]
    inbox.settle(requests[0], "refused", "not now")
    snapshot = until(feed, lambda one: "not now" in one.notice)
    assert [(line.text, line.level) for line in snapshot.log] == [
        ("the trainer refused to pause: not now", "bad")
    ] and snapshot.notice_level == "bad"


@pytest.mark.parametrize(
    ("result", "said", "notice", "level"),
    [
        ("done", "checkpoints/step-000000000300", "saved checkpoints/step-000000000300", "ok"),
        ("failed", "no space left", "the trainer refused to save a checkpoint: no space left", "bad"),
    ],
)
def test_a_checkpoint_is_told_of_once_it_is_safe_and_not_before(trainer, opened, result, said, notice, level):
    trainer.record(3)
    feed, inbox = opened(trainer.run), Inbox(trainer.run.path, trainer.run.uuid, report=lambda line: None)
    feed.request("checkpoint")
    end = time.monotonic() + DEADLINE_S
    while not (requests := inbox.poll()):
        assert time.monotonic() < end
        time.sleep(0.01)
    inbox.settle(requests[0], "accepted", "a checkpoint follows this iteration")
    trainer.record()
    time.sleep(0.1)  # several looks of the one who waits
    assert not until(feed, lambda one: one.progress.step == 400).notice
    inbox.settle(requests[0], result, said)
    snapshot = until(feed, lambda one: one.notice)
    assert (snapshot.notice, snapshot.notice_level) == (notice, level)
    assert [line.text for line in snapshot.log] == ([notice] if level == "bad" else []), (
        "what was done is the trainer's to tell"
    )


def test_a_request_that_cannot_be_sent_is_refused_in_words(trainer, opened):
    trainer.leave("finished", exit=0)
    feed = opened(trainer.run)
    feed.request("stop")
    assert "not training" in until(feed, lambda one: one.notice).notice


def test_a_readonly_feed_writes_nothing(trainer, opened):
    trainer.record(3)
    before = sorted(os.listdir(trainer.run.path))
    feed = opened(trainer.run, readonly=True)
    feed.request("stop")
    feed.watch(True)
    assert "read-only" in until(feed, lambda one: one.notice).notice and feed.readonly
    assert sorted(os.listdir(trainer.run.path)) == before


def test_pictures_are_asked_for_again_and_again_while_they_are_wanted(tmp_path, opened, monkeypatch):
    monkeypatch.setattr(feeds, "_WATCH_S", 0.1)
    trainer = Trainer(tmp_path / "runs", frame_bytes=4 * 8 * 8 * 3)
    try:
        trainer.record(3)
        inbox, feed = Inbox(trainer.run.path, trainer.run.uuid, report=lambda line: None), opened(trainer.run)
        assert feed.snapshot().agent_absent == ""
        feed.watch(True, mode="sampled", size=8)
        seen, end = [], time.monotonic() + DEADLINE_S
        while len(seen) < 3:
            assert time.monotonic() < end
            seen += [
                (request.verb, request.arguments["mode"], request.arguments["size"], request.left_s < 6)
                for request in inbox.poll()
            ]
            time.sleep(0.01)
        assert set(seen) == {("watch", "sampled", 8, True)}
        assert "waiting" in feed.snapshot().agent_absent
        pixels = bytes(range(192)) * 4
        trainer.writer.frame(300, memoryview(pixels), lanes=4, height=8, width=8, mode="sampled")
        frame = until(feed, lambda one: one.frame is not None).frame
        assert frame[1:] == (300, 4, 8, 8, pixels, "sampled")
        feed.watch(False)
        until(feed, lambda one: one.frame is None)
        trainer.leave("finished")
    finally:
        trainer.lock.release()


def test_missing_frames_have_the_runs_reason(trainer, opened):
    trainer.record(3)
    feed = opened(trainer.run)
    feed.watch(True)
    assert "does not send frames" in until(feed, lambda one: one.agent_absent).agent_absent
    trainer.writer.event("the agent cannot be watched: ZeroDivisionError: division by zero")
    assert (
        until(feed, lambda one: one.agent_absent.startswith("Zero")).agent_absent
        == "ZeroDivisionError: division by zero"
    )
    feed.watch(False)
    feed.watch(True)
    assert until(feed, lambda one: one.agent_absent).agent_absent.startswith("Zero"), "asking once more helps nothing"
    runs.update_document(trainer.run.path, draws=False)
    trainer.leave(exit=137)
    again = Trainer(None, trainer.run, session=2, draws=False)
    again.record(3)
    until(feed, lambda one: one.agent_absent == "cartpole draws no picture")
    again.leave()


# LOG AND EVENTS


def test_events_and_log_tell_each_thing_once(trainer, opened):
    now = time.strftime("%H:%M:%S")
    trainer.run.log_path.write_text(f"{now} started\n{now} eval 500.0\n  a line of somebody else\n")
    trainer.writer.event("eval 500.0", code="eval")
    trainer.writer.event("checkpoint failed", level="error", code="checkpoint")
    feed = opened(trainer.run)
    log = feed.snapshot().log
    assert [(line.text, line.is_event) for line in log if line.is_event] == [
        ("eval 500.0", True),
        ("checkpoint failed", True),
    ]
    assert [line.text for line in log if not line.is_event] == ["started", "  a line of somebody else"] and log[
        -1
    ].level == "bad"
    with open(trainer.run.log_path, "a") as file:
        file.write(f"{now} late\n")
    until(feed, lambda one: one.log[-1].text == "late")
    trainer.writer.event("late")  # its event comes a moment after its line
    log = until(feed, lambda one: one.log[-1].is_event and one.log[-1].text == "late").log
    assert [line.text for line in log].count("late") == 1


def line(text, clock=""):
    return LogLine(clock, "ok", text)


def event(text, clock, level="ok"):
    return LogLine(clock, level, text, True)


def event_log(*takes):
    made = EventLog()
    for lines, events in takes:
        made.add_new(lines, events)
    return [(one.text, one.is_event) for one in made.lines]


def test_lines_and_events_stand_in_their_order():
    lines, events = (
        [line("a", "10:00:00"), line("a2"), line("b", "10:00:05")],
        [event("e", "10:00:02"), event("f", "10:00:05")],
    )
    assert event_log((lines, events)) == [("a", False), ("a2", False), ("e", True), ("b", False), ("f", True)]
    night = [line("a", "23:59:50"), line("b", "23:59:59"), line("c", "00:00:09"), line("d", "00:00:20")]
    late = [event("e", "23:59:55"), event("f", "00:00:02"), event("g", "00:00:30")]
    assert [text for text, _ in event_log((night, late))] == ["a", "e", "b", "f", "c", "d", "g"]


def test_a_line_and_its_event_are_one_whatever_the_clocks_of_another_time_zone_say():
    lines = [line("eval 1", "03:00:00"), line("  a warning"), line("eval 2", "03:00:01")]
    events = [
        event("eval 1", "09:00:00"),
        event("checkpoint", "09:00:00"),
        event("eval 2", "09:00:01"),
        event("paused", "09:00:09"),
    ]
    wanted = [("eval 1", True), ("  a warning", False), ("checkpoint", True), ("eval 2", True), ("paused", True)]
    assert event_log((lines, events)) == wanted
    assert event_log((lines, []), ([], events[2:])) == [
        ("eval 1", False),
        ("  a warning", False),
        ("eval 2", True),
        ("paused", True),
    ]
    assert event_log(([], events[:1]), (lines[:1], [])) == [("eval 1", True)]


def test_of_many_events_none_is_told_twice():
    lines, events = (
        [line(f"eval {n}", "10:00:00") for n in range(900)],
        [event(f"eval {n}", "10:00:00") for n in range(900)],
    )
    wanted = [(f"eval {n}", True) for n in range(900)]
    assert (
        event_log((lines, events))
        == event_log((lines, []), ([], events))
        == event_log(([], events), (lines, []))
        == wanted
    )


def test_what_two_sessions_said_alike_was_said_twice():
    first = [line(SESSION_MARK + "1"), line("eval 500.0", "10:00:00")]
    second = [line(SESSION_MARK + "2"), line("eval 500.0", "11:00:00")]
    wanted = [
        (SESSION_MARK + "1", False),
        ("eval 500.0", False),
        (SESSION_MARK + "2", False),
        ("checkpoint", True),
        ("eval 500.0", True),
    ]
    # The clock of the second session's first event would put it before the first session's lines.
    events = [event("checkpoint", "09:59:00"), event("eval 500.0", "11:00:00")]
    assert event_log(([*first, *second], events)) == wanted
    assert event_log((first, [event("eval 500.0", "10:00:00")]), (second, events)) == [
        wanted[0],
        ("eval 500.0", True),
        *wanted[2:],
    ]


def test_an_error_is_told_once_and_before_its_details():
    long = "diverged in iteration 7: " + "x" * 300
    lines = [line("step", "10:00:00"), LogLine("", "bad", f"error: {long}"), line("  ppo.toml:3: a detail")]
    made = EventLog()
    made.add_new(lines, [event(long[:200] + "…", "10:00:01", "bad")])
    assert list(made.lines) == [lines[0], LogLine("10:00:01", "bad", long, True), lines[2]]
    trace = [line("Traceback (most recent call last):"), line("ValueError: no")]
    assert event_log((trace, [event("ValueError: no", "10:00:01", "bad")])) == [
        ("Traceback (most recent call last):", False),
        ("ValueError: no", True),
    ]


@pytest.mark.parametrize(
    "line,wanted",
    [
        ("14:03:11 hello", ("14:03:11", "ok", "hello")),
        ("a line", ("", "ok", "a line")),
        ("error: it broke", ("", "bad", "error: it broke")),
        ("14:03:11 Traceback (most recent", ("14:03:11", "bad", "Traceback (most recent")),
        (f"{LEFT_OUT}9 KiB", ("", "warn", f"{LEFT_OUT}9 KiB")),
    ],
)
def test_a_line_of_the_log_as_it_is_shown(line, wanted):
    assert log_line(line) == LogLine(*wanted)


# THREADS


def test_many_snapshots_while_a_trainer_writes(trainer, opened):
    feed, over, seen = opened(trainer.run), threading.Event(), []
    feed.set_poll_interval(0.05)

    def look():
        version = 0
        while not over.is_set():
            snapshot = feed.snapshot()
            assert snapshot.version >= version
            version = snapshot.version
            for curve in snapshot.series.values():
                if extent := curve.extent("step"):
                    curve.view("step", *extent, 40, 0.6)
            seen.append(version)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for part in range(4):
        for _ in range(25):
            trainer.record(20)
            time.sleep(0.005)
        wait_until(lambda part=part: len(set(seen)) > part)
    until(feed, lambda one: one.progress.step == 200_000)
    over.set()
    for thread in threads:
        thread.join()
    assert len(set(seen)) > 3


def test_closing_ends_the_threads(trainer):
    before = set(threading.enumerate())
    feed = LiveFeed(trainer.run)
    feed.snapshot()
    feed.close()
    feed.close()
    end = time.monotonic() + DEADLINE_S
    while set(threading.enumerate()) - before:
        assert time.monotonic() < end, threading.enumerate()
        time.sleep(0.01)


def test_process_state_is_read_from_proc():
    own = {"pid": os.getpid(), "pid_start_ticks": runs.start_ticks(os.getpid()), "host": runs.host()}
    assert process_state(own) in ("R", "S")
    for other in ({"pid_start_ticks": 1}, {"pid": None}, {"host": "elsewhere"}, {"pid": 1 << 40}):
        assert process_state(own | other) is None


# THE PICKER


def test_listing_has_a_row_per_run(tmp_path, started):
    root = tmp_path / "runs"
    done = Trainer(root)
    done.record(5, **{"eval/return": 480.0})
    done.leave("finished", exit=0)
    live = started("forever", "cartpole-ppo-77b0")
    (root / "odd").mkdir()
    found = {}
    end = time.monotonic() + DEADLINE_S
    listing = RunListing(runs.Scope(root))
    while getattr(found.get("cartpole-ppo-77b0"), "sps", "-") == "-":  # its first record may have none
        assert time.monotonic() < end
        found = {row.id: row for row in listing.rows()}
    assert set(found) == {"cartpole-ppo-4f2a", "cartpole-ppo-77b0"}
    row = found["cartpole-ppo-4f2a"]
    assert (row.state, row.env, row.algo, row.score, row.sps, row.progress) == (
        "finished",
        "cartpole",
        "ppo",
        "480.0",
        "-",
        "100 %",
    )
    assert (found["cartpole-ppo-77b0"].state, found["cartpole-ppo-77b0"].sps) == ("running", "4.71 M") and found[
        "cartpole-ppo-77b0"
    ].path == str(live.path)
    assert {row.id for row in RunListing(runs.Scope(root)).rows()} == set(found)


def test_a_run_that_no_longer_changes_is_described_once(tmp_path, monkeypatch):
    done = Trainer(tmp_path / "runs")
    done.record(5)
    done.leave("finished", exit=0)
    listing, described = RunListing(runs.Scope(tmp_path / "runs")), []
    real = runs.describe
    monkeypatch.setattr("monitor.data.listing.runs.describe", lambda run: described.append(run.id) or real(run))
    first = listing.rows()
    assert [row._replace(age="") for row in listing.rows()] == [row._replace(age="") for row in first] and len(
        described
    ) == 1
    runs.update_document(done.run.path, env="acrobot")
    assert listing.rows()[0].env == "acrobot" and len(described) == 2
    with contextlib.suppress(FileNotFoundError):
        os.unlink(done.run.exit_path)
    listing.rows()
    assert len(described) == 3
