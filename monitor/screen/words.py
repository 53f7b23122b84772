"""What the panels say: snapshots into lines. Standard library only. Pure; knows neither widgets nor files nor clocks.

Numbers stand in slots of fixed width, so that nothing beside them moves when they change.
"""

from __future__ import annotations

from typing import Final

from monitor.charts import bars
from monitor.charts.figures import of_figure
from monitor.charts.line import Line, Piece, cut, fit, flow, length, of_cells, padded, spread, width_of, wrapped
from monitor.charts.palette import Style
from monitor.data.snapshot import Figure, Finding, Snapshot
from monitor.plain import value
from monitor.screen.model import Model
from monitor.screen.view import PAGES, SMOOTHING
from operant.runs.states import ENDED
from operant.text import age, count, duration, number

STATES: Final = {
    "starting": ("◌", "focus"),
    "running": ("●", "good"),
    "paused": ("‖", "warn"),
    "stopping": ("◐", "warn"),
    "stalled": ("◔", "warn"),
    "suspended": ("◔", "warn"),
    "finished": ("✔", "good"),
    "stopped": ("■", "bright"),
    "failed": ("✖", "bad"),
    "crashed": ("✖", "bad"),
    "diverged": ("✖", "bad"),
    "gpu_fault": ("✖", "bad"),
    "oom": ("✖", "bad"),
    "remote": ("⌁", "focus"),
    "unreadable": ("?", "bad"),
}
"""Glyph and style of every state; the word beside them says the same without either."""
_LEAST_BAR = 8
LEVELS: Final = {"ok": ("✔", "good"), "warn": ("!", "warn"), "bad": ("✖", "bad")}
_SENTENCES: Final = {
    "paused": "P goes on",
    "stopping": "finishing the iteration and saving a checkpoint",
    "stalled": "no iteration is coming through",
    "suspended": "no heartbeat",
    "remote": "another machine",
    "starting": "starting",
    "unreadable": "the metrics file cannot be read",
}


def label_of(state: str) -> tuple[str, str, str]:
    """Glyph, word in capitals, style."""
    glyph, style = STATES.get(state, ("?", "bad"))
    return glyph, state.upper().replace("_", " "), style


# ---------------------------------------------------------------------------------------------------------------------------------- the header


def header(model: Model, width: int, height: int) -> list[Line]:
    """Who and how, in one line: the state, the run; at the right the facts that fit, the most telling ones last to go."""
    snapshot = model.snapshot
    glyph, word, style = label_of(snapshot.state)
    left = [Piece(f" {glyph} {word}", style, bold=True), Piece(f"  {snapshot.run.id}", "bright", bold=True)]
    facts = _facts(model)
    room = width - length(left) - 3
    while facts and sum(width_of(text) + 3 for _, text in facts) - 3 > room:
        facts.remove(min(facts))
    right = " · ".join(text for _, text in facts)
    return [spread(left, [Piece(f"{right} ", "dim")], width)]


def _facts(model: Model) -> list[tuple[int, str]]:
    """(importance, text), in the order they stand in."""
    run, progress = model.snapshot.run, model.snapshot.progress
    lanes = f" ×{run.lanes:,}" if run.lanes else ""
    found = [
        (5, f"{run.env}{lanes}" if run.env else ""),
        (4, run.algo.upper() if run.algo else ""),
        (2, f"seed {run.seed}" if run.seed is not None else ""),
        (3, run.device or ""),
        (1, run.host if run.host and model.snapshot.state == "remote" else ""),
        (6, f"{'took' if model.snapshot.state in ENDED else 'up'} {duration(progress.up_s)}" if progress.up_s is not None else ""),
        (7, "read only" if model.readonly else ""),
    ]
    return [(weight, text) for weight, text in found if text]


def progress(model: Model, width: int, height: int) -> list[Line]:
    """How far the run is: a bar that takes what is left beside the numbers."""
    now = model.snapshot.progress
    if now.step is None:
        return [(Piece(" " + "─" * max(0, width - 2), "border"),)]
    of = f" / {count(now.steps)}" if now.steps else ""
    share = f"{100 * now.share:5.1f} %" if now.share is not None else ""
    parts = [Piece(share, "bright", bold=True), Piece(padded(f"   {count(now.step)}{of} steps", 25), "text")]
    if model.snapshot.state not in ENDED:
        parts.append(Piece(f"  ETA {padded(remaining(now.eta_s), 8)}", "text"))
        parts.append(Piece(padded(f" (done ≈ {now.done_at})" if now.done_at else "", 16), "dim"))
    while len(parts) > 1 and length(parts) + _LEAST_BAR + 3 > width:
        parts.pop()
    room = width - length(parts) - 3
    bar = of_cells(bars.progress_bar(now.share, room, style=Style(label_of(model.snapshot.state)[2]))) if room >= _LEAST_BAR and now.share is not None else ()
    return [fit((Piece(" "), *bar, Piece(" "), *parts), width)]


def remaining(seconds: float | None) -> str:
    """How long it still takes, in at most eight cells: 0:02:41, 5 d 3 h."""
    if seconds is None or not 360_000 <= seconds < 86_400_000:
        return duration(seconds)
    return f"{int(seconds // 86400)} d {int(seconds % 86400 // 3600)} h" if seconds < 8_640_000 else age(seconds)


def figures(model: Model, width: int, height: int) -> list[Line]:
    """The key figures, as many as fit in `height` lines, each in a slot of its own. Those that charts and health tell too come last."""
    figures, progress = model.snapshot.figures, model.snapshot.progress
    first = next((place for place, figure in enumerate(figures, 1) if figure.kind == "rate"), 0)
    slots = [_slot(figure, detailed=place == 0) for place, figure in enumerate(figures[:first])]
    if progress.iterations is not None:
        rate = f" @ {number(progress.iterations_per_s)}/s" if progress.iterations_per_s is not None else ""
        slots.append([Piece("update ", "dim"), Piece(padded(f"{progress.iterations:,}", 7), "text"), Piece(padded(rate, 11), "dim")])
    if progress.checkpoint_age_s is not None:
        slots.append([Piece("checkpoint ", "dim"), Piece(padded(f"{age(progress.checkpoint_age_s)} ago", 10), "text")])
    slots += [_slot(figure) for figure in figures[first:]]
    return [fit((Piece(" "), *line), width) for line in flow(slots, width - 2)[:height]]


def _slot(figure: Figure, *, detailed: bool = False) -> list[Piece]:
    said = of_figure(figure)
    pieces = [Piece(f"{figure.label} ", "dim"), Piece(f"{measured(figure):<{8 + (len(figure.unit) + 1 if figure.unit else 0)}}", "bright", bold=True)]
    if detailed:
        pieces += [Piece(f" {said.trend or ' '}", LEVELS[said.level][1] if said.level else "dim"), Piece(padded(f" {said.best}", 12), "dim")]
    return pieces


def measured(figure: Figure) -> str:
    """A figure's value; rates as counts."""
    return value(figure.kind, figure.value) + (f" {figure.unit}" if figure.unit and figure.value is not None else "")


def message(model: Model, width: int, height: int) -> list[Line]:
    """The line below the header: what there is to say now at the left, the pages at the right."""
    tabs = _tabs(model)
    left, more = _now(model), " · ".join(_chosen(model))
    room = width - length(tabs) - 1
    if more and (not left or length(left) + width_of(more) + 3 <= room):
        left = [*left, Piece(f" · {more}" if left else more, "dim")]
    if left and length(left) > room and width_of(left[0].text) > room // 2:
        tabs = []  # what is wrong matters more than where one is
    return [spread([Piece(" "), *left], tabs, width)]


def _now(model: Model) -> list[Piece]:
    snapshot = model.snapshot
    if model.message:
        return [Piece(model.message, "warn" if model.alarm else "focus")]
    if model.standing:
        return [Piece(model.standing, "focus", bold=True)]
    if snapshot.notice:
        return [Piece(snapshot.notice, "focus" if snapshot.notice_level == "ok" else LEVELS[snapshot.notice_level][1])]
    sentence = state_sentence(snapshot)
    if (model.plan.words or model.plan.numbers) and snapshot.ending is not None:
        hints = ["← → go through its time"] if snapshot.progress.step is not None else []
        hints += ["enter reads all its last words"] if snapshot.ending.traceback else []
        return [Piece(" · ".join(hints), "dim")] if hints and model.plan.words and not _chosen(model) else []
    return [Piece(sentence, label_of(snapshot.state)[2])] if sentence else []


def _chosen(model: Model) -> list[str]:
    """What differs from how everything is shown at first."""
    view = model.view
    return [
        text
        for text, told in (
            (f"x: {({'wall': 'wall time', 'iteration': 'updates'}).get(view.axis, 'steps')}", view.axis != "step"),
            (f"smoothing {SMOOTHING[view.smoothing]:g}", view.smoothing > 0),
            ("y axes flipped", view.flipped),
            (f"dotted: {cut(model.overlaid, 24)}", bool(model.overlaid)),
            (f"zoom {2**view.zoom}×" + ("" if view.end is None else ", held"), view.zoom > 0),
            (f"filter '{cut(view.filter, 24)}' (esc clears)", bool(view.filter)),
        )
        if told
    ]


def _tabs(model: Model) -> list[Piece]:
    pieces = []
    for index, page in enumerate(PAGES, 1):
        here = page == model.view.page
        text = f"{index} {page}" if model.plan.tabs or here else str(index)
        pieces.append(Piece(f" {text} ", "bright" if here else "dim", bold=here, action=f"app.look('page', '{page}')"))
    return pieces


def footer(model: Model, width: int, height: int) -> list[Line]:
    """Keys and what they do, as many as fit; each can be clicked. The last one, help, always fits."""
    parts = [[Piece(f" {key} ", "focus", bold=True, action=f"app.{do}"), Piece(f"{word} ", "dim", action=f"app.{do}")] for key, word, do in model.footer]
    room = width - (length(parts[-1]) if parts else 0)
    shown: list[Piece] = []
    for part in parts[:-1]:
        if length(shown) + length(part) <= room:
            shown += part
    return [fit([*shown, *(parts[-1] if parts else ())], width)]


def agent_title(snapshot: Snapshot) -> list[tuple[str, Style]]:
    """What stands above the agent's picture."""
    pieces = [("Agent", Style("text"))]
    if snapshot.frame is not None:
        told = " · ".join(part for part in (snapshot.frame.caption, f"step {count(snapshot.frame.step)}") if part)
        pieces.append((f" {told}", Style("dim")))
    return pieces


def state_sentence(snapshot: Snapshot) -> str:
    """What there is to say about a state; nothing while all is well."""
    word = snapshot.state
    if word == "running":
        return ""
    if word in ENDED:
        return snapshot.ending.sentence if snapshot.ending is not None else snapshot.cause or ""
    told = snapshot.cause or _SENTENCES.get(word, "")
    if word == "paused" and snapshot.cause:
        return f"{'asked ' if told.startswith('by ') else ''}{told} · P goes on"
    return told


# ----------------------------------------------------------------------------------------------------------------------------------- the panels


def health(model: Model, width: int, height: int) -> list[Line]:
    """Findings, the worst first, with advice where not all is well, as far as it fits."""
    if not model.snapshot.health:
        return [(Piece("nothing to tell yet", "dim"),)]
    order = sorted(model.snapshot.health, key=lambda finding: ("bad", "warn", "ok").index(finding.level))
    lines = [(finding, _finding(finding, width), _advice(finding, width)) for finding in order]
    spare = height - len(lines)
    made: list[Line] = []
    for finding, head, advice in lines:
        made.append(head)
        explanation = _explanation(finding, width) if finding.level != "ok" else []
        for more in (advice, explanation):
            if len(more) <= spare:
                made += more
                spare -= len(more)
    return made[:height]


def _finding(finding: Finding, width: int) -> Line:
    glyph, style = LEVELS[finding.level]
    left = [Piece(f"{glyph} ", style, bold=True), Piece(finding.title, "text" if finding.level == "ok" else "bright")]
    right = [Piece(f" {finding.wanted}", "dim")] if finding.wanted else []
    return spread(left, right, width) if length(left) + length(right) <= width else fit(left, width)


def _advice(finding: Finding, width: int) -> list[Line]:
    if finding.level == "ok" or not finding.advice:
        return []
    return [(Piece(text, "text"),) for text in wrapped(finding.advice, width, "  ", "  ")]


def _explanation(finding: Finding, width: int) -> list[Line]:
    return [(Piece(text, "dim"),) for text in wrapped(finding.explanation, width, "  ", "  ")] if finding.explanation else []


def explained(model: Model, width: int, height: int) -> list[Line]:
    """Findings with what they mean, all of them."""
    made: list[Line] = []
    for finding in model.snapshot.health:
        made.append(_finding(finding, width))
        made += _advice(finding, width)
        made += [*_explanation(finding, width), ()]
    return made or health(model, width, height)


def time(model: Model, width: int, height: int) -> list[Line]:
    """Where an iteration's time goes: one bar of all phases, and a line for each."""
    phases = model.snapshot.phases
    if not phases:
        return [(Piece("nothing to tell yet", "dim"),)]
    return [of_cells(bars.phase_bar(phases, width)), *map(of_cells, bars.phase_legend(phases, width))]


def time_title(model: Model) -> str:
    """What stands above the bar of phases."""
    total = sum(phase.milliseconds for phase in model.snapshot.phases)
    return f"Time per update {bars.milliseconds(total)}" if total else "Time"


def machine(model: Model, width: int, height: int) -> list[Line]:
    """GPU, the trainer's process, the machine: what can be seen from here."""
    system = model.snapshot.system
    if system is None:
        where = "on another machine: not to be seen from here" if model.snapshot.state == "remote" else "nothing to tell: the run has ended"
        return [(Piece(text, "dim"),) for text in wrapped(where if model.snapshot.state in ENDED | {"remote"} else "looking ...", width)]
    lines: list[Line] = []
    if system.gpu is not None:
        gpu = system.gpu
        lines.append(fit([Piece(cut(gpu.name, width), "bright")], width))
        lines.append(_pairs([("util", _share(gpu.utilisation)), ("mem", _memory(gpu.memory_used_bytes, gpu.memory_total_bytes))], width))
        power = f"{gpu.watts:.0f} W" if gpu.watts is not None else "-"
        lines.append(_pairs([("power", power), ("temp", f"{gpu.celsius:.0f} °C" if gpu.celsius is not None else "-")], width))
        if gpu.throttled:
            lines.append((Piece(cut(f"! clock held down: {gpu.throttled}", width), "warn"),))
    elif system.gpu_absent:
        lines += [(Piece(text, "dim"),) for text in wrapped(system.gpu_absent, width)]
    lines.append(_pairs([("trainer", _share(system.cpu_share)), ("mem", _bytes(system.memory_bytes))], width))
    lines.append(_pairs([("machine", _share(system.machine_cpu)), ("mem", _share(system.machine_memory))], width))
    low = system.disk_free_bytes is not None and system.disk_free_bytes < 2 << 30
    lines.append(_pairs([("disk", f"{_bytes(system.disk_free_bytes)} free")], width, style="warn" if low else "text"))
    return lines


def _pairs(pairs: list[tuple[str, str]], width: int, style: str = "text") -> Line:
    half = width // len(pairs) if len(pairs) > 1 else width
    pieces: list[Piece] = []
    for index, (name, told) in enumerate(pairs):
        pieces += [Piece(padded(name, 8 if index == 0 else 5), "dim"), Piece(padded(told, max(1, half - (8 if index == 0 else 5))), style)]
    return fit(pieces, width)


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:3.0f} %"


def _memory(used: int | None, total: int | None) -> str:
    return "-" if used is None else f"{used / 1e9:.1f}/{total / 1e9:.0f} G" if total else f"{used / 1e9:.1f} G"


def _bytes(amount: int | None) -> str:
    return "-" if amount is None else f"{count(amount)}B"


def config(model: Model, width: int, height: int) -> list[Line]:
    """config.toml, from the line the person has scrolled to."""
    lines = model.snapshot.config.split("\n") if model.snapshot.config else []
    if not lines:
        return [(Piece("no config.toml yet", "dim"),)]
    first = min(model.view.scroll, max(0, len(lines) - height))
    return [_setting(line) for line in lines[first : first + height]]


def _setting(line: str) -> Line:
    if line.startswith("["):
        return (Piece(line, "bright", bold=True),)
    if line.lstrip().startswith("#"):
        return (Piece(line, "dim"),)
    key, equals, rest = line.partition("=")
    return (Piece(key, "dim"), Piece(equals + rest, "text")) if equals else (Piece(line, "text"),)


def last_words(model: Model, width: int, height: int) -> list[Line]:
    """How a run ended: the sentence, what to type next, facts, and as much of the log's end as there is room for, its last lines."""
    ending = model.snapshot.ending
    if ending is None:
        return []
    most = 2 if ending.traceback else 4
    lines: list[Line] = [(Piece(text, label_of(model.snapshot.state)[2], bold=True),) for text in wrapped(ending.sentence, width)[:most]]
    first: list[list[Piece]] = [[Piece("next", "dim")]]
    lines += flow(first + [[Piece(text, "focus")] for text in ending.commands], width)
    lines += flow([[Piece(text, "text")] for text in ending.facts], width)
    room = height - len(lines) - 1
    if not ending.traceback or room < 1:
        return lines
    return [*lines, (), *((Piece(cut(text, width), "dim"),) for text in ending.traceback[-room:])]


def empty(model: Model, width: int, height: int) -> list[Line]:
    """In the place of charts, while there are none."""
    snapshot = model.snapshot
    if snapshot.series and model.view.filter:
        told = [f"no metric fits '{cut(model.view.filter, 40)}'", "esc clears the filter"]
    elif snapshot.state in ENDED:
        told = ["this run has no records", *(snapshot.ending.commands[:1] if snapshot.ending is not None else ())]
    elif snapshot.state == "unreadable":
        told = [state_sentence(snapshot), f"operant logs {snapshot.run.short}"]
    else:
        told = ["no record yet", state_sentence(snapshot)]
    lines = [text for told_one in told for text in wrapped(told_one, max(8, width - 4)) if text][:height]
    above: list[Line] = [()] * ((height - len(lines)) // 2)
    return above + [(Piece(" " * ((width - width_of(text)) // 2) + text, "dim" if index else "text"),) for index, text in enumerate(lines)]


# ------------------------------------------------------------------------------------------------------------------------------- number mode


def numbers(model: Model, width: int, height: int) -> list[Line]:
    """The run as a list of numbers, for a split of 40x10."""
    snapshot = model.snapshot
    lines: list[Line] = []
    if snapshot.ending is not None:
        lines += [(Piece(f" {text}", label_of(snapshot.state)[2]),) for text in wrapped(snapshot.ending.sentence, width - 2)[:2]]
        lines += [(Piece(" next ", "dim"), Piece(command, "focus")) for command in snapshot.ending.commands[:1]]
    progress = snapshot.progress
    if progress.step is not None:
        of = f" / {count(progress.steps)}" if progress.steps else ""
        share = f"{100 * progress.share:5.1f} %" if progress.share is not None else ""
        eta = f"  ETA {remaining(progress.eta_s)}" if progress.eta_s is not None else ""
        lines.append((Piece(f" {share} ", "bright"), Piece(f"{count(progress.step)}{of}", "text"), Piece(eta, "dim")))
    for figure in snapshot.figures:
        said = of_figure(figure)
        style = LEVELS[said.level][1] if said.level else "dim"
        best = f" best {value(figure.kind, figure.best)}" if figure.higher_better and figure.best is not None else ""
        told = Piece(padded(value(figure.kind, figure.value), 9), "bright", bold=True)
        lines.append((Piece(f" {padded(figure.label, 11)}", "dim"), told, Piece(said.trend or " ", style), Piece(best, "dim")))
    worst = [finding for finding in snapshot.health if finding.level != "ok"]
    for finding in sorted(worst, key=lambda one: one.level):
        lines.append(fit([Piece(" "), *_finding(finding, width - 2)], width))
    if not lines:
        lines.append((Piece(f" {state_sentence(snapshot) or 'no record yet'}", "dim"),))
    return lines
