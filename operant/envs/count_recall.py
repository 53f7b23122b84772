"""Count Recall: state how often a kind of card has been shown so far. POPGym's CountRecall (Morad et al. 2023, popgym
1.0).

Rules
- Two shuffled decks of `decks` x 52 cards of `kinds` kinds. Each step shows a card of the first deck and draws a query
  from the second. The action is a count: how many cards of the queried kind the first deck has shown in this episode,
  including the current one.
- Reward: 1 / (cards - 1) if the count is correct, otherwise -1 / (cards - 1). The episode ends when the decks are
  dealt, after cards - 1 steps.
- 27 actions, the counts 0 to 26. `decks`, `kinds` = 1, 2 (colours) and 2, 4 (suits) are POPGym's easy and medium. 4, 13
  (ranks) has the cards and rewards of its hard, where 17 actions are enough: here 10 more are always wrong. (Other
  combinations may have more than 26 cards of one kind, a count that no action can express.)

Optimum: 1. Without memory: at most -0.923, -0.924, -0.881 (the most frequent correct count for each shown and queried
kind).
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import ORANGE, YELLOW, device
from operant.envs.cards import DECK, RANKS, cards_left, deal, game, kind_picture

# Rows of the state: shown kind, queried kind; remaining cards of each kind in the first deck, then in the second.
SHOWN, ASKED, LEFT = range(3)
LEFT_TO_ASK = LEFT + RANKS
FIELDS = LEFT_TO_ASK + RANKS
MOST_COUNTED = 26


class Params(NamedTuple):
    """Parameters of Count Recall: number of cards and of kinds."""

    decks: int = 1
    kinds: int = 2


@device
def cards_of_kind(kind, p):
    """Number of cards of a kind in full decks, in which card number c has kind c % kinds."""
    return (int32(DECK * p.decks) - int32(kind) + int32(p.kinds) - int32(1)) // int32(p.kinds)


@device
def reset(s, p, key):
    for kind in range(RANKS):
        count = float32(cards_of_kind(kind, p)) if kind < p.kinds else float32(0.0)
        s[LEFT + kind], s[LEFT_TO_ASK + kind] = count, count
    cards = DECK * p.decks
    s[SHOWN], s[ASKED] = (
        float32(deal(s, LEFT, p.kinds, cards, key, 0)),
        float32(deal(s, LEFT_TO_ASK, p.kinds, cards, key, 1)),
    )


@device
def step(s, action, p, key, tally):
    asked, cards = int32(s[ASKED]), int32(DECK * p.decks)
    correct = cards_of_kind(asked, p) - int32(s[LEFT + asked]) == int32(action)
    left = cards_left(s, LEFT, RANKS)
    s[SHOWN] = float32(deal(s, LEFT, p.kinds, left, key, 0))
    s[ASKED] = float32(deal(s, LEFT_TO_ASK, p.kinds, left, key, 1))
    share = float32(1.0) / float32(cards - int32(1))
    return share if correct else -share, left == int32(1)


@device
def observe(s, obs, p):
    shown, asked = int32(s[SHOWN]), int32(s[ASKED])
    obs[0], obs[1] = shown, asked


@device
def pixel_shader(s, p, x, y):
    if x < float32(0.5):
        return kind_picture(x, y, float32(0.25), int32(s[SHOWN]), ORANGE)
    return kind_picture(x, y, float32(0.75), int32(s[ASKED]), YELLOW)


ENV = game(
    Params,
    FIELDS,
    categories=RANKS,
    features=2,
    actions=MOST_COUNTED + 1,
    ranges={"decks": (1, 4), "kinds": (2, RANKS)},
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
)
