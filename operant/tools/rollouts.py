"""Rollouts of an environment with random and extreme actions, for `operant.tools.check`, which judges the results."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from operant.compute.kernel import Kernel, bind
from operant.envs import Env, MultiDiscrete
from operant.worlds import EPISODES, LENGTH, RETURN, TALLIES, DeviceWorld, Scene, shards_body
from operant.worlds.bounds import rollout_actions

DEVICE_TOLERANCE = 1e-3
"""Tolerance of CPU against CUDA, relative to max(1, |value|)."""


class Harness:
    """Test world of an environment's lanes with one set of buffers, stepped one step at a time."""

    def __init__(self, env: Env, lanes: int, seed: int, device: str = "cpu", *, every_final: bool = True) -> None:
        self.world = DeviceWorld(env, lanes, seed=seed, device=device, every_final=every_final)
        self.slot = self.world.slot()
        self._bound = self.world.bind(self.slot)

    def reset(self) -> None:
        """Reset every lane of the world."""
        self.world.reset(self._bound)

    def step(self, action: torch.Tensor) -> None:
        """Take one step in every lane with actions (A, N)."""
        self.slot.action.copy_(action)
        self.world.step(self._bound)
        self.world.advance(1)

    def outcome(self) -> dict[str, torch.Tensor]:
        """Return copies on the CPU, by name, of everything that the last step has written: observations, rewards, ends
        and state.
        """
        lanes, slot = self.world.lanes, self.slot
        ended = (slot.terminated | slot.truncated).bool()
        tensors = {
            "observation": slot.observation,
            "reward": slot.reward,
            "terminated": slot.terminated,
            "truncated": slot.truncated,
        }
        tensors |= {"state": lanes.state, "running": lanes.running}
        if slot.legal is not None:
            tensors["legal"] = slot.legal
        if lanes.int_state is not None:
            tensors["int_state"] = lanes.int_state
        tensors["final observation"] = torch.where(
            ended, slot.final_observation, torch.zeros_like(slot.final_observation)
        )
        return {name: tensor.cpu() for name, tensor in tensors.items()}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are bitwise equal, so that NaN equals NaN and 0 differs from -0."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@dataclass
class RolloutResult:
    """Findings of a long rollout, each a message or None if the check passed, and statistics of its episodes."""

    not_repeated: str | None = None
    not_finite: str | None = None
    outside: str | None = None
    mask: str | None = None
    legal_share: float = 0.0
    illegal: int = 0
    seed_matters: bool = False
    episodes: float = 0.0
    length: float = 0.0
    mean_return: float = 0.0


def long_rollout(env: Env, lanes: int, steps: int) -> RolloutResult:
    """Run a rollout of `lanes` lanes three times with the same actions, twice with one seed and once with another, and
    check repeatability, finiteness, bounds and masks.
    """
    result, generator = RolloutResult(), np.random.default_rng(1)
    one, again, other = Harness(env, lanes, 1), Harness(env, lanes, 1), Harness(env, lanes, 2)
    sums = np.zeros(TALLIES + len(env.tally))
    low, high = (torch.tensor(bound, dtype=torch.float32)[:, None] for bound in env.observation.bounds())
    for t in range(steps + 1):
        action = rollout_actions(env, generator, t, lanes, one.slot.legal)
        if t and one.slot.legal is not None:
            _check_mask(env, result, t - 1, one.slot.legal, action)
        for harness in (one, again, other):
            harness.step(action) if t else harness.reset()
        if t:
            sums += one.world.episode_sums(one.slot).numpy()
        outcome = one.outcome()
        if result.not_repeated is None:
            result.not_repeated = next(
                (
                    f"step {t}: the {name}"
                    for name, bits in again.outcome().items()
                    if not same_bits(bits, outcome[name])
                ),
                None,
            )
        result.seed_matters |= not same_bits(other.slot.observation, one.slot.observation) or not same_bits(
            other.slot.reward, one.slot.reward
        )
        if result.not_finite is None:
            result.not_finite = _describe_first(
                t, {name: (values, ~torch.isfinite(values)) for name, values in outcome.items()}
            )
        if result.outside is None:
            slack = 1e-6 * torch.maximum(low.abs(), high.abs()).nan_to_num(posinf=0.0)
            values = {name: outcome[name].float() for name in ("observation", "final observation")}
            ended = (one.slot.terminated | one.slot.truncated).bool()
            wrong = {name: (value, (value < low - slack) | (value > high + slack)) for name, value in values.items()}
            wrong["final observation"] = (wrong["final observation"][0], wrong["final observation"][1] & ended)
            result.outside = _describe_first(t, wrong)
    result.legal_share /= max(steps, 1)
    result.episodes = float(sums[EPISODES])
    if result.episodes:
        result.length, result.mean_return = float(sums[LENGTH] / sums[EPISODES]), float(sums[RETURN] / sums[EPISODES])
    return result


def _check_mask(env: Env, result: RolloutResult, t: int, legal: torch.Tensor, action: torch.Tensor) -> None:
    """Check the mask of legal actions (H, N) after step `t`, and count the illegal ones among the actions (A, N).
    Results are added to `result`.
    """
    blocks = legal.split(env.action.n if isinstance(env.action, MultiDiscrete) else (env.mask_size,))
    result.legal_share += float((legal == 1).double().mean())
    result.illegal += sum(
        int((block.gather(0, row[None].long()) != 1).sum()) for block, row in zip(blocks, action, strict=True)
    )
    if result.mask is not None:
        return
    if bool((wrong := legal > 1).any()):
        row, lane = wrong.nonzero()[0].tolist()
        result.mask = f"mask[{row}] is {int(legal[row, lane])} after step {t} in lane {lane}: 1 is legal, 0 is not"
        return
    for k, block in enumerate(blocks):
        if bool((none := ~(block == 1).any(dim=0)).any()):
            which = f" of component {k}" if len(blocks) > 1 else ""
            result.mask = (
                f"no action{which} is legal after step {t} in lane {int(none.nonzero()[0])}: at least one "
                "must always be"
            )
            return


def _describe_first(t: int, wrong: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> str | None:
    """Describe the first wrong value after step `t` in a sentence. `wrong` maps a name to values and the mask of wrong
    ones. None if no value is wrong.
    """
    for name, (values, mask) in wrong.items():
        if bool(mask.any()):
            index = mask.nonzero()[0].tolist()
            row = f"[{index[0]}]" if len(index) == 2 else ""
            return f"{name}{row} is {float(values[tuple(index)]):g} after step {t} in lane {index[-1]}"
    return None


def shards_apart(env: Env, lanes: int, steps: int) -> str | None:
    """Check that several threads can write the shards (parts) of an observation concurrently. Returns the problem as a
    message; None if there is none.

    Each shard is written twice, into buffers with different contents: equal values are those it wrote.
    """
    harness, generator = Harness(env, lanes, 1), np.random.default_rng(1)
    write = Kernel(shards_body(env, harness.world.params, env.observation_shards), torch.device("cpu"))
    scene, bound = Scene(harness.world.lanes.state, harness.world.lanes.int_state), harness.world.bind(harness.slot)
    buffers = {"obs": harness.slot.observation} | ({} if harness.slot.legal is None else {"mask": harness.slot.legal})
    bits = {
        name: buffer.view(torch.uint8 if buffer.dtype == torch.uint8 else torch.int32)
        for name, buffer in buffers.items()
    }

    def alone(shard: int, fill: int) -> dict[str, torch.Tensor]:
        for buffer in buffers.values():
            buffer.fill_(fill)
        write(lanes, bind(scene), bound, shard)
        return {name: value.clone() for name, value in bits.items()}

    for t in range(steps + 1):
        action = rollout_actions(env, generator, t, lanes, harness.slot.legal)
        harness.step(action) if t else harness.reset()
        right, before = (
            {name: value.clone() for name, value in bits.items()},
            [None if rows is None else rows.clone() for rows in scene[:2]],
        )
        missing = {name: torch.ones_like(value, dtype=torch.bool) for name, value in bits.items()}
        for shard in range(env.observation_shards):
            one, other = alone(shard, 85), alone(shard, 42)
            for what, old, new in zip(("s", "int_state"), before, scene[:2], strict=True):
                if old is not None and not same_bits(old, new):
                    return f"`observe` or `legal` writes into {what}: with shards they may only read"
            for name, whole in right.items():
                written = one[name] == other[name]
                missing[name] &= ~written
                if rows := (written & (one[name] != whole)).any(dim=1).nonzero().flatten().tolist():
                    return (
                        f"shard {shard} writes {name}{rows[:8]} differently from another shard: each row must "
                        "belong to one shard"
                    )
        for name, none in missing.items():
            if rows := none.any(dim=1).nonzero().flatten().tolist():
                return (
                    f"{name}{rows[:8]} are not written by any shard alone: a shard must not read what another one wrote"
                )
        for name, value in bits.items():
            value.copy_(right[name])
    return None


def compare_devices(
    env: Env, lanes: int, steps: int, device: str = "cuda", resynchronise: bool = False
) -> tuple[float, float]:
    """Take the same steps on the CPU and on a GPU, and compare them. Returns the share of lanes that agree throughout,
    and the largest error among them. With `resynchronise` every step starts from the CPU's state; otherwise both run
    freely.

    Lanes agree if observations, rewards and state are within DEVICE_TOLERANCE of max(1, |value|), integers and flags
    equal.
    """
    generator, host, other = np.random.default_rng(1), Harness(env, lanes, 1), Harness(env, lanes, 1, device)
    agree, worst = torch.ones(lanes, dtype=torch.bool), torch.zeros(lanes)
    for t in range(steps + 1):
        action = rollout_actions(env, generator, t, lanes, host.slot.legal)
        for harness in (host, other):
            harness.step(action) if t else harness.reset()
        ours, theirs = host.outcome(), other.outcome()
        for name in ours:
            one, two = ours[name].reshape(-1, lanes), theirs[name].reshape(-1, lanes)
            if one.dtype != torch.float32:
                agree &= (one == two).all(dim=0)
            elif name != "running":  # sums of the rewards
                error = ((one - two).abs() / one.abs().clamp(min=1.0)).amax(dim=0)
                agree &= error <= DEVICE_TOLERANCE
                worst = torch.where(agree, torch.maximum(worst, error), worst)
        if resynchronise:
            for source, target in zip(host.world.state().values(), other.world.state().values(), strict=True):
                target.copy_(source)
    return float(agree.float().mean()), float(worst[agree].max()) if bool(agree.any()) else math.nan
