"""Key bindings: every action can be reached, and `--keys` changes them."""

from dataclasses import replace

import pytest
from toys import COUNT, PICK, PUSH

from operant.envs import Box, Discrete, find, names
from operant.errors import UsageError
from operant.play.game import takes_turns
from operant.play.keys import RESERVED, BoardCursor, HeldKeys, KeyBindings, action_names


def test_every_environment_can_be_played():
    for name in names():
        env = find(name)
        buttons, board = KeyBindings(env), BoardCursor.of(env)
        reached = set()
        for count in (1, 2):
            for first in buttons.keys.values():
                reached.add(buttons.action([first]))
                reached |= {
                    buttons.action([first, second])
                    for second in buttons.keys.values()
                    if count == 2 and not buttons.excludes(first, second)
                }
        reached.add(buttons.action([]))
        if isinstance(env.action, Discrete) and env.action.n <= 10:
            assert reached - {None} == {(k,) for k in range(env.action.n)}, name
            assert env.actions == action_names(env) and len(env.actions) == env.action.n, name
        elif isinstance(env.action, Box):
            low, high = env.action.bounds()
            assert {action[0] for action in reached} >= {low[0], high[0]}
        else:
            assert board is not None or takes_turns(env), name  # its actions are typed
        assert not set(RESERVED) & set(buttons.keys), name


def words(env, *keys):
    buttons = KeyBindings(env)
    return buttons.action([buttons.keys[key] for key in keys])


def test_arrows_letters_and_digits():
    snake, breakout, cartpole, car = find("snake"), find("breakout"), find("cartpole"), find("mountaincar")
    assert [words(snake, key) for key in ("up", "right", "down", "left", "w", "d", "s", "a", "3")] == [
        (0,),
        (1,),
        (2,),
        (3,),
        (0,),
        (1,),
        (2,),
        (3,),
        (3,),
    ]
    assert [words(breakout, *keys) for keys in ((), ("left",), ("right",), ("0",), ("a", "d"))] == [
        (0,),
        (1,),
        (2,),
        (0,),
        (2,),
    ]
    assert [words(cartpole, *keys) for keys in ((), ("left",), ("right",))] == [None, (0,), (1,)]
    assert [words(car, *keys) for keys in ((), ("left",), ("right",))] == [(1,), (0,), (2,)], (
        "as Gymnasium numbers them"
    )
    assert [words(find("pong"), *keys) for keys in ((), ("up",), ("down",), ("s",))] == [(0,), (1,), (2,), (2,)]


SIX = replace(COUNT, action=Discrete(6), actions=("left", "stay", "right", "left+jump", "jump", "right+jump"))


def test_two_keys_together_are_an_action_of_their_own():
    assert [
        words(SIX, *keys)
        for keys in (
            (),
            ("left",),
            ("space",),
            ("left", "space"),
            ("space", "left"),
            ("up", "right"),
            ("left", "right", "space"),
        )
    ] == [
        (1,),
        (0,),
        (4,),
        (3,),
        (3,),
        (5,),
        (5,),
    ]
    buttons = KeyBindings(SIX)
    assert buttons.excludes("left", "right") and not buttons.excludes("left", "jump")
    assert buttons.named((3,)) == "left+jump"


def test_an_environment_may_name_its_actions():
    env = replace(COUNT, action=Discrete(3), actions=("wait", "fire", "north"))
    buttons = KeyBindings(env)
    assert action_names(env) == ("wait", "fire", "north")
    assert [words(env, *keys) for keys in ((), ("space",), ("enter",), ("2",))] == [(0,), (1,), (2,), (2,)]
    assert ("space",) in [key.keys for key in buttons.help()] and buttons.named((2,)) == "north"


def test_actions_without_names_are_numbers():
    assert [words(COUNT, *keys) for keys in ((), ("0",), ("1",))] == [None, (0,), (1,)]
    assert KeyBindings(COUNT).named((1,)) == "1" and KeyBindings(COUNT).help() == []
    with pytest.raises(UsageError, match=r"'left' is not an action; use 0 to 1$"):
        KeyBindings(COUNT).bind("left=left")


def test_names_that_share_words_are_keys_however_many_they_are():
    names = tuple(
        "+".join(filter(None, (way, up, fire))) or "stay"
        for way in ("", "left", "right")
        for up in ("", "up", "down")
        for fire in ("", "fire")
    )
    env = replace(COUNT, action=Discrete(18), actions=names)
    assert words(env, "left", "up", "space") == (names.index("left+up+fire"),) and words(env) == (0,)
    square = replace(env, action=Discrete(16), actions=names[:16])
    assert (
        BoardCursor.of(square) is None
        and BoardCursor.of(replace(square, actions=())) is not None
        and not takes_turns(square)
    )


def test_pushes_go_to_the_bounds():
    assert [words(PUSH, *keys) for keys in ((), ("left",), ("right",), ("up",), ("right", "up"), ("left", "down"))] == [
        (0.0, 0.0),
        (-1.0, 0.0),
        (1.0, 0.0),
        (0.0, 1.0),
        (1.0, 1.0),
        (-1.0, 0.0),
    ]
    unbounded = replace(COUNT, action=Box(1))
    assert words(unbounded, "left") == (-1.0,) and words(unbounded, "right") == (1.0,)
    assert words(replace(COUNT, action=Box(1, low=2.0, high=5.0))) == (2.0,), "rest lies within the bounds"
    assert KeyBindings(PUSH).excludes("-0", "+0") and not KeyBindings(PUSH).excludes("-0", "+1")


def test_multidiscrete_actions_follow_held_keys():
    assert [words(PICK, *keys) for keys in ((), ("right",), ("up",), ("right", "up"), ("left",))] == [
        (0, 0),
        (2, 0),
        (0, 1),
        (2, 1),
        (0, 0),
    ]


@pytest.mark.parametrize(
    ("env", "text", "key", "action"),
    [
        (SIX, "k=3", "k", (3,)),
        (SIX, " left = jump , x=left+jump", "left", (4,)),
        (SIX, "space=5,", "space", (5,)),
        (SIX, "", "left", (0,)),
        (PUSH, "k=+1", "k", (0.0, 1.0)),
        (PICK, "k=0:1", "k", (1, 0)),
    ],
)
def test_keys_can_be_changed(env, text, key, action):
    buttons = KeyBindings(env)
    buttons.bind(text)
    assert buttons.action([buttons.keys[key]]) == action


@pytest.mark.parametrize(
    ("env", "text", "said"),
    [
        (SIX, "left", "'left' is not KEY=ACTION"),
        (SIX, "left=", "is not KEY=ACTION"),
        (SIX, "left=6", "'6' is not an action; use 0 to 5, or left, stay"),
        (SIX, "left=-1", "is not an action"),
        (SIX, "q=1", "'q' is reserved"),
        (SIX, "esc=1", "'esc' is reserved"),
        (SIX, "F1=1", "'F1' is not a key"),
        (SIX, "\x1b[2J=1", "is not a key"),
        (PUSH, "left=1", "is not an action; use -0 or +0 to -1 and +1"),
        (PUSH, "left=+2", "is not an action"),
        (PICK, "left=1", "is not an action"),
        (PICK, "left=1:2", "is not an action"),
    ],
)
def test_keys_that_are_wrong_have_a_sentence(env, text, said):
    with pytest.raises(UsageError) as raised:
        KeyBindings(env).bind(text)
    assert said in str(raised.value) and "\x1b" not in str(raised.value)


def test_a_key_counts_for_a_while():
    held = HeldKeys(KeyBindings(SIX), first_s=0.25, again_s=0.1)
    assert held.press("left", 0.0) and held.words(0.2) == ["left"] and held.words(0.25) == []
    assert (
        held.press("left", 1.0) and held.press("left", 1.2) and held.words(1.29) == ["left"] and held.words(1.31) == []
    )
    held.press("left", 2.0)
    held.press("space", 2.1)
    assert held.words(2.2) == ["left", "jump"]
    held.press("right", 2.2)
    assert held.words(2.2) == ["jump", "right"], "right lets go of left"
    held.release()
    assert held.words(2.2) == [] and not held.press("F", 2.2)


def test_a_board_has_a_cursor():
    go = find("go")
    board, named = BoardCursor.of(go), KeyBindings(go).named
    assert (board.side, board.row, board.column, named(board.point)) == (9, 4, 4, "e5")
    assert all(board.press(key) for key in ("up", "up", "a")) and named(board.point) == "d7"
    assert (
        board.action("space") == (2 * 9 + 3,) == board.action("enter")
        and board.action("x") == (81,)
        and board.action("y") is None
    )
    for _ in range(4):
        board.press("left")
    assert named(board.point) == "j7", "beyond the edge is the other one; there is no column i"
    assert (named((0,)), named((80,)), named((81,))) == ("a9", "j1", "pass")
    assert BoardCursor.of(replace(COUNT, action=Discrete(16))).action("x") is None
    assert (
        BoardCursor.of(replace(COUNT, action=Discrete(9))) is None
        and BoardCursor.of(replace(COUNT, action=Discrete(23))) is None
        and BoardCursor.of(PUSH) is None
    )
