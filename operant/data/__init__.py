"""Data between acting and learning: rollout, advantages, minibatches, replay, and the cycles of learning from them."""

from operant.data.minibatches import Layout, layout, segments_layout
from operant.data.off_policy import Cycle, DelayedActorConfig, OffPolicyConfig
from operant.data.on_policy import Buffers, Experience, OnPolicyBackend, OnPolicyCycle
from operant.data.priorities import Prioritised
from operant.data.replay import Batch, Replay
from operant.data.returns import AccruedReturns
from operant.data.rollout import Collector

__all__ = [
    "AccruedReturns",
    "Batch",
    "Buffers",
    "Collector",
    "Cycle",
    "DelayedActorConfig",
    "Experience",
    "Layout",
    "OffPolicyConfig",
    "OnPolicyBackend",
    "OnPolicyCycle",
    "Prioritised",
    "Replay",
    "layout",
    "segments_layout",
]
