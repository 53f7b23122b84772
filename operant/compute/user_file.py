"""Import of a user's own Python file as a module, with old names translated (operant/old_names.py). Standard library
only.

`load` does not check whether the file may be run (operant/config/trust.py).
"""

from __future__ import annotations

import sys
import traceback
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from operant import old_names

_IMPORTS = {
    "np": "import numpy as np",
    "torch": "import torch",
    "gymnasium": "import gymnasium",
    "gym": "import gymnasium as gym",
    "spaces": "from gymnasium import spaces",
    "float32": "from numpy import float32",
    "int32": "from numpy import int32",
    "uint32": "from numpy import uint32",
    **{name: f"import {name}" for name in ("math", "numpy", "numba", "random", "os")},
}
"""Import statements by the names that they define."""
_EXTRAS = {"gymnasium": "gym", "ale_py": "envs", "envpool": "envs", "mujoco": "mujoco", "dm_control": "dmc"}
"""Extras of Operant that install a module, by the module's name."""


def problem(error: BaseException, path: Path) -> str:
    """Describe an error that a user's file raised, in one sentence: the last line of the file that it passed and, for
    an undefined name, the import that defines it, for a missing module the extra that installs it.
    """
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} (line {error.lineno})"
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)]
    where = f" (line {lines[-1]})" if lines else ""
    if isinstance(error, ImportError):
        extra = _EXTRAS.get(error.name or "") if isinstance(error, ModuleNotFoundError) else None
        hint = f": pip install 'operant[{extra}]'" if extra else ""
    else:
        hint = import_hint(getattr(error, "name", None))
    return f"{type(error).__name__}: {error}{where}{hint}"


def import_hint(name: str | None) -> str:
    """Suffix of a message about an undefined name: the import that defines it; "" if none is known."""
    return f": add `{_IMPORTS[name]}`" if name in _IMPORTS else ""


class _FromText(SourceFileLoader):
    """Module loader that always compiles the source text. Cached bytecode in `__pycache__` may belong to an older text
    or another author.
    """

    def get_code(self, fullname: str) -> CodeType:
        return compile(old_names.translated(self.get_data(self.path), self.path), self.path, "exec", dont_inherit=True)


def load(path: Path, name: str) -> ModuleType:
    """Import a user's file as a new module named `name`, and return the module. Raises whatever the file raises."""
    loader = _FromText(name, str(path))
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    loader.exec_module(module)
    return module
