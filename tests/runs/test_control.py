"""Requests by files without a trainer: accepted and refused ones, hostile files, the limits of a folder."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from operant import runs
from operant.errors import MachineError, NotFoundError
from operant.runs import control
from operant.runs import folder as runfolder
from operant.runs.control import Answer, Inbox, Request
from operant.runs.metrics.layout import BOOTTIME


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose trainer is this process."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = runs.create(tmp_path / "runs", "cartpole-ppo-4f2a", "x", {})
    lock = runs.acquire(made.path)
    yield made._replace(document=runs.update_document(made.path, **runs.identity()))
    lock.release()


class Trainer(Inbox):
    """An inbox that records its reports and forgets that nothing has changed, so that no test waits for a clock."""

    def __init__(self, run):
        self.lines = []
        super().__init__(run.path, run.uuid, report=self.lines.append)

    def poll(self):
        self._signature = ()
        return super().poll()


@pytest.fixture
def inbox(run):
    return Trainer(run)


def names(folder):
    return sorted(os.listdir(folder))


# ----------------------------------------------------------------------------------------------------------------------
# there and back


@pytest.mark.parametrize("verb", ["stop", "pause", "unpause", "checkpoint"])
def test_a_request_is_taken_once_and_answered_twice(run, inbox, verb):
    ticket = control.send(run, verb)
    assert control.answer(run, ticket, 0.0) is None
    (request,) = inbox.poll()
    assert (request.name, request.verb, request.arguments) == (ticket.name, verb, {}) and 30 < request.left_s <= 60
    assert request.by.endswith(f"@{runfolder.host()}") and inbox.poll() == []
    inbox.settle(request, "accepted", "after this iteration")
    assert control.answer(run, ticket, 0.0) == Answer("accepted", "after this iteration")
    assert control.answer(run, ticket, 0.0, final=True) is None
    inbox.settle(request, "done", "saved\x1b[2J")
    assert control.answer(run, ticket, 0.0, final=True) == Answer("done", "saved[2J")
    assert names(run.path / "ctl") == ["done"] and names(run.path / "ctl" / "done") == [ticket.name]
    assert inbox.poll() == [] and inbox.lines == []
    for path, mode in (
        (run.path / "ctl", 0o700),
        (run.path / "ctl" / "done", 0o700),
        (run.path / "ctl" / "done" / ticket.name, 0o600),
    ):
        assert path.stat().st_mode & 0o777 == mode


def test_requests_are_taken_in_the_order_they_were_made(run, inbox):
    tickets = [control.send(run, verb) for verb in ("pause", "unpause", "pause", "stop")]
    assert [(request.name, request.verb) for request in inbox.poll()] == [
        (ticket.name, ticket.verb) for ticket in tickets
    ]


def test_an_unchanged_inbox_is_not_listed_again(run, monkeypatch):
    inbox = Inbox(run.path, run.uuid, report=lambda line: None)
    inbox.poll()
    inbox._changed_s -= 2 * control._SETTLE_S  # as if the folder had long been still
    monkeypatch.setattr(os, "scandir", None)
    assert inbox.poll() == []
    monkeypatch.undo()
    before = (run.path / "ctl").stat().st_mtime_ns
    while (run.path / "ctl").stat().st_mtime_ns == before:  # the clock of file times is coarse
        control.send(run, "pause")
    assert {request.verb for request in inbox.poll()} == {"pause"}


def test_a_watch_is_one_file_per_sender(run, inbox):
    for _ in range(50):
        control.send(run, "watch", {"mode": "greedy", "size": 64}, expires_s=5)
    ticket = control.send(run, "watch", {"mode": "sampled", "size": 32}, expires_s=60)
    (request,) = inbox.poll()
    assert (request.verb, request.arguments) == ("watch", {"mode": "sampled", "size": 32}) and 30 < request.left_s <= 60
    assert inbox.poll() == [] and names(run.path / "ctl") == [] and control.answer(run, ticket, 0.0) is None
    control.send(run, "watch", {"mode": "greedy", "size": 64})
    assert len(inbox.poll()) == 1, "a renewal counts"
    control.send(run, "watch", {"mode": "greedy", "size": 64}, expires_s=-1)
    assert inbox.poll() == [] and names(run.path / "ctl") == [] and inbox.lines == []


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"mode": "best", "size": 64},
        {"mode": "greedy"},
        {"mode": "greedy", "size": -1},
        {"mode": "greedy", "size": "9"},
    ],
)
def test_a_watch_with_wrong_arguments_is_dropped(run, inbox, arguments):
    control.send(run, "watch", arguments)
    assert inbox.poll() == [] and names(run.path / "ctl") == []


def test_two_senders_are_two_files(run, inbox):
    program = "import sys, pathlib; from operant import runs; from operant.runs import control; "
    program += "control.send(runs.load(pathlib.Path(sys.argv[1])), sys.argv[2], eval(sys.argv[3]))"
    environment = os.environ | {"PYTHONPATH": str(Path(runs.__file__).parents[2])}
    for verb, arguments in (("watch", "{'mode': 'sampled', 'size': 8}"), ("pause", "None")):
        control.send(run, verb, {"mode": "greedy", "size": 8} if verb == "watch" else None)
        subprocess.run([sys.executable, "-c", program, str(run.path), verb, arguments], env=environment, check=True)
    requests = inbox.poll()
    assert sorted(request.verb for request in requests) == ["pause", "pause", "watch", "watch"]
    for request in requests[:2]:
        inbox.settle(request, "accepted")
    assert len(names(run.path / "ctl" / "done")) == 2


def test_every_request_of_a_moment_is_answered_and_later_the_newest_hundred_answers_are_kept(run, inbox, monkeypatch):
    tickets = [control.send(run, "checkpoint") for _ in range(control._KEPT + 20)]
    *requests, last = inbox.poll()
    for request in requests:
        inbox.settle(request, "done")
    assert all(control.answer(run, ticket, 0.0) == Answer("done", "") for ticket in tickets[:-1])
    now_ns = time.clock_gettime_ns(BOOTTIME)
    for moved_s in (-3600, 3600):  # since another boot, since an hour
        monkeypatch.setattr(time, "clock_gettime_ns", lambda clock, moved_s=moved_s: now_ns + moved_s * 10**9)
        inbox.settle(last, "done")
        assert names(run.path / "ctl" / "done") == [ticket.name for ticket in tickets[20:]]


def test_a_request_can_be_withdrawn(run, inbox):
    ticket = control.send(run, "stop")
    control.withdraw(run, ticket)
    control.withdraw(run, ticket)
    assert inbox.poll() == [] and names(run.path / "ctl") == []


def test_a_restored_request_file_is_not_obeyed_again(run, inbox):
    ticket = control.send(run, "stop")
    raw = (run.path / "ctl" / ticket.name).read_bytes()
    inbox.settle(inbox.poll()[0], "accepted")
    (run.path / "ctl" / ticket.name).write_bytes(raw)
    assert inbox.poll() == [] and "answered before" in inbox.lines[0]


# ----------------------------------------------------------------------------------------------------------------------
# refusals


def forged(run, **fields):
    """Send a request with some fields replaced; returns its ticket."""
    ticket = control.send(run, "stop")
    path = run.path / "ctl" / ticket.name
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return ticket


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"v": 2}, "unknown to this trainer"),
        ({"verb": "format"}, "unknown to this trainer"),
        ({"verb": "watch"}, "unknown to this trainer"),
        ({"run_uuid": "00" * 16}, "another run"),
        ({"run_uuid": None}, "another run"),
        ({"worker": 5}, "an earlier trainer"),
        ({"worker": "x"}, "an earlier"),
        ({"expires_boottime_ns": 1}, "expired"),
        ({"expires_boottime_ns": None, "expires_realtime_ns": 1}, "expired"),
        ({"expires_boottime_ns": "soon", "expires_realtime_ns": None}, "expired"),
        ({"boot_id": "another", "expires_realtime_ns": 1}, "expired"),
    ],
)
def test_a_request_for_another_trainer_or_too_late_is_refused_with_the_reason(run, inbox, fields, reason):
    ticket = forged(run, **fields)
    assert inbox.poll() == []
    found = control.answer(run, ticket, 0.0)
    assert found.result == "refused" and reason in found.text and names(run.path / "ctl") == ["done"]
    assert len(inbox.lines) == 1 and reason in inbox.lines[0]


def test_a_request_before_the_trainer_has_identified_itself_is_taken(run, inbox):
    runs.update_document(run.path, pid=None, pid_start_ticks=None)
    control.send(run, "pause")
    assert [request.verb for request in inbox.poll()] == ["pause"]


@pytest.mark.parametrize("moved_s", [-86400, 86400])
def test_a_moved_wall_clock_changes_nothing(run, inbox, monkeypatch, moved_s):
    now = time.time_ns
    control.send(run, "pause")
    monkeypatch.setattr(time, "time_ns", lambda: now() + moved_s * 10**9)
    (request,) = inbox.poll()
    assert 30 < request.left_s <= 60
    inbox.settle(request, "accepted")
    control.send(run, "stop", expires_s=-1)
    assert inbox.poll() == []


def test_the_name_of_a_sender_is_made_printable(run, inbox):
    forged(run, by="eve\x1b]0;x\a\u202e" + "x" * 900)
    (request,) = inbox.poll()
    assert request.by.isprintable() and request.by.startswith("eve]0;x") and len(request.by) <= 200


# ----------------------------------------------------------------------------------------------------------------------
# hostile files

NAME = "req-{:020d}-" + "ab" * 16 + ".json"


def _fifo(path):
    os.mkfifo(path)


def _socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)  # the address has at most 108 bytes
        listener.bind(path.name)


def _large(path):
    with open(path, "wb") as file:
        file.truncate(1 << 30)


def _folder(path):
    path.mkdir()
    (path / "inside").write_text("{}")


def _link(path):
    (path.parent / "target").write_text("{}")
    path.symlink_to(path.parent / "target")


def _other_owner(path):
    path.write_text("{}")
    os.chown(path, 12345, 12345)


def _unreadable(path):
    path.write_text("{}")
    path.chmod(0)


def _of(content):
    return lambda path: path.write_bytes(content)


CORPUS = {
    "folder": _folder,
    "fifo": _fifo,
    "socket": _socket,
    "large": _large,
    "link": _link,
    "own link": lambda path: path.symlink_to(path.name),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "owner": _other_owner,
    "unreadable": _unreadable,
    "empty": _of(b""),
    "deep": _of(b"[" * 4000),
    "deep object": _of(b'{"a":' * 700),
    "binary": _of(bytes(range(256))),
    "number": _of(b"9" * 4096),
    "list": _of(b"[1]"),
    "null": _of(b"null"),
    "object": _of(b"{}"),
    "verbs": _of(b'{"verb": ["stop"], "args": {}}'),
    "no arguments": _of(b'{"verb": "stop", "args": [1]}'),
    "surrogate": _of(b'{"verb": "\\ud800", "args": 1}'),
}


@pytest.mark.parametrize("kind", CORPUS)
def test_a_hostile_file_is_ignored_with_one_line_in_the_log(run, inbox, kind, monkeypatch):
    if kind == "owner" and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    monkeypatch.chdir(run.path)
    path = run.path / "ctl" / NAME.format(1)
    CORPUS[kind](path)
    ticket = control.send(run, "pause")
    requests = inbox.poll()
    assert [request.name for request in requests] == [ticket.name]
    inbox.settle(requests[0], "accepted")
    assert control.answer(run, ticket, 0.0).result == "accepted"
    for _ in range(3):
        assert inbox.poll() == []
    assert len(inbox.lines) == 1 and all(line.isprintable() for line in inbox.lines), inbox.lines


def test_files_with_other_names_are_not_read(run, inbox):
    for name in (
        "notes.txt",
        ".hidden",
        "req-1-x.json",
        "done.json",
        "req-" + "0" * 20 + "-" + "g" * 32 + ".json",
        "watch-.json",
        "a\nb",
        "\udcff",
    ):
        (run.path / "ctl" / name).write_text("{}")
    assert inbox.poll() == [] and inbox.lines == []


def test_thousands_of_files_cost_a_bounded_look(run, inbox, monkeypatch):
    monkeypatch.setattr(control, "_MOST_NAMES", 20)
    for k in range(200):
        (run.path / "ctl" / NAME.format(k)).write_text("x")
    for _ in range(4):
        assert inbox.poll() == []
    assert len(inbox.lines) <= 20 and len(inbox._ignored) <= 20


@pytest.mark.parametrize("obstacle", ["file", "link", "open to all", "gone", "done is a file", "done is a link"])
def test_an_invalid_ctl_folder_disables_requests_only(run, inbox, tmp_path, obstacle):
    ctl = run.path / "ctl"
    if obstacle.startswith("done"):
        ticket = control.send(run, "pause")
        (ctl / "done").write_text("") if obstacle.endswith("file") else (ctl / "done").symlink_to(tmp_path)
        (request,) = inbox.poll()
        inbox.settle(request, "accepted")
        assert inbox.poll() == [], "what cannot be moved away is not obeyed twice"
        assert (
            (ctl / ticket.name).exists()
            and names(tmp_path) == ["runs", "state"]
            and control.answer(run, ticket, 0.0) is None
        )
        inbox.settle(request, "done")
        assert len(inbox.lines) == 1 and "cannot answer requests" in inbox.lines[0]
        return
    if obstacle != "open to all":
        ctl.rmdir()
    if obstacle == "file":
        ctl.write_text("")
    elif obstacle == "link":
        ctl.symlink_to(tmp_path)
    elif obstacle == "open to all":
        ctl.chmod(0o777)
    assert inbox.poll() == []
    if obstacle == "gone":
        ticket = control.send(run, "pause")
        assert [request.name for request in inbox.poll()] == [ticket.name] and inbox.lines == []
        return
    with pytest.raises(MachineError, match=r"cannot ask .* to pause"):
        control.send(run, "pause")
    inbox.poll()
    inbox.settle(Request(NAME.format(1), "pause", {}, "x", 1.0, {}), "done")
    assert 1 <= len(inbox.lines) <= 2


def test_leftovers_of_a_killed_sender_are_deleted_at_the_start(run, inbox):
    (run.path / "ctl" / f".{'0' * 32}.tmp").write_text("half")
    (run.path / "ctl" / "kept.tmp").write_text("x")
    Trainer(run)
    assert names(run.path / "ctl") == ["kept.tmp"]


def test_an_invalid_answer_file_counts_as_no_answer(run, inbox):
    ticket = control.send(run, "pause")
    (run.path / "ctl" / "done").mkdir()
    for junk in (b"", b"[", b"{}", b'{"result": "none"}', b'{"result": ["done"]}', b'{"result": 1}'):
        (run.path / "ctl" / "done" / ticket.name).write_bytes(junk)
        assert control.answer(run, ticket, 0.0) is None
    (run.path / "ctl" / "done" / ticket.name).write_bytes(b'{"result": "done", "text": 5}')
    assert control.answer(run, ticket, 0.0) == Answer("done", "")


# ----------------------------------------------------------------------------------------------------------------------
# who may be asked


def test_a_run_that_cannot_be_asked_raises_with_a_message(run, tmp_path):
    ended = runs.create(tmp_path / "runs", "ended", "x", {})
    runs.update_document(ended.path, created_realtime_ns=1)
    with pytest.raises(NotFoundError, match=r"^ended is not training: crashed$"):
        control.send(runs.load(ended.path), "pause")
    with pytest.raises(ValueError, match="exceeds the limit of 4096"):
        control.send(run, "pause", {"x": "y" * 5000})
    runs.update_document(run.path, host="gpu03", boot_id="another")
    with pytest.raises(MachineError, match="trains on gpu03: ask it to stop on that machine"):
        control.send(run, "stop")
    assert not (ended.path / "ctl").exists()
    with pytest.raises(ValueError, match="must be one of stop"):
        control.send(run, "restart")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_run_of_another_user_raises_with_a_message(run):
    os.chown(run.path, 12345, 12345)
    with pytest.raises(MachineError, match="belongs to user 12345: only its owner can ask it to checkpoint"):
        control.send(run, "checkpoint")
