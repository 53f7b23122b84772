"""`operant check`: a valid file passes, and each kind of mistake has its own sentence."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from toys import FILL, FILL_IN_SHARDS, GATE, GATE_IN_SHARDS, ORDINARY

from operant import cli, envs
from operant.compute.numba_errors import summary
from operant.compute.ptx import float64_lines, undefined_calls
from operant.envs import Box, Discrete, IntState, MultiDiscrete, device
from operant.envs.declaration import declaration_problems
from operant.envs.language import language_problems, prints
from operant.errors import NotFoundError, OperantError
from operant.tools import check as module
from operant.tools.check import Finding, check
from operant.tools.rollouts import compare_devices, shards_apart
from operant.worlds.bounds import BoundsChecked, rollout_actions

GOOD = '''"""A point on a line that a push moves; it pays to stand at zero."""
import math
from typing import NamedTuple

import numpy as np
from numpy import float32

from operant.envs import Box, IntState, Discrete, Env, device, device_call
from operant.compute.rng import uniform

X, X_DOT, FIELDS = range(3)


class Params(NamedTuple):
    push: float = 0.1  # m/s^2


@device
def reset(s, p, key):
    s[X] = uniform(key, 0) - float32(0.5)
    s[X_DOT] = float32(0.0)


@device
def step(s, action, p, key, tally):
    s[X_DOT] += p.push * float32(action - 1)
    s[X] += s[X_DOT]
    return -abs(s[X]), abs(s[X]) > float32(2.0)


@device
def observe(s, obs, p):
    obs[0] = s[X]
    obs[1] = s[X_DOT]


@device
def pixel_shader(s, p, x, y):
    return x, y, float32(0.5)


ENV = Env(
    Params, FIELDS, observation=Box(2, low=-9.0, high=9.0), action=Discrete(3), time_limit=100,
    reset=reset, step=step, observe=observe, pixel_shader=pixel_shader
)
'''

MOVE = "    s[X] += s[X_DOT]\n"


@pytest.fixture
def findings(tmp_path, monkeypatch):
    """Check GOOD with replacements, for one architecture and without timing."""
    monkeypatch.setattr(module, "ARCHITECTURES", ((9, 0),))
    monkeypatch.setattr(module, "_measure_speed", lambda env: Finding("speed", True, "not measured"))

    def run(*replacements: tuple[str, str]) -> dict[str, Finding]:
        path = tmp_path / "mine.py"
        text = GOOD
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        return {finding.name: finding for finding in check(envs.load_file(path), lanes=32, steps=60)}

    return run


@pytest.mark.slow
def test_each_check_is_reported_before_its_finding(monkeypatch):
    monkeypatch.setattr(module, "ARCHITECTURES", ((9, 0),))
    monkeypatch.setattr(module, "_measure_speed", lambda env: Finding("speed", True, "not measured"))
    told = []
    for finding in check(FILL_IN_SHARDS, lanes=16, steps=20, report=told.append):
        told.append(finding)
    names = [item.name if isinstance(item, Finding) else item for item in told]
    looks = [item for item in told if isinstance(item, str)]
    assert (
        looks[:4] == ["compiles for the CPU", "compiles for CUDA", "keeps to its columns", "repeatable"]
        and looks[-1] == "speed"
    )
    for look in looks:
        assert isinstance(told[names.index(look) + 1], Finding) and names[names.index(look) + 1] == look, names


@pytest.mark.parametrize(("has_gpu", "word"), [(True, "warning"), (False, "note")])
def test_without_numba_cuda_the_check_for_gpus_is_left_out_with_the_remedy(monkeypatch, has_gpu, word):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    (finding,) = module.compiles_for_cuda(None)
    assert finding.passed and finding.word == word and "pip install 'operant[gpu]'" in finding.detail


@pytest.mark.slow
def test_a_good_file_passes_everything(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    found = {finding.name: finding for finding in check(envs.load_file(path), lanes=64, steps=120)}

    assert all(finding.passed for finding in found.values()), found
    assert list(found)[:3] == ["declaration", "compiles for the CPU", "compiles for CUDA"]
    assert {
        "float32 only",
        "keeps to its columns",
        "repeatable",
        "writes what it declares",
        "finite",
        "within bounds",
        "episodes end",
        "picture",
    } <= set(found)
    assert "sm_75, sm_86, sm_90, sm_100" in found["compiles for CUDA"].detail
    assert "time limit 100" in found["episodes end"].detail
    assert re.search(r"\d [kM] steps/s on ", found["speed"].detail)


SLOW = {"types that do not fit", "three values returned", "an argument short", "fewer observations declared"}
SLOW |= {"a parameter nobody knows", "one value returned", "no device function"}
SLOW |= {"its own random numbers", "more observations declared", "not a number, and a reset that forgets"}
SLOW |= {
    "a bare literal, bounds too narrow, a colour beyond one",
    "a mask",
    "no way out, and chance",
    "what is neither 0 nor 1, and float64",
    "a mask too long",
    "a mask too short",
}


def few(names):
    """Parameters whose slow ones run only in `.ci/run`."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in names]


PLACE = "mine.py:27"
COMPILES, COLUMNS, WRITES = "compiles for the CPU", "keeps to its columns", "writes what it declares"
SPILL = ("@device\ndef reset", "@device_call\ndef spill(s):\n    s[2] = float32(1.0)\n\n\n@device\ndef reset")

# numbers of nobody's seed
CHANCE = "import math", "import math, ctypes\n\ndraw = ctypes.CDLL(None).rand\ndraw.argtypes = ()"
COLOUR = "return x, y, float32(0.5)"

BROKEN = {  # what is replaced, and which findings then fail with which words
    "a name nobody knows": (
        [(MOVE, "    s[X] += s[X_DOTT]\n")],
        {COMPILES: [f"{PLACE} (`s[X] += s[X_DOTT]`)", "'X_DOTT' is not defined"]},
    ),
    "types that do not fit": (
        [(MOVE, '    s[X] += "a"\n')],
        {COMPILES: [PLACE, "No implementation of function", "float32"]},
    ),
    "a parameter nobody knows": ([("p.push", "p.pull")], {COMPILES: ["mine.py:26", "Unknown attribute 'pull'"]}),
    "one value returned": (
        [("return -abs(s[X]), abs(s[X]) > float32(2.0)", "return -abs(s[X])")],
        {COMPILES: ["two values"]},
    ),
    "three values returned": (
        [("return -abs(s[X]), abs", "return -abs(s[X]), True, abs")],
        {COMPILES: ["`step` must return two values"]},
    ),
    "an argument short": (
        [("action, p, key, tally", "action, p, key")],
        {"declaration": ["takes 4 arguments: it must be step(s, action, p, key, tally)"]},
    ),
    "no decorator": ([("@device\ndef observe", "def observe")], {"declaration": ["write @device above it"]}),
    "fewer observations declared": (
        [("Box(2", "Box(1")],
        {COLUMNS: ["mine.py:34 (`obs[1] = s[X_DOT]`)", "out of bounds"]},
    ),
    "a write from a helper": ([(MOVE, f"    spill(s)\n{MOVE}"), SPILL], {COLUMNS: ["written next to state"]}),
    "its own random numbers": (
        [(MOVE, "    s[X] += float32(draw()) * float32(1e-10)\n"), CHANCE],
        {"repeatable": ["step 1", "operant.compute.rng"]},
    ),
    "more observations declared": ([("Box(2", "Box(3")], {WRITES: ["leaves obs[2] unwritten", "declared size is 3"]}),
    "not a number, and a reset that forgets": (
        [(MOVE, "    s[X] = math.sqrt(s[X_DOT] - float32(3.0))\n"), ("    s[X_DOT] = float32(0.0)\n", "")],
        {
            "finite": ["observation[0] is nan after step 1 in lane 0"],
            WRITES: ["after `reset`, s[1] depends on", "the previous episode"],
        },
    ),
    "a bare literal, bounds too narrow, a colour beyond one": (
        [
            (MOVE, "    s[X] += s[X_DOT] * 0.5\n"),
            ("low=-9.0", "low=-0.6"),
            ("return x, y, float32(0.5)", "return x, y, float32(1.5)"),
        ],
        {
            "float32 only": [PLACE, "s[X] += s[X_DOT] * 0.5"],
            "within bounds": ["observation[0] is -", "outside the declared bounds"],
            "picture": [
                "`pixel_shader` returned (0.03125, 0.03125, 1.5) at x = 0.03125, y = 0.03125: red, green and blue must "
                "be within 0 to 1"
            ],
        },
    ),
}


@pytest.mark.parametrize("name", few(BROKEN))
def test_a_broken_file_gives_a_clear_sentence(name, findings, monkeypatch):
    replacements, expected = BROKEN[name]
    if "float32 only" not in expected:
        monkeypatch.setattr(module, "compiles_for_cuda", lambda guarded: [])
    found = findings(*replacements)

    assert {finding.name for finding in found.values() if not finding.passed} == set(expected)
    for finding, sentences in expected.items():
        for sentence in sentences:
            assert sentence in found[finding].detail
    for finding in found.values():
        assert "Traceback" not in finding.detail and "\n" not in finding.detail


# line that replaces MOVE: (code above the functions, expected message)
NO_KERNEL = {
    'raise ValueError("no")': ("", "a kernel cannot raise an error"),
    "assert s[X] < float32(9.0)": ("", "so it cannot use `assert`"),
    "s[X] += TABLE[1]": ("TABLE = {1: 0.5}", "TABLE is a dict"),
    "s[X] += ROW[1]": ("ROW = [0.0, 0.5]", "ROW is a list"),
    "s[X] += C.a": ("class C: a = 1.0", "C is a class"),
    "s[X] += helper(s)": ("def helper(s): return s[1]", "helper is plain Python: write @device above"),
    "global COUNT; COUNT += 1": ("COUNT = 0", "cannot change a global variable"),
    "while True: s[X] += s[X_DOT]": ("", "write `for _ in range(1000):` with a `break` in it"),
    'text = f"{s[X]}"': ("", "a kernel cannot format strings"),
    "box = np.zeros(3)": ("", "a kernel cannot allocate memory"),
    "pair = [s[X], s[X_DOT]]": ("", "a kernel cannot use a list"),
    "s[X] += float32(random.random())": ("import random", "use `uniform(key, 0)`"),
    "s[X] += float32(np.random.random())": ("", "use `uniform(key, 0)`"),
    "import os": ("", "write the import at the top of the file"),
    "s[X] += inner(s)": (
        "@device\ndef inner(s):\n    assert s[1] > float32(0.0)\n    return s[1]",
        "so it cannot use `assert`",
    ),
}


@pytest.mark.parametrize("line", NO_KERNEL)
def test_what_cannot_be_a_kernel_has_a_sentence_with_its_line(line, tmp_path, capsys, monkeypatch):
    above, sentence = NO_KERNEL[line]
    path = tmp_path / "mine.py"
    path.write_text(
        GOOD.replace(MOVE, f"    {line}\n").replace(
            "X, X_DOT, FIELDS = range(3)", f"{above}\nX, X_DOT, FIELDS = range(3)"
        )
    )
    monkeypatch.setattr(sys, "argv", ["operant", "check", str(path)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    said = capsys.readouterr().out.splitlines()[-1]
    where = "assert s[1] > float32(0.0)" if "inner" in line else line
    number = 1 + next(k for k, text in enumerate(path.read_text().splitlines()) if text.strip() == where)
    assert (
        said.startswith("problem  compiles for the CPU")
        and f"mine.py:{number} (`{where}`): " in said
        and sentence in said
    )


@pytest.mark.slow
def test_shipped_environments_hold_only_what_can_be_a_kernel():
    found = {name: (language_problems(envs.find(name)), prints(envs.find(name))) for name in ORDINARY}
    assert found == dict.fromkeys(ORDINARY, ([], []))


@pytest.mark.slow
def test_printing_and_never_ending_are_warnings(findings, monkeypatch, capsys):
    monkeypatch.setattr(module, "compiles_for_cuda", lambda guarded: [])
    endless = [
        ("time_limit=100", "time_limit=None"),
        ("abs(s[X]) > float32(2.0)", "False"),
        (", low=-9.0, high=9.0", ""),
    ]
    found = findings((MOVE, f"{MOVE}    print(s[X])\n"), *endless)
    assert capsys.readouterr().out == ""
    assert all(finding.passed for finding in found.values()), found
    warnings = {name: finding.detail for name, finding in found.items() if finding.warning}
    assert set(warnings) == {"prints", "episodes end"}
    assert "mine.py:28 (`print(s[X])`)" in warnings["prints"]
    assert warnings["episodes end"].startswith("none ended in 60 steps of 32 lanes, and there is no time limit; ")


SHADES = {  # `pixel_shader` alone: what it returns or does, and the sentence for it
    "math.sqrt(y - float32(2.0))": "`pixel_shader` returned (0.03125, 0.03125, nan) at x = 0.03125, y = 0.03125",
    "s[2]": "mine.py:39 (`return x, y, s[2]`): index 2 is out of bounds",
    "min(abs(s[int(y * float32(3.0))]), float32(1.0))": "index 2 is out of bounds",
    "blue": "mine.py:39 (`return x, y, blue`): NameError: name 'blue' is not defined",
    "float32(0.5), y": "`pixel_shader` must return three values, red, green and blue",
    "forget(s)": "`pixel_shader` writes into s, which belongs to training: it may only read",
    "s[X]": "",
}


@pytest.mark.parametrize("blue", SHADES)
def test_a_broken_shade_gives_a_clear_sentence(blue, tmp_path):
    path = tmp_path / "mine.py"
    helper = (
        "@device\ndef forget(s):\n    s[X] = float32(1.0)\n    return s[X]\n\n\n@device\ndef reset"
        if "forget" in blue
        else "@device\ndef reset"
    )
    path.write_text(GOOD.replace(COLOUR, f"return x, y, {blue}").replace("@device\ndef reset", helper))
    guarded = BoundsChecked(envs.load_file(path), 4)
    del guarded.calls["step"], guarded.calls["reset"]
    try:
        guarded.compile()
    except Exception as error:
        assert SHADES[blue] in summary(error)
    else:
        finding = module.picture(guarded)
        assert SHADES[blue] in finding.detail and finding.passed == (not SHADES[blue])


@pytest.mark.slow
def test_double_precision_of_a_shade_is_found_by_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ARCHITECTURES", ((9, 0),))
    path = tmp_path / "mine.py"
    path.write_text(GOOD.replace(COLOUR, "return x, y, x * 0.1"))
    guarded = BoundsChecked(envs.load_file(path), 4)
    del guarded.calls["step"], guarded.calls["reset"]
    guarded.compile()
    compiled, precision = module.compiles_for_cuda(guarded)
    assert compiled.passed and not precision.passed and "mine.py:39 (`return x, y, x * 0.1`)" in precision.detail


def test_what_cannot_go_on_stops_the_list(findings):
    assert list(findings((MOVE, "    s[X] += s[X_DOTT]\n"))) == ["declaration", "compiles for the CPU"]


@pytest.mark.slow
def test_what_a_gpu_does_not_know_fails_there_alone(findings):
    found = findings(
        (MOVE, "    s[X] += np.nextafter(s[X], s[X_DOT])\n"),
        ("s[X] = uniform(key, 0) - float32(0.5)", "s[X] = float32(0.5)"),
    )
    assert found["compiles for the CPU"].passed and not found["compiles for CUDA"].passed
    assert "nextafter" in found["compiles for CUDA"].detail


@pytest.mark.slow
def test_a_game_without_chance_is_sound_and_says_so(findings, monkeypatch):
    monkeypatch.setattr(module, "compiles_for_cuda", lambda guarded: [])
    found = findings(("uniform(key, 0) - float32(0.5)", "float32(0.25)"))
    assert found["repeatable"].passed and "draws no random numbers" in found["repeatable"].detail


@pytest.mark.slow
def test_grids_are_checked_with_their_int_state_and_workspace(findings, monkeypatch):
    to_grid = [
        (
            "def reset(s, p, key):",
            "def reset(s, ints, workspace, p, key):\n    for k in range(4):\n        ints[k] = 0",
        ),
        (
            "def step(s, action, p, key, tally):",
            "def step(s, ints, workspace, action, p, key, tally):\n    workspace[1] = action\n    "
            "ints[workspace[1]] += 1",
        ),
        ("def observe(s, obs, p)", "def observe(s, ints, workspace, obs, p)"),
        ("def pixel_shader(s, p, x, y)", "def pixel_shader(s, ints, p, x, y)"),
        ("Params, FIELDS,", 'Params, FIELDS, int_state=IntState(4, "int8"), workspace=2,'),
    ]
    found = findings(*to_grid)
    assert all(finding.passed for finding in found.values()), found

    monkeypatch.setattr(module, "compiles_for_cuda", lambda guarded: [])
    found = findings(
        *to_grid, ("    workspace[1] = action\n", "    s[X] += float32(workspace[1] % 7)\n    workspace[1] = action\n")
    )
    assert "values left by the workspace" in found["writes what it declares"].detail
    found = findings(*to_grid, ("ints[workspace[1]] += 1", "ints[workspace[1] + 2] += 1"))
    assert "out of bounds" in found["keeps to its columns"].detail


@device
def _shared_row(s, obs, p, shard):
    obs[shard] = 0
    obs[0] = shard


@device
def _reads_another(s, obs, p, shard):
    obs[shard] = 1 if shard == 0 else obs[0]


@device
def _moves_what_it_sees(s, cells, obs, p, shard):
    obs[2 * shard] = 0
    obs[2 * shard + 1] = 0
    cells[shard] += 1


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (replace(GATE_IN_SHARDS, observe=_shared_row), "shard 0 writes obs[0] differently from another shard"),
        (replace(GATE_IN_SHARDS, observe=_reads_another), "obs[1, 2] are not written by any shard alone"),
        (replace(FILL_IN_SHARDS, observe=_moves_what_it_sees), "writes into int_state: with shards they may only read"),
    ],
    ids=["a row of two shards", "a shard that waits for another", "a shard that plays"],
)
def test_dependent_shards_are_a_finding(env, words):
    assert words in (shards_apart(env, 8, 3) or "")


@pytest.mark.slow
def test_shards_are_checked_alone_and_together(monkeypatch):
    monkeypatch.setattr(module, "ARCHITECTURES", ((9, 0),))
    monkeypatch.setattr(module, "_measure_speed", lambda env: Finding("speed", True, "not measured"))
    found = {finding.name: finding for finding in check(FILL_IN_SHARDS, lanes=16, steps=20)}
    assert all(finding.passed for finding in found.values()), found
    assert "legal the whole mask, in 3 independent shards" in found[WRITES].detail
    assert declaration_problems(replace(GATE_IN_SHARDS, observation_shards=0)) == [
        "`observe` takes 4 arguments: it must be observe(s, obs, p)",
        "`legal` takes 4 arguments: it must be legal(s, mask, p)",
    ]
    assert declaration_problems(replace(FILL, observation_shards=3)) == [
        "`observe` is observe(s, cells, workspace, obs, p): where observation_shards is 3, it must be observe(s, ints, "
        "obs, p, shard)",
        "`legal` is legal(s, cells, workspace, mask, p): where observation_shards is 3, it must be legal(s, ints, "
        "mask, p, shard)",
    ]
    assert declaration_problems(replace(GATE_IN_SHARDS, observation_shards=-1)) == [
        "observation_shards is -1: a whole number, 0 or more"
    ]


LEGAL = (
    "@device\ndef legal(s, mask, p):\n    mask[0] = 1 if s[X] > float32(-1.0) else 0\n    mask[1] = 1\n    "
    "mask[2] = 1\n\n\nENV = Env(\n    legal=legal, "
)
MASKED = [("ENV = Env(\n    Params, FIELDS, ", LEGAL + "Params=Params, fields=FIELDS, ")]
MASKS = {
    "a mask": ([], {}),
    "what is neither 0 nor 1, and float64": (
        [("mask[2] = 1", "mask[2] = 2"), ("s[X] > float32(-1.0)", "s[X] * 0.5 > float32(-1.0)")],
        {"legal actions": ["mask[2] is 2 after step 0 in lane 0: 1 is legal"], "float32 only": ["mine.py:44"]},
    ),
    "no way out, and chance": (
        [("mask[1] = 1", "mask[1] = mask[0]"), ("mask[2] = 1", "mask[2] = mask[0] * (draw() % 2)"), CHANCE],
        {"legal actions": ["no action is legal after step"], "repeatable": ["the legal"]},
    ),
    "a mask too short": ([("    mask[2] = 1\n", "")], {WRITES: ["`legal` leaves mask[2] unwritten", "3 choices"]}),
    "a mask too long": ([("mask[2] = 1", "mask[3] = 1")], {COLUMNS: ["`mask[3] = 1`", "out of bounds"]}),
    "an argument too many": (
        [("legal(s, mask, p)", "legal(s, mask, p, key)")],
        {"declaration": ["`legal` takes 4 arguments: it must be legal(s, mask, p)"]},
    ),
    "no device function": (
        [("@device\ndef legal", "def legal")],
        {"declaration": ["`legal` is not a device function"]},
    ),
    "a push that cannot be illegal": (
        [("Discrete(3)", "Box(1)"), ("action - 1", "action[0]")],
        {"declaration": ["`legal` is for actions of Discrete"]},
    ),
}


@pytest.mark.parametrize("what", few(MASKS))
def test_broken_masks_are_findings(what, findings, monkeypatch):
    replacements, wanted = MASKS[what]
    if "float32 only" not in wanted:
        monkeypatch.setattr(module, "compiles_for_cuda", lambda guarded: [])
    found = findings(*MASKED, *replacements)
    assert {name for name, finding in found.items() if not finding.passed} == set(wanted), found
    for name, words in wanted.items():
        assert all(word in found[name].detail for word in words), found[name].detail
    if not wanted:
        assert re.search(
            r"always at least one, \d+% of actions legal; [1-9]\d* illegal ones", found["legal actions"].detail
        )
        assert "legal the whole mask" in found[WRITES].detail


@pytest.mark.soak
def test_a_masked_grid_passes(monkeypatch):
    monkeypatch.setattr(module, "compiles_for_cuda", lambda guarded: [])
    monkeypatch.setattr(module, "_measure_speed", lambda env: Finding("speed", True, "not measured"))
    found = list(check(FILL, lanes=32, steps=40))
    assert all(finding.passed for finding in found), found


def test_trial_actions_are_legal_in_every_other_lane_of_chance():
    generator, legal = np.random.default_rng(0), torch.tensor([[0, 1, 0, 0, 1]], dtype=torch.uint8).t().expand(5, 64)
    drawn = torch.stack([rollout_actions(GATE, generator, t, 64, legal) for t in range(20)])
    assert (drawn[:, 0, ::4] == 1).all() and (drawn[:, 1, ::4] == 1).all()
    assert set(drawn[:, 0, 2::4].flatten().tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"observation": Box(3, low=(0.0, 1.0))}, "observation has 3 values, but bounds for [2, 3]"),
        ({"observation": Box(4, dtype="float64")}, "float32 or uint8"),
        ({"observation": Discrete(4)}, "it must be a Box"),
        ({"observation": Box(4, shape=(2, 3))}, "does not hold 4 values"),
        ({"observation": Box(4, low=1.0, high=0.0)}, "lower bound above"),
        ({"action": MultiDiscrete((3, 0))}, "at least 1"),
        ({"action": None}, "Discrete, MultiDiscrete or a Box"),
        ({"time_limit": 0}, "time_limit is 0"),
        ({"fields": 0}, "fields is 0"),
        ({"int_state": IntState(9, "float32")}, "int8, uint8, int16 or int32"),
        ({"workspace": -1}, "workspace is -1"),
        ({"tally": "score"}, "a tuple of names"),
        ({"Params": dict}, "NamedTuple"),
        ({"Params": tuple}, "NamedTuple"),
        (
            {"observation": Box(4, dtype="uint8", categories=3)},
            "has 3 categories: they need dtype uint8 and values from 0 to 2",
        ),
        ({"observation": Box(4, low=0, high=2, categories=3)}, "they need dtype uint8"),
        ({"observation": Box(4, low=0, high=0, dtype="uint8", categories=(0, 1, 0, 0))}, "has 1 categories"),
        (
            {"observation": Box(4, low=0, high=9, dtype="uint8", categories=(0, 10, 0, 9))},
            "has 9 categories: they need dtype uint8 and values from 0 to 8",
        ),
        (
            {"observation": Box(4, low=0, high=2, dtype="uint8", categories=(3, 0, 3.0, 0))},
            "has categories (3, 0, 3.0, 0): a whole number for all",
        ),
        ({"observation": Box(4, low=0, high=2, dtype="uint8", categories=None)}, "has categories None"),
        (
            {"observation": Box(4, low=0, high=2, dtype="uint8", categories=(3, 0, 3))},
            "has 4 values, but categories for 3",
        ),
        (
            {"actions": ("left",)},
            "actions has 1 name, but action is Discrete(n=2): name all actions, or leave `actions` empty",
        ),
        ({"actions": ("left", "stay", "right")}, "actions has 3 names"),
        ({"actions": ["left", "right"]}, 'a tuple of names, such as ("left", "right")'),
        ({"actions": ("left", 2)}, "a tuple of names"),
        ({"actions": ("left", "Left")}, "a name twice: Left, left"),
        ({"action": Box(1), "actions": ("left", "right")}, "this action space is another"),
        ({"turns": 1}, "turns is 1"),
        ({"step_s": 0.0}, "step_s is 0.0: seconds, above 0"),
        ({"step_s": math.inf}, "step_s is inf"),
    ],
)
def test_broken_declarations_are_findings(change, sentence):
    env = envs.find("cartpole")
    assert declaration_problems(env) == []
    assert any(sentence in problem for problem in declaration_problems(replace(env, **change)))


def test_the_former_name_of_categories_is_refused_with_the_new_one():
    with pytest.raises(OperantError, match=r"called categories now: write Box\(categories=...\)"):
        Box(3, dtype="uint8", kinds=4)


def test_categories_that_are_alike_are_one_number():
    assert [
        Box(3, dtype="uint8", categories=categories).categories for categories in ([4, 4, 4], (0, 0, 0), (4, 0, 4))
    ] == [4, 0, (4, 0, 4)]
    assert [Box(3, dtype="uint8", categories=categories).columns for categories in (4, 0, (4, 0, 2))] == [12, 3, 7]


def test_trial_actions_stay_in_bounds_and_reach_them():
    generator = np.random.default_rng(0)
    for name, low, high in (("pendulum", -2.0, 2.0), ("acrobot", 0, 2)):
        drawn = torch.cat([rollout_actions(envs.find(name), generator, t, 64) for t in range(20)])
        assert float(drawn.min()) == low and float(drawn.max()) == high
        assert len(drawn[:, ::2].unique()) > 2


def test_the_same_device_twice_agrees_in_every_lane():
    for resynchronise in (False, True):
        assert compare_devices(envs.find("cartpole"), 32, 30, device="cpu", resynchronise=resynchronise) == (1.0, 0.0)


def test_instructions_and_symbols_are_read_from_the_text():
    ptx = (
        "\t.reg .f64 \t%fd<4>;\n\tadd.f64 %fd1, %fd2, %fd3;\n// .f64\n.extern .func  (.param .b32 r) "
        "vprintf\n.extern .func lost\n(\n);\n"
    )
    assert float64_lines(ptx) == ["add.f64 %fd1, %fd2, %fd3;"]
    assert undefined_calls(ptx) == ["lost", "vprintf"]
    assert "on the CPU only" in summary(RecursionError())


def test_a_file_that_cannot_be_imported_is_refused_before(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def broken(:\n")
    with pytest.raises(OperantError, match="could not be imported: SyntaxError"):
        envs.load_file(path)
    with pytest.raises(NotFoundError):
        envs.load_file(tmp_path / "other.py")
    with pytest.raises(NotFoundError, match="there is no environment file"):
        envs.load_file(tmp_path / f"{'x' * 300}.py")  # longer than a name may be
