"""Runs Medusa heads: one call for a head, one to sample, for all sequences together."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlc_llm.errors import RequestError
from mlc_llm.library.medusa_signatures import DRAFT
from mlc_llm.library.metadata import BrokenLibrary
from mlc_llm.runtime.batch import Hidden, Sampled, Sampling
from mlc_llm.runtime.compute_thread import Computing
from mlc_llm.runtime.library import Library
from mlc_llm.runtime.packed_file import ReadWeights, read_packed
from mlc_llm.runtime.params import ordered_params, params_in
from mlc_llm.runtime.sampler import Choice, Sampler

if TYPE_CHECKING:
    from mlc_llm.backends.device import DeviceTensor, Table


class MedusaRunner:
    """See `DraftHeads` in `batch.py`. One thread at a time; nothing of a call outlives it."""

    def __init__(self, library: Path, weights: Path, read: ReadWeights = read_packed) -> None:
        """library, weights: folders made by the compiler.

        Raises BrokenLibrary or BrokenParams for what building again mends.
        """
        self._library, self._compute, self._weights = Library(library), Computing(), weights.name
        self.metadata = metadata = self._library.metadata
        if not metadata.medusa_heads:
            raise BrokenLibrary(f"{library}: it is the library of a model, not of Medusa heads")
        device = self._library.device
        params = ordered_params(params_in(read(weights)), metadata.params, device)
        self._heads = [
            self._library.with_params(f"{DRAFT}{i}", params) for i in range(metadata.medusa_heads)
        ]
        self._sampler, self._staging = Sampler(self._library), device.staging()
        self.before_compute: Callable[[], None] = _nothing
        """As of `ModelRunner`."""

    @property
    def identity(self) -> str:
        """As of `ModelRunner`."""
        return self._library.identity(self._weights)

    @property
    def launches(self) -> int:
        """As of `ModelRunner`."""
        return self._library.launches

    @property
    def count(self) -> int:
        return len(self._heads)

    def sample(
        self, head: int, hidden: Sequence[Hidden], samplings: Sequence[Sampling]
    ) -> list[Sampled]:
        device, vocab = self._library.device, self.metadata.vocab_size
        choice = Choice.of(samplings, vocab, device)
        width = self.metadata.hidden_size
        flat = array("f")
        for vector in hidden:
            flat.extend(vector)
        if len(flat) != width * len(samplings):
            raise RequestError(f"hidden vectors of other sizes than {width}")
        drawn = self._compute.call(self._drawn, head, (flat, width), choice)
        sampled, _ = self._sampler.read(choice, drawn)
        return sampled

    def _drawn(self, head: int, vectors: Table, choice: Choice) -> list[DeviceTensor]:
        hidden, *tables = self._staging.tensors(vectors, *choice.tables)
        self.before_compute()
        return self._sampler.draw(self._heads[head](hidden), choice, tables)


def _nothing() -> None:
    """Nobody wants to know."""
