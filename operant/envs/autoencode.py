"""Autoencode: watch a whole deck of cards, then say their suits, the last one first. As POPGym's Autoencode (Morad et
al. 2023, popgym 1.0).

The rules of a step
- While it watches, the next card is shown, its suit alone: 0 spades, 1 diamonds, 2 clubs, 3 hearts. The action counts
  for nothing, and so does the reward.
- With the last card the game says "play" (0, in place of 1). From then on the action names a suit: reward 1 / cards if
  it is that of the last card that was not named yet, else as much below zero. Spades are shown then, whatever they
  were. The episode ends with the first card, after 2 x cards - 1 steps.
- `decks` = 1, 2 and 3 are POPGym's easy, medium and hard: 52, 104 and 156 cards. Of half a deck the first 26 cards of a
  shuffled one are shown: many cards
  are learnt from few on, `env.params.decks = {linear = [0.1, 1], over = "10M"}`.

Optimum: 1. Without memory: at most -0.471, -0.486, -0.490 (the last card is shown as play begins; after that, name one
suit).
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import GREEN, ORANGE, IntState, device
from operant.envs.cards import DECK, SUIT_NAMES, SUITS, card_picture, cards_left, deal, game, open_decks

# rows of the state: cards kept, 1 or 0, a suit; from LEFT on, the cards of each suit that are left
COUNT, WATCHING, SHOWN, LEFT = range(4)
FIELDS = LEFT + SUITS
MOST_DECKS = 4


class Params(NamedTuple):
    """How much there is to keep."""

    decks: float = 1.0  # a float, so that it can change while a policy trains


@device
def reset(s, kept, workspace, p, key):
    for place in range(MOST_DECKS * DECK):
        kept[place] = 0
    whole = int32(p.decks)
    shown = open_decks(s, LEFT, SUITS, whole if float32(whole) == p.decks else whole + int32(1), key)
    kept[0] = shown
    s[COUNT], s[WATCHING], s[SHOWN] = float32(1.0), float32(1.0), float32(shown)


@device
def step(s, kept, workspace, action, p, key, tally):
    count, cards = int32(s[COUNT]), int32(float32(DECK) * p.decks)
    if s[WATCHING] != float32(0.0):
        left = cards_left(s, LEFT, SUITS)
        shown = deal(s, LEFT, SUITS, left, key, 0)
        kept[count] = shown
        s[COUNT], s[SHOWN] = float32(count + int32(1)), float32(shown)
        # `decks` may have grown since this episode's were opened: then play begins when these are at their end.
        s[WATCHING] = float32(1.0) if count + int32(1) < cards and left > int32(1) else float32(0.0)
        return float32(0.0), False
    part = float32(1.0) / float32(cards)
    right = int32(kept[count - int32(1)]) == int32(action)
    s[COUNT], s[SHOWN] = float32(count - int32(1)), float32(0.0)
    return part if right else -part, count == int32(1)


@device
def observe(s, kept, workspace, obs, p):
    watching, shown = int32(s[WATCHING]), int32(s[SHOWN])
    obs[0], obs[1] = watching, shown


@device
def pixel_shader(s, kept, p, x, y):
    return card_picture(
        x, y, int32(s[SHOWN]), s[COUNT] / (float32(DECK) * p.decks), GREEN if s[WATCHING] != float32(0.0) else ORANGE
    )


ENV = game(
    Params,
    FIELDS,
    seen=(2, SUITS),
    numbers=2,
    actions=SUIT_NAMES,
    ranges={"decks": (0.1, MOST_DECKS)},
    int_state=IntState(MOST_DECKS * DECK, "int8"),
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
)
