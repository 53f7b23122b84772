"""Static checks of an environment's functions for Python that a kernel cannot contain. Each message has the line and a
remedy.

Numba's own messages for the same errors are obscure, and some of them appear only when compiling for a GPU. Compiles
and runs nothing.
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

from operant.compute.numba_errors import source_line
from operant.envs.base import Env

_NUMBERS = (
    "a kernel reads only numbers and tuples of numbers: use a constant of the file, a tuple, or a field of Params"
)
_MEMORY = "a kernel cannot allocate memory: use `workspace` or `int_state` of Env, or single numbers"
_NEVER_RAISE = "clamp the value, or end the episode by returning True as `terminated`"

_STATEMENTS: dict[type[ast.AST], str] = {
    ast.Raise: f"a kernel cannot raise an error: {_NEVER_RAISE}",
    ast.Assert: f"a kernel cannot raise an error, so it cannot use `assert`: {_NEVER_RAISE}",
    ast.Try: "a kernel cannot catch an error: test the condition with `if` first",
    ast.With: "a kernel cannot use `with`: it only reads and writes its arguments",
    ast.Global: "a kernel cannot change a global variable: store it in s or int_state",
    ast.Nonlocal: "a kernel cannot change a variable outside of it: store it in s or int_state",
    ast.JoinedStr: "a kernel cannot format strings: remove the f-string",
    ast.Import: "a kernel cannot import: write the import at the top of the file",
    ast.ImportFrom: "a kernel cannot import: write the import at the top of the file",
    ast.ClassDef: "a kernel cannot define a class",
    ast.Yield: "a kernel cannot yield: return the values",
    ast.YieldFrom: "a kernel cannot yield: return the values",
    **dict.fromkeys((ast.Dict, ast.DictComp), f"a kernel cannot use a dict; {_MEMORY}"),
    **dict.fromkeys((ast.Set, ast.SetComp), f"a kernel cannot use a set; {_MEMORY}"),
    **dict.fromkeys(
        (ast.List, ast.ListComp), f"a kernel cannot use a list: write a tuple, (a, b), for constants; {_MEMORY}"
    ),
}
_ENDLESS = (
    "the loop has no bound, and a lane that never leaves it hangs the run: write `for _ in range(1000):` with "
    "a `break` in it"
)
_RANDOM = "these random numbers do not depend on the run's seed: use `uniform(key, 0)` from operant.envs"
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


class Finding(NamedTuple):
    """Python code in an environment's function that a kernel cannot contain: the function, the line and a message with
    a remedy.
    """

    function: Callable[..., Any]
    line: int
    message: str

    def __str__(self) -> str:
        return f"{source_line(self.function.__code__.co_filename, self.line)}: {self.message}"


def language_problems(env: Env) -> list[str]:
    """Check an environment's functions for Python that a kernel cannot contain; returns one message per line of code,
    [] if there is none. Functions without source are skipped.
    """
    findings = [
        Finding(function, node.lineno, message) for function in _functions(env) for node, message in _problems(function)
    ]
    return list(dict.fromkeys(map(str, findings)))


def prints(env: Env) -> list[str]:
    """Find source lines of an environment's functions that call `print`, which would run for each lane and step; [] if
    there are none.
    """
    lines = [
        source_line(function.__code__.co_filename, node.lineno)
        for function in _functions(env)
        for node in _nodes(function)
        if isinstance(node, ast.Call) and _value(function, node.func) is print
    ]
    return list(dict.fromkeys(lines))


def _functions(env: Env) -> Iterator[FunctionType]:
    """Yield the Python source functions of an environment's compiled functions (`reset`, `step`, `observe`,
    `pixel_shader`, `legal`) and of all compiled functions that they call, each once, callers first.
    """
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
    """Parse a function's source and return the syntax nodes of its body, with line numbers of the file; [] if there is
    no source.
    """
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
    """Look up the value of a global or closure name, or a chain of attributes, in a function; `_NOTHING` for local
    variables and unknown names.
    """
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
    """Yield each syntax node of a function that a kernel cannot contain, with a message."""
    for node in _nodes(function):
        if message := _problem(function, node):
            yield node, message


def _problem(function: FunctionType, node: ast.expr | ast.stmt) -> str | None:
    """Message for a syntax node of a function if a kernel cannot contain it; None if it can."""
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
    """Message for a call of the function `called` if a kernel cannot make it; None if it can."""
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
    """Message for the `value` of global `name`, used in a function, if a kernel cannot read it; None if it can."""
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
