"""Parts of the screen without a screen: lines, plans, views, keys, texts. Hostile text everywhere."""

from __future__ import annotations

import ast
import asyncio
import os
import random
import unicodedata
from typing import Any

import pytest
from fake_snapshots import FakeCatalog, FakeSource, running, states, table
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.widget import Widget

from monitor.charts import line
from monitor.charts.canvas import changed_runs
from monitor.charts.line import Piece
from monitor.data.snapshot import Ending, LogLine
from monitor.screen import header, keys, labels, layout, panels, theme_choice, view
from monitor.screen import log as log_panel
from monitor.screen.app import MonitorApp
from monitor.screen.capture import text_of
from monitor.screen.layout import REST
from monitor.screen.model import Model
from monitor.screen.navigation import CHANGES
from monitor.screen.view import PAGES, View

HOSTILE = (
    "\x1b[2J\x1b]0;x\x07",
    "[/foo]",
    "[@click=app.detach]x[/]",
    "[link=file:///etc/passwd]y",
    "\u202egnp.exe",
    "a\x00b",
    "\x9b31m",
    "\u2028line",
    "🏴‍☠️é日本語",
    "\ud800",
    "x" * 10_000,
    "[b]",
    "\\[",
    "${{",
    "%s%n",
    "\r\n\t",
    "\u200b\u200d",
    "A\u0300\u0301\u0302",
)


# LINES


@given(st.text(max_size=60), st.booleans())
def test_hostile_text_sends_no_control_sequences(text, ascii_only):
    shown = line.clean(text, ascii_only=ascii_only)
    assert all(unicodedata.category(c) not in ("Cc", "Cs", "Cf", "Zl", "Zp") for c in shown)
    assert not ascii_only or shown.isascii()


@given(st.lists(st.text(max_size=12), max_size=5), st.integers(0, 40))
def test_a_line_fits_exactly(texts, width):
    pieces = [Piece(line.clean(text)) for text in texts]
    assert line.length(line.fit(pieces, width)) == width
    if line.length(pieces) <= width:
        assert (
            "".join(piece.text for piece in line.fit(pieces, width)).rstrip()
            == "".join(piece.text for piece in pieces).rstrip()
        )


def test_ascii_keeps_every_column():
    for text in ("● RUNNING ━━╸── ▲ ◆ ┊", "✖ ✔ ■ ⌁ ‖ ◔ ◌ ◐", "│╭╮╰╯─ · … × ≈ ← → −"):
        assert line.width_of(line.clean(text, ascii_only=True)) == line.width_of(text)


def test_flow_breaks_between_parts():
    parts = [[Piece("one")], [Piece("three")], [Piece("five")]]
    assert ["".join(piece.text for piece in made) for made in line.flow(parts, 11)] == ["one   three", "five"]


@given(st.text("ab ", min_size=8, max_size=8), st.text("ab ", min_size=8, max_size=8))
def test_changed_stretches_hold_every_change(before, after):
    runs = changed_runs(line.row_of((Piece(before),)), line.row_of((Piece(after),)))
    inside = {x for start, cells in runs for x in range(start, start + cells)}
    assert {x for x in range(8) if before[x] != after[x]} <= inside
    assert bool(runs) == (before != after)


def test_a_line_with_wide_characters_is_repainted_whole():
    assert changed_runs(line.row_of((Piece("日本 a"),)), line.row_of((Piece("日本 b"),))) == [(0, 6)]


# PLANS


@pytest.mark.parametrize("page", PAGES)
def test_a_plan_fits_every_size(page):
    for width in range(1, 230, 3):
        for height in range(1, 70):
            for lines in (0, 4, 24):
                plan = layout.plan(width, height, View(page=page), ending_lines=lines)
                body = max(1, height - (3 if width < 60 or height < 16 else 4) - plan.figure_lines)
                if plan.compact:
                    assert page == "overview" and (width < 60 or height < 16)
                    continue
                assert plan.sidebar == REST or plan.sidebar <= max(0, width - 30) or page == "time"
                if page == "overview":
                    assert plan.charts > 0 and plan.bottom < body
                    assert (body - plan.bottom) // plan.rows >= min(8, body - plan.bottom)
                    assert (width - plan.sidebar) // plan.columns >= min(27, width)
                    assert plan.ending == (lines > 0) and not (plan.ending and plan.agent)
                if page == "charts":
                    assert width // plan.columns >= min(27, width) and body // plan.rows >= min(8, body)


def test_plans_of_documented_sizes():
    assert (
        layout.plan(160, 48, View()).columns == 3
        and layout.plan(160, 48, View()).sidebar
        and layout.plan(160, 48, View()).agent
    )
    assert layout.plan(120, 36, View()).columns == 3 and layout.plan(120, 36, View()).log
    assert (
        layout.plan(80, 24, View()).columns,
        layout.plan(80, 24, View()).rows,
        layout.plan(80, 24, View()).sidebar,
    ) == (2, 2, 0)
    assert layout.plan(70, 24, View()).columns == 1
    assert layout.plan(80, 24, View()).health_line and not layout.plan(120, 36, View()).health_line
    for width in (60, 79, 80, 99, 100, 160):  # health has a place on the page that explains it, however small
        for height in range(16, 50):
            plan = layout.plan(width, height, View(page="time"))
            others = plan.time_lines + plan.machine_lines
            assert (plan.explained and others <= plan.body) or (plan.health and plan.body - others >= 5)
    assert layout.plan(59, 40, View()).compact and layout.plan(200, 15, View()).compact
    assert layout.plan(120, 36, View(maximised="return")).charts == 1
    assert not layout.plan(120, 36, View(sidebar=False)).sidebar and not layout.plan(120, 36, View(bottom=False)).bottom


# VIEWS


@given(st.lists(st.sampled_from(["in", "out", "start", "end", "axis"]), max_size=12))
@settings(max_examples=60)
def test_a_window_never_leaves_the_run(presses):
    whole, newest, now = (0.0, 1000.0), 870.0, View()
    for key in presses:
        if key in ("in", "out"):
            now = view.zoomed(now, 1 if key == "in" else -1, whole)
        else:
            now = {"start": lambda v: view.to_start(v, whole), "end": view.following, "axis": view.next_axis}[key](now)
        first, last = view.window(now, whole, newest)
        assert whole[0] <= first < last <= whole[1]
        assert last - first == pytest.approx(1000 / 2**now.zoom)
        assert now.end is not None or last >= newest


def test_a_window_that_follows_moves_in_jumps():
    now = View(zoom=3)
    ends = {view.window(now, (0.0, 1000.0), newest)[1] for newest in range(500, 620)}
    assert len(ends) <= 9, "every eighth of its length, not with every record"


def test_metrics_come_in_their_order():
    names = view.matching(table().curves)
    assert names[:3] == ["return", "sps", "eval/return"] and names[-1] == "seconds/update"
    assert view.matching(["zeta", "alpha", "return"]) == ["zeta", "alpha", "return"], "in the order the run declares"
    assert view.matching(table().curves, "LOSS kl") == ["approx_kl", "loss/value", "loss/policy"]
    assert view.matching(table().curves, "loss/*y") == ["loss/policy"]
    assert view.matching(table().curves, "[") == []


# WHAT KEYS DO

ARGUMENTS = {
    "page": ("log",),
    "zoom": (1,),
    "move": (1, 0),
    "wheel": (1,),
    "choose": ("return",),
    "next_chart": (1,),
    "turn_page": (1,),
    "narrow": ("loss",),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_the_view_is_possible_in_any_state_on_any_page_at_any_size(change):
    for snapshot in states().values():
        for page in PAGES:
            for size in ((1, 1), (40, 12), (160, 48)):
                now = Model(snapshot, View(page=page)).with_(size=size)
                new = CHANGES[change](now, *ARGUMENTS.get(change, ()))
                assert isinstance(new, View) and len(now.with_(view=new).names) <= max(
                    1, now.with_(view=new).plan.charts
                )


def test_every_key_does_something():
    for key in keys.KEYS:
        name, _, arguments = key.action.partition("(")
        assert hasattr(MonitorApp, f"action_{name}") and (
            name != "navigate" or ast.literal_eval(f"({arguments[:-1]},)")[0] in CHANGES
        ), key.id


# KEYS


def test_no_key_has_two_meanings():
    own = [key for one in keys.KEYS for key in one.keys.split(",")]
    assert len(own) == len(set(own)) and len({one.id for one in keys.KEYS}) == len(keys.KEYS)
    for one in keys.KEYS:
        assert one.trains == (one.keys in ("C", "P", "S")), (
            "what touches the trainer is upper case, and nothing else is but the copy"
        )


@pytest.mark.parametrize(
    ("text", "found", "notice"),
    [
        ("", {}, False),
        ('freeze = "f"\nlog = "f5,L"', {"freeze": "f", "log": "f5,L"}, False),
        ('freeze = "f"\nfrieze = "g"', {"freeze": "f"}, True),
        ("freeze = 3", {}, True),
        ('freeze = ""', {}, True),
        ('freeze = "a b"', {}, True),
        ("freeze = [", {}, True),
        ("\x00\xff", {}, True),
        ("[freeze]\nx = 1", {}, True),
        ("a = " + "[" * 5000, {}, True),
    ],
)
def test_a_persons_own_keys(tmp_path, text, found, notice):
    (tmp_path / "keys.toml").write_text(text, encoding="latin-1")
    own, told = keys.keymap(tmp_path / "keys.toml")
    assert own == found and bool(told) == notice and told.isprintable()


def test_a_missing_keys_file_is_no_problem(tmp_path):
    assert keys.keymap(tmp_path / "keys.toml") == ({}, "")
    (tmp_path / "folder").mkdir()
    assert "cannot be read" in keys.keymap(tmp_path / "folder")[1]


# CHOSEN THEME


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "operant" / "theme"


@pytest.mark.parametrize("name", theme_choice.NAMES)
def test_a_chosen_theme_is_found_again(kept, name):
    assert theme_choice.load() is None
    for other in reversed(theme_choice.NAMES):
        theme_choice.save(other)
    theme_choice.save(name)
    assert theme_choice.load() == name and os.listdir(kept.parent) == ["theme"]


@pytest.mark.parametrize("raw", [b"", b"\n", b"pink", b"lightlight", b"light" * 5000, b"\x00\xff\xfe", b"light dark"])
def test_a_damaged_choice_is_none(kept, raw):
    kept.parent.mkdir()
    kept.write_bytes(raw)
    assert theme_choice.load() is None
    theme_choice.save("light")
    assert theme_choice.load() == "light", "a new choice replaces it"


@pytest.mark.parametrize("kind", ["folder", "FIFO", "dangling link"])
def test_a_choice_that_is_no_file_is_none(kept, kind):
    kept.parent.mkdir()
    {"folder": kept.mkdir, "FIFO": lambda: os.mkfifo(kept), "dangling link": lambda: kept.symlink_to("nowhere")}[kind]()
    assert theme_choice.load() is None
    theme_choice.save("light")
    assert theme_choice.load() == (None if kind == "folder" else "light")
    assert os.listdir(kept.parent) == ["theme"], "nothing is left over"


def test_no_place_for_a_choice_is_no_problem(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for base in (str(tmp_path / "file"), "/proc/1/nowhere", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", base)
        monkeypatch.setenv("HOME", str(tmp_path / "file"))
        theme_choice.save("light")
        assert theme_choice.load() is None
    assert os.listdir(tmp_path) == ["file"]


# WORDS


PANELS = (
    header.header,
    header.progress,
    header.figures,
    header.message,
    header.compact_lines,
    panels.health,
    panels.explained,
    panels.time,
    panels.machine,
    log_panel.log,
    panels.config,
    panels.ending,
    panels.empty,
    header.footer,
)


@pytest.mark.parametrize("draw", PANELS, ids=lambda draw: draw.__name__)
def test_every_panel_can_be_drawn_at_any_size_in_any_state(draw):
    for snapshot in states().values():
        for width in (1, 2, 9, 20, 39, 80, 200):
            for height in (1, 3, 12):
                draw(Model(snapshot), width, height)


def test_changing_numbers_do_not_move_other_text():
    def places(snapshot: Any) -> list[int]:
        (made, *_) = header.figures(Model(snapshot), 240, 1)
        text = "".join(piece.text for piece in made)
        return [text.index(label) for label in ("return", "eval", "length", "SPS", "entropy", "KL")]

    first = running()
    values = (-170.25, 0.0, None, 12.3456, 0.00012345, -0.00912345)
    others = [
        first._replace(figures=tuple(one._replace(value=value, best=value) for one in first.figures))
        for value in values
    ]
    assert all(places(other) == places(first) for other in others)


def written(lines: Any) -> str:
    return "\n".join("".join(piece.text for piece in line) for line in lines)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "-"),
        (72.0, "0:01:12"),
        (45_296.0, "12:34:56"),
        (359_999.0, "99:59:59"),
        (374_399.0, "4 d 7 h"),
        (863_999.0, "9 d 23 h"),
        (1_468_800.0, "17 d"),
        (8_640_000.0, "100 d"),
    ],
)
def test_remaining_time_is_never_cut(seconds, said):
    assert labels.remaining(seconds) == said
    shown = running()
    line = written(header.progress(Model(shown._replace(progress=shown.progress._replace(eta_s=seconds))), 120, 1))
    assert f"ETA {said} " in line and "…" not in line


def test_message_line_lists_non_default_settings():
    def said(snapshot: Any, **how: Any) -> str:
        return written(header.message(Model(snapshot, **how), 200, 1))

    changed = View(axis="wall", filter="loss", page="charts")
    other = running()._replace(run=running().run._replace(short="77b0"))
    assert "overlay: 77b0" in said(running(), overlay=other) and "x: wall time · filter 'loss'" in said(
        running(), view=changed
    )
    crashed = said(states()["crashed"], view=changed)
    assert crashed.index("killed by SIGKILL") < crashed.index("x: wall time")
    assert "x: wall time" not in written(header.message(Model(states()["crashed"], changed), 120, 1)), (
        "how it ended matters more"
    )
    assert "requested by root@vm, 3 min ago · P resumes" in said(
        states()["paused"]._replace(cause="by root@vm, 3 min ago")
    )
    empty = states()["crashed"]._replace(progress=states()["starting"].progress)
    assert "earlier steps" in said(states()["crashed"]) and "earlier steps" not in said(empty)


def test_the_progress_bar_is_full_only_at_the_end():
    base = running()

    def bar(step: int) -> str:
        (made,) = header.progress(Model(base._replace(progress=base.progress._replace(step=step))), 120, 1)
        return "".join(piece.text for piece in made)

    most = bar(500_000_000).count("━")
    assert most > 40 and bar(499_900_000).count("━") < most and "━" not in bar(0)


# HOSTILE TEXT, THROUGH THE WHOLE SCREEN


def poisoned(text: str) -> Any:
    base = running()
    facts = base.run._replace(
        id=text, short=text, path=text, env=text, algo=text, device=text, host=text, version=text, created=text
    )
    return base._replace(
        run=facts,
        cause=text,
        notice=text,
        config=text,
        agent_absent=text,
        frame=None,
        log=(LogLine(text, "bad", text),),
        health=tuple(one._replace(title=text, wanted=text, advice=text, explanation=text) for one in base.health),
        phases=tuple(one._replace(name=text) for one in base.phases),
        figures=tuple(one._replace(label=text, unit=text) for one in base.figures),
        ending=Ending(text, (text,), (text,), (text,)),
    )


def test_hostile_text_reaches_no_terminal():
    """The feed already sanitizes all text; the screen does not rely on it."""
    app = MonitorApp(FakeSource(running()), FakeCatalog(), theme="dark")

    async def whole() -> None:
        async with app.run_test(size=(120, 36)) as pilot:
            for version, text in enumerate(HOSTILE, 2):
                app.source.now = poisoned(text)._replace(version=version, state="failed" if version % 2 else "stalled")
                app.poll_source()
                for key in ("2", "4", "5", "6", "d", "escape", "1") if version % 9 == 2 else ():
                    await pilot.press(key)
                await pilot.pause()
                shown = text_of(app)
                assert all(c == "\n" or c.isprintable() for c in shown), repr(text)
                assert isinstance(app.screen, Widget) and app.is_running

    asyncio.run(whole())


def test_a_panel_shows_markup_as_it_is_written():
    made = log_panel.log(Model(running(log=(LogLine("", "ok", "[b]bold[/b] [@click=app.detach]x[/]"),))), 80, 3)
    assert made[0][0].text == "[b]bold[/b] [@click=app.detach]x[/]" and not made[0][0].action


def test_random_snapshots_are_never_too_wide():
    draw = random.Random(1)
    for _ in range(60):
        width, height = draw.randint(1, 150), draw.randint(1, 20)
        snapshot = poisoned(draw.choice(HOSTILE))
        for panel in PANELS:
            for made in panel(Model(snapshot), width, height)[:height]:
                assert (
                    line.length(line.fit([piece._replace(text=line.clean(piece.text)) for piece in made], width))
                    == width
                )


def test_the_log_has_its_lines_whole_on_its_page():
    long = "a sentence of forty-three cells and no more " * 4
    log = (
        LogLine("10:00:00", "ok", "first", True),
        LogLine("10:00:01", "bad", long, True),
        LogLine("", "ok", "猫" * 60),
        LogLine("10:00:02", "ok", "last"),
    )
    snapshot = running(log=log)
    page = Model(snapshot, View(page="log"))
    for width in (20, 40, 76, 400):
        lines = log_panel.log(page, width, 100)
        assert len(lines) == log_panel.log_length(page, width) and all(
            sum(line.width_of(piece.text) for piece in one) <= width for one in lines
        )
        told = "".join("".join(piece.text for piece in one[-1:]) for one in lines)
        assert long in told and "猫" * 60 in told and told.startswith("first") and told.endswith("last")
        ends = [
            log_panel.log(page._replace(view=View(page="log", scroll=up)), width, 2)[-1] for up in range(len(lines) - 1)
        ]
        assert ends == lines[:0:-1], "a line up is a line on the screen"
    beside = log_panel.log(Model(snapshot), 40, 2)
    assert len(beside) == 2 and written(beside[1:]).strip() == "10:00:02 last"


def test_the_list_of_keys_fits_a_small_terminal():
    from monitor.screen.dialog_text import help_lines

    for width in (30, 34, 60, 92):
        lines = help_lines({}, width=width)
        assert max(sum(line.width_of(piece.text) for piece in one) for one in lines) <= width
        assert "leave the monitor; the run continues" in " ".join(written(lines).split())
