"""Vectorised environments: with any autoreset mode, steps equal those of single environments, and no step only
resets.
"""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from operant.config.sections import Environment
from operant.envs import outside
from operant.errors import OperantError
from operant.host.atari import Game
from operant.host.image import resized
from operant.host.source import Lane, Source
from operant.host.vectors import vector_class
from operant.worlds.host_world import HostWorld

gymnasium = pytest.importorskip("gymnasium")

TOYS = Path(__file__).parents[1] / "outside_toys.py"
PONG = outside.source("ale", "pong", Environment())


def steps_of(source, steps, *, processes=0, lanes=3, action=1, raw=None):
    """Outcomes of some steps with fixed actions, and the world."""
    env = outside.declare(source)
    world = HostWorld(replace(env, hosting=outside.Hosting(processes)), lanes, seed=2, raw=raw)
    slot, seen = world.slot(), []
    world.reset(slot)
    seen.append(slot.observation.clone())
    for _ in range(steps):
        slot.action.fill_(action)
        world.step(slot)
        seen += [value.clone() for value in (slot.observation, slot.reward, slot.terminated, slot.truncated)]
        ended = (slot.terminated | slot.truncated).bool()
        seen.append(slot.final_observation[:, ended].clone())
    world.advance(steps)
    return seen, world


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
def test_a_users_vector_environment_is_its_single_ones(mode):
    single, _ = steps_of(Source("file", f"{TOYS}:counting"), 25)
    many, world = steps_of(Source("file", f"{TOYS}:vector", (("mode", mode),)), 25)
    assert all(torch.equal(one, other) for one, other in zip(single, many, strict=True))
    assert world.episode_sums(world.slot()).tolist() == [6, 60, 60]


def test_processes_without_lanes_in_a_buffer_are_supported():
    _, world = steps_of(Source("file", f"{TOYS}:vector"), 10, processes=3, lanes=4)
    assert world.episode_sums(world.slot()).tolist() == [4, 40, 40]
    world.close()


def test_a_mode_that_takes_steps_to_reset_is_refused():
    with pytest.raises(OperantError, match=r"its autoreset mode is NEXT_STEP: make it with AutoresetMode.SAME_STEP"):
        outside.declare(Source("file", f"{TOYS}:vector", (("mode", "NEXT_STEP"),)))


def test_envpool_resets_ended_lanes_alone():
    pytest.importorskip("envpool")
    seen, world = steps_of(Source("envpool", "CartPole-v1"), 30)
    ends = 0
    for observation, reward, terminated, _, final in zip(*(seen[k::5] for k in (1, 2, 3, 4, 5)), strict=True):
        assert (reward == 1).all()  # a step that only resets would give 0
        ended = terminated.bool()
        ends += int(ended.sum())
        assert (observation[:, ended].abs() <= 0.05).all() and ((final[2].abs() > 0.2) | (final[0].abs() > 2.4)).all()
    assert ends > 6 and int(world.episode_sums(world.slot())[0]) == ends
    assert all(
        torch.equal(one, other)
        for one, other in zip(seen, steps_of(Source("envpool", "CartPole-v1"), 30)[0], strict=True)
    )


class Pool:
    """EnvPool's interface with `episodic_life`, as version 1.2.5 behaves: the step after an episode's end ignores its
    action and continues with the next life, `reset` begins another game, and a part of the lanes may be stepped.
    """

    observation_space = gymnasium.spaces.Box(0, 5, (2,))  # lives, steps of the life
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, num_envs):
        self.lives, self.age = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)

    def seen(self, lanes):
        mask = np.stack([self.age[lanes] == 0, np.ones(len(lanes))], axis=1)  # FIRE in an episode's first step only
        return np.stack([self.lives, self.age], 1).astype(np.float32)[lanes], {"env_id": lanes, "action_mask": mask}

    def reset(self, env_id=None):
        lanes = np.arange(len(self.lives)) if env_id is None else env_id
        self.lives[lanes], self.age[lanes] = 5, 0
        return self.seen(lanes)

    def step(self, action, env_id=None):
        lanes = np.arange(len(self.lives)) if env_id is None else env_id
        over = self.age[lanes] == 1 + lanes
        self.lives[lanes[over & (self.lives[lanes] == 0)]] = 5
        self.age[lanes] = np.where(over, 0, self.age[lanes] + 1)
        ended = self.age[lanes] == 1 + lanes
        self.lives[lanes[ended]] -= 1
        observation, info = self.seen(lanes)
        return observation, (~over).astype(np.float32), ended, np.zeros(len(lanes), np.bool_), info


@pytest.fixture
def pool(monkeypatch):
    made = SimpleNamespace(make_gymnasium=lambda name, *, num_envs, **settings: Pool(num_envs))
    monkeypatch.setitem(sys.modules, "envpool", made)
    yield
    outside.declare.cache_clear()


def test_a_lost_life_does_not_begin_another_game(pool):
    """Lanes lose a life every 1, 1 and 2 steps (of two pools); each episode begins with the lives that are left."""
    seen, _ = steps_of(Source("envpool", "Doubled-v5"), 18)
    for lane, life in enumerate((1, 1, 2)):
        begun = [int(seen[0][0, lane])]
        ended = [bool(terminated[lane]) for terminated in seen[3::5]]
        begun += [int(row[0, lane]) for row, end in zip(seen[1::5], ended, strict=True) if end]
        assert begun == ([5, 4, 3, 2, 1] * 5)[: len(begun)] and len(begun) == 18 // life + 1
        assert ended == [(step + 1) % life == 0 for step in range(18)]
    assert all((reward == 1).all() for reward in seen[2::5])  # no step only resets


def test_legal_actions_after_an_episodes_end_are_those_of_the_next(pool):
    world = HostWorld(replace(outside.declare(Source("envpool", "Doubled-v5")), hosting=outside.Hosting(0)), 3, seed=2)
    slot = world.slot()
    world.reset(slot)
    for _ in range(9):
        slot.action.fill_(1)
        world.step(slot)
        assert torch.equal(slot.legal[0] == 1, slot.observation[1] == 0)


def test_envpools_atari_lives_are_played_one_after_the_other():
    pytest.importorskip("envpool")
    source = Source("envpool", "Breakout-v5", (("episodic_life", True), ("use_fire_reset", True)))
    vector = vector_class(source)(source, 2, 1)
    vector.reset(np.ones(1, np.int64))
    lives = []
    while len(lives) < 7:
        done = vector.step(np.zeros(2, np.int64))
        if done.terminated[0]:
            lives.append(int(done.info["lives"][0]))
    assert lives == [4, 3, 2, 1, 0, 4, 3]


def test_a_game_that_is_not_there_is_named():
    pytest.importorskip("ale_py")
    with pytest.raises(
        OperantError, match=r"ale:pongg could not be made: ale-py has no game 'pongg' among its \d+, such as pong"
    ):
        outside.declare(Source("ale", "pongg"))


@pytest.mark.slow
def test_ale_steps_alike_in_however_many_processes():
    pytest.importorskip("ale_py")
    found = [steps_of(PONG._replace(time_limit=9), 20, processes=processes, action=2) for processes in (0, 2)]
    assert all(torch.equal(one, other) for one, other in zip(found[0][0], found[1][0], strict=True))
    found[1][1].close()


@pytest.mark.parametrize(
    ("said", "steps", "shown"), [({}, 12, 4), ({"frame_skip": 1}, 48, 4), ({"frame_skip": 6, "frame_stack": 1}, 8, 1)]
)
def test_a_games_action_is_repeated_frame_skip_times(said, steps, shown):
    """By default four times, with four frames stacked."""
    pytest.importorskip("ale_py")
    params = {"noop_max": 0, "use_fire_reset": False, "max_num_frames_per_episode": 48}
    lane = Lane(outside.source("ale", "breakout", Environment(params=params, **said)))
    row = np.zeros(lane.view.size, np.uint8)
    lane.reset(1, row)
    taken = 1
    while not lane.step(np.array([0]), row).truncated:
        taken += 1
    assert (taken, lane.view.shape) == (steps, (84, 84, shown))


@pytest.mark.slow
def test_ale_shows_frames_of_a_game():
    pytest.importorskip("ale_py")
    source = PONG._replace(time_limit=40)
    env = outside.declare(source)
    assert env.observation.shape == (84, 84, 4) and env.action.n == 6 and env.draws
    seen, world = steps_of(source, 45, lanes=2)
    assert all(torch.equal(one, other) for one, other in zip(seen, steps_of(source, 45, lanes=2)[0], strict=True))
    truncated = torch.stack(seen[4::5]).sum(dim=0)
    assert truncated.tolist() == [1, 1] and world.episode_sums(world.slot())[0] == 2
    assert len(np.unique(seen[-5].numpy())) > 2
    before, after = (observation.t().unflatten(1, env.observation.shape) for observation in (seen[156], seen[161]))
    assert torch.equal(before[..., 1:], after[..., :-1]) and not torch.equal(before, after), (
        "the newest frame is the last channel"
    )


@pytest.mark.slow
def test_a_game_is_that_of_ale_pys_own_vector_environment():
    """Rewards, ends and pictures, over starts from a reset and from a saved state."""
    pytest.importorskip("ale_py")
    from ale_py.vector_env import AtariVectorEnv

    theirs = AtariVectorEnv(
        "breakout", 1, noop_max=0, max_num_frames_per_episode=300, reward_clipping=False, autoreset_mode="SameStep"
    )
    mine = Game("breakout", noop_max=0, max_num_frames_per_episode=300)
    shown, seen = [theirs.reset(seed=5)[0]], [mine.reset(seed=5)[0].copy()]
    found: list[tuple[object, ...]] = []
    for action in np.random.default_rng(1).integers(0, 4, 200):
        observation, *theirs_said, _ = theirs.step(np.array([action]))
        picture, *mine_said, _ = mine.step(int(action))
        picture = mine.reset()[0] if any(mine_said[1:]) else picture
        shown.append(observation)
        seen.append(picture.copy())
        found.append((mine_said, [one[0] for one in theirs_said]))
    assert all(one == other for one, other in found) and sum(one[1] or one[2] for one, _ in found) == 2
    for one, other in zip(seen, shown, strict=True):
        assert np.abs(resized(one[..., None], 84, 84)[..., 0].astype(int) - other[0, -1]).max() <= 1


def test_every_episode_of_a_game_begins_with_its_own_picture():
    """Also without FIRE and without no-op frames."""
    pytest.importorskip("ale_py")
    game = Game("breakout", use_fire_reset=False, noop_max=0, max_num_frames_per_episode=80)
    first = game.reset(seed=0)[0].copy()
    while not any(game.step(1)[2:4]):
        pass
    assert np.array_equal(game.reset()[0], first)


def test_a_truncated_game_is_reset_even_with_episodic_lives():
    pytest.importorskip("ale_py")
    game = Game("breakout", noop_max=0, episodic_life=True)
    first = game.reset(seed=0)[0].copy()
    for _ in range(3):
        assert not any(game.step(2)[2:4])
    assert np.array_equal(game.reset()[0], first), "a time limit ends the game"
    while not game.step(0)[2]:
        pass
    assert not np.array_equal(game.reset()[0], first), "a lost life does not"


def test_an_action_does_not_stick_beyond_its_episode():
    """An episode that begins with FIRE would otherwise repeat the action before it and move the paddle."""
    pytest.importorskip("ale_py")
    game, paddle = (
        Game("breakout", repeat_action_probability=0.5, noop_max=0, max_num_frames_per_episode=60),
        slice(189, 193),
    )
    first = game.reset(seed=0)[0][paddle].copy()
    for _ in range(12):
        while not (done := game.step(2))[3]:
            pass
        assert not np.array_equal(done[0][paddle], first)
        game.reset()
        assert np.array_equal(game.step(0)[0][paddle], first)


def test_an_unknown_key_of_a_game_is_reported_with_the_known_ones():
    pytest.importorskip("ale_py")
    with pytest.raises(
        OperantError,
        match=r"ale:pong takes no env\.params\.stack_num: env.frame_skip.* env.params takes noop_max, use_fire",
    ):
        outside.declare(Source("ale", "pong", kwargs=(("stack_num", 4),)))


@pytest.mark.slow
def test_a_games_frames_are_preprocessed_on_the_learners_device():
    pytest.importorskip("ale_py")
    found = [steps_of(PONG._replace(time_limit=6), 14, lanes=2, action=2, raw=raw)[0] for raw in (False, True)]
    assert (
        all(torch.equal(one, other) for one, other in zip(*found, strict=True))
        and sum(len(one.unique()) for one in found[0][::5]) > 50
    )


@pytest.mark.parametrize(("kind", "package"), [("ale", "ale_py"), ("ale", "gymnasium"), ("envpool", "envpool")])
def test_a_missing_package_is_reported_with_its_install_command(kind, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        OperantError, match=rf'{kind}:missing needs .*, which is not installed: pip install "operant\[envs\]"'
    ):
        outside.declare(Source(kind, "missing"))
