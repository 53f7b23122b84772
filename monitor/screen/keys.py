"""The table of keys: command, description, and where it is shown. Bindings, footer, help and palette are made of it.
Knows no widget.

A person's own keys come from `~/.config/operant/keys.toml`:

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
    """A command of the screen."""

    id: str  # its name in keys.toml
    keys: str  # Textual's names, separated by commas
    action: str
    words: str  # in help and palette
    shown: str = ""  # how help writes the key, where that is not `keys`
    footer: str = ""  # the word in the footer; "": not there
    group: str = "Look"
    trains: bool = False  # sends a request to the trainer: hidden with --readonly


KEYS: Final = (
    Key("detach", "q,ctrl+c,ctrl+q", "quit", "leave the monitor; the run goes on", "q", "Detach", "Monitor"),
    Key("freeze", "space", "freeze", "freeze the picture, or go on; training goes on either way", "space", "Freeze"),
    Key("filter", "slash", "filter", "show only metrics (on the log page: lines) that fit some words", "/", "Filter"),
    Key(
        "maximise",
        "enter",
        "maximise",
        "the chosen chart alone; of a failed run its traceback, or its log's end",
        "enter",
        "Max",
    ),
    Key(
        "logarithm",
        "y",
        "look('logarithm')",
        "logarithmic or linear y axis, of the chosen chart or of all",
        "y",
        "LogY",
    ),
    Key("smooth", "s", "look('smooth')", "smoothing: none, 0.6, 0.9, 0.99", "s", "Smooth"),
    Key("axis", "x", "look('axis')", "x axis: steps, wall time, iterations", "x", "Axis"),
    Key(
        "inspect", "i", "look('inspect')", "read single values of the chosen chart, with left and right", "i", "Inspect"
    ),
    Key(
        "overlay",
        "o",
        "overlay",
        "draw a second run into the charts, or the mean of a group; once more takes it away",
        "o",
        "Overlay",
    ),
    Key("runs", "r", "runs", "choose another run", "r", "Runs", "Monitor"),
    Key("agent", "e", "look('agent')", "show or hide the agent as it plays", "e", "Agent"),
    Key("log", "l", "look('log')", "show or hide the log", "l", "Log"),
    Key("help", "question_mark,f1", "help", "this list", "?", "Help", "Monitor"),
    Key("greedy", "g", "greedy", "the agent takes its likeliest actions, or samples them", "g"),
    Key("zoom_in", "plus,equals_sign", "look('zoom', 1)", "half the window", "+"),
    Key("zoom_out", "minus", "look('zoom', -1)", "twice the window", "-"),
    Key(
        "start",
        "home",
        "look('start')",
        "the window at the run's beginning; log and configuration: to their top",
        "home",
    ),
    Key("end", "end", "look('end')", "the window follows the newest record; log: to its end", "end"),
    Key(
        "left",
        "left",
        "look('move', -1, 0)",
        "chart to the left; while inspecting: earlier; of an ended run: back in time",
        "left",
    ),
    Key(
        "right",
        "right",
        "look('move', 1, 0)",
        "chart to the right; while inspecting: later; of an ended run: forward in time",
        "right",
    ),
    Key("up", "up,k", "look('move', 0, -1)", "chart above; log and configuration: a line up", "up"),
    Key("down", "down,j", "look('move', 0, 1)", "chart below; log and configuration: a line down", "down"),
    Key("next_chart", "tab", "look('next_chart', 1)", "the next chart", "tab"),
    Key("previous_chart", "shift+tab", "look('next_chart', -1)", "the chart before", "shift+tab"),
    Key("page_up", "pageup", "look('turn', -1)", "a page of charts, log or configuration up", "pgup"),
    Key("page_down", "pagedown", "look('turn', 1)", "a page of charts, log or configuration down", "pgdn"),
    Key("back", "escape", "step_back", "out of whatever is open; clears the filter", "esc"),
    Key("overview", "1", "look('page', 'overview')", "page: overview", "1", group="Pages"),
    Key("charts", "2", "look('page', 'charts')", "page: all charts", "2", group="Pages"),
    Key("agent_page", "3", "look('page', 'agent')", "page: the agent, large", "3", group="Pages"),
    Key("time", "4", "look('page', 'time')", "page: time per iteration, GPU, health explained", "4", group="Pages"),
    Key("log_page", "5", "look('page', 'log')", "page: log and events", "5", group="Pages"),
    Key("config", "6", "look('page', 'config')", "page: the run's configuration", "6", group="Pages"),
    Key(
        "bottom", "left_square_bracket", "look('bottom')", "show or hide the row with agent and log", "[", group="Pages"
    ),
    Key("sidebar", "right_square_bracket", "look('sidebar')", "show or hide the sidebar", "]", group="Pages"),
    Key("describe", "d", "describe", "what is known about the run", "d", group="Monitor"),
    Key("theme", "t", "theme", "dark or light", "t", group="Monitor"),
    Key("copy", "Y", "copy", "copy the run's id, through the terminal (OSC 52)", "Y", group="Monitor"),
    Key("palette", "colon,ctrl+p", "command_palette", "find a command by its name", ":", group="Monitor"),
    Key(
        "redraw",
        "ctrl+l",
        "redraw",
        "draw the whole screen anew, where something else has written on it",
        "ctrl+l",
        group="Monitor",
    ),
    Key("suspend", "ctrl+z", "suspend_process", "suspend the monitor, not the run", "ctrl+z", group="Monitor"),
    Key(
        "pause",
        "P",
        "ask('pause')",
        "ask the trainer to pause, or to go on",
        "P",
        group="Trainer (asks first)",
        trains=True,
    ),
    Key("stop", "S", "ask('stop')", "ask the trainer to save and stop", "S", group="Trainer (asks first)", trains=True),
    Key(
        "checkpoint",
        "C",
        "ask('checkpoint')",
        "ask the trainer for a checkpoint now",
        "C",
        group="Trainer (asks first)",
        trains=True,
    ),
)


def keymap(path: Path | None = None) -> tuple[dict[str, str], str]:
    """A person's own keys by command, and the problem with their file ("" without one). Without a file there are none.
    Bad contents never raise.
    """
    place = path or _default_path()
    if place is None:
        return {}, ""
    try:
        with open(place, "rb") as file:
            raw = file.read(_LIMIT_BYTES + 1)
    except FileNotFoundError:
        return {}, ""
    except OSError as error:
        return {}, f"{safe(place)} cannot be read ({error.strerror}): the usual keys are in use"
    return _parsed(raw, place)


def _parsed(raw: bytes, place: Path) -> tuple[dict[str, str], str]:
    import tomli

    try:
        document = tomli.loads(raw[:_LIMIT_BYTES].decode())
    except (tomli.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        return {}, f"{safe(place)} is no TOML ({safe(error, 80)}): the usual keys are in use"
    known = {key.id for key in KEYS}
    found = {name: keys for name, keys in document.items() if name in known and _is_keys(keys)}
    wrong = [name for name in document if name not in found]
    if wrong:
        return found, f"{safe(place)}: {safe(wrong[0], 40)} is no command with keys in a text; see ? for the commands"
    return found, ""


def _is_keys(value: object) -> bool:
    return (
        isinstance(value, str)
        and re.fullmatch(r"[^\s,]{1,40}(,[^\s,]{1,40}){0,9}", value) is not None
        and value.isprintable()
    )


def _default_path(environment: Mapping[str, str] = os.environ) -> Path | None:
    base = environment.get("XDG_CONFIG_HOME") or ""
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.config")
    return Path(base, "operant", "keys.toml") if os.path.isabs(base) else None


def shown_keys(key: Key, own: Mapping[str, str]) -> str:
    """How a command's key is written: the person's own, or the usual one."""
    return own[key.id].split(",")[0] if key.id in own else key.shown or key.keys.split(",")[0]
