"""Decoders whose matrices may be changed by a LoRA adapter, token by token."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.base import Ops
from mlc_llm.backends.operands import AdapterInputs, Matrix
from mlc_llm.models.decoder import BaseDecoder, Decoder, RecurrentDecoder
from mlc_llm.models.spec import ModelSpec

FACTORS = 3
"""Tensors that the adapters of a matrix have: `AdapterInputs.down`, `up` and `ranks`."""


class AdaptedDecoder(Decoder):
    """A model whose layers all keep pages."""

    def forward(  # type: ignore[override]
        self,
        tokens: Tensor,
        position: Tensor,
        sink_position: Tensor,
        fast_tokens: Tensor,
        logit_rows: Tensor,
        ropes: list[Tensor],
        slots: list[Tensor],
        places: list[Tensor],
        query_blocks: list[Tensor],
        page_ids: list[Tensor],
        windows: list[Tensor],
        pages: list[Tensor],
        adapter_slots: Tensor,
        adapters: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        _adapt(self, adapter_slots, adapters)
        return super().forward(
            tokens, position, sink_position, fast_tokens, logit_rows, ropes, slots, places,
            query_blocks, page_ids, windows, pages,
        )  # fmt: skip


class AdaptedRecurrentDecoder(RecurrentDecoder):
    """A model some of whose layers keep a state."""

    def forward(  # type: ignore[override]
        self,
        tokens: Tensor,
        position: Tensor,
        sink_position: Tensor,
        fast_tokens: Tensor,
        logit_rows: Tensor,
        ropes: list[Tensor],
        slots: list[Tensor],
        places: list[Tensor],
        query_blocks: list[Tensor],
        page_ids: list[Tensor],
        windows: list[Tensor],
        pages: list[Tensor],
        state_rows: Tensor,
        states: list[Tensor],
        adapter_slots: Tensor,
        adapters: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        _adapt(self, adapter_slots, adapters)
        return super().forward(
            tokens, position, sink_position, fast_tokens, logit_rows, ropes, slots, places,
            query_blocks, page_ids, windows, pages, state_rows, states,
        )  # fmt: skip


def _adapt(model: BaseDecoder, slots: Tensor, factors: Sequence[Tensor]) -> None:
    """Tells the operations what the adapters of each matrix are."""
    found = []
    for i, one in enumerate(model.spec.adapted):
        down, up, ranks = factors[FACTORS * i : FACTORS * (i + 1)]
        found.append((_matrix(model, one.name), AdapterInputs(slots, down, up, ranks, one.widths)))
    model.ops.adapt(found)


def _matrix(model: nn.Module, name: str) -> Matrix:
    """The matrix of a name such as layers.0.qkv.q_k_v."""
    found = model
    for part in name.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    return found


def adapted_decoder_of(spec: ModelSpec, ops: Ops) -> BaseDecoder:
    """The decoder whose `forward` takes what the layers and the adapters of the model need."""
    return (
        AdaptedRecurrentDecoder(spec, ops) if spec.recurrent_layers else AdaptedDecoder(spec, ops)
    )
