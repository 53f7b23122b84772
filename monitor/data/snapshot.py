"""Snapshot: the immutable values that the screen shows. Built by the feed, drawn by the panels. Standard library only.

Data flows down (feed -> summary -> snapshot -> panels), requests flow up (`Source.request`). This module reads no file
and draws no cell. All text passes `operant.text.safe` before it enters a snapshot; panels display it literally, never
as markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

from operant.runs import ENDED, LIVE

Axis = Literal["step", "wall", "iteration"]
Level = Literal["ok", "warn", "bad"]


class RunFacts(NamedTuple):
    """Identity and configuration of a run as the screen shows them. None: not recorded."""

    id: str
    short: str  # the abbreviated id that commands accept
    path: str  # as displayed: relative or with ~
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
    replay: str | None = None  # size and device of the replay buffer


class Progress(NamedTuple):
    """Progress of a run: steps, iterations, and times in seconds. None: unknown."""

    step: int | None = None
    steps: int | None = None
    iterations: int | None = None  # of the run
    iterations_per_s: float | None = None
    up_s: float | None = None  # since the session's worker started; of all sessions once the run has ended
    eta_s: float | None = None
    done_at: str | None = None  # local wall time "14:07"; "27 Nov" if more than a day ahead
    checkpoint_step: int | None = None
    unsaved_s: float | None = None  # work that a crash would lose now, or that the end has lost
    record_age_s: float | None = None

    @property
    def share(self) -> float | None:
        """Fraction of the steps done, 0 to 1; None if the run has no planned number of steps."""
        return min(1.0, self.step / self.steps) if self.steps and self.step is not None else None


class Figure(NamedTuple):
    """Key figure of the header: newest value of a metric, its trend and its best value."""

    metric: str  # its name in the metrics file
    label: str  # "return"
    value: float | None  # None: no value (yet)
    unit: str = ""
    trend_per_min: float | None = None  # slope over the last minute; None if it cannot be estimated
    best: float | None = None
    higher_better: bool | None = None
    kind: str = "gauge"  # the metric's kind; rates and counters are shown as counts


class Point(NamedTuple):
    """One column of a chart: minimum, mean and maximum of the values in it, all finite. `not_finite`: there were also
    NaN or infinite values.
    """

    low: float
    mean: float
    high: float
    not_finite: bool = False


class Series(Protocol):
    """Values of one metric over the whole run, which can be resampled at any zoom."""

    name: str
    label: str
    unit: str
    higher_better: bool
    log_axis: bool  # default axis, from the schema
    kind: str  # gauge, counter or rate
    absent: str  # reason why it has no value, if the run declares one
    latest: float | None
    not_finite: int  # values that were NaN (where they must not be) or infinite

    @property
    def best(self) -> float | None:
        """Largest value of the metric so far; None without values, or if higher is not better."""

    @property
    def trend_per_min(self) -> float | None:
        """Slope of the metric over the last minute of wall time, in its unit per minute; None with fewer than 6 points
        or over less than 4 s. Single outliers do not change it.
        """

    def extent(self, axis: Axis) -> tuple[float, float] | None:
        """Return the range (first x, last x) in which the metric has values on `axis`; None without values."""

    def view(
        self, axis: Axis, first: float, last: float, columns: int, smoothing: float = 0.0
    ) -> Sequence[Point | None]:
        """Resample the metric to `columns` chart points that cover [first, last] of `axis`; None for a column without a
        value.

        `smoothing` in [0, 1) is the weight of an exponential moving average.
        """

    def nearest(self, axis: Axis, x: float) -> tuple[float, Point] | None:
        """Return (x, point) of the recorded value nearest to `x` on `axis`; None without values."""

    @property
    def members(self) -> Mapping[str, Series]:
        """Curves of the single runs by their folders, which a chart draws as thin lines; {} for a run's own curve."""


class Mark(NamedTuple):
    """Event of a run on the charts' x axes: a checkpoint, an evaluation, a resume or a non-finite value."""

    kind: Literal["checkpoint", "eval", "resume", "not_finite"]
    step: float
    wall_s: float  # seconds since the run began
    iteration: float


class PhaseShare(NamedTuple):
    """Share of one phase (collect, update, ...) in the time of an iteration, averaged over the newest records."""

    name: str  # collect, update, evaluate, checkpoint, other
    share: float  # of wall time, 0 to 1
    milliseconds: float  # per iteration


class Finding(NamedTuple):
    """One line of the health panel: level, title, expected range, and advice."""

    level: Level
    title: str  # "KL 0.008"
    wanted: str  # expected range: "0.003-0.03"
    advice: str = ""  # what to try; empty if the level is ok
    explanation: str = ""  # meaning of the value and source of the threshold
    pending: bool = False  # the expected range is a goal that is not reached yet, which is no problem


POWER_LIMIT: Final = "power limit"
"""Throttle reason that is normal for a fully used GPU."""


class Gpu(NamedTuple):
    """Measurements of one GPU, taken by the monitor once a second. None: not available."""

    name: str
    utilisation: float | None = None  # 0 to 1
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    watts: float | None = None
    celsius: float | None = None
    throttled: str | None = None  # reason for a reduced clock


class System(NamedTuple):
    """Measurements of the machine and of the trainer's process. None: not available (another host, no NVML, another
    user).
    """

    gpu: Gpu | None = None
    gpu_absent: str = ""  # reason why GPU figures are missing: "GPU figures unavailable (NVML not found)"
    cpu_share: float | None = None  # of the trainer's process; 1.0 is one core
    memory_bytes: int | None = None  # resident, of the trainer's process
    machine_cpu: float | None = None  # 0 to 1, of all cores
    machine_memory: float | None = None  # 0 to 1
    disk_free_bytes: int | None = None


class LogLine(NamedTuple):
    """One line of the log page: an event of the metrics file or a line of log.txt."""

    clock: str  # "14:03:11", or ""
    level: Level
    text: str
    is_event: bool = False


class Frame(NamedTuple):
    """Rendered frame of the agent: one RGB picture per lane, row-major, lanes concatenated."""

    n: int
    step: int
    lanes: int
    height: int
    width: int
    pixels: bytes  # lanes * height * width * 3
    caption: str = ""  # "greedy"


class Ending(NamedTuple):
    """Summary of an ended run: a sentence, the end of the log of a failed one, results, and the next commands."""

    sentence: str  # "killed by SIGKILL", "all steps done in 0:02:41"
    traceback: tuple[str, ...] = ()  # end of the log, for failed, diverged, crashed
    facts: tuple[str, ...] = ()  # "eval 500.0 (target 475 reached)", "mean SPS 4.7 M", "checkpoint at 12.1 M steps"
    commands: tuple[str, ...] = ()  # "operant resume 4f2a"

    @property
    def has_traceback(self) -> bool:
        """Whether the run's log ends with a Python traceback. A process killed by a signal leaves none."""
        return any(line.startswith("Traceback (") for line in self.traceback)


class Member(NamedTuple):
    """Run of a group or sweep, as a row of its table."""

    name: str  # "seed 3", "trial 12"
    id: str
    path: str  # its folder; "" for a run that has not begun
    state: str  # a state word of operant.runs.states, or "waiting"
    cause: str = ""
    score: float | None = None  # mean return of the last evaluation
    training_return: float | None = None
    step: int | None = None
    share: float | None = None  # of its steps, 0 to 1
    sps: float | None = None
    counts: bool = True  # False: resumed with other values, so that it is left out of the mean
    value: float | None = None  # objective of a finished trial
    settings: tuple[str, ...] = ()  # values of the searched keys, in the order of `Collected.axes`; "": none
    positions: tuple[float | None, ...] = ()  # of these values on the axes, 0 to 1


class SearchAxis(NamedTuple):
    """Searched key of a sweep as an axis: its name and the texts at its lower and upper end."""

    name: str
    low: str
    high: str


class Collected(NamedTuple):
    """Part of a snapshot about several runs: the members of a group or the trials of a sweep."""

    kind: Literal["group", "sweep"]
    members: tuple[Member, ...] = ()
    figures: tuple[tuple[str, str], ...] = ()  # (label, text) of the line of key figures
    line: str = ""  # what the bold line of the charts is: "mean of 3 seeds"
    axes: tuple[SearchAxis, ...] = ()
    objective: str = ""  # "score"
    maximize: bool = True
    planned: int | None = None  # runs of a sweep; None: not limited by their number
    seeds: int = 1  # runs of each trial

    @property
    def share(self) -> float | None:
        """Share of a sweep's planned runs that have ended, 0 to 1; None if their number is not planned."""
        ended = sum(one.state not in LIVE for one in self.members)
        return min(1.0, ended / self.planned) if self.planned else None

    @property
    def best(self) -> Member | None:
        """Finished trial with the best objective; None before the first."""
        done = [one for one in self.members if one.value is not None]
        return (max if self.maximize else min)(done, key=lambda one: one.value or 0.0) if done else None


class Snapshot(NamedTuple):
    """Everything that the screen shows of one run, group or sweep at one moment. Immutable."""

    version: int  # increases with every change
    run: RunFacts
    state: str  # a state word of operant.runs.states
    cause: str | None = None
    progress: Progress = Progress()
    figures: tuple[Figure, ...] = ()
    series: Mapping[str, Series] = {}  # by metric name, in display order, without hidden metrics
    marks: tuple[Mark, ...] = ()
    phases: tuple[PhaseShare, ...] = ()
    health: tuple[Finding, ...] = ()
    system: System | None = None
    log: tuple[LogLine, ...] = ()  # newest last, bounded
    frame: Frame | None = None
    # reason why no frame is shown: "waiting for the first frame…", "the run has ended"
    agent_absent: str = ""
    ending: Ending | None = None
    config: str = ""  # text of config.toml
    # warning about the run's files, or the result of a request
    notice: str = ""
    notice_level: Level = "warn"
    collected: Collected | None = None  # of a group or sweep; None: a single run
    at_step: float | None = None  # step of figures, progress, phases and health (`Source.seek`); None: the newest

    @property
    def seeds(self) -> int:
        """Number of runs that the curves average; 0 for a single run."""
        return 0 if self.collected is None else sum(one.counts and bool(one.path) for one in self.collected.members)

    @property
    def live(self) -> bool:
        """Whether a trainer process is working on the run."""
        return self.state in LIVE

    @property
    def ended(self) -> bool:
        """Whether the run has ended, successfully or not."""
        return self.state in ENDED


class RunRow(NamedTuple):
    """One row of the run list; all cells are text."""

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
    """Provider of snapshots for the screen: a live feed, a group, or a test's fake. All methods return at once; none
    raises because of a file's content.
    """

    readonly: bool

    def snapshot(self) -> Snapshot:
        """Return the newest snapshot; the same object as long as nothing changes."""

    def request(self, verb: Literal["stop", "pause", "unpause", "checkpoint"]) -> None:
        """Send a request to the trainer. The result appears in the log and in the state."""

    def watch(self, wanted: bool, *, mode: Literal["greedy", "sampled"] = "greedy", size: int = 64) -> None:
        """Start (`wanted`) or stop asking the trainer for frames of the agent, pictures of `size` pixels. Call it on a
        change only: the source renews the request.
        """

    def set_poll_interval(self, interval_s: float) -> None:
        """Set the interval in seconds at which the screen takes snapshots; files need not be read more often."""

    def seek(self, step: float | None) -> None:
        """Make `snapshot` show figures, progress, phases and health at an earlier `step`; None: at the newest record.
        Curves, marks and log stay complete.
        """

    def close(self) -> None:
        """Stop reading the run and release its files."""


class RunCatalog(Protocol):
    """List of the runs that the user can open, and of the groups and runs that can be drawn over them."""

    def rows(self) -> Sequence[RunRow]:
        """Return a row of the run list for every run, newest first."""

    def overlays(self) -> Sequence[RunRow]:
        """Return the rows of everything that can be drawn over a run's curves: runs and groups."""

    def open(self, path: str) -> Source:
        """Return the source of snapshots for the run, group or sweep in the folder `path`. Raises OperantError."""
