"""What the metadata of a library says of its model."""

from __future__ import annotations

from mlc_llm.backends.base import Backend
from mlc_llm.backends.operands import AttentionBlocks
from mlc_llm.backends.ops import Ops
from mlc_llm.library.metadata import (
    AdaptedInfo,
    EncoderInfo,
    KVGroupInfo,
    KVInfo,
    SightInfo,
    StateInfo,
    TowerInfo,
)
from mlc_llm.models.spec import ModelSpec


def kv_info(spec: ModelSpec, backend: Backend, ops: Ops) -> KVInfo:
    """Sizes and types of the model's KV pages."""
    groups = []
    for group in spec.kv_groups:
        layers = [spec.paged_layers[i] for i in group.layers]
        blocks = ops.attention_blocks(layers[0]) if layers else AttentionBlocks(1, 1, 1)
        one = KVGroupInfo(
            layers=group.layers,
            kv_heads=group.kv_heads,
            head_dim=group.head_dim,
            window=group.window,
            query_block=blocks.query,
            fast_query_block=blocks.fast_query,
            kv_split=blocks.kv_split,
            apart=blocks.apart,
        )
        groups.append(one)
    return KVInfo(backend.page_size, backend.kv_dtype, tuple(groups))


def state_infos(spec: ModelSpec, ops: Ops) -> tuple[StateInfo, ...]:
    """What the recurrent layers of a model keep."""
    parts = ((i, part) for i, keeper in spec.keepers for part in ops.kept(keeper))
    return tuple(StateInfo(i, part.shape, part.by_chunk) for i, part in parts)


def adapted_infos(spec: ModelSpec, backend: Backend) -> tuple[AdaptedInfo, ...]:
    """The matrices that LoRA adapters may change."""
    dtype = backend.adapter_dtype
    return tuple(AdaptedInfo(one.name, one.columns, one.widths, dtype) for one in spec.adapted)


def eagle_group(spec: ModelSpec) -> int | None:
    """The group of layers with that of the EAGLE head; None if there is none."""
    return None if spec.eagle is None else spec.group_of_layer()[len(spec.layers)]


def encoder_info(spec: ModelSpec) -> EncoderInfo | None:
    """None for a decoder."""
    one = spec.encoder
    if one is None:
        return None
    return EncoderInfo(
        token_types=one.token_types,
        labels=one.labels,
        pair_pooling=one.pair.pooling,
        reaches=spec.reaches,
        width=one.projections[-1] if one.projections else spec.hidden,
        is_projected=bool(one.projections),
    )


def tower_info(spec: ModelSpec) -> TowerInfo | None:
    """None for all but towers of images."""
    one = spec.tower
    return None if one is None else TowerInfo(one.patches, one.patch_numbers, one.tokens, one.width)


def sight_info(spec: ModelSpec) -> SightInfo | None:
    """None for a decoder without images."""
    return None if spec.sight is None else SightInfo(spec.sight == "whole", spec.seeing_groups)
