"""`table`: constants of a model as a function of an index, for device code on the CPU and on CUDA.

A global NumPy array would be copied into CUDA's constant memory (64 KiB) at each use, and constant memory is slow where
lanes look up different entries. A table is one array in global memory, however often it is used.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.numpy_support import from_dtype

GLOBAL_MEMORY = 1  # address space of CUDA


def table(values: np.ndarray) -> Any:
    """Device function `get(index)` of an array, flattened: its float32 or float64 entries, or int64 of integers."""
    data = np.ascontiguousarray(values).ravel()
    digest = hashlib.sha256(f"{data.dtype.str} {data.shape} ".encode() + data.tobytes())
    stored = from_dtype(data.dtype)
    found, number = (types.int64, int) if data.dtype.kind == "i" else (stored, float)

    def get(typing: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            item = context.get_data_type(stored)
            entries = ir.Constant(ir.ArrayType(item, len(data)), [ir.Constant(item, number(x)) for x in data])
            name, module = f"operant_table_{digest.hexdigest()[:32]}", builder.module
            on_gpu = "nvptx" in module.triple
            if name in module.globals:
                memory = module.globals[name]
            else:
                memory = ir.GlobalVariable(module, entries.type, name, GLOBAL_MEMORY if on_gpu else 0)
                memory.initializer, memory.global_constant = entries, True
                memory.linkage, memory.align = ("linkonce_odr" if on_gpu else "internal"), 16
            start = ir.Constant(ir.IntType(64), 0)
            at = context.cast(builder, arguments[0], signature.args[0], types.int64)
            entry = builder.load(builder.gep(memory, [start, at], inbounds=True))
            return context.cast(builder, entry, stored, found)

        return found(index), code

    made: Any = intrinsic(get)
    made.fingerprint = digest.digest()
    return made
