"""PPO with a memory on Breakout, everything included: steps a second through torch's kernels and through fused ones. Prints JSON lines.

python benches/recurrent.py [--tiny] [--only mingru,lstm,gru] [--kernels fused,torch] [--precisions bf16,tf32] [--lanes 4096,8192] [--profile]

`--profile` adds the kernels that take the most time of an iteration. `--tiny` runs on a CPU, through Triton's interpreter (TRITON_INTERPRET=1
PYTHONPATH=tests), on a few lanes, to see that nothing breaks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import traceback

import torch
from fused_sac import replay_microseconds

from operant import envs
from operant.algos.ppo import PPO
from operant.algos.ppo.config import PPOConfig
from operant.nn import NetConfig
from operant.worlds import DeviceWorld

CASES = {
    "mingru": (NetConfig(hidden=(64,), activation="relu", shared=True, memory="mingru", memory_layers=2), 1, 4),
    "lstm": (NetConfig(hidden=(128,), activation="relu", shared=True, memory="lstm"), 1, 4),
    "gru": (NetConfig(hidden=(128,), activation="relu", shared=True, memory="gru"), 4, 4),
}
"""The network, epochs and minibatches."""


def say(**row: object) -> None:
    """One JSON line."""
    print(json.dumps(row), flush=True)


def begun(case: str, kernels: str, precision: str, lanes: int, horizon: int, where: str) -> PPO:
    """A trainer that has done two iterations: it is compiled and captured."""
    net, epochs, minibatches = CASES[case]
    if where == "cpu":
        net = net.model_copy(update={"hidden": (16,)})
    config = PPOConfig(
        horizon=horizon, epochs=epochs, minibatches=minibatches, precision=precision, kernels=kernels, anneal=False, learning_rate=1e-3,
        gamma=0.975, gae_lambda=0.9, normalize_observations=True, normalize_rewards=True,
    )  # fmt: skip
    world = DeviceWorld(envs.find("breakout"), lanes, seed=1, device=torch.device(where))
    ppo = PPO(world, config, net, seed=1, steps=10**9, eager=where == "cpu")
    ppo.start()
    for _ in range(1 if where == "cpu" else 3):
        ppo.collect()
        ppo.update()
    return ppo


def rates(ppo: PPO, lanes: int, horizon: int) -> dict[str, object]:
    """How fast it is: microseconds of an iteration's halves, steps a second, and those at replay ratio 1.42, from the time of a minibatch."""

    def both() -> None:
        ppo.collect()
        ppo.update()

    whole, collect, update = (replay_microseconds(work, 5) for work in (both, ppo.collect, ppo.update))
    passes = ppo.config.epochs
    replayed = collect + update * 1.42 / passes
    samples = lanes * horizon
    return {
        "backend": ppo.backend.name, "M_SPS": round(samples / whole, 1), "collect_us": round(collect), "update_us": round(update),
        "M_SPS_at_1.42": round(samples / replayed, 1), "not_finite": float(ppo.stats[8]),
    }  # fmt: skip


def profile(ppo: PPO) -> list[list[object]]:
    """The 25 kernels that take the most time of an iteration: name, microseconds, launches."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    torch.cuda.synchronize()
    with profiler(activities=[ProfilerActivity.CUDA]) as found:
        ppo.collect()
        ppo.update()
        torch.cuda.synchronize()
    rows = sorted(found.key_averages(), key=lambda row: -row.device_time_total)[:25]
    return [[row.key[:90], round(row.device_time_total), row.count] for row in rows]


def main() -> None:
    """A line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--only", default="mingru,lstm,gru")
    parser.add_argument("--kernels", default="fused,torch")
    parser.add_argument("--precisions", default="bf16,tf32")
    parser.add_argument("--lanes", default="8192")
    words = parser.parse_args()
    if words.tiny:
        from interpreter import teach

        teach()
        words.lanes = "8"
    sizes = [int(lanes) for lanes in words.lanes.split(",")]
    asked = itertools.product(words.only.split(","), words.kernels.split(","), words.precisions.split(","), sizes)
    for case, kernels, precision, lanes in asked:
        if kernels == "torch" and precision == "bf16":  # which torch's path does not have
            continue
        row = {"case": case, "kernels": kernels, "precision": precision, "lanes": lanes}
        try:
            ppo = begun(case, kernels, precision, lanes, 8 if words.tiny else 64, "cpu" if words.tiny else "cuda")
            say(**row, **({"stats": ppo.stats.tolist()} if words.tiny else rates(ppo, lanes, 64)))
            if words.profile and not words.tiny:
                say(**row, profile=profile(ppo))
        except Exception as error:
            traceback.print_exc(limit=-6)
            say(**row, failed=f"{type(error).__name__}: {error}"[:300])


if __name__ == "__main__":
    main()
