"""Card games: what their declarations share, dealing from a shuffled deck without keeping its order, and pictures of
cards. Knows no game's rules.

A deck of which only the kinds of cards matter (suits, ranks, colours) needs no order: it is the number of cards of each
kind that are left, and the next card is one of those, each as likely. That is the same game as a shuffled deck's, for a
few numbers a lane in place of 52.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy import float32, int32

from operant.envs import GREY, GROUND, RED, Box, Discrete, Env, device, device_call, in_box, in_disc, integer

__all__ = [
    "DECK",
    "RANKS",
    "SUITS",
    "SUIT_NAMES",
    "card_picture",
    "cards_left",
    "deal",
    "game",
    "kind_picture",
    "open_decks",
]

DECK, SUITS, RANKS = 52, 4, 13
SUIT_NAMES = ("spades", "diamonds", "clubs", "hearts")


def game(
    params: Any,
    fields: int,
    *,
    seen: int | tuple[int, ...],
    numbers: int = 1,
    actions: int | tuple[str, ...],
    ranges: Mapping[str, tuple[float | None, float | None]],
    **functions: Any,
) -> Env:
    """A game until its decks are dealt: observations are `numbers` categorical features with `seen` categories each,
    actions are counted or named.
    """
    high, names = (
        (tuple(k - 1 for k in seen) if isinstance(seen, tuple) else seen - 1),
        actions if isinstance(actions, tuple) else (),
    )
    return Env(
        params,
        fields,
        observation=Box(numbers, low=0, high=high, dtype="uint8", categories=seen),
        action=Discrete(len(names) if isinstance(actions, tuple) else actions),
        time_limit=None,
        ranges=ranges,
        actions=names,
        step_s=1 / 4,
        **functions,
    )


@device_call
def deal(s: Any, first: int, kinds: int, left: Any, key: Any, draw: int) -> Any:
    """The kind of a card dealt from a deck, int32: rows first ... first + kinds - 1 of `s` count the cards of each
    kind, `left` in all, at least one.
    """
    place, below, kind = integer(key, draw, left), int32(0), int32(0)
    # As many kinds lie wholly before the card as it is the number of.
    for k in range(kinds - 1):
        below += int32(s[first + k])
        kind += int32(1 if place >= below else 0)
    s[first + kind] -= float32(1.0)
    return kind


@device_call
def cards_left(s: Any, first: int, kinds: int) -> Any:
    """How many cards are left, int32: rows first ... first + kinds - 1 of `s`. A game ends by them: `decks` may be
    others since they were opened.
    """
    left = float32(0.0)
    for kind in range(kinds):
        left += s[first + kind]
    return int32(left)


@device
def open_decks(s: Any, first: int, kinds: int, decks: Any, key: Any) -> Any:
    """The kind of the first card dealt from `decks` shuffled decks, whose cards of each kind are then counted in rows
    first ... of `s`.
    """
    for kind in range(kinds):
        s[first + kind] = float32(DECK // kinds * decks)
    return deal(s, first, kinds, DECK * decks, key, 0)


@device
def _on_card(x: Any, y: Any, centre_x: Any, half_width: Any) -> bool:
    return in_box(x, y, centre_x, float32(0.45), half_width, float32(0.38))


@device
def _in_suit(x: Any, y: Any, suit: Any) -> bool:
    """Whether (x, y), y up, lies in the sign of a suit that reaches from -1 to 1: 0 spade, 1 diamond, 2 club,
    3 heart.
    """
    if suit == 1:
        return abs(x) * float32(1.4) + abs(y) < float32(1.0)
    stem = in_box(x, y, float32(0.0), float32(-0.7), float32(0.12), float32(0.3))
    if suit == 2:
        beside = in_disc(abs(x), y, float32(0.42), float32(-0.1), float32(0.36))
        return stem or beside or in_disc(x, y, float32(0.0), float32(0.5), float32(0.36))
    up = y if suit == 3 else -y  # a spade is a heart on its head, and a stem
    lobes = in_disc(abs(x), up, float32(0.38), float32(0.3), float32(0.42))
    below = up < float32(0.3) and abs(x) < float32(0.6) * (up + float32(1.0))
    return lobes or below or (suit == 0 and stem)


@device
def card_picture(x: Any, y: Any, suit: Any, bar: Any, bar_colour: Any) -> Any:
    """The colour of a point of a picture: a card with the sign of a suit, and a bar below it that is `bar`, 0 to 1,
    long.
    """
    if in_box(x, y, float32(0.5), float32(0.92), float32(0.46), float32(0.04)):
        return bar_colour if x < float32(0.04) + float32(0.92) * bar else GROUND
    if not _on_card(x, y, float32(0.5), float32(0.28)):
        return GROUND
    if not _in_suit((x - float32(0.5)) * float32(4.5), (float32(0.45) - y) * float32(4.5), suit):
        return GREY
    return RED if suit == 1 or suit == 3 else GROUND


@device
def kind_picture(x: Any, y: Any, centre_x: Any, kind: Any, colour: Any) -> Any:
    """The colour of a point of a picture: a card around `centre_x` with kind + 1 dots, up to sixteen."""
    if not _on_card(x, y, centre_x, float32(0.21)):
        return GROUND
    across, down = (x - centre_x + float32(0.2)) * float32(10.0), (y - float32(0.1)) * float32(5.7)
    column, row = int32(across), int32(down)
    dot = in_disc(across - float32(column), down - float32(row), float32(0.5), float32(0.5), float32(0.36))
    there = across >= float32(0.0) and column < 4 and down >= float32(0.0) and row < 4 and 4 * row + column <= kind
    return colour if dot and there else GREY
