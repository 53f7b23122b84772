"""The screen's tests wait as briefly as they can."""

import pytest


@pytest.fixture(autouse=True)
def _brief_pauses(monkeypatch):
    """Textual's pilot looks whether the process is idle every 5 ms rather than every 20, after each key."""
    monkeypatch.setattr("textual._wait.SLEEP_GRANULARITY", 0.005, raising=False)
