"""Video files: GIF, MP4 and PNG from a sequence of pictures.

Pillow writes GIFs and PNGs, imageio-ffmpeg writes MP4s. A file is written under a temporary name in the same folder and
renamed once it is complete.
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
from operant.limits import LANES, SIDES, within
from operant.text import safe

Picture = NDArray[np.uint8]
"""(H, W, 3), RGB."""

FORMATS = (".gif", ".png", ".mp4")
MOST_BYTES = 1 << 30
"""Maximum number of pixels in all frames of a GIF; Pillow holds them in memory until it writes."""

_GIF_FPS = 50  # viewers replace a shorter delay by 100 ms
GAP = 2
"""Pixels between lanes."""
MOST_FRAMES, MOST_STEPS = 100_000, 10_000_000
"""Limits of a film's length."""
_BETWEEN = 64  # grey level of the gap
_SHEET_GAP = 4  # pixels between the pictures of a contact sheet
_NO_PILLOW = "writing a GIF or a PNG needs Pillow: pip install 'operant[gif]'"
_NO_FFMPEG = "writing an MP4 needs imageio-ffmpeg, which includes ffmpeg: pip install 'operant[mp4]', or write a .gif"
_FFMPEG_FAILED = "ffmpeg could not write the MP4: see its message above"


class Pace(NamedTuple):
    """Speed of a video: frames per second, and steps per frame (`every`)."""

    fps: float  # frames per second
    every: int  # steps from one frame to the next


def pace(
    step_s: float | None, fps: float | None, every: int | None, usual_fps: float = 15.0, most_fps: float = 30.0
) -> Pace:
    """Choose the speed of a video: `fps` and `every` as given, else real time for steps of `step_s` seconds (None:
    unknown, `usual_fps`), at most `most_fps` frames per second.
    """
    if every is None:
        every = max(1, math.ceil(1.0 / (step_s * most_fps) - 1e-6)) if step_s is not None else 1
    if fps is None:
        fps = min(1.0 / (step_s * every), most_fps) if step_s is not None else usual_fps
    return Pace(fps, every)


def check(out: Path, *, force: bool) -> str:
    """Check a video's output path before anything is computed, and return its format: gif, png or mp4. `force` allows
    an existing file.

    Raises UsageError for an unknown suffix or an existing file, NotFoundError for a missing folder, MachineError if a
    library is missing.
    """
    ending = out.suffix.lower()
    if ending not in FORMATS:
        raise UsageError(f"--out is {safe(str(out), 200)!r}; it must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    try:
        if out.is_dir():
            raise UsageError(f"--out is {safe(str(out), 200)!r}, which is a folder: give a file name")
        if out.exists() and not force:
            raise UsageError(f"{safe(str(out), 200)} already exists: give another name, or --force to replace it")
        if not out.parent.is_dir():
            raise NotFoundError(f"the folder {safe(str(out.parent), 200)!r} of {safe(out.name, 100)} does not exist")
    except OSError as error:
        raise UsageError(f"{safe(str(out), 200)!r} is not a valid file name ({error.strerror})") from None
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
    """Context with a temporary path next to `out`, which is renamed to `out` on success and deleted otherwise. Raises
    MachineError.
    """
    part: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{out.stem[:40]}-", suffix=out.suffix, dir=out.parent)
        part = Path(name)
        mask = os.umask(0)
        os.umask(mask)
        os.fchmod(descriptor, 0o666 & ~mask)  # default permissions
        os.close(descriptor)
        yield part
        os.replace(part, out)
        part = None
    except OSError as error:
        raise MachineError(f"{safe(str(out), 200)} cannot be written: {error.strerror or error}") from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def side_of(size: int, lanes: int, option: str = "") -> int:
    """Width in pixels of each of `lanes` games in a square picture `size` pixels wide. Raises UsageError if a game gets
    too few; `option` is what the caller writes before the names of these arguments.
    """
    within(f"{option}lanes", lanes, *LANES)
    within(f"{option}size", size, *SIDES)
    across = math.ceil(math.sqrt(lanes))
    side = (size - GAP * (across - 1)) // across
    if side < SIDES[0]:
        raise UsageError(
            f"{option}size {size} leaves {max(0, side)} pixels for each of {lanes} games, which need {SIDES[0]}: give "
            f"at least {option}size {across * (SIDES[0] + GAP)}"
        )
    return side


class VideoWriter:
    """Base class of the writers of a video file. It collects pictures of one size, compressed in memory, until `finish`
    writes them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[bytes] = []
        self._shape: tuple[int, ...] = ()

    def add(self, picture: Picture) -> None:
        """Append a copy of a picture (H, W, 3) to the video."""
        self._shape = picture.shape
        self._waiting.append(zlib.compress(picture.tobytes(), 1))

    def picture(self, index: int) -> Picture:
        """Return picture number `index` of those added to the video."""
        return np.frombuffer(zlib.decompress(self._waiting[index]), np.uint8).reshape(self._shape)

    def finish(self) -> int:
        """Write the video file and return its number of frames."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Stop writing the video and free resources; does nothing after `finish`."""


class GifWriter(VideoWriter):
    """Writer of a GIF that loops."""

    def __init__(self, path: Path, fps: float) -> None:
        super().__init__(path)
        self._fps = min(fps, _GIF_FPS)

    def add(self, picture: Picture) -> None:
        """Append a copy of a picture (H, W, 3) to the GIF. Raises UsageError if the pictures are too many for
        memory.
        """
        count = len(self._waiting)
        if (count + 1) * picture.size // 3 > MOST_BYTES:
            raise UsageError(
                f"a GIF holds at most {count:,} frames of this size: reduce --seconds or --size, raise --every, or "
                "write an .mp4"
            )
        super().add(picture)

    def finish(self) -> int:
        """Write the GIF and return its number of frames. Frame times are rounded to hundredths of a second, a GIF's
        unit, cumulatively, so that long videos keep their speed.
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


class ContactSheet(VideoWriter):
    """Writer of a PNG that shows `frames` of the pictures added, evenly spaced from the first to the last; with 1 only
    the last.
    """

    def __init__(self, path: Path, frames: int) -> None:
        super().__init__(path)
        self._frames = frames

    def add(self, picture: Picture) -> None:
        """Append a copy of a picture (H, W, 3) to those of which the PNG shows some. If only the last is wanted, drop
        the one before.
        """
        if self._frames == 1:
            self._waiting.clear()
        super().add(picture)

    def finish(self) -> int:
        """Write the PNG and return its number of pictures."""
        from PIL import Image

        count = min(self._frames, len(self._waiting))
        indices = np.linspace(0, len(self._waiting) - 1, count).round().astype(int)
        whole = tile(np.stack([self.picture(k) for k in indices]), math.ceil(math.sqrt(count)), _SHEET_GAP, 255)
        with open(self._path, "wb") as file:
            Image.fromarray(whole).save(file, "PNG", optimize=True)
        return count


class Mp4Writer(VideoWriter):
    """Writer of an MP4 (H.264, 4:2:0, even sides, for all players). ffmpeg encodes while pictures are added."""

    def __init__(self, path: Path, fps: float) -> None:
        super().__init__(path)
        self._fps, self._count = fps, 0
        self._writer: Generator[None, bytes | None, None] | None = None

    def add(self, picture: Picture) -> None:
        """Pass a picture (H, W, 3) to ffmpeg. Raises MachineError if ffmpeg has failed."""
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
        """Wait until ffmpeg has written the file and return its number of frames. Raises MachineError if frames are
        missing.
        """
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
        """End the ffmpeg process that writes the video."""
        if self._writer is not None:
            self._writer.close()


def open_video(path: Path, form: str, *, fps: float, frames: int) -> VideoWriter:
    """Create the writer of a video format: gif, png or mp4. `frames` applies to png, `fps` to the others."""
    return (
        ContactSheet(path, frames) if form == "png" else GifWriter(path, fps) if form == "gif" else Mp4Writer(path, fps)
    )


class Recording(NamedTuple):
    """Result of recording a video: number of steps and the ended episodes. `cut` means that it ended before the
    requested number of episodes.
    """

    steps: int  # of each lane
    episodes: list[dict[str, Any]]  # finished ones: lane, return, length
    cut: bool  # ended before the requested number of episodes


class Limits(NamedTuple):
    """Maximum numbers of frames, steps and episodes of a recording, which ends at the first one reached. 0 episodes
    means no limit.
    """

    frames: int
    steps: int  # of each lane
    episodes: int  # of the first lane; 0: no limit


def record(
    stage: Any,
    step: Callable[[], None],
    video: VideoWriter,
    *,
    side: int,
    every: int,
    limits: Limits,
    hold: int,
    report: Callable[[int], None],
) -> Recording:
    """Record the lanes of `stage`, advanced by `step`, to `video` until a limit is reached: one picture of all lanes
    every `every` steps, each lane `side` pixels wide. `hold` is the number of frames for which the end of a single
    lane's episode is repeated.

    The last state of a single lane's episode is always recorded. `report` is called with the number of frames so far.
    """
    canvas, across = stage.canvas(side), math.ceil(math.sqrt(stage.lanes))
    ended: list[dict[str, Any]] = []
    count = steps = ends = 0

    def add() -> None:
        nonlocal count
        video.add(tile(stage.picture(canvas), across, GAP, _BETWEEN))
        count += 1
        report(count)

    add()
    while count < limits.frames and steps < limits.steps and not (limits.episodes and ends >= limits.episodes):
        step()
        steps += 1
        lanes = np.flatnonzero(stage.ended)
        ended += [{"lane": int(k), "return": float(stage.returns[k]), "length": int(stage.ages[k])} for k in lanes]
        ends += bool(stage.ended[0])
        over = stage.lanes == 1 and bool(stage.ended[0])
        if over or steps % every == 0 or ends == limits.episodes > 0:
            for _ in range(min(1 + hold * over, limits.frames - count)):
                add()
    return Recording(steps, ended, ends < limits.episodes)


def tile(pictures: NDArray[np.uint8], across: int, gap: int, ground: int = 0) -> Picture:
    """Arrange N pictures (N, H, W, 3) in a grid of `across` columns, `gap` pixels of grey level `ground` apart."""
    count, height, width, _ = pictures.shape
    down = -(-count // across)
    whole = np.full((down * (height + gap) - gap, across * (width + gap) - gap, 3), ground, np.uint8)
    for k, picture in enumerate(pictures):
        top, left = k // across * (height + gap), k % across * (width + gap)
        whole[top : top + height, left : left + width] = picture
    return whole
