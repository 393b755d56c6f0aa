"""Fields and their flags: an error about a field names the flag that the user knows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from mlc_llm.errors import InvalidField, UserError

ENGINE_FLAGS = {
    "max_single_sequence_length": "--context",
    "speculative_mode": "--speculative",
    "additional_models": "--draft-model",
    "precision": "--precision",
    "kv_cache_dtype": "--kv-cache-dtype",
    "kernels": "--kernels",
    "quantization": "--quantization",
    "rope_scaling": "--rope-scaling",
    "model_lib": "--model-lib",
    "adapters": "--adapter",
    "tensor_parallel_shards": "--tensor-parallel-shards",
    "pooling": "--pooling",
    "mmproj": "--mmproj",
    "allow_image_hosts": "--allow-image-hosts",
}
"""Field of `EngineConfig` -> the flag that sets it, of all commands with an engine."""


@contextmanager
def naming_flags(flags: Mapping[str, str] = ENGINE_FLAGS) -> Iterator[None]:
    """Turn an error about a field into a `UserError` about the flag that sets it."""
    try:
        yield
    except InvalidField as error:
        raise UserError(with_flags(str(error), flags)) from error


def with_flags(text: str, flags: Mapping[str, str] = ENGINE_FLAGS) -> str:
    """`text`, with the names of flags instead of the names of fields."""
    for name, flag in flags.items():
        text = re.sub(rf"(?<![\w-]){re.escape(name)}\b", flag, text)
    return text
