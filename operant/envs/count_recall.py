"""Count Recall: how often has this kind of card been shown? As POPGym's CountRecall (Morad et al. 2023, popgym 1.0).

The rules of a step
- Two decks of `decks` x 52 cards of `kinds` kinds lie shuffled: of the one a card is shown at a time, of the other a
  kind is asked for. The action is a number:
  how many cards of that kind the first deck has shown in this episode, the card that is shown now among them.
- Reward: 1 / (cards - 1) if it is right, else as much below zero. The episode ends when the decks are dealt, after
  cards - 1 steps.
- `decks`, `kinds` = 1, 2 (colours); 2, 4 (suits); 4, 13 (ranks) are POPGym's easy, medium and hard. (Of others more
  than 26 cards may be of one kind, which no
  action says.)

Optimum: 1. Without memory: at most -0.923, -0.924, -0.881 (for what is shown and asked for, name the number that is
right most often).
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import ORANGE, YELLOW, device
from operant.envs.cards import DECK, RANKS, cards_left, deal, game, kind_picture

# Rows of the state: the kind that is shown and the kind that is asked for; how many of each kind are left in the one
# deck and the other.
SHOWN, ASKED, LEFT = range(3)
LEFT_TO_ASK = LEFT + RANKS
FIELDS = LEFT_TO_ASK + RANKS
MOST_COUNTED = 26


class Params(NamedTuple):
    """How much there is to count."""

    decks: int = 1
    kinds: int = 2


@device
def of_kind(kind, p):
    """How many of all cards are of a kind: card c is of kind c % kinds."""
    return (int32(DECK * p.decks) - int32(kind) + int32(p.kinds) - int32(1)) // int32(p.kinds)


@device
def reset(s, p, key):
    for kind in range(RANKS):
        count = float32(of_kind(kind, p)) if kind < p.kinds else float32(0.0)
        s[LEFT + kind], s[LEFT_TO_ASK + kind] = count, count
    cards = DECK * p.decks
    s[SHOWN], s[ASKED] = (
        float32(deal(s, LEFT, p.kinds, cards, key, 0)),
        float32(deal(s, LEFT_TO_ASK, p.kinds, cards, key, 1)),
    )


@device
def step(s, action, p, key, tally):
    asked, cards = int32(s[ASKED]), int32(DECK * p.decks)
    right = of_kind(asked, p) - int32(s[LEFT + asked]) == int32(action)
    left = cards_left(s, LEFT, RANKS)
    s[SHOWN] = float32(deal(s, LEFT, p.kinds, left, key, 0))
    s[ASKED] = float32(deal(s, LEFT_TO_ASK, p.kinds, left, key, 1))
    part = float32(1.0) / float32(cards - int32(1))
    return part if right else -part, left == int32(1)


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
    seen=RANKS,
    numbers=2,
    actions=MOST_COUNTED + 1,
    ranges={"decks": (1, 4), "kinds": (2, RANKS)},
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
)
