"""How an engine with a tower reads images: from an address or a file to pictures, and the tokens
that a model's processor puts around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, TypeAlias

from mlc_llm.images.decoder import ImageFile, ImageLimits, decoded, pictures_of
from mlc_llm.images.picture import Picture
from mlc_llm.images.pixels import PixelForm
from mlc_llm.record import record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from mlc_llm.later_numpy import np

FAKE, GLOBAL = "<fake_token_around_image>", "<global-img>"
"""Control tokens of Idefics 3."""
Piece: TypeAlias = "str | Picture"


@record()
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
        target = replace(self.form.target, is_cut=False)
        return self._picture(decoded(file, target, self.limits, place))

    def _picture(self, pixels: npt.NDArray[np.uint8]) -> Picture:
        return Picture(pixels, self.form, self.patch, self.tokens)

    def pieces(self, file: ImageFile, place: str) -> list[Piece]:
        """What stands for an image in a chat. Raises like `picture`."""
        return [self.before, self.picture(file, place), self.behind]


@record()
class TileReader(ImageReader):
    """Of a model whose images are cut into tiles (Idefics 3, SmolVLM): each tile is a picture, and
    behind them stands the whole image as one."""

    def pieces(self, file: ImageFile, place: str) -> list[Piece]:
        """As Idefics3Processor of Transformers writes them."""
        found = pictures_of(file, self.form.target, self.limits, place)
        side = self.form.target.width
        if found[0].shape[:2] == (side, side):
            return [f"{FAKE}{GLOBAL}", self._picture(found[0]), FAKE]
        whole, small = found
        pieces: list[Piece] = []
        for row in range(whole.shape[0] // side):
            for column in range(whole.shape[1] // side):
                tile = whole[row * side : (row + 1) * side, column * side : (column + 1) * side]
                pieces.append(f"{FAKE}<row_{row + 1}_col_{column + 1}>")
                pieces.append(self._picture(np.ascontiguousarray(tile)))
            pieces.append("\n")
        return [*pieces, f"\n{FAKE}{GLOBAL}", self._picture(small), FAKE]
