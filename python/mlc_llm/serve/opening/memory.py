"""How much memory a model takes, how much is free, and what other engines have been promised."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mlc_llm.backends.registry import choose_backend
from mlc_llm.library.metadata import FIRST_ROWS, PARAMS_ALIGNMENT
from mlc_llm.library.page_format import KVCacheDtype, block_elements, element_bytes
from mlc_llm.models.spec import KVGroup, ModelSpec
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.record import record
from mlc_llm.runtime.image_runner import KEPT_BYTES
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.limits import complete_config
from mlc_llm.serve.memory_plan import KVSize, MemoryPlan, ModelSize, StateSize
from mlc_llm.serve.opening.bundle import ModelBundle, Vision
from mlc_llm.serve.opening.shares import check_ranks, parts_of
from mlc_llm.serve.opening.step_numbers import token_numbers
from mlc_llm.support import promises
from mlc_llm.support.host_array import item_bytes
from mlc_llm.support.machine import describe
from mlc_llm.support.promises import PromiseHandle, Promises

if TYPE_CHECKING:
    from mlc_llm.backends.base import Backend

ASSUMED_FREE_BYTES = 4 * 2**30
"""Free memory on a system that does not say how much is free."""

_log = logging.getLogger(__name__)


@record()
class Memory:
    """The memory at one moment."""

    free: int
    """Bytes that the system counts as free."""
    standing: Promises
    is_of_device: bool = False
    """It is that of a GPU, which counts as taken as soon as it is allocated: nothing of it is
    promised."""

    def left(self, standing: Promises) -> tuple[int, str]:
        """Free bytes without what is promised by now, and these promises in words.

        An engine that promised itself memory after this look had touched nothing at the look.
        """
        then = [self.standing.get(name, one.fresh()) for name, one in standing.items()]
        free = self.free - sum(one.untouched for one in then)
        return max(free, 0), promises.in_words(then)

    def take(
        self, config: EngineConfig, size: ModelSize, model: str
    ) -> tuple[EngineConfig, MemoryPlan, PromiseHandle]:
        """The complete config and its plan. The memory of the plan is promised to the caller.

        Raises what `complete_config` raises.
        """
        with promises.turn():
            free, words = self._left_now()
            complete, plan = complete_config(config, size, free, words)
            total = plan.total(complete.max_total_sequence_length or 0)
            held = promises.promise(model, 0 if self.is_of_device else total)
        if words:
            alone, _ = complete_config(config, size, self.free)
            _warn_if_less(complete, alone, words)
        return complete, plan, held

    def _left_now(self) -> tuple[int, str]:
        return (self.free, "") if self.is_of_device else self.left(promises.standing())

    def opened(self, held: PromiseHandle, size: ModelSize) -> None:
        """Say that the engine of a promise has read its weights."""
        if self.is_of_device:
            return
        weights = size.weight_bytes + (0 if size.draft is None else size.draft.weight_bytes)
        with promises.turn():
            promises.settle(held, weights, self.standing)


def look_at_memory() -> Memory:
    """The memory now."""
    with promises.turn():
        standing = promises.standing()
    if any(one.is_own for one in standing.values()):
        gc.collect()  # an engine that nobody holds any more may wait for it
        with promises.turn():
            standing = promises.standing()
    return Memory(free_memory(), standing)


def memory_of_device(kernels: str | None, shards: int = 1) -> Memory | None:
    """The memory of the device of these kernels, of the fullest one if ranks have a device each;
    None: it is that of the machine. Raises UnusableDevice."""
    backend = choose_backend(kernels)
    if backend.free_memory(shards) is None:
        return None
    gc.collect()  # an engine that nobody holds any more may wait for it
    free = backend.free_memory(shards)
    assert free is not None
    return Memory(free, {}, is_of_device=True)


def free_memory() -> int:
    """Bytes that can be had without swapping."""
    free = describe().memory_free
    if free is None:
        assumed = ASSUMED_FREE_BYTES // 2**30
        _log.warning("this system does not say how much memory is free: %d GB are assumed", assumed)
        return ASSUMED_FREE_BYTES
    return free


def _adapter_bytes(plan: WeightPlan, backend: Backend) -> int:
    """Of an adapter of rank 1 that changes all matrices."""
    return element_bytes(backend.adapter_dtype) * sum(
        len(one.widths) * one.columns + sum(one.widths) for one in plan.with_adapters().spec.adapted
    )


def _state_size(spec: ModelSpec, backend: Backend) -> StateSize | None:
    """None if no layer keeps a state."""
    sizes = {False: 0, True: 0}
    for _, keeper in spec.keepers:
        for part in backend.kept(keeper):
            sizes[part.by_chunk] += 4 * math.prod(part.shape)
    chunk = backend.state_chunk(spec)
    return StateSize(sizes[False], sizes[True], chunk) if spec.keepers else None


def model_size(
    bundle: ModelBundle,
    kernels: str | None = None,
    kv_cache: KVCacheDtype = "auto",
    shards: int = 1,
) -> ModelSize:
    """The sizes that decide how much memory the model takes, by its header. No weight is read.

    kernels, kv_cache: see `EngineConfig`. shards: ranks that compute it, all in one memory. If each
    has a device of its own, the size is that of one rank: the largest, in every respect.

    Raises `UnsupportedModel`, `ModelFileError`, `InvalidField`.
    """
    assert bundle.files is not None
    backend = choose_backend(kernels).with_kv_cache(kv_cache)
    check_ranks(backend, shards)
    plan, parts = bundle.files.plan(), [one.plan() for one in parts_of(bundle.files, shards)]
    spec, shares = plan.spec, [one.spec for one in parts]
    layers = [one for share in shares for one in share.attention_layers.values()]
    is_apart = shards > 1 and backend.ranks_are_apart
    groups = _groups(shares) if is_apart else _groups([spec])
    return ModelSize(
        groups=tuple(_group_size(group, backend) for group in groups),
        query_width=max((one.query_width for one in layers), default=0),
        kv_width=max((one.kv_width for one in layers), default=0),
        head_dim=max((one.head_dim for one in layers), default=0),
        hidden_size=spec.hidden,
        intermediate_size=max(
            (layer.feed_forward.width for share in shares for layer in share.layers), default=0
        ),
        vocab_size=spec.vocab,
        context_window=bundle.context_window,
        weight_bytes=(max if is_apart else sum)(packed_bytes(one, backend) for one in parts),
        shards=1 if is_apart else shards,
        repeat_bytes=backend.repeat_bytes if shards == 1 and spec.encoder is None else 0,
        ropes=len(spec.ropes),
        states=_state_size(spec, backend),
        adapter_bytes=_adapter_bytes(plan, backend),
        sliding_window=bundle.sliding_window,
        attention_sinks=bundle.attention_sinks,
        is_encoder=spec.encoder is not None,
        token_numbers=max(map(token_numbers, shares)),
        tower_bytes=0 if bundle.vision is None else _tower_bytes(bundle.vision, backend),
        whole_image=_whole_image(bundle.vision),
        most_tokens=_most_tokens([_group_size(one, backend) for one in _groups(shares)], backend),
    )


def _most_tokens(groups: Sequence[KVSize], backend: Backend) -> int | None:
    """Tokens of whole pages, in the largest layer of any rank."""
    most, page = backend.most_page_numbers, backend.page_size
    if most is None:
        return None
    largest = max((group.elements // max(group.layers, 1) for group in groups), default=1)
    return most // (largest * page) * page


def _groups(shares: Sequence[ModelSpec]) -> tuple[KVGroup, ...]:
    """Each group of layers, of the share with the most heads. An encoder keeps one layer."""
    found = tuple(
        max(groups, key=lambda group: group.kv_heads)
        for groups in zip(*(one.kv_groups for one in shares), strict=True)
    )
    if shares[0].encoder is None:
        return found
    return tuple(replace(group, layers=group.layers[:1]) for group in found)


def _tower_bytes(vision: Vision, backend: Backend) -> int:
    """Of a tower: its weights, what an image needs while it is computed, and vectors that are
    kept."""
    plan = vision.files.plan()
    spec, tower, one = plan.spec, plan.spec.tower, plan.spec.attention_layers[0]
    assert tower is not None
    wide = tower.patch_numbers + 6 * spec.hidden + 6 * one.query_width
    wide += 3 * spec.layers[0].feed_forward.width
    return packed_bytes(plan, backend) + 4 * tower.patches * wide + KEPT_BYTES


def _whole_image(vision: Vision | None) -> int:
    """Tokens that have to be computed in one step."""
    return 0 if vision is None or vision.sight != "whole" else vision.reader.tokens


def packed_bytes(plan: WeightPlan, backend: Backend) -> int:
    """Size of the packed weights' file, as `compiler/weights.py` writes it."""
    total = 0
    for source in plan.vectors.values():
        is_whole = source.rows is None and source.kept is None
        numbers = math.prod(source.shape) if is_whole else source.count
        total = _aligned(total) + 4 * numbers
    for prefix, sources in plan.matrices.items():
        stack, columns = sources[0].shape[:-2], sources[0].width  # a matrix for each expert
        rows = sum(source.count for source in sources)
        shape, dtype = backend.layout(plan.spec.kinds[prefix]).shape(rows, columns)
        total = _aligned(total) + math.prod((*stack, *shape)) * item_bytes(dtype)
    for rope in plan.spec.ropes:
        total = _aligned(total) + 4 * 2  # what `rope_scaling_param` names
        for _ in range(2 if rope.long_after else 1):
            total = _aligned(total) + 4 * (rope.dim // 2)
            total = _aligned(total) + 4 * FIRST_ROWS * 2 * (rope.dim // 2)
    return total


def _group_size(group: KVGroup, backend: Backend) -> KVSize:
    layers, dtype, page = len(group.layers), backend.kv_dtype, backend.page_size
    if not layers:
        return KVSize(0, 1)  # a page table alone has about that: a number, and who uses it
    block = group.kv_heads * block_elements(dtype, page, group.head_dim)
    return KVSize(layers, 2 * layers * block // page, element_bytes(dtype), group.window)


def _aligned(offset: int) -> int:
    return offset + -offset % PARAMS_ALIGNMENT


def _warn_if_less(complete: EngineConfig, alone: EngineConfig, words: str) -> None:
    now, otherwise = complete.max_total_sequence_length, alone.max_total_sequence_length
    if now != otherwise:
        _log.warning("the KV cache holds %s tokens, not %s: memory is %s", now, otherwise, words)
