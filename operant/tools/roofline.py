"""Peak performance of a device, measured by one matrix product and one copy. `operant.nn.flops` counts the work of an
iteration.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch


class Peak(NamedTuple):
    """Peak rates measured on a device: FLOP/s of a large matrix product, bytes/s of a large copy (read and written),
    and the product's size.
    """

    flops: float
    bytes: float
    product: str  # description of the product


def peak(device: torch.device, precision: str) -> Peak:
    """Measure the peak rates of a device at a `precision` ("fp32", "tf32" or "bf16"), within one or two seconds.
    torch's settings are restored.
    """
    cuda = device.type == "cuda"
    size = (8192 if precision != "fp32" else 4096) if cuda else 1024
    kind = torch.bfloat16 if cuda and precision == "bf16" else torch.float32
    left, right, product = (torch.ones(size, size, dtype=kind, device=device) for _ in range(3))
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        product_s = best_s(functools.partial(torch.mm, left, right, out=product), device)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    count = 1 << 28 if cuda else 1 << 25
    source, target = torch.ones(count, device=device), torch.empty(count, device=device)
    copy_s = best_s(functools.partial(target.copy_, source), device)
    return Peak(
        2.0 * size**3 / product_s,
        2.0 * 4.0 * count / copy_s,
        f"{precision if cuda else 'fp32'} {size} x {size} x {size}",
    )


def best_s(work: Callable[[], object], device: torch.device, repeats: int = 7) -> float:
    """Call `work` `repeats` times after a warm-up, and return the duration of the fastest call in seconds."""
    best = math.inf
    for _ in range(repeats + 2):  # two warm-up calls
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start_s = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start_s)
    return best
