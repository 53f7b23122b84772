"""Merged log: the lines of log.txt and the events of the metrics file, each message once and in order. Standard library
only. Reads no file.

A trainer writes most messages to both. A line and an event with the same message become one event in the line's
position. Events without a line are inserted by the order of their neighbours and by their clocks, which wrap at
midnight.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Final

from monitor.data.snapshot import Level, LogLine
from operant.runs import LEFT_OUT, SESSION_MARK, clock_and_text

_MOST_LINES, _MOST_WAITING = 1000, 1024  # 1024: capacity of the metrics file
_SAME: Final = 150  # characters: an event's text is cut to 208 bytes
_DAY_S = 86_400


class EventLog:
    """Merged log of a run: newest lines of log.txt and events of the metrics file, each message once. For use in one
    thread.
    """

    def __init__(self) -> None:
        self.lines: deque[LogLine] = deque(maxlen=_MOST_LINES)
        self._waiting: deque[LogLine] = deque(maxlen=_MOST_WAITING)  # events whose line may still arrive

    def add(self, line: LogLine) -> None:
        """Append a log line that comes from neither log.txt nor the metrics file, such as the monitor's own message."""
        self.lines.append(line)

    def add_new(self, lines: Sequence[LogLine], events: Sequence[LogLine]) -> None:
        """Merge new lines of log.txt and new events of the metrics file into the log, each in order. A line may arrive
        before or after the event with the same message.
        """
        if not lines and not events:
            return
        known = [*self.lines, *lines]
        first_new, start = len(self.lines), _session_start(known)
        indices: defaultdict[str, list[int]] = defaultdict(list)
        for index in range(start, len(known)):  # events belong to the last session only
            if not known[index].is_event:
                indices[_key(known[index])].append(index)
        events_of_lines: dict[int, int] = {}  # line index -> event number
        # newest first, so that repeated messages pair up from the end
        for number in reversed(range(len(events))):
            if matches := indices.get(_key(events[number])):
                index = matches.pop()
                known[index], events_of_lines[index] = _merge(known[index], events[number]), number
        repeated, waiting = set(), [] if start > first_new else list(self._waiting)
        for k in reversed(range(len(waiting))):
            if (matches := indices.get(_key(waiting[k]))) and matches[-1] >= first_new:
                repeated.add(matches.pop())
                del waiting[k]
        paired = set(events_of_lines.values())
        left = [(number, event) for number, event in enumerate(events) if number not in paired]
        self._waiting = deque([*waiting, *(event for _, event in left)], maxlen=_MOST_WAITING)
        new = [(index, known[index]) for index in range(first_new, len(known)) if index not in repeated]
        self.lines = deque(known[:first_new], maxlen=_MOST_LINES)
        self.lines.extend(_merged(new, left, start, events_of_lines))


def log_line(line: str) -> LogLine:
    """Parse a line of log.txt into its clock, level and text."""
    clock, text = clock_and_text(line)
    level: Level = (
        "bad" if text.startswith(("error: ", "Traceback (")) else "warn" if text.startswith(LEFT_OUT) else "ok"
    )
    return LogLine(clock or "", level, text)


def _merged(
    lines: Sequence[tuple[int, LogLine]],
    events: Iterable[tuple[int, LogLine]],
    start: int,
    events_of_lines: dict[int, int],
) -> Iterable[LogLine]:
    """Yield log lines (with index) merged with `events` (with number) that have no line. Such an event comes before the
    next line whose event or clock is later. Lines before index `start` belong to earlier sessions; `events_of_lines`
    maps a line's index to the number of its event.
    """
    left = deque(events)
    upcoming = deque(events_of_lines[index] for index, _ in lines if index in events_of_lines)
    for index, line in lines:
        limit = upcoming.popleft() if index in events_of_lines else None
        while (
            index >= start and left and (left[0][0] < limit if limit is not None else _is_due(left[0], line, upcoming))
        ):
            yield left.popleft()[1]
        yield line
    yield from (event for _, event in left)


def _session_start(lines: Sequence[LogLine]) -> int:
    """Return the index of the first log line of the last session; 0 if no line marks a session's start."""
    return next((index for index in reversed(range(len(lines))) if lines[index].text.startswith(SESSION_MARK)), 0)


def _key(line: LogLine) -> str:
    """Return the text by which a log line and an event are recognized as one message: without the prefix `error: `, cut
    to 150 characters, since events are truncated.
    """
    return line.text.removeprefix("error: ")[:_SAME]


def _merge(line: LogLine, event: LogLine) -> LogLine:
    """Combine a log line and the event with the same message: the line's clock, if any, the full text, the event's
    level.
    """
    text = line.text if len(event.text) >= _SAME else event.text
    return LogLine(line.clock or event.clock, event.level, text.removeprefix("error: "), True)


def _is_due(numbered: tuple[int, LogLine], line: LogLine, upcoming: Sequence[int]) -> bool:
    """Whether an event (with its number) precedes a log line by their clocks. False while an earlier event still has a
    later line (`upcoming`: numbers of such events).
    """
    number, event = numbered
    if not event.clock or not line.clock or (upcoming and upcoming[0] < number):
        return False
    return 0 < (_seconds(line.clock) - _seconds(event.clock)) % _DAY_S < _DAY_S // 2


def _seconds(clock: str) -> int:
    """Convert a clock `hh:mm:ss` to seconds since midnight."""
    hours, minutes, seconds = clock.split(":")
    return 3600 * int(hours) + 60 * int(minutes) + int(seconds)
