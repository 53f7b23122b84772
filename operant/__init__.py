"""Operant: reinforcement learning on one GPU. Imports nothing, so that light programs can import `operant.metricsfile` without torch."""

__version__ = "0.1.0"
