"""Autoencode: watch a whole deck of cards, then name their suits in reverse order. POPGym's Autoencode (Morad et al.
2023, popgym 1.0).

Rules
- Watch phase: each step shows the suit of the next card (0 spades, 1 diamonds, 2 clubs, 3 hearts). The action is
  ignored and the reward is 0.
- Play phase: it begins with the last card, when the phase flag changes from 1 to 0. From then on the action names a
  suit. The reward is 1 / cards if it is the suit of the last card not yet named, otherwise -1 / cards. The observed
  suit is always 0 in this phase. The episode ends with the first card, after 2 x cards - 1 steps.
- `decks` = 1, 2 and 3 are POPGym's easy, medium and hard: 52, 104 and 156 cards. With half a deck, the first 26 cards
  of a shuffled deck are shown. A curriculum from few to many cards: `env.params.decks = {linear = [0.1, 1], over =
  "10M"}`.

Optimum: 1. Without memory: at most -0.471, -0.486, -0.490 (the last card is still visible when play begins; after that,
a constant suit).
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import GREEN, ORANGE, IntState, device
from operant.envs.cards import DECK, SUIT_NAMES, SUITS, card_picture, cards_left, deal, game, open_decks

# rows of the state: cards stored; 1 while watching, else 0; observed suit; from LEFT on, remaining cards of each suit
COUNT, WATCHING, SHOWN, LEFT = range(4)
FIELDS = LEFT + SUITS
MOST_DECKS = 4


class Params(NamedTuple):
    """Parameters of Autoencode: length of the sequence of cards."""

    decks: float = 1.0  # a float, so that a schedule can change it during training


@device
def reset(s, suits, workspace, p, key):
    for k in range(MOST_DECKS * DECK):
        suits[k] = 0
    full = int32(p.decks)
    shown = open_decks(s, LEFT, SUITS, full if float32(full) == p.decks else full + int32(1), key)
    suits[0] = shown
    s[COUNT], s[WATCHING], s[SHOWN] = float32(1.0), float32(1.0), float32(shown)


@device
def step(s, suits, workspace, action, p, key, tally):
    count, cards = int32(s[COUNT]), int32(float32(DECK) * p.decks)
    if s[WATCHING] != float32(0.0):
        left = cards_left(s, LEFT, SUITS)
        shown = deal(s, LEFT, SUITS, left, key, 0)
        suits[count] = shown
        s[COUNT], s[SHOWN] = float32(count + int32(1)), float32(shown)
        # `decks` may have grown since this episode began; then play begins when the opened decks are exhausted.
        s[WATCHING] = float32(1.0) if count + int32(1) < cards and left > int32(1) else float32(0.0)
        return float32(0.0), False
    share = float32(1.0) / float32(cards)
    correct = int32(suits[count - int32(1)]) == int32(action)
    s[COUNT], s[SHOWN] = float32(count - int32(1)), float32(0.0)
    return share if correct else -share, count == int32(1)


@device
def observe(s, suits, workspace, obs, p):
    watching, shown = int32(s[WATCHING]), int32(s[SHOWN])
    obs[0], obs[1] = watching, shown


@device
def pixel_shader(s, suits, p, x, y):
    return card_picture(
        x, y, int32(s[SHOWN]), s[COUNT] / (float32(DECK) * p.decks), GREEN if s[WATCHING] != float32(0.0) else ORANGE
    )


ENV = game(
    Params,
    FIELDS,
    categories=(2, SUITS),
    features=2,
    actions=SUIT_NAMES,
    ranges={"decks": (0.1, MOST_DECKS)},
    int_state=IntState(MOST_DECKS * DECK, "int8"),
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
)
