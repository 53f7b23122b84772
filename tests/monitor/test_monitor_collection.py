"""Groups and sweeps in the monitor: the feed over folders that nobody trained, and the screen through the Pilot."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
from pathlib import Path

import pytest
from made_runs import made
from waiting import wait_until

from monitor import command
from monitor.charts.braille import ColumnCache, Plot, draw_plot
from monitor.charts.palette import ASCII, UNICODE
from monitor.charts.scale import Range
from monitor.command import RunFolders
from monitor.data.collection import open_collection
from monitor.data.snapshot import Point
from monitor.screen.app import MonitorApp
from monitor.screen.capture import text_of
from operant import runs
from operant.runs import groups, membership, sweeps

NAN = math.nan
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "collections"
UPDATE = os.environ.get("OPERANT_UPDATE_GOLDEN") == "1"


def rows(scale, count=60):
    return [(10 * k, (scale * k, 3.0 - k / 30, scale * k if k % 10 == 0 else NAN, 0.01)) for k in range(1, count + 1)]


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.fixture
def group(root):
    """Group of four seeds: two finished, one killed, one not begun."""
    made_group = groups.create(root, "usual", "x", {"overrides": []}, [1, 2, 3, 4])
    for seed in (1, 2, 3):
        own = membership.identity(made_group.uuid, seed)
        state, count = ("finished", 60) if seed < 3 else (None, 30)
        request = made_group.request(seed)
        run = made(
            root, f"usual.{seed}", rows(float(seed), count), seed=seed, steps=600, state=state, request=request, **own
        )
        runs.write_json(run.exit_path, {"exit": 0 if state else None, "signal": None if state else 9})
    return made_group


@pytest.fixture
def sweep(root):
    """Sweep of six trials, of which every third was stopped; its objective is best at a learning rate of 0.001."""
    folder = root / "search"
    folder.mkdir(parents=True)
    space = "algo.learning_rate={log=[1e-4,1e-2]}\nnet.hidden={choice=[[64,64],[256,256]]}\n"
    (folder / "sweep.toml").write_text(f"[sweep]\ntrials=6\n{space}")
    sweeps.create_identity(folder)
    for trial, rate in enumerate((1e-4, 3e-4, 1e-3, 2e-3, 5e-3, 1e-2)):
        words = [f"algo.learning_rate={rate}", f"net.hidden={'[64, 64]' if trial % 2 else '[256, 256]'}"]
        own = membership.identity(sweeps.uuid(folder), trial)
        scale = 5.0 - abs(math.log10(rate) + 3) * 2
        state, count = ("stopped", 25) if trial % 3 == 1 else ("finished", 60)
        made(root, f"search.{trial}", rows(scale, count), steps=600, state=state, request={"overrides": words}, **own)
    return folder


def shown(root, path, size, *keys, **how):
    """Text of the screen of the group or sweep in a folder, after keys."""
    library = RunFolders(runs.scope(str(root)), readonly=True)
    app = MonitorApp(library.open(str(path)), library, **how)
    texts = []

    async def whole():
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            for key in keys:
                await pilot.press(key)
                await pilot.pause()
            texts.append(text_of(app))

    asyncio.run(whole())
    return texts[0]


# THE FEED


def test_a_group_has_a_mean_its_runs_and_a_table(group):
    feed = open_collection(group.path)
    now = feed.snapshot()
    assert [one.state for one in now.collected.members] == ["finished", "finished", "crashed", "waiting"]
    assert [one.score for one in now.collected.members] == [60.0, 120.0, 90.0, None]
    curve = now.series["return"]
    assert set(curve.members) == {str(group.path.parent / f"usual.{seed}") for seed in (1, 2, 3)}
    point = curve.view("step", 0.0, 600.0, 6)[0]
    assert point.mean == pytest.approx(2 * 5.5) and point.low < point.mean < point.high
    assert curve.view("step", 0.0, 600.0, 6)[-1].mean == pytest.approx(1.5 * 55.5), "the killed run has ended before"
    assert ("eval", "90.0 ± 74.5 (95 %, n = 3)") in now.collected.figures and now.state == "crashed"
    assert now.progress.step == 1500 and feed.snapshot() is now
    feed.close()


@pytest.mark.slow
def test_a_seed_that_begins_joins_and_one_that_vanishes_stays_with_its_last_values(root, group):
    feed = open_collection(group.path)
    made(root, "usual.4", rows(4.0), seed=4, request=group.request(4), **membership.identity(group.uuid, 4))
    wait_until(lambda: feed.snapshot().collected.members[3].state == "finished")
    assert feed.snapshot().collected.members[3].score == 240.0
    shutil.rmtree(root / "usual.1")
    (root / "usual.2" / "metrics.mm").write_bytes(b"damaged")
    wait_until(lambda: [one.state for one in feed.snapshot().collected.members][:2] == ["unreadable"] * 2)
    first = feed.snapshot().collected.members[0]
    assert first.score == 60.0 and "deleted" in first.cause
    shutil.rmtree(group.path)
    wait_until(lambda: feed.snapshot() is not None)
    feed.close()


def test_a_sweep_has_searched_keys_and_a_best_trial(sweep):
    feed = open_collection(sweep)
    found = feed.snapshot().collected
    assert [axis.name for axis in found.axes] == ["algo.learning_rate", "net.hidden"]
    assert found.best.name == "trial 2" and found.line == "bold: trial 2, the best so far"
    assert found.members[2].settings == ("0.001", "[256, 256]")
    assert found.members[2].positions == pytest.approx((0.5, 1.0)) and found.members[0].positions[0] == 0.0
    assert found.members[1].value is None, "a stopped trial has no objective"
    feed.close()


def test_values_in_the_titles_of_a_sweeps_charts_are_those_of_its_best_trial(root, sweep):
    feed = open_collection(sweep)
    assert {figure.metric: figure.value for figure in feed.snapshot().figures} == {
        "eval/return": 300.0,
        "return": 300.0,
    }
    feed.close()


def test_a_sweep_shows_the_share_of_its_trials_and_finishes_though_trials_were_ended_early(root, sweep):
    text = shown(root, sweep, (120, 36))
    assert "STOPPED" in text and "100.0 %" in text and "trials 4 of 6 finished, 2 stopped" in text
    sweeps.set_finished(sweep, True)
    assert "FINISHED" in shown(root, sweep, (120, 36))
    sweeps.set_finished(sweep, False)
    shutil.rmtree(root / "search.5")
    assert "STOPPED" in shown(root, sweep, (120, 36)) and "83.3 %" in shown(root, sweep, (120, 36))


def test_a_sweep_of_several_seeds_counts_its_runs(root, sweep):
    file = sweep / "sweep.toml"
    file.write_text(file.read_text().replace("trials=6", "trials=3\nseeds=4"))
    text = shown(root, sweep, (120, 36))
    assert "runs 4 of 12 finished, 2 stopped" in text and "50.0 %" in text


def test_a_trial_ended_by_the_sweep_says_so_and_not_the_name_of_a_signal(root, sweep):
    own = membership.identity(sweeps.uuid(sweep), 6)
    made(root, "search.6", rows(1.0, 20), steps=600, state="stopped", reason=signal.SIGTERM, **own)
    text = shown(root, sweep, (120, 36), "3")
    assert "ended by the sweep" in text and "SIGTERM" not in text


def test_the_list_of_runs_has_groups_and_sweeps_above_their_newest_run_and_opens_them(root, group, sweep):
    library = RunFolders(runs.scope(str(root)), readonly=True)
    listed = {row.id: row for row in library.rows()}
    assert [*listed][:2] == ["search", "search.5"]
    assert [*listed][7:] == ["usual", "usual.3", "usual.2", "usual.1"]
    assert listed["usual"][2:] == ("stopped", "cartpole", "ppo", "90.0", "-", "2 of 4 seeds", listed["usual.3"].age)
    assert (listed["search"].state, listed["search"].progress) == ("stopped", "6 trials")
    assert [row.id for row in library.overlays() if "." not in row.id] == ["usual"], "a sweep has no mean to overlay"
    assert "sweep of 6 runs" in shown(root, group.path, (120, 36), "r", *"search", "enter")
    assert "group of 4 runs" in shown(root, sweep, (120, 36), "r", *"usual", "enter")


def test_a_group_that_nothing_trains_names_the_command_that_continues_it(root, group):
    assert "continue: operant resume usual" in shown(root, group.path, (80, 24))


@pytest.mark.parametrize("text", ["", "sweep = 3", "[sweep]\nalgo.x = {log = [0, 'a']}\nnet.y = {choice = 3}", "\x00"])
def test_a_damaged_sweep_is_shown_without_its_search(sweep, root, text):
    (sweep / "sweep.toml").write_text(text)
    assert "search" in shown(root, sweep, (80, 24), "4")


# THE SCREEN

SCREENS = {
    "group-120x36": ("group", (120, 36), ()),
    "group-80x24": ("group", (80, 24), ("down",)),
    "group-40x10": ("group", (40, 10), ()),
    "group-runs-80x24": ("group", (80, 24), ("3",)),
    "sweep-120x36": ("sweep", (120, 36), ()),
    "sweep-80x24": ("sweep", (80, 24), ()),
    "sweep-40x10": ("sweep", (40, 10), ()),
    "sweep-search-80x24": ("sweep", (80, 24), ("4",)),
}


@pytest.mark.parametrize("name", SCREENS)
def test_screen_of_a_group_and_a_sweep_matches_its_golden_file(name, root, request):
    kind, size, keys = SCREENS[name]
    made_now = request.getfixturevalue(kind)
    text = shown(root, made_now if kind == "sweep" else made_now.path, size, *keys) + "\n"
    if UPDATE:
        GOLDEN.mkdir(parents=True, exist_ok=True)
        (GOLDEN / f"{name}.txt").write_text(text, encoding="utf-8")
    assert text.split("\n") == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").split("\n")


@pytest.mark.slow
def test_enter_opens_the_selected_run_and_escape_returns(root, group):
    member = shown(root, group.path, (120, 36), "down", "enter")
    assert "usual › usual.2" in member and "Health" in member
    back = shown(root, group.path, (120, 36), "down", "enter", "escape")
    assert "group of 4 runs" in back and "usual ›" not in back
    assert "seed 4 has not begun" in shown(root, group.path, (120, 36), "end", "down", "down", "down", "enter")
    assert "enter opens one" in shown(root, group.path, (120, 36), "S"), "requests go to a single run"


def test_ascii_screens_of_a_group_and_a_sweep_are_ascii(root, group, sweep):
    for path in (group.path, sweep):
        for keys in ((), ("4",)):
            assert shown(root, path, (120, 36), *keys, ascii_only=True).isascii()


@pytest.mark.slow
@pytest.mark.parametrize("size", [(40, 10), (60, 16), (80, 24), (200, 60)])
def test_every_key_works_in_every_size(size, root, sweep):
    keys = [*"123456xsy", "plus", "minus", "home", "end", "left", "right", "up", "down", "tab", "i", "escape"]
    keys += ["l", "e", "g", "space", "space", "d", "escape"]
    assert "search" in shown(root, sweep, size, *keys)


def test_the_command_shows_a_group_as_text(root, group, capsys):
    assert command.main(["usual", "--once", "--runs", str(root)]) == 0
    assert "group of 4 runs" in capsys.readouterr().out
    assert command.main(["usual", "--runs", str(root)]) == 137, "the code of the first run that did not finish"
    assert "usual  crashed" in capsys.readouterr().out


def test_thin_lines_lie_beneath_the_mean():
    def line(value):
        return [Point(value, value, value)] * 20

    for glyphs, character, lowest in ((UNICODE, None, 8), (ASCII, "'", 7)):
        plot = Plot(line(5.0), Range(0.0, 10.0), strands=(line(1.0), line(5.0)))
        drawn = draw_plot(plot, 10, 9, glyphs, ColumnCache())
        bold = [y for y, row in enumerate(drawn) if row[4].style.fore == "series.0"]
        thin = [y for y, row in enumerate(drawn) if row[4].style.fore == "dim" and row[4].character != " "]
        assert bold == [4] and thin == [lowest]
        assert character is None or drawn[lowest][4].character == character
