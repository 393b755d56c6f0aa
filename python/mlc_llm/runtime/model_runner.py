"""Runs batches on a compiled model: one call of `forward` a step, one of `sample`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from mlc_llm.errors import TransferRefused
from mlc_llm.library.metadata import BrokenLibrary
from mlc_llm.library.page_format import KVCacheDtype
from mlc_llm.precision import Precision
from mlc_llm.runtime.adapters import check_adapters
from mlc_llm.runtime.batch import (
    NO_ADAPTER,
    AdapterParts,
    Batch,
    BatchOutput,
    BatchRow,
    RowImage,
    Sampled,
)
from mlc_llm.runtime.carrier import Carrier
from mlc_llm.runtime.compute_thread import Computing
from mlc_llm.runtime.decode_rows import ChosenTokens, DecodeRows
from mlc_llm.runtime.decode_steps import DecodeSteps
from mlc_llm.runtime.fast_tokens import FastTokens
from mlc_llm.runtime.gathered import by_row
from mlc_llm.runtime.image_rows import ImageRows
from mlc_llm.runtime.kv_cache import KVCache, group_windows
from mlc_llm.runtime.layer_memory import check_page_format, check_window
from mlc_llm.runtime.library import Library, item
from mlc_llm.runtime.limits import NO_ADAPTERS, AdapterLimits, RunnerLimits, Window
from mlc_llm.runtime.model_step import HIDDEN, LOGITS, MakeStep, ModelStep, Sizes, limits_of
from mlc_llm.runtime.packed_file import ReadWeights, read_packed
from mlc_llm.runtime.prepared import Preparation
from mlc_llm.runtime.sampler import NOT_FINITE, Choice, Sampler
from mlc_llm.runtime.state_table import StateTable
from mlc_llm.runtime.step_inputs import StepNumbers, Taken
from mlc_llm.runtime.transfer import Transfer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mlc_llm.backends.device import Device, DeviceTensor, Fetched
    from mlc_llm.runtime.image_runner import ImageRunner
else:
    from mlc_llm.later_numpy import np

Array: TypeAlias = "npt.NDArray[np.generic]"


@dataclass(slots=True)
class Pending:
    """A step whose results are not collected yet."""

    batch: Batch
    choice: Choice
    drawn: list[DeviceTensor]
    """What the sampler has started."""
    fetched: Fetched
    """Its values, and behind them the hidden vectors of the samplings that want them, if any."""
    drafts: bool
    """All its tokens will be rolled back."""


class ModelRunner:
    """The `Runner` of a real model (see `batch.py`). One thread at a time."""

    _last: Pending | None = None
    """The step that was started last."""
    undone = 0
    """Tokens of a sequence that may be rolled back at any time, besides draft tokens of its last
    row."""

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
        make_step: MakeStep = ModelStep,
        kv_cache: KVCacheDtype = "auto",
        tower: ImageRunner | None = None,
        draft_states: int = 0,
    ) -> None:
        """library, weights: folders made by the compiler, for this precision and kv_cache. read:
        gives what is in `weights`. make_step: makes what computes. tower: of a library for images.

        Raises BrokenLibrary or BrokenParams for what building again mends; InvalidField.
        """
        self._library, self._compute, self._weights = Library(library), Computing(), weights.name
        self._tower, self.metadata = tower, self._library.metadata
        metadata, device, info = self.metadata, self._library.device, self.metadata.kv
        windows = group_windows(info, window)
        images = self._image_rows(windows, device)
        sizes = Sizes(num_pages, max_num_sequence, max_batch_tokens, context_window, draft_states)
        self._limits = limits = limits_of(metadata, sizes, windows, precision, adapters=adapters)
        self._check(window, kv_cache, adapters)
        self._read, self._fetch, self._sampler = device.read, device.fetch, Sampler(self._library)
        self._step = make_step(self._library, read(weights), limits, window)
        self._cache = KVCache(
            info, self._step.page_counts, max_num_sequence, self._copy_pages, windows,
            states=self._state_table(), follows=metadata.eagle_group,
        )  # fmt: skip
        self._repeated, self._limits = self._repeating(device)
        self._carrier = Carrier(metadata, self._cache, self._step.pages, self._step.states, device)
        fast = FastTokens(metadata, precision)
        prepare = partial(Preparation, limits, device, self._cache, fast, images)
        self._next, self._drafting = prepare(), prepare(drafts=True)

    def _state_table(self) -> StateTable | None:
        """None: no layer is recurrent."""
        limits = self._limits
        if not limits.has_states:
            return None
        chunk = self.metadata.state_chunk
        return StateTable(limits.max_num_sequence, limits.draft_states, chunk)

    def _check(self, window: Window | None, pages: KVCacheDtype, adapters: AdapterLimits) -> None:
        """Raises InvalidField unless the library is made for what is asked."""
        check_window(self.metadata, window)
        check_page_format(self.metadata.kv, pages)
        check_adapters(self.metadata, adapters)

    def _repeating(self, device: Device) -> tuple[DecodeSteps | None, RunnerLimits]:
        """Where steps are repeated, they can be started early, unless a failure could not be undone
        (of two steps with states), or tokens are put into another order (fast ones)."""
        limits, repeats = self._limits, self._step.repeats
        if repeats is None:
            return None, limits
        is_plain = not limits.has_states and limits.precision == "exact"
        steps = DecodeSteps(self._step, self._sampler, repeats, device)
        return steps, replace(limits, overlaps=is_plain)

    @property
    def before_compute(self) -> Callable[[], None] | None:
        """Called before code runs for long without Python's lock: a good moment to wake threads."""
        return self._step.before_compute

    @before_compute.setter
    def before_compute(self, call: Callable[[], None] | None) -> None:
        self._step.before_compute = call

    @property
    def launches(self) -> int:
        """Kernels that have begun so far, those of the tower too. Any thread may ask. See
        `backends.device.Functions`."""
        of_images = 0 if self._tower is None else self._tower.launches
        return self._library.launches + of_images

    def _image_rows(self, windows: Sequence[Window | None], device: Device) -> ImageRows | None:
        """Raises BrokenLibrary unless the library is for images, or without, as this runner."""
        sight = self.metadata.sight
        if (sight is None) != (self._tower is None):
            raise BrokenLibrary("the library is not made for images as the model is")
        if sight is None or self._tower is None:
            return None
        return ImageRows(self._tower, sight, windows, self.metadata.hidden_size, device)

    @property
    def identity(self) -> str:
        """A hash of the library's code and of the name of the weights' folder, which in the cache
        is a hash of the model's bytes."""
        tower = "" if self._tower is None else self._tower.identity
        return self._library.identity(self._weights, tower)

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
        self._check_whole()
        return self._carrier.take(seq_id, self.identity, length)

    def import_pages(self, seq_id: int, transfer: Transfer, length: int) -> None:
        self._check_whole()
        transfer.check(self.identity, length)
        self._carrier.put(seq_id, transfer)

    def _check_whole(self) -> None:
        if not self._step.has_all_heads:
            raise TransferRefused("the pages of a sequence lie in several ranks")

    def load_adapter(self, slot: int, parts: AdapterParts) -> None:
        """Put a LoRA adapter into a slot."""
        adapters = self._step.adapters
        assert adapters is not None, "the library is one without adapters"
        adapters.load(slot, parts)

    def reset(self) -> None:
        self._cache.reset()

    def check_integrity(self) -> None:
        self._cache.check_integrity()

    def run(self, batch: Batch, *, drafts: bool = False) -> BatchOutput:
        pending = self.submit(batch, drafts=drafts)
        try:
            return self.collect(pending)
        except BaseException:
            self._roll_back(pending.batch.rows)
            raise

    def draft(self, batch: Batch) -> BatchOutput:
        """Let the EAGLE head draft a token behind each row, which has one token and one sampling.

        The row's token lies in the pages then, as after a step, and is to be rolled back: only the
        head has computed it. Raises `RequestError` if pages lack."""
        assert all(len(row.token_ids) == len(row.samplings) == 1 for row in batch.rows)
        return self.run(batch, drafts=True)

    def _roll_back(self, rows: Sequence[BatchRow]) -> None:
        """Nothing has happened: the core may run the rows again, one by one."""
        for row in rows:
            self._cache.rollback(row.seq_id, len(row.token_ids))

    def submit(
        self, batch: Batch, after: Pending | None = None, *, drafts: bool = False
    ) -> Pending:
        """Start a step. A device may still compute when this returns (`OverlappingRunner`).
        drafts: the EAGLE head computes the tokens, and not the model."""
        prepared = self._drafting if drafts else self._next
        prepared.prepare(batch.rows)
        numbers, choice = prepared.numbers, prepared.choice
        if after is not None:
            numbers = numbers._replace(taken=Taken.of(after.drawn[0], batch.rows))
        try:
            drawn, fetched = self._compute.call(self._started, numbers, choice, drafts)
        except BaseException:
            self._roll_back(batch.rows)
            raise
        self._last = Pending(batch, choice, drawn, fetched, drafts)
        return self._last

    def _started(
        self, numbers: StepNumbers, choice: Choice, drafts: bool
    ) -> tuple[list[DeviceTensor], Fetched]:
        repeated, hidden = self._repeated, None
        if repeated is not None and not drafts and repeated.fits(numbers, choice):
            if choice.is_plain:
                drawn = repeated.drawn(numbers, choice)
                return drawn, self._fetch(drawn)
            outputs, rest = repeated.outputs(numbers, choice)
        else:
            outputs, rest = self._step.outputs(numbers, choice.tables, drafts=drafts)
        if choice.hidden:
            *rest, rows = rest  # the list itself is kept for the next step
            hidden = self._step.last_hidden(item(outputs, HIDDEN), rows)
        drawn = self._sampler.draw(item(outputs, LOGITS), choice, rest)
        return drawn, self._fetch(drawn if hidden is None else [*drawn, hidden])

    def collect(self, pending: Pending) -> BatchOutput:
        """Wait for a step that was submitted, and read what it has chosen."""
        output = self._read_samples(pending)
        # A step that failed is rolled back, so reading comes first.
        if not (self._cache.keeps_all or pending.drafts):
            self._trim(pending.batch.rows, 0 if pending is self._last else 1)
        return output

    def _read_samples(self, pending: Pending) -> BatchOutput:
        fetched, rows = pending.fetched, pending.batch.rows
        if type(rows) is DecodeRows:
            tokens = self._sampler.tokens(pending.choice, fetched)
            if tokens is not None:
                return BatchOutput(ChosenTokens(tokens))
        samples, scores = self._sampler.sampled(pending.choice, fetched)
        if pending.choice.hidden:
            self._add_hidden(samples, pending.choice.hidden, fetched.values()[-1])
        return BatchOutput(by_row(rows, samples, scores))

    def _trim(self, rows: Sequence[BatchRow], behind: int) -> None:
        """behind: tokens of a step behind the one with these rows."""
        for row in rows:  # drafted tokens may be rolled back
            self._cache.trim(row.seq_id, behind + max(len(row.samplings) - 1, self.undone))

    def _add_hidden(self, samples: Sequence[Sampled], rows: Sequence[int], vectors: Array) -> None:
        for i, vector in zip(rows, vectors, strict=True):
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
                whole, wanted = self._next.without_images([row]), array("i", range(len(part)))
                numbers = self._next.placed(whole, array("i", whole[0].token_ids), wanted)
                outputs, _ = self._compute.call(self._step.outputs, numbers)
                self._cache.trim(seq_id)
                logits = self._read(item(outputs, LOGITS))
                yield logits[:, : self._limits.vocab_size].copy()
        finally:
            self._cache.remove(seq_id)

    def _copy_pages(self, group: int, source: list[int], target: list[int]) -> None:
        self._compute.call(self._step.copy_pages, group, source, target)
