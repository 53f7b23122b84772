"""Rollouts of an environment under random and extreme actions, to see what it does. Knows no policy, and gives no
verdict: `operant.tools.check` does.
"""

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
"""CPU against CUDA, of max(1, |number|)."""


class Harness:
    """A world with one slot."""

    def __init__(self, env: Env, lanes: int, seed: int, device: str = "cpu", *, every_final: bool = True) -> None:
        self.world = DeviceWorld(env, lanes, seed=seed, device=device, every_final=every_final)
        self.slot = self.world.slot()
        self._bound = self.world.bind(self.slot)

    def reset(self) -> None:
        """Begin every lane anew."""
        self.world.reset(self._bound)

    def step(self, action: torch.Tensor) -> None:
        """One step under actions (A, N)."""
        self.slot.action.copy_(action)
        self.world.step(self._bound)
        self.world.advance(1)

    def outcome(self) -> dict[str, torch.Tensor]:
        """What a step leaves behind, by name; on the CPU."""
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
    """Equal to the bit, so that NaN equals NaN and 0 differs from -0."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@dataclass
class Seen:
    """The findings of a long rollout; None where nothing was wrong."""

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


def long_rollout(env: Env, lanes: int, steps: int) -> Seen:
    """The same seed twice and another once, side by side, under the same actions."""
    seen, generator = Seen(), np.random.default_rng(1)
    one, again, other = Harness(env, lanes, 1), Harness(env, lanes, 1), Harness(env, lanes, 2)
    sums = np.zeros(TALLIES + len(env.tally))
    low, high = (torch.tensor(bound, dtype=torch.float32)[:, None] for bound in env.observation.bounds())
    for t in range(steps + 1):
        action = rollout_actions(env, generator, t, lanes, one.slot.legal)
        if t and one.slot.legal is not None:
            _judge(env, seen, t - 1, one.slot.legal, action)
        for harness in (one, again, other):
            harness.step(action) if t else harness.reset()
        if t:
            sums += one.world.episode_sums(one.slot).numpy()
        outcome = one.outcome()
        if seen.not_repeated is None:
            seen.not_repeated = next(
                (
                    f"step {t}: the {name}"
                    for name, bits in again.outcome().items()
                    if not same_bits(bits, outcome[name])
                ),
                None,
            )
        seen.seed_matters |= not same_bits(other.slot.observation, one.slot.observation) or not same_bits(
            other.slot.reward, one.slot.reward
        )
        if seen.not_finite is None:
            seen.not_finite = _first(
                t, {name: (numbers, ~torch.isfinite(numbers)) for name, numbers in outcome.items()}
            )
        if seen.outside is None:
            slack = 1e-6 * torch.maximum(low.abs(), high.abs()).nan_to_num(posinf=0.0)
            numbers = {name: outcome[name].float() for name in ("observation", "final observation")}
            ended = (one.slot.terminated | one.slot.truncated).bool()
            wrong = {name: (value, (value < low - slack) | (value > high + slack)) for name, value in numbers.items()}
            wrong["final observation"] = (wrong["final observation"][0], wrong["final observation"][1] & ended)
            seen.outside = _first(t, wrong)
    seen.legal_share /= max(steps, 1)
    seen.episodes = float(sums[EPISODES])
    if seen.episodes:
        seen.length, seen.mean_return = float(sums[LENGTH] / sums[EPISODES]), float(sums[RETURN] / sums[EPISODES])
    return seen


def _judge(env: Env, seen: Seen, t: int, legal: torch.Tensor, action: torch.Tensor) -> None:
    """Look at the mask (H, N) that step t left, and at the actions (A, N) taken under it."""
    blocks = legal.split(env.action.n if isinstance(env.action, MultiDiscrete) else (env.mask_size,))
    seen.legal_share += float((legal == 1).double().mean())
    seen.illegal += sum(
        int((block.gather(0, row[None].long()) != 1).sum()) for block, row in zip(blocks, action, strict=True)
    )
    if seen.mask is not None:
        return
    if bool((wrong := legal > 1).any()):
        row, lane = wrong.nonzero()[0].tolist()
        seen.mask = f"mask[{row}] is {int(legal[row, lane])} after step {t} in lane {lane}: 1 is legal, 0 is not"
        return
    for k, block in enumerate(blocks):
        if bool((none := ~(block == 1).any(dim=0)).any()):
            which = f" of choice {k}" if len(blocks) > 1 else ""
            seen.mask = (
                f"no action{which} is legal after step {t} in lane {int(none.nonzero()[0])}: one at least "
                "must be, always"
            )
            return


def _first(t: int, wrong: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> str | None:
    """The first number that a mask marks, in words."""
    for name, (numbers, mask) in wrong.items():
        if bool(mask.any()):
            place = mask.nonzero()[0].tolist()
            row = f"[{place[0]}]" if len(place) == 2 else ""
            return f"{name}{row} is {float(numbers[tuple(place)]):g} after step {t} in lane {place[-1]}"
    return None


def shards_apart(env: Env, lanes: int, steps: int) -> str | None:
    """What keeps the shards of an observation from being written by several threads at once, in words; None where
    nothing does.

    Each shard is written alone, twice, into buffers that differ: what then is equal is what it wrote.
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
            [None if rows is None else rows.clone() for rows in scene],
        )
        missing = {name: torch.ones_like(value, dtype=torch.bool) for name, value in bits.items()}
        for shard in range(env.observation_shards):
            one, other = alone(shard, 85), alone(shard, 42)
            for what, then, now in zip(("s", "int_state"), before, scene, strict=True):
                if then is not None and not same_bits(then, now):
                    return f"`observe` or `legal` writes into {what}: in shards, they may only read"
            for name, whole in right.items():
                written = one[name] == other[name]
                missing[name] &= ~written
                if rows := (written & (one[name] != whole)).any(dim=1).nonzero().flatten().tolist():
                    return (
                        f"shard {shard} writes {name}{rows[:8]} otherwise than another shard does: each row must "
                        "be one shard's"
                    )
        for name, none in missing.items():
            if rows := none.any(dim=1).nonzero().flatten().tolist():
                return f"{name}{rows[:8]} are what no shard writes by itself: none may read what another one wrote"
        for name, value in bits.items():
            value.copy_(right[name])
    return None


def compare_devices(
    env: Env, lanes: int, steps: int, device: str = "cuda", resynchronise: bool = False
) -> tuple[float, float]:
    """The same steps on the CPU and on a GPU, free or from the CPU's state at every step.

    Returns the share of lanes that agreed throughout (observations, rewards and state within DEVICE_TOLERANCE of max(1,
    |number|), cells and flags equal), and the largest error among those.
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
            elif name != "running":  # its sums are those of the rewards
                error = ((one - two).abs() / one.abs().clamp(min=1.0)).amax(dim=0)
                agree &= error <= DEVICE_TOLERANCE
                worst = torch.where(agree, torch.maximum(worst, error), worst)
        if resynchronise:
            for mine, its in zip(host.world.state().values(), other.world.state().values(), strict=True):
                its.copy_(mine)
    return float(agree.float().mean()), float(worst[agree].max()) if bool(agree.any()) else math.nan
