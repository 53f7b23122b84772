"""Triton kernels of recurrent cells over T steps: what `operant.nn.cells` computes, a launch forward and one back. Know no algorithm."""

from operant.kernels.recurrent.cells import gru, lstm, mingru

__all__ = ["gru", "lstm", "mingru"]
