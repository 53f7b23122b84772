"""Evaluations of a run, and the confirmation of its target by fresh episodes.

An evaluation that reaches the target may be lucky, and the luckiest of many evaluations would end the run. It only
triggers a second one with other episodes: the target counts as reached if that mean is high enough for a third
evaluation of equal size to reach it with 97.5 % probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from operant import text
from operant.config.load import Config
from operant.nn import Actor
from operant.training import evaluate
from operant.training.evaluate import Evaluation, EvaluationInterruptedError, Evaluator

STREAM = 3
"""Random stream of confirming evaluations: see `rng.stream_seed`."""

EPISODES, PARTS = 1024, 16
"""Episodes per part and most parts of a confirmation: 1,024 to 16,384 episodes in total."""
HOST_EPISODES = 128
"""Episodes per part in an outside environment, which needs one environment instance per lane."""
WIDTH = 0.01
"""Half-width of the 95 % interval at which a confirmation stops, relative to the target."""
# two means of equally many episodes differ by at most this times the half-width (95 %)
_TWO_MEANS = math.sqrt(2.0)


class Outcome(NamedTuple):
    """Result of an evaluation during a run. If it seemed to reach the target, `evaluation` is the confirmation with
    fresh episodes, and `first` the one that triggered it.
    """

    evaluation: Evaluation  # of the confirmation if there was one: unbiased by selection
    first: Evaluation | None = None  # the evaluation to be confirmed
    reached: bool = False

    def document(self, target: float | None) -> dict[str, Any]:
        """Make the fields of this evaluation's line in evaluations.jsonl. A confirmation also records the evaluation
        that it confirms.
        """
        fields: dict[str, Any] = self.evaluation._asdict()
        if self.first is not None:
            fields["confirmation"] = {
                "target": target,
                "reached": self.reached,
                **{f"first_{k}": getattr(self.first, k) for k in ("mean", "ci95", "episodes")},
            }
        return fields


class TargetEvaluator:
    """Evaluator during a run, which confirms each evaluation that reaches the run's target by fresh episodes."""

    def __init__(self, actor: Actor, config: Config) -> None:
        self._actor, self._config, self._target = actor, config, config.run.target
        self._first = Evaluator(
            actor, config.environment, config.params, episodes=config.eval.episodes, seed=config.run.seed
        )
        self._second: Evaluator | None = None  # created on first use
        self.max_steps = self._first.max_steps

    def run(self, number: int, *, interrupted: Callable[[], bool] = lambda: False) -> Outcome | None:
        """Play evaluation number `number`, which determines its episodes, and a confirmation if it reaches the target.
        Returns None once `interrupted`, polled every 32 steps, returns True.
        """
        try:
            first = self._first.run(number, interrupted=interrupted)
            if self._target is None or not first.mean >= self._target:
                return Outcome(first)
            confirmation = self._confirm(number, self._target, interrupted)
            return Outcome(confirmation, first, reached=_next_lower_bound(confirmation) >= self._target)
        except EvaluationInterruptedError:
            return None

    def _confirm(self, number: int, target: float, interrupted: Callable[[], bool]) -> Evaluation:
        """Play fresh episodes until their mean return is precise enough or certainly misses `target`. Stopping early on
        a miss lets no lucky mean pass.
        """
        if self._second is None:
            config = self._config
            episodes = HOST_EPISODES if config.hosted else EPISODES
            self._second = Evaluator(
                self._actor, config.environment, config.params, episodes=episodes, seed=config.run.seed, stream=STREAM
            )
        parts: list[Evaluation] = []
        for part in range(PARTS):
            parts.append(self._second.run(number, part=part, interrupted=interrupted))
            result = pooled(parts)
            if result.ci95 is None or result.ci95 <= WIDTH * abs(target) or result.mean + result.ci95 < target:
                break
        return result


def describe(outcome: Outcome, target: float) -> str:
    """Describe a confirmed evaluation in a sentence: both means, and whether the run's target is reached."""
    first, confirmation = outcome.first, outcome.evaluation
    assert first is not None
    verdict = "confirm it" if outcome.reached else "do not confirm it"
    return (
        f"the target {target:g} is reached by {_mean_text(first)}; {confirmation.episodes:,} fresh episodes, "
        f"{_mean_text(confirmation)}, {verdict}"
    )


def pooled(parts: Sequence[Evaluation]) -> Evaluation:
    """Combine several evaluations with equal numbers of episodes into one over all their episodes."""
    count, episodes = len(parts), sum(part.episodes for part in parts)
    mean = sum(part.mean for part in parts) / count
    std = None
    if all(part.std is not None for part in parts):
        # Sum of squares within parts plus that of the parts' means around the total mean.
        squares = sum(
            (part.episodes - 1) * (part.std or 0.0) ** 2 + part.episodes * (part.mean - mean) ** 2 for part in parts
        )
        std = math.sqrt(squares / (episodes - 1))
    return Evaluation(
        mean=mean,
        ci95=None if std is None else evaluate.ci95(std, episodes),
        std=std,
        minimum=min(part.minimum for part in parts),
        maximum=max(part.maximum for part in parts),
        length=sum(part.length for part in parts) / count,
        episodes=episodes,
        unfinished=sum(part.unfinished for part in parts),
        tally={name: sum(part.tally[name] for part in parts) / count for name in parts[0].tally},
    )


def _next_lower_bound(evaluation: Evaluation) -> float:
    """Mean return that another evaluation of equal size reaches with 97.5 % probability."""
    return evaluation.mean - _TWO_MEANS * (evaluation.ci95 or 0.0)


def _mean_text(evaluation: Evaluation) -> str:
    """Format an evaluation's mean with its 95 % interval."""
    return text.number(evaluation.mean) + ("" if evaluation.ci95 is None else f" ±{text.number(evaluation.ci95)}")
