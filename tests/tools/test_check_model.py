"""`operant check FILE.xml`: contents, coverage and precision of a robot's model."""

from __future__ import annotations

import itertools

import pytest

from operant import envs
from operant.errors import MachineError
from operant.tools.check_model import check
from operant.worlds.bounds import BoundsChecked

pytest.importorskip("mujoco")

PENDULUM = """
<mujoco><option timestep="0.005" integrator="RK4"/><worldbody><geom type="plane" size="1 1 1"/>
  <body pos="0 0 1"><joint name="hinge" type="hinge" axis="0 1 0"/><geom type="capsule" size="0.05 0.3"/>
    <body name="tip" pos="0 0 0.5"><geom type="sphere" size="0.1"/></body></body>
</worldbody><actuator><motor joint="hinge" ctrlrange="-1 1"/></actuator>EXTRA</mujoco>
"""


@pytest.fixture
def model(tmp_path):
    def written(extra=""):
        path = tmp_path / "pendulum.xml"
        path.write_text(PENDULUM.replace("EXTRA", extra))
        return path

    return written


@pytest.mark.slow
def test_a_covered_model_is_described_and_compared_with_float64(model):
    contents, covered, precision = itertools.islice(check(model()), 3)
    assert contents.detail == (
        "nq 1, nv 1, nu 1, 2 bodies, 1 plane, 1 capsule, 1 sphere; RK4, Newton, time step 0.005 s"
    )
    assert covered.passed and covered.name == "covered"
    assert precision.passed and "12,800 states" in precision.detail


def test_an_element_that_is_not_covered_is_named(model):
    found = list(check(model('<option integrator="implicit"/>')))
    assert [finding.name for finding in found] == ["covered"] and not found[0].passed
    assert "the integrator implicit" in found[0].detail


def test_a_model_without_joints_is_a_problem(model):
    path = model()
    path.write_text('<mujoco><worldbody><geom type="plane" size="1 1 1"/></worldbody></mujoco>')
    contents, moves = check(path)
    assert contents.passed and not moves.passed and moves.detail == "the model has no joint: nothing moves"


def test_sensors_that_a_task_cannot_read_are_named(model):
    path = model('<sensor><gyro name="turn" site="s"/><accelerometer name="push" site="s"/></sensor>')
    path.write_text(path.read_text().replace('<body name="tip"', '<site name="s"/><body name="tip"'))
    _, covered = itertools.islice(check(path), 2)
    assert covered.passed and covered.warning and covered.detail.endswith("a task cannot read the sensor push")


def test_a_missing_mujoco_is_no_fault_of_the_model(model, monkeypatch):
    monkeypatch.setattr("mujoco.__version__", "3.3.6")
    with pytest.raises(MachineError, match="needs mujoco 4"):
        list(check(model()))


def test_a_missing_or_broken_file_is_a_usage_error(model, here, tmp_path):
    missing = here("check", tmp_path / "none.xml")
    assert missing.code != 0 and "there is no model file" in missing.err
    path = model()
    path.write_text("<mujoco><worldbody>")
    with pytest.raises(StopIteration):
        next(itertools.islice(check(path), 1, None))
    finding = next(check(path))
    assert not finding.passed and f"MuJoCo cannot read {path}" in finding.detail


def test_a_robot_is_compiled_for_a_gpu_with_its_solvers_matrix_in_memory():
    guarded = BoundsChecked(envs.find("humanoid"), 4)
    calls = {call.body: call.first for call in guarded.calls_on_gpu()}
    for name in ("step", "reset"):
        body, lanes, _ = guarded.calls[name]
        assert lanes.memory is None and calls[body].memory.shape == (4, guarded.env.memory)
