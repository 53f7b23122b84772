"""Same bits: compare the checkpoints that two checkouts write after tiny runs on the CPU, tensor by tensor.

    python benches/same_bits.py BEFORE AFTER [--only NAME,...] [--jobs N]

BEFORE and AFTER are checkouts of Operant (for one commit: `git worktree add ../before COMMIT`). Each configuration is
trained by the command line of either checkout, with the same seed. The SHA-256 of every tensor of the last checkpoint
is compared; JSON metadata is not. The exit code is 1 if a tensor differs or a run fails. All runs take about 10 minutes
a checkout on two cores, most of it starting processes.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

COMMON = ("run.threads=1", "run.device=cpu", "eval.every=0", "checkpoint.every=100000")
ON_POLICY = ("env.lanes=64", "algo.horizon=16", "algo.minibatches=4", "algo.epochs=2")
PQN = (*ON_POLICY, "algo.name=pqn", "net.layer_norm=true")
RECURRENT = (
    *("env.lanes=32", "algo.horizon=16", "algo.minibatches=2", "algo.epochs=2", "algo.bptt=8", "net.hidden=[32]"),
)
OFF_POLICY = (
    *("env.lanes=8", "algo.horizon=16", "algo.batch_size=64", "algo.learning_starts=200"),
    *("algo.replay_capacity=2000", "net.hidden=[32,32]"),
)
TORCH = "algo.kernels=torch"
NORMALIZED = ("algo.normalize_observations=true", "algo.normalize_rewards=true")
RANKS = ("env.lanes=1024", *ON_POLICY[1:], *NORMALIZED)
CONVOLUTION = ("net.kind=cnn", "net.cnn=minatar", "net.hidden=[32]")
SCHEDULES = (
    "algo.learning_rate={linear=[2e-3,1e-4]}",
    "algo.clip={linear=[0.3,0.1]}",
    "algo.entropy_coefficient={linear=[0.02,0.0]}",
    "algo.anneal=false",
    "algo.target_kl=0.002",
)
FUSED = ("env.lanes=16", "algo.horizon=4", "algo.kernels=fused")
FUSED_ON_POLICY = (*FUSED, "algo.minibatches=2", "algo.epochs=2")
FUSED_OFF_POLICY = (*FUSED, "algo.batch_size=16", "algo.learning_starts=64", "algo.replay_capacity=2000")
C51 = ("algo.critic=c51", "algo.v_min=-200", "algo.v_max=10")


class Case(NamedTuple):
    """A configuration to train: environment, environment steps, overrides. `interpreted`: by fused kernels in Triton's
    interpreter.
    """

    env: str
    steps: int
    overrides: tuple[str, ...]
    interpreted: bool = False


CASES = {
    "ppo": Case("cartpole", 20480, ON_POLICY),
    "ppo_torch": Case("cartpole", 20480, (*ON_POLICY, TORCH, "algo.chunks=4")),
    "ppo_value_clip": Case("cartpole", 20480, (*ON_POLICY, "algo.value_clip=0.2")),
    "ppo_normalized": Case("pendulum", 20480, (*ON_POLICY, *NORMALIZED)),
    "ppo_gaussian": Case("mountaincar_continuous", 20480, (*ON_POLICY, TORCH, "algo.normalize_rewards=true")),
    "ppo_squashed": Case("pendulum", 20480, (*ON_POLICY, "net.squash=true")),
    "ppo_lstm": Case("pendulum_positions", 5120, (*RECURRENT, "net.memory=lstm")),
    "ppo_gru": Case("tmaze", 5120, (*RECURRENT, "net.memory=gru", "algo.normalize_observations=true")),
    "ppo_mingru": Case("repeat_previous", 5120, (*RECURRENT, "net.memory=mingru", "net.memory_layers=2")),
    "ppo_overlap": Case("pendulum", 20480, (*ON_POLICY, *NORMALIZED, "algo.overlap=true")),
    "ppo_schedules": Case("cartpole", 20480, (*ON_POLICY, *SCHEDULES)),
    "ppo_ranks": Case("cartpole", 98304, (*RANKS, "run.ranks=2")),
    "ppo_one_rank": Case("cartpole", 98304, (*RANKS, "run.ranks=1")),
    "ppo_muon": Case("cartpole", 20480, (*ON_POLICY, "algo.optimizer=muon")),
    "ppo_convolution": Case("minatar_breakout", 4096, (*ON_POLICY, *CONVOLUTION)),
    "ppo_legal_moves": Case("g2048", 6144, (*ON_POLICY, "net.hidden=[64]")),
    "pqn": Case("cartpole", 20480, (*PQN, "algo.normalize_observations=true")),
    "pqn_torch": Case("cartpole", 20480, (*PQN, TORCH)),
    "pqn_convolution": Case("minatar_breakout", 4096, (*PQN, *CONVOLUTION)),
    "dqn": Case("cartpole", 1536, (*OFF_POLICY, "algo.name=dqn")),
    "dqn_torch": Case("cartpole", 1536, (*OFF_POLICY, "algo.name=dqn", TORCH, "algo.normalize_observations=true")),
    "dqn_rainbow": Case(
        "cartpole",
        1536,
        (
            *(*OFF_POLICY, "algo.name=dqn", "algo.double=true", "algo.duelling=true", "algo.critic=c51"),
            *("algo.replay_sampling=prioritised", "algo.n_step=3"),
        ),
    ),
    "sac": Case("pendulum", 1024, (*OFF_POLICY, "algo.name=sac")),
    "sac_c51": Case("pendulum", 1024, (*OFF_POLICY, "algo.name=sac", *C51)),
    "sac_discrete": Case("cartpole", 1024, (*OFF_POLICY, "algo.name=sac")),
    "td3": Case("pendulum", 1024, (*OFF_POLICY, "algo.name=td3", "algo.normalize_observations=true")),
    "td3_c51": Case("pendulum", 1024, (*OFF_POLICY, "algo.name=td3", *C51)),
    "ppo_fused": Case("cartpole", 192, (*FUSED_ON_POLICY, "net.hidden=[16,16]"), interpreted=True),
    "ppo_fused_gaussian": Case(
        "pendulum",
        192,
        (*FUSED_ON_POLICY, "net.hidden=[16]", "net.shared=true", "algo.value_clip=0.2", *NORMALIZED),
        interpreted=True,
    ),
    "ppo_gru_fused": Case(
        "pendulum_positions",
        256,
        (*FUSED_ON_POLICY, "env.lanes=32", "net.memory=gru", "net.shared=true", "net.hidden=[16]"),
        interpreted=True,
    ),
    "ppo_per_layer_fused": Case(
        "g2048",
        192,
        (*FUSED_ON_POLICY, "env.lanes=32", "net.hidden=[32]"),
        interpreted=True,
    ),
    "pqn_fused": Case(
        "cartpole",
        192,
        (*FUSED_ON_POLICY, "algo.name=pqn", "net.layer_norm=true", "net.hidden=[16]"),
        interpreted=True,
    ),
    "dqn_fused": Case("cartpole", 192, (*FUSED_OFF_POLICY, "algo.name=dqn", "net.hidden=[16]"), interpreted=True),
    "sac_fused": Case("pendulum", 192, (*FUSED_OFF_POLICY, "algo.name=sac", "net.hidden=[16,16]"), interpreted=True),
    "td3_fused": Case("pendulum", 192, (*FUSED_OFF_POLICY, "algo.name=td3", "net.hidden=[16,16]"), interpreted=True),
    "sac_wide_fused": Case(
        "pendulum",
        192,
        (*FUSED_OFF_POLICY, "algo.name=sac", "net.hidden=[16,16]", "net.layer_norm=true"),
        interpreted=True,
    ),
}


def train(checkout: Path, case: Case, folder: Path) -> dict[str, str]:
    """Train a case by a checkout's command line; hashes of the last checkpoint's tensors by name."""
    # A file that sets nothing else keeps the environment's recipe out.
    config = folder / "case.toml"
    config.write_text(f'[run]\nsteps = {case.steps}\n[env]\nname = "{case.env}"\n', encoding="utf-8")
    command = [sys.executable, "-m", "operant.cli", "train", "--config", str(config), "--seed", "7"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "XDG_STATE_HOME": str(folder / "state"),
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
    }
    if case.interpreted:
        # Every process mends Triton's interpreter at its start, as the tests do.
        (folder / "sitecustomize.py").write_text("import interpreter\n\ninterpreter.teach()\n", encoding="utf-8")
        tests = Path(__file__).resolve().parent.parent / "tests"
        environment |= {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(map(str, (folder, checkout, tests)))}
    done = subprocess.run(
        [*command, "--runs", str(folder / "runs"), *COMMON, *case.overrides],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    checkpoints = sorted((folder / "runs").glob("*/checkpoints/step-*/tensors.safetensors"))
    if done.returncode or not checkpoints:
        raise RuntimeError(f"exit code {done.returncode}: {(done.stdout + done.stderr).strip()[-600:]}")
    return tensor_hashes(checkpoints[-1])


def tensor_hashes(path: Path) -> dict[str, str]:
    """Type, shape and SHA-256 of every tensor in a safetensors file, by name."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    return {
        name: f"{entry['dtype']}{entry['shape']} {hashlib.sha256(body[slice(*entry['data_offsets'])]).hexdigest()}"
        for name, entry in header.items()
        if name != "__metadata__"
    }


def compare(before: Path, after: Path, name: str) -> tuple[bool, str]:
    """Train a case by two checkouts; whether all tensors are equal, and the result in words."""
    found = []
    for checkout in (before, after):
        with tempfile.TemporaryDirectory(prefix="same-bits-") as folder:
            try:
                found.append(train(checkout, CASES[name], Path(folder)))
            except RuntimeError as error:
                return False, f"{checkout} failed: {error}"
    first, second = found
    different = [key for key in sorted({*first, *second}) if first.get(key) != second.get(key)]
    if different:
        return False, f"{len(different)} of {len(first)} tensors differ: {', '.join(different[:6])}"
    return True, f"{len(first)} tensors equal"


def main() -> None:
    """Compare two checkouts and print one line per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", default=",".join(CASES), help="names of cases, separated by commas")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    words = parser.parse_args()
    names = words.only.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"unknown case {unknown[0]!r}; cases: {', '.join(CASES)}")

    before, after, equal = words.before.resolve(), words.after.resolve(), True
    with concurrent.futures.ThreadPoolExecutor(words.jobs) as pool:
        for name, (same, result) in zip(names, pool.map(lambda name: compare(before, after, name), names), strict=True):
            print(f"{name:18} {result}", flush=True)
            equal &= same
    sys.exit(not equal)


if __name__ == "__main__":
    main()
