"""Figures of the machine that trains a run: GPU, trainer process, disk. The import is light; the sampling thread loads
psutil and NVML.

Sampled once a second in a separate thread, since a driver call may block. Values that cannot be read here (another
machine, another user, no NVML, no psutil) are None, with a sentence for the GPU.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from typing import Any, Final

from monitor.data.snapshot import POWER_LIMIT, Gpu, System
from operant import runs
from operant.runs import Run, integer_of, text_of
from operant.text import safe

_PERIOD_S = 1.0
_FIRST_S = 0.8  # not while the screen is opening
_MEBIBYTE = 1 << 20
_REASONS: Final = (
    (0x0000000000000040, "too hot (hardware)"),
    (0x0000000000000080, "power brake"),
    (0x0000000000000008, "hardware slowdown"),
    (0x0000000000000020, "too hot"),
    (0x0000000000000004, POWER_LIMIT),
    (0x0000000000000010, "synchronized with other GPUs"),
)
"""NVML's throttle reasons, most specific first (nvml.h, nvmlClocksThrottleReasons). Idle and application clocks are
left out.
"""


class Sampler:
    """Thread that measures the machine of the run given to `follow` once a second and puts the result into `latest`. It
    starts with the first live run and ends with `close`.
    """

    def __init__(self, *, period_s: float = _PERIOD_S, first_s: float = _FIRST_S) -> None:
        self.latest: System | None = None
        self._period_s, self._first_s = period_s, first_s
        self._run: Run | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self, run: Run, *, live: bool) -> None:
        """Set the run whose machine is measured; its run document names process and GPU. A run that has ended (not
        `live`) or trains on another machine is not measured; `latest` is then None.
        """
        if not live or not runs.is_local(run.document):
            self._run = self.latest = None
            return
        self._run = run
        if self._thread is None:
            self._thread = threading.Thread(target=self._sample, name="system", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread that measures the machine."""
        self._over.set()

    def _sample(self) -> None:
        """Measure once a second until `close`, as the body of the thread."""
        if self._over.wait(self._first_s):
            return
        gpus, process = Gpus(), Process()
        while not self._over.wait(self._period_s):
            run = self._run
            if run is None:
                continue
            system = process.sample(run.document)
            gpu, absent = gpus.sample(run.document)
            free = disk_free(run)
            if self._run is not None:  # the run may have ended meanwhile
                self.latest = system._replace(gpu=gpu, gpu_absent=absent, disk_free_bytes=free)
        gpus.close()


def disk_free(run: Run) -> int | None:
    """Return the bytes that this user can still write on the run's disk, rounded down to 16 MiB; None if unknown."""
    try:
        status = os.statvfs(run.path)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize >> 24 << 24


class Process:
    """Meter of the trainer's process, identified by PID and start time, and of its machine. Needs psutil; without it
    all values are None.
    """

    def __init__(self) -> None:
        try:
            import psutil
        except ImportError:
            self._psutil: Any = None
            return
        self._psutil = psutil
        self._identity: tuple[int, int] | None = None
        self._process: Any = None
        psutil.cpu_percent(None)  # the first call only sets the reference

    def sample(self, document: Mapping[str, Any]) -> System:
        """Measure the trainer process named in a run's document: its CPU share since the last call and memory, and the
        machine's.
        """
        if self._psutil is None:
            return System()
        share, resident = self._trainer_usage(document)
        return System(
            cpu_share=share,
            memory_bytes=resident,
            machine_cpu=round(self._psutil.cpu_percent(None) / 100.0, 2),
            machine_memory=round(self._psutil.virtual_memory().percent / 100.0, 2),
        )

    def _trainer_usage(self, document: Mapping[str, Any]) -> tuple[float | None, int | None]:
        """Return (CPU share, resident bytes) of the trainer's process; None for what is unknown, such as the share on
        the first call.
        """
        pid, ticks = integer_of(document, "pid"), integer_of(document, "pid_start_ticks")
        if not pid or ticks is None or text_of(document, "boot_id") != runs.boot_id() or runs.start_ticks(pid) != ticks:
            self._identity = self._process = None
            return None, None
        try:
            first = self._identity != (pid, ticks)
            if first:
                self._identity, self._process = (pid, ticks), self._psutil.Process(pid)
            share = self._process.cpu_percent(None) / 100.0
            resident = self._process.memory_info().rss // _MEBIBYTE * _MEBIBYTE
        except (self._psutil.Error, OSError):
            self._identity = self._process = None
            return None, None
        return None if first else round(share, 2), resident


class Gpus:
    """Meter of the GPU that a run trains on, by NVML."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._absent = ""
        self._chosen: tuple[tuple[object, ...], Any] | None = None

    def sample(self, document: Mapping[str, Any]) -> tuple[Gpu | None, str]:
        """Measure the GPU that a run's document names. Returns the figures, or None and the reason; (None, "") if the
        device is not recorded.
        """
        device = text_of(document, "device")
        if device is None or device == "cpu":
            return None, "" if device is None else "this run trains on the CPU"
        if self._nvml is None and not self._absent:
            self._absent = self._open()
        if self._absent:
            return None, self._absent
        nvml = self._nvml
        try:
            handle = self._find_handle(document)
        except nvml.NVMLError as error:
            return None, f"GPU figures unavailable ({safe(error, 80)})"
        if handle is None:
            return None, "GPU figures unavailable (cannot tell which GPU the run trains on)"
        return self._figures(handle), ""

    def _open(self) -> str:
        """Initialize NVML and return "", or the reason why it cannot be used."""
        try:
            import pynvml
        except ImportError:
            return "GPU figures unavailable (the package nvidia-ml-py is not installed)"
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return (
                "GPU figures unavailable (NVML not found)"
                if "Not Found" in str(error)
                else f"GPU figures unavailable ({safe(error, 80)})"
            )
        self._nvml = pynvml
        return ""

    def _find_handle(self, document: Mapping[str, Any]) -> Any:
        """Return the NVML handle of the GPU with the UUID in the run's document, else of the one that the trainer's
        process uses, else of the only one (or the only one with the same name). None if ambiguous.
        """
        uuid, pid, name = text_of(document, "gpu_uuid"), integer_of(document, "pid"), text_of(document, "device_name")
        key = (uuid, pid, name)
        if self._chosen is not None and self._chosen[0] == key:
            return self._chosen[1]
        nvml = self._nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        bare = uuid.removeprefix("GPU-") if uuid else None
        candidates = [
            handle for handle in handles if bare and _text(nvml.nvmlDeviceGetUUID(handle)).removeprefix("GPU-") == bare
        ]
        certain = bool(candidates)
        if not candidates:
            with contextlib.suppress(nvml.NVMLError):
                candidates = [
                    handle
                    for handle in handles
                    if pid in [one.pid for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
                ]
                certain = bool(candidates)
        if not candidates:
            candidates = [handle for handle in handles if _text(nvml.nvmlDeviceGetName(handle)) == name] or handles
            candidates = candidates if len(candidates) == 1 else []
        chosen = candidates[0] if candidates else None
        if certain:  # otherwise search again: the process may not use the GPU yet
            self._chosen = (key, chosen)
        return chosen

    def _figures(self, handle: Any) -> Gpu:
        """Read a GPU's figures by its NVML handle; None for those it does not support."""
        nvml = self._nvml

        def ask(question: Any, *arguments: Any) -> Any:
            """Call an NVML query about the GPU; None if the GPU does not support it."""
            try:
                return question(handle, *arguments)
            except nvml.NVMLError:
                return None

        rates, memory, milliwatts = (
            ask(nvml.nvmlDeviceGetUtilizationRates),
            ask(nvml.nvmlDeviceGetMemoryInfo),
            ask(nvml.nvmlDeviceGetPowerUsage),
        )
        celsius = ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
        held = ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
        return Gpu(
            name=safe(_text(ask(nvml.nvmlDeviceGetName) or "GPU"), 60),
            utilisation=None if rates is None else rates.gpu / 100.0,
            memory_used_bytes=None if memory is None else memory.used // _MEBIBYTE * _MEBIBYTE,
            memory_total_bytes=None if memory is None else memory.total,
            watts=None if milliwatts is None else float(round(milliwatts / 1000.0)),
            celsius=None if celsius is None else float(celsius),
            throttled=next((reason for bit, reason in _REASONS if held & bit), None),
        )

    def close(self) -> None:
        """Shut down NVML if it was initialized."""
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()


def _text(answer: str | bytes) -> str:
    """Return an answer of NVML as text; older bindings return bytes."""
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
