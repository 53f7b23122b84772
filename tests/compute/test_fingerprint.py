"""Fingerprints of functions: what changes one, what does not, and what has none."""

from __future__ import annotations

import sys
import types

import pytest
from toys import ORDINARY

from operant import envs
from operant.compute.fingerprint import UnknownValueError, fingerprint, is_versioned
from operant.worlds.lane import reset_body, step_body

HELPERS = """
from numpy import float32
from operant.envs import device, device_call

RATE = 0.5

@device
def inner(x):
    return float32(x) * float32(3.0)

@device_call
def outer(x):
    return inner(x) + float32(1.0)
"""

RULES = """
import enum
import math
from typing import NamedTuple
import numpy as np
from numpy import float32
import helpers
from helpers import outer
from operant.envs import device

LIMIT = 7
ZERO = 0.0
TABLE = np.array([1, 2, 3], dtype=np.int32)
PAIR = (1, (2.5, "two"))
OTHER = 1

class Kind(enum.IntEnum):
    A = 1
    B = 2

class Point(NamedTuple):
    x: float
    y: float

ORIGIN = Point(1.0, 2.0)

def make(step):
    @device
    def body(i, out, offset, start=4):
        def twice(v):
            return v + v
        if i in {1, 2, 3}:
            out[i] = twice(start)
        total = outer(out[i]) + LIMIT + ZERO + TABLE[0] + PAIR[1][0] + ORIGIN.x + Kind.B
        for k in range(step):
            total += helpers.RATE * math.sin(total) + np.float32(1.0)
        out[i] = total
    return body

BODY = make(3)
"""


def load(name, text):
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(text, f"{name}.py", "exec"), vars(module))
    return module


@pytest.fixture
def body():
    """Body of an environment's rules, with its text and that of its helpers edited as given."""

    def make(*changes):
        texts = {"helpers": HELPERS, "rules": RULES}
        for name, old, new in changes:
            assert old in texts[name]
            texts[name] = texts[name].replace(old, new)
        load("helpers", texts["helpers"])
        return load("rules", texts["rules"]).BODY

    yield make
    for name in ("helpers", "rules"):
        sys.modules.pop(name, None)


CHANGES = {
    "its own code": ("rules", "v + v", "v * v"),
    "a literal": ("rules", "np.float32(1.0)", "np.float32(1.5)"),
    "a set of literals": ("rules", "{1, 2, 3}", "{1, 2, 4}"),
    "a closure's value": ("rules", "make(3)", "make(4)"),
    "a closure's type": ("rules", "make(3)", "make(True)"),
    "a default": ("rules", "start=4", "start=5"),
    "a constant": ("rules", "LIMIT = 7", "LIMIT = 8"),
    "a constant's type": ("rules", "LIMIT = 7", "LIMIT = 7.0"),
    "a constant's sign": ("rules", "ZERO = 0.0", "ZERO = -0.0"),
    "a constant that is no number": ("rules", "ZERO = 0.0", "ZERO = float('nan')"),
    "an array's content": ("rules", "[1, 2, 3]", "[1, 2, 4]"),
    "an array's type": ("rules", "dtype=np.int32", "dtype=np.uint32"),
    "an array's shape": ("rules", "np.array([1, 2, 3]", "np.array([[1, 2, 3]]"),
    "an array's layout": ("rules", "dtype=np.int32)", "dtype=np.int32)[::1][::-1][::-1][::2]"),
    "a list": ("rules", "LIMIT = 7", "LIMIT = [7]"),
    "deep in a tuple": ("rules", '"two"', '"three"'),
    "a named tuple's value": ("rules", "Point(1.0, 2.0)", "Point(1.0, 3.0)"),
    "a named tuple's fields": ("rules", "x: float\n    y: float", "y: float\n    x: float"),
    "an enumeration": ("rules", "B = 2", "B = 3"),
    "a helper's code": ("helpers", "+ float32(1.0)", "- float32(1.0)"),
    "a helper's helper": ("helpers", "float32(3.0)", "float32(4.0)"),
    "a module's constant": ("helpers", "RATE = 0.5", "RATE = 0.25"),
    "how a helper is called": ("helpers", "@device_call", "@device"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_fingerprint_changes_with_every_input_of_the_compilation(body, change):
    before = fingerprint(body())
    assert fingerprint(body()) == before
    assert fingerprint(body(change)) != before


SAME = {
    "its place in the file": ("rules", "LIMIT = 7", "\n\n# a comment\n\nLIMIT = 7"),
    "a constant it does not reach": ("rules", "OTHER = 1", "OTHER = 2"),
    "a comment in it": ("rules", "total = outer", "# once\n        total = outer"),
    "an attribute it does not reach": ("helpers", "RATE = 0.5", "RATE = 0.5\nMORE = object()"),
    "a function it does not reach": ("helpers", "RATE = 0.5", "RATE = 0.5\ndef plain(): pass"),
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_the_fingerprint_ignores_what_is_not_compiled(body, change):
    assert fingerprint(body(change)) == fingerprint(body())


UNKNOWN = {
    "an object": ("rules", "LIMIT = 7", "LIMIT = object()"),
    "an undecorated function": (
        "rules",
        "@device\n    def body",
        "def plain():\n        return 1\n    LIMIT = plain\n    @device\n    def body",
    ),
    "an undecorated helper": ("helpers", "@device_call\ndef", "def"),
    "a class": ("rules", "LIMIT = 7", "class LIMIT: pass"),
    "an instance of a tuple's kind": ("rules", "LIMIT = 7", "class Odd(tuple): pass\nLIMIT = Odd((7,))"),
    "an array of objects": ("rules", "dtype=np.int32", "dtype=object"),
    "a module that makes up names": ("helpers", "RATE = 0.5", "RATE = 0.5\ndef __getattr__(name): return 1"),
    "an extension of numba": ("helpers", "RATE = 0.5", "from numba.extending import overload\nRATE = 0.5"),
    "numba itself": ("rules", "import math", "import math, numba"),
    "a ufunc of one's own": ("rules", "LIMIT = 7", "LIMIT = np.frompyfunc(len, 1, 1)"),
}


@pytest.mark.parametrize("change", UNKNOWN.values(), ids=UNKNOWN)
def test_values_without_a_defined_meaning_have_no_fingerprint(body, change):
    with pytest.raises(UnknownValueError):
        fingerprint(body(change))


def test_an_unbound_name_has_no_fingerprint():
    text = (
        "from operant.envs import device\ndef make():\n    @device\n    def body(i):\n        return later\n    "
        "yield body\n    later = 1\n"
    )
    namespace = load("late", text)
    with pytest.raises(UnknownValueError, match="no value yet"):
        fingerprint(next(namespace.make()))
    del sys.modules["late"]


def test_mutually_recursive_functions_have_a_fingerprint():
    text = (
        "from operant.envs import device_call\n@device_call\ndef a(n):\n    return b(n - {}) if n > 0 else "
        "0\n@device_call\ndef b(n):\n    return a(n - 1)\n"
    )
    one, same, other = (load("turns", text.format(step)).a for step in (1, 1, 2))
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)
    del sys.modules["turns"]


PAIRS = [
    ((1, 2), (12,)),
    (("a", "b"), ("ab",)),
    (((1,), 2), (1, (2,))),
    ([1], (1,)),
    (1, True),
    ("1", b"1"),
    ((), None),
    ("", None),
]


@pytest.mark.parametrize("one, other", PAIRS, ids=str)
def test_different_values_have_different_fingerprints(one, other):
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.slow
def test_each_environment_and_its_parameters_have_distinct_fingerprints():
    found = set()
    for name in ORDINARY:
        env = envs.find(name)
        for params in (env.Params(), env.Params(*(type(value)(value * 2) for value in env.Params()))):
            found |= {
                fingerprint(step_body(env, params)),
                fingerprint(step_body(env, params, False)),
                fingerprint(reset_body(env, params)),
            }
    assert len(found) >= 5 * len(ORDINARY)  # a reset need not look at parameters


def test_a_file_with_the_name_of_a_standard_module_is_not_one(tmp_path, monkeypatch):
    assert all(map(is_versioned, ["math", "builtins", "os.path", "numpy", "numba.core.types"]))
    assert not any(map(is_versioned, ["operant.compute.rng", "torch", "helpers"]))
    (tmp_path / "this.py").write_text("X = 1\n")  # `this` is a standard module
    monkeypatch.syspath_prepend(tmp_path)
    import this

    is_versioned.cache_clear()
    try:
        assert not is_versioned("this") and this.X == 1
    finally:
        is_versioned.cache_clear()
        del sys.modules["this"]
