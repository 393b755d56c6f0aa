"""Runs batches on a compiled model: one call of `forward` a step, one of `sample`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi

from mlc_llm.errors import InvalidField, RequestError
from mlc_llm.model_lib import COPY_PAGES, FORWARD, ROPE_PARAM, KVInfo
from mlc_llm.runtime.batch import (
    Batch,
    BatchOutput,
    BatchRow,
    RunnerLimits,
    Sampled,
    Sampling,
    Window,
)
from mlc_llm.runtime.coarse_rows import CoarseRows
from mlc_llm.runtime.compute_thread import Computing
from mlc_llm.runtime.executable import Executable
from mlc_llm.runtime.kv_cache import KVCache, Placement
from mlc_llm.runtime.memory import zeroed
from mlc_llm.runtime.params import ordered_params, params_in
from mlc_llm.runtime.read_ahead import packed_of
from mlc_llm.runtime.rope import RopeTable, StreamedRope
from mlc_llm.runtime.sampler import Choice, Sampler
from mlc_llm.runtime.staging import Numbers, Staging, Table
from mlc_llm.runtime.threads import configure_threads

Array = npt.NDArray[Any]
MAX_INT32 = 2**31 - 1


class ModelRunner:
    """The `Runner` of a real model (see `batch.py`). One thread at a time."""

    def __init__(
        self,
        library: Path,
        weights: Path,
        *,
        num_pages: int,
        max_num_sequence: int,
        max_batch_tokens: int,
        context_window: int,
        window: Window | None = None,
        coarse_prompts: bool = False,
    ) -> None:
        """library, weights: folders made by the compiler. coarse_prompts: see `CoarseRows`.

        Raises BrokenLibrary or BrokenParams for what building again mends; InvalidField.
        """
        configure_threads()
        self._executable, self._compute = Executable(library), Computing()
        self.metadata = metadata = self._executable.metadata
        self._coarse = CoarseRows(self.metadata, are_wanted=coarse_prompts)
        arrays = params_in(packed_of(weights))
        self._params = ordered_params(arrays, self.metadata.params)
        self._rope = self._rope_for(np.array(arrays[ROPE_PARAM]), window, max_batch_tokens)
        self._pages = allocate_pages(self.metadata.kv, num_pages)
        self._forward = self._executable[FORWARD]
        self.before_compute: Callable[[], None] = _nothing
        """Called when compiled code is about to run for long. Python's lock is free from then on:
        a good moment to wake the threads that would otherwise get in the way."""
        self._staging = Staging()
        self._sampler = Sampler(self._executable, metadata.vocab_size)
        self._choice = Choice.of([], self.metadata.vocab_size)
        """Of the last step; a greedy one mostly serves the next as well."""
        self._copy = self._executable[COPY_PAGES]
        self._cache = KVCache(metadata.kv, num_pages, max_num_sequence, self._copy_pages, window)
        self._window = _seen(window)
        self._limits = RunnerLimits(
            num_pages=num_pages,
            page_size=metadata.kv.page_size,
            max_num_sequence=max_num_sequence,
            max_batch_tokens=max_batch_tokens,
            context_window=context_window,
            vocab_size=metadata.vocab_size,
            window=window,
        )

    @property
    def limits(self) -> RunnerLimits:
        return self._limits

    @property
    def free_pages(self) -> int:
        return self._cache.free_pages

    def add_sequence(self, seq_id: int) -> None:
        self._cache.add(seq_id)

    def fork_sequence(self, parent: int, child: int, length: int) -> None:
        self._cache.fork(parent, child, length)

    def rollback_sequence(self, seq_id: int, num_tokens: int) -> None:
        self._cache.rollback(seq_id, num_tokens)

    def remove_sequence(self, seq_id: int) -> None:
        self._cache.remove(seq_id)

    def reset(self) -> None:
        self._cache.reset()

    def check_integrity(self) -> None:
        self._cache.check_integrity()

    def run(self, batch: Batch) -> BatchOutput:
        samplings: list[Sampling] = []
        tokens, places = array("i"), array("i")
        for row in batch.rows:
            self._check(row)
            tokens.extend(row.token_ids)
            places.extend(range(len(tokens) - len(row.samplings), len(tokens)))
            samplings += row.samplings
        assert 0 < len(tokens) <= self._limits.max_batch_tokens, f"batch of {len(tokens)} tokens"
        if not self._choice.is_for(samplings):
            self._choice = Choice.of(samplings, self._limits.vocab_size)
        samples = self._run(*self._coarse.arranged(batch.rows, tokens, places), self._choice)
        answers, start = [], 0
        for row in batch.rows:
            answers.append(samples[start : start + len(row.samplings)])
            start += len(row.samplings)
            if len(row.samplings) <= 1:  # else a part of it may be rolled back
                self._cache.trim(row.seq_id)
        return BatchOutput(answers)

    def _run(
        self, rows: Sequence[BatchRow], tokens: Numbers, places: Numbers, choice: Choice
    ) -> list[Sampled]:
        """places: of the tokens behind which one is chosen."""
        place = self._place(rows)
        try:
            return self._compute.call(self._chosen, tokens, place, places, choice)
        except BaseException:
            # Nothing has happened: the core may run the rows again, one by one.
            for row in rows:
                self._cache.rollback(row.seq_id, len(row.token_ids))
            raise

    def _chosen(
        self, tokens: Numbers, place: Placement, places: Numbers, choice: Choice
    ) -> list[Sampled]:
        logits, rest = self._logits(tokens, place, places, choice.tables)
        return self._sampler.choose(logits, choice, rest)

    def logits(
        self, token_ids: Sequence[int], *, chunk: int | None = None, prompt_tokens: int = 0
    ) -> Array:
        """Logits float32 [len, vocab] of all positions of a fresh sequence, for measurements.

        chunk: tokens a step; 1 goes through the decode path. prompt_tokens: how many of the first
        count as a prompt.
        """
        return np.concatenate(list(self.logits_by_step(token_ids, chunk, prompt_tokens)))

    def logits_by_step(
        self, token_ids: Sequence[int], chunk: int | None = None, prompt_tokens: int = 0
    ) -> Iterator[Array]:
        """The same, for texts whose logits are too many."""
        seq_id = -1
        self._cache.add(seq_id)
        try:
            for start in range(0, len(token_ids), chunk or self._limits.max_batch_tokens):
                part = token_ids[start : start + (chunk or self._limits.max_batch_tokens)]
                of_prompt = min(max(prompt_tokens - start, 0), len(part))
                whole = [BatchRow(seq_id, part, (), of_prompt)]
                rows, tokens, places = self._coarse.arranged(
                    whole, array("i", part), array("i", range(len(part)))
                )
                place = self._place(rows)
                logits, _ = self._compute.call(self._logits, tokens, place, places)
                self._cache.trim(seq_id)
                yield np.from_dlpack(logits)[:, : self._limits.vocab_size].copy()
        finally:
            self._cache.remove(seq_id)

    def _place(self, rows: Sequence[BatchRow]) -> Placement:
        return self._cache.place(
            [(row.seq_id, len(row.token_ids)) for row in rows], self._coarse.tokens
        )

    def _logits(
        self,
        tokens: Numbers,
        place: Placement,
        places: Numbers,
        more: Sequence[Table] = (),
    ) -> tuple[Any, list[Any]]:
        """Logits behind the tokens at `places`, and the tables `more` as tensors: all go in at
        once, while the code that does it is in the processor's caches."""
        rope, positions = self._turned(place)
        tensors = self._staging.tensors(
            (tokens, 0),
            (place.slot, 0),
            (positions, 0),
            (place.tiles, 3),
            (place.page_ids, 0),
            (places, 0),
            *more,
        )
        self.before_compute()
        ids, *where, logit_rows = tensors[:6]
        logits = self._forward(
            ids,
            rope,
            *where,
            self._window,
            self._coarse.count,
            logit_rows,
            self._pages,
            self._params,
        )
        return logits, tensors[6:]

    def _rope_for(
        self, inverse: Array, window: Window | None, most: int
    ) -> RopeTable | StreamedRope:
        """Raises InvalidField unless the library was made with a window, or without, as this."""
        if window is None and not self.metadata.has_window:
            return RopeTable(inverse)
        if window is None or not self.metadata.has_window:
            has = "for" if self.metadata.has_window else "without"
            words = f"this library is one {has} sliding windows; leave model_lib out"
            raise InvalidField("sliding_window_size", window.size if window else -1, words)
        return StreamedRope(inverse, window.far, most)

    def _turned(self, place: Placement) -> tuple[Any, Numbers]:
        """`forward`'s inputs `rope` and `position`."""
        if isinstance(self._rope, RopeTable):
            return self._rope.reaching(place.longest), place.place
        rope, rows = self._rope.rows(place.position)
        return rope, place.place + rows

    def _copy_pages(self, source: list[int], target: list[int]) -> None:
        indices = [(array("i", ids), 0) for ids in (source, target)]
        tensors = self._staging.tensors(*indices)
        self._compute.call(self._copy, *tensors, self._pages)

    def _check(self, row: BatchRow) -> None:
        assert len(row.samplings) <= len(row.token_ids), "a sampling without its token"
        if not 0 <= min(row.token_ids) <= max(row.token_ids) < self._limits.vocab_size:
            raise RequestError(f"token id outside 0 to {self._limits.vocab_size - 1}")


def allocate_pages(info: KVInfo, num_pages: int) -> Any:
    """One zeroed tensor a layer. Memory is taken from the system when a page is first written."""
    shape = (num_pages, info.kv_heads, 2, info.page_size * info.head_dim)
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(info.dtype).itemsize
    tensors = []
    for _ in range(info.num_layers):
        memory = zeroed(size).view(info.dtype)
        tensors.append(tvm_ffi.from_dlpack(memory.reshape(shape)))
    return tvm_ffi.convert(tensors)


def _seen(window: Window | None) -> Any:
    """`forward`'s tensor `window`; without a window a token sees all before it."""
    seen = zeroed(8).view(np.int32)
    seen[:] = (window.size, window.sinks) if window else (MAX_INT32, 0)
    return tvm_ffi.from_dlpack(seen)


def _nothing() -> None:
    """Nobody wants to know."""
