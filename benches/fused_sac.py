"""SAC and TD3 on a GPU: updates per second, alone and with their tick, fused and in torch, and the time of each launch.

    python benches/fused_sac.py [--algo sac] [--hidden 128,128] [--precision bf16,tf32] [--lanes 256] [--batch 256]
                                [--kernels fused,torch] [--parts] ...
    python benches/fused_sac.py --fast

`--fast` is FastSAC's shape with its update ratios: 8,192 x (512-256-128 | 768-384-192), layer normalization, silu,
bf16, 4,096 lanes. Prints JSON lines.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from operant import envs
from operant.algos.sac import SAC
from operant.algos.td3 import TD3
from operant.nn import NetConfig
from operant.worlds import DeviceWorld

WHERE = "cuda" if torch.cuda.is_available() else "cpu"
"""On a CPU (TRITON_INTERPRET=1) nothing is timed: a smoke test of the bench."""


if WHERE == "cpu":  # kernels are interpreted
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from interpreter import teach

    teach()


def say(**row: object) -> None:
    """Print one JSON line."""
    print(json.dumps(row), flush=True)


def microseconds(work: Callable[[], None], times: int = 32, replays: int = 20) -> float:
    """Microseconds of one call, captured `inner` times in a graph: the best of three."""
    if WHERE == "cpu":
        work()
        return float("nan")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            work()
    return replay_microseconds(graph.replay, replays) / times


def replay_microseconds(work: Callable[[], None], replays: int) -> float:
    """Microseconds of one replay of a captured graph: the best of three."""
    work()
    if WHERE == "cpu":
        return float("nan")
    best = float("inf")
    for _ in range(3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(replays):
            work()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) * 1e3 / replays)
    return best


def start(arguments: argparse.Namespace, kernels: str, precision: str, hidden: tuple[int, ...]) -> SAC | TD3:
    """Algorithm on a fresh world, with enough transitions in the replay to learn."""
    kind: type[SAC] | type[TD3] = {"sac": SAC, "td3": TD3}[arguments.algo]
    config = kind.Config(
        kernels=kernels,
        precision=precision,
        batch_size=arguments.batch,
        horizon=arguments.horizon,
        learning_starts=1000,
        updates_per_step=arguments.ratio,
        critics=arguments.critics,
        critic=arguments.critic,
        actor_delay=arguments.delay,
    )
    critic_hidden = widths(arguments.critic_hidden) if arguments.critic_hidden else None
    world = DeviceWorld(envs.find(arguments.env), arguments.lanes, seed=1, device=torch.device(WHERE))
    network = NetConfig(
        hidden=hidden, critic_hidden=critic_hidden, activation=arguments.activation, layer_norm=arguments.layer_norm
    )
    made = kind(world, config, network, seed=1, steps=1)
    made.start()
    return made


def case(arguments: argparse.Namespace, kernels: str, precision: str, hidden: tuple[int, ...]) -> None:
    """One line: a whole iteration, the update alone, and with fused kernels each launch."""
    made = start(arguments, kernels, precision, hidden)
    for _ in range(4):
        made.train()
    ticks, updates = made.config.horizon, made.config.updates
    large = arguments.batch > 2048
    whole = replay_microseconds(made.train, 10 if large else 30)
    row = {
        "kernels": made.kernels,
        "precision": precision,
        "hidden": hidden,
        "lanes": arguments.lanes,
        "batch": arguments.batch,
    }
    row |= {
        "algo": arguments.algo,
        "activation": arguments.activation,
        "layer_norm": arguments.layer_norm,
        "critics": arguments.critics,
    }
    row |= {
        "critic": arguments.critic,
        "critic_hidden": arguments.critic_hidden,
        "updates_a_tick": arguments.ratio,
        "actor_delay": arguments.delay,
    }
    row |= {
        "us_with_tick": round(whole / updates, 2),
        "updates_with_tick": round(updates * 1e6 / whole, -1),
        "sps": round(ticks * arguments.lanes * 1e6 / whole, -3),
    }
    engine = made.engine
    update_numbers = itertools.count()
    alone = microseconds(
        lambda: (made.engine or made).update(ticks, next(update_numbers)), *((16, 10) if large else ())
    )
    row |= {"us_alone": round(alone, 2), "updates_alone": round(1e6 / alone, -1)}
    if engine is not None and arguments.parts:
        parts = {
            name: getattr(engine, name)
            for name in ("evaluate", "step_critics", "action_gradient", "actor_gradient", "step_actor")
        }
        slot = made.world.bind(made.rollout, 0)
        parts |= {
            "sample": lambda: engine.sample(ticks, 0),
            "act": lambda: engine.act(0),
            "world.step": lambda: made.world.step(slot, 0),
        }
        row |= {"parts": {name: round(microseconds(f), 2) for name, f in parts.items()}}
    say(**row, stats=[float(f"{x:.4g}") for x in made.stats.tolist()])


def differences(arguments: argparse.Namespace, precision: str, hidden: tuple[int, ...]) -> None:
    """One line: differences of Adam's first moments between fused kernels and torch after one iteration, and between
    two fused runs.
    """
    moments = []
    for kernels, kind in (("fused", precision), ("torch", precision), ("fused", precision), ("torch", "fp32")):
        made = start(arguments, kernels, kind, hidden)
        while float(made.cycle.skip) > 0:  # sync: not timed
            made.train()
        moments.append(
            {name: tensor.double() for name, tensor in made.state("all").items() if name.endswith("exp_avg")}
        )
    fused, reference, again, exact = moments

    def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> dict[str, float]:
        return {name: float(f"{float((one[name] - other[name]).norm() / other[name].norm()):.3g}") for name in one}

    row = {
        "numbers": arguments.algo,
        "hidden": hidden,
        "precision": precision,
        "fused_torch": difference(fused, reference),
        "fused_fp32": difference(fused, exact),
    }
    say(
        **row,
        torch_fp32=difference(reference, exact),
        same_bits=all(torch.equal(fused[name], again[name]) for name in fused),
        layer_norm=arguments.layer_norm,
    )


def widths(words: str) -> tuple[int, ...]:
    """Widths of hidden layers from the command line."""
    return tuple(int(width) for width in words.split(","))


FAST = (
    # Kernels, critic, updates a tick, delay of the actor, ticks of an iteration, whether actor and critics differ.
    ("fused", "c51", 8.0, 4, 4, True),
    ("fused", "c51", 1.0, 4, 16, True),
    ("fused", "scalar", 8.0, 4, 4, True),
    ("torch", "scalar", 8.0, 4, 4, True),
    ("torch", "c51", 8.0, 4, 4, True),
    ("fused", "scalar", 1.0, 4, 16, True),
    ("torch", "scalar", 1.0, 4, 16, True),
    ("fused", "scalar", 8.0, 1, 4, True),
    ("fused", "scalar", 1.0, 1, 16, False),
    ("torch", "scalar", 1.0, 1, 16, False),
)
"""FastSAC's shape: eight updates with batches of 8,192 per tick of 4,096 lanes, the actor in every fourth; with one
update per tick; and the earlier settings.
"""


def fast(arguments: argparse.Namespace) -> None:
    """One line for each FastSAC case."""
    sizes = {"lanes": 4096, "batch": 8192, "env": "swingup", "activation": "silu", "layer_norm": True}
    actor, critics = ("512,256,128", "768,384,192") if WHERE == "cuda" else ("32,16", "32,32,16")
    if WHERE == "cpu":
        sizes |= {"lanes": 16, "batch": 16}
    for kernels, critic, ratio, delay, horizon, apart in FAST:
        if kernels not in arguments.kernels.split(","):
            continue
        given = {
            "critic": critic,
            "ratio": ratio,
            "delay": delay,
            "horizon": horizon,
            "critic_hidden": critics if apart else "",
        }
        attempt(argparse.Namespace(**vars(arguments) | sizes | given), kernels, "bf16", actor if apart else critics)


def attempt(arguments: argparse.Namespace, kernels: str, precision: str, hidden: str) -> None:
    """Run one case, or print a line with its error."""
    try:
        if arguments.numbers:
            differences(arguments, precision, widths(hidden))
        else:
            case(arguments, kernels, precision, widths(hidden))
    except Exception:
        say(failed=hidden, kernels=kernels, precision=precision, error=traceback.format_exc()[-700:])


def main() -> None:
    """One line for each combination."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", default="128,128", help="widths; several networks with /")
    parser.add_argument("--precision", default="bf16,tf32")
    parser.add_argument("--kernels", default="fused,torch")
    parser.add_argument("--lanes", type=int, default=256)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--horizon", type=int, default=128, help="ticks per iteration")
    parser.add_argument("--ratio", type=float, default=1.0, help="updates per tick")
    parser.add_argument("--algo", default="sac", choices=["sac", "td3"])
    parser.add_argument("--env", default="pendulum")
    parser.add_argument("--activation", default="relu")
    parser.add_argument("--layer-norm", action="store_true")
    parser.add_argument("--critics", type=int, default=2)
    parser.add_argument("--numbers", action="store_true", help="print differences from torch instead of rates")
    parser.add_argument("--critic", default="scalar", choices=["scalar", "c51"])
    parser.add_argument("--critic-hidden", default="", help="widths of the critics, if they differ from the actor's")
    parser.add_argument("--delay", type=int, default=1, help="critic updates per actor update")
    parser.add_argument("--fast", action="store_true", help="FastSAC's shape with several update ratios")
    parser.add_argument("--parts", action="store_true", help="time each launch")
    arguments = parser.parse_args()
    say(device=torch.cuda.get_device_name() if WHERE == "cuda" else "CPU")
    if arguments.fast:
        fast(arguments)
        return
    for hidden in arguments.hidden.split("/"):
        for kernels in arguments.kernels.split(","):
            for precision in arguments.precision.split(",") if kernels == "fused" else ["tf32"]:
                attempt(arguments, kernels, precision, hidden)


if __name__ == "__main__":
    main()
