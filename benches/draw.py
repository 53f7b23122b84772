"""Cost of drawing: six charts on 160x48, as pure functions and as a Textual app in a pseudo-terminal. Linux.

    python -m benches.draw [--seconds 10] [--hz 4,10] [--cases growing,sliding,still] [--pure]

Cases. `growing`: the whole history of a run with 100 records per second (600,000 at the start), in a window that grows
in jumps, so that only the newest columns change; this is the monitor's default. `sliding`: the newest 3,000 records, so
that every column changes with every picture; the worst case. `still`: no new records. `plain`: growing, without the
diff renderer. CPU is the process's user and system time as a fraction of one core, queries of the series included.
"""

from __future__ import annotations

import argparse
import fcntl
import math
import os
import pty
import random
import select
import struct
import subprocess
import sys
import termios
import time
from typing import Any

import psutil

from monitor.charts.agent_picture import draw_picture
from monitor.charts.chart import ChartData, ChartMark, ChartState, Layout, draw_chart
from monitor.charts.palette import Palette
from monitor.charts.scale import window
from monitor.data.curve_table import Column, CurveTable
from monitor.data.snapshot import Frame

COLUMNS, ROWS = 160, 48
HISTORY, HZ = 600_000, 100
LABELS = ("return", "SPS", "entropy", "approx KL", "value loss", "policy loss")


class Run:
    """Six metrics of a synthetic run: noisy S-curve, noisy constant, decay, bursts, spikes, zero-mean noise."""

    def __init__(self) -> None:
        self.random = random.Random(1)
        self.records = 0
        self.table = CurveTable(Column(label, label) for label in LABELS)
        self.curves = list(self.table.curves.values())
        self.window: tuple[float, float] | None = None

    def advance(self, count: int) -> None:
        """Publish `count` records."""
        numbers = range(self.records + 1, self.records + count + 1)
        rows = [self.values(number, self.random.gauss) for number in numbers]
        columns = [list(column) for column in zip(*rows, strict=True)]
        self.table.extend(
            [16384.0 * n for n in numbers], [n / HZ for n in numbers], [float(n) for n in numbers], columns
        )
        self.records += count

    @staticmethod
    def values(number: int, gauss: Any) -> tuple[float, ...]:
        """Metrics of one record."""
        x = number / HISTORY
        return (
            500 / (1 + math.exp(-10 * (x - 0.4))) + gauss(0, 25),
            4.7e6 * (1 + gauss(0, 0.02)),
            0.69 * math.exp(-2 * x) + gauss(0, 0.01),
            abs(gauss(0.008, 0.004)),
            0.4 + 2 * math.exp(-4 * x) + abs(gauss(0, 0.2)) ** 2,
            gauss(-0.004, 0.003),
        )

    def data(self, index: int, columns: int, case: str) -> ChartData:
        """Data of the chart."""
        curve = self.curves[index]
        last = 16384.0 * self.records
        if case == "sliding":
            shown = (last - 3000 * 16384.0, last)
        else:
            self.window = shown = window(0.0, last, self.window)
        mean = curve.latest or 0.0
        marks = [ChartMark("checkpoint", k * 6e8 / shown[1]) for k in range(1, 16)] if case != "sliding" else ()
        points = curve.view("step", *shown, columns)
        return ChartData(
            curve.label,
            f"{mean:.4g}",
            "▲",
            "+1.2/min",
            "",
            "ok",
            points,
            (),
            marks,
            "0",
            f"{shown[1] / 1e6:.0f} M",
            colour=index,
        )


def pure() -> None:
    """Microseconds per chart, from points to cells."""
    width, height = 42, 14
    palette, layout = Palette(), Layout.of(width, height)
    print(f"one chart of {width}x{height}, microseconds a picture (median of 300): asking the series / drawing")
    for case in ("growing", "sliding", "still"):
        run = Run()
        run.advance(HISTORY // 10)
        memories = [ChartState() for _ in LABELS]
        asked, drawn = [], []
        for _ in range(300):
            if case != "still":
                run.advance(25)
            index = run.random.randrange(len(LABELS))
            start = time.perf_counter()
            data = run.data(index, 2 * layout.plot_width, case)
            middle = time.perf_counter()
            draw_chart(data, width, height, palette, memories[index])
            asked.append(middle - start)
            drawn.append(time.perf_counter() - middle)
        print(f"  {case:8s} {1e6 * sorted(asked)[150]:6.0f} / {1e6 * sorted(drawn)[150]:6.0f}")
    picture()


def picture() -> None:
    """Microseconds per picture of four lanes, each with a moving object."""
    side, width, height, palette = 40, 83, 12, Palette()
    spent = {}
    for mode in ("braille", "blocks"):
        times = []
        for number in range(200):
            lane = bytearray(bytes((9, 9, 9)) * side * side)
            for y in range(8, 30):
                place = 3 * (side * y + (number + y) % (side - 4))
                lane[place : place + 12] = bytes((230, 159, 0)) * 4
            frame = Frame(number, 0, 4, side, side, bytes(lane) * 4)
            start = time.perf_counter()
            draw_picture(frame, width, height, palette, mode)  # type: ignore[arg-type]
            times.append(time.perf_counter() - start)
        spent[mode] = 1e6 * sorted(times)[100]
    print(
        f"four lanes of {side}x{side} on {width}x{height}, microseconds a picture: "
        + ", ".join(f"{mode} {value:.0f}" for mode, value in spent.items())
    )


def app(case: str, hz: float) -> None:
    """Run the app inside the pseudo-terminal."""
    from textual.app import App, ComposeResult

    from monitor.charts.chart import Chart
    from monitor.screen.terminal import QuietDriver

    class Six(App[None]):
        CSS = "Screen { layout: grid; grid-size: 3; }"

        def __init__(self) -> None:
            super().__init__(driver_class=None if case == "plain" else QuietDriver)
            self.run_ = Run()
            self.run_.advance(HISTORY)

        def compose(self) -> ComposeResult:
            for _ in LABELS:
                yield Chart()

        def on_mount(self) -> None:
            self.set_interval(1 / hz, self.tick)

        def tick(self) -> None:
            if case != "still":
                self.run_.advance(round(HZ / hz))
            for index, chart in enumerate(self.query(Chart)):
                chart.show(self.run_.data(index, chart.plot_columns, case))

    Six().run()


def measure(case: str, hz: float, seconds: float) -> tuple[float, float]:
    """CPU fraction of one core, and bytes per second."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "TEXTUAL_ANIMATIONS": "none"}
    command = [sys.executable, "-m", "benches.draw", "--app", case, str(hz)]
    child = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    try:
        drain(master, 12.0, quiet_after=b"\x1b[?1049h", more=3.0)
        process = psutil.Process(child.pid)
        before = process.cpu_times()
        start = time.monotonic()
        count = drain(master, seconds)
        after = process.cpu_times()
        spent = after.user + after.system - before.user - before.system
        elapsed = time.monotonic() - start
        return spent / elapsed, count / elapsed
    finally:
        child.kill()
        child.wait()
        os.close(master)


def drain(master: int, seconds: float, quiet_after: bytes = b"", more: float = 0.0) -> int:
    """Read for `seconds`, or until `more` seconds after the first output; returns the number of bytes."""
    end, count = time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 0:
        if select.select([master], [], [], left)[0]:
            data = os.read(master, 1 << 16)
            count += len(data)
            if quiet_after and quiet_after in data:
                end, quiet_after = time.monotonic() + more, b""
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--hz", default="4,10")
    parser.add_argument("--cases", default="growing,plain,sliding,still")
    parser.add_argument("--pure", action="store_true", help="only the pure functions")
    parser.add_argument("--app", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.app:
        app(options.app[0], float(options.app[1]))
        return
    print(f"load before: {os.getloadavg()[0]:.2f}")
    pure()
    if options.pure:
        return
    print(f"six charts, {COLUMNS}x{ROWS}, {options.seconds:.0f} s each")
    for case in options.cases.split(","):
        for hz in map(float, options.hz.split(",")):
            share, rate = measure(case, hz, options.seconds)
            print(f"  {case:8s} {hz:4.0f} Hz   {100 * share:5.1f} % CPU   {rate / 1000:7.1f} kB/s", flush=True)


if __name__ == "__main__":
    main()
