"""Replay of a checkpoint: after any fault of its writer, the newest checkpoint with a replay resumes bit-exactly, and
others warm.
"""

from __future__ import annotations

import subprocess

import pytest
import torch

from operant.runs import atomic
from operant.runs.checkpoints import Store, replays

UUID = "ab" * 16


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path, said) -> Store:
    return Store(tmp_path / "checkpoints", run_uuid=UUID, report=said.append)


def ring(value: int) -> dict[str, torch.Tensor]:
    """Tensors of every stored dtype, and an empty one."""
    return {
        "replay/observation": torch.full((5, 3, 7), value, dtype=torch.uint8),
        "replay/reward": torch.full((5, 3), value / 3),
        "replay/none": torch.zeros(0, 3),
        "replay/action": torch.full((5, 3, 1), value, dtype=torch.int32),
        "replay/ticks": torch.tensor([value]),
        "replay/scale": torch.tensor(float(value)),
    }


def save(store: Store, step: int, session: int = 1) -> None:
    """Save a replay, then its checkpoint, like a trainer."""
    assert store.replays.save(step, ring(step), session=session)
    assert store.save(step, {"w": torch.ones(2)}, {}, session=session)


def found(store: Store, step: int, session: int = 1) -> tuple[str | None, dict[str, torch.Tensor]]:
    """Result of `restore`, and the copied tensors."""
    into = {name: torch.zeros_like(value) for name, value in ring(0).items()}
    return store.replays.restore(step, into, session=session, constants={}), into


def lying(store: Store) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir() if "replay" in path.name)


@pytest.mark.parametrize("piece_bytes", [16, replays.PIECE_BYTES])
def test_a_saved_replay_is_restored(store, monkeypatch, piece_bytes):
    monkeypatch.setattr(replays, "PIECE_BYTES", piece_bytes)
    save(store, 7)
    reason, into = found(store, 7)
    assert reason is None and all(torch.equal(value, into[name]) for name, value in ring(7).items())


def test_a_replay_of_other_shapes_changes_no_tensor(store):
    save(store, 7)
    for wrong in (
        {"replay/reward": torch.zeros(5, 4)},
        {"replay/other": torch.zeros(1)},
        {"replay/action": torch.zeros(5, 3, 1)},
    ):
        into = {name: torch.zeros_like(value) for name, value in ring(0).items()} | wrong
        assert "this configuration" in store.replays.restore(7, into, session=1, constants={})
        assert not any(value.any() for value in into.values())
    assert "another checkpoint" in found(store, 7, session=2)[0] and "not saved" in found(store, 8)[0]


def test_a_replay_with_another_constant_changes_no_tensor(store):
    save(store, 7)
    words = {"replay/ticks": "env.time_limit", "replay/absent": "algo.n_step"}
    into = {name: torch.zeros_like(value) for name, value in ring(0).items()} | {"replay/ticks": torch.tensor([6])}
    reason = store.replays.restore(7, into, session=1, constants=words)
    assert reason == "env.time_limit was 7 when it was saved and is 6"
    assert into.pop("replay/ticks").item() == 6 and not any(value.any() for value in into.values())


def test_the_former_replay_stays_until_the_new_checkpoint_is_committed(store):
    save(store, 1)
    assert store.replays.save(2, ring(2), session=1)  # and is killed here
    assert lying(store) == ["replay-step-000000000001", "replay-step-000000000002"] and found(store, 1)[0] is None
    again = Store(store.folder, run_uuid=UUID, report=print)
    assert again.load().step == 1
    assert again.replays.save(3, ring(3), session=2)
    assert lying(store) == ["replay-step-000000000001", "replay-step-000000000003"]
    again.save(3, {"w": torch.ones(2)}, {}, session=2)
    assert lying(store) == ["replay-step-000000000003"] and found(again, 3, session=2)[0] is None


def test_leftovers_of_a_dead_writer_are_deleted_before_the_next_save(store):
    save(store, 1)
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = store.folder / f".tmp-replay-step-000000000002-{dead.pid}"
    left.mkdir()
    (left / "replay.safetensors").write_bytes(bytes(100))
    save(store, 2)
    assert lying(store) == ["replay-step-000000000002"]


def test_a_failed_write_is_reported_and_leaves_the_former_replay(store, said, monkeypatch):
    save(store, 1)
    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        assert not store.replays.save(2, ring(2), session=1)
    assert said == ["the replay of step 2 is not saved: Input/output error. A resume from it would be a warm one"]
    assert lying(store) == ["replay-step-000000000001"] and found(store, 1)[0] is None


def test_a_replay_of_another_run_is_not_touched(store):
    save(store, 1)
    other = Store(store.folder, run_uuid="cd" * 16, report=print)
    save(other, 2)
    assert (
        lying(store) == ["replay-step-000000000001", "replay-step-000000000002"]
        and "another checkpoint" in found(store, 2)[0]
    )
