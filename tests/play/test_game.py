"""Games and the policy viewer with a fake clock: effects of keys and time, and what is shown. No terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys import COUNT, PUSH
from walk import WALK

from operant.envs import Discrete, find, names
from operant.nn import mlp
from operant.nn.policy import Policy
from operant.play import video
from operant.play.game import MOST_RATE, USUAL_RATE, Game, rate_of, takes_turns
from operant.play.halfblocks import Style
from operant.play.keys import KeyBindings
from operant.play.stage import Player, Stage
from operant.play.view import View
from operant.play.viewer import USUAL_FPS, Viewer

pytestmark = pytest.mark.usefixtures("one_thread")


class Seen(list):
    """Everything a game showed, as text."""

    def add(self, shown):
        self.append("\n".join([shown.score, shown.prompt, *shown.box]))

    def ever(self, words):
        return any(words in text for text in self)

    def last(self, words):
        return words in self[-1]


def driven(game, *script):
    """Play a game by a script of keys and of seconds between them."""
    now, seen = 100.0, Seen()
    seen.add(game.shown())
    for item in script:
        if isinstance(item, str):
            game.press(item, now)
            seen.add(game.shown())
        else:
            until = now + item
            while not game.done and game.due_s is not None and game.due_s <= until:
                now = max(now, game.due_s)
                game.tick(now)
                seen.add(game.shown())
            now = until
        if game.done:
            break
    return seen


def a_game(*script, env=WALK, turns, rate=10.0, keys=""):
    buttons = KeyBindings(env)
    buttons.bind(keys)
    stage = Stage(env, env.Params(), seed=1)
    game = Game(stage, buttons, turns=turns, rate=rate, title=env.name or "toy")
    seen = driven(game, *script)
    return game.score, stage, seen


# A PERSON'S GAME


def test_in_turns_a_game_waits_for_keys():
    score, stage, seen = a_game(5, "right", 3, "d", "2", "right", turns=True)
    assert (
        (score.returns, score.steps) == ([], 4) and stage.observation.tolist() == [[4.0]] and stage.ages.tolist() == [4]
    )
    assert seen.last("return 10.0   step 4   right   sum 8") and seen.last("walk   ? keys, p pause, r restart, q quit")


def test_in_turns_a_game_ends_and_begins_again():
    score, stage, seen = a_game(*["right"] * 5, "right", "left", "r", "right", turns=True)
    assert score.returns == [15.0] and score.steps == 6 and stage.observation.tolist() == [[1.0]]
    assert seen.ever("game over: return 15.0 in 5 steps\nr restart   q quit") and not seen.last("game over")


def test_an_illegal_action_is_refused_with_a_line():
    score, stage, seen = a_game("left", "1", "right", "left", turns=True)
    assert (
        score.steps == 2
        and stage.observation.tolist() == [[0.0]]
        and seen.ever("left is not legal now")
        and not seen.last("not legal")
    )


def test_against_the_clock_a_game_goes_on_by_itself():
    score, stage, seen = a_game(2, "space", 1.0, turns=False)
    assert (
        seen.ever("press an arrow or space to start")
        and score.steps == pytest.approx(10, abs=1)
        and stage.observation.tolist() == [[0.0]]
    )


def test_a_key_is_held_for_a_few_steps_and_then_let_go():
    score, stage, _ = a_game("right", 2.0, turns=False)
    assert stage.observation.item() in (2.0, 3.0) and score.steps == pytest.approx(20, abs=1)
    assert a_game("right", 3.0, turns=False, rate=2.0)[1].observation.item() in (1.0, 2.0), (
        "however slow, a key is a step"
    )


def test_an_illegal_key_does_not_stop_the_clock():
    score, stage, seen = a_game("left", 2.0, turns=False)
    assert (
        seen.ever("left is not legal now")
        and score.steps == pytest.approx(20, abs=1)
        and stage.observation.item() == 0.0
    )


def test_pause_and_help_stop_the_clock():
    score, _, seen = a_game("space", 0.55, "p", 5, "x", 0.5, "?", 5, "q", 0.5, turns=False)
    assert seen.ever("paused: press any key") and score.steps == pytest.approx(15, abs=2)
    assert seen.ever("right, d, down, s  right") and seen.ever("left, a, up, w     left")
    assert seen.ever(f"{'0-2':17}  action by number") and seen.ever(f"{'q, esc':17}  quit")
    assert seen.ever("any key closes the list of keys")
    assert not seen.last("paused") and not seen.last("an action by its number")


def test_r_restarts_at_once_and_esc_leaves():
    score, stage, _ = a_game("right", "right", "r", "right", "esc", "right", "right", turns=True)
    assert score.steps == 3 and stage.ages.tolist() == [1]


def test_time_limit_ends_the_game():
    score, stage, seen = a_game("space", 6.0, turns=False)
    assert score.returns == [0.0] and stage.ages.tolist() == [40] and seen.last("time limit: return 0 in 40 steps")


def test_without_rest_the_last_action_stays():
    score, stage, seen = a_game("up", 0.45, env=find("snake"), turns=False)
    assert stage.action.tolist() == [[0]] and score.steps >= 3 and seen.last("   up")


def test_box_actions_follow_held_keys():
    score, stage, _ = a_game("left", 0.35, env=PUSH, turns=False)
    assert score.steps == 3 and stage.action[:, 0].tolist() in ([-1.0, 0.0], [0.0, 0.0])
    assert a_game("right", "up", 0.15, env=PUSH, turns=False)[1].action[:, 0].tolist() == [1.0, 1.0]


POINTS = tuple(f"{column}{row}" for row in range(5, 0, -1) for column in "abcde")


def test_a_board_is_played_with_a_cursor():
    env = replace(WALK, action=Discrete(26), legal=None, actions=(*POINTS, "pass"))
    score, stage, seen = a_game("up", "left", "space", "x", env=env, turns=True)
    assert (
        score.steps == 2
        and seen.ever("b4   arrows move, space plays, x passes")
        and seen.last("pass")
        and stage.action.tolist() == [[25]]
    )
    assert takes_turns(env)


def test_keys_of_ones_own_play_on_a_board():
    env = replace(WALK, action=Discrete(25), legal=None, actions=POINTS)
    score, stage, seen = a_game("up", "z", "right", "?", "q", env=env, turns=True, keys="z=b5,right=e1")
    assert (
        score.steps == 2
        and stage.action.tolist() == [[24]]
        and seen.ever("c4   arrows move")
        and seen.ever("   b5")
        and seen.ever("   e1")
    )
    assert seen.ever("z".ljust(14) + "b5")


def test_actions_without_keys_are_typed():
    env = replace(WALK, action=Discrete(23), legal=None, actions=())
    score, stage, seen = a_game(
        "1", "x", "2", "3", "backspace", "enter", "enter", "9", "9", "enter", env=env, turns=True
    )
    assert (
        score.steps == 1
        and stage.action.tolist() == [[12]]
        and seen.last("99 is not an action: 0 to 22")
        and seen.ever("action 123_")
    )


def test_which_games_are_played_in_turns():
    assert [name for name in names() if takes_turns(find(name))] == ["concentration", "count_recall", "g2048", "go"]
    assert not takes_turns(WALK) and takes_turns(replace(WALK, turns=True)) and not takes_turns(COUNT)
    assert takes_turns(replace(COUNT, action=Discrete(23))) and takes_turns(replace(COUNT, action=Discrete(82)))
    assert rate_of(None) == USUAL_RATE and rate_of(4 / 60) == pytest.approx(15) and rate_of(0.001) == MOST_RATE


# WHAT A LANE LOOKS LIKE


def characters(rows):
    return ["".join(character for character, *_ in row) for row in rows]


def test_without_a_picture_there_are_numbers():
    env = replace(WALK, pixel_shader=None)
    _, stage, _ = a_game("right", "right", env=env, turns=True)
    rows = characters(View(stage).rows(60, 18, Style(True, True)))
    assert rows[0].strip() == "2" and {len(row) for row in rows} == {60} and len(rows) == 18
    snake = replace(find("snake"), pixel_shader=None)
    assert "more values" in characters(View(Stage(snake, snake.Params(), seed=1)).rows(40, 8, Style(True, True)))[7]


def test_the_picture_is_what_the_environment_draws_and_fits():
    _, stage, _ = a_game("right", "right", turns=True)
    rows = View(stage).rows(60, 18, Style(True, True))
    # 18 lines of two pixels: a square of 36, in the middle.
    pixels = [b"\xff\0\0" if int((x + 0.5) / 36 * 5) == 2 else b"\0\0\xff" for x in range(36)]
    assert [row[12:48] for row in rows] == [[(" ", None, pixel) for pixel in pixels]] * 18
    assert all(row[x] == (" ", None, None) for row in rows for x in (0, 11, 48, 59))
    assert characters(View(stage, largest=10).rows(60, 18, Style(True, True)))[:6] == [" " * 60] * 6


def test_the_cursor_marks_the_corners_of_its_square():
    _, stage, _ = a_game(turns=True)
    plain, marked = (View(stage).rows(20, 10, Style(True, True), mark) for mark in (None, (0.5, 0.5, 0.1)))
    changed = [(x, y) for y in range(10) for x in range(20) if plain[y][x] != marked[y][x]]
    assert len(changed) == 4 and len({x for x, _ in changed}) == len({y for _, y in changed}) == 2


# A POLICY THAT IS WATCHED


def watched(*script, env, episodes=3, fps=20.0):
    stage = Stage(env, env.Params(), seed=1)
    policy = Policy(env, mlp.Config(hidden=(8,)), seed=2, device=torch.device("cpu"), normalize=False)
    pace = video.pace(stage.step_s, fps, 1 if fps is not None else None, usual_fps=USUAL_FPS)
    viewer = Viewer(stage, Player(stage, policy, greedy=True), title="a run", episodes=episodes, pace=pace)
    seen = driven(viewer, *script)
    return viewer.result, seen


def test_watching_ends_after_so_many_episodes():
    watch, seen = watched(600, env=find("cartpole"))
    assert len(watch.returns) == 3 and watch.steps == sum(watch.returns)
    assert (
        seen.ever("episode 1 of 3   step 0   return 0   action -")
        and seen.ever("episode 3 of 3")
        and seen.ever("mean of 2: ")
    )
    assert seen.last("a run   space pauses, q quits")
    assert seen.ever(f"step {int(watch.returns[0])}   return {watch.returns[0]:.3g}"), "the end is seen"


@pytest.mark.parametrize("key", ["q", "esc"])
def test_watching_ends_with_a_key(key):
    watch, _ = watched(0.26, key, 600, env=find("cartpole"))
    assert watch.returns == [] and watch.steps == pytest.approx(5, abs=1)


def test_watching_pauses():
    watch, seen = watched(0.26, "space", 30, "space", 0.26, "q", env=find("cartpole"))
    assert seen.ever("paused: space resumes") and watch.steps == pytest.approx(12, abs=2)


def test_watching_keeps_the_environments_pace():
    assert watched(1.01, "q", env=find("pendulum"), fps=None)[0].steps == pytest.approx(20, abs=2)  # 0.05 s a step
    watch, seen = watched(1.01, "q", env=find("swingup"), fps=None)
    assert watch.steps == pytest.approx(60, abs=4) and len(seen) < 40, "two steps a picture"
