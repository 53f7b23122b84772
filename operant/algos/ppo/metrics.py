"""What PPO's numbers mean: one MetricSpec for each field of its statistics, with the thresholds of the monitor's health
lines. Knows no tensor.

The thresholds were set on the shipped configurations, which must show no "bad", and on runs broken on purpose (learning
rates of 1, 0.1, 0.05 and 1e-6), which must.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from operant.runs.metrics import MetricSpec, Threshold

_SMALLER_STEPS: Final = "lower algo.learning_rate, or fewer algo.epochs"
_COLLAPSED: Final = "the policy no longer explores: raise algo.entropy_coefficient, or lower algo.learning_rate"
_TOO_SMALL: Final = "the policy hardly changes: raise algo.learning_rate, unless its entropy is near 0"
_NOT_FINITE: Final = "lower algo.learning_rate or algo.max_gradient_norm, or set algo.normalize_rewards=true"
_SCHEDULED: Final = 0.2  # of the largest learning rate: below that it has been annealed, and small updates are right


def specs(choices: Sequence[int] = ()) -> tuple[MetricSpec, ...]:
    """PPO's metrics, in the order of its statistics, where a policy chooses among so many actions (one number each
    choice; none: continuous actions).
    """
    return (
        MetricSpec("loss/policy", "policy loss", order=80, advice=_NOT_FINITE),
        MetricSpec("loss/value", "value loss", order=70, advice=_NOT_FINITE),
        MetricSpec(
            "entropy",
            "entropy",
            figure="entropy",
            order=40,
            thresholds=_entropy(sum(map(math.log, choices))),
            advice=_NOT_FINITE,
            explanation="The policy's entropy in nats: ln n where all n actions are equally likely, 0 where one is "
            "certain, any number for a normal "
            "distribution. It falls as the policy learns. Near 0 while the goal is far, exploration ended too early; "
            "near ln n after a fifth of the run, "
            "nothing was learned.",
        ),
        MetricSpec(
            "approx_kl",
            "approx KL",
            figure="KL",
            order=50,
            advice=_NOT_FINITE,
            thresholds=(
                Threshold("bad", at_least=0.15, advice=f"updates change the policy too much: {_SMALLER_STEPS}"),
                Threshold("warn", at_least=0.05, advice=f"updates change the policy too much: {_SMALLER_STEPS}"),
                Threshold("bad", below=1e-6, advice=_TOO_SMALL, while_metric="learning_rate", while_share=_SCHEDULED),
                Threshold("warn", below=3e-5, advice=_TOO_SMALL, while_metric="learning_rate", while_share=_SCHEDULED),
            ),
            explanation="How far an iteration's updates move the policy: the mean of (ratio - 1) - log ratio (Schulman "
            "2020). Runs that learn have 0.0003 to "
            "0.04, most at the start, and less as the learning rate is annealed. Beyond 0.05 the samples no longer fit "
            "the policy that learns from them.",
        ),
        MetricSpec(
            "clip_fraction",
            "clip fraction",
            order=90,
            advice=_NOT_FINITE,
            thresholds=(
                Threshold("bad", at_least=0.7, advice=f"most samples are clipped: {_SMALLER_STEPS}"),
                Threshold("warn", at_least=0.4, advice=f"most samples are clipped: {_SMALLER_STEPS}"),
            ),
            explanation="The share of samples whose probability ratio left 1 ± algo.clip, so that PPO no longer learns "
            "from them. 0.01 to 0.35 is usual.",
        ),
        MetricSpec(
            "gradient_norm",
            "gradient norm",
            order=110,
            advice=_NOT_FINITE,
            thresholds=(
                Threshold(
                    "warn",
                    at_least=10.0,
                    relative_to="minute",
                    records=0.0,
                    advice="ten times the last minute's median: if it stays, lower algo.learning_rate or "
                    "algo.max_gradient_norm",
                ),
            ),
            explanation="The norm of the loss's gradient before it is clipped to algo.max_gradient_norm. Its size "
            "depends on the task; a jump is what matters.",
        ),
        MetricSpec(
            "explained_variance",
            "explained variance",
            figure="expl. var.",
            order=60,
            advice=_NOT_FINITE,
            thresholds=(
                Threshold(
                    "bad",
                    below=0.0,
                    after=0.2,
                    unless="best",
                    advice="the critic predicts worse than a constant would: lower algo.learning_rate, or set "
                    "algo.normalize_rewards=true",
                ),
                Threshold(
                    "warn",
                    below=0.5,
                    after=0.5,
                    unless="best",
                    advice="the critic lags: raise algo.value_coefficient or algo.epochs, or widen net.hidden",
                ),
            ),
            explanation="How much of the variance of the returns the critic explains: 1 all of it, 0 no more than a "
            "constant, less than 0 worse than that. Low "
            "values are usual in the first tenth of a run, where returns are rare, and of a policy at its best, whose "
            "returns are all alike.",
        ),
        MetricSpec("learning_rate", "learning rate", order=120, advice=_NOT_FINITE),
    )


def _entropy(largest: float) -> tuple[Threshold, ...]:
    """A collapse, by the largest entropy (0: continuous actions, of which an entropy may have any sign, but none stays
    next to zero); no choice at all.
    """
    scale = largest or math.log(2)
    collapsed = Threshold("bad", at_least=0.0, below=0.02 * scale, records=0.75, unless="target", advice=_COLLAPSED)
    rules = (collapsed._replace(below=0.001 * scale), collapsed._replace(until=0.5), collapsed._replace(level="warn"))
    undecided = (
        "the policy is still close to uniform: raise algo.learning_rate, lower algo.entropy_coefficient, or "
        "the reward says too little"
    )
    return (*rules, Threshold("warn", at_least=0.95 * largest, after=0.2, advice=undecided)) if largest else rules
