"""Persistent cache of numba's compiled code: a dispatcher loads its machine code from disk if nothing it depends on has
changed.

Numba's `cache=True` checks only the decorated function's own file, so an edited helper, or another body in the same
shell, would run stale code. The key here is a hash of all dependencies: the function and everything it reaches
(operant/compute/fingerprint.py), argument types with the fields of named tuples, processor or GPU, package versions,
numba's settings. Any failure costs a compilation, never a run. OPERANT_CACHE=0 disables the cache. Hits and misses are
logged at level DEBUG.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import pickle
import platform
import re
import sys
import time
from importlib import metadata
from typing import Any

from numba.core import compiler, config
from numba.core.serialize import dumps

from operant.compute.code_store import CodeStore, UntrustedError, folder
from operant.compute.device import LEAST_NUMBER
from operant.compute.fingerprint import UnknownValueError, fingerprint

_FORMAT = 3
"""Version of the stored format and of the key."""

_NUMBERED = re.compile(r"B(\d+)v(\d+)B")
"""Pattern of a function's number in a mangled name, preceded by its length."""

log = logging.getLogger("operant.compute.jit_cache")


def cache_cpu(dispatcher: Any, name: str) -> Any:
    """Attach the persistent cache to a numba dispatcher for the CPU and return the dispatcher. `name` appears in the
    log.
    """
    return _attach(_CPUCache(dispatcher, name))


def cache_cuda(dispatcher: Any, name: str) -> Any:
    """Attach the persistent cache to the dispatcher of a CUDA kernel and return the dispatcher. `name` appears in the
    log.
    """
    return _attach(_CUDACache(dispatcher, name))


def _attach(cache: _Cache) -> Any:
    """Make numba use a persistent cache for the dispatcher that the cache belongs to, if caching is enabled, and return
    the dispatcher.
    """
    if cache.store is not None:
        cache.dispatcher._cache = cache
    return cache.dispatcher


class _Cache:
    """Persistent cache of one dispatcher's compiled code, through numba's cache interface: consulted before a
    compilation and updated after it. Subclasses serve one backend each.
    """

    cache_path = None

    def __init__(self, dispatcher: Any, name: str) -> None:
        self.dispatcher, self._name = dispatcher, name
        place = folder()
        self.store = CodeStore(place) if place is not None else None
        self._key: str | None = None
        self._lookup_s = 0.0

    # IMPLEMENTED BY A BACKEND

    def versions(self) -> tuple[Any, ...]:
        """Versions and settings of everything that takes part in a compilation, part of the cache key."""
        return (
            _FORMAT,
            sys.version,
            platform.machine(),
            *(metadata.version(name) for name in ("numba", "llvmlite", "numpy")),
            _settings(config, but="CUDA"),
        )

    def reduce(self, result: Any) -> Any:
        """Convert a compilation result to a picklable form. Raises _NotCacheableError if the code must not outlive the
        process.
        """
        raise NotImplementedError

    def rebuild(self, reduced: Any, context: Any) -> Any:
        """Convert the form that `reduce` returned back to a compilation result."""
        raise NotImplementedError

    # CALLED BY NUMBA, WHICH HOLDS ITS LOCK

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Load the function compiled for these argument types; None if it must be compiled. Failures are only
        logged.
        """
        assert self.store is not None
        self._key, self._lookup_s = None, time.perf_counter()
        try:
            self._key = self._find_key(signature, context)
            payload = self.store.read(self._key)
            if payload is None:
                return None
            result = self.rebuild(pickle.loads(payload), context)
            if tuple(result.signature.args) != tuple(signature):
                raise ValueError("it takes other arguments")
        except UnknownValueError as error:
            log.debug("%s is not cached: it depends on %s", self._name, error)
        except (OSError, UntrustedError) as error:
            _warn(str(error))
        except Exception as error:  # files on disk may hold anything
            log.debug(
                "%s is recompiled: its cached code is not usable (%s: %s)",
                self._name,
                type(error).__name__,
                error,
            )
        else:
            log.debug("%s loaded in %.3f s", self._name, time.perf_counter() - self._lookup_s)
            return result
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Store a compiled function on disk; called after `load_overload` returned None. Failures are only logged."""
        assert self.store is not None
        log.debug("%s compiled in %.3f s", self._name, time.perf_counter() - self._lookup_s)
        if self._key is None:
            return
        try:
            self.store.write(self._key, dumps(self.reduce(result)))
        except (OSError, UntrustedError) as error:
            _warn(str(error))
        except Exception as error:  # numba raises various errors for objects that cannot be pickled
            log.debug("%s is not cached (%s: %s)", self._name, type(error).__name__, error)

    def flush(self) -> None:
        """Do nothing when numba asks to invalidate the cache: its keys change with their contents."""

    def _find_key(self, signature: Any, context: Any) -> str:
        """Compute the cache key of the compiled function for these argument types (`signature`): a hash of its code,
        versions and machine.
        """
        machine = context.codegen().magic_tuple()
        described = repr((self.versions(), machine, [_type_text(kind) for kind in signature]))
        return hashlib.sha256(described.encode() + fingerprint(self.dispatcher)).hexdigest()


class _NotCacheableError(Exception):
    """Error for compiled code that must not outlive its process; the message gives the reason."""


class _CPUCache(_Cache):
    """Persistent cache of compiled code for this computer's processor."""

    def reduce(self, result: Any) -> Any:
        if result.lifted or result.objectmode:
            raise _NotCacheableError("it contains Python objects")
        if result.library.has_dynamic_globals:
            raise _NotCacheableError("it contains addresses of this process")
        # Functions numbered before `_number_uniquely` ran may collide with those of another process.
        for function in result.library.get_defined_functions():
            for length, number in _NUMBERED.findall(function.name):
                if int(length) == 1 + len(number) and int(number) < LEAST_NUMBER:
                    raise _NotCacheableError("a function in it may share its number with another process")
        return result._reduce()

    def rebuild(self, reduced: Any, context: Any) -> Any:
        context.refresh()  # registers symbols that compiled code calls
        return compiler.CompileResult._rebuild(context, *reduced)


class _CUDACache(_Cache):
    """Persistent cache of compiled code for GPUs of this GPU's generation. A hit imports no compiler."""

    def versions(self) -> tuple[Any, ...]:
        from numba.cuda.core import config as cuda_config

        return (
            *super().versions(),
            *(metadata.version(name) for name in ("numba-cuda", "cuda-core")),
            _settings(cuda_config),
        )

    def reduce(self, result: Any) -> Any:
        if result.launch_config_sensitive:
            raise _NotCacheableError("it is specialised for one launch size")
        return result._reduce_states()

    def rebuild(self, reduced: Any, context: Any) -> Any:
        from numba.cuda.dispatcher import _Kernel

        kernel = _Kernel._rebuild(**reduced)
        kernel.bind()  # load now: a module cannot be loaded during a capture
        return kernel


def _settings(module: Any, but: str = "\n") -> list[tuple[str, str]]:
    """Read numba's settings that affect generated code, as sorted (name, value) pairs, from a settings `module`. Thread
    counts are excluded: they are read at run time.

    Names that begin with `but` are excluded: numba has its CUDA settings only once numba-cuda was imported.
    """
    plain = (bool, int, float, str, type(None))
    settings = {
        name: value
        for name, value in vars(module).items()
        if name.isupper() and not name.endswith("NUM_THREADS") and not name.startswith(but)
    }
    return sorted((name, repr(value)) for name, value in settings.items() if isinstance(value, plain))


def _type_text(kind: Any) -> Any:
    """Describe a numba type as text for the cache key. The text that numba gives a named tuple lacks its fields, whose
    order determines the memory layout.
    """
    if not hasattr(kind, "types"):
        return str(kind)
    owner = getattr(kind, "instance_class", tuple)
    return (
        f"{owner.__module__}.{owner.__qualname__}",
        getattr(kind, "fields", ()),
        [_type_text(member) for member in kind.types],
    )


@functools.cache
def _warn(line: str) -> None:
    """Log why compiled code is not cached, once per process and reason."""
    log.warning("kernels are compiled at each start: %s", line)
