"""From a GGUF file's metadata to the plan of its architecture; no TVM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.gguf_llama import Plan, TensorInfo, read_llama

READERS = {"llama": read_llama}


def check_architecture(metadata: Mapping[str, Any]) -> str:
    """The architecture's name, one of `READERS`. Raises UnsupportedModel."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in READERS:
        raise UnsupportedModel(
            f"architecture {name!r} is not supported; supported: {', '.join(sorted(READERS))}"
        )
    return name


def read_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> Plan:
    """The model's shape and the way of its tensors. Raises UnsupportedModel, ModelFileError."""
    return READERS[check_architecture(metadata)](metadata, tensors)
