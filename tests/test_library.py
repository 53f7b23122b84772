"""Library: the notebook and the examples in docstrings run, and `import operant` imports nothing."""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import operant
from monitor.data.feed import LiveFeed
from operant import library, runs
from operant.config import keywords
from operant.errors import ConfigError, NotFoundError, OperantError, UsageError

HOME = Path(operant.__file__).resolve().parents[1]
NOTEBOOK = HOME / "docs" / "notebook.ipynb"


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory):
    """Separate working folder, in which the example of the module trains."""
    folder = tmp_path_factory.mktemp("library")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("PYTHONPATH", str(HOME))
        patch.delenv("OPERANT_RUNS", raising=False)
        yield folder


def test_import_operant_imports_nothing():
    program = (
        "import sys, operant; sys.exit(any(name in sys.modules for name in ('torch', 'numpy', "
        "'operant.library', 'operant.runs')))"
    )
    assert subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(HOME)}, check=False).returncode == 0
    program = "import sys, operant; operant.list_runs('none'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(HOME)}, check=False).returncode == 0
    assert {"load", "make_vec", "list_runs", "train", "__version__"} <= set(dir(operant))
    with pytest.raises(AttributeError):
        operant.nothing  # noqa: B018


@pytest.fixture(scope="module")
def examples(place):
    """Run the examples in docstrings, that of the module first: it trains the run `example`. Returns what they print
    where they fail. Tests that read their runs ask for this fixture, so that each can run alone.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = sorted(doctest.DocTestFinder().find(library, "library"), key=lambda example: example.name)
    assert found[0].name == "library" and len([example for example in found if example.examples]) > 5
    told: list[str] = []
    for example in found:
        if example.name == "library.make_vec":
            pytest.importorskip("gymnasium")
        doctest.DocTestRunner().run(example, out=told.append)
    torch.set_num_threads(threads)
    return "".join(told)


@pytest.mark.slow
def test_the_examples_in_docstrings_run(examples):
    assert examples == ""


def test_a_policy_accepts_arrays_tensors_and_lists(one_thread, place):
    torch = pytest.importorskip("torch")
    policy = operant.load("zoo:cartpole", device="cpu")
    batch = np.random.default_rng(0).normal(size=(6, 4))
    expected = policy(batch)
    assert isinstance(expected, np.ndarray) and expected.shape == (6, 1)
    assert torch.equal(policy(torch.from_numpy(batch)), torch.from_numpy(expected))
    assert policy(batch[2])[0] == expected[2, 0] and policy(batch.tolist()).tolist() == expected.tolist()
    drawn = {int(action) for _ in range(50) for action in policy(batch, greedy=False)[:, 0]}
    assert drawn == {0, 1}
    with pytest.raises(OperantError, match=r"expected observations of shape \(4,\) or \(B, 4\), got \(5,\)"):
        policy(np.zeros(5))
    for wrong in (np.zeros((0, 4)), "abc", None, [[1, 2, 3, 4], [1]]):
        with pytest.raises(UsageError, match=r"expected observations of shape \(4,\) or \(B, 4\), got "):
            policy(wrong)
    assert policy(batch[0], legal=[0, 1])[0] == 1
    for wrong in ([1, 0, 1], "a", [[1, 0], [1, 0]]):
        with pytest.raises(UsageError, match=r"legal is .*; it must be 0 and 1 in the shape \(2,\)"):
            policy(batch[0], legal=wrong)
    with pytest.raises(UsageError, match="callbacks are functions"):
        operant.train("cartpole", callbacks=3)
    with pytest.raises(UsageError, match="5 is no environment such as 'cartpole'"):
        operant.train(5)
    with pytest.raises(UsageError, match=r"overrides is \['a=1'\]; it must be a mapping"):
        operant.train("cartpole", overrides=["a=1"])
    with pytest.raises(NotFoundError):
        operant.load("none-such")
    policy.reset()


def test_an_invalid_configuration_leaves_no_run(place):
    before = [run.id for run in operant.list_runs()]
    with pytest.raises((ConfigError, OperantError), match="did you mean"):
        operant.train("cartpol")
    with pytest.raises(OperantError, match=r"env\.lanes"):
        operant.train("cartpole", overrides={"env.lanes": -1})
    for wrong, told in (
        ({"callbacks": print, "changes": ["gamma"]}, r"algo\.gamma cannot change during a run"),
        ({"callbacks": print, "wait": False}, "leave wait=False out"),
        ({"callbacks": print, "gpus": 2}, "callbacks run in the process that trains"),
        ({"callbacks": [1]}, "callbacks are functions"),
        ({"callback": print}, "unknown key 'callback' - did you mean 'callbacks'"),
        ({"logs": ["x"]}, "there are none"),
        ({"callbacks": print, "logs": ["return", "a b"]}, r"'return' is a metric of this run(.|\n)*'a b': a name is"),
    ):
        with pytest.raises(OperantError, match=told):
            operant.train("cartpole", device="auto", **wrong)
    assert [run.id for run in operant.list_runs()] == before
    assert operant.list_runs(root=str(place / "elsewhere")) == []


@pytest.mark.parametrize(
    ("given", "override"),
    [
        ({"learning_rate": 3e-4}, "algo.learning_rate=0.0003"),
        ({"lanes": np.int64(8)}, "env.lanes=8"),
        ({"hidden": (64, 32)}, "net.hidden=[64, 32]"),
        ({"algo": "sac"}, "algo.name=sac"),
        ({"device": "cpu"}, "run.device=cpu"),
        ({"env_device": "cpu"}, "env.device=cpu"),
        ({"anneal": False, "target": None}, "algo.anneal=false run.target=none"),
        ({"params": {"gravity": 3.7}}, 'env.params={"gravity" = 3.7}'),
        ({"clip": {"piecewise": [[0, 0.2], ["2M", 0.1]]}}, 'algo.clip={"piecewise" = [[0, 0.2], ["2M", 0.1]]}'),
    ],
)
def test_keywords_are_keys_by_their_last_part(given, override):
    assert " ".join(keywords.overrides(given)) == override


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"learning_rat": 1}, r"unknown key 'learning_rat' - did you mean 'algo\.learning_rate'"),
        ({"lr": 1}, r"did you mean 'algo\.learning_rate'"),
        ({"episodes": 3, "every": 5}, r"every' is a key of 2 sections: .*checkpoint_every .* or eval_every"),
        ({"seeds": 3}, "a call trains one run"),
    ],
)
def test_wrong_keywords_are_answered_as_on_the_command_line(given, told):
    with pytest.raises(ConfigError, match=told):
        keywords.overrides(given)
    assert keywords.overrides({"rollout": 8}, own_algorithm=True) == ["algo.rollout=8"]


SMALL = {"lanes": 16, "run_threads": 1, "eval_every": 0, "device": "cpu", "progress": False, "target": "none"}


def tensors(run):
    """The parameters of the last checkpoint, as bytes."""
    return {name: tensor.numpy().tobytes() for name, tensor in run.load("last", device="cpu")._actor.tensors().items()}


@pytest.mark.slow
def test_a_run_with_a_callback_that_only_looks_ends_in_the_same_bits(one_thread, examples):
    """With files, records and an exit code like those of a run in a process of its own."""
    seen = []

    def look(run, step, metrics):
        seen.append((step, metrics["return"], run.policy(np.zeros(4, np.float32)).shape, run.state))

    alone = operant.train("cartpole", steps="4k", name="alone", **SMALL)
    looked = operant.train("cartpole", steps="4k", name="looked", callbacks=[look], **SMALL)
    assert tensors(alone) == tensors(looked)
    assert [one for one, *_ in seen] == sorted({one for one, *_ in seen}) and seen[-1][0] == 4096
    assert all(shape == (1,) and state == "running" for _, _, shape, state in seen)
    with contextlib.closing(LiveFeed(runs.load(operant.list_runs("called")[0].path))) as feed:
        assert "half" in feed.snapshot().series, "the monitor shows what a callback logged"
    assert looked.describe()["exit"] == 0 and "finished" in repr(looked) and "seconds/callback" in looked.metrics()
    assert (looked.path / "log.txt").read_text().count("finished: all steps done") == 1


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_a_run_records_the_cores_that_its_process_may_use(one_thread):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        path = operant.train("cartpole", steps=256, name="pinned", **SMALL).path
    finally:
        os.sched_setaffinity(0, before)
    assert runs.read_json(path / "run.json")["processor"].endswith(", 1 core")


@pytest.mark.parametrize("logs", [[], ["half"]])
def test_a_callback_that_stops_the_run_leaves_no_record_without_iterations(one_thread, logs):
    """Each record has the number that the callback logged at it, the last one too."""
    seen = []

    def stop(run, step, metrics):
        seen.append(step)
        if logs:
            run.log(half=step / 2)
        if step >= 2048:
            run.stop()

    options = SMALL | {"record_hz": 1000, "callbacks": stop, "logs": logs}
    columns = operant.train("cartpole", steps="40k", name=f"halted{len(logs)}", **options).metrics()
    assert columns["iterations"].min() >= 1 and columns["iterations"].sum() * 16 * 16 == columns["step"][-1] == seen[-1]
    if logs:
        assert columns["step"].tolist() == seen and columns["half"].tolist() == [step / 2 for step in seen]


@pytest.mark.slow
def test_changes_by_a_callback_are_repeated_without_it(one_thread):
    """A resume, and a new run with the configuration that the run left, end in the bits of the run."""

    def change(run, step, metrics):
        run.set(clip=0.1 if step < 3000 else 0.05)

    options = SMALL | {"anneal": False, "checkpoint_every": 4, "checkpoint_keep": 9, "record_hz": 1000}
    changed = operant.train("cartpole", steps="4k", name="changed", callbacks=change, changes="clip", **options)
    assert changed.config["algo"]["clip"] == {"piecewise": [[0, 0.2], [256, 0.1], [3072, 0.05]]}
    again = operant.train(config=changed.path / "config.toml", name="again", progress=False)
    assert tensors(again) == tensors(changed)
    before = tensors(changed)
    resumed = changed.resume(start=2048, steps="4k", progress=False)
    assert resumed.describe()["step"] == 4096 and tensors(resumed) == before
    assert changed.metrics()["schedule/clip"][-1] == pytest.approx(0.05)
    with pytest.raises(ConfigError, match="clip: input should be greater than 0"):
        changed.resume(
            steps="5k", callbacks=lambda run, step, metrics: run.set(clip=-1), changes=["clip"], progress=False
        )


@pytest.mark.slow
def test_a_stopped_run_has_ended_and_can_be_resumed_at_once(place):
    run = operant.train("cartpole", steps="900M", lanes=16, name="background", wait=False, progress=False)
    while not run.describe()["step"]:
        time.sleep(0.05)
    assert run.stop() is run and run.state == "stopped"
    step = run.describe()["step"]
    assert run.resume(steps=step + 1000, progress=False).state == "finished"


def test_a_notebook_shows_a_users_mistake_as_a_message_without_a_traceback():
    with pytest.raises(ConfigError) as caught:
        operant.train("cartpole", lerning_rate=3)
    assert "\n".join(caught.value._render_traceback_()) == (  # IPython calls it
        "ConfigError: the call has 1 problem\n  unknown key 'lerning_rate' - did you mean 'algo.learning_rate'?"
    )


def test_problems_of_a_call_name_the_call_and_those_of_a_file_the_file(place):
    with pytest.raises(ConfigError) as caught:
        operant.train("cartpole", steps="lots", gamma=2, progress=False)
    first, *lines = str(caught.value).splitlines()
    assert first == "the call has 2 problems" and "command line" not in str(caught.value)
    assert [line.split(": ")[0] for line in lines[:2]] == ["  run.steps", "  algo.gamma"]
    (place / "mine.toml").write_text("[algo]\ngamma = 3\n")
    with pytest.raises(ConfigError) as caught:
        operant.train(config=place / "mine.toml", steps="lots", progress=False)
    first, *lines = str(caught.value).splitlines()
    assert first.endswith("mine.toml has 2 problems") and "command line" not in str(caught.value)
    assert any(line.startswith("  the call: run.steps: ") for line in lines), lines
    assert any("mine.toml:2: algo.gamma: " in line for line in lines), lines


@pytest.mark.slow
def test_an_exception_of_a_callback_is_raised_after_a_checkpoint(one_thread):
    def fail(run, step, metrics):
        if step >= 1024:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        operant.train("cartpole", steps="4k", name="fails", callbacks=fail, **SMALL)
    (run,) = operant.list_runs("fails")
    described = run.describe()
    assert (described["state"], described["exit"]) == ("failed", 1)
    assert described["last_checkpoint_step"] == described["step"] >= 1024
    assert "KeyError" in (run.path / "log.txt").read_text() and "in fail" in (run.path / "log.txt").read_text()
    with pytest.raises(UsageError, match=r"'goals' is not a column .* logs=\['goals'\]"):
        run.resume(callbacks=lambda run, step, metrics: run.log(goals=1), progress=False)
    with pytest.raises(UsageError, match="half is 'x'; it must be a number"):
        run.resume(callbacks=lambda run, step, metrics: run.log(half="x"), logs="half", progress=False)
    with pytest.raises(UsageError, match=r"changes=\['clip'\]"):
        run.resume(callbacks=lambda run, step, metrics: run.set(clip=1), progress=False)
    assert run.resume(progress=False).state == "finished"


def test_an_exit_by_a_callback_leaves_a_checkpoint(one_thread):
    def leave(run, step, metrics):
        sys.exit(3)

    with pytest.raises(SystemExit) as left:
        operant.train("cartpole", steps="4k", name="left", callbacks=leave, **SMALL)
    (run,) = operant.list_runs("left")
    described = run.describe()
    assert left.value.code == 3 and described["last_checkpoint_step"] == described["step"] > 0


def test_an_interrupt_stops_a_run_in_this_process_with_a_checkpoint(one_thread):
    """As in a cell of a notebook; the process has its handlers back."""
    before = signal.getsignal(signal.SIGINT)

    def press(run, step, metrics):
        if step == 1024:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        operant.train("cartpole", steps="40k", name="pressed", callbacks=press, record_hz=1000, **SMALL)
    (run,) = operant.list_runs("pressed")
    described = run.describe()
    assert (described["state"], described["exit"]) == ("stopped", 130) and signal.getsignal(signal.SIGINT) == before
    assert 1024 <= described["last_checkpoint_step"] == described["step"] < 40_000


@pytest.mark.slow
def test_pictures_show_themselves_in_a_notebook_and_can_be_saved(one_thread, examples, tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("PIL")
    run = operant.list_runs("example")[0]
    curve, film = run.plot("return"), run.render(seconds=0.5, size=64)
    assert curve.data[:4] == b"\x89PNG" and curve.figure.axes and "image/png" in curve._repr_mimebundle_()
    assert film.data[:3] == b"GIF" and "data:image/gif;base64," in film._repr_mimebundle_()["text/html"]
    assert film.save(tmp_path / "film.gif").read_bytes() == film.data
    with pytest.raises(OperantError, match=r"must end in \.gif"):
        film.save(tmp_path / "film.mp4")
    with pytest.raises(UsageError, match="no metric 'retrun' - did you mean 'return'"):
        run.plot("retrun")
    for wrong in ({"seconds": -1}, {"size": 1}, {"episodes": -1}, {"lanes": 0}, {"form": "avi"}, {"renderer": "x"}):
        with pytest.raises(UsageError, match=f"{next(iter(wrong))} is .*; it must be "):
            run.render(**wrong)
    for wrong in ({"x": "hours"}, {"smooth": -1}, {"smooth": "a"}):
        with pytest.raises(UsageError, match=f"{next(iter(wrong))} is .*; it must be "):
            run.plot(**wrong)
    with pytest.raises(UsageError, match="has done"):
        run.resume()


@pytest.mark.slow
def test_progress_is_a_line_on_a_terminal_and_nothing_elsewhere(one_thread, examples, monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    (run,) = operant.list_runs("example")
    for shown in (True, False):
        monkeypatch.setattr(sys, "stderr", Terminal())
        run.wait(progress=shown)
        assert ("finished  example" in sys.stderr.getvalue()) == shown
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    run.wait()
    assert sys.stderr.getvalue() == "" and capsys.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.skipif(not NOTEBOOK.is_file(), reason="needs a checkout")
@pytest.mark.parametrize(
    "trains", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["over the run that is there", "as it is"]
)
def test_the_notebook_runs(one_thread, examples, capsys, monkeypatch, trains):
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("gymnasium")
    matplotlib.use("agg")
    notebook = json.loads(NOTEBOOK.read_text())
    assert notebook["nbformat"] == 4
    assert not any(cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code")
    names: dict = {}
    if not trains:
        monkeypatch.setattr(library, "train", lambda *words, **options: operant.list_runs("example")[0])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["run"].state == "finished" and "steps an episode, of at most 500" in capsys.readouterr().out
