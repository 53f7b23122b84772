"""`Model`: the constants of one MJCF model, as MuJoCo's compiler computes them, without MuJoCo.

`mujoco` reads the XML once; a saved model opens where it is not installed. Field names and meanings are those of
`mjModel` (MuJoCo's documentation, "API reference: mjModel"), its options `opt_...`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from operant.errors import BadFileError, MachineError, ModelError

_COUNTS = "nq nv nu na nbody njnt ngeom nsite ntendon nactuator nout nsensor nsensordata ntree nexclude npair neq"
_OPTIONS = (
    "timestep impratio tolerance ls_tolerance iterations ls_iterations noslip_iterations solver integrator cone "
    "disableflags enableflags gravity wind density viscosity"
)
_GROUPS = {
    "body": (
        "parentid rootid weldid jntnum jntadr dofnum dofadr treeid geomnum geomadr pos quat ipos iquat mass "
        "subtreemass inertia invweight0 gravcomp mocapid"
    ),
    "jnt": (
        "type qposadr dofadr bodyid limited actfrclimited actgravcomp solref solimp pos axis stiffness stiffnesspoly "
        "range actfrcrange margin"
    ),
    "dof": (
        "bodyid jntid parentid treeid simplenum solref solimp frictionloss armature damping dampingpoly invweight0 M0"
    ),
    "geom": (
        "type contype conaffinity condim bodyid priority solmix solref solimp size rbound pos quat friction margin gap "
        "fluid adhesion surfacevel"
    ),
    "site": "bodyid type pos quat size",
    "pair": "dim geom1 geom2 signature solref solreffriction solimp margin gap friction",
    "exclude": "signature",
    "eq": "type obj1id obj2id objtype active0 solref solimp data",
    "tendon": (
        "adr num limited actfrclimited solref_lim solimp_lim solref_fri solimp_fri range margin stiffness "
        "stiffnesspoly damping dampingpoly armature frictionloss lengthspring length0 invweight0"
    ),
    "wrap": "type objid prm",
    "actuator": (
        "trntype dyntype gaintype biastype trnid actadr actnum outadr outnum ctrladr ctrlnum ctrllimited ctrlrange "
        "forcelimited forcerange actlimited actrange dynprm gainprm biasprm actearly gear damping armature delay"
    ),
    "sensor": "type datatype needstage objtype objid reftype refid dim adr cutoff",
}
_NAMED = {
    "body": "BODY", "joint": "JOINT", "geom": "GEOM", "site": "SITE", "tendon": "TENDON", "actuator": "ACTUATOR",
    "sensor": "SENSOR",
}  # fmt: skip

_SOURCES = (
    "body_mass body_inertia body_pos body_quat body_ipos body_iquat body_parentid jnt_type jnt_pos jnt_axis "
    "dof_armature geom_type geom_size site_pos wrap_prm qpos0"
)
"""Fields from which MuJoCo's compiler and `mj_setConst` derive others."""

_DERIVED = (
    "body_subtreemass body_invweight0 dof_invweight0 dof_M0 tendon_length0 tendon_invweight0 geom_rbound "
    "stat_meaninertia"
)
"""Fields that they derive."""


@dataclass(frozen=True, eq=False)
class Model:
    """Constants of one model. `model.body_mass`, `model.opt_timestep`, ...: arrays of `mjModel` by name, read-only.
    Models with the same content are equal.
    """

    arrays: Mapping[str, np.ndarray]
    labels: Mapping[str, tuple[str, ...]]  # names by kind: body, joint, geom, site, tendon, actuator, sensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __getattr__(self, name: str) -> Any:
        try:
            value = self.__dict__["arrays"][name]
        except KeyError:
            raise AttributeError(name) from None
        if value.ndim:
            return value
        return float(value) if value.dtype.kind == "f" else int(value)

    @classmethod
    def from_mjcf(cls, source: str | Path, edit: Callable[[Any], None] | None = None) -> Model:
        """Model of an MJCF file, or of the text of one; `edit` may change its `mujoco.MjSpec` before it is compiled.
        Raises MachineError without `mujoco` 4, ModelError for what it cannot read and for elements that the engine
        does not cover.
        """
        try:
            import mujoco
        except ImportError:
            raise MachineError("reading an MJCF model needs mujoco: pip install 'mujoco>=4,<5'") from None
        if not mujoco.__version__.startswith("4."):
            raise MachineError(
                f"reading an MJCF model needs mujoco 4, and {mujoco.__version__} is installed: "
                "pip install 'mujoco>=4,<5'"
            )
        text = str(source)
        # Otherwise warnings, such as of a deprecated attribute, go to stderr and to MUJOCO_LOG.TXT.
        mujoco.set_mju_user_warning(lambda warning: None)
        try:
            if edit is not None:
                spec = mujoco.MjSpec.from_string(text) if "<" in text else mujoco.MjSpec.from_file(text)
                edit(spec)
                compiled = spec.compile()
            elif "<" in text:
                compiled = mujoco.MjModel.from_xml_string(text)
            else:
                compiled = mujoco.MjModel.from_xml_path(text)
        except ValueError as error:
            raise ModelError(f"MuJoCo cannot read {'the model' if '<' in text else text}: {error}") from None
        finally:
            mujoco.set_mju_user_warning(None)
        return cls.from_compiled(compiled)

    @classmethod
    def from_compiled(cls, compiled: Any) -> Model:
        """Model of a `mujoco.MjModel`. Raises ModelError for elements that the engine does not cover."""
        import mujoco

        from operant.physics.coverage import refuse_uncovered, refuse_unread

        arrays = {name: np.array(getattr(compiled, name)) for name in _COUNTS.split()}
        arrays |= {f"opt_{name}": np.array(getattr(compiled.opt, name)) for name in _OPTIONS.split()}
        for group, names in _GROUPS.items():
            for name in names.split():
                arrays[f"{group}_{name}"] = np.array(getattr(compiled, f"{group}_{name}"))
        arrays |= {name: np.array(getattr(compiled, name)) for name in ("qpos0", "qpos_spring")}
        arrays["stat_meaninertia"] = np.array(compiled.stat.meaninertia)
        labels = {}
        for kind, constant in _NAMED.items():
            number = getattr(mujoco.mjtObj, f"mjOBJ_{constant}")
            count = getattr(compiled, "njnt" if kind == "joint" else f"n{kind}")
            labels[kind] = tuple(mujoco.mj_id2name(compiled, number, k) or "" for k in range(count))
        refuse_unread(compiled)
        model = cls(_frozen(arrays), labels)
        refuse_uncovered(model)
        return model

    @classmethod
    def load(cls, data: bytes) -> Model:
        """Model that `save` wrote. Raises BadFileError for other data."""
        try:
            content = zlib.decompress(data)
        except zlib.error:
            raise BadFileError("the compiled model of a robot is damaged, or another version wrote it") from None
        size = int.from_bytes(content[:4], "little")
        head, at, arrays = json.loads(content[4 : 4 + size]), 4 + size, {}
        for name, dtype, shape in head["arrays"]:
            value = np.frombuffer(content, dtype, math.prod(shape), at).reshape(shape)
            arrays[name], at = value, at + value.nbytes
        return cls(_frozen(arrays), {kind: tuple(names) for kind, names in head["labels"].items()})

    def save(self) -> bytes:
        """Content as a small file: a head of names and shapes as JSON, then the numbers, compressed."""
        arrays = [(name, value.dtype.str, value.shape) for name, value in self.arrays.items()]
        head = json.dumps({"labels": dict(self.labels), "arrays": arrays}).encode()
        numbers = b"".join(value.tobytes() for value in self.arrays.values())
        return zlib.compress(len(head).to_bytes(4, "little") + head + numbers, 9)

    def replace(self, **changes: Any) -> Model:
        """Copy with other values, of the same shapes. Raises ModelError for a name or a shape that does not fit, for
        a field from which MuJoCo's compiler derives others, such as the inverse weights from masses, and for values
        that the engine does not cover.
        """
        from operant.physics.coverage import refuse_uncovered

        arrays = dict(self.arrays)
        for name, value in changes.items():
            if name not in arrays:
                raise ModelError(f"a model has no field {name!r}; fields are those of mjModel, such as geom_friction")
            if name in (*_SOURCES.split(), *_DERIVED.split()):
                why = (
                    "MuJoCo derives other constants from it, such as inverse weights"
                    if name in _SOURCES.split()
                    else "MuJoCo derives it from masses, lengths and the initial pose"
                )
                raise ModelError(
                    f"{name} cannot be replaced: {why}. Change the MJCF file; or edit a mujoco.MjModel, call "
                    "mujoco.mj_setConst and read it by Model.from_compiled"
                )
            new = np.array(value, arrays[name].dtype)
            if new.shape != arrays[name].shape:
                raise ModelError(f"{name} has shape {arrays[name].shape}, not {new.shape}")
            arrays[name] = new
        changed = Model(_frozen(arrays), self.labels)
        refuse_uncovered(changed)
        return changed

    @functools.cached_property
    def digest(self) -> bytes:
        """Hash of the content, 32 bytes."""
        found = hashlib.sha256(json.dumps(dict(self.labels)).encode())
        for name, value in sorted(self.arrays.items()):
            found.update(f"{name} {value.dtype.str} {value.shape} ".encode() + value.tobytes())
        return found.digest()

    def names(self, kind: str) -> tuple[str, ...]:
        """Names of the elements of a kind: body, joint, geom, site, tendon, actuator or sensor; "" for none."""
        return self.labels[kind]

    def id(self, kind: str, name: str) -> int:
        """Number of the element `name` of a kind, which `names` lists. Raises ModelError for an unknown name."""
        if name not in self.labels[kind]:
            raise ModelError(f"the model has no {kind} {name!r}; it has {', '.join(filter(None, self.labels[kind]))}")
        return self.labels[kind].index(name)


def _frozen(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for value in arrays.values():
        if value.flags.writeable:
            value.flags.writeable = False
    return arrays
