"""Lines of the panels next to and below the charts. Standard library only. The functions are pure: a model and a size
in, lines out.
"""

from __future__ import annotations

from monitor.charts import (
    Line,
    Piece,
    Style,
    bars,
    cut,
    fit,
    flow,
    justified,
    length,
    of_cells,
    padded,
    width_of,
    wrapped,
)
from monitor.data.snapshot import Finding, Snapshot
from monitor.screen.labels import LEVELS, PENDING, label_of, state_sentence
from monitor.screen.model import Model
from operant.text import count


def health(model: Model, width: int, height: int) -> list[Line]:
    """Draw the health panel: findings, most severe first, with as much advice and explanation of problems as fits."""
    if not model.snapshot.health:
        return [(Piece("no records yet", "dim"),)]
    order = sorted(model.snapshot.health, key=lambda finding: ("bad", "warn", "ok").index(finding.level))
    lines = [(finding, finding_line(finding, width), _advice(finding, width)) for finding in order]
    spare = height - len(lines)
    output: list[Line] = []
    for finding, head, advice in lines:
        output.append(head)
        explanation = _explanation(finding, width) if finding.level != "ok" else []
        for more in (advice, explanation):
            if len(more) <= spare:
                output += more
                spare -= len(more)
    return output[:height]


def health_line(model: Model, width: int, height: int) -> list[Line]:
    """Draw the run's health as one line: as many problems as fit, most severe first, and the number of findings without
    a problem.
    """
    findings = model.snapshot.health
    if not findings:
        return [(Piece(" health  no records yet", "dim"),)]
    wrong = sorted((one for one in findings if one.level != "ok"), key=lambda one: ("bad", "warn").index(one.level))
    well = len(findings) - len(wrong)
    left = [Piece(" health  ", "dim")]
    right = [Piece(f"{well} of {len(findings)} ok · 4 for details ", "dim", action="app.navigate('page', 'time')")]
    if not wrong:
        glyph, style = LEVELS["ok"]
        left += [
            Piece(f"{glyph} ", style, bold=True),
            Piece(f"no problems{' until the end' if model.snapshot.ended else ''}", "text"),
        ]
    for finding in wrong:
        glyph, style = LEVELS[finding.level]
        more = [
            Piece(f"{glyph} ", style, bold=True),
            Piece(finding.title, "bright"),
            Piece(f" {finding.wanted}   " if finding.wanted else "   ", "dim"),
        ]
        if len(left) > 1 and length(left) + length(more) + length(right) > width:
            break
        left += more
    return [justified(left, right, width)]


def finding_line(finding: Finding, width: int) -> Line:
    """Draw one health finding as a line: level, value, and the expected range at the right if it fits."""
    glyph, style = PENDING if finding.pending else LEVELS[finding.level]
    left = [Piece(f"{glyph} ", style, bold=True), Piece(finding.title, "text" if finding.level == "ok" else "bright")]
    right = [Piece(f" {finding.wanted}", "dim")] if finding.wanted else []
    return justified(left, right, width) if length(left) + length(right) <= width else fit(left, width)


def _advice(finding: Finding, width: int) -> list[Line]:
    """Return the wrapped lines of a finding's advice; [] for one of level ok."""
    if finding.level == "ok" or not finding.advice:
        return []
    return [(Piece(text, "text"),) for text in wrapped(finding.advice, width, "  ", "  ")]


def _explanation(finding: Finding, width: int) -> list[Line]:
    """Return the wrapped lines of a finding's explanation; [] without one."""
    return (
        [(Piece(text, "dim"),) for text in wrapped(finding.explanation, width, "  ", "  ")]
        if finding.explanation
        else []
    )


def explained(model: Model, width: int, height: int) -> list[Line]:
    """Draw all health findings with advice and explanations if they fit in `height` lines, else as `health` does."""
    output: list[Line] = []
    for finding in model.snapshot.health:
        output.append(finding_line(finding, width))
        output += _advice(finding, width)
        output += [*_explanation(finding, width), ()]
    return output[:-1] if 0 < len(output) - 1 <= height else health(model, width, height)


def time(model: Model, width: int, height: int) -> list[Line]:
    """Draw the time panel: time per iteration by phase, as a stacked bar and a line for each phase."""
    phases = model.snapshot.phases
    if not phases:
        return [(Piece("no records yet", "dim"),)]
    return [of_cells(bars.phase_bar(phases, width)), *map(of_cells, bars.phase_legend(phases, width))]


def time_title(model: Model) -> str:
    """Return the title of the time panel, with the total time per iteration."""
    total = sum(phase.milliseconds for phase in model.snapshot.phases)
    return f"Time per iteration {bars.milliseconds(total)}" if total else "Time"


def machine(model: Model, width: int, height: int) -> list[Line]:
    """Draw the machine panel: figures of GPU, trainer's process and machine, or a sentence why there are none."""
    system = model.snapshot.system
    if system is None:
        where = (
            "no figures: the run is on another machine"
            if model.snapshot.state == "remote"
            else "no figures: the run has ended"
        )
        return [
            (Piece(text, "dim"),)
            for text in wrapped(
                where if (model.snapshot.ended or model.snapshot.state == "remote") else "reading ...", width
            )
        ]
    lines: list[Line] = []
    if system.gpu is not None:
        gpu = system.gpu
        lines.append(fit([Piece(cut(gpu.name, width), "bright")], width))
        lines.append(
            _pairs(
                [("util", _share(gpu.utilisation)), ("mem", _memory(gpu.memory_used_bytes, gpu.memory_total_bytes))],
                width,
            )
        )
        power = f"{gpu.watts:.0f} W" if gpu.watts is not None else "-"
        lines.append(
            _pairs([("power", power), ("temp", f"{gpu.celsius:.0f} °C" if gpu.celsius is not None else "-")], width)
        )
        if gpu.throttled:
            lines.append((Piece(cut(f"! clock reduced: {gpu.throttled}", width), "warn"),))
    elif system.gpu_absent:
        lines += [(Piece(text, "dim"),) for text in wrapped(system.gpu_absent, width)]
    lines.append(_pairs([("trainer", _share(system.cpu_share)), ("mem", _bytes(system.memory_bytes))], width))
    lines.append(_pairs([("machine", _share(system.machine_cpu)), ("mem", _share(system.machine_memory))], width))
    low = system.disk_free_bytes is not None and system.disk_free_bytes < 2 << 30
    lines.append(_pairs([("disk", f"{_bytes(system.disk_free_bytes)} free")], width, style="warn" if low else "text"))
    return lines


def _pairs(pairs: list[tuple[str, str]], width: int, style: str = "text") -> Line:
    """Draw (name, value) pairs side by side in a line of `width` cells."""
    half = width // len(pairs) if len(pairs) > 1 else width
    pieces: list[Piece] = []
    for index, (name, text) in enumerate(pairs):
        pieces += [
            Piece(padded(name, 8 if index == 0 else 5), "dim"),
            Piece(padded(text, max(1, half - (8 if index == 0 else 5))), style),
        ]
    return fit(pieces, width)


def _share(share: float | None) -> str:
    """Format a fraction as a percentage of fixed width; "-" for None."""
    return "-" if share is None else f"{100 * share:3.0f} %"


def _memory(used: int | None, total: int | None) -> str:
    """Format used and total bytes in gigabytes, such as "12.3/80 G"; "-" for None."""
    return "-" if used is None else f"{used / 1e9:.1f}/{total / 1e9:.0f} G" if total else f"{used / 1e9:.1f} G"


def _bytes(amount: int | None) -> str:
    """Format a number of bytes, such as "512 MB"; "-" for None."""
    return "-" if amount is None else f"{count(amount)}B"


def config(model: Model, width: int, height: int) -> list[Line]:
    """Draw the lines of config.toml on the configuration page, from the line to which the user has scrolled."""
    lines = model.snapshot.config.split("\n") if model.snapshot.config else []
    if not lines:
        return [(Piece("no config.toml yet", "dim"),)]
    first = min(model.view.scroll, max(0, len(lines) - height))
    return [_setting(line) for line in lines[first : first + height]]


def _setting(line: str) -> Line:
    """Colour a line of config.toml: section, comment, or key and value."""
    if line.startswith("["):
        return (Piece(line, "bright", bold=True),)
    if line.lstrip().startswith("#"):
        return (Piece(line, "dim"),)
    key, equals, rest = line.partition("=")
    return (Piece(key, "dim"), Piece(equals + rest, "text")) if equals else (Piece(line, "text"),)


def ending(model: Model, width: int, height: int) -> list[Line]:
    """Draw the lines about how the run ended: a sentence, next commands, results, and as much of the log's end as fits;
    [] while the run lives.
    """
    ending = model.snapshot.ending
    if ending is None:
        return []
    most = 2 if ending.traceback else 4
    lines: list[Line] = [
        (Piece(text, label_of(model.snapshot.state)[2], bold=True),) for text in wrapped(ending.sentence, width)[:most]
    ]
    first: list[list[Piece]] = [[Piece("next", "dim")]]
    lines += flow(first + [[Piece(text, "focus")] for text in ending.commands], width)
    lines += flow([[Piece(text, "text")] for text in ending.facts], width)
    free = height - len(lines) - 1
    if not ending.traceback or free < 1:
        return lines
    return [*lines, (), *((Piece(cut(text, width), "dim"),) for text in ending.traceback[-free:])]


def empty(model: Model, width: int, height: int) -> list[Line]:
    """Draw the lines shown in place of the charts if there are none, centered."""
    snapshot = model.snapshot
    if snapshot.series and model.view.filter:
        sentences = [f"no metric matches '{cut(model.view.filter, 40)}'", "esc clears the filter"]
    elif snapshot.ended:
        sentences = ["this run has no records", *(snapshot.ending.commands[:1] if snapshot.ending is not None else ())]
    elif snapshot.state == "unreadable":
        sentences = [state_sentence(snapshot), f"operant logs {snapshot.run.short}"]
    else:
        sentences = ["no record yet", state_sentence(snapshot)]
    lines = [text for sentence in sentences for text in wrapped(sentence, max(8, width - 4)) if text][:height]
    above: list[Line] = [()] * ((height - len(lines)) // 2)
    return above + [
        (Piece(" " * ((width - width_of(text)) // 2) + text, "dim" if index else "text"),)
        for index, text in enumerate(lines)
    ]


def agent_title(snapshot: Snapshot) -> list[tuple[str, Style]]:
    """Return the title of the agent's picture as (text, style): "Agent", then the caption and the training step of the
    shown frame.
    """
    pieces = [("Agent", Style("text"))]
    if snapshot.frame is not None:
        text = " · ".join(part for part in (snapshot.frame.caption, f"step {count(snapshot.frame.step)}") if part)
        pieces.append((f" {text}", Style("dim")))
    return pieces
