"""How programs of a kernel hand each other numbers between GPUs that write each other's memory, without a launch, a
flag or a fence. Knows no algorithm.

A number and the turn it belongs to are one word of 64 bits, which arrives whole. A program writes its words into the
memory of every rank, and waits for words of this turn from all ranks, in its own memory. Two halves take turns: who
writes a half has had words from all others that they sent after they had read what was in it. GPUs start programs in
their order, so of those that wait the first is there on all ranks, and none waits for one that cannot start. The first
program counts the time from its own words to those of all others: how late they are, and how long words are on their
way.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

GATHER_COLUMNS = tl.constexpr(128)
"""Numbers that a program of `gather_words` hands over."""


@triton.jit
def reversed_bits(k, COUNT: tl.constexpr):
    """Whole numbers below COUNT, a power of two, with their binary digits in the reverse order: halves of rows in this
    order are neighbours.
    """
    found = k * 0
    for digit in tl.static_range(COUNT.bit_length() - 1):
        found += ((k >> digit) & 1) << (COUNT.bit_length() - 2 - digit)
    return found


@triton.jit
def _oldest_turn(inbox):
    return tl.min(tl.min((tl.load(inbox, volatile=True) >> 32).to(tl.int32), axis=1), axis=0)


@triton.jit
def exchanged(own, column, width, link, RANKS: tl.constexpr, COLUMNS: tl.constexpr):
    """The numbers (RANKS, COLUMNS) int32 of all ranks, in the order `reversed_bits` of the ranks, for this one's `own`
    (1, COLUMNS) of `width`.
    """
    program = tl.program_id(0)
    turn = tl.load(link.turns + program) + 1
    half = (turn % 2) * RANKS * width
    word = (turn.to(tl.int64) << 32) | (own.to(tl.int64) & 0xFFFFFFFF)
    rank = tl.arange(0, RANKS)
    outbox = tl.load(link.outboxes + rank).to(tl.pointer_type(tl.int64))
    tl.store(outbox[:, None] + half + column[None, :], tl.broadcast_to(word, (RANKS, COLUMNS)))
    inbox = link.inbox + half + reversed_bits(rank, RANKS)[:, None] * width + column[None, :]
    spent, began = tl.load(link.spent), globaltimer()
    seen = _oldest_turn(inbox)
    while seen < turn:
        seen = _oldest_turn(inbox)
    tl.debug_barrier()
    tl.store(link.turns + program, turn)
    if program == 0:
        tl.store(link.spent, spent + globaltimer() - began)
    # Now that all are there: what was loaded before may be older in some threads, since of several that hold a word one
    # was asked.
    return (tl.load(inbox, volatile=True) & 0xFFFFFFFF).to(tl.int32)


@triton.jit
def gather_words(own, gathered, size, width, link, RANKS: tl.constexpr):
    """Words of 32 bits (size) of all ranks, (RANKS, size) in their order; `width` is the size as a multiple of 128."""
    column = tl.program_id(0) * GATHER_COLUMNS + tl.arange(0, GATHER_COLUMNS)
    mine = tl.load(own + column, mask=column < size, other=0)
    every = exchanged(mine[None, :], column, width, link, RANKS, GATHER_COLUMNS)
    rank = reversed_bits(tl.arange(0, RANKS), RANKS)
    tl.store(gathered + rank[:, None] * size + column[None, :], every, mask=(column < size)[None, :])
