"""Loads the policy of a checkpoint, and evaluates it, greedy and sampled: what `operant eval` does. Prints nothing.

A checkpoint is played with the configuration that it carries and the run's own copies of the user's files, so that
neither a later resume with other values nor an environment edited since then changes anything; one of an early run,
which carries none, with the run's config.toml. Code in a folder that is not known to be this user's is run only where
`trusted` says so (see operant/config/trust.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from operant import runs
from operant.errors import BadFileError, ConfigError, NotFoundError, UsageError
from operant.text import safe

NUMBER = 1 << 30
"""The number of this evaluation in its random stream: far from those of training, so that a checkpoint chosen for luck
there meets other episodes here.
"""
_MOST_EPISODES = 1 << 24


class Played(NamedTuple):
    """The result of an evaluation. `greedy` and `sampled` are `evaluate.Evaluation`s, or None where not asked for."""

    id: str
    checkpoint: Path
    step: int
    environment: str
    device: str
    seed: int
    greedy: Any
    sampled: Any

    def document(self) -> dict[str, Any]:
        """For `--json`; the numbers of the greedy policy (or else the sampled one) stand at the top as well."""
        main = self.greedy or self.sampled
        return {
            "schema": 1,
            "id": self.id,
            "checkpoint": str(self.checkpoint),
            "step": self.step,
            "env": self.environment,
            "device": self.device,
            "seed": self.seed,
            "mean": main.mean,
            "ci95": main.ci95,
            "episodes": main.episodes,
            "greedy": self.greedy and self.greedy._asdict(),
            "sampled": self.sampled and self.sampled._asdict(),
        }


class Loaded(NamedTuple):
    """A checkpoint that is ready to play: its configuration, and the policy with its numbers on a device."""

    id: str
    checkpoint: Path
    step: int
    config: Any  # operant.config.load.Config
    policy: Any  # operant.nn.policy.Policy
    device: Any  # torch.device


def load(
    what: str,
    scope: runs.Scope,
    *,
    which: str | None,
    device: str,
    report: Callable[[str], None],
    trusted: bool = False,
) -> Loaded:
    """A checkpoint of the run `what`, looked for within `scope`, or one given by its path, ready to play.

    `which` is best, last or a step (None: the best if there is one, else the last). `report` takes a line about each
    damaged checkpoint that is passed over. Raises NotFoundError, BadFileError, ConfigError, MachineError,
    UntrustedError, UsageError.
    """
    given = _checkpoint_path(what)
    if given is not None and which is not None:
        raise UsageError(f"{what!r} is a checkpoint already: leave --checkpoint out, or name the run")
    run = _run_around(given, what) if given is not None else runs.resolve(what, *scope)
    if not run.config_path.is_file():
        if os.path.lexists(run.config_path):
            raise BadFileError(
                f"{safe(run.config_path, 400)} is not a regular file, so the configuration of {safe(run.id)} cannot be "
                "read: put it back"
            )
        raise NotFoundError(
            f"{safe(run.id)} has no configuration: it never began to train. Its log: operant logs {safe(run.id)}"
        )

    from operant.compute.runtime import find_device, quiet_threads, set_threads

    quiet_threads()
    from operant.config import load as configuration
    from operant.runs.checkpoints import Store, load_file

    if given is not None:
        checkpoint = load_file(given)
    else:
        told: set[str] = set()

        def once(line: str) -> None:  # the best is looked for before the last
            if line not in told:
                told.add(line)
                report(line)

        checkpoint = _load(Store(run.checkpoints_path, run_uuid=run.uuid.hex(), report=once), which)
    config = configuration.load(checkpoint.config or run.config_path, trusted=trusted)
    chosen = find_device(device)
    set_threads(config.run.threads)
    return Loaded(run.id, checkpoint.path, checkpoint.step, config, _policy(config, checkpoint, chosen), chosen)


def play(
    what: str,
    scope: runs.Scope,
    *,
    which: str | None,
    episodes: int,
    device: str,
    seed: int | None,
    greedy: bool,
    sampled: bool,
    report: Callable[[str], None],
    trusted: bool = False,
) -> Played:
    """Play `episodes` whole episodes of a checkpoint: see `load`. `seed` None is the run's own. Raises what `load`
    does, and UsageError.
    """
    if not 1 <= episodes <= _MOST_EPISODES:
        raise UsageError(f"--episodes is {episodes}; it must be between 1 and {_MOST_EPISODES:,}")
    loaded = load(what, scope, which=which, device=device, report=report, trusted=trusted)
    config = loaded.config
    seed = config.run.seed if seed is None else seed

    from operant.training.evaluate import Evaluator

    def result(wanted: bool, greedy: bool) -> Any:
        if not wanted:
            return None
        return Evaluator(
            loaded.policy, config.environment, config.params, episodes=episodes, seed=seed, greedy=greedy
        ).run(NUMBER)

    played = Played(
        loaded.id, loaded.checkpoint, loaded.step, config.environment.name, str(loaded.device), seed, None, None
    )
    return played._replace(greedy=result(greedy, True), sampled=result(sampled, False))


def _checkpoint_path(what: str) -> Path | None:
    """The folder of a checkpoint that is given by its path, or by that of a file in it; None where it is something
    else.
    """
    try:
        path = Path(what).expanduser()
        folder = path.parent if path.is_file() else path
        if (
            folder.is_dir()
            and (path.is_file() or (folder / "manifest.json").is_file())
            and not (folder / "run.json").is_file()
        ):
            return folder.resolve()
    except (OSError, ValueError, RuntimeError):  # a name too long, a NUL in it, no home
        pass
    return None


def _run_around(checkpoint: Path, what: str) -> runs.Run:
    """The run a checkpoint lies in: RUN/checkpoints/step-*; `what` is how it was named."""
    run = runs.load(checkpoint.parent.parent)
    if run is None:
        raise NotFoundError(
            f"{safe(what, 400)!r} is not in a run folder, so its configuration is unknown (expected "
            "RUN/checkpoints/step-...)"
        )
    return run


def _load(store: Any, which: str | None) -> Any:
    if which is None:
        try:
            return store.load("best")
        except (NotFoundError, BadFileError):
            return store.load("last")
    if which not in ("best", "last") and not re.fullmatch(r"[0-9]{1,18}", which):
        raise UsageError(f"--checkpoint is {which!r}; it must be best, last or a step")
    return store.load(int(which) if which.isdecimal() else which)


def _policy(config: Any, checkpoint: Any, device: Any) -> Any:
    """The run's policy with the checkpoint's numbers."""
    import torch

    from operant.training.build import make_actor

    policy = make_actor(config, device)
    with torch.no_grad():
        for name, here in policy.tensors().items():
            there = checkpoint.tensors.get(f"policy/{name}")
            if there is None or there.shape != here.shape:
                found = tuple(there.shape) if there is not None else "nothing"
                raise ConfigError(
                    str(checkpoint.path),
                    [f"policy/{name}: the checkpoint has {found}, the run's configuration wants {tuple(here.shape)}"],
                )
            here.copy_(there)
    return policy
