"""Messages and exit codes of a failing device, with algorithms that fail as one does: the ones that
benches/gpu_faults.py provokes on a GPU.
"""

from __future__ import annotations

import runpy
import time
from pathlib import Path

import pytest
from processes import SMALL, the_run

from operant import runs

BENCH = runpy.run_path(str(Path(__file__).parents[2] / "benches" / "gpu_faults.py"), run_name="bench")


@pytest.mark.parametrize(
    ("fault", "state", "said"),
    [
        ("oom", "oom", "error: out of memory: "),
        (
            "illegal",
            "gpu_fault",
            "error: the GPU failed: CUDA error: an illegal memory access",
        ),  # which is no lack of memory
        ("lost", "gpu_fault", "error: the GPU failed: CUDA error: "),
    ],
)
def test_a_device_that_fails_ends_the_run_with_7_within_a_second_and_a_sentence(here, tmp_path, fault, state, said):
    name, text = BENCH["FILES"][fault]
    (tmp_path / name).write_text(text)
    done = here(
        "train",
        "--inline",
        "cartpole",
        f"algo.name={name}:Failing",
        *SMALL,
        "eval.every=0",
        "run.steps=1M",
        "run.record_hz=1000",
    )
    ended_ns = time.time_ns()
    assert done.code == 7 and said in done.err and "Traceback" not in done.err
    run = the_run(tmp_path)
    assert runs.state(run).word == state
    with runs.metrics.Reader(run.metrics_path) as reader:
        record = reader.latest()
        assert record.step == 4 * 1024 and (ended_ns - record.realtime_ns) / 1e9 < 3.0, (
            "a second is promised, of a machine that does nothing else"
        )
        assert any(event.level == "error" for event in reader.events(0, 1024))
