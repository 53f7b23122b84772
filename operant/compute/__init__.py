"""Numba and CUDA plumbing: devices, random numbers, kernels, graphs and the compiled-kernel cache."""
