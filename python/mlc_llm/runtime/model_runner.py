"""Runs batches on a compiled model: one call of `forward` a step, one of `sample`."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from mlc_llm.library.metadata import BrokenLibrary, Metadata
from mlc_llm.library.signatures import COPY_PAGES, FORWARD, LAST_HIDDEN
from mlc_llm.precision import Precision
from mlc_llm.runtime.adapters import AdapterMemory, adapter_slots, check_adapters
from mlc_llm.runtime.batch import (
    NO_ADAPTER,
    NO_ADAPTERS,
    AdapterLimits,
    AdapterParts,
    Batch,
    BatchOutput,
    BatchRow,
    RowImage,
    RunnerLimits,
    Sampled,
    Window,
)
from mlc_llm.runtime.carrier import Carrier
from mlc_llm.runtime.compute_thread import Computing
from mlc_llm.runtime.fast_tokens import FastTokens
from mlc_llm.runtime.gathered import by_row, gathered
from mlc_llm.runtime.image_rows import ImageRows, StepImages, without_ids
from mlc_llm.runtime.kv_cache import (
    KVCache,
    Placements,
    group_pages,
    group_windows,
    main_group,
    narrower_windows,
)
from mlc_llm.runtime.layer_memory import (
    allocate_pages,
    allocate_states,
    check_window,
    window_tensors,
)
from mlc_llm.runtime.library import Library, item
from mlc_llm.runtime.packed_file import Packed, ReadWeights, read_packed
from mlc_llm.runtime.params import ordered_params, params_in, rotations
from mlc_llm.runtime.rope import RopeTables
from mlc_llm.runtime.sampler import NOT_FINITE, Choice, Drawn, Sampler
from mlc_llm.runtime.step_inputs import StepInputs, step_tables
from mlc_llm.runtime.transfer import Transfer

if TYPE_CHECKING:
    import tvm_ffi

    from mlc_llm.backends.base import Device, DeviceTensor, Numbers, Table
    from mlc_llm.runtime.image_runner import ImageRunner

Array = npt.NDArray[np.generic]
FUNCTIONS = (FORWARD, COPY_PAGES, LAST_HIDDEN)
"""The sampler calls the others."""
LOGITS, HIDDEN = 0, 1
"""Places in what `forward` returns."""


class Pending(NamedTuple):
    """A step whose results are not collected yet."""

    batch: Batch
    choice: Choice
    drawn: Drawn
    """What the sampler has started."""
    hidden: DeviceTensor | None
    """Hidden vectors, of the samplings that want them."""


class _Step(NamedTuple):
    """The numbers of a step, in the order in which its tokens are computed."""

    tokens: Numbers
    placed: Placements
    logit_rows: Numbers
    adapters: Numbers | None
    """The slot of each token; None: the library is one without adapters."""
    images: StepImages | None
    """None: it is one without images."""


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
        precision: Precision = "exact",
        read: ReadWeights = read_packed,
        adapters: AdapterLimits = NO_ADAPTERS,
        tower: ImageRunner | None = None,
    ) -> None:
        """library, weights: folders made by the compiler. precision: see `FastTokens`. read:
        gives what is in the folder `weights`. tower: for a library that is for images.

        Raises BrokenLibrary or BrokenParams for what building again mends; InvalidField.
        """
        self._library, self._compute, self._weights = Library(library), Computing(), weights.name
        self.metadata = metadata = self._library.metadata
        device, windows = self._library.device, group_windows(metadata.kv, window)
        self._tower = tower
        self._limits = _limits(metadata, windows, tower, RunnerLimits(
            num_pages=num_pages,
            page_size=metadata.kv.page_size,
            max_num_sequence=max_num_sequence,
            max_batch_tokens=max_batch_tokens,
            context_window=context_window,
            vocab_size=metadata.vocab_size,
            precision=precision,
            adapters=adapters,
        ))  # fmt: skip
        check_window(metadata, window)
        self._bind(device)
        self._fast = FastTokens(metadata, precision)
        self._set_params(read(weights), device, window)
        self._allocate(windows, device)
        self._choice = Choice.of([], metadata.vocab_size, device)
        """Of the last step; a greedy one mostly serves the next as well."""
        self.before_compute: Callable[[], None] = lambda: None
        """Called before code runs for long without Python's lock: a good moment to wake threads."""

    def _bind(self, device: Device) -> None:
        check_adapters(self.metadata, self._limits.adapters)
        self._forward, self._copy, self._last_hidden = map(self._library.__getitem__, FUNCTIONS)
        self._staging, self._read = device.staging(), device.read
        self._sampler, self._inputs = Sampler(self._library), StepInputs([], (), (), (), [])

    def _allocate(self, windows: Sequence[Window | None], device: Device) -> None:
        """Pages, states, and who owns which. windows: of each group."""
        info, sequences = self.metadata, self._limits.max_num_sequence
        counts = group_pages(windows, self._limits)
        self._pages = allocate_pages(info.kv, counts, device)
        self._states = allocate_states(info.states, sequences, device)
        self._windows = window_tensors(windows, device)
        self._images = self._image_rows(windows, device)
        limits = self._limits.adapters
        self._adapters = AdapterMemory(info.adapted, limits, device) if limits.slots else None
        self._cache = KVCache(
            info.kv, counts, sequences, self._copy_pages, windows, has_states=bool(info.states)
        )
        self._carrier = Carrier(info.kv, self._cache, self._pages, self._states, device)

    def _image_rows(self, windows: Sequence[Window | None], device: Device) -> ImageRows | None:
        """Raises BrokenLibrary unless the library is for images, or without, as this runner."""
        sight = self.metadata.sight
        if (sight is None) != (self._tower is None):
            raise BrokenLibrary("the library is not made for images as the model is")
        if sight is None or self._tower is None:
            return None
        return ImageRows(self._tower, sight, windows, self.metadata.hidden_size, device)

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
    def identity(self) -> str:
        """A hash of the library's code and of the name of the weights' folder, which in the cache
        is a hash of the model's bytes."""
        tower = "" if self._tower is None else self._tower.identity
        text = f"{self.metadata.to_json()} {self._weights} {tower}".rstrip()
        return hashlib.sha256(text.encode()).hexdigest()

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

    def kept_states(self, seq_id: int) -> Sequence[int]:
        return self._cache.kept_states(seq_id)

    def remove_sequence(self, seq_id: int) -> None:
        self._cache.remove(seq_id)

    def export_pages(self, seq_id: int, length: int | None = None) -> Transfer:
        return self._carrier.take(seq_id, self.identity, length)

    def import_pages(self, seq_id: int, transfer: Transfer, length: int) -> None:
        transfer.check(self.identity, length)
        self._carrier.put(seq_id, transfer)

    def load_adapter(self, slot: int, parts: AdapterParts) -> None:
        """Put a LoRA adapter into a slot."""
        assert self._adapters is not None, "the library is one without adapters"
        self._adapters.load(slot, parts)

    def reset(self) -> None:
        self._cache.reset()

    def check_integrity(self) -> None:
        self._cache.check_integrity()

    def run(self, batch: Batch) -> BatchOutput:
        return self.collect(self.submit(batch))

    def submit(self, batch: Batch) -> Pending:
        """Start a step. A device may still compute when this returns; no other step may start
        before `collect`."""
        plain = self._without_images(batch.rows)
        asked = gathered(plain, self._limits.vocab_size)
        number = len(asked.tokens)
        assert 0 < number <= self._limits.max_batch_tokens, f"batch of {number} tokens"
        if asked.scorings or not self._choice.is_for(asked.samplings):
            self._choice = Choice.of(
                asked.samplings, self._limits.vocab_size, self._library.device, asked.scorings
            )
        rows, ids, logit_rows = self._fast.arranged(plain, asked.tokens, asked.logit_rows)
        placed = self._place(rows)
        try:
            step = self._step(rows, ids, placed, logit_rows)
            drawn, hidden = self._compute.call(self._drawn, step)
            return Pending(batch, self._choice, drawn, hidden)
        except BaseException:
            # Nothing has happened: the core may run the rows again, one by one.
            for row in batch.rows:
                self._cache.rollback(row.seq_id, len(row.token_ids))
            raise

    def _drawn(self, step: _Step) -> tuple[Drawn, DeviceTensor | None]:
        choice, wanted = self._choice, None
        outputs, rest = self._outputs(step, choice.tables)
        if choice.hidden:
            *rest, rows = rest  # the list itself is kept for the next step
            wanted = self._last_hidden(item(outputs, HIDDEN), rows, self._params)
        return self._sampler.draw(item(outputs, LOGITS), choice, rest), wanted

    def collect(self, pending: Pending) -> BatchOutput:
        """Wait for a step that was submitted, and read what it has chosen."""
        samples, scores = self._sampler.read(pending.choice, pending.drawn)
        if pending.hidden is not None:
            self._add_hidden(samples, pending)
        for row in pending.batch.rows:
            # drafted tokens may be rolled back
            self._cache.trim(row.seq_id, max(len(row.samplings) - 1, 0))
        return BatchOutput(by_row(pending.batch.rows, samples, scores))

    def _add_hidden(self, samples: Sequence[Sampled], pending: Pending) -> None:
        for i, vector in zip(pending.choice.hidden, self._read(pending.hidden), strict=True):
            samples[i].hidden = vector.tolist()
            if not np.isfinite(vector).all():
                samples[i].error = NOT_FINITE

    def logits(
        self,
        token_ids: Sequence[int],
        *,
        chunk: int | None = None,
        prompt_tokens: int = 0,
        adapter: int = NO_ADAPTER,
        images: Sequence[RowImage] = (),
    ) -> Array:
        """Logits float32 [len, vocab] of all positions of a fresh sequence, for measurements.

        chunk: tokens a step; 1 goes through the decode path. prompt_tokens: how many of the first
        count as a prompt. images: of the first step.
        """
        steps = self.logits_by_step(token_ids, chunk, prompt_tokens, adapter, images)
        return np.concatenate(list(steps))

    def logits_by_step(
        self,
        token_ids: Sequence[int],
        chunk: int | None = None,
        prompt_tokens: int = 0,
        adapter: int = NO_ADAPTER,
        images: Sequence[RowImage] = (),
    ) -> Iterator[Array]:
        """The same, for texts whose logits are too many."""
        seq_id = -1
        self._cache.add(seq_id)
        try:
            for start in range(0, len(token_ids), chunk or self._limits.max_batch_tokens):
                part = token_ids[start : start + (chunk or self._limits.max_batch_tokens)]
                of_prompt = min(max(prompt_tokens - start, 0), len(part))
                row = BatchRow(
                    seq_id, part, (), of_prompt, adapter=adapter, images=() if start else images
                )
                whole = self._without_images([row])
                rows, tokens, logit_rows = self._fast.arranged(
                    whole, array("i", whole[0].token_ids), array("i", range(len(part)))
                )
                placed = self._place(rows)
                step = self._step(rows, tokens, placed, logit_rows)
                outputs, _ = self._compute.call(self._outputs, step)
                self._cache.trim(seq_id)
                logits = self._read(item(outputs, LOGITS))
                yield logits[:, : self._limits.vocab_size].copy()
        finally:
            self._cache.remove(seq_id)

    def _without_images(self, rows: Sequence[BatchRow]) -> Sequence[BatchRow]:
        """The rows with plain ids. The vectors of their images are computed."""
        if self._images is None or not any(row.images for row in rows):
            return rows
        self._images.prepare(rows)
        return [without_ids(row) if row.images else row for row in rows]

    def _place(self, rows: Sequence[BatchRow]) -> Placements:
        keep = {row.seq_id: row.keep_states for row in rows if row.keep_states}
        return self._cache.place(
            [(row.seq_id, len(row.token_ids)) for row in rows], self._fast.count, keep
        )

    def _step(
        self,
        rows: Sequence[BatchRow],
        tokens: Numbers,
        placed: Placements,
        logit_rows: Numbers,
    ) -> _Step:
        owned = None if self._adapters is None else adapter_slots(rows)
        if self._images is None:
            return _Step(tokens, placed, logit_rows, owned, None)
        images, placed = self._images.given(rows, placed)
        return _Step(tokens, placed, logit_rows, owned, images)

    def _outputs(
        self, step: _Step, more: Sequence[Table] = ()
    ) -> tuple[tvm_ffi.Array, list[DeviceTensor]]:
        """Logits behind the tokens at `logit_rows` and what they are made of, and the tables `more`
        as tensors. All go in at once, while the code that does it is in the processor's caches."""
        placed, images = step.placed, step.images
        ropes, position, sink_position = self._ropes.rows(placed.position)
        fast, seen = array("i", (self._fast.count,)), [] if images is None else images.tables
        shared = (step.tokens, position, sink_position, fast, step.logit_rows)
        tensors = self._staging.tensors(*step_tables(shared, placed, step.adapters, seen), *more)
        if tensors is not self._inputs.tensors:
            adapters = None if self._adapters is None else self._adapters.inputs
            self._inputs = StepInputs.of(
                tensors, len(placed.groups), self._states, adapters, len(seen)
            )
        _, single, by_group, states, rest = self._inputs
        vectors = () if images is None else (images.vectors,)
        self.before_compute()
        outputs = self._forward(
            *single, ropes, *by_group, self._windows, self._pages, *states, *vectors, self._params
        )
        return outputs, rest

    def _copy_pages(self, group: int, source: list[int], target: list[int]) -> None:
        groups, none = len(self.metadata.kv.groups), array("i")
        tables: list[Table] = []
        for ids in (source, target):
            tables += [(array("i", ids) if g == group else none, 0) for g in range(groups)]
        tensors = self._staging.tensors(*tables)
        self._compute.call(self._copy, tensors[:groups], tensors[groups:], self._pages)


def _limits(
    metadata: Metadata,
    windows: Sequence[Window | None],
    tower: ImageRunner | None,
    asked: RunnerLimits,
) -> RunnerLimits:
    """What was asked for, with what the library says. windows: of each group of layers."""
    return replace(
        asked,
        window=windows[main_group(windows)],
        narrower=narrower_windows(windows),
        has_states=bool(metadata.states),
        hidden_size=metadata.hidden_size,
        image_tokens=0 if tower is None else tower.tokens,
        whole_images=metadata.sight is not None and metadata.sight.is_whole,
    )
