"""Numbers out of GGUF metadata, checked: the keys that most architectures share.

Source: the GGUF specification (ggml, docs/gguf.md), section "Architectures".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlc_llm.errors import ModelFileError, UnsupportedModel


class GGUFValues:
    """The values of one architecture; keys are given without its name in front."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self._metadata, self.architecture = metadata, architecture

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number above 0. Raises ModelFileError."""
        value = self._get(key, default)
        if type(value) is not int or not 0 < value < 2**31:
            raise ModelFileError(
                f"{self.architecture}.{key} is {value!r}; a whole number above 0 was expected"
            )
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0. Raises ModelFileError."""
        value = self._get(key, default)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value < 1e30:
            raise ModelFileError(
                f"{self.architecture}.{key} is {value!r}; a number above 0 was expected"
            )
        return float(value)

    def rope_linear(self) -> float:
        """Divisor of positions. Raises UnsupportedModel for another kind of scaling."""
        scaling = self._get("rope.scaling.type", "none")
        if scaling not in ("none", "linear"):
            raise UnsupportedModel(f"rope scaling type {scaling!r}; supported are none and linear")
        factor = self.positive("rope.scaling.factor", 1.0)
        return factor if scaling == "linear" else 1.0

    def whole_head_rope(self, head_dim: int) -> int:
        """`head_dim`, which is what must be rotated. Raises UnsupportedModel."""
        dim = self._get("rope.dimension_count", head_dim)
        if dim != head_dim:
            raise UnsupportedModel(f"rotary embedding over {dim} of {head_dim} elements of a head")
        return head_dim

    def has(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self._metadata

    def _get(self, key: str, default: Any) -> Any:
        return self._metadata.get(f"{self.architecture}.{key}", default)
