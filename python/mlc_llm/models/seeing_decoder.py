"""Decoders that take the vectors of images in place of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.base import Ops
from mlc_llm.backends.operands import LayerInputs
from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.decoder import BaseDecoder, Decoder, MixerInputs
from mlc_llm.models.spec import ModelSpec


class SeeingDecoder(Decoder):
    """A model whose tokens of images see what other tokens do, or that has no window."""

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
        vector_at: Tensor,
        vectors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        self.images = (vector_at, vectors)
        return super().forward(
            tokens, position, sink_position, fast_tokens, logit_rows, ropes, slots, places,
            query_blocks, page_ids, windows, pages,
        )  # fmt: skip


class WholeSeeingDecoder(Decoder):
    """A model with windows, whose tokens of images see the whole image."""

    def __init__(self, spec: ModelSpec, ops: Ops) -> None:
        super().__init__(spec, ops)
        self._first_seen: Sequence[Tensor] = ()

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
        vector_at: Tensor,
        first_seen: list[Tensor],
        vectors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        self.images, self._first_seen = (vector_at, vectors), first_seen
        return super().forward(
            tokens, position, sink_position, fast_tokens, logit_rows, ropes, slots, places,
            query_blocks, page_ids, windows, pages,
        )  # fmt: skip

    def _paged(
        self,
        position: Tensor,
        sink_position: Tensor,
        ropes: list[Tensor],
        tables: Sequence[list[Tensor]],
        pages: list[Tensor],
    ) -> dict[int, list[MixerInputs]]:
        found = super()._paged(position, sink_position, ropes, tables, pages)
        first = dict(zip(self.spec.seeing_groups, self._first_seen, strict=True))
        for i, group in self.spec.group_of_layer().items():
            (inputs,) = found[i]
            if group in first:
                assert isinstance(inputs, LayerInputs)
                found[i] = [replace(inputs, first_seen=first[group])]
        return found


def seeing_decoder_of(spec: ModelSpec, ops: Ops) -> BaseDecoder:
    """The decoder of a spec with a sight. Raises UnsupportedModel for layers with states, adapters
    and the engine's own windows."""
    if spec.recurrent_layers or spec.adapted or spec.has_sink_queries:
        words = "a decoder that takes images has no states, adapters or windows of the engine"
        raise UnsupportedModel(words)
    return WholeSeeingDecoder(spec, ops) if spec.seeing_groups else SeeingDecoder(spec, ops)
