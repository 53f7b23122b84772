"""Higher Lower: guess whether the next card is higher or lower than the current one. POPGym's HigherLower (Morad et al.
2023, popgym 1.0).

Rules
- Each step shows the rank of a card from `decks` x 52 shuffled cards, 0 (ace) to 12 (king). The action guesses whether
  the next card is higher (0) or lower (1).
- Reward: 1 / cards for a correct guess, -1 / cards for a wrong one, 0 for equal ranks. The episode ends when the deck
  is dealt, after cards - 1 steps.
- `decks` = 1, 2 and 3 are POPGym's easy, medium and hard.

Optimum, which counts the cards: 0.528, 0.516, 0.511 (averages of 80,000 games and more). Without memory: at most 0.497
(guess higher below rank 6, lower above).
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import ORANGE, device
from operant.envs.cards import DECK, RANKS, cards_left, deal, game, kind_picture, open_decks

SHOWN, LEFT = range(2)  # rows of the state: a rank; from LEFT on, remaining cards of each rank
FIELDS = LEFT + RANKS
HIGHER = 0


class Params(NamedTuple):
    """Parameters of Higher Lower: length of an episode."""

    decks: int = 1


@device
def reset(s, p, key):
    s[SHOWN] = float32(open_decks(s, LEFT, RANKS, p.decks, key))


@device
def step(s, action, p, key, tally):
    before, cards = int32(s[SHOWN]), int32(DECK * p.decks)
    left = cards_left(s, LEFT, RANKS)
    after = deal(s, LEFT, RANKS, left, key, 0)
    s[SHOWN] = float32(after)
    share = float32(1.0) / float32(cards)
    reward = share if (after > before) == (action == HIGHER) else -share
    return float32(0.0) if after == before else reward, left == int32(1)


@device
def observe(s, obs, p):
    obs[0] = int32(s[SHOWN])


@device
def pixel_shader(s, p, x, y):
    return kind_picture(x, y, float32(0.5), int32(s[SHOWN]), ORANGE)


ENV = game(
    Params,
    FIELDS,
    categories=RANKS,
    actions=("higher", "lower"),
    ranges={"decks": (1, 10_000)},
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
)
