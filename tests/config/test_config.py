import math
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import tomli
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from operant import envs, old_names
from operant.config import load as config
from operant.config import messages, raw, request, sections, toml_positions
from operant.config.load import load, origins, to_toml
from operant.config.recipes import find_source, shipped
from operant.config.schema import schema
from operant.errors import ConfigError, NotFoundError, OperantError
from operant.settings import Section

ENVIRONMENT_FILE = """
from typing import NamedTuple
from operant.envs import Box, Discrete, Env

class Params(NamedTuple):
    gravity: float = 9.8
    pieces: int = 3
    wind: bool = False

def nothing(*arguments):
    return None

ENV = Env(Params, 1, observation=Box(1), action=Discrete(2), time_limit=9, reset=nothing, step=nothing, observe=nothing)
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write `ppo.toml` into the working directory of the test, beside an environment and two broken ones."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_env.py").write_text(ENVIRONMENT_FILE)
    (tmp_path / "empty_env.py").write_text("")
    (tmp_path / "broken_env.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "my_net.py").write_text("class MyNet: ...\n")

    def write(text: str | bytes, name: str = "ppo.toml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


# WHAT WORKS


def test_without_a_file_defaults_are_used():
    got = load(None)
    assert (got.env.name, got.algo_name, got.env.lanes, got.net.kind) == ("cartpole", "ppo", 1024, "mlp")
    assert got.environment == envs.find("cartpole")
    assert got.params == got.environment.Params()


@pytest.mark.parametrize("text", ['"20M"', "20_000_000", "2e7", '"2e7"', '"20_000k"', '"0.02G"', '" 20M "'])
def test_numbers_accept_underscores_exponents_and_suffixes(write, text):
    assert load(write(f"[run]\nsteps = {text}\n")).run.steps == 20_000_000
    steps = load(None, [f"run.steps={text.strip(chr(34))}"]).run.steps
    assert (steps, type(steps)) == (20_000_000, int)


def test_env_pixels_selects_image_observations(write):
    plain, got = load(None), load(write("[env]\npixels = 48\n"))
    assert got.environment == envs.with_pixels(plain.environment, 48) and got.environment.name == "cartpole"
    assert (got.environment.observation.shape, got.environment.observation.size, got.environment.observation.dtype) == (
        (48, 48, 3),
        6912,
        "uint8",
    )
    assert (plain.env.pixels, plain.environment.pixels) == (None, 0)


def test_overrides_win_over_the_file_and_later_ones_over_earlier(write):
    source = write("[algo]\nlearning_rate = 1e-3\n[env.params]\ngravity = 1.0\nforce = 2.0\n")
    overrides = [
        "algo.learning_rate=1e-4",
        "algo.learning_rate=3e-4",
        "run.steps=20M",
        "net.hidden=[32,16]",
        "env.params.gravity=3.7",
        "net.shared=true",
    ]
    got = load(source, overrides)
    assert (got.algo.learning_rate, got.run.steps, got.net.hidden, got.net.shared) == (3e-4, 20_000_000, (32, 16), True)
    assert (got.params.gravity, got.params.force) == (3.7, 2.0)


def test_none_unsets_an_optional_key(write):
    source = write("[run]\ntarget = 475.0\n[algo]\ntarget_kl = 0.1\n")
    got = load(source, ["run.target=none", "algo.target_kl=none"])
    assert (got.run.target, got.algo.target_kl) == (None, None) and load(
        write('[run]\ntarget = "none"\n')
    ).run.target is None
    with pytest.raises(ConfigError, match="got 'none'"):
        load(source, ["env.lanes=none"])


def test_override_of_a_section_sets_its_keys(write):
    got = load(write("[env]\nname = 'pendulum'\nlanes = 8\n"), ["env={num_envs=64}", "algo={gamma=0.5, clip=0.1}"])
    assert (got.env.name, got.env.lanes, got.algo.gamma, got.algo.clip) == ("pendulum", 64, 0.5, 0.1)


def test_a_table_as_override_replaces_the_table(write):
    got = load(write("[env.params]\ngravity = 1.0\nforce = 2.0\n"), ["env.params={gravity=3}"])
    assert (got.params.gravity, got.params.force) == (3.0, 10.0)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("123", "123"),
        ("4e5", "4e5"),
        ("true", "true"),
        ('"a b"'.replace(" ", "."), "a.b"),
        ("2024-01-01", "2024-01-01"),
    ],
)
def test_an_override_of_a_text_needs_no_quotes(text, name):
    assert load(None, [f"run.name={text}"]).run.name == name


def test_a_gymnasium_id_is_the_environment():
    assert load(None, ["env.name=CartPole-v1"]) == load(None)


def test_files_are_relative_to_the_file_that_names_them(write, tmp_path):
    source = write('[env]\nname = "../my_env.py"\n[net]\nkind = "../my_net.py:MyNet"\n', "sub/ppo.toml")
    got = load(source, folder=tmp_path / "sub")
    assert (got.environment_file, got.network_file) == (tmp_path / "my_env.py", tmp_path / "my_net.py")
    assert got.environment.name == "my_env"
    assert load(source, ["env.name=my_env.py"]).environment_file == tmp_path / "my_env.py"
    assert load(None, ["env.name=../my_env.py"], folder=tmp_path / "sub").environment_file == tmp_path / "my_env.py"


def test_environment_parameters_keep_their_types(write):
    got = load(write('[env]\nname = "my_env.py"\nparams = {gravity = 3, pieces = 4.0, wind = true}\n'))
    assert [(value, type(value)) for value in got.params] == [(3.0, float), (4, int), (True, bool)]


def test_frame_skip_and_stack_of_1_are_accepted_for_every_environment():
    """And stands in the files of earlier versions' runs."""
    assert load(None, ["env.frame_skip=1", "env.frame_stack=1"]).environment.name == "cartpole"
    with pytest.raises(ConfigError, match=r"env\.frame_skip is supported only for outside environments"):
        load(None, ["env.frame_skip=2"])


def test_a_byte_order_mark_and_windows_line_ends_are_read(write):
    source = write(b"\xef\xbb\xbf[run]\r\nsteps = 5\r\n\r\n[algo]\r\ngamma = 0.5\r\n")
    assert load(source).run.steps == 5
    assert {row.key: row.origin for row in origins(source)}["algo.gamma"] == "ppo.toml:5"


def test_a_configuration_is_frozen():
    got = load(None)
    with pytest.raises(AttributeError):
        got.run = None
    with pytest.raises(ValueError, match="frozen"):
        got.run.steps = 1


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [
            "run.target=-1.5",
            "run.name=a.b-c_9",
            "algo.target_kl=0.02",
            "algo.anneal_steps=1e6",
            "env.params.gravity=1e-30",
            "net.hidden=[7]",
        ],
        [
            "env.name=my_env.py",
            "env.params.pieces=-2",
            "net.kind=my_net.py:MyNet",
            "net.activation=relu",
            "run.seed=9223372036854775807",
        ],
    ],
)
def test_the_resolved_file_reads_back_equal(write, overrides):
    got = load(None, overrides)
    again = load(write(to_toml(got), "elsewhere/config.toml"))
    assert again == got
    assert to_toml(again) == to_toml(got)
    assert load(None, [*overrides, "run.steps=3"]) != got


def test_the_resolved_file_names_every_key(write):
    text = to_toml(load(None))
    for row in origins(None):
        name = row.key.rpartition(".")[2]
        assert re.search(rf"^(# )?{name} (=|is not set)", text, re.MULTILINE), row.key
    assert "hidden = [64, 64]\n" in text


def test_the_resolved_file_can_name_copies(write):
    got = load(None, ["env.name=my_env.py", "net.kind=my_net.py:MyNet"])
    tables = tomli.loads(to_toml(got, environment_file="source/my_env.py", network_file="source/my_net.py"))
    assert (tables["env"]["name"], tables["net"]["kind"]) == ("source/my_env.py", "source/my_net.py:MyNet")
    shipped_one = to_toml(load(None), environment_file="source/my_env.py", network_file="source/my_net.py")
    assert shipped_one == to_toml(load(None))


def test_origins_name_the_line_the_command_line_or_the_default(write):
    source = write("[run]\nseed = 7\n\n[env]\nparams = { gravity = 2 }\n[algo]\ngamma = 0.9\nclip = 0.3\n")
    rows = {row.key: row for row in origins(source, ["algo.clip=0.1", "net={hidden=[8]}"])}
    assert (rows["run.seed"].value, rows["run.seed"].origin) == (7, "ppo.toml:2")
    assert rows["env.params.gravity"].origin == "ppo.toml:5"
    assert rows["algo.gamma"].origin == "ppo.toml:7"
    assert (rows["algo.clip"].value, rows["algo.clip"].origin) == (0.1, "command line")
    assert rows["net.hidden"].origin == "command line"
    assert {rows[key].origin for key in ("run.steps", "net.kind", "env.params.tau", "env.lanes", "algo.name")} == {
        "default"
    }


# THE SHIPPED FILES AND THE SCHEMA


@pytest.mark.parametrize("name", shipped())
def test_shipped_configurations_load(name, write):
    source = find_source(name)
    assert source == find_source(f"{name}.toml")
    text = source.read_text()
    loaded = load(source)
    assert loaded.hosted or loaded.environment.name in envs.names()
    assert load(write(to_toml(loaded), "kept.toml")) == loaded  # as a run keeps it
    assert re.search(r"(?i)expected", text.split("[", 1)[0]), (
        "a recipe states its expected result above its first table"
    )


def test_a_path_goes_before_a_shipped_name(write):
    for name in ("ppo", "pendulum"):
        source = write("", name)
        assert find_source(name) == source
        source.unlink()


def recipes_in(folder, *names):
    """Empty recipes, as a wheel holds them: `operant/configs/NAME.toml`."""
    for name in names:
        path = folder / "operant" / "configs" / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A package without a checkout around it, whose recipes a test makes."""
    monkeypatch.setattr("operant.config.recipes._PACKAGE", tmp_path / "operant")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_wheel_holds_its_recipes_inside(wheel):
    recipes_in(wheel, "ppo/cartpole")
    (wheel / "configs" / "ppo").mkdir(parents=True)
    (wheel / "configs" / "ppo" / "of_another_package.toml").touch()
    assert shipped() == ["ppo/cartpole"]
    assert find_source("ppo/cartpole") == wheel / "operant" / "configs" / "ppo" / "cartpole.toml"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ppo", "ppo/cartpole"),
        ("ppo.toml", "ppo/cartpole"),
        ("ppo/cartpole.toml", "ppo/cartpole"),
        ("dqn/cartpole", "dqn/cartpole"),
        ("cartpole", "ppo/cartpole"),
        ("cartpole.toml", "ppo/cartpole"),
        ("snake", "dqn/snake"),
        ("snake_pixels", "dqn/snake_pixels"),
    ],
)
def test_a_recipe_is_named_in_full_or_by_its_environment(wheel, monkeypatch, text, found):
    recipes_in(wheel, "ppo/cartpole", "dqn/cartpole", "dqn/snake", "dqn/snake_pixels")
    configs = wheel / "operant" / "configs"
    for folder in (wheel, configs):  # in the second ppo is a folder
        monkeypatch.chdir(folder)
        assert find_source(text).resolve() == configs / f"{found}.toml", folder


def test_a_name_of_several_recipes_is_an_error_that_lists_them(wheel):
    recipes_in(wheel, "dqn/snake", "sac/snake", "ppo/cartpole")
    with pytest.raises(NotFoundError, match="'snake' is the name of several recipes: dqn/snake, sac/snake"):
        find_source("snake")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), "ppo/cartpole"),
        (("cartpole",), "ppo/cartpole"),
        (("CartPole-v1",), "ppo/cartpole"),
        (("snake",), "ppo/snake"),
        (("env.name=snake",), "ppo/snake"),
        (("snake", "algo.name=dqn"), "dqn/snake"),
        (("snake", 'algo.name="dqn"'), "dqn/snake"),
        (("cartpole", "algo.name=dqn"), None),
        (("algo.name=dqn",), None),
        (("cartpole", "algo.name=mine.py:Mine"), None),
        (("pong",), None),
        (("env.name=my_env.py",), None),
    ],
)
def test_a_request_takes_the_recipe_of_its_algorithm_and_environment_or_none(wheel, words, found):
    recipes_in(wheel, "ppo/cartpole", "ppo/snake", "dqn/snake", "dqn/pong")
    made = request.make(words, config=None, environment_file=None, settings={})
    assert made.source == (found and wheel / "operant" / "configs" / f"{found}.toml")


def test_another_algorithm_takes_its_own_defaults(monkeypatch):
    class Other:
        class Config(Section):
            temperature: float = 1.0

            def problems(self, lanes):
                return []

    monkeypatch.setattr("operant.algos.names", lambda: ["other", "ppo"])
    monkeypatch.setattr("operant.algos.load", lambda name: Other)
    made = request.make(("cartpole", "algo.name=other"), config=None, environment_file=None, settings={})
    got = load(made.source, made.all_overrides())
    assert (got.env.name, got.algo_name, got.algo.temperature, made.prefix) == (
        "cartpole",
        "other",
        1.0,
        "cartpole-other",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("po", "did you mean 'ppo'"),
        ("pendulm", "did you mean 'pendulum'"),
        ("ppo/pendulm", "did you mean 'ppo/pendulum'"),
        ("configs/ppo.toml", "mean 'ppo'"),
        ("no/such.toml", "no/such.toml"),
        ("a\0b", "a\\x00b"),
        ("x" * 5000, "xxx"),
        (".", "is a folder"),
    ],
)
def test_a_missing_configuration_names_what_is_close_and_the_list(text, said):
    with pytest.raises(NotFoundError) as caught:
        find_source(text)
    assert said in str(caught.value)
    assert str(caught.value).endswith("Shipped recipes: operant config list")
    assert caught.value.exit_code == 3


def test_a_missing_file_is_not_found(tmp_path):
    for source in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(NotFoundError, match=re.escape(str(source))):
            load(source)


def test_the_schema_has_every_key_with_its_default_and_description():
    whole = schema()
    assert set(whole["properties"]) == {"format", *sections.SECTIONS, *sections.READ_ELSEWHERE}
    for row in origins(None):
        section, _, key = row.key.partition(".")
        if key.startswith("params."):
            continue
        part = whole["properties"][section]
        choices = part.get("anyOf", [part])  # of algorithms: that of the default
        part = next(
            choice for choice in choices if choice.get("properties", {}).get("name", {}).get("const", "ppo") == "ppo"
        )["properties"][key]
        if (section, key) == ("env", "lanes"):
            number, auto = part["anyOf"]
            assert (number["minimum"], part["default"], number["type"], auto["const"]) == (
                1,
                1024,
                ["integer", "string"],
                "auto",
            )
        assert part["description"], row.key
        default = part["default"]
        assert (tuple(default) if isinstance(default, list) else default) == row.value, row.key
    steps = whole["properties"]["run"]["properties"]["steps"]
    for good in ("20M", "1e7", "10_000_000", "0.5k"):
        assert re.search(steps["pattern"], good)
    for bad in ("20X", "", "M", "ten"):
        assert not re.search(steps["pattern"], bad)


def test_the_schema_has_every_algorithm(monkeypatch):
    class Other:
        class Config(Section):
            depth: int = 3

    monkeypatch.setattr("operant.algos.names", lambda: ["other", "ppo"])
    real = __import__("operant.algos.ppo", fromlist=["ALGO"]).ALGO
    monkeypatch.setattr("operant.algos.load", lambda name: Other if name == "other" else real)
    other, ppo = schema()["properties"]["algo"]["anyOf"]
    assert other["properties"]["name"]["const"] == "other"
    assert other["required"] == ["name"]
    assert "horizon" in ppo["properties"]
    assert "required" not in ppo


# WHAT IS BROKEN: name -> (text of ppo.toml, overrides, what the message says: each in one line of problems, in this
# order)

DEEP = "[run]\nseed = " + "[" * 3000 + "]" * 3000

BROKEN: dict[str, tuple[str | bytes, list[str], list[str]]] = {
    # unknown sections and keys
    "misspelt key": (
        "[algo]\n\nlearning_rte = 1\n",
        [],
        ["ppo.toml:3: unknown key 'algo.learning_rte' - did you mean 'algo.learning_rate'?"],
    ),
    "misspelt section": (
        "[run]\n[chekpoint]\nevery = 1\n",
        [],
        ["ppo.toml:2: unknown key 'chekpoint' - did you mean 'checkpoint'?"],
    ),
    "unknown section": (
        "[zzz]\n",
        [],
        ["ppo.toml:1: unknown key 'zzz' (known here: run, env, algo, net, checkpoint, eval, sweep)"],
    ),
    "unlike any key": (
        "[eval]\nqqqqq = 1\n",
        [],
        ["ppo.toml:2: unknown key 'eval.qqqqq' (known here: every, episodes)"],
    ),
    "key of another section": (
        "[run]\nlanes = 4\n",
        [],
        ["ppo.toml:2: unknown key 'run.lanes' - did you mean 'env.lanes'?"],
    ),
    "key outside sections": (
        "learning_rate = 1\n",
        [],
        ["ppo.toml:1: unknown key 'learning_rate' - did you mean 'algo.learning_rate'?"],
    ),
    "parameter outside params": (
        "[env]\ngravity = 1\n",
        [],
        ["ppo.toml:2: unknown key 'env.gravity' - did you mean 'env.params.gravity'?"],
    ),
    "section that is a value": (
        "run = 5\n",
        [],
        ["ppo.toml:1: run is a section of keys, such as run.seed, not a value (got 5)"],
    ),
    "section that is a list": (
        "[[algo]]\ngamma = 1\n",
        [],
        ["ppo.toml:1: algo is a section of keys, such as algo.name, not a value"],
    ),
    "dotted key": ("algo.gama = 1\n", [], ["ppo.toml:1: unknown key 'algo.gama' - did you mean 'algo.gamma'?"]),
    "beginning of a key": (
        "[algo]\nlearn = 1\n",
        [],
        ["ppo.toml:2: unknown key 'algo.learn' - did you mean 'algo.learning_rate'?"],
    ),
    "inline table": (
        "\nalgo = { gamma = 0.9, clp = 1 }\n",
        [],
        ["ppo.toml:2: unknown key 'algo.clp' - did you mean 'algo.clip'?"],
    ),
    "control characters": ('[run]\n"\\u001b[2J" = 1\n', [], ["ppo.toml:2: unknown key 'run.\\x1b[2J'"]),
    # types
    "suffix nobody knows": (
        '[run]\nsteps = "20X"\n',
        [],
        ["ppo.toml:2: run.steps: input should be a whole number, such as", "(got '20X')"],
    ),
    "pixels without a picture": (
        '[env]\nname = "my_env.py"\npixels = 64\n',
        [],
        ["ppo.toml:3: env.pixels: my_env draws no picture"],
    ),
    "few pixels": (
        "[env]\npixels = 15\n",
        [],
        ["ppo.toml:2: env.pixels: input should be greater than or equal to 16 (got 15)"],
    ),
    "many pixels": (
        "",
        ["env.pixels=129"],
        ["command line: env.pixels: input should be less than or equal to 128 (got 129)"],
    ),
    "half a pixel": ("[env]\npixels = 64.5\n", [], ["ppo.toml:2: env.pixels: input should be a whole number"]),
    "fraction for a count": (
        "[env]\nlanes = 10.5\n",
        [],
        ["ppo.toml:2: env.lanes: input should be a whole number", "(got 10.5)"],
    ),
    "boolean for a count": (
        "[run]\nseed = true\n",
        [],
        ["ppo.toml:2: run.seed: input should be a whole number", "(got true)"],
    ),
    "boolean for a number": (
        "[algo]\ngamma = false\n",
        [],
        ["ppo.toml:2: algo.gamma: input should be a number", "(got false)"],
    ),
    "text for a number": (
        '[algo]\ngamma = "high"\n',
        [],
        ["ppo.toml:2: algo.gamma: input should be a number", "(got 'high')"],
    ),
    "text for a list": (
        '[net]\nhidden = "64"\n',
        [],
        ["ppo.toml:2: net.hidden: input should be a list, such as [64, 64] (got '64')"],
    ),
    "number for a list": (
        "[net]\nhidden = 64\n",
        [],
        ["ppo.toml:2: net.hidden: input should be a list, such as [64, 64] (got 64)"],
    ),
    "text in a list": (
        '[net]\nhidden = [64,\n"big"]\n',
        [],
        ["ppo.toml:2: net.hidden[1]: input should be a whole number", "(got 'big')"],
    ),
    "empty list": ("[net]\nhidden = []\n", [], ["ppo.toml:2: net.hidden: input should have at least 1 item (got [])"]),
    "number for a text": (
        "[net]\nactivation = 1\n",
        [],
        ["ppo.toml:2: net.activation: input should be 'tanh', 'relu'", "(got 1)"],
    ),
    "number for a name": (
        "[run]\nname = 1\n",
        [],
        ["ppo.toml:2: run.name: input should be a text in quotes", "(got 1)"],
    ),
    "table for a number": ("[run]\nseed = {a = 1}\n", [], ["ppo.toml:2: run.seed: input should be a whole number"]),
    "date for a number": ("[algo]\nclip = 2024-01-01\n", [], ["ppo.toml:2: algo.clip: input should be a number"]),
    "no such choice": (
        '[net]\nactivation = "tahn"\n',
        [],
        ["ppo.toml:2: net.activation: input should be 'tanh'", "did you mean 'tanh'? (got 'tahn')"],
    ),
    "maybe": ('[net]\nshared = "maybe"\n', [], ["ppo.toml:2: net.shared: input should be true or false (got 'maybe')"]),
    # ranges
    "zero lanes": (
        "[env]\nlanes = 0\n",
        [],
        ["ppo.toml:2: env.lanes: input should be greater than or equal to 1 or should be 'auto' (got 0)"],
    ),
    "negative steps": (
        '[run]\nsteps = "-1M"\n',
        [],
        ["ppo.toml:2: run.steps: input should be greater than 0 (got '-1M')"],
    ),
    "seed too large": (
        "[run]\nseed = 0xffffffffffffffff\n",
        [],
        ["ppo.toml:2: run.seed: input should be less than 9223372036854775808"],
    ),
    "negative seed": (
        "[run]\nseed = -1\n",
        [],
        ["ppo.toml:2: run.seed: input should be greater than or equal to 0 (got -1)"],
    ),
    "discount above one": (
        "[algo]\ngamma = 1.5\n",
        [],
        ["ppo.toml:2: algo.gamma: input should be less than or equal to 1 (got 1.5)"],
    ),
    "not a number": (
        "[algo]\nlearning_rate = nan\n",
        [],
        ["ppo.toml:2: algo.learning_rate: input should be a finite number (got nan)"],
    ),
    "infinite": ("[run]\ntarget = inf\n", [], ["ppo.toml:2: run.target: input should be a finite number (got inf)"]),
    "infinite in a text": (
        '[run]\nsteps = "1e999"\n',
        [],
        ["ppo.toml:2: run.steps: input should be a finite number (got '1e999')"],
    ),
    "lanes without end": (
        "[env]\nlanes = 1e300\n",
        [],
        ["ppo.toml:2: env.lanes: input should be less than or equal to 1073741824 or should be 'auto' (got 1e+300)"],
    ),
    "lanes in a word": (
        "",
        ["env.lanes=atuo"],
        ["command line: env.lanes: input should be a whole number", "'auto' - did you mean 'auto'?", "(got 'atuo')"],
    ),
    "no lanes divide": (
        '[env]\nlanes = "auto"\n[algo]\nminibatches = 5\n',
        [],
        ["ppo.toml:4: algo.minibatches: 65,536 lanes x 16 steps", "do not divide"],
    ),
    "no records": (
        "[run]\nrecord_hz = 0\n",
        [],
        ["ppo.toml:2: run.record_hz: input should be greater than or equal to 0.1 (got 0)"],
    ),
    "negative cadence": (
        "[eval]\nevery = -1\n",
        [],
        ["ppo.toml:2: eval.every: input should be greater than or equal to 0 (got -1)"],
    ),
    "no such device": (
        '[run]\ndevice = "gpu"\n',
        [],
        ["ppo.toml:2: run.device: input should be auto, cpu, cuda or cuda:N, such as cuda:0 (got 'gpu')"],
    ),
    "device without number": (
        '[run]\ndevice = "cuda:"\n',
        [],
        ["ppo.toml:2: run.device: input should be auto, cpu, cuda or cuda:N"],
    ),
    "name that is a path": (
        '[run]\nname = "../x"\n',
        [],
        ["ppo.toml:2: run.name: input should be 1 to 64 letters, digits", "(got '../x')"],
    ),
    "empty name": ('[run]\nname = ""\n', [], ["ppo.toml:2: run.name: input should be 1 to 64 letters"]),
    # what does not fit together
    "minibatches do not divide": (
        "[env]\nlanes = 96\n[algo]\nhorizon = 5\nminibatches = 4\n",
        [],
        ["ppo.toml:5: algo.minibatches: 96 lanes x 5 steps", "do not divide"],
    ),
    "lanes do not divide": (
        "[env]\nlanes = 32\n[algo]\nhorizon = 1\n",
        [],
        ["ppo.toml:2: algo.minibatches: 32 lanes x 1 steps", "do not divide"],
    ),
    "override that a key of the file contradicts": (
        '[env]\nname = "pendulum"\nlanes = 16\n[algo]\nname = "sac"\nlearning_starts = 1000\n',
        ["algo.replay_capacity=640"],
        ["command line: algo.learning_starts: the replay holds 640 at most: raise algo.replay_capacity (got 1,000)"],
    ),
    "range as one key": (
        "",
        ["env.name=hopper", "env.params.healthy_z_range=1"],
        ["command line: unknown key 'env.params.healthy_z_range' - it is two keys here: ", "healthy_z_max'"],
    ),
    "range whose least is above its greatest": (
        "",
        ["env.name=hopper", "env.params.healthy_angle_max=-1"],
        ["command line: env.params.healthy_angle_min: input should be at most healthy_angle_max (got -0.2 and -1.0)"],
    ),
    "negative noise": (
        "",
        ["env.name=hopper", "env.params.reset_noise_scale=-1"],
        ["command line: env.params.reset_noise_scale: input should be at least 0 (got -1)"],
    ),
    "override does not divide": (
        "",
        ["algo.minibatches=7"],
        ["command line: algo.minibatches: 1,024 lanes x 16 steps", "do not divide"],
    ),
    # environments, algorithms, networks
    "unknown environment": (
        '[env]\nname = "cartpol"\n',
        [],
        ["ppo.toml:2: env.name: unknown environment 'cartpol' - did you mean 'cartpole'? All names: operant envs."],
    ),
    "wrong version of an id": (
        '[env]\nname = "CartPole-v0"\n',
        [],
        ["ppo.toml:2: env.name: unknown environment 'CartPole-v0' - did you mean 'cartpole'?"],
    ),
    "unlike any environment": (
        "",
        ["env.name=zzz"],
        ["command line: env.name: unknown environment 'zzz'. All names: operant envs. Also accepted: your own file"],
    ),
    "algorithm for an environment": (
        "",
        ["env.name=dqn"],
        ["command line: env.name: dqn is an algorithm, not an environment: operant train cartpole algo"],
    ),
    "outside environment without its kind": (
        "",
        ["env.name=lunarlander"],
        ["command line: env.name: unknown environment 'lunarlander'. All names: operant", "gymnasium:ID, ale:NAME"],
    ),
    "configuration for an environment": (
        '[env]\nname = "mine.toml"\n',
        [],
        ["ppo.toml:2: env.name: 'mine.toml' is a configuration, not an environment. Train it: operant train --config"],
    ),
    "name of a recipe for an environment": (
        '[env]\nname = "pacman_memory"\n',
        [],
        ["ppo.toml:2: env.name: 'pacman_memory' is a configuration, not an environment. Train it: operant train"],
    ),
    "key of another algorithm": (
        "",
        ["algo.replay_capacity=9"],
        [
            "command line: unknown key 'algo.replay_capacity' of this algorithm; it is a key of dqn, sac, td3, by "
            "algo.name"
        ],
    ),
    "empty environment": ('[env]\nname = ""\n', [], ["ppo.toml:2: env.name: ", "unknown environment ''"]),
    "number for an environment": (
        "[env]\nname = 3\n",
        [],
        ["ppo.toml:2: env.name: input should be a text in quotes", "(got 3)"],
    ),
    "missing environment file": (
        '[env]\nname = "none.py"\n',
        [],
        ["ppo.toml:2: env.name: there is no file 'none.py' (looked in "],
    ),
    "missing file in an override": (
        "",
        ["env.name=sub/none.py"],
        ["command line: env.name: there is no file 'sub/none.py' (looked in "],
    ),
    "missing file of a function": (
        "",
        ["env.name=none.py:make"],
        ["command line: env.name: there is no file 'none.py' (looked in "],
    ),
    "name of a function's file too long": (
        "",
        [f"env.name={'a' * 5000}.py:make"],
        ["command line: env.name: there is no file 'aaaa"],
    ),
    "unreadable name of a file": (
        '[env]\nname = "a\\u0000b.py"\n',
        [],
        ["ppo.toml:2: env.name: there is no file 'a\\x00b.py'"],
    ),
    "name of a file too long": (
        '[env]\nname = "' + "a" * 5000 + '.py"\n',
        [],
        ["ppo.toml:2: env.name: there is no file 'aaaa"],
    ),
    "file without environment": (
        '[env]\nname = "empty_env.py"\n',
        [],
        ["ppo.toml:2: env.name: ", "exports no environment"],
    ),
    "file that fails": (
        '[env]\nname = "broken_env.py"\n',
        [],
        ["ppo.toml:2: env.name: ", "could not be imported: ModuleNotFoundError: "],
    ),
    "unknown algorithm": (
        '[algo]\nname = "poo"\n',
        [],
        ["ppo.toml:2: algo.name: unknown algorithm 'poo' - did you mean 'ppo'? Available: ", "ppo"],
    ),
    "unlike any algorithm": (
        '[algo]\nname = "zzz"\nx = 1\n',
        [],
        ["ppo.toml:2: algo.name: unknown algorithm 'zzz'. Available: ", "ppo"],
    ),
    "number for an algorithm": (
        "[algo]\nname = 3\n",
        [],
        ["ppo.toml:2: algo.name: input should be one of ", "ppo", "(got 3)"],
    ),
    "missing network file": (
        '[net]\nkind = "none.py:Net"\n',
        [],
        ["ppo.toml:2: net.kind: there is no file 'none.py' (looked in "],
    ),
    "network without class": (
        '[net]\nkind = "my_net.py"\n',
        [],
        [
            "ppo.toml:2: net.kind: input should be 'mlp', 'cnn', 'places', or your own network as FILE.py:CLASS",
            "(got 'my_net.py')",
        ],
    ),
    "unknown network": (
        '[net]\nkind = "mpl"\n',
        [],
        ["ppo.toml:2: net.kind: input should be 'mlp', 'cnn'", "did you mean 'mlp'? (got 'mpl')"],
    ),
    # an environment's parameters
    "misspelt parameter": (
        "[env.params]\ngravty = 1\n",
        [],
        ["ppo.toml:2: unknown key 'env.params.gravty' - did you mean 'env.params.gravity'?"],
    ),
    "parameter that is a text": (
        "[env]\nparams = { gravity = 'x' }\n",
        [],
        ["ppo.toml:2: env.params.gravity: input should be a number", "(got 'x')"],
    ),
    "parameter not finite": (
        "[env.params]\ngravity = inf\n",
        [],
        ["ppo.toml:2: env.params.gravity: input should be a finite number (got inf)"],
    ),
    "parameter beyond its range": (
        "[env.params]\ngravity = 1e39\n",
        [],
        ["ppo.toml:2: env.params.gravity: input should be from -1_000 to 1_000 (got 1e+39)"],
    ),
    "parameter beyond float32": (
        "env.name = 'mountaincar'\nenv.params.gravity = 1e39\n",
        [],
        ["ppo.toml:2: env.params.gravity: input should fit into a float32"],
    ),
    "fraction for a whole parameter": (
        "",
        ["env.name=my_env.py", "env.params.pieces=1.5"],
        ["command line: env.params.pieces: input should be a whole number", "(got 1.5)"],
    ),
    "whole parameter beyond int32": (
        "",
        ["env.name=my_env.py", "env.params.pieces=3G"],
        ["command line: env.params.pieces: input should be from -2_147_483_648 to 2_147_483_647 (got '3G')"],
    ),
    "number for a switch": (
        "",
        ["env.name=my_env.py", "env.params.wind=1"],
        ["command line: env.params.wind: input should be true or false (got 1)"],
    ),
    "params that are a list": (
        "[env]\nparams = [1]\n",
        [],
        ["ppo.toml:2: env.params: input should be a table (got [1])"],
    ),
    # TOML itself
    "unclosed quote": ('[run]\nname = "x\nseed = 1\n', [], ["ppo.toml:2: not valid TOML: a string is not closed"]),
    "key twice": ("[run]\nseed = 1\nseed = 2\n", [], ["ppo.toml:3: not valid TOML: a key is given twice"]),
    "table twice": ("[run]\n[env]\n[run]\n", [], ["ppo.toml:3: not valid TOML: the table [run] is given twice"]),
    "no value": (
        "[run]\nseed =\nsteps = 1\n",
        [],
        ["ppo.toml:2: not valid TOML: a value is missing or is not a TOML value"],
    ),
    "text without quotes": (
        "[net]\n\nactivation = tanh\n",
        [],
        ["ppo.toml:3: not valid TOML: a value is missing or is not a TOML value (text needs quotes)"],
    ),
    "unclosed table": ("[run\nseed = 1\n", [], ["ppo.toml:1: not valid TOML: "]),
    "unclosed list": ("[net]\nhidden = [64,\n", [], ["ppo.toml:2: not valid TOML: "]),
    "suffix outside quotes": ("[run]\nsteps = 20M\n", [], ["ppo.toml:2: not valid TOML: "]),
    "not UTF-8": (b"[run]\n# \xff\n", [], ["ppo.toml:2: the file is not UTF-8: byte 0xff"]),
    "yaml": ("run:\n  seed: 1\n", [], ["ppo.toml:1: not valid TOML: "]),
    "number without end": (
        "[run]\nseed = " + "9" * 5000 + "\n",
        [],
        ["ppo.toml:", "not valid TOML: a number has too many digits"],
    ),
    "hexadecimal without end": (
        "[run]\nseed = 0x" + "f" * 5000 + "\n",
        [],
        ["ppo.toml:2: run.seed: ", "too long to show"],
    ),
    "nested without end": (DEEP, [], ["ppo.toml:", ""]),
    "a megabyte": ("#" * (1 << 20) + "\n", [], ["ppo.toml:1: the file is larger than 1 MiB"]),
    # overrides
    "override without value": (
        "",
        ["algo.gamma"],
        ["command line: 'algo.gamma' is not an override: write section.key=value"],
    ),
    "override without key": ("", ["=3"], ["command line: '=3' is not an override"]),
    "override of nothing": ("", ["algo..gamma=1"], ["command line: 'algo..gamma=1' is not an override"]),
    "misspelt override": ("", ["algo.gama=1"], ["command line: unknown key 'algo.gama' - did you mean 'algo.gamma'?"]),
    "override without section": ("", ["lanes=4"], ["command line: unknown key 'lanes' - did you mean 'env.lanes'?"]),
    "override into a value": (
        "[env]\nlanes = 8\n",
        ["env.lanes.x=1"],
        ["command line: env.lanes.x: 'env.lanes' is a value, not a table"],
    ),
    "key unlike all beside it": (
        "",
        ["env.params.nope=3"],
        ["command line: unknown key 'env.params.nope' (known here: gravity, "],
    ),
    "override of a section": (
        "",
        ["run=5"],
        ["command line: run is a section of keys, such as run.seed, not a value (got 5)"],
    ),
    "empty override": ("", ["run.steps="], ["command line: run.steps: input should be a whole number", "(got '')"]),
    "override with a line break": (
        "",
        ["run.seed=1\nx=2"],
        ["command line: run.seed: input should be a whole number", "(got '1\\nx=2')"],
    ),
    "override of a good value": (
        "[env]\nlanes = 8\n",
        ["env.lanes=0"],
        ["command line: env.lanes: input should be greater than or equal to 1", "(got 0)"],
    ),
}


def problems_of(source, overrides=()) -> ConfigError:
    with pytest.raises(OperantError) as caught:
        load(source, overrides)
    assert isinstance(caught.value, ConfigError)
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize("name", BROKEN)
def test_invalid_configurations_are_one_line_errors(write, name):
    text, overrides, said = BROKEN[name]
    error = problems_of(write(text), overrides)
    assert len(error.problems) == 1, error
    (line,) = error.problems
    assert line.startswith(said[0]), line
    assert all(part in line for part in said), line
    assert line.isprintable()
    assert "pydantic" not in line
    assert len(line) < 800
    assert error.source == ("ppo.toml" if line.startswith("ppo.toml") else "command line")


def test_there_are_forty_broken_configurations():
    assert len(BROKEN) >= 40


def test_all_problems_are_reported_at_once_in_file_order(write):
    text = """\
colour = "red"
[run]
steps = "10X"
[net]
hidden = [64, 0.5]
activation = "sine"
[algo]
learning_rte = 3e-4
gamma = 1.5
name = "poo"
[env]
lanes = 0
name = "pendulumm"
[env.params]
gravty = 1
[polcy]
[eval]
episodes = 0
"""
    error = problems_of(write(text), ["run.seed=-1", "nonsense", "checkpoint.keep=0"])
    places = [line.partition(": ")[0] for line in error.problems]
    assert places == [f"ppo.toml:{line}" for line in (1, 3, 5, 6, 8, 9, 10, 12, 13, 15, 16, 18)] + ["command line"] * 3
    assert "did you mean 'pendulum'" in error.problems[8]
    assert [line.split()[2].strip("':") for line in error.problems[12:]] == ["run.seed", "nonsense", "checkpoint.keep"]
    assert str(error).startswith("ppo.toml has 15 problems\n  ppo.toml:1: unknown key 'colour'")
    assert str(error).endswith("\n  see all keys with their defaults: operant config show")


def test_message_that_lists_alternatives_has_no_further_advice(write):
    assert str(problems_of(write('[env]\nname = "pendulumm"\n'))).count("\n") == 1


def test_invalid_override_and_invalid_toml_are_reported_together(write):
    assert len(problems_of(write("[run\n"), ["algo.gamma=2"]).problems) == 2


def test_last_override_of_a_key_is_checked():
    assert load(None, ["env.lanes=0", "env.lanes=64"]).env.lanes == 64


def test_params_that_are_not_a_named_tuple_are_refused(write, monkeypatch):
    class Bare(NamedTuple):
        gravity: float

    for params in (dict, Bare):
        monkeypatch.setattr(
            "operant.envs.find",
            lambda name, params=params: envs.Env(params, 1, envs.Box(1), envs.Discrete(2), 9, *[print] * 3, name="odd"),
        )
        (line,) = problems_of(write('\n[env]\nname = "odd"\n')).problems
        assert line.startswith(
            "ppo.toml:3: env.name: Params of odd must be a NamedTuple whose fields all have a default"
        )


# PARTS


WORDS = st.sampled_from(
    [
        "run",
        "env",
        "algo",
        "net",
        "name",
        "params",
        "lanes",
        "gamma",
        "hidden",
        "kind",
        "a b",
        "é",
        'q"',
        "x.y",
        "",
        "1",
    ]
)
VALUES = st.recursive(
    st.one_of(st.integers(-(2**70), 2**70), st.floats(), st.booleans(), st.text(max_size=8), st.dates()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=8,
)


def paths(value, above=()):
    for name, inner in value.items():
        yield (*above, name)
        if isinstance(inner, dict):
            yield from paths(inner, (*above, name))


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(WORDS, VALUES, max_size=5), st.booleans())
def test_every_key_of_a_toml_text_has_its_line(tables, multiline):
    text = "# first\n" + tomli_w.dumps(tables, multiline_strings=multiline)
    found = toml_positions.lines(text)
    expected = set(paths(tomli.loads(text)))
    assert expected <= set(found)
    for path, line in found.items():
        written = text.split("\n")[line - 1]
        assert path[-1] in written or tomli_w.dumps({path[-1]: 0})[1:-6] in written, (path, line)


def test_toml_positions_match_a_hand_counted_example():
    text = (
        '# [no]\n[run] # x\nseed = 1\n"a.b" = """x\n[no]\n\'y\' = 1\n"""\n[ env . params ]\nlist = [ # c ]\n  1, "}]", '
        "{q = 1},\n]\n"
        "'l' = '''\n[no]'''\ni = { a = 1,\n  b.c = \"}\", d = [[], {}],\n  e = {f = 1} }\n[[many]]\nlast = 2024-01-01 "
        "00:00:00\n"
    )
    assert toml_positions.lines(text) == {
        ("run",): 2,
        ("run", "seed"): 3,
        ("run", "a.b"): 4,
        ("env",): 8,
        ("env", "params"): 8,
        ("env", "params", "list"): 9,
        ("env", "params", "l"): 12,
        ("env", "params", "i"): 14,
        ("env", "params", "i", "a"): 14,
        ("env", "params", "i", "b"): 15,
        ("env", "params", "i", "b", "c"): 15,
        ("env", "params", "i", "d"): 15,
        ("env", "params", "i", "e"): 16,
        ("env", "params", "i", "e", "f"): 16,
        ("many",): 17,
        ("many", "last"): 18,
    }


LINES = st.one_of(
    st.sampled_from(
        ["[run]", "[env]", "[env.params]", "[algo]", "[net]", "[[eval]]", "[checkpoint]", "[", '"', "'''", "}", "#", ""]
    ),
    st.tuples(
        st.sampled_from(
            [
                "seed",
                "lanes",
                "name",
                "env.name",
                "hidden",
                "kind",
                "gamma",
                "gravity",
                "params",
                "minibatches",
                "algo.name",
                "device",
                "é",
            ]
        ),
        st.sampled_from(["=", " = ", "", "=="]),
        st.one_of(
            st.sampled_from(
                [
                    "1",
                    "-1",
                    "1e400",
                    "nan",
                    "true",
                    '"20M"',
                    '"ppo"',
                    '"cartpole"',
                    "[1,2]",
                    "{a=1}",
                    '"x.py"',
                    '"x.py:N"',
                    "0xffffffffffffffffffff",
                    "1979-05-27",
                ]
            ),
            VALUES.filter(lambda value: not (isinstance(value, float) and math.isnan(value))).map(
                lambda value: tomli_w.dumps({"v": [value]})[3:]
            ),
            st.text(max_size=6),
        ),
    ).map("".join),
)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.lists(LINES, max_size=10).map("\n".join) | st.text(max_size=40) | st.binary(max_size=40),
    overrides=st.lists(LINES | st.text(), max_size=2),
)
def test_nothing_but_a_config_error_escapes(write, text, overrides):
    source = write(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    try:
        assert isinstance(load(source, overrides), config.Config)
    except ConfigError as error:
        assert error.problems
        assert all(re.match(r"ppo\.toml:\d+: |command line: ", line) for line in error.problems), error


def test_alternatives_of_a_type_become_one_sentence():
    class Either(Section):
        size: int | list[int] = 3

    with pytest.raises(ValueError, match="size") as caught:
        Either(size={"a": 1})
    ((key, _, sentence, value),) = messages.problems(caught.value, {"size": {"a": 1}})
    assert (key, value) == (("size",), {"a": 1})
    assert (
        sentence
        == "input should be a whole number, such as 20_000_000, 1e7 or '20M' or should be a list, such as [64, 64]"
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (True, "true"),
        ([1, False, "x"], "[1, false, 'x']"),
        ("\x1b[0m", "'\\x1b[0m'"),
        ("x" * 99, "'" + "x" * 75 + " ..."),
    ],
)
def test_values_in_messages_are_short_and_harmless(value, said):
    assert raw.quoted(value) == said


# OLD NAMES, AND OTHERS' NAMES


def test_alias_num_envs_sets_lanes(write):
    assert load(write("[env]\nnum_envs = 64\n")).env.lanes == 64
    source = write("[env]\nlanes = 64\n")
    assert load(source, ["env.num_envs=128"]).env.lanes == 128
    assert {row.key: row.origin for row in origins(write("[env]\nnum_envs = 64\n"))}["env.lanes"] == "ppo.toml:2"
    with pytest.raises(
        ConfigError,
        match=r"ppo.toml:3: env.num_envs is another name of env.lanes, which is also given: remove one of them",
    ):
        load(write("[env]\nlanes = 64\nnum_envs = 64\n"))


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("algo.lr", "algo.learning_rate"),
        ("algo.n_steps", "algo.horizon"),
        ("algo.ent_coef", "algo.entropy_coefficient"),
        ("lr", "algo.learning_rate"),
        ("algo.vf_coef", "algo.value_coefficient"),
        ("run.num_envs", "env.lanes"),
        ("run.total_timesteps", "run.steps"),
        ("net.net_arch", "net.hidden"),
        ("algo.gae", "algo.gae_lambda"),
        ("algo.grad_clip", "algo.max_gradient_norm"),
        ("algo.envs", "env.lanes"),
        ("net.width", "net.hidden"),
        (
            "algo.sgd_minibatch_size",
            "algo.minibatches'? (a minibatch holds env.lanes x algo.horizon / algo.minibatches samples",
        ),
        (
            "algo.batch_size",
            "algo.minibatches'? (a minibatch holds env.lanes x algo.horizon / algo.minibatches samples",
        ),
    ],
)
def test_key_names_of_other_libraries_are_corrected(key, meant):
    with pytest.raises(ConfigError) as caught:
        load(None, [f"{key}=8"])
    assert f"unknown key {key!r} - did you mean '{meant}" in str(caught.value)


@pytest.mark.parametrize(
    ("algorithm", "key", "meant"),
    [
        ("dqn", "buffer_size", "algo.replay_capacity"),
        ("sac", "ent_coef", "algo.temperature"),
        ("td3", "policy_delay", "algo.actor_delay"),
        ("dqn", "exploration_final_eps", "algo.epsilon_end"),
        ("pqn", "n_epochs", "algo.epochs"),
        ("sac", "gradient_steps", "algo.updates_per_step"),
    ],
)
def test_off_policy_key_names_of_other_libraries_are_corrected(algorithm, key, meant):
    with pytest.raises(ConfigError, match=f"unknown key 'algo.{key}' - did you mean '{meant}'"):
        load(None, [f"algo.name={algorithm}", f"algo.{key}=8"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "algo.replay_capacity=10",
            r"algo.replay_capacity: 1,024 lanes and n_step = 1 need 2,048 transitions or more \(got 10\)",
        ),
        ("replay.place=host", "unknown key 'replay.place' - did you mean 'algo.replay_place'"),
        (
            "algo.learning_starts=100M",
            r"algo.learning_starts: the replay holds 999,424 at most: raise algo.replay_capacity \(got 100,000,000\)",
        ),
        (
            "algo.updates_per_step=0.3",
            r"algo.updates_per_step: algo.horizon \(32\) x 0.3 = 9.6 updates an iteration: it should be a whole number",
        ),
    ],
)
def test_replay_that_does_not_fit_suggests_a_size(override, said):
    with pytest.raises(ConfigError, match=said):
        load(None, ["algo.name=sac", override])


def test_every_synonym_names_a_key_that_exists():
    keys = {row.key for row in origins(None)}
    assert {*old_names.SYNONYMS.values(), *old_names.ALIASES.values(), *old_names.KEYS.values()} <= keys
    assert not keys & {*old_names.ALIASES, *old_names.KEYS}
    of_q_values = {row.key for name in ("sac", "td3", "dqn") for row in origins(None, [f"algo.name={name}"])}
    assert set(old_names.REPLAY_SYNONYMS.values()) <= of_q_values


def test_renamed_key_is_an_error_outside_recorded_runs(write, monkeypatch):
    monkeypatch.setitem(old_names.KEYS, "algo.discounting", "algo.gamma")
    source = write("[algo]\ndiscounting = 0.9\n", "config.toml")
    with pytest.raises(
        ConfigError, match=r"config.toml:2: unknown key 'algo.discounting' - it is called 'algo.gamma' now"
    ):
        load(source)
    write("{}", "run.json")
    assert load(source).algo.gamma == 0.9
    assert {row.key: row.origin for row in origins(source)}["algo.gamma"] == "config.toml:2"
    with pytest.raises(
        ConfigError, match=r"command line: unknown key 'algo.discounting' - it is called 'algo.gamma' now"
    ):
        load(source, ["algo.discounting=0.8"])


# AN ALGORITHM IN A FILE


MY_ALGORITHM = """
from operant.settings import Section

class Mine:
    class Config(Section):
        temperature: float = 1.0

        def problems(self, lanes):
            return []
"""


def test_an_algorithm_of_a_users_own_is_named_by_file_and_class(write, tmp_path):
    write(MY_ALGORITHM, "my_algo.py")
    got = load(None, ["algo.name=my_algo.py:Mine", "algo.temperature=2"])
    assert (got.algo_name, got.algorithm_file, got.algo.temperature) == (
        f"{tmp_path}/my_algo.py:Mine",
        tmp_path / "my_algo.py",
        2.0,
    )
    assert load(write(to_toml(got))) == got
    assert tomli.loads(to_toml(got, algorithm_file="source/my_algo.py"))["algo"]["name"] == "source/my_algo.py:Mine"
    for name, said in {
        "none.py:Mine": "there is no file 'none.py'",
        "my_algo.py:Yours": "has no algorithm 'Yours'",
        "broken_env.py:Mine": "could not be imported",
    }.items():
        with pytest.raises(ConfigError, match=f"command line: algo.name: .*{said}"):
            load(None, [f"algo.name={name}"])


TRANSLATION = (Path(__file__).parents[2] / "docs" / "pages" / "translate.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("table", "algorithms", "least"), [("## Keys of PPO", ["ppo"], 25), ("## Keys of DQN", ["dqn", "sac", "td3"], 6)]
)
def test_every_key_of_the_page_of_translations_is_answered_with_its_name_here(table, algorithms, least):
    """Rows are meaning, other libraries' names, and the key here. What is no plain name is left out."""
    answered = 0
    for row in TRANSLATION.partition(table)[2].partition("## ")[0].splitlines():
        *cells, here = row.strip("| ").split(" | ")
        key = (re.findall(r"`(\w+\.\w+)`", here) or [""])[0]
        section, _, last = key.partition(".")
        names = {name for cell in cells[1:] for name in re.findall(r"`(\w+)`", cell)} if key else set()
        for name in names - {last, "num_envs", "batch_size", "learning_rate"}:  # keys here, too
            said = []
            for algorithm in algorithms:
                with pytest.raises(ConfigError) as caught:
                    load(None, [f"algo.name={algorithm}", f"{section}.{name}=1"])
                said.append(str(caught.value))
            assert any(f"did you mean '{key}'" in sentence for sentence in said), (name, said)
            answered += 1
    assert answered >= least
