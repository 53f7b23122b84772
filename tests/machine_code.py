"""Triton kernels compiled to machine code without a GPU."""

from __future__ import annotations

import os

import pytest
import torch

needs_compiler = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interprets")
LEAST_SHARED = {75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 90: 227 << 10, 100: 227 << 10}
"""Bytes of shared memory that a program may take on each architecture."""

KINDS = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    int: "i32",
    float: "fp32",
}


def compile_for(architecture: int, kernel, arguments, options) -> int:
    """Compile one launch's kernel to a cubin; returns its shared memory in bytes. Raises if it does not compile."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.tools.tensor_descriptor import TensorDescriptor

    constants = {name: value for name, value in options.items() if name in kernel.arg_names}
    signature = dict.fromkeys(kernel.arg_names, "constexpr")
    multiples = {}

    def described(value, place, specialize):
        """Triton's type of an argument; a tuple of types for a tuple."""
        if isinstance(value, tuple):
            kinds = [described(part, (*place, k), specialize) for k, part in enumerate(value)]
            return type(value)(*kinds) if hasattr(value, "_fields") else tuple(kinds)
        if isinstance(value, TensorDescriptor):
            return f"tensordesc<{KINDS[value.base.dtype][1:]}{value.block_shape}>".replace(" ", "")
        address = value.data_ptr() if isinstance(value, torch.Tensor) else value
        if address % 16 == 0 and specialize:
            multiples[place] = [["tt.divisibility", 16]]
        return KINDS[value.dtype if isinstance(value, torch.Tensor) else type(value)]

    for place, (name, value) in enumerate(zip(kernel.arg_names, arguments, strict=False)):
        signature[name] = described(value, (place,), kernel.params[place].do_not_specialize is False)
    assert len(arguments) + len(constants) == len(signature)
    source = ASTSource(kernel, signature, constants, multiples)
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", architecture, 32),
        options={k: v for k, v in options.items() if k not in constants},
    )
    assert len(compiled.asm["cubin"]) > 1000
    if architecture == 90:  # where ptxas has dropped products, it leaves an empty one to wait for
        assert "HGMMA.64x8x16.F16 RZ, gdesc[URZ]" not in compiled.asm["sass"], kernel.__name__
    return compiled.metadata.shared
