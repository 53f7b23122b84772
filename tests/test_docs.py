"""The documentation builds, its links resolve, its commands parse, its configurations and programs are valid, and the
start page runs.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from typer.main import get_command

from operant import envs
from operant.cli import program
from operant.config import recipes
from operant.config.load import load

HOME = Path(__file__).resolve().parent.parent
PAGES = sorted((HOME / "docs" / "pages").glob("**/*.md"))
pytestmark = pytest.mark.skipif(not PAGES, reason="needs a checkout")


def blocks(page, language=r"\w+"):
    """Code blocks of a page (in a language): marker comment above it, language, content."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"(?:<!-- (run|file \S+) -->\n)?^```({language})\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(page):
    """Operant commands shown on a page, split into words; RUN, FILE and RECIPE in running text are placeholders."""
    fenced = [line for _, _, code in blocks(page, "sh") for line in code.splitlines()]
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [
        shlex.split(line, comments=True)[1:]
        for line in (*fenced, *re.findall(r"`([^`\n]+)`", text))
        if line.startswith("operant ")
    ]


@functools.cache
def every_command():
    return get_command(program.app)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_parses(page):
    for words in commands(page):
        if words[:1] == ["monitor"]:  # has its own parser
            assert {word for word in words if word.startswith("-")} <= {
                "--once",
                "--readonly",
                "--ascii",
                "--fps",
                "--theme",
                "--latest",
                "--runs",
            }
            continue
        command = every_command()
        while getattr(command, "commands", None):
            assert words and words[0] in command.commands, words
            command, words = command.commands[words[0]], words[1:]
        if not words:  # only the name of the command
            continue
        # raises for invalid options
        context = command.make_context(command.name, [word.replace("…", "1e-4") for word in words])
        name = context.params.get("environment")
        assert name is None or ".py" in name or "=" in name or name in envs.names(), words
        source = context.params.get("config")
        made = {name.split()[1] for name, _, _ in blocks(page) if name.startswith("file ")} | {"my.toml", "RECIPE"}
        assert source is None or source in made or source.endswith("/best.toml") or recipes.find_source(source), words


def test_keys_in_commands_are_valid():
    for page in PAGES:
        for words in commands(page):
            pairs = [word for word in words if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+=\S+", word) and "…" not in word]
            name = next((word for word in words[1:2] if word in envs.names()), None)
            if pairs and not any(".py" in word for word in words):  # a user's file may have other keys
                load(None, [*([f"env.name={name}"] if name else []), *pairs])  # raises for invalid keys


def test_configurations_load_and_programs_compile(tmp_path):
    count = 0
    for page in PAGES:
        for k, (_, _, code) in enumerate(blocks(page, "toml")):
            path = tmp_path / f"{page.stem}{k}.toml"
            path.write_text(code)
            load(path)
            count += 1
        for _, _, code in blocks(page, "python"):
            compile(code, page.name, "exec")
            count += 1
    assert count >= 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_source_files_named_on_a_page_exist(page):
    named = re.findall(r"`((?:operant|monitor|tests|benches|docs)/[\w./]+)`", page.read_text(encoding="utf-8"))
    assert [path for path in named if not (HOME / path).exists()] == []


class Links(HTMLParser):
    """Links, pictures and anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.links += [found[name] for name in ("href", "src") if found.get(name)]
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}


@pytest.mark.slow
def test_site_builds_and_every_link_resolves(tmp_path):
    pytest.importorskip("material")
    words = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",  # no --quiet: it hides the warnings that are errors here
        "-f",
        str(HOME / "docs" / "mkdocs.yml"),
        "-d",
        str(tmp_path),
    ]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    pages = {
        path: Links(path.read_text(encoding="utf-8")) for path in tmp_path.glob("**/*.html") if path.name != "404.html"
    }
    assert {path.stem for path in pages} >= {*envs.names(), "index", "ppo", "commands", "configuration", "python"}
    for page, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{page.relative_to(tmp_path)}: {link}"
            assert not parts.fragment or target not in pages or parts.fragment in pages[target].anchors | {"__toc"}, (
                f"{page.relative_to(tmp_path)}: {link}"
            )
    text = (tmp_path / "algorithms" / "ppo.html").read_text(encoding="utf-8")
    assert "algo.gae_lambda" in text and "{{" not in text
    assert "env.params.high" in (tmp_path / "environments" / "tmaze.html").read_text(encoding="utf-8")
    shown = pages[tmp_path / "environments" / "index.html"].links
    bare = [name for name in envs.names() if f"pictures/{name}.png" not in shown]
    assert not bare, f"draw pictures: python docs/draw.py {' '.join(bare)}"


NEEDS_A_PERSON = ("operant play", "--render term", "pip install", "-m venv", ".venv/bin")


def run(words, folder):
    """Run a command of a page in a folder."""
    environment = {
        **os.environ,
        "OPERANT_RUNS": str(folder / "runs"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600
    )
    assert done.returncode == 0 or (done.returncode == 4 and "doctor" in words), (
        f"{words}\n{done.stdout}\n{done.stderr}"
    )


@pytest.mark.soak
def test_start_page_runs(tmp_path):
    """All commands of the start page in order."""
    for _, _, code in blocks(HOME / "docs" / "pages" / "index.md", "sh"):
        for line in code.splitlines():
            if not any(words in line for words in NEEDS_A_PERSON):
                run(shlex.split(line), tmp_path)
    assert (tmp_path / "agent.png").is_file()


@pytest.mark.soak
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(mark == "run" for mark, _, _ in blocks(page))], ids=lambda page: page.stem
)
def test_marked_blocks_run(page, tmp_path):
    """Write files and run programs and commands."""
    for mark, language, code in blocks(page):
        if mark.startswith("file "):
            (tmp_path / mark.split()[1]).write_text(code)
        elif mark == "run":
            for words in (
                [[sys.executable, "-c", code]]
                if language == "python"
                else [shlex.split(line) for line in code.splitlines()]
            ):
                run(words, tmp_path)
