"""Hash of all inputs to a function's compilation: bytecode, options, and everything it reaches by name, closure or
module.

Functions with equal fingerprints compile to the same code, given the same versions of Python, NumPy and numba, whose
own objects count by name only. Bytecode and values are hashed, never source text, which may have changed since import.
An object whose meaning is not determined by its value has no fingerprint: a wrong one would run stale code.
"""

from __future__ import annotations

import builtins
import dis
import functools
import hashlib
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba.core import types
from numba.core.dispatcher import Dispatcher

_VERSIONED = ("numba", "numba_cuda", "numpy", "llvmlite")
_ATOMS = (type(None), type(Ellipsis), bool, int, str, bytes)
_EXTENSIONS = "numba.core.extending"
_OWN = ("operant.compute.atomics", "operant.compute.machine_code", "operant.physics.local")
"""Modules of intrinsics and compilers that depend only on numba and llvmlite."""


class UnknownValueError(ValueError):
    """Error for an object that has no fingerprint (hash of its meaning); the message names the object."""


def fingerprint(value: Any) -> bytes:
    """Hash everything that a decorated function (a numba dispatcher) or a constant depends on: 32 bytes. Raises
    UnknownValueError for an object whose meaning its value does not determine.
    """
    walk = _Walk()
    walk.visit(value)
    return walk.digest()


class _Walk:
    """Traversal and hash of everything that a value reaches. Each hashed item is prefixed with its kind and length, so
    that different values cannot produce equal input.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._seen: dict[Any, int] = {}
        self._alive: list[Any] = []  # kept alive: an id must not be reused during the walk

    def digest(self) -> bytes:
        """Return the hash of everything visited so far, 32 bytes."""
        return self._hash.digest()

    def _hash_item(self, kind: str, data: bytes | str = b"") -> None:
        """Add one item to the hash, prefixed with its kind and length."""
        raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        self._hash.update(f"{kind} {len(raw)} ".encode() + raw)

    def _hash_all(self, kind: str, values: Iterable[Any], attributes: frozenset[str] = frozenset()) -> None:
        """Add a sequence of values to the hash, prefixed with its kind and length; of modules among them only the names
        in `attributes`.
        """
        values = list(values)
        self._hash_item(kind, str(len(values)))
        for value in values:
            self.visit(value, attributes)

    def _is_new(self, value: Any, *more: Any) -> bool:
        """Whether this is the first visit of `value` (together with `more`). If not, add a back-reference to the first
        visit to the hash.
        """
        key = (id(value), *more)
        if key in self._seen:
            self._hash_item("again", str(self._seen[key]))
            return False
        self._seen[key] = len(self._seen)
        self._alive.append(value)
        return True

    def visit(self, value: Any, attributes: frozenset[str] = frozenset()) -> None:
        """Add a value and everything that it references to the hash; of a module only the names in `attributes`. Raises
        UnknownValueError.
        """
        if type(value) in _ATOMS:
            self._hash_item(type(value).__name__, value if isinstance(value, (str, bytes)) else repr(value))
        elif type(value) is float:
            self._hash_item("float", struct.pack("<d", value))
        elif type(value) is complex:
            self._hash_item("complex", struct.pack("<dd", value.real, value.imag))
        elif isinstance(value, CodeType):
            self._hash_code(value)
        elif isinstance(value, FunctionType) and is_versioned(str(value.__globals__.get("__name__"))):
            self._hash_item("function", f"{value.__module__}.{value.__qualname__}")
        elif isinstance(value, ModuleType):
            self._hash_module(value, attributes)
        elif isinstance(value, type):
            self._hash_class(value)
        elif isinstance(value, Enum):
            self._hash_item("member", value.name)
            self._hash_class(type(value))
        elif isinstance(value, (tuple, list, frozenset, set, dict)):
            self._hash_collection(value)
        elif isinstance(value, (np.generic, np.ndarray, np.dtype, np.ufunc)):
            self._hash_numpy(value)
        elif _is_dispatcher(value):
            self._hash_dispatcher(value)
        elif hasattr(value, "_defn") and isinstance(getattr(value, "fingerprint", None), bytes):
            self._hash_item("program", value.fingerprint)  # an intrinsic that states what it depends on
        elif getattr(value, "__module__", None) in _OWN and hasattr(value, "_defn"):
            self._hash_item("intrinsic", value.__name__)
            self._hash_code(value._defn.__code__)
        elif isinstance(value, BuiltinFunctionType) and is_versioned(str(value.__module__)):
            self._hash_item("builtin", f"{value.__module__}.{value.__qualname__}")
        elif isinstance(value, (types.Number, types.Boolean)):
            self._hash_item("numba type", str(value))
        else:
            named = f" ({value.__qualname__})" if hasattr(value, "__qualname__") else ""
            raise UnknownValueError(f"a {type(value).__module__}.{type(value).__qualname__}{named}")

    # VALUES

    def _hash_collection(self, value: Any) -> None:
        """Add a tuple, list, dict or set to the hash. Raises UnknownValueError for a subclass of them other than a
        named tuple.
        """
        if isinstance(value, tuple):
            if type(value) is not tuple:
                self._hash_class(type(value))
            self._hash_all("tuple", value)
        elif type(value) is list:
            self._hash_all("list", value)
        elif type(value) is dict:
            self._hash_all("dict", (part for key in sorted(value, key=str) for part in (key, value[key])))
        elif type(value) in (set, frozenset):
            self._hash_item("set", b"".join(sorted(fingerprint(member) for member in value)))
        else:
            raise UnknownValueError(f"a {type(value).__qualname__}")

    def _hash_numpy(self, value: Any) -> None:
        """Add a NumPy scalar, array, dtype or ufunc to the hash. Raises UnknownValueError for an array of objects or an
        unknown ufunc.
        """
        if isinstance(value, np.ufunc):
            name = str(value.__name__)
            if getattr(np, name, None) is not value:
                raise UnknownValueError(f"the ufunc {name}")
            self._hash_item("ufunc", name)
        elif isinstance(value, np.dtype):
            self._hash_item("dtype", repr(value))
        elif type(value) not in (np.ndarray, *_SCALARS):
            raise UnknownValueError(f"a {type(value).__qualname__}")
        elif value.dtype.hasobject:
            raise UnknownValueError("an array of objects")
        else:
            layout = (value.dtype.str, value.dtype.descr, value.shape, value.strides, value.flags.writeable)
            self._hash_item(type(value).__name__, repr(layout))
            self._hash_item("data", value.tobytes())

    def _hash_class(self, value: type) -> None:
        """Add a class to the hash: one of Python, NumPy, numba or `_OWN` by name, a named tuple or an enumeration by
        its members. Raises UnknownValueError for any other class.
        """
        if is_versioned(value.__module__) or value.__module__ in _OWN:
            self._hash_item("class", f"{value.__module__}.{value.__qualname__}")
            return
        self._hash_item("class", value.__qualname__)
        if not self._is_new(value):
            return
        if issubclass(value, Enum):
            self._hash_all(
                "members", (part for name, member in value.__members__.items() for part in (name, member.value))
            )
        elif issubclass(value, tuple) and hasattr(value, "_fields"):
            self._hash_all("fields", value._fields)
            self.visit(getattr(value, "_field_defaults", {}))
        else:
            raise UnknownValueError(f"the class {value.__qualname__}")

    def _hash_module(self, module: ModuleType, attributes: frozenset[str]) -> None:
        """Add a module to the hash, with the values of the names in `attributes`. Raises UnknownValueError if it
        defines names dynamically.
        """
        self._hash_item("module", module.__name__)
        if is_versioned(module.__name__) or not self._is_new(module, attributes):
            return
        names = vars(module)
        if "__getattr__" in names:
            raise UnknownValueError(f"the module {module.__name__}, which defines its names dynamically")
        for name in sorted(attributes & names.keys()):
            self._hash_item("attribute", name)
            self.visit(names[name], attributes)

    # FUNCTIONS

    def _hash_dispatcher(self, dispatcher: Any) -> None:
        """Add a numba dispatcher to the hash: its options and its Python function."""
        self._hash_item("dispatcher", type(dispatcher).__qualname__)
        if self._is_new(dispatcher):
            self.visit(dispatcher.targetoptions)
            self.visit(getattr(dispatcher, "locals", {}))
            self.visit(dispatcher._compiler.pipeline_class)
            self._hash_function(dispatcher.py_func)

    def _hash_function(self, function: FunctionType) -> None:
        """Add the Python function of a dispatcher to the hash, with its defaults, globals and closure. Undecorated
        functions are not followed: numba calls one only through an extension, which is rejected.
        """
        namespace = function.__globals__
        if any(_extends_numba(value) for value in namespace.values()):
            raise UnknownValueError(
                f"the module {namespace.get('__name__')}, which extends numba: changes of the extension would "
                f"not be noticed"
            )
        code = function.__code__
        attributes = frozenset(name for part in _codes(code) for name in part.co_names)
        self._hash_code(code)
        self._hash_all("defaults", function.__defaults__ or ())
        self.visit(function.__kwdefaults__ or {})
        for name in sorted({name for part in _codes(code) for name in _global_names(part)}):
            self._hash_item("name", name)
            if name in namespace:
                self.visit(namespace[name], attributes)
            elif hasattr(builtins, name):
                self._hash_item("builtin", name)
        try:
            cells = [cell.cell_contents for cell in function.__closure__ or ()]
        except ValueError:
            raise UnknownValueError(f"a name of {function.__qualname__} that has no value yet") from None
        self._hash_all("cells", cells, attributes)

    def _hash_code(self, code: CodeType) -> None:
        """Add a code object to the hash, except its source position: a function may move within its file."""
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self._hash_item("code", code.co_code)
        self._hash_item(
            "code's names", repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, counts))
        )
        self._hash_item("code's handlers", getattr(code, "co_exceptiontable", b""))
        self._hash_all("code's constants", code.co_consts)


_SCALARS = tuple(scalar for scalar in np.sctypeDict.values() if isinstance(scalar, type))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code objects of a function and of its nested functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _global_names(code: CodeType) -> Iterator[str]:
    """Yield the global names that a code object loads."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)


def _is_dispatcher(value: Any) -> bool:
    """Whether a value is a dispatcher of numba or of numba-cuda. They share no class, and numba-cuda need not be
    imported.
    """
    return isinstance(value, Dispatcher) or (
        type(value).__qualname__ == "CUDADispatcher" and is_versioned(type(value).__module__)
    )


def _extends_numba(value: Any) -> bool:
    """Whether a module-level `value` gives access to numba's extension API."""
    if isinstance(value, ModuleType):
        return value.__name__ in ("numba", "numba.extending", _EXTENSIONS)
    return getattr(value, "__module__", None) == _EXTENSIONS


@functools.cache
def is_versioned(module: str) -> bool:
    """Whether a module changes only with the version of Python, NumPy or numba, so that its name identifies its
    content. A file that shadows a standard module does not.
    """
    root = module.partition(".")[0]
    if root in _VERSIONED:
        return True
    if root not in sys.stdlib_module_names:
        return False
    spec = getattr(sys.modules.get(root), "__spec__", None)
    origin = getattr(spec, "origin", None)
    if origin is None or origin in ("built-in", "frozen"):
        return origin is not None
    folders = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    path = Path(origin)
    return any(path.is_relative_to(folder) for folder in folders) and not {"site-packages", "dist-packages"} & set(
        path.parts
    )
