"""Fixtures for all tests, and the order of tests. Tests that need a live trainer but no torch use `fake_worker.py`."""

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

# The tests run in one process per core: more threads would wait for each other, and torch's threads wait actively.
# Set before any test imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config):
    """Report failed assertions with local variables instead of rewriting assertions, in the processes of `-n`:
    rewriting all tests took half of the start of each process.
    """
    if hasattr(config, "workerinput"):
        sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "AssertionRewritingHook"]
        config.option.showlocals = True


def pytest_ignore_collect(collection_path, config):
    """Collect only files with smoke tests for `-m smoke`: importing all files takes longer than the tests."""
    if config.option.markexpr == "smoke" and collection_path.suffix == ".py":
        return "pytest.mark.smoke" not in collection_path.read_text(encoding="utf-8") or None
    return None


QUICK_FOLDERS = {"cli", "config", "data", "monitor", "runs"}
"""Folders whose files take less than half a minute each, since they compile little."""


PLAIN_LIMIT_S, SLOW_LIMIT_S = 300, 1200
"""Seconds after which a test, fixtures included, counts as hung and fails with the stacks of all threads."""


def pytest_collection_modifyitems(config, items):
    """Order files that compile and train first, so that the processes of `-n` end at about the same time. Files of
    fused kernels come first of all, together: a single process then starts Triton's interpreter. Limit the time of
    each test that has no other limit; `soak` tests have none.
    """
    items.sort(key=lambda item: (item.path.parent.name in QUICK_FOLDERS, "fused" not in item.path.name))
    if config.pluginmanager.hasplugin("timeout") and config.getvalue("timeout") is None:
        for item in items:
            if item.get_closest_marker("timeout") is None and item.get_closest_marker("soak") is None:
                limit_s = PLAIN_LIMIT_S if item.get_closest_marker("slow") is None else SLOW_LIMIT_S
                item.add_marker(pytest.mark.timeout(limit_s))


def pytest_collection_finish():
    """Exempt the imports' objects from garbage collection, and collect more rarely. Compilation creates many small
    objects, and collections took a tenth of its time.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True, scope="session")
def _own_list_of_runs(tmp_path_factory):
    """Keep the runs of tests out of this user's index of runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="module")
def _quick_collections():
    """Exempt what a file's tests left, such as newly imported modules, from garbage collection: each training in this
    process begins with a collection, which otherwise takes up to half a second.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _own_log():
    """Restore the log level, which a training in this process changes."""
    yield
    logging.getLogger("operant").setLevel(logging.NOTSET)


@pytest.fixture
def one_thread():
    """Limit torch to one thread: tensors are small, and other tests run at the same time."""
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
    """Step worlds of any size by the single-threaded kernels, which other tests have compiled."""
    monkeypatch.setattr("operant.compute.kernel.SERIAL_BELOW", 1 << 30)


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """Run `operant WORDS` in this process and in a temporary folder. Returns exit code, stdout and stderr. Torch keeps
    its number of threads.
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
    """Create runs; end those that are still alive after the test."""
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
    """Start a fake worker with a behaviour, in a new run."""

    def start(behaviour, name="cartpole-ppo-4f2a"):
        run = fresh(name)
        launch.start(run, [sys.executable, FAKE_WORKER, str(run.path), behaviour])
        wait_until(lambda: runs.read_json(run.path / "run.json")["pid"])
        return run

    return start
