"""The library for notebooks and programs, as `import operant` offers it: `train`, `runs`, `load`, `make_vec`. Prints
nothing; torch is imported when needed.

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

Everything that is wrong raises an `operant.errors.OperantError` with a sentence.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from operant import runs as folders
from operant.errors import MachineError, OperantError
from operant.text import safe

if TYPE_CHECKING:
    import torch

__all__ = ["Policy", "Run", "load", "make_vec", "runs", "train"]

_POLL_S = 0.1
_EXIT_GRACE_S = 2.0  # between a trainer's end and the word of who waited for it


class Run:
    """A run: its folder, read anew whenever it is asked. Made by `operant.runs` and `operant.train`."""

    def __init__(self, run: folders.Run) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"<operant run {self.id}: {self.state}>"

    @property
    def id(self) -> str:
        """Its id."""
        return safe(self._run.id)

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._run.path

    @property
    def state(self) -> str:
        """running, finished, stopped, crashed, ...: the words of `operant runs`."""
        return folders.state(self._fresh()).word

    @property
    def env(self) -> str | None:
        """The environment's name."""
        return folders.text_of(self._fresh().document, "env")

    @property
    def algo(self) -> str | None:
        """The algorithm's name."""
        return folders.text_of(self._fresh().document, "algo")

    @property
    def config(self) -> dict[str, Any]:
        """Its resolved configuration, sections of keys: `run.config["algo"]["learning_rate"]`."""
        from operant.config import resolved

        return resolved.tables(self._run.config_path)

    def describe(self) -> dict[str, Any]:
        """What `operant show --json` prints."""
        return folders.describe(self._fresh())

    def metrics(self) -> dict[str, NDArray[Any]]:
        """All records as columns of equal length: step, time (s since 1970), seconds (of training), session, and every
        metric; NaN where it has no value.

        >>> import operant
        >>> columns = operant.runs("example")[0].metrics()
        >>> float(columns["return"][-1]) > 0
        True
        """
        columns = folders.columns(self._run)
        fixed = {"step": columns.step, "time": columns.time, "seconds": columns.seconds, "session": columns.session}
        return {name: np.array(column) for name, column in {**columns.metrics, **fixed}.items()}

    def load(self, checkpoint: str | int | None = None, **options: Any) -> Policy:
        """Its policy: see `operant.load`."""
        return load(self, checkpoint, **options)

    def stop(self) -> None:
        """Ask its trainer to save a checkpoint and end. Raises NotFoundError where it does not train."""
        from operant.runs import control

        control.send(self._fresh(), "stop")

    def wait(self) -> Run:
        """Wait for its end. Raises OperantError, with the cause, unless it finished or was stopped. An interrupt
        (Ctrl-C) stops the run, and saves it.
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
                f"({described['cause'] or 'see its log'})\n{folders.log_end(self._run)}".rstrip()
            )
        return self

    def _wait(self) -> None:
        ended_s = None
        while ended_s is None or time.monotonic() - ended_s < _EXIT_GRACE_S:
            if not folders.state(self._fresh()).live:
                ended_s = ended_s or time.monotonic()
                if self._run.exit_path.exists():
                    return
            time.sleep(_POLL_S)

    def _fresh(self) -> folders.Run:
        self._run = folders.load(self._run.path) or self._run
        return self._run


def runs(
    pattern: str | None = None,
    *,
    env: str | None = None,
    algo: str | None = None,
    state: str | None = None,
    root: str | None = None,
) -> list[Run]:
    """The runs there are, newest first; `pattern` may hold `*` and `?` and is compared with ids. `root` is another
    folder than `operant runs` looks in.

    >>> import operant
    >>> operant.runs("exam*", env="cartpole", state="finished")
    [<operant run example: finished>]
    >>> operant.runs(algo="sac")
    []
    """
    found = [
        Run(run)
        for run in folders.list_runs(*folders.reach(root))
        if pattern is None or fnmatch.fnmatchcase(run.id, pattern)
    ]
    wanted = {"env": env, "algo": algo, "state": state}
    return [run for run in found if all(value is None or getattr(run, name) == value for name, value in wanted.items())]


def train(
    *words: str,
    config: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    name: str | None = None,
    root: str | None = None,
    wait: bool = True,
) -> Run:
    """Train, in a process of its own, as `operant train WORDS` does: an environment and `key=value`s; `overrides` are
    the same as a mapping.

    Returns the run when it has ended; with `wait=False` as soon as it has begun (`run.wait()` waits). Interrupting it
    stops the run and saves it.

    >>> import operant
    >>> operant.train("cartpole", overrides={"algo.gama": 0.9})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    operant.errors.ConfigError: command line has 1 problem
      command line: unknown key 'algo.gama' - did you mean 'algo.gamma'?...
    """
    from operant.config import request
    from operant.runs import launch

    given = [f"{key}={_written(value)}" for key, value in (overrides or {}).items()]
    asked = request.make(
        [*words, *given],
        config=None if config is None else str(config),
        environment_file=None,
        settings={"run.name": name},
    )
    asked.load()  # what is wrong with the configuration is raised here, and no run is made
    run = folders.create(folders.root(root), asked.name, asked.prefix, asked.document())
    launch.start(run, [*launch.module_command("operant.training.worker"), str(run.path)])
    found = Run(run)
    try:
        return found.wait() if wait else found
    except OperantError:
        folders.discard_unstarted(run, folders.describe(folders.load(run.path) or run)["exit"] or 0)
        raise


def _written(value: Any) -> str:
    """A value as an override has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"[{', '.join(map(_written, value))}]" if isinstance(value, (list, tuple)) else str(value)


def load(
    run: str | Path | Run = "latest",
    checkpoint: str | int | None = None,
    *,
    device: str = "auto",
    root: str | None = None,
    trust: bool = False,
) -> Policy:
    """The policy of a run (an id, a unique part of one, a path, "latest", or a `Run`), or of a checkpoint's path:
    "best", "last" or a step (default: the best).

    >>> import operant
    >>> policy = operant.load("example", "last", device="cpu")
    >>> 0 < policy.step < 10_000
    True
    """
    from operant.play import load_policy

    what = str(run.path if isinstance(run, Run) else run)
    which = None if checkpoint is None else str(checkpoint)
    loaded = load_policy.load(
        what, folders.reach(root), which=which, device=device, report=lambda line: None, trusted=trust
    )
    return Policy(loaded.policy, loaded.step)


class Policy:
    """A trained policy. Called with observations it returns actions, and remembers the state of a memory, if it has
    one, from call to call.

    Observations are one (O) or a batch (B, O), as NumPy arrays, torch tensors or lists; actions come back likewise, (A)
    or (B, A).

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
        """What it was trained on: `env.observation`, `env.action`, `env.name`."""
        return self._actor.env

    def reset(self, where: Any = None) -> None:
        """Begin episodes anew: all, or of a batch those `where` (B) says so. Of no effect without a memory."""
        if where is None or self._state is None:
            self._state = None
            return
        import torch

        first = self._actor.initial_state(len(where))
        ended = torch.as_tensor(np.asarray(where, bool), device=self._actor.device)
        self._state = tuple(torch.where(ended, begin, part) for begin, part in zip(first, self._state, strict=True))

    def __call__(self, observation: Any, legal: Any = None, *, greedy: bool = True) -> Any:
        """Actions: the likeliest, or drawn at random; only what `legal` (H) or (B, H) of 0 and 1 allows."""
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
        """The same with the state in the caller's hands: actions, and the state after them. `initial_state` is the
        first.
        """
        import torch

        device, seen = self._actor.device, self._actor.env.observation
        given = torch.as_tensor(observation, dtype=getattr(torch, seen.dtype), device=device)
        if given.shape[-1] != seen.size or given.ndim not in (1, 2):
            raise OperantError(
                f"the policy reads observations of {seen.size} numbers, (O) or (B, O); these have the shape "
                f"{tuple(given.shape)}"
            )
        rows = given if given.ndim == 2 else given[None]
        allowed = (
            None
            if legal is None
            else torch.as_tensor(legal, dtype=torch.uint8, device=device).reshape(len(rows), -1).t().contiguous()
        )
        noise = None if greedy else torch.rand(self._actor.noise_rows, len(rows), device=device)
        action, after = self._actor.act(
            rows.t().contiguous(), state or self._actor.initial_state(len(rows)), noise, allowed
        )
        chosen = action.t() if given.ndim == 2 else action[:, 0]
        return (chosen if isinstance(observation, torch.Tensor) else chosen.cpu().numpy()), after

    def initial_state(self, batch: int = 1) -> tuple[torch.Tensor, ...]:
        """What it remembers at an episode's start; () without a memory."""
        return self._actor.initial_state(batch)


def make_vec(*words: Any, **options: Any) -> Any:
    """An environment as a `gymnasium.vector.VectorEnv`: see `operant.gym.make_vec`. Needs the extra `gym`.

    >>> import operant
    >>> envs = operant.make_vec("cartpole", num_envs=3, seed=1)
    >>> observation, _ = envs.reset()
    >>> observation.shape
    (3, 4)
    """
    try:
        from operant.worlds import gym
    except ImportError as error:
        raise MachineError(f"make_vec needs Gymnasium ({error}): pip install 'operant[gym]'") from None
    return gym.make_vec(*words, **options)
