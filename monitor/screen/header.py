"""Lines above and below the charts: run, progress, key figures, message, keys; and the text of a small screen.

Standard library only. Pure: a model and a size in, lines out. Numbers have slots of fixed width, so that nothing moves
when they change.
"""

from __future__ import annotations

from collections.abc import Iterator

from monitor.charts import (
    Line,
    Piece,
    Style,
    bars,
    cut,
    figure_text,
    fit,
    flow,
    justified,
    length,
    of_cells,
    padded,
    width_of,
    wrapped,
)
from monitor.data.snapshot import Figure
from monitor.screen import collected
from monitor.screen.labels import LEVELS, label_of, remaining, state_sentence
from monitor.screen.layout import inside
from monitor.screen.model import Model
from monitor.screen.panels import finding_line
from monitor.screen.view import SMOOTHING, matching
from monitor.text_output import value
from operant.text import age, count, duration, number

_LEAST_BAR = 8


def header(model: Model, width: int, height: int) -> list[Line]:
    """Draw the first line of the screen: state and run at the left; at the right as many facts as fit, by
    importance.
    """
    snapshot = model.snapshot
    glyph, word, style = label_of(snapshot.state)
    left = [Piece(f" {glyph} {word}", style, bold=True), Piece("  ")]
    if model.outer:
        left.append(Piece(f"{cut(model.outer, 24)} › ", "dim", action="app.step_back"))
    left.append(Piece(snapshot.run.id, "bright", bold=True))
    if snapshot.collected is not None:
        left.append(Piece(f"  {snapshot.collected.kind} of {len(snapshot.collected.members)} runs", "dim"))
    facts = _facts(model)
    free = width - length(left) - 3
    while facts and sum(width_of(text) + 3 for _, text in facts) - 3 > free:
        facts.remove(min(facts))
    right = " · ".join(text for _, text in facts)
    return [justified(left, [Piece(f"{right} ", "dim")], width)]


def _facts(model: Model) -> list[tuple[int, str]]:
    """Return facts about the run for the header line as (importance, text), in display order."""
    run, progress = model.snapshot.run, model.snapshot.progress
    lanes = f" ×{run.lanes:,}" if run.lanes else ""
    facts = [
        (5, f"{run.env}{lanes}" if run.env else ""),
        (4, run.algo.upper() if run.algo else ""),
        (2, f"seed {run.seed}" if run.seed is not None else ""),
        (3, run.device or ""),
        (1, run.host if run.host and model.snapshot.state == "remote" else ""),
        (
            6,
            f"{'took' if model.snapshot.ended else 'up'} {duration(progress.up_s)}"
            if progress.up_s is not None
            else "",
        ),
        (7, "read only" if model.readonly and model.snapshot.collected is None else ""),
    ]
    return [(weight, text) for weight, text in facts if text]


def progress(model: Model, width: int, height: int) -> list[Line]:
    """Draw the progress line of the screen, one line whatever the height: a bar that fills the space next to the
    numbers.
    """
    now = model.snapshot.progress
    if now.step is None:
        return [(Piece(" " + "─" * max(0, width - 2), "border"),)]
    of = f" / {count(now.steps)}" if now.steps else ""
    several = model.snapshot.collected
    done = now.share if several is None or several.planned is None else several.share
    share = f"{100 * done:5.1f} %" if done is not None else ""
    parts = [Piece(share, "bright", bold=True), Piece(padded(f"   {count(now.step)}{of} steps", 25), "text")]
    if not model.snapshot.ended and (several is None or several.kind == "group"):
        parts.append(Piece(f"  ETA {padded(remaining(now.eta_s), 8)}", "text"))
        parts.append(Piece(padded(f" (done ≈ {now.done_at})" if now.done_at else "", 16), "dim"))
    while len(parts) > 1 and length(parts) + _LEAST_BAR + 3 > width:
        parts.pop()
    free = width - length(parts) - 3
    bar = (
        of_cells(bars.progress_bar(done, free, style=Style(label_of(model.snapshot.state)[2])))
        if free >= _LEAST_BAR and done is not None
        else ()
    )
    return [fit((Piece(" "), *bar, Piece(" "), *parts), width)]


def figures(model: Model, width: int, height: int) -> list[Line]:
    """Draw the key figures in slots of fixed width, as many as fit in `height` lines. Figures that charts and health
    also show come last.
    """
    if model.snapshot.collected is not None:
        return collected.figures(model, width)
    figures, progress = model.snapshot.figures, model.snapshot.progress
    first = next((position for position, figure in enumerate(figures, 1) if figure.kind == "rate"), 0)
    slots = [_slot(figure, detailed=position == 0) for position, figure in enumerate(figures[:first])]
    if progress.iterations is not None:
        rate = f" {number(progress.iterations_per_s)} it/s" if progress.iterations_per_s is not None else ""
        slots.append(
            [
                Piece("iteration ", "dim"),
                Piece(padded(f"{progress.iterations:,}", 7), "text"),
                Piece(padded(rate, 11), "dim"),
            ]
        )
    if progress.unsaved_s is not None:
        lost = "lost at the end " if model.snapshot.ended else "a crash would lose "
        slots.append([Piece(lost, "dim"), Piece(padded(age(progress.unsaved_s), 6), "text")])
    slots += [_slot(figure) for figure in figures[first:]]
    return [fit((Piece(" "), *line), width) for line in flow(slots, width - 2)[:height]]


def _slot(figure: Figure, *, detailed: bool = False) -> list[Piece]:
    """Return the text pieces of one key figure, padded to a fixed width; with `detailed` also its trend and
    best value.
    """
    text = figure_text(figure)
    pieces = [
        Piece(f"{figure.label} ", "dim"),
        Piece(f"{measured(figure):<{8 + (len(figure.unit) + 1 if figure.unit else 0)}}", "bright", bold=True),
    ]
    if detailed:
        pieces += [
            Piece(f" {text.trend or ' '}", LEVELS[text.level][1] if text.level else "dim"),
            Piece(padded(f" {text.best}", 13), "dim"),
        ]
    return pieces


def measured(figure: Figure) -> str:
    """Format a key figure's value with its unit; "-" without a value."""
    return value(figure.kind, figure.value) + (f" {figure.unit}" if figure.unit and figure.value is not None else "")


def message(model: Model, width: int, height: int) -> list[Line]:
    """Draw the line below the header: the message or view settings at the left, the names of the pages at the right."""
    tabs = _tabs(model)
    left, more = _status(model), " · ".join(_view_settings(model))
    free = width - length(tabs) - 1
    if more and (not left or length(left) + width_of(more) + 3 <= free):
        left = [*left, Piece(f" · {more}" if left else more, "dim")]
    if left and length(left) > free and width_of(left[0].text) > free // 2:
        tabs = []  # a problem is more important than the names of pages
    return [justified([Piece(" "), *left], tabs, width)]


def _status(model: Model) -> list[Piece]:
    """Return the message at the left of the message line, by priority: key's message, mode, notice, state; [] if there
    is none.
    """
    snapshot = model.snapshot
    if model.message:
        return [Piece(model.message, "warn" if model.alarm else "focus")]
    if model.mode_sentence:
        return [Piece(model.mode_sentence, "focus", bold=True)]
    if snapshot.notice:
        return [Piece(snapshot.notice, "focus" if snapshot.notice_level == "ok" else LEVELS[snapshot.notice_level][1])]
    if snapshot.collected is not None:
        return [Piece(snapshot.collected.line, "dim")] if snapshot.collected.line else []
    sentence = state_sentence(snapshot)
    if (model.plan.ending or model.plan.compact) and snapshot.ending is not None:
        hints = ["← → earlier steps"] if snapshot.progress.step is not None else []
        if snapshot.ending.traceback:
            hints.append(
                f"enter shows {'the whole traceback' if snapshot.ending.has_traceback else 'the end of the log'}"
            )
        return [Piece(" · ".join(hints), "dim")] if hints and model.plan.ending and not _view_settings(model) else []
    return [Piece(sentence, label_of(snapshot.state)[2])] if sentence else []


def _view_settings(model: Model) -> list[str]:
    """Return the texts of those view settings that differ from the default, such as "smoothing 0.9"."""
    view = model.view
    return [
        text
        for text, visible in (
            *_scroll_hints(model),
            (f"x: {({'wall': 'wall time', 'iteration': 'iterations'}).get(view.axis, 'steps')}", view.axis != "step"),
            (f"smoothing {SMOOTHING[view.smoothing]:g}", view.smoothing > 0),
            ("y axes toggled", view.flipped),
            (f"overlay: {cut(model.overlay_name, 24)}{_seeds(model)}", bool(model.overlay_name)),
            (f"zoom {2**view.zoom}×" + ("" if view.end is None else ", fixed"), view.zoom > 0),
            (f"filter '{cut(view.filter, 24)}' (esc clears)", bool(view.filter)),
        )
        if visible
    ]


def _seeds(model: Model) -> str:
    """Return the phrase ", mean and 95 % band of N seeds" for an overlaid group; "" without one."""
    return (
        f", mean and 95 % band of {model.overlay.seeds} seeds"
        if model.overlay is not None and model.overlay.seeds
        else ""
    )


def _scroll_hints(model: Model) -> Iterator[tuple[str, bool]]:
    """Yield, for a page that scrolls, a text with the visible part and the keys for the rest, and whether to
    show it.
    """
    looked = model.view
    if looked.page == "charts" and looked.maximised is None and model.names:
        first, shown, every = looked.first_chart, len(model.names), len(matching(model.snapshot.series, looked.filter))
        keys = " ".join(key for key, leads in (("pgup", first > 0), ("pgdn", first + shown < every)) if leads)
        yield f"{first + 1} to {first + shown} of {every} metrics · {keys}", bool(keys)
    if looked.page == "config" and model.snapshot.config:
        height, every = inside(model.size[0], model.plan.body)[1], model.snapshot.config.count("\n") + 1
        first = min(looked.scroll, max(0, every - height))
        yield f"lines {first + 1} to {first + height} of {every} · ↑ ↓", every > height


def _tabs(model: Model) -> list[Piece]:
    """Return the clickable names of the pages, the current one highlighted; only numbers for the others on a narrow
    screen.
    """
    pieces = []
    for index, page in enumerate(model.pages, 1):
        current = page == model.view.page
        text = f"{index} {page}" if model.plan.tabs or current else str(index)
        pieces.append(
            Piece(f" {text} ", "bright" if current else "dim", bold=current, action=f"app.navigate('page', '{page}')")
        )
    return pieces


def footer(model: Model, width: int, height: int) -> list[Line]:
    """Draw the last line of the screen: keys and their commands, as many as fit, clickable. The last one, help, always
    fits.
    """
    parts = [
        [Piece(f" {key} ", "focus", bold=True, action=f"app.{do}"), Piece(f"{word} ", "dim", action=f"app.{do}")]
        for key, word, do in model.footer
    ]
    free = width - (length(parts[-1]) if parts else 0)
    shown: list[Piece] = []
    for part in parts[:-1]:
        if length(shown) + length(part) <= free:
            shown += part
    return [fit([*shown, *(parts[-1] if parts else ())], width)]


def compact_lines(model: Model, width: int, height: int) -> list[Line]:
    """Draw progress, key figures and health as lines of text, for a terminal too small for charts (such as 40x10)."""
    if model.snapshot.collected is not None:
        return collected.compact_lines(model, width, height)
    snapshot = model.snapshot
    lines: list[Line] = []
    if snapshot.ending is not None:
        lines += [
            (Piece(f" {text}", label_of(snapshot.state)[2]),)
            for text in wrapped(snapshot.ending.sentence, width - 2)[:2]
        ]
        lines += [(Piece(" next ", "dim"), Piece(command, "focus")) for command in snapshot.ending.commands[:1]]
    progress = snapshot.progress
    if progress.step is not None:
        of = f" / {count(progress.steps)}" if progress.steps else ""
        share = f"{100 * progress.share:5.1f} %" if progress.share is not None else ""
        eta = f"  ETA {remaining(progress.eta_s)}" if progress.eta_s is not None else ""
        lines.append((Piece(f" {share} ", "bright"), Piece(f"{count(progress.step)}{of}", "text"), Piece(eta, "dim")))
    for figure in snapshot.figures:
        text = figure_text(figure)
        style = LEVELS[text.level][1] if text.level else "dim"
        best = f" best {value(figure.kind, figure.best)}" if figure.higher_better and figure.best is not None else ""
        visible = Piece(padded(value(figure.kind, figure.value), 9), "bright", bold=True)
        lines.append(
            (Piece(f" {padded(figure.label, 11)}", "dim"), visible, Piece(text.trend or " ", style), Piece(best, "dim"))
        )
    worst = [finding for finding in snapshot.health if finding.level != "ok"]
    for finding in sorted(worst, key=lambda one: one.level):
        lines.append(fit([Piece(" "), *finding_line(finding, width - 2)], width))
    if not lines:
        lines.append((Piece(f" {state_sentence(snapshot) or 'no record yet'}", "dim"),))
    return lines
