"""Loading of a user's own network from a file, and checks of its outputs by calling it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from operant.compute import user_file
from operant.errors import ConfigError
from operant.nn import mlp, recurrent


def load(kind: str, observation: int, head_rows: int, seed: int) -> mlp.SampleMajor | recurrent.SampleMajor:
    """Create a user's own network, `kind` = "FILE.py:Class", with `observation` inputs and `head_rows` outputs,
    initialised from `seed`. One with an `initial_state` is recurrent. Raises ConfigError with the problem in a
    sentence.
    """
    file_name, colon, class_name = kind.rpartition(":")  # the file's name may contain colons
    if not colon:
        raise ConfigError(
            "the network",
            [f'net.kind should be "mlp", "cnn", "places" (ppo, dqn and pqn) or "FILE.py:Class" (got {kind!r})'],
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = _module(Path(file_name), class_name, observation, head_rows)
        return recurrent.SampleMajor(built) if _is_recurrent(built) else mlp.SampleMajor(built)


def _module(path: Path, class_name: str, observation: int, head_rows: int) -> nn.Module:
    """Create the network of class `class_name` that a user's file defines, and check its outputs. Raises ConfigError
    with the problem in a sentence.
    """

    def problem(sentence: str) -> ConfigError:
        return ConfigError(str(path), [f"net.kind: {sentence}"])

    if not path.is_file():
        raise problem(f"there is no file {str(path)!r}")
    if path.suffix != ".py":
        raise problem(f"{str(path)!r} is not a Python file: its name should end in .py")
    try:
        module = user_file.load(path, f"operant_user_net_{path.stem}")
        network = getattr(module, class_name, None)
        built: Any = None if network is None else network(observation, head_rows)
        sentence = f"is no class of {path.name}" if network is None else _problem(built, observation, head_rows)
    except Exception as error:
        raise problem(
            f"{class_name}({observation}, {head_rows}) could not be built and called: {type(error).__name__}: {error}"
        ) from error
    if sentence is not None:
        raise problem(f"{class_name} {sentence}")
    return built


def _is_recurrent(built: object) -> bool:
    return hasattr(built, "initial_state")


def _problem(built: object, observation: int, head_rows: int) -> str | None:
    """Return the problem of a user's network as a sentence, found by calling it, or None if it has none."""
    if not isinstance(built, nn.Module):
        return "is not a torch.nn.Module"
    other = [name for name, parameter in built.named_parameters() if parameter.dtype != torch.float32]
    if other:
        return f"has parameters that are not float32: {', '.join(other)}"
    buffers = {name: buffer.clone() for name, buffer in built.named_buffers()}
    random_state = torch.get_rng_state()
    with torch.enable_grad():
        problem = (_recurrent_problem if _is_recurrent(built) else _feed_forward_problem)(built, observation, head_rows)
    if problem is not None:
        return problem
    # Buffers and random states are neither checkpointed nor reproducible.
    if not torch.equal(random_state, torch.get_rng_state()):
        return (
            "draws random numbers when it is called (as Dropout does): the same seed would no longer give the same run"
        )
    if any(not torch.equal(buffers[name], buffer) for name, buffer in built.named_buffers()):
        return (
            "changes its buffers when it is called (as BatchNorm does): evaluations would change training "
            "(LayerNorm does not)"
        )
    return None


def _feed_forward_problem(built: nn.Module, observation: int, head_rows: int) -> str | None:
    """Return the problem of a feed-forward network's outputs as a sentence, found by calling it, or None if there is
    none.
    """
    outputs = built(torch.zeros(2, observation))
    if not (
        isinstance(outputs, tuple | list)
        and len(outputs) == 2
        and all(isinstance(output, Tensor) for output in outputs)
    ):
        return (
            f"should return two tensors, head parameters (B, {head_rows}) and values (B); it returned "
            f"{type(outputs).__name__}"
        )
    head, value = outputs
    if tuple(head.shape) != (2, head_rows) or tuple(value.shape) not in ((2,), (2, 1)):
        return (
            f"maps (2, {observation}) to {tuple(head.shape)} and {tuple(value.shape)}; expected (2, "
            f"{head_rows}) and (2)"
        )
    return None if head.requires_grad else _NO_GRADIENT


_NO_GRADIENT = "returns head parameters that carry no gradient: none of its parameters would be trained"


def _recurrent_problem(built: Any, observation: int, head_rows: int) -> str | None:
    """Return the problem of a recurrent network's outputs as a sentence, found by calling it, or None if there is none.
    A sequence must give the same outputs whole and in two halves.
    """
    T, B = 4, 2
    first = built.initial_state(B)
    if not (
        isinstance(first, tuple)
        and all(isinstance(part, Tensor) and part.dtype == torch.float32 and len(part) == B for part in first)
    ):
        return "should have an initial_state(B) that returns a tuple of float32 tensors (B, ...)"
    inputs, reset = torch.linspace(-1.0, 1.0, T * B * observation).view(T, B, observation), torch.zeros(T, B)
    outputs = built(inputs, first, reset)
    if not (isinstance(outputs, tuple | list) and len(outputs) == 3 and isinstance(outputs[2], tuple | list)):
        return (
            f"should return head parameters (T, B, {head_rows}), values (T, B) and a tuple, the state after; it "
            f"returned {type(outputs).__name__}"
        )
    head, value, after = outputs
    if tuple(head.shape) != (T, B, head_rows) or tuple(value.shape) not in ((T, B), (T, B, 1)):
        return (
            f"maps {tuple(inputs.shape)} to {tuple(head.shape)} and {tuple(value.shape)}; expected "
            f"{(T, B, head_rows)} and {(T, B)}"
        )
    if [part.shape for part in after] != [part.shape for part in first]:
        return "returns a state of other shapes than initial_state's"
    if not head.requires_grad:
        return _NO_GRADIENT
    # In two halves, and with a reset of the second lane at the start of the second half.
    middle = built(inputs[:2], first, reset[:2])
    whole, second = built(inputs, first, _marked(reset, 2))[0], built(inputs[2:], middle[2], reset[2:])[0]
    fresh = built(inputs[2:], built.initial_state(B), reset[2:])[0]
    if not torch.allclose(torch.cat([middle[0], second]), head, atol=1e-4):
        return "gives other outputs for a sequence than for its two halves in turn: the returned state must be complete"
    if not torch.allclose(whole[2:, 1], fresh[:, 1], atol=1e-4) or not torch.allclose(
        whole[:, 0], head[:, 0], atol=1e-4
    ):
        return "should start from its initial state where reset (T, B) is 1, in that lane alone: it does not"
    return None


def _marked(reset: Tensor, step: int) -> Tensor:
    """Return a copy of `reset` (T, B) with a 1 at step `step` of the second lane."""
    marked = reset.clone()
    marked[step, 1] = 1.0
    return marked
