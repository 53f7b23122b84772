"""What the README says: its commands are commands, its environment is sound, its table is what ships, its links lead somewhere."""

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
    """Each command of Operant's that the README shows, in words."""
    fenced = [
        line for block in re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for line in block.splitlines()
    ]
    found = [line.partition("$ ")[2] or line for line in fenced if re.match(r"(\$ )?operant [a-z]", line)]
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found += [code for code in re.findall(r"`([^`\n]+)`", rest) if code.startswith("operant ")]
    return [shlex.split(command, comments=True)[1:] for command in found]


def test_every_command_is_one(text):
    shown = commands(text)
    assert len(shown) > 30 and ["play", "go"] in shown
    group = get_command(program.app)
    for words in shown:
        command = group
        while getattr(command, "commands", None):
            assert words and words[0] in command.commands, words
            command, words = command.commands[words[0]], words[1:]
        if not words:  # the command by its name
            continue
        context = command.make_context(command.name, list(words))  # raises what is wrong with its options
        name = context.params.get("environment")
        assert name is None or name.endswith(".py") or name in envs.names(), words
        source = context.params.get("config")
        assert source is None or source in ("my.toml", "ppo.toml") or recipes.find_source(source), words


def test_no_film_is_in_the_way_of_a_later_one(text):
    files = [words[words.index("--out") + 1] for words in commands(text) if "--out" in words]
    assert len(files) > 3 and len(set(files)) == len(files), "a file that is there already is refused"


def test_its_environment_is_sound(text, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for name, code in (("point", blocks[0]), ("bounded", blocks[0].partition("ENV = ")[0] + blocks[1])):
        (tmp_path / f"{name}.py").write_text(code)
        env = envs.find(str(tmp_path / f"{name}.py"))
        assert declaration_problems(env) == []
    world = DeviceWorld(env, 8, seed=1)
    slot = world.slot()
    world.reset(world.bind(slot))
    assert slot.legal.tolist() == [[1] * 8] * 3 and env.actions == ("left", "stay", "right")


def test_its_table_is_what_ships(text):
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.partition("| environment |")[2].partition("\n\n")[0].splitlines()[2:]
    ]
    assert sorted(row[0].strip("`") for row in rows if row[0]) == envs.names()
    named = sorted(name for row in rows for name in re.findall("`([^`]+)`", row[4]))
    assert named == sorted(recipes.shipped())
    for row in rows:
        if row[0]:
            env = envs.find(row[0].strip("`"))
            shape = env.observation.shape or (env.observation.size,)
            numbers = (
                "numbers" if env.observation.dtype == "float32" else "bytes" if env.observation.size > 1 else "byte,"
            )
            assert row[2].startswith(
                (f"{' x '.join(map(str, shape))} {numbers}", f"{env.observation.size} {numbers}")
            ), row
            names = [name for name in env.actions if "+" not in name and name != "jump"]
            assert len(env.actions) > 10 or row[3].startswith(", ".join(names)), row
            assert ("legal" in row[3]) == (env.legal is not None), row


def test_its_links_lead_somewhere(text):
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert len(links) > 5 and all((HOME / link).exists() for link in links), links
