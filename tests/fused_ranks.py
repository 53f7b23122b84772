"""Run in a process of its own, with TRITON_INTERPRET=1: one of two ranks of the fused kernels on the CPU beside one
rank alone. See test_distributed.py.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from interpreter import teach
from toys import iterate

from operant.compute.exchange import SOLO
from operant.config import load
from operant.training import distributed
from operant.training.build import build


def trained(config, exchange):
    """Tensors of a checkpoint, and the tile config."""
    algo = build(config, "cpu", exchange=exchange)
    algo.start()
    iterate(algo, 2)
    whole = distributed.whole_state(algo, "train", exchange)
    return {name: tensor.numpy().tobytes() for name, tensor in [*whole.items(), ("stats", algo.stats)]}, algo.chosen


def main() -> None:
    """Names of what differs from one rank, and the tile configs."""
    rank, store, overrides = int(sys.argv[1]), dist.FileStore(sys.argv[2], 2), json.loads(sys.argv[3])
    teach()
    torch.set_num_threads(1)
    config = load.load(None, overrides)
    (one, chosen), (two, also) = (
        trained(config, SOLO),
        trained(config, distributed.join(store, rank, 2, torch.device("cpu"))),
    )
    print(json.dumps([[name for name in one if one[name] != two[name]], chosen == also]))


if __name__ == "__main__":
    main()
