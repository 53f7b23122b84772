"""What PQN's numbers mean: one MetricSpec for each field of its statistics, with the thresholds of the monitor's health
lines. Knows no tensor.
"""

from __future__ import annotations

from typing import Final

from operant.runs.metrics import MetricSpec, Threshold

_NOT_FINITE: Final = (
    "lower algo.learning_rate or algo.max_gradient_norm, set net.layer_norm=true, or scale large "
    "rewards down by algo.reward_scale"
)
_DIVERGES: Final = "Q values run away: set net.layer_norm=true, lower algo.learning_rate or algo.q_lambda"


def specs() -> tuple[MetricSpec, ...]:
    """PQN's metrics, in the order of its statistics."""
    return (
        MetricSpec("loss/q", "Q loss", order=80, advice=_NOT_FINITE),
        MetricSpec(
            "td_error",
            "TD error",
            figure="TD error",
            order=50,
            advice=_NOT_FINITE,
            explanation="The mean distance of Q values from the Q(lambda) returns they learn from, in units of the "
            "(scaled) reward. It grows with the returns; "
            "what matters is that it stays a small part of the Q values.",
        ),
        MetricSpec(
            "q_mean",
            "Q mean",
            figure="Q",
            order=40,
            advice=_NOT_FINITE,
            thresholds=(
                Threshold("bad", at_least=1e6, advice=_DIVERGES),
                Threshold("bad", below=-1e6, advice=_DIVERGES),
            ),
            explanation="The mean Q value of the actions that were taken: the discounted return expected from here on. "
            "It should follow the returns, never run "
            "ahead of them.",
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
                    advice=f"Q values predict worse than a constant would: {_NOT_FINITE}",
                ),
                Threshold(
                    "bad",
                    below=0.02,
                    after=0.2,
                    unless="best",
                    advice="Q values say no more than a constant: lower algo.learning_rate (too large a step kills "
                    "units), or the reward says too little",
                ),
                Threshold(
                    "warn",
                    below=0.3,
                    after=0.5,
                    unless="best",
                    advice="Q values lag: raise algo.learning_rate or algo.epochs, or widen net.hidden",
                ),
            ),
            explanation="How much of the variance of the Q(lambda) returns the greedy Q values explain: 1 all of it, 0 "
            "no more than a constant, less than 0 "
            "worse than that. Low values are usual while most actions are random.",
        ),
        MetricSpec(
            "epsilon",
            "epsilon",
            figure="epsilon",
            order=70,
            explanation="The probability of a random action. It goes from algo.epsilon_start to algo.epsilon_end over "
            "algo.epsilon_steps.",
        ),
        MetricSpec("learning_rate", "learning rate", order=120),
    )
