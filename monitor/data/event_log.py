"""A run's messages, each once and in order: the lines of its log.txt and the events of its metrics file. Standard
library only. Reads no file.

A trainer writes most messages to both. Where a line and an event say the same, the line keeps its place and becomes the
event; events without a line are put between the others by what is around them, and by their clocks. Clocks are those of
a day: they go round at midnight.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Final

from monitor.data.snapshot import Level, LogLine
from operant.runs import LEFT_OUT, SESSION_MARK, clock_and_text

_MOST_LINES, _MOST_WAITING = 1000, 1024  # so many events the metrics file has
_SAME: Final = 150  # characters: an event's text is cut to 208 bytes
_DAY_S = 86_400


class EventLog:
    """The newest lines; `take` adds what is new. For one thread."""

    def __init__(self) -> None:
        self.lines: deque[LogLine] = deque(maxlen=_MOST_LINES)
        self._waiting: deque[LogLine] = deque(maxlen=_MOST_WAITING)  # events whose line may still come

    def add(self, line: LogLine) -> None:
        """A line that comes from neither."""
        self.lines.append(line)

    def take(self, lines: Sequence[LogLine], events: Sequence[LogLine]) -> None:
        """New lines of the log, and new events, each in their order. An event and its line may come one after the
        other, in either order.
        """
        if not lines and not events:
            return
        known = [*self.lines, *lines]
        first_new, own = len(self.lines), _begin(known)
        places: defaultdict[str, list[int]] = defaultdict(list)
        for place in range(own, len(known)):  # events are the last session's: a resume begins with none
            if not known[place].is_event:
                places[_key(known[place])].append(place)
        told: dict[int, int] = {}  # which event a line tells of
        # from the newest on, as what is said twice is said by the newest last
        for number in reversed(range(len(events))):
            if found := places.get(_key(events[number])):
                place = found.pop()
                known[place], told[place] = _both(known[place], events[number]), number
        repeated, waiting = set(), [] if own > first_new else list(self._waiting)
        for index in reversed(range(len(waiting))):
            if (found := places.get(_key(waiting[index]))) and found[-1] >= first_new:
                repeated.add(found.pop())
                del waiting[index]
        paired = set(told.values())
        left = [(number, event) for number, event in enumerate(events) if number not in paired]
        self._waiting = deque([*waiting, *(event for _, event in left)], maxlen=_MOST_WAITING)
        new = [(place, known[place]) for place in range(first_new, len(known)) if place not in repeated]
        self.lines = deque(known[:first_new], maxlen=_MOST_LINES)
        self.lines.extend(_merged(new, left, own, told))


def log_line(line: str) -> LogLine:
    """A line of log.txt."""
    clock, text = clock_and_text(line)
    level: Level = (
        "bad" if text.startswith(("error: ", "Traceback (")) else "warn" if text.startswith(LEFT_OUT) else "ok"
    )
    return LogLine(clock or "", level, text)


def _merged(
    lines: Sequence[tuple[int, LogLine]], events: Iterable[tuple[int, LogLine]], own: int, told: dict[int, int]
) -> Iterable[LogLine]:
    """Lines by their places, and between them the numbered events that have no line: before the next line of a later
    event, or one of a later clock.
    """
    left = deque(events)
    ahead = deque(told[place] for place, _ in lines if place in told)
    for place, line in lines:
        limit = ahead.popleft() if place in told else None
        while place >= own and left and (left[0][0] < limit if limit is not None else _is_due(left[0], line, ahead)):
            yield left.popleft()[1]
        yield line
    yield from (event for _, event in left)


def _begin(lines: Sequence[LogLine]) -> int:
    """Where the last session's lines begin."""
    return next((place for place in reversed(range(len(lines))) if lines[place].text.startswith(SESSION_MARK)), 0)


def _key(line: LogLine) -> str:
    """What lines have in common that say the same: the log has `error: ` before what an event calls an error, and more
    of a long text.
    """
    return line.text.removeprefix("error: ")[:_SAME]


def _both(line: LogLine, event: LogLine) -> LogLine:
    """One line for both: the log's clock, if it has one, and all of its text; the event's level."""
    text = line.text if len(event.text) >= _SAME else event.text
    return LogLine(line.clock or event.clock, event.level, text.removeprefix("error: "), True)


def _is_due(numbered: tuple[int, LogLine], line: LogLine, ahead: Sequence[int]) -> bool:
    """Whether an event was before a line, as far as clocks tell; not if an earlier event has its line still ahead."""
    number, event = numbered
    if not event.clock or not line.clock or (ahead and ahead[0] < number):
        return False
    return 0 < (_seconds(line.clock) - _seconds(event.clock)) % _DAY_S < _DAY_S // 2


def _seconds(clock: str) -> int:
    hours, minutes, seconds = clock.split(":")
    return 3600 * int(hours) + 60 * int(minutes) + int(seconds)
