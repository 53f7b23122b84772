"""Physics: parity with C MuJoCo, speed on one core against it, and steps per second on a GPU.

    python benches/physics.py parity [NAME ...] [--states 2000]   # a table: errors of one step, float64 and float32
    python benches/physics.py cpu [NAME ...]                      # one core, in turns with C MuJoCo
    python benches/physics.py write                # models to build/physics, for a machine without mujoco
    python benches/physics.py gpu [NAME ...] [--lanes 8192,65536] [--threads 64,8]  # steps/s; reads build/physics
    ncu --profile-from-start off ... python benches/physics.py profile [NAME ...] [--lanes 8192]  # one launch of each
    python benches/physics.py ptx [NAME ...]                      # registers, stack and spills, without a GPU

NAMEs are those of Gymnasium's models, robot30 (made up: 30 hinges), dm_control/DOMAIN and random/SEED. A step is one
`mj_step`, of which Gymnasium takes several per action. `gpu` runs each model twice and compares the bits. `--threads`
are lanes per block, hence per warp if fewer than 32: fewer wait less for each other, and more warps share the work of
few lanes.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import multiprocessing
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import float32, float64

from operant.compute.device import device
from operant.compute.kernel import THREADS, Kernel, bind
from operant.compute.runtime import usable_cores
from operant.physics import Engine, Model, build
from operant.physics.local import lane_memory

FOLDER = Path(__file__).resolve().parent.parent / "build" / "physics"
NAMES = (
    "humanoid", "humanoidstandup", "ant", "half_cheetah", "walker2d_v5", "hopper", "pusher_v5", "swimmer", "reacher",
    "inverted_pendulum", "inverted_double_pendulum", "robot30",
)  # fmt: skip
STEPS = 5  # per launch
EPISODE = 200  # launches between resets


class Lanes(NamedTuple):
    """State and control of N lanes."""

    state: Any  # (fields, N) float32
    ctrl: Any  # (nu, N) float32


class Slot(NamedTuple):
    """Kernel argument that holds each lane's GPU memory for the constraint rows of the solver PGS."""

    memory: Any  # (N, S) float32


def memory_of(engine: Engine, lanes: int, on: torch.device | str = "cpu") -> torch.Tensor | None:
    """Memory of lanes that an engine needs, (N, S) float32; None if it needs none."""
    return torch.zeros(lanes, engine.memory_size, device=on) if engine.memory_size else None


def bodies(engine: Engine) -> tuple[Any, Any]:
    """Kernel bodies: reset lane i to a noisy initial state, and take steps of it."""
    work, steps, reset_state, size = engine.work, engine.steps, engine.reset, engine.memory_size

    @device
    def reset(i, lanes, slot, offset):
        reset_state(lanes.state[:, i])

    @device
    def simulate(i, lanes, slot, offset):
        steps(lanes.state[:, i], lanes.ctrl[:, i], work(), STEPS)

    @device
    def simulate_with_memory(i, lanes, slot, offset):
        steps(lanes.state[:, i], lanes.ctrl[:, i], work(lane_memory(slot.memory, i, size, float32)), STEPS)

    return reset, simulate_with_memory if size else simulate


class Bench:
    """N lanes of a model on a device, driven by random controls."""

    def __init__(self, model: Model, lanes: int, on: torch.device, kernels: tuple[Kernel, Kernel]) -> None:
        engine = build(model, apart=True)
        self.count, self.engine, self.on = lanes, engine, on
        self.lanes = Lanes(
            torch.zeros(engine.fields, lanes, device=on), torch.zeros(max(model.nu, 1), lanes, device=on)
        )
        self.bound, self.slot = bind(self.lanes), bind(Slot(memory_of(engine, lanes, on)))
        self.reset_kernel, self.kernel = kernels
        limits = torch.as_tensor(np.abs(model.actuator_ctrlrange).max(axis=1), dtype=torch.float32, device=on)
        self.limits = torch.where(torch.tensor(model.actuator_ctrllimited, device=on) > 0, limits, 1.0)[:, None]
        self.random = torch.Generator(on)

    def begin(self) -> None:
        """Reset every lane to the initial state with noise of 0.1 in the velocities."""
        self.reset_kernel(self.count, self.bound, self.slot)
        m, at = self.engine.model, self.engine.QVEL
        speeds = self.lanes.state[at : at + m.nv]
        speeds.copy_(0.1 * torch.randn(speeds.shape, generator=self.random, device=self.on))

    def run(self, launches: int, threads: int = THREADS) -> None:
        """Take launches x STEPS steps with new random controls at each launch."""
        for k in range(launches):
            if k % EPISODE == 0:
                self.begin()
            self.lanes.ctrl.uniform_(-1.0, 1.0, generator=self.random).mul_(self.limits)
            self.kernel(self.count, self.bound, self.slot, threads=threads)

    def digest(self, seed: int, launches: int) -> tuple[str, float, bool]:
        """Hash of the state after a seeded run, contacts lost in it, and whether every number is finite."""
        self.random.manual_seed(seed)
        self.run(launches)
        state = self.lanes.state.cpu()
        data = hashlib.sha256(state.numpy().tobytes()).hexdigest()[:16]
        return data, float(state[self.engine.LOST].sum()), bool(state.isfinite().all())


def warm(path: Path) -> float:
    """Compile a model's kernels into the cache. Returns the seconds that it took."""
    began = time.perf_counter()
    model, on = Model.load(path.read_bytes()), torch.device("cuda")
    Bench(model, 64, on, kernels_of(model, on)).run(1)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def kernels_of(model: Model, on: torch.device) -> tuple[Kernel, Kernel]:
    """Make the kernels of a model: reset and steps."""
    reset, simulate = bodies(build(model, apart=True))
    return Kernel(reset, on), Kernel(simulate, on)


def gpu(names: list[str], counts: list[int], launches: int, threads: list[int]) -> None:
    """Print steps/s on the GPU for each model and number of lanes. Compiles all models before, in parallel."""
    on = torch.device("cuda")
    found = [name for name in names if (FOLDER / f"{name}.model").exists()]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(len(found), usable_cores()), context) as pool:
        paths = [FOLDER / f"{name}.model" for name in found]
        compiled_s = dict(zip(found, pool.map(warm, paths), strict=True))
    print(torch.cuda.get_device_name(on), "seconds to compile:", compiled_s)
    print("model                      lanes threads   M steps/s  state B  work B  compile s  lost/1e6  same bits")
    for name in names:
        path = FOLDER / f"{name}.model"
        if not path.exists():
            print(f"{name}: not in {FOLDER}; run `python benches/physics.py write` where mujoco is installed")
            continue
        model = Model.load(path.read_bytes())
        kernels = kernels_of(model, on)
        for count in counts:
            bench = Bench(model, count, on, kernels)
            bench.run(2)
            first, second = bench.digest(1, 40), bench.digest(1, 40)
            same = "yes" if first == second and first[2] else f"NO {first} {second}"
            lost = first[1] / (40 * STEPS * count) * 1e6
            for each in threads:
                torch.cuda.synchronize()
                began = time.perf_counter()
                bench.run(launches, each)
                torch.cuda.synchronize()
                rate = launches * STEPS * count / (time.perf_counter() - began)
                print(
                    f"{name:25s} {count:7d} {each:7d} {rate / 1e6:11.2f} {bench.engine.state_bytes:8d} "
                    f"{bench.engine.work_bytes:7d} {compiled_s[name]:9.1f} {lost:9.1f}  {same}",
                    flush=True,
                )


def profile(names: list[str], counts: list[int], launches: int) -> None:
    """Take one launch of each model and number of lanes between the start and the stop of a profiler, after `launches`
    others.
    """
    on = torch.device("cuda")
    for name in names:
        model = Model.load((FOLDER / f"{name}.model").read_bytes())
        for count in counts:
            bench = Bench(model, count, on, kernels_of(model, on))
            bench.run(launches)
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            bench.kernel(bench.count, bench.bound, bench.slot)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


def helpers() -> Any:
    """Module of the tests that compares with MuJoCo."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    import physics_parity

    return physics_parity


def parity(names: list[str], states: int) -> None:
    """Print errors of one step against `mj_step` from random, extreme and touching states along episodes."""
    module = helpers()
    print("relative errors          float64: largest              float32: median                largest")
    print("model                     qpos    qvel    qacc      qpos    qvel    qacc      qpos    qvel    qacc  rows")
    for name in names:
        exact = module.step_errors(name, float64, states)
        single = module.step_errors(name, float32, states)
        parts = [exact.values.max(0), np.median(single.values, 0), single.values.max(0)]
        numbers = "   ".join(" ".join(f"{x:7.1e}" for x in part) for part in parts)
        print(f"{name:24s} {numbers}  {exact.rows}  ({exact.lost} without room)", flush=True)


def cpu(names: list[str]) -> None:
    """Print steps/s of one core, ours and C MuJoCo's in turns, random controls held for STEPS steps."""
    import mujoco

    module = helpers()
    torch.set_num_threads(1)
    print("model                      ours/s    C/s  ratio (median of 7 turns; least and largest ratio)")
    for name in names:
        m = module.compiled(name)
        d = mujoco.MjData(m)
        engine = build(Model.from_compiled(m))
        run, s = module.stepper(engine), np.zeros(engine.fields, float32)
        controls = np.random.default_rng(0).uniform(-1, 1, (400, m.nu))
        controls *= np.where(m.actuator_ctrllimited, np.abs(m.actuator_ctrlrange).max(axis=1), 1.0)
        single = controls.astype(float32)
        module.put(engine, s, d)
        run(s, single[0], 1)
        turns = []
        for _ in range(7):
            mujoco.mj_resetData(m, d)
            module.put(engine, s, d)
            began = time.thread_time()
            for ctrl in single:
                run(s, ctrl, STEPS)
            between = time.thread_time()
            for ctrl in controls:
                d.ctrl[:] = ctrl
                mujoco.mj_step(m, d, STEPS)
            turns.append((between - began, time.thread_time() - between))
        count = len(controls) * STEPS
        ours, theirs = (count / float(np.median([turn[k] for turn in turns])) for k in range(2))
        ratios = [b / a for a, b in turns]
        print(
            f"{name:24s} {ours:9.0f} {theirs:7.0f} {ours / theirs:5.1f} ({min(ratios):.1f}-{max(ratios):.1f})",
            flush=True,
        )


def ptx(names: list[str]) -> None:
    """Print registers, stack and spills of each model's kernel of STEPS steps for sm_90."""
    import triton

    from operant.compute.ptx import compile_ptx, float64_lines

    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    for name in names:
        engine = build(Model.from_compiled(helpers().compiled(name)), apart=True)
        lanes = Lanes(torch.zeros(engine.fields, 8), torch.zeros(max(engine.model.nu, 1), 8))
        began = time.perf_counter()
        text = compile_ptx(bodies(engine)[1], lanes, Slot(memory_of(engine, 8)), (9, 0))
        taken = time.perf_counter() - began
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "kernel.ptx"
            source.write_text(re.sub(r"^\.version 9\.\d+", ".version 8.7", text, flags=re.MULTILINE))
            command = [str(assembler), "-arch=sm_90", "-v", "-o", f"{folder}/kernel.cubin", str(source)]
            told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        registers = re.findall(r"Used (\d+) registers", told)
        frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", told)
        print(
            f"{name:24s} {taken:5.1f} s, registers {registers}, stack and spilled bytes {frames}, scratch "
            f"{engine.work_bytes} B, float64 lines {len(float64_lines(text))}",
            flush=True,
        )


def write(names: list[str]) -> None:
    """Write models to build/physics."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name in names:
        model = Model.from_compiled(helpers().compiled(name))
        build(model)  # raises where the engine does not cover the model
        (FOLDER / f"{name}.model").write_bytes(model.save())
        print(f"{name}: {len(model.save())} bytes")


def main() -> None:
    """Run one mode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("parity", "cpu", "write", "gpu", "profile", "ptx"))
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--states", type=int, default=2000)
    parser.add_argument("--lanes", default="8192,65536")
    parser.add_argument("--threads", default=str(THREADS))
    parser.add_argument("--launches", type=int, default=400)
    options = parser.parse_args()
    if options.mode == "gpu":
        lanes, threads = ([int(x) for x in text.split(",")] for text in (options.lanes, options.threads))
        gpu(options.names, lanes, options.launches, threads)
    elif options.mode == "profile":
        profile(options.names, [int(x) for x in options.lanes.split(",")], options.launches)
    elif options.mode == "parity":
        parity(options.names, options.states)
    else:
        {"cpu": cpu, "write": write, "ptx": ptx}[options.mode](options.names)


if __name__ == "__main__":
    main()
