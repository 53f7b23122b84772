"""Imported by a process that interprets (interpreter.py), with TRITON_INTERPRET=1: fused kernels of SAC and TD3 on the
CPU, for test_actor_critic_fused.py.
"""

from __future__ import annotations

from test_sac import iterate, sac_on
from test_td3 import td3_on
from toys import PUSH

from operant import envs
from operant.nn import mlp


def on(name, env, kernels, net, algo, seed=1):
    """SAC or TD3 on an environment of the tests or of Operant's."""
    made = {"sac": sac_on, "td3": td3_on}[name]
    return made(PUSH if env == "push" else envs.find(env), seed=seed, net=mlp.Config(**net), kernels=kernels, **algo)


def iteration_case(name, env, net, algo, iterations=3):
    """The largest difference of each tensor of the state, as a share of its largest number, between the two backends
    after whole iterations; and of stats.
    """
    ours, theirs = (iterate(on(name, env, kernels, net, algo), iterations) for kernels in ("fused", "torch"))
    assert (ours.kernels, theirs.kernels) == ("fused", "torch")
    found, wanted = ({**algorithm.state("all"), "stats": algorithm.stats} for algorithm in (ours, theirs))
    assert float(wanted["stats"][-2]) > 0  # updates were made
    return {
        part: float((found[part].double() - want.double()).abs().max() / want.double().abs().max().clamp_min(1e-9))
        for part, want in wanted.items()
    }


def bits_case(name, env, net, algo):
    """Whether two runs of one seed end with the same bytes, and one of another seed does not."""
    ends = [
        iterate(on(name, env, "fused", net, algo, seed), 2).state("policy")["policy/parameters"].numpy().tobytes()
        for seed in (1, 1, 2)
    ]
    return [ends[0] == ends[1], ends[0] == ends[2]]


def large_mean_case(name, env, net, algo, by=1000.0):
    """How far Adam's first moments of the two backends are apart, as shares of their norms, where what first layers sum
    up is `by` off zero.
    """

    def moved(kernels):
        made = iterate(on(name, env, kernels, net, algo), 1)
        for flat in (made.actor.flat, made.critic_flat, made.target_flat):
            dict(zip(flat.names, flat.parameters, strict=True))["biases.0"].data.add_(by)
        return iterate(made, 2).state("all")

    ours, theirs = moved("fused"), moved("torch")
    return {
        part: float((ours[part] - want).norm() / want.norm())
        for part, want in theirs.items()
        if part.endswith("exp_avg")
    }
