"""Elements of MuJoCo's models that the physics engine does not compute: each is refused by name, none is ignored."""

from __future__ import annotations

import numpy as np
import pytest
from numpy import float64

pytest.importorskip("mujoco")

import mujoco
import physics_parity as parity

from operant.errors import MachineError, OperantError
from operant.physics import Model
from operant.physics import constants as c

REFUSED = """
    actuator_dampingpoly actuator_group pair_adhesion ngravcomp nflex nplugin nhistory nplastic nmocap
"""
"""Fields outside of `Model` that decide whether a model is refused."""

DERIVED = """
    B_colind B_rowadr B_rownnz D_colind D_diag D_rowadr D_rownnz M_colind M_rowadr M_rownnz actuator_acc0
    actuator_length0 actuator_lengthrange body_conaffinity body_contype body_margin body_sameframe body_simple dof_Madr
    dof_length efmC_perm flg_adhesion flg_gravcomp flg_surfacevel geom_sameframe jnt_actuatorid mapD2M mapM2D mapM2M nB
    nC nD nJfe nJmom nJten nM narena nbuffer nconmax nemax njmax npolygonmax nwrap oct_aabb oct_child oct_coeff
    oct_depth signature site_sameframe ten_J_colind ten_J_rowadr ten_J_rownnz tendon_actuatorid tendon_treeid
    tendon_treenum tendon_type tree_bodyadr tree_bodynum tree_dofadr tree_dofnum
"""
"""Fields that repeat others in another form, and sizes of MuJoCo's memory."""

WITHOUT_EFFECT = """
    geom_group geom_matid geom_rgba geom_castshadow jnt_group site_dataid site_group site_matid site_rgba tendon_group
    tendon_matid tendon_rgba tendon_width numeric_adr numeric_data numeric_size nnumeric nnumericdata nuserdata
    sensor_intprm sensor_interval sensor_noise opt stat vis names names_map paths nnames nnames_map npaths plugin
"""
"""Looks, names, numbers for the user, and fields of sensors that `operant.physics.sensors` refuses or that change no
motion."""

OF_REFUSED = """
    actuator_cranklength actuator_ctrlspec actuator_history actuator_historyadr actuator_plugin body_plugin efm0_L
    efm0_L_colind efm0_L_rowadr efm0_L_rownnz efm0_dofid geom_dataid geom_plugin jnt_plasticadr jnt_springyield
    nefm0L nefm0dof nefmCvert npluginattr npluginstate sensor_delay sensor_history sensor_historyadr sensor_plugin
    tendon_actfrcrange tendon_plasticadr tendon_springyield tree_sleep_policy
"""
"""Fields of elements that are refused by another field: transmissions, delays, plugins, plasticity, flexible bodies,
meshes, sleep."""

ELSEWHERE = (
    *("cam_", "light_", "mesh_", "skin_", "hfield_", "tex_", "mat_", "flex", "bvh_", "oct_", "text_", "tuple_", "key_"),
    *("plugin_", "name_", "nflex", "nmesh", "nskin", "nhfield", "ntex", "ntuple", "nbvh", "nuser_", "ncam", "nlight"),
    *("nmat", "nkey", "noct"),
)
"""Beginnings of the names of fields of elements that move nothing, or whose collisions are refused."""

OPTIONS = """
    ccd_iterations ccd_tolerance disableactuator jacobian magnetic noslip_tolerance o_friction o_margin o_solimp
    o_solref sdf_initpoints sdf_iterations sleep_tolerance
"""
"""Options that are refused, or belong to what is refused, or change how MuJoCo computes and not what."""

PLAIN = """
<mujoco>
  <option{option}/>
  <worldbody>
    <geom name="floor" type="plane" size="3 3 1"/>
    <body pos="0 0 1"><joint name="k" axis="0 1 0"{joint}/><geom name="ball" size="0.1"{geom}/></body>
  </worldbody>
  <contact>{contact}</contact>
  <actuator>{actuator}</actuator>
</mujoco>
"""


def plain(**parts):
    """A pendulum over a floor, with these parts of its text."""
    return PLAIN.format(**{name: parts.get(name, "") for name in ("option", "joint", "geom", "contact", "actuator")})


def fields(thing):
    return {name for name in dir(thing) if not name.startswith("_") and not callable(getattr(thing, name))}


def test_every_field_of_mujocos_model_is_read_or_refused_or_has_no_effect():
    compiled = mujoco.MjModel.from_xml_string(plain(actuator='<motor joint="k"/>'))
    read = set(Model.from_compiled(compiled).arrays)
    listed = {name for names in (REFUSED, DERIVED, WITHOUT_EFFECT, OF_REFUSED) for name in names.split()}
    unknown = {name for name in fields(compiled) - read - listed if not name.startswith(ELSEWHERE)}
    unknown = {name for name in unknown if not name.endswith(("_user", "_bvhadr", "_bvhnum", "_aabb"))}
    assert unknown == set()
    assert fields(compiled.opt) - {name.removeprefix("opt_") for name in read} == set(OPTIONS.split())


@pytest.mark.parametrize(
    "kind,count",
    [
        *(("Integrator", 5), ("Solver", 3), ("Cone", 2), ("DisableBit", 20), ("EnableBit", 8), ("Joint", 4)),
        *(("Trn", 7), ("Dyn", 8), ("Gain", 7), ("Bias", 6), ("Wrap", 6), ("Eq", 8), ("Tendon", 2)),
    ],
)
def test_mujoco_has_the_kinds_of_elements_that_the_engine_knows(kind, count):
    values = {int(value) for name, value in getattr(mujoco, f"mjt{kind}").__members__.items() if "mjN" not in name}
    assert len({value for value in values if not (kind == "Trn" and value >= 1000)}) == count


@pytest.mark.parametrize(
    "parts,named",
    [
        ({"option": ' integrator="discrete"'}, "the integrator discrete"),
        ({"option": ' integrator="implicit"'}, "the integrator implicit"),
        (
            {"option": ' actuatorgroupdisable="3"', "actuator": '<motor joint="k" group="3"/>'},
            r"the disabled actuators \(actuatorgroupdisable, group 3\)",
        ),
        ({"contact": '<pair geom1="ball" geom2="floor" adhesion="40"/>'}, "adhesion of a pair of geoms"),
        ({"actuator": '<motor joint="k" damping="0 0.2"/>'}, "damping and armature of actuators"),
        ({"geom": ' adhesion="1"'}, "adhesion and surface velocity of geom 'ball'"),
        ({"joint": ' stiffness="1 2"'}, "the spring of joint 'k'"),
    ],
)
def test_an_element_that_would_change_the_motion_is_refused(parts, named):
    with pytest.raises(OperantError, match=rf"does not cover {named}.*gymnasium\.Env"):
        Model.from_mjcf(plain(**parts))


def test_a_disabled_group_without_actuators_is_no_obstacle():
    Model.from_mjcf(plain(option=' actuatorgroupdisable="3"', actuator='<motor joint="k"/>'))


@pytest.mark.parametrize(
    "field,value,named",
    [
        ("opt_integrator", c.IMPLICIT, "the integrator implicit"),
        ("opt_solver", c.CG, "the solver CG"),
        ("opt_noslip_iterations", 5, "noslip iterations"),
        ("opt_disableflags", c.NO_SENSOR, "sensors that the flag sensor disables"),
        ("body_gravcomp", 1.0, "gravity compensation"),
        ("actuator_damping", 1.0, "damping and armature of actuators"),
        ("geom_adhesion", 1.0, "adhesion and surface velocity of geom 'floor'"),
    ],
)
def test_a_replacement_that_the_engine_does_not_cover_is_refused(field, value, named):
    model = Model.from_mjcf(plain(actuator='<motor joint="k"/>'))
    with pytest.raises(OperantError, match=f"does not cover {named}"):
        model.replace(**{field: np.full_like(model.arrays[field], value)})


def test_another_version_of_mujoco_is_named(monkeypatch):
    monkeypatch.setattr(mujoco, "__version__", "3.3.6")
    with pytest.raises(MachineError, match=r"needs mujoco 4, and 3\.3\.6 is installed: pip install 'mujoco>=4,<5'"):
        Model.from_mjcf(plain())


DRIVEN = """
<mujoco>
  <option timestep="0.005" integrator="implicitfast"/>
  <worldbody>
    <body pos="0 0 1">
      <joint name="a" axis="0 1 0" actuatorfrcrange="-3 4"/>
      <geom type="capsule" size="0.05 0.2" contype="0" conaffinity="0"/>
      <body pos="0 0.1 0.4">
        <joint name="b" axis="0 1 0" damping="0.1"/>
        <geom type="capsule" size="0.05 0.2" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  <tendon><fixed name="both"><joint joint="a" coef="1"/><joint joint="b" coef="0.7"/></fixed></tendon>
  <actuator>
    <position joint="a" kp="60" kv="2"/>
    <position tendon="both" kp="5" kv="0.5"/>
    <damper joint="b" kv="3" ctrlrange="0 0.2"/>
    <general joint="b" gaintype="affine" gainprm="1 0.2 -2" ctrlrange="-0.5 0.5"/>
  </actuator>
</mujoco>
"""
"""Two joints by implicitfast: forces that reach a joint's limit, and gains that depend on the velocity."""


def test_slopes_of_actuators_at_their_limits_are_mujocos():
    errors = parity.step_errors(DRIVEN, float64, 200)
    assert errors.values.max() < 1e-11
    assert len(errors.values) > 150
