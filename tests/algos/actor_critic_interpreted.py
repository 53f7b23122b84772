"""Cases of test_actor_critic_fused.py that run in a process with TRITON_INTERPRET=1 (interpreter.py): fused kernels of
SAC and TD3 on the CPU.
"""

from __future__ import annotations

import contextlib

import torch
from test_sac import iterate, sac_on
from test_td3 import td3_on
from toys import PUSH, broad

from operant import envs
from operant.errors import EnvironmentFailedError
from operant.nn import mlp


def make(name, env, kernels, net, algo, seed=1):
    """SAC or TD3 on a toy environment, "push" or "broad N", or one of Operant's."""
    made = {"sac": sac_on, "td3": td3_on}[name]
    toy = PUSH if env == "push" else broad(int(env.split()[1])) if env.startswith("broad") else envs.find(env)
    return made(toy, seed=seed, net=mlp.Config(**net), kernels=kernels, **algo)


def iteration_case(name, env, net, algo, iterations=3):
    """Largest difference of each tensor of the state, and of stats, between the fused and the torch backend after whole
    iterations, relative to the tensor's largest value.
    """
    fused, reference = (iterate(make(name, env, kernels, net, algo), iterations) for kernels in ("fused", "torch"))
    assert (fused.kernels, reference.kernels) == ("fused", "torch")
    found, expected = ({**algorithm.state("all"), "stats": algorithm.stats} for algorithm in (fused, reference))
    assert float(expected["stats"][-2]) > 0  # updates were made
    return {
        part: float((found[part].double() - want.double()).abs().max() / want.double().abs().max().clamp_min(1e-9))
        for part, want in expected.items()
    }


def bits_case(name, env, net, algo):
    """Whether two runs of one seed end with the same bytes, and two of different seeds with different ones."""
    ends = [
        iterate(make(name, env, "fused", net, algo, seed), 2).state("policy")["policy/parameters"].numpy().tobytes()
        for seed in (1, 1, 2)
    ]
    return [ends[0] == ends[1], ends[0] == ends[2]]


def large_mean_case(name, env, net, algo, mean=1000.0):
    """Differences of Adam's first moments between the backends, relative to their norms, where the first layers'
    pre-activations have a large mean.
    """

    def run(kernels):
        made = iterate(make(name, env, kernels, net, algo), 1)
        for flat in (made.actor.flat, made.critic_flat, made.target_flat):
            dict(zip(flat.names, flat.parameters, strict=True))["biases.0"].data.add_(mean)
        return iterate(made, 2).state("all")

    fused, reference = run("fused"), run("torch")
    return {
        part: float((fused[part] - want).norm() / want.norm())
        for part, want in reference.items()
        if part.endswith("exp_avg")
    }


def failed_step_case(name, env, net, algo):
    """Tensors that differ between a run whose environment fails in step 0, beside which an update has begun as on a
    GPU, and one that fails in step 1, after that update.
    """

    def run(failing, *, overlap):
        made = iterate(make(name, env, "fused", net, algo), 2)
        engine, step, act = made.engine, made.world.step, made.engine.act

        def failing_step(slot, offset):
            if offset == failing:
                raise EnvironmentFailedError("out of order")
            step(slot, offset)

        def overlapping_act(t):
            if t == failing and overlap:
                engine._update_critics(t + 1, made.config.due(t)[0])
                engine._overlapped_update = made.config.due(t)[0]
            act(t)

        made.world.step, engine.act = failing_step, overlapping_act
        with contextlib.suppress(EnvironmentFailedError):
            iterate(made, 1)
        assert not made.cycle.skip
        return {key: tensor for key, tensor in made.state("train").items() if not key.startswith("world/")}

    found, expected = run(0, overlap=True), run(1, overlap=False)
    return [key for key, want in expected.items() if key != "algo/observation" and not torch.equal(found[key], want)]
