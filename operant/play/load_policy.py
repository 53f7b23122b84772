"""Load the policy of a checkpoint and evaluate it, greedy and sampled (`operant eval`). Prints nothing.

A checkpoint is loaded with the configuration stored in it and the run's copies of the user's files, so that a later
resume with other values or an edited environment changes nothing. Checkpoints of old runs without a stored
configuration use the run's config.toml. Code in a folder that is not known to belong to this user is run only if
`trusted` (see operant/config/trust.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from operant import runs, similar
from operant.errors import BadFileError, ConfigError, NotFoundError, UsageError
from operant.runs import zoo
from operant.text import safe

EVALUATION_NUMBER = 1 << 30
"""Number of this evaluation in its random stream: far from those of training, so that a checkpoint that was selected by
luck is evaluated on other episodes.
"""


class EvaluationResult(NamedTuple):
    """Result of evaluating a checkpoint. `greedy` and `sampled` are `evaluate.Evaluation`s, None if not requested."""

    id: str
    checkpoint: Path
    step: int
    environment: str
    device: str
    seed: int
    greedy: Any
    sampled: Any

    def document(self) -> dict[str, Any]:
        """Convert the evaluation's result to a JSON-serialisable dict. The values of the greedy policy (without it the
        sampled one) are also at the top level.
        """
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


class LoadedPolicy(NamedTuple):
    """Policy loaded from a checkpoint onto a device, with its configuration."""

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
) -> LoadedPolicy:
    """Load the policy of a checkpoint onto a device. `what` is a run, searched in `scope`, `zoo:NAME`, or the path of a
    checkpoint; `which` is best, last or a step (None: the best if there is one, else the last). `trusted` allows code
    that is not known to be this user's. `report` receives a line about each damaged checkpoint that is skipped.

    Raises NotFoundError, BadFileError, ConfigError, MachineError, UntrustedError, UsageError.
    """
    shipped = zoo.find(what)
    given = None if shipped is not None else _checkpoint_path(what)
    if given is not None and which is not None:
        raise UsageError(f"{what!r} is a checkpoint: name no other checkpoint, or give the run")
    run = shipped or (_run_of(given, what) if given is not None else _run_named(what, scope))
    if not run.config_path.is_file():
        if os.path.lexists(run.config_path):
            raise BadFileError(
                f"{safe(run.config_path, 400)} is not a regular file, so the configuration of {safe(run.id)} cannot be "
                "read: restore it"
            )
        raise NotFoundError(
            f"{safe(run.id)} has no configuration: it never started training. See its log: operant logs {safe(run.id)}"
        )

    from operant.compute.runtime import find_device, quiet_threads, set_threads

    quiet_threads()
    from operant.config import load as configuration
    from operant.runs.checkpoints import Store, load_file

    if given is not None:
        checkpoint = load_file(given)
    else:
        reported: set[str] = set()

        def once(line: str) -> None:  # the best is searched before the last
            if line not in reported:
                reported.add(line)
                report(line)

        checkpoint = _load_checkpoint(Store(run.checkpoints_path, run_uuid=run.uuid.hex(), report=once), which)
    config = configuration.load(checkpoint.config or run.config_path, trusted=trusted)
    chosen = find_device(device)
    set_threads(config.run.threads)
    return LoadedPolicy(
        run.id, checkpoint.path, checkpoint.step, config, _build_policy(config, checkpoint, chosen), chosen
    )


def evaluate_policy(
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
) -> EvaluationResult:
    """Evaluate a checkpoint on `episodes` complete episodes: with `greedy` by the policy's mode, with `sampled` by
    sampled actions, or both. `seed` None means the run's seed. The other parameters and errors are those of
    `load`.
    """
    loaded = load(what, scope, which=which, device=device, report=report, trusted=trusted)
    config = loaded.config
    seed = config.run.seed if seed is None else seed

    from operant.training.evaluate import Evaluator

    def result(wanted: bool, greedy: bool) -> Any:
        if not wanted:
            return None
        return Evaluator(
            loaded.policy, config.environment, config.params, episodes=episodes, seed=seed, greedy=greedy
        ).run(EVALUATION_NUMBER)

    evaluation = EvaluationResult(
        loaded.id, loaded.checkpoint, loaded.step, config.environment.name, str(loaded.device), seed, None, None
    )
    return evaluation._replace(greedy=result(greedy, True), sampled=result(sampled, False))


def _checkpoint_path(what: str) -> Path | None:
    """Resolve the path of a checkpoint or of a file in it to the checkpoint's folder; None if `what` is neither."""
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


def _run_named(what: str, scope: runs.Scope) -> runs.Run:
    """Find a run in `scope`. Raises NotFoundError, which names the policy of the zoo if there is one called `what`."""
    try:
        return runs.resolve(what, *scope)
    except NotFoundError as error:
        if what not in zoo.names():
            raise
        raise NotFoundError(f"{error}\nA trained policy ships with Operant: {zoo.PREFIX}{what}") from None


def _run_of(checkpoint: Path, what: str) -> runs.Run:
    """Load the run whose folder contains a checkpoint. `what` is the user's argument, for the message. Raises
    NotFoundError.
    """
    run = runs.load(checkpoint.parent.parent)
    if run is None and what.endswith(".toml"):
        raise NotFoundError(similar.configuration_given(what, "a trained policy"))
    if run is None:
        raise NotFoundError(
            f"{safe(what, 400)!r} is not in a run folder, so its configuration is unknown (expected "
            "RUN/checkpoints/step-...)"
        )
    return run


def _load_checkpoint(store: Any, which: str | None) -> Any:
    """Load the checkpoint `which` ("best", "last" or a step), or for None the best, else the last. Raises
    UsageError.
    """
    if which is None:
        try:
            return store.load("best")
        except (NotFoundError, BadFileError):
            return store.load("last")
    if which not in ("best", "last") and not re.fullmatch(r"[0-9]{1,18}", which):
        raise UsageError(f"the checkpoint {which!r} is unknown: it must be best, last or a step")
    return store.load(int(which) if which.isdecimal() else which)


def _build_policy(config: Any, checkpoint: Any, device: Any) -> Any:
    """Build the policy of a configuration on a device and copy the checkpoint's parameters into it. Raises ConfigError
    if they do not fit.
    """
    import torch

    from operant.training.build import make_actor

    policy = make_actor(config, device)
    with torch.no_grad():
        for name, parameter in policy.tensors().items():
            saved = checkpoint.tensors.get(f"policy/{name}")
            if saved is None or saved.shape != parameter.shape:
                found, expected = tuple(saved.shape) if saved is not None else "nothing", tuple(parameter.shape)
                problem = f"policy/{name}: the checkpoint has {found}, the run's configuration expects {expected}"
                raise ConfigError(str(checkpoint.path), [problem])
            parameter.copy_(saved)
    return policy
