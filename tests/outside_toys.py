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


def old_api(call):
    """Toy whose `call`, reset or step, returns what Gym's API before 0.26 did; "reward": None as reward."""

    class Old(Toy):
        def reset(self, *, seed=None, options=None):
            given = super().reset(seed=seed)
            return given[0] if call == "reset" else given

        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            if call == "step":
                return observation, reward, terminated, info
            return observation, None if call == "reward" else reward, terminated, truncated, info

    return Old()


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


def _pixels(value, kind):
    return np.full((20, 20, 1), value, kind)


_SPACES = gymnasium.spaces
WRONG = {
    # space, a value of it, and one that is not
    "shrunk": (_SPACES.Box(0, 100, (3,)), np.zeros(3, np.float32), np.ones(1, np.float32)),
    "scalar": (_SPACES.Box(0, 100, (3,)), np.zeros(3, np.float32), 1.0),
    "transposed": (_SPACES.Box(0, 100, (3, 2)), np.zeros((3, 2)), np.zeros((2, 3))),
    "byte": (_SPACES.Box(0, 255, (4,), np.uint8), np.zeros(4, np.uint8), np.array([0, 0, 300, 0])),
    "negative": (_SPACES.Dict(hand=_SPACES.MultiDiscrete([3, 4])), {"hand": np.array([2, 3])}, {"hand": [2, -1]}),
    "choice": (_SPACES.Discrete(3), 2, 9),
    "one_hot": (_SPACES.Discrete(300, start=5), 304, 305),
    "binary": (_SPACES.Tuple([_SPACES.MultiBinary(2), _SPACES.Box(0, 1, (1,))]), ([1, 0], [0.5]), ([2, 0], [0.5])),
    "fraction": (_SPACES.Box(0, 255, (20, 20, 1), np.uint8), _pixels(1, np.uint8), _pixels(0.7, np.float32)),
    "cropped": (_SPACES.Box(0, 255, (20, 20, 1), np.uint8), _pixels(1, np.uint8), _pixels(1, np.uint8)[1:]),
    "channels": (
        _SPACES.Box(0, 255, (3, 20, 20), np.uint8),
        np.zeros((3, 20, 20), np.uint8),
        np.full((3, 20, 20), 300),
    ),
}


class Wrong(Toy):
    """Shows a value that is not in its space, or a mask without an action, in step 4."""

    def __init__(self, case):
        super().__init__()
        self.observation_space, self.usual, self.unusual = WRONG.get(case, (_SPACES.Discrete(2), 0, 0))
        self.masks = {"no_action": [0, 0], "long_mask": [1, 1, 1]}.get(case)

    def seen(self):
        return self.unusual if self.steps == 4 else self.usual

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {} if self.masks is None else {"action_mask": np.array([1, 0])}

    def step(self, action):
        observation, *outcome, info = super().step(action)
        if self.masks is not None:
            info = {"action_mask": np.array(self.masks if self.steps == 4 else [0, 1])}
        return observation, *outcome, info


def wrong(case):
    return Wrong(case)


def wrong_vector(num_envs, case):
    class Vector(gymnasium.vector.VectorEnv):
        """Steps in a loop: Gymnasium's own would report a wrong shape itself."""

        def __init__(self):
            self.envs, self.num_envs = [Wrong(case) for _ in range(num_envs)], num_envs
            self.single_observation_space = self.envs[0].observation_space
            self.single_action_space = self.envs[0].action_space
            self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}

        def joined(self, outcomes):
            *values, infos = zip(*outcomes, strict=True)
            masks = {"action_mask": np.stack([info["action_mask"] for info in infos])} if infos[0] else {}
            return *map(np.stack, values), masks

        def reset(self, *, seed=None, options=None):
            return self.joined([env.reset() for env in self.envs])

        def step(self, actions):
            return self.joined([env.step(action) for env, action in zip(self.envs, actions, strict=True)])

    return Vector()


def without_first_action():
    class Without(Wrong):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0], {"action_mask": np.zeros(2)}

    return Without("no_action")


def unclosable():
    class Unclosable(Toy):
        def close(self):
            raise OSError("the display is gone")

    return Unclosable()
