"""Same machine code: compare the PTX of every kernel that two checkouts launch, without a GPU.

    python benches/same_ptx.py BEFORE AFTER [--only NAME,...] [--architectures 90] [--precisions tf32]
        [--changed KERNEL,...] [--cache FOLDER]

Each checkout builds the configurations of `before_after.py` on the CPU with fewer lanes and runs one iteration, in
which Triton kernels are compiled for an NVIDIA architecture (80, 90, 100, ...) by Triton's usual path, but not
launched. Compared are the launches in their order: grid, options, and the PTX without the kernel's name. Arguments are
not compared; `same_bits.py` covers them. The exit code is 1 if a case differs. A first run takes seconds per kernel;
compiled kernels are kept in `--cache`.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from before_after import CASES as SPEED_CASES

SMALL = ("env.lanes=64", "algo.horizon=16")
SMALL_OFF_POLICY = ("env.lanes=64", "algo.horizon=16", "algo.batch_size=256", "algo.learning_starts=1000")
PPO = ("algo.minibatches=2", "algo.epochs=1", "algo.kernels=fused")
CASES = {
    **{name: words for name, words in SPEED_CASES.items() if "algo.kernels=fused" in words},
    "ppo_gaussian": ("env.name=mountaincar_continuous", "algo.target_kl=0.02", *PPO),
    "ppo_squashed": ("env.name=pendulum", "net.squash=true", "net.layer_norm=true", "algo.value_clip=0.2", *PPO),
    "ppo_shared": ("env.name=cartpole", "net.shared=true", "net.activation=silu", "algo.anneal=true", *PPO),
    "ppo_legal": ("env.name=g2048", "net.hidden=[64]", *PPO),
    "ppo_per_layer_norm": ("env.name=pendulum", "net.hidden=[256,256]", "net.layer_norm=true", *PPO),
    "pqn_legal": ("env.name=g2048", "algo.name=pqn", "net.hidden=[64]", "algo.kernels=fused"),
}
OFF_POLICY = ("dqn", "sac", "td3")


def work(architecture: int, precision: str) -> None:
    """Serve as a worker: read a case's words per line from stdin, write its launches as one JSON line to stdout."""
    import importlib
    import pkgutil
    from types import SimpleNamespace

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend

    import operant.algos
    import operant.kernels

    for package in (operant.kernels, operant.algos):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)
    os.environ["TRITON_INTERPRET"] = "1"  # after the import of all kernels: lets fused backends be built on a CPU

    # Kernels compile for this target, up to PTX.
    triton.runtime.driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", architecture, 32),
            get_current_device=lambda: 0,
            get_current_stream=lambda device=None: 0,
        )
    )
    CUDABackend.make_cubin = lambda *arguments: b""

    # Engines describe their networks with `describe(..., precision)`; on a CPU they would ask for float32.
    def forced(describe: Any) -> Any:
        return lambda network, _precision, *more, **options: describe(network, precision, *more, **options)

    for name, loaded in list(sys.modules.items()):
        if name.startswith(("operant.kernels", "operant.algos")) and callable(getattr(loaded, "describe", None)):
            loaded.describe = forced(loaded.describe)  # type: ignore[attr-defined]

    # Torch has no CPU kernel for the wide engines' products of bfloat16 to float32. No result is needed.
    passes = importlib.import_module("operant.kernels.actor_critic.wide.passes")
    passes.WidePasses._product = staticmethod(lambda *tensors: None)

    launches: list[list[str]] = []
    run = triton.runtime.jit.JITFunction.run

    def record(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        compiled = run(kernel, *arguments, grid=grid, warmup=True, **options)
        ptx = re.sub(rf"\b{kernel.__name__}\b|\b{kernel.__name__}(?=_param_)", "KERNEL", compiled.asm["ptx"])
        ptx = "\n".join(line for line in ptx.splitlines() if not line.lstrip().startswith(("//", ".loc", ".file")))
        shown = {key: value for key, value in options.items() if key in ("num_warps", "num_stages", "maxnreg")}
        code = hashlib.sha256(ptx.encode()).hexdigest()[:12]
        launches.append([kernel.__name__, f"{grid} {shown} {compiled.metadata.shared} B {code}"])

    triton.runtime.jit.JITFunction.run = record

    from operant.config import load
    from operant.training.build import build

    for line in sys.stdin:
        launches.clear()
        try:
            algo = build(load.load(None, ["run.steps=1000G", "run.seed=3", *json.loads(line)]), "cpu")
            algo.start()
            for _ in range(2):  # off-policy algorithms learn from the second iteration on
                for phase in algo.phases:
                    phase.run()
            answer: Any = launches
        except Exception as caught:
            error: BaseException = caught
            while error.__cause__ is not None:  # Triton's innermost error names the cause
                error = error.__cause__
            answer = f"{type(error).__name__}: {' '.join(str(error).split())[-400:]}"
        print(json.dumps(answer), flush=True)


def launches(checkout: Path, names: list[str], architecture: int, precision: str, cache: Path) -> dict[str, Any]:
    """Launches of the cases in a checkout: for each a list of [name, grid, options and PTX], or an error in words."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "TRITON_CACHE_DIR": str(cache / "triton")}
    environment |= {"TRITON_DISABLE_LINE_INFO": "1", "OMP_NUM_THREADS": "1", "OPERANT_CACHE": "0"}
    environment.pop("TRITON_INTERPRET", None)
    words = []
    for name in names:
        off_policy = any(f"algo.name={algorithm}" in CASES[name] for algorithm in OFF_POLICY)
        words.append([*CASES[name], *(SMALL_OFF_POLICY if off_policy else SMALL)])
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--work", str(architecture), precision],
        input="".join(json.dumps(line) + "\n" for line in words),
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=checkout,
        check=True,
    )
    return dict(zip(names, map(json.loads, done.stdout.splitlines()), strict=True))


def difference(before: Any, after: Any, changed: list[str]) -> str | None:
    """Differences between the launches of a case, the first of each kernel, in words; None if there are none.
    `changed`: names of kernels whose code may differ.
    """
    for side, found in (("before", before), ("after", after)):
        if isinstance(found, str):
            return f"{side}: {found}"
    changed_launches: dict[str, str] = {}
    for k, (first, second) in enumerate(itertools.zip_longest(before, after)):
        if first is None or second is None or (first[1] != second[1] and second[0] not in changed):
            changed_launches.setdefault((first or second)[0], f"launch {k}: {first} became {second}")
    return "; ".join(changed_launches.values()) or None


def main() -> None:
    """Compare two checkouts and print one line per case."""
    if "--work" in sys.argv:
        work(int(sys.argv[2]), sys.argv[3])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", default=",".join(CASES), help="names of cases, separated by commas")
    parser.add_argument("--architectures", default="90", help="of NVIDIA GPUs, separated by commas")
    parser.add_argument("--precisions", default="tf32", help="fp32, tf32, bf16, separated by commas")
    parser.add_argument("--changed", default="", help="names of kernels whose code may differ")
    parser.add_argument("--cache", type=Path, help="folder for compiled kernels (default: a temporary one)")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"unknown case {unknown[0]!r}; cases: {', '.join(CASES)}")

    equal = True
    with tempfile.TemporaryDirectory(prefix="same-ptx-") as folder:
        cache = options.cache or Path(folder)
        for target in itertools.product(options.architectures.split(","), options.precisions.split(",")):
            architecture, precision = int(target[0]), target[1]
            before, after = (
                launches(checkout.resolve(), names, architecture, precision, cache.resolve())
                for checkout in (options.before, options.after)
            )
            for name in names:
                found = difference(before[name], after[name], options.changed.split(","))
                kernels = {code for _, code in before[name]} if found is None else ()
                result = f"{len(before[name])} launches of {len(kernels)} kernels equal" if found is None else found
                print(f"sm_{architecture} {precision:5} {name:18} {result}", flush=True)
                equal &= found is None
    sys.exit(not equal)


if __name__ == "__main__":
    main()
