"""Runs with a worker that learns nothing (fake_worker.py), for every test that needs a living trainer and no torch; and
the order of tests.
"""

import contextlib
import gc
import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import DEADLINE_S, wait_until

from operant import runs
from operant.runs import launch

FAKE_WORKER = str(Path(__file__).with_name("fake_worker.py"))

# As many processes test as there are cores: threads beside them would wait for each other, and torch's wait by
# counting. Before any of them imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config):
    """Under `-n` failed assertions are told with the values of local variables: rewriting all tests for more words took
    each process half of its start.
    """
    if hasattr(config, "workerinput"):
        sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "AssertionRewritingHook"]
        config.option.showlocals = True


def pytest_ignore_collect(collection_path, config):
    """Under `-m smoke` collect only files with smoke tests: importing all of them takes longer than the tests."""
    if config.option.markexpr == "smoke" and collection_path.suffix == ".py":
        return "pytest.mark.smoke" not in collection_path.read_text(encoding="utf-8") or None
    return None


QUICK_FOLDERS = {"cli", "config", "data", "monitor", "runs"}
"""Whose files take less than half a minute each, as they compile little."""


def pytest_collection_modifyitems(items):
    """Files that compile and train come first: with `-n` the processes then end within seconds of each other. Of them
    first those of fused kernels, together: one process then starts an interpreter for all.
    """
    items.sort(key=lambda item: (item.path.parent.name in QUICK_FOLDERS, "fused" not in item.path.name))


def pytest_collection_finish():
    """The garbage collector leaves alone what the imports made, and looks more rarely: a tenth of each compilation,
    which makes many small objects.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True, scope="session")
def _own_list_of_runs(tmp_path_factory):
    """Runs of tests stay out of the list that `operant runs` and `operant monitor --latest` show whoever tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _own_log():
    """A training in this process logs more; the next test finds the log as a process begins with it."""
    yield
    logging.getLogger("operant").setLevel(logging.NOTSET)


@pytest.fixture
def one_thread():
    """Small tensors, and a machine that others use: torch computes with one thread."""
    import numba
    import torch  # which the monitor's tests do without

    # starts numba's threads, which sets torch's number: not later, between two runs to be compared
    numba.set_num_threads(numba.get_num_threads())
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def serial_worlds(monkeypatch):
    """Worlds of however many lanes are stepped by the kernels of one thread, which other tests have compiled."""
    monkeypatch.setattr("operant.compute.kernel.SERIAL_BELOW", 1 << 30)


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """`operant WORDS` in this process, in a folder of its own: exit code, stdout, stderr. Torch keeps its number of
    threads.
    """
    from operant import cli

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("OPERANT_RUNS", "SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST", "XDG_SESSION_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    threads = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else 0

    def call(*words):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["operant", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        assert "operant/cli/" not in out + err, "a traceback of the command"
        return SimpleNamespace(code=ended.value.code or 0, out=out, err=err)

    yield call
    if threads:
        sys.modules["torch"].set_num_threads(threads)


@pytest.fixture
def fresh(tmp_path):
    """Makes runs, and ends whatever of them still lives."""
    made = []

    def make(name="cartpole-ppo-4f2a"):
        made.append(runs.create(tmp_path / "runs", name, "cartpole-ppo", {}))
        return made[-1]

    yield make
    for run in made:
        end = time.monotonic() + DEADLINE_S
        while run.path.exists() and (pid := runs.holder(run.path)) and time.monotonic() < end:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


@pytest.fixture
def started(fresh):
    """Starts a fake worker of a behaviour, in a run of its own."""

    def start(behaviour, name="cartpole-ppo-4f2a"):
        run = fresh(name)
        launch.start(run, [sys.executable, FAKE_WORKER, str(run.path), behaviour])
        wait_until(lambda: runs.read_json(run.path / "run.json")["pid"])
        return run

    return start
