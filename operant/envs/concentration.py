"""Concentration: turn over two cards at a time and find those that match. POPGym's Concentration (Morad et al. 2023,
popgym 1.0).

Rules
- 52 cards lie face down. The action turns one over. After the second card of a try, two of a kind stay face up; other
  cards are turned back after one more observation.
- The kind is a card's colour, or with `ranks` its rank.
- Reward: 1 / 26 for a match; -2 / 104 for two cards that do not match, or for one card turned over twice. Turning over
  a card that is already face up ends the try and costs 1 / 104 as its first card, 2 / 104 as its second. The episode
  ends when all cards are face up, and is truncated after 104 steps.
- `ranks` = false and true are POPGym's easy and hard. Its medium, two decks of colours, is a file of your own: `from
  operant.envs.concentration import concentration` and `ENV = concentration(decks=2)`. A match then pays 1 / 52, and
  faults cost 1 / 208, within 208 steps.

Observation: the kind of each card, 13 for face down (POPGym writes 2 there in the game of colours).

Optimum: a player with perfect memory, who turns over unseen cards until two are known to match, gains 0.813, with
`ranks` 0.699 (averages of 2,000 tables). Without memory: two random face-down cards per try gain 0.450, with `ranks`
-0.817.
"""

from typing import Any, NamedTuple

from numpy import float32, int32

from operant.envs import BLUE, GREY, GROUND, ORANGE, Box, Discrete, Env, IntState, device, device_call, in_box, uniform4
from operant.envs.cards import DECK, RANKS

FIRST, SEEN_FIRST, SEEN_SECOND, MATCHED, FIELDS = range(5)
"""Rows of the state: first card of the current try (-1: none), the two cards visible in this observation, number of
cards face up.
"""

FACE_DOWN, UP = RANKS, 16  # observation code of a face-down card; added to the stored kind of a card that is face up
COLUMNS = 13  # of the table in the picture


class Params(NamedTuple):
    """Parameters of Concentration: which cards match."""

    ranks: bool = False


def _rules(count: int) -> tuple[Any, Any]:
    """Make the device functions `reset` and `step` of Concentration for a table of `count` cards."""
    time_limit = 2 * count

    @device_call
    def reset(s, cards, workspace, p, key):
        for card in range(count):
            cards[card] = card % DECK // 4 if p.ranks else card % 2
        # Fisher-Yates shuffle from the end; one Philox block gives four random numbers.
        for block in range((count + 2) // 4):
            uniforms = uniform4(key, block)
            for k in range(4):
                last = count - 1 - 4 * block - k
                if last > 0:
                    other = min(int32(uniforms[k] * float32(last + 1)), int32(last))
                    swapped = cards[last]
                    cards[last] = cards[other]
                    cards[other] = swapped
        s[FIRST], s[SEEN_FIRST], s[SEEN_SECOND], s[MATCHED] = float32(-1.0), float32(-1.0), float32(-1.0), float32(0.0)

    @device
    def step(s, cards, workspace, action, p, key, tally):
        first, card, matched = int32(s[FIRST]), int32(action), s[MATCHED]
        fault = float32(-1.0) / float32(time_limit)
        tries = float32(1.0) if first < 0 else float32(2.0)
        first_kind, kind = int32(cards[max(first, int32(0))]), int32(cards[card])
        match = first >= 0 and first != card and first_kind == kind

        s[SEEN_FIRST], s[SEEN_SECOND], s[FIRST] = float32(first), float32(card), float32(-1.0)
        if kind >= UP:
            return fault * tries, False
        if first < 0:
            s[FIRST] = float32(card)
            return float32(0.0), False
        if not match:
            return fault * tries, False
        cards[first], cards[card] = first_kind + UP, kind + UP
        s[MATCHED] = matched + float32(2.0)
        return float32(2.0) / float32(count), matched + float32(2.0) == float32(count)

    return reset, step


@device
def seen(s, cards, card):
    """Kind that the player sees of card number `card`; FACE_DOWN if it is hidden."""
    kind = int32(cards[card])
    shown = kind >= UP or card == int32(s[SEEN_FIRST]) or card == int32(s[SEEN_SECOND])
    return kind % int32(UP) if shown else int32(FACE_DOWN)


def concentration(decks: int = 1) -> Env:
    """Declare the environment of Concentration with one or two decks of 52 cards. Raises ValueError for any other
    number.
    """
    if decks not in (1, 2):
        raise ValueError(f"decks must be 1 or 2, not {decks!r}")
    count = DECK * decks
    (reset, step), rows = _rules(count), count // COLUMNS

    @device_call
    def observe(s, cards, obs, p, shard):
        for card in range(COLUMNS * shard, COLUMNS * shard + COLUMNS):
            obs[card] = seen(s, cards, int32(card))

    @device_call
    def pixel_shader(s, cards, p, x, y):
        across, down = x * float32(COLUMNS), y * float32(rows)
        column, row = int32(across), int32(down)
        within, below = across - float32(column), down - float32(row)
        if not in_box(within, below, float32(0.5), float32(0.5), float32(0.4), float32(0.42)):
            return GROUND
        kind = seen(s, cards, int32(row * int32(COLUMNS) + column))
        if kind == FACE_DOWN:
            return BLUE
        height = (float32(kind) + float32(1.0)) / (float32(RANKS) if p.ranks else float32(2.0))
        return ORANGE if float32(0.92) - below < float32(0.84) * height else GREY

    return Env(
        Params,
        FIELDS,
        observation=Box(count, low=0, high=FACE_DOWN, dtype="uint8", categories=FACE_DOWN + 1),
        action=Discrete(count),
        time_limit=2 * count,
        reset=reset,
        step=step,
        observe=observe,
        pixel_shader=pixel_shader,
        int_state=IntState(count, "int8"),
        observation_shards=rows,
        step_s=1 / 4,
    )


ENV = concentration()
