"""Schedules: how they are written, what they are at a step, what is refused; and that training reads them, in every
backend and across a resume.
"""

import pytest
import torch
from processes import ITERATION, SMALL, made, tensors

from operant import runs
from operant.config import load, schedules
from operant.errors import ConfigError
from operant.training import worker
from operant.training.build import build, set_scheduled


def of(*words):
    return load.load(None, ["run.steps=1000", *words])


@pytest.mark.parametrize(
    ("written", "steps", "values"),
    [
        ({"linear": [1.0, 0.0], "over": "1k"}, [0, 250, 1000, 5000], [1.0, 0.75, 0.0, 0.0]),
        ({"linear": [0.0, 2.0, 1.0]}, [0, 50, 100, 150, 200], [0.0, 1.0, 2.0, 1.5, 1.0]),
        ({"points": [[100, 1.0], [200, 3.0]]}, [0, 100, 150, 300], [1.0, 1.0, 2.0, 3.0]),
        ({"piecewise": [[0, 1.0], ["1k", 0.5]]}, [0, 999, 1000, 9999], [1.0, 1.0, 0.5, 0.5]),
    ],
)
def test_schedule_interpolates_between_points(written, steps, values):
    schedule = schedules.parse(written, 200)
    assert [schedule.at(step) for step in steps] == values
    assert schedules.parse(schedule.document(), 7) == schedule


def test_schedules_survive_a_round_trip_through_toml(tmp_path):
    loaded = of("algo.learning_rate={linear=[1e-3,0]}", "algo.clip={piecewise=[[0,0.2],['1k',0.1]]}")
    assert loaded.scheduled["learning_rate"].at(500) == 5e-4 and not loaded.algo.anneal, (
        "it is in the place of the annealing"
    )
    (tmp_path / "again.toml").write_text(load.to_toml(loaded))
    assert load.load(tmp_path / "again.toml") == loaded
    origin = next(
        row for row in load.origins(None, ["algo.clip={linear=[0.2,0.1],over=10}"]) if row.key == "algo.clip.points"
    )
    assert origin.value == [[0, 0.2], [10, 0.1]] and origin.origin == "command line"


def test_a_number_with_a_suffix_needs_no_quotes_on_the_command_line(tmp_path):
    for word in ("algo.clip={linear=[0.2,0.1],over=50k}", 'algo.clip={linear=[0.2,0.1],over="50k"}'):
        assert of(word).scheduled["clip"].points == ((0, 0.2), (50_000, 0.1))
    assert of("algo.clip={piecewise=[[0,0.2],[0.5M,0.1]]}").scheduled["clip"].points[1] == (500_000, 0.1)
    (tmp_path / "mine.toml").write_text("[algo]\nclip = {linear=[0.2,0.1], over=50k}\n")
    with pytest.raises(ConfigError, match=r'mine.toml:2: not valid TOML: .*written in quotes: "50k"\)'):
        load.load(tmp_path / "mine.toml")


@pytest.mark.parametrize(
    ("word", "told"),
    [
        (
            "algo.gamma={linear=[0.9,0.99]}",
            "algo.gamma: this key cannot be a schedule: it is fixed when training begins. "
            "Keys that can be schedules: algo.learning_rate, "
            "algo.clip",
        ),
        (
            "env.params.gravity={linear=[9.8,'x']}",
            "env.params.gravity: steps should be whole numbers and values numbers",
        ),
        ("env.params.tau={linear=[0.02,-1]}", "env.params.tau: input should be from 0.0001 to 1 (got -1.0)"),
        (
            "env.params.gravit={linear=[9.8,1]}",
            "env.params.gravit: this key cannot be a schedule: it is fixed when training begins. "
            "Keys that can be schedules: "
            "algo.learning_rate",
        ),
        ("run.steps={linear=[9.8,1]}", "run.steps: this key cannot be a schedule"),
        (
            "algo.clip={piecewise=[[0,0.2]],by='return'}",
            'algo.clip: a schedule is a function of steps, or with by = "eval/return" of evaluations',
        ),
        ("algo.clip={linear=[0.2,0.1],by='eval/return'}", "algo.clip: a schedule is one of {linear"),
        (
            "algo.learning_rate={linear=[1e-3,2]}",
            "algo.learning_rate: input should be less than or equal to 1 (got 2.0)",
        ),
        ("algo.learning_rate={linear=[0,0]}", "algo.learning_rate: the schedule never leaves 0.0"),
        ("algo.learning_rate={linear=[1,0],after=3}", "algo.learning_rate: a schedule is one of {linear"),
        ("algo.learning_rate={points=[[10,1],[5,1]]}", "the steps of a schedule must ascend"),
        ("algo.learning_rate={points=[[0,'x']]}", "steps should be whole numbers and values numbers"),
        ("algo.learnin_rate={linear=[1,0]}", "unknown key 'algo.learnin_rate' - did you mean 'algo.learning_rate'?"),
    ],
)
def test_invalid_schedules_are_config_errors_that_name_the_key(word, told):
    with pytest.raises(ConfigError) as caught:
        of(word)
    assert told in str(caught.value) and len(caught.value.problems) == 1


SCHEDULED = {
    "learning_rate": 1e-3,
    "clip": 0.15,
    "value_clip": 0.3,
    "entropy_coefficient": 0.02,
    "value_coefficient": 0.25,
    "target_kl": 0.01,
}


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_training_uses_scheduled_values_of_the_current_step(kernels):
    """With what a schedule says at a step, an update is the one with these values from the beginning."""
    sizes = (*SMALL, f"algo.kernels={kernels}", "algo.epochs=2", "algo.anneal=false")
    changing = of(
        *sizes, *(f"algo.{key}={{points=[[0,{value / 2}],[1000,{value}]]}}" for key, value in SCHEDULED.items())
    )
    fixed = of(*sizes, *(f"algo.{key}={value}" for key, value in SCHEDULED.items()))
    ends = []
    for config in (changing, fixed, of(*sizes)):
        algo = build(config, "cpu")
        algo.start()
        set_scheduled(algo, 1000)
        for phase in algo.phases:
            phase.run()
        ends.append(algo.state("policy"))
    for name, values in ends[0].items():
        assert torch.allclose(values, ends[1][name], rtol=1e-4, atol=1e-6), name
    assert not all(torch.allclose(values, ends[2][name], rtol=1e-3, atol=1e-5) for name, values in ends[0].items())


@pytest.mark.parametrize("algorithm", ["pqn", "dqn", "sac", "td3"])
def test_learning_rate_is_schedulable_in_every_algorithm(algorithm):
    environment = "pendulum" if algorithm in ("sac", "td3") else "cartpole"
    config = of(
        f"env.name={environment}", f"algo.name={algorithm}", "env.lanes=8", "algo.learning_rate={linear=[1e-3,0]}"
    )
    algo = build(config, "cpu")
    set_scheduled(algo, 250)
    (_, scalar) = algo.scheduled["learning_rate"]
    assert float(scalar) == pytest.approx(7.5e-4)
    assert algo.config.learning_rate is scalar


def whole_as_resumed(tmp_path, over, *words):
    """The folder of a run of so many steps, which ends in the same bits as one that was resumed after three
    iterations.
    """
    whole = made(tmp_path, *words, f"run.steps={over}", "run.record_hz=1000").path
    parts = made(tmp_path, *words, f"run.steps={3 * ITERATION}").path
    worker.train(whole, resume=None)
    worker.train(parts, resume=None)
    asked = runs.read_json(parts / "run.json")["request"]
    runs.update_document(
        parts, request=asked | {"resume_overrides": [f"run.steps={over}"], "resume_directory": str(tmp_path)}
    )
    worker.train(parts, resume="last")
    assert tensors(parts) == tensors(whole)
    return whole


@pytest.mark.slow
def test_a_run_resumed_in_the_middle_of_a_schedule_ends_in_the_same_bits_and_shows_it(tmp_path):
    over = 8 * ITERATION
    words = (
        *SMALL,
        f"algo.clip={{linear=[0.3,0.05],over={over}}}",
        f"algo.learning_rate={{linear=[1e-3,1e-4],over={over}}}",
        "eval.every=0",
    )
    whole = whole_as_resumed(tmp_path, over, *words)
    with runs.Reader(whole / "metrics.mm") as reader:
        place = [metric.name for metric in reader.metrics].index("schedule/clip")
        assert [record.values[place] for record in reader.since(0, 100)][-1] == pytest.approx(0.3 - 0.25 * 7 / 8)


def test_a_schedule_by_the_evaluations_has_its_first_value_before_the_first_one():
    for written, values in (
        ({"points": [[-10, 1.0], [30, 3.0]], "by": "eval/return"}, (1.0, 1.0, 2.0, 3.0)),
        ({"piecewise": [[-10, 1.0], [30, 3.0]], "by": "eval/return"}, (1.0, 1.0, 1.0, 3.0)),
    ):
        schedule = schedules.parse(written, 200)
        assert tuple(schedule.at(10**6, score) for score in (float("nan"), -20.0, 10.0, 99.0)) == values
        assert schedules.parse(schedule.document(), 7) == schedule
    with pytest.raises(ConfigError, match=r"needs evaluations, which eval\.every = 0 disables"):
        of("algo.clip={piecewise=[[0,0.2]],by='eval/return'}", "eval.every=0")


def test_environment_parameter_follows_its_schedule(tmp_path):
    """In training; evaluations, films and exports have the last value."""
    loaded = of(
        "env.params.gravity={linear=[1,9]}",
        "env.params.half_length={piecewise=[[0,0.2],[500,0.4]],by='eval/return'}",
        "env.lanes=8",
    )
    assert loaded.params.gravity == 9.0 and loaded.params.half_length == 0.4
    (tmp_path / "again.toml").write_text(load.to_toml(loaded))
    again = load.load(tmp_path / "again.toml")
    assert again == loaded and again.scheduled.keys() == {"env.params.gravity", "env.params.half_length"}
    origin = next(
        row
        for row in load.origins(None, ["env.params.gravity={linear=[1,9],over=10}"])
        if row.key == "env.params.gravity.points"
    )
    assert origin.value == [[0, 1.0], [10, 9.0]] and origin.origin == "command line"


def test_environment_parameter_may_be_named_points(tmp_path):
    """Pong is played to so many points."""
    loaded = of("env.name=pong", "env.params.points=5", "env.params.width={linear=[400,500]}")
    (tmp_path / "again.toml").write_text(load.to_toml(loaded))
    again = load.load(tmp_path / "again.toml")
    assert again == loaded and again.params.points == 5 and again.scheduled.keys() == {"env.params.width"}


@pytest.mark.slow
@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_world_steps_with_scheduled_parameters(device):
    """A world whose parameters change is, to the bit, the one that has these values from the beginning."""
    name = "gravity"
    changing = build(of(f"env.params.{name}={{linear=[1,9]}}", "env.lanes=8", f"env.device={device}"), "cpu")
    set_scheduled(changing, 250)
    assert {key: float(scalar) for key, (_, scalar) in changing.scheduled.items()} == {f"env.params.{name}": 3.0}
    seen = []
    for world in (
        changing.world,
        *(build(of(f"env.params.{name}={value}", "env.lanes=8"), "cpu").world for value in (3.0, 9.0)),
    ):
        slot = world.slot()
        bound = world.bind(slot)
        world.reset(bound)
        for k in range(20):
            slot.action.fill_(k % 2)
            world.step(bound)
            world.advance(1)
        seen.append(slot.observation.clone())
    assert torch.equal(seen[0], seen[1]) and not torch.equal(seen[0], seen[2])


@pytest.mark.slow
def test_a_run_resumed_in_the_middle_of_a_curriculum_ends_in_the_same_bits(tmp_path):
    """By steps, and by what evaluations brought: those of the session before count."""
    over = 8 * ITERATION
    by = "algo.clip={piecewise=[[-1000,0.3],[9.5,0.2],[15,0.1],[40,0.05]],by='eval/return'}"
    words = (
        *SMALL,
        f"env.params.gravity={{linear=[1,9.8],over={over}}}",
        by,
        "eval.every=2",
        "eval.episodes=4",
        "algo.anneal=false",
    )
    whole = whole_as_resumed(tmp_path, over, *words)
    with runs.Reader(whole / "metrics.mm") as reader:
        places = {
            name: [metric.name for metric in reader.metrics].index(name)
            for name in ("schedule/params.gravity", "schedule/clip")
        }
        shown = {name: [record.values[place] for record in reader.since(0, 100)] for name, place in places.items()}
    assert shown["schedule/params.gravity"][-1] == pytest.approx(1 + 8.8 * 7 / 8)
    assert shown["schedule/clip"][0] == pytest.approx(0.3) and len(set(shown["schedule/clip"])) > 1
