"""Lane body against hand-worked values and a plain Python reference, random numbers included."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy import float32
from toys import FILL, FILL_IN_SHARDS, GATE, GATE_IN_SHARDS

from operant import envs
from operant.compute.device import device_params
from operant.compute.kernel import SERIAL_BELOW, Kernel
from operant.compute.rng import RESET, STEP, integer, uniform
from operant.envs import Box, Discrete, Env, IntState, MultiDiscrete, cartpole, device, with_pixels
from operant.errors import OperantError
from operant.worlds.device_world import DeviceWorld
from operant.worlds.lane import shards_body
from operant.worlds.pixels import Scene

# --- a counter: every number can be worked out by hand ---

TIME_LIMIT = 5


class CountParams(NamedTuple):
    goal: int = 7
    scale: float = 0.5


@device
def count_reset(s, p, key):
    s[0] = float32(0.0)


@device
def count_step(s, action, p, key, tally):
    s[0] += float32(action)
    tally[0] += float32(action)
    if action == 0:
        tally[1] += float32(1.0)
    return s[0] * p.scale, s[0] >= p.goal


@device
def count_observe(s, obs, p):
    obs[0] = s[0]
    obs[1] = p.goal - s[0]


COUNT = Env(
    CountParams,
    1,
    observation=Box(2),
    action=Discrete(8),
    time_limit=TIME_LIMIT,
    reset=count_reset,
    step=count_step,
    observe=count_observe,
    tally=("moved", "rests"),
)

# --- a grid: cells, workspace, tally, several discrete actions, byte observations, random numbers in reset and in step
# ---

SIDE = 4
SQUARES = SIDE * SIDE
AGENT_X, AGENT_Y, GRID_FIELDS = range(3)


class GridParams(NamedTuple):
    coins: int = 3
    spawn: float = 0.125
    worth: float = 0.25


@device
def grid_reset(s, cells, workspace, p, key):
    s[AGENT_X] = integer(key, 0, SIDE)
    s[AGENT_Y] = integer(key, 1, SIDE)
    for square in range(SQUARES):
        cells[square] = 0
    for k in range(p.coins):
        cells[integer(key, 2 + k, SQUARES)] += 1


@device
def grid_step(s, cells, workspace, action, p, key, tally):
    s[AGENT_X] = min(max(s[AGENT_X] + action[0] - 1, 0), SIDE - 1)
    s[AGENT_Y] = min(max(s[AGENT_Y] + action[1] - 1, 0), SIDE - 1)
    here = int(s[AGENT_Y]) * SIDE + int(s[AGENT_X])
    found = cells[here]
    cells[here] = 0
    tally[0] += found
    if uniform(key, 0) < p.spawn:
        cells[integer(key, 1, SQUARES)] += 1
    # Coins in each row, kept in the workspace column: the episode ends when only one is left.
    for y in range(SIDE):
        workspace[y] = 0
        for x in range(SIDE):
            workspace[y] += cells[y * SIDE + x]
    left = 0
    for y in range(SIDE):
        left += workspace[y]
    return found * p.worth, left < p.coins - 1


@device
def grid_observe(s, cells, workspace, obs, p):
    obs[0] = int(s[AGENT_X])
    obs[1] = int(s[AGENT_Y])
    for square in range(SQUARES):
        obs[2 + square] = cells[square] + 200


GRID = Env(
    GridParams,
    GRID_FIELDS,
    observation=Box(2 + SQUARES, 0, 255, dtype="uint8"),
    action=MultiDiscrete((3, 3)),
    time_limit=9,
    reset=grid_reset,
    step=grid_step,
    observe=grid_observe,
    int_state=IntState(SQUARES, "int8"),
    workspace=SIDE,
    tally=("coins",),
)


def philox_block(seed: int, lane: int, tick: int, purpose: int, draw: int) -> int:
    """First word of a draw, after Salmon et al. 2011, in plain integers."""
    low = 0xFFFFFFFF
    counter = [lane, tick & low, tick >> 32, purpose << 16 | draw]
    key = [seed & low, seed >> 32]
    for _ in range(10):
        product_0, product_1 = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (product_1 >> 32) ^ counter[1] ^ key[0],
            product_1 & low,
            (product_0 >> 32) ^ counter[3] ^ key[1],
            product_0 & low,
        ]
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    return counter[0]


class GridLane:
    """Single lane of the grid in plain Python: rules, time limit, reset and sums."""

    def __init__(self, seed: int, lane: int, tick: int) -> None:
        self.seed, self.lane = seed, lane
        self.finished = [0.0, 0.0, 0.0, 0.0]
        self.reset(tick)

    def integer(self, tick: int, purpose: int, draw: int, n: int) -> int:
        return philox_block(self.seed, self.lane, tick, purpose, draw) * n >> 32

    def reset(self, tick: int) -> None:
        self.x, self.y = self.integer(tick, RESET, 0, SIDE), self.integer(tick, RESET, 1, SIDE)
        self.cells = [0] * SQUARES
        for k in range(3):
            self.cells[self.integer(tick, RESET, 2 + k, SQUARES)] += 1
        self.age, self.sums = 0, [0.0, 0.0]

    def observation(self) -> list[int]:
        return [self.x, self.y, *(cell + 200 for cell in self.cells)]

    def step(self, tick: int, action: tuple[int, int]) -> tuple[float, bool, bool, list[int]]:
        self.x, self.y = (
            min(max(at + move - 1, 0), SIDE - 1) for at, move in zip((self.x, self.y), action, strict=True)
        )
        here = self.y * SIDE + self.x
        found, self.cells[here] = self.cells[here], 0
        if (philox_block(self.seed, self.lane, tick, STEP, 0) >> 8) * 2.0**-24 < 0.125:
            self.cells[self.integer(tick, STEP, 1, SQUARES)] += 1
        self.age += 1
        self.sums = [self.sums[0] + 0.25 * found, self.sums[1] + found]
        terminated, truncated, final = sum(self.cells) < 2, self.age >= 9, self.observation()
        if terminated or truncated:
            self.finished = [a + b for a, b in zip(self.finished, [1, self.age, *self.sums], strict=True)]
            self.reset(tick)
        return 0.25 * found, terminated, truncated, final


def step_once(world: DeviceWorld, slot, action) -> None:
    """Step all lanes with actions (A, N)."""
    slot.action.copy_(torch.as_tensor(action))
    world.step(world.bind(slot))
    world.advance(1)


def started(env: Env, lanes: int, **options):
    world = DeviceWorld(env, lanes, **{"seed": 1, "every_final": True} | options)
    slot = world.slot()
    world.reset(world.bind(slot))
    return world, slot


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name].numpy(), b[name].numpy(), err_msg=name)


# --- the grid against its reference ---


def test_grid_follows_the_plain_python_reference():
    # Words with the top bit set; lanes that wrap around, and a tick that crosses 32 bits.
    N, seed, lane0, ticks = 6, 0x7EADBEEF_CAFEBABE, 2**32 - 3, 2**32 - 11
    world = DeviceWorld(GRID, N, every_final=True, seed=seed, lane0=lane0)
    slot = world.slot()
    world.lanes.tick.fill_(ticks)
    world.reset(world.bind(slot))
    lanes = [GridLane(seed, (lane0 + i) & 0xFFFFFFFF, ticks) for i in range(N)]
    assert slot.observation.dtype is torch.uint8
    assert slot.observation.T.tolist() == [lane.observation() for lane in lanes]

    terminations = truncations = 0
    sums = torch.zeros(4, dtype=torch.float64)
    actions = np.random.default_rng(3).integers(0, 3, (40, 2, N))
    for t in range(40):
        slot.final_observation.fill_(77)
        step_once(world, slot, actions[t])
        sums += world.episode_sums(slot)
        expected = [lane.step(ticks + 1 + t, tuple(actions[t, :, i])) for i, lane in enumerate(lanes)]
        rewards, terminated, truncated, final = zip(*expected, strict=True)
        assert slot.reward.tolist() == list(rewards)
        assert slot.terminated.bool().tolist() == list(terminated)
        assert slot.truncated.bool().tolist() == list(truncated)
        assert slot.observation.T.tolist() == [lane.observation() for lane in lanes]
        assert world.lanes.int_state.T.tolist() == [lane.cells for lane in lanes]
        assert world.lanes.age.tolist() == [lane.age for lane in lanes]
        assert world.lanes.running.T.tolist() == [lane.sums for lane in lanes]
        for i in range(N):
            wanted = final[i] if terminated[i] or truncated[i] else [77] * (2 + SQUARES)
            assert slot.final_observation[:, i].tolist() == wanted
        terminations, truncations = terminations + sum(terminated), truncations + sum(truncated)
    assert terminations > 0 and truncations > 0  # or the test has shown nothing of them
    assert world.lanes.tick.item() == ticks + 41
    assert sums.tolist() == np.sum([lane.finished for lane in lanes], axis=0).tolist()


# --- legal actions ---


def test_legal_actions_are_those_of_the_state_shown():
    """Boards in plain Python, under legal and illegal actions, also after a reset. Lanes continue after an illegal
    action.
    """
    world, slot = started(FILL, 5)
    assert slot.legal.shape == (6, 5) and slot.legal.dtype is torch.uint8
    generator, illegal = np.random.default_rng(1), 0
    for _ in range(40):
        boards = slot.observation.T.tolist()
        assert slot.legal.T.tolist() == [[1 - square for square in board] for board in boards]
        actions = generator.integers(0, 6, (1, 5))
        slot.legal.fill_(9)
        step_once(world, slot, actions)
        illegal += sum(board[action] for board, action in zip(boards, actions[0], strict=True))
        for i, (board, action) in enumerate(zip(boards, actions[0], strict=True)):
            board[action] = 1
            if not (slot.terminated[i] or slot.truncated[i]):
                assert slot.observation[:, i].tolist() == board
            else:
                assert sum(slot.observation[:, i].tolist()) == 1
    assert illegal > 10


@pytest.mark.parametrize("env", [FILL, GATE], ids=["with cells", "without"])
def test_a_rollout_keeps_the_legal_actions_of_every_step(env):
    world, slot = started(env, 7)
    T, H = 5, env.mask_size
    rollout = world.slot(T)
    assert rollout.legal.shape == (T + 1, H, 7)
    other, _ = started(env, 7)
    other.lanes.tick.fill_(0)
    other.reset(other.bind(rollout, -1))
    assert torch.equal(rollout.legal[0], slot.legal) and torch.equal(rollout.observation[0], slot.observation)
    for t in range(T):
        action = torch.full((env.action_size, 7), t % 2, dtype=torch.int32)
        step_once(world, slot, action)
        rollout.action[t] = action
        other.step(other.bind(rollout, t), offset=t)
        assert torch.equal(rollout.legal[t + 1], slot.legal) and torch.equal(
            rollout.observation[t + 1], slot.observation
        )
    assert len({tuple(step.flatten().tolist()) for step in rollout.legal}) > 1


def test_without_legal_actions_there_is_no_mask_buffer():
    assert DeviceWorld(COUNT, 3, seed=1).slot(2).legal is None
    assert COUNT.mask_size == 0 and FILL.mask_size == 6 and GATE.mask_size == 5


# --- observations in shards ---


@pytest.mark.parametrize(
    ("whole", "parted", "threads", "every_final"),
    [
        (FILL, FILL_IN_SHARDS, None, False),
        pytest.param(FILL, FILL_IN_SHARDS, 2, True, marks=pytest.mark.slow),
        (FILL, FILL_IN_SHARDS, 1, False),
        (GATE, GATE_IN_SHARDS, 3, True),
    ],
    ids=["a thread a shard", "two threads", "one thread", "without cells"],
)
def test_sharded_observations_equal_unsharded_ones(whole, parted, threads, every_final):
    """Every buffer and step, for any number of threads, including final observations that are not written."""
    N, generator, ends = 9, np.random.default_rng(2), 0
    (world, slot), (other, other_slot) = (
        started(whole, N, every_final=True),
        started(parted, N, every_final=every_final, threads=threads),
    )
    for _ in range(40):
        for given in (slot, other_slot):
            given.final_observation.fill_(7)
        actions = np.stack([generator.integers(0, n, N) for n in ((6,) if whole is FILL else (3, 2))])
        step_once(world, slot, actions)
        step_once(other, other_slot, actions)
        for name in ("observation", "reward", "terminated", "truncated", "legal"):
            assert torch.equal(getattr(slot, name), getattr(other_slot, name)), name
        asked = slot.truncated.bool() & ~slot.terminated.bool() | (
            slot.terminated.bool() if every_final else torch.tensor(False)
        )
        assert torch.equal(
            other_slot.final_observation, torch.where(asked, slot.final_observation, torch.tensor(7, dtype=torch.uint8))
        )
        assert_same(world.state(), other.state())
        ends += int(asked.sum())
    assert ends > 10


@pytest.mark.parametrize(
    ("env", "threads"), [(FILL_IN_SHARDS, 4), (FILL_IN_SHARDS, 0), (FILL, 2), (with_pixels(FILL_IN_SHARDS, 16), 2)]
)
def test_more_threads_than_shards_are_refused(env, threads):
    with pytest.raises(ValueError, match=f"^{threads} threads a lane"):
        DeviceWorld(env, 2, seed=1, threads=threads)


GAMES = [name for name in envs.names() if envs.find(name).observation_shards]


@pytest.mark.parametrize("name", [GAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in GAMES[1:])])
def test_a_games_shards_do_not_depend_on_thread_or_order(name):
    """To the bit, in states of a game: one thread per shard, one thread for all, and another order of shards."""
    env, N, generator = envs.find(name), 32, np.random.default_rng(3)
    world, slot = started(env, N, every_final=True)
    bound, scene = world.bind(slot), Scene(*(rows.numpy() for rows in (world.lanes.state, world.lanes.int_state)))
    one, each = (
        Kernel(shards_body(env, world.params, threads), torch.device("cpu")) for threads in (1, env.observation_shards)
    )
    for t in range(120):
        step_once(world, slot, generator.integers(0, env.action.n, (1, N)))
        if t % 20 == 0:
            written = [buffer for buffer in (slot.observation, slot.legal) if buffer is not None]
            right = [buffer.clone() for buffer in written]
            for backwards in (False, True):
                for buffer in written:
                    buffer.fill_(85)
                for shard in reversed(range(env.observation_shards)) if backwards else ():
                    each(N, scene, bound, shard)
                if not backwards:
                    one(N, scene, bound)
                assert all(torch.equal(wanted, buffer) for wanted, buffer in zip(right, written, strict=True)), (
                    t,
                    backwards,
                )


# --- pictures as observations ---


def fill_picture(board: list[int], side: int = 16) -> list[list[list[int]]]:
    """Picture of a FILL board, row by row, from its rules: 255 is white, 128 grey, red if the number of stones is
    odd.
    """
    columns = [255 if board[int((column + 0.5) / side * len(board))] else 128 for column in range(side)]
    upper = [[level, 0, 0] if sum(board) % 2 else [level] * 3 for level in columns]
    return [upper] * (side // 2) + [[[level] * 3 for level in columns]] * (side // 2)


def shown(observation: torch.Tensor) -> list:
    """Observations (O, N) as N pictures."""
    return observation.t().unflatten(1, (16, 16, 3)).tolist()


@pytest.mark.parametrize("every_final", [True, False])
def test_pictures_are_those_of_boards_in_plain_python(every_final):
    """Picture of the state after a step, of the final state before a reset, and of the next episode; rules and random
    numbers equal those without pictures.
    """
    N, env = 6, with_pixels(FILL, 16)
    plain, plain_slot = started(FILL, N, every_final=True)
    world, slot = started(env, N, every_final=every_final)
    generator, seen = np.random.default_rng(2), {"truncated": 0, "terminated": 0}
    assert slot.observation.shape == (768, N) and slot.observation.stride() == (1, 768)
    for _ in range(30):
        assert shown(slot.observation) == [fill_picture(board) for board in plain_slot.observation.T.tolist()]
        assert torch.equal(slot.legal, plain_slot.legal)
        slot.final_observation.fill_(7)
        actions = generator.integers(0, 6, (1, N))
        step_once(plain, plain_slot, actions)
        step_once(world, slot, actions)
        for name in ("reward", "terminated", "truncated"):
            assert torch.equal(getattr(slot, name), getattr(plain_slot, name))
        pictures = shown(slot.final_observation)
        for i, board in enumerate(plain_slot.final_observation.T.tolist()):
            terminated, truncated = bool(slot.terminated[i]), bool(slot.truncated[i])
            seen["terminated"] += terminated
            seen["truncated"] += truncated and not terminated
            wanted = (truncated or terminated) if every_final else truncated and not terminated
            assert pictures[i] == (fill_picture(board) if wanted else [[[7] * 3] * 16] * 16)
        assert_same(plain.state(), world.state())
        assert torch.equal(plain.episode_sums(plain_slot), world.episode_sums(slot))
    assert seen["truncated"] > 10


def test_a_picture_at_the_end_by_hand():
    """Two lanes of a board with one stone in square 0: lane 0's third stone truncates it in step four, and lane 1 fills
    its board.
    """
    world, slot = started(with_pixels(FILL, 16), 2, every_final=False)
    world.lanes.int_state.copy_(torch.tensor([[1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0]]).t())
    world.lanes.state[0] = torch.tensor([1.0, 5.0])
    world.lanes.age.fill_(3)
    slot.final_observation.fill_(7)
    step_once(world, slot, [[2, 5]])
    assert (
        slot.truncated.tolist() == [1, 1] and slot.terminated.tolist() == [0, 1] and slot.reward.tolist() == [2.0, 5.0]
    )
    final = shown(slot.final_observation)
    assert final[0] == fill_picture([1, 0, 1, 0, 0, 0])  # even: grey and white alone
    assert final[0][0][:4] == [[255] * 3, [255] * 3, [255] * 3, [128] * 3] and final[1][0][0] == [7] * 3
    assert [sum(row[0] == 255 for row in picture[15]) for picture in shown(slot.observation)] in (
        [3, 3],
        [2, 3],
        [3, 2],
        [2, 2],
    )  # one stone each, anew


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(50, marks=pytest.mark.slow), None]
)
def test_a_rollout_holds_every_final_picture(limit):
    """However short its episodes, each picture is where `final_window` says, and no later one replaces it."""
    N, T, env = 5, 7, dataclasses.replace(FILL, time_limit=limit)
    world, other = DeviceWorld(with_pixels(env, 16), N, seed=1), DeviceWorld(env, N, seed=1)
    rollout, plain = world.slot(T), other.slot(T)
    assert rollout.observation.shape == (T + 1, 768, N)
    if limit is None:
        assert rollout.final_observation is None and not world.can_truncate
    else:
        assert world.final_window == limit and len(rollout.final_observation) == -(-T // limit)
    truncated = 0
    for turn in range(4):
        if turn == 0:
            world.reset(world.bind(rollout, -1))
            other.reset(other.bind(plain, -1))
        else:
            rollout.observation[0].copy_(rollout.observation[T])
            plain.observation[0].copy_(plain.observation[T])
        for t in range(T):
            action = torch.full((1, N), (3 * turn + t) % 6, dtype=torch.int32)
            rollout.action[t], plain.action[t] = action, action
            world.step(world.bind(rollout, t), t)
            other.step(other.bind(plain, t), t)
        world.advance(T)
        other.advance(T)
        assert torch.equal(rollout.truncated, plain.truncated) and torch.equal(rollout.reward, plain.reward)
        for t in range(T + 1):
            assert shown(rollout.observation[t]) == [fill_picture(board) for board in plain.observation[t].T.tolist()]
        for t, i in (rollout.truncated * (1 - rollout.terminated)).nonzero().tolist():
            truncated += 1
            assert shown(rollout.final_observation[t // world.final_window])[i] == fill_picture(
                plain.final_observation[t, :, i].tolist()
            )
    assert truncated > 0 or limit in (50, None)


def test_an_environment_without_a_shader_has_no_picture_observations():
    with pytest.raises(OperantError, match="draws no picture"):
        with_pixels(COUNT, 16)


def test_seed_stream_and_tick_each_change_the_numbers():
    first = started(GRID, 64)[1].observation
    assert torch.equal(first, started(GRID, 64)[1].observation)
    assert not torch.equal(first, started(GRID, 64, seed=2)[1].observation)
    assert not torch.equal(first, started(GRID, 64, seed=1 + 2**32)[1].observation)
    assert not torch.equal(first, started(GRID, 64, stream=1)[1].observation)
    world, slot = started(GRID, 64)
    world.reset(world.bind(slot))
    assert not torch.equal(first, slot.observation)


# --- time limit, reset and sums, by hand ---


def test_held_noise_lasts_its_steps_and_changes_at_another_step_in_the_next_lane():
    world, noise, parts = DeviceWorld(envs.find("cartpole"), 6, seed=1), torch.zeros(10, 3, 6), []
    for _ in range(3):
        world.noise(noise, hold=4)
        parts.append(noise.clone())
        world.advance(10)
    held, fresh = torch.cat(parts), torch.zeros(9, 3, 6)
    world.seek(0)
    world.noise(fresh)
    for lane in range(6):
        expected = [fresh[(t + lane % 4) // 4, :, lane] for t in range(30)]
        assert torch.equal(held[:, :, lane], torch.stack(expected))
    assert len(fresh.unique()) == fresh.numel()


def test_ends_resets_and_sums_worked_by_hand():
    # Lane 0 rests: truncated at 5. Lane 1 moves by 3: terminated at 9 >= 7 in its third step. Lane 2 moves 1, 1, 1, 1,
    # 4: both at once, in its fifth.
    actions = np.array([[0, 0, 0, 0, 0, 0], [3, 3, 3, 3, 3, 3], [1, 1, 1, 1, 4, 2]], dtype=np.int32)
    world, slot = started(COUNT, 3)
    slot.final_observation.fill_(-1)
    assert slot.observation.tolist() == [[0, 0, 0], [7, 7, 7]]
    seen, taken = [], []
    for t in range(6):
        step_once(world, slot, actions[:, t])
        taken.append(world.episode_sums(slot).tolist())
        flags = (slot.terminated.tolist(), slot.truncated.tolist())
        final = slot.final_observation[0].tolist()
        seen.append((slot.observation[0].tolist(), slot.reward.tolist(), *flags, final, world.lanes.age.tolist()))

    none = [0, 0, 0]
    assert seen == [
        ([0, 3, 1], [0, 1.5, 0.5], none, none, [-1, -1, -1], [1, 1, 1]),
        ([0, 6, 2], [0, 3.0, 1.0], none, none, [-1, -1, -1], [2, 2, 2]),
        ([0, 0, 3], [0, 4.5, 1.5], [0, 1, 0], none, [-1, 9, -1], [3, 0, 3]),
        ([0, 3, 4], [0, 1.5, 2.0], none, none, [-1, 9, -1], [4, 1, 4]),
        ([0, 6, 0], [0, 3.0, 4.0], [0, 0, 1], [1, 0, 1], [0, 9, 8], [0, 2, 0]),
        ([0, 0, 2], [0, 4.5, 1.0], [0, 1, 0], none, [0, 9, 8], [1, 0, 1]),
    ]
    # Rows: return, moved, rests of the episodes under way; lane 1 has just begun anew.
    assert world.lanes.running.tolist() == [[0, 0, 1], [0, 0, 2], [1, 0, 0]]
    # Columns: episodes, length, return, moved, rests. Lane 1 ends episodes of 1.5 + 3 + 4.5 in its third and its sixth
    # step.
    nothing, lane1 = [0, 0, 0, 0, 0], [1, 3, 9, 9, 0]
    assert taken == [nothing, nothing, lane1, nothing, [2, 10, 9, 8, 5], lane1]
    assert world.lanes.running.tolist() == [[0, 0, 1], [0, 0, 2], [1, 0, 0]]


def test_a_terminated_lane_has_no_final_observation_unless_asked_for():
    # Lane 0 is truncated in its fifth step, lane 1 terminated in its third, lane 2 both at once in its fifth.
    actions = np.array([[0, 0, 0, 0, 0], [3, 3, 3, 0, 0], [1, 1, 1, 1, 4]], dtype=np.int32)
    world, slot = started(COUNT, 3, every_final=False)
    slot.final_observation.fill_(-1)
    for t in range(5):
        step_once(world, slot, actions[:, t])
    assert slot.truncated.tolist() == [1, 0, 1]
    assert slot.final_observation[0].tolist() == [0, -1, -1]


def test_reset_abandons_the_episodes_under_way():
    world, slot = started(COUNT, 2)
    step_once(world, slot, [[2, 2]])
    world.reset(world.bind(slot))
    assert world.lanes.age.tolist() == [0, 0]
    assert not world.lanes.running.any()
    assert slot.observation[0].tolist() == [0, 0]
    assert world.lanes.tick.item() == 3
    sums = torch.zeros(5, dtype=torch.float64)
    for _ in range(TIME_LIMIT):
        step_once(world, slot, [[0, 0]])
        sums += world.episode_sums(slot)
    assert sums.tolist() == [2, 10, 0, 0, 10]


def test_without_a_time_limit_nothing_is_truncated():
    world, slot = started(dataclasses.replace(COUNT, time_limit=None), 1)
    for _ in range(3 * TIME_LIMIT):
        step_once(world, slot, [[0]])
        assert not slot.truncated.any()
    assert world.lanes.age.tolist() == [3 * TIME_LIMIT]
    assert not world.can_truncate
    assert DeviceWorld(COUNT, 1, seed=1).can_truncate


# --- actions and parameters ---


class EchoParams(NamedTuple):
    whole: int = 2**24 + 1
    number: float = 2.0**24 + 1
    truth: bool = True


@device
def echo_reset(s, p, key):
    s[0] = float32(0.0)
    s[1] = float32(0.0)
    s[2] = float32(0.0)


@device
def echo_step(s, action, p, key, tally):
    for k in range(3):
        s[k] = action[k]
    return s[0] + s[1] + s[2], False


@device
def echo_observe(s, obs, p):
    obs[0] = s[0]
    obs[1] = s[1]
    obs[2] = s[2]
    obs[3] = p.whole % 10
    obs[4] = p.number - float32(2.0**24)
    obs[5] = float32(1.0) if p.truth else float32(0.0)


ECHO = Env(
    EchoParams,
    3,
    observation=Box(6),
    action=Box(3, (-1.0, -2.0, -math.inf), (1.0, 0.5, math.inf)),
    time_limit=None,
    reset=echo_reset,
    step=echo_step,
    observe=echo_observe,
)


def test_box_actions_are_clipped_each_to_its_own_bounds():
    world, slot = started(ECHO, 4)
    step_once(world, slot, [[-9.0, -1.0, 0.25, 9.0], [-9.0, -2.0, 0.25, 9.0], [-9.0, 0.0, 0.25, 1e9]])
    assert slot.observation[:3].tolist() == [[-1.0, -1.0, 0.25, 1.0], [-2.0, -2.0, 0.25, 0.5], [-9.0, 0.0, 0.25, 1e9]]
    assert slot.reward.tolist() == [-12.0, -3.0, 0.75, float32(1e9)]


def test_whole_parameters_stay_whole_and_others_become_float32():
    _, slot = started(ECHO, 1)
    # 2^24 + 1 = 16,777,217 needs 25 bits: an int32 keeps it, a float32 rounds it to 2^24.
    assert slot.observation[3:, 0].tolist() == [7.0, 0.0, 1.0]
    narrow = device_params(EchoParams(whole=3, number=0.1, truth=False))
    assert [type(value) for value in narrow] == [np.int32, np.float32, bool]


def test_parameters_reach_the_rules():
    world, slot = started(COUNT, 1, params=CountParams(goal=3, scale=2.0))
    step_once(world, slot, [[3]])
    assert (slot.reward.item(), slot.terminated.item()) == (6.0, 1)
    assert slot.observation[1].tolist() == [3]


# --- clocks, lanes, rollouts, resuming ---


def test_offsets_take_the_same_numbers_as_advancing_and_a_rollout_keeps_them():
    N, T = 5, 12
    actions = torch.from_numpy(np.random.default_rng(0).integers(0, 3, (T, 2, N)).astype(np.int32))
    one, slot = started(GRID, N)
    first = slot.observation.clone()
    steps = []
    for t in range(T):
        step_once(one, slot, actions[t])
        steps.append([tensor.clone() for tensor in slot if tensor is not None])

    other, _ = started(GRID, N)
    rollout = other.slot(T)
    rollout.observation[0] = first
    rollout.action.copy_(actions)
    for t in range(T):
        other.step(other.bind(rollout, t), offset=t)
    assert other.lanes.tick.item() == 1
    other.advance(T)

    assert_same(one.state(), other.state())
    assert rollout.observation.shape == (T + 1, 2 + SQUARES, N)
    assert torch.equal(rollout.observation[0], first)
    assert torch.equal(rollout.observation[1:], torch.stack([step[1] for step in steps]))
    for k, name in ((3, "reward"), (4, "terminated"), (5, "truncated")):
        assert torch.equal(getattr(rollout, name), torch.stack([step[k] for step in steps])), name
    ended = (rollout.terminated | rollout.truncated).bool()
    assert ended.any() and not ended.all()
    expected = torch.stack([step[2] for step in steps])
    assert torch.equal(rollout.final_observation.movedim(1, 2)[ended], expected.movedim(1, 2)[ended])
    assert not rollout.final_observation.movedim(1, 2)[~ended].any()


@pytest.mark.parametrize(("lanes", "cut"), [(10, 4), (SERIAL_BELOW + 900, 5001)])
def test_lanes_are_numbered_globally_so_cutting_a_world_changes_no_bit(lanes, cut):
    # The larger world runs on all threads, its two parts on one: the shells must agree to the bit as well.
    whole, whole_slot = started(cartpole.ENV, lanes)
    parts = [started(cartpole.ENV, cut), started(cartpole.ENV, lanes - cut, lane0=cut)]
    for world in (whole, *(world for world, _ in parts)):
        # the first episodes are truncated, where they do not end before
        world.lanes.age.fill_(cartpole.ENV.time_limit - 15)
    generator, ended = torch.Generator().manual_seed(0), 0
    for _ in range(40):
        actions = torch.randint(0, 2, (1, lanes), generator=generator, dtype=torch.int32)
        step_once(whole, whole_slot, actions)
        ended += int(whole.episode_sums(whole_slot)[0])
        for (world, slot), part in zip(parts, actions.split([cut, lanes - cut], dim=1), strict=True):
            step_once(world, slot, part)
    assert ended > lanes
    pieces = [slot for _, slot in parts]
    for name in ("observation", "final_observation", "reward", "terminated", "truncated"):
        assert torch.equal(getattr(whole_slot, name), torch.cat([getattr(slot, name) for slot in pieces], dim=-1)), name
    for name in ("state", "age", "running"):
        assert torch.equal(
            getattr(whole.lanes, name), torch.cat([getattr(world.lanes, name) for world, _ in parts], dim=-1)
        ), name


def test_state_tensors_resume_to_the_bit():
    actions = np.random.default_rng(5).integers(0, 3, (30, 2, 7))
    world, slot = started(GRID, 7)
    for t in range(17):
        step_once(world, slot, actions[t])
    saved = {name: tensor.clone() for name, tensor in world.state().items()}

    resumed = DeviceWorld(GRID, 7, seed=1)
    for name, tensor in resumed.state().items():
        tensor.copy_(saved[name])
    resumed.lanes.workspace.fill_(12345)  # worth nothing between calls
    resumed_slot = resumed.slot()
    for t in range(17, 30):
        step_once(world, slot, actions[t])
        step_once(resumed, resumed_slot, actions[t])
        assert torch.equal(slot.observation, resumed_slot.observation)
        assert torch.equal(slot.reward, resumed_slot.reward)
    assert_same(world.state(), resumed.state())
    assert torch.equal(world.episode_sums(slot), resumed.episode_sums(resumed_slot))


def test_a_second_world_of_the_same_rules_compiles_nothing():
    world, slot = started(COUNT, 3)
    step_once(world, slot, [[1, 1, 1]])
    other, other_slot = started(COUNT, 8, seed=9, stream=1, lane0=100)
    step_once(other, other_slot, [[1] * 8])
    rollout = other.slot(2)
    other.step(other.bind(rollout, 1), offset=1)
    assert other._kernels is world._kernels
    assert len(world._kernels.step._serial.signatures) == 1
    assert len(world._kernels.reset._serial.signatures) == 1
    assert DeviceWorld(COUNT, 1, seed=1, params=CountParams(goal=8))._kernels.step is not world._kernels.step


def test_tensors_and_kernels_share_memory():
    world, slot = started(COUNT, 2)
    world.lanes.state[0, 1] = 4.0
    step_once(world, slot, [[1, 1]])
    assert slot.observation[0].tolist() == [1, 5]
