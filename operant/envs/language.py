"""Python that an environment's functions must not contain, since they become kernels: found by reading their source,
each with its line and a way out.

Numba refuses some of it with words of its own, and some of it only for a GPU. Compiles and runs nothing.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Iterator
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
from numba.core.dispatcher import Dispatcher

from operant.compute.numba_errors import quoted
from operant.envs.base import Env

_NUMBERS = (
    "a kernel reads numbers and tuples of numbers only: write a constant of the file, a tuple, or a field of Params"
)
_MEMORY = "a kernel cannot ask for memory: use `workspace` or `int_state` of Env, or single numbers"
_NEVER_RAISE = "limit the number, or end the episode by returning True as `terminated`"

_STATEMENTS: dict[type[ast.AST], str] = {
    ast.Raise: f"a kernel cannot raise an error: {_NEVER_RAISE}",
    ast.Assert: f"a kernel cannot raise an error, so there is no `assert`: {_NEVER_RAISE}",
    ast.Try: "a kernel cannot catch an error: ask with `if` before it can happen",
    ast.With: "a kernel has no `with`: it reads and writes its arguments only",
    ast.Global: "a kernel cannot change a global variable: what a lane must remember belongs into s or int_state",
    ast.Nonlocal: "a kernel cannot change a variable outside of it: what a lane must remember belongs into s or "
    "int_state",
    ast.JoinedStr: "a kernel cannot make texts, so there is no f-string: leave it out",
    ast.Import: "a kernel cannot import: write the import at the top of the file",
    ast.ImportFrom: "a kernel cannot import: write the import at the top of the file",
    ast.ClassDef: "a kernel cannot define a class",
    ast.Yield: "a kernel cannot yield: return the values",
    ast.YieldFrom: "a kernel cannot yield: return the values",
    **dict.fromkeys((ast.Dict, ast.DictComp), f"a kernel has no dict; {_MEMORY}"),
    **dict.fromkeys((ast.Set, ast.SetComp), f"a kernel has no set; {_MEMORY}"),
    **dict.fromkeys(
        (ast.List, ast.ListComp), f"a kernel has no list: write a tuple, (a, b), where nothing changes; {_MEMORY}"
    ),
}
_ENDLESS = (
    "the loop has no bound, and a lane that never leaves it stops the run: write `for _ in range(1000):` with "
    "a `break` in it"
)
_RANDOM = "these random numbers are not those of the run's seed: write `uniform(key, 0)`, of operant.envs"
_ALLOCATING = tuple(
    getattr(np, name)
    for name in (
        "array",
        "asarray",
        "arange",
        "concatenate",
        "empty",
        "empty_like",
        "full",
        "full_like",
        "linspace",
        "ones",
        "ones_like",
        "stack",
        "zeros",
        "zeros_like",
    )
)


class Found(NamedTuple):
    """One place in an environment's functions."""

    function: Callable[..., Any]
    line: int
    sentence: str

    def __str__(self) -> str:
        return f"{quoted(self.function.__code__.co_filename, self.line)}: {self.sentence}"


def language_problems(env: Env) -> list[str]:
    """What none of an environment's functions may contain, a sentence for each place. Functions whose source cannot be
    found are left out.
    """
    found = [
        Found(function, node.lineno, sentence) for function in _functions(env) for node, sentence in _problems(function)
    ]
    return list(dict.fromkeys(map(str, found)))


def prints(env: Env) -> list[str]:
    """Lines that print, once for each lane and step."""
    places = [
        quoted(function.__code__.co_filename, node.lineno)
        for function in _functions(env)
        for node in _nodes(function)
        if isinstance(node, ast.Call) and _value(function, node.func) is print
    ]
    return list(dict.fromkeys(places))


def _functions(env: Env) -> Iterator[FunctionType]:
    """The Python under an environment's device functions and under those that they call, each once."""
    waiting = [env.reset, env.step, env.observe, env.pixel_shader, env.legal]
    seen: set[int] = set()
    while waiting:
        dispatcher = waiting.pop(0)
        if not isinstance(dispatcher, Dispatcher) or id(dispatcher) in seen:
            continue
        seen.add(id(dispatcher))
        yield dispatcher.py_func
        waiting += [
            _value(dispatcher.py_func, node)
            for node in _nodes(dispatcher.py_func)
            if isinstance(node, ast.Name | ast.Attribute)
        ]


def _nodes(function: FunctionType) -> list[ast.expr | ast.stmt]:
    """The syntax of a function's body, with the lines of its file; nothing where its source cannot be found."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return []
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    [definition] = tree.body
    if not isinstance(definition, ast.FunctionDef):
        return []
    return [
        node for statement in definition.body for node in ast.walk(statement) if isinstance(node, ast.expr | ast.stmt)
    ]


_NOTHING = object()


def _value(function: FunctionType, node: ast.AST) -> Any:
    """What a name or a chain of attributes stands for in a function, where that is no variable of its own."""
    if isinstance(node, ast.Attribute):
        owner = _value(function, node.value)
        return inspect.getattr_static(owner, node.attr, _NOTHING) if inspect.ismodule(owner) else _NOTHING
    if not isinstance(node, ast.Name) or node.id in function.__code__.co_varnames + function.__code__.co_cellvars:
        return _NOTHING
    if node.id in function.__code__.co_freevars:
        cell = (function.__closure__ or ())[function.__code__.co_freevars.index(node.id)]
        return cell.cell_contents
    return function.__globals__.get(node.id, getattr(builtins, node.id, _NOTHING))


def _problems(function: FunctionType) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    for node in _nodes(function):
        if sentence := _problem(function, node):
            yield node, sentence


def _problem(function: FunctionType, node: ast.expr | ast.stmt) -> str | None:
    """Why a kernel cannot hold a piece of syntax; None where nothing is known against it."""
    if isinstance(node, ast.Call):
        return _call_problem(_value(function, node.func))
    if isinstance(node, ast.While):
        return _ENDLESS if isinstance(node.test, ast.Constant) and node.test.value else None
    if isinstance(getattr(node, "ctx", None), ast.Store):
        return None
    if isinstance(node, ast.Name):
        return _global_problem(function, node.id, _value(function, node))
    return _STATEMENTS.get(type(node))


def _call_problem(called: Any) -> str | None:
    """Why a kernel cannot call something; None where nothing is known against it."""
    owner = (
        type(getattr(called, "__self__", None)).__module__
        if isinstance(called, MethodType | BuiltinFunctionType)
        else ""
    )
    if owner == "random" or owner.startswith("numpy.random"):
        return _RANDOM
    if any(called is function for function in _ALLOCATING):
        return _MEMORY
    return None


def _global_problem(function: FunctionType, name: str, value: Any) -> str | None:
    """Why a kernel cannot read a global value; None where nothing is known against it."""
    own = function.__globals__.get("__name__")
    if isinstance(value, dict | set | list):
        return f"{name} is a {type(value).__name__}: {_NUMBERS}"
    if isinstance(value, FunctionType) and value.__module__ == own:
        return f"{name} is plain Python: write @device above its definition"
    kind = value if isinstance(value, type) else type(value)
    if kind.__module__ == own and not issubclass(kind, tuple | Enum):
        return (
            f"{name} is {'a class' if isinstance(value, type) else f'an object of the class {kind.__name__}'}: "
            f"{_NUMBERS}"
        )
    return None
