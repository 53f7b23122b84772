"""Requests and the thread that accepts them, without a loop. No torch. (Signals: tests of the worker.)"""

import os
import signal
import threading
import time

import pytest
from waiting import DEADLINE_S, wait_until

from operant import runs
from operant.errors import StoppedError
from operant.runs import control
from operant.runs.control import Answer, Inbox, Request
from operant.training import requests
from operant.training.requests import Heartbeat, Requests, RequestThread, Stop


def request(verb, name="1", by="alice@gpu03"):
    return Request(name, verb, {}, by, 60.0, {})


def answers(asked):
    found = []
    while (one := asked.take_answer()) is not None:
        found.append((one[0].name, one[1], one[2]))
    return found


def test_the_first_who_asks_for_a_stop_counts_and_all_are_answered():
    asked = Requests()
    assert not asked.pending
    asked.ask(request("stop", "1", "alice@gpu03"))
    asked.ask(request("stop", "2", "bob@gpu03"))
    asked.ask_stop(Stop(15, "SIGTERM"))
    assert asked.stop == Stop(0, "alice@gpu03") and asked.pending
    asked.answer("stop", "done", "stopped")
    assert answers(asked) == [("1", "done", "stopped"), ("2", "done", "stopped")]
    asked.answer("stop", "done", "again")
    assert answers(asked) == []


def test_pause_and_unpause_requests_are_answered():
    asked = Requests()
    assert asked.ask(request("pause", "1")) == "pauses after this iteration"
    assert (
        asked.ask(request("pause", "2", "bob@gpu03")) == "already paused by alice@gpu03"
        and asked.paused_by == "alice@gpu03"
    )
    asked.waiting = True
    asked.answer("pause", "done", "paused")
    assert asked.ask(request("unpause", "3")) == "resumes" and asked.paused_by is None
    asked.waiting = False
    asked.answer("unpause", "done", "it trains")
    assert answers(asked) == [("1", "done", "paused"), ("2", "done", "paused"), ("3", "done", "it trains")]


def test_unpause_without_or_before_a_pause_is_answered():
    asked = Requests()
    asked.ask(request("unpause", "1"))
    asked.ask(request("pause", "2"))
    asked.ask(request("unpause", "3", "bob@gpu03"))
    assert not asked.pending
    assert answers(asked) == [
        ("1", "done", "the run was not paused"),
        ("2", "failed", "cancelled by bob@gpu03"),
        ("3", "done", "the run had not paused yet"),
    ]


def test_a_pause_right_after_an_unpause_keeps_the_loop_paused():
    """The loop has not polled in between: it stays paused, and the requester of the unpause is answered."""
    asked = Requests()
    asked.ask(request("pause", "1"))
    asked.waiting = True
    asked.answer("pause", "done", "paused")
    asked.ask(request("unpause", "2"))
    asked.ask(request("pause", "3", "bob@gpu03"))
    assert asked.paused_by == "bob@gpu03"
    assert answers(asked) == [("1", "done", "paused"), ("2", "failed", "paused again by bob@gpu03")]


def test_a_checkpoint_answers_only_the_requests_made_before_it():
    asked = Requests()
    asked.ask(request("checkpoint", "1"))
    taken = asked.take("checkpoint")
    asked.ask(request("checkpoint", "2"))
    asked.answer_all(taken, "done", "first")
    assert answers(asked) == [("1", "done", "first")] and asked.checkpoint
    asked.answer("checkpoint", "failed", "second")
    assert answers(asked) == [("2", "failed", "second")]


def while_busy(act):
    """Act in a thread while the main thread is in an uninterruptible C call, which delays its signal handlers."""
    numbers, over = {signal.SIGTERM, signal.SIGINT}, threading.Lock()
    over.acquire()

    def acting():
        try:
            time.sleep(0.1)  # until the main thread waits below
            act()
        finally:
            over.release()

    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        actor = threading.Thread(target=acting)
        actor.start()
        over.acquire(timeout=DEADLINE_S)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    actor.join()


def test_a_signal_is_announced_once_while_the_main_thread_is_busy():
    asked, reporter, heard = Requests(), Reporter(), []

    def act():
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: reporter.said)
        heard.append(asked.stop)
        os.kill(os.getpid(), signal.SIGTERM)

    with asked:
        asked.begin()
        asked.reporter = reporter
        while_busy(act)
    asked.restore()
    assert heard == [Stop(signal.SIGTERM, "SIGTERM")] and asked.stop == heard[0] and reporter.ended == 1
    ((line, *_),) = reporter.said
    assert line.startswith("SIGTERM: stops after this iteration with a checkpoint, however long both take")


def test_a_stop_waits_for_an_import():
    """An interrupted import leaves a partial module behind."""
    asked, done = Requests(), []
    with pytest.raises(StoppedError, match="before the first iteration"), asked:
        with asked.deferring_stops():
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(lambda: asked.stop)
            done.append("imported")
        done.append("too far")
    asked.restore()
    assert done == ["imported"]


def test_a_second_ctrl_c_ends_the_process_at_once(monkeypatch):
    monkeypatch.setattr(requests, "_ONE_PRESS_S", 0.0)
    asked, reporter, left = Requests(), Reporter(), []
    monkeypatch.setattr(requests.os, "_exit", left.append)

    def act():
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: reporter.said)
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: left)

    with asked:
        asked.begin()
        asked.reporter = reporter
        while_busy(act)
    asked.restore()
    assert left[0] == 137 and reporter.left == [137]


def test_a_stop_ends_a_start_that_hangs_in_c(monkeypatch):
    monkeypatch.setattr(requests, "START_DEADLINE_S", 0.01)
    asked, left = Requests(), []
    monkeypatch.setattr(requests.os, "_exit", left.append)

    def act():
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: left)

    with pytest.raises(StoppedError), asked:
        while_busy(act)
    asked.restore()
    assert left[0] == 130


def test_a_signal_to_a_forked_child_does_not_stop_the_trainer():
    asked, reporter = Requests(), Reporter()
    with asked:
        asked.begin()
        asked.reporter = reporter
        heard, begun = os.pipe()
        if not (child := os.fork()):
            os.write(begun, b"!")
            time.sleep(600)
            os._exit(0)
        try:
            os.read(heard, 1)
            os.kill(child, signal.SIGTERM)
            time.sleep(0.2)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(heard)
            os.close(begun)
    asked.restore()
    assert asked.stop is None and not reporter.said


# ----------------------------------------------------------------------------------------------------------------------
# the attendant


class Reporter:
    def __init__(self):
        self.said, self.acknowledged, self.watched, self.left, self.ended = [], [], [], [], 0

    def say(self, text, *, level="info", code="note"):
        self.said.append((text, level, code))

    def announce_stop(self):
        self.ended += 1

    def announce_exit(self, exit_code):
        self.left.append(exit_code)

    def watch(self, mode, size, until_s):
        self.watched.append((mode, size, until_s - time.monotonic()))

    def acknowledge(self, sequence, result):
        self.acknowledged.append((sequence, control.RESULTS[result]))


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = runs.create(tmp_path / "runs", "cartpole-ppo-4f2a", "x", {})
    lock = runs.acquire(made.path)
    yield made._replace(document=runs.update_document(made.path, **runs.identity()))
    lock.release()


def test_requests_are_answered_at_once_by_name_and_again_when_they_are_done(run):
    asked, reporter = Requests(), Reporter()
    with RequestThread(Inbox(run.path, run.uuid, report=reporter.said.append), asked, reporter):
        first, second = control.send(run, "checkpoint"), control.send(run, "pause")
        assert control.answer(run, first, DEADLINE_S) == Answer("accepted", "a checkpoint follows this iteration")
        assert control.answer(run, second, DEADLINE_S).result == "accepted" and asked.checkpoint and asked.paused_by
        wait_until(lambda: len(reporter.said) == 2)
        by = f"by {control.own_name()}"
        assert reporter.said == [
            (f"checkpoint asked for {by}", "info", "control"),
            (f"pause asked for {by}", "info", "control"),
        ]
        assert reporter.acknowledged == [(1, "accepted"), (2, "accepted")]
        asked.answer("checkpoint", "done", "checkpoints/step-1")
        assert control.answer(run, first, DEADLINE_S, final=True) == Answer("done", "checkpoints/step-1")
        asked.answer("pause", "done", "paused")
        assert control.answer(run, second, DEADLINE_S, final=True) == Answer("done", "paused")
        wait_until(lambda: len(reporter.acknowledged) == 3)
        assert reporter.acknowledged[2] == (2, "done"), "the status words tell of the newest request"
        control.send(run, "watch", {"mode": "sampled", "size": 48}, expires_s=3600)
        wait_until(lambda: reporter.watched)
        ((mode, size, left_s),) = reporter.watched
        assert (mode, size) == ("sampled", 48) and 0 < left_s <= 60 and len(reporter.said) == 2
        stop = control.send(run, "stop")
        assert (
            control.answer(run, stop, DEADLINE_S).result == "accepted"
            and reporter.ended == 1
            and asked.stop.number == 0
        )


def test_requests_at_the_end_of_the_run_are_answered(run):
    asked, reporter = Requests(), Reporter()
    inbox = Inbox(run.path, run.uuid, report=reporter.said.append)
    attendant = RequestThread(inbox, asked, reporter)
    with attendant:
        attendant._over = True  # as if it had looked for the last time
        asked.answered.set()
        attendant._thread.join()
        late = control.send(run, "checkpoint")
        inbox._signature = ()
    assert control.answer(run, late, 0.0) == Answer("failed", "the run has ended")


def test_the_heartbeat_runs_from_start_to_end():
    beats = []
    with Heartbeat(lambda: beats.append(1)):
        assert len(beats) >= 1
        wait_until(lambda: len(beats) > 2)
    count = len(beats)
    time.sleep(1.5 * requests.HEARTBEAT_S)
    assert len(beats) == count
