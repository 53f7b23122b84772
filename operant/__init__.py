"""Operant: reinforcement learning on one GPU.

`operant.train`, `operant.list_runs`, `operant.load` and `operant.make_vec` are the library (operant/library.py). It is
imported on first use, so that light programs can import `operant.runs.metrics` without torch.
"""

__version__ = "0.1.0"

_LIBRARY = ("Policy", "Run", "TrainingRun", "list_runs", "load", "make_vec", "train")


def __getattr__(name: str) -> object:
    if name in _LIBRARY:
        return getattr(__import__("operant.library", fromlist=[name]), name)
    raise AttributeError(f"module 'operant' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LIBRARY])
