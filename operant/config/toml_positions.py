"""Line numbers of the tables and keys in a TOML text, which tomli does not report.

The text must be valid TOML: the scan does not check it.
"""

from __future__ import annotations

import re
from bisect import bisect_left

import tomli

Path = tuple[str, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY = re.compile(r""""(?:\\.|[^"\\\n])*"|'[^'\n]*'|[^\s.=\[\]{},#"']+""")
_STRING = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}(?!")|\'\'\'.*?'{3,5}(?!')|"(?:\\.|[^"\\\n])*"|'[^'\n]*\'''', re.DOTALL
)
_PLAIN = re.compile(r"[^,\[\]{}#\n\"']+")
_DEEPEST = 20


def lines(text: str) -> dict[Path, int]:
    """Return the line number (from 1) at which each table and key of a TOML text is first mentioned, by full path.

    Tables inside arrays are skipped: configurations have none.
    """
    return _Scan(text.replace("\r\n", "\n")).run()


class _Scan:
    """Scanner of a TOML text that records the line of each table and key."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.found = text, 0, dict[Path, int]()
        self.newlines = [match.start() for match in re.finditer("\n", text)]

    def run(self) -> dict[Path, int]:
        """Scan the whole text; return the line of each table and key by full path."""
        table: Path = ()
        self.skip_blank()
        while self.at < len(self.text):
            before = self.at
            if self.text[self.at] == "[":
                double = self.text.startswith("[[", self.at)
                self.at += 2 if double else 1
                table = self.read_key(())
                self.at += 2 if double else 1
            else:
                self.read_pair(table, 0)
            self.skip_blank()
            if self.at == before:  # not valid TOML
                break
        return self.found

    def skip_blank(self) -> None:
        """Skip white space, line breaks and comments."""
        match = _BLANK.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def read_key(self, table: Path) -> Path:
        """Read a dotted key below `table`; record the line of every table on its path. Returns the full path."""
        line, path = bisect_left(self.newlines, self.at) + 1, table
        while True:
            self.skip_blank()
            match = _KEY.match(self.text, self.at)
            if match is None:
                return path
            self.at, path = match.end(), (*path, _plain_key(match.group()))
            self.found.setdefault(path, line)
            self.skip_blank()
            if self.text[self.at : self.at + 1] != ".":
                return path
            self.at += 1

    def read_pair(self, table: Path, depth: int) -> None:
        """Read `key = value` below `table`, and the keys of an inline table, nested `depth` deep."""
        path = self.read_key(table)
        self.at += 1
        self.skip_blank()
        if self.text[self.at : self.at + 1] != "{" or depth == _DEEPEST:
            self.skip_value()
            return
        self.at += 1
        self.skip_blank()
        while self.at < len(self.text) and self.text[self.at] != "}":
            before = self.at
            self.read_pair(path, depth + 1)
            self.skip_blank()
            self.at += self.text[self.at : self.at + 1] == ","
            self.skip_blank()
            if self.at == before:
                break
        self.at += 1

    def skip_value(self) -> None:
        """Skip one value, including everything in its brackets."""
        depth = 0
        while self.at < len(self.text):
            character = self.text[self.at]
            match = _STRING.match(self.text, self.at) or _PLAIN.match(self.text, self.at)
            if character in "[{":
                depth, self.at = depth + 1, self.at + 1
            elif depth and character in "]}":
                depth, self.at = depth - 1, self.at + 1
            elif depth and character in ",\n#":
                self.at += character == ","
                self.skip_blank()
            elif match is not None:
                self.at = match.end()
            else:
                return
            if depth == 0:
                return


def _plain_key(token: str) -> str:
    """Return the name that a key's token in TOML stands for, without quotes and escapes."""
    if token[0] == "'":
        return token[1:-1]
    return next(iter(tomli.loads(f"{token} = 0"))) if token[0] == '"' else token
