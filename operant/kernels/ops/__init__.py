"""Triton operations shared by every engine: one function per operation, with a table of shapes.

Most are device functions (`@triton.jit` functions that kernels inline); `reduce` and `adam` also hold kernels.
Conventions: `*_ptr` is a pointer, `BLOCK_*` and other capitals are compile-time constants, `mask` is true in bounds.
Knows no network, no algorithm and no rollout.
"""
