"""`env.lanes = "auto"`: candidates, what fits, trials that release their memory, and a resume with the recorded
number.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from operant import runs
from operant.algos.base import Phase
from operant.compute.runtime import out_of_memory
from operant.config import load as config
from operant.config import request
from operant.config.sections import AUTO_LANES
from operant.errors import ConfigError, DeviceError
from operant.training import auto_lanes, memory, worker
from operant.training import build as building

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
AUTO = ["env.lanes=auto", "run.steps=1G"]


@pytest.fixture(autouse=True)
def two_threads():
    """Two torch threads on any machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def young_heap():
    """Freeze the garbage of earlier tests: each trial ends with a collection, which would scan it."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def card(monkeypatch, young_heap):
    """GPU on which trainers of up to `holds` lanes fit, with `left` of 1600 bytes free. Records trials and live
    trainers.
    """
    card = SimpleNamespace(holds=AUTO_LANES, left=1600, tried=[], living=weakref.WeakSet(), at_once=[])
    card.error = lambda: torch.OutOfMemoryError("CUDA out of memory")

    class Trainer:
        def __init__(self, lanes):
            # held by itself, as one with graphs is
            self.lanes, self.phases = lanes, [Phase("collect", self.collect), Phase("update", self.update)]
            self.buffer = torch.zeros(1)
            card.living.add(self)
            card.tried.append(lanes)
            card.at_once.append(len(card.living))

        def start(self):
            pass

        def collect(self):
            pass

        def update(self):
            if self.lanes > card.holds:
                raise card.error()

    monkeypatch.setattr(building, "build", lambda config, device: Trainer(config.lanes))
    monkeypatch.setattr(auto_lanes.torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(auto_lanes.torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(auto_lanes.torch.cuda, "mem_get_info", lambda device: (card.left, 1600))
    return card


def resolved(device, *overrides, said=None, ranks=1):
    return auto_lanes.resolve(
        config.load(None, [*AUTO, *overrides]), device, report=(said if said is not None else []).append, ranks=ranks
    )


# BY TRYING


@pytest.mark.parametrize(
    ("holds", "lanes"), [(1 << 20, 65_536), (65_536, 65_536), (65_535, 32_768), (5000, 4096), (32, 32)]
)
def test_lanes_are_halved_until_they_fit(card, holds, lanes):
    card.holds, said = holds, []
    found = resolved(CUDA, said=said)
    assert found.lanes == found.env.lanes == lanes and found == replace(
        found, env=found.env.model_copy(update={"lanes": lanes})
    )
    assert card.tried == [AUTO_LANES >> k for k in range(len(card.tried))] and card.tried[-1] == lanes
    assert (
        len(said) == len(card.tried)
        and said[-1] == f"env.lanes = auto: {lanes:,} lanes"
        and all("do not fit" in line for line in said[:-1])
    )


def test_a_trial_leaves_nothing_behind(card):
    """Each trainer is freed before the next begins, even one that failed halfway and is referenced by its error."""
    card.holds = 64
    gc.disable()
    try:
        resolved(CUDA)
    finally:
        gc.enable()
    assert len(card.tried) == 11 and card.at_once == [1] * 11 and not card.living


def test_lanes_that_leave_too_little_free_memory_do_not_fit(card):
    card.left = 99  # of 1600: less than a sixteenth
    with pytest.raises(
        DeviceError, match=r"not even 32 lanes fit into the memory of cuda:0. Use a shorter algo.horizon"
    ):
        resolved(CUDA)
    card.left = 100
    assert resolved(CUDA).lanes == AUTO_LANES


@pytest.mark.parametrize(
    "broken", [RuntimeError("CUDA error: an illegal memory access was encountered"), ZeroDivisionError()]
)
def test_errors_other_than_out_of_memory_are_raised(card, broken):
    card.holds, card.error = 0, lambda: broken
    with pytest.raises(type(broken)):
        resolved(CUDA)
    assert card.tried == [AUTO_LANES]


def test_out_of_memory_errors_are_recognised():
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory")) and out_of_memory(MemoryError())
    assert out_of_memory(
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
    )
    assert out_of_memory(RuntimeError("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"))
    assert not out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError) as caught:  # as a capture ends that ran out of memory
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")
    assert out_of_memory(caught.value)


def test_a_run_is_left_enough_iterations(card):
    # 100 iterations of 16 steps of 1,024 lanes are 1.64 M steps; of 2,048 lanes more than 2 M.
    said = []
    assert resolved(CUDA, "run.steps=2M", said=said).lanes == 1024
    assert said == ["env.lanes = auto: 1,024 lanes (more would leave run.steps fewer than 100 iterations)"]
    assert resolved(CUDA, "run.steps=2M", "algo.horizon=128").lanes == 128
    assert resolved(CUDA, "run.steps=1000").lanes == 32
    assert card.tried == [1024, 128, 32]


def test_each_of_several_ranks_gets_what_fits_on_its_gpu(card):
    said = []
    card.holds = 4096
    assert resolved(CUDA, said=said, ranks=4).lanes == 4 * 4096
    assert said[-1] == "env.lanes = auto: 16,384 lanes, 4,096 a rank"
    assert resolved(CUDA, "run.steps=2M", ranks=2).lanes == 1024  # 100 iterations of both ranks' lanes
    with pytest.raises(ConfigError, match=r"2 ranks cannot share env.lanes = 64"):
        resolved(CUDA, "run.steps=1000", ranks=2)


def test_chosen_lanes_are_divisible_as_the_algorithm_requires(card):
    # 32 lanes x 16 steps are 16 blocks of 32 lanes: 64 minibatches want 128 lanes at least.
    card.holds = 32
    with pytest.raises(DeviceError, match="not even 128 lanes"):
        resolved(CUDA, "algo.minibatches=64")
    assert resolved(CUDA, "algo.horizon=15", "algo.minibatches=1", "run.steps=1").lanes == 32


# BY AN ESTIMATE


def test_lanes_that_exceed_the_replay_are_not_chosen(card):
    """512 transitions hold one step of up to 512 lanes, and two steps of 256."""
    words = ("algo.name=dqn", "algo.learning_starts=0", "algo.batch_size=32")
    assert resolved(CUDA, *words, "algo.replay_capacity=512").lanes == 256
    with pytest.raises(ConfigError, match="replay_capacity"):
        resolved(CUDA, *words, "algo.replay_capacity=63")


@pytest.mark.parametrize(("threads", "lanes"), [(1, 512), (2, 1024), (3, 1024), (16, 8192)])
def test_a_cpu_gets_512_for_each_thread(threads, lanes, monkeypatch):
    torch.set_num_threads(threads)
    monkeypatch.setattr(memory, "estimate", lambda config, device: memory.Footprint(1, 1))
    assert resolved(CPU).lanes == lanes


def test_on_a_cpu_half_of_the_free_memory_is_enough(monkeypatch):
    monkeypatch.setattr(auto_lanes.psutil, "virtual_memory", lambda: SimpleNamespace(available=2000 * 300))
    monkeypatch.setattr(
        memory, "estimate", lambda config, device: memory.Footprint(config.lanes * 900, config.lanes * 100)
    )
    assert resolved(CPU).lanes == 256
    monkeypatch.setattr(auto_lanes.psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    with pytest.raises(DeviceError, match="cpu"):
        resolved(CPU)


def test_a_given_number_of_lanes_is_unchanged(card):
    given = config.load(None, ["env.lanes=96"])
    assert auto_lanes.resolve(given, CUDA, report=pytest.fail) is given and card.tried == []


# IN A RUN


@pytest.mark.slow
def test_a_run_records_its_lanes_and_a_resume_keeps_them(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "operant")
    words = (
        "env.lanes=auto",
        "run.steps=512",
        "algo.horizon=4",
        "algo.minibatches=2",
        "net.hidden=[8]",
        "run.device=cpu",
        "run.threads=1",
        "eval.every=0",
    )
    asked = request.make(words, config=None, environment_file=None, settings={})
    run = runs.create(tmp_path / "runs", "auto", "x", asked.document())
    worker.train(run.path, resume=None)
    assert (
        runs.read_json(run.path / "run.json")["lanes"] == 32 and config.load(run.path / "config.toml").env.lanes == 32
    )
    assert "env.lanes = auto: 32 lanes" in caplog.text

    monkeypatch.setattr(auto_lanes, "resolve", pytest.fail)
    runs.update_document(run.path, request={**asked.document(), "resume_overrides": ["run.steps=1024"]})
    worker.train(run.path, resume="last")
    assert "resumed from" in caplog.text and config.load(run.path / "config.toml").env.lanes == 32


@pytest.mark.slow
@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_auto_lanes_fit_on_a_nearly_full_gpu(kernels):
    """The chosen number trains, and the trials release their memory."""
    free, total = torch.cuda.mem_get_info()
    before = torch.cuda.memory_allocated()
    held = torch.empty(max(0, free - total // 16 - (2 << 30)), dtype=torch.uint8, device="cuda")
    found = resolved(torch.device("cuda", 0), "algo.horizon=1024", f"algo.kernels={kernels}")
    assert 32 <= found.lanes < AUTO_LANES
    assert torch.cuda.memory_allocated() <= before + held.numel() + (64 << 20)
    del held
    torch.cuda.empty_cache()
