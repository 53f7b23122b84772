"""MinAtar's Seaquest: a submarine shoots at fish and submarines, gathers divers, and has to come up for air.

The rules of a step, in this order
- When its timer is up, an enemy (one in three a submarine, else a fish) comes into one of the rows 1 to 8 from either
  side; not where another in that row goes
  the other way. Every 30 steps a diver comes likewise, in any row.
- The player moves a cell to the left (and looks that way), up, right (likewise) or down, or shoots the way it looks, if
  told to; five steps lie between two
  shots. Rows 0 to 8 are its own; row 0 is the surface.
- Shots fly a cell. One that then meets an enemy is gone with it: +1.
- A diver in the player's cell comes on board, unless six are there. Each diver moves a cell in every sixth step, and
  that is looked at again.
- An enemy in the player's cell, before its move or after, or a shot of one, ends the game. Enemies move when their
  timers are up, and into a shot means
  +1, too. A submarine shoots every 11 steps; such a shot flies a cell in the step that it is fired in already.
- Below the surface a step takes one of 200 units of oxygen; with none left at the end of a step the game ends. Who
  comes to the surface without a diver ends the game. Else the oxygen is filled up and a diver leaves; six leave
  together, for as many points as the bar of oxygen had cells, 0 to 10.
- With `ramping`, each time at the surface: enemies come a step sooner (from every 20 steps to every step); every second
  time they move sooner, too, their
  timer from 5 to 2.
- The player begins in row 0, column 5, looking left.

As in the package, the divers on board are one fewer than none after six have left: the next one that comes on board
makes it none. Such a count below none lets the player come to the surface, where it falls by one more.

Channels: the player's front, its back, its shots, the cell behind an enemy or diver, the enemies' shots, fish,
submarines, the oxygen as a bar below, divers on board beside it, divers. Random numbers: an enemy comes from the left
if `uniform(key, 1)` is below 1/2, is a submarine if `uniform(key, 2)` is below 1/3, and takes row 1 + `integer(key, 3,
8)`; a diver likewise by `uniform(key, 4)` and 1 + `integer(key, 5, 8)`.

What is kept. Four lists, oldest first, each item a number: its column and row, whether it goes right, its timers,
whether it is a submarine. They have room for more than the rules can bring about: enemies that come in every step leave
after 30, and a submarine has one shot in the water.
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import BLUE, GREEN, GREY, ORANGE, RED, YELLOW, IntState, device_call, integer, uniform
from operant.envs.minatar.board import FULL, LAST, bit, game, sticky_action, whole

# The state: the player's place and whether it looks right; oxygen, divers on board, whether it is at the surface since
# the last step; steps until it may shoot, until an enemy comes, until a diver does; steps between enemies and between
# their moves, how often it was ramped; the last action; and the lists' lengths.
(
    X,
    Y,
    LOOKS_RIGHT,
    OXYGEN,
    ON_BOARD,
    SURFACED,
    COOLING,
    NEXT_ENEMY,
    NEXT_DIVER,
    ENEMY_EVERY,
    MOVE_EVERY,
    RAMPED,
    LAST_ACTION,
) = range(13)
ENEMY_COUNT, THEIR_COUNT, SHOT_COUNT, DIVER_COUNT, FIELDS = range(13, 18)
STAY, LEFT, UP, RIGHT, DOWN, FIRE = range(6)  # actions

# where the lists begin: enemies, their shots, the player's, divers; and how many items in all
ENEMIES, THEIRS, SHOTS, DIVERS, ITEMS = 0, 32, 64, 68, 72
PLACE, RIGHTWARD, SUBMARINE = 255, 256, 512  # of an item: column + 16 row, and two flags
TIMER, SHOT_TIMER = 1 << 10, 1 << 14  # units of the timers, below 16 each

AIR, CREW, DIVER_EVERY, COOL_DOWN = 200, 6, 30, 5
DIVER_TIMER, FIRST_ENEMY_EVERY, FIRST_MOVE_EVERY, LAST_MOVE_EVERY, SHOT_EVERY = 5, 20, 5, 2, 10


class Params(NamedTuple):
    """How actions stick, and whether it gets harder."""

    sticky: float = 0.1
    ramping: bool = True


@device_call
def reset(s, items, workspace, p, key):
    for field in range(FIELDS):
        s[field] = float32(0.0)
    s[X], s[OXYGEN], s[SURFACED], s[NEXT_DIVER] = float32(5.0), float32(AIR), float32(1.0), float32(DIVER_EVERY)
    s[NEXT_ENEMY], s[ENEMY_EVERY], s[MOVE_EVERY] = (
        float32(FIRST_ENEMY_EVERY),
        float32(FIRST_ENEMY_EVERY),
        float32(FIRST_MOVE_EVERY),
    )
    for k in range(ITEMS):
        items[k] = 0


@device_call
def append(s, items, count, first, end, item):
    """One more item of a list that lies in items[first:end], its length in s[count]."""
    place = first + whole(s[count])
    if place < end:
        items[place] = item
        s[count] += float32(1.0)


@device_call
def remove(s, items, count, first, k):
    """The list without its item k; the others keep their order."""
    s[count] -= float32(1.0)
    for place in range(first + k, first + whole(s[count])):
        items[place] = items[place + 1]


@device_call
def moved(item):
    """An item a cell on, or -1 beyond the sides."""
    column = item & 15
    if item & RIGHTWARD != 0:
        return int32(-1 if column == LAST else item + 1)
    return int32(-1 if column == 0 else item - 1)


@device_call
def entrance(row, right):
    """An item that comes in: from the left it goes right."""
    return int32(16 * row + (RIGHTWARD if right else LAST))


@device_call
def new_enemy(s, items, key):
    right, row = uniform(key, 1) < float32(0.5), 1 + integer(key, 3, 8)
    enemy = entrance(row, right)
    for k in range(whole(s[ENEMY_COUNT])):
        other = whole(items[ENEMIES + k])
        if (other & PLACE) >> 4 == row and (other ^ enemy) & RIGHTWARD != 0:
            return
    kind = SUBMARINE + SHOT_EVERY * SHOT_TIMER if uniform(key, 2) < float32(1 / 3) else 0
    append(s, items, ENEMY_COUNT, ENEMIES, THEIRS, enemy + kind + whole(s[MOVE_EVERY]) * TIMER)


@device_call
def act(s, items, action):
    if action == FIRE:
        if s[COOLING] == float32(0.0):
            looks = RIGHTWARD if s[LOOKS_RIGHT] != float32(0.0) else 0
            append(s, items, SHOT_COUNT, SHOTS, DIVERS, whole(s[X]) + 16 * whole(s[Y]) + looks)
            s[COOLING] = float32(COOL_DOWN)
    elif action == LEFT:
        s[X], s[LOOKS_RIGHT] = max(s[X] - float32(1.0), float32(0.0)), float32(0.0)
    elif action == RIGHT:
        s[X], s[LOOKS_RIGHT] = min(s[X] + float32(1.0), float32(LAST)), float32(1.0)
    elif action == UP:
        s[Y] = max(s[Y] - float32(1.0), float32(0.0))
    elif action == DOWN:
        s[Y] = min(s[Y] + float32(1.0), float32(LAST - 1))


@device_call
def find(items, first, count, place, kind):
    """The oldest item of a list at a place, of enemies fish (kind 0) or submarines; -1: none."""
    for k in range(count):
        item = whole(items[first + k])
        if item & PLACE == place and item & SUBMARINE == kind:
            return int32(k)
    return int32(-1)


@device_call
def move_shots(s, items):
    """The player's shots go on, the newest first: how many enemies they meet."""
    hits = float32(0.0)
    for k in range(whole(s[SHOT_COUNT]) - 1, -1, -1):
        shot = moved(whole(items[SHOTS + k]))
        items[SHOTS + k] = shot
        met = int32(-1)
        if shot >= 0:
            met = find(items, ENEMIES, whole(s[ENEMY_COUNT]), shot & PLACE, 0)
            if met < 0:
                met = find(items, ENEMIES, whole(s[ENEMY_COUNT]), shot & PLACE, SUBMARINE)
        if met >= 0:
            remove(s, items, ENEMY_COUNT, ENEMIES, met)
            hits += float32(1.0)
        if met >= 0 or shot < 0:
            remove(s, items, SHOT_COUNT, SHOTS, k)
    return hits


@device_call
def move_divers(s, items, player):
    """Divers come on board or go on, the newest first."""
    for k in range(whole(s[DIVER_COUNT]) - 1, -1, -1):
        diver = whole(items[DIVERS + k])
        room = s[ON_BOARD] < float32(CREW)
        aboard = room and diver & PLACE == player
        if not aboard:
            if diver < TIMER:
                diver = moved(diver)
                aboard = room and diver >= 0 and diver & PLACE == player
                diver += DIVER_TIMER * TIMER if diver >= 0 else 0
            else:
                diver -= TIMER
        items[DIVERS + k] = diver
        if aboard:
            s[ON_BOARD] += float32(1.0)
        if aboard or diver < 0:
            remove(s, items, DIVER_COUNT, DIVERS, k)


@device_call
def move_enemies(s, items, player, kind):
    """Fish (kind 0) or submarines, the newest first: (how many meet a shot, whether one meets the player)."""
    hits, over = float32(0.0), False
    for k in range(whole(s[ENEMY_COUNT]) - 1, -1, -1):
        enemy = whole(items[ENEMIES + k])
        if enemy & SUBMARINE == kind:
            over = over or enemy & PLACE == player
            gone, shoots = False, kind == SUBMARINE and enemy < SHOT_TIMER
            if (enemy // TIMER) & 15 == 0:
                enemy = moved(enemy)
                gone = enemy < 0
                if not gone:
                    enemy += whole(s[MOVE_EVERY]) * TIMER
                    over = over or enemy & PLACE == player
                    shot = (
                        find(items, SHOTS, whole(s[SHOT_COUNT]), enemy & PLACE, 0)
                        if enemy & PLACE != player
                        else int32(-1)
                    )
                    if shot >= 0:
                        remove(s, items, SHOT_COUNT, SHOTS, shot)
                        hits += float32(1.0)
                        gone = True
                shoots = shoots and enemy >= 0
            else:
                enemy -= TIMER
            if shoots:  # even one that has just been hit
                append(s, items, THEIR_COUNT, THEIRS, SHOTS, enemy & (PLACE | RIGHTWARD))
            if kind == SUBMARINE:
                enemy += SHOT_EVERY * SHOT_TIMER if shoots else -SHOT_TIMER
            items[ENEMIES + k] = enemy
            if gone:
                remove(s, items, ENEMY_COUNT, ENEMIES, k)
    return hits, over


@device_call
def move_their_shots(s, items, player):
    """Whether one meets the player."""
    over = False
    for k in range(whole(s[THEIR_COUNT]) - 1, -1, -1):
        before = whole(items[THEIRS + k])
        shot = moved(before)
        over = over or before & PLACE == player or (shot >= 0 and shot & PLACE == player)
        items[THEIRS + k] = shot
        if shot < 0:
            remove(s, items, THEIR_COUNT, THEIRS, k)
    return over


@device_call
def surface(s, p):
    """The player has come to the surface, with a diver at least: what it gets."""
    reward = float32(0.0)
    if s[ON_BOARD] == float32(CREW):
        reward, s[ON_BOARD] = float32(whole(s[OXYGEN]) * 10 // AIR), float32(0.0)
    s[ON_BOARD] -= float32(1.0)
    s[OXYGEN] = float32(AIR)
    every, move_every = s[ENEMY_EVERY], s[MOVE_EVERY]
    if p.ramping and (every > float32(1.0) or move_every > float32(LAST_MOVE_EVERY)):
        if move_every > float32(LAST_MOVE_EVERY) and whole(s[RAMPED]) & 1 == 1:
            s[MOVE_EVERY] = move_every - float32(1.0)
        s[ENEMY_EVERY] = max(every - float32(1.0), float32(1.0))
        s[RAMPED] += float32(1.0)
    return reward


@device_call
def breathe(s, p):
    """The end of the step: (reward, whether the game is over)."""
    over = s[OXYGEN] <= float32(0.0)
    if s[Y] > float32(0.0):
        s[OXYGEN] -= float32(1.0)
        s[SURFACED] = float32(0.0)
        return float32(0.0), over
    if s[SURFACED] != float32(0.0):
        return float32(0.0), over
    if s[ON_BOARD] == float32(0.0):
        return float32(0.0), True
    s[SURFACED] = float32(1.0)
    return surface(s, p), over


@device_call
def step(s, items, workspace, action, p, key, tally):
    taken = sticky_action(whole(s[LAST_ACTION]), action, p, key)
    s[LAST_ACTION] = float32(taken)
    if s[NEXT_ENEMY] == float32(0.0):
        new_enemy(s, items, key)
        s[NEXT_ENEMY] = s[ENEMY_EVERY]
    if s[NEXT_DIVER] == float32(0.0):
        append(
            s,
            items,
            DIVER_COUNT,
            DIVERS,
            ITEMS,
            entrance(1 + integer(key, 5, 8), uniform(key, 4) < float32(0.5)) + DIVER_TIMER * TIMER,
        )
        s[NEXT_DIVER] = float32(DIVER_EVERY)
    act(s, items, taken)

    player = whole(s[X]) + 16 * whole(s[Y])
    hits = move_shots(s, items)
    move_divers(s, items, player)
    submarines, rammed = move_enemies(s, items, player, SUBMARINE)
    shot = move_their_shots(s, items, player)
    fish, bitten = move_enemies(s, items, player, 0)

    s[NEXT_ENEMY] = max(s[NEXT_ENEMY] - float32(1.0), float32(0.0))
    s[NEXT_DIVER] = max(s[NEXT_DIVER] - float32(1.0), float32(0.0))
    s[COOLING] = max(s[COOLING] - float32(1.0), float32(0.0))
    reward, over = breathe(s, p)
    return hits + submarines + fish + reward, over or rammed or shot or bitten


@device_call
def row_of(items, first, count, row, behind, flag, value):
    """The cells of a row with the items of a list, or the cells behind them; of those whose flag is `value` only (flag
    0: all).
    """
    mask = int32(0)
    for k in range(count):
        item = whole(items[first + k])
        if (item & PLACE) >> 4 == row and item & flag == value:
            column = item & 15
            mask |= bit(column + (0 if not behind else -1 if item & RIGHTWARD != 0 else 1), True)
    return int32(mask)


@device_call
def masks(s, items, row):
    """What a row holds, channel by channel."""
    enemies, x, mine = whole(s[ENEMY_COUNT]), whole(s[X]), row == whole(s[Y])
    divers = whole(s[DIVER_COUNT])
    trails = row_of(items, ENEMIES, enemies, row, True, 0, 0) | row_of(items, DIVERS, divers, row, True, 0, 0)
    air = (1 << (max(whole(s[OXYGEN]), 0) * 10 // AIR)) - 1 if row == LAST else 0
    crew = (FULL >> 1) & ~(FULL >> (1 + max(whole(s[ON_BOARD]), 0))) if row == LAST else 0
    return (
        bit(x, mine),
        bit(x - 1 if s[LOOKS_RIGHT] != float32(0.0) else x + 1, mine),
        row_of(items, SHOTS, whole(s[SHOT_COUNT]), row, False, 0, 0),
        whole(trails),
        row_of(items, THEIRS, whole(s[THEIR_COUNT]), row, False, 0, 0),
        row_of(items, ENEMIES, enemies, row, False, SUBMARINE, 0),
        row_of(items, ENEMIES, enemies, row, False, SUBMARINE, SUBMARINE),
        whole(air),
        whole(crew),
        row_of(items, DIVERS, divers, row, False, 0, 0),
    )


_DARK = (float32(0.25), float32(0.25), float32(0.25))

ENV = game(
    Params,
    FIELDS,
    IntState(ITEMS, "int32"),
    reset=reset,
    step=step,
    masks=masks,
    colours=(YELLOW, ORANGE, YELLOW, _DARK, RED, RED, RED, BLUE, GREEN, GREY),
    actions=("stay", "left", "up", "right", "down", "fire"),
)
