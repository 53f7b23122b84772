"""The README: its commands parse, its environment passes the checks, its links resolve."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from operant import envs
from operant.cli import program
from operant.config import recipes
from operant.envs.declaration import declaration_problems
from operant.worlds.device_world import DeviceWorld

HOME = Path(__file__).resolve().parent.parent
README = HOME / "README.md"
pytestmark = pytest.mark.skipif(not README.is_file(), reason="needs a checkout")


@pytest.fixture(scope="module")
def text():
    return README.read_text(encoding="utf-8")


def commands(text):
    """Operant commands shown in the README, split into words."""
    fenced = [
        line for block in re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for line in block.splitlines()
    ]
    found = [line.partition("$ ")[2] or line for line in fenced if re.match(r"(\$ )?operant [a-z]", line)]
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found += [code for code in re.findall(r"`([^`\n]+)`", rest) if code.startswith("operant ")]
    return [shlex.split(command, comments=True)[1:] for command in found]


def programs(text):
    """Python blocks of the README."""
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_every_command_exists_and_parses(text):
    shown = commands(text)
    assert len(shown) > 10 and ["envs"] in shown
    group = get_command(program.app)
    for words in shown:
        if words == ["--help"]:
            continue
        command = group
        while getattr(command, "commands", None):
            assert words and words[0] in command.commands, words
            command, words = command.commands[words[0]], words[1:]
        if not words:  # only the name of the command
            continue
        context = command.make_context(command.name, list(words))  # raises for invalid options
        name = context.params.get("environment")
        assert name is None or name.endswith(".py") or name in envs.names(), words
        source = context.params.get("config")
        assert source is None or source in ("my.toml", "ppo.toml") or recipes.find_source(source), words


def test_environment_in_the_readme_passes_the_checks_and_steps(text, tmp_path):
    code = programs(text)[-1]
    assert len([line for line in code.splitlines() if line]) <= 24
    (tmp_path / "point.py").write_text(code)
    env = envs.find(str(tmp_path / "point.py"))
    assert declaration_problems(env) == []
    world = DeviceWorld(env, 8, seed=1)
    slot = world.bind(world.slot())
    world.reset(slot)
    world.step(slot)
    assert abs(slot.reward).max() <= 0.6


def test_gymnasium_function_in_the_readme_is_five_lines_and_makes_an_environment(text):
    pytest.importorskip("gymnasium")
    code, names = programs(text)[0], {}
    assert len([line for line in code.splitlines() if line]) <= 5
    exec(code, names)
    env = names["make"]()
    observation, _ = env.reset(seed=1)
    assert env.observation_space.contains(observation) and len(observation) == 5


def test_readme_is_a_landing_page(text):
    assert len(text.splitlines()) <= 150
    assert text.index("whl/cpu") < text.index("pip install -q -e .")


def test_links_to_files_resolve(text):
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert len(links) > 5 and all((HOME / link).exists() for link in links), links
