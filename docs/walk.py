"""Run the start page's code blocks in order, in a fresh clone and a fresh virtual environment. Prints one line per
command.

python docs/walk.py [--keep FOLDER] [--cpu]

--cpu installs PyTorch's CPU build first, as the page explains for a machine without a GPU. A command that needs a
terminal gets a pseudo-terminal; one that waits for a person receives `q` after some seconds. The exit code is the
number of failed commands.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
PAGE = HOME / "docs" / "pages" / "index.md"
ON_A_TERMINAL, WAITING = ("--render term",), ("operant play",)
_PLAYED_S, _LONGEST_S = 8.0, 1800.0


def commands() -> list[str]:
    """Lines of the page's shell blocks, in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def on_terminal(words: list[str], folder: Path, environment: dict[str, str], quit_after_s: float) -> tuple[int, str]:
    """Run a command on a pseudo-terminal and type q at intervals until it ends; returns the exit code and the end of
    its output.
    """
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        words,
        cwd=folder,
        env={**environment, "TERM": "xterm-256color"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    shown, began, typed = b"", time.monotonic(), 0
    while process.poll() is None and time.monotonic() - began < _LONGEST_S:
        if select.select([leader], [], [], 0.2)[0]:
            with contextlib.suppress(OSError):
                shown = (shown + os.read(leader, 1 << 16))[-4000:]
        if time.monotonic() - began > quit_after_s * (typed + 1):
            typed += 1
            os.write(leader, b"q")
    process.kill()
    os.close(leader)
    return process.wait(), shown.decode(errors="replace")


def main() -> int:
    """Walk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the clone is made, and stays")
    parser.add_argument("--cpu", action="store_true")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        place = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="walk-")))
        clone = place / "operant"
        subprocess.run(["git", "clone", "--quiet", str(HOME), str(clone)], check=True)
        kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        environment = {
            **kept,
            "PATH": f"{clone}/.venv/bin:{os.environ['PATH']}",
            "HOME": str(place),
            "XDG_STATE_HOME": str(place / "state"),
        }
        lines, failed = commands(), 0
        of_the_cpu = [line for line in lines if "whl/cpu" in line]
        lines = [line for line in lines if line not in of_the_cpu]
        if arguments.cpu:
            lines[1:1] = of_the_cpu
        for line in lines:
            if line.startswith(". "):  # the virtual environment's programs are found already
                continue
            began = time.monotonic()
            if any(words in line for words in (*ON_A_TERMINAL, *WAITING)):
                quit_after_s = _PLAYED_S if any(words in line for words in WAITING) else _LONGEST_S
                code, said = on_terminal(shlex.split(line), clone, environment, quit_after_s)
            else:
                done = subprocess.run(
                    shlex.split(line),
                    cwd=clone,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                code, said = done.returncode, done.stdout + done.stderr
            sound = code == 0 or (line == "operant doctor" and code == 4)  # what it found is for the machine's owner
            failed += not sound
            print(f"{'ok' if sound else f'exit {code}':>8}  {time.monotonic() - began:7.1f} s  {line}", flush=True)
            if not sound:
                print(said[-1500:], flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
