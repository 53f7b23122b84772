"""The trainer: the worker process, its loop, and what it measures, evaluates and saves. Knows no screen."""
