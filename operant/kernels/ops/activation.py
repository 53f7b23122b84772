"""Activation functions and their derivatives in Triton: tanh, relu, silu and gelu.

`SPEC.activation` is the function's name. `SPEC.approximate` selects the hardware tanh (error 2^-11) for tanh and silu.
"""

from __future__ import annotations

import triton
import triton.language as tl

from operant.kernels.ops.linear import operand

INVERSE_SQRT_2 = tl.constexpr(0.7071067811865476)
INVERSE_SQRT_2_PI = tl.constexpr(0.3989422804014327)


@triton.jit
def sigmoid(x, APPROXIMATE: tl.constexpr = False):
    """Return the sigmoid 1 / (1 + e^-x), elementwise; if APPROXIMATE, from the hardware tanh (error 2^-11)."""
    return 0.5 * tanh(0.5 * x, True) + 0.5 if APPROXIMATE else 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x, APPROXIMATE: tl.constexpr):
    """Return tanh x, elementwise, as 2 sigmoid(2x) - 1; if APPROXIMATE, by the hardware instruction (error 2^-11)."""
    if APPROXIMATE:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return 2.0 * sigmoid(2.0 * x) - 1.0


@triton.jit
def softplus(x):
    """Return softplus log(1 + e^x), elementwise, without overflow."""
    return tl.where(x > 0.0, x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def activate(z, SPEC: tl.constexpr):
    """Return activations h = f(z) of pre-activations z, elementwise; f is SPEC.activation."""
    if SPEC.activation == "tanh":
        return tanh(z, SPEC.approximate)
    elif SPEC.activation == "relu":
        return tl.where(z < 0.0, 0.0, z)
    elif SPEC.activation == "silu":
        return z * sigmoid(z, SPEC.approximate)
    else:
        return 0.5 * z * (1.0 + tl.erf(z * INVERSE_SQRT_2))


@triton.jit
def saved_activation(z, h, SPEC: tl.constexpr):
    """Return the tensor that the backward pass of h = f(z) needs: h for tanh and relu, z in the products' type for silu
    and gelu.
    """
    return h if SPEC.activation == "tanh" or SPEC.activation == "relu" else operand(z, SPEC)


@triton.jit
def activation_gradient(saved, SPEC: tl.constexpr):
    """Return the derivative f'(z), elementwise in float32, from the tensor that `saved_activation` returned."""
    x = saved.to(tl.float32)
    if SPEC.activation == "tanh":
        return 1.0 - x * x
    elif SPEC.activation == "relu":
        return tl.where(x > 0.0, 1.0, 0.0)
    elif SPEC.activation == "silu":
        s = sigmoid(x, SPEC.approximate)
        return s * (1.0 + x * (1.0 - s))
    else:
        return 0.5 * (1.0 + tl.erf(x * INVERSE_SQRT_2)) + x * INVERSE_SQRT_2_PI * tl.exp(-0.5 * x * x)
