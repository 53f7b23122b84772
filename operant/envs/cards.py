"""Card games: a common declaration, dealing from a shuffled deck without storing its order, and card pictures.

Where only the kind of a card matters (suit, rank, colour), a deck needs no order: it is stored as the remaining count
of each kind, and the next card is drawn in proportion to these counts. The distribution equals that of a shuffled deck,
with a few counters per lane instead of 52 cards.
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
    categories: int | tuple[int, ...],
    features: int = 1,
    actions: int | tuple[str, ...],
    ranges: Mapping[str, tuple[float | None, float | None]],
    **functions: Any,
) -> Env:
    """Declare the environment of a card game that ends when its decks are dealt: `params` is its class of parameters,
    `fields` its number of state rows, `functions` are the other fields of `Env`. Observations are `features` bytes with
    `categories` one-hot categories each (one number for all, or one per feature). `actions` is the number of actions or
    their names.
    """
    high, names = (
        (tuple(k - 1 for k in categories) if isinstance(categories, tuple) else categories - 1),
        actions if isinstance(actions, tuple) else (),
    )
    return Env(
        params,
        fields,
        observation=Box(features, low=0, high=high, dtype="uint8", categories=categories),
        action=Discrete(len(names) if isinstance(actions, tuple) else actions),
        time_limit=None,
        ranges=ranges,
        actions=names,
        step_s=1 / 4,
        **functions,
    )


@device_call
def deal(s: Any, first: int, kinds: int, left: Any, key: Any, draw: int) -> Any:
    """Draw a card at random from a shuffled deck and return its kind, int32. Rows first ... first + kinds - 1 of `s`
    hold the remaining count of each kind, which is reduced; their sum is `left` >= 1.
    """
    # Inverse transform sampling: the kind is the number of cumulative counts that do not exceed the card's index.
    index, below, kind = integer(key, draw, left), int32(0), int32(0)
    for k in range(kinds - 1):
        below += int32(s[first + k])
        kind += int32(1 if index >= below else 0)
    s[first + kind] -= float32(1.0)
    return kind


@device_call
def cards_left(s: Any, first: int, kinds: int) -> Any:
    """Number of cards not yet dealt, int32: the sum of rows first ... first + kinds - 1 of `s`.

    Games end by this count, not by `decks`, which a schedule may change during an episode.
    """
    left = float32(0.0)
    for kind in range(kinds):
        left += s[first + kind]
    return int32(left)


@device
def open_decks(s: Any, first: int, kinds: int, decks: Any, key: Any) -> Any:
    """Start a game with `decks` full decks: write the count of each kind from row `first` of `s` on, draw one card, and
    return its kind.
    """
    for kind in range(kinds):
        s[first + kind] = float32(DECK // kinds * decks)
    return deal(s, first, kinds, DECK * decks, key, 0)


@device
def _on_card(x: Any, y: Any, centre_x: Any, half_width: Any) -> bool:
    """Whether the point (x, y) of a picture lies on a card centred at `centre_x` with this half width."""
    return in_box(x, y, centre_x, float32(0.45), half_width, float32(0.38))


@device
def _in_suit(x: Any, y: Any, suit: Any) -> bool:
    """Whether the point (x, y), y up, lies inside the symbol of a suit drawn within [-1, 1]^2: 0 spade, 1 diamond, 2
    club, 3 heart.
    """
    if suit == 1:
        return abs(x) * float32(1.4) + abs(y) < float32(1.0)
    stem = in_box(x, y, float32(0.0), float32(-0.7), float32(0.12), float32(0.3))
    if suit == 2:
        side_leaf = in_disc(abs(x), y, float32(0.42), float32(-0.1), float32(0.36))
        return stem or side_leaf or in_disc(x, y, float32(0.0), float32(0.5), float32(0.36))
    up = y if suit == 3 else -y  # a spade is an inverted heart with a stem
    lobes = in_disc(abs(x), up, float32(0.38), float32(0.3), float32(0.42))
    below = up < float32(0.3) and abs(x) < float32(0.6) * (up + float32(1.0))
    return lobes or below or (suit == 0 and stem)


@device
def card_picture(x: Any, y: Any, suit: Any, bar: Any, bar_colour: Any) -> Any:
    """Colour at the point (x, y) of a picture of a card with a suit's symbol, and below it a bar of length `bar` in [0,
    1].
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
    """Colour at the point (x, y) of a picture of a card centred at `centre_x`, with kind + 1 dots, at most 16."""
    if not _on_card(x, y, centre_x, float32(0.21)):
        return GROUND
    across, down = (x - centre_x + float32(0.2)) * float32(10.0), (y - float32(0.1)) * float32(5.7)
    column, row = int32(across), int32(down)
    dot = in_disc(across - float32(column), down - float32(row), float32(0.5), float32(0.5), float32(0.36))
    drawn = across >= float32(0.0) and column < 4 and down >= float32(0.0) and row < 4 and 4 * row + column <= kind
    return colour if dot and drawn else GREY
