"""A loaded checkpoint plays the policy that its run trained."""

from types import SimpleNamespace

import pytest
import torch

from operant.algos.ppo import ppo
from operant.config import load as configuration
from operant.nn import policy
from operant.play import load_policy

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("words", "precision"), [(("algo.precision=bf16",), "bf16"), (("algo.precision=fp32",), "fp32")]
)
def test_the_policy_computes_in_the_precision_that_it_was_trained_in(monkeypatch, words, precision):
    config = configuration.load(None, ["env.name=cartpole", *words])
    trained = policy.Policy(
        config.environment, config.net, seed=3, device=CPU, normalize=config.algo.normalize_observations
    )
    asked = []
    monkeypatch.setattr(
        ppo,
        "Policy",
        lambda *given, real=policy.Policy, **how: asked.append(how["precision"]) or real(*given, **how),
    )
    checkpoint = SimpleNamespace(
        path="a/checkpoint", tensors={f"policy/{name}": tensor for name, tensor in trained.tensors().items()}
    )
    played = load_policy._build_policy(config, checkpoint, CPU)
    assert asked == [precision]
    assert all(torch.equal(tensor, trained.tensors()[name]) for name, tensor in played.tensors().items())
