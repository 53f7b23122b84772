"""Checks of this machine (`operant doctor`): whether it can train, and what to do if not.

Each check is a function that returns one finding. A check that raises becomes a finding, so that the list is always
complete.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from operant import __version__
from operant.compute.runtime import usable_cores

OK, NOTE, PROBLEM = "ok", "note", "problem"
_LEAST_BYTES, _COMFORTABLE_BYTES = 64 << 20, 2 << 30
_LOGIND = ("/usr/lib/systemd", "/run/systemd", "/etc/systemd")


class Finding(NamedTuple):
    """Result of one check of this machine: name, status `ok`, `note` (works, could be better) or `problem` (prevents
    training), the observation, and advice.
    """

    name: str
    status: str
    found: str
    advice: str = ""


def examine(root: Path) -> list[Finding]:
    """Run all checks of this machine and return their findings. `root` is the folder for new runs. Takes as long as
    importing torch and numba.
    """
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("python", _python),
        ("operant", lambda: Finding("operant", OK, __version__)),
        ("torch", _torch),
        ("numba", _numba),
        ("driver", _driver),
        ("gpu", _gpu),
        ("numba-cuda", _numba_cuda),
        ("triton", _triton),
        ("terminal", _terminal),
        ("sessions", sessions),
        ("runs", lambda: _runs(root)),
        ("disk", lambda: _disk(root)),
        ("cache", _cache),
    ]
    return [_run_check(name, check) for name, check in checks]


def _run_check(name: str, check: Callable[[], Finding]) -> Finding:
    """Run one check; an exception in it becomes a finding that the check failed."""
    try:
        return check()
    except Exception as error:  # a failing check must not hide the others
        return Finding(name, NOTE, f"check failed: {type(error).__name__}: {error}")


# SOFTWARE


def _python() -> Finding:
    cores = f"{usable_cores()} core{'s' * (usable_cores() > 1)}"
    return Finding("python", OK, f"{platform.python_version()} on {platform.system()} {platform.machine()}, {cores}")


def _torch() -> Finding:
    try:
        import torch
    except Exception as error:
        return Finding(
            "torch",
            PROBLEM,
            f"cannot be imported: {type(error).__name__}: {error}",
            "reinstall it: pip install --force-reinstall torch",
        )
    if torch.version.cuda is None:
        advice = "on a machine with an NVIDIA GPU, install a CUDA build of torch" if _driver_and_gpus() else ""
        return Finding("torch", NOTE if advice else OK, f"{torch.__version__}, CPU build", advice)
    return Finding("torch", OK, f"{torch.__version__}, CUDA {torch.version.cuda} build")


def _numba() -> Finding:
    try:
        import numba
        import numpy
    except Exception as error:
        return Finding(
            "numba",
            PROBLEM,
            f"cannot be imported: {type(error).__name__}: {error}",
            "reinstall it: pip install --force-reinstall numba",
        )
    return Finding("numba", OK, f"{numba.__version__}, numpy {numpy.__version__}, threading layer {_threading_layer()}")


def _threading_layer() -> str:
    """Name of the first of numba's threading layers that can be imported; "none" without any."""
    for layer in ("tbbpool", "omppool", "workqueue"):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"numba.np.ufunc.{layer}")
            return layer
    return "none"


def _driver() -> Finding:
    devices = _driver_and_gpus()
    if devices is None:
        return Finding("driver", OK, "no NVIDIA driver: training runs on the CPU")
    version, names = devices
    return Finding(
        "driver", OK, f"{version}, {len(names)} GPU{'s' if len(names) != 1 else ''}: {', '.join(names) or 'none'}"
    )


def _driver_and_gpus() -> tuple[str, list[str]] | None:
    """Read the driver's version and the names of the GPUs; None without NVIDIA's driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        names = [
            f"{pynvml.nvmlDeviceGetName(handle)} ({pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30:.0f} GiB)"
            for handle in handles
        ]
        return pynvml.nvmlSystemGetDriverVersion(), names
    finally:
        pynvml.nvmlShutdown()


def _gpu() -> Finding:
    import torch

    if torch.cuda.is_available():
        names = [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())]
        return Finding("gpu", OK, ", ".join(names))
    if not _driver_and_gpus():
        return Finding("gpu", OK, "none: run.device=auto uses the CPU")
    return Finding(
        "gpu",
        NOTE,
        "the driver reports GPUs, but torch cannot use them",
        "install a CUDA build of torch that matches the driver, or update the driver",
    )


def _numba_cuda() -> Finding:
    try:
        version = metadata.version("numba-cuda")
    except metadata.PackageNotFoundError:
        return Finding(
            "numba-cuda", NOTE, "not installed: environments run on the CPU only", "pip install 'operant[gpu]'"
        )
    numpy = tuple(map(int, metadata.version("numpy").split(".")[:2]))
    if numpy >= (2, 5):
        return Finding(
            "numba-cuda",
            PROBLEM,
            f"{version} does not work with numpy {'.'.join(map(str, numpy))}",
            "pip install 'numpy<2.5'",
        )
    from numba import cuda

    usable = "usable" if cuda.is_available() else "no GPU found"
    return Finding("numba-cuda", OK, f"{version}, {usable}")


def _triton() -> Finding:
    try:
        return Finding("triton", OK, metadata.version("triton"))
    except metadata.PackageNotFoundError:
        return Finding("triton", OK, "not installed; included in torch's CUDA builds")


# ENVIRONMENT


def _terminal() -> Finding:
    if not sys.stderr.isatty():
        return Finding("terminal", OK, "none: progress is printed as plain lines")
    columns, lines = shutil.get_terminal_size()
    result = (
        f"{os.environ.get('TERM', 'unknown')}, {columns} x {lines}, {getattr(sys.stderr, 'encoding', None) or 'ascii'}"
    )
    if columns < 40 or lines < 10:
        return Finding("terminal", NOTE, result, "the monitor needs 40 x 10")
    return Finding("terminal", OK, result)


def sessions() -> Finding:
    """Check whether runs survive logout: logind may be configured to end a user's processes."""
    if not _kills_user_processes():
        return Finding("sessions", OK, "runs continue after you log out")
    import getpass

    user = getpass.getuser()
    if Path("/var/lib/systemd/linger", user).exists():
        return Finding("sessions", OK, "runs continue after you log out (linger is on)")
    return Finding(
        "sessions", NOTE, "runs end when you log out (KillUserProcesses=yes)", f"loginctl enable-linger {user}"
    )


def _kills_user_processes() -> bool:
    """Whether logind's configuration files set KillUserProcesses."""
    answer = False
    for folder in _LOGIND:
        files = [Path(folder, "logind.conf"), *sorted(Path(folder, "logind.conf.d").glob("*.conf"))]
        for file in files:
            parser = ConfigParser(strict=False, interpolation=None)
            with contextlib.suppress(Exception):  # ignore unreadable files
                parser.read(file)
            with contextlib.suppress(ValueError):
                answer = parser.getboolean("Login", "KillUserProcesses", fallback=answer)
    return answer


def _runs(root: Path) -> Finding:
    existing = _nearest_existing(root)
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"operant")
            file.flush()
    except OSError as error:
        return Finding(
            "runs",
            PROBLEM,
            f"{root} cannot be written ({error.strerror})",
            "choose another folder with --runs or $OPERANT_RUNS",
        )
    return Finding("runs", OK, f"{root} {'is writable' if existing == root else 'can be created'}")


def _disk(root: Path) -> Finding:
    free_bytes = shutil.disk_usage(_nearest_existing(root)).free
    result = f"{free_bytes / 2**30:.1f} GiB free in {root}"
    if free_bytes >= _COMFORTABLE_BYTES:
        return Finding("disk", OK, result)
    advice = "free disk space, or choose another folder with --runs or $OPERANT_RUNS"
    return Finding("disk", PROBLEM if free_bytes < _LEAST_BYTES else NOTE, result, advice)


def _cache() -> Finding:
    """Check the cache folder of compiled kernels, which saves compilation at later starts."""
    from operant.compute.code_store import CodeStore, UntrustedError, folder

    existing = folder()
    if existing is None:
        return Finding("cache", OK, "off: kernels are compiled at each start")
    try:
        count, size_bytes = CodeStore(existing).measure()
    except UntrustedError as error:
        return Finding("cache", NOTE, f"not used: {error}", f"kernels are compiled at each start; remove {existing}")
    return Finding("cache", OK, f"{count} compiled kernels, {size_bytes / 2**20:.1f} MiB in {existing}")


def _nearest_existing(path: Path) -> Path:
    """Return `path` if it exists, else its nearest existing parent folder."""
    return next(existing for existing in (path, *path.parents) if existing.exists())
