"""JSON Schema of a configuration file, for editors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from operant import algos
from operant.config import recipes, sections
from operant.nn import mlp

_NUMBER = r"^\s*[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?[kMG]?\s*$"
_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}  # pydantic's names of bounds inside unions


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a configuration file, with the keys of every shipped algorithm."""
    choices = [_algorithm_schema(name, algos.load(name).Config) for name in algos.names()]
    parts = {name: _section_schema(model) for name, model in (sections.MODELS | {"net": mlp.Config}).items()}
    parts["algo"] = choices[0] if len(choices) == 1 else {"anyOf": choices}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Operant configuration",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            **{name: parts[name] for name in sections.SECTIONS},
            **{name: {"type": "object"} for name in sections.READ_ELSEWHERE},
            "format": {"type": "integer", "minimum": 1, "description": "Operant writes it into what it records."},
        },
    }


def _section_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a section from its pydantic model."""
    return _with_suffixes(model.model_json_schema())


def _algorithm_schema(name: str, model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of `[algo]` for one algorithm."""
    part, default = _section_schema(model), recipes.algorithm_of(recipes.ENVIRONMENT)
    description = {"description": "The algorithm; the other keys of this section are its own."}
    part["properties"] = {"name": {"const": name, "default": default, **description}, **part.get("properties", {})}
    if name != default:
        part["required"] = ["name", *part.get("required", ())]
    return part


def _with_suffixes(part: Any) -> Any:
    """Return a copy of a schema in which every number may also be a string with a suffix, such as "20M"."""
    if isinstance(part, list):
        return [_with_suffixes(item) for item in part]
    if not isinstance(part, dict):
        return part
    done = {_BOUNDS.get(key, key): _with_suffixes(value) for key, value in part.items()}
    if done.get("type") in ("integer", "number"):
        done |= {"type": [done["type"], "string"], "pattern": _NUMBER}
    return done
