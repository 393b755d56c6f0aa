"""The time that the images of one request have together."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from mlc_llm.errors import InvalidField

if TYPE_CHECKING:
    from mlc_llm.images.reader import ImageReader


class SharedTime:
    """It begins when this is made."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    @contextlib.contextmanager
    def step(self, reader: ImageReader, field: str) -> Iterator[ImageReader]:
        """The reader with what is left as its limit, to fetch or to decode one image.

        Raises InvalidField with the name of the image's field if nothing is left, also in the
        place of the error of an image that took the rest.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise self._refusal(field)
        seconds = min(reader.limits.seconds, left)
        try:
            yield replace(reader, limits=replace(reader.limits, seconds=seconds))
        except InvalidField:
            if time.monotonic() >= self._end:
                raise self._refusal(field) from None
            raise

    def _refusal(self, field: str) -> InvalidField:
        words = f"the images of a request are read in {self._seconds:g} seconds together"
        return InvalidField(field, "<image>", f"{words}; this one is not")
