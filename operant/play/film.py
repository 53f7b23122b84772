"""Films: pictures, one after the other, as a GIF, an MP4 or a PNG. Knows nothing of what is on the pictures, of runs or
of policies.

Pillow writes GIFs and PNGs, imageio-ffmpeg MP4s. A file is written beside the one that is asked for, and takes its name
only once it is complete.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import math
import os
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from operant.errors import MachineError, NotFoundError, UsageError
from operant.text import safe

Picture = NDArray[np.uint8]
"""(H, W, 3): red, green and blue."""

FORMATS = (".gif", ".png", ".mp4")
MOST_BYTES = 1 << 30
"""Pixels of all frames of a GIF, which Pillow holds until it has written them."""

_GIF_FPS = 50  # viewers take a shorter delay for none at all, and show a tenth of a second
GAP = 2
"""Pixels between lanes."""
_BETWEEN = 64  # their grey
_SHEET_GAP = 4  # pixels between the pictures of a sheet
_NO_PILLOW = "a GIF or a PNG needs Pillow, which is not installed: pip install 'operant[gif]'"
_NO_FFMPEG = (
    "an MP4 needs imageio-ffmpeg, which brings ffmpeg and is not installed: pip install 'operant[mp4]', or "
    "ask for a .gif"
)
_FFMPEG_FAILED = "ffmpeg could not write the MP4: see its own message above"


class Pace(NamedTuple):
    """The speed of a film."""

    fps: float  # frames per second
    every: int  # steps from one frame to the next


def pace(
    step_s: float | None, fps: float | None, every: int | None, usual_fps: float = 15.0, most_fps: float = 30.0
) -> Pace:
    """A film's pace: as asked for, else real time for steps of `step_s` seconds (None: not known), with at most
    `most_fps`.
    """
    if every is None:
        every = max(1, math.ceil(1.0 / (step_s * most_fps) - 1e-6)) if step_s is not None else 1
    if fps is None:
        fps = min(1.0 / (step_s * every), most_fps) if step_s is not None else usual_fps
    return Pace(fps, every)


def check(out: Path, *, force: bool) -> str:
    """The format of a film, by its name, checked before anything is computed.

    Raises UsageError for another ending and for a file that exists, NotFoundError for a folder that does not,
    MachineError where a library is missing.
    """
    ending = out.suffix.lower()
    if ending not in FORMATS:
        raise UsageError(f"--out is {safe(str(out), 200)!r}; it must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    try:
        if out.is_dir():
            raise UsageError(f"--out is {safe(str(out), 200)!r}, which is a folder: name a file")
        if out.exists() and not force:
            raise UsageError(f"{safe(str(out), 200)} already exists: another name, or --force to replace it")
        if not out.parent.is_dir():
            raise NotFoundError(f"no folder {safe(str(out.parent), 200)!r} to put {safe(out.name, 100)} in")
    except OSError as error:
        raise UsageError(f"{safe(str(out), 200)!r} cannot be a file's name ({error.strerror})") from None
    if not os.access(out.parent, os.W_OK):
        raise MachineError(f"{safe(str(out), 200)} cannot be written: {safe(str(out.parent), 200)} is read-only")
    if ending == ".mp4":
        try:
            import imageio_ffmpeg

            imageio_ffmpeg.get_ffmpeg_exe()
        except (ImportError, RuntimeError):
            raise MachineError(_NO_FFMPEG) from None
    elif importlib.util.find_spec("PIL") is None:
        raise MachineError(_NO_PILLOW)
    return ending[1:]


@contextlib.contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A path beside `out` to write to, which takes its name where all went well and is gone otherwise. Raises
    MachineError.
    """
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


class Film:
    """Takes pictures of one size, one after the other. They wait compressed: flat colours take a fiftieth."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[bytes] = []
        self._shape: tuple[int, ...] = ()

    def add(self, picture: Picture) -> None:
        """Take a copy of the next picture."""
        self._shape = picture.shape
        self._waiting.append(zlib.compress(picture.tobytes(), 1))

    def picture(self, index: int) -> Picture:
        """A picture that was added."""
        return np.frombuffer(zlib.decompress(self._waiting[index]), np.uint8).reshape(self._shape)

    def finish(self) -> int:
        """Write the file: how many frames it has."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Write nothing more; after `finish` this does nothing."""


class Gif(Film):
    """A GIF that loops."""

    def __init__(self, path: Path, fps: float) -> None:
        super().__init__(path)
        self._fps = min(fps, _GIF_FPS)

    def add(self, picture: Picture) -> None:
        """Take a copy of the next picture. Raises UsageError where there are too many."""
        count = len(self._waiting)
        if (count + 1) * picture.size // 3 > MOST_BYTES:
            raise UsageError(
                f"a GIF of more than {count:,} such frames does not fit: shorter, a smaller --size, a larger --every, "
                "or an .mp4"
            )
        super().add(picture)

    def finish(self) -> int:
        """Write it. Durations are in hundredths of a second, which is what a GIF counts in, so that a long film stays
        in step.
        """
        from PIL import Image

        count = len(self._waiting)
        ends = [round(100 * k / self._fps) for k in range(count + 1)]
        durations_ms = [10 * (end - start) for start, end in itertools.pairwise(ends)]
        frames = (Image.fromarray(self.picture(k)) for k in range(count))
        with open(self._path, "wb") as file:
            next(frames).save(
                file,
                "GIF",
                save_all=True,
                append_images=frames,
                duration=durations_ms,
                loop=0,
                optimize=True,
                disposal=1,
            )
        return count


class Sheet(Film):
    """A PNG of `frames` pictures, evenly spread over all there were, from the first to the last; of one, the last."""

    def __init__(self, path: Path, frames: int) -> None:
        super().__init__(path)
        self._frames = frames

    def add(self, picture: Picture) -> None:
        """Take a copy of the next picture."""
        if self._frames == 1:
            self._waiting.clear()
        super().add(picture)

    def finish(self) -> int:
        """Write it."""
        from PIL import Image

        count = min(self._frames, len(self._waiting))
        places = np.linspace(0, len(self._waiting) - 1, count).round().astype(int)
        whole = tiled(np.stack([self.picture(k) for k in places]), math.ceil(math.sqrt(count)), _SHEET_GAP, 255)
        with open(self._path, "wb") as file:
            Image.fromarray(whole).save(file, "PNG", optimize=True)
        return count


class Mp4(Film):
    """An MP4 (H.264) that ffmpeg writes while the pictures come. Everything plays it: even sides, 4:2:0."""

    def __init__(self, path: Path, fps: float) -> None:
        super().__init__(path)
        self._fps, self._count = fps, 0
        self._writer: Generator[None, bytes | None, None] | None = None

    def add(self, picture: Picture) -> None:
        """Hand the next picture over. Raises MachineError where ffmpeg has given up."""
        if self._writer is None:
            from imageio_ffmpeg import write_frames

            height, width, _ = picture.shape
            output = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-crf", "18", "-movflags", "+faststart"]
            self._writer = write_frames(
                self._path,
                (width, height),
                fps=self._fps,
                quality=None,
                codec="libx264",
                macro_block_size=1,
                ffmpeg_log_level="error",
                output_params=output,
            )
            self._writer.send(None)
        try:
            self._writer.send(picture.tobytes())
        except OSError:
            raise MachineError(_FFMPEG_FAILED) from None
        self._count += 1

    def finish(self) -> int:
        """Wait until it is whole."""
        from imageio_ffmpeg import count_frames_and_secs

        self.abandon()
        try:
            written, _ = count_frames_and_secs(self._path)
        except (RuntimeError, OSError):
            written = 0
        if written != self._count:
            raise MachineError(_FFMPEG_FAILED)
        return self._count

    def abandon(self) -> None:
        """End ffmpeg."""
        if self._writer is not None:
            self._writer.close()


def open_film(path: Path, form: str, *, fps: float, frames: int) -> Film:
    """A film of a format: gif, png or mp4. `frames` is of a PNG, `fps` of the others."""
    return Sheet(path, frames) if form == "png" else Gif(path, fps) if form == "gif" else Mp4(path, fps)


class Shot(NamedTuple):
    """What a film shows."""

    steps: int  # of each lane
    episodes: list[dict[str, Any]]  # that ended: lane, return, length
    cut: bool  # whether it ended before as many episodes as were asked for


class Length(NamedTuple):
    """When a film ends: at the first of these."""

    frames: int
    steps: int  # of each lane
    episodes: int  # of the first lane; 0: as many as there is time for


def shoot(
    stage: Any,
    step: Callable[[], None],
    film: Film,
    *,
    side: int,
    every: int,
    length: Length,
    hold: int,
    report: Callable[[int], None],
) -> Shot:
    """Film a show that `step` moves on: a picture every `every` steps, each lane `side` pixels wide.

    How a lone lane's episode ends is always seen, and stays for `hold` frames more. `report` is told of each frame.
    """
    canvas, across = stage.canvas(side), math.ceil(math.sqrt(stage.lanes))
    ended: list[dict[str, Any]] = []
    count = steps = ends = 0

    def add() -> None:
        nonlocal count
        film.add(tiled(stage.picture(canvas), across, GAP, _BETWEEN))
        count += 1
        report(count)

    add()
    while count < length.frames and steps < length.steps and not (length.episodes and ends >= length.episodes):
        step()
        steps += 1
        lanes = np.flatnonzero(stage.ended)
        ended += [{"lane": int(k), "return": float(stage.returns[k]), "length": int(stage.ages[k])} for k in lanes]
        ends += bool(stage.ended[0])
        over = stage.lanes == 1 and bool(stage.ended[0])
        if over or steps % every == 0 or ends == length.episodes > 0:
            for _ in range(min(1 + hold * over, length.frames - count)):
                add()
    return Shot(steps, ended, ends < length.episodes)


def tiled(pictures: NDArray[np.uint8], across: int, gap: int, ground: int = 0) -> Picture:
    """Pictures (N, H, W, 3) as one, row by row, `across` in a row and `gap` pixels apart; what is between them has the
    value `ground` in each colour.
    """
    count, height, width, _ = pictures.shape
    down = -(-count // across)
    whole = np.full((down * (height + gap) - gap, across * (width + gap) - gap, 3), ground, np.uint8)
    for k, picture in enumerate(pictures):
        top, left = k // across * (height + gap), k % across * (width + gap)
        whole[top : top + height, left : left + width] = picture
    return whole
