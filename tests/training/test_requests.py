"""What a loop is asked for, without a loop: signals are in tests of the worker, here the requests and the thread that takes them. No torch."""

import threading
import time

import pytest
from waiting import DEADLINE_S, wait_until

from operant import runs
from operant.runs import control
from operant.runs.control import Answer, Inbox, Request
from operant.training import requests
from operant.training.requests import Attendant, Heartbeat, Requests, Stop


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
    asked._deadline.cancel()


def test_pausing_and_going_on():
    asked = Requests()
    assert asked.ask(request("pause", "1")) == "it pauses after this iteration"
    assert asked.ask(request("pause", "2", "bob@gpu03")) == "it has been paused by alice@gpu03" and asked.paused_by == "alice@gpu03"
    asked.waiting = True
    asked.answer("pause", "done", "paused")
    assert asked.ask(request("unpause", "3")) == "it goes on" and asked.paused_by is None
    asked.waiting = False
    asked.answer("unpause", "done", "it trains")
    assert answers(asked) == [("1", "done", "paused"), ("2", "done", "paused"), ("3", "done", "it trains")]


def test_going_on_without_a_pause_and_before_it_has_begun():
    asked = Requests()
    asked.ask(request("unpause", "1"))
    asked.ask(request("pause", "2"))
    asked.ask(request("unpause", "3", "bob@gpu03"))
    assert not asked.pending
    assert answers(asked) == [("1", "done", "it was not paused"), ("2", "failed", "taken back by bob@gpu03"), ("3", "done", "it had not paused yet")]


def test_a_pause_over_one_that_was_just_taken_back():
    """The loop has not looked in between: it stays paused, and who said to go on is told."""
    asked = Requests()
    asked.ask(request("pause", "1"))
    asked.waiting = True
    asked.answer("pause", "done", "paused")
    asked.ask(request("unpause", "2"))
    asked.ask(request("pause", "3", "bob@gpu03"))
    assert asked.paused_by == "bob@gpu03"
    assert answers(asked) == [("1", "done", "paused"), ("2", "failed", "paused again by bob@gpu03")]


def test_an_order_taken_for_one_checkpoint_is_not_answered_by_another():
    asked = Requests()
    asked.ask(request("checkpoint", "1"))
    taken = asked.take("checkpoint")
    asked.ask(request("checkpoint", "2"))
    asked.tell(taken, "done", "first")
    assert answers(asked) == [("1", "done", "first")] and asked.checkpoint
    asked.answer("checkpoint", "failed", "second")
    assert answers(asked) == [("2", "failed", "second")]


def test_a_stop_that_takes_too_long_leaves_with_a_last_word(monkeypatch):
    monkeypatch.setattr(requests, "STOP_DEADLINE_S", 0.01)
    said, left = threading.Event(), []
    ended = threading.Event()

    def leave(code):
        left.append((code, said.is_set()))
        ended.set()

    monkeypatch.setattr(requests.os, "_exit", leave)
    asked = Requests()
    asked.on_timeout = said.set
    asked.ask_stop(Stop(15, "SIGTERM"))
    assert ended.wait(DEADLINE_S) and left == [(130, True)]


# ----------------------------------------------------------------------------------------------------------------------------- the attendant


class Teller:
    def __init__(self):
        self.said, self.acknowledged, self.watched, self.ended = [], [], [], 0

    def say(self, text, *, level="info", code="note"):
        self.said.append((text, level, code))

    def ending(self):
        self.ended += 1

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
    asked, teller = Requests(), Teller()
    with Attendant(Inbox(run.path, run.uuid, report=teller.said.append), asked, teller):
        first, second = control.send(run, "checkpoint"), control.send(run, "pause")
        assert control.answer(run, first, DEADLINE_S) == Answer("accepted", "a checkpoint is made after this iteration")
        assert control.answer(run, second, DEADLINE_S).result == "accepted" and asked.checkpoint and asked.paused_by
        wait_until(lambda: len(teller.said) == 2)
        by = f"by {control.own_name()}"
        assert teller.said == [(f"checkpoint asked for {by}", "info", "control"), (f"pause asked for {by}", "info", "control")]
        assert teller.acknowledged == [(1, "accepted"), (2, "accepted")]
        asked.answer("checkpoint", "done", "checkpoints/step-1")
        assert control.answer(run, first, DEADLINE_S, final=True) == Answer("done", "checkpoints/step-1")
        asked.answer("pause", "done", "paused")
        assert control.answer(run, second, DEADLINE_S, final=True) == Answer("done", "paused")
        wait_until(lambda: len(teller.acknowledged) == 3)
        assert teller.acknowledged[2] == (2, "done"), "the status words tell of the newest request"
        control.send(run, "watch", {"mode": "sampled", "size": 48}, expires_s=3600)
        wait_until(lambda: teller.watched)
        ((mode, size, left_s),) = teller.watched
        assert (mode, size) == ("sampled", 48) and 0 < left_s <= 60 and len(teller.said) == 2
        stop = control.send(run, "stop")
        assert control.answer(run, stop, DEADLINE_S).result == "accepted" and teller.ended == 1 and asked.stop.number == 0
        asked._deadline.cancel()


def test_what_is_asked_at_the_very_end_is_answered(run):
    asked, teller = Requests(), Teller()
    inbox = Inbox(run.path, run.uuid, report=teller.said.append)
    attendant = Attendant(inbox, asked, teller)
    with attendant:
        attendant._over = True  # as if it had looked for the last time
        asked.answered.set()
        attendant._thread.join()
        late = control.send(run, "checkpoint")
        inbox._signature = ()
    assert control.answer(run, late, 0.0) == Answer("failed", "the run has ended")


def test_the_heart_beats_from_the_first_moment_until_the_end():
    beats = []
    with Heartbeat(lambda: beats.append(1)):
        assert len(beats) >= 1
        wait_until(lambda: len(beats) > 2)
    count = len(beats)
    time.sleep(1.5 * requests.HEARTBEAT_S)
    assert len(beats) == count
