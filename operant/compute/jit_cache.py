"""Keeps what numba compiled from one process to the next: hands a dispatcher its machine code from disk where nothing
has changed. Knows no kernel.

Numba's own `cache=True` asks the file of the decorated function alone whether something changed, so an edited helper,
or another body in the same shell, would run stale code. Here the key is the hash of all that the code depends on: the
function and everything it reaches (operant/compute/fingerprint.py), the types of its arguments with the fields of named
tuples, the processor or the GPU, versions, numba's settings. Whatever goes wrong on the way costs a compilation, never
a run; OPERANT_CACHE=0 does without. What was found, and what had to be compiled, is in the log at level DEBUG.
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

_FORMAT = 1
"""Of what is kept, and of the key."""

_NUMBERED = re.compile(r"B(\d+)v(\d+)B")
"""A function's number in its mangled name, its length in front."""

log = logging.getLogger("operant.compute.jit_cache")


def keep(dispatcher: Any, name: str) -> Any:
    """The dispatcher of a CPU, which from now on looks on disk before it compiles and leaves there what it compiled.
    `name` is for the log.
    """
    return _attached(_Machine(dispatcher, name))


def keep_cuda(dispatcher: Any, name: str) -> Any:
    """As `keep`, for the dispatcher of a CUDA kernel."""
    return _attached(_Cuda(dispatcher, name))


def _attached(cache: _Cache) -> Any:
    if cache.store is not None:
        cache.dispatcher._cache = cache
    return cache.dispatcher


class _Cache:
    """What a dispatcher asks before it compiles and tells afterwards: numba's interface of a cache."""

    cache_path = None

    def __init__(self, dispatcher: Any, name: str) -> None:
        self.dispatcher, self._name = dispatcher, name
        place = folder()
        self.store = CodeStore(place) if place is not None else None
        self._key: str | None = None
        self._asked_s = 0.0

    # What a backend adds.

    def versions(self) -> tuple[Any, ...]:
        """Of all that compiles."""
        return (
            _FORMAT,
            sys.version,
            platform.machine(),
            *(metadata.version(name) for name in ("numba", "llvmlite", "numpy")),
            _settings(config, but="CUDA"),
        )

    def reduced(self, result: Any) -> Any:
        """What numba compiled, as something that can be pickled. Raises _NotKeptError where it must not outlive the
        process.
        """
        raise NotImplementedError

    def rebuilt(self, reduced: Any, context: Any) -> Any:
        """What `reduced` took apart."""
        raise NotImplementedError

    # What numba calls, holding its lock.

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The compiled function for these types of arguments, or None."""
        assert self.store is not None
        self._key, self._asked_s = None, time.perf_counter()
        try:
            self._key = self._find_key(signature, context)
            payload = self.store.read(self._key)
            if payload is None:
                return None
            result = self.rebuilt(pickle.loads(payload), context)
            if tuple(result.signature.args) != tuple(signature):
                raise ValueError("it takes other arguments")
        except UnknownValueError as error:
            log.debug("%s is not kept: it reaches %s", self._name, error)
        except (OSError, UntrustedError) as error:
            _tell(str(error))
        except Exception as error:  # what is on disk may be anything, and need not be had
            log.debug(
                "%s is compiled anew: what is kept of it cannot be used (%s: %s)",
                self._name,
                type(error).__name__,
                error,
            )
        else:
            log.debug("%s loaded in %.3f s", self._name, time.perf_counter() - self._asked_s)
            return result
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Take note of a function that was compiled after `load_overload` had none."""
        assert self.store is not None
        log.debug("%s compiled in %.3f s", self._name, time.perf_counter() - self._asked_s)
        if self._key is None:
            return
        try:
            self.store.write(self._key, dumps(self.reduced(result)))
        except (OSError, UntrustedError) as error:
            _tell(str(error))
        except Exception as error:  # numba keeps much that cannot be pickled, and says so in many ways
            log.debug("%s is not kept (%s: %s)", self._name, type(error).__name__, error)

    def flush(self) -> None:
        """Part of numba's interface: keys change with what they stand for, so there is nothing to throw away."""

    def _find_key(self, signature: Any, context: Any) -> str:
        machine = context.codegen().magic_tuple()
        described = repr((self.versions(), machine, [_described(kind) for kind in signature]))
        return hashlib.sha256(described.encode() + fingerprint(self.dispatcher)).hexdigest()


class _NotKeptError(Exception):
    """Compiled code must not outlive its process; the message says why."""


class _Machine(_Cache):
    """Machine code of this computer's processor."""

    def reduced(self, result: Any) -> Any:
        if result.lifted or result.objectmode:
            raise _NotKeptError("parts of it are Python")
        if result.library.has_dynamic_globals:
            raise _NotKeptError("it holds addresses of this process")
        # Functions that were numbered before `device` set numbers apart would meet others of the same name.
        for function in result.library.get_defined_functions():
            for length, number in _NUMBERED.findall(function.name):
                if int(length) == 1 + len(number) and int(number) < LEAST_NUMBER:
                    raise _NotKeptError("a function in it has a number that others have too")
        return result._reduce()

    def rebuilt(self, reduced: Any, context: Any) -> Any:
        context.refresh()  # which makes known what compiled code calls
        return compiler.CompileResult._rebuild(context, *reduced)


class _Cuda(_Cache):
    """Binary code of this GPU's generation. None of what compiles it is loaded for a kernel that is found."""

    def versions(self) -> tuple[Any, ...]:
        from numba.cuda.core import config as cuda_config

        return (
            *super().versions(),
            *(metadata.version(name) for name in ("numba-cuda", "cuda-core")),
            _settings(cuda_config),
        )

    def reduced(self, result: Any) -> Any:
        if result.launch_config_sensitive:
            raise _NotKeptError("it is made for one size of launch")
        return result._reduce_states()

    def rebuilt(self, reduced: Any, context: Any) -> Any:
        from numba.cuda.dispatcher import _Kernel

        kernel = _Kernel._rebuild(**reduced)
        kernel.bind()  # onto the GPU now: a module cannot be loaded while a graph is captured
        return kernel


def _settings(module: Any, but: str = "\n") -> list[tuple[str, str]]:
    """All of numba's settings that code depends on, however they were made: not how many threads there are, which
    compiled code asks for when it runs.

    Left out are those whose names begin with `but`: of numba's own, settings of CUDA are there only once its package
    for CUDA was imported.
    """
    plain = (bool, int, float, str, type(None))
    kept = {
        name: value
        for name, value in vars(module).items()
        if name.isupper() and not name.endswith("NUM_THREADS") and not name.startswith(but)
    }
    return sorted((name, repr(value)) for name, value in kept.items() if isinstance(value, plain))


def _described(kind: Any) -> Any:
    """A type as text. That of a named tuple does not name its fields, whose order is where compiled code looks for
    them.
    """
    if not hasattr(kind, "types"):
        return str(kind)
    owner = getattr(kind, "instance_class", tuple)
    return (
        f"{owner.__module__}.{owner.__qualname__}",
        getattr(kind, "fields", ()),
        [_described(member) for member in kind.types],
    )


@functools.cache
def _tell(line: str) -> None:
    """Say why compiled code is not kept, once."""
    log.warning("kernels are compiled at each start: %s", line)
