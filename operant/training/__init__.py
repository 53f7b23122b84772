"""Trainer: the worker process, its loop, meters, evaluation and checkpoints."""
