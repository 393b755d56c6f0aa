"""The architectures: one row each, by the name that files give it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlc_llm.errors import UnsupportedModel
from mlc_llm.models import gemma3, llama, qwen3
from mlc_llm.models.weight_plan import Tensors, WeightPlan

Reader = Callable[[Mapping[str, Any], Tensors], WeightPlan]

ARCHITECTURES: dict[str, Reader] = {
    "gemma3": gemma3.read_gguf,
    "llama": llama.read_gguf,
    "qwen3": qwen3.read_gguf,
}
"""By `general.architecture` of GGUF: who reads the file's metadata."""


def check_architecture(metadata: Mapping[str, Any]) -> str:
    """The architecture's name, one of `ARCHITECTURES`. Raises UnsupportedModel."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModel(f"architecture {name!r} is not supported; supported: {known}")
    return name


def read_gguf(metadata: Mapping[str, Any], tensors: Tensors) -> WeightPlan:
    """What the model is and which tensors it takes. Raises UnsupportedModel, ModelFileError."""
    return ARCHITECTURES[check_architecture(metadata)](metadata, tensors)
