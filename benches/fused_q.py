"""DQN and PQN in fused kernels and in torch on this GPU: updates and steps per second, and differences of results.

    python benches/fused_q.py [--only numbers,dqn,pqn] [--part I/N] [--once]

Prints JSON lines. DQN's rates count one tick of all lanes per update: act, step, store, sample, update; `update_us` is
the update alone. With --once nothing is timed: every kernel is compiled into Triton's cache, by N processes in parallel
if each is given a part.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from fused_q import built, difference

from operant.compute.graphs import Graphed
from operant.envs import find

WHERE = "cuda" if torch.cuda.is_available() else "cpu"
CARTPOLE, SNAKE = find("cartpole"), find("snake")
RELU = {"activation": "relu"}
BOARD = {"kind": "cnn", "cnn": "minatar", "hidden": [128], "layer_norm": True}
RESIDENT = "resident block_m={} warps={} chunks={} act_block_m={} act_warps=4 max_registers=0"
PER_LAYER = "per-layer block_m={} block_n={} block_k={} warps={} stages={} chunks={} microbatch={}"


if WHERE == "cpu":  # kernels are interpreted
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from interpreter import teach

    teach()


def say(**found) -> None:
    print(json.dumps(found), flush=True)


def median_us(graph, count: int, repeats: int = 3) -> float:
    """Microseconds per replay (median)."""
    if count == 0 or WHERE == "cpu":
        graph()
        if WHERE == "cuda":
            torch.cuda.synchronize()
        return float("nan")
    graph()
    graph()
    found = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(count):
            graph()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) * 1e3 / count)
    return sorted(found)[repeats // 2]


# NUMBERS


def one_update(algo, env, net, config, lanes, kernels):
    """Adam's first moment and the statistics after an iteration with one update."""
    made = built(algo, env, net, config, lanes=lanes, kernels=kernels, where=WHERE, eager=True)
    for _ in range(2 if algo == "dqn" else 1):
        for phase in made.phases:
            phase.run()
    return made.optimizer.tensors()["exp_avg"].clone(), made.stats.clone(), made.rollout.action.clone()


def numbers(algo, env, net, config, lanes) -> None:
    (ours, stats, actions), (theirs, others, chosen) = (
        one_update(algo, env, net, config, lanes, kernels) for kernels in ("fused", "torch")
    )
    again = one_update(algo, env, net, config, lanes, "fused")[0]
    say(
        numbers=algo,
        env=env.name,
        net=net,
        precision=config["precision"],
        gradient=float((ours - theirs).norm() / theirs.norm()),
        stats=difference(stats, others),
        other_actions=int((actions != chosen).sum()),
        of=actions.numel(),
        same_bits=bool(torch.equal(ours, again)),
    )


# SPEED


def dqn(env, net, config, lanes, kernels="fused", count=10) -> None:
    made = built(
        "dqn",
        env,
        net,
        {"learning_starts": 1, "replay_capacity": 500 * lanes, **config},
        lanes=lanes,
        kernels=kernels,
        where=WHERE,
    )
    for _ in range(3):
        made.train()
    whole, ticks = median_us(made.train, count), made.config.horizon
    found = {"dqn": env.name, "kernels": made.kernels, "lanes": lanes, "net": net, "config": config}
    rates = {
        "tick_us": whole / ticks,
        "updates_per_s": 1e6 * made.config.updates / whole,
        "MSPS": lanes * ticks / whole,
    }
    if made.kernels == "fused":
        learner, due = made.engine, [(t, k) for t in range(ticks) for k in made.config.due(t)]
        store, learner._stores = learner._stores, 0

        def updates() -> None:
            for t, k in due:
                learner._act_and_learn(t, k, learn=True, act=False)
                learner._reduce_and_step(0, t, k, 0)

        rates["update_us"] = median_us(Graphed(updates, made.device), count) / len(due)
        learner._stores = store
        t, k = due[0]
        kinds = {
            "learn": lambda: learner._act_and_learn(t, k, learn=True, act=False),
            "act": lambda: learner._act_and_learn(t, k, learn=False, act=True),
            "both": lambda: learner._act_and_learn(t, k, learn=True, act=True),
            "step": lambda: learner._reduce_and_step(0, t, k, store),
            "store": lambda: learner._store(t, 0),
            "world": lambda: made.world.step(made.cycle.collector._slots[t], t),
        }

        def repeated(work):
            return lambda: [work() for _ in range(50)]

        rates["parts_us"] = {
            name: round(median_us(Graphed(repeated(work), made.device), count and 5) / 50, 2)
            for name, work in kinds.items()
        }
    say(**found, **rates, finite=bool(torch.isfinite(made.stats).all()))


def pqn(env, net, config, lanes, kernels="fused", count=10) -> None:
    made = built(
        "pqn",
        env,
        net,
        {"epochs": 2, "minibatches": 4, "horizon": 64, **config},
        lanes=lanes,
        kernels=kernels,
        where=WHERE,
    )
    times = {phase.name: median_us(phase.run, count) for phase in made.phases}
    whole = sum(times.values())
    shape = str(made.backend.learner.config) if made.kernels == "fused" else ""
    say(
        pqn=env.name,
        kernels=made.kernels,
        lanes=lanes,
        net=net,
        precision=config.get("precision", "tf32"),
        shape=shape,
        us=times,
        MSPS=lanes * made.config.horizon / whole,
        finite=bool(torch.isfinite(made.stats).all()),
    )


def jobs(tiny: bool):
    """(name, function, arguments) of all jobs."""
    two, normed = {"hidden": [120, 84], **RELU}, {"hidden": [64, 64], "layer_norm": True, **RELU}
    small = {"batch_size": 128, "horizon": 128}
    once = {"horizon": 8, "batch_size": 128, "updates_per_step": 0.125, "learning_starts": 1, "replay_capacity": 20_000}
    wide = {**normed, "hidden": [256, 256]}
    if tiny:
        yield "numbers", numbers, ("dqn", CARTPOLE, {"hidden": [16], **RELU}, {**once, "precision": "fp32"}, 32)
        yield (
            "numbers",
            numbers,
            (
                "pqn",
                CARTPOLE,
                {"hidden": [16], **RELU},
                {"horizon": 4, "epochs": 1, "minibatches": 1, "precision": "fp32"},
                32,
            ),
        )
        return
    for precision in ("fp32", "tf32", "bf16"):
        yield (
            "numbers",
            numbers,
            ("dqn", CARTPOLE, two, {**once, "precision": precision, "double": True, "n_step": 3}, 256),
        )
        yield (
            "numbers",
            numbers,
            ("dqn", SNAKE, {"hidden": [128, 128], **RELU}, {**once, "precision": precision, "duelling": True}, 256),
        )
        yield (
            "numbers",
            numbers,
            ("pqn", CARTPOLE, normed, {"horizon": 32, "epochs": 1, "minibatches": 1, "precision": precision}, 1024),
        )
        yield (
            "numbers",
            numbers,
            ("pqn", CARTPOLE, wide, {"horizon": 32, "epochs": 1, "minibatches": 1, "precision": precision}, 1024),
        )
        yield (
            "numbers",
            numbers,
            (
                "pqn",
                find("minatar_asterix"),
                BOARD,
                {"horizon": 4, "epochs": 1, "minibatches": 1, "precision": precision},
                128,
            ),
        )
    for precision in ("bf16", "tf32", "fp32"):
        yield "dqn", dqn, (CARTPOLE, two, {**small, "precision": precision}, 256)
    yield (
        "dqn",
        dqn,
        (CARTPOLE, two, {**small, "precision": "bf16", "double": True, "duelling": True, "n_step": 3}, 256),
    )
    yield "dqn", dqn, (CARTPOLE, {**two, "layer_norm": True}, {**small, "precision": "bf16"}, 256)
    yield "dqn", dqn, (CARTPOLE, {"hidden": [64, 64], **RELU}, {**small, "precision": "bf16"}, 256)
    for precision in ("bf16", "tf32"):
        yield "dqn", dqn, (CARTPOLE, two, {"batch_size": 4096, "horizon": 64, "precision": precision}, 4096)
        yield (
            "dqn",
            dqn,
            (SNAKE, {"hidden": [128, 128], **RELU}, {**small, "updates_per_step": 0.25, "precision": precision}, 256),
        )
    yield "dqn", dqn, (CARTPOLE, two, {**small, "precision": "tf32"}, 256, "torch", 3)
    for precision in ("bf16", "tf32"):
        for shape in (
            (64, 4, 128, 64),
            (64, 8, 128, 64),
            (64, 4, 256, 64),
            (64, 8, 256, 64),
            (32, 4, 256, 64),
            (128, 8, 128, 64),
        ):
            yield (
                "pqn",
                pqn,
                (CARTPOLE, normed, {"precision": precision, "kernel_config": RESIDENT.format(*shape)}, 8192),
            )
    yield (
        "pqn",
        pqn,
        (
            CARTPOLE,
            {**normed, "layer_norm": False},
            {"precision": "bf16", "kernel_config": RESIDENT.format(64, 4, 256, 64)},
            8192,
        ),
    )
    yield (
        "pqn",
        pqn,
        (
            CARTPOLE,
            normed,
            {"precision": "bf16", "kernel_config": PER_LAYER.format(128, 64, 64, 4, 3, 64, 131072)},
            8192,
        ),
    )
    for shape in (
        (128, 128, 64, 8, 3, 64, 131072),
        (128, 128, 64, 8, 3, 64, 65536),
        (64, 128, 64, 4, 3, 64, 131072),
        (128, 64, 64, 4, 3, 64, 131072),
    ):
        yield "pqn", pqn, (CARTPOLE, wide, {"precision": "bf16", "kernel_config": PER_LAYER.format(*shape)}, 8192)
    yield (
        "pqn",
        pqn,
        (
            CARTPOLE,
            wide,
            {"precision": "tf32", "kernel_config": PER_LAYER.format(128, 128, 32, 8, 3, 64, 131072)},
            8192,
        ),
    )
    yield "pqn", pqn, (CARTPOLE, wide, {"precision": "tf32"}, 8192, "torch", 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="numbers,dqn,pqn")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--once", action="store_true")
    asked = parser.parse_args()
    part, parts = map(int, asked.part.split("/"))
    say(machine=torch.cuda.get_device_name() if WHERE == "cuda" else "CPU", torch=torch.__version__)
    for what, function, arguments in [job for job in jobs(WHERE == "cpu") if job[0] in asked.only.split(",")][
        part::parts
    ]:
        begun = time.time()
        try:
            function(*arguments, **({"count": 0} if asked.once and what != "numbers" and len(arguments) < 6 else {}))
        except Exception:
            say(failed=what, arguments=repr(arguments)[:200], error=traceback.format_exc()[-700:])
        if time.time() - begun > 8:
            say(slow=what, seconds=round(time.time() - begun, 1))


if __name__ == "__main__":
    main()
