"""What a screen shows: plain values made by the feed and drawn by the panels. Standard library only.

Attributes go down (feed -> model -> snapshot -> panels), requests come up (`Source.request`). Nothing here reads a file
or draws a cell. All text is made printable by `operant.text.safe` before it gets into a snapshot; panels show it
literally, never as markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

from operant.runs import ENDED, LIVE

Axis = Literal["step", "wall", "iteration"]
Level = Literal["ok", "warn", "bad"]


class RunFacts(NamedTuple):
    """Who the run is; None where the folder does not tell."""

    id: str
    short: str  # what a person types
    path: str  # as a person would type it
    env: str | None = None
    algo: str | None = None
    lanes: int | None = None
    seed: int | None = None
    device: str | None = None  # "NVIDIA H200", "CPU"
    host: str | None = None
    version: str | None = None
    pid: int | None = None
    steps: int | None = None  # planned
    target: float | None = None
    created: str | None = None  # local wall time, hh:mm:ss or a date
    replay: str | None = None  # its bytes, and where they lie


class Progress(NamedTuple):
    """How far the run is. Times in seconds; None where they cannot be told."""

    step: int | None = None
    steps: int | None = None
    iterations: int | None = None  # of this session, as the main loop counts them
    iterations_per_s: float | None = None
    up_s: float | None = None  # since the session's worker began
    eta_s: float | None = None
    done_at: str | None = None  # local wall time "14:07", or "27 Nov" where that is more than a day ahead
    checkpoint_step: int | None = None
    checkpoint_age_s: float | None = None
    record_age_s: float | None = None

    @property
    def share(self) -> float | None:
        """0 to 1."""
        return min(1.0, self.step / self.steps) if self.steps and self.step is not None else None


class Figure(NamedTuple):
    """A key figure of the header: its newest value, how fast it moves, the best there was."""

    metric: str  # its name in the metrics file
    label: str  # "return"
    value: float | None  # None: no value (yet)
    unit: str = ""
    trend_per_min: float | None = None  # slope over the last minute or so, None where it cannot be told
    best: float | None = None
    higher_better: bool | None = None
    kind: str = "gauge"  # of the metrics file: rates and counters are shown as counts


class Point(NamedTuple):
    """One column of a chart: the mean of a bucket, between its smallest and largest value. Values are finite;
    `not_finite` says that some were not.
    """

    low: float
    mean: float
    high: float
    not_finite: bool = False


class Series(Protocol):
    """All of one metric's history, in bounded memory (power-of-two buckets)."""

    name: str
    label: str
    unit: str
    higher_better: bool
    log_axis: bool  # the schema's hint
    kind: str  # gauge, counter or rate
    absent: str  # why it has no value, where there is a reason
    latest: float | None
    not_finite: int  # values that were NaN (where they must not be) or infinite

    @property
    def best(self) -> float | None:
        """The largest value there was, where larger is better; None elsewhere."""

    @property
    def trend_per_min(self) -> float | None:
        """The slope over the last minute of wall time; None where it cannot be told."""

    def extent(self, axis: Axis) -> tuple[float, float] | None:
        """First and last x with a value; None without values."""

    def view(
        self, axis: Axis, first: float, last: float, columns: int, smoothing: float = 0.0
    ) -> Sequence[Point | None]:
        """`columns` points that cover [first, last]; None where the series has no value. `smoothing` in [0, 1) is the
        weight of an exponential mean.
        """

    def near(self, axis: Axis, x: float) -> tuple[float, Point] | None:
        """The point nearest to x and its exact x, for inspection."""


class Mark(NamedTuple):
    """Something that happened at one moment of the run, drawn into charts."""

    kind: Literal["checkpoint", "eval", "resume", "not_finite"]
    step: float
    wall_s: float  # seconds since the run began
    iteration: float


class PhaseShare(NamedTuple):
    """Where an iteration's time goes: over the newest records."""

    name: str  # collect, update, evaluate, checkpoint, other
    share: float  # of wall time, 0 to 1
    milliseconds: float  # per iteration


class Finding(NamedTuple):
    """One sentence about the run's health."""

    level: Level
    title: str  # "KL 0.008"
    wanted: str  # "0.003-0.03"
    advice: str = ""  # what to try, where level is not ok
    explanation: str = ""  # what `?` says: what the number is, where the threshold comes from


POWER_LIMIT: Final = "power limit"
"""The reason for a lower clock that a well-used GPU meets."""


class Gpu(NamedTuple):
    """One GPU, sampled here once a second."""

    name: str
    utilisation: float | None = None  # 0 to 1
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    watts: float | None = None
    celsius: float | None = None
    throttled: str | None = None  # why the clock is held down


class System(NamedTuple):
    """The machine and the trainer's process, as far as they can be seen from here. None: not to be seen (another host,
    no NVML, another user).
    """

    gpu: Gpu | None = None
    gpu_absent: str = ""  # why no GPU panel is shown: "GPU figures unavailable (NVML not found)"
    cpu_share: float | None = None  # of one core, of the trainer's process
    memory_bytes: int | None = None  # resident, of the trainer's process
    machine_cpu: float | None = None  # 0 to 1, of all cores
    machine_memory: float | None = None  # 0 to 1
    disk_free_bytes: int | None = None


class LogLine(NamedTuple):
    """A line of the log page: an event of the metrics file, or a line of log.txt."""

    clock: str  # "14:03:11", or ""
    level: Level
    text: str
    is_event: bool = False


class Frame(NamedTuple):
    """The agent as it plays, one picture a lane: RGB bytes, row by row, lane after lane."""

    n: int
    step: int
    lanes: int
    height: int
    width: int
    pixels: bytes  # lanes * height * width * 3
    caption: str = ""  # "greedy"


class Ending(NamedTuple):
    """How a run ended, and the next commands."""

    sentence: str  # "killed by SIGKILL", "all steps done in 0:02:41"
    traceback: tuple[str, ...] = ()  # the log's last words, for failed, diverged, crashed
    facts: tuple[str, ...] = ()  # "eval 500.0 (target 475 reached)", "mean SPS 4.7 M", "checkpoint at 12.1 M steps"
    commands: tuple[str, ...] = ()  # "operant resume 4f2a"

    @property
    def has_traceback(self) -> bool:
        """A kill from outside leaves none: then the log's last words are anything."""
        return any(line.startswith("Traceback (") for line in self.traceback)


class Snapshot(NamedTuple):
    """Everything a screen shows of one run at one moment."""

    version: int  # grows with every change: the same number, nothing to draw
    run: RunFacts
    state: str  # a word of operant.runs.states' table
    cause: str | None = None
    progress: Progress = Progress()
    figures: tuple[Figure, ...] = ()
    series: Mapping[str, Series] = {}  # by metric name, in the order of interest, hidden ones left out
    marks: tuple[Mark, ...] = ()
    phases: tuple[PhaseShare, ...] = ()
    health: tuple[Finding, ...] = ()
    system: System | None = None
    log: tuple[LogLine, ...] = ()  # newest last, bounded
    frame: Frame | None = None
    # why no picture is shown: "waiting for the first picture…", "pendulum draws no picture", "the run has ended"
    agent_absent: str = ""
    ending: Ending | None = None
    config: str = ""  # config.toml, for the config page
    # one line about the reading itself ("metrics.mm was truncated: the last frame stays"), or the result of a request
    notice: str = ""
    notice_level: Level = "warn"
    seeds: int = 0  # curves are means over so many runs of a group, with their 95 % bands; 0: those of one run
    at_step: float | None = (
        None  # figures, progress, phases and health are those of this step (`Source.at`); None: the newest there are
    )

    @property
    def live(self) -> bool:
        """A trainer works on the run."""
        return self.state in LIVE

    @property
    def ended(self) -> bool:
        """No trainer works on the run any more."""
        return self.state in ENDED


class RunRow(NamedTuple):
    """One line of the run picker."""

    id: str
    path: str
    state: str
    env: str
    algo: str
    score: str
    sps: str
    progress: str
    age: str


class Source(Protocol):
    """Where the app gets snapshots from: a live feed, or a test's own. All methods return at once; none raises for a
    file's content.
    """

    readonly: bool

    def snapshot(self) -> Snapshot:
        """The newest one; the same object while nothing has changed."""

    def request(self, verb: Literal["stop", "pause", "unpause", "checkpoint"]) -> None:
        """Ask the trainer; the result appears in the log and in the state."""

    def watch(self, wanted: bool, *, mode: Literal["greedy", "sampled"] = "greedy", size: int = 64) -> None:
        """Ask for pictures of the agent, or no longer. Call once on a change: the source renews the request."""

    def hurry(self, interval_s: float) -> None:
        """How often the screen looks: the feed need not read more often."""

    def at(self, step: float | None) -> None:
        """From now on snapshots show figures, progress, phases and health as they were at a step; None: as they are.
        Curves, marks and log stay whole.
        """

    def close(self) -> None:
        """Stop reading."""


class Library(Protocol):
    """The runs there are."""

    def rows(self) -> Sequence[RunRow]:
        """A line for each, the newest first."""

    def overlays(self) -> Sequence[RunRow]:
        """A line for each that can be laid over a run: those, and groups."""

    def open(self, path: str) -> Source:
        """A source for one. Raises OperantError."""
