"""Draw the picture of the architecture page: `python docs/diagram.py` writes docs/pages/pictures/architecture.svg."""

from __future__ import annotations

from html import escape
from pathlib import Path

OUT = Path(__file__).resolve().parent / "pages" / "pictures" / "architecture.svg"
WIDTH, HEIGHT = 980, 620
FONT = "font-family='Helvetica, Arial, sans-serif'"
INK, GREY = "#1c2833", "#5d6d7e"


def box(x: int, y: int, width: int, height: int, title: str, lines: tuple[str, ...] = (), *, fill: str) -> str:
    """Rounded rectangle with a bold title and lines of text."""
    parts = [
        f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='7' fill='{fill}' stroke='{GREY}'/>",
        f"<text x='{x + 12}' y='{y + 21}' font-size='14' font-weight='bold' fill='{INK}'>{escape(title)}</text>",
    ]
    parts += [
        f"<text x='{x + 12}' y='{y + 41 + 18 * k}' font-size='12.5' fill='{INK}'>{escape(line)}</text>"
        for k, line in enumerate(lines)
    ]
    return "".join(parts)


def arrow(*points: tuple[int, int], label: str = "", at: tuple[int, int] = (0, 0)) -> str:
    """Polyline with an arrow head and a label that starts at `at`."""
    path = " ".join(f"{x},{y}" for x, y in points)
    line = f"<polyline points='{path}' fill='none' stroke='{INK}' stroke-width='1.6' marker-end='url(#head)'/>"
    words = f"<text x='{at[0]}' y='{at[1]}' font-size='12' fill='{GREY}'>{escape(label)}</text>" if label else ""
    return line + words


def drawing() -> str:
    """SVG of processes, files and one iteration."""
    trainer, gpu, graph, files, reader = "#f4f6f7", "#e8f1fa", "#ffffff", "#fdf3e1", "#e9f5ec"
    parts = [
        # Trainer process: host loop, and the two graphs of an iteration on the device.
        box(15, 15, 950, 335, "Trainer process: python -m operant.training.worker runs/ID", fill=trainer),
        box(
            30,
            50,
            215,
            285,
            "Host (Python)",
            (
                "training/loop.py",
                "replays the graphs, never waits",
                "for the current iteration",
                "",
                "Between two iterations:",
                "· meters: publish a record",
                "· evaluation (its own world)",
                "· checkpoint",
                "· requests: stop, pause, save",
                "· live agent, if watched",
            ),
            fill=graph,
        ),
        box(290, 50, 660, 285, "GPU: one iteration of PPO (on a CPU the same functions, without graphs)", fill=gpu),
        box(
            305,
            85,
            300,
            165,
            "CUDA graph “collect”",
            (
                "random numbers of T steps",
                "for t in range(T):",
                "    act: policy → action (Triton)",
                "    step: N lanes (numba.cuda)",
                "bootstrap values",
            ),
            fill=graph,
        ),
        box(
            640,
            85,
            295,
            165,
            "CUDA graph “update”",
            (
                "rewards, GAE, advantages",
                "shuffle minibatches",
                "for each minibatch:",
                "    gradient → partial sums (Triton)",
                "    reduce → gradient → Adam",
                "normalizers, statistics",
            ),
            fill=graph,
        ),
        arrow((605, 165), (638, 165)),
        box(305, 270, 630, 52, "Sums of metrics and episode statistics, on the device", fill=graph),
        f"<text x='317' y='311' font-size='12.5' fill='{INK}'>"
        "copied to pinned memory without waiting, read one iteration later</text>",
        arrow((245, 120), (303, 120), label="replay", at=(252, 113)),
        arrow((303, 300), (247, 300), label="copy", at=(258, 293)),
        # Run folder.
        box(15, 410, 950, 92, "Run folder runs/ID", fill=files),
        *(
            box(x, 440, width, 50, title, (line,), fill=graph)
            for x, width, title, line in (
                (30, 200, "metrics.mm", "memory-mapped, fixed size"),
                (242, 138, "history/", "all records"),
                (392, 170, "checkpoints/", "safetensors, JSON"),
                (574, 160, "run.json, log.txt", "document, log"),
                (746, 204, "ctl/", "request files"),
            )
        ),
        arrow((200, 350), (200, 438), label="8-byte stores, no lock", at=(208, 385)),
        arrow((477, 350), (477, 438), label="thread, atomic rename", at=(485, 385)),
        arrow((848, 438), (848, 352), label="read between iterations", at=(692, 385)),
        # Readers.
        box(
            15,
            545,
            480,
            62,
            "operant monitor (own process)",
            ("feed thread → immutable snapshot → panels; imports no torch",),
            fill=reader,
        ),
        box(
            515,
            545,
            450,
            62,
            "operant stop, pause, show, wait, … (own processes)",
            ("read the same files, write requests (as the monitor does)",),
            fill=reader,
        ),
        arrow((200, 502), (200, 543), label="pread, checked by checksum", at=(208, 527)),
        arrow((848, 543), (848, 504), label="stop, pause, watch", at=(722, 527)),
    ]
    head = (
        "<defs><marker id='head' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' markerHeight='7' "
        f"orient='auto-start-reverse'><path d='M 0 0 L 10 5 L 0 10 z' fill='{INK}'/></marker></defs>"
    )
    background = f"<rect width='{WIDTH}' height='{HEIGHT}' fill='#ffffff'/>"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' xml:space='preserve' {FONT}>"
        f"{head}{background}{''.join(parts)}</svg>\n"
    )


if __name__ == "__main__":
    OUT.write_text(drawing(), encoding="utf-8")
