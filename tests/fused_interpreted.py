"""Run in a process of its own, with TRITON_INTERPRET=1: fused kernels on the CPU, one JSON object to standard output. See test_fused.py."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import torch
from fused_probe import ENVS, gradients, prepared, relative_error, trainer, wide
from triton.runtime import interpreter

from operant import nets

_patch = interpreter._patch_lang_tensor


def _patch_lang_tensor(tensor, scope):
    """Triton 3.6 makes integers of arrays of one element, which NumPy 2.4 refuses."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def gradient_case(env, net, algo, lanes=12, shape=None):
    """Errors of a minibatch's gradient and numbers beside float64; minibatches end within a tile, and programs have several tiles."""
    ppo = trainer(wide(*env) if isinstance(env, list) else ENVS[env], nets.Config(**net), lanes=lanes, horizon=6, minibatches=2, kernels="fused", **algo)
    ppo.fused = ppo.fused.cut(replace(ppo.fused.shape, **(shape or {"rows": 16, "programs": 2})))
    prepared(ppo)
    found, wanted, numbers, exact = gradients(ppo)
    return {"gradient": relative_error(found, wanted), "numbers": max(abs(a - b) / (abs(b) + 1e-2) for a, b in zip(numbers.tolist(), exact, strict=True))}


def iteration_case(env, net, algo, iterations=2, broken=False):
    """Differences between the two paths after whole iterations from the same seed."""
    config = {"lanes": 12, "horizon": 6, "epochs": 2, "minibatches": 2, **algo}
    ours, theirs = (trainer(ENVS[env], nets.Config(**net), kernels=kernels, **config) for kernels in ("fused", "torch"))
    for ppo in (ours, theirs):
        if broken:
            ppo.policy.flat.values.data[3] = float("nan")
        for _ in range(iterations):
            ppo.collect()
            ppo.update()

    def difference(a, b):
        return float((a.double() - b.double()).abs().max())

    tensors = ours.tensors()
    return {
        "actions": int((ours._raw.float() - theirs._raw.float()).abs().gt(1e-4).sum()),
        "stats": difference(ours.stats, theirs.stats),
        "state": max(difference(tensors[name], other) for name, other in theirs.tensors().items()),
        "rollout": max(difference(getattr(ours, name), getattr(theirs, name)) for name in ("_value", "_log_probability", "_returns")),
        "final": difference(ours._final_value[ours.rollout.truncated != 0], theirs._final_value[theirs.rollout.truncated != 0])
        if ours.rollout.truncated.any()
        else None,
        "moved": difference(ours.policy.flat.values, trainer(ENVS[env], nets.Config(**net), **config).policy.flat.values),
        "not_finite": [float(ours.stats[8]), float(theirs.stats[8])],
    }


def main() -> None:
    """Run the cases of standard input."""
    interpreter._patch_lang_tensor = _patch_lang_tensor
    torch.set_num_threads(1)
    kinds = {"gradient": gradient_case, "iteration": iteration_case}
    print(json.dumps([kinds[kind](**case) for kind, case in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
