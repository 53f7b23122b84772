"""Export of a run's metrics to TensorBoard, Weights & Biases or MLflow.

Each value is logged at the step of its record, with the record's time where the tracker supports it. Missing values are
skipped.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from operant.config import resolved
from operant.errors import MachineError
from operant.export.metrics import Chunk, Run, Sink, require

_MLFLOW_BATCH = 1000  # metrics that a call may hold


def sink(what: str, run: Run, *, out: Path | None, project: str, offline: bool) -> Sink:
    """Create a run in the tracker `what` ("tensorboard", "wandb" or "mlflow") with the name and configuration of `run`,
    and return it as a sink of records. `out` is the folder of local files, `project` the tracker's project; with
    `offline` nothing is sent. Raises MachineError for a missing package or an unreachable tracker.
    """
    name, config = run.id, resolved.tables(run.config_path)
    if what == "tensorboard":
        require(what, "tensorboard")
        return TensorBoard(out or Path("tensorboard") / name)
    if what == "wandb":
        require(what, "wandb")
        return Wandb(name, config, out=out, project=project, offline=offline)
    require(what, "mlflow")
    return MLflow(name, config, out=out, experiment=project)


def _record_values(chunk: Chunk, row: int) -> dict[str, float]:
    """Values of record number `row` of a chunk, by metric, without missing ones."""
    return {name: column[row] for name, column in chunk.columns.items() if not math.isnan(column[row])}


class TensorBoard:
    """Sink that writes a TensorBoard event file in a folder, without torch or TensorFlow."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.where, self._event, self._summary = str(folder), event_pb2.Event, summary_pb2.Summary
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        with _tracker_errors("TensorBoard", "--out names another folder"):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / name).open("wb")
            self._records = RecordWriter(self._file)
            self._write(self._event(wall_time=time.time(), file_version="brain.Event:2"))

    def _write(self, event: Any) -> None:
        """Append an event to the TensorBoard file."""
        self._records.write(event.SerializeToString())

    def add(self, chunk: Chunk) -> None:
        """Write the records of a chunk to the TensorBoard file, an event each, with its step and time."""
        for row, (step, time_ns) in enumerate(zip(chunk.step, chunk.realtime_ns, strict=True)):
            values = [
                self._summary.Value(tag=name, simple_value=value) for name, value in _record_values(chunk, row).items()
            ]
            self._write(self._event(wall_time=time_ns / 1e9, step=step, summary=self._summary(value=values)))
        self._file.flush()

    def close(self, complete: bool) -> None:
        """Close the TensorBoard file, whether the export is `complete` or not."""
        self._file.close()


class Wandb:
    """Sink that logs to a run of Weights & Biases, sent by wandb's own process. Without a network the run is stored
    locally for `wandb sync`.
    """

    def __init__(self, name: str, config: Mapping[str, Any], *, out: Path | None, project: str, offline: bool) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        folder = out or Path.cwd()
        with _tracker_errors("Weights & Biases", "--offline stores the run in a folder, for `wandb sync` later"):
            folder.mkdir(parents=True, exist_ok=True)
            settings = wandb.Settings(x_disable_stats=True, x_disable_meta=True, console="off", silent=True)
            self._run = wandb.init(
                project=project,
                name=name,
                config=dict(config),
                dir=str(folder),
                mode="offline" if offline else "online",
                settings=settings,
            )
            self._run.define_metric("operant_step", hidden=True)
            self._run.define_metric("*", step_metric="operant_step")
        self.where = self._run.dir.removesuffix("/files") if offline else str(self._run.url)

    def add(self, chunk: Chunk) -> None:
        """Log the records of a chunk to the run of Weights & Biases, each with its environment step and time."""
        for row, (step, time_ns) in enumerate(zip(chunk.step, chunk.realtime_ns, strict=True)):
            self._run.log({**_record_values(chunk, row), "operant_step": step, "_timestamp": time_ns / 1e9})

    def close(self, complete: bool) -> None:
        """Finish the run of Weights & Biases, whether the export is `complete` or not, and wait for wandb's process."""
        import wandb

        self._run.finish(exit_code=0 if complete else 1)
        wandb.teardown()


class MLflow:
    """Sink that logs to a run of MLflow, at $MLFLOW_TRACKING_URI or in a folder."""

    def __init__(self, name: str, config: Mapping[str, Any], *, out: Path | None, experiment: str) -> None:
        logging.getLogger("mlflow").setLevel(logging.ERROR)
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        uri = (
            str(out.absolute().as_uri())
            if out is not None
            else os.environ.get("MLFLOW_TRACKING_URI") or (Path.cwd() / "mlruns").as_uri()
        )
        self.where, self._metric = uri, Metric
        with _tracker_errors("MLflow"):
            self._client = MlflowClient(uri)
            existing = self._client.get_experiment_by_name(experiment)
            experiment_id = (
                existing.experiment_id if existing is not None else self._client.create_experiment(experiment)
            )
            self._id = self._client.create_run(experiment_id, run_name=name).info.run_id
            for key, value in resolved.flat(config).items():
                self._client.log_param(self._id, key, value)

    def add(self, chunk: Chunk) -> None:
        """Log the values of all records of a chunk to the MLflow run, in batches."""
        metrics = [
            self._metric(name, value, time_ns // 1_000_000, step)
            for row, (step, time_ns) in enumerate(zip(chunk.step, chunk.realtime_ns, strict=True))
            for name, value in _record_values(chunk, row).items()
        ]
        for start in range(0, len(metrics), _MLFLOW_BATCH):
            self._client.log_batch(self._id, metrics=metrics[start : start + _MLFLOW_BATCH])

    def close(self, complete: bool) -> None:
        """End the MLflow run, as failed unless the export is `complete`."""
        self._client.set_terminated(self._id, "FINISHED" if complete else "FAILED")


@contextmanager
def _tracker_errors(what: str, instead: str = "") -> Iterator[None]:
    """Context that converts any exception to a MachineError about the tracker `what`, and discards output to stdout.
    `instead` is advice to append.
    """
    try:
        with redirect_stdout(StringIO()):
            yield
    except Exception as error:
        reason = str(error).strip().partition("\n")[0][:300] or type(error).__name__
        raise MachineError(f"{what} cannot be used ({reason})" + (f". {instead}" if instead else "")) from None
