"""Library: the notebook and the examples in docstrings run, and `import operant` imports nothing."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import operant
from operant import library
from operant.errors import ConfigError, NotFoundError, OperantError

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


def test_the_examples_in_docstrings_run(one_thread):
    """The example of the module comes first: it trains the run of all others."""
    examples = sorted(doctest.DocTestFinder().find(library, "library"), key=lambda example: example.name)
    assert examples[0].name == "library" and len([example for example in examples if example.examples]) > 5
    for example in examples:
        if example.name == "library.make_vec":
            pytest.importorskip("gymnasium")
        told = []
        failed = doctest.DocTestRunner().run(example, out=told.append).failed
        assert failed == 0, "".join(told)


def test_a_policy_accepts_arrays_tensors_and_lists(one_thread):
    torch = pytest.importorskip("torch")
    policy = operant.load(Path("runs/example"), device="cpu")
    batch = np.random.default_rng(0).normal(size=(6, 4))
    expected = policy(batch)
    assert isinstance(expected, np.ndarray) and expected.shape == (6, 1)
    assert torch.equal(policy(torch.from_numpy(batch)), torch.from_numpy(expected))
    assert policy(batch[2])[0] == expected[2, 0] and policy(batch.tolist()).tolist() == expected.tolist()
    drawn = {int(action) for _ in range(50) for action in policy(batch, greedy=False)[:, 0]}
    assert drawn == {0, 1}
    with pytest.raises(OperantError, match=r"expected observations of shape \(4,\) or \(B, 4\), got \(5,\)"):
        policy(np.zeros(5))
    with pytest.raises(NotFoundError):
        operant.load("none-such")
    policy.reset()


def test_an_invalid_configuration_leaves_no_run(place):
    with pytest.raises((ConfigError, OperantError), match="did you mean"):
        operant.train("cartpol")
    with pytest.raises(OperantError, match=r"env\.lanes"):
        operant.train("cartpole", overrides={"env.lanes": -1})
    assert [run.id for run in operant.list_runs()] == ["example"] and operant.list_runs(
        root=str(place / "elsewhere")
    ) == []


@pytest.mark.skipif(not NOTEBOOK.is_file(), reason="needs a checkout")
@pytest.mark.parametrize(
    "trains", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["over the run that is there", "as it is"]
)
def test_the_notebook_runs(one_thread, capsys, monkeypatch, trains):
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("gymnasium")
    matplotlib.use("agg")
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]) == (
        4,
        [[]] * 4,
    )
    names: dict = {}
    if not trains:
        monkeypatch.setattr(library, "train", lambda *words, **options: operant.list_runs("example")[0])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["run"].state == "finished" and "steps an episode, of at most 500" in capsys.readouterr().out
