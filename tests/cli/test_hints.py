"""Answers to common mistakes on the command line and in a user's files: the message names the correction."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import made

from operant import algos, env_names, envs, runs
from operant.cli import completion
from operant.config import keys, request, sections
from operant.errors import ConfigError
from operant.nn import mlp

FILES = {
    "my.yaml": "env:\n  name: cartpole\n",
    "my.toml": "env:\n  name: cartpole\n",
    "agent.toml": "[agent]\nlr = 1\n",
    "missing.py": "import operant\n\nx = 1\nimport no_such_module\n",
    "absent.py": "x = 1\nraise ModuleNotFoundError(\"No module named 'gymnasium'\", name='gymnasium')\n",
    "undefined.py": "x = 1\ny = np.zeros(3)\n",
    "syntax.py": "def f(:\n    pass\n",
    "outside.py": """
import gymnasium

class Outside(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(0, 1, (2,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(2), {}
""",
}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("train --lr 1e-3", "--lr is a key of the configuration: write algo.learning_rate=VALUE, without --"),
        ("train --algo sac", "--algo is a key of the configuration: write algo.name=VALUE, without --"),
        ("resume x --gamma 0.9", "--gamma is a key of the configuration: write algo.gamma=VALUE, without --"),
        ("config check my.toml --lanes 3", "--lanes is a key of the configuration: write env.lanes=VALUE, without --"),
        ("config show algo.name=a2c", "unknown algorithm 'a2c'. Available: dqn, ppo, pqn, sac, td3"),
        ("config show algo.name=ddqn", "unknown algorithm 'ddqn' - did you mean 'dqn'?"),
        ("config check agent.toml", "agent.toml:1: unknown key 'agent' - did you mean 'algo'?"),
        ("train --config my.yaml", "not valid TOML: expected '=' after a key in a key/value pair. A configuration is "),
        ("train --config my.toml", 'is TOML, not YAML: [env] above name = "cartpole"'),
        ("train algo.learning_rate=linear=[1e-3 algo.learning_rate=0]", "Quote the word, such as 'algo.learning_rate="),
        ("train algo.learning_rate={linear=[1e-3,0]", "'algo.learning_rate={linear=[1e-3,0]' is part of a value"),
        ("train algo.learnin_rate=3", "unknown key 'algo.learnin_rate' - did you mean 'algo.learning_rate'?"),
        ("config show --env missing.py", "ModuleNotFoundError: No module named 'no_such_module' (line 4)"),
        ("config show --env absent.py", "No module named 'gymnasium' (line 2): pip install 'operant[gym]'"),
        ("config show --env undefined.py", "name 'np' is not defined (line 2): add `import numpy as np`"),
        ("config show --env syntax.py", "could not be imported: SyntaxError: invalid syntax (line 1)"),
        ("config show --env outside.py:Outside", "name 'np' is not defined (line 9): add `import numpy as np`"),
        ("config show algo.name=missing.py:Mine", "No module named 'no_such_module' (line 4)"),
    ],
)
def test_a_common_mistake_is_answered_with_its_correction(here, tmp_path, words, hint):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    done = here(*words.split())
    assert done.code == 2 and hint in done.err, done.err
    assert not (tmp_path / "runs").exists()


def test_an_option_that_is_no_key_has_no_hint(here):
    for words in (("train", "--foo"), ("show", "x", "--lr")):
        assert "is a key" not in here(*words).err


def test_mistakes_of_the_command_line_are_answered_without_torch(tmp_path):
    words = ["cartpol", "--steps", "lots", "--device", "gpu", "algo.learnin_rate=3", "env.lane=1"]
    program = (
        f"import sys; from operant import cli; sys.argv = ['operant', 'train', *{words}]\n"
        "try: cli.main()\n"
        "finally: print({'torch', 'numba', 'numpy'} & set(sys.modules))"
    )
    place = os.environ | {"PYTHONPATH": str(Path(runs.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stdout == "set()\n" and not (tmp_path / "runs").exists(), done.stderr
    assert "command line has 5 problems" in done.stderr
    assert "unknown environment 'cartpol' - did you mean 'cartpole'?" in done.stderr
    assert "unknown key 'algo.learnin_rate' - did you mean 'algo.learning_rate'?" in done.stderr
    assert "unknown key 'env.lane' - did you mean 'env.lanes'?" in done.stderr
    assert "run.steps: input should be a whole number" in done.stderr and "(got 'lots')" in done.stderr
    assert "run.device: input should be auto, cpu, cuda or cuda:N" in done.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("algo.name=pppo", "algo.name: unknown algorithm 'pppo' - did you mean 'ppo'?"),
        ("ppo", "env.name: ppo is an algorithm, not an environment"),
        ("checkpoint.keep=3x", "checkpoint.keep: input should be"),
        ("eval=3", "eval is a section of keys, such as eval.every, not a value (got 3)"),
        (
            "--config mine.toml",
            "mine.toml:2: env.lanes: input should be greater than or equal to 1 or should be 'auto'",
        ),
    ],
)
def test_names_and_values_are_checked_before_the_trainer_starts(tmp_path, monkeypatch, words, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text("[env]\nlanes = 0\n")
    config = "mine.toml" if words.startswith("--config") else None
    asked = request.make([] if config else words.split(), config=config, environment_file=None, settings={})
    with pytest.raises(ConfigError, match=re.escape(problem)):
        asked.check_early()


@pytest.mark.parametrize(
    "words",
    [
        "CartPole-v1 run.name=123 run.target=none",
        "gymnasium:LunarLander-v3 env.lanes=auto env.params.gravity=-5",
        "cartpole env.params.gravity=9 algo.gamma=2 algo.learning_rate={linear=[1e-3,0],over=1M}",
        "mine.py:make algo.name=mine.py:Mine algo.depth=3 net.kind=mine.py:Net",
    ],
)
def test_what_needs_the_code_is_left_to_the_trainer(words):
    request.make(words.split(), config=None, environment_file=None, settings={"run.steps": "2M"}).check_early()


def test_keys_read_from_source_text_are_those_of_the_models():
    for name, model in (sections.MODELS | {"net": mlp.Config}).items():
        assert keys.known()[name] == list(model.model_fields)
    assert keys.algorithms() == algos.names()
    for name in algos.names():
        assert keys.known(name)["algo"] == ["name", *algos.load(name).Config.model_fields]


def test_names_of_environments_read_from_source_text_are_those_of_the_registry():
    assert sorted(env_names.modules()) == envs.names()
    ids = [envs.find(name).gymnasium for name in envs.names()]
    assert all(map(env_names.may_be_id, filter(None, ids))) and not env_names.may_be_id("CartPole-v9")


def test_completion_knows_keys():
    assert completion.keys("algo.learning_r") == ["algo.learning_rate="]
    assert "env.lanes=" in completion.environments("env.") and "env.lanes=" not in completion.environments("")


def test_a_recipes_name_stands_for_its_file(here):
    assert here("config", "show", "ppo/cartpole").out == here("config", "show", "--config", "ppo/cartpole").out


def test_stop_and_archive_print_json(here, tmp_path):
    made(tmp_path / "runs", "one", [(1, (1.0, 1.0, 1.0, 0.1))])
    stopped = json.loads(here("stop", "one", "--json").out)
    assert [(run["id"], run["state"]) for run in stopped["runs"]] == [("one", "finished")]
    archived = json.loads(here("archive", "one", "--json").out)
    assert archived == {
        "schema": 1,
        "id": "one",
        "path": "one.tar.gz",
        "bytes": (tmp_path / "one.tar.gz").stat().st_size,
    }
