"""The wire form of vLLM's KV events (0.33, `vllm/distributed/kv_events.py`), without msgpack.

A batch is an array: seconds since 1970, the events, and the data-parallel rank. An event is a map
with its name under `type`, as vLLM writes since June 2026, or the array of the same values, as it
did before. Readers of both kinds exist.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from mlc_llm.serve.kv_events.blocks import BLOCK_TOKENS
from mlc_llm.serve.kv_events.events import CacheEvent, Removed, Stored
from mlc_llm.serve.kv_events.settings import EventForm

MEDIUM = "GPU"
"""vLLM's name for the memory that the model itself reads; its CPU build says so too. Its other
names stand for slower memory behind that."""

Fields: TypeAlias = Mapping[str, object]


def batch(events: Sequence[CacheEvent], seconds: float, form: EventForm) -> list[object]:
    """A batch of rank 0."""
    written = [_fields(one) for one in events]
    if form == "array":
        return [seconds, [list(one.values()) for one in written], 0]
    return [seconds, written, 0]


def _fields(event: CacheEvent) -> Fields:
    """The fields of an event, in the order of the array form."""
    if isinstance(event, Stored):
        return {
            "type": "BlockStored",
            "block_hashes": list(event.keys),
            "parent_block_hash": event.parent,
            "token_ids": _unsigned(event.tokens),
            "block_size": BLOCK_TOKENS,
            "lora_id": None,
            "medium": MEDIUM,
            "lora_name": None,
            **_extra_keys(event),
        }
    if isinstance(event, Removed):
        return {"type": "BlockRemoved", "block_hashes": list(event.keys), "medium": MEDIUM}
    return {"type": "AllBlocksCleared"}


def _unsigned(ids: array[int]) -> list[int]:
    """As 32 bits without a sign, which routers read: tokens of images, which are below 0 here, are
    2^31 and more."""
    return memoryview(ids).cast("B").cast("I").tolist()


def _extra_keys(event: Stored) -> Fields:
    """What tells blocks of the same tokens apart. As in vLLM, a salt stands with the first block
    of a prompt alone: the other ones have it through their parents."""
    if not event.salt or event.parent is not None:
        return {}
    return {"extra_keys": [[event.salt], *[None] * (len(event.keys) - 1)]}
