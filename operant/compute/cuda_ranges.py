"""Lowering of `range` for CUDA without selects.

Numba-cuda advances a range's counter only where another index follows. NVVM turns that into selects of 64-bit numbers,
which remain in every unrolled iteration: a dot product over a lane's stack takes 14 instructions for each term instead
of 3. Here the counter advances always, since nothing reads it after the last index.
"""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir


@functools.cache
def lower_ranges_plainly() -> None:
    """Replace numba-cuda's lowering of a range's next index, for kernels that are compiled afterwards. Does nothing
    where numba-cuda has no such function.
    """
    from numba import types
    from numba.cuda.cpython import rangeobj

    functions = rangeobj.registry.functions
    for place, (_, name, kinds) in enumerate(functions):
        if name == "iternext" and isinstance(kinds[0], types.RangeIteratorType):
            functions[place] = (_next_index(kinds[0]), name, kinds)


def _next_index(kind: Any) -> Any:
    """Make the lowering of `iternext` for one type of range: (index, whether there is one)."""
    from numba.cuda import cgutils  # type: ignore[attr-defined]
    from numba.cuda.core.imputils import RefType, iternext_impl

    proxy = cgutils.create_struct_proxy(kind)

    @iternext_impl(RefType.BORROWED)
    def lowered(context: Any, builder: Any, signature: Any, arguments: Any, result: Any) -> None:
        state = proxy(context, builder, arguments[0])
        left, index = builder.load(state.count), builder.load(state.iter)
        result.set_valid(builder.icmp_signed(">", left, ir.Constant(left.type, 0)))
        result.yield_(index)
        builder.store(builder.sub(left, ir.Constant(left.type, 1), flags=["nsw"]), state.count)
        builder.store(builder.add(index, state.step), state.iter)

    return lowered
