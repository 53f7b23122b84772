"""Runs of the command line in processes of their own, in a folder of a test's, and of workers in this one, for the
tests of commands.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

import operant
from operant import runs
from operant.config import request

PACKAGE_PARENT = Path(operant.__file__).resolve().parent.parent
ITERATION = 64 * 16
SMALL = ("env.lanes=64", "algo.horizon=16", "run.threads=1", "run.device=cpu")
# Enough iterations that a kill after the first checkpoint comes long before the end; they learn little, so that greedy
# and sampled episodes differ.
STEPS = 120 * ITERATION
HALFWAY = (
    *SMALL,
    f"run.steps={STEPS}",
    "algo.learning_rate=1e-4",
    "checkpoint.every=10",
    "checkpoint.keep=4",
    "eval.every=30",
    "eval.episodes=4",
)


def environment(place: Path) -> dict[str, str]:
    """A process's environment whose runs and index lie in `place`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("OPERANT_RUNS", "PYTHONPATH", "SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST")
    }
    return kept | {"XDG_STATE_HOME": str(place / "state"), "PYTHONPATH": str(PACKAGE_PARENT), "OMP_NUM_THREADS": "1"}


def operant_process(place: Path, *words: object, **options) -> subprocess.CompletedProcess:
    """`operant WORDS` in a process of its own, in the folder `place`."""
    command = [sys.executable, "-m", "operant.cli", *map(str, words)]
    done = subprocess.run(
        command, cwd=place, env=environment(place), capture_output=True, text=True, timeout=180, **options
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done


def heavy_imports(place: Path, commands: Iterable[Sequence[str]], modules: set[str]) -> str:
    """Run `operant WORDS` for each of `commands` in one fresh process. Returns a sentence about the first that imports
    one of `modules`, or "".
    """
    program = (
        "import json, sys; from operant import cli\n"
        "commands, modules = json.loads(sys.argv[1])\n"
        "for words in commands:\n"
        "    sys.argv = ['operant', *words]\n"
        "    try: cli.main()\n"
        "    except SystemExit: pass\n"
        "    if found := set(modules) & set(sys.modules): sys.exit(f'operant {words} imports {found}')\n"
    )
    asked = json.dumps([[*commands], sorted(modules)])
    command, where = [sys.executable, "-c", program, asked], environment(place)
    done = subprocess.run(command, cwd=place, env=where, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr.splitlines()[-1] if done.returncode else ""


def the_run(place: Path) -> runs.Run:
    """The one run in `place`."""
    (run,) = runs.list_runs(place / "runs", everywhere=False)
    return run


def wait_for(condition, process: subprocess.Popen | None = None):
    """Wait until `condition` returns a true value, and return it. A deadline ends a broken test."""
    deadline_s = time.monotonic() + 90
    while not (found := condition()):
        assert time.monotonic() < deadline_s, "waited in vain"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.01)
    return found


def tensors(run_path: Path, step: int | None = None) -> bytes:
    """The bytes of a checkpoint's tensors, the last one's by default."""
    folders = sorted((run_path / "checkpoints").glob("step-*" if step is None else f"step-{step:012d}"))
    return (folders[-1] / "tensors.safetensors").read_bytes()


def made(place: Path, *words: str, name: str | None = None) -> runs.Run:
    """A run that is asked for and has not begun."""
    asked = request.make(words, config=None, environment_file=None, settings={"run.name": name})
    return runs.create(place / "runs", name, asked.prefix, asked.document())


def trained_here(place: Path, *words: str, name: str) -> Path:
    """The folder of a run that this process, which has torch already, trained as the worker of `operant train` does."""
    from operant.training import worker

    with pytest.MonkeyPatch.context() as patch:
        go_to(place, patch)
        run = made(place, *words, name=name)
        worker.train(run.path, resume=None)
    return run.path


def go_on(run: runs.Run, *words: str, start: str = "last") -> None:
    """`operant resume RUN words --from start`, in this process."""
    from operant.training import worker

    asked = request.to_resume(run.config_path, words)
    runs.update_document(
        run.path, request={**runs.read_json(run.path / "run.json")["request"], **asked.resume_document()}
    )
    worker.train(run.path, resume=start)


def go_to(place: Path, patch: pytest.MonkeyPatch) -> None:
    """This process works in a folder of its own, and its list of runs lies there."""
    patch.setenv("XDG_STATE_HOME", str(place / "state"))
    patch.chdir(place)


def inline(here, *words: str) -> SimpleNamespace:
    """`operant train --inline`, small."""
    return here("train", "--inline", *SMALL, "eval.every=0", *words)
