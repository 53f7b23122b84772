"""Repeat Previous: name the suit of the card shown k - 1 steps ago. POPGym's RepeatPrevious (Morad et al. 2023, popgym
1.0).

Rules
- Each step shows the suit of a card from `decks` x 52 shuffled cards: 0 spades, 1 diamonds, 2 clubs, 3 hearts. The
  action names a suit.
- Once k cards have been shown, the reward is 1 / (cards - k) if the action is the suit of the k-th card from the end (k
  = 1: the current card), otherwise -1 / (cards - k). The episode ends when the deck is dealt, after cards - 1 steps.
- `decks`, `k` = 1, 4; 2, 32; 3, 64 are POPGym's easy, medium and hard. A k above cards - 1 counts as cards - 1. Medium
  and hard need memory units that initially copy their state (`net.memory_init = 1`); k can also grow by a schedule:
  `env.params.k = {linear = [4, 33], over = "50M"}`.

Optimum: 1. Without memory: at most -0.490, -0.495, -0.497 (name any suit but the one that is shown).
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import BLUE, IntState, device
from operant.envs.cards import DECK, SUIT_NAMES, SUITS, card_picture, cards_left, deal, game, open_decks

# rows of the state: cards dealt, observed suit; from LEFT on, remaining cards of each suit
DEALT, SHOWN, LEFT = range(3)
FIELDS = LEFT + SUITS
MOST = 128  # capacity of the ring of suits: card j is at index j % MOST


class Params(NamedTuple):
    """Parameters of Repeat Previous: length of an episode, and of the memory that it needs."""

    decks: int = 1
    k: float = 4.0  # rounded down; a float, so that a schedule can change it during training


@device
def reset(s, ring, workspace, p, key):
    for k in range(MOST):
        ring[k] = 0
    shown = open_decks(s, LEFT, SUITS, p.decks, key)
    s[DEALT], s[SHOWN] = float32(1.0), float32(shown)
    ring[0] = shown


@device
def step(s, ring, workspace, action, p, key, tally):
    dealt, cards = int32(s[DEALT]), int32(DECK * p.decks)
    k = min(int32(p.k), cards - int32(1))
    share = float32(1.0) / float32(cards - k)
    correct = int32(ring[(dealt + int32(MOST) - k) % int32(MOST)]) == int32(action)
    reward = (share if correct else -share) if dealt >= k else float32(0.0)

    left = cards_left(s, LEFT, SUITS)
    shown = deal(s, LEFT, SUITS, left, key, 0)
    ring[dealt % int32(MOST)] = shown
    s[DEALT], s[SHOWN] = float32(dealt + int32(1)), float32(shown)
    return reward, left == int32(1)


@device
def observe(s, ring, workspace, obs, p):
    obs[0] = int32(s[SHOWN])


@device
def pixel_shader(s, ring, p, x, y):
    return card_picture(x, y, int32(s[SHOWN]), float32(1.0) - s[DEALT] / float32(DECK * p.decks), BLUE)


ENV = game(
    Params,
    FIELDS,
    categories=SUITS,
    actions=SUIT_NAMES,
    ranges={"decks": (1, 10_000), "k": (1, MOST)},
    int_state=IntState(MOST, "int8"),
    reset=reset,
    step=step,
    observe=observe,
    pixel_shader=pixel_shader,
)
