"""Keys of the configuration, read from the source text of their models. Nothing of them is imported: torch takes
seconds.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from operant import old_names
from operant.config.raw import Key, RawConfig

_PACKAGE = Path(__file__).resolve().parents[1]
_SECTIONS = {"run": "Run", "env": "Environment", "checkpoint": "Checkpoint", "eval": "Evaluation"}
_ELSEWHERE = ("sweep",)


@functools.cache
def known(algorithm: str = "") -> dict[str, list[str]]:
    """Return the valid keys by section, those of `[algo]` for one shipped algorithm ("": of all)."""
    fields = _fields("config/sections.py")
    sections = {section: fields[model] for section, model in _SECTIONS.items()}
    shared = _fields("nn/actor_critic.py", "data/off_policy.py")
    names = [algorithm] if algorithm else algorithms()
    own = [list(_fields(f"algos/{name}/config.py", shared=shared).values())[-1] for name in names]
    return {
        "run": sections["run"],
        "env": sections["env"],
        "algo": ["name", *dict.fromkeys(key for keys in own for key in keys)],
        "net": _fields("nn/mlp.py")["Config"],
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


def _fields(*files: str, shared: dict[str, list[str]] | None = None) -> dict[str, list[str]]:
    """Return the fields of each class in files of the package, by the class's name, with those of its bases. `shared`:
    fields of further base classes.
    """
    fields = dict(shared or {})
    for file in files:
        for node in ast.parse((_PACKAGE / file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                fields.pop(node.name, None)
                fields[node.name] = _own_fields(node, fields)
    return fields


def _own_fields(node: ast.ClassDef, fields: dict[str, list[str]]) -> list[str]:
    """Return the fields that a class declares or inherits from bases in `fields`, in order."""
    inherited = [name for base in reversed(node.bases) for name in fields.get(ast.unparse(base), ())]
    own = [
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign)
        and isinstance(item.target, ast.Name)
        and not item.target.id.startswith("_")
        and not ast.unparse(item.annotation).startswith("ClassVar")
    ]
    return list(dict.fromkeys([*inherited, *own]))
