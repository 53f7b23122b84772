"""Stepping of outside environments (Gymnasium, ALE, EnvPool, a user's class) in worker processes. numpy and Gymnasium
only, no torch.

A worker process imports little more than this package, so that it starts fast and stays small.
"""
