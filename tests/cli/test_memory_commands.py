"""A policy with a memory through the commands: trained, resumed to the bit, evaluated, filmed and exported; what it
does not go together with is refused.
"""

from __future__ import annotations

import json

import pytest
from processes import ITERATION, SMALL, inline, tensors
from test_resume import go_on

from operant import runs

pytestmark = pytest.mark.usefixtures("one_thread", "serial_worlds")
WORDS = "net.memory=gru", "net.hidden=[16]", "algo.bptt=8", "algo.anneal=false", "checkpoint.every=4", "eval.episodes=8"


def run_of(place, name):
    return next(run for run in runs.list_runs(place / "runs", everywhere=False) if run.id == name)


@pytest.mark.slow
def test_it_resumes_to_the_bit_and_plays(here, tmp_path):
    for name, iterations in (("whole", 6), ("halves", 3)):
        done = inline(here, *WORDS, f"run.steps={iterations * ITERATION}", "--name", name)
        assert done.code == 0, done.err
    go_on(run_of(tmp_path, "halves"), f"run.steps={6 * ITERATION}")
    assert tensors(tmp_path / "runs" / "halves") == tensors(tmp_path / "runs" / "whole")
    played = here("eval", "whole", "--episodes", "8", "--json")
    assert played.code == 0 and json.loads(played.out)["greedy"]["mean"] > 5.0, played.err


@pytest.mark.soak
def test_it_is_filmed_exported_and_profiled(here, tmp_path):
    assert inline(here, *WORDS, f"run.steps={2 * ITERATION}", "--name", "whole").code == 0
    filmed = here("render", "whole", "--out", "film.png", "--episodes", "1")
    assert filmed.code == 0 and (tmp_path / "film.png").read_bytes().startswith(b"\x89PNG"), filmed.err
    exported = here("export", "policy", "whole", "--to", "numpy")
    assert exported.code == 0 and "state_0" in exported.out, exported.err
    profiled = here(
        "profile", *SMALL, *WORDS, "env.lanes=auto", f"run.steps={1000 * ITERATION}", "--updates", "1", "--json"
    )
    assert profiled.code == 0 and json.loads(profiled.out)["kernels"] == "torch", profiled.err


@pytest.mark.soak
def test_concentration_by_its_recipe_resumes_to_the_bit_and_is_played_filmed_and_exported(here, tmp_path):
    words = (
        "concentration",
        "env.lanes=8",
        "algo.horizon=104",
        "algo.minibatches=2",
        "net.hidden=[4]",
        "eval.episodes=8",
        "algo.anneal=false",
    )
    for name, iterations in (("whole", 4), ("halves", 2)):
        assert inline(here, *words, "checkpoint.every=2", f"run.steps={iterations * 8 * 104}", "--name", name).code == 0
    go_on(run_of(tmp_path, "halves"), f"run.steps={4 * 8 * 104}")
    assert tensors(tmp_path / "runs" / "halves") == tensors(tmp_path / "runs" / "whole")
    played = here("eval", "whole", "--episodes", "8", "--json")
    assert played.code == 0 and -2.0 <= json.loads(played.out)["greedy"]["mean"] <= 1.0, played.err
    filmed = here("render", "whole", "--out", "film.png", "--episodes", "1")
    assert filmed.code == 0 and (tmp_path / "film.png").read_bytes().startswith(b"\x89PNG"), filmed.err
    for target in ("numpy", "safetensors", "pt2", "onnx"):
        exported = here("export", "policy", "whole", "--to", target)
        assert exported.code == 0 and "state_1" in exported.out, exported.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("algo.name=dqn", "net.memory=gru"), "net.memory: dqn learns from single steps"),
        (
            ("algo.name=pqn", "net.memory=lstm"),
            'pqn learns from single steps, without a memory (use algo.name = "ppo", or net.memory = "none")',
        ),
        (("net.memory=gru", "algo.bptt=5"), "algo.bptt: segments of 5 steps do not divide algo.horizon, 16 (use 4"),
        (("net.memory=mingru", "net.memory_size=5"), "net.memory_size: must be the last of net.hidden, 64, or not set"),
        (("net.memory=gro",), "did you mean 'gru'"),
        (("net.memory=lstm", "env.lanes=6"), "6 segments, which 4 minibatches do not divide"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(here, words, sentence):
    done = here("config", "show", *words)
    assert done.code == 2 and sentence in done.err + done.out, done.err
