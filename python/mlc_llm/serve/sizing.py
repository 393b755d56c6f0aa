"""What of a model and of this machine decides how much fits: sizes by the header, free memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import numpy as np

from mlc_llm.compiler.target import choose
from mlc_llm.compiler.weights import plan_model
from mlc_llm.kernels.formats import padded_rows, tensor_shape
from mlc_llm.model_lib import PARAMS_ALIGNMENT
from mlc_llm.models.gguf_llama import Plan, TensorInfo
from mlc_llm.serve.limits import ModelSize
from mlc_llm.serve.model_args import ModelBundle
from mlc_llm.support.machine import describe

_log = logging.getLogger(__name__)


def model_size(bundle: ModelBundle) -> ModelSize:
    """The sizes that decide how much memory the model takes. No weight is read.

    Raises UnsupportedModel, ModelFileError.
    """
    assert bundle.gguf is not None
    isa = choose().isa
    plan = plan_model(bundle.gguf.metadata, bundle.gguf.tensors, isa)
    shape = plan.config
    return ModelSize(
        layers=shape.layers,
        query_heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocab,
        context_window=bundle.context_window,
        weight_bytes=packed_bytes(plan, bundle.gguf.tensors),
        kv_element_bytes=np.dtype(isa.kv_dtype).itemsize,
        sliding_window=bundle.sliding_window,
        attention_sinks=bundle.attention_sinks,
    )


def packed_bytes(plan: Plan, tensors: Mapping[str, TensorInfo]) -> int:
    """Size of the packed weights' file, as `compiler/weights.py` writes it."""
    total = 0
    for name in plan.vectors.values():
        total = _aligned(total) + 4 * tensors[name].shape[0]
    for prefix, sources in plan.matrices.items():
        rows = sum(tensors[source.tensor].shape[0] for source in sources)
        columns = tensors[sources[0].tensor].shape[1]
        shape, dtype = tensor_shape(plan.config.formats[prefix], padded_rows(rows), columns)
        total = _aligned(total) + math.prod(shape) * np.dtype(dtype).itemsize
    return _aligned(total) + 4 * (plan.config.rope.dim // 2)


def free_memory() -> int:
    """Bytes that can be had without swapping."""
    free = describe().memory_free
    if free is None:
        _log.warning("this system does not say how much memory is free: 4 GB are assumed")
    return 4 * 2**30 if free is None else free


def _aligned(offset: int) -> int:
    return offset + -offset % PARAMS_ALIGNMENT
