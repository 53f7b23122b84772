"""MinAtar's Seaquest: a submarine shoots fish and enemy submarines, rescues divers, and must surface for air.

Rules, in the order of a step
- When its timer expires, an enemy (a submarine with probability 1/3, otherwise a fish) enters one of the rows 1 to 8
  from a random side, unless another enemy in that row moves the other way. Every 30 steps a diver enters in the same
  way, in any row.
- The player moves one cell left (and faces left), up, right (and faces right) or down, or fires in the direction it
  faces, at most every fifth step. It can use rows 0 to 8; row 0 is the surface.
- The player's shots move one cell. A shot and an enemy in the same cell are both removed: +1.
- A diver in the player's cell comes on board, unless six are there. Each diver moves one cell every sixth step, and is
  then checked again.
- An enemy in the player's cell, before its move or after, or an enemy's shot there, ends the game. Enemies move when
  their timers expire; moving into one of the player's shots also pays +1. A submarine fires every 11 steps, and its
  shot moves one cell in the same step.
- Each step below the surface consumes one of 200 units of oxygen; the game ends without oxygen at the end of a step.
  Surfacing without a diver ends the game. Otherwise the oxygen is refilled and one diver leaves; six divers leave
  together and pay the number of cells of the oxygen bar, 0 to 10.
- With `ramping`, each surfacing shortens the interval of enemies by a step, from 20 to 1; every second time their move
  timer shrinks as well, from 5 to 2.
- The player starts in row 0, column 5, facing left.

As in the package, the count of divers is -1 after six have left: the next diver that comes on board makes it 0. A count
below zero still lets the player surface, which decrements it once more.

Channels: the player's front, its back, its shots, trails of enemies and divers, enemy shots, fish, submarines, oxygen
as a bar at the bottom, divers on board next to it, divers. Random numbers: an enemy enters from the left if
`uniform(key, 1)` is below 1/2, is a submarine if `uniform(key, 2)` is below 1/3, and enters row 1 + `integer(key, 3,
8)`; a diver likewise with `uniform(key, 4)` and 1 + `integer(key, 5, 8)`.

Storage: four lists, oldest item first. Each item is an integer with column and row, direction, timers and a submarine
flag. The capacities exceed what the rules can produce: an enemy that enters in every step leaves after 30, and a
submarine has at most one shot in the water.
"""

from typing import NamedTuple

from numpy import float32, int32

from operant.envs import BLUE, GREEN, GREY, ORANGE, RED, YELLOW, IntState, device_call, integer, uniform
from operant.envs.minatar.board import FULL, LAST, bit, game, sticky_action, whole

# Rows of the state: position of the player, 1 if it faces right; oxygen, divers on board, 1 if it was at the surface in
# the last step; steps until it can fire, until the next enemy and the next diver; intervals of enemies and of their
# moves, number of ramps; last action; lengths of the lists.
(
    X,
    Y,
    FACES_RIGHT,
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

# offsets of the lists: enemies, their shots, the player's shots, divers; total capacity
ENEMIES, THEIRS, SHOTS, DIVERS, ITEMS = 0, 32, 64, 68, 72
CELL, RIGHTWARD, SUBMARINE = 255, 256, 512  # fields of an item: column + 16 row, and two flags
TIMER, SHOT_TIMER = 1 << 10, 1 << 14  # units of the timers, each below 16

AIR, CREW, DIVER_EVERY, COOL_DOWN = 200, 6, 30, 5
DIVER_TIMER, FIRST_ENEMY_EVERY, FIRST_MOVE_EVERY, LAST_MOVE_EVERY, SHOT_EVERY = 5, 20, 5, 2, 10


class Params(NamedTuple):
    """Parameters of Seaquest: probability of sticky actions, and growing difficulty."""

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
def append_item(s, items, count, first, end, item):
    """Append an item (a packed object) to the list stored in items[first:end], whose length is s[count]; dropped if the
    list is full.
    """
    slot = first + whole(s[count])
    if slot < end:
        items[slot] = item
        s[count] += float32(1.0)


@device_call
def remove_item(s, items, count, first, k):
    """Remove item k of the list stored from items[first] on, whose length is s[count]. The order of the others
    is kept.
    """
    s[count] -= float32(1.0)
    for slot in range(first + k, first + whole(s[count])):
        items[slot] = items[slot + 1]


@device_call
def move_item(item):
    """Move an item (packed object) one cell in its direction; returns the new item, or -1 if it left the board."""
    column = item & 15
    if item & RIGHTWARD != 0:
        return int32(-1 if column == LAST else item + 1)
    return int32(-1 if column == 0 else item - 1)


@device_call
def entering_item(row, right):
    """Make the item (packed object) that enters a row at the left side and moves right if `right` is true, else at the
    right side and moves left.
    """
    return int32(16 * row + (RIGHTWARD if right else LAST))


@device_call
def new_enemy(s, items, key):
    """Let a random enemy, fish or submarine, enter a random row, unless an enemy there moves the other way."""
    right, row = uniform(key, 1) < float32(0.5), 1 + integer(key, 3, 8)
    enemy = entering_item(row, right)
    for k in range(whole(s[ENEMY_COUNT])):
        other = whole(items[ENEMIES + k])
        if (other & CELL) >> 4 == row and (other ^ enemy) & RIGHTWARD != 0:
            return
    kind = SUBMARINE + SHOT_EVERY * SHOT_TIMER if uniform(key, 2) < float32(1 / 3) else 0
    append_item(s, items, ENEMY_COUNT, ENEMIES, THEIRS, enemy + kind + whole(s[MOVE_EVERY]) * TIMER)


@device_call
def move_player(s, items, action):
    """Execute the player's action: fire if the gun has cooled down, or move one cell."""
    if action == FIRE:
        if s[COOLING] == float32(0.0):
            facing = RIGHTWARD if s[FACES_RIGHT] != float32(0.0) else 0
            append_item(s, items, SHOT_COUNT, SHOTS, DIVERS, whole(s[X]) + 16 * whole(s[Y]) + facing)
            s[COOLING] = float32(COOL_DOWN)
    elif action == LEFT:
        s[X], s[FACES_RIGHT] = max(s[X] - float32(1.0), float32(0.0)), float32(0.0)
    elif action == RIGHT:
        s[X], s[FACES_RIGHT] = min(s[X] + float32(1.0), float32(LAST)), float32(1.0)
    elif action == UP:
        s[Y] = max(s[Y] - float32(1.0), float32(0.0))
    elif action == DOWN:
        s[Y] = min(s[Y] + float32(1.0), float32(LAST - 1))


@device_call
def find_item(items, first, count, cell, kind):
    """Index of the oldest item (packed object) that lies in `cell`, or -1 if there is none, in the list of `count`
    items from items[first] on. `kind` is SUBMARINE, or 0 for fish, shots and divers.
    """
    for k in range(count):
        item = whole(items[first + k])
        if item & CELL == cell and item & SUBMARINE == kind:
            return int32(k)
    return int32(-1)


@device_call
def move_shots(s, items):
    """Move the player's shots one cell, newest first, and remove those that hit an enemy together with it; returns the
    number of hits.
    """
    hits = float32(0.0)
    for k in range(whole(s[SHOT_COUNT]) - 1, -1, -1):
        shot = move_item(whole(items[SHOTS + k]))
        items[SHOTS + k] = shot
        hit = int32(-1)
        if shot >= 0:
            hit = find_item(items, ENEMIES, whole(s[ENEMY_COUNT]), shot & CELL, 0)
            if hit < 0:
                hit = find_item(items, ENEMIES, whole(s[ENEMY_COUNT]), shot & CELL, SUBMARINE)
        if hit >= 0:
            remove_item(s, items, ENEMY_COUNT, ENEMIES, hit)
            hits += float32(1.0)
        if hit >= 0 or shot < 0:
            remove_item(s, items, SHOT_COUNT, SHOTS, k)
    return hits


@device_call
def move_divers(s, items, player):
    """Move the divers, newest first, and take those in the cell `player` on board."""
    for k in range(whole(s[DIVER_COUNT]) - 1, -1, -1):
        diver = whole(items[DIVERS + k])
        has_space = s[ON_BOARD] < float32(CREW)
        aboard = has_space and diver & CELL == player
        if not aboard:
            if diver < TIMER:
                diver = move_item(diver)
                aboard = has_space and diver >= 0 and diver & CELL == player
                diver += DIVER_TIMER * TIMER if diver >= 0 else 0
            else:
                diver -= TIMER
        items[DIVERS + k] = diver
        if aboard:
            s[ON_BOARD] += float32(1.0)
        if aboard or diver < 0:
            remove_item(s, items, DIVER_COUNT, DIVERS, k)


@device_call
def move_enemies(s, items, player, kind):
    """Move fish (`kind` 0) or submarines (SUBMARINE), newest first. Returns the number hit by the player's shots, and
    whether one meets the player.
    """
    hits, over = float32(0.0), False
    for k in range(whole(s[ENEMY_COUNT]) - 1, -1, -1):
        enemy = whole(items[ENEMIES + k])
        if enemy & SUBMARINE == kind:
            over = over or enemy & CELL == player
            removed, shoots = False, kind == SUBMARINE and enemy < SHOT_TIMER
            if (enemy // TIMER) & 15 == 0:
                enemy = move_item(enemy)
                removed = enemy < 0
                if not removed:
                    enemy += whole(s[MOVE_EVERY]) * TIMER
                    over = over or enemy & CELL == player
                    shot = (
                        find_item(items, SHOTS, whole(s[SHOT_COUNT]), enemy & CELL, 0)
                        if enemy & CELL != player
                        else int32(-1)
                    )
                    if shot >= 0:
                        remove_item(s, items, SHOT_COUNT, SHOTS, shot)
                        hits += float32(1.0)
                        removed = True
                shoots = shoots and enemy >= 0
            else:
                enemy -= TIMER
            if shoots:  # even one that was hit in this step
                append_item(s, items, THEIR_COUNT, THEIRS, SHOTS, enemy & (CELL | RIGHTWARD))
            if kind == SUBMARINE:
                enemy += SHOT_EVERY * SHOT_TIMER if shoots else -SHOT_TIMER
            items[ENEMIES + k] = enemy
            if removed:
                remove_item(s, items, ENEMY_COUNT, ENEMIES, k)
    return hits, over


@device_call
def move_their_shots(s, items, player):
    """Move the enemies' shots one cell; returns whether one hits the cell `player`."""
    over = False
    for k in range(whole(s[THEIR_COUNT]) - 1, -1, -1):
        before = whole(items[THEIRS + k])
        shot = move_item(before)
        over = over or before & CELL == player or (shot >= 0 and shot & CELL == player)
        items[THEIRS + k] = shot
        if shot < 0:
            remove_item(s, items, THEIR_COUNT, THEIRS, k)
    return over


@device_call
def surface(s, p):
    """Surface with at least one diver on board: refill the oxygen, unload divers and raise the difficulty. Returns the
    reward.
    """
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
    """Consume oxygen under water, or surface, at the end of a step. Returns the reward and whether the game is over."""
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
    executed = sticky_action(whole(s[LAST_ACTION]), action, p, key)
    s[LAST_ACTION] = float32(executed)
    if s[NEXT_ENEMY] == float32(0.0):
        new_enemy(s, items, key)
        s[NEXT_ENEMY] = s[ENEMY_EVERY]
    if s[NEXT_DIVER] == float32(0.0):
        append_item(
            s,
            items,
            DIVER_COUNT,
            DIVERS,
            ITEMS,
            entering_item(1 + integer(key, 5, 8), uniform(key, 4) < float32(0.5)) + DIVER_TIMER * TIMER,
        )
        s[NEXT_DIVER] = float32(DIVER_EVERY)
    move_player(s, items, executed)

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
    """10-bit mask of the cells in row number `row` that contain an item of a list with `item & flag == value`, or with
    `behind` the trail of such an item. The list has `count` items from items[first] on.
    """
    mask = int32(0)
    for k in range(count):
        item = whole(items[first + k])
        if (item & CELL) >> 4 == row and item & flag == value:
            column = item & 15
            mask |= bit(column + (0 if not behind else -1 if item & RIGHTWARD != 0 else 1), True)
    return int32(mask)


@device_call
def masks(s, items, row):
    """10-bit masks of row number `row` of the board for each of the ten channels (see the module docstring)."""
    enemies, x, mine = whole(s[ENEMY_COUNT]), whole(s[X]), row == whole(s[Y])
    divers = whole(s[DIVER_COUNT])
    trails = row_of(items, ENEMIES, enemies, row, True, 0, 0) | row_of(items, DIVERS, divers, row, True, 0, 0)
    air = (1 << (max(whole(s[OXYGEN]), 0) * 10 // AIR)) - 1 if row == LAST else 0
    crew = (FULL >> 1) & ~(FULL >> (1 + max(whole(s[ON_BOARD]), 0))) if row == LAST else 0
    return (
        bit(x, mine),
        bit(x - 1 if s[FACES_RIGHT] != float32(0.0) else x + 1, mine),
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
