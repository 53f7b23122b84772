"""Numba's errors in one sentence with the line of the author's file. Compiles nothing and imports no part of numba."""

from __future__ import annotations

import linecache
import re

from operant.compute.user_file import import_hint

_RETURNED = {
    "reward, terminated": "`step` must return two values, the reward and whether the episode terminated",
    "red, green, blue": "`pixel_shader` must return three values, red, green and blue",
}
"""Return values of an environment's functions, by the names they are unpacked into."""


def summary(error: BaseException) -> str:
    """Summarise a numba error in one sentence for the author: file and line, code, and the problem."""
    if isinstance(error, RecursionError):
        return (
            "a function called here is not supported in kernels: np.random and other parts of NumPy exist "
            "on the CPU only"
        )
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Failed in ")]
    sentence = re.sub(r"Function\((<[^>]*>)\)", r"\1", lines[0]) if lines else type(error).__name__
    for line in lines[1:4]:
        if line.startswith(">>>"):
            sentence += " " + line.removeprefix(">>>").strip()
    sentence = re.sub(r" for '[^']*', defined at .*| ?Raised from .*", "", sentence)
    place = _author_line(error, text)
    if "failed to unpack" in sentence or "wrong tuple length" in sentence:
        for names, requirement in _RETURNED.items():
            if names in text or names in place:
                return requirement
    sentence = sentence.rstrip(".")
    if undefined := re.match(r"Untyped global name '(\w+)'.*UndefinedType|NameError: name '(\w+)'", sentence):
        if undefined[1]:
            sentence = f"the name '{undefined[1]}' is not defined"
        sentence += import_hint(undefined[1] or undefined[2])
    return f"{place}: {sentence}" if place else sentence


def _author_line(error: BaseException, text: str) -> str:
    """Describe the last source line, outside numba, that an error and its `text` name; "" if there is none."""
    where = getattr(error, "loc", None)
    named = re.findall(r" (?:at|from) (\S+\.py) \((\d+)\)", text) + (
        [(where.filename, where.line)] if where is not None else []
    )
    authors = [(filename, int(line)) for filename, line in named if not re.search(r"/numba(_cuda)?/", filename)]
    return source_line(*authors[-1]) if authors else ""


def source_line(filename: str, line: int) -> str:
    """Describe a source line as "FILE:LINE (`CODE`)"."""
    code = linecache.getline(filename, line).strip()
    return f"{filename}:{line}" + (f" (`{code}`)" if code else "")
