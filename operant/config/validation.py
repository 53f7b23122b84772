"""Validation of one section of a raw configuration by its pydantic model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ValidationError

from operant.config import messages
from operant.config.raw import Key, RawConfig, quoted


def section(raw: RawConfig, name: str, model: type[BaseModel], example: str, unknown: Callable[[Key], None]) -> Any:
    """Validate section `name` of a raw configuration and return its model, or None after adding one problem to `raw`
    for each invalid value. `unknown` adds that of an unknown key; `example`: a key of the section, for messages.
    """
    data = raw.data.get(name, {})
    if not isinstance(data, dict):
        raw.problem(
            raw.location((name,)),
            f"{name} is a section of keys, such as {name}.{example}, not a value (got {quoted(data)})",
        )
        return None
    if name == "algo":
        data = {key: value for key, value in data.items() if key != "name"}
    # "none" unsets an optional key, since TOML has no null.
    data = {key: value for key, value in data.items() if not (value == "none" and _may_be_unset(model, key))}
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = list(messages.problems(error, data))
    # run.name=123 on the command line is meant as text, although it parses as a number.
    texts = {
        item.key[0]: raw.texts[(name, *item.key)]
        for item in problems
        if item.kind == "string_type" and (name, *item.key) in raw.texts
    }
    texts = {key: text for key, text in texts.items() if data[key] != text and not isinstance(data[key], list | dict)}
    if texts:
        raw.data[name] |= texts
        return section(raw, name, model, example, unknown)
    for item in problems:
        path = (name, *item.key)
        if item.kind == "extra_forbidden":
            unknown(path)
        else:
            got = "" if item.kind == "missing" else f" (got {quoted(item.value)})"
            raw.problem(raw.location(path), f"{messages.dotted(path)}: {item.message}{got}")
    return None


def _may_be_unset(model: type[BaseModel], key: str) -> bool:
    """Whether a key of a section's model is optional with the default None, such as run.target."""
    return (
        key in model.model_fields
        and not model.model_fields[key].is_required()
        and model.model_fields[key].default is None
    )
