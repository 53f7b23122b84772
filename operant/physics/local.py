"""Intrinsics that are the same on the CPU and on CUDA: `local_array`, a small array on a lane's stack; `part`, the
rest of one from an index on; `lane_memory`, one in memory of all lanes; `keep` and `kept`, a pointer to one in another;
`inner`, `add_scaled` and `copy`, sums and copies by vectors; and `coincidence`, a length that depends on the precision.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing.npydecl import parse_dtype
from numba.extending import intrinsic

_GLOBAL = 1
"""Address space of a GPU's global memory."""


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


def _lane_memory(typing: Any, memory: Any, lane: Any, size: Any, dtype: Any) -> Any:
    """`lane_memory(memory, lane, size, dtype)`: row `lane` of a contiguous array (N, size), as a `local_array`; or, if
    `memory` is 0, as which a missing buffer is bound, a `local_array(size, dtype)`.
    """
    if isinstance(memory, types.Integer):
        made = _local_array(typing, size, dtype)
        if made is None:
            return None
        signature, allocate = made

        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return allocate(context, builder, signature, values[2:])

        return signature.return_type(memory, lane, *signature.args), code
    if not isinstance(size, types.IntegerLiteral):
        return None
    count = size.literal_value

    def row(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = context.make_array(memory)(context, builder, values[0]).data
        index = context.cast(builder, values[1], signature.args[1], types.int64)
        return builder.gep(data, [builder.mul(index, ir.Constant(index.type, count))])

    return types.CPointer(memory.dtype)(memory, lane, types.literal(count), dtype), row


lane_memory: Any = intrinsic(_lane_memory)


def _place(context: Any, builder: Any, array: Any, at: Any, kind: Any) -> Any:
    """Pointer to number `at` of a `local_array`, as one to a 64-bit integer."""
    start = builder.gep(array, [context.cast(builder, at, kind, types.int64)])
    return builder.bitcast(start, ir.IntType(64).as_pointer())


def _keep(typing: Any, array: Any, at: Any, other: Any) -> Any:
    """`keep(array, at, other)`: write the pointer to `other` to the 8 bytes from number `at` on, an even one."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = _place(context, builder, values[0], values[1], signature.args[1])
        builder.store(builder.ptrtoint(values[2], ir.IntType(64)), place)
        return context.get_dummy_value()

    return types.none(array, at, other), code


keep: Any = intrinsic(_keep)


def _kept(typing: Any, array: Any, at: Any) -> Any:
    """`kept(array, at)`: the array that `keep(array, at, ...)` was given, of the same type. It begins at a multiple of
    16 bytes, on a GPU in global memory.
    """

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place, kind = _place(context, builder, values[0], values[1], signature.args[1]), values[0].type
        # The mask tells LLVM the alignment, so that it loads vectors; the address space, that no store to the stack
        # changes the array.
        address = builder.and_(builder.load(place), ir.Constant(ir.IntType(64), -16))
        if "nvptx" not in builder.module.triple:
            return builder.inttoptr(address, kind)
        return builder.addrspacecast(builder.inttoptr(address, kind.pointee.as_pointer(_GLOBAL)), kind)

    return array(array, at), code


kept: Any = intrinsic(_kept)


BLOCK = 8
"""Numbers that `inner`, `add_scaled` and `copy` load together."""


def _vector(builder: Any, array: Any, at: Any) -> Any:
    """Pointer to BLOCK numbers of an array from number `at` on, which stand at a multiple of 16 bytes."""
    start = builder.gep(array, [at])
    return builder.bitcast(start, ir.VectorType(start.type.pointee, BLOCK).as_pointer())


def _inner(typing: Any, x: Any, at: Any, y: Any, count: Any) -> Any:
    """`inner(x, at, y, count)`: inner product of `count` numbers of two arrays, x from index `at` on and y from 0 on.

    `count` is a constant multiple of BLOCK; both starts lie at multiples of 16 bytes, for loads by vectors.
    """
    if not isinstance(count, types.IntegerLiteral):
        return None

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        first = context.cast(builder, values[1], signature.args[1], types.int64)
        total = None
        for k in range(0, count.literal_value, BLOCK):
            here = builder.load(_vector(builder, values[0], builder.add(first, ir.Constant(first.type, k))), align=16)
            there = builder.load(_vector(builder, values[2], ir.Constant(first.type, k)), align=16)
            product = builder.fmul(here, there)
            total = product if total is None else builder.fadd(total, product)
        # Halves of the vector are added until one number is left
        size = BLOCK
        while size > 1:
            size //= 2
            halves = [
                builder.shuffle_vector(total, total, ir.Constant(ir.VectorType(ir.IntType(32), size), part))
                for part in (list(range(size)), list(range(size, 2 * size)))
            ]
            total = builder.fadd(*halves)
        return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))

    return x.dtype(x, at, y, types.literal(count.literal_value)), code


inner: Any = intrinsic(_inner)


def _add_scaled(typing: Any, x: Any, at: Any, factor: Any, y: Any, count: Any) -> Any:
    """`add_scaled(x, at, factor, y, count)`: y += factor x in place, for `count` numbers of two arrays, x from index
    `at` on and y from 0 on. Conditions as for `inner`.
    """
    if not isinstance(count, types.IntegerLiteral):
        return None

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        first = context.cast(builder, values[1], signature.args[1], types.int64)
        kind = ir.VectorType(values[2].type, BLOCK)
        one = builder.insert_element(ir.Constant(kind, ir.Undefined), values[2], ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), [0] * BLOCK)
        scale = builder.shuffle_vector(one, one, zeros)
        for k in range(0, count.literal_value, BLOCK):
            here = builder.load(_vector(builder, values[0], builder.add(first, ir.Constant(first.type, k))), align=16)
            place = _vector(builder, values[3], ir.Constant(first.type, k))
            total = builder.fadd(builder.load(place, align=16), builder.fmul(here, scale))
            builder.store(total, place, align=16)
        return context.get_dummy_value()

    return types.none(x, at, x.dtype, y, types.literal(count.literal_value)), code


add_scaled: Any = intrinsic(_add_scaled)


def _copy(typing: Any, x: Any, at: Any, y: Any, count: Any) -> Any:
    """`copy(x, at, y, count)`: copy `count` numbers of x, from index `at` on, to y, from 0 on. Conditions as for
    `inner`.
    """
    if not isinstance(count, types.IntegerLiteral):
        return None

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        first = context.cast(builder, values[1], signature.args[1], types.int64)
        for k in range(0, count.literal_value, BLOCK):
            here = builder.load(_vector(builder, values[0], builder.add(first, ir.Constant(first.type, k))), align=16)
            builder.store(here, _vector(builder, values[2], ir.Constant(first.type, k)), align=16)
        return context.get_dummy_value()

    return types.none(x, at, y, types.literal(count.literal_value)), code


copy: Any = intrinsic(_copy)


def _coincidence(typing: Any, x: Any) -> Any:
    """`coincidence(x)`: distance below which two points coincide, m, in the precision of x. In float64 it is MuJoCo's
    mjMINVAL, in float32 the rounding of positions up to 100 m.
    """
    least = 1e-5 if x == types.float32 else 1e-15

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return context.get_constant(x, least)

    return x(x), code


coincidence: Any = intrinsic(_coincidence)
