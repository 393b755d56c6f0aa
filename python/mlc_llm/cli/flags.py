"""Fields and the flags that set them: an error about a field names the flag to a user."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from mlc_llm.errors import InvalidField, UserError

ENGINE_FLAGS = {
    "max_single_sequence_length": "--context",
    "max_num_sequence": "--sequences",
    "prefill_chunk_size": "--chunk",
    "max_total_sequence_length": "--tokens",
    "gpu_memory_utilization": "--utilization",
    "speculative_mode": "--speculative",
    "additional_models": "--draft-model",
    "prompt_precision": "--precision",
    "kernels": "--kernels",
}
"""Fields of `EngineConfig` and the flags that set them."""


@contextmanager
def naming_flags(flags: Mapping[str, str] = ENGINE_FLAGS) -> Iterator[None]:
    """Turns an error about a field into a `UserError` about the flag that set it."""
    try:
        yield
    except InvalidField as error:
        raise UserError(with_flags(str(error), flags)) from error


def with_flags(text: str, flags: Mapping[str, str] = ENGINE_FLAGS) -> str:
    """`text` with the names of fields replaced by those of flags."""
    for name, flag in flags.items():
        text = re.sub(rf"(?<![\w-]){re.escape(name)}\b", flag, text)
    return text
