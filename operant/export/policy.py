"""Export of a policy as a function of a batch of observations, (B, O) to (B, A), and the check of the file.

Normalization, one-hot encoding, legal actions, the choice of the action and the scaling to its bounds are part of the
function. It is the actor's own `act`, traced by torch.export, so no network is described twice.

A file replaces its target only after it was loaded again and chose the actor's actions on observations of the
environment. Both compute in float32, with sums in different orders, which in wide layers with large weights can exceed
the tolerance. Then both are compared with the same policy in float64: the file's error must not exceed the actor's own
by more than a factor `ROUNDING`.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from operant import worlds
from operant.errors import MachineError, OperantError
from operant.export import program
from operant.nn import Actor

ENDINGS: Final = {"onnx": ".onnx", "pt2": ".pt2", "safetensors": ".safetensors", "numpy": ".npz"}
"""Formats and their file name extensions."""

STEPS, LANES = 200, 5
"""Steps and lanes of a check."""
TOLERANCE = 1e-5
ROUNDING = 2.0
"""Largest ratio of the file's to the actor's own error against float64, where they differ by more than the tolerance.
"""

Arrays = list[NDArray[Any]]
Runner = Callable[[Arrays], Arrays]
"""Loaded file as a function of arrays (B, ...)."""


class Exported(NamedTuple):
    """Result of exporting a policy: the file's inputs and outputs, and the differences that its check found.

    `difference`: largest difference of actions and states between file and actor. `ties`: how often the file took
    another action whose score is equal up to rounding. `actor_rounding`, `file_rounding`: errors of both against
    float64, where the difference exceeds the tolerance.
    """

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    checked: int  # observations
    difference: float
    ties: int
    actor_rounding: float | None = None
    file_rounding: float | None = None


class PlainPolicy(nn.Module):
    """Torch module that wraps an actor and acts greedily on tensors (B, ...): observations, legal actions if the
    environment defines them, and the recurrent state.
    """

    def __init__(self, actor: Actor) -> None:
        super().__init__()
        self._actor = actor
        for name, part in vars(actor).items():  # parameters keep their names
            if isinstance(part, nn.Module):
                self.add_module(name.lstrip("_"), part)

    def forward(self, observation: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        """Return the actions (B, A) and the next recurrent state. `more` are the legal actions, if the environment
        defines them, and the state.
        """
        masked = self._actor.env.mask_size > 0
        legal, state = (more[0].t(), more[1:]) if masked else (None, more)
        action, next_state = self._actor.act(observation.t(), tuple(part.movedim(0, -1) for part in state), None, legal)
        return (action.t(), *(part.movedim(-1, 0) for part in next_state))


def names(actor: Actor) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the inputs and of the outputs of an actor's exported function."""
    states = len(actor.initial_state(1))
    inputs = ("observation", *(("legal",) if actor.env.mask_size else ()), *(f"state_{k}" for k in range(states)))
    return inputs, ("action", *(f"next_state_{k}" for k in range(states)))


def write(
    actor: Actor, params: Any, path: Path, target: str, *, steps: int = STEPS, about: Mapping[str, str] | None = None
) -> Exported:
    """Write the policy of an actor on the CPU to `path` in the format `target` (a key of `ENDINGS`), and check the file
    on `steps` steps of 5 lanes. `params` are the environment's constants, `about` is metadata for an ONNX or
    safetensors file.

    Raises MachineError for a missing package or a file that cannot be written, OperantError for a policy that the
    format does not support or a file whose actions differ. `path` is then unchanged.
    """
    with torch.no_grad(), _quiet():
        save, load = _FORMATS[target]
        traced = _trace(actor)
        temporary = path.with_name(f".{path.stem}-{os.getpid()}{ENDINGS[target]}")
        try:
            save(traced, actor, temporary, dict(about or {}))
            temporary.chmod(0o666 & ~_umask())
            run = load(temporary)
            check = _compare_with_actor(actor, params, traced, run, steps)
            if check.difference > TOLERANCE:
                check = _compare_with_actor(actor, params, traced, run, steps, exact=True)
            within_rounding = (
                check.file_rounding is not None
                and check.actor_rounding is not None
                and check.file_rounding <= ROUNDING * check.actor_rounding
            )
            if not (check.difference <= TOLERANCE or within_rounding):
                errors = "" if check.file_rounding is None else f"; {check.errors_text}"
                raise OperantError(
                    f"the exported policy differs from the run's by {check.difference:.3g} (more than "
                    f"{TOLERANCE:g}{errors}): no file was written"
                )
            os.replace(temporary, path)
        except OSError as error:
            raise MachineError(
                f"{path} cannot be written ({error.strerror or error}): choose another path with --out"
            ) from None
        finally:
            temporary.unlink(missing_ok=True)
    return Exported(path, *names(actor), steps * LANES, **check._asdict())


def _trace(actor: Actor) -> torch.export.ExportedProgram:
    """Trace the actor's `act` to a graph of torch operations, for any batch size. Raises OperantError if torch
    cannot.
    """
    observation = torch.zeros(3, actor.env.observation.size, dtype=getattr(torch, actor.env.observation.dtype))
    legal = [torch.ones(3, actor.env.mask_size, dtype=torch.uint8)] if actor.env.mask_size else []
    state = [part.movedim(-1, 0).contiguous() for part in actor.initial_state(3)]
    batch = {0: torch.export.Dim("batch")}
    shapes = (batch, *([tuple(batch for _ in (*legal, *state))] if legal or state else []))
    try:
        return torch.export.export(PlainPolicy(actor), (observation, *legal, *state), dynamic_shapes=shapes)
    except Exception as error:  # a user's own network may do anything
        raise OperantError(
            f"torch.export cannot trace this policy ({_first_line(error)}): a network of your own must accept any "
            "batch size"
        ) from error


def _first_line(error: BaseException) -> str:
    """Class of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Context that silences the exporters' warnings and log."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)


# FORMATS: save, and load without Operant


def _save_onnx(traced: torch.export.ExportedProgram, actor: Actor, path: Path, about: dict[str, str]) -> None:
    """Write the traced policy as ONNX, with `about` as its metadata. Raises MachineError for a missing package."""
    _require_onnx("onnx", "onnxscript", "onnxruntime")
    inputs, outputs = names(actor)
    model = torch.onnx.export(
        traced, input_names=inputs, output_names=outputs, dynamo=True, verbose=False, external_data=False
    )
    assert model is not None
    model.model.metadata_props.update(about)
    model.save(str(path), external_data=False)


def _load_onnx(path: Path) -> Runner:
    """Load an ONNX file as a function of arrays (B, ...)."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = [entry.name for entry in session.get_inputs()]
    return lambda arrays: session.run(None, dict(zip(inputs, arrays, strict=True)))


def _save_pt2(traced: torch.export.ExportedProgram, actor: Actor, path: Path, about: dict[str, str]) -> None:
    """Write the traced policy as a torch.export archive."""
    with path.open("wb") as file:  # an unwritable path is an OSError
        torch.export.save(traced, file)


def _load_pt2(path: Path) -> Runner:
    """Load a torch.export archive as a function of arrays (B, ...)."""
    module = torch.export.load(str(path)).module()
    return lambda arrays: [part.numpy() for part in module(*map(torch.from_numpy, arrays))]


def _save_numpy(traced: torch.export.ExportedProgram, actor: Actor, path: Path, about: dict[str, str]) -> None:
    """Write the traced policy as a .npz file: its arrays and its operations. Raises OperantError for an unsupported
    operation.
    """
    steps, arrays = _operations(traced, actor)
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **{program.PROGRAM: np.array(json.dumps(steps)), **arrays})


def _save_safetensors(traced: torch.export.ExportedProgram, actor: Actor, path: Path, about: dict[str, str]) -> None:
    """Write the traced policy as a safetensors file: its arrays, and its operations and `about` as metadata. Raises
    OperantError for an unsupported operation.
    """
    from safetensors.numpy import save

    steps, arrays = _operations(traced, actor)
    content = save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        {**about, program.PROGRAM: json.dumps(steps)},
    )
    path.write_bytes(content)


def _load_program(path: Path) -> Runner:
    """Load a .npz or .safetensors file as a function of arrays (B, ...)."""
    policy = program.load(path)

    def run(arrays: Arrays) -> Arrays:
        outputs = policy(*arrays)
        return outputs if isinstance(outputs, list) else [outputs]

    return run


_FORMATS: Final[
    dict[
        str,
        tuple[Callable[[torch.export.ExportedProgram, Actor, Path, dict[str, str]], None], Callable[[Path], Runner]],
    ]
] = {
    "onnx": (_save_onnx, _load_onnx),
    "pt2": (_save_pt2, _load_pt2),
    "safetensors": (_save_safetensors, _load_program),
    "numpy": (_save_numpy, _load_program),
}


def _umask() -> int:
    """Read the process's umask, the mode bits that a new file lacks. Some formats' writers make files that only their
    owner can read.
    """
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _require_onnx(*packages: str) -> None:
    """Check that the packages for ONNX are installed. Raises MachineError."""
    from importlib.util import find_spec

    if missing := [package for package in packages if find_spec(package) is None]:
        raise MachineError(
            f"--to onnx needs {', '.join(missing)}: pip install 'operant[onnx]', or use --to pt2, safetensors or numpy"
        )


def _operations(traced: torch.export.ExportedProgram, actor: Actor) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Convert a traced policy to a list of operations as JSON, for `operant.export.program`, and its arrays by name.
    Raises OperantError for an operation beyond those of dense networks and their memories.
    """
    core = traced.run_decompositions()
    for node in list(core.graph.nodes):
        if "_assert" in str(node.target):
            core.graph.erase_node(node)
    core.graph.eliminate_dead_code()
    tensors: dict[str, Tensor] = {**core.state_dict, **core.constants}
    stored = {entry.arg.name: entry.target for entry in core.graph_signature.input_specs if entry.target is not None}
    inputs = iter(names(actor)[0])
    placeholders = {
        node.name: stored.get(node.name) or next(inputs) for node in core.graph.nodes if node.op == "placeholder"
    }
    nodes, used = [], set()

    def encode(value: Any) -> Any:
        """Convert an argument of an operation to JSON; an earlier result or input becomes {"$": name}."""
        if isinstance(value, torch.fx.Node):
            used.add(placeholders.get(value.name, value.name))
            return {"$": placeholders.get(value.name, value.name)}
        if isinstance(value, (list, tuple)):
            return [encode(item) for item in value]
        return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)

    for node in core.graph.nodes:
        if node.op == "call_function":
            op = getattr(node.target, "__name__", str(node.target))
            if op not in program.OPERATIONS:
                what = 'has a convolution (net.kind = "cnn")' if op.startswith("convolution") else f"computes {op}"
                raise OperantError(
                    "the NumPy export supports dense networks and their memories; this policy "
                    f"{what}: export ONNX instead, with --to onnx"
                )
            result = node.meta["val"] if isinstance(node.meta.get("val"), Tensor) else None
            dtype = None if result is None else str(result.dtype).removeprefix("torch.")
            nodes.append(
                {
                    "name": node.name,
                    "op": op,
                    "args": encode(node.args),
                    "kwargs": _encode_kwargs(node.kwargs, encode),
                    "dtype": dtype,
                }
            )
    outputs = [entry["$"] for entry in encode(core.graph.output_node().args[0])]
    state = [
        {"shape": list(part.shape[:-1]), "dtype": str(part.dtype).removeprefix("torch.")}
        for part in actor.initial_state(1)
    ]
    arrays = {name: tensor.detach().numpy() for name, tensor in tensors.items() if name in used}
    return {"schema": 1, "inputs": names(actor)[0], "outputs": outputs, "state": state, "nodes": nodes}, arrays


def _encode_kwargs(kwargs: Any, encode: Callable[[Any], Any]) -> dict[str, Any]:
    """Encode the keyword arguments of an operation that affect its result by `encode`; device and layout are
    dropped.
    """
    return {
        key: encode(value)
        for key, value in kwargs.items()
        if key not in ("device", "layout", "pin_memory", "memory_format", "dtype")
    }


# CHECK


class _Comparison(NamedTuple):
    """Differences between an exported file and its actor (see `Exported`)."""

    difference: float
    ties: int
    actor_rounding: float | None = None
    file_rounding: float | None = None

    @property
    def errors_text(self) -> str:
        """Describe in words how far the actor's and the exported file's results are from those in float64."""
        return (
            f"it is within {self.file_rounding:.3g} of the same in float64, the run's own within "
            f"{self.actor_rounding:.3g}"
        )


class _TracedPolicy(torch.fx.Interpreter):
    """Interpreter of the traced policy that records the scores (n, B) of every argmax. With `exact` it computes in
    float64.
    """

    def __init__(self, traced: torch.export.ExportedProgram, *, exact: bool = False) -> None:
        super().__init__(traced.module())
        self._exact = exact
        self.scores: list[Tensor] = []

    def outputs(self, arrays: Arrays) -> Arrays:
        """Run the exported policy's graph on arrays (B, ...) and return its outputs as arrays."""
        self.scores = []
        return [part.numpy() for part in self.run(*(self._to_float64(torch.from_numpy(array)) for array in arrays))]

    def _to_float64(self, value: Any) -> Any:
        """Convert a float32 tensor or dtype to float64, if the interpreter is exact; return any other value
        unchanged.
        """
        if not self._exact:
            return value
        return (
            value.double()
            if isinstance(value, Tensor) and value.dtype == torch.float32
            else torch.float64
            if value is torch.float32
            else value
        )

    def fetch_attr(self, target: str) -> Any:
        return self._to_float64(super().fetch_attr(target))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if "argmax" in str(target):
            self.scores.append(args[0])
        return super().call_function(target, *(tree_map(self._to_float64, given) for given in (args, kwargs)))

    def gap(self, action: NDArray[Any]) -> NDArray[np.float64]:
        """Distance of the scores of actions (B, A) from the best scores, (B): the largest over the action's components,
        relative for large scores. Infinite if scores were not recorded.
        """
        rows = torch.from_numpy(action).t().long()  # (A, B)
        if len(self.scores) != len(rows):
            return np.full(len(action), np.inf)
        own = [scores.gather(0, row[None])[0] for scores, row in zip(self.scores, rows, strict=True)]
        best = [scores.amax(dim=0) for scores in self.scores]
        gaps = [(top - score) / top.abs().clamp_min(1.0) for top, score in zip(best, own, strict=True)]
        return torch.stack(gaps).amax(dim=0).double().numpy()


def _difference(arrays: Arrays, others: Arrays) -> float:
    """Largest difference between two lists of arrays, relative for large values. Infinite if there is a NaN."""
    errors = [
        np.abs(a.astype(np.float64) - b) / np.maximum(1.0, np.abs(b)) for a, b in zip(arrays, others, strict=True)
    ]
    return max((float(np.nan_to_num(error, nan=np.inf).max(initial=0.0)) for error in errors), default=0.0)


def _compare_with_actor(
    actor: Actor, params: Any, traced: torch.export.ExportedProgram, run: Runner, steps: int, *, exact: bool = False
) -> _Comparison:
    """Compare an exported file (`run`) with its actor for `steps` steps, on observations that the actor meets with
    sampled actions; with `exact` compare both also with the policy in float64.

    Each carries its own state from step to step. Two discrete actions whose scores are equal up to rounding count as
    equal. Without `exact` the check ends at the first difference above the tolerance.
    """
    world = worlds.make(actor.env, LANES, seed=0, device=actor.device, params=params)
    slot, noise = world.slot(), torch.zeros(1, actor.noise_rows, LANES)
    bound, graph, exact_graph = world.bind(slot), _TracedPolicy(traced), _TracedPolicy(traced, exact=True)
    initial = actor.initial_state(LANES)
    state, file_state = initial, [_batch_first(part) for part in initial]
    exact_state = file_state
    world.reset(bound)
    worst, ties, roundings, wrong = 0.0, 0, [0.0, 0.0], False
    for _ in range(steps):
        inputs = [_batch_first(slot.observation), *([] if slot.legal is None else [_batch_first(slot.legal)])]
        action, next_state = actor.act(slot.observation, state, None, slot.legal)
        expected = [_batch_first(part) for part in (action, *next_state)]
        outputs = run([*inputs, *file_state])
        ideal = exact_graph.outputs([*inputs, *exact_state]) if exact else expected

        # A choice between scores that are equal up to rounding is no difference.
        parts = slice(None)
        if not action.is_floating_point():
            parts = slice(1, None)
            other = (outputs[0] != expected[0]).any(axis=1)  # (B)
            if other.any():
                graph.outputs([*inputs, *file_state])
                limit = TOLERANCE
                if exact:
                    exact_graph.outputs([*inputs, *file_state])
                    limit = max(
                        TOLERANCE,
                        ROUNDING
                        * _difference(
                            [scores.numpy() for scores in graph.scores],
                            [scores.numpy() for scores in exact_graph.scores],
                        ),
                    )
                wrong = not (graph.gap(outputs[0])[other] <= limit).all()
                ties += int(other.sum())
        worst = max(worst, _difference(outputs, expected) if wrong else _difference(outputs[parts], expected[parts]))
        roundings = [
            max(rounding, _difference(arrays[parts], ideal[parts]))
            for rounding, arrays in zip(roundings, (expected, outputs), strict=True)
        ]
        if worst > TOLERANCE and (wrong or not exact):
            break

        # Step the environment with sampled actions, and reset states at an episode's end.
        world.noise(noise)
        slot.action.copy_(actor.act(slot.observation, state, noise[0], slot.legal)[0])
        world.step(bound)
        world.advance(1)
        ended = (slot.terminated | slot.truncated).bool()
        state = tuple(torch.where(ended, begin, part) for begin, part in zip(initial, next_state, strict=True))
        file_state, exact_state = (
            [_reset_state(ended, begin, part) for begin, part in zip(initial, new[1:], strict=True)]
            for new in (outputs, ideal)
        )
    if not isinstance(world, worlds.DeviceWorld):
        world.close()
    return _Comparison(worst, ties, *(roundings if exact and not wrong else ()))


def _reset_state(ended: Tensor, begin: Tensor, part: NDArray[Any]) -> NDArray[Any]:
    """Copy a recurrent state `part` (B, ...) and set it to `begin` in lanes whose episode has ended."""
    return _batch_first(
        torch.where(ended, begin.to(torch.from_numpy(part).dtype), torch.from_numpy(part).movedim(0, -1))
    )


def _batch_first(tensor: Tensor) -> NDArray[Any]:
    """Copy a tensor (..., B) to a contiguous array (B, ...)."""
    return tensor.movedim(-1, 0).contiguous().numpy()
