"""Triton kernels for dense networks. Knows no algorithm."""
