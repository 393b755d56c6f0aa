"""The arguments of a decoder's step."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.relax.frontend.nn import Tensor

from mlc_llm.record import record


@record()
class StepTensors:
    """`library/signatures.py` says what they are. Those of which a model has none are empty, or
    None, which no code of such a model reads."""

    tokens: Tensor
    position: Tensor
    sink_position: Tensor
    fast_tokens: Tensor
    logit_rows: Tensor
    ropes: Sequence[Tensor]
    slots: Sequence[Tensor]
    places: Sequence[Tensor]
    query_blocks: Sequence[Tensor]
    page_ids: Sequence[Tensor]
    windows: Sequence[Tensor]
    pages: Sequence[Tensor]
    state_rows: Tensor = None
    states: Sequence[Tensor] = ()
    previous: Tensor = None
    adapter_slots: Tensor = None
    adapters: Sequence[Tensor] = ()
    vector_at: Tensor = None
    first_seen: Sequence[Tensor] = ()
    vectors: Tensor = None
