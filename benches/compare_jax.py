"""PPO by Operant and the same PPO in JAX (benches/jax_ppo.py), in separate processes. Prints Markdown for
benches/LOG.md.

    python benches/compare_jax.py [--python PYTHON] [--sizes 2048x16,8192x64] [--device auto] [--repeats 5]

PYTHON is an interpreter with JAX. Operant runs in every precision of the device; JAX is compared with the fastest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("jax_ppo.py")
LIMIT_S = 900.0


def jax_training(
    lanes: int, horizon: int, device: str, *, python: str = sys.executable, repeats: int = 5
) -> tuple[dict[str, Any], str]:
    """Run the JAX PPO on "cuda" or "cpu" in a separate process; returns its figures and an error message."""
    command = [
        python,
        str(PROGRAM),
        "--json",
        "--lanes",
        str(lanes),
        "--horizon",
        str(horizon),
        "--repeats",
        str(repeats),
    ]
    # torch keeps some GPU memory, and JAX would preallocate three quarters of the total.
    environment = {
        **os.environ,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        **({} if device == "cuda" else {"JAX_PLATFORMS": "cpu"}),
    }
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environment)
        return (
            (json.loads(done.stdout), "")
            if done.returncode == 0
            else ({}, (done.stderr.strip().splitlines() or ["it ended without a message"])[-1])
        )
    except (subprocess.TimeoutExpired, ValueError, OSError) as error:
        return {}, f"{type(error).__name__} at {lanes:,} x {horizon}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="a Python interpreter with JAX")
    parser.add_argument(
        "--sizes",
        type=lambda text: [tuple(map(int, size.split("x"))) for size in text.split(",")],
        default=[],
        help="lanes x horizon",
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    from operant.compute.runtime import find_device, quiet_threads

    quiet_threads()  # before torch is imported
    import torch

    from operant.tools import bench

    found = bench.bench(device=arguments.device, sections=["ppo"], sizes=arguments.sizes, repeats=arguments.repeats)
    device = find_device(arguments.device).type
    if device == "cuda":
        torch.cuda.empty_cache()
    print(f"{found.device}, torch {torch.__version__}\n")
    print("| lanes x horizon | Operant, M SPS | JAX, M SPS | Operant / JAX | JAX's device |\n|---|---|---|---|---|")
    for size in dict.fromkeys((row.lanes, row.horizon) for row in found.ppo):
        best = max((row for row in found.ppo if (row.lanes, row.horizon) == size), key=lambda row: row.sps)
        result, problem = jax_training(*size, device, python=arguments.python, repeats=arguments.repeats)
        if not result:
            sys.exit(f"JAX failed: {problem}")
        own = f"{size[0]:,} x {size[1]} | {best.sps / 1e6:.3g}, {best.precision}"
        print(
            f"| {own} | {result['sps'] / 1e6:.3g} | {best.sps / result['sps']:.2f} | {result['device']}, JAX "
            f"{result['jax']} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
