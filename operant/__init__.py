"""Operant: reinforcement learning on one GPU. Imports nothing, so that light programs can import `operant.runs.metrics` without torch."""

__version__ = "0.1.0"
