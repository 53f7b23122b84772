"""Cache of compiled kernels: hits if nothing changed, recompilation if anything did, and never a reason not to run."""

from __future__ import annotations

import importlib
import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from compiled_probe import counter, digest
from numba import get_num_threads, set_num_threads
from numba.core import config
from numpy import float32

from operant import envs
from operant.compute import code_store, jit_cache
from operant.compute.kernel import SERIAL_BELOW, Kernel, bind, cuda_shell, signature
from operant.data import returns
from operant.envs import device, device_call
from operant.tools import doctor
from operant.worlds import noise as world_noise

CPU = torch.device("cpu")
PROBE = Path(__file__).parents[1] / "compiled_probe.py"
ALL_THREADS = "{} on all threads"

HELPER = """
from numpy import float32
from operant.envs import device, device_call

DRAG = 0.5

@device_call
def pushed(x, action):
    return x * float32(0.9) + float32(action) - float32(0.4)
"""

RULES = """
from typing import NamedTuple
from numpy import float32, uint32
import push_helper
from operant.envs import Box, Discrete, Env, device

LIMIT = 40.0

class Params(NamedTuple):
    push: float = 1.0

@device
def reset(s, p, key):
    s[0] = float32(key[2] % uint32(3)) * p.push

@device
def step(s, action, p, key, tally):
    s[0] = push_helper.pushed(s[0], action) * p.push - float32(push_helper.DRAG) * float32(0.1)
    return s[0] * float32(2.0), abs(s[0]) > float32(LIMIT)

@device
def observe(s, obs, p):
    obs[0] = s[0]

ENV = Env(Params, 1, observation=Box(1), action=Discrete(2), time_limit=9, reset=reset, step=step, observe=observe)
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    """Cache folder of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("OPERANT_CACHE", raising=False)
    jit_cache._warn.cache_clear()
    return tmp_path / "cache" / "operant" / "kernels"


@pytest.fixture
def count() -> Iterator[Any]:
    """Number of compiled and loaded functions."""
    found = counter()
    yield found
    logging.getLogger("operant.compute.jit_cache").removeHandler(found)


@pytest.fixture
def rules(tmp_path, monkeypatch):
    """Write an environment and a module it imports, edited as given, and load it as in a new process."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # an edit may have the second and the size of what was there

    def write(*changes, load=True):
        texts = {"push_helper": HELPER, "push": RULES}
        for name, old, new in changes:
            assert old in texts[name]
            texts[name] = texts[name].replace(old, new)
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
        sys.modules.pop("push_helper", None)
        importlib.invalidate_caches()
        return envs.find(str(tmp_path / "push.py")) if load else tmp_path / "push.py"

    yield write
    sys.modules.pop("push_helper", None)


def probe(path: Path, where: str = "cpu") -> dict[str, Any]:
    """Run the environment of a file in a new process."""
    variables = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(path.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    }
    done = subprocess.run(
        [sys.executable, "-B", str(PROBE), str(path), where], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# FOUND, OR COMPILED ANEW


@pytest.mark.slow
@pytest.mark.usefixtures("all_threads")
def test_a_second_process_compiles_nothing_and_comes_to_the_same_bits(rules, count, tmp_path):
    env = rules()
    digests = [digest(env, lanes, "cpu") for lanes in (64, SERIAL_BELOW)]  # as the probe does
    kernels = sorted(name for body in ("reset_body", "step_body") for name in (body, ALL_THREADS.format(body)))
    # The loop of all threads contains no body: that of `reset_body` serves `step_body`, whose arguments are alike.
    assert sorted(count.compiled + count.loaded) == kernels and count.other == []
    assert count.loaded == [ALL_THREADS.format("step_body")]
    second = probe(tmp_path / "push.py")
    assert second["compiled"] == [] and second["loaded"] == kernels and second["other"] == []
    assert second["digests"] == digests


CHANGES = {
    "the file of the rules": ("push", "float32(2.0)", "float32(3.0)"),
    "a constant of the file": ("push", "LIMIT = 40.0", "LIMIT = 0.5"),
    "a default parameter": ("push", "push: float = 1.0", "push: float = 1.5"),
    "the time limit": ("push", "time_limit=9", "time_limit=4"),
    "a helper in a module that it imports": ("push_helper", "float32(0.9)", "float32(0.8)"),
    "a constant in a module that it imports": ("push_helper", "DRAG = 0.5", "DRAG = 0.25"),
}


@pytest.mark.slow
def test_every_change_is_recompiled(rules, count):
    """Each edit in turn, and then the original rules."""
    digests = [digest(rules(), 8, "cpu")]
    for what, change in CHANGES.items():
        count.compiled.clear()
        digests.append(digest(rules(change), 8, "cpu"))
        assert "step_body" in count.compiled, what
    assert len(set(digests)) == 1 + len(CHANGES)
    count.compiled.clear(), count.loaded.clear()
    assert digest(rules(), 8, "cpu") == digests[0]
    assert count.compiled == [] and sorted(count.loaded) == ["reset_body", "step_body"] and count.other == []


class Ahead(NamedTuple):
    a: Any
    b: Any


class Behind(NamedTuple):
    b: Any
    a: Any  # as after an edit of the class


def numbers(n=4):
    return torch.zeros(n), torch.ones(n)


def scaling(factor):
    @device
    def body(i, lanes, slot, offset):
        lanes.a[i] += float32(factor) + lanes.b[i] * float32(10.0) + offset

    return body


def run(kernel, group, offset=0):
    kernel(len(group.a), bind(group), bind(group), offset)
    return group.a.tolist()


def test_the_order_of_a_groups_fields_is_part_of_the_key(count, monkeypatch):
    """Code finds a field by its position, which numba's name of the type does not contain."""
    zeros, ones = numbers()
    assert run(Kernel(scaling(1), CPU), Ahead(a=zeros.clone(), b=ones)) == [11.0] * 4
    monkeypatch.setitem(globals(), "Ahead", Behind)
    assert run(Kernel(scaling(1), CPU), Behind(a=zeros.clone(), b=ones)) == [11.0] * 4
    assert len(count.compiled) == 2 and count.loaded == []


def test_types_of_arguments_are_part_of_the_key(count):
    zeros, ones = numbers()
    for group in (
        Ahead(zeros.clone(), ones),
        Ahead(zeros.double(), ones),
        Ahead(zeros.clone(), ones.int()),
        Ahead(zeros.clone(), ones),
    ):
        assert run(Kernel(scaling(1), CPU), group) == [11.0] * 4
    assert len(count.compiled) == 3 and len(count.loaded) == 1


def test_numbas_settings_are_part_of_the_key(count, monkeypatch):
    zeros, ones = numbers()
    run(Kernel(scaling(1), CPU), Ahead(zeros, ones))
    monkeypatch.setattr(config, "LOOP_VECTORIZE", not config.LOOP_VECTORIZE)
    run(Kernel(scaling(1), CPU), Ahead(zeros, ones))
    assert len(count.compiled) == 2


def test_the_number_of_threads_is_no_part_of_the_key(count, monkeypatch):
    """Code compiled on two cores of a machine is used on all of them."""
    zeros, ones = numbers()
    run(Kernel(scaling(1), CPU), Ahead(zeros, ones))
    monkeypatch.setattr(config, "NUMBA_NUM_THREADS", config.NUMBA_NUM_THREADS + 3)
    monkeypatch.setattr(config, "NUMBA_DEFAULT_NUM_THREADS", config.NUMBA_DEFAULT_NUM_THREADS + 3)
    run(Kernel(scaling(1), CPU), Ahead(zeros, ones))
    assert len(count.compiled) == 1 and len(count.loaded) == 1


def test_versions_are_part_of_the_key(count, monkeypatch):
    zeros, ones = numbers()
    real = jit_cache.metadata.version
    for name in ("numba", "llvmlite", "numpy"):
        run(Kernel(scaling(1), CPU), Ahead(zeros, ones))
        monkeypatch.setattr(
            jit_cache.metadata, "version", lambda asked, name=name: "0.0" if asked == name else real(asked)
        )
        run(Kernel(scaling(1), CPU), Ahead(zeros, ones))
        monkeypatch.setattr(jit_cache.metadata, "version", real)
    assert len(count.compiled) == 4


def branching(factor):
    @device_call
    def tree(n):  # which no compiler can paste into its caller
        return tree(n - 1) + tree(n - 2) if n > 1 else float32(factor)

    @device
    def body(i, lanes, slot, offset):
        lanes.a[i] = tree(offset)

    return body


NUMBERED = """
import itertools, sys
from numba.core.bytecode import FunctionIdentity
sys.path[:0] = [{tests!r}, {tests!r} + "/compute"]
import test_jit_cache as own
from compiled_probe import counter
from operant.compute.device import LEAST_NUMBER
count = counter()
if {same}:
    FunctionIdentity._unique_ids = itertools.count(LEAST_NUMBER)
kernels = {{factor: own.Kernel(own.branching(factor), own.CPU) for factor in map(int, sys.argv[1:])}}
for indices in (4, own.SERIAL_BELOW):
    for factor, kernel in kernels.items():
        found = own.run(kernel, own.Ahead(*own.numbers(indices)), 5)[:4]
        assert found == [8.0 * factor] * 4, found
print(len(count.compiled), len(count.loaded))
"""


def numbered(*factors: int, same: bool = False) -> subprocess.CompletedProcess[str]:
    """Run bodies of one name in a new process; with `same` its functions are numbered as in every such process."""
    program = NUMBERED.format(tests=str(PROBE.parent), same=same)
    # Names also hold the flags of compilation, in the order of a set.
    variables = os.environ | {"PYTHONHASHSEED": "0", "NUMBA_NUM_THREADS": "2"}
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, factors)], env=variables, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_cached_functions_of_other_processes_do_not_collide():
    """Call a body from disk, named by another process, and a body of equal names compiled here."""
    assert numbered(1).stdout.split() == ["2", "0"]
    assert numbered(2, 1).stdout.split() == ["1", "3"]


@pytest.mark.soak
def test_without_unique_numbers_cached_functions_would_collide():
    """Without `device._number_uniquely` the second process runs the wrong function on all threads."""
    assert numbered(1, same=True).stdout.split() == ["2", "0"]
    assert "AssertionError: [8.0" in numbered(2, 1, same=True).stderr


def rounding():
    @device_call
    def tree(n, a, b, c):
        """Sum of an unrolled loop, whose terms LLVM puts in another order when it optimises the function again.
        Recursive, so that no compiler can paste it into its caller.
        """
        total = float32(0)
        for k in range(3):
            for j in range(3):
                total += (a + float32(k)) * (b - float32(j)) + c * float32(k * j)
        total = total / (float32(1) + total * total)
        return tree(n - 1, b, c, total) + tree(n - 2, c, total, b) if n > 1 else total

    @device
    def body(i, lanes, slot, offset):
        lanes.a[i] = tree(offset, lanes.b[i], lanes.b[i] * lanes.b[i], float32(1) - lanes.b[i])

    return body


def rounded(indices):
    """Results of `rounding` for the first 8 of some indices."""
    zeros = torch.zeros(indices)
    return run(Kernel(rounding(), CPU), Ahead(zeros, torch.arange(indices) / 7), 4)[:8]


ROUNDED = """
import json, sys
sys.path[:0] = [{tests!r}, {tests!r} + "/compute"]
import test_jit_cache as own
from compiled_probe import counter
count = counter()
found = [own.rounded(indices) for indices in (own.SERIAL_BELOW, 8)]
print(json.dumps([sorted(count.compiled), sorted(count.loaded), found]))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("all_threads")
def test_compiled_and_loaded_code_round_alike_with_any_number_of_threads(count):
    """The process that compiles a kernel must get the bits of those that load it: it has helpers of its own."""
    results = rounded(8)
    assert rounded(SERIAL_BELOW) == results and count.compiled == ["rounding", ALL_THREADS.format("rounding")]
    for threads, kernels in (("1", ["rounding"]), ("2", ["rounding", ALL_THREADS.format("rounding")])):
        done = subprocess.run(
            [sys.executable, "-c", ROUNDED.format(tests=str(PROBE.parent))],
            env=os.environ | {"NUMBA_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        compiled, loaded, found = json.loads(done.stdout)
        assert compiled == [] and sorted(set(loaded)) == kernels
        assert found == [results, results]


# WHATEVER GOES WRONG


def test_without_a_cache_nothing_is_written(place, count, monkeypatch):
    monkeypatch.setenv("OPERANT_CACHE", "0")
    zeros, ones = numbers()
    assert run(Kernel(scaling(1), CPU), Ahead(zeros, ones)) == [11.0] * 4
    assert not place.exists() and count.compiled == count.loaded == count.other == []


def spoiled(how: str, place: Path) -> None:
    for path in place.iterdir():
        raw = path.read_bytes()
        if how == "cut off":
            path.write_bytes(raw[:-100])
        elif how == "damaged":
            path.write_bytes(raw[:300] + bytes([raw[300] ^ 8]) + raw[301:])
        elif how == "another's format":
            path.write_bytes(b"\x80\x04N." * 500)
        elif how == "other contents":
            path.unlink()
            code_store.CodeStore(place).write(path.name, pickle.dumps({"no": "kernel"}))
        elif how == "no pickle":
            path.unlink()
            code_store.CodeStore(place).write(path.name, b"\x00" * 100)
        elif how == "an odd object":
            path.unlink()
            code_store.CodeStore(place).write(path.name, b"coperant.gone\nNothing\n.")


@pytest.mark.parametrize(
    "how",
    [
        "cut off",
        "damaged",
        *(
            pytest.param(how, marks=pytest.mark.slow)
            for how in ("another's format", "other contents", "no pickle", "an odd object")
        ),
    ],
)
def test_a_damaged_file_is_recompiled_and_replaced(place, count, how):
    zeros, ones = numbers()
    run(Kernel(scaling(1), CPU), Ahead(zeros.clone(), ones))
    spoiled(how, place)
    assert run(Kernel(scaling(1), CPU), Ahead(zeros.clone(), ones)) == [11.0] * 4
    assert len(count.compiled) == 2 and count.loaded == []
    assert run(Kernel(scaling(1), CPU), Ahead(zeros.clone(), ones)) == [11.0] * 4
    assert len(count.compiled) == 2 and len(count.loaded) == 1


def test_code_of_other_types_under_the_same_key_is_not_run(place, count, monkeypatch):
    """Simulate a collision of two keys."""
    monkeypatch.setattr(jit_cache._Cache, "_find_key", lambda self, signature, context: "0" * 64)
    zeros, ones = numbers()
    assert run(Kernel(scaling(1), CPU), Ahead(zeros.clone(), ones)) == [11.0] * 4
    assert run(Kernel(scaling(1), CPU), Ahead(zeros.double(), ones)) == [11.0] * 4
    assert len(count.compiled) == 2 and "other arguments" in count.other[0]


def test_an_unusable_folder_is_reported_once(place, count, caplog):
    place.parent.mkdir(parents=True)
    place.write_text("a file, where the folder should be")
    zeros, ones = numbers()
    for factor in (1, 2, 3):
        assert run(Kernel(scaling(factor), CPU), Ahead(zeros.clone(), ones)) == [10.0 + factor] * 4
    assert len(count.compiled) == 3
    assert [
        record.message
        for record in caplog.records
        if record.levelno > logging.DEBUG and "at each start" in record.message
    ] == [message for message in count.other]
    assert len(count.other) == 1


def test_a_folder_that_others_may_write_is_reported_once_and_not_used(place, count):
    zeros, ones = numbers()
    run(Kernel(scaling(1), CPU), Ahead(zeros.clone(), ones))
    place.chmod(0o777)
    for _ in range(2):
        assert run(Kernel(scaling(1), CPU), Ahead(zeros.clone(), ones)) == [11.0] * 4
    assert len(count.compiled) == 3 and count.loaded == []
    assert len(count.other) == 1 and "can be written by others" in count.other[0]


def test_a_body_without_a_fingerprint_is_compiled_each_time(place, count):
    from numba.extending import register_jitable  # here: a module that extends numba has none of its bodies kept

    @register_jitable
    def doubled(x):
        return x + x

    @device
    def body(i, lanes, slot, offset):
        lanes.a[i] += doubled(float32(1.0))

    zeros, ones = numbers()
    for expected in (2.0, 4.0):
        assert run(Kernel(body, CPU), Ahead(zeros, ones)) == [expected] * 4
    assert len(count.compiled) == 2 and not place.exists() and "depends on" in count.other[0]


@pytest.fixture
def all_threads():
    """Use all of numba's threads: training in this process may have changed the number."""
    before = get_num_threads()
    set_num_threads(config.NUMBA_NUM_THREADS)
    yield
    set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("all_threads")
def test_compile_and_load_in_one_process_together(count):
    """Equal code twice under equal names, and the parallel shell compiled around a loaded one."""
    zeros, ones = numbers(SERIAL_BELOW)
    assert run(Kernel(scaling(5), CPU), Ahead(zeros[:4].clone(), ones[:4])) == [15.0] * 4
    kernel = Kernel(scaling(5), CPU)
    assert run(kernel, Ahead(zeros[:4].clone(), ones[:4])) == [15.0] * 4
    assert set(run(kernel, Ahead(zeros.clone(), ones))) == {15.0}
    again = Kernel(scaling(5), CPU)
    assert set(run(again, Ahead(zeros.clone(), ones))) == {15.0}
    assert run(again, Ahead(zeros[:4].clone(), ones[:4]), offset=1) == [16.0] * 4
    assert len(count.compiled) == 2 and len(count.loaded) == 3


def test_doctor_reports_where_kernels_are_cached(place, monkeypatch):
    found = doctor._cache()
    assert found.status == doctor.OK and found.found == f"0 compiled kernels, 0.0 MiB in {place}"
    code_store.CodeStore(place).write("a" * 64, bytes(3 << 20))
    assert doctor._cache().found.startswith("1 compiled kernels, 3.0 MiB")
    place.chmod(0o777)
    found = doctor._cache()
    assert found.status == doctor.NOTE and "can be written by others" in found.found and str(place) in found.advice
    monkeypatch.setenv("OPERANT_CACHE", "0")
    assert doctor._cache() == doctor.Finding("cache", doctor.OK, "off: kernels are compiled at each start")


# GPU


@pytest.fixture
def pretended_gpu(monkeypatch):
    """A Hopper as far as the compiler sees it: kernels become binaries; only binding them to a context is left out."""
    from numba.cuda import codegen, dispatcher

    capability = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: capability)
    monkeypatch.setattr(codegen.CUDACodeLibrary, "_ensure_cc", lambda self, cc: cc or (9, 0, "a"))
    monkeypatch.setattr(codegen.JITCUDACodegen, "magic_tuple", lambda self: ("13.0", capability.compute_capability))
    monkeypatch.setattr(dispatcher._Kernel, "bind", lambda self: self._codelibrary.get_cubin())
    return capability


def cuda_kernel(body, group):
    """Compile a body, or load it, as a launch would."""
    from numba import cuda

    dispatcher = jit_cache.cache_cuda(cuda.jit(cuda_shell(body), fastmath=True), body.py_func.__name__)
    types = signature(group, group)
    return dispatcher.compile(types), dispatcher.overloads[types]


@pytest.mark.slow
def test_a_cuda_kernel_comes_back_with_its_binary(pretended_gpu, count, monkeypatch):
    from numba.cuda import compiler, dispatcher

    group = Ahead(*numbers())
    first, _ = cuda_kernel(scaling(1), group)
    assert count.compiled == ["body"]
    monkeypatch.setattr(dispatcher, "compile_cuda", None)  # nothing may be compiled from here on
    monkeypatch.setattr(compiler, "compile_cuda", None)
    second, entered = cuda_kernel(scaling(1), group)
    assert count.loaded == ["body"] and len(count.compiled) == 1 and second is entered and second is not first
    assert second._codelibrary.get_cubin().code == first._codelibrary.get_cubin().code
    assert second.entry_name == first.entry_name and second._codelibrary._entry_name == first._codelibrary._entry_name
    assert second.signature == first.signature and second.argument_types == first.argument_types
    assert (second.cooperative, second.debug, second.extensions, second.launch_config_sensitive) == (
        False,
        False,
        [],
        False,
    )
    monkeypatch.undo()


def test_a_cuda_kernel_of_other_code_or_another_gpu_is_recompiled(pretended_gpu, count):
    group = Ahead(*numbers())
    binaries = {cuda_kernel(scaling(factor), group)[0]._codelibrary.get_cubin().code for factor in (1, 2)}
    pretended_gpu.compute_capability = (8, 6)
    cuda_kernel(scaling(1), group)
    assert len(count.compiled) == 3 and len(binaries) == 2 and count.loaded == []


def test_a_cuda_kernel_that_cannot_be_bound_is_recompiled(pretended_gpu, count, monkeypatch):
    from numba.cuda import dispatcher

    group = Ahead(*numbers())
    cuda_kernel(scaling(1), group)
    real, calls = dispatcher._Kernel.bind, []

    def bind_at_the_second_try(self):
        calls.append(self)
        if len(calls) == 1:
            raise RuntimeError("the driver is older than the code")
        return real(self)

    monkeypatch.setattr(dispatcher._Kernel, "bind", bind_at_the_second_try)
    cuda_kernel(scaling(1), group)
    assert len(count.compiled) == 2 and "older than the code" in count.other[0]


@pytest.mark.slow
def test_every_shipped_body_can_be_cached_for_a_gpu(pretended_gpu, place):
    zeros = torch.zeros(4, 2, 8)
    clock = world_noise.Clock(tick=torch.zeros(1, dtype=torch.int64), seed=torch.zeros(2, dtype=torch.int32), lane0=0)
    flags, discount = torch.zeros(4, 8, dtype=torch.uint8), returns.Discount(float32(0.9), float32(0.8))
    accrual = returns.Accrual(zeros[:, 0], flags, flags, zeros[0, 0], zeros[:, 1])
    groups = {world_noise.noise_body: (clock, world_noise.Noise(zeros)), returns.accrual_body: (discount, accrual)}
    from numba import cuda

    for body, (lanes, slot) in groups.items():
        jit_cache.cache_cuda(cuda.jit(cuda_shell(body), fastmath=True), "body").compile(signature(lanes, slot))
    assert code_store.CodeStore(place).measure()[0] == len(groups)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_second_process_compiles_nothing_on_a_gpu(rules):
    path = rules(load=False)
    first, second = probe(path, "cuda"), probe(path, "cuda")
    assert first["compiled"] == ["reset_body", "step_body"] and first["loaded"] == [] and first["other"] == []
    assert second["compiled"] == [] and second["loaded"] == ["reset_body", "step_body"] and second["other"] == []
    assert (
        first["digests"] == second["digests"] and first["digests"][0] == first["digests"][2]
    )  # the last through a captured graph
    rules(("push", "float32(2.0)", "float32(3.0)"), load=False)
    third = probe(path, "cuda")
    assert third["compiled"] == ["step_body"] and third["digests"] != first["digests"]
