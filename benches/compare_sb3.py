"""Train HalfCheetah-v5 by PPO until greedy episodes return 3,000: Stable-Baselines3 and Operant, by turns. JSON lines.

    python benches/compare_sb3.py sb3 [--seed 1] [--target 3000] [--seconds 1200]     # needs stable-baselines3
    python benches/compare_sb3.py operant [--seed 1] [--target 3000] [--override KEY=VALUE ...]

Stable-Baselines3 runs in Gymnasium with the hyperparameters of RL Baselines3 Zoo for HalfCheetah (one environment,
normalized observations and rewards, 256-256, 20 epochs of minibatches of 64 for every 512 steps); Operant with the
recipe ppo/half_cheetah. Each is evaluated every 25,000 (Stable-Baselines3) or 98,304 steps (Operant) and ends at the
first evaluation that reaches the target, which Operant confirms by fresh episodes. `wall_s` and `cpu_s`, the
processor time of all threads, include compilation and Operant's writing of its run folder. They exclude imports and
evaluations; those take `evaluations_s` and `evaluations_cpu_s`, confirmations included.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

EVERY = 25_000  # steps between evaluations of Stable-Baselines3
EPISODES = 10


class Timer:
    """Total wall-clock and processor seconds (all threads) of the calls that it timed."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0

    def call(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Call a function, add its seconds and return its result. Work queued on a GPU before is not among them."""
        _wait_for_gpu()
        wall_began_s, cpu_began_s = time.perf_counter(), time.process_time()
        result = function(*arguments, **keywords)
        _wait_for_gpu()
        self.wall_s += time.perf_counter() - wall_began_s
        self.cpu_s += time.process_time() - cpu_began_s
        return result


def _wait_for_gpu() -> None:
    """Wait until a GPU in use has done its work."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def sb3(seed: int, target: float, seconds: float) -> None:
    """Train with Stable-Baselines3 and print a line at each evaluation."""
    import gymnasium
    import stable_baselines3
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    torch.set_num_threads(1)  # minibatches of 64: a second thread only waits
    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("HalfCheetah-v5")]), gamma=0.98)
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=512,
        batch_size=64,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.92,
        learning_rate=2.0633e-05,
        ent_coef=0.000401762,
        clip_range=0.1,
        max_grad_norm=0.8,
        vf_coef=0.58096,
        policy_kwargs={
            "log_std_init": -2,
            "ortho_init": False,
            "activation_fn": torch.nn.ReLU,
            "net_arch": {"pi": [256, 256], "vf": [256, 256]},
        },
        seed=seed,
        device="cpu",
    )
    from stable_baselines3.common.monitor import Monitor

    learning, evaluating, mean = Timer(), Timer(), 0.0
    while learning.wall_s < seconds and mean < target:
        learning.call(model.learn, EVERY, reset_num_timesteps=False)
        other = VecNormalize(
            DummyVecEnv([lambda: Monitor(gymnasium.make("HalfCheetah-v5"))]), training=False, norm_reward=False
        )
        other.obs_rms = env.obs_rms
        mean, _ = evaluating.call(evaluate_policy, model, other, n_eval_episodes=EPISODES)
        line = {"sb3": stable_baselines3.__version__, "seed": seed, "steps": model.num_timesteps}
        line |= {"wall_s": round(learning.wall_s, 1), "cpu_s": round(learning.cpu_s, 1)}
        line |= {"evaluations_s": round(evaluating.wall_s, 1), "evaluations_cpu_s": round(evaluating.cpu_s, 1)}
        line |= {"mean": round(float(mean), 1)}
        print(json.dumps(line), flush=True)


def operant(seed: int, target: float, overrides: list[str]) -> None:
    """Train with Operant and print a line at the end."""
    sys.path.insert(0, str(Path(__file__).parent))
    from mujoco_returns import train
    from recipes import evaluations

    from operant.training.target import TargetEvaluator

    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp()  # this run stays out of the user's list
    asked = [*overrides, f"run.target={target}", "eval.every=3", "eval.episodes=128"]
    whole, evaluating, evaluate = Timer(), Timer(), TargetEvaluator.run

    def timed(*arguments: Any, **keywords: Any) -> Any:
        """Play an evaluation and its confirmation, and time both."""
        return evaluating.call(evaluate, *arguments, **keywords)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(TargetEvaluator, "run", timed):
        trainer, run, _ = whole.call(train, "ppo/half_cheetah", seed, asked, Path(folder))
        wall_s, cpu_s = whole.wall_s - evaluating.wall_s, whole.cpu_s - evaluating.cpu_s
        line: dict[str, Any] = {"operant": "ppo/half_cheetah", "seed": seed, "steps": trainer.step}
        line |= {"wall_s": round(wall_s, 1), "cpu_s": round(cpu_s, 1)}
        line |= {"evaluations_s": round(evaluating.wall_s, 1), "evaluations_cpu_s": round(evaluating.cpu_s, 1)}
        line |= {"evaluations": [[said["step"], round(said["mean"], 1)] for said in evaluations(run.path)]}
        print(json.dumps(line), flush=True)


def main() -> None:
    """Time HalfCheetah by the library named on the command line: sb3 or operant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("sb3", "operant"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", type=float, default=3000.0)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--override", nargs="*", default=[])
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    if arguments.part == "sb3":
        sb3(arguments.seed, arguments.target, arguments.seconds)
    else:
        operant(arguments.seed, arguments.target, arguments.override)


if __name__ == "__main__":
    main()
