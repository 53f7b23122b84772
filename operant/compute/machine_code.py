"""Machine code that depends on nothing else in its process: one sealed module per loop, called at its address.

Numba compiles each helper alone and links a copy into every caller, where it is optimised again and may round
differently. All copies have one name, and the linker keeps the first that the process has: after a compilation the
helper alone, after a load from the cache a caller's copy. A sealed module keeps its copies to itself. Other loops call
it at its address instead of optimising another copy. Knows no kernel.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding
from numba import types
from numba.core import cgutils
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.extending import intrinsic

_UNRESOLVED = ".numba.unresolved$"
"""Prefix of the pointers by which mutually recursive functions find each other in the process."""


class _SealedLibrary(JITCodeLibrary):
    """Compiled module in which all functions that were linked into it are local symbols. They become local after the
    optimisation, so they are optimised as in any other module.
    """

    def _optimize_final_module(self) -> None:
        super()._optimize_final_module()
        module = self._final_module
        if any(variable.name.startswith(_UNRESOLVED) for variable in module.global_variables):
            return
        for function in module.functions:
            if function.linkage == binding.Linkage.linkonce_odr and not function.is_declaration:
                function.linkage = "internal"


class SealedCompiler(Compiler):
    """Numba's compiler with a sealed module: the machine code of a function is the same whatever else its process has
    compiled or loaded, in any order.
    """

    def define_pipelines(self) -> Any:
        """Give the compilation a sealed module, and return numba's passes."""
        state = self.state
        state.library = _SealedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super().define_pipelines()


def address(dispatcher: Any, arguments: tuple[Any, ...]) -> int:
    """Compile or load a dispatcher's function for these argument types, and return the address of its machine code,
    valid as long as the dispatcher.
    """
    dispatcher.compile(arguments)
    compiled = dispatcher.overloads[arguments]
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


def _call(typing: Any, code: Any, first: Any, last: Any, lanes: Any, slot: Any, offset: Any) -> Any:
    """Numba intrinsic `call(code, first, last, lanes, slot, offset)`: call the function `(first, last, lanes, slot,
    offset)` at the address `code`, which must have been compiled for three int64 and the types of `lanes` and `slot`.
    """
    if not all(isinstance(number, types.Integer) for number in (code, first, last, offset)):
        return None
    arguments = (types.int64, types.int64, lanes, slot, types.int64)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        convention = context.call_conv
        kind = convention.get_function_type(types.none, arguments)
        function = builder.inttoptr(values[0], kind.as_pointer())
        status, _ = convention.call_function(builder, function, types.none, arguments, values[1:])
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.none(types.int64, *arguments), generate


call: Any = intrinsic(_call)
