"""Device faults as a user meets them, provoked through the command line: one JSON line per fault.

    python benches/gpu_faults.py [--device cuda:0] [--only crowded,oom,fault,lost,hang]

    crowded   another process holds nearly all of the device's memory before training starts
    oom       an algorithm that takes more memory in each iteration
    fault     an environment that writes through a wild address from step 200 on
    hang      an environment that does not return from step 200 on, ended by `operant stop --now`
    illegal   the exception that torch raises for `fault`, raised by an algorithm: for a machine without a GPU
    lost      an algorithm that raises torch's exception for a device that fell off the bus (simulated)

On a CPU, `crowded` and `fault` are skipped: the first needs a device, and the second crashes the process. Each line has
the exit code, the state and its cause, the last lines of the output, and the seconds from the last record to the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ENVIRONMENT = '''
"""A line to walk on, with a step that does not end well."""
from typing import NamedTuple
from numpy import float32, uint32
from operant.envs import Box, Discrete, Env, device

class Params(NamedTuple):
    """Nothing to choose."""

@device
def reset(s, p, key):
    s[0] = float32(0.0)

@device
def step(s, action, p, key, tally):
    s[0] += float32(1.0)
    reward = float32(1.0)
    if s[0] > float32(200.0):
FAULT
    return reward, False

@device
def observe(s, obs, p):
    obs[0] = s[0] * float32(0.001)

ENV = Env(Params, 1, observation=Box(1), action=Discrete(2), time_limit=1000, reset=reset, step=step, observe=observe)
'''
WILD = """        s[int(s[0]) * 1_000_000_000] = reward"""
# A minute or more of work on a GPU, hours on a CPU, whose result is used: a loop without an end and an effect would be
# left out by the compiler.
ENDLESS = """        word = uint32(key[0]) | uint32(1)
        for _ in range(1 << 32):
            word ^= word << uint32(13)
            word ^= word >> uint32(17)
            word ^= word << uint32(5)
        reward += float32(word)"""
ALGORITHM = '''
"""PPO with one more phase, which fails in the fifth iteration."""
import torch
from operant.algos.base import Phase
from operant.algos.ppo import PPO

class Failing(PPO):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.taken, self.count = [], 0
        self.phases = (*self.phases, Phase("fail", self.fail))

    def fail(self):
        self.count += 1
        if self.count >= 5:
FAILURE

ALGO = Failing
'''
LEAK = """            size = 1 << (50 if self.device.type == "cpu" else 33)
            while True:
                self.taken.append(torch.empty(size, dtype=torch.uint8, device=self.device))"""
LOST = """            raise torch.AcceleratorError(
                "CUDA error: unknown error (simulated: the GPU has fallen off the bus)"
            )"""
HOG = """
import sys, torch
free, _ = torch.cuda.mem_get_info(0)
kept = torch.empty(free - (1200 << 20), dtype=torch.uint8, device="cuda:0")
print("holding", kept.numel(), flush=True)
sys.stdin.read()
"""
ILLEGAL = """            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")"""
SMALL = ("env.lanes=1024", "algo.horizon=16", "eval.every=0", "run.steps=1G", "run.record_hz=1000")
LARGE = ("cartpole", "env.lanes=4194304", "algo.horizon=64", "eval.every=0", "run.steps=1G")
FILES = {
    "fault": ("fault_env.py", ENVIRONMENT.replace("FAULT", WILD)),
    "hang": ("hang_env.py", ENVIRONMENT.replace("FAULT", ENDLESS)),
    "oom": ("leak.py", ALGORITHM.replace("FAILURE", LEAK)),
    "lost": ("lost.py", ALGORITHM.replace("FAILURE", LOST)),
    "illegal": ("illegal.py", ALGORITHM.replace("FAILURE", ILLEGAL)),
}
LIMIT_S = 60.0


def operant(place: Path, *words: str) -> subprocess.Popen[str]:
    """Run `operant WORDS` in a separate process in the folder `place`."""
    command = [sys.executable, "-m", "operant.cli", *words]
    variables = os.environ | {
        "XDG_STATE_HOME": str(place / "state"),
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
    }
    return subprocess.Popen(
        command, cwd=place, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def words_for(name: str, device: str) -> list[str]:
    """Command line that provokes a fault."""
    if name == "crowded":
        what = LARGE
    elif name in ("fault", "hang"):
        what = (FILES[name][0], *SMALL)
    else:
        what = ("cartpole", f"algo.name={FILES[name][0]}:Failing", *SMALL)
    return ["train", *what, "--device", device, "--name", name]


def shown(place: Path, name: str) -> dict[str, Any]:
    """Output of `operant show --json`, {} if there is no run."""
    said = operant(place, "show", name, "--json").communicate(timeout=LIMIT_S)[0]
    try:
        return dict(json.loads(said))
    except ValueError:
        return {}


def provoke(place: Path, name: str, device: str) -> dict[str, Any]:
    """Provoke one fault and return its result."""
    if name in FILES:
        (place / FILES[name][0]).write_text(FILES[name][1])
    hog = None
    if name == "crowded":
        hog = subprocess.Popen([sys.executable, "-c", HOG], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert hog.stdout is not None
        hog.stdout.readline()
    began_s, live = time.monotonic(), {}
    trainer = operant(place, *words_for(name, device))
    stop = None
    try:
        if name == "hang":
            while time.monotonic() - began_s < LIMIT_S and (live := shown(place, name)).get("state") != "stalled":
                time.sleep(0.5)
            ending = operant(place, "stop", name, "--now")
            stop = [*ending.communicate(timeout=LIMIT_S)[0].strip().splitlines()[-2:], f"exit code {ending.returncode}"]
        said = trainer.communicate(timeout=LIMIT_S)[0]
    finally:
        trainer.kill()
        if hog is not None:
            hog.communicate()
    described = shown(place, name)
    return {
        "fault": name,
        "exit": trainer.returncode,
        **{key: described.get(key) for key in ("state", "cause", "step", "last_checkpoint_step")},
        "while it hung": {key: live.get(key) for key in ("state", "cause")} if live else None,
        "operant stop --now": stop,
        "seconds": round(time.monotonic() - began_s, 1),
        "last lines": said.strip().splitlines()[-6:],
        "traceback": "Traceback" in said,
        "last record s before the end": seconds_since_the_last_record(place / "runs" / name),
    }


def seconds_since_the_last_record(path: Path) -> float | None:
    """Seconds from the last record to the end of the process, by exit.json, including an iteration."""
    from operant import runs
    from operant.runs.metrics import Reader

    ended_ns = runs.integer_of(runs.read_json(path / "exit.json"), "ended_realtime_ns")
    if ended_ns is None or not (path / "metrics.mm").exists():
        return None
    with Reader(path / "metrics.mm") as reader:
        record = reader.latest()
    return None if record is None else round((ended_ns - record.realtime_ns) / 1e9, 2)


def main() -> None:
    """Provoke all faults and print."""
    parser = argparse.ArgumentParser(description="What a user sees when a device fails")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    names = (
        ["oom", "illegal", "lost", "hang"] if arguments.device == "cpu" else ["crowded", "oom", "fault", "lost", "hang"]
    )
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.only.split(",") if arguments.only else names:
            try:
                line = provoke(Path(temporary), name, arguments.device)
            except Exception as error:
                line = {"fault": name, "broken": f"{type(error).__name__}: {error}"}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
