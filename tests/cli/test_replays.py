"""The replay of an off-policy run beside its checkpoints: a resume with it is to the bit, without it a warm one, and
neither is refused.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from pathlib import Path

import pytest
import torch
from processes import ITERATION, inline, tensors, the_run

from monitor.data.feed import LiveFeed
from monitor.screen.dialog_text import description
from operant import runs
from operant.config import request
from operant.runs import atomic
from operant.runs.checkpoints import Store
from operant.runs.checkpoints.tensors import pack
from operant.runs.metrics import Reader
from operant.text import size
from operant.training import worker
from operant.worlds import DeviceWorld

pytestmark = pytest.mark.usefixtures("one_thread", "serial_worlds")
WORDS = ("algo.name=dqn", f"algo.learning_starts={2 * ITERATION}", "algo.replay_capacity=16k", "checkpoint.every=2")


def go_on(run: runs.Run, *words: str, start: str = "last") -> None:
    """`operant resume RUN words --from start`, in this process."""
    asked = request.to_resume(run.config_path, words)
    runs.update_document(
        run.path, request={**runs.read_json(run.path / "run.json")["request"], **asked.resume_document()}
    )
    worker.train(run.path, resume=start)


def replays(run: runs.Run) -> list[Path]:
    return sorted(run.checkpoints_path.glob("*replay-*"))


def read(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path / "replay.safetensors")


@pytest.fixture
def whole(here, tmp_path) -> runs.Run:
    """A run of 4 iterations."""
    assert inline(here, f"run.steps={4 * ITERATION}", *WORDS).code == 0
    return the_run(tmp_path)


def test_a_resume_with_its_replay_is_to_the_bit(here, whole, tmp_path):
    (path,) = replays(whole)
    assert path.name == f"replay-step-{4 * ITERATION:012d}" and not any(
        name.startswith("replay/") for name in stored(whole)
    )
    go_on(whole, f"run.steps={8 * ITERATION}")
    resumed, ring = tensors(whole.path), read(replays(whole)[-1])
    assert inline(here, f"run.steps={8 * ITERATION}", *WORDS, "--name", "straight").code == 0
    straight = next(run for run in runs.list_runs(tmp_path / "runs", everywhere=False) if run.id == "straight")
    assert tensors(straight.path) == resumed
    assert (
        all(torch.equal(value, ring[name]) for name, value in read(replays(straight)[-1]).items())
        and ring["replay/ticks"].item() == 8 * 16
    )


def stored(run: runs.Run) -> set[str]:
    from safetensors.torch import load

    return set(load(tensors(run.path)))


def delete(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


def flip(path: Path) -> None:
    file = path / "replay.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def shorten(path: Path) -> None:
    with open(path / "replay.safetensors", "r+b") as file:
        file.truncate(1000)


def foreign(path: Path) -> None:
    manifest = path / "manifest.json"
    fields = atomic.decode_manifest(manifest.read_bytes())
    manifest.write_bytes(atomic.encode_manifest({**fields, "session": 7}))


@pytest.mark.parametrize(
    "spoil", [delete, flip, *(pytest.param(f, marks=pytest.mark.slow) for f in (shorten, foreign))]
)
def test_without_a_sound_replay_a_resume_is_a_warm_one(whole, spoil, caplog):
    before = tensors(whole.path)
    spoil(replays(whole)[-1])
    with caplog.at_level(logging.INFO):
        go_on(whole, f"run.steps={8 * ITERATION}", "run.record_hz=1000")
    assert "warm resume: the replay starts empty" in caplog.text
    # It holds what this session collected, learns only once that is enough, and went on from the trained network.
    assert read(replays(whole)[-1])["replay/ticks"].item() == 4 * 16
    with Reader(whole.metrics_path) as reader:
        names = [metric.name for metric in reader.metrics]
        fill = [record.values[names.index("replay_fill")] for record in reader.since(0)]
        updates = [record.values[names.index("td_error")] for record in reader.since(0)]
    assert (
        fill == sorted(fill)
        and fill[-1] == pytest.approx(4 * ITERATION / 16_000, rel=0.01)
        and updates[0] == 0.0 < updates[-1]
    )
    assert tensors(whole.path) != before


def test_a_replay_of_another_shape_starts_empty(whole, caplog):
    with caplog.at_level(logging.INFO):
        go_on(whole, f"run.steps={6 * ITERATION}", "algo.replay_capacity=8k")
    assert (
        "warm resume: the replay starts empty: for replay/action it has I32 [250, 64, 1], this configuration I32 "
        "[125, 64, 1]" in caplog.text
    )


def test_a_replay_of_another_time_limit_starts_empty(whole, caplog, monkeypatch):
    """The environment's limit is edited to 300 steps: both limits give two rows of final observations, of other
    ticks.
    """
    monkeypatch.setattr(DeviceWorld, "truncation_gap", 300)
    with caplog.at_level(logging.INFO):
        go_on(whole, f"run.steps={5 * ITERATION}")
    assert "the replay starts empty: the time limit of episodes was 500 when it was saved and is 300" in caplog.text
    assert read(replays(whole)[-1])["replay/ticks"].item() == 16


def test_priorities_of_other_n_step_returns_are_not_used(here, tmp_path, caplog):
    """The newest ticks have a priority, but no return of more steps yet."""
    assert inline(here, f"run.steps={2 * ITERATION}", *WORDS, "algo.replay_sampling=prioritised").code == 0
    with caplog.at_level(logging.INFO):
        go_on(the_run(tmp_path), f"run.steps={3 * ITERATION}", "algo.n_step=7")
    assert "the replay starts empty: algo.n_step was 5 when it was saved and is 7" in caplog.text


def test_a_replay_of_an_environment_with_another_state_starts_empty(whole, caplog):
    """Lanes that begin anew in mid-episode would need the row of a final observation that is still in use."""
    store = Store(whole.checkpoints_path, run_uuid=whole.uuid.hex(), report=print)
    found, (manifest, files) = store.load(), store.load_files()
    changed = {**found.tensors, "world/state": found.tensors["world/state"][:-1]}
    store.save_files(found.step, pack(changed), files["state.json"], files["config.toml"], session=manifest.session)
    with caplog.at_level(logging.INFO):
        go_on(whole, f"run.steps={5 * ITERATION}")
    assert "the replay starts empty: the environment's state has changed" in caplog.text
    assert read(replays(whole)[-1])["replay/ticks"].item() == 16


def test_false_saves_none_and_says_so(here, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        assert inline(here, f"run.steps={4 * ITERATION}", *WORDS, "checkpoint.replay=false").code == 0
    run = the_run(tmp_path)
    assert (
        replays(run) == [] and "is not saved: checkpoint.replay = false. checkpoint.replay=true saves it" in caplog.text
    )
    assert json.loads((sorted(run.checkpoints_path.glob("step-*"))[-1] / "state.json").read_text())["tier"] == "train"
    go_on(run, f"run.steps={6 * ITERATION}", "checkpoint.replay=true")
    assert "warm resume: the replay starts empty: not saved" in caplog.text and len(replays(run)) == 1


def test_auto_leaves_nine_tenths_of_the_free_disk(here, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(atomic, "free_bytes", lambda where: 3_000_000)
    with caplog.at_level(logging.INFO):
        assert inline(here, f"run.steps={2 * ITERATION}", *WORDS).code == 0
    run = the_run(tmp_path)
    assert (
        replays(run) == []
        and "it is larger than 10 % of the 2.86 MiB free on the disk" in caplog.text
        and "warm resume: the replay (" in caplog.text
    )
    go_on(run, f"run.steps={4 * ITERATION}", "checkpoint.replay=true")
    assert len(replays(run)) == 1


def test_a_disk_without_room_for_it_costs_no_checkpoint(here, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(atomic, "free_bytes", lambda where: 1_000_000)
    with caplog.at_level(logging.INFO):
        assert (
            inline(
                here, f"run.steps={2 * ITERATION}", *WORDS, "algo.replay_capacity=64k", "checkpoint.replay=true"
            ).code
            == 0
        )
    run = the_run(tmp_path)
    assert (
        replays(run) == []
        and "is not saved: not enough disk space" in caplog.text
        and list(run.checkpoints_path.glob("step-*"))
    )


@pytest.mark.slow
def test_never_more_than_two_lie_there_and_the_best_has_none(here, tmp_path, monkeypatch):
    most, commit = [], atomic.commit

    def counted(root, name, files, fields, **options):
        commit(root, name, files, fields, **options)
        most.append(len([other for other in atomic.list_names(root) if "replay" in other]))

    monkeypatch.setattr(atomic, "commit", counted)
    words = (
        f"run.steps={12 * ITERATION}",
        *WORDS,
        "checkpoint.replay=true",
        "eval.every=1",
        "eval.episodes=8",
        "checkpoint.keep=20",
    )
    assert inline(here, *words).code == 0
    run = the_run(tmp_path)
    assert max(most) == 2 and [path.name for path in replays(run)] == [f"replay-step-{12 * ITERATION:012d}"]
    saved = [int(path.name.split("-")[1]) // ITERATION for path in run.checkpoints_path.glob("step-*")]
    document = {
        step: json.loads((run.checkpoints_path / f"step-{step * ITERATION:012d}" / "state.json").read_text())
        for step in saved
    }
    assert {document[step]["tier"] for step in saved if step % 2} <= {"train"} and {
        document[step]["tier"] for step in saved if step % 2 == 0
    } == {"all"}


@pytest.mark.slow
def test_auto_waits_for_it_a_twentieth_of_the_time_at_most_but_for_the_last(here, tmp_path, monkeypatch):
    names, commit = [], atomic.commit

    def slow(root, name, files, fields, **options):
        time.sleep(0.5 * name.startswith("replay-"))
        names.append(name)
        commit(root, name, files, fields, **options)

    monkeypatch.setattr(atomic, "commit", slow)
    assert inline(here, f"run.steps={8 * ITERATION}", *WORDS, "checkpoint.every=1").code == 0
    assert len([name for name in names if name.startswith("replay-")]) <= 2
    assert names[-2:] == [f"{kind}-{8 * ITERATION:012d}" for kind in ("replay-step", "step")]
    assert len({name for name in names if name.startswith("step-")}) == 8
    assert [path.name for path in replays(the_run(tmp_path))] == [f"replay-step-{8 * ITERATION:012d}"]


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_continuous_actions_too(here, tmp_path, caplog, algo):
    words = (
        "pendulum",
        f"algo.name={algo}",
        "algo.learning_starts=1024",
        "algo.batch_size=64",
        "algo.updates_per_step=0.25",
        "net.hidden=[16,16]",
    )
    assert inline(here, f"run.steps={4 * ITERATION}", *words, "algo.replay_capacity=16k").code == 0
    run = the_run(tmp_path)
    flip(replays(run)[-1])
    with caplog.at_level(logging.INFO):
        go_on(run, f"run.steps={8 * ITERATION}")
    assert "warm resume: the replay starts empty: " in caplog.text and "replay.safetensors is damaged" in caplog.text
    assert read(replays(run)[-1])["replay/ticks"].item() == 4 * 16


def test_how_large_it_is_is_shown_in_the_monitor(whole):
    bytes_ = sum(value.nbytes for value in read(replays(whole)[-1]).values())
    assert runs.read_json(whole.path / "run.json")["replay"] == size(bytes_)
    with contextlib.closing(LiveFeed(whole)) as feed:
        lines = ["".join(piece.text for piece in line) for line in description(feed.snapshot())]
    assert any(line.split() == ["replay", *size(bytes_).split()] for line in lines), lines


def test_what_saving_took_is_told(whole):
    with Reader(whole.metrics_path) as reader:
        lines = [event.text for event in reader.events()]
    assert any(
        line.startswith(f"checkpoint of step {4 * ITERATION:,}, with its replay (") and line.endswith(" s)")
        for line in lines
    ), lines
