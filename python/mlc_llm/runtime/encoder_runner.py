"""Runs texts on a compiled encoder: one call of `encode` a step, and nothing that outlives it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from mlc_llm.errors import RequestError, TransferRefused
from mlc_llm.library.encoder_signatures import ENCODE, PROJECT, SCORE
from mlc_llm.library.metadata import BrokenLibrary, KVGroupInfo
from mlc_llm.pooling import Pooling
from mlc_llm.precision import Precision
from mlc_llm.runtime.batch import AdapterParts, Batch, BatchOutput, BatchRow, Sampled
from mlc_llm.runtime.compute_thread import Computing
from mlc_llm.runtime.fast_tokens import FastTokens
from mlc_llm.runtime.layer_memory import MAX_INT32
from mlc_llm.runtime.library import Library
from mlc_llm.runtime.limits import RunnerLimits
from mlc_llm.runtime.packed_file import Packed, ReadWeights, read_packed
from mlc_llm.runtime.params import ordered_params, params_in, rotations
from mlc_llm.runtime.rope import RopeTables
from mlc_llm.runtime.sampler import NOT_FINITE
from mlc_llm.runtime.transfer import Transfer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mlc_llm.backends.device import Table
else:
    from mlc_llm.later_numpy import np

Floats: TypeAlias = "npt.NDArray[np.float32]"


class EncoderRunner:
    """The `Runner` of an encoder (see `batch.py`). One thread at a time.

    A row is a whole text with one sampling, whose outcome is the text's vector, or the scores of a
    pair. All tokens of a step lie one behind the other, so texts of any lengths take part and none
    is padded. A sequence keeps nothing; there are always enough pages.
    """

    def __init__(
        self,
        library: Path,
        weights: Path,
        *,
        pooling: Pooling,
        max_num_sequence: int,
        max_batch_tokens: int,
        context_window: int,
        precision: Precision = "exact",
        read: ReadWeights = read_packed,
    ) -> None:
        """library, weights: folders made by the compiler. precision: see `FastTokens`.

        Raises BrokenLibrary or BrokenParams for what building again mends; InvalidField.
        """
        self._library, self._compute, self._weights = Library(library), Computing(), weights.name
        self.metadata = metadata = self._library.metadata
        if metadata.encoder is None:
            raise BrokenLibrary(f"{library}: it is the library of a decoder")
        self.pooling, size = pooling, metadata.kv.page_size
        pages = max_num_sequence + -(-max_batch_tokens // size)
        self._limits = RunnerLimits(
            num_pages=2 * (pages + max_num_sequence) + -(-context_window // size),
            page_size=size,
            max_num_sequence=max_num_sequence,
            max_batch_tokens=max_batch_tokens,
            context_window=context_window,
            vocab_size=metadata.vocab_size,
            hidden_size=metadata.encoder.width,
            precision=precision,
            is_encoder=True,
            scores=metadata.encoder.labels,
        )
        self._fast = FastTokens(metadata, precision)
        self._load(read(weights), pages)
        self._sequences: set[int] = set()
        self.before_compute: Callable[[], None] = _nothing
        """As of `ModelRunner`."""

    def _load(self, packed: Packed, pages: int) -> None:
        """Weights, and the memory of a step. pages: for the keys and values of one layer."""
        metadata, device, arrays = self.metadata, self._library.device, params_in(packed)
        assert metadata.encoder is not None
        params = ordered_params(arrays, metadata.params, device)
        tokens = self._limits.max_batch_tokens
        given = partial(self._library.with_params, params=params, tokens=tokens)
        self._encode = given(ENCODE)
        self._score = given(SCORE) if metadata.encoder.labels else None
        self._project = given(PROJECT) if metadata.encoder.is_projected else None
        longest, (group,) = self._limits.context_window, metadata.kv.groups
        self._ropes = RopeTables(rotations(arrays, metadata.ropes, longest), device)
        shape = (pages, group.kv_heads, 2, metadata.kv.block_elements(group))
        self._pages = device.zeros(shape, metadata.kv.dtype)
        self._window = device.upload(np.array([MAX_INT32, 0], np.int32))
        self._staging, self._read = device.staging(), device.read

    @property
    def identity(self) -> str:
        """As of `ModelRunner`."""
        return self._library.identity(self._weights, self.pooling)

    @property
    def launches(self) -> int:
        """As of `ModelRunner`."""
        return self._library.launches

    @property
    def limits(self) -> RunnerLimits:
        return self._limits

    @property
    def free_pages(self) -> int:
        return self._limits.num_pages

    def add_sequence(self, seq_id: int) -> None:
        self._sequences.add(seq_id)

    def fork_sequence(self, parent: int, child: int, length: int) -> None:
        raise AssertionError("nothing of a text is kept")

    def rollback_sequence(self, seq_id: int, num_tokens: int) -> None:
        raise AssertionError("nothing of a text is kept")

    def kept_states(self, seq_id: int) -> Sequence[int]:
        return ()

    def export_pages(self, seq_id: int, length: int | None = None) -> Transfer:
        raise TransferRefused("nothing of a text is kept")

    def import_pages(self, seq_id: int, transfer: Transfer, length: int) -> None:
        raise TransferRefused("nothing of a text is kept")

    def remove_sequence(self, seq_id: int) -> None:
        self._sequences.remove(seq_id)

    def load_adapter(self, slot: int, parts: AdapterParts) -> None:
        raise AssertionError("an encoder takes no adapters")

    def reset(self) -> None:
        self._sequences.clear()

    def check_integrity(self) -> None:
        assert len(self._sequences) <= self._limits.max_num_sequence, "sequences"

    def run(self, batch: Batch) -> BatchOutput:
        rows = batch.rows
        for row in rows:
            self._check(row)
        hidden, encoder = self._compute.call(self._hidden, rows), self.metadata.encoder
        assert encoder is not None
        vectors, end = [], 0
        for row in rows:
            of_row, end = hidden[end : end + len(row.token_ids)], end + len(row.token_ids)
            pooling = encoder.pair_pooling if row.second_at else self.pooling
            vectors.append(pooled(of_row, pooling))
        self._change(vectors, [i for i, row in enumerate(rows) if row.second_at], self._score)
        if self._project is not None:
            texts = [i for i, row in enumerate(rows) if not row.second_at]
            self._change(vectors, texts, self._project)
        return BatchOutput([[_sampled(one)] for one in vectors])

    def _change(self, vectors: list[Floats], which: Sequence[int], function: Any) -> None:
        """Some of the vectors become what a function of the library makes of them."""
        if which:
            assert function is not None, "the model compares no texts"
            made = self._compute.call(self._made, function, np.stack([vectors[i] for i in which]))
            for i, found in zip(which, made, strict=True):
                vectors[i] = found

    def _check(self, row: BatchRow) -> None:
        """Raises RequestError."""
        last = self._limits.vocab_size - 1
        assert len(row.samplings) == 1 and row.scoring is None, "a row is a whole text"
        assert len(row.token_ids) <= self._limits.context_window, "the text is too long"
        if not 0 <= min(row.token_ids) <= max(row.token_ids) <= last:
            raise RequestError(f"token id outside 0 to {last}")

    def _hidden(self, rows: Sequence[BatchRow]) -> Floats:
        """Hidden vectors [tokens, hidden] behind the last layer; good until the next step."""
        tokens = array("i", [token for row in rows for token in row.token_ids])
        assert 0 < len(tokens) <= self._limits.max_batch_tokens, f"batch of {len(tokens)} tokens"
        self._fast.arranged(rows, tokens, array("i"))
        position = array("i", [at for row in rows for at in range(len(row.token_ids))])
        ropes, position, _ = self._ropes.rows(position)
        tables = _tables(rows, self.metadata.kv.groups[0], self._limits.page_size, self._fast.count)
        assert self.metadata.encoder is not None
        near = [_near(rows, reach) for reach in self.metadata.encoder.reaches]
        staged = self._staging.tensors(
            (tokens, 0), (self._types(rows), 0), (position, 0), (array("i", [self._fast.count]), 0),
            *tables, *((last, 0) for last, _ in near), *((first, 0) for _, first in near),
        )  # fmt: skip
        self.before_compute()
        seen, count = staged[8:], len(near)
        found = self._encode(
            *staged[:4], ropes, *staged[4:8], seen[:count], seen[count:], self._window, self._pages,
        )  # fmt: skip
        hidden: Floats = self._read(found)
        return hidden

    def _types(self, rows: Sequence[BatchRow]) -> array[int]:
        """Of each token: 1 for those of the second text of a pair, if the model has two types."""
        assert self.metadata.encoder is not None
        second, found = int(self.metadata.encoder.token_types > 1), array("i")
        for row in rows:
            count = len(row.token_ids)
            first = row.second_at or count
            found.extend([0] * first + [second] * (count - first))
        return found

    def _made(self, function: Any, given: Floats) -> Floats:
        staged = self._staging.tensors((array("f", given.ravel()), given.shape[1]))
        return np.array(self._read(function(*staged)))


def pooled(hidden: Floats, pooling: Pooling) -> Floats:
    """hidden: of the tokens of one text."""
    if pooling == "mean":
        return np.asarray(hidden.mean(axis=0, dtype=np.float32))
    return np.array(hidden[0 if pooling == "cls" else -1])


def _near(rows: Sequence[BatchRow], reach: int) -> tuple[array[int], array[int]]:
    """The last place of its text that each token sees, and the first one."""
    last, first = array("i"), array("i")
    for row in rows:
        count = len(row.token_ids)
        last.extend(min(at + reach, count - 1) for at in range(count))
        first.extend(max(at - reach, 0) for at in range(count))
    return last, first


def _tables(rows: Sequence[BatchRow], group: KVGroupInfo, size: int, fast: int) -> list[Table]:
    """`encode`'s inputs from `slots` to `page_ids`. A text begins a page, whose number is its place
    in the list; fast: how many of the first tokens are fast."""
    slots, places, blocks, pages = array("i"), array("i"), array("i"), 0
    for row in rows:
        count, start = len(row.token_ids), len(slots)
        block = group.fast_query_block if start < fast else group.query_block
        for at in range(0, count, block):
            blocks.extend((start + at, min(block, count - at), pages))
        slots.extend(range(pages * size, pages * size + count))
        places.extend([count - 1] * count)
        pages += -(-count // size)
    return [(slots, 0), (places, 0), (blocks, 3), (array("i", range(pages)), 0)]


def _sampled(vector: Floats) -> Sampled:
    error = None if np.isfinite(vector).all() else NOT_FINITE
    return Sampled(0, hidden=vector.tolist(), error=error)


def _nothing() -> None:
    """Nobody wants to know."""
