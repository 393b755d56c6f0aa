"""What computes the steps of a model: its library with weights, pages and tables in memory."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mlc_llm.library.metadata import BrokenLibrary, Metadata
from mlc_llm.library.signatures import COPY_PAGES, DRAFT_NEXT, FORWARD, LAST_HIDDEN
from mlc_llm.precision import Precision
from mlc_llm.runtime.adapters import AdapterMemory
from mlc_llm.runtime.kv_cache import (
    group_pages,
    group_windows,
    main_group,
    narrower_windows,
)
from mlc_llm.runtime.layer_memory import allocate_pages, allocate_states, window_tensors
from mlc_llm.runtime.library import Library
from mlc_llm.runtime.limits import (
    NO_ADAPTERS,
    AdapterLimits,
    RunnerLimits,
    Window,
    state_bases,
    state_slots,
)
from mlc_llm.runtime.packed_file import Packed
from mlc_llm.runtime.params import ordered_params, params_in, rotations
from mlc_llm.runtime.rope import RopeTables
from mlc_llm.runtime.state_table import StatePlace
from mlc_llm.runtime.step_inputs import StepInputs, StepNumbers, step_tables

if TYPE_CHECKING:
    import tvm_ffi

    from mlc_llm.backends.device import Device, DeviceTensor, Table

LOGITS, HIDDEN = 0, 1
"""Places in what `forward` returns."""


class Sizes(NamedTuple):
    """See `RunnerLimits`."""

    num_pages: int
    max_num_sequence: int
    max_batch_tokens: int
    context_window: int
    draft_states: int = 0


def limits_of(
    info: Metadata,
    sizes: Sizes,
    windows: Sequence[Window | None],
    precision: Precision = "exact",
    *,
    adapters: AdapterLimits = NO_ADAPTERS,
) -> RunnerLimits:
    """windows: of each group of layers."""
    return RunnerLimits(
        **sizes._asdict(),
        page_size=info.kv.page_size,
        vocab_size=info.vocab_size,
        window=windows[main_group(windows)],
        narrower=narrower_windows(windows),
        has_states=bool(info.states),
        hidden_size=info.hidden_size,
        precision=precision,
        adapters=adapters,
        whole_images=info.sight is not None and info.sight.is_whole,
    )


def _behind_states(limits: RunnerLimits, chunk: int) -> StatePlace:
    """Behind all slots and bases that sequences may have."""
    held = limits.max_num_sequence, limits.draft_states
    return StatePlace(state_slots(*held, chunk), state_bases(*held))


MOST_APART = 8
"""Steps of at most so many tokens are staged apart by their number: steps of two or three sizes
take turns while a sequence drafts, and each finds its tensors as it left them."""


class Staged:
    """The numbers of steps of one kind, on a device, and what compiled code is called with."""

    def __init__(self, device: Device) -> None:
        self.staging, self.inputs = device.staging(), StepInputs([], (), (), (), [])
        self.numbers: StepNumbers | None = None
        self.more: Sequence[Table] = ()
        self.tables: Sequence[Table] = ()
        """Of these numbers, and `more`."""
        self.ropes: Sequence[DeviceTensor] = ()
        self.arguments: Sequence[object] = ()
        """Of `forward`, for the tensors of `inputs` and these rotations."""


class ModelStep:
    """It knows pages and no sequences. One thread at a time."""

    has_all_heads = True
    """The pages hold all keys and values."""
    spare_state: StatePlace
    """One that no sequence has; it is there if steps repeat."""

    def __init__(
        self, library: Library, packed: Packed, limits: RunnerLimits, window: Window | None
    ) -> None:
        """window: of the engine. Raises BrokenParams, BrokenLibrary."""
        info, device = library.metadata, library.device
        if self.has_all_heads and info.shards != 1:
            raise BrokenLibrary(f"it is the library of one of {info.shards} ranks")
        self._copy, self._device = library[COPY_PAGES], device
        self._workspaces = library.workspaces
        self._staged = Staged(device)
        self._staged_apart: dict[tuple[bool, int], Staged] = {}
        """By who computes, the head or the model, and by the number of tokens."""
        arrays = params_in(packed)
        params = ordered_params(arrays, info.params, device)
        self._last_hidden = library.with_params(LAST_HIDDEN, params)
        far = None if window is None else window.far
        single = limits.context_window
        longest = single if far is None else min(single, far + 1)
        ropes = rotations(arrays, info.ropes, longest)
        spare = 0 if window is None else limits.max_batch_tokens
        self._ropes = RopeTables(ropes, device, far=far, step_tokens=spare)
        windows = group_windows(info.kv, window)
        self.page_counts = group_pages(windows, limits)
        """Of each group of layers. Behind them is one that no sequence has, if steps repeat."""
        self.repeats = device.repeats() if self.has_all_heads else None
        spares, self.page_size = int(self.repeats is not None), info.kv.page_size
        self.spare_state = last = _behind_states(limits, info.state_chunk)
        self.pages = allocate_pages(info.kv, [n + spares for n in self.page_counts], device)
        self.states = allocate_states(info.states, last.slot + spares, last.base + spares, device)
        slots = limits.adapters
        self.adapters = AdapterMemory(info.adapted, slots, device) if slots.slots else None
        factors = () if self.adapters is None else self.adapters.tensors
        seen = window_tensors(windows, device), self.pages, self.states
        kept = [tensor for tensors in seen for tensor in tensors]
        tokens = limits.max_batch_tokens
        self.forward = library.with_params(FORWARD, params, tokens, [*kept, *factors])
        self._draft_next = None
        if info.eagle_group is not None:
            self._draft_next = library.with_params(DRAFT_NEXT, params, tokens, kept)
        self.before_compute: Callable[[], None] | None = None
        """See `ModelRunner`."""

    def outputs(
        self, numbers: StepNumbers, more: Sequence[Table] = (), *, drafts: bool = False
    ) -> tuple[tvm_ffi.Array, list[DeviceTensor]]:
        """Logits behind the tokens at `logit_rows` and what they are made of, and the tables `more`
        as tensors. All go in at once, while the code that does it is in the processor's caches.

        drafts: the EAGLE head computes, and not the model."""
        inputs, rest = self.inputs(numbers, more, self._staged_for(numbers, drafts=drafts))
        self._workspaces.note(len(numbers.tokens))
        if self.before_compute is not None:
            self.before_compute()
        compute = self._draft_next if drafts else self.forward
        assert compute is not None, "there is no head"
        return compute(*inputs), rest

    def _staged_for(self, numbers: StepNumbers, *, drafts: bool) -> Staged:
        size = len(numbers.tokens)
        if size > MOST_APART:
            return self._staged
        found = self._staged_apart.get((drafts, size))
        if found is None:
            found = self._staged_apart[drafts, size] = Staged(self._device)
        return found

    def inputs(
        self, numbers: StepNumbers, more: Sequence[Table], staged: Staged
    ) -> tuple[Sequence[object], list[DeviceTensor]]:
        """What `forward` is called with, and the tables `more` as tensors. Nothing is made anew for
        the same objects, of which only the numbers have changed."""
        ropes, position, sink_position = self._ropes.rows(numbers.placed.position)
        is_new = numbers is not staged.numbers or more is not staged.more
        if is_new:
            staged.numbers, staged.more = numbers, more
            staged.tables = [*step_tables(numbers, position, sink_position), *more]
        tensors = staged.staging.tensors(*staged.tables)
        if numbers.taken is not None:
            numbers.taken.put(self._device, tensors[0])
        if is_new or tensors is not staged.inputs.tensors or ropes is not staged.ropes:
            staged.ropes = ropes
            staged.arguments = self._arguments(numbers, tensors, ropes, staged)
        return staged.arguments, staged.inputs.rest

    def _arguments(
        self,
        numbers: StepNumbers,
        tensors: list[DeviceTensor],
        ropes: Sequence[DeviceTensor],
        staged: Staged,
    ) -> Sequence[object]:
        if tensors is not staged.inputs.tensors:
            staged.inputs = StepInputs.of(tensors, numbers)
        _, single, by_group, more, _ = staged.inputs
        vectors = () if numbers.images is None else (numbers.images.vectors,)
        return (*single, ropes, *by_group, *more, *vectors)

    def last_hidden(self, hidden: DeviceTensor, rows: DeviceTensor) -> DeviceTensor:
        """Rows of what the logits are made of, behind the last norm."""
        return self._last_hidden(hidden, rows)

    def copy_pages(self, group: int, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy pages of a group of layers."""
        groups, none = len(self.page_counts), array("i")
        tables: list[Table] = []
        for ids in (source, target):
            tables += [(array("i", ids) if g == group else none, 0) for g in range(groups)]
        tensors = self._staged.staging.tensors(*tables)
        self._copy(tensors[:groups], tensors[groups:], self.pages)


MakeStep = Callable[[Library, Packed, RunnerLimits, Window | None], ModelStep]
"""Takes what `ModelStep` takes, and raises what it raises."""
