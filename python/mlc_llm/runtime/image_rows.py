"""The images of a step: which tokens get their vectors, and what these tokens see."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from mlc_llm.library.metadata import SightInfo
from mlc_llm.runtime.batch import BatchRow, RowImage
from mlc_llm.runtime.kv_cache import Placements
from mlc_llm.runtime.limits import Window
from mlc_llm.runtime.steady_rows import Placement

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mlc_llm.backends.device import Device, DeviceTensor, Table
    from mlc_llm.runtime.image_runner import ImageRunner
else:
    from mlc_llm.later_numpy import np


class StepImages(NamedTuple):
    """`forward`'s inputs for images."""

    tables: list[Table]
    """`vector_at`, then `first_seen` of each group that reads it."""
    vectors: DeviceTensor
    has_some: bool
    """Some token gets one of the vectors."""

    def with_more(self, tokens: int) -> StepImages:
        """The same with so many tokens more, each the first of a sequence and of no image."""
        at, *first_seen = self.tables
        longer = (array("i", [*map(int, one), *[0] * tokens]) for one, _ in first_seen)
        return self._replace(tables=[at, *((one, 0) for one in longer)])


class ImageRows:
    """Of a runner whose library is for images."""

    def __init__(
        self,
        tower: ImageRunner,
        sight: SightInfo,
        windows: Sequence[Window | None],
        hidden: int,
        device: Device,
    ) -> None:
        """windows: of each group of layers. hidden: numbers of a vector."""
        self._tower, self._sight, self._windows, self._device = tower, sight, windows, device
        self._none = device.upload(np.zeros((1, hidden), np.float32))

    def prepare(self, rows: Sequence[BatchRow]) -> None:
        """Compute the vectors that a step needs, before anything is changed. Raises
        RequestError."""
        for row in rows:
            for image in row.images:
                self._tower.vectors(image.picture)

    def given(self, rows: Sequence[BatchRow], placed: Placements) -> tuple[StepImages, Placements]:
        """The inputs, and the placements with what the tokens of images see. rows: in the order of
        the step."""
        at, spans, start = array("i"), [], 0
        found: list[npt.NDArray[np.float32]] = []
        for row in rows:
            for image in row.images:
                first = start + image.at
                at.extend(range(first, first + image.count))
                vectors = self._tower.vectors(image.picture)
                found.append(vectors[image.first : image.first + image.count])
                spans.append((first, image))
            start += len(row.token_ids)
        groups = [self._placed(one, spans) for one in placed.groups]
        tables: list[Table] = [(at if at else array("i", (-1,)), 0)]
        tables += [(self._first_seen(placed.groups[g], g), 0) for g in self._sight.groups]
        vectors = self._device.upload(np.concatenate(found)) if found else self._none
        return StepImages(tables, vectors, bool(found)), placed._replace(groups=groups)

    def _placed(self, placement: Placement, spans: Sequence[tuple[int, RowImage]]) -> Placement:
        """With the last token of the image in the place of each of its tokens."""
        if not spans or not self._sight.is_whole:
            return placement
        places = array("i", placement.places)  # others may have the same list
        for first, image in spans:
            end = first + image.count
            places[first:end] = array("i", [places[end - 1]] * image.count)
        return placement._replace(places=places)

    def _first_seen(self, placement: Placement, group: int) -> array[int]:
        """The first place that each token of the step sees in a group with a window: of tokens of
        an image too, the window counts from the token itself."""
        window = self._windows[group]
        assert window is not None
        return array("i", [place - window.size + 1 for place in placement.places])


def without_ids(row: BatchRow) -> BatchRow:
    """The row with token 0 in the place of each token of an image."""
    ids = list(row.token_ids)
    for image in row.images:
        ids[image.at : image.at + image.count] = [0] * image.count
    return replace(row, token_ids=ids)
