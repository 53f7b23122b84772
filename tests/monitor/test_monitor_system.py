"""Figures of the machine: this process as the trainer, and a fake NVML."""

import os
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from waiting import DEADLINE_S

from monitor.data import system
from monitor.data.system import Gpus, Process, Sampler, disk_free
from operant import runs
from operant.runs.folder import Run

OWN = {
    "pid": os.getpid(),
    "pid_start_ticks": runs.start_ticks(os.getpid()),
    "boot_id": runs.boot_id(),
    "host": runs.host(),
    "device": "cpu",
}


# THE PROCESS


def test_the_trainers_process_is_measured_between_two_samples():
    process = Process()
    first = process.sample(OWN)
    assert first.cpu_share is None and first.memory_bytes > 1 << 20  # the first figure of a difference means nothing
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    second = process.sample(OWN)
    assert 0.05 < second.cpu_share < 64 and 0 <= second.machine_cpu <= 1 and 0 < second.machine_memory < 1


@pytest.mark.parametrize(
    "other", [{"pid_start_ticks": 1}, {"pid": None}, {"pid": "7"}, {"boot_id": "another"}, {"pid": 1 << 40}]
)
def test_a_reused_pid_is_not_the_trainer(other):
    process = Process()
    process.sample(OWN)
    seen = process.sample(OWN | other)
    assert seen.cpu_share is None and seen.memory_bytes is None and seen.machine_cpu is not None


def test_without_psutil_there_are_no_figures(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert Process().sample(OWN) == system.System()


def test_free_disk_space_is_rounded(tmp_path):
    free = disk_free(Run("x", tmp_path, {}))
    assert free is not None and abs(free - os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize) < 1 << 30
    assert disk_free(Run("x", Path("/nowhere"), {})) is None


# THE GPU


class NVMLError(Exception):
    """Like pynvml's."""


def nvml(gpus, *, init=None, no_processes=False):
    """Fake pynvml with the given GPUs: {name, uuid, pids, busy, ...}."""

    def value(name):
        def ask(handle, *rest):
            found = gpus[handle].get(name)
            if found is None:
                raise NVMLError("Not Supported")
            return found

        return ask

    def processes(handle):
        if no_processes:
            raise NVMLError("Insufficient Permissions")
        return [types.SimpleNamespace(pid=pid) for pid in gpus[handle].get("pids", ())]

    def start():
        if init:
            raise NVMLError(init)

    return types.SimpleNamespace(
        NVMLError=NVMLError,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=start,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=value("uuid"),
        nvmlDeviceGetName=value("name"),
        nvmlDeviceGetComputeRunningProcesses=processes,
        nvmlDeviceGetUtilizationRates=value("rates"),
        nvmlDeviceGetMemoryInfo=value("memory"),
        nvmlDeviceGetPowerUsage=value("milliwatts"),
        nvmlDeviceGetTemperature=value("celsius"),
        nvmlDeviceGetCurrentClocksThrottleReasons=value("held"),
    )


def gpu(name, uuid, *, pids=(), busy=90, held=1):
    return {
        "name": name,
        "uuid": uuid,
        "pids": pids,
        "rates": types.SimpleNamespace(gpu=busy, memory=1),
        "milliwatts": 312_400,
        "celsius": 71,
        "held": held,
        "memory": types.SimpleNamespace(used=(2 << 30) + 5, total=24 << 30),
    }


CUDA = OWN | {"device": "cuda:0", "device_name": "NVIDIA H200"}
A, B = gpu("NVIDIA H200", "GPU-aaaa"), gpu("NVIDIA H200", "GPU-bbbb", busy=10)


@pytest.mark.parametrize(
    "document,gpus,share",
    [
        (CUDA, [A], 0.9),
        (CUDA | {"gpu_uuid": "bbbb"}, [A, B], 0.1),
        (CUDA | {"gpu_uuid": "GPU-bbbb"}, [A, B], 0.1),
        (CUDA, [A, B | {"pids": [os.getpid()]}], 0.1),
        (CUDA, [A | {"name": "NVIDIA T4"}, B], 0.1),
    ],
)
def test_the_gpu_that_a_run_trains_on(monkeypatch, document, gpus, share):
    monkeypatch.setitem(sys.modules, "pynvml", nvml(gpus))
    found, absent = Gpus().sample(document)
    assert absent == "" and found.utilisation == share
    assert found[2:6] == (2 << 30, 24 << 30, 312.0, 71.0) and found.throttled is None


@pytest.mark.parametrize("no_processes", [False, True])
def test_an_ambiguous_gpu_is_not_guessed(monkeypatch, no_processes):
    monkeypatch.setitem(sys.modules, "pynvml", nvml([A, B], no_processes=no_processes))
    found, absent = Gpus().sample(CUDA)
    assert found is None and "which GPU" in absent


def test_the_process_of_a_run_may_come_later(monkeypatch):
    late = dict(B)
    monkeypatch.setitem(sys.modules, "pynvml", nvml([A, late]))
    gpus = Gpus()
    assert gpus.sample(CUDA)[0] is None
    late["pids"] = [os.getpid()]
    assert gpus.sample(CUDA)[0].utilisation == 0.1


def test_unsupported_gpu_queries_are_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml([{"name": b"\x1b[31mGPU", "uuid": b"GPU-aaaa"}]))
    found, _ = Gpus().sample(CUDA)
    assert found == ("[31mGPU", None, None, None, None, None, None)


@pytest.mark.parametrize(
    "held,reason",
    [
        (0, None),
        (1, None),
        (2, None),
        (4, "power limit"),
        (0x20, "too hot"),
        (0x8, "hardware slowdown"),
        (0x48, "too hot (hardware)"),
        (0x100, None),
    ],
)
def test_throttle_reasons(monkeypatch, held, reason):
    monkeypatch.setitem(sys.modules, "pynvml", nvml([A | {"held": held}]))
    assert Gpus().sample(CUDA)[0].throttled == reason


def test_reason_for_missing_gpu_figures(monkeypatch):
    assert Gpus().sample(OWN) == (None, "this run trains on the CPU") and Gpus().sample({}) == (None, "")
    absent, unloaded = nvml([], init="NVML Shared RunCatalog Not Found"), nvml([], init="Driver Not Loaded")
    for module, said in ((None, "not installed"), (absent, "NVML not found"), (unloaded, "Driver")):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        gpus = Gpus()
        assert said in gpus.sample(CUDA)[1] and gpus.sample(CUDA)[0] is None


# THE SAMPLER


def sampling():
    """Whether a sampler's thread is running."""
    return any(thread.name == "system" for thread in threading.enumerate())


def test_the_sampler_follows_living_runs_alone(tmp_path):
    sampler, run = Sampler(period_s=0.02, first_s=0.0), Run("x", tmp_path, OWN)
    try:
        sampler.follow(run, live=False)
        assert sampler.latest is None and not sampling()
        sampler.follow(run, live=True)
        end = time.monotonic() + DEADLINE_S
        while sampler.latest is None or sampler.latest.cpu_share is None:
            assert time.monotonic() < end
            time.sleep(0.01)
        seen = sampler.latest
        assert seen.memory_bytes > 1 << 20 and seen.disk_free_bytes is not None and seen.gpu is None and seen.gpu_absent
        sampler.follow(run._replace(document=OWN | {"host": "gpu03", "boot_id": "another"}), live=True)
        assert sampler.latest is None
    finally:
        sampler.close()
    end = time.monotonic() + DEADLINE_S
    while sampling():
        assert time.monotonic() < end
        time.sleep(0.01)
