"""Commands about environments, configurations and this machine: `envs`, `check`, `doctor`, `config`."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from operant import similar
from operant.cli import completion
from operant.cli.common import (
    TYPER,
    ConfigOption,
    EnvOption,
    JsonOption,
    Overrides,
    RootOption,
    TrustOption,
    Words,
    consented,
    out,
    print_json,
    print_table,
    say,
)
from operant.errors import NotFoundError, OperantError, UsageError

if TYPE_CHECKING:
    from operant.config.load import Origin
    from operant.tools.check import Finding
from operant.text import safe

app = typer.Typer(**TYPER)
config_app = typer.Typer(**TYPER, help="Show, check and describe configurations.")
app.add_typer(config_app, name="config")

_MOST_NAMED = 8  # action names in a table row

EnvironmentFile = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py",
        help="a file that exports ENV, a shipped name, gymnasium:ID, or a robot's model FILE.xml",
        autocompletion=completion.environments,
    ),
]


@app.command("envs")
def list_envs(as_json: JsonOption = False) -> None:
    """List the shipped environments."""
    from operant import envs
    from operant.config import recipes

    rows = []
    for name in envs.names():
        env, recipe = envs.find(name), recipes.recipe(recipes.algorithm_of(name), name)
        rows.append(
            {
                "name": name,
                "gymnasium": env.gymnasium,
                "observation": _space(env.observation),
                "action": _space(env.action),
                "actions": list(env.actions),
                "masked": bool(env.mask_size),
                "draws": env.pixel_shader is not None,
                "turns": env.turns,
                "step_s": envs.step_seconds(env, env.Params()),
                "time_limit": env.time_limit,
                "tally": list(env.tally),
                "params": env.Params()._asdict(),
                "ranges": {parameter: list(bounds) for parameter, bounds in env.ranges.items()},
                "config": recipes.name_of(recipe) if recipe is not None else None,
            }
        )
    if as_json:
        print_json(rows)
        return
    heads = ("name", "gymnasium", "observation", "action", "time_limit", "config")
    cells = [
        (*(str(row[head]) if row[head] is not None else "-" for head in heads), _action_text(row["actions"]))
        for row in rows
    ]
    print_table((*heads, "actions"), cells)
    say("parameters (env.params.NAME=value) with their ranges: operant envs --json")
    say(
        "outside environments: --env gymnasium:LunarLander-v3, ale:pong, my_envs.py:make (a function that returns a "
        "gymnasium.Env)"
    )


def _action_text(actions: list[str]) -> str:
    """Join the names of an environment's actions; of more than eight, the first two and the last. "-" without names."""
    if len(actions) > _MOST_NAMED:
        actions = [*actions[:2], "...", actions[-1]]
    return " ".join(actions) or "-"


def _space(space: Any) -> str:
    """Format an observation or action space: Box(4), Discrete(2), MultiDiscrete(3, 5)."""
    if hasattr(space, "size"):
        return f"Box({space.size}{'' if space.dtype == 'float32' else f', {space.dtype}'})"
    return f"{type(space).__name__}({', '.join(map(str, space.n)) if isinstance(space.n, tuple) else space.n})"


@app.command()
def check(file: EnvironmentFile, as_json: JsonOption = False) -> None:
    """Check an environment against the contract, or a robot model.

    A model is a file FILE.xml; the check names each of its elements that is not covered.
    """
    from operant import envs
    from operant.config import recipes
    from operant.host import names

    examine: Callable[..., Iterator[Finding]]
    env: Any
    try:
        if names.kind_of(file) is not None:
            from operant.config import load as configuration
            from operant.tools.check_outside import check as examine

            env = configuration.load(None, [f"env.name={file}"]).environment
        elif file.endswith(".xml"):
            from operant.tools.check_model import check as examine

            env = Path(file)
            if not env.is_file():
                raise NotFoundError(f"there is no model file {file!r}")
        else:
            from operant.tools.check import check as examine

            env = envs.find(file)
    except KeyError:
        if file.endswith(".toml") or file in recipes.shipped():
            raise UsageError(similar.configuration_given(file)) from None
        others = "your own file (my_env.py), an outside one (gymnasium:ID, my_envs.py:make), a model (robot.xml)"
        raise UsageError(similar.unknown_environment(file, envs.names(), others=others)) from None
    except OperantError as error:
        raise (
            error if error.exit_code != 1 else UsageError(str(error))
        ) from None  # a file without an environment is a usage error
    if as_json:
        findings = list(examine(env))
        print_json({"schema": 1, "findings": [finding._asdict() for finding in findings]})
        sound = all(finding.passed for finding in findings)
    else:
        sound = print_findings(examine, env)
    if not sound:
        raise typer.Exit(UsageError.exit_code)


def print_findings(examine: Callable[..., Iterator[Finding]], env: Any) -> bool:
    """Run the checks that `examine(env)` yields and print each result at once, on a terminal also the running check.
    Returns whether all passed.
    """
    from operant.display.progress import Screen

    screen, sound = Screen(sys.stdout), True

    def report(name: str) -> None:
        if screen.is_terminal:
            screen.show(f"{'...':8} {name}"[: screen.columns])

    try:
        for finding in examine(env, report=report):
            screen.end()
            out(
                f"{finding.word:8} {finding.name:26} {finding.detail}",
                flush=True,
            )
            sound &= finding.passed
    finally:
        screen.end()
    return sound


@app.command()
def doctor(
    links: Annotated[
        bool,
        typer.Option(
            "--links", help="show the links between GPUs, and command lines to train one run on several GPUs or hosts"
        ),
    ] = False,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Check that this machine can train, and suggest fixes."""
    from operant import runs
    from operant.tools import doctor as examination

    if links:
        from operant.tools import interconnect

        findings = interconnect.examine()
    else:
        findings = examination.examine(runs.root(root))
    if as_json:
        print_json({"schema": 1, "findings": [finding._asdict() for finding in findings]})
    else:
        for finding in findings:
            advice = f"  ->  {finding.advice}" if finding.advice else ""
            out(safe(f"{finding.status:8} {finding.name:11} {finding.found}{advice}", 400))
    if any(finding.status == examination.PROBLEM for finding in findings):
        raise typer.Exit(4)


_SITE: Final = Path(__file__).resolve().parent.parent / "site"
"""Built documentation: `mkdocs build -f docs/mkdocs.yml` writes it here, and a wheel contains it."""


@app.command("docs")
def show_documentation(
    page: Annotated[
        str,
        typer.Argument(metavar="[PAGE]", help="a page, such as monitor or algorithms/ppo", show_default=False),
    ] = "index",
    as_path: Annotated[bool, typer.Option("--path", help="print the file's path, open nothing")] = False,
) -> None:
    """Open the documentation of the installed version.

    The pages are files of the installation, and need no network. Without a graphical display, their path is printed.
    """
    import difflib
    import webbrowser

    if not _SITE.is_dir():
        raise NotFoundError(
            f"{_SITE} does not exist: this installation has no built pages. In a clone, "
            "`pip install -e '.[docs]'` and `mkdocs build -f docs/mkdocs.yml` build them"
        )
    pages = {path.relative_to(_SITE).with_suffix("").as_posix(): path for path in sorted(_SITE.glob("**/*.html"))}
    wanted = page.removesuffix(".html").removesuffix(".md")
    found = [name for name in pages if name == wanted] or [name for name in pages if name.endswith(f"/{wanted}")]
    if not found:
        by_title = {part: name for name in pages for part in (name, name.rpartition("/")[2])}
        similar = dict.fromkeys(by_title[word] for word in difflib.get_close_matches(wanted, by_title, n=3))
        raise NotFoundError(
            f"no page named {safe(page, 80)}" + (f"; did you mean {' or '.join(similar)}?" if similar else "")
        )
    out(pages[found[0]])
    if not as_path and sys.stdout.isatty() and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        webbrowser.open(pages[found[0]].as_uri())


@config_app.command("show")
def config_show(
    words: Words = None,
    config: ConfigOption = None,
    env: EnvOption = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print every key with its description, value and source."""
    from operant.config import request

    asked = request.make(words or (), config=config, environment_file=env, settings={})
    say(*asked.notes)
    found = consented(trust, asked.origins)
    if as_json:
        values = {
            origin.key: {"value": origin.value, "origin": origin.origin, "description": origin.description or None}
            for origin in found
        }
        print_json({"schema": 1, "values": values})
    else:
        show_origins(found, descriptions=True)


@config_app.command("list")
def config_list(as_json: JsonOption = False) -> None:
    """List the shipped recipes, which `--config` accepts by name."""
    from operant.config import recipes

    rows = [
        {"name": name, "path": str(path), "description": _first_sentence(path)}
        for name in recipes.shipped()
        for path in (recipes.find_source(name),)
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(("name", "description"), [(row["name"], row["description"]) for row in rows])


def _first_sentence(file: Path) -> str:
    """First sentence of the comment at the head of a configuration file."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    return re.split(r"(?<=\.)\s", " ".join(line.removeprefix("#").strip() for line in lines), maxsplit=1)[0]


@config_app.command("check")
def config_check(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="a TOML file, or a shipped recipe's name", autocompletion=completion.configurations
        ),
    ],
    overrides: Overrides = None,
    trust: TrustOption = False,
) -> None:
    """Print every problem of a configuration, or `ok`."""
    from operant.config import request

    asked = request.make(overrides or (), config=file, environment_file=None, settings={})
    say(*asked.notes)
    consented(trust, asked.load)
    out("ok")


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON Schema of configurations, for editors."""
    from operant.config.schema import schema

    print_json(schema())


def show_origins(origins: Iterable[Origin], *, descriptions: bool = False) -> None:
    """Print a configuration as TOML, with the source of each value as a comment. `descriptions`: also print each key's
    description.
    """
    section = ""
    for key, value, origin, description in origins:
        head, _, rest = key.partition(".")
        if head != section:
            out(*([""] if section else []), f"[{head}]")
            section = head
        if descriptions and description:
            out(f"# {description}")
        line = f"# {rest} is not set" if value is None else f"{rest} = {_toml(value)}"
        out(f"{line:40} # {safe(origin, 400)}")


def _toml(value: Any) -> str:
    """Format a value as TOML."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (str, bool)) else repr(value)
