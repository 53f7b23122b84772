"""Numba and CUDA plumbing: devices, random numbers, kernels, graphs and the compiled-kernel cache. Knows no environment
and no learner.
"""
