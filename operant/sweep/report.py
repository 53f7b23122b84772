"""Report of a sweep: the best recipe as a TOML file with its evidence in comments, a table, and plots. Reads trials;
starts nothing. Imports Matplotlib when plots are drawn.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from operant import runs
from operant.sweep import study
from operant.text import duration, number

if TYPE_CHECKING:
    from operant.sweep.plan import Outline, Plan

# Okabe and Ito's palette, readable for colour-blind people
_COLOURS = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999"
_UNITS = {
    "score": "mean return of the last evaluation",
    "area": "mean return over the steps",
    "time_to_target": "seconds to the target",
}


def load_sweep(folder: Path) -> tuple[Outline, study.Trials]:
    """Read the outline and the trials of the sweep in a folder without importing code. Raises NotFoundError,
    ConfigError and BadFileError.
    """
    from operant.sweep import plan as planning

    outline = planning.outline(folder)
    return outline, study.read(outline)


def state(plan: Outline, trial: Any) -> str:
    """State of a trial in lower case, such as "complete" or "pruned"; "interrupted" for a running one that no process
    works on.
    """
    if trial.state.name != "RUNNING" or not study.is_gone(trial):
        return str(trial.state.name.lower())
    ids = study.claim(trial).get("runs") or ()
    return "running" if any(runs.has_trainer(plan.folder.parent / str(id_)) for id_ in ids) else "interrupted"


def counts(plan: Outline, trials: Sequence[Any]) -> dict[str, int]:
    """Count the trials of a sweep by state."""
    count = dict.fromkeys(("complete", "pruned", "fail", "running", "interrupted"), 0)
    for trial in trials:
        word = state(plan, trial)
        count[word] = count.get(word, 0) + 1
    return count


def repeats(trials: Sequence[Any]) -> dict[int, int]:
    """Find complete trials that repeat the values (and so the seeds) of an earlier one. Returns the earlier trial's
    number by the number of each repeated one.
    """
    first: dict[str, int] = {}
    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    numbers = [
        (trial.number, first.setdefault(json.dumps(trial.params, sort_keys=True), trial.number)) for trial in complete
    ]
    return {number: earlier for number, earlier in numbers if number != earlier}


def ranked(plan: Outline, trials: Sequence[Any]) -> list[Any]:
    """Sort the complete trials, best first, without those that repeat an earlier one."""
    repeated = repeats(trials)
    return sorted(
        (trial for trial in trials if trial.state.name == "COMPLETE" and trial.number not in repeated),
        key=lambda trial: trial.values[0],
        reverse=plan.maximize,
    )


def overrides_line(trial: Any, plan: Outline) -> str:
    """Format the values of a trial in one line, such as `learning_rate=0.001 gamma=0.99`."""
    values = plan.decoded(trial.params)
    return "  ".join(
        f"{key.partition('.')[2]}={f'{value:.3g}' if isinstance(value, float) else value}"
        for key, value in values.items()
    )


def document(plan: Outline, search: study.Trials) -> dict[str, Any]:
    """Summarise a sweep and its trials as a JSON-serialisable dict, which `--json` prints."""
    trials = search.trials()
    repeated = repeats(trials)
    rows = [
        {
            "number": trial.number,
            "state": state(plan, trial),
            "same_as": repeated.get(trial.number),
            "values": list(trial.values or ()),
            "params": plan.decoded(trial.params),
            "runs": study.claim(trial).get("runs"),
            **{key: study.result(trial).get(key) for key in ("steps", "seconds", "reason")},
            "per_seed": study.result(trial).get("values"),
        }
        for trial in trials
    ]
    best = [trial.number for trial in search.best()]
    return {
        "schema": 1,
        "name": plan.name,
        "path": str(plan.folder),
        "objective": plan.settings.objective,
        "pareto": plan.settings.pareto,
        **counts(plan, trials),
        "best": best,
        "importance": search.importances(),
        "trials": rows,
    }


def write_best(plan: Plan, search: study.Study, trusted: bool = False) -> Path | None:
    """Write best.toml: the recipe of the best trial (with two objectives: by the first), with the evidence in comments.
    Returns its path, or None if no trial is complete. `trusted` allows code that is not known to be this user's.
    """
    front = search.best()
    if not front:
        return None
    from operant.config import load  # torch

    best = (max if plan.maximize else min)(front, key=lambda trial: trial.values[0])
    chosen = plan.overrides(plan.decoded(best.params))
    config = replace(plan.request, overrides=tuple(chosen)).load(trusted)
    path = plan.folder / "best.toml"
    text = "\n".join([*_evidence_lines(plan, search, best, chosen), "", load.to_toml(config)])
    try:
        path.write_text(text, encoding="utf-8")
        runs.add_to_index(plan.folder, text.encode())
    except OSError as error:  # ENOSPC comes without the name of the file
        raise OSError(error.errno, error.strerror, str(path)) from None
    return path


def _evidence_lines(plan: Plan, search: study.Study, best: Any, chosen: list[str]) -> list[str]:
    """Compose the comment lines of best.toml above the recipe: the trials, scores and importances behind it. `chosen`
    are the overrides of the `best` trial.
    """
    trials, own = search.trials(), plan.settings
    repeated, complete = len(repeats(trials)), ranked(plan, trials)
    states, seeds = counts(plan, trials), [value for value in study.result(best).get("values", ()) if value is not None]
    deviation = (
        f" (standard deviation {statistics.stdev(seeds):.4g} over {len(seeds)} seeds)"
        if len(seeds) > 1
        else " (one seed)"
    )
    lines = [
        f"The best of {len(trials) - repeated} trials of the sweep {plan.name}, "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}: trial {best.number}",
        f"{_UNITS[own.objective]}: {best.values[0]:.6g}{deviation}; {duration(study.result(best).get('seconds'))} of "
        "training",
        f"trials: {states['complete']} complete, {states['pruned']} pruned, {states['fail']} failed; sampler "
        f"{own.sampler}, pruner {search.pruner}",
        *([f"{repeated} trials have the values of an earlier one: counted once"] if repeated else []),
        "the maximum of many noisy values is biased upwards: train other seeds before comparing (operant train "
        "--config best.toml --seeds 5)",
        "searched:",
        *(f"  {word}" for word in chosen),
        "next best:",
        *(
            f"  {trial.values[0]:.6g}  trial {trial.number}  {overrides_line(trial, plan)}"
            for trial in complete[:6]
            if trial.number != best.number
        ),
    ]
    if importance := search.importances():
        lines += ["importance (PED-ANOVA):", *(f"  {share:.2f}  {key}" for key, share in importance.items())]
    if own.pareto:
        lines += [
            "Pareto front (value, seconds):",
            *(f"  {trial.values[0]:.6g}, {trial.values[1]:.4g}  trial {trial.number}" for trial in search.best()),
        ]
    return [f"# {line}" for line in lines]


def plots(plan: Plan, search: study.Study) -> list[Path] | str:
    """Draw progress, importance and parallel coordinates of a sweep, with two objectives also the Pareto front. Returns
    the files, or a sentence that says why there are none.
    """
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return "no plots: pip install 'operant[plot]'"
    complete = [trial for trial in search.trials() if trial.state.name == "COMPLETE"]
    if len(complete) < 2:
        return "no plots: they need two complete trials"
    drawn = []
    figures = {"progress": _draw_progress, "importance": _draw_importance, "parallel": _draw_parallel} | (
        {"front": _draw_front} if plan.settings.pareto else {}
    )
    style: Any = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 9, "text.parse_math": False}
    with plt.rc_context(style):
        for name, draw in figures.items():
            figure, axes = plt.subplots(
                figsize=(max(6.0, 1.3 * len(plan.space)) if name == "parallel" else 6.0, 3.6), layout="constrained"
            )
            if draw(axes, plan, search, complete):
                drawn.append(plan.folder / f"{name}.png")
                figure.savefig(drawn[-1], dpi=150)
            plt.close(figure)
    return drawn


def _draw_progress(axes: Any, plan: Plan, search: study.Study, complete: list[Any]) -> bool:
    """Draw the value of each trial and the best so far, on the axes of a figure; `complete` are the complete trials.
    Returns True: it can always be drawn.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator

    best: list[float] = []
    for trial in complete:
        best.append((max if plan.maximize else min)([trial.values[0], *best[-1:]]))
    numbers = [trial.number for trial in complete]
    axes.plot(numbers, [trial.values[0] for trial in complete], "o", color=_COLOURS[7], ms=3, label="trial")
    axes.step(numbers, best, where="post", color=_COLOURS[0], label="best so far")
    axes.set(xlabel="trial", ylabel=_UNITS[plan.settings.objective], title=plan.name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if not plan.maximize:  # trials that missed the target are far above the others
        axes.set(yscale="log", ylabel="seconds to the target, × 10 where missed")
        axes.yaxis.set(major_formatter="{x:g}", minor_formatter="{x:g}", minor_locator=LogLocator(subs=(2, 5)))
    axes.legend(frameon=False)
    return True


def _draw_importance(axes: Any, plan: Plan, search: study.Study, complete: list[Any]) -> bool:
    """Draw the importance of each searched key as bars, on the axes of a figure. Returns whether anything was drawn."""
    shares = search.importances()
    if not shares or not any(shares.values()):
        return False
    keys = list(reversed(shares))
    axes.barh(keys, [shares[key] for key in keys], color=_COLOURS[0])
    axes.set(xlabel="importance (PED-ANOVA)", title=plan.name)
    return True


def _draw_front(axes: Any, plan: Plan, search: study.Study, complete: list[Any]) -> bool:
    """Draw the complete trials by training time and objective, with the Pareto front, on the axes of a figure. Returns
    True: it can always be drawn.
    """
    front = sorted(search.best(), key=lambda trial: trial.values[1])
    axes.plot(
        [trial.values[1] for trial in complete],
        [trial.values[0] for trial in complete],
        "o",
        color=_COLOURS[7],
        ms=3,
        label="trial",
    )
    axes.plot(
        [trial.values[1] for trial in front],
        [trial.values[0] for trial in front],
        "o-",
        color=_COLOURS[0],
        label="front",
    )
    axes.set(xlabel="seconds of training", ylabel=_UNITS[plan.settings.objective], title=plan.name)
    axes.legend(frameon=False)
    return True


def _draw_parallel(axes: Any, plan: Plan, search: study.Study, complete: list[Any]) -> bool:
    """Draw parallel coordinates on the axes of a figure: a line for each complete trial through its value of each key,
    coloured by the objective, the best on top. Returns True: they can always be drawn.
    """
    import matplotlib as mpl

    low, high = (pick(trial.values[0] for trial in complete) for pick in (min, max))
    colours = mpl.colormaps["viridis" if plan.maximize else "viridis_r"]
    for trial in sorted(complete, key=lambda trial: trial.values[0], reverse=not plan.maximize):
        height = (trial.values[0] - low) / (high - low) if high > low else 0.5
        heights = [dimension.height(trial.params.get(dimension.key)) for dimension in plan.space]
        axes.plot([*range(len(heights) + 1)], [*heights, height], color=colours(height), lw=0.8, alpha=0.8)
    for column, dimension in enumerate(plan.space):
        ends = (
            [str(dimension.choices[0]), str(dimension.choices[-1])]
            if dimension.choices
            else [f"{dimension.low:g}", f"{dimension.high:g}"]
        )
        for y, end in zip((0.0, 1.0), ends, strict=True):
            _draw_end_label(axes, column, y, end)
    for y, value in ((0.0, low), (1.0, high)):
        _draw_end_label(axes, len(plan.space), y, number(value))
    axes.vlines(range(len(plan.space) + 1), 0.0, 1.0, color="#BBBBBB", lw=0.6, zorder=0)
    axes.set_xticks(
        [*range(len(plan.space) + 1)],
        [*(dimension.key for dimension in plan.space), plan.settings.objective],
        rotation=20,
        ha="right",
    )
    axes.set(ylim=(-0.12, 1.12), yticks=[], title=plan.name)
    return True


def _draw_end_label(axes: Any, column: int, y: float, text: str) -> None:
    """Write `text` at an end (`y` 0 or 1) of the parallel coordinate number `column`, below or above the lines that
    meet there.
    """
    axes.text(column, y + (0.03 if y else -0.03), text, ha="center", va="bottom" if y else "top", fontsize=7)


def lines(plan: Outline, search: study.Trials, active: Sequence[Any], columns: int) -> list[str]:
    """Compose the table of a sweep for a terminal of `columns` columns: a line of totals, the trials that train
    (`active`), then the best ones; where none trains, also the last that were pruned or failed, with the reason.
    """
    trials = search.trials()
    states, repeated, complete = counts(plan, trials), repeats(trials), ranked(plan, trials)
    done = sum(states[word] for word in ("complete", "pruned", "fail"))
    of = f" of {plan.trials:,}" if plan.trials is not None else ""
    facts = [
        f"{done:,}{of} trials",
        *(f"{states[word]} {word}" for word in ("running", "pruned")),
        *(f"{states[word]} {name}" for word, name in (("fail", "failed"), ("interrupted",) * 2) if states[word]),
    ]
    shown = [f"{plan.name}   {'   '.join(facts)}"]
    if repeated:
        shown.append(f"{len(repeated)} with the values of an earlier trial: counted once")
    if states["interrupted"] and not states["running"]:
        shown.append(f"nothing works on it; continue: operant sweep --join {plan.place}")
    known = {trial.number: trial for trial in trials}
    for one in active:
        ids = [one.ids[index] for index in sorted(one.active)]
        described = [
            runs.describe(run) for run in (runs.load(plan.folder.parent / name) for name in ids) if run is not None
        ]
        progress = statistics.fmean([row["progress"] or 0.0 for row in described]) if described else 0.0
        scores = [row["eval_return"] for row in described if row["eval_return"] is not None]
        word = one.verdict or (described[0]["state"] if described else "waiting")
        params = overrides_line(known[one.number], plan) if one.number in known else ""
        shown.append(
            f"  {one.number:>5}  {word:<9} {100 * progress:3.0f} %  "
            f"{number(statistics.fmean(scores)) if scores else '-':>9}  {params}"
        )
    best = [(("best" if trial is complete[0] else "done"), number(trial.values[0]), trial) for trial in complete[:5]]
    shown += [
        f"  {trial.number:>5}  {word:<9}        {value:>9}  {overrides_line(trial, plan)}"
        for word, value, trial in best
    ]
    ended = [] if active else [trial for trial in trials if trial.state.name in ("PRUNED", "FAIL")][-5:]
    for trial in ended:
        word, reason = state(plan, trial), study.result(trial).get("reason") or "unknown"
        shown.append(
            f"  {trial.number:>5}  {'failed' if word == 'fail' else word:<9}        {'-':>9}  "
            f"{overrides_line(trial, plan)}   ({' '.join(reason.split())})"
        )
    return [line[: max(20, columns)] for line in shown]
