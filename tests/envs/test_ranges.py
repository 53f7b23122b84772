"""Parameters outside of their range are refused by every entry point with the same message; shipped environments work
within their ranges.
"""

import re
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numba import njit
from numpy import uint32
from toys import FILL, ORDINARY

from operant import cli, envs
from operant.compute import rng
from operant.compute.device import device_params
from operant.compute.kernel import bind
from operant.config import load as config
from operant.envs import declaration, ranges
from operant.errors import ConfigError, UsageError
from operant.worlds import lane
from operant.worlds.bounds import BoundsChecked, rollout_actions
from operant.worlds.device_world import DeviceWorld


class Params(NamedTuple):
    goal: int = 5
    tries: int = 3
    count: int = 0
    mass: float = 1.0
    pull: float = 0.5
    free: float = 0.0
    wind: bool = False


BOUNDED = envs.Env(
    Params,
    1,
    envs.Box(1),
    envs.Discrete(2),
    9,
    FILL.reset,
    FILL.step,
    FILL.observe,
    name="bounded",
    ranges={"goal": (1, 10_000), "tries": (1, None), "mass": (0.001, None), "pull": (None, 2.5)},
)
REFUSED = {
    "below a whole range": ("goal", 0, "input should be from 1 to 10_000 (got 0)"),
    "above a whole range": ("goal", 10_001, "input should be from 1 to 10_000 (got 10001)"),
    "below an open one": ("tries", -5, "input should be from 1 to 2_147_483_647 (got -5)"),
    "beyond an open one and int32": ("tries", 2**31, "input should be from 1 to 2_147_483_647 (got 2147483648)"),
    "beyond int32": ("count", 2**31, "input should be from -2_147_483_648 to 2_147_483_647 (got 2147483648)"),
    "below int32": ("count", -(2**31) - 1, "input should be from -2_147_483_648 to 2_147_483_647 (got -2147483649)"),
    "no mass": ("mass", 0.0, "input should be at least 0.001 (got 0.0)"),
    "a whole number for a float": ("mass", 0, "input should be at least 0.001 (got 0)"),
    "a hair too much": ("pull", 2.5000001, "input should be at most 2.5 (got 2.5000001)"),
    "not a number": ("pull", float("nan"), "input should be a finite number (got nan)"),
    "infinite": ("free", float("inf"), "input should be a finite number (got inf)"),
    "infinite below": ("free", float("-inf"), "input should be a finite number (got -inf)"),
    "beyond float32": ("free", 1e39, "input should fit into a float32 (at most 3.4e38) (got 1e+39)"),
}
TAKEN = [
    ("goal", 1),
    ("goal", 10_000),
    ("tries", 2**31 - 1),
    ("count", -(2**31)),
    ("mass", 0.001),
    ("mass", 1),
    ("pull", -1e30),
    ("pull", 2.5),
    ("wind", True),
]


def from_a_world(name, value):
    return DeviceWorld(BOUNDED, 1, seed=1, params=Params(**{name: value})).params


def from_make_vec(name, value):
    gym = pytest.importorskip("operant.worlds.gym")
    return gym.make_vec(BOUNDED, 1, seed=1, params={name: value}).world.params


@pytest.fixture
def from_a_configuration(monkeypatch):
    monkeypatch.setattr(envs, "find", lambda name: BOUNDED)
    return lambda name, value: config.load(None, [f"env.params.{name}={str(value).lower()}"]).params


# THE DOORS


@pytest.mark.parametrize(("name", "value", "sentence"), REFUSED.values(), ids=REFUSED)
def test_every_entry_point_refuses_with_the_same_message(name, value, sentence, from_a_configuration):
    for door in (from_a_world, from_make_vec):
        with pytest.raises(UsageError, match=f"^{re.escape(f'parameter {name!r} of bounded: {sentence}')}$"):
            door(name, value)
    with pytest.raises(ConfigError) as caught:
        from_a_configuration(name, value)
    assert caught.value.problems == (f"command line: env.params.{name}: {sentence}",)


@pytest.mark.parametrize(("name", "value"), TAKEN)
def test_every_entry_point_accepts_allowed_values(name, value, from_a_configuration):
    for door in (from_a_world, from_make_vec, from_a_configuration):
        params = door(name, value)
        assert params == Params()._replace(**{name: value}) and [type(got) for got in params] == [
            type(own) for own in Params()
        ]


def test_message_names_the_line_of_the_file(tmp_path):
    source = tmp_path / "mine.toml"
    source.write_text('[env]\nname = "platformer"\n[env.params]\nframes = 3\nsteps = 0\nspeed = 1\n')
    with pytest.raises(ConfigError) as caught:
        config.load(source)
    wrong = [
        "5: env.params.steps: input should be from 1 to 1_000_000 (got 0)",
        "6: env.params.speed: input should be from 0.00390625 to 0.49 (got 1)",
    ]
    assert [problem.partition("mine.toml:")[2] for problem in caught.value.problems] == wrong


@pytest.mark.parametrize("command", ["train", "config check", "config show"])
def test_command_line_exits_with_2_and_creates_nothing(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys,
        "argv",
        ["operant", *command.split(), "g2048", "env.params.patience=0", *(["--inline"] if command == "train" else [])],
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert (
        ended.value.code == 2
        and said.out == ""
        and "env.params.patience: input should be from 1 to 255 (got 0)" in said.err
    )
    assert "Traceback" not in said.err and [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"gaol": 1}, r"bounded has no parameter 'gaol' \(did you mean 'goal'\?\)"),
        ({"zzz": 1}, r"no parameter 'zzz' \(known here: goal, tries, count, mass, pull, free, wind\)"),
        ({"goal": 1.0}, r"input should be a whole number \(got 1.0\)"),
        ({"goal": True}, r"input should be a whole number \(got True\)"),
        ({"mass": "1"}, r"input should be a number \(got '1'\)"),
        ({"wind": 1}, r"input should be true or false \(got 1\)"),
        ({"goal": 10**5000}, r"from 1 to 10_000 \(got a number with too many digits\)"),
        ({"free": -(10**400)}, r"input should fit into a float32.*\(got -1000"),
        ([1, 2], r"params is \[1, 2\]: it must be a mapping"),
        (Params(goal=0, mass=0.0), r"'goal'.*\n.*'mass'"),
    ],
    ids=list("abcdefghij"),
)
def test_unknown_parameters_are_refused(given, sentence):
    with pytest.raises(UsageError, match=sentence):
        ranges.checked(BOUNDED, given)


def test_a_least_value_above_its_greatest_is_refused():
    with pytest.raises(UsageError, match=r"'healthy_z_min' of hopper: input should be at most healthy_z_max \(got 5"):
        ranges.checked(envs.find("hopper"), {"healthy_z_min": 5.0, "healthy_z_max": 1.0})


# DECLARATIONS


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ({"gaol": (0, 1)}, "ranges names 'gaol', which is not a parameter (did you mean 'goal'?)"),
        ({"goal": (9, 2)}, "the range of 'goal' is (9, 2): its least value is above its greatest"),
        ({"goal": (6, None)}, "the default of 'goal' is 5: input should be from 6 to 2_147_483_647, by its range"),
        ({"mass": (None, 0.5)}, "the default of 'mass' is 1.0: input should be at most 0.5, by its range"),
        ({"wind": (0, 1)}, "ranges names 'wind', a bool parameter, which cannot have a range"),
        (
            {"goal": (0.5, 9)},
            "the range of 'goal' is (0.5, 9): it must be the least and the greatest value, two whole numbers, None for "
            "unbounded",
        ),
        (
            {"mass": 3},
            "the range of 'mass' is 3: it must be the least and the greatest value, two numbers, None for unbounded",
        ),
        (
            {"mass": (0.0, float("nan"))},
            "the range of 'mass' is (0.0, nan): it must be the least and the greatest value, two numbers, None for "
            "unbounded",
        ),
        (
            ("goal", 1, 2),
            "ranges is ('goal', 1, 2): the least and the greatest value by parameter, such as {\"steps\": (1, None)}",
        ),
    ],
    ids=str,
)
def test_wrong_declarations_are_reported_everywhere(declared, sentence, monkeypatch):
    env = envs.Env(
        Params,
        1,
        envs.Box(1),
        envs.Discrete(2),
        9,
        FILL.reset,
        FILL.step,
        FILL.observe,
        name="bounded",
        ranges=declared,
    )
    assert sentence in declaration.declaration_problems(env)
    with pytest.raises(UsageError, match=re.escape(f"bounded: {sentence}")):
        DeviceWorld(env, 1, seed=1)
    monkeypatch.setattr(envs, "find", lambda name: env)
    with pytest.raises(ConfigError, match=re.escape(f"env.name: bounded: {sentence}")):
        config.load(None, ["env.name=bounded"])


def test_unrepresentable_defaults_are_reported():
    class Endless(NamedTuple):
        far: float = float("inf")

    env = envs.Env(Endless, 1, envs.Box(1), envs.Discrete(2), 9, FILL.reset, FILL.step, FILL.observe)
    assert "the default of 'far' is inf: input should be a finite number" in declaration.declaration_problems(env)


def test_ranges_do_not_affect_compiled_code():
    other = envs.Env(Params, 1, envs.Box(1), envs.Discrete(2), 9, FILL.reset, FILL.step, FILL.observe, name="bounded")
    assert other == BOUNDED and hash(other) == hash(BOUNDED)


# WHAT SHIPS


LANES = 64
SLACK = 1e-6  # of a bound, as `operant check` grants


class Player:
    """Lanes stepped like a world, between guard rows and with bounds checks; parameters are an argument of the compiled
    code.
    """

    def __init__(self, env):
        self.env, self.guarded = env, BoundsChecked(env, LANES)
        self.lanes, self.slot = bind(self.guarded.lanes), bind(self.guarded.slot)
        reset, step, show, show_final, judge, _ = lane._functions(env, None)  # parameters are an argument of the shell
        key_of, limit = lane._key, env.time_limit or 2**31 - 1

        @njit(boundscheck=True, error_model="numpy")
        def shell(begins, lanes, slot, p):
            for at in range(slot.reward.shape[0]):
                i, ended = uint32(at), begins
                if not begins:
                    reward, terminated = step(lanes, i, slot.action[:, i], p, key_of(lanes, i, 0, uint32(rng.STEP)))
                    lanes.age[i] += 1
                    slot.reward[i], ended = reward, terminated or lanes.age[i] >= limit
                    show_final(lanes, i, slot, p)
                if ended:
                    reset(lanes, i, p, key_of(lanes, i, 0, uint32(rng.RESET)))
                    lanes.age[i] = 0
                show(lanes, i, slot, p)
                judge(lanes, i, slot, p)

        self.shell = shell

    def fault(self, params, steps, bounds=True):
        """Description of the first fault under random and extreme actions, or None."""
        slot, generator, p = self.guarded.slot, np.random.default_rng(1), device_params(params)
        low, high = (torch.tensor(bound, dtype=torch.float32)[:, None] for bound in self.env.observation.bounds())
        slack = SLACK * torch.maximum(low.abs(), high.abs()).nan_to_num(posinf=0.0)
        for t in range(steps + 1):
            if t:
                slot.action.copy_(rollout_actions(self.env, generator, t, LANES, slot.legal))
            self.shell(t == 0, self.lanes, self.slot, p)
            self.guarded.lanes.tick.add_(1)
            if buffer := self.guarded.overwritten_buffer():
                return f"something was written beside {buffer} in step {t}"
            if not bool(slot.reward.isfinite().all()):
                return f"a reward is not finite in step {t}"
            for name, seen in (("observation", slot.observation), ("final observation", slot.final_observation))[
                : 1 + (t > 0)
            ]:
                wrong = ~seen.float().isfinite()
                if bounds:
                    wrong |= (seen.float() < low - slack) | (seen.float() > high + slack)
                if bool(wrong.any()):
                    row, column = wrong.nonzero()[0].tolist()
                    return f"{name}[{row}] is {float(seen[row, column])!r} in step {t}"
            if slot.legal is not None and not bool((slot.legal == 1).any(dim=0).all()):
                return f"nothing is legal in step {t}"
        return None


def values(env):
    """Each parameter at its minimum and maximum; unbounded ones at an extreme value."""
    for name, default in env.Params()._asdict().items():
        if isinstance(default, bool):
            yield from ((name, False), (name, True))
            continue
        far, bounds = 1000 if isinstance(default, int) else 1e6, env.ranges.get(name, (None, None))
        yield from (
            (name, type(default)(end if bound is None else bound))
            for end, bound in zip((-far, far), bounds, strict=True)
        )


QUICK = {"acrobot", "cartpole", "mountaincar", "pendulum"}  # to compile
SHIPPED = [
    pytest.param(name, marks=() if name == "cartpole" else pytest.mark.slow if name in QUICK else pytest.mark.soak)
    for name in ORDINARY  # a robot's parameters have no other limits than numbers
]


CLASSICS = {
    "acrobot",
    "cartpole",
    "cartpole_positions",
    "cartpole_continuous",
    "mountaincar",
    "mountaincar_continuous",
    "pendulum",
}
"""Environments whose observation bounds are Gymnasium's, for default parameters."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_environments_work_at_the_limits_of_their_ranges(name):
    """One parameter at a time. Several together may only lead an observation out of its bounds."""
    env = envs.find(name)
    player, defaults, generator = Player(env), env.Params(), np.random.default_rng(1)
    tried = list(values(env))
    assert player.fault(defaults, 300) is None
    faults = {
        f"{key} = {value}": player.fault(defaults._replace(**{key: value}), 300, bounds=name not in CLASSICS)
        for key, value in tried
    }
    for _ in range(50):
        several = dict(tried[k] for k in generator.permutation(len(tried))[: len(defaults)])
        faults[str(several)] = player.fault(defaults._replace(**several), 40, bounds=False)
    assert {case: fault for case, fault in faults.items() if fault} == {}


@pytest.mark.slow
def test_faults_beyond_the_ranges_are_detected():
    """Check of the test above: masses outside of their range give NaN, and a long step within its range leaves the
    declared bounds.
    """
    player = Player(envs.find("cartpole"))
    defaults = player.env.Params()
    assert player.fault(defaults, 50) is None
    massless = defaults._replace(mass_cart=0.0, mass_pole=0.0)
    assert "is nan" in player.fault(massless, 50) and "is nan" in player.fault(massless, 50, bounds=False)
    assert (
        "final observation[2] is" in player.fault(defaults._replace(tau=0.5), 50)
        and player.fault(defaults._replace(tau=0.5), 50, bounds=False) is None
    )
