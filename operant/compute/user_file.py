"""Runs a user's own Python file as a module, also one written with the names of before (operant/old_names.py).

Standard library only; knows nothing of what is in it, or whether it may be run (operant/config/trust.py).
"""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from operant import old_names


class _FromText(SourceFileLoader):
    """Takes the text alone: compiled code that lies beside it, in `__pycache__`, may be of an older text, or of another
    author.
    """

    def get_code(self, fullname: str) -> CodeType:
        return compile(old_names.translated(self.get_data(self.path), self.path), self.path, "exec", dont_inherit=True)


def load(path: Path, name: str) -> ModuleType:
    """A new module of this name. Raises whatever the file does."""
    loader = _FromText(name, str(path))
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # where a dataclass of the file looks itself up
    loader.exec_module(module)
    return module
