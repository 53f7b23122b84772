"""Stand-in for a trainer: synthetic metrics at a given rate, through the real lock and the real metrics file.

    python benches/standin.py RUN_DIR HZ RECORDS      0 Hz: unlimited; 0 records: until killed, else ends `finished`
    python benches/standin.py --wandb FOLDER          similar metrics into an offline W&B run, ten times per second

Needs only Operant's standard-library parts.
"""

from __future__ import annotations

import math
import random
import sys
import threading
import time
from pathlib import Path

NAMES = (
    "return",
    "length",
    "episodes",
    "iterations",
    "sps",
    "eval/return",
    "eval/best_return",
    "loss/policy",
    "loss/value",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "gradient_norm",
    "explained_variance",
    "learning_rate",
    "seconds/collect",
    "seconds/update",
    "seconds/evaluate",
    "seconds/checkpoint",
    "memory/allocated_bytes",
    "memory/reserved_bytes",
    *(f"tally/score_{k}" for k in range(9)),
)


def train(folder: Path, hz: float, records: int) -> None:
    """Publish `records` records of 30 metrics at `hz`, then end as `finished`; 0 records: until killed."""
    from operant import runs
    from operant.runs.metrics import Metric, Writer

    lock = runs.acquire(folder)
    total = 10_000_000_000 if not records else records * 16384
    document = runs.update_document(
        folder,
        **runs.identity(),
        phase="training",
        env="cartpole",
        algo="ppo",
        steps=total,
        target=475.0,
        device="cpu",
        device_name="CPU",
        seed=1,
        lanes=1024,
    )
    writer = Writer(
        folder / "metrics.mm",
        [Metric(name) for name in NAMES],
        run_uuid=bytes.fromhex(document["uuid"]),
        version="bench",
    )
    beating = threading.Event()

    def beat() -> None:
        while not beating.wait(0.25):
            writer.heartbeat()

    writer.heartbeat()
    threading.Thread(target=beat, daemon=True).start()
    writer.set_state("running")
    draw, began, n = random.Random(1), time.perf_counter(), 0
    while not records or n < records:
        n += 1
        climb = 500.0 * (1.0 - math.exp(-n / 3000.0))
        values = {
            "return": climb + draw.gauss(0, 15),
            "length": climb,
            "episodes": 40.0,
            "iterations": 1.0,
            "sps": 4.7e6 + draw.gauss(0, 5e4),
        }
        values |= {
            "eval/return": climb,
            "eval/best_return": climb,
            "seconds/collect": 0.003,
            "seconds/update": 0.006,
            "seconds/evaluate": 0.0,
        }
        values |= {
            "approx_kl": 0.01 + draw.gauss(0, 0.001),
            "entropy": 0.69 * math.exp(-n / 5000.0),
            "explained_variance": 0.8,
            "clip_fraction": 0.1,
        }
        writer.publish(n * 16384, [values.get(name, draw.gauss(1, 0.1)) for name in NAMES])
        writer.tick()
        if n % 500 == 0:
            writer.set_checkpoint(n * 16384)
        if hz:
            time.sleep(max(0.0, began + n / hz - time.perf_counter()))
    writer.set_state("finished")
    beating.set()
    lock.release()


def log_to_wandb(folder: Path) -> None:
    """Log 8 metrics ten times per second to an offline W&B run until killed."""
    import wandb

    run = wandb.init(project="bench", mode="offline", dir=str(folder))
    n = 0
    while True:
        n += 1
        run.log({name: 500.0 * (1.0 - math.exp(-n / 300.0)) + random.gauss(0, 15) for name in NAMES[:8]})
        time.sleep(0.1)


if __name__ == "__main__":
    if sys.argv[1] == "--wandb":
        log_to_wandb(Path(sys.argv[2]))
    else:
        train(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
