"""Health findings: metrics of runs that learned must not alarm, those of broken runs must."""

import math

import pytest

from monitor.data import health
from monitor.data.health import HealthContext, findings
from monitor.data.snapshot import Gpu, System
from monitor.data.summary import RunData
from monitor.data.timeline import Timeline
from monitor.screen import panels
from operant.algos.ppo.ppo import ppo_metrics
from operant.runs.folder import Run
from operant.runs.metrics import Metric, Record
from operant.runs.metrics.spec import POSITIVE, MetricSpec, Threshold
from operant.runs.states import Observation, State

NAN = math.nan
NAMES = (
    "return",
    "eval/return",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "explained_variance",
    "gradient_norm",
    "learning_rate",
)

# Medians over tenths of the run (of what was trained of it), as the shipped configurations gave them on a CPU: (share
# of the steps done at the end, columns).
LEARNED = {
    "acrobot": (
        0.72,
        [
            [-165.4, -95.25, -85.45, -83.42, -81.88, -81.38, -81.15, -80.01, -77.57, -76.37],
            [-79.21, -79.21, -82.11, -83.31, -81.46, -81.29, -80.82, -77.81, -77.11, -75.79],
            [0.9323, 0.354, 0.1529, 0.08968, 0.0698, 0.06311, 0.05807, 0.05632, 0.05416, 0.05274],
            [0.007386, 0.001345, 0.000747, 0.0003846, 0.0004129, 0.000478, 0.0003644, 0.0004241, 0.0002971, 0.0002822],
            [0.07865, 0.01669, 0.00956, 0.004868, 0.00544, 0.006615, 0.004829, 0.005486, 0.003777, 0.003601],
            [0.5795, 0.8414, 0.8887, 0.923, 0.9391, 0.9418, 0.9361, 0.9251, 0.933, 0.9324],
            [0.1867, 0.04714, 0.03916, 0.03484, 0.03637, 0.03653, 0.03744, 0.04118, 0.04392, 0.04762],
            [0.001935, 0.001791, 0.001647, 0.001503, 0.001359, 0.001216, 0.001072, 0.0009281, 0.0007843, 0.0006405],
        ],
    ),
    "cartpole": (
        0.082,
        [
            [13.04, 19.87, 24.46, 30.19, 39.26, 55.33, 64.94, 75.98, 90.86, 104.3],
            [NAN, NAN, NAN, NAN, NAN, 120.3, 120.3, 120.3, 120.3, 500],
            [0.6884, 0.6751, 0.6337, 0.579, 0.542, 0.5184, 0.5168, 0.5195, 0.5189, 0.4853],
            [0.004697, 0.008704, 0.01415, 0.03022, 0.02703, 0.02043, 0.02338, 0.02287, 0.01445, 0.008695],
            [0.05222, 0.1426, 0.2064, 0.3499, 0.2674, 0.2543, 0.283, 0.2757, 0.2107, 0.1163],
            [-0.003804, 0.3074, 0.4789, 0.6476, 0.7411, 0.883, 0.9564, 0.9756, 0.9722, 0.9682],
            [7.244, 0.9372, 0.7337, 0.3818, 0.3015, 0.2873, 0.3101, 0.3227, 0.2926, 0.2379],
            [0.0025, 0.00248, 0.002459, 0.002439, 0.002419, 0.002398, 0.002378, 0.002358, 0.002337, 0.002317],
        ],
    ),
    "mountaincar": (
        0.31,
        [
            [-198.4, -165.2, -152.7, -145.1, -134.7, -128.1, -125.4, -121.7, -119.8, -115.7],
            [-146.8, -131.7, -129.3, -124.4, -106.5, -105.8, -106.1, -107.5, -107.5, -106.1],
            [0.9982, 0.7226, 0.5464, 0.4931, 0.4062, 0.3631, 0.3282, 0.3003, 0.3004, 0.2701],
            [0.003968, 0.001674, 0.0009731, 0.001021, 0.0009758, 0.0006599, 0.0007797, 0.0008273, 0.0009296, 0.000648],
            [0.03369, 0.01089, 0.006058, 0.006012, 0.007874, 0.004929, 0.005066, 0.00705, 0.008514, 0.005219],
            [0.5324, 0.9394, 0.9496, 0.9508, 0.9529, 0.9576, 0.9595, 0.9572, 0.9596, 0.96],
            [0.2983, 0.09178, 0.06053, 0.06144, 0.06158, 0.05677, 0.05285, 0.05717, 0.05182, 0.05675],
            [
                0.0009864,
                0.0009564,
                0.0009237,
                0.0008937,
                0.000861,
                0.0008283,
                0.0007984,
                0.0007657,
                0.0007357,
                0.000703,
            ],
        ],
    ),
    "mountaincar_continuous": (
        0.082,
        [
            [NAN, NAN, NAN, NAN, NAN, 75.77, 70.87, 67, 62.81, 58.9],
            [NAN, NAN, NAN, NAN, NAN, -1.443, -1.443, -1.443, -1.443, 95.56],
            [1.904, 1.877, 1.863, 1.851, 1.842, 1.834, 1.834, 1.822, 1.811, 1.8],
            [0.0007164, 0.0008341, 0.003491, 0.001786, 0.001081, 0.001295, 0.002343, 0.003368, 0.002229, 0.002279],
            [0.003479, 0.003059, 0.03543, 0.01183, 0.005836, 0.00901, 0.02437, 0.0412, 0.02071, 0.01929],
            [0.00147, -0.3294, -0.4555, -0.2695, -0.2858, -0.06683, 0.2334, 0.2743, 0.2521, 0.3235],
            [0.4951, 1.097, 0.7169, 0.6649, 0.469, 0.4815, 0.4076, 0.2969, 0.3417, 0.6921],
            [0.002, 0.001984, 0.001967, 0.001951, 0.001935, 0.001919, 0.001902, 0.001886, 0.00187, 0.001854],
        ],
    ),
    "pendulum": (
        0.82,
        [
            [-1150, -1018, -462.3, -199.7, -201, -190.5, -167.3, -169.5, -164.5, -152.5],
            [-1205, -1101, -530.4, -189.4, -183.7, -197.6, -169.8, -169, -157.8, -155.1],
            [0.8322, 0.7131, 0.579, 0.4151, 0.2558, 0.1517, 0.007439, -0.1733, -0.2967, -0.4055],
            [0.00433, 0.009348, 0.006332, 0.003717, 0.004568, 0.004138, 0.003869, 0.004112, 0.00381, 0.003123],
            [0.04413, 0.134, 0.07867, 0.03611, 0.05223, 0.04419, 0.04041, 0.04699, 0.0367, 0.02476],
            [0.7417, 0.8277, 0.9165, 0.9288, 0.9736, 0.9775, 0.9416, 0.9845, 0.9811, 0.9821],
            [0.4385, 0.2524, 0.3641, 0.468, 0.4765, 0.4906, 0.7642, 0.779, 0.729, 0.8371],
            [
                0.0009674,
                0.0008913,
                0.0008043,
                0.0007283,
                0.0006413,
                0.0005543,
                0.0004783,
                0.0003913,
                0.0003152,
                0.0002283,
            ],
        ],
    ),
}
ACTIONS = {"acrobot": (3,), "cartpole": (2,), "mountaincar": (3,)}
TARGETS = {
    "acrobot": -75.5,
    "cartpole": 475.0,
    "mountaincar": -104.5,
    "mountaincar_continuous": 93.0,
    "pendulum": -152.0,
}
BROKEN = {  # the same of runs whose learning rate was 1, 0.1, 0.05 and 1e-6
    "rate 1": [
        [9.357, 9.361, 9.364, 9.358, 9.356, 9.36, 9.354, 9.354, 9.36, 9.359],
        [9.45, 9.42, 9.32, 9.35, 9.32, 9.37, 9.45, 9.31, 9.4, 9.35],
        [6.299e-18, 3.1e-18, 1.166e-17, 1.844e-17, 3.102e-17, 1.078e-17, 2.265e-17, 2.77e-17, 4.109e-17, 1.977e-17],
        [0.0] * 10,
        [0.0] * 10,
        [-0.6284, 0.6331, 0.6212, 0.6366, 0.6647, 0.6574, 0.6473, 0.6302, 0.6316, 0.6478],
        [10.04, 6.226, 11.58, 11.09, 10.51, 10.33, 10.39, 10.48, 10.37, 10.33],
        [1.0] * 10,
    ],
    "rate 0.1": [
        [42.24, 12.9, 125.4, 101.5, 81.3, 110.1, 95.46, 119.7, 119.4, 9.349],
        [9.32, 38.81, 100.4, 101.8, 62.27, 111.6, 95.86, 123.2, 126.1, 9.3],
        [0.01109, 0.01079, 0.01396, 0.01076, 0.015, 0.009295, 0.003905, 0.001298, 0.002464, 1.6e-17],
        [0.5433, 0.6316, 0.4915, 0.2571, 0.7726, 0.5765, 0.27, 0.2118, 0.1938, 0],
        [0.09457, 0.0695, 0.05444, 0.03522, 0.08078, 0.05727, 0.02699, 0.01704, 0.02226, 0],
        [0.4232, 0.8434, 0.08876, 0.2553, 0.6669, 0.8425, 0.946, 0.8881, 0.633, 0.5194],
        [1.045, 0.4736, 1.265, 1.078, 1.135, 1.838, 1.297, 1.327, 2.261, 1.385],
        [0.1] * 10,
    ],
    "rate 0.05": [
        [-1211, -1553, -1247, -1440, -1250, -1063, -1054, -1097, -1062, -1005],
        [-1543, -1570, -1238, -1350, -1212, -1071, -1109, -1016, -1125, -1012],
        [1.737, 1.836, 1.962, 1.905, 1.867, 1.821, 1.817, 1.751, 1.638, 1.498],
        [0.1085, 0.2767, 0.8304, 0.1958, 0.216, 0.2007, 0.2234, 0.3574, 0.2147, 0.3644],
        [0.3767, 0.2634, 0.181, 0.2048, 0.1903, 0.1966, 0.1862, 0.2263, 0.2217, 0.2914],
        [0.8377, 0.8929, 0.9516, 0.95, 0.9612, 0.9774, 0.9852, 0.982, 0.9785, 0.99],
        [2.325, 0.5701, 0.2907, 0.2988, 0.2847, 0.3142, 0.3533, 0.3617, 0.3608, 0.5507],
        [0.05] * 10,
    ],
    "rate 1e-6": [
        [22.25, 22.68, 22.56, 22.75, 22.9, 22.94, 23.01, 22.9, 23.15, 22.9],
        [37.9, 208.9, 322, 202.3, 153.3, 160.4, 149.3, 145.4, 140.7, 140.8],
        [0.6931] * 10,
        [1.5e-8] * 10,
        [0.0] * 10,
        [0.03272, 0.05675, 0.06202, 0.07896, 0.0817, 0.09045, 0.08961, 0.1088, 0.1085, 0.1041],
        [0.5771, 0.53, 0.5209, 0.5144, 0.507, 0.5045, 0.502, 0.4972, 0.4967, 0.4944],
        [9.565e-07, 8.533e-07, 7.554e-07, 6.522e-07, 5.543e-07, 4.511e-07, 3.533e-07, 2.5e-07, 1.522e-07, 4.891e-08],
    ],
}
STEPS = 1_000_000


def specs(actions=(), *more):
    declared = ppo_metrics(actions)
    return {spec.name: spec for spec in (*declared, *more)}


def course(tmp_path, columns, actions, *, share=1.0, target=None):
    """Findings along a run: (share of the steps, findings) after each of 100 records."""
    timeline, run = (
        Timeline([Metric(name) for name in NAMES], specs(actions)),
        Run("x", tmp_path, {"steps": STEPS, "target": target}),
    )
    for n in range(100):
        step = int(STEPS * share * (n + 1) / 100)
        timeline.add([Record(n, step, n * 10**9 // 2, 0, 1, 0, tuple(column[n // 10] for column in columns))])
        known = RunData(run, State("running"), Observation(True), timeline)
        yield step / STEPS, health.check(known, None)


@pytest.mark.parametrize("name", LEARNED)
def test_a_run_that_learned_is_never_called_bad(tmp_path, name):
    share, columns = LEARNED[name]
    for done, said in course(tmp_path, columns, ACTIONS.get(name, ()), share=share, target=TARGETS[name]):
        assert said and not [(done, finding) for finding in said if finding.level == "bad"]


@pytest.mark.parametrize("name", BROKEN)
def test_a_run_that_was_broken_is_called_bad_soon(tmp_path, name):
    for done, said in course(
        tmp_path, BROKEN[name], (2,) if "0.05" not in name else (), target=475.0 if "0.05" not in name else -152.0
    ):
        bad = [finding for finding in said if finding.level == "bad"]
        assert not bad or done >= health.SETTLED_SHARE
        if 0.2 <= done <= 0.75:
            assert bad and all(finding.advice for finding in bad), (done, said)


# RULE BY RULE


SLOWER = Threshold("warn", below=0.75, relative_to="minute", advice="something else uses this machine")


def said(now=None, actions=(), **values):
    columns = {name: value if isinstance(value, list) else [value] * 20 for name, value in values.items()}
    declared = specs(actions, MetricSpec("sps", "SPS", kind="rate", thresholds=(SLOWER,)))
    return findings(columns, declared, now or HealthContext(share=0.5))


def levels(*found):
    return [finding.level for finding in found]


@pytest.mark.parametrize(
    "value,level",
    [
        (0.0, "bad"),
        (1e-7, "bad"),
        (1e-5, "warn"),
        (3e-4, "ok"),
        (0.01, "ok"),
        (0.04, "ok"),
        (0.06, "warn"),
        (0.2, "bad"),
        (5.0, "bad"),
    ],
)
def test_kl_outside_its_range_is_a_finding(value, level):
    found = said(approx_kl=value)
    assert (
        levels(*found) == [level]
        and bool(found[0].advice) == (level != "ok")
        and found[0].explanation
        and found[0].wanted
    )


def test_a_policy_that_stands_still_because_its_rate_is_annealed_is_well():
    assert levels(
        *said(
            HealthContext(share=0.98, highest={"learning_rate": 1e-3}, newest={"learning_rate": 2e-5}), approx_kl=1e-8
        )
    ) == ["ok"]


def test_one_odd_record_changes_nothing():
    assert levels(*said(approx_kl=[0.01] * 12 + [9.0] * 8, clip_fraction=[0.1] * 19 + [1.0])) == ["ok", "ok"]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.049])
def test_nothing_is_bad_at_the_very_beginning(share):
    now = HealthContext(share=share, checkpoint_failures=9, not_finite=("loss/value",), evaluation=(0.0, 500.0, 1.0))
    found = said(now, approx_kl=5.0, entropy=0.0, explained_variance=-9.0, clip_fraction=1.0)
    assert "bad" not in levels(*found) and "warn" in levels(*found)


@pytest.mark.parametrize("iterations,level", [(10, "warn"), (100, "bad")])
def test_a_run_without_an_end_is_settled_after_some_iterations(iterations, level):
    assert levels(*said(HealthContext(share=None, iterations=iterations), approx_kl=5.0)) == [level]


@pytest.mark.parametrize(
    "value,share,evaluation,level",
    [
        (-0.3, 0.08, None, "ok"),
        (-0.3, 0.3, None, "bad"),
        (0.3, 0.3, None, "ok"),
        (0.3, 0.6, None, "warn"),
        (0.9, 0.9, None, "ok"),
        (-1.2, 0.9, (10.0, 500.0, 500.0), "ok"),
        (-1.2, 0.9, (10.0, 500.0, 300.0), "bad"),
    ],
)
def test_low_explained_variance_is_a_finding(value, share, evaluation, level):
    found = {
        finding.title.split()[0]: finding
        for finding in said(HealthContext(share=share, evaluation=evaluation), explained_variance=value)
    }
    assert found["explained"].level == level


@pytest.mark.parametrize(
    "entropy,actions,share,level",
    [
        (0.69, (2,), 0.1, "ok"),
        (0.69, (2,), 0.3, "warn"),
        (0.3, (2,), 0.3, "ok"),
        (0.05, (3,), 0.3, "ok"),
        (0.005, (2,), 0.3, "bad"),
        (0.005, (2,), 0.7, "warn"),
        (0.0, (2,), 0.7, "bad"),
        (1.37, (2, 2), 0.7, "warn"),
        (1.9, (), 0.9, "ok"),
        (-3.0, (), 0.9, "ok"),
        (0.0, (), 0.3, "bad"),
    ],
)
def test_collapsed_entropy_is_a_finding(entropy, actions, share, level):
    assert levels(*said(HealthContext(share=share), actions, entropy=entropy)) == [level]


def test_a_policy_at_its_target_may_be_certain():
    now = HealthContext(share=0.4, evaluation=(10.0, 480.0, 480.0), target=475.0)
    assert levels(*said(now, (2,), entropy=0.0)) == ["ok", "ok"]
    assert levels(*said(now._replace(target=490.0), (2,), entropy=0.0)) == ["bad", "ok"]


def test_a_normal_distributions_entropy_may_pass_zero():
    assert levels(*said(HealthContext(share=0.4), entropy=[0.05 - 0.004 * n for n in range(20)])) == ["ok"]


@pytest.mark.parametrize("newest,level", [(500.0, "ok"), (300.0, "ok"), (200.0, "warn"), (50.0, "bad")])
def test_an_evaluation_that_lost_what_was_gained(newest, level):
    assert levels(*said(HealthContext(share=0.6, evaluation=(10.0, 500.0, newest)))) == [level]


def test_a_gain_next_to_nothing_cannot_be_lost():
    assert levels(*said(HealthContext(share=0.6, evaluation=(-2.51e-6, -2.5e-6, -0.456)))) == ["ok"]
    nothing_gained = HealthContext(share=0.5, evaluation=(5.0, 5.001, 5.001))
    assert judged(("bad", 2.0), [3.0] * 20, nothing_gained, unless="best")[-1].wanted != "at its best"


def test_a_run_that_began_well_may_vary():
    assert levels(*said(HealthContext(share=0.6, evaluation=(-165.0, -79.2, -84.2), target=-75.5))) == ["ok"]


@pytest.mark.parametrize(
    "share,target,mark,wanted",
    [
        (0.3, 600.0, "·", "target 600 not reached"),
        (0.3, 500.0, "✔", "target 500"),
        (1.0, 600.0, "!", "target 600"),
        (0.3, None, "✔", "near the best, 500.0"),
    ],
)
def test_only_a_reached_target_gets_a_check_mark(share, target, mark, wanted):
    (found,) = said(HealthContext(share=share, evaluation=(10.0, 500.0, 500.0), target=target))
    shown = "".join(piece.text for piece in panels.finding_line(found, 60))
    assert shown.startswith(f"{mark} eval 500.0") and shown.endswith(wanted)


def test_a_jump_of_the_gradient_and_a_slower_machine():
    now = HealthContext(share=0.5, medians={"gradient_norm": 0.3, "sps": 1e6})
    assert levels(*said(now, gradient_norm=[0.3] * 19 + [4.0], sps=7e5)) == ["warn", "warn"]
    assert levels(*said(now, gradient_norm=0.9, sps=9e5)) == ["ok", "ok"]


@pytest.mark.parametrize(
    "gpu,level,word",
    [
        (Gpu("x", 0.97), "ok", "97 %"),
        (Gpu("x", 0.3), "warn", "env.lanes"),
        (Gpu("x", 0.97, throttled="too hot"), "warn", "too hot"),
        (Gpu("x", 0.97, throttled="power limit"), "ok", "97 %"),
    ],
)
def test_idle_or_throttled_gpu_is_a_finding(gpu, level, word):
    found = said(HealthContext(share=0.5, gpu=gpu))
    assert levels(*found) == [level] and word in found[0].title + found[0].advice
    assert said(HealthContext(share=0.5, gpu=Gpu("x"))) == ()


def test_checkpoints_that_cannot_be_saved():
    assert levels(*said(HealthContext(share=0.5, checkpoint_failures=1))) == ["warn"]
    assert levels(*said(HealthContext(share=0.5, checkpoint_failures=3))) == ["bad"]
    assert levels(*said(HealthContext(share=0.5, history_error=True))) == ["warn"]


def test_findings_are_sorted_by_severity_and_empty_without_values():
    found = said(HealthContext(share=0.5, not_finite=("loss/value",)), approx_kl=0.01, clip_fraction=0.5)
    assert levels(*found) == ["bad", "warn", "ok"] and "value loss" in found[0].title
    assert said() == () and said(approx_kl=[NAN] * 20) == ()


def test_health_context_of_a_run(tmp_path):
    declared = specs((2,), MetricSpec("sps", thresholds=(SLOWER,)))
    metrics = [
        Metric("entropy"),
        Metric("sps"),
        Metric("eval/return"),
        Metric("learning_rate"),
        Metric("approx_kl"),
        Metric("loss/value", must_be_finite=True),
    ]
    timeline = Timeline(metrics, declared)
    for n in range(100):
        values = (0.69 - n / 200, 1000.0, float(n), 1.0 - n / 200, 0.01, NAN if n == 50 else 1.0)
        timeline.add([Record(n, 100 * (n + 1), n * 10**9, 0, 1, 0, values)])
    known = RunData(
        Run("x", tmp_path, {"steps": 20_000, "target": 40.0}), State("running"), Observation(True), timeline
    )
    now = health.health_context(known, System(gpu=Gpu("x", 0.5)))
    assert now.share == 0.5 and now.medians == {"sps": 1000.0} and now.evaluation == (0.0, 99.0, 99.0)
    assert now.target == 40.0 and now.gpu == Gpu("x", 0.5) and now.not_finite == ("loss/value",)
    assert now.highest == {"learning_rate": 1.0} and now.newest["learning_rate"] == pytest.approx(0.505, abs=0.02)
    then = health.health_context(known, None, 3000.0)
    assert then.share == 0.15 and then.evaluation == (0.0, 29.0, 29.0) and then.gpu is None and then.not_finite == ()
    assert health.health_context(known._replace(timeline=None), None) == HealthContext()


# THRESHOLDS AS DATA


def judged(threshold, values, now=None, **how):
    spec = MetricSpec("x", "an x", thresholds=(Threshold(*threshold, **how),), advice="try less")
    return findings({"x": values}, {"x": spec}, now or HealthContext(share=0.5))


@pytest.mark.parametrize(
    "how,values,level",
    [
        ({}, [1.0] * 20, "ok"),
        ({}, [3.0] * 20, "warn"),
        ({}, [3.0] * 9 + [1.0] * 11, "ok"),
        ({"records": 0.4}, [3.0] * 9 + [1.0] * 11, "warn"),
        ({"records": 0.0}, [1.0] * 19 + [3.0], "warn"),
        ({"records": 0.0}, [3.0] * 19 + [1.0], "ok"),
        ({"after": 0.6}, [3.0] * 20, "ok"),
        ({"after": 0.4}, [3.0] * 20, "warn"),
        ({"until": 0.4}, [3.0] * 20, "ok"),
        ({"until": 0.6}, [3.0] * 20, "warn"),
        ({"relative_to": "highest"}, [300.0] * 20, "warn"),
        ({"relative_to": "highest"}, [199.0] * 20, "ok"),
        ({"while_metric": "y", "while_share": 0.2}, [3.0] * 20, "ok"),
        ({"while_metric": "y", "while_share": 0.1}, [3.0] * 20, "warn"),
        ({"while_metric": "unknown", "while_share": 0.9}, [3.0] * 20, "warn"),
    ],
)
def test_what_a_threshold_can_say(how, values, level):
    now = HealthContext(share=0.5, highest={"x": 100.0, "y": 10.0}, newest={"y": 1.5})
    (found,) = judged(("warn", 2.0), values, now, **how)
    assert found.level == level and found.title.startswith("an x ") and (found.advice == "try less") == (level != "ok")


def test_a_threshold_on_the_whole_run_warns_of_a_value_long_ago():
    rule = ("warn", POSITIVE)
    (found,) = judged(rule, [0.0] * 20, HealthContext(share=0.5, highest={"x": 0.25}), ever=True)
    assert found[:4] == ("warn", "an x 0.25, at its highest", "0", "try less")
    (found,) = judged(rule, [0.0] * 20, HealthContext(share=0.5, highest={"x": 0.0}), ever=True)
    assert found[:3] == ("ok", "an x 0", "0")


def test_a_threshold_without_its_reference_is_not_judged():
    assert judged(("warn", 2.0), [3.0] * 20, relative_to="minute") == ()


def test_a_value_in_a_range_that_does_not_count_yet_says_why():
    assert judged(("bad", 2.0), [3.0] * 20, after=0.9)[0].wanted == "too early to tell"
    at_its_best = HealthContext(share=0.5, evaluation=(1.0, 9.0, 9.0))
    assert judged(("bad", 2.0), [3.0] * 20, at_its_best, unless="best")[-1].wanted == "at its best"


@pytest.mark.parametrize(
    "usual,shown,title",
    [
        (1.0, 1.5, "an x 1.5"),
        (1.0, 3.0, "an x 3 (median 1)"),
        (3.0, 3.5, "an x 3.5"),
        (3.0, 1.5, "an x 1.5 (median 3)"),
    ],
)
def test_title_adds_the_median_if_the_shown_value_would_be_judged_differently(usual, shown, title):
    spec = MetricSpec("x", "an x", thresholds=(Threshold("warn", below=10.0, at_least=2.0),))
    (found,) = findings({"x": [usual] * 20}, {"x": spec}, HealthContext(share=0.5), {"x": shown})
    assert found.title == title


def test_cached_verdicts_are_shown_with_current_values(tmp_path):
    timeline = Timeline([Metric("approx_kl"), Metric("eval/return")], specs())
    known = RunData(Run("x", tmp_path, {"steps": 20_000}), State("running"), Observation(True), timeline)
    timeline.add([Record(n, 100 * (n + 1), n * 10**9, 0, 1, 0, (0.01, 5.0)) for n in range(40)])
    verdicts = health.verdicts(known, None)
    assert [finding.title for finding in health.findings_now(verdicts, known)] == ["eval 5", "approx KL 0.01"]
    timeline.add([Record(40, 4100, 40 * 10**9, 0, 1, 0, (0.02, 6.0))])
    assert [finding.title for finding in health.findings_now(verdicts, known)] == ["eval 6", "approx KL 0.02"]
