"""How files store weights, and what the bytes mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlc_llm.quantization.schemes import QUANTIZATION

__all__ = ["QUANTIZATION"]


def __getattr__(name: str) -> Any:
    """The table of all formats, loaded when it is asked for: a model in the cache needs none."""
    if name != "QUANTIZATION":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from mlc_llm.quantization.schemes import QUANTIZATION

    return QUANTIZATION
