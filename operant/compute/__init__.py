"""Numba and CUDA plumbing: devices, random numbers, kernels, graphs and the cache of compiled kernels. Knows no
environment and no learner.
"""
