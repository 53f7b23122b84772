"""Metric declarations (metrics.json) in the monitor: a new metric from one declaration, no declaration, and a hostile
one.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor import command
from monitor.data.feed import LiveFeed
from monitor.data.snapshot import Snapshot
from operant import runs
from operant.algos.base import metric_specs
from operant.algos.ppo.ppo import Stats
from operant.errors import ConfigError
from operant.runs.metrics import Metric, Writer
from operant.runs.metrics.spec import LIMIT_BYTES, MOST, MetricSpec, Threshold, decode, encode

SCRATCH = MetricSpec(
    "surprise",
    "the surprise",
    "nats",
    figure="surprise",
    order=1,
    thresholds=(Threshold("bad", at_least=3.0, advice="calm down"),),
)
METRICS = [
    Metric("return", unit="reward", higher_better=True),
    Metric("episodes", "counter"),
    Metric("sps", "rate", unit="steps/s", higher_better=True),
    Metric("surprise", unit="nats", must_be_finite=True),
    Metric("memory/used", unit="bytes"),
    Metric("loss/other"),
]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("OPERANT_RUNS", str(tmp_path / "runs"))
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


def make(tmp_path: Path, name: str = "run-0001", other: float = 0.5) -> runs.Run:
    """Create an ended run with forty records and no metrics.json."""
    run = runs.create(tmp_path / "runs", name, "x", {})
    runs.update_document(run.path, **runs.identity(), env="cartpole", algo="scratch", steps=40_000)
    with Writer(run.metrics_path, METRICS, run_uuid=run.uuid, version="test") as writer:
        for k in range(1, 41):
            writer.publish(k * 1000, [12.5 * k, 2.0, 1e6, 3.5, 1e9, other])
        writer.set_state("finished")
    return run


@contextlib.contextmanager
def shown(run: runs.Run) -> Iterator[Snapshot]:
    feed = LiveFeed(run, readonly=True)
    try:
        yield feed.snapshot()
    finally:
        feed.close()


def declare(run: runs.Run, *specs: MetricSpec) -> None:
    runs.write_json(run.path / "metrics.json", encode(specs))


# ONE DECLARATION


def test_a_metric_declared_in_one_line_is_a_chart_a_figure_and_a_health_line(tmp_path, capsys):
    run = make(tmp_path)
    declare(run, SCRATCH)
    with shown(run) as snapshot:
        assert next(iter(snapshot.series)) == "surprise" and snapshot.series["surprise"].label == "the surprise"
        (figure,) = [one for one in snapshot.figures if one.metric == "surprise"]
        assert (figure.label, figure.value, figure.unit) == ("surprise", 3.5, "nats")
        (finding,) = [one for one in snapshot.health if "surprise" in one.title]
        assert (finding.level, finding.title, finding.wanted, finding.advice) == (
            "bad",
            "the surprise 3.5 nats",
            "below 3",
            "calm down",
        )
    assert command.main(["run-0001", "--once"]) == 0
    picture = capsys.readouterr().out
    assert "╭─ the surprise" in picture and "surprise 3.5 nats" in picture and "calm down" in picture


def test_a_chart_without_a_value_says_why_where_there_is_a_reason(tmp_path, capsys):
    run = make(tmp_path, other=float("nan"))
    for absent, said in (("", "no values recorded"), ("not measured with NCCL", "not measured with NCCL")):
        declare(run, MetricSpec("loss/other", order=1, absent=absent))
        assert command.main(["run-0001", "--once"]) == 0
        picture = capsys.readouterr().out
        assert said in picture and ("no value" in picture) == (not absent)


def test_no_metric_of_an_algorithm_is_named_in_the_monitor():
    names = {spec.name for spec in metric_specs(Stats)}
    assert names >= {"approx_kl", "loss/value"}
    for path in Path(command.__file__).parent.rglob("*.py"):
        words = {
            node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not words & names, path


def test_a_declaration_goes_there_and_back():
    rule = Threshold("warn", 1.0, 2.0, "x", 0.4, 0.1, 0.9, "minute", "best", "b", 0.2, True)
    specs = (SCRATCH, MetricSpec("a", "A", "s", True, "f", -3, (rule,), "y", "z", "rate"))
    assert tuple(decode(json.loads(json.dumps(encode(specs)))).values()) == specs


@pytest.mark.parametrize(
    "spec",
    [
        MetricSpec("a b"),
        MetricSpec("x", "l" * 41),
        MetricSpec("x", figure="\x1b[m"),
        MetricSpec("x", thresholds=(Threshold("worse", below=1.0),)),
        MetricSpec("x", thresholds=(Threshold("bad"),)),
        MetricSpec("x", thresholds=(Threshold("bad", at_least=float("nan")),)),
        MetricSpec("x", thresholds=(Threshold("bad", 1.0, relative_to="mean"),)),
        MetricSpec("x", thresholds=(Threshold("bad", 1.0),) * 17),
    ],
    ids=str,
)
def test_a_declaration_that_no_reader_would_take_is_an_error_where_it_is_made(spec):
    with pytest.raises(ConfigError, match=r"the list of metrics has 1 problem\n  '.*': a name is 1 to 63"):
        encode([SCRATCH, spec])


# NONE


def test_a_run_without_declarations_shows_what_its_schema_tells(tmp_path, capsys):
    with shown(make(tmp_path)) as snapshot:
        assert list(snapshot.series) == ["return", "sps", "surprise", "loss/other", "episodes", "memory/used"], (
            "bookkeeping comes last"
        )
        assert [(figure.label, figure.value) for figure in snapshot.figures] == [("return", 500.0), ("sps", 1e6)]
        assert [snapshot.series[name].unit for name in ("return", "surprise")] == ["reward", "nats"]
    assert command.main(["run-0001", "--once"]) == 0
    assert "return 500" in capsys.readouterr().out


# HOSTILE ONES

DEEP = "[" * 100_000
ENTRY = {"name": "surprise", "label": "gone"}
IGNORED = {
    "nothing": b"",
    "no json": b"\xff\xfe{",
    "a list": b"[1]",
    "a number": b"7",
    "deep": DEEP.encode(),
    "deeper": b'{"schema":1,"metrics":' + DEEP.encode(),
    "long digits": b'{"schema":1,"metrics":[{"name":"surprise","order":' + b"9" * 5000 + b"}]}",
    "huge": json.dumps({"schema": 1, "metrics": [ENTRY], "filler": "x" * LIMIT_BYTES}).encode(),
    "another schema": json.dumps({"schema": 2, "metrics": [ENTRY]}).encode(),
    "no list": json.dumps({"schema": 1, "metrics": {"surprise": ENTRY}}).encode(),
    "too many": json.dumps({"schema": 1, "metrics": [ENTRY] * (MOST + 1)}).encode(),
}
UNFIT: list[dict[str, Any]] = [
    {"name": 5},
    {"label": "gone"},
    {"name": "../surprise"},
    {"name": "surprise\n"},
    {"name": "surprise", "label": ["gone"]},
    {"name": "surprise", "order": True},
    {"name": "surprise", "order": 1.5},
    {"name": "surprise", "order": 10**30},
    {"name": "surprise", "higher_better": 1},
    {"name": "surprise", "thresholds": 5},
    {"name": "surprise", "thresholds": [{"level": "bad", "below": 9.0}] * 17},
]


@pytest.mark.parametrize("content", IGNORED.values(), ids=IGNORED)
def test_a_file_that_is_no_declaration_is_ignored(tmp_path, content):
    run = make(tmp_path)
    (run.path / "metrics.json").write_bytes(content)
    with shown(run) as snapshot:
        assert snapshot.series["surprise"].label == "surprise" and len(snapshot.figures) == 2 and snapshot.notice == ""


@pytest.mark.parametrize("kind", ["symlink", "folder", "pipe"])
def test_a_path_that_is_no_file_is_ignored(tmp_path, kind):
    run, path = make(tmp_path), tmp_path / "elsewhere.json"
    path.write_text(json.dumps(encode([SCRATCH])))
    at = run.path / "metrics.json"
    {"symlink": lambda: at.symlink_to(path), "folder": at.mkdir, "pipe": lambda: os.mkfifo(at)}[kind]()
    with shown(run) as snapshot:
        assert snapshot.series["surprise"].label == "surprise"


@pytest.mark.parametrize("entry", UNFIT, ids=lambda entry: json.dumps(entry)[:40])
def test_an_entry_that_does_not_fit_is_left_out_and_the_others_stay(tmp_path, entry):
    run = make(tmp_path)
    (run.path / "metrics.json").write_text(
        json.dumps({"schema": 1, "metrics": [3, None, entry, {"name": "return", "label": "the return"}]})
    )
    with shown(run) as snapshot:
        assert snapshot.series["surprise"].label == "surprise" and snapshot.series["return"].label == "the return"


@pytest.mark.parametrize(
    "threshold",
    [
        {"level": "bad"},
        {"level": "worst", "below": 9.0},
        {"level": "bad", "below": "9"},
        {"level": "bad", "below": float("nan")},
        {"below": 9.0},
        5,
        {"level": "bad", "below": float("inf")},
        {"level": "bad", "below": 10**400},
        {"level": "bad", "below": 9.0, "relative_to": "__class__"},
        {"level": "bad", "below": 9.0, "records": None},
        {"level": "bad", "below": True},
    ],
    ids=str,
)
def test_a_threshold_that_does_not_fit_never_fires(tmp_path, threshold):
    run = make(tmp_path)
    (run.path / "metrics.json").write_text(
        json.dumps({"schema": 1, "metrics": [{"name": "surprise", "label": "the surprise", "thresholds": [threshold]}]})
    )
    with shown(run) as snapshot:
        assert snapshot.series["surprise"].label == "the surprise" and not [
            finding for finding in snapshot.health if "surprise" in finding.title
        ]


def test_what_a_terminal_would_obey_is_taken_out_and_long_texts_are_cut(tmp_path):
    run = make(tmp_path)
    document = encode([SCRATCH])
    document["metrics"][0] |= {
        "label": "\x1b[2Jred\u202e",
        "figure": "a\nb" * 99,
        "unit": "\x9b31m",
        "explanation": "x" * 10_000,
    }
    (run.path / "metrics.json").write_text(json.dumps(document))
    with shown(run) as snapshot:
        texts = [
            snapshot.series["surprise"].label,
            snapshot.series["surprise"].unit,
            snapshot.figures[0].label,
            snapshot.health[0].explanation,
        ]
        assert (
            all(text.isprintable() for text in texts)
            and texts[0] == "[2Jred"
            and [len(text) for text in texts[2:]] == [16, 600]
        )


def test_as_many_metrics_and_thresholds_as_a_file_can_declare_cost_little(tmp_path):
    """Only the first 64 metrics become findings, only the first 16 figures."""
    many = [Metric(f"m{k}") for k in range(1000)]
    run = runs.create(tmp_path / "runs", "run-0002", "x", {})
    with Writer(run.metrics_path, many, run_uuid=run.uuid, version="test", capacity=64) as writer:
        for n in range(30):
            writer.publish(1000 * n, [1.0] * 1000)
        writer.set_state("finished")
    rule = Threshold("warn", at_least=0.5)
    (run.path / "metrics.json").write_text(
        json.dumps(encode([MetricSpec(one.name, figure="f", thresholds=(rule, rule)) for one in many]))
    )
    with shown(run) as snapshot:
        assert len(snapshot.series) == 1000 and len(snapshot.figures) == 16 and len(snapshot.health) == 64
