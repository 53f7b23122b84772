"""Atari games on ale-py's emulator: `Game` is a gymnasium.Env with one grayscale frame per step.

A step repeats an action for some frames and returns the per-pixel maximum of the last two. An episode begins with FIRE,
if the game has it, and fewer than `noop_max` no-op frames, as in ale-py's AtariVectorEnv. That class steps each
environment in its own threads and begins an episode with 64 further frames, for which all lanes wait. Here the calling
process steps, and an episode starts from a saved state of the first start, if repeated starts are identical.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import numpy as np

ALIKE = 4
"""Number of identical starts (screen and RAM) after which episodes begin from a saved state."""


class Game:
    """`gymnasium.Env` of one Atari game, given by its ROM name, `pong`, or an id, `ALE/Pong-v5`: one grayscale frame
    (H, W, 1) uint8 per step, in the emulator's resolution. Raises ImportError without ale-py, ValueError for an unknown
    game.
    """

    metadata = {"render_modes": ("rgb_array",), "render_fps": 60}  # noqa: RUF012  (as Gymnasium has it)

    def __init__(
        self,
        name: str,
        *,
        frame_skip: int = 4,
        repeat_action_probability: float = 0.0,
        noop_max: int = 30,
        use_fire_reset: bool = True,
        maxpool: bool = True,
        episodic_life: bool = False,
        full_action_space: bool = False,
        max_num_frames_per_episode: int = 108_000,
        mode: int | None = None,
        difficulty: int | None = None,
    ) -> None:
        from ale_py import Action, ALEInterface, LoggerMode, roms
        from gymnasium import spaces

        ALEInterface.setLoggerMode(LoggerMode.Error)
        game = name.rpartition("/")[2].partition("-")[0]
        game = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in game).strip("_")
        if game not in (games := roms.get_all_rom_ids()):
            close = difflib.get_close_matches(game, games, 3) or sorted(games)[:3]
            raise ValueError(f"ale-py has no game {game!r} among its {len(games)}, such as {', '.join(close)}")
        self._skip, self._noop_max, self._maxpool, self._episodic = frame_skip, noop_max, maxpool, episodic_life
        self._chosen, self._sticky, self._life_lost = (
            {"mode": mode, "difficulty": difficulty},
            repeat_action_probability > 0,
            False,
        )
        self._machine, self._rom = ALEInterface(), str(roms.get_rom_path(game))
        self._machine.setFloat("repeat_action_probability", repeat_action_probability)
        self._machine.setInt("max_num_frames_per_episode", max_num_frames_per_episode)
        self._load(0)
        self._actions = [
            int(action.value)
            for action in (
                self._machine.getLegalActionSet() if full_action_space else self._machine.getMinimalActionSet()
            )
        ]
        self._fire = int(Action.FIRE.value) if use_fire_reset and int(Action.FIRE.value) in self._actions else None
        shape = self._machine.getScreenDims()
        self._last, self._before = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
        self.observation_space, self.action_space = (
            spaces.Box(0, 255, shape, np.uint8),
            spaces.Discrete(len(self._actions)),
        )

    def _load(self, seed: int) -> None:
        """Load the Atari game's ROM into the emulator with a `seed`, from power-on. If its first starts are identical,
        save the state of one for later episodes.
        """
        machine = self._machine
        machine.setInt("random_seed", seed)
        machine.loadROM(Path(self._rom))
        if self._chosen["mode"] is not None:
            machine.setMode(self._chosen["mode"])
        if self._chosen["difficulty"] is not None:
            machine.setDifficulty(self._chosen["difficulty"])
        self._draw, self._lives = np.random.default_rng(seed), 0
        machine.reset_game()
        # A restored state would be followed by the action before it if actions are sticky.
        first, screen, alike = machine.cloneState(), self._shown(), not self._sticky
        for _ in range(ALIKE - 1 if alike else 0):
            machine.reset_game()
            alike = alike and self._shown() == screen
        self._start = first if alike else None

    def _shown(self) -> tuple[bytes, bytes]:
        """Return RAM and screen of the emulator as bytes, to compare starts of the game."""
        return self._machine.getRAM().tobytes(), self._machine.getScreen().tobytes()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode and return its first frame and an empty info. With a `seed` the game is powered on first.
        `options` is ignored.
        """
        machine = self._machine
        if seed is not None:
            self._load(seed)
        if seed is None and self._life_lost:
            machine.act(0)  # continue with the next life
        else:
            self._begin()
        self._lives, self._life_lost = machine.lives(), False
        machine.getScreenGrayscale(self._last)
        return self._last, {}

    def _begin(self) -> None:
        """Start the game: restore the saved start or reset the emulator, press FIRE if configured, then repeat a random
        number of no-op frames.
        """
        machine = self._machine
        nothing = int(self._draw.integers(0, self._noop_max)) if self._noop_max else 0
        # Restoring a state does not redraw the screen: without a following frame, reset instead.
        if self._start is None or (self._fire is None and not nothing):
            machine.reset_game()
        else:
            machine.restoreState(self._start)
        if self._fire is not None:
            machine.act(self._fire)
        for _ in range(nothing):
            machine.act(0)
            if machine.game_over():
                machine.reset_game()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Repeat an action for `frame_skip` frames; returns the frame, the sum of rewards, terminated, truncated and an
        empty info. With `episodic_life` a lost life terminates.
        """
        machine, chosen, reward, over = self._machine, self._actions[action], 0, False
        for left in range(self._skip - 1, -1, -1):
            reward += machine.act(chosen)
            over = machine.game_over()
            if over or left == 0:
                break
            if left == 1 and self._maxpool:
                machine.getScreenGrayscale(self._before)
        machine.getScreenGrayscale(self._last)
        if self._maxpool and self._skip > 1 and left == 0:
            np.maximum(self._last, self._before, out=self._last)
        truncated, before, self._lives = machine.game_truncated(), self._lives, machine.lives()
        lost = self._episodic and self._lives < before
        self._life_lost = lost and not over and not truncated
        return self._last, float(reward), (over and not truncated) or lost, truncated, {}

    def render(self) -> np.ndarray:
        """Return the current screen in colour, (H, W, 3) bytes."""
        return self._machine.getScreenRGB()

    def close(self) -> None:
        """Do nothing: the emulator is freed with this object."""
