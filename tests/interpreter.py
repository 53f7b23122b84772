"""Triton's interpreter as the tests of fused kernels need it: mended, with a GPU's products, a check of addresses, and
without the work that it repeats.

Written for Triton 3.6, which the test extra names. `teach()` changes the interpreter of this process for good.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import os
import sys
import traceback
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch
from triton import language as tl
from triton._C.libtriton import ir
from triton._utils import validate_block_shape
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor


def _to_bf16(numbers):
    """The nearest bfloat16, as its bits; ties to even."""
    bits = numbers.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Precise(interpreter.InterpreterBuilder):
    """Products as a GPU computes them, which the interpreter does not: bf16 operands as what they are, tf32's cut off
    after 10 bits, sums in float32.
    """

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        def factor(x):
            if x.dtype == tl.bfloat16:
                return _from_bf16(x.data)
            return (
                (x.data.view(np.uint32) & 0xFFFFE000).view(np.float32)
                if input_precision == ir.INPUT_PRECISION.TF32
                else x.data
            )

        return interpreter.TensorHandle(np.matmul(factor(a), factor(b)) + d.data, d.dtype.scalar)

    def create_fp_to_fp(self, src, dst_type, rounding_mode):
        return self.cast_impl(src, dst_type)

    def cast_impl(self, src, dst_type):
        kinds = src.dtype.scalar, dst_type.scalar
        if kinds == (tl.float32, tl.bfloat16):
            return interpreter.TensorHandle(_to_bf16(src.data), tl.bfloat16)
        if kinds == (tl.bfloat16, tl.float32):
            return interpreter.TensorHandle(_from_bf16(src.data), tl.float32)
        return super().cast_impl(src, dst_type)

    create_fp_ext = create_fp_trunc = lambda self, src, dst_type: self.cast_impl(src, dst_type)

    # ADDRESSES

    begins = ends = np.empty(0, np.uint64)  # addresses of the storages of the launch's tensors, in order

    def create_masked_load(self, ptrs, mask, *rest, **named):
        self._check(ptrs, mask)
        return super().create_masked_load(ptrs, mask, *rest, **named)

    def create_masked_store(self, ptrs, value, mask, *rest, **named):
        self._check(ptrs, mask)
        return super().create_masked_store(ptrs, value, mask, *rest, **named)

    def _check(self, ptrs, mask):
        """Raise IndexError if an address that the mask selects lies outside of the launch's tensors: on a GPU it may
        belong to another tensor, or to nobody.
        """
        addresses, selected = np.asarray(ptrs.data, np.uint64), np.asarray(mask.data, bool)
        addresses = addresses[np.broadcast_to(selected, addresses.shape)]
        if not addresses.size:
            return
        size = np.uint64(np.dtype(interpreter._get_np_dtype(ptrs.get_element_ty())).itemsize)
        place = np.searchsorted(self.begins, addresses, side="right") - 1
        outside = (place < 0) | (addresses + size > self.ends[np.maximum(place, 0)])
        if outside.any():
            raise IndexError(f"{int(outside.sum())} of {addresses.size} addresses are outside of the tensors")


def _storages(arguments):
    """Addresses of the first byte and after the last one of each storage in a launch's arguments."""
    for argument in arguments:
        if isinstance(argument, TensorDescriptor):
            argument = argument.base
        if isinstance(argument, torch.Tensor):
            storage = argument.untyped_storage()
            yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        elif isinstance(argument, tuple):
            yield from _storages(argument)


def teach():
    """Mend the interpreter, teach it a GPU's products, and have it do once what it does at each call."""
    # Triton 3.6 makes integers of arrays of one element, which NumPy 2.4 refuses.
    patch = interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_lang_tensor
    interpreter.interpreter_builder.__class__ = Precise
    copy_arguments = interpreter.GridExecutor._init_args_hst

    def copy_and_note(self, *arguments):
        copied, named = copy_arguments(self, *arguments)
        found = sorted(set(_storages((*copied, *named.values()))))
        Precise.begins, Precise.ends = (
            np.array(part, np.uint64) for part in (zip(*found, strict=True) if found else ((), ()))
        )
        return copied, named

    interpreter.GridExecutor._init_args_hst = copy_and_note
    _patch_once()
    _remember_types()


def serve():
    """Answer each line of standard input, a module and a list of (kind, arguments), with a line: what its `<kind>_case`
    finds for each, or the error.
    """
    teach()
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what is printed on the way is no answer
    for line in sys.stdin:
        try:
            module, cases = json.loads(line)
            functions = importlib.import_module(module)
            answer = {"found": [getattr(functions, f"{kind}_case")(**case) for kind, case in cases]}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers)


def _patch_once():
    """Its language is put in the compiler's place at once and stays: it looks at every name of Triton's modules for
    each call of each function, otherwise.
    """
    interpreter._patch_attr = _patch_attr
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": core}))
    interpreter._patch_lang = lambda fn: interpreter._LangPatchScope()
    # Without `debug` it computes whether whole numbers overflow, and does not look at the result.
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)


def _patch_attr(obj, name, member, builder, scope):
    """A function of the language that knows what interprets it, without a look at the words of each call."""
    semantic = TritonSemantic(builder)

    def interpreted(*words, **named):
        named["_semantic"] = semantic
        return member(*words, **named)

    scope.set_attr(obj, name, interpreted)


def _remember_types():
    """A type and a shape are made once: a third of the time of small blocks."""

    def constants(sizes):
        return core.tuple([core.constexpr(size) for size in sizes]), core.constexpr(math.prod(sizes))

    @functools.cache
    def block(sizes):
        shape = core.tuple(sizes)
        # found again without a look at the sizes
        shape.known = shape, validate_block_shape(shape), str(shape), constants(sizes)
        return shape.known

    none = constants(())

    def make_block(self, element_ty, shape):
        assert len(shape) > 0
        self.element_ty = element_ty
        known = vars(shape).get("known") if type(shape) is core.tuple else None
        self.shape, self.numel, name, _ = known or block(tuple(core._unwrap_shape(shape)))
        self.name = f"<{name}, {element_ty}>"

    def make_tensor(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = type.shape.known[3] if type.is_block() else none

    equal, broadcast = core.tuple.__eq__, TritonSemantic.broadcast_impl_value

    def same(self, other):
        return (
            core.constexpr(self.values == other)
            if type(other) is list and all(type(size) is int for size in other)
            else equal(self, other)
        )

    def broadcast_blocks(self, lhs, rhs):
        alike = lhs.type.is_block() and rhs.type.is_block() and lhs.type.shape is rhs.type.shape
        return (lhs, rhs) if alike else broadcast(self, lhs, rhs)

    core.block_type.__init__, core.tensor.__init__ = make_block, make_tensor
    core.tuple.__eq__, TritonSemantic.broadcast_impl_value = same, broadcast_blocks

    known, find = {}, interpreter._get_np_dtype

    def numpys(dtype):
        name = dtype.scalar.name  # pointers cannot be hashed
        if name not in known:
            known[name] = find(dtype)
        return known[name]

    interpreter._get_np_dtype = numpys


if __name__ == "__main__":
    serve()
