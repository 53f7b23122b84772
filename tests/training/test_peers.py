"""Ranks find each other, and notice within a bounded time that one exited, hangs or has another version. No torch."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from waiting import wait_until

import operant
from operant.config.request import Request
from operant.errors import ConfigError, MachineError, UsageError
from operant.training import peers, ranks

SAME = {"operant": "1"}


@pytest.fixture
def leads(tmp_path):
    """Fixture that makes rank 0 and ends it."""
    made = []

    def make(count=2, timeout_s=60.0, versions=SAME):
        leader = peers.Leader(tmp_path, count, versions=versions, timeout_s=timeout_s)
        leader.lost = []
        leader.on_lost = leader.lost.append
        made.append(leader)
        return leader

    yield make
    for leader in made:
        leader.end(goodbye_s=0.0)


def follows(folder, rank=1, count=2, versions=SAME):
    lost = []
    follower = peers.Follower(folder, rank, count, versions=versions, join_s=20.0, on_lost=lost.append)
    follower.lost = lost
    return follower


def together(leads, folder, count=2, **options):
    leader = leads(count, **options)
    others = [follows(folder, rank, count) for rank in range(1, count)]
    leader.wait(20.0, lambda: None)
    return leader, others


def test_commands_arrive_in_order_and_none_is_lost_at_the_start(leads, tmp_path):
    leader = leads()
    thread = threading.Thread(
        target=lambda: (leader.wait(20.0, lambda: None), [leader.command("iterate", k=k) for k in range(50)])
    )
    thread.start()
    follower = follows(tmp_path)
    assert [follower.receive()["k"] for _ in range(50)] == list(range(50))
    thread.join()


def test_a_signal_to_another_rank_reaches_rank_0(leads, tmp_path):
    leader, (follower,) = together(leads, tmp_path)
    heard = []
    leader.on_stop = heard.append
    follower.ask_stop("SIGTERM")
    wait_until(lambda: heard == ["SIGTERM to rank 1"])


def process_of(folder, rank=1, count=2):
    """Rank in a new process."""
    code = (
        "import sys, time; from pathlib import Path; from operant.training import peers\n"
        f"peers.Follower(Path(sys.argv[1]), {rank}, {count}, versions={SAME}, join_s=60.0, on_lost=lambda lost: None)\n"
        "time.sleep(600)"
    )
    return subprocess.Popen(
        [sys.executable, "-S", "-c", code, str(folder)], env={"PYTHONPATH": str(Path(operant.__file__).parents[1])}
    )


HOW = [
    (signal.SIGKILL, 60.0, "has exited: its connection closed"),
    (signal.SIGSTOP, 1.0, "has not answered for 1 s (run.peer_timeout)"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "timeout_s", "how"), HOW)
def test_every_rank_learns_which_rank_exited_or_stopped_responding(leads, tmp_path, number, timeout_s, how):
    leader, child = leads(4, timeout_s=timeout_s), process_of(tmp_path, 2, 4)
    others = [follows(tmp_path, rank, 4) for rank in (1, 3)]
    try:
        leader.wait(60.0, lambda: None)
        child.send_signal(number)
        wait_until(lambda: leader.lost and all(other.lost for other in others))
    finally:
        child.kill()
        child.wait()
    (lost,) = leader.lost
    assert (
        lost.rank == 2
        and lost.message.startswith(f"rank 2 (pid {child.pid} on ")
        and lost.message.endswith(how)
        and lost.code is None
    )
    assert [other.lost[0].message for other in others] == [lost.message] * 2


def test_the_other_ranks_notice_that_rank_0_has_exited(tmp_path):
    code = (
        "import sys, os; from pathlib import Path; from operant.training import peers\n"
        f"leader = peers.Leader(Path(sys.argv[1]), 2, versions={SAME}, timeout_s=60.0)\n"
        "leader.wait(60.0, lambda: None); os.kill(os.getpid(), 9)"
    )
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", code, str(tmp_path)], env={"PYTHONPATH": str(Path(operant.__file__).parents[1])}
    )
    follower = follows(tmp_path)
    wait_until(lambda: follower.lost)
    assert follower.lost[0].message == "rank 0 has exited: its connection closed" and child.wait() == -9


def test_a_failing_rank_reports_its_error(leads, tmp_path):
    leader, (follower,) = together(leads, tmp_path)
    follower.fail("out of memory", 7)
    wait_until(lambda: leader.lost)
    assert leader.lost[0].code == 7 and leader.lost[0].message.endswith(": out of memory")


def test_a_regular_end_is_not_reported_as_a_lost_rank(leads, tmp_path):
    leader, (follower,) = together(leads, tmp_path)
    thread = threading.Thread(target=leader.end)
    thread.start()
    assert follower.receive()["do"] == "end"
    follower.leave()
    thread.join(20.0)
    assert not thread.is_alive() and leader.lost == [] and follower.lost == []


def test_differing_versions_are_reported_on_both_sides(leads, tmp_path):
    leader = leads()
    with pytest.raises(MachineError, match="has operant 2 instead of 1: all ranks need the same versions"):
        follows(tmp_path, versions={"operant": "2"})
    wait_until(lambda: leader.lost)


def test_a_rank_that_does_not_join_is_named(leads):
    began_s = time.monotonic()
    with pytest.raises(MachineError, match=r"ranks 1, 2, 3 of 4 did not join within 0.1 s"):
        leads(4).wait(0.1, lambda: None)
    assert time.monotonic() - began_s < 60


def test_a_rank_without_rank_0_reports_where_it_looked(tmp_path):
    with pytest.raises(MachineError, match=r"found no address of rank 0 in .* all hosts share the folder"):
        peers.Follower(tmp_path, 1, 2, versions=SAME, join_s=0.2, on_lost=lambda lost: None)


def test_a_connection_without_the_token_is_refused(leads, tmp_path):
    leader = leads()
    port = port_of(tmp_path)
    assert (tmp_path / ranks.ADDRESS_FILE).stat().st_mode & 0o777 == 0o600
    with socket.create_connection(("127.0.0.1", port), timeout=20) as stranger:
        stranger.sendall(json.dumps({"rank": 1, "ranks": 2, "token": "guess", "versions": SAME}).encode() + b"\n")
        assert stranger.recv(100) == b""
    assert leader.lost == []


def port_of(folder):
    return json.loads((folder / ranks.ADDRESS_FILE).read_text())["port"]


def sends(folder, data):
    """Send bytes to rank 0's port and wait until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port_of(folder)), timeout=20) as stranger:
        with contextlib.suppress(OSError):  # refused before all was sent
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while stranger.recv(1 << 16):
                pass


def greeting(**fields):
    return json.dumps({"rank": 1, "ranks": 2, "token": "guess", "versions": SAME} | fields).encode() + b"\n"


def random_messages(count):
    """Malformed greetings: random bytes, random JSON values, and truncated, repeated or altered greetings."""
    draw = random.Random(28)
    values = [None, True, -1, 1, 2**70, 1e308, "x", "\ud800", "\u00e9" * 32, [], {}, [[]], {"a": {}}]
    fields = ["rank", "ranks", "token", "versions", "beat", "stop", "failed", "code", "pid", "host"]
    for _ in range(count):
        altered = greeting(**{draw.choice(fields): draw.choice(values) for _ in range(draw.randrange(4))})
        yield draw.choice(
            [
                draw.randbytes(draw.randrange(1, 300)) + b"\n" * draw.randrange(2),
                altered[: draw.randrange(len(altered))],
                altered * draw.randrange(1, 4),
                json.dumps(draw.choice(values)).encode() + b"\n" + altered,
                altered.replace(b'"', draw.randbytes(1)),
            ]
        )


ATTACKS = {
    "a deep array": b"[" * 200_000 + b"\n",
    "a deep array in a greeting": b'{"rank": ' + b"[" * 9_000 + b"\n",
    "a token with a letter outside ASCII": greeting(token="\u00e9" * 32),
    "a token with half a surrogate pair": greeting(token="\ud800"),
    "two wrong greetings in one packet": greeting() * 2,
    "a number of 5,000 digits": b'{"rank": ' + b"9" * 5_000 + b"}\n",
    "no text": b"\xff\xfe\x00\n",
    "a line without an end": b"x" * 200_000,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_message_of_a_stranger_ends_the_watch_over_the_ranks(leads, tmp_path, attack):
    leader, (follower,) = together(leads, tmp_path)
    sends(tmp_path, ATTACKS[attack])
    assert leader.lost == []
    follower.fail("out of memory", 7)  # still noticed
    wait_until(lambda: leader.lost)
    assert leader.lost[0].code == 7


def test_random_messages_change_nothing(leads, tmp_path):
    leader, (follower,) = together(leads, tmp_path)
    for message in random_messages(500):
        sends(tmp_path, message)
    assert leader.lost == [] and follower.lost == []
    follower.fail("out of memory", 7)
    wait_until(lambda: leader.lost)


@pytest.mark.slow
def test_silent_strangers_are_closed_and_keep_no_rank_out(leads, tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "_MOST_STRANGERS", 3)
    leader = leads()
    strangers = [socket.create_connection(("127.0.0.1", port_of(tmp_path)), timeout=20) for _ in range(9)]
    assert [stranger.recv(1) for stranger in strangers[:6]] == [b""] * 6
    monkeypatch.setattr(peers, "_HELLO_S", 0.0)
    assert [stranger.recv(1) for stranger in strangers[6:]] == [b""] * 3
    monkeypatch.setattr(peers, "_HELLO_S", 10.0)
    for stranger in strangers:
        stranger.close()
    follows(tmp_path)
    leader.wait(20.0, lambda: None)


def test_a_run_ends_with_a_sentence_if_its_ranks_can_no_longer_be_watched(leads, tmp_path):
    leader, (follower,) = together(leads, tmp_path)

    def fails(name):
        raise RuntimeError("the disk is full")

    leader.on_stop = fails
    follower.ask_stop("SIGTERM")
    wait_until(lambda: leader.lost and follower.lost)
    cause = "rank 0 can no longer watch the other ranks (RuntimeError: the disk is full)"
    assert leader.lost == [peers.Lost(0, cause, 1)] and follower.lost[0].message == cause


@pytest.mark.parametrize(("multi_node", "host"), [(False, "127.0.0.1"), (True, "0.0.0.0")])
def test_the_port_listens_on_loopback_unless_ranks_run_on_several_hosts(tmp_path, multi_node, host):
    leader = peers.Leader(tmp_path, 2, versions=SAME, timeout_s=60.0, multi_node=multi_node)
    try:
        listening = [one.laddr for one in psutil.Process().net_connections("inet") if one.status == psutil.CONN_LISTEN]
        assert [address.ip for address in listening if address.port == port_of(tmp_path)] == [host]
    finally:
        leader.end(goodbye_s=0.0)


# PLACES


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, ranks.SINGLE),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            ranks.Placement(3, 4, 1, 2, "torchrun"),
        ),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}, ranks.Placement(1, 2, 1, 2, "srun")),
        (
            {
                "SLURM_PROCID": "5",
                "SLURM_STEP_NUM_TASKS": "8",
                "SLURM_LOCALID": "1",
                "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
            },
            ranks.Placement(5, 8, 1, 4, "srun"),
        ),
    ],
)
def test_the_rank_is_read_from_a_launchers_variables(variables, place):
    assert ranks.placement(variables) == place


def test_an_unsupported_number_of_ranks_is_refused():
    with pytest.raises(UsageError, match="torchrun has started 3 ranks: a run has 1, 2, 4 or 8"):
        ranks.placement({"RANK": "0", "WORLD_SIZE": "3"})


def test_ranks_that_are_started_again_are_refused_with_the_command_that_resumes(tmp_path):
    ranks.require_first_start(tmp_path, {}, {})
    with pytest.raises(UsageError, match="It has no checkpoint to continue from: start a new run"):
        ranks.require_first_start(tmp_path, {"session": 1}, {})
    (tmp_path / "checkpoints" / "step-000000000100").mkdir(parents=True)
    for document, variables in (({}, {"TORCHELASTIC_RESTART_COUNT": "1"}), ({"session": 1}, {})):
        with pytest.raises(UsageError, match=f"operant resume {tmp_path.name}"):
            ranks.require_first_start(tmp_path, document, variables)


@pytest.mark.parametrize(
    ("word", "count"),
    [
        ("run.gpus=4", 4),
        ("run.gpus=[1,3]", 2),
        ("run.ranks=2", 2),
        ("run.gpus=all", 1),
        ("run.gpus=3", 1),
        ("run.device=cpu", 1),
    ],
)
def test_ranks_are_counted_before_anything_large_is_imported(tmp_path, word, count):
    assert Request(None, (word,), None, tmp_path).ranks() == count


def test_gpus_are_assigned_to_ranks():
    from operant.config.sections import Run

    def gang(visible, resume=False, here=ranks.SINGLE, **keys):
        return ranks.assign_gpus(Run(**keys), here, visible, resume=resume)

    assert gang(0) == (ranks.SINGLE, (), None)
    assert gang(4, gpus=2) == (ranks.Placement(0, 2, 0, 2), (0, 1), None)
    assert gang(4, gpus=[1, 3]) == (ranks.Placement(0, 2, 0, 2), (1, 3), None)
    assert gang(4, gpus=[1, 3], here=ranks.Placement(1, 2, 1, 2)) == (
        ranks.Placement(1, 2, 1, 2),
        (1, 3),
        None,
    )  # as rank 0 has started it
    assert gang(0, ranks=2) == (ranks.Placement(0, 2, 0, 2), (), None)
    place, gpus, note = gang(3, gpus="all")
    assert (place.ranks, gpus) == (2, (0, 1)) and note.endswith("idle: 2")
    # Of four GPUs three are left: a resume goes on with two.
    place, gpus, note = gang(3, gpus=4, resume=True)
    assert (place.ranks, gpus) == (2, (0, 1)) and note.endswith("it trains on 0, 1; idle: 2")
    with pytest.raises(MachineError, match=r"run.gpus = 4: this machine has 3 GPUs; there is no GPU 3"):
        gang(3, gpus=4)
    with pytest.raises(MachineError, match=r"no GPU for run.gpus = 2.*run.ranks=2"):
        gang(0, gpus=2)
    launched = ranks.Placement(1, 2, 1, 2, "torchrun")
    assert gang(2, here=launched)[1] == (0, 1) and gang(2, here=launched, device="cpu")[1] == ()
    with pytest.raises(MachineError, match="2 ranks on this host have 1 GPU"):
        gang(1, here=launched)
    with pytest.raises(ConfigError, match=r"run.gpus: torchrun has started 2 ranks \(got 4\)"):
        gang(4, here=launched, gpus=4)
