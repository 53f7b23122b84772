"""Muon's bf16 matrix products in torch alone, captured in a CUDA graph and replayed; a JSON line reports whether they
survive.

    for k in 1 2 3 4 5; do python benches/shared_products.py [--seconds 15] [--shape 12,512,512] & done; wait

Of several such processes in parallel on a shared H200, a third died with "unspecified launch failure" (benches/LOG.md,
2026-11-23).
"""

from __future__ import annotations

import argparse
import json
import time

import torch


def main() -> None:
    """Replay until the time is over or the GPU fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--shape", default="12,512,512")
    asked = parser.parse_args()
    matrices = torch.randn(*map(int, asked.shape.split(",")), device="cuda")
    update, large = torch.zeros_like(matrices), torch.randn(1 << 24, device="cuda")

    def work() -> None:
        for _ in range(9):
            large.mul_(1.0001).clamp_(-4, 4)
            x = (matrices / (torch.linalg.matrix_norm(matrices, keepdim=True) + 1e-7)).to(torch.bfloat16)
            for _ in range(5):
                square = torch.bmm(x, x.transpose(1, 2))
                x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
            update.copy_(x.float())
            matrices.add_(update, alpha=1e-3)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph, began, replays, error = torch.cuda.CUDAGraph(), time.monotonic(), 0, ""
    with torch.cuda.graph(graph):
        work()
    try:
        while time.monotonic() - began < asked.seconds:
            for _ in range(50):
                graph.replay()
            torch.cuda.synchronize()
            replays += 50
    except RuntimeError as failure:
        error = str(failure).splitlines()[0]
    print(
        json.dumps(
            {"shape": asked.shape, "replays": replays, "seconds": round(time.monotonic() - began, 1), "error": error}
        )
    )


if __name__ == "__main__":
    main()
