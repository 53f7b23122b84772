"""Two (four, eight) GPUs compared with one: rates, identical bytes, latency of the exchange, a killed rank. JSON lines.

    python benches/ranks.py [--ranks 2] [--only rates,bits,spin,faults,users,hosts] [--kinds kernel,nccl]
        [--cases WORD,WORD] [--limit S] [--short]

Each part is a separate set of processes with a time limit, so that no part stops another; after a failure the ends of
all ranks' error streams are printed. `rates`: latencies by size, and each GPU alone compared with W ranks with equal
lanes per GPU, for each kind of exchange ($OPERANT_EXCHANGE: kernel, symmetric, nccl; sockets: NCCL as between hosts);
all shapes and the time of kernels with the first kind, three shapes with the others; `exchange_us`: the time of the
exchange per iteration, measured by each rank's kernels. `bits`: the same global lanes on one rank, on W, and on W
without CUDA graphs: CartPole with all normalization and the KL stop, Breakout, Snake, position-only CartPole with a
memory, Breakout's recipe (muon). `spin`: time until a rank ends whose kernel waits for a killed rank. `faults`: `kill
-9` of a rank of a run started by the command (CartPole, Breakout's recipe), which half of the ranks then resume
bit-exactly. `users`: rates of whole commands, and recipes to their targets. `hosts`: two simulated hosts of one rank
each.

--cases selects cases that contain one of the words; --short trains a little, which compiles everything that a long run
needs; --tiny runs everything on the CPU with gloo.
"""

from __future__ import annotations

import argparse
import time
import traceback
from typing import Any

from rank import LINES, on_ranks, say
from rank_commands import Asked, faults, hosts, users

KINDS = ("kernel", "symmetric", "nccl", "sockets")
SIZES = (2, 9_600, 80_000, 700_000, 4_000_000)
NORMALISED = ["algo.normalize_observations=true", "algo.normalize_rewards=true"]
TRUNK = ["net.shared=true"]
SHAPES: dict[str, tuple[int, int, list[str]]] = {  # lanes a GPU, horizon, and more
    "2048 x 16": (2048, 16, []),
    "8192 x 64": (8192, 64, []),
    "65536 x 64": (65536, 64, []),
    "65536 x 64, normalised": (65536, 64, NORMALISED),
    "2048 x 16, one trunk": (2048, 16, TRUNK),
    "8192 x 64, one trunk": (8192, 64, TRUNK),
    "65536 x 64, one trunk": (65536, 64, TRUNK),
    "131072 x 64, one trunk": (131072, 64, TRUNK),
    "1024 x 32, pictures": (
        1024,
        32,
        ["env.name=pong", "env.pixels=64", "net.kind=cnn", "net.cnn=nature", "algo.microbatch=8192"],
    ),
}
OTHER_KINDS = ("2048 x 16", "8192 x 64", "65536 x 64")
LARGE = ["env.lanes=8192", "algo.horizon=16", "algo.minibatches=2", "algo.chunks=128", "algo.kernel_config=first"]
SMALL = [
    "env.lanes=256",
    "algo.horizon=16",
    "algo.minibatches=2",
    "algo.epochs=1",
    "algo.chunks=8",
    "algo.kernels=torch",
]
"""With torch's kernels gradients are computed chunk by chunk, those of a memory step by step."""
BITS: dict[str, tuple[str | None, list[str]]] = {  # a recipe, overrides
    "cartpole": (None, LARGE),
    "everything": (None, [*LARGE, *NORMALISED, "algo.target_kl=0.01"]),
    "breakout": (None, ["env.name=breakout", *LARGE]),
    "snake": (None, ["env.name=snake", *LARGE]),
    "mingru": ("cartpole_positions", ["net.memory=mingru", "algo.bptt=8", *SMALL]),
    "lstm": ("cartpole_positions", ["net.memory=lstm", "algo.bptt=8", *SMALL]),
    "torch": ("pendulum", SMALL),
    "muon": ("breakout", ["algo.chunks=128", "algo.kernel_config=first"]),
}
EAGER = ("cartpole", "everything", "muon")
"""Cases that also run without graphs."""


def rates(asked: Asked) -> None:
    """For each kind of exchange: latencies, and rates compared with each GPU alone."""
    tiny, one = asked.tiny, dict[str, float]()
    for kind in asked.kinds:
        jobs: list[dict[str, Any]] = []
        if asked.wants("latency"):
            jobs += [{"numbers": numbers, "times": 3 if tiny else 50} for numbers in SIZES[: 2 if tiny else 5]]
        for case, (lanes, horizon, more) in SHAPES.items():
            first = kind == asked.kinds[0]
            if not asked.wants(case) or not (first or case in OTHER_KINDS):
                continue
            lanes, iterations = (
                256 if tiny else lanes,
                2 if tiny or asked.short else max(20, int(3e7 / (lanes * horizon))),
            )
            words = [
                f"algo.horizon={horizon}",
                "algo.anneal=false",
                "run.steps=1000G",
                "algo.minibatches=4",
                "algo.epochs=4",
                *more,
            ]
            words += (
                ["env.pixels=0"]
                if tiny and "pictures" in case
                else []
                if tiny
                else ["algo.precision=bf16", "algo.kernel_config=first"]
            )
            for alone in (True, False) if first else (False,):
                overrides = [f"env.lanes={lanes * (1 if alone else asked.ranks)}", *words]
                jobs.append(
                    {
                        "case": case,
                        "alone": alone,
                        "overrides": overrides,
                        "iterations": iterations,
                        "profile": kind == "kernel" and not more,
                    }
                )
        shown = 0

        def show(outputs: list[list[dict[str, Any]]], kind: str = kind) -> None:
            nonlocal shown
            for found, *others in list(zip(*outputs, strict=False))[1 + shown :]:
                shown += 1
                if "numbers" in found:
                    say(part="latency", kind=kind, ranks=asked.ranks, exchange=outputs[0][0]["exchange"], **found)
                    continue
                sps, case = found["steps"] / found["seconds"], found["case"]
                one.update({case: sps} if found["alone"] else {})
                efficiency = round(sps / (asked.ranks * one[case]), 3) if case in one and not found["alone"] else None
                if "exchange_us" in found:
                    every = [line["exchange_us"] for line in (found, *others)]
                    found |= {"exchange_us": every, "share": [round(us * 1e-6 / found["seconds"], 4) for us in every]}
                found |= {
                    "ranks": 1 if found["alone"] else asked.ranks,
                    "m_sps": round(sps / 1e6, 2),
                    "efficiency": efficiency,
                }
                say(part="rates", kind=kind, **outputs[0][0], **found)

        on_ranks(asked.ranks, "rates", kind, jobs, gpu=not tiny, limit_s=asked.limit_s, look=show)


def bits(asked: Asked) -> None:
    """The same global lanes on one rank and on several, after 200 iterations."""
    jobs = []
    for name, (recipe, words) in BITS.items():
        if asked.wants(name):
            less = ["env.lanes=512", "algo.chunks=8"] if asked.tiny and (not recipe or name == "muon") else []
            less += ["algo.kernel_config=auto", "algo.precision=fp32"] if asked.tiny and name == "muon" else []
            job = {
                "case": name,
                "overrides": ["run.steps=1G", *words, *less],
                "iterations": 2 if asked.tiny or asked.short else 196,
                "bits": True,
            }
            job |= {"recipe": recipe} if recipe else {}
            jobs += [
                job | {"alone": alone, "eager": eager}
                for alone, eager in ((True, False), (False, False), (False, True))
                if not eager or name in EAGER
            ]
    for kind in asked.kinds:
        shown, alone = 0, dict[str, Any]()

        def show(outputs: list[list[dict[str, Any]]], kind: str = kind) -> None:
            nonlocal shown, alone
            for found, *others in list(zip(*outputs, strict=False))[1 + shown :]:
                shown += 1
                if found["alone"]:
                    alone = found
                    continue
                different = [name for name in found["sha256"] if found["sha256"][name] != alone["sha256"][name]]
                apart = sorted(
                    name
                    for name in found["sha256"]
                    if any(found["sha256"][name] != other["sha256"][name] for other in others)
                )
                more = {key: found[key] for key in ("case", "eager", "linked", "chosen", "kernels")}
                more |= {
                    "promised": found["bits_by_ranks"],
                    "ranks_differ": apart,
                    "seconds": [alone["seconds"], found["seconds"]],
                }
                say(part="bits", kind=kind, ranks=asked.ranks, same=not different, different=different, **more)

        on_ranks(asked.ranks, "bits", kind, jobs, gpu=not asked.tiny, limit_s=asked.limit_s, look=show)


def spin(asked: Asked) -> None:
    """Seconds until a rank has ended whose kernel waits for a killed rank."""
    for kind in asked.kinds:
        lanes = 512 if asked.tiny else 8192 * asked.ranks
        job = {
            "overrides": [
                f"env.lanes={lanes}",
                "algo.horizon=16",
                "run.steps=1000G",
                "algo.anneal=false",
                "algo.minibatches=2",
            ]
        }
        began = time.time()
        found = on_ranks(asked.ranks, "spin", kind, [job], gpu=not asked.tiny, limit_s=asked.limit_s)
        times = {
            key: round(value - began, 2)
            for lines in found
            for line in lines
            for key, value in line.items()
            if key in ("killed", "ending")
        }
        say(part="spin", kind=kind, **times, ended=round(time.time() - began, 2))


PARTS = {"rates": rates, "bits": bits, "spin": spin, "faults": faults, "users": users, "hosts": hosts}


def main() -> None:
    """Run all or the selected parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--kinds", default=None, help=f"by default {','.join(KINDS)}; of bits and spin the first")
    parser.add_argument("--limit", type=float, default=120.0, help="time limit of a part, in seconds")
    parser.add_argument("--cases", default="", help="select cases that contain one of these words; default: all")
    parser.add_argument("--counts", default="", help="ranks of runs by the command; default: 1, 2, ... up to --ranks")
    parser.add_argument("--short", action="store_true", help="train only a little")
    parser.add_argument("--tiny", action="store_true", help="on the CPU")
    given = parser.parse_args()
    kinds = (given.kinds or ("gloo" if given.tiny else ",".join(KINDS))).split(",")
    cases = [word for word in given.cases.split(",") if word]
    counts = [int(word) for word in given.counts.split(",") if word] or [
        1 << k for k in range(given.ranks.bit_length())
    ]
    for name in given.only.split(","):
        here = kinds if name == "rates" or given.kinds else kinds[:1]
        began = time.monotonic()
        try:
            PARTS[name](Asked(given.ranks, here, cases, given.limit, given.short, given.tiny, counts))
        except Exception:  # a failed part does not stop the others
            say(part=name, failed=traceback.format_exc().splitlines()[-LINES:])
        say(part=name, took_s=round(time.monotonic() - began, 1))


if __name__ == "__main__":
    main()
