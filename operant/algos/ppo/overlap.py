"""Overlapped collection: the next rollout is collected while the last one is learned from, so the acting policy lags
the learner by one iteration.

A copy of the policy acts, into a second rollout. The two halves of an iteration write no memory that the other
uses, so on a GPU they run in two streams, and their order does not matter on a CPU.

A checkpoint does not hold the rollout that waits to be learned from, but the state it was collected from: the lanes
before it, the acting policy, and the environment's scheduled parameters. A resumed run collects it again.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from operant.algos.base import Phase, Tier
from operant.algos.ppo.config import PPOConfig
from operant.algos.ppo.ppo import PPO, make_policy
from operant.compute.graphs import Graphed
from operant.nn import SOLO, Exchange, NetConfig
from operant.worlds import World


class Overlapped(PPO):
    """PPO that collects the next rollout, by the backend `acting` and a copy of the policy, while it learns from the
    last one by `backend`. An iteration is one phase.
    """

    parts = PPO.parts | {
        f"acting.{name}": "network" for name in ("forward", "after", "bootstrap", "learner.act", "learner.bootstrap")
    }

    def __init__(
        self,
        world: World,
        config: PPOConfig,
        net: NetConfig,
        *,
        seed: int,
        steps: int,
        eager: bool = False,
        exchange: Exchange = SOLO,
    ) -> None:
        """Create PPO, then a copy of policy, rollout and backend that acts. Arguments as for `PPO`; `eager`: without
        CUDA graphs.
        """
        one_graph = world.capturable  # holds both halves
        super().__init__(world, config, net, seed=seed, steps=steps, eager=eager or one_graph, exchange=exchange)
        self.acting_policy = make_policy(world.spec, config, net, self.device, seed)
        self.collector = self.collector.twin()
        self.rollout = self.collector.rollout
        collected = self.make_experience(self.collector)
        self.acting = self.backend.with_rollout(self.acting_policy, self.collector, collected)
        self.collected = False
        """Whether a rollout waits to be learned from. A resumed run has to collect it again."""

        # Pairs (target, source): rollout and experience for the learner, parameters and normalizer for the actor.
        self._rollout_pairs = [
            (learned, fresh)
            for learned, fresh in zip(self.cycle.rollout, self.rollout, strict=True)
            if learned is not fresh
        ]
        self._rollout_pairs += [
            (getattr(self.experience, name), getattr(collected, name))
            for name in ("raw", "log_probability", "value", "final_value")
        ]
        self._policy_pairs = {"parameters": (self.acting_policy.flat.values.data, self.policy.flat.values.data)}
        copied, learned = self.acting_policy.normalizer, self.policy.normalizer
        if copied is not None and learned is not None:
            self._policy_pairs |= {
                name: (getattr(copied, name), getattr(learned, name)) for name in ("mean", "inv_std")
            }

        # State of the lanes, and the environment's scheduled parameters, when the waiting rollout began.
        self._scheduled_parameters = dict(getattr(world, "changing", {}))
        self._world_before = {name: tensor.clone() for name, tensor in world.state().items()}
        self._parameters_before = {name: scalar.clone() for name, scalar in self._scheduled_parameters.items()}
        with torch.no_grad():
            _copy_all(self._policy_pairs.values())

        single = self.backend.single_threaded
        self._hand_over = Graphed(single(self._copy_rollout_and_policy), self.device, eager=eager or one_graph)
        self._both = Graphed(single(self._learn_and_collect), self.device, eager=eager or not one_graph)
        # Collection is many short launches: its stream has priority over the update's long ones.
        self._stream = torch.cuda.Stream(self.device, priority=-1) if self.device.type == "cuda" else None
        self.phases = (Phase("train", self._train),)

    def start(self) -> None:
        """Reset all lanes before the first iteration of a new run. A resumed run loads `state` instead."""
        super().start()
        self.collected = False
        self._save_parameters()

    # AN ITERATION

    def _train(self) -> None:
        """Run one iteration. The first of a run or of a resume also collects the rollout that it learns from."""
        if not self.collected:
            self._collect_first()
        self._both()

    def _collect_first(self) -> None:
        """Collect the rollout from which the first iteration of a run or of a resume learns.

        No metric counts its episodes: they are not counted yet, or were counted before the checkpoint.
        """
        self._swap_parameters()
        self.collect()
        self._swap_parameters()
        self.world.episode_sums(self.rollout)
        self.collected = True

    def _learn_and_collect(self) -> None:
        """Copy rollout and policy, then learn from that rollout while the copy of the policy collects the next."""
        self._hand_over()
        if self._stream is None:
            self.update()
            self._save_world()
            self.collect()
            return
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        self.update()
        with torch.cuda.stream(self._stream):  # launched after the update, since the host may wait in here
            self._save_world()
            self.collect()
        current.wait_stream(self._stream)

    def _collect(self) -> None:
        """Roll out T steps of every lane by the acting policy, then bootstrap values."""
        self.acting.collect()

    def _update(self) -> None:
        """Learn from the rollout that was copied to the learner."""
        self.backend.prepare()
        self.backend.learn()

    @torch.no_grad()
    def _copy_rollout_and_policy(self) -> None:
        """Copy the newest rollout to the learner's buffers, and the learned parameters to the acting policy."""
        _copy_all([*self._rollout_pairs, *self._policy_pairs.values()])

    @torch.no_grad()
    def _save_world(self) -> None:
        """Save the state of the lanes for checkpoints, and begin the next rollout with the last observation. Called
        before every collection but the first.
        """
        world = self.world.state()
        _copy_all((saved, world[name]) for name, saved in self._world_before.items())
        self._save_parameters()
        self.collector.carry_on()

    def _save_parameters(self) -> None:
        """Save the values of the environment's scheduled parameters with which a collection begins."""
        _copy_all((saved, self._scheduled_parameters[name]) for name, saved in self._parameters_before.items())

    def _swap_parameters(self) -> None:
        """Exchange the values of the environment's scheduled parameters with the saved ones."""
        for name, scalar in self._scheduled_parameters.items():
            current = scalar.clone()
            scalar.copy_(self._parameters_before[name])
            self._parameters_before[name].copy_(current)

    # STATE

    def state(self, tier: Tier) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint of a `tier` ("policy", "train" or "all"), by name; a load copies
        into them, before the first iteration.
        """
        named = super().state(tier)
        if tier == "policy":
            return named
        if self.collected:
            named |= {f"world/{name}": tensor for name, tensor in self._world_before.items()}
        named |= {f"acting/{name}": copied for name, (copied, _) in self._policy_pairs.items()}
        return named | {f"acting/changing/{name}": scalar for name, scalar in self._parameters_before.items()}


def _copy_all(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair into the first, those of one type in one launch."""
    by_type: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in pairs:
        targets, sources = by_type.setdefault(source.dtype, ([], []))
        targets.append(target)
        sources.append(source)
    for targets, sources in by_type.values():
        torch._foreach_copy_(targets, sources)
