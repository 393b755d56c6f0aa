"""From the bytes of an image to pixels, in a limited process: the side of the parent."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlc_llm.errors import InvalidField, MLCError, UserError
from mlc_llm.record import record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from mlc_llm.later_numpy import np

_log = logging.getLogger(__name__)

SANDBOX = str(Path(__file__).with_name("sandbox.py"))
_START = """
import runpy, sys
sys.path.append(sys.argv[2])
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@record()
class ImageLimits:
    """What one image may cost."""

    max_bytes: int = 20 * 2**20
    """Of the file."""
    max_pixels: int = 50_000_000
    memory: int = 2**30
    """Bytes of address space of the process that decodes."""
    seconds: float = 20.0
    """Of decoding; and of fetching, where addresses are allowed."""
    all_seconds: float = 60.0
    """Of both, for all images of a request."""


@record()
class ImageFile:
    """An image as it came."""

    data: bytes
    media_type: str | None = None
    """What its sender says of it. None: nothing."""


@record()
class Target:
    """The size that all images of a model get."""

    width: int
    height: int
    resample: int = 2
    """As in Pillow: 1 is Lanczos, 2 bilinear, 3 bicubic."""
    longest: int = 0
    """The longer side gets this size first; 0: it does not."""
    is_cut: bool = False
    """The image gets the size of whole tiles of this size, and there is a second picture: the whole
    image as a tile. An image of one tile is one picture."""


def decoded(
    image: ImageFile,
    target: Target | None = None,
    limits: ImageLimits | None = None,
    field: str = "image",
) -> npt.NDArray[np.uint8]:
    """The first of `pictures_of`."""
    return pictures_of(image, target, limits, field)[0]


def pictures_of(
    image: ImageFile,
    target: Target | None = None,
    limits: ImageLimits | None = None,
    field: str = "image",
) -> list[npt.NDArray[np.uint8]]:
    """RGB, uint8 [height, width, 3]. Without a target, the image keeps its size.

    Raises `InvalidField` with the name of the field for an image that is broken, too large, empty
    or not of the type that its sender says; `UserError` without Pillow, `MLCError` if the process
    cannot start.
    """
    limits = limits or ImageLimits()
    if not image.data:
        raise InvalidField(field, "", "an image has bytes; this one has none")
    if len(image.data) > limits.max_bytes:
        words = f"an image has {limits.max_bytes} bytes at most"
        raise InvalidField(field, f"{len(image.data)} bytes", words)
    task = _task(image, target, limits)
    head, _, pixels = _asked(task, image.data, limits, field).partition(b"\n")
    answer = _read(head)
    if "error" in answer:
        if answer["detail"]:
            _log.debug("%s: %r", field, answer["detail"])
        raise _refused(field, image, str(answer["error"]))
    found, at = [], 0
    for width, height in answer["sizes"]:
        shape = (int(height), int(width), 3)
        end = at + math.prod(shape)
        found.append(np.frombuffer(pixels[at:end], np.uint8).reshape(shape))
        at = end
    return found


def _task(image: ImageFile, target: Target | None, limits: ImageLimits) -> bytes:
    size = target or Target(0, 0)
    task = {
        "media_type": image.media_type,
        "max_pixels": limits.max_pixels,
        "width": size.width,
        "height": size.height,
        "resample": size.resample,
        "longest": size.longest,
        "is_cut": size.is_cut,
        "memory": limits.memory,
        "seconds": limits.seconds,
    }
    return json.dumps(task).encode("ascii") + b"\n"


def _asked(task: bytes, data: bytes, limits: ImageLimits, field: str) -> bytes:
    """The answer of a process; empty if it ended without one, or in the middle of one."""
    command = [_python(), "-I", "-S", "-c", _START, SANDBOX, _pillow()]
    try:
        # The process has an alarm of its own; this is for a machine where it has none.
        done = subprocess.run(
            command, input=task + data, capture_output=True, timeout=limits.seconds + 5, check=False
        )
    except subprocess.TimeoutExpired:
        raise _late(data, limits, field) from None
    except OSError as error:
        _log.warning("the process that decodes images: %s", error)
        raise MLCError("the process that decodes images does not start; the log says why") from None
    was_killed = done.returncode < 0
    if was_killed or not done.stdout:
        _log.debug("%s: code %d: %r", field, done.returncode, done.stderr[-200:])
    if -done.returncode in _OUT_OF_TIME:
        raise _late(data, limits, field)
    return b"" if was_killed else done.stdout


_OUT_OF_TIME = [getattr(signal, name, None) for name in ("SIGALRM", "SIGXCPU")]


def _late(data: bytes, limits: ImageLimits, field: str) -> InvalidField:
    words = f"an image is decoded in {limits.seconds:.3g} seconds; this one is not"
    return InvalidField(field, f"{len(data)} bytes", words)


def _read(line: bytes) -> dict[str, Any]:
    """What the process says. A process that was killed says nothing."""
    if not line:
        return {"error": "needs too much memory to decode", "detail": ""}
    answer: dict[str, Any] = json.loads(line)
    return answer


def _refused(field: str, image: ImageFile, words: str) -> InvalidField:
    return InvalidField(field, f"{len(image.data)} bytes", f"this image {words}")


def _python() -> str:
    if not sys.executable:
        raise MLCError("images need a Python program to decode them, and sys.executable is empty")
    return sys.executable


def _pillow() -> str:
    """The folder that has Pillow. The process uses no other one. Raises UserError."""
    spec = importlib.util.find_spec("PIL")
    if spec is None or spec.origin is None:
        raise UserError('images need Pillow: pip install "mlc-llm[images]"')
    return str(Path(spec.origin).parent.parent)
