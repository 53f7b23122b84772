"""Writes a policy as a plain function of a batch of observations, (B, O) -> (B, A), and checks the file. Knows no run
and no algorithm.

Normalization, one-hot reading, legal actions, the choice among actions and the scaling to their bounds lie within. What
is written is the actor's own `act`, traced by torch.export: there is no second description of any network. A file is
put in its place only after it has been loaded again and has chosen the same actions as the actor, on observations of
the environment. Both compute in float32, with sums in orders of their own: where large numbers meet in wide layers,
that alone is more than the tolerance. Then both are compared with the same policy in float64, from which the file must
not be further than the actor is.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
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
"""The formats, and how their files end."""

STEPS, LANES = 200, 5
"""The observations of a check: so many steps of so many lanes."""
TOLERANCE = 1e-5
ROUNDING = 2.0
"""How many times the actor's own distance from float64 the file's may be, where they differ by more than the tolerance.
"""

Arrays = list[NDArray[Any]]
Runner = Callable[[Arrays], Arrays]
"""A loaded file: what it makes of its inputs, (B, ...) each."""


class Exported(NamedTuple):
    """What was written. `difference` is the largest between the file's actions and states and the actor's, `ties` how
    often it took another one of two actions whose scores differ by no more than rounding. Where the difference is above
    the tolerance: how far the actor and the file are from float64.
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
    """An actor as a function of (B, ...) tensors: observations, legal actions where there are such, and the state of a
    memory; greedy.
    """

    def __init__(self, actor: Actor) -> None:
        super().__init__()
        self._actor = actor
        for name, part in vars(actor).items():  # so that their numbers keep their names
            if isinstance(part, nn.Module):
                self.add_module(name.lstrip("_"), part)

    def forward(self, observation: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        """Actions (B, A), and the state after them."""
        masked = self._actor.env.mask_size > 0
        legal, state = (more[0].t(), more[1:]) if masked else (None, more)
        action, after = self._actor.act(observation.t(), tuple(part.movedim(0, -1) for part in state), None, legal)
        return (action.t(), *(part.movedim(-1, 0) for part in after))


def names(actor: Actor) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the exported function takes and gives, by name."""
    states = len(actor.initial_state(1))
    inputs = ("observation", *(("legal",) if actor.env.mask_size else ()), *(f"state_{k}" for k in range(states)))
    return inputs, ("action", *(f"next_state_{k}" for k in range(states)))


def write(actor: Actor, params: Any, path: Path, target: str, *, steps: int = STEPS) -> Exported:
    """Write the policy of an actor on the CPU as a file of a format of `ENDINGS`, and check it; `params` are the
    environment's constants.

    The check takes `steps` steps of 5 lanes.

    Raises MachineError where a package is missing or the file cannot be written, OperantError where the policy cannot
    be expressed in the format or the file does not choose as the actor does: `path` is then as it was.
    """
    with torch.no_grad(), _quiet():
        save, load = _FORMATS[target]
        traced = _trace(actor)
        temporary = path.with_name(f".{path.stem}-{os.getpid()}{ENDINGS[target]}")
        try:
            save(traced, actor, temporary)
            run = load(temporary)
            found = _check(actor, params, traced, run, steps)
            found = found if found.difference <= TOLERANCE else _check(actor, params, traced, run, steps, exact=True)
            rounded = (
                found.file_rounding is not None
                and found.actor_rounding is not None
                and found.file_rounding <= ROUNDING * found.actor_rounding
            )
            if not (found.difference <= TOLERANCE or rounded):
                far = "" if found.file_rounding is None else f"; {found.words}"
                raise OperantError(
                    f"the exported policy differs from the run's by {found.difference:.3g} (more than "
                    f"{TOLERANCE:g}{far}): no file was written"
                )
            os.replace(temporary, path)
        except OSError as error:
            raise MachineError(
                f"{path} cannot be written ({error.strerror or error}): choose another place with --out"
            ) from None
        finally:
            temporary.unlink(missing_ok=True)
    return Exported(path, *names(actor), steps * LANES, **found._asdict())


def _trace(actor: Actor) -> torch.export.ExportedProgram:
    """The actor's `act` as a graph, for any number of observations."""
    observation = torch.zeros(3, actor.env.observation.size, dtype=getattr(torch, actor.env.observation.dtype))
    legal = [torch.ones(3, actor.env.mask_size, dtype=torch.uint8)] if actor.env.mask_size else []
    state = [part.movedim(-1, 0).contiguous() for part in actor.initial_state(3)]
    batch = {0: torch.export.Dim("batch")}
    shapes = (batch, *([tuple(batch for _ in (*legal, *state))] if legal or state else []))
    try:
        return torch.export.export(PlainPolicy(actor), (observation, *legal, *state), dynamic_shapes=shapes)
    except Exception as error:  # a user's own network may do anything
        raise OperantError(
            f"torch.export cannot express this policy ({_first_line(error)}): a network of your own must take any "
            "number of rows"
        ) from error


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' notes about themselves."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)


# THE FORMATS: each is saved, and loaded as a stranger would


def _save_onnx(traced: torch.export.ExportedProgram, actor: Actor, path: Path) -> None:
    _require("onnx", "onnxscript", "onnxruntime")
    inputs, outputs = names(actor)
    made = torch.onnx.export(
        traced, input_names=inputs, output_names=outputs, dynamo=True, verbose=False, external_data=False
    )
    assert made is not None
    made.save(str(path), external_data=False)


def _load_onnx(path: Path) -> Runner:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = [entry.name for entry in session.get_inputs()]
    return lambda arrays: session.run(None, dict(zip(inputs, arrays, strict=True)))


def _save_pt2(traced: torch.export.ExportedProgram, actor: Actor, path: Path) -> None:
    torch.export.save(traced, str(path))


def _load_pt2(path: Path) -> Runner:
    module = torch.export.load(str(path)).module()
    return lambda arrays: [part.numpy() for part in module(*map(torch.from_numpy, arrays))]


def _save_numpy(traced: torch.export.ExportedProgram, actor: Actor, path: Path) -> None:
    steps, arrays = _program(traced, actor)
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **{program.PROGRAM: np.array(json.dumps(steps)), **arrays})


def _save_safetensors(traced: torch.export.ExportedProgram, actor: Actor, path: Path) -> None:
    from safetensors.numpy import save_file

    steps, arrays = _program(traced, actor)
    save_file(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        str(path),
        {program.PROGRAM: json.dumps(steps)},
    )


def _load_program(path: Path) -> Runner:
    policy = program.load(path)

    def run(arrays: Arrays) -> Arrays:
        found = policy(*arrays)
        return found if isinstance(found, list) else [found]

    return run


_FORMATS: Final[
    dict[str, tuple[Callable[[torch.export.ExportedProgram, Actor, Path], None], Callable[[Path], Runner]]]
] = {
    "onnx": (_save_onnx, _load_onnx),
    "pt2": (_save_pt2, _load_pt2),
    "safetensors": (_save_safetensors, _load_program),
    "numpy": (_save_numpy, _load_program),
}


def _require(*packages: str) -> None:
    from importlib.util import find_spec

    if missing := [package for package in packages if find_spec(package) is None]:
        raise MachineError(
            f"--to onnx needs {', '.join(missing)}: pip install 'operant[onnx]'. Without: --to pt2, safetensors "
            "or numpy"
        )


def _program(traced: torch.export.ExportedProgram, actor: Actor) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The steps of a policy as `operant.export.program` runs them, and the arrays that they read."""
    core = traced.run_decompositions()
    for node in list(core.graph.nodes):
        if "_assert" in str(node.target):
            core.graph.erase_node(node)
    core.graph.eliminate_dead_code()
    held: dict[str, Tensor] = {**core.state_dict, **core.constants}
    kept = {entry.arg.name: entry.target for entry in core.graph_signature.input_specs if entry.target is not None}  # type: ignore[union-attr]
    given = iter(names(actor)[0])
    called = {node.name: kept.get(node.name) or next(given) for node in core.graph.nodes if node.op == "placeholder"}
    steps, read = [], set()

    def encoded(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            read.add(called.get(value.name, value.name))
            return {"$": called.get(value.name, value.name)}
        if isinstance(value, (list, tuple)):
            return [encoded(item) for item in value]
        return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)

    for node in core.graph.nodes:
        if node.op == "call_function":
            op = getattr(node.target, "__name__", str(node.target))
            if op not in program.OPERATIONS:
                raise OperantError(
                    f"the policy's network computes {op}, which NumPy files cannot hold: use --to onnx or pt2"
                )
            shaped = node.meta["val"] if isinstance(node.meta.get("val"), Tensor) else None
            dtype = None if shaped is None else str(shaped.dtype).removeprefix("torch.")
            steps.append(
                {
                    "name": node.name,
                    "op": op,
                    "args": encoded(node.args),
                    "kwargs": _named(node.kwargs, encoded),
                    "dtype": dtype,
                }
            )
    outputs = [entry["$"] for entry in encoded(core.graph.output_node().args[0])]
    state = [
        {"shape": list(part.shape[:-1]), "dtype": str(part.dtype).removeprefix("torch.")}
        for part in actor.initial_state(1)
    ]
    arrays = {name: tensor.detach().numpy() for name, tensor in held.items() if name in read}
    return {"schema": 1, "inputs": names(actor)[0], "outputs": outputs, "state": state, "nodes": steps}, arrays


def _named(given: Any, encoded: Callable[[Any], Any]) -> dict[str, Any]:
    """The named arguments of an operation that say what it computes, not where."""
    return {
        key: encoded(value)
        for key, value in given.items()
        if key not in ("device", "layout", "pin_memory", "memory_format", "dtype")
    }


# THE CHECK


class _Found(NamedTuple):
    """What a check came to: see `Exported`."""

    difference: float
    ties: int
    actor_rounding: float | None = None
    file_rounding: float | None = None

    @property
    def words(self) -> str:
        """How far both are from float64."""
        return (
            f"it is within {self.file_rounding:.3g} of the same in float64, the run's own within "
            f"{self.actor_rounding:.3g}"
        )


class _Graph(torch.fx.Interpreter):
    """Runs a traced policy, with `exact` in float64, and keeps what it chooses the largest of, (n, B) for each choice
    of an action.
    """

    def __init__(self, traced: torch.export.ExportedProgram, *, exact: bool = False) -> None:
        super().__init__(traced.module())  # type: ignore[arg-type]
        self._exact = exact
        self.seen: list[Tensor] = []

    def of(self, arrays: Arrays) -> Arrays:
        """What comes of arrays (B, ...)."""
        self.seen = []
        return [part.numpy() for part in self.run(*(self._precise(torch.from_numpy(array)) for array in arrays))]

    def _precise(self, value: Any) -> Any:
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
        return self._precise(super().fetch_attr(target))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if "argmax" in str(target):
            self.seen.append(args[0])
        return super().call_function(target, *(tree_map(self._precise, given) for given in (args, kwargs)))

    def gap(self, action: NDArray[Any]) -> NDArray[np.float64]:
        """How far the scores of actions (B, A) stay behind the best, at most, relative where scores are large; (B).
        Infinite where that cannot be told.
        """
        rows = torch.from_numpy(action).t().long()  # (A, B)
        if len(self.seen) != len(rows):
            return np.full(len(action), np.inf)
        taken = [scores.gather(0, row[None])[0] for scores, row in zip(self.seen, rows, strict=True)]
        best = [scores.amax(dim=0) for scores in self.seen]
        gaps = [(most - mine) / most.abs().clamp_min(1.0) for most, mine in zip(best, taken, strict=True)]
        return torch.stack(gaps).amax(dim=0).double().numpy()


def _difference(found: Arrays, others: Arrays) -> float:
    """The largest between arrays, relative where numbers are large; infinite where one is not a number."""
    far = [np.abs(a.astype(np.float64) - b) / np.maximum(1.0, np.abs(b)) for a, b in zip(found, others, strict=True)]
    return max((float(np.nan_to_num(one, nan=np.inf).max(initial=0.0)) for one in far), default=0.0)


def _check(
    actor: Actor, params: Any, traced: torch.export.ExportedProgram, run: Runner, steps: int, *, exact: bool = False
) -> _Found:
    """What differs between the file and the actor over observations that the actor meets when it plays at random; with
    `exact` between either and float64, too.

    Each carries its own state from step to step. Of discrete actions either of two is right whose scores differ by no
    more than what numbers may differ by. Without `exact` it ends at the first difference above the tolerance.
    """
    world = worlds.make(actor.env, LANES, seed=0, device=actor.device, params=params)
    slot, noise = world.slot(), torch.zeros(1, actor.noise_rows, LANES)
    bound, scores, precise = world.bind(slot), _Graph(traced), _Graph(traced, exact=True)
    first = actor.initial_state(LANES)
    state, own = first, [_rows(part) for part in first]
    ideal = own
    world.reset(bound)
    worst, ties, roundings, wrong = 0.0, 0, [0.0, 0.0], False
    for _ in range(steps):
        given = [_rows(slot.observation), *([] if slot.legal is None else [_rows(slot.legal)])]
        chosen, after = actor.act(slot.observation, state, None, slot.legal)
        expected = [_rows(part) for part in (chosen, *after)]
        found = run([*given, *own])
        right = precise.of([*given, *ideal]) if exact else expected

        # A choice between scores that are as good as equal is no difference.
        parts = slice(None)
        if not chosen.is_floating_point():
            parts = slice(1, None)
            other = (found[0] != expected[0]).any(axis=1)  # (B)
            if other.any():
                scores.of([*given, *own])
                limit = TOLERANCE
                if exact:
                    precise.of([*given, *own])
                    limit = max(
                        TOLERANCE,
                        ROUNDING
                        * _difference([one.numpy() for one in scores.seen], [one.numpy() for one in precise.seen]),
                    )
                wrong = not (scores.gap(found[0])[other] <= limit).all()
                ties += int(other.sum())
        worst = max(worst, _difference(found, expected) if wrong else _difference(found[parts], expected[parts]))
        roundings = [
            max(far, _difference(some[parts], right[parts]))
            for far, some in zip(roundings, (expected, found), strict=True)
        ]
        if worst > TOLERANCE and (wrong or not exact):
            break

        # The environment goes on with random actions; an episode's end leaves nothing to the next.
        world.noise(noise)
        slot.action.copy_(actor.act(slot.observation, state, noise[0], slot.legal)[0])
        world.step(bound)
        world.advance(1)
        ended = (slot.terminated | slot.truncated).bool()
        state = tuple(torch.where(ended, begin, part) for begin, part in zip(first, after, strict=True))
        own, ideal = (
            [_begun(ended, begin, part) for begin, part in zip(first, new[1:], strict=True)] for new in (found, right)
        )
    if not isinstance(world, worlds.DeviceWorld):
        world.close()
    return _Found(worst, ties, *(roundings if exact and not wrong else ()))


def _begun(ended: Tensor, begin: Tensor, part: NDArray[Any]) -> NDArray[Any]:
    """A state (B, ...) with that of a new episode where one has ended."""
    return _rows(torch.where(ended, begin.to(torch.from_numpy(part).dtype), torch.from_numpy(part).movedim(0, -1)))


def _rows(tensor: Tensor) -> NDArray[Any]:
    """(..., B) as an array (B, ...) whose rows lie one after the other."""
    return tensor.movedim(-1, 0).contiguous().numpy()
