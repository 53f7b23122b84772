"""PPO on CartPole-v1 in plain JAX, in the style of PureJaxRL, for comparison: one jitted scan, no dependency but jax.

    python benches/jax_ppo.py [--lanes 1024] [--horizon 16] [--repeats 5] [--json]

Written by Operant's authors; not PureJaxRL itself. The work is the same: two 4-64-64 tanh towers, orthogonal weights, 4
epochs x 4 minibatches of a fresh permutation of single samples, advantages normalized per minibatch, clipped value
loss, Adam with epsilon 1e-5, gradients clipped to norm 0.5; CartPole's equations with automatic resets, and time limits
treated as terminations, as in PureJaxRL. `--solve` shows that it learns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

EPOCHS, MINIBATCHES = 4, 4
GAMMA, LAMBDA, CLIP, VALUE, ENTROPY, NORM, RATE = 0.99, 0.95, 0.2, 0.5, 0.01, 0.5, 2.5e-4


# CARTPOLE


class Lanes(NamedTuple):
    """State of all lanes."""

    state: jax.Array  # (N, 4)
    age: jax.Array  # (N)


def fresh(key, lanes):
    return jax.random.uniform(key, (lanes, 4), minval=-0.05, maxval=0.05)


def step(lanes, action, key):
    """Step every lane and reset ended ones. Returns lanes, reward, done."""
    x, x_dot, theta, theta_dot = lanes.state.T
    force = jnp.where(action == 1, 10.0, -10.0)
    cos, sin = jnp.cos(theta), jnp.sin(theta)
    pushed = (force + 0.05 * theta_dot**2 * sin) / 1.1
    theta_acc = (9.8 * sin - cos * pushed) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    x_acc = pushed - 0.05 * theta_acc * cos / 1.1
    state = jnp.stack(
        [x + 0.02 * x_dot, x_dot + 0.02 * x_acc, theta + 0.02 * theta_dot, theta_dot + 0.02 * theta_acc], axis=1
    )
    age = lanes.age + 1
    done = (jnp.abs(state[:, 0]) > 2.4) | (jnp.abs(state[:, 2]) > 0.20943951) | (age >= 500)
    state = jnp.where(done[:, None], fresh(key, len(done)), state)
    return Lanes(state, jnp.where(done, 0, age)), jnp.ones(len(done)), done


# NETWORK AND OPTIMISER


def network(key):
    keys = jax.random.split(key, 6)

    def dense(k, rows, columns, gain):
        return {"w": jax.nn.initializers.orthogonal(gain)(keys[k], (rows, columns)), "b": jnp.zeros(columns)}

    root = 2.0**0.5
    return {
        "actor": [dense(0, 4, 64, root), dense(1, 64, 64, root), dense(2, 64, 2, 0.01)],
        "critic": [dense(3, 4, 64, root), dense(4, 64, 64, root), dense(5, 64, 1, 1.0)],
    }


def tower(layers, x):
    for layer in layers[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def apply(parameters, x):
    return jax.nn.log_softmax(tower(parameters["actor"], x)), tower(parameters["critic"], x)[..., 0]


def adam(parameters, moments, gradient):
    first, second, count = moments
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
    scale = jnp.minimum(1.0, NORM / (norm + 1e-6))
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g * scale, first, gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * (g * scale) ** 2, second, gradient)
    far, near = 1.0 - 0.9**count, 1.0 - 0.999**count
    parameters = jax.tree.map(
        lambda p, m, v: p - RATE * (m / far) / (jnp.sqrt(v / near) + 1e-5), parameters, first, second
    )
    return parameters, (first, second, count)


# PPO


class Sample(NamedTuple):
    """One step of every lane."""

    observation: jax.Array
    action: jax.Array
    log_probability: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array


def loss(parameters, samples, advantage, target):
    log_p, value = apply(parameters, samples.observation)
    ratio = jnp.exp(jnp.take_along_axis(log_p, samples.action[:, None], 1)[:, 0] - samples.log_probability)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - CLIP, 1.0 + CLIP) * advantage)
    near = samples.value + jnp.clip(value - samples.value, -CLIP, CLIP)
    value_loss = 0.5 * jnp.maximum((value - target) ** 2, (near - target) ** 2).mean()
    entropy = -(jnp.exp(log_p) * log_p).sum(axis=1).mean()
    return -surrogate.mean() + VALUE * value_loss - ENTROPY * entropy


def iteration(carry, _, horizon):
    """Collect, compute advantages, update; the score is the mean length of ended episodes."""
    parameters, moments, lanes, key = carry

    def act(inner, _):
        lanes, key = inner
        key, draw, reset = jax.random.split(key, 3)
        log_p, value = apply(parameters, lanes.state)
        action = jax.random.categorical(draw, log_p)
        chosen = jnp.take_along_axis(log_p, action[:, None], 1)[:, 0]
        after, reward, done = step(lanes, action, reset)
        return (after, key), (
            Sample(lanes.state, action, chosen, value, reward, done),
            jnp.where(done, lanes.age + 1, 0),
        )

    (lanes, key), (samples, lengths) = jax.lax.scan(act, (lanes, key), None, horizon)

    def estimate(inner, sample):
        advantage, following = inner
        delta = sample.reward + GAMMA * following * (1.0 - sample.done) - sample.value
        advantage = delta + GAMMA * LAMBDA * (1.0 - sample.done) * advantage
        return (advantage, sample.value), advantage

    last = apply(parameters, lanes.state)[1]
    _, advantage = jax.lax.scan(estimate, (jnp.zeros_like(last), last), samples, reverse=True, unroll=16)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (samples, advantage, advantage + samples.value))

    def epoch(inner, _):
        parameters, moments, key = inner
        key, draw = jax.random.split(key)
        order = jax.random.permutation(draw, len(flat[1]))
        parts = jax.tree.map(lambda x: x[order].reshape(MINIBATCHES, -1, *x.shape[1:]), flat)

        def descend(inner, part):
            parameters, moments = inner
            return adam(parameters, moments, jax.grad(loss)(parameters, *part)), None

        (parameters, moments), _ = jax.lax.scan(descend, (parameters, moments), parts)
        return (parameters, moments, key), None

    (parameters, moments, key), _ = jax.lax.scan(epoch, (parameters, moments, key), None, EPOCHS)
    return (parameters, moments, lanes, key), lengths.sum() / jnp.maximum(1, samples.done.sum())


@partial(jax.jit, static_argnums=(1, 2))
def train(carry, horizon, iterations):
    return jax.lax.scan(partial(iteration, horizon=horizon), carry, None, iterations)


def start(seed, lanes):
    key, first, reset = jax.random.split(jax.random.key(seed), 3)
    parameters = network(first)
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    return parameters, (zeros, zeros, jnp.zeros(())), Lanes(fresh(reset, lanes), jnp.zeros(lanes, jnp.int32)), key


def measure(lanes, horizon, repeats, least_s=1.0):
    """Seconds per iteration: median over regions, each one call with enough iterations to take about `least_s`."""
    carry = start(1, lanes)

    def timed(iterations):
        nonlocal carry
        began = time.perf_counter()
        carry, score = train(carry, horizon, iterations)
        jax.block_until_ready((carry, score))
        return (time.perf_counter() - began) / iterations

    timed(2)
    iterations = max(2, round(least_s / timed(2)))
    timed(iterations)
    return statistics.median(timed(iterations) for _ in range(repeats))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=1024)
    parser.add_argument("--horizon", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--solve", action="store_true", help="train 120 iterations and print the mean length of episodes"
    )
    arguments = parser.parse_args()
    if arguments.solve:
        _, lengths = train(start(1, arguments.lanes), arguments.horizon, 120)
        print(", ".join(f"{length:.0f}" for length in lengths[::12]), f"... {lengths[-1]:.0f}")
        return
    iteration_s = measure(arguments.lanes, arguments.horizon, arguments.repeats)
    device = jax.devices()[0]
    found = {
        "sps": arguments.lanes * arguments.horizon / iteration_s,
        "iteration_s": iteration_s,
        "lanes": arguments.lanes,
        "horizon": arguments.horizon,
        "jax": jax.__version__,
        "platform": device.platform,
        "device": device.device_kind,
    }
    if arguments.json:
        print(json.dumps(found))
    else:
        size, name = f"{arguments.lanes:,} x {arguments.horizon}", f"JAX {jax.__version__} on {device.device_kind}"
        print(f"{size}: {found['sps'] / 1e6:.3f} M SPS, {iteration_s * 1e3:.2f} ms an iteration, {name}")


if __name__ == "__main__":
    main()
