"""Atomic loads and additions on int64 arrays, and yielding the processor, for compiled code on several threads."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array


def _address(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    """Build LLVM code for the address of element `index` of an int64 array (n): `values` are the array and the
    index.
    """
    array = make_array(signature.args[0])(context, builder, values[0])
    return cgutils.get_item_pointer(context, builder, signature.args[0], array, [values[1]])


def _load(typing: Any, array: Any, index: Any) -> Any:
    """Numba intrinsic `load(array, index)`: atomically load an element of an int64 array, with acquire ordering."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load_atomic(_address(context, builder, signature, values), "acquire", 8)

    return types.int64(array, types.intp), code


def _add(typing: Any, array: Any, index: Any, number: Any) -> Any:
    """Numba intrinsic `add(array, index, number)`: atomically add to an element of an int64 array; returns its previous
    value.
    """

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.atomic_rmw("add", _address(context, builder, signature, values), values[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), code


def _yield_thread(typing: Any) -> Any:
    """Numba intrinsic `yield_thread()`: let another thread run on this processor."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), ())
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), ())
        return context.get_dummy_value()

    return types.void(), code


load: Any = intrinsic(_load)
add: Any = intrinsic(_add)
yield_thread: Any = intrinsic(_yield_thread)
