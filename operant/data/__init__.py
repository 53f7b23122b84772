"""What lies between acting and learning: noise, minibatches, returns, replay. Knows no network and no loss."""

from operant.data.minibatches import Layout, Minibatches, layout, segments_layout
from operant.data.off_policy import Cycle, DelayedActorConfig, OffPolicyConfig
from operant.data.priorities import Prioritised
from operant.data.replay import Batch, Replay
from operant.data.returns import Accrual, AccruedReturns, Discount, Trace, accrual_body, advantage_body
from operant.data.rollout import Collector

__all__ = [
    "Accrual",
    "AccruedReturns",
    "Batch",
    "Collector",
    "Cycle",
    "DelayedActorConfig",
    "Discount",
    "Layout",
    "Minibatches",
    "OffPolicyConfig",
    "Prioritised",
    "Replay",
    "Trace",
    "accrual_body",
    "advantage_body",
    "layout",
    "segments_layout",
]
