"""Repeat First: name the suit of the first card at every later card. POPGym's RepeatFirst (Morad et al. 2023, popgym
1.0).

Rules
- Each step shows the suit of a card from `decks` x 52 shuffled cards: 0 spades, 1 diamonds, 2 clubs, 3 hearts. The
  action names a suit.
- Reward: 1 / (cards - 1) if it is the suit of the episode's first card, otherwise -1 / (cards - 1). The episode ends
  when the deck is dealt.
- `decks` = 1, 8 and 16 are POPGym's easy, medium and hard: 51, 415 and 831 steps.

Optimum: 1. Without memory: at most -0.499, -0.500, -0.500 (name the suit that is shown: correct at the first card, and
with the same probability at all later ones).
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import BLUE, device
from operant.envs.cards import DECK, SUIT_NAMES, SUITS, card_picture, cards_left, deal, game, open_decks

FIRST, SHOWN, LEFT = range(3)  # rows of the state: suits; from LEFT on, remaining cards of each suit
FIELDS = LEFT + SUITS


class Params(NamedTuple):
    """Parameters of Repeat First: length of an episode."""

    decks: int = 1


@device
def reset(s, p, key):
    first = float32(open_decks(s, LEFT, SUITS, p.decks, key))
    s[FIRST], s[SHOWN] = first, first


@device
def step(s, action, p, key, tally):
    left, correct = cards_left(s, LEFT, SUITS), int32(s[FIRST]) == int32(action)
    s[SHOWN] = float32(deal(s, LEFT, SUITS, left, key, 0))
    share = float32(1.0) / float32(DECK * p.decks - 1)
    return share if correct else -share, left == 1


@device
def observe(s, obs, p):
    obs[0] = int32(s[SHOWN])


@device
def pixel_shader(s, p, x, y):
    return card_picture(x, y, int32(s[SHOWN]), float32(cards_left(s, LEFT, SUITS)) / float32(DECK * p.decks), BLUE)


ENV = game(
    Params,
    FIELDS,
    categories=SUITS,
    actions=SUIT_NAMES,
    ranges={"decks": (1, 10_000)},
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
)
