"""Library for notebooks and programs: `operant.train`, `list_runs`, `load`, `make_vec`. Prints nothing; imports torch
on demand.

    >>> import operant
    >>> run = operant.train("cartpole", "run.steps=8k", "env.lanes=16", name="example")
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

import fnmatch
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from operant import runs
from operant.errors import MachineError, OperantError
from operant.text import safe

if TYPE_CHECKING:
    import torch

__all__ = ["Policy", "Run", "list_runs", "load", "make_vec", "train"]

_POLL_S = 0.1
_EXIT_GRACE_S = 2.0  # exit.json is written within this time after the trainer has ended


class Run:
    """A training run, returned by `operant.list_runs` and `operant.train`. Its properties are read from the run folder
    at every access.
    """

    def __init__(self, run: runs.Run) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"<operant run {self.id}: {self.state}>"

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
        """Return all records of the run as columns (NumPy arrays) of equal length: step, time (s since 1970), seconds
        (of training), session, and every metric; NaN where a metric has no value.

        >>> import operant
        >>> columns = operant.list_runs("example")[0].metrics()
        >>> float(columns["return"][-1]) > 0
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

    def stop(self) -> None:
        """Ask the trainer to save a checkpoint and end; returns at once. Raises NotFoundError if no trainer is
        alive.
        """
        from operant.runs import control

        control.send(self._fresh(), "stop")

    def wait(self) -> Run:
        """Wait for the end of the run and return it. Raises OperantError with the cause unless it finished or was
        stopped. Ctrl-C stops the run with a checkpoint.
        """
        try:
            self._wait()
        except KeyboardInterrupt:
            self.stop()
            self._wait()
            raise
        described = self.describe()
        if described["state"] not in ("finished", "stopped"):
            raise OperantError(
                f"{self.id} {described['state']} "
                f"({described['cause'] or 'see its log'})\n{runs.log_end(self._run)}".rstrip()
            )
        return self

    def _wait(self) -> None:
        """Wait until the run has ended and its cause is written, or for 2 s after its end."""
        ended_s = None
        while ended_s is None or time.monotonic() - ended_s < _EXIT_GRACE_S:
            if not runs.state(self._fresh()).live:
                ended_s = ended_s or time.monotonic()
                if self._run.exit_path.exists():
                    return
            time.sleep(_POLL_S)

    def _fresh(self) -> runs.Run:
        """Read the run's document again and return the run."""
        self._run = runs.load(self._run.path) or self._run
        return self._run


def list_runs(
    pattern: str | None = None,
    *,
    env: str | None = None,
    algo: str | None = None,
    state: str | None = None,
    root: str | None = None,
) -> list[Run]:
    """List the runs that match all filters, newest first. `pattern` is matched with ids and may hold `*` and `?`;
    `root` is the folder of runs to search (default: as `operant runs`).

    >>> import operant
    >>> operant.list_runs("exam*", env="cartpole", state="finished")
    [<operant run example: finished>]
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
    root: str | None = None,
    wait: bool = True,
) -> Run:
    """Train an agent in a separate process, like `operant train WORDS`: `words` are an environment and overrides
    `key=value`; `overrides` holds further ones as a mapping. `name`: id of the run (default: generated); `root`: folder
    of the new run (default: ./runs).

    Returns the run after its end, or with `wait=False` right after its start (then `run.wait()` waits). Ctrl-C stops
    the run with a checkpoint.

    >>> import operant
    >>> operant.train("cartpole", overrides={"algo.gama": 0.9})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    operant.errors.ConfigError: command line has 1 problem
      command line: unknown key 'algo.gama' - did you mean 'algo.gamma'?...
    """
    from operant.config import request
    from operant.runs import launch

    override_words = [f"{key}={_override_text(value)}" for key, value in (overrides or {}).items()]
    run_request = request.make(
        [*words, *override_words],
        config=None if config is None else str(config),
        environment_file=None,
        settings={"run.name": name},
    )
    run_request.load()  # raises for an invalid configuration, before a run folder is made
    run = runs.create(runs.root(root), run_request.name, run_request.prefix, run_request.document())
    launch.start(run, [*launch.module_command("operant.training.worker"), str(run.path)])
    started = Run(run)
    try:
        return started.wait() if wait else started
    except OperantError:
        runs.discard_unstarted(run, runs.describe(runs.load(run.path) or run)["exit"] or 0)
        raise


def _override_text(value: Any) -> str:
    """Format a value in the syntax of an override on the command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"[{', '.join(map(_override_text, value))}]" if isinstance(value, (list, tuple)) else str(value)


def load(
    run: str | Path | Run = "latest",
    checkpoint: str | int | None = None,
    *,
    device: str = "auto",
    root: str | None = None,
    trust: bool = False,
) -> Policy:
    """Load a trained policy. `run` is an id, a unique part of one, a path, "latest", a `Run`, or the path of a
    checkpoint; `checkpoint` is "best", "last" or a step (default: the best). `root`: folder of runs to search; `trust`
    allows code that is not known to be this user's.

    >>> import operant
    >>> policy = operant.load("example", "last", device="cpu")
    >>> 0 < policy.step < 10_000
    True
    """
    from operant.play import load_policy

    name = str(run.path if isinstance(run, Run) else run)
    choice = None if checkpoint is None else str(checkpoint)
    loaded = load_policy.load(
        name, runs.scope(root), which=choice, device=device, report=lambda line: None, trusted=trust
    )
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
    """

    def __init__(self, actor: Any, step: int) -> None:
        self._actor, self.step = actor, step
        self._state: tuple[torch.Tensor, ...] | None = None

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
        batch = (
            observation.shape[0]
            if getattr(observation, "ndim", None) == 2
            else len(observation)
            if np.ndim(observation) == 2
            else 1
        )
        if self._state is None or any(part.shape[-1] != batch for part in self._state):
            self._state = self._actor.initial_state(batch)
        action, self._state = self.act(observation, self._state, legal, greedy=greedy)
        return action

    def act(
        self, observation: Any, state: tuple[torch.Tensor, ...] = (), legal: Any = None, *, greedy: bool = True
    ) -> tuple[Any, tuple[torch.Tensor, ...]]:
        """Return actions for observations (O) or (B, O), and the next hidden state; the policy's own state does not
        change. `state`: previous hidden state, () at the start (`initial_state`). `legal`: mask of legal choices;
        `greedy=False` samples the actions.
        """
        import torch

        device, space = self._actor.device, self._actor.env.observation
        given = torch.as_tensor(observation, dtype=getattr(torch, space.dtype), device=device)
        if given.shape[-1] != space.size or given.ndim not in (1, 2):
            raise OperantError(
                f"expected observations of shape ({space.size},) or (B, {space.size}), got {tuple(given.shape)}"
            )
        rows = given if given.ndim == 2 else given[None]
        allowed = (
            None
            if legal is None
            else torch.as_tensor(legal, dtype=torch.uint8, device=device).reshape(len(rows), -1).t().contiguous()
        )
        noise = None if greedy else torch.rand(self._actor.noise_rows, len(rows), device=device)
        action, next_state = self._actor.act(
            rows.t().contiguous(), state or self._actor.initial_state(len(rows)), noise, allowed
        )
        chosen = action.t() if given.ndim == 2 else action[:, 0]
        return (chosen if isinstance(observation, torch.Tensor) else chosen.cpu().numpy()), next_state

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
