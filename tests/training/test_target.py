"""Targets: how many fresh episodes confirm an evaluation, and when they do."""

from __future__ import annotations

import pytest
import torch
from toys import LOTTERY

from operant.config import load as configuration
from operant.nn.policy import Policy
from operant.training import target
from operant.training.evaluate import Evaluation

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def lottery(tmp_path):
    """Environment file in the test's folder."""
    (tmp_path / "lottery.py").write_text(LOTTERY)
    return tmp_path / "lottery.py"


def evaluator(lottery, wanted, *overrides):
    config = configuration.load(None, [f"env.name={lottery}", f"run.target={wanted}", "net.hidden=[8]", *overrides])
    actor = Policy(config.environment, config.net, seed=1, device=torch.device("cpu"), normalize=False)
    return target.TargetEvaluator(actor, config)


def test_a_confirmation_ends_when_the_mean_is_known_well_enough(lottery):
    # A deviation of 0.289 takes 7,000 episodes for +- 1 % of 0.67; where luck is a tenth of it, 1,024 do; where the
    # mean is the target, 16,384 do not tell.
    def episodes(wanted, *overrides):
        found = evaluator(lottery, wanted, *overrides).run(1)
        return found.evaluation.episodes, found.reached

    narrow, reached = episodes(0.67, "env.params.luck=0.5", "eval.episodes=4096")
    assert reached and 1024 < narrow <= 4096
    assert episodes(0.67, "env.params.luck=0.05") == (1024, True)
    found = evaluator(lottery, 0.01, "env.params.luck=1.0").run(1)
    assert found.evaluation.episodes == 16 * 1024 and found.evaluation.ci95 < 0.005 and found.reached


@pytest.mark.parametrize(("share", "reached"), [(0.3, False), (1.2, False), (1.6, True), (4.0, True)])
def test_a_mean_above_the_target_is_not_enough_to_confirm_it(lottery, share, reached):
    # It must lie so far above the target that another evaluation would reach that, too: by the root of 2 times half the
    # interval.
    half, overrides = 0.01 * 0.75, ("env.params.luck=0.5", "eval.episodes=1024")
    fresh = evaluator(lottery, 0.7, *overrides).run(1).evaluation
    found = evaluator(lottery, fresh.mean - share * fresh.ci95, *overrides).run(1)
    assert fresh.ci95 < half and found.first is not None and found.evaluation == fresh, (
        "the same episodes, as many of them"
    )
    assert found.reached == reached


@pytest.mark.slow
def test_confirming_episodes_are_fresh_and_the_same_for_the_same_number(lottery):
    same = evaluator(lottery, 0.0, "eval.episodes=1024")
    found = same.run(3)
    assert found.first.mean != found.evaluation.mean and found == same.run(3) == evaluator(
        lottery, 0.0, "eval.episodes=1024"
    ).run(3)
    assert found.evaluation.mean != same.run(4).evaluation.mean


@pytest.mark.slow
@pytest.mark.parametrize("looks", [1, 2, 3])
def test_a_stop_interrupts_either_evaluation(lottery, looks):
    # Each part of 32 steps asks once: the first evaluation, the first of the confirming parts, the second.
    asked = []

    def interrupted():
        asked.append(True)
        return len(asked) == looks

    lanes = evaluator(lottery, 0.01)
    assert lanes.run(3, interrupted=interrupted) is None and len(asked) == looks
    assert lanes.run(3) == evaluator(lottery, 0.01).run(3)


def test_pooled_parts_are_the_evaluation_of_all_their_episodes():
    def part(values):
        mean = sum(values) / len(values)
        deviation = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
        return Evaluation(
            mean, None, deviation, min(values), max(values), float(len(values)), len(values), 1, {"t": mean}
        )

    together = target.pooled([part([1.0, 2.0, 6.0]), part([-4.0, 0.0, 7.0])])
    whole = part([1.0, 2.0, 6.0, -4.0, 0.0, 7.0])
    assert (together.mean, together.minimum, together.maximum, together.episodes, together.unfinished) == (
        2.0,
        -4.0,
        7.0,
        6,
        2,
    )
    assert together.std == pytest.approx(whole.std) and together.ci95 == pytest.approx(1.96 * whole.std / 6**0.5)
    assert together.tally == {"t": 2.0}
