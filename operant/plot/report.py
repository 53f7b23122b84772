"""Report of a comparison as one HTML file that opens anywhere: no script, no font, no address outside of the file.

Everything that comes from a run's folder is escaped text; a content security policy forbids scripts and connections.
"""

from __future__ import annotations

import base64
import html
import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from operant import runs
from operant.plot import comparison
from operant.plot.comparison import settings_table
from operant.plot.selection import Group
from operant.text import count, number, safe

_COLOURS: Final = 8
_DASHES: Final = ("", "7 4", "2 3", "8 3 2 3")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 640, 300, 58, 40, 12  # pixels of a chart and its margins
_TICKS: Final = 6  # maximum number of intervals between ticks
_MOST_PAIRS: Final = 20  # rows of the table of probabilities
_OWN_NAME: Final = re.compile(r"(?m)(^\[run\]\n(?:(?!\[|name = ).*\n)*)name = .*\n")
_STYLE: Final = """
:root { color-scheme: light dark; --ground: #fbfbf8; --text: #202226; --dim: #63666d; --rule: #d9d9d2;
  --c0: #0072b2; --c1: #b56a00; --c2: #00795a; --c3: #a8527f; --c4: #2f86b5; --c5: #c04f00; --c6: #8c7a00;
  --c7: #6b6b6b }
@media (prefers-color-scheme: dark) { :root { --ground: #101216; --text: #d8dadf; --dim: #9598a0; --rule: #33363d;
  --c0: #56b4e9; --c1: #e69f00; --c2: #1fbf92; --c3: #dd94bd; --c4: #8fd0f5; --c5: #f07a2b; --c6: #f0e442;
  --c7: #bbbbbb } }
body { background: var(--ground); color: var(--text); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 60rem; padding: 1.5rem 1rem 4rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
.wide { overflow-x: auto } .wide + .wide { margin-top: 1.2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
.wide :is(th, td) { white-space: nowrap }
th, td { border-bottom: 1px solid var(--rule); padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top }
th { color: var(--dim); font-weight: 500 } td.n, th.n { text-align: right }
svg { display: block; height: auto; max-width: 100% } svg text { fill: var(--dim); font-size: 12px }
@media (max-width: 40rem) { svg text { font-size: 17px } }
.grid { stroke: var(--rule) } figure { margin: 1rem 0 } figcaption, .note { color: var(--dim); font-size: .875rem }
code, pre { font: .875rem/1.5 ui-monospace, monospace } pre {
  background: color-mix(in srgb, var(--text) 6%, transparent);
  overflow-x: auto; padding: .6rem .8rem } .films { display: flex; flex-wrap: wrap; gap: 1rem }
.films img { image-rendering: pixelated; max-width: 100% } .key { display: inline-block; margin-right: 1.2rem }
.key svg { display: inline-block; vertical-align: middle; margin-right: .4rem } summary { cursor: pointer }
"""


class Film(NamedTuple):
    """Film of a group's policy: the group's label and the bytes of a GIF."""

    label: str
    gif: bytes


def page(
    groups: Sequence[Group],
    document: Mapping[str, Any],
    bands: Mapping[str, Sequence[tuple[str, Any]]],
    *,
    metrics: Mapping[str, str],
    axis: str,
    command: str,
    films: Sequence[Film] = (),
) -> str:
    """Compose the report of `groups` as an HTML page. `document`: result of `comparison.compare`; `bands`: curves by
    environment, of the metric in `metrics`; `command`: the command that makes this report again.
    """
    environments = ", ".join(bands)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">",
        f"<title>Operant report: {_text(environments)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_text(environments)}: {len(groups)} group{'s' * (len(groups) > 1)}, "
        f"{sum(len(group.entries) for group in groups)} runs</h1>",
        "<h2>Scores</h2>",
        _scores(document),
        "<h2>Learning curves</h2>",
        *(_chart(name, lines, metrics[name], axis) for name, lines in bands.items()),
        '<p class="note">Line: mean over seeds until the first of them ended; band: 95 % bootstrap interval; thin: '
        "single seeds after that.</p>",
        *(["<h2>Films</h2>", _films(films)] if films else []),
        "<h2>Settings that differ</h2>",
        _differences(document),
        "<h2>Runs, machines and versions</h2>",
        _runs(groups),
        "<h2>Repeat it</h2>",
        *map(_repeat, groups),
        f"<p>This report: <code>{_text(command)}</code></p>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _text(value: object) -> str:
    """Return a value as safe HTML text: control characters removed, markup escaped."""
    return html.escape(safe(value, 2000))


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]], numbers: Sequence[int] = ()) -> str:
    """Return an HTML table; the columns with an index in `numbers` are right-aligned."""

    def cells(tag: str, values: Sequence[object]) -> str:
        return "".join(
            f"<{tag}{' class=n' if index in numbers else ''}>{_text(value)}</{tag}>"
            for index, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{cells("th", heads)}</tr></thead><tbody>{body}</tbody></table></div>'


def _interval(estimate: Mapping[str, Any]) -> str:
    """Return the 95 % interval of an estimate as text; "-" without one."""
    return "-" if estimate["low"] is None else f"{number(estimate['low'])} to {number(estimate['high'])}"


def _scores(document: Mapping[str, Any]) -> str:
    """Return the table of scores with intervals, and the probabilities of improvement."""
    rows = [
        (
            row["group"],
            row["env"],
            len(row["runs"]),
            number(row["iqm"]["value"]),
            _interval(row["iqm"]),
            number(row["mean"]["value"]),
            _interval(row["mean"]),
            count(row["steps"]),
            f"{row['seconds']:.1f}",
        )
        for row in document["groups"]
    ]
    heads = ("group", "environment", "runs", "IQM", "95 %", "mean", "95 %", "steps", "seconds")
    parts = [
        _table(heads, rows, (2, 3, 5, 7, 8)),
        '<p class="note">Score: mean return of the last evaluation. IQM: interquartile mean. 95 %: stratified '
        "bootstrap (Agarwal et al. 2021); a single run has no interval.</p>",
    ]
    for heading, improvement in (
        ("probability that a run scores higher", document["improvement"]),
        ("over all environments", document.get("overall_improvement", [])),
    ):
        pairs = comparison.improvement_rows(improvement)
        if pairs:
            parts.append(_table((heading, *comparison.IMPROVEMENT_HEADS[1:]), pairs[:_MOST_PAIRS], (1, 3)))
            notes = ". ".join(note[:1].upper() + note[1:] for note in comparison.improvement_notes(improvement))
            parts.append(f'<p class="note">{html.escape(notes)}.</p>')
        if len(pairs) > _MOST_PAIRS:
            parts.append(
                f'<p class="note">{len(pairs) - _MOST_PAIRS} more pairs are not shown: <code>operant compare --json'
                "</code> prints all of them.</p>"
            )
    return "\n".join(parts)


def ticks(low: float, high: float) -> list[float]:
    """Return the multiples of a round number (1, 2 or 5 times a power of ten) from `low` to `high`, two to seven of
    them. Raises ValueError unless low < high.
    """
    if not low < high:
        raise ValueError(f"low is {low} and high is {high}; low must be less")
    least = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def _chart(environment: str, lines: Sequence[tuple[str, Any]], metric: str, axis: str) -> str:
    """Return the curves of one environment as a figure with a drawing. `lines`: (label, band)."""
    finite = [
        np.asarray(values)
        for _, band in lines
        for values in (band.mean, band.low, band.high, *(tail[1] for tail in band.tails))
        if values is not None
    ]
    low, high = float(min(map(np.min, finite))), float(max(map(np.max, finite)))
    if high <= low:
        low, high = low - 0.5, high + 0.5
    last = max(float(xs[-1]) for _, band in lines for xs in (band.x, *(tail[0] for tail in band.tails))) or 1.0
    wide, tall = _WIDTH - _LEFT - 12, _HEIGHT - _BOTTOM - _TOP

    def place(x: Any, y: Any) -> list[str]:
        across, down = _LEFT + np.asarray(x) / last * wide, _TOP + (high - np.asarray(y)) / (high - low) * tall
        return [f"{one:.1f},{other:.1f}" for one, other in zip(across, down, strict=True)]

    marks = []
    for y in ticks(low, high):
        (down,) = (point.split(",")[1] for point in place([0.0], [y]))
        marks.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 12}" y1="{down}" y2="{down}"/>'
            f'<text x="{_LEFT - 8}" y="{down}" dy="4" text-anchor="end">{_text(_tick_text(y))}</text>'
        )
    for x in ticks(0.0, last):
        (across,) = (point.split(",")[0] for point in place([x], [low]))
        words = count(x) if axis == "steps" else _tick_text(x)
        marks.append(f'<text x="{across}" y="{_HEIGHT - 20}" text-anchor="middle">{_text(words)}</text>')
    keys = []
    for k, (label, band) in enumerate(lines):
        colour, dash = f"var(--c{k % _COLOURS})", _DASHES[(k // 2 + k // _COLOURS) % len(_DASHES)]
        style = f'fill="none" stroke="{colour}" stroke-dasharray="{dash}"'
        if band.low is not None:
            edge = " ".join([*place(band.x, band.high), *reversed(place(band.x, band.low))])
            marks.append(f'<polygon points="{edge}" fill="{colour}" fill-opacity="0.18"/>')
        marks.append(f'<polyline points="{" ".join(place(band.x, band.mean))}" {style} stroke-width="2"/>')
        marks += [f'<polyline points="{" ".join(place(*tail))}" {style} stroke-width="0.8"/>' for tail in band.tails]
        keys.append(
            f'<span class="key"><svg width="28" height="8"><line x1="0" x2="28" y1="4" y2="4" {style} '
            f'stroke-width="2"/></svg>{_text(label)}</span>'
        )
    title = f"{environment}: {metric} over {axis}"
    return (
        f'<figure><div>{"".join(keys)}</div><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{_text(title)}">{"".join(marks)}<text x="{_WIDTH - 12}" y="{_HEIGHT - 4}" text-anchor="end">'
        f"{_text(axis)}</text></svg><figcaption>{_text(title)}</figcaption></figure>"
    )


def _tick_text(value: float) -> str:
    """Format a tick: 0.25, -40, 150 k."""
    return count(value) if abs(value) >= 1e4 else f"{value:g}"


def _films(films: Sequence[Film]) -> str:
    """Return the films, each with the label of its group."""
    shown = (
        f'<figure><img alt="{_text(film.label)}" src="data:image/gif;base64,{base64.b64encode(film.gif).decode()}">'
        f"<figcaption>{_text(film.label)}</figcaption></figure>"
        for film in films
    )
    return f'<div class="films">{"".join(shown)}</div>'


def _differences(document: Mapping[str, Any]) -> str:
    """Return the table of configuration keys in which the groups differ."""
    if not document["differences"]:
        several = len(document["groups"]) > 1
        return f"<p>{'None: the groups have the same configuration' if several else 'There is one group'}.</p>"
    return _table(*settings_table(document))


def _runs(groups: Sequence[Group]) -> str:
    """Return the table of all runs, and that of the machines and versions that trained them."""
    rows: list[tuple[object, ...]] = []
    machines: Counter[tuple[str, ...]] = Counter()
    for label, entry in ((group.label, entry) for group in groups for entry in group.entries):
        document = entry.run.document
        seed, score = "-" if entry.seed is None else entry.seed, number(entry.score)
        steps, seconds = count(float(entry.columns.step[-1])), f"{float(entry.columns.seconds[-1]):.1f}"
        ranks = runs.integer_of(document, "ranks") or 1
        device = runs.text_of(document, "device_name") or runs.text_of(document, "device") or "-"
        rows.append((label, entry.run.id, seed, score, steps, seconds))
        names = ("host", "processor", "version", "python", "torch", "numba")
        host, processor, *versions = (runs.text_of(document, name) or "-" for name in names)
        machines[(host, f"{ranks} x {device}" if ranks > 1 else device, processor, *versions)] += 1
    made_by = [(*machine, times) for machine, times in machines.items()]
    heads = ("host", "device", "processor", "Operant", "Python", "PyTorch", "numba", "runs")
    return _table(("group", "run", "seed", "score", "steps", "seconds"), rows, (2, 3, 4, 5)) + _table(
        heads, made_by, (7,)
    )


def _repeat(group: Group) -> str:
    """Return the configuration of a group, and the commands that train it again with the same seeds."""
    seeds = sorted({entry.seed for entry in group.entries if isinstance(entry.seed, int)})
    # Stretches of consecutive seeds: s, s + 1, ... have equal differences to 0, 1, ...
    stretches = [
        [seed for _, seed in stretch]
        for _, stretch in itertools.groupby(enumerate(seeds), lambda pair: pair[1] - pair[0])
    ]
    start = "operant train --config config.toml"
    commands = [f"{start} --seed {own[0]}{f' --seeds {len(own)}' if len(own) > 1 else ''}" for own in stretches] or [
        start
    ]
    first = group.entries[0].run
    text = first.config_path.read_text(encoding="utf-8", errors="replace") if first.config_path.is_file() else ""
    shown = html.escape(safe(_OWN_NAME.sub(r"\1", text), 20_000, lines=True))  # the name of the run is taken
    return (
        f"<p>{_text(group.label)}: save its configuration as config.toml, then</p>"
        f"<pre>{html.escape(chr(10).join(commands))}</pre>"
        f"<details><summary>config.toml</summary><pre>{shown}</pre></details>"
    )
