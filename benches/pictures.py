"""Pictures of the monitor for the README and the documentation: the screen of a run, group or sweep as PNG, or a film
of it as GIF.

    python benches/pictures.py RUN_DIR OUT.png [--size 132x38] [--seconds 4] [--keys k,e,y]
    python benches/pictures.py RUN_DIR OUT.svg, elsewhere: python benches/pictures.py OUT.svg OUT.png
    python benches/pictures.py RUN_DIR OUT.gif --film "40@1 3 30@0.25"

A live run is watched for some seconds first, so that the agent's picture is visible. The screen is the monitor's, drawn
without a terminal. A film is a list of words: `40@1` takes 40 frames, one a second, any other word is a key to press;
frames are shown at `--shown` per second. Needs `rsvg-convert` (librsvg) and JetBrains Mono, a monospaced font with
braille; a GIF needs Pillow.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import io
import re
import subprocess
import sys
import time
from pathlib import Path

# `python benches/pictures.py` puts this folder first, where nothing may hide the package `monitor`.
sys.path = [place for place in sys.path if Path(place).resolve() != Path(__file__).resolve().parent]

from monitor.command import RunFolders  # noqa: E402
from monitor.screen.app import MonitorApp  # noqa: E402
from operant import runs  # noqa: E402

FONT = "JetBrains Mono"
_PIXELS, _GIF_PIXELS = 1600, 1000  # of width
_COLOURS = 64  # of a GIF


async def filmed(app: MonitorApp, size: tuple[int, int], seconds: float, words: list[str]) -> list[str]:
    """Screens as SVG, by the words of a film."""
    screens = []
    async with app.run_test(size=size) as pilot:
        await pilot.pause(seconds)
        for word in words:
            frames, at, every_s = word.partition("@")
            if not at:
                await pilot.press(word)
                await pilot.pause(0.5)
                continue
            for _ in range(int(frames)):
                began = time.monotonic()
                screens.append(app.export_screenshot(title="operant monitor"))
                await pilot.pause(max(0.01, float(every_s) - (time.monotonic() - began)))
    return screens


def rasterized(svg: str, width: int) -> bytes:
    """PNG of a screen."""
    words = ["rsvg-convert", "--width", str(width)]
    return subprocess.run(words, input=as_cells(svg).encode(), check=True, capture_output=True).stdout


def write_gif(screens: list[str], out: Path, width: int, per_second: float) -> None:
    """Write screens as one GIF with a common palette."""
    from PIL import Image

    frames = [Image.open(io.BytesIO(rasterized(svg, width))).convert("RGB") for svg in screens]
    sample = Image.new("RGB", (frames[0].width, 2 * frames[0].height))
    for k, frame in enumerate((frames[0], frames[-1])):
        sample.paste(frame, (0, k * frame.height))
    palette = sample.quantize(_COLOURS)
    first, *rest = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    first.save(out, save_all=True, append_images=rest, duration=round(1000 / per_second), loop=0, optimize=True)


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


def seen(arguments: argparse.Namespace) -> list[str]:
    """Screens of the run as SVG: one, or those of a film."""
    folder = arguments.run.resolve()
    columns, lines = map(int, arguments.size.split("x"))
    library = RunFolders(runs.Scope(folder.parent, everywhere=False), readonly=False)
    feed = library.open(str(folder))
    try:
        words = arguments.film.split() or [*filter(None, arguments.keys.split(",")), "1@0"]
        return asyncio.run(filmed(MonitorApp(feed, library), (columns, lines), arguments.seconds, words))
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
    parser.add_argument("--film", default="")
    parser.add_argument("--shown", type=float, default=6.0)
    arguments = parser.parse_args()
    screens = [arguments.run.read_text()] if arguments.run.suffix == ".svg" else seen(arguments)
    if arguments.out.suffix == ".svg":
        arguments.out.write_text(screens[-1])
    elif arguments.out.suffix == ".gif":
        write_gif(screens, arguments.out, _GIF_PIXELS, arguments.shown)
    else:
        arguments.out.write_bytes(rasterized(screens[-1], _PIXELS))


if __name__ == "__main__":
    main()
