"""Setup of a process before it computes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from operant.compute import runtime
from operant.compute.runtime import device_error, find_device, quiet_threads, wake_gpu
from operant.errors import MachineError, UsageError


@pytest.mark.parametrize(
    ("chosen", "spins"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)]
)
def test_threads_are_quiet_unless_the_user_has_chosen(monkeypatch, chosen, spins):
    environment = dict(chosen)
    monkeypatch.setattr(os, "environ", environment)
    quiet_threads()
    assert environment == chosen | ({"GOMP_SPINCOUNT": spins} if spins else {})


def test_devices_are_found_or_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [str(find_device(text)) for text in ("auto", "cpu", "cuda", "cuda:1")] == [
        "cuda:0",
        "cpu",
        "cuda:0",
        "cuda:1",
    ]
    with pytest.raises(MachineError, match="cuda:0 to cuda:1"):
        find_device("cuda:2")
    for text in ("gpu", "meta", "cuda:", "cuda:x", "cuda:-1", "cudas", ""):
        with pytest.raises(UsageError, match="is not a device"):
            find_device(text)


def test_a_gpu_without_numba_cuda_is_refused_with_the_package_to_install(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "numba_cuda", None)  # as if it were not installed
    for text in ("auto", "cuda"):
        with pytest.raises(MachineError, match=r"pip install 'operant\[gpu\]', or use run.device=cpu"):
            find_device(text)
    assert str(find_device("cpu")) == "cpu"


@pytest.mark.slow
def test_torch_and_numba_get_the_threads_that_are_asked_for():
    # In a process of its own: numba starts its threads once, and that is what may go wrong.
    program = (
        "import numba, torch\n"
        "from operant.compute.runtime import set_threads\n"
        "for count in (1, 2, 1, 3):\n"
        "    assert set_threads(count) == count and torch.get_num_threads() == count, torch.get_num_threads()\n"
        "    assert numba.get_num_threads() == min(count, numba.config.NUMBA_NUM_THREADS)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NUMBA_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("was_on", [True, False])
def test_what_is_imported_is_not_collected(was_on):
    program = (
        "import gc\n"
        "from operant.compute.runtime import importing\n"
        f"gc.{'enable' if was_on else 'disable'}()\n"
        "gc.callbacks.append(lambda phase, info: seen.append(phase))\n"
        "seen, frozen = [], gc.get_freeze_count()\n"
        "try:\n"
        "    with importing():\n"
        "        seen.clear()\n"
        "        import colorsys\n"
        "        kept = [[] for _ in range(100_000)]\n"
        "        assert not gc.isenabled() and seen == []\n"
        "        raise KeyError\n"
        "except KeyError:\n"
        "    pass\n"
        f"assert gc.isenabled() is {was_on} and gc.get_freeze_count() > frozen + 100_000\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


class Driver:
    """CUDA driver that records its calls; `failing` is the call that fails."""

    def __init__(self, failing=""):
        self.calls, self._failing = [], failing

    def __getattr__(self, name):
        def call(*words):
            self.calls.append((name, *(word for word in words if isinstance(word, int))))
            return int(name == self._failing)

        return call


@pytest.mark.parametrize(("device", "index"), [("auto", 0), ("cuda", 0), ("cuda:0", 0), ("cuda:3", 3)])
def test_a_gpus_context_is_made_beforehand(monkeypatch, device, index):
    driver = Driver()
    monkeypatch.setattr(runtime.ctypes, "CDLL", lambda name: driver)
    wake_gpu(device).join(10)
    assert driver.calls == [("cuInit", 0), ("cuDeviceGet", index), ("cuDevicePrimaryCtxRetain",)]


@pytest.mark.parametrize("failing", ["cuInit", "cuDeviceGet"])
def test_a_failing_gpu_is_ignored(monkeypatch, failing):
    driver = Driver(failing)
    monkeypatch.setattr(runtime.ctypes, "CDLL", lambda name: driver)
    wake_gpu("auto").join(10)
    assert driver.calls[-1][0] == failing


@pytest.mark.parametrize("device", ["cpu", "cuda:", "cuda:x", "cuda:-1", "meta", ""])
def test_no_context_is_made_for_other_devices(monkeypatch, device):
    monkeypatch.setattr(runtime.ctypes, "CDLL", lambda name: pytest.fail("the driver was loaded"))
    assert wake_gpu(device) is None


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_without_a_driver_nothing_happens(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(runtime.ctypes, "CDLL", missing)
    wake_gpu("auto").join(10)


def test_torchs_words_on_a_full_gpu_leave_room_for_the_advice():
    long = (
        "CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has 3.10 GiB free. Including non-PyTorch memory, this "
        "process has " + 400 * "x" + "\nmore"
    )
    told = str(device_error(torch.OutOfMemoryError(long)))
    assert told == (
        "out of memory: CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has 3.10 GiB free. Use fewer env.lanes "
        "or a shorter algo.horizon"
    )
    assert str(device_error(torch.AcceleratorError("CUDA error: an illegal memory access"))).startswith(
        "the GPU failed: "
    )
