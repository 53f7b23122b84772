"""Strings that mean harm, the runs that carry them wherever a run can carry text, and what a terminal may be sent all
the same.

    python hostile.py FOLDER      a living trainer whose every word is hostile, and so is its answer to every request;
    until it is killed

Standard library and Operant's standard-library parts only.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import sys
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from operant import runs
from operant.runs.history import History
from operant.runs.metrics import FLAG_EVAL, Metric, Writer, layout

# ----------------------------------------------------------------------------------------------------------------------
# the corpus
# Bytes that are no UTF-8 are written as Python's surrogate escapes, \udc80 to \udcff; `raw` makes bytes of them again.

_ESC, _BEL, _ST = "\x1b", "\x07", "\x1b\\"

_CSI = [
    "2J",
    "3J",
    "H",
    "1;1H",
    "999;999H",
    "?1049h",
    "?1049l",
    "?25l",
    "?1000h",
    "?1003h",
    "?2004l",
    "?7l",
    "?5h",
    "31m",
    "0m",
    "8m",
    "7m",
    "38;2;255;0;0m",
    "38:2::255:0:0m",
    "48;5;196m",
    "1;31;5m",
    "6n",
    "c",
    ">c",
    "5n",
    "21t",
    "14t",
    "8;1;1t",
    "9;1t",
    "2;5i",
    "5i",
    "4i",
    "1;2r",
    "!p",
    '61"p',
    "999A",
    "999B",
    "999C",
    "999D",
    "10S",
    "10T",
    "5L",
    "5M",
    "100X",
    "100P",
    "100@",
    "20h",
    "4h",
    "12l",
    "s",
    "u",
    "?1u",
    ">1u",
    "<u",
    "0 q",
    "?6c",
    "3g",
    '0;0;"\x02m',
    "",
]
_OSC = [
    "0;owned",
    "1;owned",
    "2;owned",
    "4;1;rgb:00/00/00",
    "7;file:///etc",
    "8;;file:///etc/passwd",
    "9;notify",
    "10;?",
    "11;?",
    "12;red",
    "50;font",
    "52;c;cm0gLXJmIC8K",
    "52;c;?",
    "52;p;cm0gLXJmIC8K",
    "104",
    "133;A",
    "633;E;rm",
    "777;notify;a;b",
    "1337;File=inline=1:AAAA",
    "1337;ClearScrollback",
    "1337;CopyToClipboard=x",
    "5522;x",
    "L;icon",
    "l;title",
    "",
]
_STRINGS = [
    f"{_ESC}{opening}{body}{_ST}"
    for opening in "PX^_"
    for body in ("", "q#0;2;0;0;0~-", "+q544e", "Gf=24;AAAA", "1000p", "$qm", "tmux;\x1b\x1b]0;x\x07")
]
_SHORT = [f"{_ESC}{letter}" for letter in "c7858=>DEHMNOZ6n|}~"] + [
    f"{_ESC}{more}" for more in ("#8", "(0", ")0", "%G", "%@", " F", "[", "]", "P", "\\", "")
]
_C1 = [
    *map(chr, range(0x80, 0xA0)),
    "\x9b31m",
    "\x9d0;owned\x9c",
    "\x902q~\x9c",
    "\udc9b2J",
    "\udc9d0;owned\udc9c",
    "\udc90q\udc9c",
    "\x9f\x98\x9e\x9c",
]
_C0 = [
    *map(chr, range(0x20)),
    "\x7f",
    "a\rb",
    "a\r\nb",
    "one\ntwo",
    "a\tb\tc",
    "abc\b\b\bxyz",
    "\x0e\x71\x0f",
    "a\x00b",
    "\x07" * 40,
    "a\x0bb\x0cc",
    "\x05",
    "\x11\x13",
]
_MARKUP = [
    "[/foo]",
    "[@click=app.quit]x",
    "[@click='app.detach']x[/]",
    "[@click=app.bell()]x[/]",
    "[link=file:///]x[/link]",
    "[link=https://x.y]z",
    "[red]",
    "[/]",
    "[/red]",
    "[bold red on blue]",
    "[on red]x",
    "[$primary]x",
    "[!]",
    "[[]]",
    "[",
    "]",
    "\\[red]",
    "[red",
    "[b][i][/b][/i]",
    "[blink]x[/blink]",
    "[@]",
    "[=]",
    "[#ff0000]",
    "[not bold]",
    "[:smile:]",
    ":skull:",
    ":warning:",
    "[@click=]",
    "[auto 50%]",
    "[link='\x1b]0;x\x07']x",
    "[link=\x1b[31m]x",
    "$[x]",
    "[1;31m]",
]
_BIDI = [f"a{control}b" for control in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"] + [
    "\u202egpj.exe",
    "\u2067\u202e" * 50,
    "אבג 123",
    "العربية ١٢٣",
]
_HIDDEN = [
    f"a{hidden}b"
    for hidden in "\u200b\u200c\u200d\u2060\u2061\u2062\u2063\u2064\ufeff\u00ad\u034f\u115f\u1160\u17b4\u17b5"
    "\u180b\u180e\u3164\uffa0\ufe00\ufe0f"
    "\u2028\u2029\u206a\u206f\ufff9\ufffa\ufffb\U000e0001\U000e0041\U000e007f\U000e0100\U000e01ef"
    "\U0001d173\U0001bca0\ufffe\uffff\ue000\U0010fffd\U0010ffff"
]
_WIDE = [
    "訓練",
    "ｆｕｌｌ",
    "한국어",
    "ᄒ\u1161\u11ab",
    "日本語" * 100,
    "👨‍👩‍👧‍👦",
    "👍🏽",
    "🏳️‍🌈",
    "🇩🇪🇫🇷",
    "1️⃣",
    "🤖" * 60,
    "a🤖" * 40,
    "☰䷀",
    "ﷺ" * 9,
    "𒐫",
    "\u3000x\u3000",
    "e\u0301",
    "\u0301e",
    "\u0301",
    "नमस्ते",
    "กำลัง",
    "z" + "\u0335\u0322\u0489" * 60,
    "".join(c + "\u030d\u0316\u0488" * 8 for c in "zalgo"),
    "a\u20dd\u20e3\u20e0" * 20,
]
_BAD_UTF8 = [
    "\udcff\udcfe",
    "\udcc3",
    "\udce2\udc82",
    "\udcc0\udcaf",
    "\udced\udca0\udc80",
    "\udcf0\udc9f\udca4",
    "\udcf5\udc80\udc80\udc80",
    "ok\udcc2",
    "\udcc2\udc9b31m",
]
_LONE = ["\ud800", "\udbff", "a\ud83d", "\udf00b", "\ud800" * 300]
_PATHS = [
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    ".",
    "~root",
    "a/../../b",
    "..\\..\\x",
    "con:",
    "file:///etc/passwd",
    "%2e%2e%2f",
    "-rf",
    "--help",
    "latest",
    "live",
    "*",
    "?",
    "$HOME",
]
_FORMATS = [
    "%s%s%n",
    "{0}",
    "{run}",
    "{",
    "}",
    "{0.__class__}",
    "%(x)s",
    "%",
    "${HOME}",
    "`id`",
    "$(id)",
    "';--",
    '"',
    "'",
    "\\",
    "\\x1b[31m",
    "\\u001b[31m",
    "&lt;",
    "<b>",
    "None",
    "null",
    "NaN",
    "-1",
    "",
]
_LONG = [
    "x" * 10_240,
    " " * 10_240,
    "\x1b[31m" * 2_048,
    "\u202e" * 10_240,
    "\u0301" * 10_240,
    "[red]" * 2_048,
    "訓" * 3_413,
    "a\n" * 5_120,
    "\x00" * 10_240,
    "\x1b]0;" + "x" * 10_240,
]

CORPUS: tuple[str, ...] = tuple(
    dict.fromkeys(
        [f"{_ESC}[{body}" for body in _CSI]
        + [f"\x9b{body}" for body in _CSI[:8]]
        + [f"{_ESC}]{body}{_BEL}" for body in _OSC]
        + [f"{_ESC}]{body}{_ST}" for body in _OSC[:6]]
        + [f"{_ESC}]{body}" for body in _OSC[:3]]
        + _STRINGS
        + _SHORT
        + _C1
        + _C0
        + _MARKUP
        + _BIDI
        + _HIDDEN
        + _WIDE
        + _BAD_UTF8
        + _LONE
        + _PATHS
        + _FORMATS
        + _LONG
    )
)
"""No string twice; families in a fixed order."""


@functools.cache
def raw(text: str) -> bytes:
    """A string of the corpus as bytes: surrogate escapes are the bytes they stand for, other lone surrogates three
    bytes each.
    """
    return b"".join(
        bytes([ord(c) - 0xDC00]) if 0xDC80 <= ord(c) <= 0xDCFF else c.encode("utf-8", "surrogatepass") for c in text
    )


# ---------------------------------------------------------------------------------------------------------------------
# what may reach a terminal

_FORBIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0") | {
    chr(c) for c in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
}
_MOST_MARKS = (
    3  # combining marks in a row: Vietnamese and Hebrew need so many, a pile that covers the lines around needs more
)

# as in 24 bits a pixel, with what Textual's own line to type in and its list add
_INK = rb"(?:[01247]|39|[34]8;2;[0-9]{1,3};[0-9]{1,3};[0-9]{1,3})"
SENT = re.compile(
    rb"\x1b\[" + _INK + rb"(?:;" + _INK + rb")*m"
    rb"|\x1b\[(?P<row>[0-9]+);(?P<column>[0-9]+)H|\x1b\[(?P<right>[0-9]+)C"
    rb"|\x1b\[\?2026[hl]"  # a picture at once
    rb"|\x1b\]22;default\x07"  # the shape of the mouse's pointer
    rb"|(?P<once>\x1b\[\?(?:7|25|1000|1004|1006|1015|1049|2004)[hl]|\x1b\[\?(?:2026|2048)\$p|\x1b\[>25u|\x1b\[<u)"
)
"""All that Textual 8.2.8 and this monitor send, but text; `once`: only before the first picture and after the last."""


def offences(output: bytes, *, size: tuple[int, int] | None = None) -> list[str]:
    """Parts of `output` that must not reach a terminal.

    Without `size` no escape sequence may. With it, `output` is all that a full-screen program sent from its start to
    its end, to a terminal of so many columns and rows: it may set up the terminal at its two ends, and move within the
    screen and change inks between them. Lines end before a sequence or at the end.
    """
    found: list[str] = []
    place = 0
    pieces: list[bytes] = []
    doors: list[re.Match[bytes]] = []
    moves: list[int] = []
    while size is not None and (escape := output.find(b"\x1b", place)) >= 0:
        pieces.append(output[place:escape].removesuffix(b"\r\n"))
        match = SENT.match(output, escape)
        if match is None or not _within(match, size):
            found.append(f"sequence {output[escape : escape + 24]!r}")
        elif match["once"]:
            doors.append(match)
        elif match["row"]:
            moves.append(escape)
        place = match.end() if match else escape + 1
    pieces.append(output[place:].removesuffix(b"\r\n"))
    found += [
        f"sequence in the middle {door.group()!r}" for door in doors if moves and moves[0] < door.start() < moves[-1]
    ]
    for piece in pieces:
        found += _of_text(piece, lines=size is None)
    return found


def _within(match: re.Match[bytes], size: tuple[int, int]) -> bool:
    columns, rows = size
    return (
        1 <= int(match["row"] or 1) <= rows
        and 1 <= int(match["column"] or 1) <= columns
        and 1 <= int(match["right"] or 1) < columns
    )


def _of_text(piece: bytes, *, lines: bool) -> list[str]:
    found: list[str] = []
    try:
        text = piece.decode("utf-8")
    except UnicodeDecodeError as error:
        found.append(f"no UTF-8: {piece[max(0, error.start - 8) : error.start + 8]!r}")
        text = piece.decode("utf-8", "replace")
    for character in sorted(set(text)):
        if not (lines and character == "\n") and (
            unicodedata.category(character) in _FORBIDDEN or character in _INVISIBLE
        ):
            found.append(f"U+{ord(character):04X} near {text[max(0, text.index(character) - 12) :][:24]!r}")
    for is_mark, run in itertools.groupby(text, lambda c: unicodedata.category(c) in ("Mn", "Me")):
        if is_mark and len(marks := list(run)) > _MOST_MARKS:
            found.append(f"a pile of {len(marks)} marks")
    return found


# ----------------------------------------------------------------------------------------------------------------------
# hostile runs


class Spoilt(str):
    """A string that looks harmless to a writer's checks, and becomes other bytes when it is stored."""

    data: bytes

    def __new__(cls, text: str, data: bytes) -> Spoilt:
        spoilt = super().__new__(cls, text)
        spoilt.data = data
        return spoilt

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return self.data

    def __getitem__(self, key: object) -> Spoilt:
        return self


FIRST = ("return", "length", "episodes", "sps", "eval/return")


def metrics_of(strings: Sequence[str], *, numbered: bool = True) -> list[Metric]:
    """A column for each string, which is its name and its unit, behind those that every run has.

    `numbered`: each name begins with its column, so that no two are equal to a reader that takes the harm out of them.
    """
    names = ((f"{index}/".encode() if numbered else b"") + raw(text) for index, text in enumerate(strings))
    return [
        *map(Metric, FIRST),
        *(
            Metric(Spoilt(f"m{index}", name[:64]), unit=Spoilt("", raw(strings[index])[:39]))
            for index, name in enumerate(names)
        ),
    ]


def document_of(strings: Sequence[str]) -> dict[str, object]:
    """The fields of a run.json, each with a string in turn."""
    turn = itertools.cycle(strings)
    keys = (
        "env",
        "algo",
        "version",
        "phase",
        "device",
        "device_name",
        "paused_by",
        "stopped_by",
        "kernels",
        "net",
        "uuid",
        "created",
        "reason",
    )
    return {key: next(turn) for key in keys} | {
        "request": {next(turn): next(turn), "overrides": [next(turn), next(turn)], "config": next(turn)},
        next(turn): next(turn),
    }


def declared(strings: Sequence[str]) -> dict[str, object]:
    """A metrics.json with a string in turn for every text."""
    turn = itertools.cycle(strings)
    metrics = [
        {
            "name": name,
            "label": next(turn),
            "unit": next(turn),
            "figure": next(turn),
            "advice": next(turn),
            "explanation": next(turn),
            "order": order,
            "thresholds": [
                {"level": "bad", "at_least": -1e9, "advice": next(turn)},
                {"level": next(turn), "below": 1.0, "while_metric": next(turn)},
            ],
        }
        for order, name in enumerate(FIRST)
    ]
    return {"schema": 1, "metrics": [*metrics, {"name": next(turn), next(turn): next(turn)}]}


def write_files(folder: Path, strings: Sequence[str]) -> None:
    """log.txt, config.toml, metrics.json and the answers to requests that nobody sent: every string in each."""
    lines = [
        b"operant: session started 2026\n",
        *(raw(text) + b"\n" for text in strings),
        *(b"12:00:00 " + raw(text) + b"\n" for text in strings[:40]),
    ]
    (folder / "log.txt").write_bytes(b"".join(lines) + b"error: " + raw(strings[0]) + b"\n")
    (folder / "config.toml").write_bytes(
        b"".join(b"[" + raw(text) + b"]\nkey = " + raw(text) + b"\n" for text in strings)
    )
    (folder / "metrics.json").write_text(json.dumps(declared(strings)))
    done = folder / "ctl" / "done"
    done.mkdir(parents=True, mode=0o700, exist_ok=True)
    for index, text in enumerate(strings[:20]):
        (done / f"req-{index:020d}-{index:032x}.json").write_text(
            json.dumps({"result": "failed", "text": text, "by": text, "verb": text})
        )


def tell(writer: Writer, strings: Iterable[str]) -> None:
    """Every string as an event."""
    for index, text in enumerate(strings):
        writer.event(Spoilt("", raw(text)[: layout.EVENT_TEXT]), level=layout.LEVELS[index % 3])


def _publish(writer: Writer, strings: Sequence[str], records: int) -> None:
    for n in range(records):
        values = [float(n), 9.0, 1.0, 1e6, float(n), *(float(n % 7) for _ in strings)]
        writer.publish(1000 * (n + 1), values, flags=FLAG_EVAL if n % 10 == 0 else 0)
        writer.tick()


def _endings(strings: Sequence[str]) -> Iterator[tuple[str, dict[str, object] | None]]:
    """(last word or "", exit.json)."""
    turn = itertools.cycle(strings)
    for word in ("finished", "stopped", "failed", "diverged", "gpu_fault", "oom"):
        yield word, {"exit": 1, "signal": None, "cause": next(turn), "text": next(turn), next(turn): next(turn)}
    yield "", {"exit": None, "signal": 9, "oom_kill": next(turn), "wall_s": next(turn)}
    yield "", {"exit": next(turn), "signal": next(turn)}
    yield "", None


def _dead(
    root: Path,
    name: str,
    strings: Sequence[str],
    first: int,
    word: str,
    ending: dict[str, object] | None,
    host: str | None = None,
    records: int = 30,
) -> runs.Run:
    """A run with every string among its metrics, events, log lines and configuration, string `first` before
    the others.
    """
    run = runs.create(root, name, "x", {})
    turned = [*strings[first % len(strings) :], *strings[: first % len(strings)]]
    document = {**run.document, **document_of(turned), "steps": 10**6, "seed": 1, "lanes": 8, "pid": 4_000_000}
    # a worker's that is not the file's writer would have ended after it
    document["pid_start_ticks"] = None if word in layout.TERMINAL else 1
    if host is not None:
        document |= {"host": host, "boot_id": host}
    metrics, uuid = metrics_of(turned, numbered=word != "unreadable"), os.urandom(16)
    with Writer(run.metrics_path, metrics, run_uuid=uuid, version=turned[0], host=turned[-1], capacity=64) as writer:
        history = (
            History(run.path / "history", run.metrics_path, writer=writer, run_uuid=uuid, session=1)
            if word == "history"
            else None
        )
        if history is not None:
            history.start()
        _publish(writer, strings, records)
        if history is not None:
            history.close()
        tell(writer, turned)
        writer.set_checkpoint(20_000)
        if word in layout.TERMINAL:
            writer.set_state(word)
    if word == "history":
        run.metrics_path.unlink()
    write_files(run.path, turned)
    (run.path / "run.json").write_text(json.dumps(document))
    if ending is not None:
        (run.path / "exit.json").write_text(json.dumps(ending))
    return run._replace(document=document)


def dead_runs(root: Path, strings: Sequence[str], *, hosts: Sequence[str] = ()) -> list[runs.Run]:
    """Runs: one for every way to end, one that has only a history, one that cannot be read; with `hosts` also one on
    each such other machine.

    Every run has every string among its metrics, events, log lines and configuration; the fields of its documents take
    them in turn.
    """
    kinds = (
        [(*ending, None) for ending in _endings(strings)]
        + [("", None, host) for host in hosts]
        + [("history", None, None), ("unreadable", None, None)]
    )
    return [_dead(root, f"run-{index:04d}", strings, 7 * index, *kind) for index, kind in enumerate(kinds)]


def alone(root: Path, name: str, text: str, kind: str) -> runs.Run:
    """A run of few words, all of them `text`: how it ended (a last word, or `crashed`), or `remote`."""
    word, ending, host = {
        "remote": ("", None, text),
        "crashed": ("", {"exit": text, "signal": 9, "oom_kill": text}, None),
    }.get(kind, (kind, {"exit": 1}, None))
    return _dead(root, name, [text], 0, word, ending, host, records=12)


def named_folders(root: Path, strings: Iterable[str]) -> list[Path]:
    """A run in a folder of each name that a file system can have."""
    made = []
    for text in strings:
        name = raw(text).replace(b"/", b"_").replace(b"\0", b"_")[:255]
        if name not in (b"", b".", b".."):
            path = Path(os.fsdecode(os.path.join(os.fsencode(root), name)))
            path.mkdir(parents=True, exist_ok=True)
            (path / "run.json").write_text(json.dumps({"id": text, "env": text, "created_realtime_ns": 1}))
            (path / "log.txt").write_bytes(raw(text) + b"\n")
            made.append(path)
    return made


def train(folder: Path) -> None:
    """Hold the lock of a run made before, publish under hostile names, tell hostile events, answer every request with a
    hostile sentence.
    """
    lock = runs.acquire(folder)
    fields = {key: value for key, value in document_of(CORPUS).items() if key not in ("uuid", "pid")}
    runs.update_document(
        folder, **{**fields, **runs.identity(), "steps": 10**9, "target": 475.0, "seed": 1, "lanes": 8}
    )
    with Writer(
        folder / "metrics.mm", metrics_of(CORPUS), run_uuid=os.urandom(16), version=CORPUS[0], host=CORPUS[1]
    ) as writer:
        write_files(folder, CORPUS)
        writer.heartbeat()
        writer.set_state("running")
        turn, done = itertools.cycle(CORPUS), folder / "ctl" / "done"
        with open(folder / "log.txt", "ab", buffering=0) as log:
            for n in itertools.count():
                writer.publish(
                    1000 * (n + 1), [float(n % 500), 9.0, 1.0, 1e6, float(n % 500), *(float(n % 7) for _ in CORPUS)]
                )
                writer.tick()
                writer.heartbeat()
                text = next(turn)
                tell(writer, [text])
                log.write(raw(text) + b"\n")
                for asked in folder.joinpath("ctl").glob("req-*.json"):
                    (done / asked.name).write_text(
                        json.dumps({"result": "failed" if n % 2 else "done", "text": next(turn)})
                    )
                    asked.unlink()
                threading.Event().wait(0.05)
    lock.release()


if __name__ == "__main__":
    train(Path(sys.argv[1]))
