"""Summary of a run for a person, as `operant show` prints it: outcome, progress, results, and what to type next.
Standard library only. `operant show --json` has all fields.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from operant import runs
from operant.config import recipes
from operant.errors import BadFileError
from operant.runs import Reader, Run, states
from operant.text import age, count, duration, number, safe

_GLYPHS: Final = {"finished": "✔", "stopped": "■", **dict.fromkeys(states.LIVE | {"remote"}, "●")}
_BARS: Final = "▁▂▃▄▅▆▇█"
_CELLS, _FEWEST = 40, 3  # width of a curve, and evaluations without which it shows training returns
_NAME_CELLS = 12


def lines(run: Run) -> list[str]:
    """Return the lines that `operant show` prints about a run: outcome, progress, results, next command. Texts come
    from the run's files and may need `safe`.
    """
    described, evaluations = runs.describe(run), runs.evaluated(run.path)
    word, cause = described["state"], described["cause"]
    rows = [
        ("task", _task(described)),
        ("recipe", _recipe(run)),
        ("steps", _steps(described)),
        ("evaluation", _evaluation(run, described, evaluations)),
        ("training", _training(described)),
        ("curve", _curve(run, evaluations)),
        *(("health", text) for text in _health(run)),
        ("checkpoint", _checkpoint(run, described)),
        ("resume", described["resume"]),
        ("folder", f"{runs.display_path(run.path)}{_age_text(described)}"),
        ("tags", " ".join(described["tags"])),
        ("note", described["note"]),
        ("next", _next_commands(run, described)),
    ]
    return [
        f"{_GLYPHS.get(word, '✖')} {word}  {described['id']}{f'   {cause}' if cause else ''}",
        *(f"  {name:<{_NAME_CELLS}}{value}" for name, value in rows if value),
    ]


def _task(described: dict[str, Any]) -> str:
    """Format environment, algorithm, lanes, device and seed of a run."""
    lanes = f"{described['lanes']:,} lanes" if described["lanes"] else ""
    device = f"on {described['device']}" if described["device"] else ""
    seed = f"seed {described['seed']}" if described["seed"] is not None else ""
    what = " by ".join(filter(None, (described["env"], described["algo"])))
    return ", ".join(filter(None, (what, f"{lanes} {device}".strip(), seed)))


def _recipe(run: Run) -> str:
    """Format the run's configuration file, or shipped recipe, and the keys that the command line changed."""
    request = run.document.get("request")
    request = request if isinstance(request, dict) else {}
    source, words = request.get("config"), []
    for key in ("overrides", "resume_overrides"):
        given = request.get(key)
        words += [word for word in given if isinstance(word, str)] if isinstance(given, list) else []
    changed = [word for word in words if word.partition("=")[0].strip() not in ("run.name", "env.name")]
    name = "defaults"
    if isinstance(source, str):
        path = Path(source)
        name = recipes.name_of(path) if path.parents[1:2] and path.parents[1].name == "configs" else source
    return f"{name} with {' '.join(changed)}" if changed else name


def _steps(described: dict[str, Any]) -> str:
    """Format the run's steps, duration, speed and remaining time; "" before the first record."""
    step, steps = described["step"], described["steps"]
    if step is None:
        return ""
    of = f" of {steps:,}" if steps and described["state"] != "finished" else ""
    share = f" ({100 * described['progress']:.0f} %)" if of and described["progress"] is not None else ""
    took = f"in {duration(described['took_s'])}" if described["took_s"] is not None else ""
    rate = f"{count(described['sps'])} a second" if described["sps"] is not None else ""
    left = f"ETA {duration(described['eta_s'])}" if described["eta_s"] is not None else ""
    return ", ".join(filter(None, (f"{step:,}{of}{share} {took}".rstrip(), rate, left)))


def _evaluation(run: Run, described: dict[str, Any], evaluations: Sequence[dict[str, Any]]) -> str:
    """Format the run's last evaluation with its interval, the best one, and the target; "" without evaluations."""
    last = evaluations[-1] if evaluations else None
    mean = last["mean"] if last is not None else described["eval_return"]
    if mean is None:
        return ""
    half = runs.number_of(last, "ci95") if last is not None else None
    episodes = runs.integer_of(last, "episodes") if last is not None else None
    where = f" at step {last['step']:,}" if last is not None else ""
    interval = f" ± {number(half)} (95 %, n = {episodes})" if half is not None and episodes is not None else ""
    best = described["best_return"]
    return (
        f"mean return {number(mean)}{interval}{where}{states.target_remark(run.document, mean)}"
        f"{f', best {number(best)}' if best is not None and best != mean else ''}"
    )


def _training(described: dict[str, Any]) -> str:
    """Format the newest mean return and length of training episodes from a run's description; "" without a return."""
    if described["return"] is None:
        return ""
    length = f", length {number(described['length'])}" if described["length"] is not None else ""
    return f"mean return {number(described['return'])}{length} of the last episodes"


def _health(run: Run) -> list[str]:
    """Return a sentence for each metric whose largest value, in the records of the run's metrics file, its thresholds
    object to: those that look at the run as a whole, such as contacts that a robot's model lost.
    """
    whole = {
        name: (spec, rule)
        for name, spec in runs.read_specs(run).items()
        for rule in spec.thresholds
        if rule.ever and rule.at_least is not None
    }
    highest = dict[str, float]()
    try:
        with Reader(run.metrics_path) as reader:
            for record in reader.since(0) if whole else ():
                for name, value in states.values_of(reader, record).items():
                    if name in whole and value is not None:
                        highest[name] = max(value, highest.get(name, value))
    except (OSError, BadFileError):
        return []
    return [
        safe(f"{spec.label} {number(highest[name])} {spec.unit}".rstrip() + f", at its highest: {rule.advice}", 400)
        for name, (spec, rule) in whole.items()
        if highest.get(name, 0.0) >= (rule.at_least or 0.0) and name in highest
    ]


def _curve(run: Run, evaluations: Sequence[dict[str, Any]]) -> str:
    """Draw the run's evaluations as a sparkline, or its training returns if there are few evaluations; "" if the output
    cannot encode it.
    """
    what, values = "evaluation", [evaluation["mean"] for evaluation in evaluations]
    if len(values) < _FEWEST:
        what, values = "training", _returns(run)
    try:
        _BARS.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeError:
        return ""
    if len(values) < _FEWEST:
        return ""
    width = min(_CELLS, len(values))
    cells = [values[len(values) * k // width : len(values) * (k + 1) // width] for k in range(width)]
    means = [sum(cell) / len(cell) for cell in cells]
    low, high = min(means), max(means)
    levels = [round((mean - low) / (high - low) * (len(_BARS) - 1)) if high > low else 0 for mean in means]
    return f"{''.join(_BARS[level] for level in levels)}  {what}, {number(values[0])} to {number(values[-1])}"


def _returns(run: Run) -> list[float]:
    """Return the training returns of the records in the run's metrics file; [] if it cannot be read."""
    try:
        with Reader(run.metrics_path) as reader:
            found = (states.values_of(reader, record).get("return") for record in reader.since(0))
            return [value for value in found if value is not None]
    except (OSError, BadFileError):
        return []


def _checkpoint(run: Run, described: dict[str, Any]) -> str:
    """Format the step of the run's last checkpoint and the work since then; "" before the first record."""
    step, unsaved_s = described["last_checkpoint_step"], described["unsaved_s"]
    if step is None and described["step"] is None:
        return ""
    live = described["state"] in states.LIVE
    kept = f"step {step:,}" if step is not None else "none yet" if live else "none"
    if unsaved_s is None:
        return kept
    return f"{kept}; {'a crash would lose' if live else 'lost at the end:'} {age(unsaved_s)} of work"


def _age_text(described: dict[str, Any]) -> str:
    """Format the age of the run; "" if unknown."""
    return f", made {age(described['age_s'])} ago" if described["age_s"] is not None else ""


def _next_commands(run: Run, described: dict[str, Any]) -> str:
    """Format the commands that make sense in the run's state."""
    short, word = run.short, described["state"]
    kept = described["last_checkpoint_step"] is not None or any(run.checkpoints_path.glob("step-*"))
    if word in states.LIVE or word == "remote":
        commands = [f"operant monitor {short}", f"operant stop {short}"]
    else:
        commands = [f"operant {'eval' if word == 'finished' else 'resume'} {short}"] if kept else []
        commands.append(f"operant {'monitor' if word == 'finished' else 'logs'} {short}")
    return "   ".join(map(safe, commands))
