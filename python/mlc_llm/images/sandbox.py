"""Decodes one image. `decoder.py` does it in a process of its own, behind pipes.

Decoders are C code that reads bytes of strangers, and a small file may ask for much memory. So the
process that runs this file decodes one image, has little memory and time, and can open and write no
file. It imports only Pillow and the standard library.

In: a line of JSON (`Task`), then the bytes of the image. Out: a line of JSON, {"error": ...,
"detail": ...} or {"sizes": [[width, height], ...]}; behind the second one 3 bytes for each pixel of
each picture, row by row. There is one, or two where the image is to be cut into tiles: the image
that is cut, and the whole one as a tile.
"""

from __future__ import annotations

import copy  # noqa: F401 - Pillow imports it late, when no file can be opened any more
import io
import json
import signal
import sys
from typing import IO, TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from PIL import Image

try:
    import resource
except ImportError:  # not a POSIX system: there, only time limits the process
    resource = None  # type: ignore[assignment]

FORMATS = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/webp": "WEBP",
    "image/gif": "GIF",
    "image/bmp": "BMP",
}
"""Media types -> their names in Pillow. Of an animation, the first picture counts."""
OTHER_NAMES = {"image/jpg": "JPEG", "image/pjpeg": "JPEG", "image/apng": "PNG"}
"""Media types that senders write, too."""
_JPEG_OF_SEVERAL = "MPO"
"""Pillow's name for a JPEG with more pictures behind the first, as cameras and phones write it."""


class Task(TypedDict):
    """What to make of the bytes."""

    media_type: str | None
    """What the sender says of the bytes. None: nothing."""
    max_pixels: int
    width: int
    """Of the result. 0, with `height`: the image keeps its size."""
    height: int
    resample: int
    """As in Pillow: 0 nearest, 1 Lanczos, 2 bilinear, 3 bicubic, 4 box, 5 Hamming."""
    longest: int
    """First the longer side gets this size (Idefics 3); 0: it keeps its own."""
    is_cut: bool
    """Then both sides become multiples of `width` and `height`."""
    memory: int
    """Bytes of address space of the process."""
    seconds: float


class Refused(Exception):
    """The image is not accepted. The words continue "an image that"."""


def serve(task_and_image: IO[bytes], answer: IO[bytes]) -> None:
    """All that the process does."""
    from PIL import Image

    task: Task = json.loads(task_and_image.readline())
    image = task_and_image.read()
    Image.init()  # imports all decoders, while files can be opened
    _limit(task)
    try:
        pictures = decode(image, task)
    except Exception as error:
        _write(answer, {"error": _words(error), "detail": _detail(error)})
    else:
        _write(answer, {"sizes": [[width, height] for width, height, _ in pictures]})
        for _, _, pixels in pictures:
            answer.write(pixels)
    answer.flush()


def decode(image: bytes, task: Task) -> list[tuple[int, int, bytes]]:
    """(width, height, RGB bytes) of each picture. Upright, without transparency. Raises `Refused`,
    and whatever Pillow raises for broken bytes."""
    from PIL import Image, ImageOps

    Image.MAX_IMAGE_PIXELS = None  # `_check` counts them
    with Image.open(io.BytesIO(image), formats=list(FORMATS.values())) as opened:
        _check(opened, task)
        rgb = ImageOps.exif_transpose(opened).convert("RGB")
    kind, size = Image.Resampling(task["resample"]), (task["width"], task["height"])
    if task["longest"]:
        rgb = rgb.resize(_longest(rgb.width, rgb.height, task["longest"]), kind)
    found = [rgb]
    if task["is_cut"]:
        whole = rgb.resize(_multiples(rgb.width, rgb.height, size[0]), kind)
        found = [whole] if whole.size == size else [whole, whole.resize(size, kind)]
    elif task["width"]:
        found = [rgb.resize(size, kind)]
    return [(one.width, one.height, one.tobytes()) for one in found]


def _longest(width: int, height: int, longest: int) -> tuple[int, int]:
    """The size with this longer side, rounded as Transformers does for Idefics 3."""
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        width, height = int(longest * ratio), longest
        width += width % 2
    return max(width, 1), max(height, 1)


def _multiples(width: int, height: int, side: int) -> tuple[int, int]:
    """The size of whole tiles, rounded as there."""
    ratio = width / height
    if width >= height:
        width = -(-width // side) * side
        height = -(-int(width / ratio) // side) * side
    else:
        height = -(-height // side) * side
        width = -(-int(height * ratio) // side) * side
    return max(width, side), max(height, side)


def _check(opened: Image.Image, task: Task) -> None:
    """Before anything is decoded."""
    said, form = task["media_type"], opened.format
    form = FORMATS["image/jpeg"] if form == _JPEG_OF_SEVERAL else form
    if said is not None and (FORMATS | OTHER_NAMES).get(said) != form:
        raise Refused(f"is said to be {said[:60]} and is {form}")
    if not opened.width * opened.height:
        raise Refused(f"has no pixels ({opened.width} x {opened.height})")
    if opened.width * opened.height > task["max_pixels"]:
        words = f"has {opened.width} x {opened.height} pixels"
        raise Refused(f"{words}, more than {task['max_pixels']}")


def _words(error: Exception) -> str:
    """Fixed words for the sender. A decoder's own ones may tell of this process's memory."""
    from PIL import Image

    if isinstance(error, Refused):
        return str(error)
    if isinstance(error, Image.UnidentifiedImageError):
        return f"is none of {', '.join(FORMATS.values())}, or is broken at its beginning"
    if isinstance(error, MemoryError):
        return "needs too much memory to decode"
    return "is truncated" if "truncated" in str(error).lower() else "is broken"


def _detail(error: Exception) -> str:
    """A decoder's own words, for the log."""
    return "" if isinstance(error, Refused) else f"{type(error).__name__}: {error}"[:300]


def _write(answer: IO[bytes], message: object) -> None:
    answer.write(json.dumps(message).encode("ascii") + b"\n")


def _limit(task: Task) -> None:
    """From here on the process can do nothing but compute, and not for long."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, task["seconds"])
    if resource is None:
        return
    _lower(resource.RLIMIT_AS, task["memory"])
    _lower(resource.RLIMIT_CPU, int(task["seconds"]) + 1)
    _lower(resource.RLIMIT_FSIZE, 0)
    _lower(resource.RLIMIT_NOFILE, 0)
    _lower(resource.RLIMIT_CORE, 0)


def _lower(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(which, (most, most))


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
