"""Same bits of robots: worlds of any size, run to run, kill -9 and resume, one and two GPUs. JSON lines.

    python benches/robot_bits.py worlds [ENV ...] [--device cuda] [--lanes 1,64,8192,65536] [--steps 40]
    python benches/robot_bits.py runs [ENV ...] [--device cuda] [--ranks 1] [--lanes 2048] [--chunks 128]

`worlds` steps each environment with different numbers of lanes, and compares every output and the state of the lanes
that they share. `runs` trains PPO by the command line: twice, once with a kill -9 in the middle and a resume, and twice
with several ranks: GPUs, or processes on a CPU. It compares the bytes of the last checkpoint's tensors. All runs have
the same `algo.chunks`, which several ranks need for the bits of one. The exit code is 1 if bits differ.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from operant import envs
from operant.worlds.device_world import DeviceWorld

WAIT_S = 240.0
ITERATIONS = 60
HORIZON = 16
RUN = (
    f"algo.horizon={HORIZON}",
    "algo.minibatches=4",
    "algo.epochs=2",
    "eval.every=0",
    "checkpoint.every=10",
)


def outputs(name: str, lanes: int, compared: int, steps: int, on: str) -> str:
    """Hash of the state and outputs of the first `compared` lanes after each step under random actions."""
    env, found = envs.find(name), hashlib.sha256()
    world = DeviceWorld(env, lanes, seed=1, every_final=True, device=on)
    slot = world.slot()
    bound = world.bind(slot)
    world.reset(bound)
    for t in range(steps):
        # Lane i's actions do not depend on the number of lanes: NumPy fills the array (N, A) by rows.
        action = np.random.default_rng(t).uniform(-1.0, 1.0, (lanes, env.action.size)).astype(np.float32)
        slot.action.copy_(torch.from_numpy(np.ascontiguousarray(action.T)))
        world.step(bound)
        world.advance(1)
        for tensor in (world.lanes.state, *slot):
            if tensor is not None:
                found.update(tensor[..., :compared].cpu().numpy().tobytes())
    return found.hexdigest()


def worlds(name: str, counts: list[int], steps: int, on: str) -> bool:
    """Compare each number of lanes with the next greater one, in the lanes that both have."""
    same = {}
    for fewer, more in itertools.pairwise(counts):
        same[f"{fewer} and {more}"] = outputs(name, fewer, fewer, steps, on) == outputs(name, more, fewer, steps, on)
    print(json.dumps({"worlds": name, "steps": steps, "same": same}), flush=True)
    return all(same.values())


def tensors(run: Path) -> str:
    """Hash of the last checkpoint's tensors."""
    found = sorted((run / "checkpoints").glob("step-*"))[-1]
    return hashlib.sha256((found / "tensors.safetensors").read_bytes()).hexdigest()


def train(place: Path, name: str, words: list[str]) -> float:
    """Train a run to its end. Returns the seconds."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "operant.cli", "train", *words, "--name", name, "--runs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name}: exit code {done.returncode}: {done.stderr[-1000:]}")
    return time.perf_counter() - began


def killed_and_resumed(place: Path, name: str, words: list[str], steps: int) -> None:
    """Kill a run with SIGKILL after its third checkpoint, and resume it to its end, which is `steps`."""
    command = [sys.executable, "-m", "operant.cli", "train", *words, "--inline", "--name", name, "--runs", str(place)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + WAIT_S
    while process.poll() is None and len(list((place / name / "checkpoints").glob("step-*"))) < 3:
        if time.monotonic() > end:
            raise SystemExit(f"{name}: no third checkpoint after {WAIT_S:.0f} s")
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if (place / name / "checkpoints" / f"step-{steps:012d}").exists():
        raise SystemExit(f"{name}: ended before it was killed")
    command = [sys.executable, "-m", "operant.cli", "resume", name, "--runs", str(place)]
    subprocess.run(command, check=True, capture_output=True)


def runs(name: str, ranks: int, lanes: int, chunks: int, on: str) -> bool:
    """Train an environment several times and compare the bits with those of the first run."""
    steps = ITERATIONS * lanes * HORIZON
    common = [f"env.name={name}", f"env.lanes={lanes}", *RUN, f"run.steps={steps}", f"algo.chunks={chunks}"]
    words = [*common, f"run.device={on}"]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        seconds = train(place, "first", words)
        first, same = tensors(place / "first"), {}
        train(place, "again", words)
        same["again"] = tensors(place / "again") == first
        killed_and_resumed(place, "killed", words, steps)
        same["killed and resumed"] = tensors(place / "killed") == first
        line = {"runs": name, "first_s": round(seconds, 1), "same": same}
        print(json.dumps(line), flush=True)
        if ranks > 1:
            several = [*common, "--gpus", str(ranks)] if on == "cuda" else [*words, f"run.ranks={ranks}"]
            train(place, "several", several)
            same[f"{ranks} ranks"] = tensors(place / "several") == first
            train(place, "several-again", several)
            same[f"{ranks} ranks again"] = tensors(place / "several-again") == tensors(place / "several")
            document = json.loads((place / "several" / "run.json").read_text(encoding="utf-8"))
            print(json.dumps(line | {"bits_by_ranks": document["bits_by_ranks"]}), flush=True)
    return all(same.values())


def main() -> None:
    """Compare the worlds or the runs of the named environments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("worlds", "runs"))
    parser.add_argument("names", nargs="*", default=["half_cheetah", "ant", "humanoid"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--lanes", help="numbers of lanes by commas (worlds), or one number (runs)")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--chunks", type=int, default=128)
    options = parser.parse_args()
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp()  # these runs stay out of the user's list
    if options.device == "cuda":
        print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__}), flush=True)
    if options.part == "worlds":
        counts = [int(count) for count in (options.lanes or "1,64,8192,65536").split(",")]
        found = [worlds(name, counts, options.steps, options.device) for name in options.names]
    else:
        lanes = int(options.lanes or 2048)
        found = [runs(name, options.ranks, lanes, options.chunks, options.device) for name in options.names]
    raise SystemExit(0 if all(found) else 1)


if __name__ == "__main__":
    main()
