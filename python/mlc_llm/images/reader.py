"""How an engine with a tower reads images: from an address or a file to pictures, and the tokens
that a model's processor puts around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from mlc_llm.images.decoder import ImageFile, ImageLimits, decoded
from mlc_llm.images.picture import Picture
from mlc_llm.images.pixels import PixelForm

Piece: TypeAlias = "str | Picture"


@dataclass(frozen=True)
class ImageReader:
    """Of one model. Several threads may use it."""

    form: PixelForm
    patch: int
    """Pixels in a row of a patch."""
    tokens: int
    """Of a picture."""
    mark: str
    """The control token that chat templates write for an image."""
    before: str
    """What the processor writes in its place before the picture's tokens, control tokens
    included,"""
    behind: str
    """and behind them."""
    hosts: Sequence[str] = ()
    """Names of hosts that may be asked for images."""
    limits: ImageLimits = field(default_factory=ImageLimits)

    def fetched(self, url: str, place: str) -> ImageFile:
        """The file at an address. place: the field's name. Raises InvalidField."""
        from mlc_llm.images.addresses import image_file

        return image_file(url, self.hosts, self.limits, place)

    def picture(self, file: ImageFile, place: str) -> Picture:
        """The whole image as one picture. Raises InvalidField naming the field, UserError without
        Pillow."""
        pixels = decoded(file, self.form.target, self.limits, place)
        return Picture(pixels, self.form, self.patch, self.tokens)

    def pieces(self, file: ImageFile, place: str) -> list[Piece]:
        """What stands for an image in a chat. Raises like `picture`."""
        return [self.before, self.picture(file, place), self.behind]
