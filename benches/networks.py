"""Networks with byte observations on this machine's GPU: accuracy, determinism, and speed. Prints Markdown.

    python benches/networks.py [--samples 8192] [--repeats 5] [--precision fp32,tf32,bf16]

"error" is the relative error of the gradient against the same network in float64 on the CPU for 512 samples. Bits are
compared between repetitions and with a CUDA graph. Times are medians of graph replays: acting is a forward pass without
gradients, learning a forward and a backward pass. "peak" is the peak of additional memory during learning.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from operant import envs
from operant.compute.graphs import Graphed
from operant.envs import Box, Env
from operant.nn import mlp
from operant.nn.policy import Policy

CUDA = torch.device("cuda", 0)
CHECKED = 512  # samples


def showing(*shape: int, categories: int = 0) -> Env:
    """Environment with an observation of this shape and arbitrary rules."""
    size = 1
    for length in shape:
        size *= length
    seen = Box(
        size, low=0, high=categories - 1 if categories else 255, dtype="uint8", shape=shape, categories=categories
    )
    return replace(envs.find("snake"), observation=seen)


CASES: dict[str, tuple[Env, dict[str, Any], bool]] = {
    "mlp, numeric, Snake": (showing(10, 10, 3), {"hidden": (128, 64), "activation": "relu", "shared": True}, True),
    "mlp, 16 categories, 2048": (showing(4, 4, categories=16), {"hidden": (256, 256), "activation": "relu"}, False),
    "mlp, 4 categories, 19 x 19": (showing(19, 19, categories=4), {"hidden": (256, 256), "activation": "relu"}, False),
    "board, Snake": (showing(10, 10, 3), {"kind": "cnn", "cnn": "board"}, False),
    "board, 4 categories, 9 x 9": (showing(9, 9, categories=4), {"kind": "cnn", "cnn": "board"}, False),
    "impala, Snake": (showing(10, 10, 3), {"kind": "cnn", "cnn": "impala"}, False),
    "nature, 64 x 64 x 3": (showing(64, 64, 3), {"kind": "cnn", "cnn": "nature"}, False),
    "impala, 64 x 64 x 3": (showing(64, 64, 3), {"kind": "cnn", "cnn": "impala"}, False),
}


def observations(env: Env, samples: int, *, seed: int = 0) -> Tensor:
    """Random bytes (O, B): pictures sample by sample in memory, other observations feature by feature."""
    box, generator = env.observation, torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, box.categories or 256, (samples, box.size), dtype=torch.uint8, generator=generator).to(
        CUDA
    )
    return drawn.t() if len(box.shape) == 3 and box.shape[0] > 20 else drawn.t().contiguous()


def learn(policy: Policy, observation: Tensor) -> None:
    """Compute a gradient into the policy's vector."""
    head, value = policy.forward(observation)
    policy.flat.backward(head.square().mean() + (value - 1.0).square().mean())


def error_and_bits(policy: Policy, observation: Tensor) -> tuple[float, bool]:
    """Error of the gradient against float64, and whether it is identical when repeated and in a graph."""
    flat = policy.flat
    net = copy.deepcopy(policy.net).double().cpu()
    net.dtype = None
    normalizer = policy.normalizer and SimpleNamespace(
        CLIP=policy.normalizer.CLIP, mean=policy.normalizer.mean.cpu(), inv_std=policy.normalizer.inv_std.cpu()
    )
    head, value = net(observation.cpu(), normalizer)
    wanted = torch.autograd.grad(head.square().mean() + (value - 1.0).square().mean(), list(net.parameters()))
    found = []
    graphed = Graphed(lambda: learn(policy, observation), CUDA)
    for _ in range(4):  # plainly, captured, and replayed twice
        flat.gradient.zero_()
        graphed()
        found.append(flat.gradient.clone())
    views = dict(zip(flat.names, flat._gradient_views, strict=True))
    difference = torch.cat(
        [
            (views[name].cpu().double() - gradient).flatten()
            for (name, _), gradient in zip(net.named_parameters(), wanted, strict=True)
        ]
    )
    length = torch.cat([gradient.flatten() for gradient in wanted]).norm()
    return float(difference.norm() / length), all(torch.equal(found[0], other) for other in found[1:])


def seconds(work: Callable[[], None], repeats: int) -> float:
    """Median seconds per replay."""
    graphed, times = Graphed(work, CUDA), []
    for _ in range(3):
        graphed()
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(5):
            graphed()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 5e3)
    return statistics.median(times)


def row(name: str, precision: str, samples: int, repeats: int) -> str:
    """One line of the table."""
    env, net, normalize = CASES[name]
    policy = Policy(env, mlp.Config(**net), seed=1, device=CUDA, normalize=normalize, precision=precision)
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"  # as PPO does
    if policy.normalizer is not None:
        policy.normalizer.update(observations(env, 1000, seed=2))
    error, same = error_and_bits(policy, observations(env, CHECKED))
    batch = observations(env, samples)
    with torch.no_grad():
        acting = seconds(lambda: policy.forward(batch), repeats)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    learn(policy, batch)
    peak = torch.cuda.max_memory_allocated() - before
    learning = seconds(lambda: learn(policy, batch), repeats)
    rates = f"{samples / acting / 1e6:.2f} | {samples / learning / 1e6:.2f}"
    return f"| {name} | {precision} | {error:.1e} | {'yes' if same else 'NO'} | {rates} | {peak / 2**20:,.0f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--precision", default="fp32,tf32,bf16")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {arguments.samples:,} samples\n")
    print(
        "| network | precision | error | same bits | acting, M/s | learning, M/s | peak, MiB "
        "|\n|---|---|---|---|---|---|---|"
    )
    for name, (_, net, _) in CASES.items():
        for precision in arguments.precision.split(","):
            if precision != "bf16" or net.get("kind") == "cnn":  # an MLP computes in tf32 then
                print(row(name, precision, arguments.samples, arguments.repeats), flush=True)


if __name__ == "__main__":
    main()
