r"""Table of keys: command, description, and where it is shown. Bindings, footer, help and palette are generated from
it.

Users redefine keys in `~/.config/operant/keys.toml`:

    freeze = "f"
    log = "f5,L"
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from operant.text import safe

_LIMIT_BYTES = 65536


class Key(NamedTuple):
    """One command of the monitor: its default keys, the action that they run, and its texts in footer and help."""

    id: str  # its name in keys.toml
    keys: str  # Textual's names, separated by commas
    action: str
    words: str  # description in help and palette
    shown: str = ""  # displayed name of the key; default: the first of `keys`
    footer: str = ""  # label in the footer; "": not in the footer
    group: str = "View"
    trains: bool = False  # sends a request to the trainer: hidden with --readonly


KEYS: Final = (
    Key("detach", "q,ctrl+c,ctrl+q", "quit", "leave the monitor; the run continues", "q", "Detach", "Monitor"),
    Key("freeze", "space", "freeze", "freeze or unfreeze the screen; training continues", "space", "Freeze"),
    Key("filter", "slash", "filter", "show only metrics (log page: lines) that match the filter", "/", "Filter"),
    Key(
        "maximise",
        "enter",
        "maximise",
        "maximise the selected chart; group or sweep: open the selected run; failed run: show its traceback or log",
        "enter",
        "Max",
    ),
    Key(
        "logarithm",
        "y",
        "navigate('logarithm')",
        "logarithmic or linear y axis, of the selected chart or of all",
        "y",
        "LogY",
    ),
    Key("smooth", "s", "navigate('smooth')", "smoothing: none, 0.6, 0.9, 0.99", "s", "Smooth"),
    Key("axis", "x", "navigate('axis')", "x axis: steps, wall time, iterations", "x", "Axis"),
    Key(
        "inspect",
        "i",
        "navigate('inspect')",
        "read values of the selected chart with left and right",
        "i",
        "Inspect",
    ),
    Key(
        "overlay",
        "o",
        "overlay",
        "overlay a second run or the mean of a group, or remove the overlay",
        "o",
        "Overlay",
    ),
    Key("runs", "r", "runs", "choose another run", "r", "Runs", "Monitor"),
    Key("agent", "e", "navigate('agent')", "show or hide the agent", "e", "Agent"),
    Key("log", "l", "navigate('log')", "show or hide the log", "l", "Log"),
    Key("help", "question_mark,f1", "help", "this list", "?", "Help", "Monitor"),
    Key("greedy", "g", "greedy", "greedy or sampled actions of the agent", "g"),
    Key("zoom_in", "plus,equals_sign", "navigate('zoom', 1)", "zoom in: half the window", "+"),
    Key("zoom_out", "minus", "navigate('zoom', -1)", "zoom out: twice the window", "-"),
    Key(
        "start",
        "home",
        "navigate('start')",
        "start of the run; log and configuration: top",
        "home",
    ),
    Key("end", "end", "navigate('end')", "follow the newest record; log and configuration: end", "end"),
    Key(
        "left",
        "left",
        "navigate('move', -1, 0)",
        "chart to the left; while inspecting: previous value; ended run: earlier step",
        "left",
    ),
    Key(
        "right",
        "right",
        "navigate('move', 1, 0)",
        "chart to the right; while inspecting: next value; ended run: later step",
        "right",
    ),
    Key("up", "up,k", "navigate('move', 0, -1)", "chart or run above; log and configuration: one line up", "up"),
    Key("down", "down,j", "navigate('move', 0, 1)", "chart or run below; log and configuration: one line down", "down"),
    Key("next_chart", "tab", "navigate('next_chart', 1)", "next chart", "tab"),
    Key("previous_chart", "shift+tab", "navigate('next_chart', -1)", "previous chart", "shift+tab"),
    Key("page_up", "pageup", "navigate('turn_page', -1)", "previous page of charts, log or configuration", "pgup"),
    Key("page_down", "pagedown", "navigate('turn_page', 1)", "next page of charts, log or configuration", "pgdn"),
    Key("back", "escape", "step_back", "close what is open; clear the filter; back to the group", "esc"),
    Key("overview", "1", "navigate('page', 'overview')", "page: overview", "1", group="Pages"),
    Key("charts", "2", "navigate('page', 'charts')", "page: all charts", "2", group="Pages"),
    Key("agent_page", "3", "navigate('page', 'agent')", "page: agent; group or sweep: its runs", "3", group="Pages"),
    Key(
        "time",
        "4",
        "navigate('page', 'time')",
        "page: time per iteration, GPU, health explained; sweep: searched keys",
        "4",
        group="Pages",
    ),
    Key("log_page", "5", "navigate('page', 'log')", "page: log and events", "5", group="Pages"),
    Key("config", "6", "navigate('page', 'config')", "page: the run's configuration", "6", group="Pages"),
    Key(
        "bottom",
        "left_square_bracket",
        "navigate('bottom')",
        "show or hide the bottom row (agent and log)",
        "[",
        group="Pages",
    ),
    Key("sidebar", "right_square_bracket", "navigate('sidebar')", "show or hide the sidebar", "]", group="Pages"),
    Key("describe", "d", "describe", "describe the run", "d", group="Monitor"),
    Key("theme", "t", "theme", "dark or light theme, kept for the next start", "t", group="Monitor"),
    Key("copy", "Y", "copy", "copy the run's id, through the terminal (OSC 52)", "Y", group="Monitor"),
    Key("palette", "colon,ctrl+p", "command_palette", "command palette", ":", group="Monitor"),
    Key(
        "redraw",
        "ctrl+l",
        "redraw",
        "redraw the whole screen",
        "ctrl+l",
        group="Monitor",
    ),
    Key("suspend", "ctrl+z", "suspend_process", "suspend the monitor, not the run", "ctrl+z", group="Monitor"),
    Key(
        "pause",
        "P",
        "ask('pause')",
        "pause or resume training",
        "P",
        group="Trainer (with confirmation)",
        trains=True,
    ),
    Key(
        "stop",
        "S",
        "ask('stop')",
        "save a checkpoint and stop training",
        "S",
        group="Trainer (with confirmation)",
        trains=True,
    ),
    Key(
        "checkpoint",
        "C",
        "ask('checkpoint')",
        "save a checkpoint now",
        "C",
        group="Trainer (with confirmation)",
        trains=True,
    ),
)


def keymap(path: Path | None = None) -> tuple[dict[str, str], str]:
    """Read the user's keys.toml (or `path`): return the redefined keys by command, and the problem with the file ("" if
    there is none). Without a file both are empty. Never raises for the file's content.
    """
    file_path = path or _default_path()
    if file_path is None:
        return {}, ""
    try:
        with open(file_path, "rb") as file:
            raw = file.read(_LIMIT_BYTES + 1)
    except FileNotFoundError:
        return {}, ""
    except OSError as error:
        return {}, f"{safe(file_path)} cannot be read ({error.strerror}); using the default keys"
    return _parsed(raw, file_path)


def _parsed(raw: bytes, file_path: Path) -> tuple[dict[str, str], str]:
    """Parse the contents of keys.toml: return the valid keys by command, and the problem ("" if there is none)."""
    import tomli

    try:
        document = tomli.loads(raw[:_LIMIT_BYTES].decode())
    except (tomli.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        return {}, f"{safe(file_path)} is not valid TOML ({safe(error, 80)}); using the default keys"
    known = {key.id for key in KEYS}
    valid = {name: keys for name, keys in document.items() if name in known and _is_keys(keys)}
    wrong = [name for name in document if name not in valid]
    if wrong:
        return (
            valid,
            f'{safe(file_path)}: expected COMMAND = "KEYS", got {safe(wrong[0], 40)}; press ? for the commands',
        )
    return valid, ""


def _is_keys(value: object) -> bool:
    """Whether a value is one to ten names of keys, separated by commas."""
    return (
        isinstance(value, str)
        and re.fullmatch(r"[^\s,]{1,40}(,[^\s,]{1,40}){0,9}", value) is not None
        and value.isprintable()
    )


def _default_path(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the user's keys.toml; None without a home directory."""
    base = environment.get("XDG_CONFIG_HOME") or ""
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.config")
    return Path(base, "operant", "keys.toml") if os.path.isabs(base) else None


def shown_keys(key: Key, own_keys: Mapping[str, str]) -> str:
    """Return the key of a command as displayed: the user's own, else the default."""
    return own_keys[key.id].split(",")[0] if key.id in own_keys else key.shown or key.keys.split(",")[0]
