"""Straight-line programs of one model: formulas over numbers are recorded once and lowered to machine code.

A formula is an ordinary Python function of numbers. Called with floats it computes; called with `Value`s of a `Tape` it
records what it would compute. Constants are folded as they appear (0 x, 1 x, x + 0), equal expressions are recorded
once, and only what a store needs is lowered. Thereby the sparsity of one model (a planar chain, an axis along y, a
massless body) disappears at recording, and loops over bodies are unrolled.

`program` makes a numba intrinsic of a recording, which the CPU and CUDA lower alike.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array


class Value:
    """Number that a tape records: an expression of its loads and of constants."""

    __slots__ = ("args", "key", "op", "tape")

    def __init__(self, tape: Tape, key: int, op: str, args: tuple[Any, ...]) -> None:
        self.tape, self.key, self.op, self.args = tape, key, op, args

    def __add__(self, other: Number) -> Number:
        if isinstance(other, (int, float)):
            return self if other == 0.0 else self.tape.node("add", self, float(other))
        if other.op == "neg":
            return self - other.args[0]
        if self.op == "neg":
            return other - self.args[0]
        first, second = (self, other) if self.key <= other.key else (other, self)
        return self.tape.node("add", first, second)

    __radd__ = __add__

    def __sub__(self, other: Number) -> Number:
        if isinstance(other, (int, float)):
            return self if other == 0.0 else self.tape.node("add", self, -float(other))
        if other is self:
            return 0.0
        if other.op == "neg":
            return self + other.args[0]
        return self.tape.node("sub", self, other)

    def __rsub__(self, other: Number) -> Number:
        if isinstance(other, (int, float)):
            return -self if other == 0.0 else self.tape.node("sub", float(other), self)
        return other - self

    def __mul__(self, other: Number) -> Number:
        if isinstance(other, (int, float)):
            if other == 0.0:
                return 0.0
            if other == 1.0:
                return self
            if other == -1.0:
                return -self
            if self.op == "neg":
                return self.args[0] * -other
            if self.op == "mul" and isinstance(self.args[1], float):
                return self.args[0] * (self.args[1] * other)
            return self.tape.node("mul", self, float(other))
        if self.op == "neg":
            return -(self.args[0] * other)
        if other.op == "neg":
            return -(self * other.args[0])
        first, second = (self, other) if self.key <= other.key else (other, self)
        return self.tape.node("mul", first, second)

    __rmul__ = __mul__

    def __truediv__(self, other: Number) -> Number:
        if isinstance(other, (int, float)):
            return self * (1.0 / other)
        return self.tape.node("div", self, other)

    def __rtruediv__(self, other: Number) -> Number:
        return 0.0 if other == 0.0 else self.tape.node("div", float(other), self)

    def __neg__(self) -> Number:
        return self.args[0] if self.op == "neg" else self.tape.node("neg", self)

    def __abs__(self) -> Number:
        return self.tape.node("abs", self)

    def __bool__(self) -> bool:
        raise TypeError("a recorded number has no truth value: use select")


Number = Any
"""A float (a constant) or a `Value`."""


class Tape:
    """Recording of one program over arrays: loads, expressions and stores in order."""

    def __init__(self) -> None:
        self.events: list[Value] = []
        self._known: dict[tuple[Any, ...], Value] = {}
        self._memory: dict[tuple[int, int], Number] = {}

    def node(self, op: str, *args: Any) -> Value:
        """Record an expression, or return the equal one recorded before."""
        key = (op, *((arg.key, None) if isinstance(arg, Value) else arg for arg in args))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Value(self, len(self.events), op, args)
            self.events.append(known)
        return known

    def load(self, array: int, offset: int) -> Number:
        """Number at `offset` of argument `array`: the one stored there by this program, if any."""
        place = (array, offset)
        return self._memory[place] if place in self._memory else self.node("load", array, offset)

    def store(self, array: int, offset: int, number: Number) -> None:
        """Store a number at `offset` of argument `array`."""
        self._memory[array, offset] = number
        event = Value(self, len(self.events), "store", (array, offset, number))
        self.events.append(event)


def _unary(name: str, plain: Callable[[float], float]) -> Callable[[Number], Number]:
    def function(x: Number) -> Number:
        return x.tape.node(name, x) if isinstance(x, Value) else plain(x)

    return function


sqrt = _unary("sqrt", math.sqrt)
sin = _unary("sin", math.sin)
cos = _unary("cos", math.cos)


def _tape(*numbers: Number) -> Tape | None:
    return next((x.tape for x in numbers if isinstance(x, Value)), None)


def less(x: Number, y: Number) -> Any:
    """Condition x < y for `select`: a bool, or a recorded condition."""
    tape = _tape(x, y)
    return x < y if tape is None else tape.node("less", x, y)


def select(condition: Any, yes: Number, no: Number) -> Number:
    """`yes` where the condition holds, else `no`."""
    if isinstance(condition, Value):
        return condition.tape.node("select", condition, yes, no)
    return yes if condition else no


def least(x: Number, y: Number) -> Number:
    """Lesser of two numbers."""
    return select(less(y, x), y, x)


def greatest(x: Number, y: Number) -> Number:
    """Greater of two numbers."""
    return select(less(x, y), y, x)


def needed(tape: Tape) -> list[Value]:
    """Events of a tape that its stores need, in order."""
    used = [False] * len(tape.events)
    for event in reversed(tape.events):
        if event.op == "store" or used[event.key]:
            used[event.key] = True
            for arg in event.args:
                if isinstance(arg, Value):
                    used[arg.key] = True
    return [event for event in tape.events if used[event.key]]


_MATHS = {"sqrt": math.sqrt, "sin": math.sin, "cos": math.cos}


def program(record: Callable[[Tape], None], arrays: int, content: bytes) -> Any:
    """Numba function of `arrays` arrays of one float type that runs what `record` records on a tape.

    Recording happens when a caller is compiled. `content` identifies the program (the model and the formulas): compiled
    code is cached by it.
    """
    names = ", ".join(f"a{k}" for k in range(arrays))

    def typed(typing: Any, *kinds: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            tape = Tape()
            record(tape)
            _lower(context, builder, signature.args, values, needed(tape))
            return context.get_dummy_value()

        return types.void(*kinds), code

    # The number of arguments is part of an intrinsic's signature.
    scope: dict[str, Any] = {"typed": typed}
    exec(f"def program(typing, {names}):\n    return typed(typing, {names})\n", scope)
    made: Any = intrinsic(scope["program"])
    made.fingerprint = hashlib.sha256(content).digest()
    return made


def _lower(context: Any, builder: Any, kinds: Any, values: Any, events: list[Value]) -> None:
    """Emit LLVM instructions for the events of a tape."""
    arrays = [
        value if isinstance(kind, types.CPointer) else make_array(kind)(context, builder, value)
        for kind, value in zip(kinds, values, strict=True)
    ]
    real = kinds[0].dtype
    form = context.get_data_type(real)
    size = context.get_abi_sizeof(form)
    made: dict[int, Any] = {}

    def address(array: int, offset: int) -> Any:
        place = arrays[array]
        if isinstance(kinds[array], types.CPointer):
            return builder.gep(place, [ir.Constant(ir.IntType(64), offset)])
        if kinds[array].layout == "C":
            return builder.gep(place.data, [ir.Constant(ir.IntType(64), offset)])
        step = builder.mul(cgutils.unpack_tuple(builder, place.strides)[0], ir.Constant(ir.IntType(64), offset))
        byte = builder.bitcast(place.data, ir.IntType(8).as_pointer())
        return builder.bitcast(builder.gep(byte, [step]), form.as_pointer())

    def negated(x: Any) -> Any:
        # NVVM reads no fneg.
        return builder.fsub(ir.Constant(form, -0.0), x)

    def operand(x: Any) -> Any:
        return made[x.key] if isinstance(x, Value) else ir.Constant(form, x)

    for event in events:
        op, args = event.op, event.args
        if op == "load":
            made[event.key] = builder.load(address(*args), align=size)
        elif op == "store":
            builder.store(operand(args[2]), address(*args[:2]), align=size)
        elif op in _MATHS:
            # sqrt, sin ... of the target: the C library's on a CPU, libdevice's on CUDA
            function = context.get_function(_MATHS[op], real(*(real for _ in args)))
            made[event.key] = function(builder, [operand(x) for x in args])
        elif op == "abs":
            x = operand(args[0])
            negative = builder.fcmp_ordered("<", x, ir.Constant(form, 0.0))
            made[event.key] = builder.select(negative, negated(x), x)
        elif op == "neg":
            made[event.key] = negated(operand(args[0]))
        elif op == "less":
            made[event.key] = builder.fcmp_ordered("<", operand(args[0]), operand(args[1]))
        elif op == "select":
            made[event.key] = builder.select(made[args[0].key], operand(args[1]), operand(args[2]))
        else:
            emit = {"add": builder.fadd, "sub": builder.fsub, "mul": builder.fmul, "div": builder.fdiv}[op]
            made[event.key] = emit(operand(args[0]), operand(args[1]))
