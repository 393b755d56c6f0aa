"""Runs batches on a compiled model: one call of `forward` a step, one of `sample`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import tvm_ffi

from mlc_llm.errors import InvalidField, RequestError
from mlc_llm.library.metadata import KVInfo, Metadata, StateInfo
from mlc_llm.library.signatures import COPY_PAGES, FORWARD
from mlc_llm.runtime.batch import (
    Batch,
    BatchOutput,
    BatchRow,
    RunnerLimits,
    Sampling,
    Window,
    state_slots,
)
from mlc_llm.runtime.compute_thread import Computing
from mlc_llm.runtime.fast_tokens import FastTokens
from mlc_llm.runtime.kv_cache import (
    KVCache,
    Placements,
    group_pages,
    group_windows,
    main_group,
    narrower_windows,
)
from mlc_llm.runtime.library import Library
from mlc_llm.runtime.packed_file import Packed, ReadWeights, read_packed
from mlc_llm.runtime.params import ordered_params, params_in, rotations
from mlc_llm.runtime.rope import RopeTables
from mlc_llm.runtime.sampler import Choice, Drawn, Sampler

if TYPE_CHECKING:
    from mlc_llm.backends.base import Device, DeviceTensor, Numbers, Table

Array = npt.NDArray[np.generic]
MAX_INT32 = 2**31 - 1


class Pending(NamedTuple):
    """A step whose results are not collected yet."""

    batch: Batch
    choice: Choice
    drawn: Drawn
    """What the sampler has started."""


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
        fast_prompts: bool = False,
        read: ReadWeights = read_packed,
    ) -> None:
        """library, weights: folders made by the compiler. fast_prompts: see `FastTokens`. read:
        gives what is in the folder `weights`.

        Raises BrokenLibrary or BrokenParams for what building again mends; InvalidField.
        """
        self._library, self._compute = Library(library), Computing()
        self.metadata = metadata = self._library.metadata
        device, windows = self._library.device, group_windows(metadata.kv, window)
        self._limits = RunnerLimits(
            num_pages=num_pages,
            page_size=metadata.kv.page_size,
            max_num_sequence=max_num_sequence,
            max_batch_tokens=max_batch_tokens,
            context_window=context_window,
            vocab_size=metadata.vocab_size,
            window=windows[main_group(windows)],
            narrower=narrower_windows(windows),
            has_states=bool(metadata.states),
        )
        _check_window(metadata, window)
        self._fast = FastTokens(metadata, are_wanted=fast_prompts)
        self._set_params(read(weights), device, window)
        self._allocate(windows, device)
        self._forward, self._copy = self._library[FORWARD], self._library[COPY_PAGES]
        self._staging, self._read = device.staging(), device.read
        self._sampler = Sampler(self._library)
        self._choice = Choice.of([], metadata.vocab_size, device)
        """Of the last step; a greedy one mostly serves the next as well."""
        self.before_compute: Callable[[], None] = _nothing
        """Called before code runs for long without Python's lock: a good moment to wake threads."""

    def _allocate(self, windows: Sequence[Window | None], device: Device) -> None:
        """Pages, states, and who owns which. windows: of each group."""
        info, sequences = self.metadata, self._limits.max_num_sequence
        counts = group_pages(windows, self._limits)
        self._pages = allocate_pages(info.kv, counts, device)
        self._states = allocate_states(info.states, sequences, device)
        self._windows = _window_tensors(windows, device)
        self._cache = KVCache(
            info.kv, counts, sequences, self._copy_pages, windows, has_states=bool(info.states)
        )

    def _set_params(self, packed: Packed, device: Device, window: Window | None) -> None:
        arrays = params_in(packed)
        self._params = ordered_params(arrays, self.metadata.params, device)
        far = None if window is None else window.far
        single = self._limits.context_window
        longest = single if far is None else min(single, far + 1)
        ropes = rotations(arrays, self.metadata.ropes, longest)
        spare = 0 if window is None else self._limits.max_batch_tokens
        self._ropes = RopeTables(ropes, device, far=far, step_tokens=spare)

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
        return self.collect(self.submit(batch))

    def submit(self, batch: Batch) -> Pending:
        """Start a step. A device may still compute when this returns; no other step may start
        before `collect`."""
        samplings: list[Sampling] = []
        tokens, sampled = array("i"), array("i")
        for row in batch.rows:
            self._check(row)
            tokens.extend(row.token_ids)
            sampled.extend(range(len(tokens) - len(row.samplings), len(tokens)))
            samplings += row.samplings
        assert 0 < len(tokens) <= self._limits.max_batch_tokens, f"batch of {len(tokens)} tokens"
        if not self._choice.is_for(samplings):
            self._choice = Choice.of(samplings, self._limits.vocab_size, self._library.device)
        rows, ids, logit_rows = self._fast.arranged(batch.rows, tokens, sampled)
        placed = self._place(rows)
        try:
            drawn = self._compute.call(self._drawn, ids, placed, logit_rows)
            return Pending(batch, self._choice, drawn)
        except BaseException:
            # Nothing has happened: the core may run the rows again, one by one.
            for row in rows:
                self._cache.rollback(row.seq_id, len(row.token_ids))
            raise

    def _drawn(self, tokens: Numbers, placed: Placements, logit_rows: Numbers) -> Drawn:
        logits, rest = self._logits(tokens, placed, logit_rows, self._choice.tables)
        return self._sampler.draw(logits, self._choice, rest)

    def collect(self, pending: Pending) -> BatchOutput:
        """Wait for a step that was submitted, and read what it has chosen."""
        samples = self._sampler.read(pending.choice, pending.drawn)
        answers, start = [], 0
        for row in pending.batch.rows:
            count = len(row.samplings)
            answers.append(samples[start : start + count])
            start += count
            self._cache.trim(row.seq_id, max(count - 1, 0))  # drafted tokens may be rolled back
        return BatchOutput(answers)

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
                rows, tokens, logit_rows = self._fast.arranged(
                    whole, array("i", part), array("i", range(len(part)))
                )
                placed = self._place(rows)
                logits, _ = self._compute.call(self._logits, tokens, placed, logit_rows)
                self._cache.trim(seq_id)
                yield self._read(logits)[:, : self._limits.vocab_size].copy()
        finally:
            self._cache.remove(seq_id)

    def _place(self, rows: Sequence[BatchRow]) -> Placements:
        return self._cache.place(
            [(row.seq_id, len(row.token_ids)) for row in rows], self._fast.count
        )

    def _logits(
        self, tokens: Numbers, placed: Placements, logit_rows: Numbers, more: Sequence[Table] = ()
    ) -> tuple[DeviceTensor, list[DeviceTensor]]:
        """Logits behind the tokens at `logit_rows`, and the tables `more` as tensors: all go in at
        once, while the code that does it is in the processor's caches."""
        ropes, position, sink_position = self._ropes.rows(placed.position)
        tables: list[Table] = [
            (tokens, 0),
            (position, 0),
            (sink_position, 0),
            (array("i", (self._fast.count,)), 0),
            (logit_rows, 0),
        ]
        for slots, places, blocks, page_ids in placed.groups:
            tables += ((slots, 0), (places, 0), (blocks, 3), (page_ids, 0))
        first, last = 5, 5 + 4 * len(placed.groups)
        if placed.state_rows is not None:
            more = ((placed.state_rows, 4), *more)
        tensors = self._staging.tensors(*tables, *more)
        rest = tensors[last:]
        states = () if placed.state_rows is None else (rest.pop(0), self._states)
        self.before_compute()
        logits = self._forward(
            *tensors[:first],
            ropes,
            tensors[first:last:4],  # written out: this runs for every token
            tensors[first + 1 : last : 4],
            tensors[first + 2 : last : 4],
            tensors[first + 3 : last : 4],
            self._windows,
            self._pages,
            *states,
            self._params,
        )
        return logits, rest

    def _copy_pages(self, group: int, source: list[int], target: list[int]) -> None:
        groups, none = len(self.metadata.kv.groups), array("i")
        tables: list[Table] = []
        for ids in (source, target):
            tables += [(array("i", ids) if g == group else none, 0) for g in range(groups)]
        tensors = self._staging.tensors(*tables)
        self._compute.call(self._copy, tensors[:groups], tensors[groups:], self._pages)

    def _check(self, row: BatchRow) -> None:
        assert len(row.samplings) <= len(row.token_ids), "a sampling without its token"
        if not 0 <= min(row.token_ids) <= max(row.token_ids) < self._limits.vocab_size:
            raise RequestError(f"token id outside 0 to {self._limits.vocab_size - 1}")


def _check_window(metadata: Metadata, window: Window | None) -> None:
    """Raises InvalidField unless the library was made with a window, or without, as this."""
    if metadata.has_window != (window is not None):
        has = "for" if metadata.has_window else "without"
        words = f"this library is one {has} sliding windows; leave model_lib out"
        raise InvalidField("sliding_window_size", window.size if window else -1, words)


def allocate_pages(info: KVInfo, counts: Sequence[int], device: Device) -> tvm_ffi.Array:
    """One zeroed tensor a layer of attention; counts: pages of each group."""
    tensors: dict[int, DeviceTensor] = {}
    for group, count in zip(info.groups, counts, strict=True):
        shape = (count, group.kv_heads, 2, info.page_size * group.head_dim)
        tensors |= {layer: device.zeros(shape, info.dtype) for layer in group.layers}
    return tvm_ffi.convert([tensor for _, tensor in sorted(tensors.items())])


def allocate_states(infos: Sequence[StateInfo], sequences: int, device: Device) -> tvm_ffi.Array:
    """One zeroed tensor a recurrent layer."""
    slots = state_slots(sequences)
    return tvm_ffi.convert([device.zeros((slots, *one.shape), "float32") for one in infos])


def _window_tensors(windows: Sequence[Window | None], device: Device) -> tvm_ffi.Array:
    """`forward`'s input `windows`; without a window a token sees all before it."""
    seen = [(one.size, one.sinks) if one else (MAX_INT32, 0) for one in windows]
    return tvm_ffi.convert([device.upload(np.array(pair, np.int32)) for pair in seen])


def _nothing() -> None:
    """Nobody wants to know."""
