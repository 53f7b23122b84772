"""Exported metrics, read back by the formats' own readers, equal the history."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import resource
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from made_runs import METRICS, made
from waiting import wait_until

from operant import runs
from operant.errors import MachineError
from operant.export import metrics

PACKAGE_PARENT = str(Path(runs.__file__).parents[2])
NAN = math.nan
ROWS = [
    (10 * k, (k / 3, -math.inf if k == 3 else 1e-30 * k, 100.0 + k if k % 4 == 0 else NAN, 0.01)) for k in range(1, 41)
]


@pytest.fixture
def run(here, tmp_path):
    """Run of two sessions, of which the second resumes at step 250 and has one more metric in front."""
    made(
        tmp_path / "runs",
        "twice",
        ROWS[:30],
        state=None,
        config="[run]\nseed = 1\n[algo]\nname = 'ppo'\ngamma = 0.99\n",
    )
    later = [(step, (7.0, *values)) for step, values in ROWS[25:]]
    return made(tmp_path / "runs", "twice", later, metrics=(runs.Metric("extra"), *METRICS), session=2, rewind_to=250)


def history(run):
    """Records of the history as (session, n, step, time, {metric: value}), without missing values."""
    found = []
    for chunk in runs.history.read(run.path / "history"):
        for k, n in enumerate(chunk.n):
            values = {name: column[k] for name, column in chunk.columns.items() if not math.isnan(column[k])}
            found.append((chunk.session, n, chunk.step[k], chunk.realtime_ns[k] / 1e9, values))
    return found


def test_exported_columns_equal_the_history(run):
    columns, expected = runs.columns(run), history(run)
    assert columns.step == array("Q", [*range(10, 251, 10), *range(260, 401, 10)])
    assert list(columns.metrics) == ["extra", "return", "loss", "eval/return", "seconds/update"]
    for k, (session, n, step, time, values) in enumerate(expected):
        assert (columns.session[k], columns.n[k], columns.step[k], columns.time[k]) == (session, n, step, time)
        assert {name: column[k] for name, column in columns.metrics.items() if not math.isnan(column[k])} == values
    assert len(expected) == 40 and math.isnan(columns.metrics["extra"][0]) and columns.metrics["extra"][-1] == 7.0
    assert (
        all(a <= b for a, b in zip(columns.seconds, columns.seconds[1:], strict=False)) and columns.seconds[0] == 0.01
    )


def read_csv(path):
    with path.open() as file:
        return [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]


def expected_rows(run):
    return [
        {"session": session, "n": n, "step": step, "time": time, "seconds": seconds, **values}
        for (session, n, step, time, values), seconds in zip(history(run), runs.columns(run).seconds, strict=True)
    ]


def test_csv_reads_back_as_the_history(run, here):
    done = here("export", "metrics", "twice", "--json")
    assert json.loads(done.out) == {
        "schema": 1,
        "id": "twice",
        "to": "csv",
        "where": "twice.csv",
        "rows": 40,
        "metrics": 5,
    }, done.err
    assert read_csv(run.path.parents[1] / "twice.csv") == expected_rows(run)
    again = here("export", "metrics", "twice")
    assert again.code == 2 and "twice.csv already exists: choose another --out, or give --force" in again.err
    assert here("export", "metrics", "twice", "--force").out == "twice.csv  40 records of 5 metrics\n"
    assert sorted(path.name for path in run.path.parents[1].iterdir()) == ["runs", "state", "twice.csv"], (
        "nothing half-written is left"
    )


def test_parquet_reads_back_as_the_history(run, here, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    done = here("export", "metrics", "twice", "--to", "parquet", "--out", "a.parquet")
    assert done.code == 0, done.err
    rows = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert [{key: value for key, value in row.items() if value is not None} for row in rows] == expected_rows(run)


def test_the_format_follows_the_file_extension(run, here, tmp_path):
    pytest.importorskip("pyarrow")
    assert (
        here("export", "metrics", "twice", "-o", "a.parquet").code == 0
        and (tmp_path / "a.parquet").read_bytes()[:4] == b"PAR1"
    )
    refused = here("export", "metrics", "twice", "--to", "csv", "-o", "b.parquet")
    assert refused.code == 2 and "--out is 'b.parquet'; with --to csv it must end in .csv" in refused.err
    refused = here("export", "metrics", "twice", "--to", "parquet", "-o", "A.CSV")
    assert refused.code == 2 and "--out is 'A.CSV'; with --to parquet it must end in .parquet" in refused.err


@pytest.mark.parametrize("what", ["csv", "parquet", "tensorboard"])
def test_a_run_without_records_is_not_exported(here, tmp_path, what):
    if what == "parquet":
        pytest.importorskip("pyarrow")
    runs.create(tmp_path / "runs", "young", "x", {})
    done = here("export", "metrics", "young", "-o", f"a.{what}", "--to", what)
    assert (
        done.code == 3
        and "young has no records: there is nothing to export" in done.err
        and not (tmp_path / f"a.{what}").exists()
    )


def test_tensorboard_reads_back_as_the_history(run, here, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing import event_file_loader

    done = here("export", "metrics", "twice", "--to", "tensorboard")
    assert done.code == 0, done.err
    (path,) = (tmp_path / "tensorboard" / "twice").iterdir()
    events = [event for event in event_file_loader.LegacyEventFileLoader(str(path)).Load() if event.summary.value]
    assert [(event.step, event.wall_time) for event in events] == [(step, time) for _, _, step, time, _ in history(run)]
    for event, (*_, values) in zip(events, history(run), strict=True):
        assert {value.tag: value.simple_value for value in event.summary.value} == pytest.approx(
            values, rel=1e-6
        )  # its numbers are float32


def test_a_full_disk_is_reported_in_one_sentence(run, tmp_path):
    pytest.importorskip("tensorboard")
    words = [
        sys.executable,
        "-m",
        "operant.cli",
        "export",
        "metrics",
        "twice",
        "--to",
        "tensorboard",
        "--out",
        "events",
    ]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": PACKAGE_PARENT},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)),
    )
    assert done.returncode == 4 and done.stderr.startswith(
        "error: events cannot be written (File too large): choose another path"
    ), done.stderr


@pytest.mark.soak
def test_mlflow_reads_back_as_the_history(run, here, tmp_path):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    done = here("export", "metrics", "twice", "--to", "mlflow", "--out", "ml", "--project", "mine")
    assert done.code == 0, done.err
    client = MlflowClient((tmp_path / "ml").as_uri())
    (found,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert (
        found.data.params == {"run.seed": "1", "algo.name": "ppo", "algo.gamma": "0.99"}
        and found.info.status == "FINISHED"
    )
    for name in ("return", "loss", "eval/return", "extra"):
        expected = [(step, values[name]) for _, _, step, _, values in history(run) if name in values]
        assert sorted(
            (metric.step, metric.value) for metric in client.get_metric_history(found.info.run_id, name)
        ) == sorted(expected)


def wandb_records(data):
    """Records of a .wandb file: LevelDB's log format, blocks of 32 KiB of pieces (checksum 4, length 2, type 1), after
    a header of 7 bytes.
    """
    block, place, parts = 1 << 15, 7, []
    while place + 7 <= len(data):
        if block - place % block < 7:
            place += block - place % block
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts.append(data[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield b"".join(parts)
            parts = []


@pytest.mark.soak
def test_wandb_reads_back_as_the_history(run, here, tmp_path):
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    done = here("export", "metrics", "twice", "--to", "wandb", "--offline", "--out", "w")
    assert done.code == 0, done.err
    (path,) = (tmp_path / "w" / "wandb").glob("offline-run-*/*.wandb")
    rows, expected = [], []
    for data in wandb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
            rows.append(
                {
                    name: float(json.loads(value))
                    for name, value in items.items()
                    if name not in ("_step", "_runtime", "_wandb")
                }
            )
    for _, _, step, time, values in history(run):
        expected.append({"operant_step": step, "_timestamp": time, **values})
    assert rows == expected


@pytest.mark.slow
def test_a_run_is_followed_to_its_end(started, tmp_path):
    run = started("forever")
    words = [sys.executable, "-m", "operant.cli", "export", "metrics", run.id, "--follow", "--out", "a.csv"]
    follower = subprocess.Popen(
        words,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": PACKAGE_PARENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: (tmp_path / "a.csv").exists() and len((tmp_path / "a.csv").read_text().splitlines()) > 5)
        runs.signal_worker(run, 15)
        out, err = follower.communicate(timeout=90)
    finally:
        follower.kill()
    assert follower.returncode == 0, err
    rows = read_csv(tmp_path / "a.csv")
    assert [row["n"] for row in rows] == list(range(len(rows))) and re.match(
        rf"a\.csv  {len(rows):,} records of 6 metrics", out
    )
    with runs.Reader(run.metrics_path) as reader:
        assert len(rows) == reader.status().head


@pytest.mark.parametrize("what", ["csv", "parquet"])
def test_a_new_metric_of_a_followed_run_gets_a_column(here, tmp_path, what):
    """A session with another environment or algorithm has other metrics."""
    if what == "parquet":
        pytest.importorskip("pyarrow")
    first = made(tmp_path / "runs", "twice", [(10 * k, (1.0 * k, 1.0, NAN, 0.5)) for k in (1, 2, 3)])
    path = tmp_path / f"a.{what}"
    sink = metrics.file_sink(first, path, what, follow=True)
    stream = runs.Stream(first)
    for chunk in stream.poll():
        sink.add(chunk)
    stream.close()
    more = (*METRICS, runs.Metric("clip"))
    second = made(
        tmp_path / "runs",
        "twice",
        [(10 * k, (1.0 * k, 1.0, NAN, 0.5, 0.1 * k)) for k in (4, 5)],
        metrics=more,
        session=2,
        rewind_to=30,
    )
    stream = runs.Stream(second)
    for chunk in stream.poll():
        if chunk.session == 2:
            sink.add(chunk)
    stream.close()
    sink.close(complete=True)
    if what == "csv":
        rows = read_csv(path)
        assert [(row["step"], row.get("clip")) for row in rows] == [
            (10, None),
            (20, None),
            (30, None),
            (40, 0.4),
            (50, 0.5),
        ]
    else:
        from pyarrow import parquet

        found = parquet.read_table(path).to_pydict()
        assert found["step"] == [10, 20, 30, 40, 50] and found["clip"] == [None, None, None, 0.4, 0.5]


def test_a_pipe_is_written_and_not_replaced_by_a_wider_file(run, here, tmp_path):
    """The second session of the run adds a metric."""
    os.mkfifo(tmp_path / "pipe")
    stream = runs.Stream(run)
    chunks = list(stream.poll())
    stream.close()
    first, second = chunks[0], chunks[-1]
    with open(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as reader:
        sink = metrics.CsvFile(tmp_path / "pipe", first.names, follow=True)
        sink.add(first)
        with pytest.raises(
            MachineError,
            match=r"a later session has more metrics \(extra\), and .*pipe is not a file",
        ):
            sink.add(second)
        sink.close(False)
        assert len(reader.readlines()) == 1 + len(first.n)
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link.csv").symlink_to("there.csv")
    sink = metrics.CsvFile(tmp_path / "link.csv", first.names, follow=True)
    sink.add(first)
    sink.add(second)
    sink.close(True)
    assert (tmp_path / "link.csv").is_symlink() and len(read_csv(tmp_path / "there.csv")) == len(first.n) + len(
        second.n
    )


def test_an_unwritable_path_is_reported_in_one_sentence(run, here, tmp_path):
    assert here("export", "metrics", "twice", "--to", "excel").code == 2
    assert here("export", "metrics", "twice", "--offline").code == 2
    assert here("export", "metrics", "none").code == 3
    done = here("export", "metrics", "twice", "--out", "no/folder/a.csv")
    assert (
        done.code == 4
        and "no/folder/a.csv cannot be written (No such file or directory): choose another path with --out" in done.err
    )
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "out.txt").open("w") as opened:
        for target in (
            "pipe",
            ".",
            f"/proc/self/fd/{opened.fileno()}",
        ):  # never replaced; the last is what /dev/stdout is a link to
            refused = here("export", "metrics", "twice", "--out", target, "--force")
            assert refused.code == 2 and f"{target} already exists: name a file with --out" in refused.err
    (tmp_path / "full.csv").symlink_to("/dev/full")
    done = here("export", "metrics", "twice", "--out", "full.csv", "--follow", "--force")
    assert (
        done.code == 4
        and "full.csv cannot be written (No space left on device): choose another path with --out" in done.err
    )
