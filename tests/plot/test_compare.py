"""`compare` and `plot` on runs with known values."""

from __future__ import annotations

import json
import math
import re
import shutil
from importlib.util import find_spec

import made_runs
import numpy as np
import pytest
from made_runs import made

from operant import plot, runs
from operant.runs import groups, membership, sweeps

pytestmark = pytest.mark.skipif(find_spec("scipy") is None, reason="needs scipy")

NAN = math.nan


def learner(
    root, algorithm, seed, *, top, environment="cartpole", end=100_000, id_=None, gamma=0.99, every=10, **document
):
    """Run that learns towards `top` plus its seed, evaluated every tenth record."""
    rows = []
    for k in range(1, 101):
        level = (top + seed) * (1 - math.exp(-k / 20))
        noise = math.sin(12.9898 * (k + 100 * seed))
        rows.append((end * k // 100, (level + 20 * noise, 1.0, level if k % every == 0 else NAN, 0.5)))
    config = (
        f'[env]\nname = "{environment}"\n[algo]\nname = "{algorithm}"\ngamma = {gamma}\n[run]\nseed = {seed}\nname '
        f'= "x{seed}"\n'
    )
    return made(
        root,
        id_ or f"{environment}-{algorithm}-{seed}",
        rows,
        config=config,
        algo=algorithm,
        env=environment,
        seed=seed,
        **document,
    )


def member(group, seed, **words):
    """Run of a group."""
    return learner(
        group.path.parent,
        "ppo",
        seed,
        id_=group.members[seed],
        request=group.request(seed),
        **membership.identity(group.uuid, seed),
        **words,
    )


@pytest.fixture
def three(here, tmp_path):
    """Five seeds of three algorithms on one environment."""
    tops = {"ppo": 480, "sac": 470, "pqn": 300}
    return [
        learner(tmp_path / "runs", algorithm, seed, top=top, target=475.0)
        for algorithm, top in tops.items()
        for seed in range(1, 6)
    ]


def last(top, seed):
    return (top + seed) * (1 - math.exp(-5))


def test_compare_says_what_an_independent_computation_does(three, here):
    from scipy import stats  # a second to import, which every process of tests would take

    done = here("compare", *(run.id for run in three), "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert [(row["group"], len(row["runs"])) for row in document["groups"]] == [("ppo", 5), ("sac", 5), ("pqn", 5)]
    for row, top in zip(document["groups"], (480, 470, 300), strict=True):
        scores = [last(top, seed) for seed in range(1, 6)]
        assert row["scores"] == pytest.approx(scores)
        # The middle half of five: one of each end is left out. And as scipy has it.
        assert (
            row["iqm"]["value"]
            == pytest.approx(sum(sorted(scores)[1:4]) / 3)
            == pytest.approx(stats.trim_mean(scores, 0.25))
        )
        assert min(scores) <= row["iqm"]["low"] < row["iqm"]["value"] < row["iqm"]["high"] <= max(scores)
        assert row["steps"] == 100_000 and row["seconds"] >= 0.5
    better = {(row["group"], row["over"]): row["value"] for row in document["improvement"]}
    assert better == {("ppo", "sac"): 1.0, ("ppo", "pqn"): 1.0, ("sac", "pqn"): 1.0}
    assert document["differences"] == {"algo.name": ["ppo", "sac", "pqn"]}


def test_compare_shows_it_in_the_terminal(three, here):
    done = here("compare", *(run.id for run in three[:7]))
    lines = done.out.splitlines()
    assert re.match(r"ppo +cartpole +5 +479\.7 +478\.\d to 481\.\d", lines[1]) and re.match(
        r"sac +cartpole +2 +46\d", lines[2]
    ), done.out
    assert lines[1].rstrip()[-1] == "█" and "▁" in lines[1]
    assert "probability that a run scores higher" in lines and any(
        re.match(r"ppo than sac +1.00", line) for line in lines
    )
    assert any(re.match(r"algo\.name +ppo +sac", line) for line in lines)


def test_a_comparison_of_few_runs_says_that_they_are_too_few(here, tmp_path):
    for name, top, several in (("low", 10, 3), ("high", 20, 3), ("four", 30, 4)):
        group = groups.create(tmp_path / "runs", name, "x", {}, list(range(1, several + 1)))
        for seed in group.members:
            member(group, seed, top=top, gamma=top / 100)
    lines = here("compare", "low", "high").out.splitlines()
    assert any(re.match(r"low than high +0\.00 +- +0\.1$", line) for line in lines), lines
    assert any(line.startswith("3 against 3 runs are too few to tell") for line in lines)
    assert any("no interval for scores that do not overlap" in line for line in lines)
    (row,) = json.loads(here("compare", "low", "high", "--json").out)["improvement"]
    assert (row["value"], row["low"], row["high"], row["runs"]) == (0.0, None, None, [3, 3])
    assert row["p_value"] == row["least_p_value"] == pytest.approx(0.1)
    enough = here("compare", "low", "four").out
    assert "too few to tell: even if all score higher, chance does the same with p = 0.057" in enough


@pytest.mark.parametrize("sizes", [(3, 3), (4, 5), (2, 9)])
def test_the_p_value_is_that_of_the_exact_mann_whitney_test(sizes):
    from scipy import stats

    from operant.plot import statistics

    generator = np.random.default_rng(3)
    for shift in (0.0, 1.0, 5.0):
        own, other = generator.normal(size=sizes[0]) + shift, generator.normal(size=sizes[1])
        wanted = stats.mannwhitneyu(own, other, method="exact").pvalue
        assert statistics.p_value([own], [other]) == pytest.approx(wanted)
        assert statistics.least_p_value([own], [other]) <= wanted + 1e-12
    assert statistics.p_value([np.ones(3)], [np.ones(4)]) == 1.0


def test_the_p_value_over_tasks_counts_assignments_within_each():
    from operant.plot import statistics

    low, high = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])
    assert statistics.p_value([low, low], [high, high]) == pytest.approx(2 / 20**2)
    assert statistics.p_value([low, high], [high, low]) == 1.0
    assert statistics.least_p_value([low, low], [high, high]) == pytest.approx(2 / 20**2)
    many = np.arange(30.0)
    assert statistics.p_value([many], [many + 0.5]) > 0.3 and statistics.p_value([many], [many + 30]) < 0.001


def test_a_group_stands_for_its_runs(here, tmp_path):
    group = groups.create(tmp_path / "runs", "many", "x", {}, [1, 2])
    for seed in group.members:
        member(group, seed, top=10)
    document = json.loads(here("compare", "many", "--json").out)
    assert [row["runs"] for row in document["groups"]] == [["many.1", "many.2"]]


def test_a_draw_counts_half_and_tasks_are_averaged():
    from operant.plot import statistics

    found = statistics.probability_of_improvement(
        [np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.0])], [np.array([2.0, 2.0]), np.array([1.0, 0.0])]
    )
    assert found.value == pytest.approx(((0 + 0 + 0.5 + 0.5 + 1 + 1) / 6 + (0 + 0.5 + 0 + 0.5) / 4) / 2)
    assert 0 <= found.low <= found.value <= found.high <= 1
    alone = statistics.interquartile_mean([np.array([3.0])])
    assert alone == (3.0, None, None)
    value, low, high = statistics.performance_profile([np.array([1.0, 2.0, 4.0, 4.0])], np.array([0.0, 1.0, 3.0, 5.0]))
    assert value.tolist() == [1.0, 0.75, 0.5, 0.0] and (low <= value).all() and (value <= high).all()


def test_the_bootstrap_draws_within_each_task():
    """Two tasks of different scale: resampling across tasks would give an interval that spans the scales."""
    from operant.plot import statistics

    found = statistics.mean([np.array([0.0, 1.0, 2.0]), np.array([100.0, 101.0, 102.0])])
    assert found.value == 51.0 and found.low >= 50.0 and found.high <= 52.0


def test_runs_that_differ_in_their_seed_alone_are_a_group(here, tmp_path):
    root = tmp_path / "runs"
    found = [
        learner(root, "ppo", 1, top=10),
        learner(root, "ppo", 2, top=10),
        learner(root, "sac", 1, top=10),
        learner(root, "ppo", 1, top=9, environment="go"),
    ]
    made_groups = plot.groups(plot.load_entries(found))
    assert [(group.label, [entry.run.id for entry in group.entries]) for group in made_groups] == [
        ("ppo cartpole", ["cartpole-ppo-1", "cartpole-ppo-2"]),
        ("sac cartpole", ["cartpole-sac-1"]),
        ("ppo go", ["go-ppo-1"]),
    ]
    (found[1].path / "config.toml").write_text((found[1].path / "config.toml").read_text().replace("0.99", "0.9"))
    made_groups = plot.groups(plot.load_entries(found[:2]))
    assert [group.label for group in made_groups] == ["ppo gamma=0.99", "ppo gamma=0.9"]
    assert plot.differences(made_groups) == {"algo.gamma": [0.99, 0.9]}


@pytest.mark.slow
def test_methods_are_compared_over_environments_without_a_mean_of_different_scales(here, tmp_path):
    for environment, scale in (("cartpole", 100), ("go", 1)):
        for algorithm, top in (("ppo", 4), ("pqn", 2)):
            for seed in (0, 1):
                learner(tmp_path / "runs", algorithm, seed * scale, top=top * scale, environment=environment)
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    document = json.loads(here("compare", *names, "--json").out)
    assert "overall" not in document
    assert [(row["group"], row["over"], row["value"]) for row in document["overall_improvement"]] == [
        ("ppo", "pqn", 1.0)
    ]
    told = here("compare", *names).out
    assert "no mean, because their scores have different scales" in told and "scaled to 0" not in told
    for kind in ("profile", "intervals"):
        done = here("plot", *names, "--kind", kind, "--out", f"{kind}.svg")
        drawn = (tmp_path / f"{kind}.svg").read_text()
        assert done.code == 0 and "normalised" not in drawn and "cartpole" in drawn and ">go" in drawn


def test_equal_runs_count_once(here, tmp_path):
    """A run that was trained again with the same configuration and seed, alone, as a member of a group, and copied."""
    group = groups.create(tmp_path / "runs", "many", "x", {}, [1, 2])
    for seed in group.members:
        member(group, seed, top=10)
    learner(tmp_path / "runs", "ppo", 1, top=10, id_="again")
    learner(tmp_path / "runs", "ppo", 3, top=10, id_="other")
    shutil.copytree(tmp_path / "runs" / "other", tmp_path / "runs" / "copied")
    done = here("compare", "many", "again", "many.2", "other", "copied", "--json")
    document = json.loads(done.out)
    assert [row["runs"] for row in document["groups"]] == [["many.1", "many.2", "other"]]
    assert document["left_out"] == [{"run": "again", "same_as": "many.1"}, {"run": "copied", "same_as": "other"}]
    assert "again has the configuration and seed of many.1: counted once" in done.err
    drawn = here("plot", "many.1", "again", "--out", "a.svg")
    assert drawn.out == "a.svg  1 run in 1 group\n" and "counted once" in drawn.err
    (row,) = json.loads(here("compare", "many.1", "again", "--json").out)["groups"]
    assert row["iqm"]["low"] is None

    # A run of other code is another run, and the longer of two equal runs counts.
    runs.update_document(tmp_path / "runs" / "again", sources={"source/my_env.py": "1" * 64})
    assert [len(row["runs"]) for row in json.loads(here("compare", "many", "again", "--json").out)["groups"]] == [2, 1]
    learner(tmp_path / "runs", "ppo", 1, top=10, id_="longer", end=200_000)
    (row,) = json.loads(here("compare", "many", "longer", "--json").out)["groups"]
    assert row["runs"] == ["many.2", "longer"]


def test_groups_and_labels_name_the_rows_and_lines(here, tmp_path):
    for name, top in (("usual", 10), ("shortsighted", 5)):
        group = groups.create(tmp_path / "runs", name, "x", {}, [1, 2])
        for seed in group.members:
            member(group, seed, top=top, gamma=0.99 if name == "usual" else 0.9)
    learner(tmp_path / "runs", "sac", 1, top=5)

    def labels(*words):
        return [row["group"] for row in json.loads(here("compare", *words, "--json").out)["groups"]]

    assert labels("usual", "shortsighted") == ["usual", "shortsighted"]
    assert labels("usual", "cartpole-sac-1", "usual.1") == ["usual", "sac"]
    assert labels("usual", "cartpole-sac-1", "--label", "cartpole-sac-1=SAC, ours") == ["usual", "SAC, ours"]
    done = here("plot", "usual", "shortsighted", "--label", "usual=$0.99$", "--out", "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert done.code == 0 and "$0.99$ (2 seeds)" in drawn and "shortsighted (2 seeds)" in drawn
    for word in ("usual", "nothing=x", "usual="):
        done = here("compare", "usual", "--label", word)
        assert done.code == 2 and "--label must be NAME=TEXT, with a NAME of the command line (usual)" in done.err


def test_a_run_with_few_evaluations_changes_neither_other_panels_nor_its_group(here, tmp_path):
    root = tmp_path / "runs"
    found = [
        learner(root, "ppo", 1, top=10),
        learner(root, "ppo", 2, top=10, every=80),
        learner(root, "ppo", 1, top=10, environment="go", every=80),
        learner(root, "ppo", 1, top=10, environment="snake"),
    ]
    made_groups = plot.groups(plot.load_entries(found))
    assert plot.default_metrics(made_groups) == {"cartpole": "eval/return", "go": "return", "snake": "eval/return"}
    done = here("plot", *(run.id for run in found), "--out", "a.svg")
    assert done.code == 0 and "cartpole-ppo-2 has too few values of eval/return for a curve" in done.err


def test_one_label_of_the_y_axis_stands_for_all_panels(here, tmp_path):
    found = [learner(tmp_path / "runs", "ppo", 1, top=10, environment=name) for name in ("cartpole", "go", "snake")]
    assert here("plot", *(run.id for run in found), "--out", "a.svg").code == 0
    assert (tmp_path / "a.svg").read_text().count("mean return of") == 1


def test_a_line_is_drawn_on_thinner_after_its_first_run_ended(here, tmp_path):
    found = [learner(tmp_path / "runs", "ppo", seed, top=10, end=40_000 * seed) for seed in (1, 2, 3)]
    ((_, band),) = plot.bands(plot.groups(plot.load_entries(found)), {"cartpole": "return"}, "steps", None)["cartpole"]
    assert band.x[-1] == 40_000 and [(x[0], x[-1]) for x, _ in band.tails] == [(40_000, 80_000), (40_000, 120_000)]
    assert here("plot", *(run.id for run in found), "--out", "a.svg").code == 0
    assert "thin lines: single seeds after that" in (tmp_path / "a.svg").read_text()


def test_no_name_and_no_number_ends_a_figure_with_a_traceback(here, tmp_path):
    learner(tmp_path / "runs", "ppo", 1, top=10, environment="$\\frac{$", id_="math")
    assert here("plot", "math", "--out", "math.svg").code == 0 and "$\\frac{$" in (tmp_path / "math.svg").read_text()
    run = learner(tmp_path / "runs", "ppo", 1, top=10, id_="digits")
    lines = [f'{{"step": {step}, "mean": {mean}}}' for step, mean in enumerate((1, "1" * 400, -1e308, 1e308, "NaN", 2))]
    lines += [f'{{"step": 1{"0" * 400}, "mean": 3}}', "[]", '{"step": "a", "mean": 4}', '{"step": 9, "mean": 3}']
    (run.path / "eval" / "evaluations.jsonl").write_text("\n".join(lines) + "\n")
    for words in (
        ("plot", "--metric", "eval/return", "--out", "a.svg"),
        ("plot", "--kind", "intervals", "--out", "b.svg"),
    ):
        assert here(words[0], "digits", *words[1:]).code == 0
    (row,) = json.loads(here("compare", "digits", "--json").out)["groups"]
    assert row["scores"] == [3.0] and here("compare", "digits", "math").code == 0


def test_evaluations_are_points_with_straight_lines_between(here, tmp_path):
    """Evaluations have their exact steps; records repeat the newest one, which would look like steps."""
    run = made(tmp_path / "runs", "few", [(10 * k, (1.0, 1.0, 5.0 if k < 60 else 9.0, 0.5)) for k in range(1, 101)])
    (run.path / "eval").mkdir(exist_ok=True)
    lines = [
        {"step": step, "mean": mean, "ci95": None} for step, mean in ((105, 1.0), (505, 5.0), (505, 3.0), (905, 9.0))
    ]
    (run.path / "eval" / "evaluations.jsonl").write_text(
        "".join(f"{json.dumps(line)}\n" for line in lines) + '{"step": 9'
    )
    ((_, band),) = plot.bands(plot.groups(plot.load_entries([run])), {"cartpole": "eval/return"}, "steps", 0.0)[
        "cartpole"
    ]
    assert list(band.marked) == [105, 505, 905]
    assert np.interp([105, 305, 505, 705, 905], band.x, band.mean) == pytest.approx([1.0, 2.0, 3.0, 6.0, 9.0])
    done = here("plot", "few", "--metric", "eval/return", "--out", "few.svg")
    assert done.code == 0 and "points: evaluations" in (tmp_path / "few.svg").read_text(), done.err


def test_smoothing_is_the_mean_of_a_window():
    x, values = np.arange(1.0, 101.0), np.arange(1.0, 101.0)
    places, marked = plot.grid([x])
    assert marked is None, "too many to be marked"
    assert plot.curve(x, values, places, 0.0) == pytest.approx(places)
    smoothed = plot.curve(x, values, places, 0.1)
    assert smoothed[-1] == pytest.approx(np.mean([value for value in values if value > 100 - 9.9]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "words"),
    [("png", ()), ("svg", ("--x", "seconds", "--metric", "return", "--smooth", "0.1")), ("pdf", ("--kind", "profile"))],
)
def test_plot_draws_a_file(three, here, tmp_path, ending, words):
    pytest.importorskip("matplotlib")
    done = here("plot", *(run.id for run in three), "--out", f"a.{ending}", *words)
    assert done.code == 0 and done.out == f"a.{ending}  15 runs in 3 groups\n", done.err
    data = (tmp_path / f"a.{ending}").read_bytes()
    assert data.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending])
    if ending == "svg":
        drawn = data.decode()
        assert (
            "ppo (5 seeds)" in drawn
            and "mean of a window of 10 % of the x axis" in drawn
            and "95 % bootstrap interval" in drawn
        )
    assert here("plot", three[0].id, "--out", f"a.{ending}").code == 2
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_what_cannot_be_compared_is_one_sentence(three, here, tmp_path):
    empty = runs.create(tmp_path / "runs", "empty", "x", {})
    done = here("compare", empty.id, three[0].id)
    assert done.code == 3 and "empty has no records to draw or compare" in done.err
    assert here("compare").code == 2 and here("compare", "nothing").code == 3
    assert here("plot", three[0].id, "--out", "a.gif").code == 2
    done = here("plot", three[0].id, "--out", "b.svg", "--metric", "retrun")
    assert (
        done.code == 2 and "has no curve of 'retrun'; available: return, loss, eval/return, seconds/update" in done.err
    )
    none = float("nan")
    once = made(tmp_path / "runs", "once", [(10, (none, 1.0, none, 0.1)), (20, (5.0, 2.0, none, 0.1))])
    done = here("plot", once.id, "--out", "b.svg")
    assert (
        done.code == 2
        and "once has one value of 'return', but a curve needs two; available: loss, seconds/update" in done.err
    )
    done = here("compare", three[0].id, "--metric", "retrun")
    assert done.code == 2 and "has no metric 'retrun' - did you mean 'return'?" in done.err
    done = here("compare", three[0].id, "--metric", "speed")
    assert done.code == 2 and "has no metric 'speed'; it has return, " in done.err
    assert here("plot", three[0].id, "--out", "b.svg", "--smooth", "7").code == 2


# THE REPORT


def test_a_report_is_one_file_without_scripts_or_addresses(tmp_path, monkeypatch):
    from html.parser import HTMLParser

    from operant import plot
    from operant.plot import report

    rows = [(10 * k, (float(k), 1.0, float(k) if k % 5 == 0 else float("nan"), 0.01)) for k in range(1, 41)]
    evil = '<script src="https://x.example">&"\x1b[31m'
    config = "[algo]\nname = 'ppo'\nlearning_rate = {}\n[run]\nseed = {}\n[env]\nname = '<b>env</b>'\n"
    made = [
        made_runs.made(
            tmp_path, f"run{k}", rows, seed=k, config=config.format(rate, k), env=evil, device_name=evil, host=evil
        )
        for k, rate in ((1, 0.001), (2, 0.001), (3, 0.01), (4, 0.01))
    ]
    groups = plot.groups(plot.load_entries(made))
    metrics = plot.default_metrics(groups)
    page = report.page(
        groups,
        plot.compare(groups),
        plot.bands(groups, metrics, "steps", None),
        metrics=metrics,
        axis="steps",
        command=f"operant report {evil}",
        films=[report.Film(evil, b"GIF89a")],
    )
    tags, loaded = [], []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            tags.append(tag)
            loaded.extend(value for name, value in attributes if name in ("src", "href"))

    Reader().feed(page)
    assert "script" not in tags and "link" not in tags and "b" not in tags
    assert loaded == ["data:image/gif;base64,R0lGODlh"] and "\x1b" not in page
    assert tags.count("polyline") == 2 and tags.count("polygon") == 2, "a mean and a band for each group"
    assert "algo.learning_rate" in page and "--seeds 2" in page and "default-src 'none'" in page
    assert "operant train --config config.toml --seed 1 --seeds 2" in page


def test_ticks_of_a_report_are_round_and_within_the_range():
    from operant.plot import report

    assert report.ticks(-0.2, 163_840) == [0, 50_000, 100_000, 150_000]
    assert report.ticks(22.1, 446.7) == [100, 200, 300, 400]
    assert report.ticks(-0.13, 0.21) == pytest.approx([-0.1, 0.0, 0.1, 0.2])
    for low, high in ((0.0, 1e-9), (-3e7, 5.0), (0.999, 1.001)):
        found = report.ticks(low, high)
        slack = 1e-6 * (high - low)
        assert 2 <= len(found) <= 7 and low - slack <= min(found) and max(found) <= high + slack
    with pytest.raises(ValueError, match="low must be less"):
        report.ticks(1.0, 1.0)


def test_report_limits_its_pairs_and_repeats_separate_seeds_separately(here, tmp_path):
    names = [f"one{k}.{seed}" for k in range(8) for seed in ((1, 7) if k == 0 else (1, 2))]
    versions = {"python": "3.11.7", "torch": "2.13.0", "numba": "0.65.1"}
    for name in names:
        k, seed = int(name[3]), int(name[5])
        learner(tmp_path / "runs", "ppo", seed, top=10 * k, gamma=0.9 + k / 100, id_=name, **versions)
    assert here("report", *names, "--x", "seconds", "--smooth", "0.1").code == 0
    page = (tmp_path / "report.html").read_text()
    assert page.count(" than ") == 20 and "8 more pairs are not shown" in page, "8 groups have 28 pairs"
    assert "--config config.toml --seed 1\noperant train --config config.toml --seed 7" in page
    assert all(f"<td>{version}</td>" in page for version in ("3.11.7", "2.13.0", "0.65.1"))
    assert "--x=seconds --smooth=0.1 --out report.html" in page
    done = here("report", *names)
    assert done.code == 2 and "already exists" in done.err
    assert here("report", *names, "--out", "report.pdf").code == 2
    assert "RUN|GROUP|SWEEP" in here("report", "--help").out


def test_report_of_a_sweep_names_its_trials_and_has_no_pairs_of_single_runs(here, tmp_path):
    folder = tmp_path / "runs" / "search"
    folder.mkdir(parents=True)
    (folder / sweeps.FILE).write_text("[sweep]\ntrials = 7\n")
    sweeps.create_identity(folder)
    for trial in range(7):
        own = membership.identity(sweeps.uuid(folder), trial)
        state = "stopped" if trial == 6 else "finished"
        learner(
            tmp_path / "runs",
            "ppo",
            1,
            top=10 * trial,
            gamma=0.9 + trial / 100,
            id_=f"search.{trial}",
            state=state,
            **own,
        )
    assert here("report", "search").out == "report.html  6 runs in 6 groups\n", "only finished trials have a result"
    page = (tmp_path / "report.html").read_text()
    assert "<td>search.5</td>" in page and "than search" not in page and "search.6" not in page
    assert "<th>group</th><th>gamma</th>" in page, "many groups: a row for each"
    assert "than search" not in here("compare", "search", "--label", "search=gammas").out
    assert "gammas.5" in here("compare", "search", "--label", "search=gammas").out


def test_the_configuration_in_a_report_has_no_name_of_a_run(here, tmp_path):
    learner(tmp_path / "runs", "ppo", 1, top=10, id_="one")
    assert here("report", "one").code == 0
    page = (tmp_path / "report.html").read_text()
    assert "name = &quot;cartpole&quot;" in page and "name = &quot;x1&quot;" not in page


def test_report_of_a_group_is_one_row_with_its_name(here, tmp_path):
    group = groups.create(tmp_path / "runs", "both", "x", {}, [1, 2])
    for seed in (1, 2):
        member(group, seed, top=100)
    assert here("report", "both", "--out", "both.html").out == "both.html  2 runs in 1 group\n"
    assert "both (2 seeds)" in (tmp_path / "both.html").read_text()
