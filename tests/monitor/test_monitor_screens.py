"""The screen as text for every state and four sizes, compared with reviewed files in tests/golden/screens.

After an intended change: OPERANT_UPDATE_GOLDEN=1 pytest tests/monitor/test_monitor_screens.py, then review the
difference.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from fake_snapshots import FakeCatalog, FakeSource, states

from monitor.screen.app import MonitorApp
from monitor.screen.capture import text_of
from operant.runs.states import ENDED, LIVE

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "screens"
UPDATE = os.environ.get("OPERANT_UPDATE_GOLDEN") == "1"
SIZES = ((160, 48), (120, 36), (80, 24), (40, 12))


def screens(size: tuple[int, int]) -> dict[str, str]:
    """Text of every state, shown in turn in one app of a size, so that remains of the previous one would show."""
    app = MonitorApp(FakeSource(next(iter(states().values()))), FakeCatalog(), theme="dark")
    found: dict[str, str] = {}

    async def whole() -> None:
        async with app.run_test(size=size) as pilot:
            for version, (state, snapshot) in enumerate(states().items(), 2):
                app.source.now = snapshot._replace(version=version)
                app.poll_source()
                await pilot.pause()
                await pilot.pause()
                found[state] = text_of(app) + "\n"

    asyncio.run(whole())
    return found


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_screen_of_every_state_matches_its_golden_file(size):
    folder = GOLDEN / f"{size[0]}x{size[1]}"
    shown = screens(size)
    if UPDATE:
        folder.mkdir(parents=True, exist_ok=True)
        for state, text in shown.items():
            (folder / f"{state}.txt").write_text(text, encoding="utf-8")
    differ = [state for state, text in shown.items() if text != (folder / f"{state}.txt").read_text(encoding="utf-8")]
    for state in differ[:2]:
        assert shown[state].split("\n") == (folder / f"{state}.txt").read_text(encoding="utf-8").split("\n"), state
    assert not differ
    assert {path.stem for path in folder.iterdir()} == set(states())


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_golden_screens_contain_required_texts(size):
    """Check the files, so that an update cannot remove required texts unnoticed."""
    for state, snapshot in states().items():
        text = (GOLDEN / f"{size[0]}x{size[1]}" / f"{state}.txt").read_text(encoding="utf-8")
        lines = text.removesuffix("\n").split("\n")
        assert len(lines) == size[1] and max(map(len, lines)) <= size[0]
        assert state.upper().replace("_", " ") in lines[0] and "cartpole-ppo-4f2a" in lines[0]
        if state in ENDED:
            assert snapshot.ending is not None and snapshot.ending.commands[0] in text
            assert snapshot.ending.sentence[:30] in text
            if "enter shows the whole traceback" in text:  # a kill leaves none
                assert any(line.startswith("Traceback (") for line in snapshot.ending.traceback), state
        elif state in LIVE - {"running"}:
            assert snapshot.cause is not None and snapshot.cause.split(" (")[0][:20] in text


def test_small_screens_show_health_and_say_where_more_lies():
    """80 x 24: one line of health on the overview, all of it on page 4; pages that scroll say so."""
    snapshot = states()["running"]._replace(config="\n".join(f"key = {k}" for k in range(40)))
    app = MonitorApp(FakeSource(snapshot), FakeCatalog(), theme="dark")
    shown: dict[str, str] = {}

    async def whole() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            for key in ("1", "2", "pagedown", "4", "6"):
                await pilot.press(key)
                await pilot.pause()
                shown[key] = text_of(app)

    asyncio.run(whole())
    wrong = [finding for finding in snapshot.health if finding.level != "ok"]
    first = min(wrong, key=lambda finding: ("bad", "warn").index(finding.level))
    assert (
        f" {first.title}" in shown["1"].splitlines()[5]
        and f"of {len(snapshot.health)} ok" in shown["1"].splitlines()[5]
    )
    assert (
        all(finding.title in shown["4"] for finding in snapshot.health)
        and "Time per iteration" in shown["4"]
        and "GPU" in shown["4"]
    )
    assert "1 to 4 of " in shown["2"] and "· pgdn" in shown["2"]
    assert "5 to 8 of " in shown["pagedown"] and "· pgup" in shown["pagedown"]
    assert "lines 1 to 16 of 40 · ↑ ↓" in shown["6"]
