"""Machine code that depends on nothing else in its process: one sealed module per loop, called at its address; and
helpers, which get machine code in such modules alone.

Numba compiles each helper alone and links a copy into every caller, where it is optimised again and may round
differently. All copies have one name, and the linker keeps the first that the process has: after a compilation the
helper alone, after a load from the cache a caller's copy. A sealed module keeps its copies to itself. Other loops call
it at its address instead of optimising another copy.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding
from numba import _dynfunc, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.typed_passes import NativeLowering
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


class _HelperLibrary(JITCodeLibrary):
    """LLVM module of a `device_call` function. Only its callers optimise it and make machine code of it: numba would
    optimise a function that is called through five others six times.
    """

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


@register_pass(mutates_CFG=False, analysis_only=True)
class _RegisterHelper(LoweringPass):
    """Compiler pass that makes a function without machine code known to numba, so that other functions can call it."""

    _name = "operant_register_helper"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        """Store in numba's compilation state what callers need of a function: its LLVM module, and a key that stands
        for its address, 0.
        """
        lowered, library = state.cr, state.library
        fndesc, name = lowered.fndesc, lowered.fndesc.qualname.split(".")[-1]
        key = _dynfunc.make_function(fndesc.lookup_module(), name, name, 0, lowered.env, (library,))
        state.targetctx.insert_user_function(key, fndesc, [library])
        state.cr = lowered._replace(cfunc=key)
        return True


class HelperCompiler(Compiler):
    """Numba's compiler for `device_call` functions, which compiled functions alone call. It makes no machine code."""

    def define_pipelines(self) -> Any:
        """Give the compilation such a module, and return numba's passes with one more."""
        state = self.state
        state.library = _HelperLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        passes = super().define_pipelines()
        for manager in passes:
            manager.add_pass_after(_RegisterHelper, NativeLowering)
            manager.finalize()
        return passes


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
