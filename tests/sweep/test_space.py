"""Search spaces and plans: parsing, errors, conditions; objectives."""

import random

import pytest

from operant.config import load, request
from operant.errors import ConfigError, NotFoundError, UsageError
from operant.runs import results
from operant.sweep import plan as planning
from operant.sweep import space

BASE = """
[run]
device = "cpu"
[env]
lanes = 64
[sweep]
"""


class RandomTrial:
    """Engine trial that samples at random and records the names it was asked for."""

    def __init__(self, seed):
        self.random, self.asked = random.Random(seed), []

    def suggest_float(self, name, low, high, step=None, log=False):
        self.asked.append(name)
        return self.random.uniform(low, high)

    def suggest_int(self, name, low, high, step=1, log=False):
        self.asked.append(name)
        return self.random.randrange(low, high + 1, step)

    def suggest_categorical(self, name, choices):
        self.asked.append(name)
        return self.random.choice(choices)


def made(place, text, *words, name=None, file="my.toml"):
    (place / file).write_text(BASE + text)
    asked = request.make(words, config=str(place / file), environment_file=None, settings={})
    return planning.make(asked, str(place / "runs"), name)


def test_sampled_values_are_in_range_and_valid_overrides(tmp_path):
    plan = made(
        tmp_path,
        """
algo.learning_rate = {log = [1e-4, 1e-2]}
algo.epochs = {log = [1, 8]}
algo.gae_lambda = {uniform = [0.8, 1.0]}
net.hidden = {choice = [[64, 64], [32]]}
""",
    )
    for seed in range(20):
        drawn = space.values(plan.space, RandomTrial(seed))
        assert (
            1e-4 <= drawn["algo.learning_rate"] <= 1e-2
            and isinstance(drawn["algo.epochs"], int)
            and drawn["net.hidden"] in ([64, 64], [32])
        )
        words = [space.override(key, value) for key, value in drawn.items()]
        loaded = load.values(load.load(plan.request.source, words))
        assert {key: list(loaded[key]) if isinstance(loaded[key], tuple) else loaded[key] for key in drawn} == drawn


@pytest.mark.parametrize(
    ("file", "name"),
    [("my bést swéep.toml", "my-b-st-sw-ep-sweep"), ("ü.toml", "sweep"), (f"{'a' * 60}.toml", f"{'a' * 40}-sweep")],
)
def test_a_sweep_is_named_after_its_file(tmp_path, file, name):
    assert made(tmp_path, "algo.learning_rate = {log = [1e-4, 1e-2]}", file=file).name == name


def test_a_conditional_key_is_searched_only_where_its_condition_holds(tmp_path):
    plan = made(
        tmp_path,
        """
algo.clip = {uniform = [0.1, 0.3], when = {"algo.epochs" = [2, 3]}}
algo.epochs = {uniform = [1, 4]}
algo.gamma = {uniform = [0.9, 0.99], when.algo.kernels = "torch", when."algo.epochs" = 2}
algo.kernels = {choice = ["torch", "auto"]}
""",
    )
    seen = set()
    for seed in range(60):
        drawn = space.values(plan.space, RandomTrial(seed))
        assert ("algo.clip" in drawn) == (drawn["algo.epochs"] in (2, 3))
        assert ("algo.gamma" in drawn) == (drawn["algo.epochs"] == 2 and drawn["algo.kernels"] == "torch")
        seen.add(tuple(drawn))
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "algo.learning_rate = {log = [0, 1]}",
            "my.toml:7: sweep.algo.learning_rate: log should begin above 0 (got [0, 1])",
        ),
        ("algo.learning_rate = {log = [1, 0.1]}", "the smaller one first (got [1, 0.1])"),
        ("algo.learning_rate = {lag = [1, 2]}", "sweep.algo.learning_rate.lag: input should be {log"),
        ("algo.learning_rate = {log = [1e-4, 1e-2], uniform = [0, 1]}", "not log and uniform together"),
        ("algo.learning_rate = 3e-4", "sweep.algo.learning_rate: input should be {log = [1e-4, 1e-2]}"),
        (
            "algo.learning_rte = {log = [1e-4, 1e-2]}",
            "sweep.algo.learning_rte: unknown key 'algo.learning_rte' - did you mean 'algo.learning_rate'?",
        ),
        (
            "algo.gamma = {uniform = [0.9, 1.5]}",
            "sweep.algo.gamma: algo.gamma: input should be less than or equal to 1 (got 1.5)",
        ),
        ("run.seed = {uniform = [1, 9]}", "sweep.run.seed: cannot be searched: all trials have the same seeds"),
        ("checkpoint.every = {uniform = [1, 9]}", "[checkpoint] does not change the policy"),
        (
            'algo.clip = {uniform = [0.1, 0.2], when = {"algo.epochs" = 2}}',
            "sweep.algo.clip: when: algo.epochs is not searched",
        ),
        ("net.hidden = {choice = [[64], [64]]}", "choice should be a list of different values"),
        (
            "trails = 10\nalgo.clip = {uniform = [0.1, 0.2]}",
            "my.toml:7: unknown key 'sweep.trails' - did you mean 'sweep.trials'?",
        ),
        (
            'pruner = "median"\nalgo.clip = {uniform = [0.1, 0.2]}',
            "sweep.pruner: input should be 'hyperband', 'wilcoxon' or 'none'",
        ),
        (
            'objective = "time_to_target"\nalgo.clip = {uniform = [0.1, 0.2]}',
            'sweep.objective: "time_to_target" needs run.target',
        ),
        ('pareto = true\nsampler = "cma_es"\nalgo.clip = {uniform = [0.1, 0.2]}', "cma_es supports one objective only"),
        ("trials = 3", "no key to search"),
        (
            '"algo.clip" = {uniform = [0.1, 0.2]}',
            "my.toml:7: sweep: algo.clip is quoted, so TOML reads it as one name: remove the quotes",
        ),
    ],
)
def test_an_invalid_search_space_is_reported_with_its_line(tmp_path, text, told):
    with pytest.raises(ConfigError) as caught:
        made(tmp_path, text)
    assert told in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_sweep_that_has_begun_accepts_the_same_values_only(tmp_path):
    first = made(tmp_path, "trials = 3\nalgo.clip = {uniform = [0.1, 0.2]}")
    assert first.folder == tmp_path / "runs" / "my-sweep" and first.trials == 3
    assert made(tmp_path, "trials = 5\nalgo.clip = {uniform = [0.1, 0.2]}").trials == 5
    assert planning.join(first.folder).space == first.space
    kept = first.folder / planning.FILE
    kept.write_text(
        "".join(line for line in kept.read_text().splitlines(keepends=True) if not line.startswith("gae_lambda"))
    )  # by a version without it
    assert made(tmp_path, "trials = 5\nalgo.clip = {uniform = [0.1, 0.2]}").trials == 5
    with pytest.raises(UsageError, match=r"has other values of sweep\.algo\.clip\.uniform"):
        made(tmp_path, "algo.clip = {uniform = [0.1, 0.3]}")
    with pytest.raises(UsageError, match=r"other values of algo\.epochs"):
        made(tmp_path, "algo.clip = {uniform = [0.1, 0.2]}", "algo.epochs=3")
    assert made(tmp_path, "algo.clip = {uniform = [0.1, 0.3]}", name="another").folder.name == "another"
    with pytest.raises(NotFoundError, match="is not a sweep"):
        planning.join(tmp_path)


def test_a_run_ignores_the_sweep_section(tmp_path):
    made(tmp_path, "trials = 3\nalgo.clip = {uniform = [0.1, 0.2]}")
    assert load.load(tmp_path / "my.toml").env.lanes == 64


def test_objectives_of_a_run_with_two_evaluations():
    points = (results.Point(100, 10.0, None), results.Point(200, 20.0, None))
    found = results.Result(points, 200, 3.0, True)
    assert results.value(found, "score", 400) == 20.0
    assert results.value(found, "area", 400) == (100 * 10 + 100 * 15 + 200 * 20) / 400
    assert results.value(found, "time_to_target", 400) == 3.0
    assert results.value(found._replace(reached=False), "time_to_target", 400) == 30.0
    assert results.value(found._replace(points=()), "score", 400) is None
