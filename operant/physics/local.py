"""Intrinsics that are the same on the CPU and on CUDA: `local_array`, a small array on a lane's stack, `part`, the rest
of one from an index on, and `coincidence`, a length that depends on the precision.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing.npydecl import parse_dtype
from numba.extending import intrinsic


def _local_array(typing: Any, size: Any, dtype: Any) -> Any:
    """`local_array(size, dtype)`: uninitialised array of a constant size, valid until the function that made it
    returns. (An inlined function is part of its caller.) Only a literal, global or closed-over size is constant.
    """
    if not isinstance(size, types.IntegerLiteral):
        return None
    kind: Any = types.CPointer(parse_dtype(dtype))
    count = size.literal_value

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        item = context.get_data_type(kind.dtype)
        # An allocation in the entry block is made once, whatever loop the call stands in.
        with builder.goto_entry_block():
            memory = builder.alloca(ir.ArrayType(item, max(count, 1)))
        memory.align = 16
        return builder.bitcast(memory, item.as_pointer())

    return kind(types.literal(count), dtype), code


local_array: Any = intrinsic(_local_array)


def _part(typing: Any, array: Any, start: Any) -> Any:
    """`part(array, start)`: the array of a `local_array` from number `start` on."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.gep(values[0], [context.cast(builder, values[1], signature.args[1], types.int64)])

    return array(array, start), code


part: Any = intrinsic(_part)


def _coincidence(typing: Any, x: Any) -> Any:
    """`coincidence(x)`: distance below which two points coincide, m, in the precision of x. In float64 it is MuJoCo's
    mjMINVAL, in float32 the rounding of positions up to 100 m.
    """
    least = 1e-5 if x == types.float32 else 1e-15

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return context.get_constant(x, least)

    return x(x), code


coincidence: Any = intrinsic(_coincidence)
