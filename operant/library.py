"""Library for notebooks and programs: `operant.train`, `list_runs`, `load`, `make_vec`. Imports torch on demand. Draws
progress in a terminal or a notebook, and prints nothing else.

    >>> import operant
    >>> run = operant.train("cartpole", steps="8k", lanes=16, target="none", name="example")
    >>> run                                           # how it ended  # doctest: +ELLIPSIS
    <operant run example: finished, eval ..., 8,192 steps in ...>
    >>> run.state, run.env, run.algo
    ('finished', 'cartpole', 'ppo')
    >>> metrics = run.metrics()                       # columns: NumPy arrays by name
    >>> bool((metrics["step"][1:] >= metrics["step"][:-1]).all())
    True
    >>> policy = operant.load(run)
    >>> policy([[0.0, 0.0, 0.1, 0.0]]).shape           # a batch of one observation
    (1, 1)

Every failure raises an `operant.errors.OperantError` with a message for a person.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import io
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from operant import runs, similar, text
from operant.errors import ConfigError, MachineError, OperantError, UsageError
from operant.limits import AXES, EPISODES, EVALUATED, RENDERERS, SECONDS, SMOOTH, one_of, within
from operant.text import safe

if TYPE_CHECKING:
    import torch

    from operant.config.request import Request
    from operant.display.live import LiveProgress
    from operant.display.picture import Picture
    from operant.training.callbacks import Controls
    from operant.training.evaluate import Evaluation

__all__ = ["Policy", "Run", "TrainingRun", "list_runs", "load", "make_vec", "train"]

Callback = Callable[["TrainingRun", int, Mapping[str, float]], object]
"""Function that is called between iterations: see `train`."""

_POLL_S = 0.1
_EXIT_GRACE_S = 2.0  # exit.json is written within this time after the trainer has ended
_GLYPHS = {"finished": "✔", "stopped": "■"}  # of an ended run; others ended by a problem


class Run:
    """A training run, returned by `operant.list_runs` and `operant.train`. Its properties are read from the run folder
    at every access.
    """

    def __init__(self, run: runs.Run) -> None:
        self._run = run

    def __repr__(self) -> str:
        described = self.describe()
        return f"<operant run {self.id}: {', '.join([described['state'], *_facts(described)])}>"

    @property
    def id(self) -> str:
        """Id of the run: the name of its folder."""
        return safe(self._run.id)

    @property
    def path(self) -> Path:
        """Absolute path of the run folder."""
        return self._run.path

    @property
    def state(self) -> str:
        """State of the run, as `operant runs` prints it: running, finished, stopped, crashed, ..."""
        return runs.state(self._fresh()).word

    @property
    def env(self) -> str | None:
        """Name of the environment that the run trains on; None if unknown."""
        return runs.text_of(self._fresh().document, "env")

    @property
    def algo(self) -> str | None:
        """Name of the algorithm that the run uses; None if unknown."""
        return runs.text_of(self._fresh().document, "algo")

    @property
    def config(self) -> dict[str, Any]:
        """Resolved configuration of the run by section and key: `run.config["algo"]["learning_rate"]`."""
        from operant.config import resolved

        return resolved.tables(self._run.config_path)

    def describe(self) -> dict[str, Any]:
        """Return a summary of the run: the document that `operant show --json` prints."""
        return runs.describe(self._fresh())

    def metrics(self) -> dict[str, NDArray[Any]]:
        """All records of the run as columns of equal length: step, time (s since 1970), seconds (of training), session,
        and every metric; NaN where a metric has no value. `pandas.DataFrame` and `polars.DataFrame` take them as they
        are.

        >>> import operant
        >>> columns = operant.list_runs("example")[0].metrics()
        >>> float(columns["eval/return"][-1]) > 0
        True
        """
        columns = runs.columns(self._run)
        fixed = {"step": columns.step, "time": columns.time, "seconds": columns.seconds, "session": columns.session}
        return {name: np.array(column) for name, column in {**columns.metrics, **fixed}.items()}

    def load(self, checkpoint: str | int | None = None, **options: Any) -> Policy:
        """Load the policy of one of this run's checkpoints: "best", "last" or a step (default: the best). `options` are
        those of `operant.load`.
        """
        return load(self, checkpoint, **options)

    def evaluate(
        self,
        episodes: int = 100,
        *,
        checkpoint: str | int | None = None,
        greedy: bool = True,
        seed: int | None = None,
        device: str = "auto",
        trust: bool = False,
    ) -> Evaluation:
        """Evaluate a checkpoint ("best", "last" or a step; default: the best) on complete episodes, by the most likely
        actions, or with `greedy=False` by sampled ones. `seed` is the run's by default; `trust` as for `operant.load`.

        >>> import operant
        >>> result = operant.list_runs("example")[0].evaluate(episodes=50)
        >>> result.episodes, 0 < result.mean <= 500, result.minimum <= result.mean <= result.maximum
        (50, True, True)
        """
        from operant.play import load_policy

        within("episodes", episodes, *EVALUATED)
        result = load_policy.evaluate_policy(
            str(self.path),
            runs.scope(None),
            which=None if checkpoint is None else str(checkpoint),
            episodes=episodes,
            device=device,
            seed=seed,
            greedy=greedy,
            sampled=not greedy,
            report=_ignore,
            trusted=trust,
        )
        evaluation: Evaluation = result.greedy or result.sampled
        return evaluation

    def plot(
        self, metric: str | None = None, *, x: Literal["steps", "seconds"] = "steps", smooth: float | None = None
    ) -> Picture:
        """Learning curve as a picture, which a notebook shows; its `figure` is matplotlib's. `metric` is a name of
        `metrics()` (default: the evaluations if they are enough, else the return of training episodes); `smooth` the
        share of the x axis over which it is averaged.

        Needs the extra `plot`.
        """
        if missing := [name for name in ("matplotlib", "scipy") if find_spec(name) is None]:
            raise MachineError(f"plot needs {' and '.join(missing)}: pip install 'operant[plot]'")
        one_of("x", x, AXES)
        within("smooth", smooth, *SMOOTH)
        from operant import plot
        from operant.display.picture import Picture
        from operant.plot import drawing, figure

        entries = plot.load_entries([self._fresh()])
        if metric is not None and metric not in entries[0].columns.metrics:
            suggestion = similar.did_you_mean(*similar.suggestions(metric, entries[0].columns.metrics))
            known = ", ".join(entries[0].columns.metrics)
            raise UsageError(
                f"{self.id} has no metric {safe(metric, 80)!r}{suggestion or f' (it has {safe(known, 400)})'}"
            )
        groups = plot.groups(entries, {})
        metrics = plot.default_metrics(groups)
        metrics = metrics if metric is None else dict.fromkeys(metrics, metric)
        drawn = drawing.learning_curves(groups, metrics, x, smooth)
        content = io.BytesIO()
        figure.save(drawn, content)
        return Picture(content.getvalue(), "png", f"curve of {self.id}", drawn)

    def render(
        self,
        *,
        seconds: float | None = None,
        episodes: int = 0,
        lanes: int = 1,
        size: int = 256,
        form: Literal["gif", "mp4", "png"] = "gif",
        renderer: Literal["operant", "mujoco"] = "operant",
        checkpoint: str | int | None = None,
        greedy: bool = True,
        seed: int | None = None,
        device: str = "auto",
        trust: bool = False,
    ) -> Picture:
        """Film the policy of a checkpoint, as `operant render` does: a film that a notebook shows and `save` writes.
        It ends after `seconds` (default: 10) or `episodes`; `lanes` games side by side are `size` pixels wide.
        `renderer` "mujoco" draws a robot by MuJoCo, which needs OpenGL.

        A GIF or PNG needs the extra `gif`, an MP4 the extra `mp4`.
        """
        from operant.display.picture import Picture
        from operant.play import load_policy, video

        one_of("form", form, ("gif", "mp4", "png"))
        one_of("renderer", renderer, RENDERERS)
        within("seconds", seconds, *SECONDS)
        within("episodes", episodes, *EPISODES)
        side = video.side_of(size, lanes)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"film.{form}"
            video.check(path, force=True)
            which = None if checkpoint is None else str(checkpoint)
            loaded = load_policy.load(
                str(self.path), runs.scope(None), which=which, device=device, report=_ignore, trusted=trust
            )
            from operant.play import film

            stage, player = film.staged(
                loaded,
                lanes=lanes,
                seed=loaded.config.run.seed if seed is None else seed,
                greedy=greedy,
                renderer=renderer,
            )
            pace = video.pace(stage.step_s, None, None)
            limits = film.limits_of(pace, seconds, None, episodes)
            film.write(path, form, stage, player, pace=pace, limits=limits, side=side)
            return Picture(path.read_bytes(), form, f"film of {self.id} at step {loaded.step:,}")

    def stop(self, *, wait: bool = True) -> Run:
        """Ask the trainer to save a checkpoint and end, and return the run once it has ended, or with `wait=False` at
        once. Raises NotFoundError if no trainer is alive.
        """
        from operant.runs import control

        control.send(self._fresh(), "stop")
        if wait:
            self._wait(None)
        return self

    def resume(
        self,
        *words: str,
        start: str | int = "last",
        wait: bool = True,
        progress: bool = True,
        callbacks: Callback | Sequence[Callback] = (),
        logs: Sequence[str] = (),
        changes: Sequence[str] = (),
        trust: bool = False,
        **keywords: Any,
    ) -> Run:
        """Resume the run from the checkpoint `start`, "last", "best" or a step, like `operant resume`: `words` are
        overrides, keywords too, such as `steps="4M"`; all else as for `operant.train`. `trust` allows code in the run
        folder that is not known to be this user's.

        >>> import operant
        >>> run = operant.list_runs("example")[0]
        >>> run.resume(steps="12k").describe()["step"]
        12032
        """
        from operant.compute.runtime import quiet_threads
        from operant.config import keywords as words_of
        from operant.config import restart
        from operant.runs import launch

        restart.check_start(str(start), "start")
        run, called = self._fresh(), _callbacks(callbacks, wait)
        overrides = [*words, *words_of.overrides(keywords, own_algorithm=".py:" in (self.config["algo"]["name"]))]
        with launch.claimed(run) as release:
            asked, trusted = restart.ask(
                run, overrides, str(start), consent=lambda asked: asked.check_trust(trust), report=_ignore
            )
            if called:
                quiet_threads()  # before torch is imported
                asked = _changeable(asked, changes, trusted)
            recorded = restart.record(run, asked)
            try:
                if called:
                    release()
                    _train_here(run, str(start), called, logs, progress=progress, trusted=trusted)
                    return self
                _start(run, "--resume", str(start), *["--trust"] * trusted)
                release()
                return self.wait(progress=progress) if wait else self
            except OperantError:
                recorded.restore_if_refused(runs.describe(self._fresh())["exit"] or 0)
                raise

    def wait(self, *, progress: bool = True) -> Run:
        """Wait for the end of the run and return it. Raises OperantError with the cause unless it finished or was
        stopped. Ctrl-C stops the run with a checkpoint. `progress`: draw it, in a terminal or a notebook.
        """
        live = _live(self._run, progress)
        try:
            self._wait(live)
        except KeyboardInterrupt:
            self.stop(wait=False)
            self._wait(live)
            raise
        finally:
            _close(live, self)
        described = self.describe()
        if described["state"] not in ("finished", "stopped"):
            raise OperantError(
                f"{self.id} {described['state']} "
                f"({described['cause'] or 'see its log'})\n{runs.log_end(self._run)}".rstrip()
            )
        return self

    def _wait(self, live: LiveProgress | None) -> None:
        ended_s = None
        while ended_s is None or time.monotonic() - ended_s < _EXIT_GRACE_S:
            if not runs.state(self._fresh()).live:
                ended_s = ended_s or time.monotonic()
                if self._run.exit_path.exists():
                    return
            if live is not None:
                live.update()
            time.sleep(_POLL_S)

    def _fresh(self) -> runs.Run:
        """Read the run's document again and return the run."""
        self._run = runs.load(self._run.path) or self._run
        return self._run


class TrainingRun(Run):
    """Run as a callback gets it, between two of its iterations: it can stop, change and log, and has the policy of
    that moment.
    """

    def __init__(self, run: runs.Run, controls: Controls, step: int) -> None:
        super().__init__(run)
        self._controls, self._step = controls, step

    @property
    def policy(self) -> Policy:
        """Policy with the present parameters. Acting with it changes nothing of the training."""
        return Policy(self._controls.actor, self._step)

    def stop(self, *, wait: bool = False) -> Run:
        """Stop the run after this call, with a checkpoint. Returns at once, whatever `wait` is: training waits for the
        callback.
        """
        self._controls.stop()
        return self

    def set(self, **values: float) -> None:
        """Change values that the run was begun with as `changes`, from the next iteration on: `run.set(clip=0.1)`. A
        decay of the learning rate ends with its first change. Raises UsageError for another key, ConfigError for a
        value out of range.
        """
        self._controls.set(values)

    def log(self, values: Mapping[str, float] | None = None, **named: float) -> None:
        """Log numbers that the run was begun with as `logs`: `run.log(goals=0.3)`. They are columns of `metrics()` and
        charts of the monitor from this record on. Raises UsageError for another name.
        """
        self._controls.log({**(values or {}), **named})


def list_runs(
    pattern: str | None = None,
    *,
    env: str | None = None,
    algo: str | None = None,
    state: str | None = None,
    root: str | Path | None = None,
) -> list[Run]:
    """List the runs that match all filters, newest first. `pattern` is matched with ids and may hold `*` and `?`;
    `root` is the folder of runs to search (default: as `operant runs`).

    >>> import operant
    >>> operant.list_runs("exam*", env="cartpole", state="finished")  # doctest: +ELLIPSIS
    [<operant run example: finished, ...>]
    >>> operant.list_runs(algo="sac")
    []
    """
    listed = [
        Run(run) for run in runs.list_runs(*runs.scope(root)) if pattern is None or fnmatch.fnmatchcase(run.id, pattern)
    ]
    filters = {"env": env, "algo": algo, "state": state}
    return [
        run for run in listed if all(value is None or getattr(run, name) == value for name, value in filters.items())
    ]


def train(
    *words: str,
    config: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    name: str | None = None,
    root: str | Path | None = None,
    wait: bool = True,
    progress: bool = True,
    callbacks: Callback | Sequence[Callback] = (),
    logs: Sequence[str] = (),
    changes: Sequence[str] = (),
    **keywords: Any,
) -> Run:
    """Train in a separate process, like `operant train WORDS`: `words` are an environment and overrides `key=value`.
    Keywords are keys by their last part: `steps="2M"`, `learning_rate=3e-4`, `hidden=[64, 64]`; a key of several
    sections has its section before it, `eval_every=5`, and every key can be in `overrides`, a mapping from the whole
    key to the value. `root`: folder of the new run (default: ./runs).

    Returns the run after its end, or with `wait=False` right after its start (then `run.wait()` waits). `progress`:
    draw it, in a terminal or a notebook. Ctrl-C stops the run with a checkpoint and raises KeyboardInterrupt.

    >>> import operant
    >>> operant.train("cartpole", gama=0.9)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    operant.errors.ConfigError: the call has 1 problem
      unknown key 'gama' - did you mean 'algo.gamma'?
    >>> operant.train("cartpole", every=5)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    operant.errors.ConfigError: the call has 1 problem
      'every' is a key of 2 sections: write checkpoint_every (checkpoint.every) or eval_every (eval.every)

    `callbacks` are functions `f(run, step, metrics)`, called between two iterations for each new record of the metrics:
    after each evaluation, and else at most `run.record_hz` (50) times a second. `run` is a `TrainingRun`, `step` the
    environment steps so far, `metrics` the values of the record by name, NaN for none. `logs` names the numbers that
    `run.log` may log, which the record waits for: `run.metrics()` has it after the call. `changes` are the keys that
    `run.set` may change.

    >>> def calmer(run, step, metrics):
    ...     if metrics["return"] > 30:
    ...         run.set(learning_rate=1e-4)
    ...     run.log(half=step / 2)
    ...     if step >= 4096:
    ...         run.stop()
    >>> options = {"callbacks": calmer, "logs": ["half"], "changes": ["learning_rate"]}
    >>> run = operant.train("cartpole", steps="8k", lanes=16, name="called", **options)
    >>> run.state, run.describe()["step"] >= 4096, float(run.metrics()["half"][-1]) >= 2048
    ('stopped', True, True)

    A run with callbacks trains in this process, which pauses it while they run and ends it when it ends; on one device,
    and in the main thread if Ctrl-C is to stop it. An exception of a callback ends the run with a checkpoint and is
    raised here. Keys in `changes` are read from memory at every step: last bits may differ from a run without them. A
    change becomes a point of the key's schedule in the run's configuration, so that `resume`, and a new run with this
    configuration, repeat it without the callback. Evaluations are at the same steps in every run, other records are
    not: what a callback decides by evaluations repeats with the seed.
    """
    from operant.compute.runtime import quiet_threads
    from operant.config import keywords as words_of
    from operant.config import request

    for word in words:
        if not isinstance(word, str):
            raise UsageError(
                f"{safe(repr(word), 80)} is no environment such as 'cartpole' and no override such as 'run.steps=2M'"
            )
    if overrides is not None and not isinstance(overrides, Mapping):
        raise UsageError(
            f"overrides is {safe(repr(overrides), 80)}; it must be a mapping, such as {{'algo.gamma': 0.9}}"
        )
    called = _callbacks(callbacks, wait)
    own_algorithm = any(".py:" in str(word) for word in (*words, keywords.get("algo", "")))
    given = [
        *words,
        *(f"{key}={words_of.text(value)}" for key, value in (overrides or {}).items()),
        *words_of.overrides(keywords, own_algorithm=own_algorithm),
    ]

    if not called and (logs or changes):
        raise UsageError("logs and changes are for callbacks, and there are none: give callbacks=f")
    source = None if config is None else str(config)
    asked = request.make(given, config=source, environment_file=None, settings={"run.name": name})
    quiet_threads()  # before torch is imported
    with _problems_of_the_call():
        if called:
            asked = _changeable(asked, changes, False)
        else:
            asked.load()  # raises for an invalid configuration, before a run folder is made
    run = runs.create(runs.root(root), asked.name, asked.prefix, asked.document())
    started = Run(run)
    try:
        if called:
            _train_here(run, None, called, logs, progress=progress)
            return started
        _start(run)
        return started.wait(progress=progress) if wait else started
    except OperantError:
        runs.discard_unstarted(run, runs.describe(runs.load(run.path) or run)["exit"] or 0)
        raise


def _start(run: runs.Run, *more: str) -> None:
    """Start the trainer of a run in a process of its own, with arguments of the worker."""
    from operant.runs import launch

    launch.start(run, [*launch.module_command("operant.training.worker"), str(run.path), "--spawn", *more])


def _train_here(
    run: runs.Run,
    resume: str | None,
    callbacks: Sequence[Callback],
    logs: Sequence[str],
    *,
    progress: bool,
    trusted: bool = False,
) -> None:
    """Train a run with callbacks in this process, until its end. `resume` names a checkpoint, None: a new run."""
    from operant.training import embedded
    from operant.training.callbacks import Hook

    live = _live(run, progress)
    names = (logs,) if isinstance(logs, str) else tuple(logs)

    def call(controls: Controls, step: int, metrics: dict[str, float]) -> None:
        for callback in callbacks:
            callback(TrainingRun(run, controls, step), step, metrics)
        if live is not None:
            live.update()

    if live is not None:
        live.update()
    try:
        embedded.train(run, resume=resume, hook=Hook(call, names), trusted=trusted)
    finally:
        _close(live, Run(run))


def _callbacks(given: Callback | Sequence[Callback], wait: bool) -> list[Callback]:
    """List of callbacks. Raises UsageError for anything else, and for callbacks of a call that does not `wait`."""
    callbacks: list[Any] = list(given) if isinstance(given, Iterable) and not callable(given) else [given]
    if wrong := [callback for callback in callbacks if not callable(callback)]:
        raise UsageError(f"callbacks are functions f(run, step, metrics), and {wrong[0]!r} is none")
    if callbacks and not wait:
        raise UsageError("callbacks run in this process, which trains until the end: leave wait=False out")
    return callbacks


@contextlib.contextmanager
def _problems_of_the_call() -> Iterator[None]:
    """Context manager in whose ConfigErrors the overrides are those of a call, not of the command line."""
    from operant.config.raw import COMMAND_LINE

    try:
        yield
    except ConfigError as error:
        alone = error.source == COMMAND_LINE
        prefix = f"{COMMAND_LINE}: "
        problems = [
            ("" if alone else "the call: ") + line.removeprefix(prefix) if line.startswith(prefix) else line
            for line in error.problems
        ]
        raise ConfigError("the call" if alone else error.source, problems, advice=error.advice) from None


def _changeable(asked: Request, changes: Sequence[str], trusted: bool) -> Request:
    """Request in which the keys `changes` are schedules. Raises ConfigError, and UsageError for a run that cannot have
    callbacks.
    """
    config = asked.load(trusted)
    from operant.training import callbacks

    if (reason := callbacks.unsupported_reason(config)) is not None:
        raise UsageError(reason)
    keys = (changes,) if isinstance(changes, str) else changes
    return dataclasses.replace(asked, overrides=(*asked.overrides, *callbacks.as_schedules(config, keys)))


def _live(run: runs.Run, progress: bool) -> LiveProgress | None:
    if not progress:
        return None
    from operant.display.live import LiveProgress

    return LiveProgress(run)


def _close(live: LiveProgress | None, run: Run) -> None:
    if live is not None:
        described = run.describe()
        facts = " · ".join(_facts(described))
        glyph = _GLYPHS.get(described["state"], "●" if described["state"] in runs.LIVE else "✖")
        live.close(f"{glyph} {described['state']}  {run.id}   {facts}".rstrip())


def _facts(described: Mapping[str, Any]) -> list[str]:
    """Score, steps and duration of a run, from its summary."""
    facts = []
    if described["eval_return"] is not None:
        facts.append(f"eval {text.number(described['eval_return'])}")
    elif described["return"] is not None:
        facts.append(f"return {text.number(described['return'])}")
    if described["step"] is not None:
        of = "" if described["state"] == "finished" or not described["steps"] else f" of {described['steps']:,}"
        took = f" in {text.duration(described['took_s'])}" if described["took_s"] is not None else ""
        facts.append(f"{described['step']:,}{of} steps{took}")
    return facts


def _ignore(line: str) -> None:
    """Drop a message of a function that reports to the command line."""


def load(
    run: str | Path | Run = "latest",
    checkpoint: str | int | None = None,
    *,
    device: str = "auto",
    root: str | Path | None = None,
    trust: bool = False,
) -> Policy:
    """Load a trained policy. `run` is an id, a unique part of one, a path, "latest", a `Run`, the path of a checkpoint,
    or "zoo:NAME", a policy that ships with Operant (`operant zoo` lists them); `checkpoint` is "best", "last" or a step
    (default: the best). `root`: folder of runs to search; `trust` allows code that is not known to be this user's.

    >>> import operant
    >>> policy = operant.load("example", "last", device="cpu")
    >>> 0 < policy.step < 20_000
    True
    >>> operant.load("zoo:cartpole", device="cpu")  # doctest: +ELLIPSIS
    <policy of cartpole at step ...: observation (4,) float32, action (1,)>
    """
    from operant.play import load_policy

    name = str(run.path if isinstance(run, Run) else run)
    choice = None if checkpoint is None else str(checkpoint)
    loaded = load_policy.load(name, runs.scope(root), which=choice, device=device, report=_ignore, trusted=trust)
    return Policy(loaded.policy, loaded.step)


class Policy:
    """Trained policy: maps observations to actions. A recurrent policy keeps its hidden state from call to call;
    `reset` clears it.

    Observations: (O) or a batch (B, O), as NumPy array, torch tensor or list. Actions: (A) or (B, A), a tensor for a
    tensor and else an array.

    >>> import numpy as np, operant
    >>> policy = operant.load("example", device="cpu")
    >>> policy(np.zeros(4, np.float32)).shape, policy(np.zeros((7, 4), np.float32)).shape
    ((1,), (7, 1))
    >>> policy  # doctest: +ELLIPSIS
    <policy of cartpole at step ...: observation (4,) float32, action (1,)>
    """

    def __init__(self, actor: Any, step: int) -> None:
        self._actor, self.step = actor, step
        self._state: tuple[torch.Tensor, ...] | None = None

    def __repr__(self) -> str:
        env, memory = self._actor.env, ", with a memory" * bool(self._actor.initial_state(1))
        space = f"observation ({env.observation.size},) {env.observation.dtype}"
        return f"<policy of {safe(env.name)} at step {self.step:,}: {space}, action ({env.action_size},){memory}>"

    @property
    def env(self) -> Any:
        """Environment in which the policy was trained: `env.observation`, `env.action`, `env.name`."""
        return self._actor.env

    def reset(self, where: Any = None) -> None:
        """Reset the policy's hidden state for all episodes, or for those where the mask `where` (B) is true. Does
        nothing for a feed-forward policy.
        """
        if where is None or self._state is None:
            self._state = None
            return
        import torch

        first = self._actor.initial_state(len(where))
        ended = torch.as_tensor(np.asarray(where, bool), device=self._actor.device)
        self._state = tuple(torch.where(ended, begin, part) for begin, part in zip(first, self._state, strict=True))

    def __call__(self, observation: Any, legal: Any = None, *, greedy: bool = True) -> Any:
        """Return actions for observations (O) or (B, O): the most likely ones, or with `greedy=False` sampled ones.
        Updates the policy's hidden state.

        `legal` (H) or (B, H) is a mask of 0 and 1 over choices.
        """
        import torch

        given = self._converted(observation)
        batch = len(given) if given.ndim == 2 else 1
        if self._state is None or any(part.shape[-1] != batch for part in self._state):
            self._state = self._actor.initial_state(batch)
        action, self._state = self.act(given, self._state, legal, greedy=greedy)
        return action if isinstance(observation, torch.Tensor) else action.cpu().numpy()

    def act(
        self, observation: Any, state: tuple[torch.Tensor, ...] = (), legal: Any = None, *, greedy: bool = True
    ) -> tuple[Any, tuple[torch.Tensor, ...]]:
        """Return actions for observations (O) or (B, O), and the next hidden state; the policy's own state does not
        change. `state`: previous hidden state, () at the start (`initial_state`). `legal`: mask of legal choices;
        `greedy=False` samples the actions.
        """
        import torch

        given = self._converted(observation)
        rows = given if given.ndim == 2 else given[None]
        allowed = None if legal is None else self._mask(legal, len(rows))
        noise = None if greedy else torch.rand(self._actor.noise_rows, len(rows), device=given.device)
        action, next_state = self._actor.act(
            rows.t().contiguous(), state or self._actor.initial_state(len(rows)), noise, allowed
        )
        chosen = action.t() if given.ndim == 2 else action[:, 0]
        return (chosen if isinstance(observation, torch.Tensor) else chosen.cpu().numpy()), next_state

    def _converted(self, observation: Any) -> torch.Tensor:
        """Convert observations (O) or (B, O) to a tensor on the policy's device; such a tensor is returned as it is.
        Raises UsageError for anything else.
        """
        import torch

        space = self._actor.env.observation
        expected = f"expected observations of shape ({space.size},) or (B, {space.size})"
        try:
            given = torch.as_tensor(observation, dtype=getattr(torch, space.dtype), device=self._actor.device)
        except (TypeError, ValueError, RuntimeError):
            raise UsageError(f"{expected}, got {safe(repr(observation), 80)}") from None
        if given.ndim not in (1, 2) or given.shape[-1] != space.size or not len(given):
            raise UsageError(f"{expected}, got {tuple(given.shape)}")
        return given

    def _mask(self, legal: Any, batch: int) -> torch.Tensor:
        """Convert a user's mask of legal actions, (choices) or (B, choices), to the network's, (choices, B) uint8.
        Raises UsageError for another shape.
        """
        import torch

        counts = getattr(self._actor.env.action, "n", 0)  # one number, or one for each dimension; none for a Box
        choices = counts if isinstance(counts, int) else sum(counts)
        try:
            mask = torch.as_tensor(legal, dtype=torch.uint8, device=self._actor.device).reshape(batch, choices)
        except (TypeError, ValueError, RuntimeError):
            shapes = f"({choices},) for one observation or ({batch}, {choices})"
            raise UsageError(f"legal is {safe(repr(legal), 80)}; it must be 0 and 1 in the shape {shapes}") from None
        return mask.t().contiguous()

    def initial_state(self, batch: int = 1) -> tuple[torch.Tensor, ...]:
        """Return the policy's hidden state of `batch` episodes at their start; () for a feed-forward policy."""
        return self._actor.initial_state(batch)


def make_vec(*words: Any, **options: Any) -> Any:
    """Make an environment as a `gymnasium.vector.VectorEnv`, with the arguments of `operant.gym.make_vec`. Needs the
    extra `gym`.

    >>> import operant
    >>> envs = operant.make_vec("cartpole", num_envs=3, seed=1)
    >>> observation, _ = envs.reset()
    >>> observation.shape
    (3, 4)
    """
    try:
        from operant.worlds import gym
    except ImportError as error:
        raise MachineError(f"make_vec needs Gymnasium ({error}): run pip install 'operant[gym]'") from None
    return gym.make_vec(*words, **options)
