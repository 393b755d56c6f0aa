"""What of a model and of this machine decides how much fits: sizes by the header, free memory."""

from __future__ import annotations

import logging
import math

import numpy as np

from mlc_llm.backends.base import Backend
from mlc_llm.backends.registry import choose_backend
from mlc_llm.library.metadata import PARAMS_ALIGNMENT
from mlc_llm.models.registry import read_gguf
from mlc_llm.models.spec import KVGroup
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.serve.limits import KVSize, ModelSize
from mlc_llm.serve.model_args import ModelBundle
from mlc_llm.support.machine import describe

_log = logging.getLogger(__name__)


def model_size(bundle: ModelBundle, kernels: str | None = None) -> ModelSize:
    """The sizes that decide how much memory the model takes. No weight is read.

    kernels: as in `EngineConfig`.

    Raises UnsupportedModel, ModelFileError.
    """
    assert bundle.gguf is not None
    backend = choose_backend(kernels)
    plan = read_gguf(bundle.gguf.metadata, bundle.gguf.tensors)
    spec, layers = plan.spec, [layer.attention for layer in plan.spec.layers]
    return ModelSize(
        groups=tuple(_group_size(group, backend) for group in spec.kv_groups),
        query_width=max(one.query_width for one in layers),
        kv_width=max(one.kv_width for one in layers),
        head_dim=max(one.head_dim for one in layers),
        hidden_size=spec.hidden,
        intermediate_size=max(layer.intermediate for layer in spec.layers),
        vocab_size=spec.vocab,
        context_window=bundle.context_window,
        weight_bytes=packed_bytes(plan, backend),
        ropes=len(spec.ropes),
        sliding_window=bundle.sliding_window,
        attention_sinks=bundle.attention_sinks,
    )


def packed_bytes(plan: WeightPlan, backend: Backend) -> int:
    """Size of the packed weights' file, as `compiler/weights.py` writes it."""
    total = 0
    for source in plan.vectors.values():
        total = _aligned(total) + 4 * source.shape[0]
    for prefix, sources in plan.matrices.items():
        rows = sum(source.shape[0] for source in sources)
        layout = backend.layout(plan.spec.kinds[prefix])
        shape, dtype = layout.shape(rows, sources[0].shape[1])
        total = _aligned(total) + math.prod(shape) * np.dtype(dtype).itemsize
    for rope in plan.spec.ropes:
        total = _aligned(total) + 4 * (rope.dim // 2)
    return total


def _group_size(group: KVGroup, backend: Backend) -> KVSize:
    layers, width = len(group.layers), group.kv_heads * group.head_dim
    size = np.dtype(backend.kv_dtype).itemsize
    return KVSize(layers, 2 * layers * width, size, group.window)


def free_memory() -> int:
    """Bytes that can be had without swapping."""
    free = describe().memory_free
    if free is None:
        _log.warning("this system does not say how much memory is free: 4 GB are assumed")
    return 4 * 2**30 if free is None else free


def _aligned(offset: int) -> int:
    return offset + -offset % PARAMS_ALIGNMENT
