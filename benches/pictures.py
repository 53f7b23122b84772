"""Pictures of the monitor for the README: the screen of a run folder as PNG.

    python benches/pictures.py RUN_DIR OUT.png [--size 132x38] [--seconds 4] [--keys k,e,y]
    python benches/pictures.py RUN_DIR OUT.svg, elsewhere: python benches/pictures.py OUT.svg OUT.png

A live run is watched for some seconds first, so that the agent's picture is visible. The screen is the monitor's, drawn
without a terminal. Needs `rsvg-convert` (librsvg) and JetBrains Mono, a monospaced font with braille.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import re
import subprocess
import sys
from pathlib import Path

# `python benches/pictures.py` puts this folder first, where nothing may hide the package `monitor`.
sys.path = [place for place in sys.path if Path(place).resolve() != Path(__file__).resolve().parent]

from monitor.data.feed import LiveFeed  # noqa: E402
from monitor.screen.app import MonitorApp  # noqa: E402
from operant import runs  # noqa: E402

FONT = "JetBrains Mono"
_PIXELS = 1600  # of width


async def drawn(app: MonitorApp, size: tuple[int, int], seconds: float, keys: list[str]) -> str:
    """Screen as SVG after a delay and the given keys."""
    async with app.run_test(size=size) as pilot:
        await pilot.pause(seconds)
        for key in keys:
            await pilot.press(key)
        await pilot.pause(0.5)
        return app.export_screenshot(title="operant monitor")


def as_cells(svg: str) -> str:
    """Replace the web font by an installed one, and position every character, independent of the font's widths."""
    svg = re.sub(r"@font-face\s*{[^}]*}", "", svg).replace("Fira Code", FONT)

    def in_cells(match: re.Match[str]) -> str:
        before, x, between, length, rest, text = match.groups()
        characters = html.unescape(text)
        step = float(length) / len(characters)
        placed = (
            f'<tspan x="{float(x) + n * step:.2f}">{html.escape(c)}</tspan>'
            for n, c in enumerate(characters)
            if not c.isspace()
        )
        return f"<text{before}{between}{rest}>{''.join(placed)}</text>"

    return re.sub(r'<text([^>]*?) x="([\d.]+)"([^>]*?) textLength="([\d.]+)"([^>]*)>([^<]*)</text>', in_cells, svg)


def seen(arguments: argparse.Namespace) -> str:
    """Screen of the run as SVG."""
    run = runs.load(arguments.run.resolve())
    if run is None:
        raise SystemExit(f"{arguments.run} is no run")
    columns, lines = map(int, arguments.size.split("x"))
    feed = LiveFeed(run, readonly=False)
    try:
        return asyncio.run(
            drawn(
                MonitorApp(feed), (columns, lines), arguments.seconds, [key for key in arguments.keys.split(",") if key]
            )
        )
    finally:
        feed.close()


def main() -> None:
    """Draw one run."""
    parser = argparse.ArgumentParser(description="A picture of a run as the monitor shows it")
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", default="132x38")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--keys", default="")
    arguments = parser.parse_args()
    svg = arguments.run.read_text() if arguments.run.suffix == ".svg" else seen(arguments)
    if arguments.out.suffix == ".svg":
        arguments.out.write_text(svg)
        return
    subprocess.run(
        ["rsvg-convert", "--width", str(_PIXELS), "--output", str(arguments.out)],
        input=as_cells(svg).encode(),
        check=True,
    )


if __name__ == "__main__":
    main()
