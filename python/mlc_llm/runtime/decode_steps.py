"""Steps that only decode, in a few sizes, for devices that repeat a step with one call.

Such a device repeats a step whose tensors have the same shapes and addresses. So a step is filled
up to the next power of two with rows that belong to no sequence: each is the first token of a text
in a page that no sequence has. A row has the same bits whatever else is in the step.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from mlc_llm.library.state_format import STATE_ROW
from mlc_llm.runtime.batch import NO_ADAPTER
from mlc_llm.runtime.kv_cache import Placements
from mlc_llm.runtime.library import item
from mlc_llm.runtime.limits import MOST_REPEATED
from mlc_llm.runtime.model_step import LOGITS, ModelStep, Staged
from mlc_llm.runtime.sampler import Choice, Sampler
from mlc_llm.runtime.state_table import EMPTY
from mlc_llm.runtime.steady_rows import Placement
from mlc_llm.runtime.step_inputs import Numbers, StepNumbers

if TYPE_CHECKING:
    import tvm_ffi

    from mlc_llm.backends.device import Device, DeviceTensor, Repeats, Table

_FILLER = array("f", (0.0, 1.0, 0.0, 0.0))
"""The options of a row that nobody reads: the most likely token."""


class DecodeSteps:
    """Fills steps up, and has the device repeat them."""

    def __init__(self, step: ModelStep, sampler: Sampler, repeats: Repeats, device: Device) -> None:
        self._step, self._sampler, self._repeats, self._device = step, sampler, repeats, device
        self._kinds: dict[int, StepSize] = {}

    @staticmethod
    def fits(numbers: StepNumbers, choice: Choice) -> bool:
        """Whether each token of the step has a query block and a sampling of its own, and nothing
        else belongs to it."""
        count, placed = len(numbers.tokens), numbers.placed
        return (
            count <= MOST_REPEATED
            and count == len(choice.samplings) == len(numbers.logit_rows)
            and not choice.scored
            and not (numbers.images is not None and numbers.images.has_some)
            and placed.previous is None
            and all(len(one.query_blocks) == 3 * count for one in placed.groups)
            and (placed.state_rows is None or len(placed.state_rows) == STATE_ROW * count)
        )

    def drawn(self, numbers: StepNumbers, choice: Choice) -> list[DeviceTensor]:
        """The tokens of a plain choice: the step is repeated as a whole."""
        forward, sampler = self._step.forward, self._sampler
        size, inputs, rest = self._inputs(numbers, choice)

        def work() -> list[DeviceTensor]:
            return sampler.draw(item(forward(*inputs), LOGITS), choice, rest)

        return self._repeats.run(f"{size} tokens", [*inputs, *rest], work)

    def outputs(
        self, numbers: StepNumbers, choice: Choice
    ) -> tuple[tvm_ffi.Array, list[DeviceTensor]]:
        """As `ModelStep.outputs`: the model is repeated alone."""
        forward = self._step.forward
        size, inputs, rest = self._inputs(numbers, choice)
        return self._repeats.run(f"{size} logits", inputs, lambda: forward(*inputs)), rest

    def _inputs(
        self, numbers: StepNumbers, choice: Choice
    ) -> tuple[int, Sequence[object], list[DeviceTensor]]:
        """The rows of the step, the inputs of `forward`, and the tensors of the choice."""
        size = 1 << (len(numbers.tokens) - 1).bit_length()
        kind = self._kinds.get(size)
        if kind is None:
            kind = self._kinds[size] = StepSize(size, self._step, self._device)
        options, top_k, others = kind.tables(choice)
        filled = kind.filled(numbers)
        inputs, rest = self._step.inputs(filled, (options, top_k), kind.staged)
        if others:  # their sizes change, and the other tensors have to stay where they are
            rest = [*rest, *kind.others.tensors(*others)]
        if self._step.before_compute is not None:
            self._step.before_compute()
        return size, inputs, rest


class StepSize:
    """Steps of one size."""

    def __init__(self, size: int, step: ModelStep, device: Device) -> None:
        self._size, self._step = size, step
        self._room = [4 * size] * len(step.page_counts)
        """Page ids that each group has room for; it only grows, so that addresses stay."""
        self.staged, self.others = Staged(device), device.staging()
        self._choice: Choice | None = None
        self._tables: tuple[Table, Table, Sequence[Table]] | None = None

    def tables(self, choice: Choice) -> tuple[Table, Table, Sequence[Table]]:
        """Those of the choice, with options for the rows that were added: options, top_k, and the
        others."""
        (options, _), (top_k, _), *others = choice.tables
        if self._tables is None or choice is not self._choice:
            more = self._size - len(choice.samplings)
            self._choice = choice
            self._tables = (
                (array("f", options) + _FILLER * more, 4),
                (cast("Numbers", top_k) + _zeros(more), 0),
                others,
            )
        filled = cast("array[float]", self._tables[0][0])
        filled[: len(options)] = cast("array[float]", options)  # its random numbers change
        return self._tables

    def filled(self, numbers: StepNumbers) -> StepNumbers:
        count, placed = len(numbers.tokens), numbers.placed
        more = self._size - count
        adapters, states = numbers.adapters, placed.state_rows
        groups = [self._group(g, one, count) for g, one in enumerate(placed.groups)]
        if states is not None:
            spare = self._step.spare_state
            places = EMPTY, spare.slot, EMPTY, spare.base, 0
            rows = range(count, self._size)
            states = states + array("i", [n for row in rows for n in (row, 1, *places)])
        return numbers._replace(
            tokens=numbers.tokens + _zeros(more),
            placed=Placements(placed.position + _zeros(more), groups, states),
            logit_rows=array("i", range(self._size)),
            adapters=None if adapters is None else adapters + array("i", [NO_ADAPTER]) * more,
            images=None if numbers.images is None else numbers.images.with_more(more),
        )

    def _group(self, group: int, placed: Placement, count: int) -> Placement:
        more, page = self._size - count, self._step.page_counts[group]
        slots, places, blocks, ids = placed
        if more:
            own, rows = len(ids), range(count, self._size)
            blocks = blocks + array("i", [one for row in rows for one in (row, 1, own)])
            slots = slots + array("i", [page * self._step.page_size]) * more
            places, ids = places + _zeros(more), ids + array("i", [page])
        self._room[group] = max(self._room[group], 1 << (len(ids) - 1).bit_length())
        return Placement(slots, places, blocks, ids + _zeros(self._room[group] - len(ids)))


def _zeros(count: int) -> Numbers:
    return array("i", bytes(4 * count))
