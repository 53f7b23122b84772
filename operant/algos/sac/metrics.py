"""What SAC's numbers mean: one MetricSpec for each field of its statistics, with the thresholds of the monitor's health lines. Knows no tensor."""

from __future__ import annotations

from typing import Final

from operant.algos.base import MetricSpec, Threshold, replay_metrics

_NOT_FINITE: Final = "lower algo.critic_learning_rate, or set algo.max_gradient_norm=10"
_DIVERGES: Final = (
    "the critics diverge: lower algo.critic_learning_rate or algo.tau, set net.layer_norm=true, or algo.critics=2"
)


def specs(least_entropy: float) -> tuple[MetricSpec, ...]:
    """SAC's metrics, in the order of its statistics; an entropy below this is too little."""
    return (
        MetricSpec("loss/critic", "critic loss", order=70, advice=_NOT_FINITE),
        MetricSpec("loss/actor", "actor loss", order=80, advice=_NOT_FINITE),
        MetricSpec(
            "q_mean", "mean Q value", figure="Q", order=45, advice=_NOT_FINITE,
            thresholds=(
                Threshold("bad", at_least=1e6, advice=_DIVERGES),
                Threshold("bad", below=-1e6, advice=_DIVERGES),
            ),
            explanation="The critics' mean value of the sampled actions: the discounted return to come, with the entropy's share. A value that grows without "
            "end while the return does not is the usual way in which off-policy learning fails.",
        ),
        MetricSpec(
            "td_error", "TD error", figure="TD error", order=50, advice=_NOT_FINITE,
            thresholds=(
                Threshold("warn", at_least=10.0, relative_to="minute", records=0.0, advice="ten times the last minute's: if it stays, the critics diverge"),
            ),
            explanation="The mean distance of the critics from their targets, in units of return. It should stay a small share of the Q values.",
        ),
        MetricSpec(
            "entropy", "entropy", figure="entropy", order=40, advice=_NOT_FINITE,
            thresholds=(
                Threshold(
                    "warn", below=least_entropy, records=0.75, unless="target",
                    advice="the policy hardly explores: raise algo.target_entropy, or leave algo.temperature on auto",
                ),
            ),
            explanation="Minus the mean log-probability of the actor's actions, scaled to [-1, 1] where they are continuous, in nats. An automatic "
            "temperature holds it near algo.target_entropy, by default -1 per continuous action, or half of the most that n choices can have.",
        ),
        MetricSpec("gradient_norm", "gradient norm", order=110, advice=_NOT_FINITE, explanation="The norm of the critics' gradient before it is clipped."),
        MetricSpec(
            "temperature", "temperature", figure="temperature", order=60, advice=_NOT_FINITE,
            thresholds=(
                Threshold(
                    "warn", at_least=100.0,
                    advice="the entropy outweighs the reward: lower algo.target_entropy or algo.initial_temperature, or scale the reward up",
                ),
            ),
            explanation="Alpha, the weight of the entropy beside the reward. Automatic: it falls while the entropy is above its target, and rises below.",
        ),
        *replay_metrics(", of all networks together"),
    )  # fmt: skip
