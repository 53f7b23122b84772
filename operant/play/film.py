"""Films: pictures, one after the other, as a GIF, an MP4 or a PNG. Knows nothing of what is on the pictures, of runs or of policies.

A GIF has one palette for all its frames: their own colours where there are few, as in most environments, else the 255 that come nearest. Pictures wait
compressed until all colours are known. A file is written beside the one that is asked for, and takes its name only once it is whole.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from operant.errors import MachineError, NotFoundError, UsageError
from operant.text import safe

Picture = NDArray[np.uint8]
"""(H, W, 3): red, green and blue."""

FORMATS = (".gif", ".png", ".mp4")
MOST_BYTES = 1 << 30
"""Pixels of all frames of a GIF, which Pillow holds until it has written them."""

_COLOURS = 255  # one of a GIF's 256 means "as before"
_GIF_FPS = 50  # viewers take a shorter delay for none at all, and show a tenth of a second
GAP = 2
"""Pixels between lanes."""
_BETWEEN = 64  # their grey
_SHEET_GAP = 4  # pixels between the pictures of a sheet
_NO_PILLOW = "a GIF or a PNG needs Pillow, which is not installed: pip install 'operant[gif]'"
_NO_FFMPEG = "an MP4 needs ffmpeg, which is neither installed nor brought by imageio-ffmpeg: pip install 'operant[mp4]', or ask for a .gif"


class Film(Protocol):
    """What pictures of one size are handed to."""

    def add(self, picture: Picture) -> None:
        """Take a copy of the next picture."""

    def finish(self) -> int:
        """Write what is left to be written: how many frames there are."""

    def abandon(self) -> None:
        """Let go of everything, as `finish` does; after it, nothing happens."""


class Pace(NamedTuple):
    """How a film follows what it shows."""

    fps: float  # frames a second
    every: int  # steps from one frame to the next


def pace(step_s: float | None, fps: float | None, every: int | None, usual_fps: float = 15.0, most_fps: float = 30.0) -> Pace:
    """A film's pace: what is asked for, else that of the world it shows, whose step is `step_s` long (None: not known), with no more than `most_fps`."""
    if every is None:
        every = max(1, math.ceil(1.0 / (step_s * most_fps) - 1e-6)) if step_s is not None else 1
    if fps is None:
        fps = min(1.0 / (step_s * every), most_fps) if step_s is not None else usual_fps
    return Pace(fps, every)


def check(out: Path, *, force: bool) -> str:
    """The format that a film's name asks for, once it is clear that it can be made: nothing has been computed yet.

    Raises UsageError for another ending and for a file that is there already, NotFoundError for a folder that is not, MachineError where something is missing.
    """
    ending = out.suffix.lower()
    if ending not in FORMATS:
        raise UsageError(f"--out is {safe(str(out), 200)!r}; it must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    try:
        if out.is_dir():
            raise UsageError(f"--out is {safe(str(out), 200)!r}, which is a folder: name a file")
        if out.exists() and not force:
            raise UsageError(f"{safe(str(out), 200)} is there already: another name, or --force to replace it")
        if not out.parent.is_dir():
            raise NotFoundError(f"there is no folder {safe(str(out.parent), 200)!r} to put {safe(out.name, 100)} in")
    except OSError as error:
        raise UsageError(f"{safe(str(out), 200)!r} cannot be a file's name ({error.strerror})") from None
    if not os.access(out.parent, os.W_OK):
        raise MachineError(f"{safe(str(out), 200)} cannot be written: {safe(str(out.parent), 200)} is a folder that may only be read")
    if ending == ".mp4":
        ffmpeg()
    elif importlib.util.find_spec("PIL") is None:
        raise MachineError(_NO_PILLOW)
    return ending[1:]


def ffmpeg() -> str:
    """The ffmpeg of the machine, else that of imageio-ffmpeg. Raises MachineError where there is neither."""
    if found := shutil.which("ffmpeg"):
        return found
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError):
        raise MachineError(_NO_FFMPEG) from None


@contextlib.contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A path beside `out` to write to, which takes its name where all went well and is gone otherwise. Raises MachineError."""
    part: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{out.stem[:40]}-", suffix=out.suffix, dir=out.parent)
        part = Path(name)
        mask = os.umask(0)
        os.umask(mask)
        os.fchmod(descriptor, 0o666 & ~mask)  # as any other file
        os.close(descriptor)
        yield part
        os.replace(part, out)
        part = None
    except OSError as error:
        raise MachineError(f"{safe(str(out), 200)} cannot be written: {error.strerror or error}") from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


class _Reel:
    """Pictures of one size that wait, compressed: flat colours take a fiftieth."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self._shape: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, picture: Picture) -> None:
        """Take a copy."""
        self._shape = picture.shape
        self._waiting.append(zlib.compress(picture.tobytes(), 1))

    def __getitem__(self, index: int) -> Picture:
        return np.frombuffer(zlib.decompress(self._waiting[index]), np.uint8).reshape(self._shape)


def _packed(picture: Picture) -> NDArray[Any]:
    """Each pixel's colour as a number of 24 bits."""
    wide = picture.astype(np.int32)
    return wide[..., 0] << 16 | wide[..., 1] << 8 | wide[..., 2]


class Gif:
    """A GIF that plays for ever."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._fps, self._reel = path, min(fps, _GIF_FPS), _Reel()
        self._counts: dict[int, int] = {}
        self._bytes = 0

    def add(self, picture: Picture) -> None:
        """Take a copy of the next picture. Raises UsageError where there are too many."""
        self._bytes += picture.size // 3
        if self._bytes > MOST_BYTES:
            raise UsageError(f"a GIF of more than {len(self._reel):,} such frames does not fit: shorter, a smaller --size, a larger --every, or an .mp4")
        self._reel.add(picture)
        for colour, count in zip(*np.unique(_packed(picture), return_counts=True), strict=True):
            self._counts[int(colour)] = self._counts.get(int(colour), 0) + int(count)

    def finish(self) -> int:
        """Write it."""
        from PIL import Image

        palette, places = _palette(self._counts)
        used = set(map(tuple, palette.tolist()))
        unused = next(colour for k in range(256) if (colour := (k, 0, 255)) not in used)
        # Handed over as well as set in each frame, it is written once. What is as before is no colour at all, and the smallest part of a file.
        table_bytes = palette.tobytes() + bytes(unused)
        table = np.zeros(1 << 24, np.uint8)
        table[np.fromiter(self._counts, np.int64)] = places

        def frames() -> Iterator[Any]:
            for k in range(len(self._reel)):
                frame = Image.fromarray(table[_packed(self._reel[k])])
                frame.putpalette(table_bytes)
                yield frame

        # In hundredths of a second, which is what a GIF counts in, so that a long film stays in step.
        ends = [round(100 * (k + 1) / self._fps) for k in range(len(self._reel))]
        durations_ms = [10 * (end - start) for start, end in zip([0, *ends], ends, strict=False)]
        each = frames()
        with open(self._path, "wb") as file:
            how = {"palette": table_bytes, "transparency": len(palette), "optimize": True, "disposal": 1}
            next(each).save(file, "GIF", save_all=True, append_images=each, duration=durations_ms, loop=0, **how)
        return len(self._reel)

    def abandon(self) -> None:
        """Nothing is held but memory."""


def _palette(counts: dict[int, int]) -> tuple[Picture, NDArray[np.uint8]]:
    """A palette (K, 3) for colours of 24 bits, and the place in it of each."""
    colours = np.array([(colour >> 16, colour >> 8 & 255, colour & 255) for colour in counts], np.uint8)
    if len(colours) <= _COLOURS:
        return colours, np.arange(len(colours), dtype=np.uint8)
    from PIL import Image

    # Median cut sees a colour as often as its share asks for, but at least once, so that what is small keeps its own.
    weight = np.array(list(counts.values()), np.float64)
    often = np.maximum(1, np.round(weight / weight.sum() * 65536)).astype(np.int64)
    cut = Image.fromarray(np.repeat(colours, often, axis=0)[None]).quantize(_COLOURS)
    palette = np.array(cut.getpalette(), np.uint8).reshape(-1, 3)[:_COLOURS]
    places = np.empty(len(colours), np.uint8)
    for first in range(0, len(colours), 4096):
        apart = colours[first : first + 4096, None].astype(np.int32) - palette[None].astype(np.int32)
        places[first : first + 4096] = (apart * apart).sum(axis=2).argmin(axis=1)
    return palette, places


class Sheet:
    """A PNG of `frames` pictures, evenly spread over all there were, from the first to the last; of one, the last."""

    def __init__(self, path: Path, frames: int) -> None:
        self._path, self._frames, self._reel = path, frames, _Reel()

    def add(self, picture: Picture) -> None:
        """Take a copy of the next picture."""
        if self._frames == 1:
            self._reel = _Reel()
        self._reel.add(picture)

    def finish(self) -> int:
        """Write it."""
        from PIL import Image

        count = min(self._frames, len(self._reel))
        wanted = [round(k * (len(self._reel) - 1) / max(1, count - 1)) for k in range(count)] if count > 1 else [len(self._reel) - 1]
        whole = tiled(np.stack([self._reel[k] for k in wanted]), math.ceil(math.sqrt(count)), _SHEET_GAP, 255)
        with open(self._path, "wb") as file:
            Image.fromarray(whole).save(file, "PNG", optimize=True)
        return count

    def abandon(self) -> None:
        """Nothing is held but memory."""


class Mp4:
    """An MP4 (H.264) that ffmpeg writes while the pictures come. Everything plays it: even sides, 4:2:0."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._fps, self._count = path, fps, 0
        self._process: subprocess.Popen[bytes] | None = None
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the film)

    def add(self, picture: Picture) -> None:
        """Hand the next picture over. Raises MachineError where ffmpeg has given up."""
        if self._process is None:
            self._process = self._start(*picture.shape[:2])
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(picture.tobytes())
        except OSError:
            raise self._failure() from None
        self._count += 1

    def finish(self) -> int:
        """Wait until it is whole."""
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if self._process.wait():
            raise self._failure()
        self._words.close()
        return self._count

    def abandon(self) -> None:
        """End ffmpeg."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._words.close()

    def _start(self, height: int, width: int) -> subprocess.Popen[bytes]:
        source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{self._fps:.6f}", "-i", "pipe:0"]
        target = ["-an", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-c:v", "libx264", "-crf", "18", "-pix_fmt", "yuv420p", "-movflags", "+faststart"]
        command = [ffmpeg(), "-hide_banner", "-loglevel", "error", "-y", *source, *target, "-f", "mp4", str(self._path)]
        # A session of its own: Ctrl-C is for this program, which then ends it.
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._words, start_new_session=True)

    def _failure(self) -> MachineError:
        assert self._process is not None
        self._process.wait()
        self._words.seek(0)
        lines = self._words.read().decode("utf-8", "replace").strip().splitlines()
        return MachineError(f"ffmpeg could not write it: {safe(lines[-1] if lines else f'it ended with {self._process.returncode}', 300)}")


def open_film(path: Path, form: str, *, fps: float, frames: int) -> Film:
    """A film of a format: gif, png or mp4. `frames` is of a PNG, `fps` of the others."""
    return Sheet(path, frames) if form == "png" else Gif(path, fps) if form == "gif" else Mp4(path, fps)


class Shot(NamedTuple):
    """What was filmed."""

    steps: int  # of each lane
    episodes: list[dict[str, Any]]  # that ended: lane, return, length
    cut: bool  # whether it ended before as many episodes as were asked for


class Length(NamedTuple):
    """When a film ends: with whatever comes first."""

    frames: int
    steps: int  # of each lane
    episodes: int  # of the first lane; 0: as many as there is time for


def shoot(show: Any, step: Callable[[], None], film: Film, *, side: int, every: int, length: Length, hold: int, report: Callable[[int], None]) -> Shot:
    """Film a show that `step` moves on: a picture every `every` steps, each lane `side` pixels wide.

    How a lone lane's episode ends is always seen, and stays for `hold` frames more. `report` is told of each frame.
    """
    canvas, across = show.canvas(side), math.ceil(math.sqrt(show.lanes))
    ended: list[dict[str, Any]] = []
    count = steps = ends = 0

    def add() -> None:
        nonlocal count
        film.add(tiled(show.picture(canvas), across, GAP, _BETWEEN))
        count += 1
        report(count)

    add()
    while count < length.frames and steps < length.steps and not (length.episodes and ends >= length.episodes):
        step()
        steps += 1
        lanes = np.flatnonzero(show.ended)
        ended += [{"lane": int(k), "return": float(show.returns[k]), "length": int(show.ages[k])} for k in lanes]
        ends += bool(show.ended[0])
        over = show.lanes == 1 and bool(show.ended[0])
        if over or steps % every == 0 or ends == length.episodes > 0:
            for _ in range(min(1 + hold * over, length.frames - count)):
                add()
    return Shot(steps, ended, ends < length.episodes)


def tiled(pictures: NDArray[np.uint8], across: int, gap: int, ground: int = 0) -> Picture:
    """Pictures (N, H, W, 3) as one, row by row, `across` in a row and `gap` pixels apart; what is between them has the value `ground` in each colour."""
    count, height, width, _ = pictures.shape
    down = -(-count // across)
    whole = np.full((down * (height + gap) - gap, across * (width + gap) - gap, 3), ground, np.uint8)
    for k, picture in enumerate(pictures):
        top, left = k // across * (height + gap), k % across * (width + gap)
        whole[top : top + height, left : left + width] = picture
    return whole
