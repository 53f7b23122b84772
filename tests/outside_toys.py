"""Outside environments of a user's own for tests: of each a function, as `outside_toys.py:FUNCTION` names it."""

import os
import signal
import time

import gymnasium
import numpy as np


class Toy(gymnasium.Env):
    """Counts its steps; `fault(steps)` is called in each."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault=lambda steps: None, size=1):
        self.observation_space = gymnasium.spaces.Box(0, 100, (size,))
        self.fault, self.steps, self.size = fault, 0, size

    def seen(self):
        return np.full(self.size, self.steps, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.seen(), {}

    def step(self, action):
        self.steps += 1
        changed = self.fault(self.steps)
        return self.seen() if changed is None else changed, 1.0, self.steps >= 10, False, {}


def counting():
    return Toy()


def raising():
    def fault(steps):
        if steps == 3:
            raise ValueError(f"at step {steps}")

    return Toy(fault)


def hanging():
    return Toy(lambda steps: time.sleep(600))


def dying():
    return Toy(lambda steps: os.kill(os.getpid(), signal.SIGKILL) if steps == 2 else None)


def not_finite():
    return Toy(lambda steps: np.array([steps, np.nan], np.float32) if steps == 4 else None, size=2)


class Pictures(Toy):
    """A red upper half."""

    def __init__(self):
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(0, 255, (16, 32, 3), np.uint8)

    def seen(self):
        picture = np.zeros((16, 32, 3), np.uint8)
        picture[:8, :, 0] = 200
        return picture


def pictures():
    return Pictures()


def noisy():
    """Pictures of noise."""

    class Noisy(Pictures):
        def seen(self):
            return np.random.default_rng(self.steps).integers(0, 256, (16, 32, 3), dtype=np.uint8)

    return Noisy()


def failing():
    """Fails at the 40th step of the process, until there is a file `mended`."""

    class Failing(Toy):
        taken = 0

        def step(self, action):
            Failing.taken += 1
            if Failing.taken == 40 and not os.path.exists("mended"):
                raise RuntimeError("out of order")
            return super().step(action)

    return Failing()


def vector(num_envs, mode="SAME_STEP"):
    return gymnasium.vector.SyncVectorEnv([counting] * num_envs, autoreset_mode=gymnasium.vector.AutoresetMode[mode])
