"""What a process sets up before it computes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from operant.errors import MachineError, UsageError
from operant.runtime import find_device, quiet_threads


@pytest.mark.parametrize(("chosen", "spins"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)])
def test_threads_are_quiet_unless_the_user_has_chosen(monkeypatch, chosen, spins):
    environment = dict(chosen)
    monkeypatch.setattr(os, "environ", environment)
    quiet_threads()
    assert environment == chosen | ({"GOMP_SPINCOUNT": spins} if spins else {})


def test_devices(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [str(find_device(text)) for text in ("auto", "cpu", "cuda", "cuda:1")] == ["cuda:0", "cpu", "cuda:0", "cuda:1"]
    with pytest.raises(MachineError, match="cuda:0 to cuda:1"):
        find_device("cuda:2")
    for text in ("gpu", "meta", "cuda:", "cuda:x", "cuda:-1", "cudas", ""):
        with pytest.raises(UsageError, match="is no device"):
            find_device(text)


def test_torch_and_numba_get_the_threads_that_are_asked_for():
    # In a process of its own: numba starts its threads once, and that is what may go wrong.
    program = (
        "import numba, torch\n"
        "from operant.runtime import set_threads\n"
        "for count in (1, 2, 1, 3):\n"
        "    assert set_threads(count) == count and torch.get_num_threads() == count, torch.get_num_threads()\n"
        "    assert numba.get_num_threads() == min(count, numba.config.NUMBA_NUM_THREADS)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env={**os.environ, "NUMBA_NUM_THREADS": "2"})
    assert done.returncode == 0, done.stderr
