"""PPO for policies with a memory: what a lane remembers and when it forgets, segments, the gradient against plain
sequences, repeatability, resuming.
"""

from __future__ import annotations

import pytest
import torch
from toys import COUNT, FILL, GATE, PICK, PUSH, SEEN, bytes_of, clones, iterate, ppo_on

from operant.algos.ppo.config import PPOConfig
from operant.data import minibatches
from operant.errors import ConfigError
from operant.kernels.recurrent.shape import reason_for_torch
from operant.nn import NetConfig
from operant.training.evaluate import Evaluator

CELLS = ["mingru", "gru", "lstm"]
EVERYTHING = {
    "normalize_observations": True,
    "normalize_rewards": True,
    "value_clip": 0.2,
    "target_kl": 0.002,
    "learning_rate": 0.01,
}

pytestmark = pytest.mark.usefixtures("one_thread")


def memory(cell="gru", **net):
    return NetConfig(memory=cell, **{"hidden": (8,), **net})


# COLLECT


@pytest.mark.parametrize("kind", CELLS)
def test_state_resets_between_episodes_and_truncation_bootstraps_from_the_last_state(kind):
    """Every value of a rollout is that of its episode alone, played from its beginning by a policy that knows nothing
    of other episodes.

    COUNT's lane 0 is truncated at every third step, others end before: V of the true final observation follows from the
    whole episode. The second of two rollouts of 8 steps begins within an episode.
    """
    ppo = ppo_on(COUNT, 4, memory(kind), horizon=8, minibatches=2)
    rollout, policy, found, halves = ppo.rollout, ppo.policy, ppo.experience, []
    for _ in range(2):
        ppo.collect()
        parts = (
            rollout.observation[:8],
            rollout.final_observation,
            rollout.terminated,
            rollout.truncated,
            found.value[:8],
            found.final_value,
        )
        halves.append([part.clone() for part in parts])
    observation, final, terminated, truncated, values, final_values = (
        torch.cat(parts) for parts in zip(*halves, strict=True)
    )
    for lane in range(4):
        begin = 0
        for t in range(16):
            ended = bool(terminated[t, lane] | truncated[t, lane])
            seen = observation[begin : t + 1, :, lane].t()  # (O, steps of the episode)
            if truncated[t, lane] and not terminated[t, lane]:
                seen = torch.cat([seen, final[t, :, lane, None]], dim=1)
            _, value, _ = policy.unroll(seen, policy.initial_state(1), torch.zeros(seen.shape[1], 1))
            torch.testing.assert_close(values[begin : t + 1, lane], value[: t + 1 - begin])
            if seen.shape[1] > t + 1 - begin:
                torch.testing.assert_close(final_values[t, lane], value[-1])
            begin = t + 1 if ended else begin
    assert truncated[:, 0].nonzero().flatten().tolist() == [2, 5, 8, 11, 14]


@pytest.mark.parametrize("kind", CELLS)
def test_state_carries_over_from_one_iteration_to_the_next(kind):
    """What is remembered is carried from one iteration to the next, and forgotten between them where that is
    asked for.
    """
    whole = ppo_on(PICK, 4, memory(kind), horizon=8, minibatches=2)
    whole.collect()
    for carried in (True, False):
        halves = ppo_on(PICK, 4, memory(kind), horizon=4, minibatches=2, carry_state=carried)
        halves.collect()
        first = halves.experience.value[:4].clone()
        halves.collector.carry_on()
        halves.collect()
        assert torch.equal(first, whole.experience.value[:4])
        same = torch.equal(halves.experience.value, whole.experience.value[4:])
        assert same is carried and torch.equal(halves.rollout.action, whole.rollout.action[4:]) >= carried


# MINIBATCHES


@pytest.mark.parametrize(
    ("T", "N", "parts", "length", "block"),
    [(8, 64, 2, 8, 32), (8, 64, 4, 8, 16), (8, 64, 4, 2, 32), (12, 6, 3, 4, 2), (4, 1024, 4, 4, 32)],
)
def test_segments_hold_consecutive_steps_of_a_lane(T, N, parts, length, block):
    """An epoch has every segment once, whole and in its order."""
    cut = minibatches.segments_layout(T, N, parts, length)
    assert (cut.block, cut.samples, cut.steps) == (block, T * N // parts, T // length)
    made = minibatches.Minibatches(cut, 2, 1, torch.tensor([0]))
    made.shuffle()
    number = torch.arange(T * N).view(T, N)  # of a sample
    seen = []
    for blocks in made.order[0].long().chunk(parts):
        found = made.gather_segments(number, blocks)
        assert found.shape == (length, T * N // parts // length)
        assert torch.equal(found, found[0] + N * torch.arange(length)[:, None]) and bool(
            (found[0] // N % length == 0).all()
        )
        rows = made.gather_segments(torch.stack([number, -number], dim=1), blocks)
        assert torch.equal(rows, torch.stack([found, -found]))
        starts = made.gather(number[::length].contiguous(), blocks)
        assert torch.equal(starts, found[0])
        seen.append(found.flatten())
    assert torch.equal(torch.cat(seen).sort().values, number.flatten())


def test_segments_lie_inside_shards():
    cut = minibatches.segments_layout(64, 1024, 4, 64)
    assert cut.shards == 8
    made = minibatches.Minibatches(cut, 1, 1, torch.tensor([3]))
    made.shuffle()
    shard = made.order[0] % cut.groups // (cut.groups // cut.shards)
    assert torch.equal(shard, torch.arange(8, dtype=torch.int32).repeat_interleave(cut.shard_blocks).repeat(4))


# GRADIENT


@pytest.mark.parametrize("kind", CELLS)
def test_gradient_of_segments_is_backpropagation_through_their_steps(kind):
    """PPO's first loss by a plain loop over lanes and steps: the state before a segment is data, and nothing crosses an
    episode's end.
    """
    ppo = ppo_on(
        PICK,
        4,
        memory(kind, hidden=(6,)),
        horizon=8,
        bptt=4,
        minibatches=1,
        epochs=1,
        normalize_advantages=False,
        max_gradient_norm=1e9,
    )
    iterate(ppo, 2)
    ppo.collect()
    ppo.backend.estimate_advantages()
    ppo.minibatches.shuffle()
    policy, rollout, found, config = ppo.policy, ppo.rollout, ppo.experience, ppo.config
    (segments,) = ppo.backend.batches(ppo.minibatches.order[0].long())
    ppo.backend.gradient(segments)
    gradient = policy.flat.gradient.clone()

    losses = []
    starts = segments.state[0]
    order = minibatches.Minibatches.gather_segments(
        ppo.minibatches, torch.arange(32).view(8, 4), ppo.minibatches.order[0].long()
    )
    for k in range(order.shape[1]):
        state, lane = (starts[:, k : k + 1],), int(order[0, k]) % 4
        for t in (order[:, k] // 4).tolist():
            parameters, value, state = unrolled_step(policy, rollout.observation[t, :, lane, None], state)
            log_probability, entropy = policy.distribution.log_probability_and_entropy(
                parameters, found.raw[t, :, lane, None]
            )
            ratio = (log_probability - found.log_probability[t, lane]).exp()
            surrogate = (
                torch.minimum(ratio, ratio.clamp(0.8, 1.2))
                if found.advantage[t, lane] > 0
                else torch.maximum(ratio, ratio.clamp(0.8, 1.2))
            )
            policy_loss = -surrogate * found.advantage[t, lane]
            losses.append(
                policy_loss
                + config.value_coefficient * 0.5 * (value - found.returns[t, lane]) ** 2
                - config.entropy_coefficient * entropy
            )
            if rollout.terminated[t, lane] | rollout.truncated[t, lane]:
                state = policy.initial_state(1)
    expected = torch.autograd.grad(torch.cat(losses).mean(), policy.flat.parameters, materialize_grads=True)
    ends = [
        slice(offset, offset + parameter.numel())
        for offset, parameter in zip(policy.flat.offsets, policy.flat.parameters, strict=True)
    ]
    for name, window, other in zip(policy.flat.names, ends, expected, strict=True):
        torch.testing.assert_close(
            gradient[window], other.flatten(), rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def unrolled_step(policy, observation, state):
    """Step of a single lane whose state keeps its gradient, by autograd alone."""
    net = policy.net
    features = net.encoder.features(observation, policy.normalizer)
    G, M = net.memory.towers, net.memory.units
    before = state[0].view(-1, net.memory.layers, G, M)
    after = []
    for k in range(net.memory.layers):
        rows = net.memory.input_weights[k] @ features + net.memory.input_biases[k]  # (G, K, 1)
        h = before[0, k][:, :, None]
        if net.memory.kind == "mingru":
            hidden, gate, highway = rows.sigmoid().chunk(3, dim=1)
            plain = rows.chunk(3, dim=1)[0]
            new = h + gate * (torch.where(plain >= 0, plain + 0.5, hidden) - h)
            features, parts = highway * new + (1 - highway) * features, (new,)
        elif net.memory.kind == "gru":
            loop = net.memory.state_weights[k] @ h
            r, z = (rows + loop)[:, : 2 * M].sigmoid().chunk(2, dim=1)
            n = torch.tanh(rows[:, 2 * M :] + r * (loop[:, 2 * M :] + net.memory.state_biases[k]))
            features = (1 - z) * n + z * h
            parts = (features,)
        else:
            i, f, o, g = (rows + net.memory.state_weights[k] @ h).chunk(4, dim=1)
            c = f.sigmoid() * before[1, k][:, :, None] + i.sigmoid() * g.tanh()
            features = o.sigmoid() * c.tanh()
            parts = (features, c)
        after.append(torch.stack(parts))
    parameters, value = net.encoder.heads(features)
    return parameters, value, (torch.stack(after, dim=1).view(-1, 1),)


def test_microbatches_of_segments_add_up_to_the_minibatch():
    """Gradient accumulation over segments."""
    whole, parts = (
        iterate(ppo_on(PUSH, 8, memory(), horizon=8, bptt=4, minibatches=2, microbatch=micro), 2)
        for micro in (None, 12)
    )
    torch.testing.assert_close(whole.policy.flat.values, parts.policy.flat.values, rtol=1e-3, atol=1e-5)


# A RUN


@pytest.mark.parametrize(
    ("env", "kind", "extra"),
    [
        (PUSH, "mingru", EVERYTHING),  # continuous
        pytest.param(PICK, "gru", {}, marks=pytest.mark.slow),  # several choices
        (GATE, "lstm", {"normalize_observations": True}),  # legal actions
        pytest.param(FILL, "mingru", {"carry_state": False}, marks=pytest.mark.slow),  # categories
        pytest.param(SEEN, "gru", {}, marks=pytest.mark.slow),  # pictures
    ],
)
def test_same_seed_same_bits_and_resume_is_exact(env, kind, extra):
    net = memory(kind, kind="cnn", cnn="impala", channels=(2,)) if env is SEEN else memory(kind, memory_layers=2)
    algo = {"horizon": 8, "bptt": 4, "minibatches": 2, "epochs": 2, **extra}
    first, second, other = (iterate(ppo_on(env, 8, net, seed=seed, **algo), 2) for seed in (1, 1, 2))
    assert bytes_of(first) == bytes_of(second) != bytes_of(other)
    resumed = ppo_on(env, 8, net, start=False, **algo)
    for name, tensor in resumed.state("all").items():
        tensor.copy_(clones(first)[name])
    assert bytes_of(iterate(resumed, 2)) == bytes_of(iterate(first, 2))
    assert torch.isfinite(first.stats).all() and any(name.startswith("algo/state/") for name in first.state("train"))


def test_evaluation_resets_state_for_each_episode():
    """The same episodes have the same returns, whatever was played before and beside them."""
    ppo = iterate(ppo_on(PICK, 8, memory(), horizon=8, minibatches=2), 2)
    evaluator = Evaluator(ppo.actor, PICK, None, episodes=16, seed=1, greedy=False)
    first = evaluator.run(1)
    evaluator.run(2)
    assert evaluator.run(1) == first


@pytest.mark.parametrize("kind", CELLS)
def test_without_carry_state_evaluation_resets_every_horizon_steps(kind):
    forgetful, other = (
        iterate(ppo_on(PICK, 4, memory(kind), horizon=3, minibatches=1, carry_state=carried), 1)
        for carried in (False, True)
    )
    for name, tensor in other.state("policy").items():
        tensor.copy_(forgetful.state("policy")[name])
    seen = torch.randn(8, forgetful.rollout.observation.shape[1], 4)
    played, plain = forgetful.actor.initial_state(4), other.actor.initial_state(4)
    for t in range(8):
        if t % 3 == 0:
            plain = other.actor.initial_state(4)
        (action, played), (expected, plain) = forgetful.actor.act(seen[t], played), other.actor.act(seen[t], plain)
        assert torch.equal(action, expected) and all(map(torch.equal, played, plain))


# CONFIGURATION


def test_sizes_that_do_not_divide_are_refused():
    assert PPOConfig(horizon=8, bptt=4, minibatches=8).problems(4, memory=True) == []
    [(key, sentence)] = PPOConfig(horizon=8, bptt=3).problems(4, memory=True)
    assert key == "bptt" and "3" in sentence and "8" in sentence and "use 2" in sentence
    [(key, sentence)] = PPOConfig(horizon=8, minibatches=8).problems(4, memory=True)
    assert key == "minibatches" and "4 segments" in sentence and "8" in sentence
    with pytest.raises(ConfigError, match=r"algo\.bptt"):
        ppo_on(PICK, 4, memory(), horizon=8, bptt=3)


def test_unsupported_fused_kernels_are_refused_with_a_reason():
    with pytest.raises(ConfigError, match="actor and critic have separate memories"):
        ppo_on(PICK, 4, memory(), horizon=8, minibatches=2, kernels="fused")


def test_auto_leaves_cells_to_torch_where_torch_is_faster():
    def policy(cell, units):
        return ppo_on(PICK, 4, memory(cell, hidden=(units,)), horizon=8, minibatches=2).policy

    assert "faster" in reason_for_torch(policy("gru", 80), "fp32") and "faster" in reason_for_torch(
        policy("mingru", 80), "fp32"
    )
    assert (
        reason_for_torch(policy("gru", 80), "tf32")
        is reason_for_torch(policy("gru", 64), "fp32")
        is reason_for_torch(policy("mingru", 80), "bf16")
        is None
    )
    assert reason_for_torch(policy("lstm", 256), "bf16") is reason_for_torch(policy("mingru", 256), "tf32") is None
