"""Profiles: a handmade trace, the work of an iteration against torch's count and by hand, phases on a fake clock, and a
complete profile of a small trainer on the CPU, as a document and as printed.
"""

from __future__ import annotations

import errno
import gzip
import itertools
import json
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from toys import PICK, PUSH, ppo_on
from typer.testing import CliRunner

from operant.algos.base import Phase
from operant.cli import program, speed
from operant.cli.speed import app
from operant.config import load as config
from operant.envs import find
from operant.errors import ConfigError, MachineError, NotFoundError, UsageError
from operant.nn import flops, mlp
from operant.tools import profile, roofline
from operant.tools import trace as tracefile
from operant.tools.roofline import Peak
from operant.training import build as building

HOST_PHASES = [
    "environment",
    "network",
    "advantages",
    "shuffle",
    "gradient",
    "optimiser",
    "normalizers",
    "collect, the rest",
    "update, the rest",
]
SMALL = ["env.lanes=64", "algo.horizon=4", "algo.minibatches=2", "algo.epochs=2", "net.hidden=[8]", "run.threads=1"]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def quick_peak(monkeypatch):
    """Fixed peak, without measuring the device."""
    monkeypatch.setattr(profile, "peak", lambda device, precision: Peak(2e12, 1e10, f"{precision} 8 x 8 x 8"))


# TRACES


def event(cat, name, ts, dur, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1, "args": args}


EVENTS = [
    event("user_annotation", "update", 100, 200),
    event("user_annotation", "network", 120, 30),
    event("user_annotation", "not asked for", 125, 10),
    event("cpu_op", "aten::mm", 126, 8),
    event("cuda_runtime", "cudaLaunchKernel", 130, 2, correlation=1),  # in the network, in the update
    event("cuda_driver", "cuLaunchKernel", 160, 2, correlation=2),  # in the update alone, the network is over
    event("cuda_runtime", "cudaMemcpyAsync", 299, 2, correlation=3),
    event("cuda_runtime", "cudaGraphLaunch", 400, 2, correlation=4),  # outside
    event("cuda_runtime", "cudaStreamSynchronize", 410, 90, correlation=5),
    event("kernel", "product", 500, 40, correlation=1),
    event("kernel", "lanes", 530, 20, correlation=2),  # ends 10 us after the product
    event("gpu_memcpy", "Memcpy DtoD", 600, 5, correlation=3),
    event("kernel", "product", 700, 7, correlation=4),
    event("kernel", "lanes", 710, 1, correlation=4),  # both of one graph
]


def test_what_runs_on_the_device_belongs_to_the_innermost_range_that_launched_it():
    assert tracefile.by_range(EVENTS, ["update", "network", "never"]) == {
        "network": tracefile.Range(pytest.approx(40e-6), 1, 0),
        "update": tracefile.Range(pytest.approx(25e-6), 1, 1),
        "": tracefile.Range(pytest.approx(8e-6), 2, 0),
    }


def test_launches_busy_time_and_kernels():
    assert tracefile.host_launches(EVENTS) == 4
    on_device = tracefile.device_events(EVENTS)
    assert len(on_device) == 5
    assert tracefile.busy_s(on_device) == pytest.approx((50 + 5 + 7 + 1) * 1e-6)
    assert tracefile.busy_s(reversed(on_device)) == pytest.approx((50 + 5 + 7 + 1) * 1e-6)
    product, lanes = tracefile.kernels(on_device)
    assert (product.name, product.launches) == ("product", 2) and product.busy_s == pytest.approx(47e-6)
    assert (lanes.name, lanes.launches) == ("lanes", 2) and lanes.busy_s == pytest.approx(21e-6)


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_a_trace_is_read_from_its_file(ending, tmp_path):
    path = tmp_path / f"trace{ending}"
    text = json.dumps({"traceEvents": [*EVENTS, {"ph": "M", "name": "process_name"}]})
    path.write_bytes(gzip.compress(text.encode()) if ending.endswith("gz") else text.encode())
    assert tracefile.load(path) == EVENTS


# WORK


@pytest.mark.slow
@pytest.mark.parametrize(("hidden", "shared"), list(itertools.product([(8,), (8, 6), (8, 6, 5)], [False, True])))
@pytest.mark.parametrize("env", [find("cartpole"), PUSH, PICK], ids=["cartpole", "push", "pick"])
def test_operations_are_those_that_torch_counts(env, hidden, shared):
    policy = ppo_on(env, 8, mlp.Config(hidden=hidden, shared=shared), start=False).policy
    B = 10
    observation = torch.zeros(env.observation.size, B)
    with FlopCounterMode(display=False) as forward:
        parameters, value = policy.forward(observation)
    with FlopCounterMode(display=False) as backward:
        (parameters.sum() + value.sum()).backward()
    assert flops.network_flops(policy) == (forward.get_total_flops() // B, backward.get_total_flops() // B)


USER = """
import torch
class Net(torch.nn.Module):
    def __init__(self, observation, head):
        super().__init__()
        self.head, self.value = torch.nn.Linear(observation, head), torch.nn.Linear(observation, 1)
    def forward(self, observation):
        return self.head(observation), self.value(observation)
"""


@pytest.mark.slow
def test_a_users_network_is_counted_by_running_it(tmp_path):
    (tmp_path / "net.py").write_text(USER)
    policy = ppo_on(find("cartpole"), 8, mlp.Config(kind=f"{tmp_path / 'net.py'}:Net"), start=False).policy
    assert flops.network_flops(policy) == (2 * (4 * 2 + 4), 4 * (4 * 2 + 4))


def test_the_work_of_an_iteration_by_hand():
    """CartPole, one trunk of 8: forward 2 (4 8) + 2 (8 2) + 2 (8 1) = 112 operations, backward twice that but for the
    first layer's 64: 160.

    A step touches 4 fields twice, age and return twice, an action, 4 numbers, a reward and two flags: 32 + 16 + 4 + 16
    + 4 + 2 = 74 bytes. Acting reads the observation (16), writes and reads a uniform (8), writes what was drawn and
    what is done (8), a log-probability and a value (8): 40. The estimate reads 10 and writes 8. Learning reads 16 + 4 +
    16 = 36, twice.
    """
    policy = ppo_on(find("cartpole"), 8, mlp.Config(hidden=(8,), shared=True), start=False).policy
    found = flops.on_policy_work(policy, samples=100, lanes=10, passes=2)
    assert found.flops == 110 * 112 + 2 * 100 * (112 + 160)
    assert found.bytes == 100 * (74 + 40 + 18 + 2 * 36)


def test_a_peak_is_measured_and_leaves_torch_as_it_was(monkeypatch):
    calls = []
    monkeypatch.setattr(roofline, "best_s", lambda work, device: calls.append(work) or 0.5)
    before = torch.backends.cuda.matmul.allow_tf32
    found = roofline.peak(torch.device("cpu"), "tf32")
    assert found == Peak(2 * 1024**3 / 0.5, 8 * 2**25 / 0.5, "fp32 1024 x 1024 x 1024") and len(calls) == 2
    assert torch.backends.cuda.matmul.allow_tf32 == before
    monkeypatch.undo()
    assert 0.0 < roofline.best_s(lambda: None, torch.device("cpu")) < 1.0


# PHASES


def test_time_within_a_phase_is_not_counted_for_the_one_around_it(monkeypatch):
    now = iter([0.0, 1.0, 4.0, 5.0, 5.5, 10.0])
    monkeypatch.setattr(profile.time, "perf_counter", lambda: next(now))
    clock = profile._HostPhases()
    with clock("outer"):  # 0 to 10
        with clock("inner"):  # 1 to 4
            pass
        with clock("inner"):  # 5 to 5.5
            pass
    assert dict(clock.seconds) == {"outer": 6.5, "inner": 3.5}


def test_named_parts_are_called_within_their_phase_and_put_back():
    class Part:
        def work(self, value, *, more):
            return value + more

    trainer = SimpleNamespace(
        part=Part(), own=lambda: 7, missing=None, parts={"part.work": "a", "own": "b", "missing.work": "c", "gone": "d"}
    )
    own, seen = trainer.own, []

    class Around:
        def __init__(self, name):
            seen.append(name)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            seen.append("over")

    with pytest.raises(ZeroDivisionError), profile.phases_around(trainer, Around):
        assert trainer.part.work(1, more=2) == 3 and trainer.own() == 7
        raise ZeroDivisionError
    assert seen == ["a", "over", "b", "over"]
    assert trainer.own is own and vars(trainer.part) == {}


def test_phases_of_a_cpu_are_medians_of_iterations(monkeypatch):
    """Four iterations with 1, 2, 30 and 3 s of collect, half of it in the environment, and 5 s of update."""
    now, spans = 0.0, iter([1.0, 2.0, 30.0, 3.0])

    class World:
        def step(self, seconds):
            nonlocal now
            now += seconds

    def collect():
        nonlocal now
        span = next(spans) / 2
        trainer.world.step(span)
        now += span

    def update():
        nonlocal now
        now += 5.0

    trainer = SimpleNamespace(world=World(), phases=(Phase("collect", collect), Phase("update", update)))
    monkeypatch.setattr(profile.time, "perf_counter", lambda: now)
    found = {phase.name: phase.seconds for phase in profile.host_phases(trainer, 4)}
    assert found == {"update, the rest": 5.0, "environment": 1.25, "collect, the rest": 1.25}


# THE WHOLE


@pytest.mark.slow
def test_a_profile_on_the_cpu(tmp_path, quick_peak):
    lines: list[str] = []
    path = tmp_path / "trace.json"
    found = profile.profile(config.load(None, SMALL), 2, trace=path, report=lines.append)
    assert (found.environment, found.algorithm, found.lanes, found.horizon, found.iterations, found.threads) == (
        "cartpole",
        "ppo",
        64,
        4,
        2,
        1,
    )
    assert found.precision == "fp32" and found.device == "CPU, 1 threads"
    assert found.sps == pytest.approx(64 * 4 / found.iteration_s)
    assert list(found.phase_s) == ["collect", "update"] and all(
        0.0 < seconds < found.iteration_s for seconds in found.phase_s.values()
    )
    assert {phase.name for phase in found.phases} == set(HOST_PHASES)
    assert sum(phase.share for phase in found.phases) == pytest.approx(1.0) and all(
        phase.launches is None for phase in found.phases
    )
    assert found.phases == sorted(found.phases, key=lambda phase: -phase.seconds)
    assert [moment.when for moment in found.memory][:4] == [
        "before",
        "trainer built",
        "collect 1",
        "update 1",
    ] and found.memory[-1].when == "trained"
    assert all(moment.peak >= moment.allocated > 1 << 20 for moment in found.memory)
    assert found.kernel_launches is None and found.top_kernels == [] and found.trace == path and len(lines) >= 3
    ranges = [
        item["name"] for item in json.loads(path.read_text())["traceEvents"] if item.get("cat") == "user_annotation"
    ]
    assert [name for name in ranges if name in ("collect", "update")].count("update") == profile.TRACED
    document = json.loads(json.dumps(found.document()))
    assert document["schema"] == 1 and document["sps"] == found.sps and document["trace"] == str(path)
    assert document["work"]["flops_per_s"] == pytest.approx(found.work.flops / found.iteration_s)


def test_a_profile_changes_nothing_of_what_is_trained(quick_peak, monkeypatch):
    """A trainer that was timed and traced continues like one that was not."""
    kept = []
    build = building.build
    monkeypatch.setattr(building, "build", lambda *words, **named: kept.append(build(*words, **named)) or kept[-1])
    loaded = config.load(None, SMALL)
    profile.profile(loaded, 1)
    other = build(loaded, torch.device("cpu"))
    other.start()
    for _ in range(profile.WARM_UP + 1 + profile.TRACED + 1):
        other.collect()
        other.update()
    assert torch.equal(kept[0].policy.flat.values, other.policy.flat.values)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_missing_device_is_an_error():
    with pytest.raises(MachineError):
        profile.profile(config.load(None, [*SMALL, "run.device=cuda"]), 1)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_a_profile_on_a_gpu(kernels, tmp_path):
    found = profile.profile(
        config.load(None, [*SMALL, "env.lanes=1024", "algo.horizon=16", f"algo.kernels={kernels}"]),
        5,
        trace=tmp_path / "trace.json",
    )
    assert found.kernel_launches > 50 and found.host_launches > 0 and 0.0 < found.busy_share <= 1.0
    launched = sum(phase.launches for phase in found.phases)
    assert launched == pytest.approx(found.kernel_launches + found.copies, rel=0.3), (
        "graphs hold about what is launched one by one"
    )
    assert {"environment"} < {phase.name for phase in found.phases} and found.top_kernels[0].busy_s > 0.0
    assert found.memory[-1].allocated > 0 and found.peak.flops > 1e12 and found.peak.bytes > 1e11


# THE COMMAND


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_command_prints_tables(tmp_path, quick_peak):
    done = run("profile", "cartpole", *SMALL, "--updates", 1, "--trace", tmp_path / "trace.json")
    assert done.exit_code == 0, done.output
    for text in (
        "cartpole  ppo  64 lanes x 4",
        "per iteration",
        "phase",
        "update, the rest",
        "FLOP/s",
        "trained",
        "ui.perfetto.dev",
    ):
        assert text in done.output
    assert (tmp_path / "trace.json").stat().st_size > 1000


def test_the_command_prints_json(tmp_path, quick_peak):
    done = run("profile", *SMALL, "--updates", 1, "--trace", tmp_path / "trace.json", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["lanes"] == 64


@pytest.mark.parametrize(
    ("trace", "error"), [("gone/trace.json", NotFoundError), (".", UsageError), ("a\0b", UsageError)]
)
def test_an_unwritable_trace_path_is_refused_before_training(trace, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(profile, "profile", pytest.fail)
    assert isinstance(run("profile", "--trace", trace).exception, error)


def test_a_device_file_is_refused_as_trace(tmp_path, monkeypatch):
    (tmp_path / "full.json").symlink_to("/dev/full")
    monkeypatch.setattr(profile, "profile", pytest.fail)
    refused = run("profile", "--trace", tmp_path / "full.json").exception
    assert isinstance(refused, UsageError) and "is a folder, a device or a pipe: name a file" in str(refused)


def test_a_full_temporary_folder_is_an_error(tmp_path, monkeypatch):
    def full(*_, **__):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(profile, "profile", full)
    told = run("profile", *SMALL, "--trace", tmp_path / "trace.json").exception
    assert (
        isinstance(told, MachineError) and "No usable temporary directory found" in str(told) and "TMPDIR" in str(told)
    )


def test_a_broken_configuration_leaves_no_trace(tmp_path):
    assert isinstance(run("profile", "env.lanes=0", "--trace", tmp_path / "trace.json").exception, ConfigError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["profile", "bench"])
def test_the_program_has_the_command(name):
    done = CliRunner().invoke(program.app, [name, "--help"])
    assert done.exit_code == 0 and f"{name} [OPTIONS]" in done.output


def test_gpu_results_are_printed(quick_peak, capsys):
    plain = profile.profile(config.load(None, SMALL), 1)
    found = plain._replace(
        kernel_launches=1234,
        copies=7,
        host_launches=2,
        busy_share=0.5,
        top_kernels=[tracefile.Kernel("gemm", 2e-6, 40)],
        phases=[profile.Phase("network", 3e-4, 1.0, 99)],
    )
    speed.print_profile(found)
    printed = capsys.readouterr().out
    for text in (
        "1,234 kernels and 7 copies per iteration, by 2 host calls",
        "busy 50%",
        "gemm",
        "300 us",
        "99",
        "reserved",
    ):
        assert text in printed
