"""Balance a pole on a cart, as Gymnasium's InvertedPendulum-v5 (`gymnasium/envs/mujoco/inverted_pendulum_v5.py`,
version 1.4).

The reward is 1 for each step with the pole within 0.2 rad of upright; the episode ends beyond.
"""

from typing import NamedTuple

from numpy import float32

from operant.envs import Box, device
from operant.envs.physics import View, add_uniform, gymnasium_model, physics_env, write

(SURVIVE,) = range(1)  # tallies: parts of the reward


class Params(NamedTuple):
    """Arguments of Gymnasium's InvertedPendulum."""

    frame_skip: int = 2  # steps of the model, 0.02 s each
    reset_noise_scale: float = 0.01


@device
def reset(d, p, key):
    add_uniform(d.qpos, p.reset_noise_scale, key, 0)
    add_uniform(d.qvel, p.reset_noise_scale, key, 16)


@device
def terminated(d, p):
    return not abs(d.qpos[1]) <= float32(0.2)  # true for NaN


@device
def reward(d, past, action, p, tally):
    survive = float32(0.0) if terminated(d, p) else float32(1.0)
    tally[SURVIVE] += survive
    return survive


@device
def observe(d, obs, p):
    write(obs, write(obs, 0, d.qpos, 0), d.qvel, 0)


ENV = physics_env(
    Params,
    gymnasium_model("inverted_pendulum.xml"),
    observation=Box(4),
    action=Box(1, low=-3.0, high=3.0),
    time_limit=1000,
    reset=reset,
    reward=reward,
    terminated=terminated,
    observe=observe,
    view=View(width=2.6, elevation=5.0, height=0.3, follow=False),
    tally=("reward_survive",),
    ranges={"frame_skip": (1, 1000), "reset_noise_scale": (0, None)},
    step_s=0.04,
    gymnasium="InvertedPendulum-v5",
)
