"""Exchange of values between GPUs inside a Triton kernel, over peer memory: no launch, no flag, no fence.

A value and its turn number form one 64-bit word, which arrives whole. A program writes its words into the memory of
every rank, and waits until words of this turn from all ranks are in its own memory. Two halves of the inbox alternate.
A rank writes a half only after it has received words that the others sent after reading that half.

GPUs start programs in order. The first waiting program therefore runs on all ranks, and none waits for a program that
cannot start. Program 0 measures the time from its own words to the arrival of all others.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

GATHER_COLUMNS = tl.constexpr(128)
"""Words per program of `gather_words`."""


@triton.jit
def reversed_bits(k, COUNT: tl.constexpr):
    """Return indices k below COUNT (a power of two) with their bits in reverse order. Ordered so, the halves of each
    level of a binary tree are neighbours.
    """
    reverse = k * 0
    for digit in tl.static_range(COUNT.bit_length() - 1):
        reverse += ((k >> digit) & 1) << (COUNT.bit_length() - 2 - digit)
    return reverse


@triton.jit
def _oldest_turn(inbox_ptr):
    """Return the smallest turn number among the words at pointers `inbox_ptr` (RANKS, COLUMNS): how far the slowest
    rank has come.
    """
    return tl.min(tl.min((tl.load(inbox_ptr, volatile=True) >> 32).to(tl.int32), axis=1), axis=0)


@triton.jit
def exchanged(own, column, width, link, RANKS: tl.constexpr, COLUMNS: tl.constexpr):
    """All-gather 32-bit words between the GPUs of all ranks; return them as (RANKS, COLUMNS) int32, with ranks in
    bit-reversed order.

    | parameter | shape              | meaning                                                      |
    |-----------|--------------------|--------------------------------------------------------------|
    | own       | (1, COLUMNS) int32 | this rank's words                                            |
    | column    | (COLUMNS)          | their indices in 0 ... width - 1                             |
    | link      | struct             | `operant.compute.exchange.Link`: outboxes (RANKS) addresses, |
    |           |                    | inbox (2, RANKS, width), turns (programs), spent (1)         |
    """
    program = tl.program_id(0)
    turn = tl.load(link.turns + program) + 1
    half = (turn % 2) * RANKS * width
    word = (turn.to(tl.int64) << 32) | (own.to(tl.int64) & 0xFFFFFFFF)
    rank = tl.arange(0, RANKS)
    outbox = tl.load(link.outboxes + rank).to(tl.pointer_type(tl.int64))
    tl.store(outbox[:, None] + half + column[None, :], tl.broadcast_to(word, (RANKS, COLUMNS)))
    inbox_ptr = link.inbox + half + reversed_bits(rank, RANKS)[:, None] * width + column[None, :]
    spent, start = tl.load(link.spent), globaltimer()
    oldest = _oldest_turn(inbox_ptr)
    while oldest < turn:
        oldest = _oldest_turn(inbox_ptr)
    tl.debug_barrier()
    tl.store(link.turns + program, turn)
    if program == 0:
        tl.store(link.spent, spent + globaltimer() - start)
    # Load again after the barrier: of several threads that hold a word, only one polled it.
    return (tl.load(inbox_ptr, volatile=True) & 0xFFFFFFFF).to(tl.int32)


@triton.jit
def gather_words(own_ptr, gathered_ptr, size, width, link, RANKS: tl.constexpr):
    """All-gather an array of 32-bit words between the GPUs of all ranks. Grid: (width / 128,).

    | parameter    | shape         | meaning                               |
    |--------------|---------------|---------------------------------------|
    | own_ptr      | (size)        | this rank's words                     |
    | gathered_ptr | (RANKS, size) | words of all ranks, written           |
    | width        | int           | size, rounded up to a multiple of 128 |
    """
    column = tl.program_id(0) * GATHER_COLUMNS + tl.arange(0, GATHER_COLUMNS)
    own = tl.load(own_ptr + column, mask=column < size, other=0)
    words = exchanged(own[None, :], column, width, link, RANKS, GATHER_COLUMNS)
    rank = reversed_bits(tl.arange(0, RANKS), RANKS)
    tl.store(gathered_ptr + rank[:, None] * size + column[None, :], words, mask=(column < size)[None, :])
