"""Runs the tower of images: one call for an image, whose vectors are kept for a while."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from mlc_llm.errors import RequestError
from mlc_llm.library.image_signatures import IMAGE_EMBED
from mlc_llm.library.metadata import BrokenLibrary, KVGroupInfo
from mlc_llm.runtime.batch import Picture
from mlc_llm.runtime.compute_thread import Computing
from mlc_llm.runtime.layer_memory import MAX_INT32
from mlc_llm.runtime.library import Library
from mlc_llm.runtime.packed_file import ReadWeights, read_packed
from mlc_llm.runtime.params import ordered_params, params_in

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mlc_llm.backends.device import DeviceTensor
else:
    from mlc_llm.later_numpy import np

Floats: TypeAlias = "npt.NDArray[np.float32]"
KEPT_BYTES = 64 * 2**20
"""Of the vectors of images that are kept: a request that begins again, and its other sequences,
need no second run of the tower."""


class ImageRunner:
    """One thread at a time."""

    def __init__(self, library: Path, weights: Path, read: ReadWeights = read_packed) -> None:
        """library, weights: folders made by the compiler.

        Raises BrokenLibrary or BrokenParams for what building again mends.
        """
        self._library, self._compute, self._weights = Library(library), Computing(), weights.name
        self.metadata = metadata = self._library.metadata
        if metadata.tower is None:
            raise BrokenLibrary(f"{library}: it is the library of a model, not of a tower")
        self._device, self._tower = self._library.device, metadata.tower
        arrays = params_in(read(weights))
        params = ordered_params(arrays, metadata.params, self._device)
        self._embed = self._library.with_params(IMAGE_EMBED, params)
        self._inputs = self._tables(metadata.kv.groups[0])
        self._kept: OrderedDict[bytes, Floats] = OrderedDict()
        self.num_computed = 0
        """Images that were computed."""

    @property
    def identity(self) -> str:
        """As of `ModelRunner`."""
        return self._library.identity(self._weights)

    @property
    def launches(self) -> int:
        """As of `ModelRunner`."""
        return self._library.launches

    def vectors(self, picture: Picture) -> Floats:
        """float32 [tokens, width]. Raises RequestError for numbers that are not finite."""
        found = self._kept.get(picture.digest)
        if found is None:
            found = self._compute.call(self._computed, picture)
            if not np.isfinite(found).all():
                raise RequestError("the image's vectors are not finite: the model is broken")
            self._keep(picture.digest, found)
        self._kept.move_to_end(picture.digest)
        return found

    def _keep(self, digest: bytes, vectors: Floats) -> None:
        most = max(KEPT_BYTES // vectors.nbytes, 1)
        while len(self._kept) >= most:
            self._kept.popitem(last=False)
        self._kept[digest] = vectors

    def _computed(self, picture: Picture) -> Floats:
        tower, patches = self._tower, picture.patches()
        assert patches.shape[0] == tower.patches, "an image of another size"
        wide = np.zeros((tower.patches, tower.patch_numbers), np.float32)
        wide[:, : patches.shape[1]] = patches
        self.num_computed += 1
        found = self._embed(self._device.upload(wide), *self._inputs)
        return np.array(self._device.read(found)[:, : tower.width], np.float32)

    def _tables(self, group: KVGroupInfo) -> list[DeviceTensor]:
        """`image_embed`'s inputs from `position` to `pages`: the same for all images."""
        info, count = self.metadata.kv, self._tower.patches
        blocks = array("i")
        for at in range(0, count, group.query_block):
            blocks.extend((at, min(group.query_block, count - at), 0))
        pages = -(-count // info.page_size)
        order = np.arange(count, dtype=np.int32)
        tables = [
            order,
            np.zeros(1, np.int32),  # no fast tokens
            order,
            np.full(count, count - 1, np.int32),
            np.frombuffer(blocks, np.int32).reshape(-1, 3),
            np.arange(pages, dtype=np.int32),
            np.array([MAX_INT32, 0], np.int32),
        ]
        shape = (pages, group.kv_heads, 2, info.page_size * group.head_dim)
        return [
            *(self._device.upload(one) for one in tables),
            self._device.zeros(shape, info.dtype),
        ]
