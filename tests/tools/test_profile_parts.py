"""Timing of single parts, and buffers by name: each allocation once."""

import pytest

from operant.config import load as config
from operant.errors import UsageError
from operant.tools import profile_parts

SMALL = ["env.name=cartpole", "env.lanes=8", "algo.horizon=4", "algo.minibatches=1", "run.threads=1", "run.device=cpu"]


@pytest.mark.parametrize(("part", "steps"), [("env", 16 * 8), ("rollout", 4 * 8), ("update", 4 * 8)])
def test_a_part_is_timed_alone(part, steps):
    found = profile_parts.time_part(config.load(None, SMALL), part, 2)
    assert (found.part, found.steps, found.lanes) == (part, steps, 8) and found.sps == steps / found.seconds > 0


def test_part_of_a_single_phase_algorithm_is_refused():
    with pytest.raises(UsageError, match="--part update: dqn collects and learns in one phase, 'train'"):
        profile_parts.time_part(
            config.load(
                None,
                [
                    "env.name=cartpole",
                    "env.lanes=8",
                    "algo.name=dqn",
                    "algo.replay_capacity=1k",
                    "algo.learning_starts=8",
                ],
            ),
            "update",
            1,
        )


def test_buffers_are_named_and_counted_once():
    algo = profile_parts.build_trainer(config.load(None, SMALL), lambda line: None)
    found = {buffer.name: buffer for buffer in profile_parts.buffers(algo)}
    assert found["rollout.observation"].bytes == 5 * 4 * 8 * 4 and found["rollout.observation"].shape == [5, 4, 8]
    assert not {"collector.rollout.observation", "trace.value"} & found.keys()
    assert [buffer.bytes for buffer in profile_parts.buffers(algo)] == sorted(
        (buffer.bytes for buffer in found.values()), reverse=True
    )
