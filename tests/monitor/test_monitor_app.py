"""The app through Textual's Pilot: every key and dialog, sizes, and no drawing without changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fake_snapshots import STEPS, FakeCatalog, FakeSource, ended, running, states, table
from rich.segment import Segment
from textual.pilot import Pilot
from textual.strip import Strip

from monitor.data.snapshot import LogLine
from monitor.screen import capture
from monitor.screen.app import MonitorApp
from monitor.screen.capture import text_of
from monitor.screen.keys import KEYS
from monitor.screen.screens import ConfirmScreen, FilterBar, ListScreen, TextScreen
from operant.runs.states import ENDED

Act = Callable[[Any, Pilot[None]], Awaitable[None]]


def act(body: Act, app: MonitorApp | None = None, size: tuple[int, int] = (120, 36), **how: Any) -> MonitorApp:
    """Run an app and execute `body` in it."""
    app = app or MonitorApp(FakeSource(running()), FakeCatalog(), **how)

    async def whole() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await body(app, pilot)

    asyncio.run(whole())
    return app


async def press(pilot: Pilot[None], *keys: str) -> None:
    await pilot.press(*keys)
    await pilot.pause()


async def show(app: Any, pilot: Pilot[None], snapshot: Any) -> str:
    app.source.now = snapshot
    app.poll_source()
    await pilot.pause()
    return text_of(app)


# WHAT IS DRAWN


def test_the_first_picture_has_data():
    app = MonitorApp(FakeSource(running()), FakeCatalog())
    seen: list[str] = []

    async def whole() -> None:
        async with app.run_test(size=(120, 36)):
            seen.append(text_of(app))

    asyncio.run(whole())
    assert "RUNNING" in seen[0] and "487.3" in seen[0] and "cartpole-ppo-4f2a" in seen[0]


def test_the_same_snapshot_draws_nothing_and_a_new_one_only_what_changed():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        drawn: list[int] = []
        app.post_display_hook = lambda: drawn.append(1)
        for _ in range(3):
            app.poll_source()
            await pilot.pause()
        assert not drawn
        painted = {name: 0 for name in app.run_view.panels}
        for name, panel in app.run_view.panels.items():
            panel.refresh = lambda *regions, _name=name, **how: painted.__setitem__(_name, painted[_name] + 1)
        now = app.source.now
        app.source.now = now._replace(version=2, log=(*now.log, LogLine("14:06:00", "ok", "another line")))
        app.poll_source()
        await pilot.pause()
        assert [name for name, times in painted.items() if times] == ["log"]

    act(body)


def test_a_changed_number_is_repainted_alone():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        regions: list[Any] = []
        app.run_view.panels["figures"].refresh = lambda *found, **how: regions.extend(found)
        now = app.source.now
        figures = (now.figures[0]._replace(value=487.4), *now.figures[1:])
        app.source.now = now._replace(version=2, figures=figures)
        app.poll_source()
        await pilot.pause()
        (region,) = regions
        assert (region.width, region.height) == (1, 1), "487.3 became 487.4: one cell"

    act(body)


def test_ctrl_l_writes_every_cell_again():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        drawn: list[int] = []
        app.post_display_hook = lambda: drawn.append(1)
        for keys in (["ctrl+l"], ["question_mark", "ctrl+l"]):  # in a dialog too
            app.renderer.shorten("\x1b[1;1Hx")
            drawn.clear()
            await press(pilot, *keys)
            assert drawn and app.renderer.shorten("\x1b[1;1Hx"), "what the terminal shows was forgotten"
        assert isinstance(app.screen, TextScreen)

    act(body)


def test_after_a_suspension_everything_is_drawn_again():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        drawn: list[int] = []
        app.post_display_hook = lambda: drawn.append(1)
        app.renderer.shorten("\x1b[1;1Hx")
        app.app_resume_signal.publish(app)
        await pilot.pause()
        assert drawn and app.renderer.shorten("\x1b[1;1Hx"), "what the terminal shows was forgotten"

    act(body)


def test_a_new_size_is_drawn_whole_once_it_is_laid_out():
    """Lines drawn for the old size during a resize may be anywhere on the new screen."""

    async def body(app: Any, pilot: Pilot[None]) -> None:
        laid_out: list[tuple[int, int]] = []
        app.renderer.forget = lambda: laid_out.append(tuple(app.run_view.size))
        await pilot.resize_terminal(40, 12)
        await pilot.pause()
        await pilot.pause()
        assert laid_out[-1] == (40, 12)

    act(body)


def test_a_click_chooses_a_chart():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        name = app.model.names[1]
        await pilot.click(next(chart for chart in app.run_view.charts.charts if chart.metric == name))
        await pilot.pause()
        assert app.model.chosen == name
        await press(pilot, "enter")
        assert app.model.view.maximised == name and app.model.names == [name]

    act(body)


def test_number_keys_switch_pages():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        wanted = {
            "2": "learning rate",
            "3": "Agent",
            "4": "How far an update moves",
            "5": "a line that a library printed",
            "6": "lanes = 8192",
            "1": "Log",
        }
        for key, words in wanted.items():
            await press(pilot, key)
            assert words in text_of(app), f"page {key}"
        assert app.model.view.page == "overview"

    act(body, size=(160, 48))


def storm(app: MonitorApp, sizes: int) -> None:
    async def body(app: Any, pilot: Pilot[None]) -> None:
        draw = random.Random(1)
        for index in range(sizes):
            width, height = (1, 1) if index == 5 else (draw.randint(1, 200), draw.randint(1, 60))
            await pilot.resize_terminal(width, height)
            await press(pilot, str(1 + index % 6))
            lines = text_of(app).split("\n")
            assert len(lines) == height and max(map(len, lines)) <= width
        await pilot.resize_terminal(160, 48)
        await press(pilot, "1")
        assert "487.3" in text_of(app) and "return 487.3" in text_of(app)

    act(body, app)


def test_a_storm_of_sizes_down_to_one_cell():
    storm(MonitorApp(FakeSource(running()), FakeCatalog()), 10)


@pytest.mark.soak
def test_a_long_storm_of_sizes():
    storm(MonitorApp(FakeSource(running()), FakeCatalog()), 600)


def test_ending_replaces_the_agent_panel():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        assert "How it ended" not in text_of(app)
        text = await show(app, pilot, states()["failed"]._replace(version=2))
        assert "FAILED" in text and "How it ended" in text and "operant resume 4f2a" in text and "Traceback" in text
        assert "return 487.3" in text, "the charts stay"
        text = await show(app, pilot, running(3))
        assert "RUNNING" in text and "How it ended" not in text

    act(body)


# LOOKING


def test_keys_cycle_axis_smoothing_and_log_scale():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        await press(pilot, "x")
        assert app.model.view.axis == "wall" and "x: wall time" in text_of(app) and "0:02:30" in text_of(app)
        await press(pilot, "x")
        assert app.model.view.axis == "iteration"
        await press(pilot, "x", "s")
        assert app.model.view.axis == "step" and app.model.view.smooth == 0.6
        await press(pilot, "s", "s", "s")
        assert app.model.view.smooth == 0.0
        charts = {chart.metric: chart for chart in app.run_view.charts.charts}
        before = charts["entropy"].data.log_y
        await press(pilot, "y")
        assert charts["entropy"].data.log_y is not before
        await press(pilot, "y", "tab", "y")
        assert charts["return"].data.log_y and charts["entropy"].data.log_y is before

    act(body)


def test_zoom_follows_or_is_held():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        whole = app.model.window
        await press(pilot, "plus")
        assert app.model.window[1] - app.model.window[0] == pytest.approx((whole[1] - whole[0]) / 2)
        assert app.model.window[0] < 341e6 < app.model.window[1]
        await press(pilot, "home")
        assert app.model.window[0] == whole[0]
        await press(pilot, "end")
        assert app.model.view.end is None
        await press(pilot, "minus")
        assert app.model.window == whole

    act(body)


def test_enter_maximises_a_chart_and_escape_restores():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        await press(pilot, "tab", "right")
        assert app.model.chosen == "sps"
        await press(pilot, "down", "enter")
        assert app.model.view.maximised == app.model.names[0] and app.model.plan.charts == 1
        assert text_of(app).count("╰") + text_of(app).count("┗") == 1
        await press(pilot, "escape")
        assert app.model.view.maximised is None and app.model.plan.charts > 1

    act(body)


def test_charts_are_reached_by_tab_and_arrows():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        names = app.model.names
        for name in names:
            await press(pilot, "tab")
            assert app.model.chosen == name
        await press(pilot, "tab")
        assert app.model.chosen == names[0]
        await press(pilot, "shift+tab")
        assert app.model.chosen == names[-1]
        await press(pilot, "up", "left")
        assert app.model.chosen == names[len(names) - 2 - app.model.plan.columns]

    act(body)


def test_inspection_reads_what_is_drawn():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        await press(pilot, "tab", "i")
        chart = next(one for one in app.run_view.charts.charts if one.metric == app.model.chosen)
        assert app.model.view.inspected == "return" and chart.data.cursor is not None
        first = chart.data.cursor
        await press(pilot, "left", "left")
        assert chart.data.cursor == pytest.approx(first - 4, abs=1) and chart.data.reading.startswith("at 3")
        await press(pilot, "escape")
        assert app.model.view.inspected is None and chart.data.cursor is None

    act(body)


def test_the_filter_narrows_while_it_is_typed():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        await press(pilot, "slash", *"loss")
        assert app.model.names == ["loss/value", "loss/policy"]
        await press(pilot, "enter")
        assert not app.query(FilterBar) and app.model.view.filter == "loss"
        await press(pilot, "escape")
        assert app.model.view.filter == ""
        await press(pilot, "slash", *"zz")
        assert "no metric matches 'zz'" in text_of(app)
        await press(pilot, "escape")
        assert app.model.view.filter == "" and "return 487.3" in text_of(app)

    act(body)


def test_the_charts_page_turns():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        await press(pilot, "2")
        seen = list(app.model.names)
        while True:
            before = app.model.names
            await press(pilot, "pagedown")
            if app.model.names == before:
                break
            seen += app.model.names
        assert sorted(seen) == sorted(app.model.newest.series)
        await press(pilot, "pageup")
        assert app.model.names != before

    act(body, size=(80, 24))


def test_freezing_holds_the_picture_while_training_goes_on():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        await press(pilot, "space")
        before = text_of(app)
        assert "FROZEN at " in before
        history = table(700)
        later = running(2, history)
        later = later._replace(progress=later.progress._replace(step=400_000_000), figures=())
        text = await show(app, pilot, later)
        assert "training continues (+59 M steps)" in text
        assert text.split("\n")[4:] == before.split("\n")[4:], "below the header nothing moves"
        await press(pilot, "space")
        assert "FROZEN" not in text_of(app) and "400 M" in text_of(app)

    act(body)


def test_an_ended_run_is_scrubbed():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        await press(pilot, "left", "left")
        first, second = app.source.moments
        assert 0 < second < first < STEPS
        assert "showing the run at" in text_of(app) and app.run_view.charts.charts[0].data.cursor is not None
        await press(pilot, "end")
        assert app.source.moments[-1] is None and "showing the run at" not in text_of(app)

    act(body, MonitorApp(FakeSource(ended("finished", "all steps done")), FakeCatalog()))


def test_panels_are_hidden_and_shown():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        for key, words in (
            ("right_square_bracket", "Health"),
            ("left_square_bracket", "Log"),
            ("l", "Log"),
            ("e", "Agent"),
        ):
            assert f"─ {words} " in text_of(app)
            await press(pilot, key)
            assert f"─ {words} " not in text_of(app), key
            await press(pilot, key)
            assert f"─ {words} " in text_of(app), key

    act(body)


def test_log_and_configuration_scroll():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        lines = tuple(LogLine("14:00:00", "ok", f"line {k:03d}") for k in range(200))
        await show(app, pilot, running(2, log=lines, config="\n".join(f"key{k:03d} = {k}" for k in range(200))))
        await press(pilot, "5")
        assert "line 199" in text_of(app)
        await press(pilot, "up", "up", "up")
        assert "line 199" not in text_of(app) and "line 196" in text_of(app)
        await press(pilot, "home")
        assert "line 000" in text_of(app)
        await press(pilot, "end")
        assert "line 199" in text_of(app)
        await press(pilot, "slash", *"17")
        assert "line 170" in text_of(app) and "line 199" not in text_of(app)
        await press(pilot, "enter", "escape", "6")
        assert "key000" in text_of(app)
        await press(pilot, "end")
        assert "key199" in text_of(app)
        await press(pilot, "pageup")
        assert "key199" not in text_of(app)

    act(body)


# THE AGENT


def test_frames_are_requested_only_while_the_agent_is_visible():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        assert app.source.watches == [(True, "greedy")]
        await press(pilot, "g")
        assert app.source.watches[-1] == (True, "sampled")
        await press(pilot, "2")
        assert app.source.watches[-1][0] is False
        count = len(app.source.watches)
        await press(pilot, "5", "2")
        assert len(app.source.watches) == count, "asked once, not again and again"
        await press(pilot, "3")
        assert app.source.watches[-1] == (True, "sampled")
        await show(app, pilot, ended("stopped", "stopped")._replace(version=2))
        assert app.source.watches[-1][0] is False

    act(body)


def test_requested_frame_size_fits_the_panel():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        for page, size in (("1", (120, 36)), ("3", (120, 36)), ("3", (80, 24)), ("3", (160, 48))):
            await pilot.resize_terminal(*size)
            await press(pilot, page)
            assert app.source.sizes[-1] == app.run_view.agent.wanted_size(4), (page, size)
        assert min(app.source.sizes) >= 32 and len(app.source.sizes) <= 8 and app.source.sizes[-1] > app.source.sizes[0]

    act(body)


def test_a_small_screen_requests_no_frames():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        assert app.source.watches == []

    act(body, size=(80, 24))


# THE TRAINER


def test_requests_are_sent_only_after_confirmation():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        cases = [("C", "y", "checkpoint"), ("C", "enter", "checkpoint"), ("P", "y", "pause"), ("S", "y", "stop")]
        for key, answer, asked in [
            *cases,
            *((key, no, "") for key in "CPS" for no in ("n", "escape")),
            ("S", "enter", ""),
        ]:
            app.source.requests.clear()
            await press(pilot, key)
            assert isinstance(app.screen, ConfirmScreen) and "cartpole-ppo-4f2a" in text_of(app)
            assert app.source.requests == []
            await press(pilot, "x")
            assert isinstance(app.screen, ConfirmScreen), "any other key is no answer"
            await press(pilot, answer)
            assert not isinstance(app.screen, ConfirmScreen) and app.source.requests == ([asked] if asked else []), (
                key,
                answer,
            )

    act(body, size=(80, 24))


def test_a_paused_run_can_be_resumed_after_confirmation():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        assert "P Resume" in text_of(app) and "P Pause" not in text_of(app)
        await press(pilot, "P")
        assert "Resume" in text_of(app)
        await press(pilot, "y")
        assert app.source.requests == ["unpause"]

    act(body, MonitorApp(FakeSource(states()["paused"]), FakeCatalog()), size=(80, 24))


@pytest.mark.slow
def test_no_request_is_sent_without_a_local_trainer():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        for state in sorted(ENDED | {"remote", "unreadable"}):
            await show(app, pilot, states()[state]._replace(version=app.model.newest.version + 1))
            await press(pilot, "S")
            assert not isinstance(app.screen, ConfirmScreen) and f"(state: {state})" in text_of(app)
            assert "S Stop" not in text_of(app)

    act(body, size=(120, 24))


def test_read_only_hides_what_touches_the_trainer():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        assert "read only" in text_of(app) and "S Stop" not in text_of(app)
        for key in "CPS":
            await press(pilot, key)
            assert not isinstance(app.screen, ConfirmScreen)
        await press(pilot, "question_mark")
        assert "ask the trainer" not in text_of(app)
        assert app.source.requests == []

    act(body, MonitorApp(FakeSource(running(), readonly=True), FakeCatalog()), size=(100, 70))


# DIALOGS


def test_help_names_every_command():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        await press(pilot, "question_mark")
        assert isinstance(app.screen, TextScreen)
        text = " ".join(text_of(app).split())
        for key in KEYS:
            assert key.words.split(",")[0][:40] in text, key.id
        await press(pilot, "escape")
        assert not isinstance(app.screen, TextScreen)

    act(body, size=(100, 90))


def test_help_scrolls_in_a_small_terminal():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        await press(pilot, "question_mark")
        before = text_of(app)
        await press(pilot, "pagedown")
        assert text_of(app) != before
        await press(pilot, "end", "home")
        assert text_of(app) == before
        await pilot.resize_terminal(60, 20)
        await press(pilot, "end")
        assert "keys.toml" in text_of(app) or "previous" in text_of(app)

    act(body, size=(80, 24))


def test_describe_and_the_whole_traceback():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        await press(pilot, "d")
        assert "runs/cartpole-ppo-4f2a" in text_of(app) and "8,192" in text_of(app)
        await press(pilot, "escape", "enter")
        assert isinstance(app.screen, TextScreen) and 'File "operant/training/worker.py"' in text_of(app)

    act(body, MonitorApp(FakeSource(states()["failed"]), FakeCatalog()), size=(100, 60))


@pytest.mark.slow
def test_the_picker_opens_another_run():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        first = app.source
        await press(pilot, "r")
        assert isinstance(app.screen, ListScreen) and "cartpole-ppo-0003" in text_of(app)
        await press(pilot, *"0002")
        assert "cartpole-ppo-0003" not in text_of(app)
        await press(pilot, "enter")
        assert app.model.newest.run.id == "cartpole-ppo-0002" and first.closed and "cartpole-ppo-0002" in text_of(app)
        await press(pilot, "r", "escape")
        assert app.model.newest.run.id == "cartpole-ppo-0002"

    act(body, size=(80, 24))


def test_a_click_chooses_a_run_and_one_beside_the_list_none():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        await press(pilot, "r")
        await pilot.click(offset=(0, 0))
        await pilot.pause()
        assert not isinstance(app.screen, ListScreen) and app.model.newest.run.id == "cartpole-ppo-4f2a"
        await press(pilot, "r")
        # the frame, the search, the head of the table, the first run, the second
        await pilot.click("#dialog", offset=(20, 4))
        await pilot.pause()
        assert app.model.newest.run.id == "cartpole-ppo-0002"

    act(body, size=(80, 24))


def test_a_long_list_is_moved_through():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        await press(pilot, "r", "end", "up", "pageup", "enter")
        assert app.model.newest.run.id == f"cartpole-ppo-{300 - 11:04x}"

    act(body, MonitorApp(FakeSource(running()), FakeCatalog(300)), size=(80, 24))


def test_without_a_run_there_is_the_choice_of_one():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        assert isinstance(app.screen, ListScreen)
        await press(pilot, "down", "enter")
        assert app.model.newest.run.id == "cartpole-ppo-0002"

    act(body, MonitorApp(None, FakeCatalog()), size=(80, 24))
    left = act(lambda app, pilot: press(pilot, "escape"), MonitorApp(None, FakeCatalog()), size=(80, 24))
    assert left.source is None and left.return_code == 0


def test_an_empty_list_says_how_to_begin():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        assert "No runs yet. Start one: operant train" in text_of(app)

    act(body, MonitorApp(None, FakeCatalog(0)))


def test_a_second_run_is_laid_over():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        await press(pilot, "o", "down", "enter")
        chart = app.run_view.charts.charts[0]
        assert any(chart.data.overlay) and "0002" in chart.data.best and "0002" in text_of(app)
        overlay = app.overlay
        await press(pilot, "o")
        assert overlay.closed and not chart.data.overlay

    act(body, size=(160, 48))


def test_the_palette_has_our_commands_and_no_others():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        titles = [command.title for command in app.get_system_commands(app.screen)]
        assert (
            "Freeze" in titles
            and "Checkpoint" in titles
            and not {"Theme…", "Quit", "Screenshot", "Maximize"} & set(titles)
        )
        await press(pilot, "colon", *"freeze")
        while "freeze or unfreeze the screen" not in " ".join(
            text_of(app).split()
        ):  # the palette searches in the background
            await pilot.pause(0.02)
        await press(pilot, "enter")
        while "FROZEN" not in text_of(app):
            await pilot.pause(0.02)

    act(body, size=(80, 24))


# OTHER THINGS


def test_leaving_closes_what_is_read():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        await press(pilot, "o", "enter")
        await press(pilot, "q")

    app = act(body, size=(80, 24))
    assert app.source.closed and app.overlay is not None and app.overlay.closed and not app.return_code


def test_leaving_works_from_within_a_dialog():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        await press(pilot, "r", "ctrl+c")
        assert app.return_code == 0

    act(body, size=(80, 24))


def test_the_id_is_copied_through_the_terminal():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        await press(pilot, "Y")
        assert app.clipboard == "cartpole-ppo-4f2a" and "copied cartpole-ppo-4f2a" in text_of(app)

    act(body)


def test_without_focus_the_screen_polls_once_a_second():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        assert app.source.interval_s == 0.1
        app.app_focus = False
        await pilot.pause()
        assert app.source.interval_s == 1.0
        app.app_focus = True
        await pilot.pause()
        assert app.source.interval_s == 0.1

    act(body, MonitorApp(FakeSource(running()), FakeCatalog(), fps=10))


def test_a_persons_own_keys_and_a_notice_about_a_wrong_one():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        assert "is no command" in text_of(app)
        await press(pilot, "f")
        assert app.model.frozen and "f Freeze" in text_of(app)
        await press(pilot, "space")
        assert app.model.frozen, "the usual key is free"

    act(
        body,
        MonitorApp(
            FakeSource(running()), FakeCatalog(), own_keys=({"freeze": "f"}, "keys.toml: 'frieze' is no command")
        ),
    )


def test_clicks_do_what_keys_do():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        lines = text_of(app).split("\n")
        await pilot.click(offset=(lines[3].index("2 charts") + 2, 3))
        await pilot.pause()
        assert app.model.view.page == "charts"
        await pilot.click(offset=(text_of(app).split("\n")[-1].index("Freeze"), 35))
        await pilot.pause()
        assert "FROZEN" in text_of(app)

    act(body)


# POOR TERMINALS


@pytest.mark.slow
def test_ascii_is_ascii_everywhere():
    async def body(app: Any, pilot: Pilot[None]) -> None:
        for key in ("1", "2", "3", "4", "5", "6", "question_mark", "r", "d", "C", "slash", "colon"):
            await press(pilot, "escape", key)
            assert text_of(app).isascii(), [line for line in text_of(app).split("\n") if not line.isascii()]
        await press(pilot, "escape", "1")
        await pilot.resize_terminal(100, 26)
        for state, snapshot in states().items():
            text = await show(app, pilot, snapshot._replace(version=app.model.newest.version + 1))
            assert text.isascii(), (state, [line for line in text.split("\n") if not line.isascii()])

    act(body, ascii_only=True)


def test_without_colour_everything_is_still_said(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    async def body(app: Any, pilot: Pilot[None]) -> None:
        for state, snapshot in states().items():
            text = await show(app, pilot, snapshot._replace(version=app.model.newest.version + 1))
            assert state.upper().replace("_", " ") in text.split("\n")[0]
        for filter_ in app.get_line_filters():
            strips = [
                Strip([Segment(*cell) for cell in line]).apply_filter(filter_, app.screen.background_colors[1])
                for line in capture.cells(app)
            ]
        colours = [
            colour for strip in strips for _, style, _ in strip if style for colour in (style.color, style.bgcolor)
        ]
        assert colours and all(colour is None or colour.is_default for colour in colours), (
            "the terminal's own colours, and no grey"
        )

    act(body, size=(80, 24))


def test_only_the_key_chooses_a_theme():
    chosen: list[str] = []

    async def body(app: Any, pilot: Pilot[None]) -> None:
        assert app.theme == "light" and not chosen
        await press(pilot, "t")
        assert app.theme == "dark" and chosen == ["dark"]
        await press(pilot, "t")
        assert app.theme == "light" and chosen == ["dark", "light"]

    act(body, theme="light", keep_theme=chosen.append)


def test_the_theme_turns_and_everything_stays_readable():
    from monitor.charts.palette import contrast

    async def body(app: Any, pilot: Pilot[None]) -> None:
        grounds = []
        for _ in range(2):
            pairs = [
                (style.color.get_truecolor().hex, style.bgcolor.get_truecolor().hex)
                for line in capture.cells(app)
                for text, style in line
                if text.strip() and text.isascii() and style and style.color and style.bgcolor
            ]
            assert pairs and all(contrast(fore, back) > 2.9 for fore, back in set(pairs)), min(
                (contrast(*pair), pair) for pair in set(pairs)
            )
            grounds.append(app.screen.background_colors[1].hex6)
            await press(pilot, "t")
        assert grounds[0] != grounds[1]

    act(body)
