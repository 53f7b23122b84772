"""Short pauses for tests of the screen."""

import pytest


@pytest.fixture(autouse=True)
def _brief_pauses(monkeypatch):
    """Make Textual's pilot check every 5 ms, rather than every 20, whether the process is idle after a key."""
    monkeypatch.setattr("textual._wait.SLEEP_GRANULARITY", 0.005, raising=False)
