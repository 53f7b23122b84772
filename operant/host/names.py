"""Names of outside environments: `KIND:ID`, or FILE.py:FUNCTION for a user's own. Standard library only."""

from __future__ import annotations

KINDS = {"gymnasium": "gym", "ale": "envs", "envpool": "envs"}
"""Kinds named `KIND:ID`, and the extra of this package that each needs."""


def kind_of(name: str) -> str | None:
    """Kind of the outside environment of this name: "gymnasium" for `gymnasium:LunarLander-v3`, "file" for
    `my_envs.py:make`; None for the name of any other environment.
    """
    head, colon, rest = name.partition(":")
    if colon and rest and head in KINDS:
        return head
    return "file" if file_of(name) is not None else None


def file_of(name: str) -> str | None:
    """Path of the file of a user's environment named `FILE.py:FUNCTION`; None for any other name."""
    path, colon, function = name.rpartition(":")
    return path if colon and path.endswith(".py") and function.isidentifier() else None


def short(name: str) -> str:
    """Shorten an outside environment's name by its kind, namespace and function: `LunarLander-v3`, `my_envs.py`. Other
    names are returned unchanged.
    """
    if (file := file_of(name)) is not None:
        return file
    return name.rpartition(":")[2].rpartition("/")[2] if kind_of(name) else name


def install_command(kind: str) -> str:
    """Shell command that installs the packages for a kind of outside environment."""
    return f'pip install "operant[{KINDS.get(kind, "gym")}]"'
