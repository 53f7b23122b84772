"""What TD3's numbers mean: one MetricSpec for each field of its statistics, with the thresholds of the monitor's health lines. Knows no tensor."""

from __future__ import annotations

from typing import Final

from operant.algos.base import MetricSpec, Threshold, replay_metrics

_NOT_FINITE: Final = "lower algo.critic_learning_rate, or set algo.max_gradient_norm=10"
_DIVERGES: Final = (
    "the critics diverge: lower algo.critic_learning_rate or algo.tau, set net.layer_norm=true, or algo.critics=2"
)
_SATURATED: Final = "the actor takes extreme actions only, where tanh has no gradient: lower algo.learning_rate, or set algo.normalize_observations=true"


def specs() -> tuple[MetricSpec, ...]:
    """TD3's metrics, in the order of its statistics."""
    return (
        MetricSpec("loss/critic", "critic loss", order=70, advice=_NOT_FINITE),
        MetricSpec(
            "q_mean", "mean Q value", figure="Q", order=45, advice=_NOT_FINITE,
            thresholds=(Threshold("bad", at_least=1e6, advice=_DIVERGES), Threshold("bad", below=-1e6, advice=_DIVERGES)),
            explanation="The critics' mean value of the sampled actions: the discounted return to come. A value that grows without end while the return does "
            "not is the usual way in which off-policy learning fails.",
        ),
        MetricSpec(
            "td_error", "TD error", figure="TD error", order=50, advice=_NOT_FINITE,
            thresholds=(
                Threshold("warn", at_least=10.0, relative_to="minute", records=0.0, advice="ten times the last minute's: if it stays, the critics diverge"),
            ),
            explanation="The mean distance of the critics from their targets, in units of return. It should stay a small share of the Q values.",
        ),
        MetricSpec("gradient_norm", "gradient norm", order=110, advice=_NOT_FINITE, explanation="The norm of the critics' gradient before it is clipped."),
        MetricSpec("loss/actor", "actor loss", order=80, advice=_NOT_FINITE, explanation="Minus the critic's value of the actor's own actions."),
        MetricSpec(
            "saturated", "saturated", figure="saturated", order=60, advice=_NOT_FINITE,
            thresholds=(
                Threshold("bad", at_least=0.98, records=0.75, unless="best", advice=_SATURATED),
                Threshold("warn", at_least=0.95, records=0.75, unless="best", advice=_SATURATED),
            ),
            explanation="The share of the actor's own actions beyond 0.98 of their bounds. Some tasks are solved so; where the return stays low, "
            "the actor is stuck.",
        ),
        *replay_metrics(" of the critics"),
    )  # fmt: skip
