"""Videos: every frame is the given picture at its time; impossible requests are refused before anything is computed;
and `operant render`.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from numpy import float32
from processes import operant_process, trained_here
from toys import COUNT, PICK, PUSH

from operant.envs import Box, Discrete, Env, IntState, device, find, names, step_seconds, with_pixels
from operant.errors import MachineError, NotFoundError, UsageError
from operant.nn import mlp
from operant.nn.policy import Policy
from operant.play import video as render
from operant.play.stage import Player, Stage
from operant.play.video import ContactSheet, GifWriter, Limits, Mp4Writer, pace, record, tile
from operant.training.evaluate import Evaluator

Image = pytest.importorskip("PIL.Image")
CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_thread")


def pictures(count, height=20, width=24, colours=8, seed=1):
    """Random pictures of few colours with a moving square."""
    draw = np.random.default_rng(seed)
    palette = draw.integers(0, 256, (colours, 3), dtype=np.uint8)
    ground = palette[draw.integers(0, colours, (height, width))]
    found = []
    for k in range(count):
        picture = ground.copy()
        picture[k % (height - 4) : k % (height - 4) + 4, 3:9] = palette[k % colours]
        found.append(picture)
    return found


def read_gif(path):
    """Frames (T, H, W, 3) and their durations in milliseconds."""
    frames, durations = [], []
    with Image.open(path) as image:
        for k in range(image.n_frames):
            image.seek(k)
            frames.append(np.asarray(image.convert("RGB")).copy())
            durations.append(image.info["duration"])
        return frames, durations, image.info.get("loop")


def film_of(film, shown):
    for picture in shown:
        film.add(picture)
    return film.finish()


# GIF


@pytest.mark.parametrize("colours", [2, 8, 200])
def test_a_gif_of_few_colours_is_exact(tmp_path, colours):
    shown = pictures(12, colours=colours)
    assert film_of(GifWriter(tmp_path / "a.gif", 25.0), shown) == 12
    frames, durations, loop = read_gif(tmp_path / "a.gif")
    assert len(frames) == 12 and loop == 0 and durations == [40] * 12
    assert all(np.array_equal(frame, picture) for frame, picture in zip(frames, shown, strict=True))


@pytest.mark.parametrize("fps", [7.5, 15.0, 30.0, 50.0])
def test_a_gif_keeps_time(tmp_path, fps):
    film_of(GifWriter(tmp_path / "a.gif", fps), pictures(30))
    _, durations, _ = read_gif(tmp_path / "a.gif")
    assert sum(durations) == 10 * round(100 * 30 / fps)
    assert max(durations) - min(durations) <= 10


def test_a_gif_is_never_so_fast_that_viewers_show_it_slowly(tmp_path):
    film_of(GifWriter(tmp_path / "a.gif", 200.0), pictures(5))
    assert set(read_gif(tmp_path / "a.gif")[1]) == {20}


def test_equal_pictures_become_one_longer_frame(tmp_path):
    one, other = pictures(2)
    assert film_of(GifWriter(tmp_path / "a.gif", 10.0), [one, one, one, other]) == 4
    frames, durations, _ = read_gif(tmp_path / "a.gif")
    assert (
        len(frames) == 2
        and durations == [300, 100]
        and np.array_equal(frames[0], one)
        and np.array_equal(frames[1], other)
    )


def test_a_gif_of_one_picture(tmp_path):
    (one,) = pictures(1)
    assert film_of(GifWriter(tmp_path / "a.gif", 10.0), [one]) == 1
    assert np.array_equal(np.asarray(Image.open(tmp_path / "a.gif").convert("RGB")), one)


def test_many_colours_become_the_nearest_and_what_is_small_keeps_its_own(tmp_path):
    x = np.linspace(0, 255, 64).astype(np.uint8)
    picture = np.stack([np.tile(x, (64, 1)), np.tile(x[:, None], (1, 64)), np.full((64, 64), 30, np.uint8)], axis=2)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 1000
    picture[10:12, 10:12] = (255, 0, 255)
    film_of(GifWriter(tmp_path / "a.gif", 10.0), [picture])
    (frame,), _, _ = read_gif(tmp_path / "a.gif")
    apart = np.abs(frame.astype(int) - picture.astype(int))
    assert apart.mean() < 8 and apart.max() < 64
    assert np.abs(frame[10:12, 10:12].astype(int) - (255, 0, 255)).max() < 24


def test_the_same_pictures_are_the_same_bytes(tmp_path):
    for name in ("a.gif", "b.gif"):
        film_of(GifWriter(tmp_path / name, 10.0), pictures(10))
    assert (tmp_path / "a.gif").read_bytes() == (tmp_path / "b.gif").read_bytes()


def test_a_gif_too_large_for_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(render, "MOST_BYTES", 3 * 20 * 24)
    film = GifWriter(tmp_path / "a.gif", 10.0)
    for picture in pictures(3):
        film.add(picture)
    with pytest.raises(UsageError, match=r"at most 3 frames of this size.*\.mp4"):
        film.add(pictures(1)[0])


# PNG


def test_a_png_is_the_last_picture(tmp_path):
    shown = pictures(7)
    assert film_of(ContactSheet(tmp_path / "a.png", 1), shown) == 1
    assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png")), shown[-1])


@pytest.mark.parametrize(
    ("frames", "there", "wanted"),
    [(4, 10, [0, 3, 6, 9]), (3, 3, [0, 1, 2]), (5, 2, [0, 1]), (2, 9, [0, 8]), (3, 1, [0])],
)
def test_a_sheet_goes_evenly_from_the_first_to_the_last(tmp_path, frames, there, wanted):
    shown = pictures(there)
    assert film_of(ContactSheet(tmp_path / "a.png", frames), shown) == len(wanted)
    whole = np.asarray(Image.open(tmp_path / "a.png"))
    across = math.ceil(math.sqrt(len(wanted)))
    for place, k in enumerate(wanted):
        top, left = place // across * 24, place % across * 28
        assert np.array_equal(whole[top : top + 20, left : left + 24], shown[k])


def test_tile_arranges_pictures_in_a_grid():
    four = np.arange(1, 6, dtype=np.uint8)[:, None, None, None] * np.ones((5, 2, 3, 3), np.uint8)
    whole = tile(four, 3, 1, 9)
    assert (
        whole[..., 0].tolist()
        == [[1, 1, 1, 9, 2, 2, 2, 9, 3, 3, 3]] * 2 + [[9] * 11] + [[4, 4, 4, 9, 5, 5, 5, 9, 9, 9, 9]] * 2
    )


# MP4


def test_an_mp4_holds_the_pictures_and_their_pace(tmp_path):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    shown = [np.full((33, 21, 3), 0, np.uint8) for _ in range(6)]  # odd sides are padded
    for k, picture in enumerate(shown):
        picture[:, :] = (40 * k, 200, 20 * k)
    assert film_of(Mp4Writer(tmp_path / "a.mp4", 12.0), shown) == 6
    command = [
        imageio_ffmpeg.get_ffmpeg_exe(),
        "-loglevel",
        "error",
        "-i",
        str(tmp_path / "a.mp4"),
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-",
    ]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    frames = np.frombuffer(raw, np.uint8).reshape(-1, 34, 22, 3)
    assert len(frames) == 6
    for frame, picture in zip(frames, shown, strict=True):
        assert np.abs(frame[4:28, 4:18].astype(int) - picture[4:28, 4:18].astype(int)).max() <= 12
    told = subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(tmp_path / "a.mp4")], capture_output=True, text=True, check=False
    ).stderr
    assert "12 fps" in told and "h264" in told and "yuv420p" in told


@pytest.mark.parametrize("count", [1, 100])
def test_what_ffmpeg_cannot_write_has_a_sentence(tmp_path, capfd, count):
    pytest.importorskip("imageio_ffmpeg")
    film = Mp4Writer(tmp_path / "nowhere" / "a.mp4", 12.0)
    with pytest.raises(MachineError, match=r"ffmpeg could not write the MP4: see its message above"):
        film_of(film, pictures(count, 256, 256))
    film.abandon()
    assert "No such file" in capfd.readouterr().err


def test_an_abandoned_video_leaves_no_process(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    film, own = Mp4Writer(tmp_path / "a.mp4", 12.0), psutil.Process()
    film.add(pictures(1)[0])
    assert any("ffmpeg" in child.name() for child in own.children())
    film.abandon()
    assert not any("ffmpeg" in child.name() for child in own.children())


# BEFORE ANYTHING IS COMPUTED


@pytest.mark.parametrize("name", ["agent.jpg", "agent", "agent.gif.txt", ".gif"])
def test_an_unknown_suffix_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match=r"must end in \.gif, \.png or \.mp4"):
        render.check(tmp_path / name, force=True)


def test_what_is_there_is_replaced_only_by_force(tmp_path):
    (tmp_path / "a.gif").write_text("mine")
    with pytest.raises(UsageError, match=r"already exists: give another name, or --force"):
        render.check(tmp_path / "a.gif", force=False)
    assert render.check(tmp_path / "a.gif", force=True) == "gif"
    (tmp_path / "b.gif").mkdir()
    with pytest.raises(UsageError, match="which is a folder"):
        render.check(tmp_path / "b.gif", force=True)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(NotFoundError, match="does not exist"):
        render.check(tmp_path / "none" / "a.gif", force=False)
    with pytest.raises(UsageError, match="is not a valid file name"):
        render.check(tmp_path / ("x" * 300 + ".gif"), force=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_read_only_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(MachineError, match="is read-only"):
        render.check(tmp_path / "a.gif", force=False)


def test_without_pillow_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    for name in ("a.gif", "a.PNG"):
        with pytest.raises(MachineError, match=r"needs Pillow: pip install 'operant\[gif\]'"):
            render.check(tmp_path / name, force=False)
    assert MachineError.exit_code == 4


def test_without_ffmpeg_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MachineError, match=r"needs imageio-ffmpeg.*pip install 'operant\[mp4\]'"):
        render.check(tmp_path / "a.mp4", force=False)


def test_a_file_takes_its_name_only_when_it_is_whole(tmp_path):
    out = tmp_path / "a.gif"
    out.write_text("old")
    with pytest.raises(KeyboardInterrupt), render.replacing(out) as part:
        part.write_text("half")
        raise KeyboardInterrupt
    assert out.read_text() == "old" and list(tmp_path.iterdir()) == [out]
    with render.replacing(out) as part:
        part.write_text("new")
        assert out.read_text() == "old"
    assert out.read_text() == "new" and list(tmp_path.iterdir()) == [out]
    mask = os.umask(0)
    os.umask(mask)
    assert out.stat().st_mode & 0o777 == 0o666 & ~mask
    with pytest.raises(MachineError, match="cannot be written"), render.replacing(tmp_path / "none" / "a.gif"):
        pass


# PACE AND LENGTH


@pytest.mark.parametrize(
    ("step_s", "fps", "every", "wanted"),
    [
        (None, None, None, (15.0, 1)),
        (None, 20.0, 3, (20.0, 3)),
        (4 / 60, None, None, (15.0, 1)),
        (1 / 60, None, None, (30.0, 2)),
        (0.02, None, None, (25.0, 2)),
        (0.2, None, None, (5.0, 1)),
        (1 / 30, None, None, (30.0, 1)),
        (0.02, 10.0, None, (10.0, 2)),
        (0.02, None, 5, (10.0, 5)),
        (1e-3, None, None, (1000 / 34, 34)),
    ],
)
def test_default_pace_is_real_time(step_s, fps, every, wanted):
    assert pace(step_s, fps, every) == pytest.approx(wanted)


def test_an_environment_says_how_long_a_step_is():
    wanted = {
        "cartpole": 0.02,
        "snake": 1 / 8,
        "pacman": 1 / 8,
        "platformer": 1 / 15,
        "breakout": 4 / 60,
        "pong": 8 / 60,
        "go": 0.5,
        "g2048": 1 / 8,
    }
    assert {name: step_seconds(find(name), find(name).Params()) for name in wanted} == pytest.approx(wanted)
    assert (
        step_seconds(COUNT, SimpleNamespace()) is None
        and step_seconds(replace(COUNT, step_s=0.3), SimpleNamespace()) == 0.3
    )
    assert (
        step_seconds(COUNT, SimpleNamespace(tau=0.0)) is None
        and step_seconds(COUNT, SimpleNamespace(tau=math.nan)) is None
    )
    assert step_seconds(replace(COUNT, step_s=0.3), SimpleNamespace(tau=0.5, frames=3)) == 1.5
    assert all(step_seconds(find(name), find(name).Params()) is not None for name in names())


class Counting:
    """Stage whose pictures are its number of steps, and whose lanes end every `ends[k]` steps."""

    def __init__(self, *ends):
        self.lanes, self._ends = len(ends), np.array(ends)
        self.ages, self.returns, self.ended, self.time = (
            np.zeros(self.lanes, int),
            np.zeros(self.lanes),
            np.zeros(self.lanes, bool),
            0,
        )

    def canvas(self, side):
        return side

    def picture(self, side):
        return np.full((self.lanes, side, side, 3), self.time, np.uint8)

    def step(self):
        self.time += 1
        self.ages = np.where(self.ended, 0, self.ages) + 1
        self.returns = self.ages * 2.0
        self.ended = self.ages == self._ends


class Kept(list):
    def add(self, picture):
        self.append(int(picture[0, 0, 0]))


@pytest.mark.parametrize(
    ("ends", "every", "length", "hold", "wanted", "steps", "cut"),
    [
        ((99,), 1, Limits(4, 999, 0), 0, [0, 1, 2, 3], 3, False),
        ((99,), 3, Limits(3, 999, 0), 0, [0, 3, 6], 6, False),
        ((99,), 2, Limits(99, 5, 0), 0, [0, 2, 4], 5, False),
        ((4,), 3, Limits(6, 999, 0), 2, [0, 3, 4, 4, 4, 6], 6, False),  # an end is seen, and stays
        ((4,), 1, Limits(6, 999, 0), 9, [0, 1, 2, 3, 4, 4], 4, False),
        ((4,), 3, Limits(99, 999, 2), 1, [0, 3, 4, 4, 6, 8, 8], 8, False),
        ((4,), 1, Limits(6, 999, 2), 0, [0, 1, 2, 3, 4, 5], 5, True),
        ((4,), 1, Limits(99, 3, 1), 0, [0, 1, 2, 3], 3, True),
        (
            (5, 2),
            4,
            Limits(99, 999, 1),
            7,
            [0, 4, 5],
            5,
            False,
        ),  # of several lanes the first decides, and none is waited for
    ],
)
def test_a_recording_has_the_requested_frames(ends, every, length, hold, wanted, steps, cut):
    stage, film, told = Counting(*ends), Kept(), []
    shot = record(stage, stage.step, film, side=1, every=every, limits=length, hold=hold, report=told.append)
    assert (film, shot.steps, shot.cut) == (wanted, steps, cut)
    assert told == list(range(1, len(wanted) + 1))
    seen = [(k, step) for step in range(1, steps + 1) for k, end in enumerate(ends) if step % end == 0]
    assert [(episode["lane"], episode["length"], episode["return"]) for episode in shot.episodes] == [
        (k, ends[k], 2.0 * ends[k]) for k, _ in seen
    ]


# SHOWS


def first_episodes(env, policy, *, greedy, lanes=4, seed=3, number=7):
    """Return and length of each lane's first episode, played by a Player."""
    stage = Stage(env, env.Params(), seed=seed, lanes=lanes, number=number)
    player, found = Player(stage, policy, greedy=greedy), {}
    while len(found) < lanes:
        player.step()
        for k in np.flatnonzero(stage.ended):
            found.setdefault(int(k), (float(stage.returns[k]), int(stage.ages[k])))
    return np.array([found[k] for k in range(lanes)])


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize(
    "env", [find("cartpole"), PUSH, PICK, with_pixels(find("cartpole"), 16)], ids=["cartpole", "push", "pick", "pixels"]
)
def test_what_is_shown_is_what_an_evaluation_plays(env, greedy):
    policy = Policy(env, mlp.Config(hidden=(8,)), seed=2, device=CPU, normalize=False)
    played = first_episodes(env, policy, greedy=greedy)
    wanted = Evaluator(policy, env, env.Params(), episodes=4, seed=3, greedy=greedy).run(7)
    assert played[:, 0].mean() == pytest.approx(wanted.mean, abs=1e-4) and played[:, 1].mean() == wanted.length
    assert (played[:, 0].min(), played[:, 0].max()) == pytest.approx((wanted.minimum, wanted.maximum), abs=1e-4)


def test_later_episodes_are_those_of_a_world_that_resets_by_itself():
    from operant.training import evaluate
    from operant.worlds.device_world import DeviceWorld

    env = find("cartpole")
    stage = Stage(env, env.Params(), seed=5, lanes=3)
    world = DeviceWorld(env, 3, seed=5, stream=evaluate.STREAM)
    slot = world.slot()
    bound = world.bind(slot)
    world.reset(bound)
    ends = 0
    for step in range(200):
        stage.renew()
        assert torch.equal(stage.observation, slot.observation)
        action = torch.tensor([[step % 2, step // 5 % 2, 1]], dtype=torch.int32)
        stage.step(action)
        slot.action.copy_(action)
        world.step(bound)
        world.advance(1)
        ends += int(stage.ended.sum())
        assert np.array_equal(stage.ended, (slot.terminated | slot.truncated).numpy() != 0)
        assert np.array_equal(stage.reward, slot.reward.numpy())
    assert ends > 10


def test_a_lane_that_ended_is_seen_as_it_ended():
    stage = Stage(COUNT, COUNT.Params(), seed=1, lanes=3)
    action = torch.zeros(1, 3, dtype=torch.int32)
    counts, ends = [], []
    for _ in range(4):
        stage.step(action)
        counts.append(stage.observation[0].tolist())
        ends.append(stage.ended.tolist())
    # Lane 0 is truncated after 3, lane 1 ends after 1, lane 2 after 2: each shows its last count, and then begins at 1
    # again.
    assert counts == [[1, 1, 1], [2, 1, 2], [3, 1, 1], [1, 1, 2]]
    assert ends == [[False, True, False], [False, True, True], [True, True, False], [False, True, True]]
    assert stage.returns.tolist() == [1.0, 1.0, 3.0] and stage.ages.tolist() == [1, 1, 2]
    assert stage.terminated.tolist() == [False, True, True]


@device
def _board_reset(s, cells, scratch, p, key):
    for k in range(4):
        cells[k] = 7
    s[0] = float32(0.0)


@device
def _board_step(s, cells, scratch, action, p, key, tally):
    cells[action] += 1
    tally[0] += float32(2.0)
    return float32(1.0), cells[action] == 9


@device
def _board_observe(s, cells, scratch, obs, p):
    for k in range(4):
        obs[k] = cells[k]


@device
def _board_legal(s, cells, scratch, mask, p):
    for k in range(4):
        mask[k] = 1 if cells[k] < 8 else 0


@device
def _board_shade(s, cells, p, x, y):
    return float32(cells[int(float32(4.0) * x)]) / float32(10.0), float32(0.0), float32(0.0)


BOARD = Env(
    COUNT.Params,
    1,
    observation=Box(4),
    action=Discrete(4),
    time_limit=None,
    reset=_board_reset,
    step=_board_step,
    observe=_board_observe,
    pixel_shader=_board_shade,
    legal=_board_legal,
    int_state=IntState(4),
    tally=("twos",),
)


def test_stage_supports_boards_masks_and_tallies():
    stage = Stage(BOARD, None, seed=1, lanes=2)
    assert (
        stage.observation.T.tolist() == [[7, 7, 7, 7]] * 2
        and stage.legal.T.tolist() == [[1, 1, 1, 1]] * 2
        and stage.tallies == {"twos": 0.0}
    )
    stage.step(torch.tensor([[1, 2]], dtype=torch.int32))
    assert stage.observation.T.tolist() == [[7, 8, 7, 7], [7, 7, 8, 7]] and stage.legal.T.tolist() == [
        [1, 0, 1, 1],
        [1, 1, 0, 1],
    ]
    stage.step(torch.tensor([[1, 0]], dtype=torch.int32))
    assert stage.ended.tolist() == [True, False] and stage.tallies == {"twos": 4.0}
    seen = stage.picture(stage.canvas(4))
    assert seen[0, 0, :, 0].tolist() == [int(25.5 * k + 0.5) for k in (7, 9, 7, 7)]
    assert seen[1, 3, :, 0].tolist() == [int(25.5 * k + 0.5) for k in (8, 7, 8, 7)]
    stage.step(torch.tensor([[3, 3]], dtype=torch.int32))
    assert stage.observation.T.tolist() == [[7, 7, 7, 8], [8, 7, 8, 8]] and stage.tallies == {"twos": 2.0}
    stage.restart()
    assert (
        stage.observation.T.tolist() == [[7, 7, 7, 7]] * 2
        and stage.legal.all()
        and stage.ages.tolist() == [0, 0]
        and stage.tallies == {"twos": 0.0}
    )


def test_a_policy_takes_only_what_is_legal():
    policy = Policy(BOARD, mlp.Config(hidden=(8,)), seed=2, device=CPU, normalize=False)
    stage = Stage(BOARD, None, seed=1, lanes=8)
    for greedy in (True, False):
        player = Player(stage, policy, greedy=greedy)
        for _ in range(20):
            stage.renew()
            legal = stage.legal.clone()
            player.step()
            if not stage.ended.any():
                assert (legal.gather(0, torch.from_numpy(stage.action).long()) == 1).all()


# THE COMMAND


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Run of a few thousand steps."""
    place = tmp_path_factory.mktemp("trained")
    words = [
        "train",
        "cartpole",
        "--name",
        "small",
        "--device",
        "cpu",
        "run.threads=1",
        "env.lanes=32",
        "algo.horizon=16",
        "run.steps=5120",
        "eval.episodes=4",
    ]
    environment = {**os.environ, "XDG_STATE_HOME": str(place / "state")}
    environment.pop("OPERANT_RUNS", None)
    done = subprocess.run(
        [sys.executable, "-m", "operant.cli", *words],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return place / "runs" / "small"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="needs scipy")
def test_report_embeds_a_short_film(trained, here, tmp_path):
    done = here("report", trained, "--films")
    assert done.code == 0 and done.out == "report.html  1 run in 1 group\n", done.err
    page = (tmp_path / "report.html").read_text()
    (gif,) = re.findall(r'src="data:image/gif;base64,([^"]+)"', page)
    (tmp_path / "film.gif").write_bytes(base64.b64decode(gif))
    frames, durations, _ = read_gif(tmp_path / "film.gif")
    assert frames[0].shape == (192, 192, 3) and (tmp_path / "film.gif").stat().st_size < 750_000
    assert 2 <= len(frames) <= 75 and sum(durations) <= 5_100
    assert any(not np.array_equal(one, other) for one, other in pairwise(frames)), "nothing moves"
    assert "small, step 5,120" in page


@pytest.mark.slow
def test_render_makes_a_small_gif_by_default(trained, here, tmp_path):
    done = here("render", trained, "--out", "agent.gif")
    assert done.code == 0 and done.err == "", done.err
    frames, durations, loop = read_gif(tmp_path / "agent.gif")
    assert frames[0].shape == (256, 256, 3) and loop == 0
    assert sum(durations) == pytest.approx(10_000, abs=100) and (tmp_path / "agent.gif").stat().st_size < 1_000_000
    assert sum(not np.array_equal(one, other) for one, other in pairwise(frames)) > 10, "nothing moves"
    assert (
        done.out.startswith("agent.gif  250 frames, 10.0 s at 25 a second")
        and "small  cartpole  step 5,120  (greedy, cpu, seed 1)" in done.out
    )
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".gif"] == ["agent.gif"]


@pytest.mark.slow
def test_render_shows_the_episodes_of_eval(trained, here):
    made = json.loads(here("render", trained, "--out", "a.png", "--lanes", "3", "--steps", "500", "--json").out)
    first = {}
    for episode in made["episodes"]:
        first.setdefault(episode["lane"], episode["return"])
    played = json.loads(here("eval", trained, "--episodes", "3", "--greedy", "--json").out)
    assert len(first) == 3 and sum(first.values()) / 3 == pytest.approx(played["mean"])
    assert {
        "schema": 1,
        "id": "small",
        "env": "cartpole",
        "mode": "greedy",
        "seed": 1,
        "format": "png",
        "frames": 1,
        "lanes": 3,
    }.items() <= made.items()


@pytest.mark.slow
def test_render_is_the_same_bytes_again_and_others_for_another_seed(trained, here, tmp_path):
    for name, seed in (("a.gif", 1), ("b.gif", 1), ("c.gif", 2)):
        assert (
            here("render", trained, "-o", name, "--seconds", "1", "--size", "64", "--seed", seed, "--sampled").code == 0
        )
    first, again, other = ((tmp_path / name).read_bytes() for name in ("a.gif", "b.gif", "c.gif"))
    assert first == again != other


@pytest.mark.slow
def test_render_stops_after_an_episode(trained, here, tmp_path):
    made = json.loads(
        here(
            "render", trained, "-o", "a.gif", "--episodes", "2", "--size", "32", "--fps", "50", "--every", "1", "--json"
        ).out
    )
    assert len(made["episodes"]) == 2 and made["steps"] == sum(episode["length"] for episode in made["episodes"])
    assert made["frames"] == 1 + made["steps"] + 2 * 25  # each end stays for half a second
    cut = here("render", trained, "-o", "b.gif", "--episodes", "50", "--size", "32", "--seconds", "1")
    assert cut.code == 0 and "ended before episode 50" in cut.err


@pytest.mark.slow
def test_render_makes_sheets_and_grids(trained, here, tmp_path):
    assert here("render", trained, "-o", "sheet.png", "--frames", "6", "--size", "40", "--seconds", "2").code == 0
    assert Image.open(tmp_path / "sheet.png").size == (3 * 40 + 2 * 4, 2 * 40 + 4)
    assert here("render", trained, "-o", "grid.gif", "--lanes", "5", "--size", "100", "--seconds", "0.5").code == 0
    assert Image.open(tmp_path / "grid.gif").size == (3 * 32 + 4, 2 * 32 + 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("-o", "a.jpg"), 2, "must end in .gif, .png or .mp4"),
        (("-o", "none/a.gif"), 3, "the folder 'none' of a.gif does not exist"),
        (("-o", "~nobodyatall/a.gif"), 3, "the folder '~nobodyatall' of a.gif does not exist"),
        (("-o", "a.gif", "--greedy", "--sampled"), 2, "--greedy and --sampled exclude each other"),
        (("-o", "a.gif", "--seconds", "1", "--steps", "1"), 2, "--seconds and --steps exclude each other"),
        (("-o", "a.gif", "--size", "9"), 2, "--size is 9; it must be between 16 and 2,048"),
        (
            ("-o", "a.gif", "--size", "64", "--lanes", "16"),
            2,
            "--size 64 leaves 14 pixels for each of 16 games, which need 16: give at least --size 72",
        ),
        (("-o", "a.gif", "--lanes", "0"), 2, "--lanes is 0"),
        (("-o", "a.gif", "--fps", "0"), 2, "--fps is 0"),
        (("-o", "a.gif", "--fps", "nan"), 2, "--fps is nan"),
        (("-o", "a.gif", "--every", "0"), 2, "--every is 0"),
        (("-o", "a.gif", "--seconds", "-1"), 2, "--seconds is -1"),
        (("-o", "a.gif", "--frames", "4"), 2, "--frames needs a .png"),
        (
            ("-o", "a.gif", "--checkpoint", "first"),
            2,
            "the checkpoint 'first' is unknown: it must be best, last or a step",
        ),
        (("-o", "a.gif", "--checkpoint", "7"), 3, "7"),
        (("-o", "a.gif", "--device", "tpu"), 2, "is not a device"),
        ((), 2, "Missing option '--out'"),
    ],
)
def test_what_a_user_gets_wrong_has_a_sentence_and_a_code(trained, here, tmp_path, words, code, said):
    done = here("render", trained, *words)
    assert (done.code, done.out) == (code, "") and said in done.err
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".gif", ".png", ".jpg")]


@pytest.fixture(scope="module")
def robot(tmp_path_factory):
    """Run of a robot, hardly trained."""
    pytest.importorskip("mujoco")
    pytest.importorskip("gymnasium")
    place = tmp_path_factory.mktemp("robot")
    few = ("env.lanes=32", "algo.horizon=8", "algo.minibatches=1", "run.steps=512", "eval.every=0")
    return trained_here(place, "env.name=inverted_pendulum", "run.device=cpu", "run.threads=1", *few, name="robot")


@pytest.mark.slow
@pytest.mark.parametrize("library", ["egl", "osmesa"])
def test_mujocos_renderer_films_a_robot_in_motion(robot, tmp_path, monkeypatch, library):
    """In a process of its own: MuJoCo chooses the library of OpenGL when it is imported."""
    monkeypatch.setenv("MUJOCO_GL", library)
    words = ("render", robot, "--frames", "2", "--size", "64", "--steps", "8", "--renderer", "mujoco")
    done = operant_process(tmp_path, *words, "-o", "mujoco.png")
    if done.returncode == MachineError("").exit_code and "found no OpenGL" in done.stderr:
        pytest.skip(f"no OpenGL by {library}")
    assert done.returncode == 0, done.stderr
    sheet = np.asarray(Image.open(tmp_path / "mujoco.png").convert("RGB"))
    assert sheet.shape == (64, 2 * 64 + 4, 3)
    first, last = sheet[:, :64], sheet[:, -64:]
    assert len(np.unique(first.reshape(-1, 3), axis=0)) > 20, "MuJoCo shades what it draws"
    assert not np.array_equal(first, last), "nothing moves"


@pytest.mark.slow
def test_without_opengl_mujocos_renderer_has_a_sentence(robot, tmp_path, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    done = operant_process(tmp_path, "render", robot, "-o", "a.png", "--size", "64", "--renderer", "mujoco")
    assert (done.returncode, done.stdout) == (MachineError("").exit_code, "")
    assert "found no OpenGL on this machine: set MUJOCO_GL=egl" in done.stderr
    assert not (tmp_path / "a.png").exists()


@pytest.mark.slow
def test_mujocos_renderer_draws_only_robots(trained, here, tmp_path):
    done = here("render", trained, "-o", "a.png", "--renderer", "mujoco")
    assert done.code == 2 and "cartpole is not on a MuJoCo model" in done.err


@pytest.mark.slow
def test_a_file_that_is_there_costs_no_computation(trained, here, tmp_path, monkeypatch):
    from operant.play import load_policy

    (tmp_path / "a.gif").write_text("mine")
    monkeypatch.setattr(load_policy, "load", None)
    done = here("render", trained, "-o", "a.gif")
    assert done.code == 2 and "--force" in done.err and (tmp_path / "a.gif").read_text() == "mine"


def test_a_missing_run_is_refused(here):
    assert here("render", "nosuch", "-o", "a.gif").code == 3


def test_an_environment_without_a_picture(trained, here, tmp_path, monkeypatch):
    from operant.play import load_policy

    load = load_policy.load
    config = SimpleNamespace(
        environment=replace(find("cartpole"), pixel_shader=None), run=SimpleNamespace(seed=1), hosted=False
    )
    monkeypatch.setattr(load_policy, "load", lambda *words, **how: load(*words, **how)._replace(config=config))
    done = here("render", trained, "-o", "a.gif")
    assert done.code == 2 and "cartpole draws no images" in done.err and not (tmp_path / "a.gif").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.soak), (signal.SIGTERM, 143)]
)
def test_an_interrupted_recording_leaves_no_file(trained, tmp_path, number, code):
    command = [sys.executable, "-m", "operant.cli", "render", str(trained), "-o", "a.mp4", "--seconds", "3600"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    pytest.importorskip("imageio_ffmpeg")
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 90
    while not list(tmp_path.glob(".a-*")):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(number)
    words = process.communicate(timeout=60)[1]
    assert process.returncode == code and "Traceback" not in words
    assert [path.name for path in Path(tmp_path).iterdir() if path.suffix == ".mp4"] == []
