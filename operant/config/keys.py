"""Keys of the configuration and fields of their models, read from the source text of the models. No algorithm and no
network is imported: torch takes seconds.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from operant import old_names
from operant.config.raw import Key, RawConfig

if TYPE_CHECKING:
    from pydantic import BaseModel

_PACKAGE = Path(__file__).resolve().parents[1]
_SECTIONS = {"run": "Run", "env": "Environment", "checkpoint": "Checkpoint", "eval": "Evaluation"}
_ELSEWHERE = ("sweep",)
_NETWORK, _SHARED = "nn/mlp.py", ("nn/actor_critic.py", "data/off_policy.py")
_TYPES = "data/replay.py"
"""File of a type of a shared field."""


@functools.cache
def known(algorithm: str = "") -> dict[str, list[str]]:
    """Return the valid keys by section, those of `[algo]` for one shipped algorithm ("": of all)."""
    fields = _fields("config/sections.py")
    sections = {section: fields[model] for section, model in _SECTIONS.items()}
    shared = _fields(*_SHARED)
    names = [algorithm] if algorithm else algorithms()
    own = [list(_fields(f"algos/{name}/config.py", shared=shared).values())[-1] for name in names]
    return {
        "run": sections["run"],
        "env": sections["env"],
        "algo": ["name", *dict.fromkeys(key for keys in own for key in keys)],
        "net": _fields(_NETWORK)["Config"],
        "checkpoint": sections["checkpoint"],
        "eval": sections["eval"],
    }


def algorithms() -> list[str]:
    """Return the names of the shipped algorithms, sorted."""
    return sorted(path.parent.name for path in (_PACKAGE / "algos").glob("*/config.py"))


def dotted() -> list[str]:
    """Return every key of the configuration as it is written, such as `algo.learning_rate`."""
    return [f"{section}.{key}" for section, names in known().items() for key in names]


def meant_by(word: str) -> str | None:
    """Return the configuration key that an option or a bare word such as `lr` or `learning-rate` means; None for any
    other word.
    """
    name = word.strip("-").replace("-", "_")
    if name in ("algo", "algorithm"):
        return "algo.name"
    synonym = old_names.SYNONYMS.get(name)
    named = [key for key in dotted() if key.partition(".")[2] == name]
    return named[0] if len(named) == 1 else synonym


def unknown(raw: RawConfig) -> Iterator[Key]:
    """Yield the keys of a raw configuration that no shipped algorithm has. The keys of a user's own algorithm are not
    checked.
    """
    sections, own = known(), raw.data.get("algo")
    name = own.get("name") if isinstance(own, dict) else None
    for section, table in raw.data.items():
        if section not in sections:
            if section not in _ELSEWHERE:
                yield (section,)
        elif isinstance(table, dict) and (section != "algo" or name is None or name in algorithms()):
            yield from ((section, key) for key in table if key not in sections[section])


@functools.cache
def model(algorithm: str = "") -> type[BaseModel]:
    """Return a model with the fields of `[algo]` for a shipped algorithm ("": of `[net]`): their types, defaults and
    ranges, without the methods and validators of the original.
    """
    from typing import Annotated, Literal

    import pydantic

    from operant import settings

    scope: dict[str, Any] = {"Annotated": Annotated, "Literal": Literal, "Field": pydantic.Field, "__name__": __name__}
    scope |= {name: getattr(settings, name) for name in ("Count", "Real", "Section")}
    files = (_TYPES, *_SHARED, f"algos/{algorithm}/config.py") if algorithm else (_NETWORK,)
    last = ""
    for file in files:
        for node in _statements(file):
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Literal["):
                kept: ast.stmt = node
            elif (
                isinstance(node, ast.ClassDef) and all(ast.unparse(base) in scope for base in node.bases) and node.bases
            ):
                body = [item for item in node.body if _field_name(item) is not None]
                kept = ast.ClassDef(node.name, node.bases, [], body or [ast.Pass()], [])
                last = node.name
            else:
                continue
            module = ast.fix_missing_locations(ast.Module([kept], type_ignores=[]))
            exec(compile(module, str(_PACKAGE / file), "exec", dont_inherit=True), scope)
    fields: type[BaseModel] = scope[last]
    return fields


def _fields(*files: str, shared: dict[str, list[str]] | None = None) -> dict[str, list[str]]:
    """Return the fields of each class in files of the package, by the class's name, with those of its bases. `shared`:
    fields of further base classes.
    """
    fields = dict(shared or {})
    for file in files:
        for node in _statements(file):
            if isinstance(node, ast.ClassDef):
                fields.pop(node.name, None)
                inherited = [name for base in reversed(node.bases) for name in fields.get(ast.unparse(base), ())]
                own = [name for item in node.body if (name := _field_name(item)) is not None]
                fields[node.name] = list(dict.fromkeys([*inherited, *own]))
    return fields


def _field_name(node: ast.stmt) -> str | None:
    """Return the name of the field that a statement of a class declares; None for any other statement."""
    if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
        return None
    private = node.target.id.startswith("_") or ast.unparse(node.annotation).startswith("ClassVar")
    return None if private else node.target.id


@functools.cache
def _statements(file: str) -> list[ast.stmt]:
    """Return the syntax tree's statements of a file of the package."""
    return ast.parse((_PACKAGE / file).read_text(encoding="utf-8")).body
