"""From a model file's metadata to its architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.gguf_llama import Plan, TensorInfo, read_llama
from mlc_llm.models.llama import Llama

MODELS = {"llama": Llama}
"""Architecture name -> nn.Module class taking (ModelConfig, Isa, kv_dtype)."""

_READERS = {"llama": read_llama}


def read_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> Plan:
    """The model's shape and the way of its tensors. Raises UnsupportedModel, ModelFileError."""
    name = metadata.get("general.architecture")
    reader = _READERS.get(name) if isinstance(name, str) else None
    if reader is None:
        raise UnsupportedModel(
            f"architecture {name!r} is not supported; supported: {', '.join(sorted(_READERS))}"
        )
    return reader(metadata, tensors)
