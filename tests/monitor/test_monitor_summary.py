"""Summary of a run from values: no file, no clock."""

import math
import time
from types import MappingProxyType

import pytest

from monitor.data import summary
from monitor.data.summary import RunData
from monitor.data.timeline import Timeline, complete_specs
from operant import runs, text
from operant.runs.folder import Run
from operant.runs.metrics import FLAG_CHECKPOINT, FLAG_EVAL, FLAG_NONFINITE, Header, Metric, Record, Status
from operant.runs.metrics.spec import MetricSpec
from operant.runs.states import Observation, State

NAN = math.nan
SECOND = 10**9
METRICS = [
    Metric("return", unit="reward", higher_better=True),
    Metric("length", unit="steps"),
    Metric("iterations", "counter"),
    Metric("sps", "rate", higher_better=True),
]
PHASES = [Metric(f"seconds/{name}") for name in ("collect", "update", "evaluate", "checkpoint")]


def record(n, values, *, step=None, seconds=None, session=1, flags=0):
    return Record(
        n,
        100 * (n + 1) if step is None else step,
        int((n if seconds is None else seconds) * SECOND),
        0,
        session,
        flags,
        tuple(values),
    )


def timeline(rows, metrics=METRICS, specs=MappingProxyType({}), **how):
    made = Timeline(metrics, specs)
    made.add([record(n, row, **how) for n, row in enumerate(rows)])
    return made


def known(tmp_path, word="running", cause=None, **fields):
    document = fields.pop("document", {"steps": 10_000, "pid": 7})
    run, look = Run("cartpole-ppo-4f2a", tmp_path, document), fields.pop("look", Observation(True))
    return RunData(run, State(word, cause), look, fields.pop("timeline", None), **fields)


def status(**fields):
    return Status(
        **(
            {
                "heartbeat_count": 1,
                "heartbeat_boottime_ns": 1,
                "main_count": 40,
                "phase": "update",
                "state": "running",
                "reason": 0,
                "exit_code": 0,
                "state_count": 1,
                "head": 1,
                "last_checkpoint_step": None,
                "last_checkpoint_boottime_ns": 0,
                "nonfinite_total": 0,
                "divergence_bits": 0,
                "cuda_error": 0,
            }
            | fields
        )
    )


# TIMELINES


def test_a_run_begins_before_its_first_record():
    made = timeline([[1.0, 10.0, 4.0, NAN]] * 5)
    assert made.table.extent() == ((0.0, 0.0, 0.0), (500.0, 5.0, 20.0))
    timed = timeline(
        [[1.0, 0.2, 0.1], [1.0, 0.5, 0.4]], [Metric("iterations"), Metric("seconds/collect"), Metric("seconds/update")]
    )
    assert timed.table.extent() == ((0.0, 0.0, 0.0), (200.0, pytest.approx(1.3), 2.0))


def test_a_pause_takes_no_time():
    """Each record covers a second of work; between two of them are an hour of pause and 20 s without one."""
    metrics = [
        Metric("iterations", "counter"),
        Metric("seconds/collect", "counter"),
        Metric("seconds/update", "counter"),
    ]
    seconds = [1.0, 2.0, 3.0, 3604.0, 3605.0, 3625.0, 7225.0, 7226.0, 7326.0]
    values = [[1.0, 0.3, 0.7]] * 8 + [[1.0, 40.0, 60.0]]
    whole, one_by_one = Timeline(metrics), Timeline(metrics)
    records = [record(n, row, seconds=at) for n, (at, row) in enumerate(zip(seconds, values, strict=True))]
    whole.add(records)
    for one in records:
        one_by_one.add([one])
    for made in (whole, one_by_one):
        window = made.table.window(0.0, 100, [])
        assert window.walls == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0, 25.0, 26.0, 27.0, 127.0])


def test_iterations_of_a_ring_that_begins_in_the_middle_follow_from_the_steps():
    made = Timeline(METRICS)
    made.add([record(n, [1.0, 1.0, 2.0, NAN], step=1_000_000 + 400 * n) for n in range(3)])
    assert made.table.extent() == ((999_600.0, 0.0, 4998.0), (1_000_800.0, 3.0, 5004.0))


def test_a_file_without_iterations_counts_records():
    made = timeline([[1.0], [2.0]], [Metric("return")])
    assert made.table.last == (200.0, 2.0, 2.0)


def test_a_resume_goes_on_where_its_first_record_begins():
    made = timeline([[float(n), 1.0, 2.0, NAN] for n in range(10)])
    made.add([record(n, [100.0 + n, 1.0, 2.0, NAN], step=700 + 100 * n, seconds=5000 + n, session=2) for n in range(3)])
    last = made.table.last
    assert last == (900.0, 6.0 + 3.0, 12.0 + 6.0)  # between the sessions no time passes
    assert made.table.records == 6 + 3
    assert [(mark.kind, mark.step, mark.wall_s) for mark in made.marks] == [("resume", 600.0, 6.0)]


def test_a_record_without_an_iteration_took_no_time_again():
    made = timeline([[1.0, 0.5], [1.0, 0.5], [0.0, 0.5]], [Metric("iterations"), Metric("seconds/update")])
    assert summary.phases(made)[0].milliseconds == pytest.approx(500.0)


def test_marks_are_thinned_and_keep_first_and_last():
    made = Timeline([Metric("return")])
    made.add([record(n, [1.0], flags=FLAG_EVAL) for n in range(5000)])
    assert 200 < len(made.marks) <= 512 and made.marks[0].step == 100.0 and made.marks[-1].step == 500_000.0
    assert len({mark.step for mark in made.marks}) == len(made.marks)


def test_flags_become_marks():
    made = Timeline([Metric("return")])
    made.add(
        [record(n, [1.0], flags=flags) for n, flags in enumerate((0, FLAG_EVAL | FLAG_CHECKPOINT, FLAG_NONFINITE))]
    )
    assert sorted((mark.kind, mark.step) for mark in made.marks) == [
        ("checkpoint", 200.0),
        ("eval", 200.0),
        ("not_finite", 300.0),
    ]


@pytest.mark.parametrize(
    "name,said",
    [
        ("sps", "sps"),
        ("tally/score", "score"),
        ("loss/x", "loss/x"),
        ("my_thing", "my thing"),
        ("x" * 63, "x" * 39 + "…"),
    ],
)
def test_without_a_declaration_a_metric_is_called_by_its_name(name, said):
    assert (
        complete_specs([Metric(name)], {})[0].label
        == complete_specs([Metric(name)], {"other": MetricSpec("other")})[0].label
        == said
    )
    assert complete_specs([Metric(name)], {name: MetricSpec(name, "the label")})[0].label == "the label"


def test_curves_and_figures_follow_what_the_run_declares():
    specs = {
        spec.name: spec
        for spec in (
            MetricSpec("sps", "SPS", figure="SPS", order=1),
            MetricSpec("return", order=2),
            MetricSpec("nowhere", figure="?"),
        )
    }
    made = timeline([[10.0, 5.0, 1.0, 100.0]] * 5, specs=specs)
    assert list(made.table.curves) == ["sps", "return", "length", "iterations"] and [
        figure.label for figure in summary.figures(made)
    ] == ["SPS"]
    assert made.table.curves["sps"].latest == 100.0 and made.table.curves["return"].latest == 10.0


# FIGURES, PHASES, PROGRESS


def test_figures_are_the_newest_values_there_are():
    specs = {
        name: MetricSpec(name, unit=unit, figure=label, higher_better=name != "length", order=order)
        for name, unit, label, order in (
            ("return", "reward", "return", 1),
            ("sps", "steps/s", "SPS", 2),
            ("length", "steps", "length", 3),
        )
    }
    made = timeline(
        [[10.0, 5.0, 1.0, 100.0], [30.0, 6.0, 1.0, 900.0], [20.0, 7.0, 1.0, 110.0], [NAN, 8.0, 1.0, 120.0]], specs=specs
    )
    found = {figure.metric: figure for figure in summary.figures(made)}
    assert list(found) == ["return", "sps", "length"] and [figure.label for figure in found.values()] == [
        "return",
        "SPS",
        "length",
    ]
    assert (found["return"].value, found["return"].best, found["return"].unit, found["return"].higher_better) == (
        20.0,
        30.0,
        "",
        True,
    )
    assert (found["length"].value, found["length"].best, found["length"].unit) == (8.0, None, "steps")
    assert found["sps"].value == 120.0  # the median of the newest: one odd rate is none


def test_figures_at_an_earlier_step():
    made = timeline([[float(n), 1.0, 1.0, 50.0] for n in range(2000)])
    found = {figure.metric: figure for figure in summary.figures(made, 150_000.0)}
    assert (
        found["return"].value == 1499.0
        and 1499.0 <= found["return"].best < 1510.0
        and found["return"].trend_per_min is None
    )


def test_phases_are_shares_of_the_wall_time():
    rows = [[2.0, 0.1, 0.5, NAN if n % 2 else 0.2, 0.0] for n in range(40)]
    found = {share.name: share for share in summary.phases(timeline(rows, [Metric("iterations"), *PHASES]))}
    assert list(found) == ["collect", "update", "evaluate", "checkpoint", "other"]
    assert found["collect"].share == pytest.approx(0.1, abs=0.02) and found["update"].share == pytest.approx(
        0.5, abs=0.05
    )
    assert sum(share.share for share in found.values()) == pytest.approx(1.0, abs=0.005)
    assert found["update"].milliseconds == pytest.approx(250.0, rel=0.05)
    assert summary.phases(timeline([[1.0] * 4] * 3)) == ()


def test_phases_longer_than_the_wall_time_are_still_shares():
    rows = [[1.0, 5.0, 5.0, 0.0, 0.0] for _ in range(20)]
    assert sum(
        share.share for share in summary.phases(timeline(rows, [Metric("iterations"), *PHASES]))
    ) == pytest.approx(1.0)


def test_progress_of_known_values(tmp_path):
    made = timeline([[1.0] * 4] * 50)  # 100 steps a second
    look = Observation(True, status=status(last_checkpoint_step=3000), record_age_s=0.7, unsaved_s=125.0)
    now = summary.progress(known(tmp_path, timeline=made, look=look, iterations_per_s=2.5, up_s=61.9, now_s=1e9))
    assert (now.step, now.steps, now.share, now.iterations, now.iterations_per_s) == (5000, 10_000, 0.5, 40, 2.5)
    assert now.eta_s == pytest.approx(50.0, abs=1.1) and now.done_at == time.strftime(
        "%H:%M", time.localtime(1e9 + now.eta_s)
    )
    assert (now.up_s, now.checkpoint_step, now.unsaved_s, now.record_age_s) == (61.0, 3000, 120.0, 0.0)


@pytest.mark.parametrize(("steps", "form"), [(5_000_000, "%H:%M"), (50_000_000, "%d %b"), (9_000_000_000, "%Y")])
def test_an_end_more_than_a_day_ahead_is_a_date(tmp_path, steps, form):
    made, look = timeline([[1.0] * 4] * 50), Observation(True, status=status())  # 100 steps a second
    now = summary.progress(
        known(tmp_path, timeline=made, look=look, iterations_per_s=2.5, up_s=61.9, now_s=1e9, document={"steps": steps})
    )
    assert now.steps == steps and now.done_at == time.strftime(form, time.localtime(1e9 + now.eta_s))


@pytest.mark.parametrize("word", ["paused", "stalled", "suspended", "crashed", "finished", "remote", "stopping"])
def test_no_eta_unless_running(tmp_path, word):
    now = summary.progress(known(tmp_path, word, timeline=timeline([[1.0] * 4] * 50), iterations_per_s=2.5, now_s=1e9))
    assert now.eta_s is None and now.done_at is None and now.iterations_per_s is None and now.step == 5000


def test_ages_of_an_ended_run_change_seldom(tmp_path):
    ages = {
        summary.progress(known(tmp_path, "crashed", look=Observation(False, record_age_s=age))).record_age_s
        for age in range(60)
    }
    assert len(ages) == 6


# WORDS


@pytest.mark.parametrize(
    "word,told,fields,said",
    [
        ("starting", "importing torch", {"phase_age_s": 2.1}, "importing torch 2 s"),
        ("starting", None, {}, "starting the worker"),
        ("running", None, {}, None),
        (
            "paused",
            None,
            {"state_age_s": 70.0, "document": {"paused_by": "alice@gpu03"}},
            "waiting for 1 min, requested by alice@gpu03",
        ),
        ("paused", "by alice, 3 s ago", {}, "by alice, 3 s ago"),
        ("stopping", None, {}, "finishing the iteration and saving a checkpoint"),
        (
            "stalled",
            "no iteration for 12 s (usual 0.12 s)",
            {"process_state": "D"},
            "no iteration for 12 s (usual 0.12 s) · process in the kernel",
        ),
        (
            "suspended",
            "no heartbeat for 3 s",
            {"process_state": "T"},
            "no heartbeat for 3 s · process stopped by a signal (T): kill -CONT 7 continues it",
        ),
        ("suspended", "no heartbeat for 3 s", {"process_state": "S"}, "no heartbeat for 3 s"),
        (
            "failed",
            None,
            {"log_end": ["Traceback (most recent call last):", "  x", "ValueError: no"]},
            "ValueError: no",
        ),
        (
            "diverged",
            None,
            {"log_end": ["13:00 x", "error: diverged in iteration 7: loss not finite"]},
            "diverged in iteration 7: loss not finite",
        ),
        ("remote", "gpu03 · last record 2 s ago", {}, "gpu03 · last record 2 s ago"),
        ("unreadable", "written by operant 0.9: upgrade", {}, "written by operant 0.9: upgrade"),
        ("crashed", "killed by SIGKILL", {}, "killed by SIGKILL"),
    ],
)
def test_cause_of_each_state(tmp_path, word, told, fields, said):
    found = summary.cause(known(tmp_path, word, told, **fields))
    assert found == said or (said is not None and found is not None and found.startswith(said))


@pytest.mark.parametrize(
    "word", ["starting", "running", "paused", "stopping", "stalled", "suspended", "remote", "unreadable"]
)
def test_what_has_not_ended_has_no_ending(tmp_path, word):
    assert summary.ending(known(tmp_path, word)) is None


def test_a_target_that_was_reached_early(tmp_path):
    made = timeline([[480.0]] * 5, [Metric("eval/return", higher_better=True)])
    found = summary.ending(
        known(
            tmp_path,
            "finished",
            timeline=made,
            document={"steps": 10_000, "target": 475.0},
            has_checkpoint=True,
            look=Observation(False, took_s=161.5),
        )
    )
    assert (
        found.sentence == "target 475 reached in 0:02:41"
        and found.commands == ("operant eval 4f2a", "operant show 4f2a")
        and found.traceback == ()
    )
    assert found.facts == ("eval 480.0 (target 475 reached)", "500 of 10 k steps in 0:02:41", "mean SPS 100")


@pytest.mark.parametrize("word", ["failed", "diverged", "gpu_fault", "oom", "crashed"])
def test_an_ending_names_the_checkpoint_and_the_next_command(tmp_path, word):
    log = ("error: the device is out of memory: 12 GiB asked for",)
    look = Observation(False, status=status(last_checkpoint_step=12_100_000), exit={"exit": 7}, unsaved_s=34.2)
    found = summary.ending(
        known(tmp_path, word, log_end=log, has_checkpoint=True, look=look, timeline=timeline([[1.0] * 4] * 3))
    )
    assert found.traceback == log and "checkpoint at 12.1 M steps (34 s of work lost)" in found.facts
    assert found.commands == ("operant resume 4f2a", "operant logs 4f2a", "operant show 4f2a")
    assert ("12 GiB" in found.sentence) == (word != "crashed")
    bare = summary.ending(known(tmp_path, word, look=Observation(False, status=status())))
    assert "no checkpoint" in bare.facts and bare.commands == ("operant logs 4f2a", "operant show 4f2a")


def test_a_log_that_ends_without_an_error_is_cut(tmp_path):
    assert len(summary.ending(known(tmp_path, "crashed", log_end=[f"line {n}" for n in range(20)])).traceback) == 6


def test_an_early_resumed_run_took_the_time_of_its_records(tmp_path):
    """Its document lacks the duration of earlier sessions."""
    made = Timeline(METRICS)
    for session in (1, 2):
        made.add(
            [
                record(
                    n, [1.0, 1.0, 1.0, NAN], step=session * 1000 + 100 * n, seconds=1000 * session + n, session=session
                )
                for n in range(61)
            ]
        )
    for took_s, seconds in ((30.0, made.table.last[1]), (500.0, 500.0)):
        run = known(tmp_path, "finished", look=Observation(True, took_s=took_s), timeline=made)
        assert summary.progress(run).up_s == seconds // 1 > 60
        assert f"in {text.duration(seconds)}" in summary.ending(run).sentence


def test_facts_of_a_run(tmp_path):
    now_s = 1_700_000_000.0
    document = {
        "env": "cartpole",
        "algo": "ppo",
        "lanes": 8,
        "seed": 1,
        "device": "cuda:0",
        "device_name": "NVIDIA H200",
        "host": "gpu03",
        "version": "0.1",
        "pid": 7,
        "steps": 10,
        "target": 4.5,
        "created_realtime_ns": int(now_s - 60) * SECOND,
    }
    found = summary.facts(Run("cartpole-ppo-4f2a", tmp_path, document), None, now_s)
    assert found[:2] == ("cartpole-ppo-4f2a", "4f2a") and found[3:13] == (
        "cartpole",
        "ppo",
        8,
        1,
        "NVIDIA H200",
        "gpu03",
        "0.1",
        7,
        10,
        4.5,
    )
    assert found.created == time.strftime("%H:%M:%S", time.localtime(now_s - 60))
    empty = summary.facts(Run("x", tmp_path, {"env": 5, "steps": "many", "created_realtime_ns": 1 << 62}), None, now_s)
    assert empty.env is empty.steps is None and empty.short == "x"


def test_reason_for_a_missing_frame(tmp_path):
    header = Header((1, 1), 1, b"", b"", 1, 1, 1, 1, 1, 1, "", "", 8, 8, 8, 0)

    def why(word="running", wanted=True, readonly=False, room=100, **document):
        about = known(
            tmp_path, word, document={"env": "pendulum", **document}, header=header._replace(frame_bytes=room)
        )
        return summary.agent_absent(about, wanted=wanted, readonly=readonly)

    assert why("crashed") == "the run has ended" and "machine" in why("remote") and "not started" in why("starting")
    assert why(draws=False) == "pendulum draws no picture" == why(draws=False, readonly=True)
    assert why() == why(draws=True) == "waiting for the first frame…" and why(wanted=False) == ""
    assert why(room=0) == why(room=0, draws=True) == "this trainer does not send frames", (
        "what is not known of the environment is not said"
    )
    assert "read only" in why(readonly=True) and why("suspended") == "the trainer is suspended: no frames"


def test_words_of_a_run_are_those_of_other_commands(tmp_path):
    """`operant runs` and the screen use the same name for a run."""
    run = runs.create(tmp_path, "cartpole-ppo-4f2a", "x", {})
    assert summary.facts(run, None, 0.0).path == runs.display_path(run.path)
