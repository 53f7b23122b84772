"""Store of the checkpoints of one run: saves, finds, loads and deletes them so that a valid one exists at any time.

A checkpoint holds named tensors and a JSON document. The caller passes the tensors on the CPU.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from operant.errors import BadFileError, NotFoundError
from operant.runs import atomic
from operant.runs.checkpoints.manifest import (
    FORMAT,
    QUARANTINE_NAME,
    STEP_NAME,
    Candidate,
    ForeignError,
    Manifest,
    in_load_order,
    names_in,
    read_manifest,
)
from operant.runs.checkpoints.replays import Replays
from operant.runs.checkpoints.tensors import CONFIG, STATE, TENSORS, Checkpoint, find_nonfinite, pack, unpack

if TYPE_CHECKING:
    import torch

FAILURES_TO_REPORT = 3
OVERHEAD_BYTES = 65536  # manifest and partly filled blocks

Result = TypeVar("Result")
Accept = Callable[["Path", "Manifest", dict[str, bytes]], Result]


class CheckpointInfo(NamedTuple):
    """Manifest of a checkpoint, and the path of its configuration file (None without one)."""

    manifest: Manifest
    config: Path | None


class _Job(NamedTuple):
    """Checked inputs of saving one checkpoint. `state` is the encoded document."""

    step: int
    tensors: dict[str, torch.Tensor]
    state: bytes
    session: int
    best: bool
    best_value: object
    must_be_finite: tuple[str, ...]
    config: str
    task: int


class Store:
    """Store of the checkpoints of one run. The constructor touches no file. Only `save`, `save_async`, `quarantine` and
    `collect` write, and only the run's trainer may call them.

    `folder` is RUN/checkpoints; `keep` the number of the last checkpoints to keep (never fewer than two, in addition to
    the best); `report` takes a line for the log, also from the thread of `save_async`.
    """

    def __init__(self, folder: Path, *, run_uuid: str, keep: int = 3, report: Callable[[str], None]) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep} must be at least 1")
        self.folder, self._run_uuid, self._keep, self._report = folder, run_uuid, keep, report
        self.replays = Replays(folder, run_uuid, report)
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._last: Path | None = None
        self._failures = 0
        self.write_s = 0.0
        """Seconds of the last `save_async`, in its thread."""
        self._parent_step: int | None = None
        self._verified: dict[str, tuple[Any, Candidate]] = {}  # name -> (signature of the folder, candidate)

    @property
    def failing(self) -> bool:
        """Whether the last three or more attempts to save a checkpoint have all failed."""
        return self._failures >= FAILURES_TO_REPORT

    @property
    def saving(self) -> bool:
        """Whether the background thread is saving a checkpoint."""
        return self._thread is not None and self._thread.is_alive()

    # -------------------------------------------------------------- saving

    def save(
        self,
        step: int,
        tensors: Mapping[str, torch.Tensor],
        document: Mapping[str, Any],
        *,
        session: int,
        best: bool = False,
        must_be_finite: Collection[str] = (),
        config: str = "",
    ) -> Path | None:
        """Save a checkpoint of `step` in training session `session`, and delete old ones. Returns its folder, or None
        after a failure, which is reported and does not stop training.

        `tensors` are on the CPU, dense, of any shape; `document` is JSON (NaN and infinities allowed), and its
        `best_value` ranks a `best` checkpoint among those of its `task`; `config` is the text of the configuration. If
        a tensor named in `must_be_finite` is not finite, the state is quarantined instead, and None is returned. Raises
        ValueError or TypeError for inputs that can never be saved.
        """
        self.wait()
        self._last = self._attempt(_job(step, tensors, document, session, best, must_be_finite, config))
        return self._last

    def save_async(
        self,
        step: int,
        tensors: Mapping[str, torch.Tensor],
        document: Mapping[str, Any],
        *,
        session: int,
        best: bool = False,
        must_be_finite: Collection[str] = (),
        config: str = "",
        done: Callable[[Path | None], None] = lambda path: None,
    ) -> None:
        """Save a checkpoint in a background thread, once the previous save has ended. Parameters as in `save`; the
        tensors must not change until `wait` has returned. The thread calls `done` with the checkpoint's folder, None
        after a failure, before `wait` returns.
        """
        self.wait()
        job, self._last = _job(step, tensors, document, session, best, must_be_finite, config), None

        def work() -> None:
            began_s = time.monotonic()
            try:
                self._last = self._attempt(job)
            except Exception as error:
                self._failed(step, error)
            self.write_s = time.monotonic() - began_s
            done(self._last)

        # A daemon: a trainer past its deadline may exit and leaves a temporary folder, never half a checkpoint.
        self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> Path | None:
        """Wait for the background save, at most `timeout_s` (None: no limit). Returns the folder of the last saved
        checkpoint; None if saving failed or is not finished.
        """
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return None
            self._thread = None
        return self._last

    def quarantine(
        self, step: int, tensors: Mapping[str, torch.Tensor], document: Mapping[str, Any], *, session: int
    ) -> Path | None:
        """Save a training state with NaN or infinities for a post-mortem, as quarantine-step-*, which `load` never
        considers. Returns its folder, None after a failure.
        """
        self.wait()
        return self._guarded(step, partial(self._quarantine, _job(step, tensors, document, session, False, (), "")))

    def _attempt(self, job: _Job) -> Path | None:
        """Save the checkpoint of `job`, or quarantine its state if a tensor that must be finite is not. Runs on any
        thread. Returns the checkpoint's folder; None after a failure or a quarantine.
        """

        def work() -> Path | None:
            problem = find_nonfinite({name: job.tensors[name] for name in job.must_be_finite})
            if problem is None:
                files = (pack(job.tensors), job.state, job.config.encode())
                return self.save_files(
                    job.step, *files, session=job.session, best=job.best, best_value=job.best_value, task=job.task
                )
            path = self._quarantine(job)
            self._report(
                f"no checkpoint at step {job.step}: {problem}. The state is saved in {path}, which no run resumes from"
            )
            return None

        return self._guarded(job.step, work)

    def _guarded(self, step: int, work: Callable[[], Path | None]) -> Path | None:
        """Run `work`, which saves the checkpoint of `step`, and return its folder. Failures of the disk or memory are
        counted and reported, and give None: training continues without this checkpoint.
        """
        try:
            with self._lock:
                path = work()
        except (OSError, BadFileError, MemoryError) as error:
            self._failed(step, error)
            return None
        self._failures = 0
        return path

    def _failed(self, step: int, error: Exception) -> None:
        """Count and report that the checkpoint of `step` could not be saved."""
        self._failures += 1
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        again = f" ({self._failures} failures in a row)" if self._failures > 1 else ""
        self._report(
            f"no checkpoint at step {step}{again}: {reason}. Those in {self.folder} are unchanged; training continues"
        )

    def save_files(
        self,
        step: int,
        tensors: bytes,
        state: bytes,
        config: bytes = b"",
        *,
        session: int,
        best: bool = False,
        best_value: object = None,
        task: int = 0,
    ) -> Path:
        """Commit a checkpoint from packed files and delete old checkpoints; returns its folder. `best_value` is the
        score of a `best` checkpoint. Needs no torch. Raises OSError, or BadFileError if the files read back differ.
        """
        value = (
            float(best_value) if best and isinstance(best_value, (int, float)) and math.isfinite(best_value) else None
        )
        files = {TENSORS: tensors, STATE: state, **({CONFIG: config} if config else {})}
        path = self._write(
            f"step-{step:012d}", files, Manifest(self._run_uuid, session, step, self._parent_step, best, value, task, 0)
        )
        self._parent_step = step
        self.collect()
        return path

    def _quarantine(self, job: _Job) -> Path:
        """Write the quarantined state of `job` and return its folder. Raises OSError and BadFileError."""
        manifest = Manifest(self._run_uuid, job.session, job.step, self._parent_step, False, None, job.task, 0)
        return self._write(f"quarantine-step-{job.step:012d}", {TENSORS: pack(job.tensors), STATE: job.state}, manifest)

    def _write(self, name: str, files: Mapping[str, bytes], manifest: Manifest) -> Path:
        """Commit a folder `name` and return its path, after deleting leftovers of dead processes and checking the free
        disk space. A checkpoint that its session had saved as best stays best.
        """
        atomic.make_root(self.folder)
        with atomic.opened(self.folder) as root:
            atomic.sweep(root)
            atomic.check_room(root, sum(map(len, files.values())) + OVERHEAD_BYTES)
            if not manifest.best:
                # A best checkpoint stays marked if its session saves the same step again, as at its end.
                with suppress(BadFileError):
                    former = read_manifest(atomic.read_manifest(root, name))
                    if (former.run_uuid, former.session, former.task) == (
                        manifest.run_uuid,
                        manifest.session,
                        manifest.task,
                    ):
                        manifest = manifest._replace(best=former.best, best_value=former.best_value)
            fields = {"format": FORMAT, **manifest._replace(created_realtime_ns=time.time_ns())._asdict()}
            atomic.commit(root, name, files, fields)
        return self.folder / name

    # -------------------------------------------------------------- loading

    def steps(self) -> list[int]:
        """Return the steps of all checkpoint folders, damaged ones included, ascending; [] if there are none."""
        try:
            with atomic.opened(self.folder) as root:
                return sorted({step for _, step in names_in(root)})
        except OSError:
            return []

    def newest(self, which: str | int = "last") -> CheckpointInfo | None:
        """Return the manifest of the checkpoint that `load(which)` tries first; None without one. Reads no tensor."""
        try:
            with atomic.opened(self.folder) as root:
                candidates = [
                    self._candidate(root, name, step, atomic.read_manifest)
                    for name, step in names_in(root)
                    if which in ("last", "best", step)
                ]
        except OSError:
            return None
        newest = next((one for one in in_load_order(candidates, which) if one.manifest is not None), None)
        if newest is None or newest.manifest is None:
            return None
        config = self.folder / newest.name / CONFIG
        return CheckpointInfo(newest.manifest, config if config.is_file() else None)

    def load(self, which: str | int = "last") -> Checkpoint:
        """Load the checkpoint `which`: "last", "best" or a step. The first valid one is returned; each damaged one
        before it is reported.

        Raises NotFoundError, with the existing steps, if there is none; BadFileError if all suitable ones are damaged.
        """
        checkpoint = self._find(which, unpack)
        self._parent_step = checkpoint.step
        return checkpoint

    def load_files(self, which: str | int = "last") -> tuple[Manifest, dict[str, bytes]]:
        """Load the checkpoint `which` like `load`, but return its manifest and the bytes of its files; without
        torch.
        """
        return self._find(which, lambda _path, manifest, files: (manifest, files))

    def _find(self, which: str | int, accept: Accept[Result]) -> Result:
        """Return the result of `accept` for the first valid checkpoint of `which`, in the order of `in_load_order`;
        report those skipped. Raises NotFoundError and BadFileError.
        """
        step = int(which) if isinstance(which, int) or (which.isascii() and which.isdigit()) else None
        if step is None and which not in ("last", "best"):
            raise NotFoundError(f"no checkpoint named {which!r}: use last, best or a step. {self._existing()}")
        try:
            with atomic.opened(self.folder) as root:
                candidates = [
                    self._candidate(root, name, of, atomic.read_manifest)
                    for name, of in names_in(root)
                    if step is None or of == step
                ]
                reasons = []
                for candidate in in_load_order(candidates, which):
                    result, problem = self._try(root, candidate, accept)
                    if result is not None:
                        return result
                    reasons.append(f"{candidate.name}: {problem}")
                    self._report(f"checkpoint {candidate.name} skipped: {problem}")
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                raise BadFileError(f"cannot read the checkpoints in {self.folder}: {error.strerror or error}") from None
            reasons = []
        described = (
            f"checkpoint of step {step}"
            if step is not None
            else "checkpoint marked as best"
            if which == "best"
            else "checkpoint"
        )
        if reasons:
            raise BadFileError(
                f"no valid {described} in {self.folder}\n" + "\n".join(f"  {reason}" for reason in reasons)
            )
        raise NotFoundError(f"no {described} in {self.folder}. {self._existing()}")

    def _try(self, root: int, candidate: Candidate, accept: Accept[Result]) -> tuple[Result | None, str]:
        """Return (result of `accept`, "") for a checkpoint candidate in the open folder `root` whose files are valid,
        else (None, reason).
        """
        if candidate.manifest is None:
            return None, candidate.problem
        try:
            fields, files = atomic.read(root, candidate.name)
            return accept(self.folder / candidate.name, self._own_manifest(fields, candidate.step), files), ""
        except BadFileError as error:
            return None, str(error)

    def _existing(self) -> str:
        """Return a sentence with the steps of the saved checkpoints."""
        steps = self.steps()
        return f"Saved steps: {', '.join(map(str, steps))}" if steps else "No checkpoint has been saved yet"

    def _own_manifest(self, fields: dict[str, Any], step: int) -> Manifest:
        """Return the manifest with `fields`. Raises BadFileError if it belongs to another run or step."""
        manifest = read_manifest(fields)
        if manifest.run_uuid != self._run_uuid:
            raise ForeignError(f"belongs to another run, {ascii(manifest.run_uuid)[:80]}")
        if manifest.step != step:
            raise BadFileError(f"the manifest has step {manifest.step}")
        return manifest

    def _candidate(self, root: int, name: str, step: int, look: Callable[[int, str], dict[str, Any]]) -> Candidate:
        """Return the entry `name` of the open folder `root` as a candidate, with its manifest or with the problem of
        reading it. `look` reads the manifest only, or verifies all files.
        """
        try:
            return Candidate(name, step, self._own_manifest(look(root, name), step), "", False)
        except BadFileError as error:
            return Candidate(name, step, None, str(error), isinstance(error, ForeignError))

    # -------------------------------------------------------------- collecting

    def collect(self) -> None:
        """Delete old checkpoints: all but the last `keep` valid ones, the best one and one replay buffer. Also deletes
        leftovers of dead processes.

        A checkpoint is deleted only if two newer valid ones exist; those of another run stay. Never raises for the
        disk.
        """
        try:
            with self._lock, atomic.opened(self.folder) as root:
                atomic.sweep(root)
                candidates = [
                    self._verify(root, name, step) for name, step in names_in(root) if STEP_NAME.fullmatch(name)
                ]
                valid = [candidate for candidate in candidates if candidate.manifest is not None]
                best = next(iter(in_load_order(valid, "best")), None)
                for candidate in candidates:
                    newer = sum(other.newer_than(candidate) for other in valid)
                    if newer >= max(self._keep, 2) and candidate is not best and not candidate.foreign:
                        self._verified.pop(candidate.name, None)
                        atomic.discard(root, candidate.name)
                quarantined = sorted(name for name in atomic.list_names(root) if QUARANTINE_NAME.fullmatch(name))
                for name in quarantined[: -self._keep]:
                    atomic.discard(root, name)
                self.replays.prune(root)
        except FileNotFoundError:
            return
        except OSError as error:
            self._report(f"cannot delete old checkpoints in {self.folder}: {error.strerror or error}")

    def _verify(self, root: int, name: str, step: int) -> Candidate:
        """Check every byte of a checkpoint in the open folder `root` against its manifest and return it as a candidate.
        A valid result is cached as long as the files do not change.
        """
        signature = atomic.signature(root, name)
        known = self._verified.get(name)
        if known is not None and known[0] == signature:
            return known[1]
        candidate = self._candidate(root, name, step, atomic.verify)
        if candidate.manifest is not None and signature is not None:
            self._verified[name] = (signature, candidate)
        return candidate


def load_file(path: Path) -> Checkpoint:
    """Load a checkpoint of any run, by its folder or by a file in it. Raises NotFoundError if the path does not exist,
    BadFileError if it is not a checkpoint or damaged.
    """
    folder = path.parent if path.is_file() else path
    try:
        folder = folder.resolve(strict=True)
        fields, files = atomic.read(None, str(folder))
        return unpack(folder, read_manifest(fields), files)
    except FileNotFoundError:
        raise NotFoundError(f"no checkpoint at {path}") from None
    except (BadFileError, OSError) as error:
        raise BadFileError(f"{path} is not a valid checkpoint: {error}") from None


def _job(
    step: int,
    tensors: Mapping[str, torch.Tensor],
    document: Mapping[str, Any],
    session: int,
    best: bool,
    must_be_finite: Collection[str],
    config: str,
) -> _Job:
    """Check the inputs of `Store.save` and encode the document. Raises ValueError or TypeError for inputs that can
    never be saved.
    """
    import torch

    if not 0 <= step < 10**18:
        raise ValueError(f"step={step} must be at least 0 and below 10**18")
    for name, tensor in tensors.items():
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            raise ValueError(
                f"tensor {name} is {tensor.layout} on {tensor.device}; a checkpoint takes dense tensors on the CPU"
            )
    unknown = sorted(set(must_be_finite) - set(tensors))
    if unknown:
        raise ValueError(f"must_be_finite names {', '.join(unknown)}, which is not among the tensors")
    state = json.dumps(dict(document), indent=1).encode()
    return _Job(
        step,
        dict(tensors),
        state,
        session,
        best,
        document.get("best_value"),
        tuple(must_be_finite),
        config,
        document.get("task", 0),
    )
