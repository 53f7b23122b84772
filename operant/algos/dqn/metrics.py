"""What DQN's numbers mean: one MetricSpec for each field of its statistics, with the thresholds of the monitor's health lines. Knows no tensor."""

from __future__ import annotations

from typing import Final

from operant.algos.base import MetricSpec, Threshold, replay_metrics

_NOT_FINITE: Final = "lower algo.learning_rate or algo.max_gradient_norm"
_DIVERGES: Final = (
    "Q values run away: lower algo.learning_rate, raise algo.target_every (or lower algo.tau), or set algo.double=true"
)


def specs() -> tuple[MetricSpec, ...]:
    """DQN's metrics, in the order of its statistics."""
    return (
        MetricSpec("loss/q", "Q loss", order=80, advice=_NOT_FINITE),
        MetricSpec(
            "td_error", "TD error", figure="TD error", order=50, advice=_NOT_FINITE,
            thresholds=(
                Threshold("warn", at_least=10.0, relative_to="minute", records=0.0, advice=f"ten times the last minute's: if it stays, {_DIVERGES}"),
            ),
            explanation="The mean distance of Q values from their targets, in units of return. It should stay a small share of the Q values.",
        ),
        MetricSpec(
            "q_mean", "mean Q value", figure="Q", order=45, advice=_NOT_FINITE,
            thresholds=(
                Threshold("bad", at_least=1e6, advice=_DIVERGES),
                Threshold("bad", below=-1e6, advice=_DIVERGES),
            ),
            explanation="The mean Q value of the sampled actions: the discounted return to come. A value that grows without end while the return does not is "
            "the usual way in which Q-learning fails.",
        ),
        MetricSpec(
            "gradient_norm", "gradient norm", order=110, advice=_NOT_FINITE,
            explanation="The norm of the loss's gradient before it is clipped to algo.max_gradient_norm. Its size depends on the task; a jump is what matters.",
        ),
        MetricSpec(
            "epsilon", "epsilon", figure="epsilon", order=70,
            explanation="The probability of a random action, as a mean over the lanes; 1 until algo.learning_starts environment steps are taken.",
        ),
        *replay_metrics(""),
    )  # fmt: skip
