"""An image that is decoded and has its size: what a tower of images reads."""

from __future__ import annotations

import hashlib
import struct
from functools import cached_property
from typing import TYPE_CHECKING

from mlc_llm.errors import InvalidField
from mlc_llm.images.decoder import ImageFile
from mlc_llm.images.pixels import PixelForm, patches
from mlc_llm.record import record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from mlc_llm.later_numpy import np


@record(eq=False)
class Picture:
    """See `runtime.batch.Picture`."""

    pixels: npt.NDArray[np.uint8]
    """RGB [height, width, 3]."""
    form: PixelForm
    patch: int
    """Pixels in a row of a patch."""
    tokens: int

    @cached_property
    def digest(self) -> bytes:
        """Of the pixels. All pictures of an engine have one form."""
        shape = struct.pack("<3Q", *self.pixels.shape)
        return hashlib.sha256(shape + self.pixels.tobytes()).digest()

    def patches(self) -> npt.NDArray[np.float32]:
        """As the tower reads them. Pixels that make no whole patch are left out."""
        height, width = (size // self.patch * self.patch for size in self.pixels.shape[:2])
        return patches(self.form.numbers(self.pixels[:height, :width]), self.patch)


def bitmap(pixels: npt.NDArray[np.uint8]) -> ImageFile:
    """The file of an array uint8 [height, width, 3], RGB: a plain BMP, so that it takes the way of
    every other image. Raises InvalidField for an array of no pixels."""
    height, width, _ = pixels.shape
    if not height * width:
        raise InvalidField("ImageData.image", f"{height} x {width}", "an image has pixels")
    row = np.zeros((height, (3 * width + 3) // 4 * 4), np.uint8)
    row[:, : 3 * width] = pixels[::-1, :, ::-1].reshape(
        height, 3 * width
    )  # BGR, the last row first
    head = struct.pack("<2sIHHI", b"BM", 54 + row.size, 0, 0, 54)
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, row.size, 2835, 2835, 0, 0)
    return ImageFile(head + info + row.tobytes(), "image/bmp")
