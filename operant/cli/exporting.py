"""Commands `export policy` and `export metrics`. Formats: operant/export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from operant.cli.common import (
    TYPER,
    JsonOption,
    RootOption,
    RunName,
    TrustOption,
    check_free,
    consented,
    out,
    print_json,
    say,
)
from operant.errors import UsageError
from operant.text import safe

app = typer.Typer(**TYPER)
export_app = typer.Typer(**TYPER, help="Write a policy or metrics for other programs.")
app.add_typer(export_app, name="export")

_NUMPY: Final = (
    "from operant.export import program  # a single file that needs NumPy only: copy it anywhere",
    "",
    'policy = program.load("{path}")',
)
_SNIPPETS: Final[dict[str, tuple[str, ...]]] = {
    "onnx": (
        "import numpy as np, onnxruntime",
        "",
        'session = onnxruntime.InferenceSession("{path}")',
        "{arrays}",
        "{outputs} = session.run(None, {{{named}}})",
    ),
    "pt2": (
        "import numpy as np, torch",
        "",
        'policy = torch.export.load("{path}").module()',
        "{arrays}",
        "with torch.no_grad():",
        "    {outputs} = policy({tensors})",
    ),
    "safetensors": ("import numpy as np", *_NUMPY, "{arrays}", "{outputs} = {one}policy({inputs}){end}"),
    "numpy": ("import numpy as np", *_NUMPY, "{arrays}", "{outputs} = {one}policy({inputs}){end}"),
}


@export_app.command("policy")
def export_policy(
    what: Annotated[str, typer.Argument(metavar="RUN|FILE", help="a run, zoo:NAME, or the path of a checkpoint")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="onnx|pt2|safetensors|numpy",
            help="the format; safetensors and numpy: dense networks and their memories only",
        ),
    ] = "onnx",
    path: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="the file to write  [default: ID.onnx, .pt2, .safetensors or .npz]"
        ),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="best|last|STEP", help="checkpoint to load  [default: best, else last]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Write a policy for other programs.

    It is a function from observations (B, O) to greedy actions (B, A), with normalization, one-hot encoding, legal
    actions and the state of a memory. The file is loaded again and compared with the policy on 1,000 observations
    before it replaces PATH.
    """
    if to not in _SNIPPETS:
        raise UsageError(f"--to is {safe(to, 40)!r}; it must be one of {', '.join(_SNIPPETS)}")

    from operant import runs
    from operant.play import load_policy

    loaded = consented(
        trust,
        lambda trusted: load_policy.load(
            what, runs.scope(root), which=checkpoint, device="cpu", report=say, trusted=trusted
        ),
    )
    from operant.export import policy

    target = Path(path or f"{loaded.id}{policy.ENDINGS[to]}").expanduser()
    if target.suffix != policy.ENDINGS[to]:
        raise UsageError(f"--out is {safe(target, 200)!r}; with --to {to} it must end in {policy.ENDINGS[to]}")
    check_free(target, force)
    import torch

    from operant import __version__

    about = {
        "run": loaded.id,
        "checkpoint": str(loaded.checkpoint),
        "step": str(loaded.step),
        "environment": loaded.config.environment.name,
        "operant": __version__,
        "torch": str(torch.__version__),
    }
    made = policy.write(loaded.policy, loaded.config.params, target, to, about=about)
    source = {"id": loaded.id, "checkpoint": loaded.checkpoint, "step": loaded.step}
    document = {"schema": 1, **source, "format": to, "bytes": target.stat().st_size, **made._asdict()}
    if as_json:
        print_json(document)
        return
    ties = f", {made.ties} ties broken differently" if made.ties else ""
    out(f"{safe(target, 400)}  {document['bytes'] / 1000:,.0f} kB  step {loaded.step:,}")
    within = f", rounding error to float64: file {made.file_rounding or 0:.2g}, policy {made.actor_rounding or 0:.2g}"
    exact = within if made.file_rounding is not None else ""
    out(
        f"checked on {made.checked:,} observations: largest difference {made.difference:.2g}{exact}{ties}",
        "",
        *_snippet(to, made, loaded.policy),
    )


@export_app.command("metrics")
def export_metrics(
    what: RunName,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="csv|parquet|tensorboard|wandb|mlflow",
            help="file format or tracker  [default: by the ending of --out, or csv]",
        ),
    ] = None,
    path: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="PATH", help="the file or folder to write  [default: by the run's id]"),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="continue until the run has ended")] = False,
    project: Annotated[str, typer.Option(metavar="NAME", help="project of wandb, experiment of MLflow")] = "operant",
    offline: Annotated[
        bool, typer.Option("--offline", help="wandb: write to a folder, for `wandb sync` later")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
    as_json: JsonOption = False,
    root: RootOption = None,
) -> None:
    """Write metrics to a file or a tracker.

    This works after and during training. The trainer is not involved: a full disk or a dead network here does not
    affect it. Ctrl-C ends the following, not the run.
    """
    from operant import runs
    from operant.export import metrics, trackers

    formats, meant = (
        (*metrics.FILES, *metrics.TRACKERS),
        next((name for name, ending in metrics.FILES.items() if (path or "").lower().endswith(ending)), None),
    )
    to = to or meant or "csv"
    if to not in formats:
        raise UsageError(f"--to is {safe(to, 40)!r}; it must be one of {', '.join(formats)}")
    if offline and to != "wandb":
        raise UsageError("--offline needs --to wandb")
    run = runs.resolve(what, *runs.scope(root))
    out_path = None if path is None else Path(path).expanduser()
    if to in metrics.FILES:
        target = out_path or Path(f"{run.id}{metrics.FILES[to]}")
        if meant not in (None, to):
            raise UsageError(f"--out is {safe(target, 200)!r}; with --to {to} it must end in {metrics.FILES[to]}")
        check_free(target, force, in_place=follow and to == "csv")
        sink = metrics.file_sink(run, target, to, follow=follow)
    else:
        if not follow:
            metrics.names_of(run, wait=False)  # a run without metrics is an error for every format
        sink = trackers.sink(to, run, out=out_path, project=project, offline=offline)
    if follow:
        say(f"following {safe(run.id)} into {safe(sink.where, 400)}: Ctrl-C ends the following, not the run")
    written = metrics.export(run, sink, follow=follow)
    if as_json:
        print_json({"schema": 1, "id": run.id, "to": to, **written._asdict()})
    elif written.rows:
        out(f"{safe(written.where, 400)}  {written.rows:,} records of {written.metrics} metrics")
    else:
        say(f"{safe(run.id)} has no records yet: {safe(written.where, 400)} is empty")


def _snippet(to: str, made: Any, actor: Any) -> list[str]:
    """Return the lines of a Python program that loads the exported file and computes an action. `to`: its format;
    `made`: result of the export, with path and input names; `actor`: the exported policy.
    """
    size, dtype = actor.env.observation.size, actor.env.observation.dtype
    state = [(f"state_{k}", tuple(part.shape[:-1])) for k, part in enumerate(actor.initial_state(1))]
    arrays = [f"observation = np.zeros((1, {size}), np.{dtype})        # (B, {size})"]
    if actor.env.mask_size:
        arrays.append(
            f"legal = np.ones((1, {actor.env.mask_size}), np.uint8)        # (B, {actor.env.mask_size}): 1 for actions "
            "that are legal"
        )
    arrays += [f"{name} = np.zeros({(1, *shape)}, np.float32)        # at an episode's start" for name, shape in state]
    words: Mapping[str, str] = {
        "path": safe(made.path, 400),
        "arrays": "\n".join(arrays),
        "inputs": ", ".join(made.inputs),
        "one": "" if state else "[",
        "end": "" if state else "]",
        "named": ", ".join(f'"{name}": {name}' for name in made.inputs),
        "tensors": ", ".join(f"torch.from_numpy({name})" for name in made.inputs),
        "outputs": ", ".join(["action", *(name for name, _ in state)]) + ("" if state else ","),
    }
    return [line for template in _SNIPPETS[to] for line in template.format(**words).splitlines() or [""]]
