"""MkDocs hooks: pages and tables generated from the code.

Generated pages: one per environment, from its docstring and declaration; the commands, from the command line's help;
the configuration, from its sections; the Python interface, from docstrings. Written pages can use these placeholders:
`{{ keys NAME }}` is the table of a section's keys ("run", "net", "ppo" ...), `{{ docstring MODULE }}`, `{{ file PATH
}}`, `{{ notebook PATH }}` and `{{ monitor_keys }}` insert what they name, `{{ results }}` is the table of recipes and
their results, `{{ zoo }}` that of benches/zoo.toml, `{{ policies }}`
that of the pretrained policies, `{{ figures NAME }}` explains the metrics of an algorithm, and
`{{ faults }}` is the table of tests/FAULTS.md without its column of tests. Page layout is the theme's.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from numba.core.dispatcher import Dispatcher
from typer.main import get_command

from monitor.screen.keys import KEYS
from operant import algos, envs
from operant.algos.base import Threshold, metric_specs
from operant.cli import program
from operant.config import recipes, sections
from operant.config.load import load
from operant.envs import Box, Discrete, Env
from operant.nn import mlp
from operant.runs import zoo as pretrained
from operant.sweep import plan
from operant.text import count

HOME = Path(__file__).resolve().parent.parent

PYTHON = (
    ("operant.library", "Runs and policies for programs and notebooks: the interface of `import operant`."),
    ("operant.gym", 'Environments for Gymnasium and Stable-Baselines3. Needs `pip install "operant[gym]"`.'),
    ("operant.envs", "Imports for an environment's file."),
    ("operant.algos.simple", "Base classes of an algorithm in one file, as `operant.algos.OnPolicy` and `OffPolicy`."),
    ("operant.algos.base", "Interface of an algorithm."),
    ("operant.runs", "Runs on disk, without torch."),
    ("operant.runs.metrics", "The metrics file: writer, reader, and declarations of metrics."),
    ("operant.errors", "Errors for users, with their exit codes."),
)
"""Modules of the Python reference, with a description of each."""
DEVICES = {"cpu": "CPU", "gpu": "GPU"}
"""Kinds of devices in benches/zoo.toml, with their titles."""
SECONDS = {"cpu": "2 cores: s", "gpu": "GPU: s"}
"""Titles of the columns of seconds in the zoo's table."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {
        "reference/commands.md": commands(),
        "reference/configuration.md": configuration(),
        "reference/python.md": python(),
        **environments(),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    for picture in sorted((HOME / "benches" / "pictures").iterdir()):
        files.append(File.generated(config, f"pictures/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the placeholders of a page."""
    fillers = {
        "keys": keys,
        "docstring": docstring,
        "file": file,
        "faults": faults,
        "figures": figures,
        "monitor_keys": monitor_keys,
        "notebook": notebook,
        "policies": policies,
        "results": results,
        "zoo": zoo,
    }
    return re.sub(r"(?m)^\{\{ (\w+) ?(\S*) \}\}$", lambda found: fillers[found[1]](*found[2].split()), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Mark the cells with a number, such as 332.9 ± 3.9, 5.01 M or 2.6e-5: the style keeps them on one line."""
    number = r"[-+]?[\d.,]+(?:e-?\d+)?(?: ± [\d.,]+)?(?: [%kMGs])?"
    return re.sub(rf"<td>({number})</td>", r'<td class="number">\1</td>', html)


def docstring(module: str) -> str:
    """Docstring of a module as Markdown."""
    return paragraphs(importlib.import_module(module).__doc__ or "")


def notebook(path: str) -> str:
    """Cells of a notebook as Markdown, without the title."""
    cells = json.loads((HOME / path).read_text(encoding="utf-8"))["cells"]
    texts = [
        "".join(part["source"]) if part["cell_type"] == "markdown" else f"```python\n{''.join(part['source'])}\n```"
        for part in cells
    ]
    return "\n\n".join(text for text in texts if not text.startswith("# "))


def file(path: str) -> str:
    """Python file of the checkout as a code block."""
    return f"```python\n{(HOME / path).read_text(encoding='utf-8')}```"


# TABLES


def cell(text: object) -> str:
    """Text escaped for a table cell."""
    return str(text).replace("|", "\\|").replace("\n", " ")


def table(head: tuple[str, ...], rows: Iterator[tuple[object, ...]] | list[tuple[object, ...]]) -> str:
    """Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(cell(value) for value in row) + " |" for row in rows)])


def section(name: str) -> Any:
    """Model of a configuration section, or of an algorithm by name."""
    if name in algos.names():
        return algos.load(name).Config
    return {**sections.MODELS, "net": mlp.Config, "sweep": plan.Settings}[name]


def keys(name: str) -> str:
    """Table of a section's keys."""
    return table_of(section(name), "algo" if name in algos.names() else name)


def monitor_keys() -> str:
    """Table of the monitor's keys."""
    return table(("key", "", ""), [(f"`{key.shown or key.keys}`", key.words, key.group) for key in KEYS])


def table_of(model: Any, prefix: str) -> str:
    """Table of a model's keys: default, allowed values, description."""
    properties = model.model_json_schema()["properties"]
    rows: list[tuple[object, ...]] = [
        (f"`{prefix}.{key}`", f"`{default(field)}`", allowed(properties[key]), field.description or "")
        for key, field in model.model_fields.items()
    ]
    return table(("key", "default", "allowed", "description"), rows)


def default(field: Any) -> str:
    """Default of a key in TOML notation."""
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(list(value) if isinstance(value, tuple) else value)


KINDS = {
    "integer": "whole number",
    "number": "number",
    "boolean": "`true`, `false`",
    "string": "text",
    "array": "list",
    "object": "table",
}


def allowed(schema: dict[str, Any]) -> str:
    """Short description of the values that a JSON schema allows."""
    if "anyOf" in schema:
        return " or ".join(
            dict.fromkeys(words for part in schema["anyOf"] if part.get("type") != "null" and (words := allowed(part)))
        )
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = KINDS.get(schema.get("type", ""), "")
    low = next(
        (f"{sign} {schema[key]}" for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">")) if key in schema), ""
    )
    high = next(
        (f"{sign} {schema[key]}" for key, sign in (("maximum", "≤"), ("exclusiveMaximum", "<")) if key in schema), ""
    )
    return " ".join(part for part in (kind, ", ".join(part for part in (low, high) if part)) if part)


def faults() -> str:
    """Table of faults and guarantees: tests/FAULTS.md without its column of tests."""
    lines = (HOME / "tests" / "FAULTS.md").read_text(encoding="utf-8").splitlines()
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in lines if re.match(r"\| \d", line)]
    return table(("fault", "guarantee"), [(row[1], row[2]) for row in rows])


def zoo() -> str:
    """Make the documentation's table of what the recipes return, from benches/zoo.toml."""
    return zoo_table(tomli.loads((HOME / "benches" / "zoo.toml").read_text(encoding="utf-8")))


def zoo_table(measured: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Make a Markdown table of what recipes return and take on two CPU cores and on a GPU, from the document of
    benches/zoo.toml. Below it stand the machines, and the recipes that were not measured. A kind of device without a
    row has no column.
    """
    kinds = [kind for kind in DEVICES if any(kind in entry for entry in measured.values())]
    head = ("recipe", "return", "at the target", "steps", *(SECONDS[kind] for kind in kinds), "settings")
    absent: dict[str, list[str]] = {}
    for recipe in recipes.shipped():
        if recipe not in measured:
            algorithm, _, name = recipe.partition("/")
            absent.setdefault(algorithm, []).append(f"`{name}`")
    # A recipe that no run finished names no machine.
    rows = [(kind, row) for entry in measured.values() for kind, row in entry.items() if "device" in row]
    machines = {kind: sorted({row["device"] for owner, row in rows if owner == kind}) for kind in kinds}
    parts = [
        table((*head, "version, commit"), [zoo_row(recipe, entry, kinds) for recipe, entry in measured.items()]),
        *(f"{DEVICES[kind]}: {'; '.join(machines[kind])}." for kind in kinds),
        *(["Not measured yet:"] if absent else []),
        "\n".join(f"- `{algorithm}/`: {', '.join(names)}" for algorithm, names in absent.items()),
    ]
    return "\n\n".join(part for part in parts if part)


def zoo_row(recipe: str, entry: dict[str, dict[str, Any]], kinds: list[str]) -> tuple[object, ...]:
    """Row of the zoo's table, with seconds on `kinds` of devices; where values of CPU and GPU differ, a line for
    each.
    """
    cells = []
    for value in (returned, reached, stepped, settings, versioned):
        found = {DEVICES[kind]: value(row) for kind, row in entry.items()}
        same = len(set(found.values())) == 1 and value is not returned
        lines = [text if same or len(found) == 1 else f"{kind}: {text}" for kind, text in found.items() if text != ""]
        cells.append("<br>".join(lines[:1] if same else lines) or "-")
    return (f"`{recipe}`", *cells[:3], *(seconds(entry.get(kind)) for kind in kinds), *cells[3:])


def returned(row: dict[str, Any]) -> str:
    """Mean return, half its interval, and the seeds."""
    if "mean_return" not in row:
        return "-"
    interval = f" ± {row['ci95']:.2g}" if "ci95" in row else ""
    return f"{row['mean_return']:.4g}{interval} ({row['seeds']})"


def reached(row: dict[str, Any]) -> str:
    """Number of seeds at the target."""
    return f"{row['solved']} at {row['target']:g}" if "solved" in row else ""


def stepped(row: dict[str, Any]) -> str:
    """Steps until the checkpoint."""
    return count(row["steps"]) if "steps" in row else ""


def settings(row: dict[str, Any]) -> str:
    """Keys of the recipe that a row's command overrides, with their values, a line each."""
    words = row["command"].split(" --config ")[1].split(" --seeds ")[0].split()[1:]
    return "<br>".join(f"`{word}`" for word in words)


def versioned(row: dict[str, Any]) -> str:
    """Version and commit of the code."""
    return " ".join(filter(None, (row["version"], row.get("commit"))))


def seconds(row: dict[str, Any] | None) -> str:
    """Seconds of training and of the whole command on a device, the load of a busy machine or a dash if it was not
    recorded, the runs that shared the GPU, and the seeds that were ended.
    """
    if row is None:
        return "-"
    parts = []
    if "wall_s" in row:
        training = f"{row['training_s']:.3g}" if "training_s" in row else "-"
        parts.append(f"{training} / {row['wall_s']:.3g}")
        if "load" not in row:
            parts.append("load -")
        elif row["load"] > row["machine_cores"]:
            parts.append(f"load {row['load']:.0f} on {row['machine_cores']} cores")
        if "beside" in row:
            parts.append(f"beside {row['beside']} other{'s' * (row['beside'] > 1)}")
    if "unfinished" in row:
        parts.append(f"{row['unfinished']} not finished in {row['unfinished_s']}")
    return ", ".join(parts) or "-"


def policies() -> str:
    """Table of the pretrained policies."""
    rows: list[tuple[object, ...]] = []
    for name in pretrained.names():
        about = pretrained.about(name)
        mean = f"{about['return']:.4g} ± {about['ci95']:.2g}"
        version = f"{about['version']} {about['commit']}"
        extra = f" (extra `{about['extra']}`)" if "extra" in about else ""
        rows.append((f"`zoo:{name}`{extra}", mean, count(about["step"]), f"`{about['command']}`", version))
    return table(("policy", "return", "steps", "trained by", "version, commit"), rows)


def figures(name: str) -> str:
    """Table of an algorithm's metrics: explanation, and the bounds beyond which the monitor marks them."""
    module: Any = importlib.import_module(f"operant.algos.{name}.{name}")
    rows = []
    for spec in metric_specs(module.Stats, module.DETAILS):
        mildest = {rule.advice or spec.advice: rule for rule in spec.thresholds}  # the last rule with an advice
        marks = [f"{range_of(rule)}: {advice}" for advice, rule in mildest.items()]
        if spec.explanation or marks:
            rows.append((f"{spec.label or spec.name}", spec.explanation, "<br>".join(marks)))
    return table(("figure", "meaning", "marked, and what to try"), rows)


def range_of(rule: Threshold) -> str:
    """Range of a threshold, and the part of the run in which it applies."""
    low = "" if rule.at_least is None else f"≥ {rule.at_least:g}"
    high = "" if rule.below is None else f"< {rule.below:g}"
    times = {"minute": " times the last minute's", "highest": " of its highest"}.get(rule.relative_to, "")
    after = f", after {rule.after:.0%} of the run" if rule.after else ""
    return f"{' and '.join(filter(None, (low, high)))}{times}{after}"


def results() -> str:
    """Table of the shipped recipes: environment, spaces, when the task counts as solved, seconds until then."""
    measured = tomli.loads((HOME / "benches" / "results.toml").read_text(encoding="utf-8"))
    rows: list[tuple[object, ...]] = []
    for recipe in sorted(recipes.shipped(), key=lambda name: name.partition("/")[::-1]):
        run = load(recipes.find_source(recipe))
        entry = measured.get(recipe, {})
        solved = entry.get("solved") or ("" if run.run.target is None else f"mean return {run.run.target:g}")
        name, spaces = f"`{run.environment.name}`", ("", "")
        if run.env.name in envs.names():
            env = envs.find(run.env.name)
            name, spaces = f"[{name}](environments/{run.env.name}.md)", (observed(env), acted(env))
        rows.append((f"`{recipe}`", name, *spaces, solved, entry.get("h200_s", "")))
    return table(("recipe", "environment", "observation", "action", "solved at", "seconds on an H200"), rows)


# PAGES


def configuration() -> str:
    """Page with every section and its keys."""
    parts = [
        "# Configuration",
        "All keys, generated from the code. `operant config show` prints them with the values of a run and their "
        "origins.",
    ]
    for name in ("run", "env", "net", "checkpoint", "eval"):
        parts += [f"## [{name}]", first_line(section(name)), keys(name)]
    for name in algos.names():
        parts += [f'## [algo], name = "{name}"', f"See [{name.upper()}](../algorithms/{name}.md).", keys(name)]
    return "\n\n".join(parts)


def commands() -> str:
    """Page with every command and its options, from the help texts."""
    parts = [
        "# Commands",
        "Generated from the commands' help. Exit codes are in [When something goes wrong](../faults.md#exit-codes).",
    ]
    found: dict[str, list[tuple[tuple[str, ...], Any]]] = {}
    for words, command in each_command(get_command(program.app), ()):
        found.setdefault(words[0], []).append((words, command))
    for title, names in program.grouped(found).items():
        parts += [f"## {title}", *(part for name in names for each in found[name] for part in described(*each))]
    return "\n\n".join(parts)


def described(words: tuple[str, ...], command: Any) -> list[str]:
    """Heading, help text and table of options of a command."""
    shown = [parameter for parameter in command.params if "--help" not in parameter.opts]
    rows: list[tuple[object, ...]] = [(word(parameter), getattr(parameter, "help", "") or "") for parameter in shown]
    options = [table(("", ""), rows)] if rows else []
    return [f"### operant {' '.join(words)}", paragraphs(command.help or ""), *options]


def word(parameter: Any) -> str:
    """Name of an option or argument."""
    return (
        ", ".join(f"`{name}`" for name in parameter.opts)
        if parameter.param_type_name == "option"
        else str(parameter.human_readable_name)
    )


def each_command(group: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands of a group and its subgroups, with their words."""
    for name, command in group.commands.items():
        if getattr(command, "commands", None):
            yield from each_command(command, (*words, name))
        elif not command.hidden:
            yield (*words, name), command


def paragraphs(text: str) -> str:
    """Convert a docstring to Markdown: blank lines before lists, fences around examples."""
    text = re.sub(r"(?m)^>>> (?:.+\n?)+", lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", inspect.cleandoc(text))
    text = re.sub(r"(?m)^(?!\s*- |\s*$)(.*)\n(?=- )", r"\1\n\n", inspect.cleandoc(text))
    lines = text.splitlines()
    for k in range(1, len(lines)):
        # Continuation lines of list items: two spaces in docstrings, four in Markdown.
        if lines[k].startswith("  ") and not lines[k].startswith("    "):
            lines[k] = f"  {lines[k]}"
    return "\n".join(lines)


def first_line(thing: Any) -> str:
    """First paragraph of a docstring."""
    return (inspect.getdoc(thing) or "").partition("\n\n")[0]


def environments() -> dict[str, str]:
    """Pages of all environments, and their index."""
    rows: list[tuple[object, ...]] = []
    found = {}
    for name in envs.names():
        env, module = envs.find(name), importlib.import_module(envs.module_of(name))
        rows.append((picture_of(name, 80), f"[`{name}`]({name}.md)", first_sentence(module), observed(env), acted(env)))
        found[f"environments/{name}.md"] = environment(name, env, module)
    head = "\n\n".join(
        [
            "---\nhide: [toc]\n---",
            "# Environments",
            "One file each in `operant/envs/`. `env.pixels = 64` observes any of them as a picture, `env.flicker = "
            "0.5` blanks half of its observations, and "
            "`env.params.NAME` sets a parameter. [Write your own](../write/environment.md).",
            table(("", "name", "description", "observation", "action"), rows),
        ]
    )
    return {"environments/index.md": head, **found}


def picture_of(name: str, width: int) -> str:
    """Markdown image of an environment, or an empty string before `docs/draw.py` has drawn it."""
    there = (HOME / "docs" / "pages" / "environments" / "pictures" / f"{name}.png").is_file()
    return f"![{name}](pictures/{name}.png){{ width={width} }}" if there else ""


def first_sentence(module: Any) -> str:
    """First sentence of a module's docstring."""
    return re.split(r"(?<!et al\.)(?<=[.?])\s", inspect.cleandoc(module.__doc__).replace("\n", " "), maxsplit=1)[0]


def observed(env: Env) -> str:
    """Short description of the observation space."""
    space = env.observation
    shape = " × ".join(map(str, space.shape or (space.size,)))
    categories = (
        ""
        if not space.categories
        else f", {space.categories} categories"
        if isinstance(space.categories, int)
        else ", some categorical"
    )
    what = "byte" if space.dtype == "uint8" else "number"
    return f"{shape} {what}{'s' * (space.size > 1)}{categories}"


def acted(env: Env) -> str:
    """Short description of the action space."""
    if isinstance(env.action, Box):
        low, high = env.action.bounds()
        return f"{env.action.size} number{'s' * (env.action.size > 1)} from {low[0]:g} to {high[0]:g}"
    if isinstance(env.action, Discrete):
        names = ", ".join(env.actions) if 0 < len(env.actions) <= 10 else f"one of {env.action.n}"
        return names + ("; legal ones" if env.legal is not None else "")
    return f"choices of {', '.join(map(str, env.action.n))}"


def recipes_of(name: str) -> list[str]:
    """Recipes named after an environment."""
    return [recipe for recipe in recipes.shipped() if recipe.partition("/")[2].removesuffix("_pixels") == name]


def environment(name: str, env: Env, module: Any) -> str:
    """Page of an environment."""
    limit = "no time limit" if env.time_limit is None else f"truncated after {env.time_limit:,} steps"
    facts: list[tuple[object, ...]] = [("observation", observed(env)), ("action", acted(env)), ("episode", limit)]
    if env.gymnasium:
        facts.append(("is", f"Gymnasium's `{env.gymnasium}`, compared step by step"))
    if env.tally:
        facts.append(("counts", ", ".join(f"`tally/{tally}`" for tally in env.tally)))
    parts = [f"# {name}", picture_of(name, 240), table(("", ""), facts), paragraphs(module.__doc__)]
    if parameters := env.Params()._asdict():  # type: ignore[attr-defined]
        rows: list[tuple[object, ...]] = [
            (f"`env.params.{key}`", f"`{str(value).lower() if isinstance(value, bool) else value}`", bounds(env, key))
            for key, value in parameters.items()
        ]
        parts += ["## Parameters", table(("key", "default", "allowed"), rows)]
    if own := recipes_of(name):
        parts += [
            "## Recipes",
            *(f"```sh\noperant train --config {recipe}\n```\n\n{comment(recipe)}" for recipe in own),
        ]
    return "\n\n".join(parts)


def bounds(env: Env, key: str) -> str:
    """Range of a parameter."""
    low, high = env.ranges.get(key, (None, None))
    return ", ".join(f"{sign} {bound:g}" for sign, bound in (("≥", low), ("≤", high)) if bound is not None) or "any"


def comment(recipe: str) -> str:
    """Comment at the top of a recipe."""
    source = recipes.find_source(recipe)
    assert source is not None
    return " ".join(
        line.lstrip("# ")
        for line in source.read_text(encoding="utf-8").partition("\n[")[0].splitlines()
        if line.startswith("#")
    )


def python() -> str:
    """Page of the Python interface, from docstrings."""
    parts = ["# Python", "Generated from docstrings. Everything else is internal and may change without notice."]
    for name, purpose in PYTHON:
        module = importlib.import_module(name)
        start, offered = len(parts), "operant" if name == "operant.library" else name
        for public in public_names(module):
            thing = getattr(module, public)
            if isinstance(thing, Dispatcher):
                thing = thing.py_func
            if not (inspect.isclass(thing) or inspect.isfunction(thing)) or not inspect.getdoc(thing):
                continue
            parts += [
                f"### {offered}.{public}",
                f"```python\n{signature(public, thing)}\n```",
                paragraphs(inspect.getdoc(thing) or ""),
                *methods(thing),
            ]
        parts[start:start] = [f"## {offered}", purpose] if len(parts) > start else []
    return "\n\n".join(parts)


def public_names(module: Any) -> list[str]:
    """Public names of a module: `__all__`, or its own definitions."""
    own = [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
    ]
    return sorted(getattr(module, "__all__", own), key=str.lower)


def signature(name: str, thing: Any) -> str:
    """Signature of a class or function."""

    class Annotation(str):
        """Annotation whose repr is its text, without quotes."""

        __repr__ = str.__str__

    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return f"{'class ' if inspect.isclass(thing) else ''}{name}(...)"
    parameters = [
        p.replace(annotation=Annotation(p.annotation)) if isinstance(p.annotation, str) else p
        for p in found.parameters.values()
        if p.name != "self"
    ]
    returned = (
        Annotation(found.return_annotation) if isinstance(found.return_annotation, str) else found.return_annotation
    )
    if inspect.isclass(thing):
        return f"class {name}{found.replace(parameters=parameters, return_annotation=inspect.Signature.empty)}"
    return f"{name}{found.replace(parameters=parameters, return_annotation=returned)}"


def methods(thing: Any) -> Iterator[str]:
    """Documented public methods of a class, one list item each."""
    if inspect.isclass(thing):
        for name, function in vars(thing).items():
            is_property = isinstance(function, property)
            function = function.fget if is_property else getattr(function, "__func__", function)
            if not name.startswith("_") and inspect.isfunction(function) and inspect.getdoc(function):
                words = signature(name, function)
                yield f"- `{words.replace('()', '', 1) if is_property else words}`: {first_line(function)}".replace(
                    "\n", " "
                )
