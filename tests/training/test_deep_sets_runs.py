"""A network over positions (net.kind = "places") in runs: reproducible, resumed, on two ranks; evaluated, filmed,
watched, exported; unsupported keys are refused.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from test_distributed import on_ranks, trained
from toys import FILL, bytes_of, clones, iterate, ppo_on

from operant.config import load
from operant.errors import ConfigError
from operant.export import policy as export
from operant.export import program
from operant.nn import NetConfig
from operant.play.stage import Player, Stage
from operant.training.build import build
from operant.training.evaluate import Evaluator
from operant.training.live_agent import Watcher

pytestmark = pytest.mark.usefixtures("one_thread")
ALGO = {"horizon": 8, "bptt": 4, "minibatches": 2, "epochs": 2}
CELLS = ["mingru", "gru", "lstm"]


def places(memory="lstm", **net):
    return NetConfig(kind="places", memory=memory, **{"hidden": (4,), "memory_layers": 2, **net})


def learnt(memory="lstm"):
    """Policy after some updates, with larger parameters, so that its actions differ."""
    ppo, generator = iterate(ppo_on(FILL, 8, places(memory), **ALGO), 2), torch.Generator().manual_seed(1)
    with torch.no_grad():
        ppo.policy.flat.values.add_(torch.randn(ppo.policy.flat.values.shape, generator=generator))
    return ppo


@pytest.mark.slow
@pytest.mark.parametrize("memory", [*CELLS, "none"])
def test_the_same_seed_gives_the_same_bytes_and_a_resumed_run_goes_on_with_them(memory):
    algo = ALGO if memory != "none" else {**ALGO, "bptt": None}
    first, second, other = (iterate(ppo_on(FILL, 8, places(memory), seed=seed, **algo), 2) for seed in (1, 1, 2))
    assert bytes_of(first) == bytes_of(second) != bytes_of(other)
    resumed = ppo_on(FILL, 8, places(memory), start=False, **algo)
    for name, tensor in resumed.state("all").items():
        tensor.copy_(clones(first)[name])
    assert bytes_of(iterate(resumed, 2)) == bytes_of(iterate(first, 2))
    states = [tensor for name, tensor in first.state("train").items() if name.startswith("algo/state/")]
    assert [len(state) for state in states] == [6 * 4 * (2 if memory == "lstm" else 1)] * (2 if memory != "none" else 0)


@pytest.mark.parametrize("memory", CELLS)
def test_values_of_a_rollout_are_those_of_its_episodes_alone(memory):
    """Recurrent state ends with a lane's episode; a truncated episode's final value is computed before that."""
    ppo = learnt(memory)
    ppo.start()
    ppo.collect()
    rollout, policy, found, truncated = ppo.rollout, ppo.policy, ppo.experience, 0
    for lane in range(8):
        begin = 0
        for t in range(8):
            ended = bool(rollout.terminated[t, lane] | rollout.truncated[t, lane])
            seen = rollout.observation[begin : t + 1, :, lane].t()
            last = bool(rollout.truncated[t, lane]) and not rollout.terminated[t, lane]
            seen, truncated = (
                (torch.cat([seen, rollout.final_observation[t, :, lane, None]], dim=1), truncated + 1)
                if last
                else (seen, truncated)
            )
            _, value, _ = policy.unroll(seen, policy.initial_state(1), torch.zeros(seen.shape[1], 1))
            torch.testing.assert_close(found.value[begin : t + 1, lane], value[: t + 1 - begin])
            if last:
                torch.testing.assert_close(found.final_value[t, lane], value[-1])
            begin = t + 1 if ended else begin
    assert truncated > 1


def test_an_evaluation_repeats_and_a_film_plays_its_episodes():
    actor = learnt().actor
    evaluator = Evaluator(actor, FILL, None, episodes=4, seed=3, greedy=False)
    evaluated = evaluator.run(5)
    evaluator.run(6)
    assert evaluator.run(5) == evaluated
    stage, first = Stage(FILL, None, seed=3, lanes=4, number=5), dict[int, float]()
    player = Player(stage, actor, greedy=False)
    for _ in range(8):
        player.step()
        for lane in range(4):
            if stage.ended[lane]:
                first.setdefault(lane, float(stage.returns[lane]))
    assert sum(first.values()) / 4 == pytest.approx(evaluated.mean)


def test_a_watched_run_makes_the_same_bytes():
    alone, shown = learnt(), learnt()
    pictures = []

    class Frames:
        def frame(self, step, pixels, **shape):
            pictures.append(bytes(pixels))

    now = iter(range(100, 200))
    watcher = Watcher(
        shown.policy, FILL, FILL.Params(), seed=1, device=torch.device("cpu"), writer=Frames(), clock=lambda: next(now)
    )
    watcher.request("sampled", 16, math.inf)
    for iteration in range(12):
        watcher.after(iteration)
    assert watcher.available and len(pictures) == 12 and len(set(pictures)) > 4
    assert bytes_of(iterate(alone, 1)) == bytes_of(iterate(shown, 1))


@pytest.mark.soak
@pytest.mark.parametrize("memory", CELLS)
def test_an_exported_policy_remembers_as_the_run_does(tmp_path, memory):
    actor = learnt(memory).actor
    made = export.write(actor, FILL.Params(), tmp_path / "policy.npz", "numpy", steps=10)
    assert made.inputs == ("observation", "legal", "state_0", "state_1") and made.difference <= 1e-5
    loaded, generator, seen = program.load(made.path), np.random.default_rng(1), set()
    own, state = loaded.initial_state(3), actor.initial_state(3)
    for _ in range(40):
        codes, legal = generator.integers(0, 2, (2, 3, 6)).astype(np.uint8)
        legal[:, 0] = 1
        action, *own = loaded(codes, legal, *own)
        expected, state = actor.act(torch.from_numpy(codes).t(), state, None, torch.from_numpy(legal).t())
        assert (action == expected.t().numpy()).all()
        assert all(
            np.abs(mine - part.movedim(-1, 0).numpy()).max() <= 1e-5 for mine, part in zip(own, state, strict=True)
        )
        seen.update(action[:, 0].tolist())
    assert len(seen) > 2


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["lstm", "none"])
def test_two_ranks_make_the_same_bytes_as_one(tmp_path, memory):
    (tmp_path / "fill.py").write_text("from toys import FILL as ENV\n")
    sizes = ("env.lanes=256", "algo.horizon=8", "algo.minibatches=2", "algo.chunks=4", "run.steps=100k")
    words = (f"env.name={tmp_path / 'fill.py'}", "net.kind=places", "net.hidden=[4]", f"net.memory={memory}", *sizes)
    config = load.load(None, words)
    alone = trained(config)
    assert on_ranks(2, lambda exchange: trained(config, exchange)) == [alone, alone]
    assert alone != trained(load.load(None, [*words, "run.seed=2"]))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_an_lstm_in_two_launches_learns_what_torchs_does_and_the_same_bytes_again():
    words = [
        "env.name=concentration",
        "env.lanes=64",
        "algo.minibatches=2",
        "net.kind=places",
        "net.hidden=[32]",
        "net.memory=lstm",
        "algo.horizon=104",
    ]
    ours, again, torchs = (learned(load.load(None, [*words, *more])) for more in ([], [], ["algo.kernels=torch"]))
    assert torch.equal(ours, again) and not torch.equal(ours, torchs)
    torch.testing.assert_close(ours, torchs, rtol=0.02, atol=2e-3)


def learned(config):
    """Parameters of a policy after two iterations."""
    algo = build(config, "cuda")
    algo.start()
    return iterate(algo, 2).policy.flat.values.detach().cpu()


def test_fused_kernels_are_refused_in_a_sentence():
    with pytest.raises(
        ConfigError, match=r'algo\.kernels = "fused" is not possible: fused kernels support dense layers only'
    ):
        ppo_on(FILL, 8, places(), kernels="fused", **ALGO)
