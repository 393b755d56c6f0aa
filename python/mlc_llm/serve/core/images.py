"""Where the images of a prompt stand among its tokens.

A token of an image has no id of the vocabulary. It gets a negative one, made of the image's hash
and its place in the image. So the prefix cache, which knows ids alone, shares what was computed of
the same image and of no other one. Two images begin alike by chance once in 2^31 times; so a prompt
takes over a whole image or nothing of it, and whole images never are alike by chance.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

from mlc_llm.runtime.batch import Picture, RowImage

_ID_BYTES = 4


class ImageSpan(NamedTuple):
    """An image of a prompt."""

    first: int
    """Its first token."""
    picture: Picture

    @property
    def end(self) -> int:
        """The token behind it."""
        return self.first + self.picture.tokens


def image_ids(picture: Picture) -> list[int]:
    """The ids of its tokens: below 0, and not below -2^31."""
    count = picture.tokens
    numbers = hashlib.shake_256(picture.digest).digest(_ID_BYTES * count)
    return [-1 - (number & 0x7FFFFFFF) for number in struct.unpack(f"<{count}I", numbers)]


def whole_images(spans: Sequence[ImageSpan], start: int, count: int) -> int:
    """How many of `count` tokens from `start` on end behind an image or before it, not inside."""
    end = before_image(spans, start + count)
    return max(end - start, 0)


def before_image(spans: Sequence[ImageSpan], length: int) -> int:
    """Where the image begins that a text of this length would cut; the length itself if none."""
    return next((one.first for one in spans if one.first < length < one.end), length)


def begun_image(spans: Sequence[ImageSpan], start: int) -> int:
    """Tokens of the image that begins at a token; 0 if none does."""
    return next((one.picture.tokens for one in spans if one.first == start), 0)


def row_images(spans: Sequence[ImageSpan], start: int, count: int) -> tuple[RowImage, ...]:
    """The images, or parts of them, among `count` tokens from `start` on."""
    end, found = start + count, []
    for one in spans:
        first, last = max(one.first, start), min(one.end, end)
        if first < last:
            found.append(RowImage(first - start, first - one.first, last - first, one.picture))
    return tuple(found)


def image_spans(prompt: Sequence[int], pictures: Sequence[Picture]) -> tuple[ImageSpan, ...]:
    """Where these images stand in a prompt, of which they have all negative ids, in order."""
    found, at = [], 0
    for picture in pictures:
        at = next(i for i in range(at, len(prompt)) if prompt[i] < 0)
        found.append(ImageSpan(at, picture))
        at += picture.tokens
    return tuple(found)
