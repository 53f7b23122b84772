"""Decides whether a run has reached its target: by an evaluation, and by fresh episodes that confirm it. Knows no run
folder, no log and no training loop.

An evaluation that reaches the target may have been lucky, and of many evaluations the luckiest is the one that ends a
run. So it only asks for a second one, of other episodes: a target is reached where that one's mean is so far above it
that a third one, of as many episodes, would reach it, too (with 97.5 %).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from operant import text
from operant.config.load import Config
from operant.nn import Actor
from operant.training import evaluate
from operant.training.evaluate import BrokenOffError, Evaluation, Evaluator

STREAM = 3
"""The random stream of confirming evaluations: see `rng.stream_seed`."""

EPISODES, PARTS = 1024, 16
"""Episodes that are played at once, and how often at most: an evaluation is confirmed by 1,024 to 16,384 episodes."""
HOST_EPISODES = 128
"""Episodes at once of an outside environment, each of whose lanes has an environment of its own."""
WIDTH = 0.01
"""Half the width of the 95 % interval at which a mean is known well enough, as a share of the target."""
# of that half width lies between two means of as many episodes at most (95 %): both have their error
_AGAIN = math.sqrt(2.0)


class Outcome(NamedTuple):
    """What is known of the policy at one step."""

    evaluation: Evaluation  # the confirming one where there was one: nothing chose it
    first: Evaluation | None = None  # the one that was to be confirmed
    reached: bool = False

    def document(self, target: float | None) -> dict[str, Any]:
        """The fields of its line in evaluations.jsonl; those of a confirming evaluation are marked, with what it was to
        confirm.
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
    """The evaluations of a run, each confirmed where it reaches the run's target. Without a target none has to be."""

    def __init__(self, actor: Actor, config: Config) -> None:
        self._actor, self._config, self._target = actor, config, config.run.target
        self._first = Evaluator(
            actor, config.environment, config.params, episodes=config.eval.episodes, seed=config.run.seed
        )
        self._second: Evaluator | None = None  # made when it is needed first
        self.max_steps = self._first.max_steps

    def run(self, number: int, *, interrupted: Callable[[], bool] = lambda: False) -> Outcome | None:
        """Evaluation `number`, the same whenever this number is run; None where `interrupted` broke it off."""
        try:
            first = self._first.run(number, interrupted=interrupted)
            if self._target is None or not first.mean >= self._target:
                return Outcome(first)
            second = self._confirm(number, self._target, interrupted)
            return Outcome(second, first, reached=_next_at_least(second) >= self._target)
        except BrokenOffError:
            return None

    def _confirm(self, number: int, target: float, interrupted: Callable[[], bool]) -> Evaluation:
        """Fresh episodes until their mean is known well enough, or is known to miss the target. That may end them
        early: it makes no lucky mean pass.
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
            found = pooled(parts)
            if found.ci95 is None or found.ci95 <= WIDTH * abs(target) or found.mean + found.ci95 < target:
                break
        return found


def describe(outcome: Outcome, target: float) -> str:
    """The sentence about a confirming evaluation: what was measured, and whether it confirms the one before."""
    first, second = outcome.first, outcome.evaluation
    assert first is not None
    verdict = "confirm it" if outcome.reached else "do not confirm it"
    return (
        f"the target {target:g} is reached by {_said(first)}; {second.episodes:,} fresh episodes, {_said(second)}, "
        f"{verdict}"
    )


def pooled(parts: Sequence[Evaluation]) -> Evaluation:
    """Several evaluations of equally many episodes as one."""
    count, episodes = len(parts), sum(part.episodes for part in parts)
    mean = sum(part.mean for part in parts) / count
    deviation = None
    if all(part.deviation is not None for part in parts):
        # Squares within the parts, and of the parts' means around the mean of all.
        squares = sum(
            (part.episodes - 1) * (part.deviation or 0.0) ** 2 + part.episodes * (part.mean - mean) ** 2
            for part in parts
        )
        deviation = math.sqrt(squares / (episodes - 1))
    return Evaluation(
        mean=mean,
        ci95=None if deviation is None else evaluate.ci95(deviation, episodes),
        deviation=deviation,
        minimum=min(part.minimum for part in parts),
        maximum=max(part.maximum for part in parts),
        length=sum(part.length for part in parts) / count,
        episodes=episodes,
        unfinished=sum(part.unfinished for part in parts),
        tally={name: sum(part.tally[name] for part in parts) / count for name in parts[0].tally},
    )


def _next_at_least(evaluation: Evaluation) -> float:
    """What the mean of another evaluation of as many episodes reaches with 97.5 %."""
    return evaluation.mean - _AGAIN * (evaluation.ci95 or 0.0)


def _said(evaluation: Evaluation) -> str:
    return text.number(evaluation.mean) + ("" if evaluation.ci95 is None else f" ±{text.number(evaluation.ci95)}")
