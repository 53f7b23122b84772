"""Import of a user's own Python file as a module, with old names translated (operant/old_names.py). Standard library
only.

Knows nothing of the contents, nor whether the file may be run (operant/config/trust.py).
"""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from operant import old_names


class _FromText(SourceFileLoader):
    """Loader that compiles the source text: cached bytecode in `__pycache__` may belong to an older text or another
    author.
    """

    def get_code(self, fullname: str) -> CodeType:
        return compile(old_names.translated(self.get_data(self.path), self.path), self.path, "exec", dont_inherit=True)


def load(path: Path, name: str) -> ModuleType:
    """Import a file as a new module named `name`. Raises whatever the file raises."""
    loader = _FromText(name, str(path))
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    loader.exec_module(module)
    return module
